# SPDX-License-Identifier: LGPL-2.1-or-later
"""Groups of hosts: each number of the table worked out by hand, and the command around it."""

import csv
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from command_line import run
from page_tree import by_id, cells, parse, texts
from rows_of_tables import Contents

from mmscope.drgn.free.free_lists import FreeBlocks
from mmscope.drgn.free.pageblocks import Pageblocks
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.commands.command import main
from mmscope.reports.compare.groups_view import lacks, view
from mmscope.reports.compare.host_groups import groups_of, hosts_of, parts_of, unlike
from mmscope.reports.compare.host_measures import MEASURES, WORDS, Group, Measured
from mmscope.reports.page.report import page
from mmscope.reports.rows.profile_rows import (
    Profile,
    ProfileAllocation,
    ProfileCounter,
    ProfileRecording,
)

PING = "ping;icmp_reply_[k];ip_append_data_[k];skb_page_frag_refill_[k]"
SLOW = "alloc_pages_mpol_noprof_[k];__alloc_pages_slowpath_[k];move_freepages_block_[k]"
# As `record atomic-alloc` leaves them: who reserved, how often.
RESERVED = {f"{PING};{SLOW}": 3, f"worker;btrfs_work [btrfs]_[k];___slab_alloc_[k];{SLOW}": 1}


def recording(
    orders: dict[int, tuple[int, int]],
    *,
    name: str = "atomic_alloc",
    stacks: dict[str, int] | None = None,
    seconds: float | None = 30.0,
    scope: str | None = "system",
    lost: int = 0,
    recipe: str = "atomic-alloc",
    at: str = "2026-11-20T03:04:05+00:00",
    counters: dict[str, int] | None = None,
) -> dict[str, Any]:
    """
    What a recording adds to a bundle.

    :param orders: (attempts, failures) of each.
    :param stacks: of reservations, all of the first order; None: they could not be seen.
    """
    file = f"{name}_mmscope_reserve"
    here = sum((stacks or {}).values())
    first = min(orders, default=None)
    rows: dict[str, list[Any]] = {
        "profile_recordings": [
            ProfileRecording(name, None, None, seconds, scope, "it was over", None, at, "7.2", None,
                             recipe)
        ],
        "profiles": [
            Profile(name, event, recipe, "events", number, number, number, 0, None, lost, 0, number,
                    1, None, file if number and event == "mmscope:reserve" else None)
            for event, number in (("kmem:mm_page_alloc", sum(n for n, _ in orders.values())),
                                  ("mmscope:reserve", here))
            if number
        ],
        "profile_allocations": [
            ProfileAllocation(
                name, order, *counts,
                None if stacks is None else here if order == first else 0, None)
            for order, counts in orders.items()
        ],
        "profile_counters": [
            ProfileCounter(name, counter, gained, None)
            for counter, gained in (counters or {}).items()
        ],
    }  # fmt: skip
    return {"rows": rows, "folded": {file: [*(stacks or {}).items()]} if here else {}}


def host(
    folder: Path,
    name: str,
    *,
    seconds: int = 0,
    reserved: int = 3,
    recorded: dict[str, Any] | None = None,
    kind: str = "event",
    **counters: int,
) -> Bundle:
    """
    A host of one zone, so many seconds after its first reading.

    :param kind: of the counters: where its kernel keeps them.
    """
    blocks = [
        FreeBlocks(0, "Normal", 9, "HighAtomic", reserved, reserved << 9),
        FreeBlocks(0, "Normal", 10, "Movable", 2, 2 << 10),
        FreeBlocks(0, "Normal", 3, "Movable", 8, 64),
    ]
    zone = next(row for row in made.zone_rows(made.free_lists()) if row.zone == "Normal")
    contents: dict[str, Contents] = {
        "zones": ("Zones", type(zone), [zone], "zones"),
        "free_blocks": ("Free blocks", FreeBlocks, blocks, "free_lists"),
        "pageblocks": (
            "Pageblocks",
            Pageblocks,
            [Pageblocks(0, "Normal", "HighAtomic", reserved)],
            "pageblocks",
        ),
        "vm_counters": (
            "Counters",
            VmCounter,
            [VmCounter(name, kind, value, 0) for name, value in counters.items()]
            + [VmCounter("nr_page_table_pages", "node", 10, 0)],
            "vm_counters",
        ),
    }
    target = made.TARGET | {
        "hostname": name,
        "captured_at": f"2026-11-20T03:{4 + seconds // 60:02}:{seconds % 60:02}+00:00",
        "uptime_seconds": 1000.0 + seconds,
    }
    for table, rows in recorded["rows"].items() if recorded else ():
        if rows:  # a recording's table without rows is not written
            contents[table] = (table, type(rows[0]), rows, "profiles")
    folded = recorded["folded"] if recorded else None
    return made.write_bundle(folder / f"{name}-{seconds}", contents, target=target, folded=folded)


def thp(good: int, bad: int) -> dict[str, int]:
    return {"thp_fault_alloc": good, "thp_fault_fallback": bad}


def group(hosts: list[Measured], measure: str) -> Group:
    return next(row for row in groups_of(hosts) if row.measure == measure)


class TestHosts:
    def test_state_is_that_of_the_bundle(self, tmp_path: Path) -> None:
        (row,) = hosts_of([("A", [host(tmp_path, "a", reserved=5)])])
        assert row.highatomic_pageblocks == 5
        assert row.highatomic_bytes == 5 * 512 * 4096
        assert row.highatomic_share == pytest.approx(5 * 512 / (512 * 512 - 64))
        assert row.thp_blocks_highatomic == 5
        assert row.thp_blocks_movable == row.thp_blocks_usable == 4  # two of order 10
        assert row.page_table_bytes == 10 * 4096
        assert row.slab_bytes is None
        assert row.missing is None

    def test_with_one_reading_shares_are_since_boot_and_there_are_no_rates(
        self, tmp_path: Path
    ) -> None:
        counted = thp(1, 3) | {"pgscan_kswapd": 6000}
        (row,) = hosts_of([("A", [host(tmp_path, "a", **counted)])])
        assert (row.counted, row.seconds) == ("since boot", 1000.0)
        assert (row.thp_success, row.thp_attempts) == (0.25, 4)
        assert row.pgscan_kswapd is None

    def test_with_two_both_are_over_the_time_between(self, tmp_path: Path) -> None:
        readings = [
            host(tmp_path, "a", seconds=30, **thp(150, 150), pgscan_kswapd=7000),
            host(tmp_path, "a", **thp(100, 0), pgscan_kswapd=6000),
        ]
        (row,) = hosts_of([("A", readings)])
        assert (row.counted, row.seconds, row.readings) == ("between readings", 30.0, 2)
        assert (row.thp_success, row.thp_attempts) == (0.25, 200)
        assert row.pgscan_kswapd == 2000  # a minute
        assert row.bundle == "a-30"

    def test_one_host_with_one_reading_makes_it_since_boot_for_all(self, tmp_path: Path) -> None:
        readings = [host(tmp_path, "a", seconds=s, pgscan_kswapd=s) for s in (0, 30)]
        rows = hosts_of([("A", readings), ("B", [host(tmp_path, "b", pgscan_kswapd=1)])])
        assert {row.counted for row in rows} == {"since boot"}
        assert "rates need two readings" in unlike(rows)[-1]

    def test_a_counter_that_fell_is_unknown(self, tmp_path: Path) -> None:
        readings = [
            host(tmp_path, "a", pgscan_kswapd=7000),
            host(tmp_path, "a", seconds=30, pgscan_kswapd=1),
        ]
        (row,) = hosts_of([("A", readings)])
        assert row.pgscan_kswapd is None

    def test_what_a_bundle_lacks_is_unknown_and_named(self, tmp_path: Path) -> None:
        bundle = host(tmp_path, "a")
        bundle.tables["zones"].path.write_text("node\nnothing\n")
        del bundle.tables["pageblocks"]
        (row,) = hosts_of([("A", [bundle])])
        assert row.missing == "zones: damaged; pageblocks: not there"
        assert row.highatomic_share is None
        assert row.highatomic_pageblocks is None
        assert row.thp_blocks_highatomic == 3


class TestWhatNodesCount:
    """pgscan and pgsteal are events up to 6.12, and node's in 7.2."""

    @pytest.mark.parametrize("kind", ["event", "node"])
    def test_is_a_rate_as_an_event_is(self, tmp_path: Path, kind: str) -> None:
        readings = [
            host(
                tmp_path, "a", seconds=s, kind=kind, pgscan_kswapd=600 + 20 * s, pgscan_direct=2 * s
            )
            for s in (0, 30)
        ]
        (row,) = hosts_of([("A", readings)])
        assert (row.pgscan_kswapd, row.pgscan_direct) == (1200, 120)

    def test_what_is_a_state_there_is_no_counter(self, tmp_path: Path) -> None:
        (row,) = hosts_of([("A", [host(tmp_path, "a", seconds=s) for s in (0, 30)])])
        assert row.page_table_bytes == 10 * 4096  # nr_page_table_pages


class TestWhatHasNoNumber:
    def said(self, a: list[Bundle], b: list[Bundle]) -> list[str]:
        hosts = hosts_of([("A", a), ("B", b)])
        return lacks(groups_of(hosts), hosts)

    def readings(self, path: Path, name: str, **counters: int) -> list[Bundle]:
        return [
            host(path, name, seconds=s, **{name: n + s for name, n in counters.items()})
            for s in (0, 30)
        ]

    def test_on_one_side_is_said_with_the_reason(self, tmp_path: Path) -> None:
        a = self.readings(tmp_path, "a", pgscan_kswapd=1, pgscan_direct=1)
        b = self.readings(tmp_path, "b", pgscan_direct=1)
        (line,) = (line for line in self.said(a, b) if "kswapd" in line)
        why = "table vm_counters has no pgscan_kswapd"
        assert line == f"No number on side B of pages scanned by kswapd: {why}."
        row = group(hosts_of([("A", a), ("B", b)]), "pgscan_kswapd")
        assert (row.a_missing, row.b_missing) == (None, why)

    def test_on_neither_side_and_on_some_hosts_is_said_too(self, tmp_path: Path) -> None:
        a = [*self.readings(tmp_path, "a", pgscan_kswapd=1), *self.readings(tmp_path, "c")]
        said = self.said(a, self.readings(tmp_path, "b"))
        assert (
            "No number on 1 of 2 hosts of side A of pages scanned by kswapd: table vm_counters has "
            "no pgscan_kswapd." in said
        )
        assert any(
            line.startswith("No number on either side of ") and WORDS["pgscan_direct"] in line
            for line in said
        )

    def test_a_counter_that_fell_and_a_share_of_nothing_are_said(self, tmp_path: Path) -> None:
        a = [
            host(tmp_path, "a", pgscan_kswapd=7000, **thp(3, 4)),
            host(tmp_path, "a", seconds=30, pgscan_kswapd=1, **thp(3, 4)),
        ]
        said = "\n".join(self.said(a, a))
        assert "pgscan_kswapd fell between the readings: it was reset, or is damaged" in said
        assert f"of {WORDS['thp_success']}: there was no attempt." in said

    def test_a_table_that_is_not_there_is_named_with_what_its_section_said(
        self, tmp_path: Path
    ) -> None:
        bundle, other = host(tmp_path, "a"), host(tmp_path, "b")
        del bundle.tables["pageblocks"]
        bundle.sections = [
            SectionResult("pageblocks", "absent", 0.1, 0, 0, "only root may read it")
        ]
        said = self.said([bundle], [other])
        assert (
            "No number on side A of HighAtomic pageblocks: table pageblocks is not there (section "
            "pageblocks: only root may read it)." in said
        )

    def test_rates_without_a_second_reading_are_said_once(self, tmp_path: Path) -> None:
        a, b = host(tmp_path, "a", pgscan_kswapd=1), host(tmp_path, "b", pgscan_kswapd=1)
        assert not any("pages scanned" in line for line in self.said([a], [b]))
        hosts = hosts_of([("A", [a]), ("B", [b])])
        assert "rates need two readings" in unlike(hosts)[-1]
        assert "rates need two readings" in str(group(hosts, "pgscan_kswapd").b_missing)


class TestRecordings:
    """Half a minute of atomic-alloc: numbers a minute are twice those of the recording."""

    def made(self, path: Path, **how: Any) -> Measured:
        orders = how.pop("orders", {1: (100, 2), 3: (50, 0), 4: (10, 5), 9: (1, 1)})
        how = {"stacks": RESERVED} | how
        (row,) = hosts_of([("A", [host(path, "a", recorded=recording(orders, **how))])])
        return row

    def test_are_measures_by_what_orders_they_are(self, tmp_path: Path) -> None:
        row = self.made(tmp_path)
        assert (row.atomic_allocations, row.atomic_4_up) == (322, 22)
        assert (row.atomic_failures_1_to_3, row.atomic_failures_4_up) == (4, 12)
        assert (row.reservations, row.recorded_seconds) == (8, 30)

    def test_have_parts_by_order_and_by_caller(self, tmp_path: Path) -> None:
        row = self.made(tmp_path)
        assert row.parts == {
            "allocations of order 1": 200, "allocations of order 3": 100,
            "allocations of order 4": 20, "allocations of order 9": 2,
            "failures of order 1": 4, "failures of order 4": 10, "failures of order 9": 2,
            "reservations by skb_page_frag_refill": 6, "reservations by btrfs_work [btrfs]": 2,
        }  # fmt: skip

    def test_parts_of_a_host_that_had_none_are_zero(self, tmp_path: Path) -> None:
        a = host(tmp_path, "a", recorded=recording({3: (50, 0)}, stacks=RESERVED))
        b = host(tmp_path, "b", recorded=recording({1: (20, 0)}, stacks={}))
        parts = {row.measure: row for row in parts_of(hosts_of([("A", [a]), ("B", [b])]))}
        row = parts["reservations by skb_page_frag_refill"]
        assert (row.a_median, row.b_median, row.difference, row.unit) == (6, 0, -6, "1/min")
        assert parts["allocations of order 1"].a_median == 0

    def test_of_a_host_that_could_not_see_who_reserves_no_caller_is_known(
        self, tmp_path: Path
    ) -> None:
        a = host(tmp_path, "a", recorded=recording({3: (50, 0)}, stacks=RESERVED))
        b = host(tmp_path, "b", recorded=recording({3: (50, 0)}, stacks=None))
        hosts = hosts_of([("A", [a]), ("B", [b])])
        parts = {row.measure: row for row in parts_of(hosts)}
        assert parts["reservations by skb_page_frag_refill"].b_hosts == 0
        assert group(hosts, "reservations").b_missing == (
            "its recording could not see who reserves: no kprobe"
        )
        assert group(hosts, "atomic_allocations").b_median == 100

    def test_that_saw_nothing_say_zero(self, tmp_path: Path) -> None:
        row = self.made(tmp_path, orders={}, stacks={})
        assert (row.atomic_allocations, row.atomic_failures_4_up, row.reservations) == (0, 0, 0)

    def test_the_last_one_counts(self, tmp_path: Path) -> None:
        first = recording({3: (5, 0)}, at="2026-11-20T03:00:00+00:00")
        second = recording({3: (7, 0)}, name="atomic_alloc_2", at="2026-11-20T03:09:00+00:00")
        for table, rows in second["rows"].items():
            first["rows"][table] += rows
        (row,) = hosts_of([("A", [host(tmp_path, "a", recorded=first)])])
        assert row.atomic_allocations == 14

    def test_of_an_earlier_reading_count_as_well(self, tmp_path: Path) -> None:
        readings = [
            host(tmp_path, "a", recorded=recording({3: (5, 0)})), host(tmp_path, "a", seconds=60)
        ]  # fmt: skip
        (row,) = hosts_of([("A", readings)])
        assert row.atomic_allocations == 10

    @pytest.mark.parametrize(
        "how, why",
        [
            ({"seconds": None}, "how long its recording took is not known"),
            ({"scope": "task"}, "its recording is not of the whole machine"),
            ({"recipe": "reclaim"}, "no recording of atomic-alloc ('mmscope record atomic-alloc"),
        ],
    )
    def test_that_cannot_be_used_are_unknown_with_the_reason(
        self, tmp_path: Path, how: dict[str, Any], why: str
    ) -> None:
        row = self.made(tmp_path, **how)
        assert row.atomic_allocations is None and row.parts == {}
        assert why in row.why["atomic_allocations"] == row.why["reservations"]

    def test_that_are_damaged_cost_themselves_alone(self, tmp_path: Path) -> None:
        bundle = host(tmp_path, "a", recorded=recording({3: (5, 0)}))
        bundle.tables["profile_allocations"].path.write_text("profile\nnothing\n")
        (row,) = hosts_of([("A", [Bundle(bundle.path)])])
        assert row.highatomic_pageblocks == 3
        assert row.why["atomic_allocations"].startswith("its recording is damaged: profile_alloc")

    def test_give_rates_where_there_is_one_reading(self, tmp_path: Path) -> None:
        counters = {"pgscan_kswapd": 90, "allocstall_normal": 3} | thp(1, 3)
        row = self.made(tmp_path, counters=counters)
        assert (row.counted, row.seconds, row.pgscan_kswapd) == ("in recordings", 30, 180)
        assert (row.thp_success, row.thp_attempts) == (0.25, 4)
        # A recording counts the stalls of some zones alone.
        assert row.allocstall is None and "has not all of allocstall" in row.why["allocstall"]

    def test_do_not_where_one_host_has_none(self, tmp_path: Path) -> None:
        one = host(tmp_path, "a", recorded=recording({}, stacks={}, counters={"pgscan_kswapd": 9}))
        rows = hosts_of([("A", [one]), ("B", [host(tmp_path, "b")])])
        assert {row.counted for row in rows} == {"since boot"}

    def test_that_lost_samples_are_said_to_be_less_than_all(self, tmp_path: Path) -> None:
        rows = hosts_of([("A", [host(tmp_path, "a", recorded=recording({3: (5, 0)}, lost=2))])])
        assert "1 recording lost samples" in unlike(rows)[-1]

    def test_are_in_the_terminal_in_json_and_on_the_page(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sides = {"A": RESERVED, "B": {}}
        paths: dict[str, list[str]] = {"A": [], "B": []}
        for side, stacks in sides.items():
            for number in range(2):
                recorded = recording({3: (50 + number, 0)}, stacks=stacks)
                bundle = host(tmp_path, f"{side}{number}", recorded=recorded)
                paths[side].append(str(bundle.path))
        words = ["compare", *paths["A"], "--", *paths["B"]]
        assert main([*words, "-o", str(tmp_path / "page.html")]) == 0
        out = capsys.readouterr().out
        told = dict(
            re.split(" {2,}", line, maxsplit=1) for line in out.splitlines() if "  " in line
        )
        assert told["reservations by skb_page_frag_refill"].split("  ")[0] == (
            "6/min on each of 2 hosts, together 12/min"
        )
        # That nothing failed is an answer, and no row to be folded.
        assert told[WORDS["atomic_failures_1_to_3"]].startswith("0/min on each of 2 hosts")
        assert "Atomic allocations and reservations are in recordings: A 30 s, B 30 s." in out
        tree = parse((tmp_path / "page.html").read_text())
        assert "reservations by btrfs_work [btrfs]" in [
            row[0] for row in cells(by_id(tree, "recorded"))
        ]
        assert WORDS["reservations"] in [row[0] for row in cells(by_id(tree, "measures"))]
        assert main([*words, "--format", "json"]) == 0
        tables = json.loads(capsys.readouterr().out)
        (row,) = (r for r in tables["recorded"] if r["measure"] == "allocations of order 3")
        assert (row["a_median"], row["b_median"], row["b_all"]) == (101, 101, 202)
        assert tables["hosts"][0]["reservations"] == 8


class TestGroups:
    def hosts(self, tmp_path: Path) -> list[Measured]:
        a = [host(tmp_path, f"a{n}", reserved=300 + n, **thp(n, 100 - n)) for n in (1, 2, 6)]
        b = [host(tmp_path, f"b{n}", reserved=1, **thp(n, 200 - n)) for n in (100, 150)]
        return hosts_of([("A", a), ("B", b)])

    def test_have_medians_ranges_and_sums(self, tmp_path: Path) -> None:
        row = group(self.hosts(tmp_path), "highatomic_pageblocks")
        assert (row.a_hosts, row.a_median, row.a_low, row.a_high) == (3, 302, 301, 306)
        assert (row.b_hosts, row.b_median, row.b_low, row.b_high) == (2, 1, 1, 1)
        assert (row.a_all, row.b_all, row.difference, row.apart) == (909, 2, -301, True)

    def test_weigh_shares_by_attempts(self, tmp_path: Path) -> None:
        row = group(self.hosts(tmp_path), "thp_success")
        assert (row.a_median, row.a_all) == (0.02, pytest.approx(9 / 300))
        assert (row.b_median, row.b_all) == (0.625, pytest.approx(250 / 400))

    def test_do_not_add_up_shares_without_attempts(self, tmp_path: Path) -> None:
        assert group(self.hosts(tmp_path), "free_share").a_all is None

    def test_ranges_that_touch_are_not_apart(self, tmp_path: Path) -> None:
        rows = hosts_of(
            [(side, [host(tmp_path, side + name) for name in "ab"]) for side in ("A", "B")]
        )
        assert group(rows, "highatomic_pageblocks").apart is False

    def test_of_one_host_there_is_no_range(self, tmp_path: Path) -> None:
        rows = hosts_of(
            [("A", [host(tmp_path, "a")]), ("B", [host(tmp_path, "b"), host(tmp_path, "c")])]
        )
        assert group(rows, "highatomic_pageblocks").apart is None

    def test_say_what_else_differs(self, tmp_path: Path) -> None:
        rows = hosts_of([("A", [host(tmp_path, "a")]), ("B", [host(tmp_path / "b", "a")])])
        assert "hosts on both sides: a" in unlike(rows)


class TestChance:
    def trial(self, tmp_path: Path, a: list[int], b: list[int]) -> dict[str, Any]:
        hosts = hosts_of(
            [
                (side, [host(tmp_path / side / str(n), f"{side}{n}", reserved=reserved)
                        for n, reserved in enumerate(side_values)])
                for side, side_values in (("A", a), ("B", b))
            ]
        )  # fmt: skip
        return view(hosts, groups_of(hosts), [])

    @pytest.mark.parametrize("number", [2, 3])
    def test_few_hosts_cannot_pass_however_far_apart(self, tmp_path: Path, number: int) -> None:
        shown = self.trial(tmp_path, [1] * number, [400] * number)
        assert not any(row["differs"] for row in shown["measures"])
        assert "too few to tell" in shown["sentence"]
        assert "which takes 4 hosts a side" in shown["sentence"]

    def test_enough_can_and_what_differs_is_first(self, tmp_path: Path) -> None:
        shown = self.trial(tmp_path, [1, 2, 3, 4, 5], [300, 301, 302, 303, 304])
        differ = [row["name"] for row in shown["measures"] if row["differs"]]
        assert differ == [row["name"] for row in shown["measures"]][: len(differ)]
        assert "highatomic_pageblocks" in differ and "page_table_bytes" not in differ
        assert f"they differ in {len(differ)} of" in shown["sentence"]
        assert shown["measures"][0]["chance"] == "0.0079"

    def test_of_what_is_as_rare_the_farthest_apart_is_first(self, tmp_path: Path) -> None:
        shown = self.trial(tmp_path, [1, 2], [399, 400])
        assert {row["chance"] for row in shown["measures"][:2]} == {"0.33"}
        assert shown["measures"][0]["name"].startswith("highatomic")

    def test_hosts_that_are_equal_are_said_to_be(self, tmp_path: Path) -> None:
        shown = self.trial(tmp_path, [4] * 5, [8, 8, 8, 8, 9])
        cells = {row["name"]: row["cells"] for row in shown["measures"]}
        a, b = cells["highatomic_pageblocks"]
        assert a == "4 on each of 5 hosts, together 20"
        assert b == "8 (8 to 9), together 41"
        assert cells["free_share"][0].endswith("on each of 5 hosts")

    def test_what_no_host_differs_in_is_behind_the_others_and_folded(self, tmp_path: Path) -> None:
        shown = self.trial(tmp_path, [4] * 2, [8] * 2)
        equal = [bool(row["equal"]) for row in shown["measures"]]
        assert equal == sorted(equal) and not equal[0] and equal[-1]
        tree = parse(page("groups.html", view=shown))
        fold = by_id(tree, "measures-equal")
        assert texts(fold).startswith(f"{sum(equal)} measures are the same on every host")
        assert [row[0] for row in cells(fold)] == [
            r["words"] for r in shown["measures"] if r["equal"]
        ]
        rows = cells(by_id(tree, "measures"))
        others = [row["words"] for row in shown["measures"] if not row["equal"]]
        assert [row[0] for row in rows] == others

    def test_every_measure_has_words(self) -> None:
        assert WORDS.keys() == {measure.name for measure in MEASURES}

    def test_what_is_mixed_does_not(self, tmp_path: Path) -> None:
        shown = self.trial(tmp_path, [1, 3, 5, 7, 9], [2, 4, 6, 8, 10])
        assert not any(row["differs"] for row in shown["measures"])


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
        code = main(["compare", *map(str, words)])
        told = capsys.readouterr()
        return code, told.out, told.err

    @pytest.fixture
    def four(self, tmp_path: Path) -> list[Path]:
        return [
            host(tmp_path, name, reserved=reserved, **thp(good, 100 - good)).path
            for name, reserved, good in (("a", 309, 10), ("b", 312, 20), ("c", 1, 10), ("d", 1, 10))
        ]

    def test_prints_the_table_of_a_trial(
        self, four: list[Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, out, _ = self.run(capsys, *four[:2], "--", *four[2:])
        assert code == 0
        line = next(line for line in out.splitlines() if line.startswith("HighAtomic pageblocks"))
        assert re.split(" {2,}", line)[1:] == [
            *("310.5 (309 to 312), together 621", "1 on each of 2 hosts, together 2"),
            *("-309.5", "0.33"),
        ]
        # A difference of shares is in points: "0 %" could be a change by a part of itself.
        line = next(line for line in out.splitlines() if line.startswith(WORDS["thp_success"]))
        assert re.split(" {2,}", line)[1:] == [
            *("15.0 % (10.0 to 20.0 %), together 15.0 %", "10.0 % on each of 2 hosts"),
            *("-5.0 points", "1"),
        ]
        # What no host differs in is a line behind the tables, and no row.
        (same,) = (line for line in out.splitlines() if line.startswith("The same on every host: "))
        assert f"; {WORDS['free_share']} " in same and WORDS["free_share"] not in out.replace(
            same, ""
        )

    def test_numbers_stand_below_each_other_and_a_pipe_gets_no_endless_lines(
        self, four: list[Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, out, _ = self.run(capsys, *four[:2], "--", *four[2:])
        groups, hosts = out.split("\n\n")[1:3]
        heads, _, *rows = groups.splitlines()[1:]
        end = heads.index("difference") + len("difference")
        assert all(row[end - 1] != " " and row[end : end + 3].isspace() for row in rows)
        assert "measure" in heads and rows[0].startswith("HighAtomic pageblocks")
        assert max(map(len, hosts.splitlines())) <= 120
        # Nor is a column of the hosts' what none of them differs in.
        assert "highatomic_bytes" not in hosts
        assert re.search(r"^A +a +a-0 +309 ", hosts, re.MULTILINE)

    def test_many_hosts_have_a_line_each(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [host(tmp_path, f"h{n}", reserved=n).path for n in range(8)]
        _, out, _ = self.run(capsys, *paths[:4], "--", *paths[4:])
        hosts = out.split("\n\n")[2].splitlines()
        assert sum(line.split()[1:2] == [f"h{n}"] for n, line in enumerate(hosts[-8:])) == 8
        assert max(map(len, hosts)) < 200
        end = next(line.index("pageblocks") for line in hosts if "pageblocks" in line) + 10
        assert [line[end - 3 : end] for line in hosts[-8:]] == [f"  {n}" for n in range(8)]

    def test_writes_csv_and_json_for_programs(
        self, four: list[Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, out, err = self.run(capsys, *four[:2], "--", *four[2:], "--format", "csv")
        groups, hosts = (list(csv.DictReader(io.StringIO(part))) for part in out.split("\n\n"))
        assert groups[0]["a_median"] == "310.5"
        assert [row["host"] for row in hosts] == ["a", "b", "c", "d"]
        assert "since boot" in err
        _, out, _ = self.run(capsys, *four[:2], "--", *four[2:], "--format", "json")
        assert json.loads(out)["groups"][0]["a_high"] == 312

    def test_of_a_pair_prints_what_changed_most_and_draws_it(
        self, four: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = tmp_path / "report.html"
        code, out, _ = self.run(capsys, four[0], "--", four[2], "-o", page)
        assert code == 0
        assert "most changed: Free blocks, 0" not in out
        assert "node 0, zone Normal, order 9, HighAtomic: 618 MiB → 2 MiB (-616 MiB, " in out
        assert 'id="comparison"' in page.read_text()
        # Measures have words, and those that are equal are one line, the last.
        measures, same, lacks = out.split("\n\n")[-3:]
        heads, _, *rows = (re.split(" {2,}", line) for line in measures.splitlines()[1:])
        assert heads[0] == "measure" and heads[-1] == "difference"
        assert {name for name, *_ in rows} <= set(WORDS.values())
        assert ["HighAtomic pageblocks", "309", "1", "-308"] in rows
        assert all(old != new for _, old, new, _ in rows)
        assert same.startswith("The same in both: ") and same.count("\n") == 0
        assert f"{WORDS['slab_bytes']} " not in same
        assert lacks.startswith("No number on either side of ")

    def test_of_a_pair_of_one_machine_the_sides_are_dates(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        taken = [host(tmp_path, "a", reserved=n, seconds=n).path for n in (0, 600)]
        _, out, _ = self.run(capsys, taken[0], "--", taken[1])
        assert re.search(r"^measure +2026-\S+ \S+ +2026-\S+ \S+ +difference$", out, re.MULTILINE)
        assert "before" not in out
        _, out, _ = self.run(capsys, taken[0], "--", taken[1], "--format", "json")
        assert {"before", "after"} <= json.loads(out)["changes"][0].keys()

    def test_says_no_more_than_that_when_it_ends(self, four: list[Path]) -> None:
        # As a process: what libraries say comes when Python ends.
        done = run(
            "compare", four[0], "--", four[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_bundle_that_is_none_costs_itself(
        self, four: list[Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, out, err = self.run(capsys, four[0], "/nowhere", "--", four[1])
        assert code == 1
        assert "/nowhere: not a bundle" in err
        assert "HighAtomic pageblocks" in out

    @pytest.mark.parametrize(
        "words", [["A"], ["A", "--"], ["--", "B"], ["A", "--", "B", "--", "C"]]
    )
    def test_needs_two_sides(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = self.run(capsys, *words)
        assert code == 2
        assert "mmscope compare A… -- B…" in err

    def test_needs_a_bundle_on_each(
        self, four: list[Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, _, err = self.run(capsys, four[0], "--", "/nowhere")
        assert code == 2
        assert "side B: no bundle of it can be read" in err

    def test_draws_groups_as_a_page(
        self, four: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "groups.html"
        code, out, _ = self.run(capsys, *four[:2], "--", *four[2:], "-o", path)
        assert code == 0
        assert f"{path}: {path.stat().st_size:,} bytes" in out
        page = path.read_text()
        assert "default-src &#39;none&#39;" in page
        assert "A: 2 hosts, B: 2 hosts; too few to tell, which takes 4 hosts a side. Ranges" in page
        assert "Ranges do not touch in" in page
        assert "they differ" not in page
        for measure in ("highatomic_pageblocks", "thp_success"):
            assert measure in page

    def test_names_on_the_page_are_text(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = "<script>alert(1)</script>\"' \u202e"
        sides = [[host(tmp_path / side / n, name) for n in "ab"] for side in "AB"]
        path = tmp_path / "groups.html"
        words = [[bundle.path for bundle in side] for side in sides]
        assert self.run(capsys, *words[0], "--", *words[1], "-o", path)[0] == 0
        page = path.read_text()
        assert "<script>alert" not in page and "\u202e" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page

    def test_names_are_data(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        hostile = tmp_path / "a'; drop table x; --\" $path *?"
        hostile.mkdir()
        one = host(hostile, "\x1b[31mred", reserved=2).path
        code, out, _ = self.run(capsys, one, "--", host(tmp_path, "b").path)
        assert code == 0
        assert "\x1b" not in out
        assert "missing" not in out


class TestStrips:
    """What the page's strips show, worked out by hand."""

    @pytest.fixture
    def shown(self, tmp_path: Path) -> dict[str, Any]:
        a = [host(tmp_path, f"a{n}", reserved=n) for n in (2, 6, 8)]
        b = [host(tmp_path, "b", reserved=4)]
        hosts = hosts_of([("A", a), ("B", b)])
        return view(hosts, groups_of(hosts), unlike(hosts))

    def test_both_sides_are_on_one_scale_from_zero(self, shown: dict[str, Any]) -> None:
        row = next(row for row in shown["measures"] if row["name"] == "highatomic_pageblocks")
        (_, _, a, *a_places), (_, _, b, *b_places) = row["strips"]
        assert row["scale"] == ("0", "8")
        assert a_places == [25, 75, 100]
        assert sorted(a) == [(25, "a2: 2"), (75, "a6: 6"), (100, "a8: 8")]
        assert (b_places, b) == ([50, 50, 50], [(50, "b: 4")])
        assert (row["difference"], row["apart"]) == ("-2", None)

    def test_what_no_host_tells_is_left_out(self, shown: dict[str, Any]) -> None:
        assert "slab_bytes" not in {row["name"] for row in shown["measures"]}
        assert "slab_bytes" not in {head.name for head in shown["heads"]}

    def test_what_no_host_differs_in_is_no_column_and_is_said(self, shown: dict[str, Any]) -> None:
        assert [head.name for head in shown["heads"]] == [
            *("side", "host", "bundle", "highatomic_pageblocks", "thp_blocks_highatomic"),
        ]
        assert ("readings", "1") in shown["same"]
        assert "free_share" not in {name for name, _ in shown["same"]}

    def test_what_a_reader_must_know_first_is_on_the_page_as_it_was_said(
        self, tmp_path: Path
    ) -> None:
        hosts = hosts_of([("A", [host(tmp_path, "a")]), ("B", [host(tmp_path, "b")])])
        shown = view(hosts, groups_of(hosts), ["kernels differ", "names may differ"])
        assert shown["same"] and shown["words"] == ["kernels differ", "names may differ"]

    def test_single_hosts_have_no_range(self, shown: dict[str, Any]) -> None:
        assert shown["sentence"] == "A: 3 hosts, B: 1 host; a side with one host has no range."
