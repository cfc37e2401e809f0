# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names beside what they should be."""

import pytest

from mmscope.drgn.reading.kernel_names import nearly


@pytest.mark.parametrize(
    ("name", "other", "is_nearly"),
    [
        ("tracefs", "tracefs", False),
        ("t", "tracefs", True),
        ("", "tracefs", True),
        ("tracefz", "tracefs", True),
        ("0:45", "nfs", False),
        ("sda1", "ext4", False),
        ("tracefs2", "tracefs", False),
    ],
)
def test_a_name_that_is_cut_or_one_letter_off_is_nearly_the_other(
    name: str, other: str, is_nearly: bool
) -> None:
    assert nearly(name, other) == is_nearly
