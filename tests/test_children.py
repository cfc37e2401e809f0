# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tests themselves end when they are told to, and begin as if started by hand."""

import os
import subprocess
import sys
from pathlib import Path

import children

TESTS = Path(__file__).resolve().parent
PATHS = (TESTS.parent, TESTS, TESTS / "support", TESTS / "lab")
CATCHES_ALL = """
import os, signal

def test_first():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    except BaseException:
        pass

def test_second():
    assert False, "begun"
"""
INTERRUPTS_CHILDREN = """
import signal, subprocess

def test_children():
    for number in (signal.SIGINT, signal.SIGHUP):
        child = subprocess.Popen(["sleep", "600"])
        child.send_signal(number)
        assert child.wait() == -number
"""
WITH_A_FOLDER = """
import children, signal, tempfile

children.exit_if_killed()
with tempfile.TemporaryDirectory(dir="."):
    print("made", flush=True)
    signal.pause()
"""


def ran(folder: Path, text: str, *before: str) -> tuple[int, str]:
    """Exit code and output of pytest over a file of tests, with the fixtures of these."""
    (folder / "test_it.py").write_text(text)
    process = children.start(
        [*before, sys.executable, "-m", "pytest", "-q", "-p", "conftest", "test_it.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": ":".join(map(str, PATHS))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, _ = process.communicate()
    return process.returncode, output


def test_no_test_begins_after_sigterm_whatever_the_one_before_caught(tmp_path: Path) -> None:
    code, output = ran(tmp_path, CATCHES_ALL)
    assert (code, "terminated" in output, "begun" in output) == (128 + 15, True, False), output


def test_children_are_interrupted_though_pytest_was_started_with_signals_ignored(
    tmp_path: Path,
) -> None:
    code, output = ran(tmp_path, INTERRUPTS_CHILDREN, "env", "--ignore-signal=INT,HUP")
    assert code == 0, output


def test_a_program_that_is_killed_takes_its_folder_with_it(tmp_path: Path) -> None:
    process = children.start(
        [sys.executable, "-c", WITH_A_FOLDER],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ":".join(map(str, PATHS))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "made\n"
    assert [*tmp_path.iterdir()]
    process.terminate()
    assert (process.wait(), [*tmp_path.iterdir()]) == (128 + 15, [])
