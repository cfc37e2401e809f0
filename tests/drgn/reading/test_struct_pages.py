# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass over struct pages, in shares."""

from mmscope.drgn.reading.struct_pages import _edges


def test_shares_begin_where_no_free_block_lies_in_two() -> None:
    pieces = [(at << 14, 0, 1 << 14) for at in range(16)]
    assert _edges(pieces, 4, False) == [0, 4, 8, 12, 16]
    assert _edges(pieces, 5, False) == [0, 4, 7, 10, 13, 16]
    assert _edges(pieces, 16, False) == list(range(17))
    assert _edges(pieces, 16, True) == [*range(0, 16, 2), 16]
    assert _edges([(1, 0, 100), (101, 0, 100)], 2, True) == [0, 2]
