# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a process that was killed left beside the name it was about to write.

Bundles and reports are written under another name, ``.NAME.XXXXXXXX.partial``, and renamed when
they are whole. Nobody reads that name. Who writes there holds its lock (``flock``), which ends with
the process, however it ends; so the next one to write the same name can tell, and clears up.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from pathlib import Path

PREFIX, SUFFIX = ".{}.", ".partial"


def claim(place: Path) -> int | None:
    """
    Lock a file or folder that was just made; returns the open file that holds the lock.

    None if somebody took it for a leftover before it was locked: make another.

    :raises OSError: it cannot be opened.
    """
    try:
        lock = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    # A file system without locks: nothing can be told there, and nothing is removed.
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
                    _remove_if_left(Path(entry.path))


def _remove_if_left(place: Path) -> None:
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
