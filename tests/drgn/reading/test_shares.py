# SPDX-License-Identifier: LGPL-2.1-or-later
"""Partial results of shares, and how they are merged."""

from operator import add

import numpy as np
import pytest

from mmscope.drgn.reading import shares as shares_module
from mmscope.drgn.reading.memory_left import UNKNOWN
from mmscope.drgn.reading.shares import Shared, SharedColumns, merges, none_of, summed_up_to
from mmscope.drgn.workers.workers import NotSharedError


class Kept(SharedColumns):
    ROWS, KINDS, MERGES = "rows", (np.uint64, np.uint16), merges(rows=add)

    def __init__(self, most: int) -> None:
        self.rows, self.MOST = 0, most
        super().__init__()

    def take(self, numbers: range) -> None:
        self.keep(np.array(numbers), np.array(numbers))


def kept(most: int, *pieces: range) -> Kept:
    made = Kept(most)
    for piece in pieces:
        made.take(piece)
    return made


@pytest.mark.parametrize(
    ("left", "most", "whole"),
    [(UNKNOWN, 20_000, True), (UNKNOWN, 19_999, False), (90_000, 20_000, False), (0, 0, False)],
)
def test_rows_are_kept_as_far_as_memory_has_room(
    left: int, most: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_module, "memory_left", lambda: shares_module.BESIDE + left)
    one = kept(most, range(10_000), range(10_000, 20_000))
    assert (one.rows, one.overflowed) == (20_000, not whole)
    both = kept(most, range(10_000))
    both.add_share(kept(most, range(10_000, 20_000)).share())
    both.add_share(kept(most).share())
    assert (both.rows, both.overflowed) == (20_000, not whole)
    for each in (one, both):
        columns = each.share()["kept"]
        assert [column.tolist() for column in columns] == [[*range(20_000)]] * 2 * whole
    both.restore(kept(most).share())
    assert (both.rows, both.overflowed) == (0, False)


class Few(Shared):
    MERGES = merges(counts=summed_up_to(3), others=none_of)

    def __init__(self, counts: dict[str, int], others: int = 0) -> None:
        self.counts, self.others = counts, others


def test_what_depends_on_what_came_before_is_not_added_up() -> None:
    few = Few({"a": 1})
    few.add_share(Few({"b": 2, "a": 3}).share())
    assert list(few.counts.items()) == [("a", 4), ("b", 2)]
    with pytest.raises(NotSharedError):
        few.add_share(Few({"c": 1}).share())
    with pytest.raises(NotSharedError):
        Few({}).add_share(Few({}, 1).share())
