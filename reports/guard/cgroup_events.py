# SPDX-License-Identifier: LGPL-2.1-or-later
"""
memory.events of cgroups (cgroup v2): ``oom``, a cgroup at its limit in which an allocation was
about to fail, ``oom_kill``, and ``high``, reclaim above memory.high; and who waits, by
memory.pressure.

memory.events counts what is below as well (memory_events_show(), mm/memcontrol.c), so that the
cgroups below the root are enough, a few files. Only when one of them has moved are those below it
read, to name the one that it was. Where cgroup2 is mounted with ``memory_localevents`` only
the cgroups below the root are seen. memory.pressure is read of those that were above memory.high,
and, while the machine waits for memory, down to the cgroup that has most of it.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

from mmscope.drgn.text.plain_file import read_plain
from mmscope.reports.watch.samples import parse_pressure

HIGH = "high"
NAMES = (HIGH, "oom", "oom_kill", "oom_group_kill")
# Of the last ten seconds, in per cent: where the machine waits more, cgroups are asked who does.
SOME, FULL = 10.0, 2.0
MOST_CGROUPS, MOST_DEPTH = 2000, 32

Counts = dict[str, int]
Event = tuple[str, str, int]  # cgroup, name, by how much
Pressure = tuple[str, float, float]  # cgroup, avg10 of some and full


class CgroupEvents:
    """
    Follows memory.events. All cgroups are read once, to begin with.

    :param root: where cgroup2 is mounted.
    :ivar above_high: events of ``high`` since the last call of :meth:`new`, which are many.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.above_high: list[Event] = []
        self._seen: dict[str, Counts] = {}
        self._all_known = self._read_below("")

    def _read_below(self, folder: str, depth: int = 0) -> bool:
        """Read all that is below a folder; False: there are too many."""
        for name in self._folders(folder):
            cgroup = f"{folder}/{name}"
            if len(self._seen) >= MOST_CGROUPS or depth == MOST_DEPTH:
                return False
            if (now := self._read(cgroup)) is not None:
                self._seen[cgroup] = now
                if not self._read_below(cgroup, depth + 1):
                    return False
        return True

    def new(self) -> list[Event]:
        """Events counted since the last call, each in the deepest cgroup that counted it."""
        found = self._new_events("")
        self.above_high = [event for event in found if event[1] == HIGH]
        return [event for event in found if event[1] != HIGH]

    def pressed(self, machine: Mapping[str, Sequence[float]]) -> list[Pressure]:
        """
        Read who waits for memory, after :meth:`new`.

        :param machine: of ``parse_pressure()``, what the machine itself says; empty: unknown.
        """
        found: dict[str, tuple[float, float]] = {}
        for cgroup in dict.fromkeys(cgroup for cgroup, _, _ in self.above_high[:MOST_CGROUPS]):
            if (own := self._pressure(cgroup)) is not None:
                found[cgroup] = own
        full = machine.get("full", (0.0,))[0]
        if machine and (machine["some"][0] >= SOME or full >= FULL):
            folder, least = "", full / 2
            for _ in range(MOST_DEPTH):
                below = [f"{folder}/{name}" for name in self._folders(folder)]
                said = {c: p for c in below[:MOST_CGROUPS] if (p := self._pressure(c)) is not None}
                worst = max(said, key=lambda cgroup: said[cgroup][1], default="")
                if not worst or said[worst][1] < least:
                    break
                found[worst] = said[worst]
                folder, least = worst, said[worst][1] / 2
        return [(cgroup, *said) for cgroup, said in found.items()]

    def _pressure(self, cgroup: str) -> tuple[float, float] | None:
        """Both averages; None: it is gone, or the kernel keeps none."""
        try:
            text = read_plain(f"{self.root}{cgroup}/memory.pressure").decode("ascii", "replace")
            said = parse_pressure(text)
        except (OSError, ValueError):
            return None
        return said["some"][0], said.get("full", said["some"])[0]

    def _new_events(self, folder: str, depth: int = 0) -> list[Event]:
        """Events that the cgroups of a folder counted since they were last read."""
        found: list[Event] = []
        there = set()
        for name in self._folders(folder):
            cgroup = f"{folder}/{name}"
            there.add(cgroup)
            now = self._read(cgroup)
            if now is None:
                continue
            # One that was not there began with zero. One that was never read is unknown.
            unseen = dict.fromkeys(NAMES, 0) if self._all_known else now
            before = self._seen.get(cgroup, unseen)
            self._seen[cgroup] = now
            moved = {key: now[key] - before[key] for key in NAMES if now[key] > before[key]}
            if moved:
                below = self._new_events(cgroup, depth + 1) if depth < MOST_DEPTH else []
                deeper = {name for _, name, _ in below}
                found += below
                found += [(cgroup, *item) for item in moved.items() if item[0] not in deeper]
        self._drop_gone(folder, there)
        return found

    def _drop_gone(self, folder: str, there: set[str]) -> None:
        """Drop the cgroups of a folder that have gone, with all that was below them."""
        depth = folder.count("/") + 1
        for cgroup in [c for c in self._seen if c.startswith(f"{folder}/")]:
            if "/".join(cgroup.split("/")[: depth + 1]) not in there:
                del self._seen[cgroup]

    def _folders(self, folder: str) -> list[str]:
        with contextlib.suppress(OSError), os.scandir(f"{self.root}{folder}") as entries:
            return [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        return []

    def _read(self, cgroup: str) -> Counts | None:
        """The counts of a cgroup; None: it has no memory controller, or is gone."""
        try:
            text = read_plain(f"{self.root}{cgroup}/memory.events").decode("ascii", "replace")
        except OSError:
            return None
        said = dict(re.findall(r"^(\w+) (\d{1,19})$", text, re.MULTILINE))
        return {name: int(said.get(name, 0)) for name in NAMES}
