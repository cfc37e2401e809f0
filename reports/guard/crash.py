# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard crash``: vmcores that kdump left, as captures.

Known by their names: ``/var/crash/<time>/dump.<time>`` (kdump-tools of Debian and Ubuntu) and
``/var/crash/<host>-<time>/vmcore`` (kdump of RHEL, Fedora and SUSE). What a dump is is said in the
capture, so that each is read once, also where this is killed, unless that was in the midst of it:
then once more.
"""

import argparse
import contextlib
import datetime
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.guard import captures
from mmscope.reports.guard.capture import Settings, make

NAMES = ("vmcore", "dump.*", "vmcore.*")
# What kdump has not finished, and what lies beside a dump.
NOT_ONE = ("incomplete", "dmesg", ".txt", ".log", ".json", ".gz", ".xz", ".flat")
MOST_TRIES = 2


def run(args: argparse.Namespace) -> int:
    """Make a capture of each vmcore that has none."""
    try:
        args.output.mkdir(parents=True, exist_ok=True)
        captures.tidy(args.output)
    except OSError as error:
        raise UsageError(f"{args.output}: {error.strerror}") from None
    code = DONE
    # Another may come while one is read.
    while core := next((core for core in _cores(args.paths) if _is_new(core, args.output)), None):
        _wait_until_settled(core, args.settled)
        if not _one(core, args):
            code = INCOMPLETE
    return code


def _is_new(core: Path, folder: Path) -> bool:
    """Whether it was neither read, nor often enough tried."""
    states = [
        incident.get("state")
        for _, incident in captures.captures(folder)
        if incident.get("core") == identity(core)
    ]
    return len(states) < MOST_TRIES and not {captures.DONE, captures.RUNNING} & {*states}


def _cores(paths: list[Path]) -> Iterator[Path]:
    """
    Dumps, the oldest first.

    :raises UsageError: there is nothing of such a name.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_file():
            found.add(path)
        elif path.is_dir():
            for pattern in NAMES:
                found |= {
                    core
                    for core in (*path.glob(pattern), *path.glob(f"*/{pattern}"))
                    if core.is_file() and not any(word in core.name for word in NOT_ONE)
                }
        else:
            raise UsageError(f"{path}: no such file or folder")
    yield from sorted(found, key=lambda core: core.stat().st_mtime)


def identity(core: Path) -> dict[str, Any]:
    """What a dump is, so that it is known again."""
    stat = core.stat()
    return {"path": str(core.resolve()), "bytes": stat.st_size, "written": round(stat.st_mtime)}


def _wait_until_settled(core: Path, seconds: float) -> None:
    while (since := time.time() - core.stat().st_mtime) < seconds:
        # A clock that was set back since must not make this wait for long.
        if since < 0:
            return
        time.sleep(min(seconds - since, 1.0))


@contextlib.contextmanager
def _stderr_to(file: int) -> Iterator[None]:
    """What this process and those that it starts say goes to a file meanwhile."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _one(core: Path, args: argparse.Namespace) -> bool:
    """Make a capture of a dump; whether it has a bundle."""
    wall = core.stat().st_mtime
    incident = {
        "format": 1,
        "name": captures.name_of(wall, "crash"),
        "trigger": "crash",
        "title": f"The kernel crashed: {core.name} of {core.parent.name}",
        "severity": "critical",
        "at": datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="seconds"),
        "host": os.uname().nodename,
        "state": captures.RUNNING,
        "core": identity(core),
    }
    place, lock = captures.new_place(args.output, str(incident["name"]))
    settings = Settings(
        folder=str(args.output.resolve()),
        timeout=args.timeout,
        memory=int(args.memory * 2**20),
        budget=int(args.limit * 2**20),
        command=args.exec,
    )
    try:
        captures.write_incident(place, incident)
        with (place / "log.txt").open("ab") as log, _stderr_to(log.fileno()):
            made = make(place, settings, core)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    there = (made / "bundle").is_dir()
    print(f"{core}: {made / ('report.html' if (made / 'report.html').exists() else 'bundle')}")
    if not there:
        say(f"{core}: could not be read; {made / 'log.txt'} says why")
    return there
