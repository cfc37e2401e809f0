# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Modes of what is written: who may read it.

A reading has addresses, which show where the kernel lies (KASLR), and the names and commands of
every process. So what root writes is root's alone, as perf.data and vmcores are; what anybody else
writes is as the umask says; ``--mode`` says otherwise. What replaces something is as that was, so
that a bundle that was opened to others stays open to them. Until it is whole no other can reach it,
whatever its mode will be.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

PRIVATE = 0o600


def mode_of_file(asked: int | None = None, old: Path | None = None) -> int:
    """
    The mode of a file that is to be written.

    :param asked: the value of ``--mode``.
    :param old: what it replaces, if that is there.
    """
    if asked is not None:
        return asked
    if old is not None and old.is_file():
        return stat.S_IMODE(old.stat().st_mode) & 0o666
    if os.geteuid() == 0:
        return PRIVATE
    return as_umask()


def as_umask() -> int:
    """The mode of a file that is made without another word."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def mode_of_folder(file: int) -> int:
    """The mode of a folder of such files: those who may read them may enter it."""
    return file | (file & 0o444) >> 2


@contextlib.contextmanager
def no_wider_than(folder: Path) -> Iterator[None]:
    """Open what is made meanwhile to those alone whom a folder is open to."""
    closed = 0o777 & ~folder.stat().st_mode
    before = os.umask(closed)
    os.umask(before | closed)
    try:
        yield
    finally:
        os.umask(before)


def file_mode(text: str) -> int:
    """
    The value of ``--mode``.

    :raises ValueError: it is not a mode of a file that its owner can read and write.
    """
    mode = int(text, 8)
    if mode & 0o600 != 0o600 or mode & ~0o666:
        raise ValueError(text)
    return mode
