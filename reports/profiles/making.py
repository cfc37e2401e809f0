# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The making of a recording: command, duration, and the kernel's counters meanwhile.

Costs a read of /proc/vmstat.

Cannot know: what a file that was brought in does not say.
"""

import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mmscope.perf.perf_record import Recorded, Recording
from mmscope.reports.bundle.boots import SAME_BOOT_SECONDS, boot_time, moment
from mmscope.reports.bundle.bundle import Bundle

PAGE_BYTES = (4 << 10, 16 << 10, 64 << 10)  # that kernels have
PAGE_TABLES, FAULTS = "nr_page_table_pages", "pgfault"  # of /proc/vmstat


@dataclass
class Making:
    """The making of a recording; None is what an imported file does not have."""

    label: str | None = None
    against: str | None = None
    seconds: float | None = None
    scope: str | None = None
    ended: str | None = None
    command: str | None = None
    captured_at: str | None = None
    booted_at: str | None = None
    release: str | None = None
    architecture: str = "x86_64"
    page_bytes: int = 4096
    by_period: bool = False
    partial: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)  # whose descendants are wanted
    left_out: list[str] = field(default_factory=list)  # events of the recipe
    filtered: list[str] = field(default_factory=list)  # those that the kernel's filter chose alone
    missed: dict[str, int] = field(default_factory=dict)  # probes that could not run, by event
    # At the begin, and when there were most page tables: as of page_tables_now().
    page_tables: list[list[int]] = field(default_factory=list)
    # Seconds of the command: user, system.
    used: list[float] | None = None
    gone: float | None = None  # when it had ended, by perf's clock
    # Of processes: [pid, comm, [[ns since the begin, faults, bytes of page tables], …]].
    growths: list[Any] = field(default_factory=list)
    # By perf stat: [event, count or None, share of the time or None, why not].
    counted: list[Any] = field(default_factory=list)

    def take(self, recording: Recording) -> None:
        """Take what the recording itself has."""
        self.seconds, self.ended = recording.seconds, recording.ended
        self.pids, self.missed = recording.pids, recording.missed
        self.gone = recording.gone
        self.used = None if recording.used is None else list(recording.used)
        self.growths = [[pid, g.comm, g.points] for pid, g in recording.growths.items()]
        self.counted = [list(counted) for counted in recording.counted]

    def told(self, recorded: Recorded) -> dict[str, Any]:
        """All of it that belongs to the recording, to be written beside its text."""
        told = {name: getattr(self, name) for name in _TOLD}
        return told | {"recorded": dataclasses.asdict(recorded)}

    def hear(self, told: dict[str, Any]) -> Recorded:
        """
        Take what :meth:`told` gave, possibly elsewhere.

        :raises ValueError: it is something else.
        """
        for name, kinds in _TOLD.items():
            value = told.get(name, _TOLD_SINCE[name]) if name in _TOLD_SINCE else told[name]
            if not isinstance(value, kinds):
                raise ValueError(f"{name} is {str(value)[:40]!r}")
            setattr(self, name, value)
        recorded = Recorded(**told["recorded"])
        if self.page_bytes not in PAGE_BYTES:
            raise ValueError(f"page_bytes is {self.page_bytes}")
        for values in (self.counters, self.pids, self.missed, recorded.samples, recorded.lost):
            numbers = values.values() if isinstance(values, dict) else values
            if not all(isinstance(value, int) for value in numbers):
                raise ValueError("a number is not valid")
        for three in self.page_tables:
            if not (isinstance(three, list) and len(three) == 3):
                raise ValueError("page_tables is not valid")
            if not all(isinstance(value, int) for value in three):
                raise ValueError("a number is not valid")
        self._check()
        words = self.partial + self.remarks + self.left_out + self.filtered
        if not all(isinstance(word, str) for word in words):
            raise ValueError("a note is not valid")
        return recorded

    def _check(self) -> None:
        """:raises ValueError: what is about the command is not as :meth:`told` gives it."""
        seconds = self.used or []
        if self.used is not None and not _are(seconds, float, float):
            raise ValueError("used is not valid")
        if not _are([self.gone or 0.0], float):
            raise ValueError("gone is not valid")
        for growth in self.growths:
            if not _are(growth, int, str, list):
                raise ValueError("growths is not valid")
            _, _, points = growth
            if not all(_are(point, int, int, int) for point in points):
                raise ValueError("growths is not valid")
        for count in self.counted:
            if not _are(count, str, int | None, float | None, str):
                raise ValueError("counted is not valid")

    def other_boot(self, bundle: Bundle | None) -> list[str]:
        """Notes for a recording of another boot than a bundle's."""
        here, there = moment(self.booted_at or ""), boot_time(bundle) if bundle else None
        if here is None or there is None or abs(here - there) <= SAME_BOOT_SECONDS:
            return []
        of_bundle = datetime.datetime.fromtimestamp(round(there), datetime.UTC).isoformat()
        return [
            f"recorded during another boot than the rest of this bundle: of a machine that was "
            f"booted at {self.booted_at}, not at {of_bundle}"
        ]


_TOLD: dict[str, Any] = {
    "seconds": float | None,
    "scope": str | None,
    "ended": str | None,
    "command": str | None,
    "captured_at": str | None,
    "booted_at": str | None,
    "release": str | None,
    "architecture": str,
    "page_bytes": int,
    "partial": list,
    "remarks": list,
    "counters": dict,
    "pids": list,
    "left_out": list,
    "filtered": list,
    "missed": dict,
    "page_tables": list,
    "used": list | None,
    "gone": float | None,
    "growths": list,
    "counted": list,
}
# Texts that were kept before lack these.
_TOLD_SINCE: dict[str, Any] = {
    "booted_at": None,
    "page_bytes": 4096,
    "left_out": [],
    "filtered": [],
    "missed": {},
    "page_tables": [],
    "used": None,
    "gone": None,
    "growths": [],
    "counted": [],
}


def _are(values: object, *kinds: Any) -> bool:
    """True if it is a list of values of these kinds, with possible numbers."""
    return (
        isinstance(values, list)
        and len(values) == len(kinds)
        and all(map(isinstance, values, kinds))
        and all(0 <= value < 1 << 63 for value in values if isinstance(value, int | float))
    )


def now() -> str:
    """The time now, as it is written down."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def booted() -> str:
    """The time of the boot, in the same form."""
    at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")


def vmstat(names: Iterable[str]) -> dict[str, int]:
    """Counters of /proc/vmstat; those that this kernel lacks are left out."""
    wanted = set(names)
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name in wanted:
                found[name] = int(value)
    return found


def page_tables_now() -> list[int] | None:
    """[monotonic ns, bytes of page tables, page faults since boot]; None if these are unknown."""
    found = vmstat((PAGE_TABLES, FAULTS))
    if len(found) < 2:
        return None
    return [time.monotonic_ns(), found[PAGE_TABLES] * os.sysconf("SC_PAGE_SIZE"), found[FAULTS]]
