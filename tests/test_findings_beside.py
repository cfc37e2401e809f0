# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of ``collect``, said by a process that got ready for it beside the reading."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from children import no_child_is_left
from command_line import run

from mmscope.reports.bundle.description import BundleError
from mmscope.reports.findings import findings_said

TREE = Path(__file__).parent / "data" / "7.2"


def instead(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """What that process does with the bundle, when it is written."""
    monkeypatch.setattr(findings_said, "_print", work)


def test_one_process_and_two_say_the_same(tmp_path: Path) -> None:
    # With a stdout of their own, which is what another process writes to.
    command = ("collect", "--proc-root", TREE, "-o", tmp_path / "b", "--force", "--jobs")
    said = [run(*command, jobs, env={**os.environ}) for jobs in (1, 2)]
    assert [each.returncode for each in said] == [1, 1]
    assert said[0].stdout == said[1].stdout
    assert " checks could be made." in said[0].stdout


def test_what_is_printed_here_comes_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instead(monkeypatch, lambda path: print("found", path.name))
    with findings_said.printed_by_another(tmp_path / "b") as say_findings:
        os.write(1, b"read\n")
        say_findings()
    assert capfd.readouterr().out == "read\nfound b\n"
    assert no_child_is_left()


def test_where_no_process_is_to_be_had_they_are_printed_here(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    no_forks: list[int],
) -> None:
    instead(monkeypatch, lambda path: print("found", path.name))
    with findings_said.printed_by_another(tmp_path / "b") as say_findings:
        print("read")
        say_findings()
    assert capsys.readouterr().out == "read\nfound b\n" and no_forks


def test_one_that_is_killed_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instead(monkeypatch, lambda path: os.kill(os.getpid(), signal.SIGKILL))
    with findings_said.printed_by_another(tmp_path / "b") as say_findings:
        say_findings()
    assert capsys.readouterr().err == (
        "mmscope: findings: the process that asks for them was killed by signal 9: "
        f"run 'mmscope findings {tmp_path / 'b'}'\n"
    )


def test_its_errors_are_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path) -> None:
        raise BundleError(f"{path.name}: no bundle")

    instead(monkeypatch, refuses)
    with (
        findings_said.printed_by_another(tmp_path / "b") as say_findings,
        pytest.raises(BundleError, match="b: no bundle"),
    ):
        say_findings()


def test_where_nothing_was_read_it_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(RuntimeError, match="refused"),
        findings_said.printed_by_another(tmp_path / "b"),
    ):
        raise RuntimeError("refused")
    assert no_child_is_left()
    assert capfd.readouterr() == ("", "")
