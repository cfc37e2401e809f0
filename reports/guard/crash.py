# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard crash``: vmcores that kdump left, as captures.

The capture has the dump's identity, so that each is read once; one whose reading was cut short,
once more after another boot. A dump that is being written is waited for. This may be run as often
as one likes: a line that was printed before is not printed again.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import echo
from mmscope.drgn.text.plain_file import make_folder, read_plain
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.guard import captures
from mmscope.reports.guard.capture import make, settings_of
from mmscope.reports.guard.dumps import (
    coming,
    dumps,
    foreign,
    identity,
    unfinished,
    wait_until_settled,
)

MOST_TRIES = 2
MOST_LINES = 10
# In the folder of captures: what became of dumps, also where the capture made room for another; and
# what was said last.
KNOWN, SAID = ".dumps.json", ".left-alone"
KEPT = ("core", "state", "boot")
BOOT = Path("/proc/sys/kernel/random/boot_id")
LOOK_EVERY = 1.0  # seconds, while one is being written


def run(args: argparse.Namespace) -> int:
    """Make a capture of each vmcore that has none."""
    args.output = args.output.absolute()
    try:
        make_folder(args.output, 0o700, alone=True)
        captures.tidy(args.output)
    except OSError as error:
        raise UsageError(f"{error.filename or args.output}: {error.strerror}") from None
    code, waited_for = DONE, None
    seen: list[dict[str, Any]] = []
    while True:
        # Another may come while one is read.
        new = (core for core in dumps(args.paths) if _is_new(core, args, seen))
        if (core := next(new, None)) is not None:
            wait_until_settled(core, args.settled)
            with contextlib.suppress(OSError):
                seen.append(identity(core))
            if not _capture_dump(core, args):
                code = INCOMPLETE
            _remember(args.output)
        elif (writing := coming(args.paths, args.settled)) is not None:
            if writing != waited_for:
                say(f"{writing}: a dump may be written there; waiting until it is whole")
            waited_for = writing
            time.sleep(LOOK_EVERY)
        else:
            break
    ended = unfinished(args.paths, args.settled)
    left = [f"{core}: kdump did not finish it; left alone" for core in ended]
    _say_once(left + foreign(args.paths), args.output / SAID)
    return code


def _say_once(lines: list[str], said: Path) -> None:
    """Say what did not become a capture, unless that was said to the journal before."""
    if len(lines) > MOST_LINES:  # others can make as many as they like
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES:,} more are left alone"]
    text = "".join(f"{line}\n" for line in lines)
    try:
        before = read_plain(said, own=True)
    except OSError:
        before = b""
    if text.encode("utf-8", "backslashreplace") != before:
        captures.write(said, text)
    elif not sys.stderr.isatty():
        return
    for line in lines:
        say(line)


def _tried_before(folder: Path) -> dict[str, captures.Incident]:
    """State of the dumps that were tried, by the name of the capture."""
    try:
        kept = json.loads(read_plain(folder / KNOWN, own=True))
        known = {str(one["name"]): one for one in kept if _has_dump(one)}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        known = {}
    for path, one in captures.captures(folder):
        if _has_dump(one):
            known[path.name] = {name: one.get(name) for name in KEPT} | {"name": path.name}
    return known


def _has_dump(one: Any) -> bool:
    """True if what is kept of a capture says of which dump it is."""
    core = one.get("core") if isinstance(one, dict) else None
    return isinstance(core, dict) and isinstance(core.get("path"), str)


def _remember(folder: Path) -> None:
    """Remember what became of dumps, for as long as they are there."""
    kept = [one for one in _tried_before(folder).values() if os.path.exists(one["core"]["path"])]
    captures.write(folder / KNOWN, json.dumps(kept, indent=1) + "\n")


def _this_boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _is_new(core: Path, args: argparse.Namespace, seen: list[dict[str, Any]]) -> bool:
    """
    True if a dump was neither read nor tried in this run, nor often enough in others. A lack of
    disk space or time lasts for a while; a dump that is named is tried again.
    """
    try:
        asked = identity(core)
    except OSError:  # gone meanwhile
        return False
    if asked in seen:
        return False
    before = [one for one in _tried_before(args.output).values() if one.get("core") == asked]
    if any(one.get("state") != captures.CUT for one in before):
        return False
    tried_now = any(one.get("boot") == _this_boot() for one in before)
    return core in args.paths or (len(before) < MOST_TRIES and not tried_now)


@contextlib.contextmanager
def _stderr_to(file: int) -> Iterator[None]:
    """Redirect stderr of this process, and of those that it starts, to a file."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _capture_dump(core: Path, args: argparse.Namespace) -> bool:
    """Make a capture of a dump; whether it has a bundle."""
    try:
        wall, which = core.stat().st_mtime, identity(core)
    except OSError as error:
        say(f"{core}: {error.strerror}")
        return True
    title = f"The kernel crashed: {core.name} of {core.parent.name}"
    more = {"core": which, "boot": _this_boot()}
    incident = captures.new_incident(wall, "crash", "critical", title, **more)
    place, lock = captures.new_place(args.output, incident["name"])
    try:
        captures.write_incident(place, incident)
        with (place / "log.txt").open("ab") as log, _stderr_to(log.fileno()):
            made = make(place, settings_of(args), core)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    there = (made / "bundle").is_dir()
    if there:
        report = made / "report.html"
        echo(f"{core}: {report if report.exists() else made / 'bundle'}", flush=True)
    else:
        incident = captures.read_incident(made)
        why = incident.get("not_read") or f"could not be read; {made / 'log.txt'} says why"
        again = f"; to try once more: mmscope guard crash {core}"
        say(f"{core}: {why}{again if incident['state'] == captures.CUT else ''}")
    return there
