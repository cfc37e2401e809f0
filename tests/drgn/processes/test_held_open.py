# SPDX-License-Identifier: LGPL-2.1-or-later
"""What processes of this host have open and have not mapped, as tables."""

import os
from pathlib import Path

import pytest

from mmscope.drgn.processes import held_open as subject
from mmscope.drgn.processes.held_open import SharedFile, SocketBuffers, add_held_open
from mmscope.drgn.processes.shared_files import Found as Seen
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found

MIB = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are worth a row."""
    monkeypatch.setattr(subject, "SHARED_PART", 0)
    monkeypatch.setattr(subject, "PART", 0)


def read(mapped: int = 0, root: str = "/") -> dict[str, list[SharedFile | SocketBuffers]]:
    found = Found()
    add_held_open(Files(Path(root)), found, mapped)
    return found.by_name


@pytest.mark.usefixtures("small")
def test_a_memfd_is_named_with_who_has_it_open() -> None:
    memfd = os.memfd_create("mmscope-held")
    try:
        os.write(memfd, bytes(3 * MIB))
        rows = [row for row in read()["shared_files"] if "mmscope-held" in str(row)]
    finally:
        os.close(memfd)
    comm = Path("/proc/self/comm").read_text().rstrip()
    assert rows == [SharedFile("memfd:mmscope-held", os.getpid(), comm, 3 * MIB, True)]


@pytest.mark.usefixtures("small")
def test_a_file_that_nobody_has_open_may_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Seen("/dev/shm/left", 50 * MIB, False), Seen("/dev/shm/unseen", 40 * MIB, None)]
    monkeypatch.setattr(subject, "shared_files", lambda root, least: iter(found))
    held = {mapped: [row.held for row in read(mapped)["shared_files"]] for mapped in (0, 6 * MIB)}
    assert held == {0: [False, None], 6 * MIB: [None, None]}


def test_smaller_files_have_rows_where_many_cgroups_are_dying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(subject, "shared_files", lambda root, least: asked.append(least) or ())
    monkeypatch.setattr(Files, "live", True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 1438088 kB\nMemFree: 1175512 kB\nShmem: 12172 kB\n"
    )
    stat = tmp_path / "sys/fs/cgroup/cgroup.stat"
    stat.parent.mkdir(parents=True)
    for dying in (900, 2733):
        stat.write_text(f"nr_descendants 8\nnr_dying_descendants {dying}\n")
        read(root=str(tmp_path))
    assert asked == [12172 * 1024 // 10]


def test_sockets_are_told_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(("sshd", 9), 5, 1), (("ingestd", 160), 9 * MIB, 400)]
    monkeypatch.setattr(subject, "socket_memory", lambda root, least: iter(found))
    rows = read()["socket_buffers"]
    assert rows == [SocketBuffers("ingestd", 160, 9 * MIB, 400), SocketBuffers("sshd", 9, 5, 1)]


def test_a_copy_has_neither(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert read(root=str(tmp_path)) == {}
