# SPDX-License-Identifier: LGPL-2.1-or-later
"""The small picture of the incident card: what the likely cause is about, marked among its like."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_hosts
import pytest
from browser_page import Opened
from checkout import TESTS

from mmscope.drgn.ledger.memory_ledger import LedgerRow
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.incidents import incidents
from mmscope.reports.findings.question import OURS
from mmscope.reports.page.card import culprit
from mmscope.reports.page.report import render, write

REAL = TESTS / "bundles" / "v0.1.0"


def of(bundle: Bundle) -> dict[str, Any] | None:
    told = incidents(ask(open_database(bundle), OURS()).found)
    return culprit(bundle, told[0].causes[0][0], 4096)


def made(name: str) -> made_hosts.Host:
    host = made_hosts.SICK[name][0]()
    return host if LedgerRow in host.rows else made_hosts.counted(host)


def test_free_memory_by_order_with_what_thp_may_not_have() -> None:
    bundle = Bundle(REAL)
    found = of(bundle)
    assert found is not None
    rows = [
        row for row in bundle.rows("free_blocks") if (row["node"], row["zone"]) == (1, "Normal")
    ]
    most = max(sum(row["pages"] for row in rows if row["order"] == n) for n in range(11))
    for name, _, width, marked, loud in found["bars"]:
        here = [row for row in rows if row["order"] == int(name)]
        pages = sum(row["pages"] for row in here)
        reserve = sum(row["pages"] for row in here if row["migratetype"] == "HighAtomic")
        large = int(name) >= 9
        assert width == pytest.approx(100 * pages / most, abs=0.01)
        assert marked == pytest.approx(100 * reserve * large / most, abs=0.01)
        assert loud == large


def test_orders_that_are_not_there_are_named(tmp_path: Path) -> None:
    found = of(made("fragmented at 1.4 % free").write(tmp_path / "b"))
    assert found is not None
    assert "marked: nothing of order 9 and above" in found["words"]
    assert [(name, marked) for name, _, _, marked, loud in found["bars"] if loud] == [
        ("9", 0),
        ("10", 0),
    ]


@pytest.mark.parametrize(
    ("sick", "name"),
    [
        ("slab leak", "kmalloc-512"),
        ("page table bloat", "PID 666, oomsday"),
        ("page_owner leak", "leaky_grow"),
    ],
)
def test_the_owner_among_the_largest(tmp_path: Path, sick: str, name: str) -> None:
    found = of(made(sick).write(tmp_path / "b"))
    assert found is not None
    assert [each for each, *_, loud in found["bars"] if loud] == [name]
    assert len(found["bars"]) > 1
    assert max(width for _, _, width, *_ in found["bars"]) == 100


@pytest.mark.parametrize("sick", ["a driver's leak", "swap thrash", "per-CPU lists hoard"])
def test_where_it_says_no_more_there_is_none(tmp_path: Path, sick: str) -> None:
    assert of(made(sick).write(tmp_path / "b")) is None


def test_an_owner_behind_the_largest_is_shown_for_it(tmp_path: Path) -> None:
    host = made("page_owner leak")
    rows = host.rows[made_hosts.PageOwnerStack]
    rows += [replace(rows[1], handle=100 + n, pages=rows[1].pages + n) for n in range(9)]
    found = of(host.write(tmp_path / "b"))
    assert found is not None
    assert [loud for *_, loud in found["bars"]] == [False] * 4 + [True]


def test_of_a_damaged_table_there_is_none(tmp_path: Path) -> None:
    host = made("HighAtomic reserve starves THP")
    bundle = host.write(tmp_path / "b")
    verdict = ask(open_database(bundle), OURS())
    path = tmp_path / "b" / "free_blocks.csv"
    path.write_text(path.read_text().replace(",Movable,", ",Movable,many,", 1))
    damaged = Bundle(tmp_path / "b")
    assert culprit(damaged, incidents(verdict.found)[0].causes[0][0], 4096) is None


def test_the_first_screen_holds_the_card(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    bundle = Bundle(REAL)
    path = tmp_path / "r.html"
    write(render(bundle, ask(open_database(bundle), OURS())), path)
    page = opening(path, (1440, 900)).page
    for selector in (".card .culprit", ".card", ".questions"):
        box = page.locator(selector).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
    assert page.locator(".culprit .guilty").count() == 2
    words = page.locator(".culprit .axes").inner_text()
    assert words == "Across: order, blocks of 2order pages. Up: memory in them, 50.75 MiB at most."
