# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Accumulators of one process, merged with those of the others.

A class names its attributes that grow, and how two values of each become one. Shares are added in
the order of what was looked at, so that the sum is what one process would have, to the order of a
dictionary's keys. Where it would not be (one process keeps only so many of something, and which
depends on what came before), :class:`NotSharedError` is raised, and the work is to be done by one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.reading.memory_left import memory_left
from mmscope.drgn.workers.workers import NotSharedError

Merge = Callable[[Any, Any], Any]

# Of the memory that is left, what sections take beside the rows that are kept.
BESIDE = 40 << 20
FEWEST = 4096  # rows that room is made for


class Shared:
    """An accumulator whose partial results can be merged."""

    MERGES: ClassVar[Mapping[str, Merge]]

    def share(self) -> dict[str, Any]:
        """The partial result, to be pickled."""
        values = {name: getattr(self, name) for name in self.MERGES}
        return {n: v.share() if isinstance(v, Shared) else v for n, v in values.items()}

    def add_share(self, share: Mapping[str, Any]) -> None:
        """Merge the partial result of the share that comes next."""
        for name, merge in self.MERGES.items():
            setattr(self, name, merge(getattr(self, name), share[name]))

    def restore(self, share: Mapping[str, Any]) -> None:
        """Go back to an earlier partial result."""
        for name in self.MERGES:
            value = getattr(self, name)
            if isinstance(value, Shared):
                value.restore(share[name])
            else:
                setattr(self, name, share[name])


class SharedColumns(Shared):
    """
    An accumulator of rows as columns: up to MOST of them, as far as memory has room; none if there
    are more.

    :ivar overflowed: there were more.
    """

    ROWS: ClassVar[str]  # the attribute that counts them
    MOST: int
    KINDS: Sequence[Any]  # of the columns
    overflowed = False

    def __init__(self) -> None:
        self._kept = [np.empty(0, kind) for kind in self.KINDS]

    def keep(self, *columns: NDArray[Any]) -> None:
        """Keep the rows that come next, and count them."""
        begin = getattr(self, self.ROWS)
        end = begin + len(columns[0])
        setattr(self, self.ROWS, end)
        if self._kept and (end > self.MOST or not self._room_for(end)):
            self.overflowed = True
            self.forget()
        for kept, values in zip(self._kept, columns, strict=False):
            kept[begin:end] = values

    def _room_for(self, rows: int) -> bool:
        """Make room, if memory has it: by an eighth more, which is moved by its page tables."""
        room = len(self._kept[0])
        if rows > room:
            wanted = min(max(rows, room + max(room // 8, FEWEST)), self.MOST)
            row = sum(kept.itemsize for kept in self._kept)
            if memory_left() - BESIDE < (wanted - room) * row:
                return False
            for kept in self._kept:
                kept.resize(wanted, refcheck=False)
        return True

    def forget(self) -> None:
        """Let go of the rows, which can then be had no more."""
        self._kept = []

    def share(self) -> dict[str, Any]:
        rows = getattr(self, self.ROWS)
        return {**super().share(), "kept": [column[:rows] for column in self._kept]}

    def add_share(self, share: Mapping[str, Any]) -> None:
        begin = getattr(self, self.ROWS)
        super().add_share(share)
        end = getattr(self, self.ROWS)
        if share["kept"] and self._kept:
            setattr(self, self.ROWS, begin)
            self.keep(*share["kept"])
        else:
            self.overflowed |= end > begin
            self.forget()

    def restore(self, share: Mapping[str, Any]) -> None:
        super().restore(share)
        SharedColumns.__init__(self)
        self.overflowed = False


def merges(**names: Merge) -> Mapping[str, Merge]:
    """The value of ``MERGES``."""
    return names


def summed(mine: dict[Any, int], theirs: dict[Any, int]) -> dict[Any, int]:
    for key, count in theirs.items():
        mine[key] = mine.get(key, 0) + count
    return mine


def summed_up_to(most: int) -> Merge:
    """As :func:`summed`, of what keeps so many keys."""

    def merge(mine: dict[Any, int], theirs: dict[Any, int]) -> dict[Any, int]:
        if len(summed(mine, theirs)) >= most:
            raise NotSharedError
        return mine

    return merge


def nested(mine: Shared | None, theirs: Mapping[str, Any] | None) -> Shared | None:
    """Merge the share of another accumulator, if there is one."""
    if mine is not None and theirs is not None:
        mine.add_share(theirs)
    return mine


def none_of(mine: int, theirs: int) -> int:
    """Refuse a count that only damaged memory has, and that depends on what came before."""
    if mine or theirs:
        raise NotSharedError
    return 0
