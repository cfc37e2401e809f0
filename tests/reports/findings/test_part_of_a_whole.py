# SPDX-License-Identifier: LGPL-2.1-or-later
"""A finding's part is never said to be more than its whole."""

import pytest

from mmscope.reports.findings.finding_words import part_of_a_whole


@pytest.mark.parametrize(
    ("share", "said"), [(0.5, "50.0 %"), (1, "100 %"), (1.004, "100 %"), (0.9999, ">99.9 %")]
)
def test_a_share_is_said_in_per_cent(share: float, said: str) -> None:
    assert part_of_a_whole(share) == said


@pytest.mark.parametrize("share", [1.02, 18601.63, 524548.13])
def test_more_than_the_whole_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="of its whole"):
        part_of_a_whole(share)
