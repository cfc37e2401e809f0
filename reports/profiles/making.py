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
import types
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmscope.perf.perf_record import Recorded, Recording
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SAME_BOOT_SECONDS, Cell, moment

PAGE_BYTES = (4 << 10, 16 << 10, 64 << 10)  # that kernels have
PAGE_TABLES, FAULTS = "nr_page_table_pages", "pgfault"  # of /proc/vmstat
# Of a Making: options, which are given again whenever its text is read.
ASKED_FOR = {"label", "against", "by_period"}
# What every text has; the others came later, and older texts lack them.
ALWAYS = (
    *("seconds", "scope", "ended", "command", "captured_at", "release", "architecture"),
    *("partial", "remarks", "counters", "pids"),
)


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
    page_tables: list[tuple[int, int, int]] = field(default_factory=list)
    # Seconds of the command: user, system.
    used: tuple[float, float] | None = None
    gone: float | None = None  # when it had ended, by perf's clock
    # Of processes: (pid, comm, [(ns since the begin, faults, bytes of page tables), …]).
    growths: list[tuple[int, str, list[tuple[int, int, int]]]] = field(default_factory=list)
    # By perf stat: (event, count or None, share of the time or None, why not).
    counted: list[tuple[str, int | None, float | None, str]] = field(default_factory=list)

    @property
    def of_command(self) -> str:
        """The comm of the command, if the recording is of it alone; else nothing."""
        words = (self.command or "").split()
        if self.scope != "task" or not words or words[0] == "pid":
            return ""
        return words[0].rpartition("/")[2].encode()[:15].decode("utf-8", "replace")

    def take(self, recording: Recording) -> None:
        """Take what the recording itself has."""
        self.seconds, self.ended = recording.seconds, recording.ended
        self.pids, self.missed = recording.pids, recording.missed
        self.gone, self.used = recording.gone, recording.used
        self.growths = [
            (pid, growth.comm, [(at, faults, size) for at, faults, size in growth.points])
            for pid, growth in recording.growths.items()
        ]
        self.counted = recording.counted

    def as_json(self, recorded: Recorded) -> dict[str, Any]:
        """All of it that belongs to the recording, to be written beside its text."""
        kept = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        recording = {name: value for name, value in kept.items() if name not in ASKED_FOR}
        return recording | {"recorded": asdict(recorded)}

    def from_json(self, data: dict[str, Any]) -> Recorded:
        """
        Take what :meth:`as_json` gave, possibly elsewhere or long ago.

        :raises ValueError, TypeError, KeyError: it is something else.
        """
        if lacking := [name for name in ALWAYS if name not in data]:
            raise ValueError(f"it has no {', '.join(lacking)}")
        recorded = Recorded(**data["recorded"])
        _fill(recorded, data["recorded"])
        _fill(self, {name: value for name, value in data.items() if name not in ASKED_FOR})
        if self.page_bytes not in PAGE_BYTES:
            raise ValueError(f"page_bytes is {self.page_bytes}")
        return recorded

    def other_boot(self, bundle: Bundle | None) -> list[str]:
        """Notes for a recording of another boot than a bundle's."""
        here, there = moment(self.booted_at or ""), bundle.booted if bundle else None
        if here is None or there is None or abs(here - there) <= SAME_BOOT_SECONDS:
            return []
        of_bundle = datetime.datetime.fromtimestamp(round(there), datetime.UTC).isoformat()
        return [
            f"recorded during another boot than the rest of this bundle: of a machine that was "
            f"booted at {self.booted_at}, not at {of_bundle}"
        ]


def _fill(made: Making | Recorded, data: dict[str, Any]) -> None:
    """Set the fields that JSON has: older texts lack some."""
    for name, kind in typing.get_type_hints(type(made)).items():
        if name in data:
            if not _is(data[name], kind):
                raise ValueError(f"{name} is {str(data[name])[:40]!r}")
            setattr(made, name, data[name])


def _is(value: Any, kind: Any, least: int = 0) -> bool:
    """True if a value out of JSON is of a type, and its numbers are such that a table has."""
    inner, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is types.UnionType:
        return any(_is(value, each) for each in inner)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(_is, value, inner))
    if origin is list:
        return isinstance(value, list) and all(_is(each, inner[0]) for each in value)
    if origin is dict:
        # A counter of /proc/vmstat may have sunk.
        return isinstance(value, dict) and all(
            _is(each, inner[1], -(1 << 63)) for each in value.values()
        )
    number = isinstance(value, int | float)
    return isinstance(value, kind) and (not number or least <= value < 1 << 63)


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


def page_tables_now() -> tuple[int, int, int] | None:
    """(monotonic ns, bytes of page tables, page faults since boot); None if these are unknown."""
    found = vmstat((PAGE_TABLES, FAULTS))
    if len(found) < 2:
        return None
    return time.monotonic_ns(), found[PAGE_TABLES] * os.sysconf("SC_PAGE_SIZE"), found[FAULTS]


def this_host() -> dict[str, Cell]:
    """The host itself as a target, from /proc: it is measured, and its memory is not read."""
    # They import drgn and numpy, which take longer to start than a sample takes.
    from mmscope.drgn.machine.file_tree import describe_files
    from mmscope.drgn.sections.files import Absent, Files

    try:
        return {**asdict(describe_files(Files(Path("/")))), "kind": "live"}
    except (Absent, ValueError):
        kernel = os.uname()
        return {"kind": "live", "release": kernel.release, "hostname": kernel.nodename}
