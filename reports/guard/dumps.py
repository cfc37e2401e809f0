# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The dumps that kdump leaves: where they are, which are whole, and how one is read that is not as it
should be.

Known by their names: ``/var/crash/<time>/dump.<time>`` (kdump-tools of Debian and Ubuntu) and
``/var/crash/<host>-<time>/vmcore`` (kdump of RHEL, Fedora and SUSE). While it is written it is
``dump-incomplete``, ``vmcore-incomplete`` or ``vmcore.flat-incomplete``, in a folder that was made
for it.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmscope.drgn.opening.wrapped import FLATTENED, FlattenedError, head_of, rebuild, unpacked_by
from mmscope.reports.bundle.outcome import UsageError, say

NAMES = ("vmcore", "dump.*", "vmcore.*")
INCOMPLETE = "incomplete"
# What lies beside a dump.
NOT_ONE = (INCOMPLETE, "dmesg", ".txt", ".log", ".json")
REBUILT = ".rebuilt"
# One that nobody has written to for so many times --settled will not become whole.
PATIENCE = 15


class NotReadError(Exception):
    """
    A dump cannot be read as it is; says why in one line.

    :ivar again: whether it may be read another time.
    """

    def __init__(self, why: str, again: bool) -> None:
        super().__init__(why)
        self.again = again


def dumps(paths: list[Path]) -> list[Path]:
    """
    Dumps that have their names, the oldest first.

    :raises UsageError: there is nothing of such a name.
    """
    found: dict[Path, float] = {}
    for path in paths:
        if path.is_file():
            found[path] = path.stat().st_mtime
        elif path.is_dir():
            for core in _below(path, NAMES):
                if not any(word in core.name for word in NOT_ONE):
                    with contextlib.suppress(OSError):  # kdump-tools removes old ones
                        found[core] = core.stat().st_mtime
        else:
            raise UsageError(f"{path}: no such file or folder")
    return sorted(found, key=lambda core: found[core])


def _below(path: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        for core in (*path.glob(pattern), *path.glob(f"*/{pattern}")):
            if core.is_file():
                yield core


def unfinished(paths: list[Path]) -> list[Path]:
    """Dumps that kdump has not given their names."""
    return [core for path in paths for core in _below(path, (f"*{INCOMPLETE}*",))]


def coming(paths: list[Path], settled: float) -> Path | None:
    """What a dump may be written to right now: the unfinished dump, or the folder made for one."""
    now = time.time()
    for core in unfinished(paths):
        with contextlib.suppress(OSError):
            if 0 <= now - core.stat().st_mtime < PATIENCE * settled:
                return core
    for path in paths:
        for folder in path.glob("*/"):
            with contextlib.suppress(OSError):
                if 0 <= now - folder.stat().st_mtime < settled:
                    return folder
    return None


def wait_until_settled(core: Path, seconds: float) -> None:
    """Leave a dump alone that somebody may be writing to; of another's hand it has its name."""
    with contextlib.suppress(FileNotFoundError):
        while (since := time.time() - core.stat().st_mtime) < seconds:
            # A clock that was set back since must not make this wait for long.
            if since < 0:
                return
            time.sleep(min(seconds - since, 1.0))


def identity(core: Path) -> dict[str, Any]:
    """
    What a dump is, so that it is known again.

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
    try:
        yield _rebuilt(core, folder, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rebuilt(core: Path, folder: Path, seconds: float) -> Path:
    begin, target = time.monotonic(), folder / core.name
    try:
        folder.mkdir(mode=0o700)
        cut = rebuild(core, target, seconds)
        size = target.stat().st_size
    except FlattenedError as error:
        raise NotReadError(str(error), again=True) from error
    except OSError as error:
        raise NotReadError(f"{folder}: {error.strerror}", again=True) from error
    took = time.monotonic() - begin
    say(f"{core}: was in makedumpfile's flattened format; rebuilt, {size >> 20} MiB, {took:.0f} s")
    if cut:
        say(f"{core}: {cut}")
    return target
