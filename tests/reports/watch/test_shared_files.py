# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of shared memory on this machine: those that a test makes and holds."""

import os
from pathlib import Path

import pytest

from mmscope.reports.watch import shared_files as subject
from mmscope.reports.watch.shared_files import shared_files

MIB = 1 << 20
SHM = Path("/dev/shm")


@pytest.mark.skipif(not os.path.ismount(SHM), reason="/dev/shm is no tmpfs here")
def test_files_by_name_and_by_who_has_them_open() -> None:
    stem = f"mmscope-test-{os.getpid()}"
    left, gone = SHM / f"{stem}-left", SHM / f"{stem}-gone"
    memfd = os.memfd_create(stem)
    try:
        os.write(memfd, bytes(3 * MIB))
        left.write_bytes(b"x" * (2 * MIB))
        with gone.open("wb") as file:
            file.write(b"x" * (2 * MIB))
            file.flush()
            gone.unlink()
            rows = {name: (size, held, pid) for (name, pid), size, held in shared_files("/", MIB)
                    if stem in name}  # fmt: skip
    finally:
        os.close(memfd)
        left.unlink()
    comm = Path("/proc/self/comm").read_text().rstrip()
    assert rows == {
        str(left): (2 * MIB, False, None),
        f"{gone} (deleted), open by {comm}": (2 * MIB, True, os.getpid()),
        f"memfd:{stem}, open by {comm}": (3 * MIB, True, os.getpid()),
    }


def test_small_files_of_a_mount_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_mounts", lambda root, least: [str(tmp_path)])
    monkeypatch.setattr(subject, "_open_files", lambda proc, mounts: {})
    (tmp_path / "below").mkdir()
    for number in range(4):
        (tmp_path / "below" / str(number)).write_bytes(b"x" * 300_000)
    os.link(tmp_path / "below/0", tmp_path / "again")
    ((name, pid), size, held) = next(iter(shared_files("/", MIB)))
    assert (name, pid, held) == (f"4 smaller files below {tmp_path}", None, False)
    assert 1_200_000 <= size < 2 * MIB


def test_more_than_a_watch_reads_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_LINKS", 1)
    with pytest.raises(ValueError, match="more than 1 open files"):
        list(shared_files("/", MIB))
