# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel's memory as sections read it: what several of them need is worked out once."""

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from drgn import FaultError, Program, ProgramFlags

from mmscope.drgn.reading.kernel_arrays import PAGE, Gaps

# libkdumpfile up to 0.5.4, which Debian 13 has, may lose the room for a page in its cache once it
# was asked for pages that the dump leaves out, and then unpacks no page any more: its commit
# e63dab40c8ce ("cache: Get data buffer before adjusting ghost partition size").
LOST = re.compile(r"from kdump: Decompress?ion failed: error -2\b")
# Pages of the kernel's text that are read to see it: hardly one of them is in the cache.
PROBES, MOST_PROBED = 8, 1024


class DeadlineExceeded(BaseException):
    """
    A section took longer than it may.

    Not an Exception, so that nothing on the way up takes it for a failure of its own and goes on.
    """


Kept = TypeVar("Kept")
# Makes a consumer of struct_pages.scan_struct_pages(); None where it cannot go along.
MakeConsumer = Callable[["Memory"], Any]


@dataclass
class Memory:
    """
    A kernel's memory.

    :ivar progress: called with how far a pass is: (done, in all).
    :ivar consumers: of other sections, for the first pass over all struct pages, so that these need
        no pass of their own.
    :ivar jobs: how many processes may share a pass over a large machine's struct pages, or a walk
        over the page tables of many processes.
    :ivar rmap_node_ns: nanoseconds of a visit of a tree node, as the user measured them.
    :ivar opened: opens a dump once more.
    """

    prog: Program
    progress: Callable[[int, int], None] | None = None
    consumers: Callable[[], Iterable[MakeConsumer]] = tuple
    jobs: int = 1
    rmap_node_ns: float | None = None
    opened: Callable[[], Program] | None = None
    _probed: int = 0
    _kept: dict[str, Any] = field(default_factory=dict)
    _consumers: dict[type, tuple[Any, Gaps]] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """True if the kernel runs while it is read."""
        return bool(self.prog.flags & ProgramFlags.IS_LIVE)

    def lost(self) -> bool:
        """True if the dump must be reopened before more of it can be read: see :data:`LOST`."""
        if self.opened is None:
            return False
        with contextlib.suppress(LookupError):
            text = self.prog.symbol("_stext").address
            for _ in range(PROBES):
                self._probed = (self._probed + 1) % MOST_PROBED
                try:
                    self.prog.read(text + self._probed * PAGE, 1)
                except FaultError as error:
                    if LOST.search(str(error)):
                        return True
        return False

    def open_anew(self) -> None:
        """Begin again with a dump, with nothing that was read of it before."""
        assert self.opened is not None
        self.prog = self.opened()
        self._kept, self._consumers = {}, {}  # objects of one program are nothing to another

    def once(self, name: str, work: Callable[[], Kept]) -> Kept:
        """Compute what several sections need, once; if it failed, it failed for all of them."""
        if name not in self._kept:
            try:
                self._kept[name] = work()
            except (Exception, DeadlineExceeded) as error:
                self._kept[name] = error
        kept = self._kept[name]
        if isinstance(kept, BaseException):
            raise kept
        return cast(Kept, kept)

    def kept(self, name: str) -> Any:
        """Result of another section's work; None if it did none, or that failed."""
        found = self._kept.get(name)
        return None if isinstance(found, BaseException) else found

    def make_consumers(self) -> list[Any]:
        """The consumers of other sections, for the first pass."""
        made = []
        for make in self.consumers():
            # The section that needs it will say what is wrong.
            with contextlib.suppress(Exception):
                if (consumer := make(self)) is not None:
                    made.append(consumer)
        return made

    def keep_consumers(self, consumers: Iterable[Any], gaps: Gaps) -> None:
        """
        Keep the consumers that saw every page.

        :param gaps: what the pass could not read.
        """
        self._consumers |= {type(consumer): (consumer, gaps) for consumer in consumers}

    def kept_consumer(self, kind: type[Kept]) -> tuple[Kept, Gaps] | None:
        """A consumer of the first pass, and what that could not read."""
        return self._consumers.get(kind)
