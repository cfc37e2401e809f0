# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files that others wrote, opened so that nothing about them can stop or fill this process; and files
of our own, opened and written so that no other user can misdirect them.

What is to be read is a plain file: a pipe or a device would be waited for, or would never end. A
line has a bound, so that reading by lines needs no more memory than that, however large the
file says it is: a sparse one of terabytes costs nothing to make.

What root writes lies where only root, or the user who called sudo, can change a name: neither
a folder on the way nor a link in it belongs to another user, and others may write to a folder only
where it is sticky. A file of state (a lock, a PID, what was said last) is opened without following
a link, and is one that no other user can write to.

Costs a look at each piece that is read, at the speed of memory.

It cannot know: whether a file is written to while it is read.
"""

import contextlib
import errno
import io
import os
import select
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

# Of a line: more than any stack, sample of a watch or row of a table has; DuckDB takes no more.
MAX_LINE_BYTES = 2 << 20
# Of a file that is read as a whole, as those of /proc are: several times what 8 nodes and 512 CPUs
# print.
MAX_TEXT_BYTES = 16 << 20
PIECE = 64 << 10
MOST_LINKS = 40  # MAXSYMLINKS (include/linux/namei.h)


class LineTooLong(ValueError):
    """A line is longer than any that was written by us or by a kernel."""


def open_plain(path: str | os.PathLike[str]) -> int:
    """
    Open a plain file to read it; returns the descriptor.

    :raises OSError: it cannot be opened, or is something else (``EINVAL``, with words).
    """
    # A device may act on being opened.
    if stat.S_ISREG(os.stat(path).st_mode):
        # What has become a pipe since is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Some of /proc and tracefs are plain by their mode, and wait for more: kmsg, trace_pipe.
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and ready.poll(0):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EINVAL, "is not a plain file", os.fspath(path))


def trusted() -> tuple[set[int], set[int]]:
    """Users and groups that this process trusts; under sudo, those of the user who called it."""
    users, groups = {0, os.geteuid()}, {0, os.getegid()}
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError, ValueError):
            users.add(int(os.environ["SUDO_UID"]))
            groups.add(int(os.environ["SUDO_GID"]))
    return users, groups


def why_foreign(
    its: os.stat_result, users: Collection[int], groups: Collection[int] = ()
) -> str | None:
    """Why others than these can change a file or what is in a folder; None: they cannot."""
    if stat.S_ISLNK(its.st_mode):
        return "is a symbolic link"
    if its.st_uid not in users:
        return f"belongs to user {its.st_uid}"
    if its.st_mode & stat.S_IWOTH or (its.st_mode & stat.S_IWGRP and its.st_gid not in groups):
        return "may be written to by others"
    return None


def open_own(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """
    Open a file of state, which is made for its owner alone; returns the descriptor.

    :raises OSError: it cannot be opened, is a link or no plain file, or is another user's or for
        others to write to (``EINVAL``, ``EPERM``, with words).
    """

    def check(its: os.stat_result) -> None:
        if not stat.S_ISREG(its.st_mode):
            raise OSError(errno.EINVAL, "is not a plain file", os.fspath(path))
        if why := why_foreign(its, *trusted()):
            raise OSError(errno.EPERM, f"{why}, and is not used", os.fspath(path))

    with contextlib.suppress(FileNotFoundError):
        check(os.lstat(path))
    kept = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | kept, 0o600)
    try:
        check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_folder(folder: Path, *, alone: bool = False) -> None:
    """
    Refuse a folder of another user, or one that others may write to, to write in as root; so with
    each folder and link on the way to it. What is not there yet is passed over.

    :param alone: others may not add files to it either, as they may where it is sticky.
    :raises OSError: it is one (``EPERM``, with words).
    """
    if os.geteuid() != 0:
        return
    users, groups = trusted()
    for place in _on_the_way(folder):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            its = os.lstat(place)
            if stat.S_ISLNK(its.st_mode):
                why = None if its.st_uid in users else "is a link of another user"
            elif its.st_mode & stat.S_ISVTX and its.st_uid in users:
                why = None
            else:
                why = why_foreign(its, users, groups)
            if why:
                raise OSError(errno.EPERM, f"{why}; root does not use it", str(place))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if alone and (why := why_foreign(os.stat(folder), users, groups)):
            raise OSError(errno.EPERM, f"{why}; root does not use it", str(folder))


def _on_the_way(path: Path) -> Iterator[Path]:
    """
    Each folder and link that is passed on the way to a path, itself included, as the kernel does.

    :raises OSError: links lead in a circle (``ELOOP``).
    """
    left, here, links = [*reversed(path.absolute().parts)], Path("/"), 0
    while left:
        name = left.pop()
        here = here.parent if name == ".." else here / name
        yield here
        if here.is_symlink():
            if (links := links + 1) > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            left += reversed(here.readlink().parts)
            here = here.parent


def make_folder(folder: Path, mode: int = 0o777, *, alone: bool = False) -> None:
    """
    Make a folder, and those on the way to it, to write in.

    :param alone: as of :func:`check_folder`.
    :raises OSError: it cannot be made, or others may change it.
    """
    check_folder(folder, alone=alone)
    folder.mkdir(mode, parents=True, exist_ok=True)
    check_folder(folder, alone=alone)


def check_output(path: Path) -> None:
    """
    Refuse a name to write as root that is another user's, or in a folder that others may change.

    :raises OSError: it is one (``EPERM``, with words).
    """
    check_folder(path.parent)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        its, folder = os.lstat(path), os.stat(path.parent)
        if os.geteuid() == 0 and its.st_uid not in trusted()[0]:
            raise OSError(errno.EPERM, f"belongs to user {its.st_uid}; not replaced", str(path))
        # In a sticky folder anybody may give a file of root's another name.
        linked = stat.S_ISREG(its.st_mode) and its.st_nlink > 1
        if os.geteuid() == 0 and linked and folder.st_mode & stat.S_IWOTH:
            raise OSError(errno.EPERM, "has another name elsewhere; not replaced", str(path))


def read_plain(
    path: str | os.PathLike[str], most: int = MAX_TEXT_BYTES, *, own: bool = False
) -> bytes:
    """
    All of a plain file.

    :param own: it is a file of state (:func:`open_own`).
    :raises OSError: it cannot be read, is not a plain file, or (``EFBIG``) has more than *most*
        bytes.
    """
    descriptor = open_own(path) if own else open_plain(path)
    with open(descriptor, "rb", buffering=0) as file:
        why = f"has more than {most >> 20} MiB, which no such file has"
        too_large = OSError(errno.EFBIG, why, os.fspath(path))
        if os.fstat(file.fileno()).st_size > most:
            raise too_large
        pieces, size = [], 0
        # Those of /proc have no size.
        while piece := file.read(min(most + 1 - size, 1 << 20)):
            pieces.append(piece)
            if (size := size + len(piece)) > most:
                raise too_large
    return b"".join(pieces)


def read_text(path: str | os.PathLike[str]) -> str:
    """
    All of a plain file as text, in which names may be any bytes.

    :raises OSError: as of :func:`read_plain`.
    """
    return read_plain(path).decode("utf-8", "backslashreplace")


class _Bounded(io.FileIO):
    """A file that ends in an error where a line is longer than it may be."""

    def __init__(self, descriptor: int, most: int) -> None:
        super().__init__(descriptor, "rb")
        self._most, self._length, self._line = most, 0, 1

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        piece = bytes(memoryview(buffer)[:count])
        first = piece.find(b"\n")
        self._length += first if first >= 0 else len(piece)
        # Those that begin and end in one piece are no longer than that.
        if self._length > self._most:
            line = self._line
            raise LineTooLong(f"line {line:,} has more than {self._most:,} bytes, which none has")
        if first >= 0:
            self._line += piece.count(b"\n")
            self._length = len(piece) - piece.rfind(b"\n") - 1
        return count

    def readall(self) -> bytes:
        raise io.UnsupportedOperation("is read by lines, or so many bytes at a time")

    def seek(self, offset: int, whence: int = 0) -> int:
        self._length, self._line = 0, 1
        return super().seek(offset, whence)


def open_lines(path: str | os.PathLike[str], most: int = MAX_LINE_BYTES) -> io.BufferedReader:
    """
    Open a plain file to read its lines, each with at most so many bytes: then reading
    raises :class:`LineTooLong`.

    :raises OSError: it cannot be opened, or is not a plain file.
    """
    return io.BufferedReader(_Bounded(open_plain(path), most), PIECE)
