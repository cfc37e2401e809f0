# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pins of pages, as far as no kernel is needed for it."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from mmscope.drgn.free.pageblocks import PageblockTypes
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.ledger.pinned_pages import BIAS, PinnedPages
from mmscope.drgn.reading.struct_pages import PageChunk

HEAD = np.uint32(1)
CMA = 4


class SomePins(PinnedPages):
    """Of a machine whose page frames are all in a pageblock of CMA."""

    def __init__(self) -> None:
        self._head, self.column, self._at = HEAD, "pincount", 1
        self.types = PageblockTypes(9, [], np.array([CMA], np.int8), np.ones(1, np.bool_), 9)
        self.pages, self.pins = Counter(), Counter()


def pins_of(kind: Kind, pages: list[dict[str, int]]) -> PinnedPages:
    kinds = {"refcount": "<i4", "mapcount": "<i4", "tail": "<u8", "order": "u1", "pincount": "<i4"}
    columns: Any = np.zeros(len(pages), list(kinds.items()))
    columns["mapcount"] = -1
    for at, page in enumerate(pages):
        for name, value in page.items():
            if name != "head":
                columns[name][at] = value
    flags = np.array([page.get("head", 0) for page in pages], np.uint32)
    found = SomePins()
    size = len(pages)
    found.take(
        PageChunk(0, 0, columns),
        flags,
        np.full(size, kind, np.uint8),
        np.zeros(size, np.int64),
        np.ones(size, np.bool_),
    )
    return found


def test_a_small_page_has_a_thousand_references_for_each_pin() -> None:
    found = pins_of(Kind.ANON, [{"refcount": 3 * BIAS + 1, "mapcount": 0}, {"refcount": 1}])
    key = (0, int(Kind.ANON), CMA, 0)
    assert (dict(found.pages), dict(found.pins)) == ({key: 1}, {key: 3})


@pytest.mark.parametrize("processes", [BIAS, 5 * BIAS])
def test_a_page_that_many_processes_map_is_not_pinned(processes: int) -> None:
    found = pins_of(Kind.FILE, [{"refcount": processes + 2, "mapcount": processes - 1}])
    assert not found.pages


def test_a_large_folio_is_pinned_whole() -> None:
    found = pins_of(
        Kind.LARGE, [{"head": 1, "refcount": 3}, {"tail": 1, "order": 9, "pincount": 2}]
    )
    key = (0, int(Kind.LARGE), CMA, 9)
    assert (dict(found.pages), dict(found.pins)) == ({key: 512}, {key: 2})


def test_other_compound_pages_are_not_looked_at() -> None:
    pages = [{"head": 1, "refcount": 3}, {"tail": 1, "order": 9, "pincount": 2}]
    assert not pins_of(Kind.SLAB, pages).pages


def test_pages_of_a_memfd_are_pinned_for_a_dma_buf() -> None:
    found = pins_of(Kind.DMA_BUF, [{"refcount": BIAS + 2}, {"refcount": 1}])
    key = (0, int(Kind.DMA_BUF), CMA, 0)
    assert (dict(found.pages), dict(found.pins)) == ({key: 1}, {key: 1})
