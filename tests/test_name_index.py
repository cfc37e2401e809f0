# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names are found where they are: each, all of the same, and none that is not there."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.opening.name_index import NameIndex

# So few letters that many names are alike, or begin and end alike.
NAMES = st.lists(st.text("ab_", min_size=1, max_size=20).map(str.encode), min_size=1, max_size=60)


def index_of(names: list[bytes]) -> NameIndex:
    ends = np.cumsum([len(name) + 1 for name in names]) - 1
    starts = np.append(0, ends[:-1] + 1)
    return NameIndex(b"\n".join(names) + b"\n", starts, ends)


@given(NAMES, st.text("ab_", min_size=1, max_size=20).map(str.encode))
def test_every_name_is_found_and_no_other(names: list[bytes], other: bytes) -> None:
    index = index_of(names)
    for wanted in [*names, other]:
        expected = [number for number, name in enumerate(names) if name == wanted]
        assert index.numbers(wanted, b"\n") == expected


def test_names_with_one_hash_are_told_apart() -> None:
    """The same length, the same first and last eight bytes."""
    names = [b"abcdefgh-1-abcdefgh", b"abcdefgh-2-abcdefgh"]
    assert [index_of(names).numbers(name, b"\n") for name in names] == [[0], [1]]


def test_a_name_is_not_found_in_a_longer_one() -> None:
    assert index_of([b"schedule_timeout"]).numbers(b"schedule", b"\n") == []
