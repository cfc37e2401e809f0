# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders' pages in the pass over all struct pages, as far as no kernel is needed for it."""

from typing import cast

import numpy as np
import pytest

from mmscope.drgn.holders import holdings
from mmscope.drgn.holders.holdings import HeldPages, Holder, Holdings, by_holder
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.reading.kernel_arrays import Bools, S64s


class SomeHoldings:
    """Blocks of two pages and of four, of two holders."""

    starts, stops, of = (np.array(column, np.int64) for column in ([10, 20], [12, 24], [0, 1]))


def held() -> HeldPages:
    return HeldPages(cast(Holdings, SomeHoldings()))


def take(
    pages: HeldPages,
    first: int,
    kinds: list[Kind],
    absent: tuple[int, ...] = (),
    alone: tuple[int, ...] = (),
) -> None:
    present = np.array([first + at not in absent for at in range(len(kinds))])
    pages.take(first, np.array(kinds, np.uint8), present, lambda at: np.isin(first + at, alone))


def test_pages_are_in_the_class_that_the_ledger_has_them_in() -> None:
    pages = held()
    take(pages, 9, [Kind.PIPE, Kind.PIPE, Kind.FILE, Kind.PIPE])
    assert set(pages.rows()) == {(0, Kind.PIPE, 1), (0, Kind.FILE, 1)}


def test_a_block_may_lie_in_two_chunks() -> None:
    pages = held()
    take(pages, 11, [Kind.PIPE] * 10)  # up to 20
    take(pages, 21, [Kind.SOCKET] * 10)
    assert set(pages.rows()) == {(0, Kind.PIPE, 1), (1, Kind.PIPE, 1), (1, Kind.SOCKET, 3)}


def test_what_is_no_memory_is_not_counted() -> None:
    pages = held()
    take(pages, 10, [Kind.PIPE] * 2, absent=(11,))
    assert pages.rows() == [(0, Kind.PIPE, 1)]


def test_pages_that_nobody_else_has_are_counted_by_holder() -> None:
    pages = held()
    take(pages, 9, [Kind.ANON] * 15, alone=(9, 11, 20, 21), absent=(21,))
    assert pages.alone == {0: 1, 1: 1}


def test_chunks_without_a_held_page_count_nothing() -> None:
    pages = held()
    take(pages, 12, [Kind.PIPE] * 8)
    take(pages, 24, [Kind.PIPE] * 8)
    assert pages.rows() == []


def test_shares_of_two_processes_add_up() -> None:
    pages, other = held(), held()
    take(pages, 10, [Kind.PIPE] * 2)
    take(other, 20, [Kind.PIPE] * 4)
    take(other, 10, [Kind.PIPE])
    pages.add_share(other.share())
    assert sorted(pages.rows()) == [(0, Kind.PIPE, 3), (1, Kind.PIPE, 4)]


def test_holders_are_found_once_each() -> None:
    one, two = Holder("pipe"), Holder("socket", "udp")
    found = [(holder, at.tolist()) for holder, at in by_holder([one, two, one])]
    assert found == [(one, [0, 2]), (two, [1])]
    assert list(by_holder([])) == []


class OfAThousandPages(Holdings):
    """A machine of a thousand pages, of which 8 to 15 are a compound page, and 100 is reserved."""

    def __init__(self) -> None:
        self.holders, self.objects, self.missing, self.strange = [], [], [], 0
        self._numbers, self._parts = {}, []
        self._first, self._stop = np.array([0]), np.array([1000])

    def _compounds(self, starts: S64s, counts: S64s) -> tuple[S64s, S64s, Bools, Bools, Bools]:
        inside = (starts >= 8) & (starts < 16)
        starts, counts = np.where(inside, 8, starts), np.where(inside, 8, counts)
        return starts, counts, np.ones_like(inside), starts == 100, ~inside

    def settled(self) -> list[tuple[int, int, int]]:
        self.settle()
        columns = (self.starts, self.stops, self.of)
        return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("few", [1000, 0])
def test_a_page_that_two_hold_is_the_first_ones(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "FEW", few)
    found = OfAThousandPages()
    found.frames(Holder("one"), 0, np.arange(40, 45))
    found.frames(Holder("two"), 0, np.arange(38, 50))
    held = {page: of for start, stop, of in found.settled() for page in range(start, stop)}
    assert held == {page: 0 if 40 <= page < 45 else 1 for page in range(38, 50)}


def test_neighbours_are_one_block_but_for_compound_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "FEW", 0)
    found = OfAThousandPages()
    found.frames(Holder("one"), 0, np.array([101, 7, 99, 100, 9, 3, 8, 4, 16, 17, 500]))
    blocks = [(start, stop) for start, stop, _ in found.settled()]
    assert blocks == [
        (3, 5),
        (7, 8),
        (8, 16),
        (16, 18),
        (99, 100),
        (100, 101),
        (101, 102),
        (500, 501),
    ]
