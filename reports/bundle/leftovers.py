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
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PREFIX, SUFFIX = ".{}.", ".partial"


def claim(place: Path) -> int | None:
    """
    Lock a file or folder that was just made; returns the open file that holds the lock.

    None if it was taken for a leftover before it was locked: make another.

    :raises OSError: it cannot be opened.
    """
    try:
        lock = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    # A file system without locks: that is unknown there, and nothing is removed.
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    if place.exists():
        return lock
    os.close(lock)
    return None


def clear_up(path: Path) -> None:
    """Remove what was left by those who wrote this name and were killed."""
    begin = PREFIX.format(path.name)
    with contextlib.suppress(OSError):
        for entry in os.scandir(path.parent):
            if entry.name.startswith(begin) and entry.name.endswith(SUFFIX):
                with contextlib.suppress(OSError):
                    remove_if_left(Path(entry.path))


def remove_if_left(place: Path) -> None:
    """
    Remove a file or folder that is not written any more.

    :raises OSError: it is being written, or cannot be removed.
    """
    if place.is_symlink():
        return
    lock = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink()
    finally:
        os.close(lock)


@contextlib.contextmanager
def replaced(path: Path, mode: int, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """
    A file to write, which takes its name when the block ends; until then what was there is there,
    and after an error nothing is left of it.

    :param mode: its permissions.
    :param durable: it is on disk by then, and so is its name.
    :raises OSError: it cannot be written; of the name that it was to have.
    """
    try:
        clear_up(path)
        lock = None
        while lock is None:
            descriptor, name = tempfile.mkstemp(
                prefix=PREFIX.format(path.name), suffix=SUFFIX, dir=path.parent
            )
            lock = claim(Path(name))
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(descriptor)
                # mkstemp made it for the owner alone.
                os.fchmod(descriptor, mode)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
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
