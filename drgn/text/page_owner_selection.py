# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Which records of ``/sys/kernel/debug/page_owner`` are counted, and by what together.

Costs nothing of its own: a part of a record is asked once for all records that have it.

It cannot know: who used a page after it was allocated.
"""

from collections.abc import Iterable

from mmscope.drgn.text.page_owner_records import MEMBERS, Task

CULL_KEYS = ("pid", "tgid", "comm", "order", "gfp", "stack", "memcg", "allocator")


class Selection:
    """
    What to count of a ``page_owner`` file; by default all of it.

    :ivar pid, tgid, comm, order: values to keep.
    :ivar gfp: flag names, all of which must be among those printed, or one mask.
    :ivar module: a record is kept if a frame of its stack is of one of these modules.
    :ivar since, until: ts in ns, inclusive.
    :ivar cull: count by these of :data:`CULL_KEYS` together, instead of by each one alone.
    """

    def __init__(
        self,
        *,
        pid: Iterable[int] = (),
        tgid: Iterable[int] = (),
        comm: Iterable[bytes] = (),
        order: Iterable[int] = (),
        gfp: Iterable[bytes] = (),
        module: Iterable[bytes] = (),
        since: int | None = None,
        until: int | None = None,
        cull: Iterable[str] = (),
    ) -> None:
        self.pid, self.tgid, self.comm = frozenset(pid), frozenset(tgid), frozenset(comm)
        self.order, self.gfp, self.module = frozenset(order), frozenset(gfp), frozenset(module)
        self.since, self.until, self.cull = since, until, tuple(cull)

    @property
    def timed(self) -> bool:
        """Whether the time of each single record matters."""
        return self.since is not None or self.until is not None or bool(self.cull)

    @property
    def members(self) -> frozenset[str]:
        """Which of :data:`MEMBERS` a record needs for it."""
        timed = self.since is not None or self.until is not None
        needed = {"pid": self.pid, "tgid": self.tgid, "comm": self.comm, "ts_nsec": timed}
        return MEMBERS & {*self.cull, *(name for name, wanted in needed.items() if wanted)}

    def task(self, fields: Task) -> bool:
        """Whether allocations with this first line are wanted."""
        order, mask, names, pid, tgid, comm = fields
        return (
            (not self.order or order in self.order)
            and (not self.pid or pid in self.pid)
            and (not self.tgid or tgid in self.tgid)
            and (not self.comm or comm in self.comm)
            and (not self.gfp or mask in self.gfp or self.gfp <= set(names.split(b"|")))
        )

    def stack(self, stack: bytes) -> bool:
        """Whether allocations with this stack are wanted."""
        return not self.module or any(b" [%b]\n" % name in stack for name in self.module)

    def moment(self, ts: int) -> bool:
        """Whether allocations of this time are wanted."""
        return (self.since is None or ts >= self.since) and (self.until is None or ts <= self.until)


EVERYTHING = Selection()
