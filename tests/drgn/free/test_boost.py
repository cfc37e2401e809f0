# SPDX-License-Identifier: LGPL-2.1-or-later
"""The boost of the watermarks, held against what the kernel gives at most."""

import pytest

from mmscope.drgn.free.zones import Zone, boost_beyond

PAGEBLOCK = 512


@pytest.mark.parametrize(
    ("high", "boost", "factor", "beyond"),
    [
        (1000, 0, 15_000, False),
        (1000, 1500, 15_000, False),
        (1000, 1501, 15_000, True),
        (1000, 1500, 0, False),  # given before it was switched off
        (1000, 3000, 30_000, False),
        (10, PAGEBLOCK, 15_000, False),  # one pageblock always
        (10, PAGEBLOCK + 1, 15_000, True),
    ],
)
def test_a_boost_is_at_most_a_part_of_the_high_watermark(
    high: int, boost: int, factor: int, beyond: bool
) -> None:
    zone = Zone(
        *(0, "Normal", 1 << 20, 1 << 20, 1 << 20, 0),
        *(500 + boost, 700 + boost, high + boost, boost, 0, 0, None, 0, False, None),
    )
    assert boost_beyond(zone, factor, PAGEBLOCK) is beyond
