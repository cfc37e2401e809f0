# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a higher min_free_kbytes would do, by the kernel's own rule."""

from dataclasses import asdict
from typing import Any

import pytest
from checkout import TESTS

from mmscope.drgn.free.watermarks import min_free, wmarks_of
from mmscope.drgn.free.zones import read_zoneinfo

SET = {"vm.min_free_kbytes": "67584", "vm.watermark_scale_factor": "10"}


def zones() -> list[dict[str, Any]]:
    text = (TESTS / "data" / "7.2" / "proc" / "zoneinfo").read_text()
    return [asdict(row) for row in read_zoneinfo(text)]


def test_the_rule_gives_what_a_kernel_set() -> None:
    found = min_free(zones(), SET, 4096)
    assert found.unknown == ""
    now = found.raised[0]
    assert [zone.wmarks for zone in now.zones] == [
        (180, 225, 270), (5102, 6377, 7652), (11612, 14515, 17418),
    ]  # fmt: skip


@pytest.mark.parametrize("kbytes", ["67000", "0", "many"])
def test_where_it_does_not_nothing_is_said(kbytes: str) -> None:
    found = min_free(zones(), SET | {"vm.min_free_kbytes": kbytes}, 4096)
    assert found.unknown
    assert not found.raised


def test_the_bounds_are_the_last_that_hold() -> None:
    found = min_free(zones(), SET, 4096)
    rows = [row for row in zones() if row["managed_pages"]]
    for bound, mark in ((found.quiet, 1), (found.direct, 0)):
        for kbytes, over in ((bound, False), (bound + 4, True)):
            wmarks = wmarks_of(rows, kbytes // 4, 10, movable=False)
            usable = [row["free_pages"] - row["highatomic_free_pages"] for row in rows]
            main = [usable[n] <= wmarks[n][mark] for n in (1, 2)]
            assert any(main) == over


def test_a_zone_that_is_low_already_has_no_room() -> None:
    rows = zones()
    low = [row | {"free_pages": min(row["free_pages"], row["wmark_low"] - 1)} for row in rows]
    found = min_free(low, SET, 4096)
    assert (found.quiet, found.direct > 0) == (0, True)
    none = [row | {"free_pages": 0} for row in rows]
    assert min_free(none, SET, 4096).direct == 0


def test_movable_has_its_share_or_a_thousandth_of_its_own() -> None:
    rows = [
        {"zone": zone, "managed_pages": pages}
        for zone, pages in (("Normal", 100_000), ("Movable", 100_000))
    ]
    assert wmarks_of(rows, 1000, 10, movable=True) == [(500, 625, 750)] * 2
    assert wmarks_of(rows, 1000, 10, movable=False) == [(1000, 1250, 1500), (97, 347, 597)]


def test_where_no_zone_has_half_of_its_node_the_largest_is_the_main_one() -> None:
    (row, *_) = (row for row in zones() if row["zone"] == "Normal")
    three = [
        row | {"zone": zone, "managed_pages": pages, "free_pages": pages // 2, "wmark_boost": 0}
        for zone, pages in (("DMA32", 300_000), ("Normal", 400_000), ("Device", 301_000))
    ]
    wmarks = wmarks_of(three, 67584 // 4, 10, movable=False)
    set_by_kernel = [
        row | dict(zip(("wmark_min", "wmark_low", "wmark_high"), marks, strict=True))
        for row, marks in zip(three, wmarks, strict=True)
    ]
    found = min_free(set_by_kernel, SET, 4096)
    assert found.unknown == "" and found.raised
    assert {each.worst.name for each in found.raised} == {f"node {row['node']} Normal"}


def large_and_idle() -> list[dict[str, Any]]:
    """A node of a tebibyte, of which nearly all is free; the marks are as the kernel sets them."""
    (row, *_) = (row for row in zones() if row["zone"] == "Normal")
    pages = 1 << 28
    wide = row | {"managed_pages": pages, "free_pages": pages * 9 // 10, "wmark_boost": 0}
    marks = wmarks_of([wide], 67584 // 4, 10, movable=False)[0]
    return [wide | dict(zip(("wmark_min", "wmark_low", "wmark_high"), marks, strict=True))]


def test_more_than_a_hundredth_of_memory_is_not_advised() -> None:
    found = min_free(large_and_idle(), SET, 4096)
    assert found.at_most is not None
    assert found.at_most.kbytes == found.bound == (1 << 30) // 100 < found.quiet


def test_memavailable_falls_by_what_the_high_marks_rise() -> None:
    found = min_free(large_and_idle(), SET, 4096)
    now, most = found.raised[0], found.at_most
    assert most is not None and now.taken == 0
    (was,), (then,) = ([zone.wmarks[2] for zone in raised.zones] for raised in (now, most))
    assert most.taken == then - was > 0


def test_where_memory_is_low_nothing_is_advised() -> None:
    low = [row | {"free_pages": row["wmark_low"] + 9} for row in large_and_idle()]
    found = min_free(low, SET, 4096)
    assert found.at_most is None or found.at_most.kbytes < 2 * found.kbytes
