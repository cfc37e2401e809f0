# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard crash``: vmcores that kdump left, as captures.

What a dump is is said in the capture, so that each is read once, also where this is killed, unless
that was in the midst of it: then once more. A dump that is being written is waited for.
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
from mmscope.reports.guard.dumps import coming, dumps, identity, unfinished, wait_until_settled

MOST_TRIES = 2
LOOK_EVERY = 1.0  # seconds, while one is being written


def run(args: argparse.Namespace) -> int:
    """Make a capture of each vmcore that has none."""
    try:
        args.output.mkdir(parents=True, exist_ok=True)
        captures.tidy(args.output)
    except OSError as error:
        raise UsageError(f"{args.output}: {error.strerror}") from None
    code, waited_for = DONE, None
    # Also of one that could not be read, and of one whose capture made room for another.
    seen: list[dict[str, Any]] = []
    while True:
        # Another may come while one is read.
        new = (core for core in dumps(args.paths) if _is_new(core, args.output, seen))
        if (core := next(new, None)) is not None:
            wait_until_settled(core, args.settled)
            with contextlib.suppress(OSError):
                seen.append(identity(core))
            if not _one(core, args):
                code = INCOMPLETE
        elif (writing := coming(args.paths, args.settled)) is not None:
            if writing != waited_for:
                say(f"{writing}: a dump may be written there; waiting until it is whole")
            waited_for = writing
            time.sleep(LOOK_EVERY)
        else:
            break
    for core in unfinished(args.paths):
        say(f"{core}: kdump did not finish it; left alone")
    return code


def _is_new(core: Path, folder: Path, seen: list[dict[str, Any]]) -> bool:
    """Whether it was neither read nor tried in this run, nor often enough tried in others."""
    try:
        asked = identity(core)
    except OSError:  # gone meanwhile
        return False
    if asked in seen:
        return False
    states = [
        incident.get("state")
        for _, incident in captures.captures(folder)
        if incident.get("core") == asked
    ]
    return len(states) < MOST_TRIES and not {captures.DONE, captures.RUNNING} & {*states}


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
    try:
        wall, which = core.stat().st_mtime, identity(core)
    except OSError as error:
        say(f"{core}: {error.strerror}")
        return True
    incident = {
        "format": 1,
        "name": captures.name_of(wall, "crash"),
        "trigger": "crash",
        "title": f"The kernel crashed: {core.name} of {core.parent.name}",
        "severity": "critical",
        "at": datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="seconds"),
        "host": os.uname().nodename,
        "state": captures.RUNNING,
        "core": which,
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
    if there:
        report = made / "report.html"
        print(f"{core}: {report if report.exists() else made / 'bundle'}", flush=True)
    else:
        why = captures.read_incident(made).get("not_read")
        say(f"{core}: {why or 'could not be read; ' + str(made / 'log.txt') + ' says why'}")
    return there
