# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles of real kernels held against each other: two vmcores of one kernel that were driven into
different states, two moments of the kernel that these tests run on, and what a kernel of each
series counts, edited as ten minutes of work would.
"""

import csv
import functools
import json
import shutil
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from capture import capture
from conftest import STANDS_ON, Lab

from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.tables.table import table_of
from mmscope.drgn.text.proc_text import since_boot
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
    assert main(["collect", "--no-findings", *map(str, words), "-o", str(path)]) in (0, 1)
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


# Of vm_node_stat what is not counted since boot: node_stat_item of 5.10, 6.1, 6.12, 7.2 and 7.3
# (include/linux/mmzone.h). A new name must be looked up in the kernel's source.
NODE_STATES = {
    *("nr_inactive_anon", "nr_active_anon", "nr_inactive_file", "nr_active_file"),
    *("nr_unevictable", "nr_slab_reclaimable", "nr_slab_unreclaimable", "nr_isolated_anon"),
    *("nr_isolated_file", "workingset_nodes", "nr_anon_pages", "nr_mapped", "nr_file_pages"),
    *("nr_dirty", "nr_writeback", "nr_writeback_temp", "nr_shmem", "nr_shmem_hugepages"),
    *("nr_shmem_pmdmapped", "nr_file_hugepages", "nr_file_pmdmapped"),
    *("nr_anon_transparent_hugepages", "nr_kernel_misc_reclaimable", "nr_vmalloc"),
    *("nr_kernel_stack", "nr_shadow_call_stack", "nr_page_table_pages"),
    *("nr_sec_page_table_pages", "nr_iommu_pages", "nr_swapcached", "nr_hugetlb"),
    *("nr_balloon_pages", "nr_kernel_file_pages", "nr_gpu_active", "nr_gpu_reclaim"),
}
NODE_EVENTS = {
    *(f"workingset_{what}_{of}" for what in ("refault", "activate", "restore")
      for of in ("anon", "file")),
    *("workingset_nodereclaim", "nr_vmscan_write", "nr_vmscan_immediate_reclaim"),
    *("nr_dirtied", "nr_written", "nr_throttled_written"),
    *("nr_foll_pin_acquired", "nr_foll_pin_released"),
    *("pgpromote_success", "pgpromote_candidate", "pgpromote_candidate_nrl", "pgrefill"),
    *(f"{what}_{by}" for what in ("pgdemote", "pgsteal", "pgscan")
      for by in ("kswapd", "direct", "khugepaged", "proactive")),
    *(f"{what}_{of}" for what in ("pgsteal", "pgscan", "pgrotate") for of in ("anon", "file")),
}  # fmt: skip


def reading(bundle: Bundle, path: Path, host: str, seconds: int, grown: Mapping[str, int]) -> Path:
    """The bundle as another host's, so many seconds later, with counters that grew meanwhile."""
    shutil.copytree(bundle.path, path)
    description = path / "datapackage.json"
    data = json.loads(description.read_text())
    target = data["target"]
    later = datetime.fromisoformat(target["captured_at"]) + timedelta(seconds=seconds)
    target |= {
        "hostname": host,
        "captured_at": later.isoformat(),
        "uptime_seconds": target["uptime_seconds"] + seconds,
    }
    description.write_text(json.dumps(data))
    with (path / "vm_counters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["value"] = str(int(row["value"]) + grown.get(row["name"], 0))
    with (path / "vm_counters.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def counted(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The counters of a kernel of the lab."""
    path = tmp_path_factory.mktemp("counted") / lab.capture.kernel
    options = ("--core", lab.capture.vmcore, "--symbols", lab.capture.vmlinux)
    return collected(path, *options, "--only", "vm_counters")


class TestCountersOfEverySeries:
    """Kernels keep the same counter in different arrays; what it is does not change by that."""

    def test_what_nodes_count_is_known(self, counted: Bundle) -> None:
        names = {row["name"] for row in counted.rows("vm_counters", ("kind", ("node",)))}
        assert "workingset_nodes" in names and names <= NODE_STATES | NODE_EVENTS
        assert {name for name in names if since_boot(name, "node")} == names & NODE_EVENTS

    def test_sql_and_python_say_the_same(self, counted: Bundle) -> None:
        rows = [(row["name"], row["kind"]) for row in counted.rows("vm_counters")]
        connection = duckdb.connect()
        connection.execute("create table vm_counters (name varchar, kind varchar)")
        connection.executemany("insert into vm_counters values (?, ?)", rows)
        asked = f"select name, kind from vm_counters where {table_of(VmCounter).since_boot}"
        found = set(connection.execute(asked).fetchall())
        assert found == {row for row in rows if since_boot(*row)}
        assert {"pgscan_kswapd", "pgsteal_direct", "pgfault", "workingset_nodereclaim"} <= {
            name for name, _ in found
        }

    def test_groups_and_the_report_agree_on_what_was_scanned(
        self, counted: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        grown = {"a": 70_000_000, "b": 29_000_000}
        readings = {
            (host, seconds): reading(
                counted, tmp_path / f"{host}{seconds}", host, seconds,
                {"pgscan_kswapd": pages if seconds else 0},
            )
            for host, pages in grown.items()
            for seconds in (0, 600)
        }  # fmt: skip
        words = ["compare", *map(str, readings.values())]
        words.insert(3, "--")
        capsys.readouterr()
        assert main([*words, "--format", "json"]) == 0
        (row,) = (
            row
            for row in json.loads(capsys.readouterr().out)["groups"]
            if row["measure"] == "pgscan_kswapd"
        )
        assert (row["a_median"], row["b_median"]) == (7_000_000, 2_900_000)
        assert (row["a_missing"], row["b_missing"]) == (None, None)
        assert main(words) == 0
        out = capsys.readouterr().out
        (line,) = (line for line in out.splitlines() if line.startswith("pages scanned by kswapd"))
        assert line.split()[4:7] == ["7,000,000/min", "2,900,000/min", "-4,100,000/min"]
        for host, pages in grown.items():
            comparison = held(Bundle(readings[host, 0]), Bundle(readings[host, 600]))
            (change,) = table(comparison, "vm_counters").changes
            assert (change.what[0], change.difference) == ("pgscan_kswapd", pages)
            ((*_, told),) = view(comparison).tables[0].rows
            assert told.endswith(" a second")
            a_second = float(told.split()[0].replace(",", ""))
            assert a_second == pytest.approx(pages / 600)

    def test_what_is_counted_since_boot_is_no_difference_of_two_boots(
        self, counted: Bundle, tmp_path: Path
    ) -> None:
        rows = list(counted.rows("vm_counters"))
        grown = dict.fromkeys((row["name"] for row in rows), 600)
        before = Bundle(reading(counted, tmp_path / "before", "a", 0, {}))
        other = reading(counted, tmp_path / "other", "b", 0, grown)
        states = [
            (row["name"], row["kind"]) for row in rows if not since_boot(row["name"], row["kind"])
        ]
        counts = table(held(before, Bundle(other)), "vm_counters").counts
        assert counts["grew"] == len(states) and sum(counts.values()) == len(states)
        # Of one boot everything is compared, and has a rate where it is counted.
        later = Bundle(reading(counted, tmp_path / "later", "a", 600, grown))
        found = table(held(before, later), "vm_counters")
        assert found.counts["grew"] == len(rows)
        assert found.changes
        assert all(change.counted == since_boot(*change.what) for change in found.changes)
