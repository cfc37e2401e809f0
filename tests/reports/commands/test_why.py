# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope why``: ten lines of 80 columns, whatever was given, and a command that runs."""

import os
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import TESTS
from given_inputs import LOG, TREE, put

from mmscope.reports.commands import why_command
from mmscope.reports.commands.command import main
from mmscope.reports.findings.finding import CANNOT_TELL, NO_TROUBLE
from mmscope.reports.findings.verdict import HARM_WORDS, Judgement
from mmscope.reports.inputs.given import Given

OLD = TESTS / "bundles" / "v0.1.0"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What ``why`` says, by label; it keeps to its ten lines."""
    main(["why", *words])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10 and max(len(line) for line in lines if line[:3] != "run") <= 80
    said: dict[str, str] = {}
    label = ""
    for line in lines:
        label = line[:9].strip() or label
        said[label] = f"{said.get(label, '')} {line[9:]}".strip()
    return said


def runs(capsys: pytest.CaptureFixture[str], command: str) -> bool:
    """True if a command that was said prints something and ends well."""
    program, *words = shlex.split(command)
    return program == "mmscope" and main(words) == 0 and bool(capsys.readouterr().out)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["dmesg.txt", "a folder with 'quotes'/dmesg.txt"])
def test_the_command_runs_as_it_stands(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(here, name, LOG)
    said = told(capsys, name, "-o", f"{name}.case")
    assert said["verdict"].startswith("Trouble (")
    assert said["next"].startswith("On the host")
    assert runs(capsys, said["run"])


def test_a_sosreport_s_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, str(TREE))
    assert said["cause"].startswith("breadth (pid 115) has 64.28 MiB of page tables")
    assert "owner" not in said  # whom the cause names
    assert said["bundle"].startswith("mmscope-2") and Path(said["bundle"]).is_dir()
    assert runs(capsys, said["run"])


def test_where_no_cause_is_named_it_says_who_has_the_memory(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"MemTotal": 8 << 20, "MemFree": 1 << 20, "Cached": 1 << 20, "AnonPages": 1 << 20}
    text |= {
        "Slab": 5 << 20,
        "SReclaimable": 4 << 20,
        "SUnreclaim": 1 << 20,
        "DirectMap2M": 8 << 20,
    }
    (here / "slab.txt").write_text("".join(f"{name}: {size} kB\n" for name, size in text.items()))
    said = told(capsys, "slab.txt")
    assert "cause" not in said and said["memory"].startswith(
        "the largest class in use is slab: 5 GiB, 62.5 % of memory; 4 GiB of it reclaimable; "
        "owner unknown. Other large classes: "
    )


def test_a_bundle_s_evidence_is_one_command_away(capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, str(OLD))
    assert said["run"].startswith("mmscope show ") and said["run"].endswith(str(OLD))
    assert runs(capsys, said["run"])


def test_a_lake_says_what_is_worst_and_where(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["lake", "add", str(OLD), "lake"])
    capsys.readouterr()
    said = told(capsys, "lake")
    assert said["read"] == "a lake of 1 host, 1 bundle (lake)"
    assert said["verdict"].endswith("On 1 of 1 host.")
    assert said["cause"].startswith("on 1 of 1 host, worst on ")
    assert "bundle" not in said
    assert runs(capsys, said["run"])


@pytest.mark.parametrize(("user", "command"), [(65534, "sudo mmscope why"), (0, "mmscope doctor")])
def test_without_arguments_it_says_how_to_see_more(
    user: int, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    judged = Judgement(CANNOT_TELL, "", "", unknowns=("14 need root or a vmcore",), short="x")
    answer = why_command.answer_of(Given(), Path("case"), judged, "live")
    lines = list(why_command.lines_of(answer))
    assert lines[2] == "unknown  14 checks need root or a vmcore"
    assert lines[-2:] == [f"run      {command}", "bundle   case"]


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        ("vmcore", NO_TROUBLE, "On the host: sudo mmscope watch -o watched"),
        ("vmcore", CANNOT_TELL, ""),
        ("files", CANNOT_TELL, "On the host, while it lasts: sudo mmscope why"),
        ("live", CANNOT_TELL, ""),
    ],
)
def test_a_host_that_crashed_is_not_said_to_run(kind: str, word: str, said: str) -> None:
    given = Given(kinds=["what was given"], bundles=[Path("case")])
    answer = why_command.answer_of(given, Path("case"), Judgement(word, "", ""), kind)
    assert (answer.next, answer.command) == (said, "mmscope findings case")
    # What is to be typed for the next step is there as it stands.
    assert answer.next_command == said.partition(": ")[2]


def test_a_notice_has_a_line_of_its_own() -> None:
    given = Given(kinds=["a log"])
    short = "1 notice, nothing worse found by 10 of 121 checks."
    judged = Judgement(CANNOT_TELL, "", "", short=short, notice="java was killed.")
    lines = [*why_command.lines_of(why_command.answer_of(given, Path("case"), judged, "files"))]
    assert lines[1:3] == [f"verdict  Cannot tell: {short}", "notice   java was killed"]


def test_who_may_not_write_here_finds_the_bundle_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert why_command._free_name().parent == Path(tempfile.gettempdir())


def test_an_owner_whom_the_cause_names_has_no_line_of_its_own() -> None:
    answer = why_command.Answer(["a log"], [], "trouble", "", "warning", owner="db (pid 7)")
    named = replace(answer, cause="db (pid 7) leaks 4 MiB/s")
    assert "owner" not in "".join(why_command.lines_of(named))
    other = replace(answer, cause="memory runs out in 3 h")
    assert any(line.startswith("owner") for line in why_command.lines_of(other))


def test_where_room_is_short_a_command_is_whole_and_harm_is_what_was_seen() -> None:
    answer = why_command.Answer(["a log"], [], "trouble", "", "warning", bundle="case")
    answer = replace(answer, cause="much to say " * 14, since="then", unknown=["all"])
    answer = replace(answer, next="On the host: " + "grep " * 20, command="mmscope findings case")
    rule = "\n".join(why_command.lines_of(replace(answer, harm=HARM_WORDS["stalls"])))
    seen = "\n".join(why_command.lines_of(replace(answer, harm="exits take 3 s")))
    assert "\nharm" not in rule and "\nharm" in seen
    assert rule.count("grep") == 20 and len(rule.splitlines()) <= 10
    assert "\nbundle" not in rule  # the command has it
    made = "\n".join(why_command.lines_of(replace(answer, harm=HARM_WORDS["stalls"], made=True)))
    assert made.endswith("\nbundle   case") and made.count("grep") == 20
    assert len(made.splitlines()) <= 10


def test_a_long_path_breaks_between_its_words() -> None:
    path = "/kubepods.slice/kubepods-burstable.slice/" + "pod-0123456789abcdef/" * 4 + "java"
    answer = why_command.Answer([], [], "trouble", "", severity="warning", cause=f"{path} is full")
    lines = [line[9:] for line in why_command.lines_of(answer) if "pod" in line]
    assert all(line[-1] in "/-." for line in lines[:-1]) and "".join(lines).startswith(path)
