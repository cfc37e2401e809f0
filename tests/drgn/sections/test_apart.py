# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files that may never answer are read by another process, which is left behind if it must be.

A FIFO that nobody writes to stands for the maps of a process whose mmap_lock is held: opening it
waits for ever. Unlike that, a signal ends the wait; what no signal ends is made by a kill() that
does nothing. The real thing is in lab/test_live_prices.py.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import children
import pytest
from checkout import ROOT

from mmscope.drgn.processes import processes
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import DeadlineExceeded
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

SOON = 0.3


@pytest.fixture
def reader() -> Iterator[ReaderApart]:
    with ReaderApart(SOON) as reader:
        yield reader


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    path = tmp_path / "stuck"
    os.mkfifo(path)
    return path


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def running(reader: ReaderApart) -> int:
    assert reader._process is not None
    return reader._process.pid


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 16, (1 << 20) + 1])
def test_a_file_is_read_whole(reader: ReaderApart, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert reader.read(tmp_path / "file") == content
    assert reader.read(str(tmp_path / "file")) == content


def test_one_process_reads_them_all(reader: ReaderApart) -> None:
    assert reader.read("/proc/self/stat").split()[0] == str(running(reader)).encode()
    pids = {reader.read("/proc/self/stat").split()[0] for _ in range(20)}
    assert len(pids) == 1


def test_what_cannot_be_read_says_why(reader: ReaderApart, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        reader.read(tmp_path / "gone")
    assert error.value.filename == str(tmp_path / "gone")
    with pytest.raises(IsADirectoryError):
        reader.read(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    assert reader.read(tmp_path / "file") == b"x"


def test_no_answer_costs_that_file_alone(reader: ReaderApart, tmp_path: Path, stuck: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert reader.read(tmp_path / "file") == b"x"
    first = running(reader)
    with pytest.raises(TimeoutError) as error:
        reader.read(stuck)
    assert error.value.strerror == f"no answer within {SOON} s"
    assert reader.read(tmp_path / "file") == b"x"
    assert running(reader) != first and not is_there(first) and reader.left == []


def test_a_process_that_cannot_be_ended_is_left_behind_and_named(
    reader: ReaderApart, tmp_path: Path, stuck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmscope.drgn.sections.apart.ENDS_WITHIN", 0.1)
    (tmp_path / "file").write_bytes(b"x")
    assert reader.read(tmp_path / "file") == b"x"
    pid = running(reader)
    with monkeypatch.context() as patch:
        # Made: no signal ends a process that sleeps in the kernel for good.
        patch.setattr(subprocess.Popen, "kill", lambda process: None)
        with pytest.raises(TimeoutError, match=f"process {pid}, which waits for it, cannot be"):
            reader.read(stuck)
    try:
        assert reader.left == [pid] and is_there(pid)
        # It keeps nobody waiting: its terminal, pipes and folder are not ours.
        held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert {path for path in held if not path.startswith("pipe:")} == {"/dev/null"}
        pipes = {path for path in held if path.startswith("pipe:")}
        ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in _fds() if _is_open(fd)}
        assert not pipes & ours
        assert os.readlink(f"/proc/{pid}/cwd") == "/" and os.getsid(pid) == pid
        assert reader.read(tmp_path / "file") == b"x"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fds() -> list[str]:
    return os.listdir("/proc/self/fd")


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_waiting_in_vain_has_an_end(tmp_path: Path, stuck: Path) -> None:
    with ReaderApart(SOON, in_all=SOON) as reader:
        words = []
        for _ in range(3):
            with pytest.raises(TimeoutError) as error:
                reader.read(stuck)
            words.append(error.value.strerror)
        assert words == [f"no answer within {s:g} s" for s in (SOON, 0.1, 0.1)]


def test_a_reader_that_somebody_killed_is_replaced(reader: ReaderApart, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    reader.read(tmp_path / "file")
    os.kill(running(reader), signal.SIGKILL)
    with pytest.raises(OSError, match="the process that was to read it has ended"):
        reader.read(tmp_path / "file")
    assert reader.read(tmp_path / "file") == b"x"


@pytest.mark.parametrize("end", [KeyboardInterrupt, DeadlineExceeded, ValueError])
def test_whatever_ends_the_reading_ends_the_process(
    tmp_path: Path, end: type[BaseException]
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(end), ReaderApart() as reader:
        reader.read(tmp_path / "file")
        pid = running(reader)
        raise end
    assert not is_there(pid)


def test_nobody_waits_for_one_that_is_left_behind(stuck: Path) -> None:
    """The command's output, read to its end, and its exit do not wait for it."""
    script = (
        "import subprocess, sys, mmscope.drgn.sections.apart as apart\n"
        "apart.ENDS_WITHIN = 0.1\n"
        "subprocess.Popen.kill = lambda process: None\n"  # made, as above
        "with apart.ReaderApart(0.2) as reader:\n"
        "    try:\n"
        "        reader.read(sys.argv[1])\n"
        "    except TimeoutError:\n"
        "        print(*reader.left)\n"
    )
    result = children.run(
        [sys.executable, "-W", "error", "-c", script, str(stuck)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    pid = int(result.stdout)
    try:
        assert is_there(pid) and result.returncode == 0 and result.stderr == ""
    finally:
        os.kill(pid, signal.SIGKILL)


def test_the_section_names_who_gave_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    for pid, vmas in ((7, 3), (8, 0), (9, 2), (10, 0)):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(f"comm-{pid}\n")
        if vmas:
            (root / f"proc/{pid}/maps").write_text("1-2 rw-p 0 0 0\n" * vmas)
        else:
            os.mkfifo(root / f"proc/{pid}/maps")
    monkeypatch.setattr("mmscope.drgn.sections.prices.is_live", lambda root: True)
    # A FIFO is refused as no plain file, which the maps of a process are.
    monkeypatch.setattr(Files, "_plain", lambda files, path: files.root / path)
    monkeypatch.setattr(processes, "ReaderApart", lambda: ReaderApart(SOON))
    begin = time.monotonic()
    section, found = run_section(SECTIONS["anon_vmas"], Files(root))
    assert section.status == "partial" and time.monotonic() - begin < 60
    assert "2 processes not counted: maps of 8, 10: no answer within 0.3 s" in str(section.message)
    assert [(row.pid, row.vmas) for row in found.tables[0].rows] == [(7, 3), (9, 2)]
