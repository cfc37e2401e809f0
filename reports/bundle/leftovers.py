# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files that are whole or absent, and what a process that was killed left beside their names.

Bundles and reports are written under another name, ``.NAME.XXXXXXXX.partial``, and renamed when
they are whole. That name is not read. Who writes there holds its lock (``flock``), which ends with
the process, however it ends. So the next one to write the same name sees it, and clears up.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PREFIX, SUFFIX = ".{}.", ".partial"
SCRATCH = "mmscope"
# Links and devices there are the system's.
DEVICES = {Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd")}


def is_special(path: Path) -> bool:
    """True if there is what no file may take the place of: a device, a pipe, a folder."""
    return path.exists() and (not path.is_file() or path.parent in DEVICES)


def unfinished(path: Path, *, folder: bool = True) -> tuple[Path, int]:
    """
    Make a folder, or a file, that takes a name when it is whole; returns it, and the descriptor of
    what is open there and holds its lock: of a file, to be written.

    :raises OSError: it cannot be made.
    """
    prefix = PREFIX.format(path.name)
    while True:
        if folder:
            name = tempfile.mkdtemp(SUFFIX, prefix, path.parent)
            try:
                lock = os.open(name, os.O_RDONLY)
            except FileNotFoundError:  # taken for a leftover before it was locked
                continue
        else:
            lock, name = tempfile.mkstemp(SUFFIX, prefix, path.parent)
        # A file system without locks: that is unknown there, and nothing is removed.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(name):
            return Path(name), lock
        os.close(lock)


def is_unfinished(name: str, path: Path) -> bool:
    """True if this is a name that the path has until it is whole."""
    return name.startswith(PREFIX.format(path.name)) and name.endswith(SUFFIX)


def clear_up(path: Path) -> None:
    """Remove what was left by those who wrote this name and were killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(path.parent):
            if is_unfinished(entry.name, path):
                with contextlib.suppress(OSError):
                    remove_if_left(Path(entry.path))


def remove_if_left(place: Path) -> None:
    """
    Remove a file or folder that is not written any more.

    :raises OSError: it is being written, or cannot be removed.
    """
    if place.is_symlink():
        return
    lock = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink()
    finally:
        os.close(lock)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """
    A folder of this process's own, as long as the block lasts; those that other processes of this
    user left when they were killed are removed first.

    :raises OSError: it cannot be made.
    """
    where = Path(tempfile.gettempdir(), SCRATCH)
    for entry in os.scandir(where.parent):
        # In a sticky folder no other user can put another in the place of what is this user's.
        if is_unfinished(entry.name, where):
            with contextlib.suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
                    remove_if_left(Path(entry.path))
    place, lock = unfinished(where)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


@contextlib.contextmanager
def replaced(path: Path, mode: int, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """
    A file to write, which takes its name when the block ends; until then what was there is there,
    and after an error nothing is left of it.

    :param mode: its permissions.
    :param durable: it is on disk by then, and so is its name.
    :raises OSError: it cannot be written, or there is no file; of the name that it was to have.
    """
    try:
        if is_special(path):
            raise OSError(errno.EINVAL, "is not a plain file, and is not replaced")
        clear_up(path)
        place, lock = unfinished(path, folder=False)
        try:
            with open(lock, "wb", closefd=False) as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(lock)
                # It was made for the owner alone.
                os.fchmod(lock, mode)
            os.replace(place, path)
        except BaseException:
            with contextlib.suppress(OSError):
                place.unlink()
            raise
        finally:
            os.close(lock)
        if durable:
            to_disk(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def to_disk(place: Path) -> None:
    """
    Wait until what a file has, or the names in a folder, are on disk.

    :raises OSError: they are not.
    """
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(new: Path, old: Path) -> bool:
    """
    Let two names change places at once; False where that cannot be done (the file system, libc).

    Python has no call for ``renameat2(2)``.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(here, os.fsencode(new), here, os.fsencode(old), both) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(old))
