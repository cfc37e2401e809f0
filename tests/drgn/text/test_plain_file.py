# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of strangers: plain ones, with lines and sizes that have a bound."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from descriptors import said_of_kernel_log

from mmscope.drgn.text.plain_file import (
    LineTooLong,
    check_folder,
    check_output,
    make_folder,
    open_lines,
    open_own,
    open_plain,
    read_plain,
)

NO_ONE = 65534
STATE = (os.O_RDONLY, os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)],
    ids=["pipe", "folder", "device"],
)  # fmt: skip
def test_what_is_no_plain_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    for read in (open_plain, read_plain, open_lines):
        with pytest.raises(OSError, match="is not a plain file") as error:
            read(tmp_path / "x")
        assert error.value.filename == str(tmp_path / "x")


def test_what_is_plain_by_its_mode_and_waits_for_more_is_refused() -> None:
    def tried(path: Path) -> str | None:
        try:
            os.close(open_plain(path))
        except OSError as error:
            return error.strerror
        return None

    assert said_of_kernel_log(tried) == "is not a plain file"


@pytest.mark.parametrize("length", [70_000, 200_000])  # more than is read at once
@pytest.mark.parametrize("before", [0, 2, 65_530, 65_536, 300_000])
@pytest.mark.parametrize("end", [b"\n", b"\nx\n", b""])
def test_a_line_has_so_many_bytes_at_most(
    tmp_path: Path, length: int, before: int, end: bytes
) -> None:
    whole = b"a\n" * (before // 2) + b"y" * length + end
    (tmp_path / "x").write_bytes(whole)
    with open_lines(tmp_path / "x", most=length) as file:
        assert b"".join(file) == whole
    words = f"^line {before // 2 + 1:,} has more than {length - 1:,} bytes, which none has$"
    for wrapped in (False, True):
        with open_lines(tmp_path / "x", most=length - 1) as file:
            lines = io.TextIOWrapper(file) if wrapped else file
            with pytest.raises(LineTooLong, match=words):
                list(lines)


def test_lines_are_not_read_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\n")
    with open_lines(tmp_path / "x") as file, pytest.raises(io.UnsupportedOperation):
        file.read()


def test_a_file_that_is_read_whole_has_a_bound(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_plain(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="has more than 0 MiB") as error:
        read_plain(tmp_path / "x", 4)
    assert error.value.errno == errno.EFBIG
    assert b"MemTotal" in read_plain("/proc/meminfo")
    # That has no size: it is read to know.
    with pytest.raises(OSError, match="has more than 0 MiB"):
        read_plain("/proc/meminfo", 10)


# Files of our own. As root, in folders that another user may have a hand in.


def of_no_one(path: Path) -> None:
    os.chown(path, NO_ONE, NO_ONE, follow_symlinks=False)


@pytest.fixture(autouse=True)
def without_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("flags", STATE, ids=["read", "written"])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.symlink_to("victim"), "is not a plain file"),
        (lambda path: path.symlink_to("/no/such"), "is not a plain file"),
        (os.mkfifo, "is not a plain file"),
        (os.mkdir, "is not a plain file"),
        (lambda path: (path.touch(), of_no_one(path)), "belongs to user 65534, and is not used"),
        (lambda path: (path.touch(), path.chmod(0o666)), "may be written to by others"),
    ],
    ids=["link", "dangling link", "pipe", "folder", "of another user", "for all to write to"],
)
def test_a_file_of_state_that_others_may_have_made_is_refused(
    tmp_path: Path, flags: int, make: Callable[[Path], None], why: str
) -> None:
    (tmp_path / "victim").write_text("old")
    make(tmp_path / "x")
    with pytest.raises(OSError, match=why) as error:
        open_own(tmp_path / "x", flags)
    assert error.value.filename == str(tmp_path / "x")
    assert (tmp_path / "victim").read_text() == "old"


def test_a_file_of_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        os.close(open_own(tmp_path / "x", os.O_RDWR | os.O_CREAT))
    finally:
        os.umask(umask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    (tmp_path / "x").write_text("kept")
    assert read_plain(tmp_path / "x", own=True) == b"kept"


def planted(path: Path) -> None:
    """A link of another user's, to a folder of root's."""
    (path.parent / "roots").mkdir()
    path.symlink_to("roots")
    of_no_one(path)


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "of another user": (lambda path: (path.mkdir(), of_no_one(path)), "belongs to user 65534"),
    "sticky, of another user": (
        lambda path: (path.mkdir(), path.chmod(0o1777), of_no_one(path)),
        "belongs to user 65534",
    ),
    "for all to write to": (
        lambda path: (path.mkdir(), path.chmod(0o777)),
        "may be written to by others",
    ),
    "for a group to write to": (
        lambda path: (path.mkdir(), os.chown(path, 0, NO_ONE), path.chmod(0o775)),
        "may be written to by others",
    ),
    "behind a link of another user": (planted, "is a link of another user"),
}


@pytest.mark.parametrize("below", ["", "deep/er"], ids=["itself", "below"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_root_writes_in_no_folder_that_others_may_change(
    tmp_path: Path, kind: str, below: str
) -> None:
    make, why = FOREIGN[kind]
    make(tmp_path / "x")
    for refused in (make_folder, check_folder, lambda folder: check_output(folder / "file")):
        with pytest.raises(PermissionError, match=f"{why}; root does not use it") as error:
            refused(tmp_path / "x" / below)
        assert error.value.filename == str(tmp_path / "x")
    assert not os.listdir(tmp_path / "x")


def test_a_sticky_folder_is_for_what_is_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    check_output(folder / "new")
    (folder / "mine").touch()
    check_output(folder / "mine")
    (folder / "other").touch()
    (folder / "link").symlink_to("/etc/passwd")
    for name in ("other", "link"):
        of_no_one(folder / name)
        with pytest.raises(PermissionError, match="belongs to user 65534; not replaced"):
            check_output(folder / name)
    # Anybody may give a file of root's another name there (fs.protected_hardlinks=0).
    os.link(folder / "mine", folder / "twice")
    with pytest.raises(PermissionError, match="has another name elsewhere; not replaced"):
        check_output(folder / "twice")
    os.link(folder / "twice", tmp_path / "backup")
    check_output(tmp_path / "backup")
    with pytest.raises(PermissionError, match="may be written to by others"):
        check_folder(folder, alone=True)
    make_folder(folder / "captures", alone=True)


def test_a_link_of_ones_own_may_lead_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    make_folder(tmp_path / "link/new", 0o700)
    assert (tmp_path / "there/new").stat().st_mode & 0o777 == 0o700


def test_a_link_of_ones_own_may_not_lead_through_one_of_another_user(tmp_path: Path) -> None:
    """Where it leads is for the other to change."""
    planted(tmp_path / "theirs")
    (tmp_path / "roots/deep").mkdir()
    (tmp_path / "mine").symlink_to("theirs/deep")
    for folder in (tmp_path / "mine", tmp_path / "roots/../mine/er"):
        with pytest.raises(PermissionError, match="is a link of another user") as error:
            check_folder(folder)
        assert error.value.filename == str(tmp_path / "theirs")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        check_folder(tmp_path / "circle/x")


def test_under_sudo_folders_of_the_user_who_called_it_are_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir(mode=0o775)
    of_no_one(tmp_path / "home")
    with pytest.raises(PermissionError):
        check_output(tmp_path / "home" / "report.html")
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.setenv(name, str(NO_ONE))
    check_output(tmp_path / "home" / "report.html")
