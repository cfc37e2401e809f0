# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks in D state while a host is watched: of a made tree, what a reading says, and its table."""

from pathlib import Path
from typing import Any

import pytest
from watched_host import samples_of

from mmscope.reports.watch import sleepers, watch_tables
from mmscope.reports.watch.sleepers import Sleepers


def task(root: Path, pid: int, tid: int, state: str, switches: int = 5, vsize: int = 1) -> None:
    folder = root / f"proc/{pid}/task/{tid}"
    folder.mkdir(parents=True, exist_ok=True)
    (root / f"proc/{pid}/comm").write_text("java\n")
    words = [state, *map(str, range(4, 23)), str(vsize), "24"]
    (folder / "stat").write_text(f"{tid} (a (b) c) {' '.join(words)}\n")
    (folder / "status").write_text(
        f"Name:\tx\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t2\n"
    )
    (folder / "wchan").write_text("vm_mmap_pgoff")


def test_a_task_that_sleeps_on_is_said_with_where_it_sleeps(tmp_path: Path) -> None:
    task(tmp_path, 7, 7, "S")
    task(tmp_path, 7, 8, "D")
    source = Sleepers(str(tmp_path))
    assert source.read() == []
    ((pid, name, thread, since, where),) = source.read()
    assert (pid, name, thread, where) == (7, "java", 8, "vm_mmap_pgoff")
    (again,) = source.read()
    assert again[3] == since


def test_a_task_that_last_ran_a_while_ago_slept_since_then(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """One reading is enough, as its own clock tells."""
    task(tmp_path, 7, 7, "D")
    monkeypatch.setattr(sleepers.Clocks, "asleep", lambda self, thread: 40.0)
    ((*_, since, where),) = Sleepers(str(tmp_path)).read()
    assert 40 <= sleepers.time.monotonic() - since < 60 and where == "vm_mmap_pgoff"


def test_a_task_that_was_on_a_cpu_meanwhile_sleeps_anew(tmp_path: Path) -> None:
    task(tmp_path, 7, 7, "D")
    source = Sleepers(str(tmp_path))
    source.read()
    task(tmp_path, 7, 7, "D", switches=6)
    assert source.read() == []
    ((*_, since, _),) = source.read()
    assert since > 0


def test_tasks_of_the_kernel_itself_and_those_that_may_be_woken_are_left_out(
    tmp_path: Path,
) -> None:
    task(tmp_path, 2, 2, "D", vsize=0)
    task(tmp_path, 7, 7, "S")
    source = Sleepers(str(tmp_path))
    source.read()
    assert source.read() == []


def test_where_only_root_may_read_it_is_not_known(tmp_path: Path) -> None:
    task(tmp_path, 7, 7, "D")
    (tmp_path / "proc/7/task/7/wchan").write_text("0")
    source = Sleepers(str(tmp_path))
    source.read()
    assert source.read()[0][-1] == ""


def test_too_many_tasks_are_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    task(tmp_path, 7, 7, "D")
    monkeypatch.setattr(sleepers, "MAX_TASKS", 0)
    source = Sleepers(str(tmp_path))
    assert source.read() == [] and source.unread == "more than 0 tasks"


def test_a_reading_is_due_as_it_costs_and_sooner_while_a_task_sleeps(tmp_path: Path) -> None:
    source = Sleepers(str(tmp_path))
    assert source.due
    source._budget._last, source._budget._spent = sleepers.time.monotonic() - 100, 1.0
    assert not source.due
    source._asleep = {(7, 7): (1, 0.0, "")}
    assert source.due


@pytest.mark.parametrize(("at", "rows"), [(4.0, 0), (10.0, 1)])
def test_the_table_has_the_longest_sleep_of_each(tmp_path: Path, at: float, rows: int) -> None:
    asleep = [7, "java", 8, 1000.0, "folio_wait_bit_common"]
    log = samples_of(tmp_path, [
        {"sleepers": [asleep], "sleepers_at": 1002.0, "sleepers_unread": ""},
        {"sleepers": [asleep], "sleepers_at": 1000.0 + at, "sleepers_unread": ""},
    ])  # fmt: skip
    found = watch_tables.sleepers(log)
    assert len(found) == rows
    assert all((row.task, row.time, row.seconds) == (8, 0.0, at) for row in found)


def test_a_load_that_nothing_running_explains_brings_the_next_reading_forward(
    tmp_path: Path,
) -> None:
    task(tmp_path, 7, 7, "S")
    source = Sleepers(str(tmp_path))
    source.read()
    source._budget._last, source._budget._spent = sleepers.time.monotonic() - 10, 0.1
    assert not source.due
    (tmp_path / "proc/loadavg").write_text("2.00 0.10 0.00 2/90 171\n")
    assert not source.due
    (tmp_path / "proc/loadavg").write_text("3.27 0.77 0.26 2/90 171\n")
    assert source.due
