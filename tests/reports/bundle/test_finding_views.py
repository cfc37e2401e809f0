# SPDX-License-Identifier: LGPL-2.1-or-later
"""The views that findings ask, against the kernel's own formulas and words."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkout import TESTS
from finding_cases.case import bundle
from finding_cases.rows import all_orders, free
from hypothesis import given, settings
from hypothesis import strategies as st

from mmscope.drgn.free.free_lists import read_pagetypeinfo
from mmscope.reports.bundle.database import open_database

DATA = TESTS / "data" / "7.2"


def unusable_free_index(order: int, free_area: Sequence[int]) -> int:
    """``unusable_free_index()`` of mm/vmstat.c, in thousandths."""
    free_pages = sum(blocks << at for at, blocks in enumerate(free_area))
    suitable = sum(blocks << (at - order) for at, blocks in enumerate(free_area) if at >= order)
    if free_pages == 0:
        return 1000
    return (free_pages - (suitable << order)) * 1000 // free_pages


def fragmentation_index(order: int, free_area: Sequence[int]) -> int:
    """``__fragmentation_index()`` of mm/vmstat.c, in thousandths."""
    free_pages = sum(blocks << at for at, blocks in enumerate(free_area))
    if not sum(free_area):
        return 0
    if sum(free_area[order:]):
        return -1000
    return 1000 - (1000 + free_pages * 1000 // (1 << order)) // sum(free_area)


free_areas = st.lists(
    st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 1 << 40)), min_size=1, max_size=14
)


@settings(max_examples=8)
@given(zones=st.lists(free_areas, min_size=1, max_size=30), parts=st.randoms(use_true_random=False))
def test_fragmentation_is_what_the_kernel_computes(zones: list[list[int]], parts: Any) -> None:
    rows = []
    for node, free_area in enumerate(zones):
        for order, blocks in enumerate(free_area):
            movable = parts.randint(0, blocks)  # a sum over migratetypes, Isolate among them
            for name, share in (("Movable", movable), ("Isolate", blocks - movable)):
                rows.append(free(order, share, name, node=node))
    with tempfile.TemporaryDirectory() as folder:
        small = [row for row in rows if row.pages < 1 << 62]
        database = open_database(bundle(Path(folder) / "b", small))
        got = {
            (row["node"], row["order"]): (
                round(row["unusable_index"] * 1000),
                round(row["fragmentation_index"] * 1000),
            )
            for row in database.rows("from fragmentation")
        }
    assert got == {
        (node, order): (unusable_free_index(order, area), fragmentation_index(order, area))
        for node, area in enumerate(zones)
        for order in range(len(area))
    }


@pytest.mark.parametrize("index", ["unusable_index", "extfrag_index"])
def test_fragmentation_is_what_the_kernel_printed(tmp_path: Path, index: str) -> None:
    rows = read_pagetypeinfo((DATA / "proc/pagetypeinfo").read_text())
    database = open_database(bundle(tmp_path / "b", rows))
    column = {"unusable_index": "unusable_index", "extfrag_index": "fragmentation_index"}[index]
    printed = {}
    for line in (DATA / "sys/kernel/debug/extfrag" / index).read_text().splitlines():
        node, name, values = re.fullmatch(r"Node (\d+), zone +(\S+) (.*)", line).groups()
        for order, value in enumerate(values.split()):
            printed[int(node), name, order] = value
    got = {
        (row["node"], row["zone"], row["order"]): f"{row[column]:.3f}"
        for row in database.rows("from fragmentation")
    }
    assert got == printed


def test_thp_blocks_are_counted_in_blocks_of_thp_size(tmp_path: Path) -> None:
    rows = [free(8, 100), free(9, 3), free(10, 2), free(9, 1, "Unmovable"), free(10, 1, "CMA"),
            free(9, 7, "HighAtomic"), free(9, 5, "Isolate")]  # fmt: skip
    (row,) = open_database(bundle(tmp_path / "b", rows)).rows("from thp_blocks")
    assert (row["usable_blocks"], row["movable_blocks"], row["highatomic_blocks"]) == (10, 7, 7)


def test_free_blocks_of_no_zone_are_no_zones(tmp_path: Path) -> None:
    """Damage has node -1: it is free memory, and no zone's."""
    rows = [*all_orders(o0=1), free(0, 5, node=-1, zone="unknown")]
    database = open_database(bundle(tmp_path / "b", rows))
    assert {row["node"] for row in database.rows("from fragmentation")} == {0}
