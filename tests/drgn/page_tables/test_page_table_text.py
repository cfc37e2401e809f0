# SPDX-License-Identifier: LGPL-2.1-or-later
"""/proc/PID/status as page tables, and what an exit costs by the counts."""

import dataclasses

import pytest
from checkout import TESTS
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.page_tables.page_tables import (
    PRICES,
    PageTableDetails,
    PageTables,
    exit_costs,
    read_status,
)

PROC = TESTS / "data" / "7.2" / "proc"
BREADTH = (PROC / "115/status").read_text()


def test_what_status_says_and_what_it_does_not() -> None:
    row = read_status(BREADTH)
    assert row is not None
    known = {name: value for name, value in dataclasses.asdict(row).items() if value is not None}
    assert known == {
        "pid": 115,
        "comm": "breadth",
        "pgtables_bytes": 65824 << 10,
        "resident_bytes": known["resident_bytes"],
        "hugetlb_bytes": 0,
    }
    assert 0 < known["resident_bytes"] < 1 << 20


def test_a_kernel_thread_has_none() -> None:
    assert read_status((PROC / "2/status").read_text()) is None


def test_a_thread_is_told_by_its_group() -> None:
    row = read_status(BREADTH.replace("\nPid:\t115", "\nPid:\t999"))
    assert row is not None and row.pid == 115


@pytest.mark.parametrize(
    ("written", "name"), [("a\\nb", "a\nb"), ("<b>\x1b[1m", "<b>\x1b[1m"), ("x\\\\y", "x\\y")]
)
def test_names_are_as_the_kernel_has_them(written: str, name: str) -> None:
    row = read_status(BREADTH.replace("Name:\tbreadth", f"Name:\t{written}"))
    assert row is not None and row.comm == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "status is empty"),
        ("nonsense\n", "it has no Name or no Pid"),
        (BREADTH[:-1], "cut short"),
        (BREADTH.replace("65824", "65x24"), "is not a count"),
        (BREADTH.replace("65824", "-1"), "is not a count"),
        (BREADTH.replace("65824", "9" * 30), "is not a count"),
    ],
)
def test_damaged_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_status(text)


@given(st.text(), st.integers(0, len(BREADTH)))
def test_any_text_is_read_or_refused(text: str, at: int) -> None:
    for damaged in (text, BREADTH[:at] + text + BREADTH[at:], BREADTH[:at]):
        try:
            row = read_status(damaged)
        except ValueError:
            continue
        assert row is None or isinstance(row.pgtables_bytes, int)


def tables(**changes: int) -> PageTables:
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(PageTables)), 0)
    return PageTables(**(nothing | {"pid": 7, "comm": "x"} | changes))


def details(pid: int = 7, reaped_pte_slots: int = 0) -> PageTableDetails:
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(PageTableDetails)), 0)
    changes = {"pid": pid, "comm": "x", "reaped_pte_slots": reaped_pte_slots}
    return PageTableDetails(**(nothing | changes))


def test_the_case_of_twelve_gigabytes() -> None:
    """12 GiB of PTE tables with a zero page in each: 1,610,612,736 slots, and twice after OOM."""
    count = (12 << 30) // 4096
    row = tables(
        pte_tables=count,
        present_ptes=count,
        zero_ptes=count,
        exit_pte_slots=512 * count,
    )
    (cost,) = exit_costs([row], [details(7, 512 * count)], dontneed_frees_tables=False)
    assert cost.pte_slots == 1_610_612_736
    assert cost.base_pages == 0 and cost.tables == count + 1
    walk = 1e-9 * PRICES["slot"] * cost.pte_slots
    assert cost.tables_seconds == cost.exit_seconds
    assert cost.oom_seconds - cost.exit_seconds == pytest.approx(walk, abs=1e-5)
    assert cost.exit_seconds == pytest.approx(walk + 1e-9 * PRICES["table"] * count, rel=1e-3)


def test_huge_pages_cost_no_walk() -> None:
    small, huge = exit_costs(
        [
            tables(pid=1, deposited_pte_tables=1000, huge_pmds=1000),
            tables(pid=2, pte_tables=1000, present_ptes=512_000, exit_pte_slots=512_000),
        ],
        [details(1), details(2)],
        dontneed_frees_tables=True,
    )
    assert (small.pid, huge.pid) == (2, 1), "the longest first"
    assert small.tables_seconds > 4 * huge.tables_seconds
    assert small.exit_seconds > 40 * huge.exit_seconds


def test_what_text_does_not_tell_has_no_cost() -> None:
    row = read_status(BREADTH)
    assert row is not None
    assert exit_costs([row], [], dontneed_frees_tables=True) == []
