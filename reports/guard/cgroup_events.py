# SPDX-License-Identifier: LGPL-2.1-or-later
"""
memory.events of cgroups (cgroup v2): ``oom``, a cgroup at its limit in which an allocation was
about to fail, and ``oom_kill``.

memory.events counts what is below as well (memory_events_show(), mm/memcontrol.c), so that the
cgroups below the root are enough, a few files. Only when one of them has moved are those below it
read, to name the one that it was. Where cgroup2 is mounted with ``memory_localevents`` only
the cgroups below the root are seen.
"""

import contextlib
import os
import re

from mmscope.drgn.text.plain_file import read_plain

NAMES = ("oom", "oom_kill", "oom_group_kill")
MOST_CGROUPS, MOST_DEPTH = 2000, 32

Counts = dict[str, int]
Event = tuple[str, str, int]  # cgroup, name, by how much


class CgroupEvents:
    """
    Follows memory.events. All cgroups are read once, to begin with.

    :param root: where cgroup2 is mounted.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._seen: dict[str, Counts] = {}
        self._all_known = self._learn("")

    def _learn(self, folder: str, depth: int = 0) -> bool:
        """Read all that is below a folder; False: there are too many."""
        for name in self._folders(folder):
            cgroup = f"{folder}/{name}"
            if len(self._seen) >= MOST_CGROUPS or depth == MOST_DEPTH:
                return False
            if (now := self._read(cgroup)) is not None:
                self._seen[cgroup] = now
                if not self._learn(cgroup, depth + 1):
                    return False
        return True

    def new(self) -> list[Event]:
        """Events counted since the last call, each in the deepest cgroup that counted it."""
        return self._look("")

    def _look(self, folder: str, depth: int = 0) -> list[Event]:
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
                below = self._look(cgroup, depth + 1) if depth < MOST_DEPTH else []
                found += below or [(cgroup, *item) for item in moved.items()]
        self._forget(folder, there)
        return found

    def _forget(self, folder: str, there: set[str]) -> None:
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
