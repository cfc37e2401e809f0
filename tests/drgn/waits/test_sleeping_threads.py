# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads in D state, by text: of a made tree, and one of this host's own."""

import os
import time
from pathlib import Path

import pytest

from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.text.asleep import Clocks
from mmscope.drgn.waits import sleeping_threads as subject
from mmscope.drgn.waits.sleeping_threads import sleeping_threads
from mmscope.drgn.waits.wait_tables import TaskWait


def process(root: Path, pid: int, states: str) -> None:
    for thread, state in enumerate(states, pid):
        folder = root / f"proc/{pid}/task/{thread}"
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{thread} (a (b) c) {state} {' '.join(['1'] * 40)}\n")
        (folder / "wchan").write_text("vm_mmap_pgoff")
    (root / f"proc/{pid}/status").write_text(
        f"Name:\tjava\nState:\t{states[0]} (some)\nTgid:\t{pid}\nPid:\t{pid}\n"
        f"Threads:\t{len(states)}\n"
    )


def read(root: str | Path, found: Found | None = None) -> list[TaskWait]:
    return sleeping_threads(Files(Path(root)), found or Found())


def test_every_thread_in_d_state_is_told_with_its_process_and_where_it_sleeps(
    tmp_path: Path,
) -> None:
    process(tmp_path, 7, "SDDS")
    process(tmp_path, 20, "D")
    rows = [(row.pid, row.process, row.comm, row.stack, row.seconds) for row in read(tmp_path)]
    assert rows == [
        *((thread, 7, "java", "vm_mmap_pgoff", None) for thread in (8, 9)),
        (20, 20, "java", "vm_mmap_pgoff", None),
    ]


def test_with_too_many_threads_only_the_first_of_each_process_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_THREADS", 2)
    process(tmp_path, 7, "SDDS")
    process(tmp_path, 20, "D")
    found = Found()
    assert [row.pid for row in read(tmp_path, found)] == [20]
    assert found.remarks == ["threads in D state: of 3 only the first of each process"]


def test_how_long_a_task_of_this_host_has_slept_is_what_its_clock_says() -> None:
    """A vfork's parent sleeps in D state until its child ends."""
    if not Path("/proc/self/sched").exists():
        pytest.skip("this kernel has no /proc/PID/sched")
    ours = os.sched_getaffinity(0)
    begin = time.monotonic()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "30"], {})
    try:
        time.sleep(0.3)
        row = subject._row(Files(Path("/")), Clocks(), pid, "sleep", pid)
        passed = time.monotonic() - begin
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert row.seconds is not None and 0.05 <= row.seconds <= passed + 0.05
    assert os.sched_getaffinity(0) == ours
