# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles of real kernels held against each other: two vmcores of one kernel that were driven into
different states, and two moments of the kernel that these tests run on.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import capture
from conftest import STANDS_ON

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.compare.comparison import Comparison, compare
from mmscope.reports.compare.comparison_view import view
from mmscope.reports.compare.relation import same_boot
from mmscope.reports.compare.table_changes import TableChanges
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

SECTIONS = "zones,free_lists,pageblocks,vm_counters,settings,page_tables"


def collected(path: Path, *words: str | Path) -> Bundle:
    assert main(["collect", *map(str, words), "-o", str(path)]) in (0, 1)
    return Bundle(path)


@functools.cache
def held(before: Bundle, after: Bundle) -> Comparison:
    return compare(before, after, (evaluate(before), evaluate(after)), draw=True)


def table(comparison: Comparison, name: str) -> TableChanges:
    return next(t for t in comparison.tables if t.name == name)


@pytest.fixture(scope="module")
def vmcores(
    tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]
) -> tuple[Bundle, Bundle]:
    """The same kernel with its free memory in pieces, and with page tables of every shape."""
    folder = tmp_path_factory.mktemp("vmcores")
    bundles = []
    for workload in ("fragment", "tables"):
        taken = capture(STANDS_ON, workload, say=say)
        options = ("--core", taken.vmcore, "--symbols", taken.vmlinux, "--only", SECTIONS)
        bundles.append(collected(folder / workload, *options))
    return bundles[0], bundles[1]


class TestTwoVmcores:
    def test_are_two_boots(self, vmcores: tuple[Bundle, Bundle]) -> None:
        assert same_boot(*vmcores) is False

    def test_the_highatomic_reserve_is_gone(self, vmcores: tuple[Bundle, Bundle]) -> None:
        gone = [item.finding for item in held(*vmcores).findings if item.change == "gone"]
        assert "highatomic-starves-thp" in {finding.id for finding in gone}
        changes = table(held(*vmcores), "pageblocks").changes
        blocks = [
            {(row["node"], row["zone"]): row["blocks"] for row in bundle.rows("pageblocks")
             if row["migratetype"] == "HighAtomic"}
            for bundle in vmcores
        ]  # fmt: skip
        told = {c.what[:2]: (c.before, c.after) for c in changes if c.what[2] == "HighAtomic"}
        assert told
        assert told.items() <= {key: (blocks[0][key], blocks[1][key]) for key in told}.items()

    def test_processes_are_summed_by_name(self, vmcores: tuple[Bundle, Bundle]) -> None:
        found = table(held(*vmcores), "page_tables")
        sums: list[dict[str, int]] = []
        for bundle in vmcores:
            sums.append({})
            for row in bundle.rows("page_tables"):
                sums[-1][row["comm"]] = sums[-1].get(row["comm"], 0) + row["pgtables_bytes"]
        assert found.changes
        for change in found.changes:
            (comm,) = change.what
            assert (change.before, change.after) == (sums[0].get(comm), sums[1].get(comm))

    def test_both_directions_mirror_each_other(self, vmcores: tuple[Bundle, Bundle]) -> None:
        there, back = held(*vmcores), held(*reversed(vmcores))
        opposite = {"new": "gone", "gone": "new", "grew": "shrank", "shrank": "grew"}
        for one in there.tables:
            other = table(back, one.name)
            for change, number in one.counts.items():
                assert other.counts[opposite.get(change, change)] == number

    def test_page_says_so(self, vmcores: tuple[Bundle, Bundle]) -> None:
        comparison = held(*vmcores)
        page = render(vmcores[1], evaluate(vmcores[1]), comparison)
        assert "Two boots" in page
        assert view(comparison).sentence.split(";")[0] in page


class TestThisKernel:
    def test_of_two_moments_is_one_boot_whose_counters_grew(self, tmp_path: Path) -> None:
        before = collected(tmp_path / "before", "--proc-root", "/", "--only", "vm_counters")
        time.sleep(1)
        pages = bytearray(16 << 20)  # faults
        after = collected(tmp_path / "after", "--proc-root", "/", "--only", "vm_counters")
        comparison = held(before, after)
        assert pages
        assert comparison.relation.one_boot
        values = [{r["name"]: r["value"] for r in b.rows("vm_counters")} for b in (before, after)]
        found = {c.what[0]: c.difference for c in table(comparison, "vm_counters").changes}
        assert found["pgfault"] == values[1]["pgfault"] - values[0]["pgfault"] > 0
