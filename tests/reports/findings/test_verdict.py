# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict: one word, and never *no trouble found* where a part was out of sight."""

import dataclasses
from pathlib import Path

import pytest
from finding_cases.case import TARGET, bundle
from finding_cases.cgroups import cgroup, pressure
from finding_cases.filesystems import on_filesystem
from finding_cases.ledger import swapped
from finding_cases.oom import complaint, oom_at_limit
from finding_cases.rows import GIB, MIB, event, ledger, owned, pages_of, zone

from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.findings.blind import BESIDE
from mmscope.reports.findings.finding import CANNOT_TELL, NO_TROUBLE, TROUBLE, Finding, Verdict
from mmscope.reports.findings.findings import (
    KERNEL,
    MEMORY,
    MORE,
    NOT_READ,
    OTHERWISE,
    RECORDING,
    RIGHTS,
    WATCH,
    WHOLE,
    evaluate,
)
from mmscope.reports.findings.verdict import first_incident, judge, verdict_of


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


def test_what_was_seen_comes_before_what_was_not() -> None:
    verdict = Verdict(
        [found(severity="notice", title="It hurts")], [], [], blind=["x was not read"]
    )
    judged = judge(verdict)
    assert judged.sentence == "Cannot tell all. 1 notice: It hurts. Not seen: x was not read."
    assert judged.short == "1 notice, nothing worse found by 1 of 1 check."
    assert judged.notice == "It hurts."


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
    assert judged.rests_on == "All 3 checks ran."


def test_what_a_recording_hides_does_not_stand_before_the_machine() -> None:
    hides = found("r", "critical", title="Samples were lost", harm="hides", section="profiles")
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


def test_a_dump_that_was_cut_short_is_never_all_clear(tmp_path: Path) -> None:
    missing = "1,000 bytes of the machine's memory lie behind the end of the file"
    for more, word in (({}, NO_TROUBLE), ({"truncated": missing}, CANNOT_TELL)):
        folder = tmp_path / word
        verdict = evaluate(bundle(folder, [zone()], target=TARGET | more))
        said = [f"the dump is not whole: {words}" for words in more.values()]
        assert verdict.word == word and verdict.blind == said


def test_a_section_that_no_check_stands_on_may_be_partial(tmp_path: Path) -> None:
    fared = [SectionResult("direct_map", "partial", 0.1, 1, 0, "x")]
    assert verdict_of(bundle(tmp_path / "b", [zone()], sections=fared)).word == NO_TROUBLE


# A million pages: a twentieth of them is 195 MiB, less than a GiB.
@pytest.mark.parametrize(("pages", "word"), [(49_000, NO_TROUBLE), (51_000, TROUBLE)])
def test_pages_without_an_owner(tmp_path: Path, pages: int, word: str) -> None:
    assert verdict_of(bundle(tmp_path / "b", ledger(pages))).word == word


LARGE = TARGET | {"total_pages": 100 * GIB // 4096}


@pytest.mark.parametrize(("gib", "word"), [(0.9, NO_TROUBLE), (1.1, CANNOT_TELL), (6, TROUBLE)])
def test_a_gib_without_an_owner_is_a_hole_on_a_machine_of_100(
    tmp_path: Path, gib: float, word: str
) -> None:
    pages = int(gib * GIB) // 4096
    rest, free, check = ledger(pages)
    free = dataclasses.replace(free, pages=100 * GIB // 4096 - pages)  # type: ignore[type-var]
    judged = verdict_of(bundle(tmp_path / "b", [rest, free, check], target=LARGE))
    assert judged.word == word
    if word == CANNOT_TELL:
        assert "1.1 GiB, 1.1 % of memory, has no known owner" in judged.sentence


@pytest.mark.parametrize(
    ("pages", "word"), [(49_000, NO_TROUBLE), (51_000, CANNOT_TELL), (130_000, TROUBLE)]
)
def test_what_all_counters_of_a_text_leave(tmp_path: Path, pages: int, word: str) -> None:
    part = "remainder of MemTotal, by subtraction"
    rest, free, _ = ledger(pages)
    rows = [dataclasses.replace(rest, part=part, node=-1, zone=""), free]  # type: ignore[type-var]
    assert verdict_of(bundle(tmp_path / "b", rows)).word == word


def test_a_dump_without_some_struct_pages(tmp_path: Path) -> None:
    rest, free, check = ledger(20_000)
    rest = dataclasses.replace(rest, part="struct page not readable")  # type: ignore[type-var]
    judged = verdict_of(bundle(tmp_path / "b", [rest, free, check]))
    assert judged.word == CANNOT_TELL
    assert "the struct pages of 78.12 MiB cannot be read" in judged.sentence


def test_memory_whose_stacks_are_known_is_no_hole(tmp_path: Path) -> None:
    rest, free, check = ledger(2 * GIB // 4096)
    free = dataclasses.replace(free, pages=98 * GIB // 4096)  # type: ignore[type-var]
    rows = [rest, free, check, owned(7, 500_000)]
    assert verdict_of(bundle(tmp_path / "b", rows, target=LARGE)).word != CANNOT_TELL


def test_what_other_checks_would_take(tmp_path: Path) -> None:
    fared = [SectionResult("memory_ledger", "absent", 0, 0, 0, "only in memory")]
    text = bundle(tmp_path / "b", [zone()], target=TARGET | {"kind": "files"}, sections=fared)
    wants = {item.id: item.wants for item in evaluate(text).not_checked}
    assert wants["unexplained-pages"] == MEMORY
    assert wants["profile-samples-lost"] == RECORDING
    assert wants["watch-oom-kill"] == WATCH
    assert "No trouble found by 3 checks, which do not see that" in judge(evaluate(text)).rests_on
    # Of a dump, as with --only, it is not that memory could not be read.
    dump = bundle(tmp_path / "c", [zone()], target=TARGET | {"kind": "vmcore"})
    wants = {item.id: item.wants for item in evaluate(dump).not_checked}
    assert wants["unexplained-pages"] == NOT_READ


@pytest.mark.parametrize(
    ("status", "kind", "takes"),
    [
        ("absent", "vmcore", KERNEL),
        ("absent", "live", RIGHTS),
        ("partial", "vmcore", WHOLE),
        ("partial", "files", MORE),
        ("ok", "live", OTHERWISE),
    ],
)
def test_what_a_check_on_a_section_that_was_read_would_take(
    tmp_path: Path, status: str, kind: str, takes: str
) -> None:
    fared = [SectionResult("memory_ledger", status, 0, 0, 0, None)]
    read = bundle(tmp_path / "b", [zone()], target=TARGET | {"kind": kind}, sections=fared)
    wants = {item.id: item.wants for item in evaluate(read).not_checked}
    assert wants["unexplained-pages"] == takes


@pytest.mark.parametrize(("zones", "cannot"), [("absent", True), ("ok", False)])
def test_a_recording_alone_says_nothing_of_the_machine(
    tmp_path: Path, zones: str, cannot: bool
) -> None:
    fared = [
        SectionResult(name, status, 0.1, 0, 0, None)
        for name, status in (("profiles", "ok"), ("zones", zones))
    ]
    opened = bundle(tmp_path / "b", [zone()] if zones == "ok" else [], sections=fared)
    assert (f"only a recording was read: {BESIDE}" in evaluate(opened).blind) == cannot


@pytest.mark.parametrize(("zones", "cannot"), [("absent", True), ("ok", False)])
def test_a_log_alone_says_nothing_is_well(tmp_path: Path, zones: str, cannot: bool) -> None:
    fared = [
        SectionResult(name, status, 0.1, 0, 0, None)
        for name, status in (("oom_kills", "ok"), ("kernel_complaints", "ok"), ("zones", zones))
    ]
    opened = bundle(tmp_path / "b", [zone()] if zones == "ok" else [], sections=fared)
    assert (f"only a log was read: {BESIDE}" in evaluate(opened).blind) == cannot


@pytest.mark.parametrize(("ledger", "cannot"), [("absent", True), ("ok", False)])
def test_a_file_of_proc_alone_says_nothing_is_well(
    tmp_path: Path, ledger: str, cannot: bool
) -> None:
    fared = [
        SectionResult(name, status, 0.1, 0, 0, None)
        for name, status in (("zones", "ok"), ("memory_ledger", ledger))
    ]
    blind = evaluate(bundle(tmp_path / "b", [zone()], sections=fared)).blind
    assert any("where memory went was not read" in words for words in blind) == cannot


@pytest.mark.parametrize(
    ("what", "blind"),
    [
        ("Fatal exception in interrupt", True),
        ("hung_task: blocked tasks", True),
        ("sysrq triggered crash", False),  # somebody wanted a dump
    ],
)
def test_why_a_kernel_panicked_is_not_known(tmp_path: Path, what: str, blind: bool) -> None:
    opened = bundle(tmp_path / "b", [zone(), complaint("kernel panic", what, "stopped")])
    said = f"no check looks at why the kernel panicked ({what})"
    assert (said in evaluate(opened).blind) == blind


@pytest.mark.parametrize(
    ("limit", "first"), [(64 * MIB, "cgroup-pressure"), (GIB, "memory-pressure")]
)
def test_what_the_machine_waits_is_of_the_cgroup_that_waits_at_its_limit(
    tmp_path: Path, limit: int, first: str
) -> None:
    build = cgroup(cgroup="/build", usage_bytes=63 * MIB, max_bytes=limit, file_bytes=40 * MIB)
    rows = [*pressure(45.0, None), *pressure(57.0, "/build"), build]
    verdict = evaluate(bundle(tmp_path / "b", rows))
    assert [each[0].id for each in first_incident(verdict).causes] == [first]
    assert len(first_incident(verdict).effects) == 1


@pytest.mark.parametrize(("kills", "word"), [(1, CANNOT_TELL), (3, TROUBLE)])
def test_a_limit_that_was_met_once_is_no_trouble_by_the_log_alone(
    tmp_path: Path, kills: int, word: str
) -> None:
    rows = [oom_at_limit(oom, pid=oom) for oom in range(1, kills + 1)]
    log = [SectionResult("oom_kills", "ok", 0.1, kills, 0, None)]
    assert verdict_of(bundle(tmp_path / "b", rows, sections=log)).word == word


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([event("oom_kill", 1), event("allocstall_normal", 3)], CANNOT_TELL),
        ([event("oom_kill", 1), event("allocstall_normal", 0)], NO_TROUBLE),
        ([event("oom_kill", 1), event("allocstall_normal", 3),
          cgroup(oom_events=1, oom_kill_events=1)], NO_TROUBLE),
        ([event("oom_kill", 1), event("allocstall_normal", 3), oom_at_limit()], NO_TROUBLE),
        ([event("oom_kill", 0), event("allocstall_normal", 3)], NO_TROUBLE),
    ],
    ids=["unknown whose", "no task reclaimed", "a cgroup's", "in the log", "none"],
)  # fmt: skip
def test_a_kill_of_which_nobody_says_for_whose_limit_is_not_cleared(
    tmp_path: Path, rows: list[object], word: str
) -> None:
    assert verdict_of(bundle(tmp_path / "b", rows)).word == word


def test_shared_memory_that_nobody_has_mapped_is_not_cleared_by_text(tmp_path: Path) -> None:
    """A process may have it open, or it may be left behind."""
    shmem = [pages_of("nr_shmem", 400_000), swapped(7, "job", 0)]
    assert verdict_of(bundle(tmp_path / "b", shmem)).word == CANNOT_TELL
    files = on_filesystem("tmpfs", 39.0, 0.0)
    assert verdict_of(bundle(tmp_path / "c", [*shmem, files])).word == NO_TROUBLE
