# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The folder of captures: a folder for each, ``<time>-<trigger>/``.

    incident.json   what happened, when, how the capture fared; the only file that is always there
    samples.jsonl   the minutes before, as mmscope watch keeps them
    bundle/         the tables: what was collected, and the minutes before
    findings.txt    what they mean; where the libraries for that are installed
    report.html
    alert.json      for others, as Alertmanager takes it
    event.json      for others, as Kubernetes takes it
    log.txt         what the commands said

A capture takes its name when its samples and its first bundle are on disk. What is added then is
whole or absent by itself. Who makes one holds a lock on its folder, which ends with that process,
so that what is half done is known from what is being done.
"""

import contextlib
import datetime
import fcntl
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmscope.drgn.text.plain_file import open_own, read_plain
from mmscope.reports.bundle.leftovers import (
    PREFIX,
    SUFFIX,
    remove_if_left,
    replaced,
    to_disk,
    unfinished,
)
from mmscope.reports.bundle.modes import mode_of_file, mode_of_folder

INCIDENT = "incident.json"
# A folder of ours, by its name: nothing else here is ever removed.
NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ-[A-Za-z0-9._-]{1,80}")
RUNNING, DONE, CUT = "running", "done", "cut short"

Incident = dict[str, Any]


def new_incident(wall: float, trigger: str, severity: str, title: str, **more: Any) -> Incident:
    """An incident whose capture begins; its name is its time, in UTC, and its trigger."""
    at = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return {
        "format": 1,
        "name": f"{at:%Y-%m-%dT%H-%M-%SZ}-{re.sub('[^A-Za-z0-9._-]', '_', trigger)[:80]}",
        "trigger": trigger,
        "title": title,
        "severity": severity,
        "at": at.isoformat(timespec="seconds"),
        "host": os.uname().nodename,
        "state": RUNNING,
        **more,
    }


def new_place(folder: Path, name: str) -> tuple[Path, int]:
    """
    Make a folder to begin a capture in; returns it and the open file that holds its lock.

    :raises OSError: it cannot be made.
    """
    place, lock = unfinished(folder / name)
    place.chmod(mode_of_folder(mode_of_file()))
    return place, lock


def publish(place: Path) -> Path:
    """
    Give a capture its name: that of its incident, or that with a number if it is taken.

    :raises OSError: it cannot be renamed.
    """
    name = read_incident(place)["name"]
    for number in range(1, 1000):
        target = place.with_name(name if number == 1 else f"{name}.{number}")
        if not target.exists():
            break
    to_disk(place)
    place.rename(target)
    to_disk(target.parent)
    return target


def write(path: Path, text: str | bytes) -> None:
    """A file that is whole or absent, and on disk."""
    with replaced(path, mode_of_file()) as file:
        file.write(text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace"))


def write_incident(capture: Path, incident: Incident) -> None:
    write(capture / INCIDENT, json.dumps(incident, indent=1) + "\n")


def read_incident(capture: Path) -> Incident:
    """
    Read what a capture is about.

    :raises OSError, ValueError: it cannot be read.
    """
    said = json.loads(read_plain(capture / INCIDENT, own=True))
    if not isinstance(said, dict):
        raise ValueError("is no incident")
    return said


def captures(folder: Path) -> Iterator[tuple[Path, Incident]]:
    """Captures that have their names, the newest first, those that cannot be read included."""
    for path in sorted(folder.iterdir(), reverse=True):
        if NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            try:
                yield path, read_incident(path)
            except (OSError, ValueError, RecursionError):
                yield path, {"name": path.name, "title": "cannot be read", "state": CUT}


def locked(path: Path, *, wait: bool) -> int:
    """
    Lock a file that no other user can open, and so none can lock; returns it open.

    :raises BlockingIOError: another process has it, and *wait* is false.
    :raises OSError: it cannot be opened.
    """
    while True:
        lock = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(lock).st_mode & 0o077:  # of an earlier version
                path.unlink()
            else:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if is_at(lock, path):
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            os.close(lock)
            raise
        os.close(lock)


def is_at(file: int, path: Path) -> bool:
    """True if a name is still that of an open file."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def is_held(capture: Path) -> bool:
    """True while a process is at work on it."""
    with contextlib.suppress(OSError):
        lock = os.open(capture, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
    return False


def tidy(folder: Path) -> int:
    """
    Remove what never got its name, and say of captures that were cut short that they were.

    :return: how many are being worked on.
    :raises OSError: the folder cannot be read, or a capture not be written; the others are done.
    """
    busy, wrong = 0, None
    for entry in list(folder.iterdir()):
        begin, end = entry.name.startswith("."), entry.name.endswith(SUFFIX)
        if begin and end and NAME.match(entry.name[1:]):
            with contextlib.suppress(OSError):
                remove_if_left(entry)
            busy += entry.exists()
    for path, incident in list(captures(folder)):
        if incident.get("state") == RUNNING:
            if is_held(path):
                busy += 1
                continue
            try:
                for left in path.glob(".*"):
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
                write_incident(path, incident | {"state": CUT})
            except OSError as error:
                wrong = error
    if wrong is not None:
        raise wrong
    return busy


def size_of(path: Path) -> int:
    """Bytes on disk."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def thin(folder: Path, budget: int) -> None:
    """
    Remove captures until they take no more than the budget: the oldest of the trigger that has most
    of them, so that the only one of another stays. The newest is never removed.
    """
    there = [(path, str(incident.get("trigger"))) for path, incident in captures(folder)]
    sizes = {path: size_of(path) for path, _ in there}
    while sum(sizes.values()) > budget and len(there) > 1:
        number = Counter(trigger for _, trigger in there)
        most = max(number[trigger] for _, trigger in there[1:])
        oldest = next(one for one in reversed(there) if number[one[1]] == most)
        there.remove(oldest)
        path, _ = oldest
        del sizes[path]
        if not is_held(path):
            # Under a name that is not taken: what is left if this is killed is cleared up.
            going = path.with_name(f"{PREFIX.format(path.name)}gone{SUFFIX}")
            path.rename(going)
            shutil.rmtree(going, ignore_errors=True)
