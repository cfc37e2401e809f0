# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of shared memory on this machine: those that a test makes and holds."""

import os
from pathlib import Path

import pytest

from mmscope.drgn.processes import shared_files as subject
from mmscope.drgn.processes.shared_files import shared_files

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
            rows = [row for row in shared_files("/", MIB) if stem in row.name]
            _, all_seen = subject._open_files("/proc", [])
    finally:
        os.close(memfd)
        left.unlink()
    comm = Path("/proc/self/comm").read_text().rstrip()
    assert sorted(rows) == [
        (f"{gone} (deleted)", 2 * MIB, True, os.getpid(), comm),
        (str(left), 2 * MIB, False if all_seen else None, None, None),
        (f"memfd:{stem}", 3 * MIB, True, os.getpid(), comm),
    ]


def test_small_files_of_a_mount_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_mounts", lambda root, least: (set(), [str(tmp_path)]))
    monkeypatch.setattr(subject, "_open_files", lambda proc, mounts: ({}, True))
    (tmp_path / "below").mkdir()
    for number in range(4):
        (tmp_path / "below" / str(number)).write_bytes(b"x" * 300_000)
    os.link(tmp_path / "below/0", tmp_path / "again")
    name, size, _, pid, _ = next(iter(shared_files("/", MIB)))
    assert (name, pid) == (f"4 smaller files below {tmp_path}", None)
    assert 1_200_000 <= size < 2 * MIB


def test_what_is_mounted_on_a_tmpfs_or_linked_from_it_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of a server that does not answer."""
    asked = []
    monkeypatch.setattr(subject.os, "stat", lambda path: asked.append(path))
    for name in ("own", "mounted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "mounted")
    (tmp_path / "bound").write_bytes(b"x")
    points = {str(tmp_path / name) for name in ("mounted", "bound")}
    found = [path for path, _, _ in subject._names("/", str(tmp_path), points)]
    assert found == [str(tmp_path / "own/file")] and not asked


def test_a_tmpfs_that_something_is_mounted_over_is_not_asked(tmp_path: Path) -> None:
    for name in ("proc", "seen", "below/hidden", "over"):
        (tmp_path / name).mkdir(parents=True)
    mounts = [("tmpfs", name) for name in ("/seen", "/below/hidden", "/over")]
    mounts += [("nfs4", "/over"), ("fuse.sshfs", "/below"), ("ext4", "/seen/in\\040it")]
    text = "".join(f"x {where} {kind} rw 0 0\n" for kind, where in mounts)
    (tmp_path / "proc/mounts").write_text(text)
    points, found = subject._mounts(str(tmp_path), 0)
    assert found == ["/seen"] and "/seen/in it" in points


def test_a_file_of_another_mount_below_a_tmpfs_is_not_asked() -> None:
    process = f"/proc/{os.getpid()}"
    with Path(__file__).open("rb") as file:
        info = Path(f"{process}/fdinfo/{file.fileno()}").read_text()
    number = subject._MOUNT.search(info)
    assert number
    own = {line.split()[0]: line.partition(" - ")[2].split()[0]
           for line in Path(f"{process}/mountinfo").read_text().splitlines()}  # fmt: skip
    tmpfs = subject._tmpfs_mounts(process)
    assert (number[1] in tmpfs) == (own[number[1]] == "tmpfs")
    assert tmpfs == {each for each, kind in own.items() if kind == "tmpfs"}


def test_of_other_users_processes_it_is_not_said_that_they_have_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(
        subject.os, "listdir", lambda path: ["7"] if path == "/proc" else refuse(path)
    )
    assert subject._open_files("/proc", []) == ({}, False)


def test_more_than_is_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_LINKS", 1)
    with pytest.raises(ValueError, match="more than 1 open files"):
        list(shared_files("/", MIB))
