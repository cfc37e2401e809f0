# SPDX-License-Identifier: LGPL-2.1-or-later
"""A budget of CPU time: it is kept over the run, and a deadline does not count what it waits."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import command_line
import pytest

from mmscope.reports.collect import priority
from mmscope.reports.collect.run_section import deadline
from mmscope.reports.commands import target_options


@pytest.fixture(autouse=True)
def no_budget_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The timer is off before the clock is the real one again, by which an hour would be owed."""
    handler = signal.getsignal(signal.SIGPROF)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, handler)


def work(seconds: float) -> None:
    """Take so much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.parametrize("percent", [10, 50])
def test_no_more_is_taken_than_the_budget(percent: float) -> None:
    began, used = time.monotonic(), time.process_time()
    priority.keep_to(percent)
    work(0.2)
    taken, passed = time.process_time() - used, time.monotonic() - began
    assert taken <= passed * percent / 100 + 0.1


def test_what_was_not_used_long_ago_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [time.monotonic()]
    priority.keep_to(50)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    now[0] += 3600
    monkeypatch.setattr(time, "sleep", slept.append)
    work(1.2)
    assert slept


def test_a_deadline_stands_still_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[tuple[float, float]] = []
    monkeypatch.setattr(
        time, "sleep", lambda _: timers.append(signal.getitimer(signal.ITIMER_REAL))
    )
    priority.keep_to(1)
    with deadline(600):
        work(0.1)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert timers and set(timers) == {(0.0, 0.0)}


@pytest.mark.parametrize("words", [(), ("--cpu-budget", "20")])
def test_a_command_keeps_to_the_budget_from_the_first_read_on(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    done: list[object] = []
    monkeypatch.setattr(target_options, "last_in_line", lambda: done.append("last in line"))
    monkeypatch.setattr(target_options, "keep_to", done.append)
    command_line.run("show", "settings", "--proc-root", tmp_path, *words)
    assert done == (["last in line", 20.0] if words else [])


def test_a_budget_is_for_one_process() -> None:
    done = command_line.run("show", "settings", "--jobs", "2", "--cpu-budget", "20")
    assert done.returncode == 2 and "not allowed with argument --jobs" in done.stderr


def test_a_process_with_a_budget_ends_as_it_would_without() -> None:
    # What Python does at its end takes more than a tick.
    program = (
        "import sys; from mmscope.reports.collect import priority; priority.keep_to(50)\n"
        "class Slow:\n    def __del__(self):\n        sum(range(5_000_000))\n"
        "sys.kept = Slow(); sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=command_line.ROOT, timeout=600)
    assert done.returncode == 3


@pytest.mark.parametrize("text", ["0", "101", "much"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    done = command_line.run("show", "settings", "--cpu-budget", text)
    assert done.returncode == 2 and "--cpu-budget" in done.stderr
