# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a global is, by what KASAN's shadow says of the bytes behind its address."""

import pytest

from mmscope.drgn.opening.kasan import without_redzone


@pytest.mark.parametrize(
    ("shadow", "bytes_of_it"),
    [
        (bytes(64) + b"\xf9" * 16, 512),
        (bytes(3) + b"\x05" + b"\xf9" * 4, 29),
        (b"\x01" + b"\xf9" * 7, 1),
        (bytes(10), 80),  # in a file that KASAN leaves alone
        (b"\xf9" * 4, 0),
        (bytes(2) + b"\xff\xf9", 24),
    ],
)
def test_a_global_ends_where_its_red_zone_begins(shadow: bytes, bytes_of_it: int) -> None:
    assert without_redzone(shadow, 8 * len(shadow)) == bytes_of_it
