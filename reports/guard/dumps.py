# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The dumps that kdump leaves: where they are, which are whole, and how one is read that is not as it
should be.

Known by their names: ``/var/crash/<time>/dump.<time>`` (kdump-tools of Debian and Ubuntu) and
``/var/crash/<host>-<time>/vmcore`` (kdump of RHEL, Fedora and SUSE). While it is written it is
``dump-incomplete``, ``vmcore-incomplete`` or ``vmcore.flat-incomplete``, in a folder that was made
for it.

Ubuntu's /var/crash is for everybody to write to (apport, ``drwxrwsrwt``), and root reads what is
found there. So what is found counts where only root, or the user who runs this, can have had
a hand in it: a plain file and its folder, both of root's, neither for others to write to, neither a
symbolic link. The folder that was named may be for others to write to where it is sticky: they can
then neither rename nor remove what is root's (``__check_sticky()``, fs/namei.c). As each is asked
for before what is in it, what was found so stays so. A dump that is named is read, of any owner.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from mmscope.drgn.dumps.wrapped import FLATTENED, FlattenedError, head_of, rebuild, unpacked_by
from mmscope.drgn.text.plain_file import why_foreign
from mmscope.reports.bundle.outcome import UsageError, say

NAMES = ("vmcore", "dump.*", "vmcore.*")
INCOMPLETE = "incomplete"
# What lies beside a dump.
NOT_ONE = (INCOMPLETE, "dmesg", ".txt", ".log", ".json")
REBUILT = ".rebuilt"
# One that was not written to for so many times --settled will not become whole.
PATIENCE = 15


class NotReadError(Exception):
    """
    A dump cannot be read as it is; says why in one line.

    :ivar again: whether it may be read another time.
    """

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Seen(NamedTuple):
    """
    A file or folder that was found.

    :ivar foreign: why it is left alone, as others may have had a hand in it; None: it counts.
    """

    path: Path
    stat: os.stat_result
    foreign: str | None

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    @property
    def is_called_a_dump(self) -> bool:
        name = self.path.name
        return any(fnmatchcase(name, one) for one in NAMES) and not any(o in name for o in NOT_ONE)


def dumps(paths: list[Path]) -> list[Path]:
    """
    Dumps that have their names, the oldest first.

    :raises UsageError: there is nothing of such a name.
    """
    found: dict[Path, float] = {}
    for path in paths:
        if path.is_file():
            found[path] = path.stat().st_mtime
        elif not path.is_dir():
            there = "is no plain file or folder" if path.exists() else "no such file or folder"
            raise UsageError(f"{path}: {there}")
    for one in _trusted(paths):
        if one.is_file and one.is_called_a_dump:
            found[one.path] = one.stat.st_mtime
    return sorted(found, key=lambda core: found[core])


def foreign(paths: list[Path]) -> list[str]:
    """Lines about files that may be dumps, and are left alone as others may have made them."""
    return [
        f"{one.path}: {one.foreign}; left alone unless it is named"
        for path in paths
        for one in _seen(path)
        # A link beside the folders may lead to one more.
        if one.foreign
        and (one.is_called_a_dump or (stat.S_ISLNK(one.stat.st_mode) and one.path.parent == path))
    ]


def _trusted(paths: list[Path]) -> Iterator[Seen]:
    for path in paths:
        yield from (one for one in _seen(path) if one.foreign is None)


def _seen(path: Path) -> Iterator[Seen]:
    """
    The entries of a folder, and the files in the folders in it. No link is followed but
    *path* itself.

    :raises UsageError: it cannot be read.
    """
    if not path.is_dir():
        return
    its = path.stat()
    why = _why_foreign(its)
    of_files = f"its folder {why}" if why else None
    sticky = its.st_mode & stat.S_ISVTX and its.st_uid in _trusted_uids()
    try:
        # A file in a sticky folder may be one of root's elsewhere: anybody can make a hard link.
        inside = list(_entries(path, of_files, None if sticky else of_files))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    for one in inside:
        yield one
        if one.is_folder:
            why = one.foreign
            if why and why != of_files:
                why = f"its folder {why}"
            with contextlib.suppress(OSError):
                yield from [file for file in _entries(one.path, why, why) if not file.is_folder]


def _entries(folder: Path, of_files: str | None, of_folders: str | None) -> Iterator[Seen]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # kdump-tools removes old ones
                its = entry.stat(follow_symlinks=False)
                why = of_folders if stat.S_ISDIR(its.st_mode) else of_files
                yield Seen(Path(entry.path), its, why or _why_foreign(its))


def _trusted_uids() -> set[int]:
    return {0, os.geteuid()}


def _why_foreign(its: os.stat_result) -> str | None:
    return why_foreign(its, _trusted_uids())


def _incomplete(paths: list[Path], settled: float) -> Iterator[tuple[Path, bool]]:
    """Dumps that kdump has not given their names, and whether they may be being written."""
    for one in _trusted(paths):
        if one.is_file and INCOMPLETE in one.path.name:
            yield one.path, _is_fresh(one, PATIENCE * settled)


def unfinished(paths: list[Path], settled: float) -> list[Path]:
    """Dumps that kdump has not given their names, and that are not being written."""
    return [path for path, written in _incomplete(paths, settled) if not written]


def coming(paths: list[Path], settled: float) -> Path | None:
    """The unfinished dump, or the folder made for one, that may be being written right now."""
    written = (path for path, written in _incomplete(paths, settled) if written)
    made = (one.path for one in _trusted(paths) if one.is_folder and _is_fresh(one, settled))
    return next(written, None) or next(made, None)


def _is_fresh(one: Seen, seconds: float) -> bool:
    """True if it was written to of late. One of a time to come is not: a clock was set back."""
    # The time after the look, not before: it may have been written to meanwhile.
    return 0 <= time.time() - one.stat.st_mtime < seconds


def wait_until_settled(core: Path, seconds: float) -> None:
    """Leave a dump alone that may still be written to; of another's hand it has its name."""
    with contextlib.suppress(FileNotFoundError):
        while (since := time.time() - core.stat().st_mtime) < seconds:
            # A clock that was set back since must not make this wait for long.
            if since < 0:
                return
            time.sleep(min(seconds - since, 1.0))


def identity(core: Path) -> dict[str, Any]:
    """
    Identify a dump, so that it is known again.

    :raises OSError: it is gone.
    """
    stat = core.stat()
    return {"path": str(core.resolve()), "bytes": stat.st_size, "written": round(stat.st_mtime)}


@contextlib.contextmanager
def readable(core: Path, capture: Path, seconds: float) -> Iterator[Path]:
    """
    A dump, as it is or, if it is flattened, rebuilt in the capture's folder for as long as it is
    read. One that was cut short is said to be.

    :param seconds: that to rebuild it may take.
    :raises NotReadError: it is compressed, cannot be rebuilt, or cannot be opened.
    """
    try:
        head = head_of(core)
    except OSError as error:
        raise NotReadError(f"{error.strerror}", again=True) from error
    if command := unpacked_by(head):
        raise NotReadError(f"is compressed; unpack it first: {command} {core}", again=False)
    if not head.startswith(FLATTENED):
        yield core
        return
    folder = capture / REBUILT
    begin, target = time.monotonic(), folder / core.name
    try:
        try:
            folder.mkdir(mode=0o700)
            cut = rebuild(core, target, seconds)
            mib = target.stat().st_size >> 20
        except FlattenedError as error:
            raise NotReadError(str(error), again=True) from error
        except OSError as error:
            raise NotReadError(f"{folder}: {error.strerror}", again=True) from error
        took = time.monotonic() - begin
        say(f"{core}: was in makedumpfile's flattened format; rebuilt, {mib} MiB, {took:.0f} s")
        if cut:
            say(f"{core}: {cut}")
        yield target
    finally:
        shutil.rmtree(folder, ignore_errors=True)
