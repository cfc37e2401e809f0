# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who was killed while a host is watched: of made records of the kernel's log, by a pipe."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmscope.drgn.text import kernel_log
from mmscope.reports.watch import kills as tested
from mmscope.reports.watch.kills import Kills

MACHINE = (
    "Out of memory: Killed process 162 (my (db) total-vm:9kB, x) total-vm:900kB, anon-rss:800kB, "
    "file-rss:4kB, shmem-rss:24kB, UID:0 pgtables:9kB oom_score_adj:0"
)
POD = MACHINE.replace("Out of", "Memory cgroup out of").replace("162", "163")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Says a record; a read of a pipe has one as long as they are read one by one."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    monkeypatch.setattr(tested, "is_live", lambda root: True)
    monkeypatch.setattr(kernel_log.stat, "S_ISCHR", stat.S_ISFIFO)
    monkeypatch.setattr(kernel_log.os, "lseek", lambda *_: 0)
    source = Kills(str(tmp_path))
    descriptor = os.open(tmp_path / "dev/kmsg", os.O_WRONLY)
    number = iter(range(1000))

    def say(text: str, priority: int = 3) -> Kills:
        os.write(descriptor, f"{priority},{next(number)},7,-;{text}\n".encode())
        return source

    yield say
    os.close(descriptor)


def test_a_kill_is_read_when_it_was_counted_with_its_name_and_limit(log: Any) -> None:
    source = log(MACHINE)
    assert source.read(5) == [], "before the watch"
    assert source.read(6) == [[162, "my (db) total-vm:9kB, x", "machine", 824 << 10]]
    log(POD)
    assert source.read(6) == [[163, "my (db) total-vm:9kB, x", "cgroup", 824 << 10]]
    log(MACHINE)
    assert source.read(6) == [], "none was counted for two samples"


def test_what_a_program_wrote_is_no_kill(log: Any) -> None:
    source = log(MACHINE, priority=11)
    source.read(0)
    assert source.read(1) == []


def test_a_copy_has_no_log_that_goes_on(tmp_path: Path) -> None:
    source = Kills(str(tmp_path))
    assert source.read(0) == source.read(3) == []
    assert source.unread
