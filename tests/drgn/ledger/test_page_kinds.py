# SPDX-License-Identifier: LGPL-2.1-or-later
"""Uses of pages by their struct page, as far as no kernel is needed for it."""

from typing import Any, cast

import numpy as np
import pytest

from mmscope.drgn.ledger.page_kinds import PP_SIGNATURE, ZFS_PAGE, Kind, PageKinds
from mmscope.drgn.reading.struct_pages import PageChunk

HEAD, RESERVED, BACKED, CACHED = (np.uint32(1 << bit) for bit in range(4))


class SomeKinds(PageKinds):
    """Of a kernel without page types and hugetlb."""

    def __init__(self) -> None:
        self._tests, self._slab, self._dtor = [], np.uint32(0), None
        self._pool_mask, self._pool = PP_SIGNATURE
        self._flags = (HEAD, RESERVED, BACKED, CACHED)
        self._mops = self._aops = None


def kind(*, flags: int = 0, private: int = 0, mapping: int = 0, references: int = 2) -> Kind:
    chunk = {
        "refcount": np.array([references], np.int32), "mapping": np.array([mapping], np.uint64),
        "mapcount": np.array([-1], np.int32), "private": np.array([private], np.uint64),
    }  # fmt: skip
    words = np.zeros(1, np.uint64)
    (found,) = SomeKinds().of(cast(PageChunk, chunk), np.array([flags], np.uint32), words)
    return Kind(int(found))


@pytest.mark.parametrize("flags", [0, int(HEAD)], ids=["single", "compound"])
def test_pages_of_zfs_have_its_number(flags: int) -> None:
    assert kind(flags=flags, private=int(ZFS_PAGE)) is Kind.ARC
    assert kind(flags=flags, private=int(ZFS_PAGE) - 1) in (Kind.IN_USE, Kind.COMPOUND)


@pytest.mark.parametrize(
    "more", [{"mapping": 0xFFFF888000001000}, {"references": 0}, {"flags": int(RESERVED)}]
)
def test_what_says_more_than_that_number_counts(more: dict[str, Any]) -> None:
    assert kind(private=int(ZFS_PAGE), **more) is not Kind.ARC
