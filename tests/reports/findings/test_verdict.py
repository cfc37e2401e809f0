# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict: one word, and never *no trouble found* where a part was out of sight."""

from pathlib import Path

import pytest
from finding_cases.case import TARGET, bundle
from finding_cases.rows import zone

from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.findings.findings import (
    CANNOT_TELL,
    MEMORY,
    NO_TROUBLE,
    RECORDING,
    TROUBLE,
    WATCH,
    Finding,
    Verdict,
    evaluate,
)
from mmscope.reports.findings.verdict import judge, verdict_of


def found(id: str = "x", severity: str = "warning", **changes: object) -> Finding:
    words = {
        "title": "It hurts",
        "saw": "s",
        "why": "w",
        "next": (),
        "links": (),
        "section": "zones",
    }
    return Finding(id=id, severity=severity, **(words | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (Verdict([], [("a", "A")], []), NO_TROUBLE),
        (Verdict([found(severity="notice")], [], []), NO_TROUBLE),
        (Verdict([found()], [], []), TROUBLE),
        (Verdict([found()], [], [], blind=["x"]), TROUBLE),
        (Verdict([found(harm="hides")], [], []), NO_TROUBLE),
        (Verdict([], [("a", "A")], [], blind=["x"]), CANNOT_TELL),
        (Verdict([found(severity="notice")], [], [], blind=["x"]), CANNOT_TELL),
        (Verdict([], [], []), CANNOT_TELL),
    ],
)
def test_the_word(verdict: Verdict, word: str) -> None:
    judged = judge(verdict)
    assert judged.word == word
    assert judged.sentence.lower().startswith(word)


def test_what_is_wrong_whose_it_is_and_since_when() -> None:
    cause = found(
        "cause",
        title="Slab cache x has 4 GiB",
        owner="slab cache x",
        explains=("short",),
        since="noon",
    )  # fmt: skip
    effect = found("effect", "critical", title="Memory ran out", symptom="short", harm="ends work")
    judged = judge(Verdict([effect, cause], [("a", "A")], []))
    assert (judged.word, judged.severity) == (TROUBLE, "critical")
    assert judged.sentence == "Trouble: Memory ran out. Likely cause: Slab cache x has 4 GiB."
    assert (judged.cause, judged.harm) == ("Slab cache x has 4 GiB", "Memory ran out")
    assert (judged.owner, judged.since) == ("slab cache x", "noon")
    assert judged.rests_on == "All 3 checks could be made."


def test_what_a_recording_hides_does_not_stand_before_the_machine() -> None:
    hides = found("r", "critical", title="Samples were lost", harm="hides")
    assert judge(Verdict([hides, found()], [], [])).cause == "It hurts"


@pytest.mark.parametrize(
    ("status", "message"), [("failed", "layout not known"), ("partial", "8 KiB cannot be read")]
)
def test_a_section_that_checks_stand_on_must_be_whole(
    tmp_path: Path, status: str, message: str
) -> None:
    fared = [SectionResult("zones", status, 0.1, 1, 0, message)]
    judged = verdict_of(bundle(tmp_path / "b", [zone()], sections=fared))
    assert judged.word == CANNOT_TELL
    how = "was read in part" if status == "partial" else "could not be read"
    assert f"Cannot tell: section zones {how}: {message}" in judged.sentence
    assert message in judged.unknowns[0]


def test_a_section_that_no_check_stands_on_may_be_partial(tmp_path: Path) -> None:
    fared = [SectionResult("direct_map", "partial", 0.1, 1, 0, "x")]
    assert verdict_of(bundle(tmp_path / "b", [zone()], sections=fared)).word == NO_TROUBLE


def test_what_other_checks_would_take(tmp_path: Path) -> None:
    fared = [SectionResult("memory_ledger", "absent", 0, 0, 0, "only in memory")]
    text = bundle(tmp_path / "b", [zone()], target=TARGET | {"kind": "files"}, sections=fared)
    wants = {item.id: item.wants for item in evaluate(text).not_checked}
    assert wants["unexplained-pages"] == MEMORY
    assert wants["profile-samples-lost"] == RECORDING
    assert wants["watch-oom-kill"] == WATCH
    assert judge(evaluate(text)).rests_on.startswith("No trouble found by ")
