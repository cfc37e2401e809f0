# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A damaged vmcore: a few of the ways that ``make soak`` tries, and what must be said of it.
"""

import pytest
import soak
from conftest import Lab


@pytest.mark.parametrize(
    "seed",
    # Some of each kind of page and damage; 16: nr_cpu_ids in the billions, where a loop over all
    # CPUs took minutes; 271: no section left; 297: an array across the end of all addresses; 334: a
    # list of processes in a circle, which took 44 s; 571: a cache that says that it keeps tracks.
    [0, 1, 2, 3, 4, 5, 6, 7, 16, 271, 297, 334, 571],
)
def test_nothing_ends_badly(lab: Lab, seed: int) -> None:
    result = soak.run(seed, lab.capture.vmcore, lab.capture.vmlinux)
    assert "died" not in result, result["died"]
    assert not result["defects"], "".join(result["defects"])
    print(f"seed {seed}: {result['what']}, {result['seconds']:.1f} s")
    for section, status in result["sections"].items():
        assert status in ("ok", "partial", "absent") or result["messages"][section]
    assert result["page_bytes"] > 10_000
