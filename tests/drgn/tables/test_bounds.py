# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Values that cannot be: each is found, said in words, and keeps findings from being made of it; what
healthy kernels say is not.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import markupsafe
import pytest
from checkout import TESTS
from made_sections import made_section
from report_bundle import TARGET

from mmscope.drgn.free.free_lists import FreeBlocks
from mmscope.drgn.free.zones import FreeAccounting, Zone
from mmscope.drgn.ledger.swap_areas import SwapArea, Zswap
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.owners.slab_caches import SlabCache
from mmscope.drgn.page_tables.page_tables import PageTables
from mmscope.drgn.page_tables.process_shares import ProcessShare
from mmscope.drgn.processes.processes import ProcessVmas
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.struct_pages.hugetlb import HugetlbSize
from mmscope.drgn.tables.bounds import Impossible, Machine, impossible, rows_that_cannot_be, told
from mmscope.drgn.tables.rows import (
    LONGEST_NAME,
    MOST,
    MOST_BYTES,
    MOST_PAGES,
    Column,
    column,
    columns,
)
from mmscope.drgn.text.proc_text import parse_vmstat, since_boot
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

DUMP = Machine(total_pages=1 << 20, page_size=4096, frozen=True)
RUNNING = replace(DUMP, frozen=False)
ZONE = Zone(
    0,
    "Normal",
    900_000,
    890_000,
    1 << 20,
    400_000,
    10,
    20,
    30,
    0,
    1024,
    512,
    9216,
    4096,
    None,
    None,
)
SIZE = HugetlbSize(2 << 20, 16, 8, 4, 0, 0, "off", None)


def marks(row: Any, machine: Machine = DUMP) -> list[str]:
    described = columns(type(row))
    return [str(mark) for mark in rows_that_cannot_be("t", described, [row], machine)]


def test_what_a_healthy_kernel_says_can_be() -> None:
    for row in (
        ZONE,
        # ZONE_DEVICE: a span without present pages.
        Zone(0, "Device", 0, 0, 1 << 30, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 30, None, None),
        # A small zone: its HighAtomic reserve is a whole pageblock, which may be more than it has.
        Zone(0, "Normal", 300, 290, 300, 100, 1, 2, 3, 0, 512, 0, 512, 0, None, None),
        SIZE,
        HugetlbSize(16 << 30, 0, 0, 0, 0, 0, "off", 0),  # larger than the machine
        # Counters lag: less than nothing, for the CPUs that have not folded theirs in.
        FreeAccounting(0, "Normal", 5, -125, 130, 0, -125, 0, None, None),
        VmCounter("nr_free_pages", "zone", 7, -3),
        VmCounter("pgfault", "event", 1 << 59, 0),
        Setting("vm.swappiness", "200"),
        Setting("transparent_hugepage.enabled", "madvise"),
        # Mapped twice, memory counts twice: more of it is resident than there is.
        replace(_page_tables(), resident_bytes=1 << 40, hugetlb_bytes=1 << 40),
        ProcessShare(1, "zgc", 3 << 40, 0, 3 << 40, 1 << 30, 0, 0, 0, 0, None),
        # Swap is larger than memory, and so is what zswap has of it before it is compressed.
        SwapArea("/dev/vda2", "partition", 9 << 40, 8 << 40, -2, False, None, None),
        Zswap(True, "zstd", 1, 8 << 40, 1 << 30),
    ):
        assert marks(row) == []


def test_a_state_is_of_memory_and_what_is_counted_since_boot_is_not() -> None:
    """Of /proc/vmstat, whatever a kernel calls it."""
    far = 1 << 37  # of pages and of KiB
    rows = parse_vmstat((TESTS / "data/7.2/proc/vmstat").read_text())
    assert len(rows) > 150
    for name, kind, _ in [*rows, ("nr_of_a_later_kernel", "node", 0), ("pgother", "node", 0)]:
        marked = marks(VmCounter(name, kind, far, 0))
        assert bool(marked) != since_boot(name, kind), name


def _page_tables() -> PageTables:
    return PageTables(1, "init", 4096, *[None] * (len(columns(PageTables)) - 3))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (replace(ZONE, present_pages=1 << 60), "t.present_pages: 1,152,921,504,606,846,976 is "
         "beyond this machine's 1,048,576 pages"),
        (replace(ZONE, managed_pages=-1, free_pages=0), "t.managed_pages: -1 is below 0"),
        (replace(ZONE, managed_pages=950_000), "t.managed_pages: 950,000 is more than "
         "present_pages, 900,000"),
        (replace(ZONE, spanned_pages=1 << 60), "t.spanned_pages: 1,152,921,504,606,846,976 is "
         "beyond 17,592,186,044,416"),
        (replace(ZONE, wmark_low=9), "t.wmark_low: 9 is less than wmark_min, 10"),
        (replace(ZONE, wmark_high=(1 << 64) - 1), "t.wmark_high: 18,446,744,073,709,551,615 is "
         "beyond this machine's 1,048,576 pages"),
        (replace(ZONE, highatomic_free_pages=1025), "t.highatomic_free_pages: 1,025 is more than "
         "highatomic_reserved_pages, 1,024"),
        (replace(ZONE, zone=""), "t.zone: a name that is empty"),
        (FreeBlocks(0, "Normal", 31, None, 1, 1), "t.order: 31 is beyond 30"),
        (FreeBlocks(0, "Normal", 0, None, 10**12, 1), "t.blocks: 1,000,000,000,000 is beyond this "
         "machine's 1,048,576 pages"),
        (replace(_page_tables(), pgtables_bytes=1 << 33), "t.pgtables_bytes: 8,589,934,592 is "
         "beyond this machine's 4,294,967,296 bytes"),
        (ProcessVmas(-1, "a", 1, 1, 1, None, 1), "t.pid: -1 is below 0"),
        (ProcessVmas(4 << 20 | 1, "a", 1, 1, 1, None, 1), "t.pid: 4,194,305 is beyond 4,194,304"),
        (ProcessVmas(1, "a" * 256, 1, 1, 1, None, 1), "t.comm: 256 characters, more than a name "
         "has"),
        (replace(SIZE, free_pages=(1 << 64) - 1, reserved_pages=0),
         "t.free_pages: 18,446,744,073,709,551,615 is more than pages, 16"),
        (VmCounter("nr_free_pages", "zone", 1 << 21, 0), "t.value, nr_free_pages: 2,097,152 is "
         "beyond this machine's 1,048,576 pages"),
        (VmCounter("pgfault", "event", 1 << 61, 0), "t.value, pgfault: 2,305,843,009,213,693,952 "
         "is beyond 1,152,921,504,606,846,976"),
        (Setting("vm.min_free_kbytes", "-1"), "t.value, vm.min_free_kbytes: -1 is below 0"),
        (Setting("vm.swappiness", "201"), "t.value, vm.swappiness: 201 is beyond 200"),
        (SlabCache("dentry", 1, 192, 1, 1, 1, 1, False),
         "t.object_bytes: 192 is more than slot_bytes, 1"),
        (SlabCache("dentry", 22, 192, 192, 21, 1, 1, False), "t.objects: 22 is more than slots, "
         "21"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(row: Any, said: str) -> None:
    assert said in marks(row)


def test_of_a_machine_of_unknown_size_only_what_no_machine_has_is_refused() -> None:
    unknown = Machine(frozen=True)
    assert marks(FreeBlocks(0, "Normal", 0, None, 10**12, 10**12), unknown) == []
    assert marks(FreeBlocks(0, "Normal", 0, None, 10**14, 0), unknown) == [
        "t.blocks: 100,000,000,000,000 is beyond any machine's 17,592,186,044,416 pages"
    ]
    assert unknown.most("total_bytes") == MOST_BYTES
    assert Machine(total_pages=1 << 62, page_size=1 << 20).most("total_pages") == MOST_PAGES


def test_a_running_kernel_may_change_one_number_while_the_other_is_read() -> None:
    grown = replace(SIZE, free_pages=900)  # a pool that grew in between
    lagging = replace(ZONE, free_pages=ZONE.managed_pages + 125)
    for row in (grown, lagging):
        assert marks(row) and not marks(row, RUNNING)
    # But not by so much.
    lie = replace(ZONE, present_pages=900_000, managed_pages=900_000, spanned_pages=500_000)
    assert marks(lie, RUNNING) == ["t.present_pages: 900,000 is more than spanned_pages, 500,000"]


def test_a_key_is_there_once_in_a_dump() -> None:
    rows = [ProcessVmas(pid, "a", 1, 1, 1, None, 1) for pid in (7, 8, 7, 7)]
    found = rows_that_cannot_be("t", columns(ProcessVmas), rows, DUMP)
    assert [(mark.row_number, mark.value, mark.bound) for mark in found] == [
        (3, "7", "the key of row 3 is that of row 1"),
        (4, "7", "the key of row 4 is that of row 1"),
    ]
    assert not rows_that_cannot_be("t", columns(ProcessVmas), rows, RUNNING)


def test_a_column_with_many_is_told_of_once() -> None:
    rows = [replace(ZONE, node=node, wmark_boost=-1) for node in range(3000)]
    for number, more in ((1, ""), (3, ", and 2 more"), (3000, ", and at least 499 more")):
        found = rows_that_cannot_be("t", columns(Zone), rows[:number], DUMP)
        more = more and f"{more} (impossible_values)"
        assert told(found) == [f"t.wmark_boost: -1 is below 0{more}"]


def test_unknown_and_no_number_are_not_out_of_bounds() -> None:
    @dataclass(frozen=True)
    class Row:
        number: float | None = column(help="")

    for value in (None, float("nan"), 1e17):
        assert marks(Row(value)) == []
    assert marks(Row(-0.5)) == ["t.number: -0.5 is below 0"]


def test_every_relation_is_to_a_number_of_the_same_row() -> None:
    for row_type in (Zone, HugetlbSize, SlabCache, FreeBlocks, VmCounter, Setting):
        described = {c.name: c for c in columns(row_type)}
        for c in described.values():
            for bound in (*c.low, *c.high):
                if isinstance(bound, str) and not bound.startswith("total_"):
                    assert described[bound].type == "integer"
            if c.type == "integer":
                assert any(not isinstance(b, str) or b.startswith("total_") for b in c.high)


# ---------------------------------------------------------------- a section


def section(rows: list[Zone], machine: Machine = DUMP) -> tuple[SectionResult, Found]:
    spec = made_section("zones", lambda _: Found().add(Zone, rows))
    return run_section(spec, Files(Path("/nonexistent")), machine)


def test_a_section_with_such_a_value_is_partial_and_keeps_its_rows() -> None:
    wrong = replace(ZONE, node=1, present_pages=1 << 60)
    fared, found = section([ZONE, wrong])
    assert (fared.status, fared.rows) == ("partial", 2)
    assert fared.message == (
        "zones.present_pages: 1,152,921,504,606,846,976 is beyond this machine's 1,048,576 pages"
    )
    assert found.tables[0].rows == [ZONE, wrong]
    assert [(mark.table_name, mark.row_number) for mark in found.impossible] == [("zones", 2)]
    assert section([ZONE])[0].status == "ok"


# ---------------------------------------------------------------- a bundle


def write(path: Path, tables: dict[str, list[Any]], target: dict[str, Any] | None = None) -> Bundle:
    with Writer(path, replace=True) as writer:
        for name, rows in tables.items():
            writer.table(name, name, type(rows[0]), rows, section="zones")
        fared = [SectionResult("zones", "ok", 1.0, 1, 0, None)]
        writer.finish(TARGET | {"total_pages": 1 << 20, "kind": "vmcore"} | (target or {}), fared)
    return Bundle(path)


def test_a_stranger_s_bundle_is_held_to_the_same_bounds(tmp_path: Path) -> None:
    rows = [FreeBlocks(0, "Normal", order, "Movable", 1, 1 << order) for order in range(11)]
    write(tmp_path / "b", {"free_blocks": rows, "zones": [ZONE]})
    file = tmp_path / "b/free_blocks.csv"
    for number in (10**12, 2**63, 2**64 - 1, 10**30):
        file.write_text(file.read_text().replace("10,Movable,1,1024", f"10,Movable,{number},1024"))
        bundle = Bundle(tmp_path / "b")
        (mark,) = bundle.impossible("free_blocks")
        said = f"free_blocks.blocks: {number:,} is beyond this machine's 1,048,576 pages"
        assert (str(mark), mark.row_number, mark.value) == (said, 11, str(number))
        verdict = evaluate(bundle)
        refused = {finding.id: finding.reason for finding in verdict.not_checked}
        assert refused["external-fragmentation"] == said
        assert not any("Error" in reason for reason in refused.values())
        # What asks for other tables is checked.
        assert "below-watermarks" not in refused
        # It is shown as it is, and marked.
        assert f"cannot be: {markupsafe.escape(mark.bound)}" in render(bundle, verdict)
        write(tmp_path / "b", {"free_blocks": rows, "zones": [ZONE]})


def test_a_number_beyond_64_bits_leaves_the_rest_of_its_table_whole(tmp_path: Path) -> None:
    from mmscope.reports.bundle.database import open_database

    wrong = replace(ZONE, node=1, present_pages=(1 << 64) - 1)
    database = open_database(write(tmp_path / "b", {"zones": [ZONE, wrong]}))
    rows = database.rows("select present_pages, managed_pages from zones order by node")
    assert rows == [
        {"present_pages": 900_000, "managed_pages": 890_000},
        {"present_pages": None, "managed_pages": 890_000},
    ]


def test_a_counter_that_cannot_be_spoils_only_what_asks_for_it(tmp_path: Path) -> None:
    names = ("compact_fail", "compact_success", "compact_stall", "nr_free_pages", "thp_fault_alloc")
    counters = [VmCounter(name, "event", 10_000, 0) for name in names]
    wrong = [replace(row, value=-1) if row.name == "nr_free_pages" else row for row in counters]
    asked = {"compaction-fails"}
    for rows, spoiled in ((counters, set()), (wrong, set())):
        verdict = evaluate(write(tmp_path / "b", {"vm_counters": rows}))
        refused = {each.id for each in verdict.not_checked if "-1 is below 0" in each.reason}
        assert refused & asked == spoiled
    wrong = [replace(row, value=-1) if row.name == "compact_fail" else row for row in counters]
    verdict = evaluate(write(tmp_path / "b", {"vm_counters": wrong}))
    refused = {each.id for each in verdict.not_checked if "-1 is below 0" in each.reason}
    assert asked <= refused


def test_what_its_writer_marked_is_marked(tmp_path: Path) -> None:
    mark = Impossible("zones", 1, "node", None, "0", "the key of row 1 is that of row 9")
    elsewhere = [
        replace(mark, row_number=2),
        replace(mark, row_number=-1),
        replace(mark, column_name="nothing"),
        replace(mark, table_name="nowhere"),
    ]
    bundle = write(tmp_path / "b", {"zones": [ZONE], "impossible_values": [mark, *elsewhere]})
    assert bundle.impossible("zones") == [mark]
    assert any(str(mark) == each.reason for each in evaluate(bundle).not_checked)


@pytest.mark.parametrize(
    "bounds",
    [{"low": ["nothing"]}, {"high": ["zone"]}, {"high": [None]}, {"ranges": {"a": [1]}}, [1],
     {"low": 3}, {"ranges": {"a": ["node", 1]}}],
)  # fmt: skip
def test_bounds_that_are_none_are_damage(tmp_path: Path, bounds: Any) -> None:
    write(tmp_path / "b", {"zones": [ZONE]})
    _describe(tmp_path / "b", lambda field: bounds)
    with pytest.raises(BundleError, match=r"datapackage\.json is damaged") as error:
        Bundle(tmp_path / "b")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bounds", [{}, {"high": ["spanned_pages"]}, None])
def test_no_bundle_lifts_the_bounds_that_keep_numbers_small(tmp_path: Path, bounds: Any) -> None:
    wrong = replace(ZONE, spanned_pages=(1 << 63), present_pages=(1 << 63))
    write(tmp_path / "b", {"zones": [wrong]})
    _describe(tmp_path / "b", lambda field: bounds)
    found = Bundle(tmp_path / "b").impossible("zones")
    assert {(mark.column_name, mark.bound) for mark in found} == {
        (name, f"{1 << 63:,} is beyond {MOST:,}") for name in ("spanned_pages", "present_pages")
    }


def test_a_number_that_is_a_name_may_have_64_bits(tmp_path: Path) -> None:
    """An inode's, of NFS: nothing is computed with it."""
    from mmscope.reports.bundle.database import open_database

    @dataclass(frozen=True)
    class File:
        inode: int = column(key=True, help="i_ino", high=(1 << 64) - 1)

    bundle = write(tmp_path / "b", {"files": [File((1 << 64) - 1), File(7)]})
    assert not bundle.impossible("files")
    assert open_database(bundle).rows("select max(inode) as m from files") == [{"m": (1 << 64) - 1}]
    # Nor does a stranger's bundle get further with higher bounds.
    _describe(tmp_path / "b", lambda field: {"high": [10**40]})
    file = tmp_path / "b/files.csv"
    file.write_text(file.read_text().replace("\n7\n", f"\n{10**39}\n"))
    bundle = Bundle(tmp_path / "b")
    assert [mark.value for mark in bundle.impossible("files")] == [str(10**39)]
    assert open_database(bundle).rows("select count(inode) as n from files") == [{"n": 1}]


def _describe(path: Path, bounds: Callable[[dict[str, Any]], Any]) -> None:
    """Other bounds for every number of a bundle's zones; None: none are declared."""
    description = json.loads((path / "datapackage.json").read_text())
    for field in description["resources"][0]["schema"]["fields"]:
        if field["type"] == "integer":
            field["bounds"] = bounds(field)
            if field["bounds"] is None:
                del field["bounds"]
    (path / "datapackage.json").write_text(json.dumps(description))


def test_a_target_beyond_any_machine_is_refused(tmp_path: Path) -> None:
    for name, value in (("total_pages", 1 << 45), ("page_size", 1 << 21)):
        write(tmp_path / "b", {"zones": [ZONE]})
        path = tmp_path / "b/datapackage.json"
        data = json.loads(path.read_text())
        data["target"][name] = value
        path.write_text(json.dumps(data))
        with pytest.raises(BundleError, match=rf"target\.{name} is"):
            Bundle(tmp_path / "b")


def test_show_marks_it_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "b", {"zones": [replace(ZONE, present_pages=1 << 60)]})
    assert main(["show", "zones", str(tmp_path / "b")]) == 1
    shown = capsys.readouterr()
    assert "1,152,921,504,606,846,976 !" in shown.out
    assert "zones.present_pages: 1,152,921,504,606,846,976 is beyond" in shown.err
    assert main(["show", "zones", str(tmp_path / "b"), "--format", "csv"]) == 1
    assert ",1152921504606846976," in capsys.readouterr().out


# ---------------------------------------------------------------- text


def test_text_of_a_host_is_held_to_the_same_bounds(tmp_path: Path) -> None:
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "root/proc/zoneinfo").write_text(
        "Node 0, zone   Normal\n  pages free     100\n        min      10\n        low      20\n"
        f"        high     30\n        spanned  1000\n        present  {10**15}\n"
        "        managed  900\n  start_pfn:           0\n"
    )
    (tmp_path / "root/proc/sys/vm").mkdir(parents=True)
    (tmp_path / "root/proc/sys/vm/swappiness").write_text("60\n")
    code = main(["collect", "--proc-root", str(tmp_path / "root"), "-o", str(tmp_path / "b")])
    bundle = Bundle(tmp_path / "b")
    assert code == 1
    fared = {section.section: section for section in bundle.sections}
    assert fared["zones"].status == "partial"
    assert "present_pages: 1,000,000,000,000,000 is beyond" in str(fared["zones"].message)
    assert fared["settings"].status == "ok"
    assert bundle.target["total_pages"] is None  # not what such a text says
    (row,) = bundle.rows("impossible_values")
    assert (row["table_name"], row["column_name"]) == ("zones", "present_pages")
    assert row == asdict(Impossible(**row))


def test_a_bound_is_declared_for_every_number(tmp_path: Path) -> None:
    """What is not declared is 0 to what the unit says."""

    @dataclass(frozen=True)
    class Row:
        plain: int = column(help="")
        pages: int = column(help="", unit="pages")
        size: int = column(help="", unit="bytes", low=None)
        name: str = column(help="", holds="comm")
        share: float = column(help="", high="pages")

    found: dict[str, Column] = {c.name: c for c in columns(Row)}
    assert (found["plain"].low, found["plain"].high) == ((0,), (MOST,))
    assert (found["pages"].low, found["pages"].high) == ((0,), ("total_pages",))
    assert (found["size"].low, found["size"].high) == ((-MOST,), ("total_bytes",))
    assert (found["name"].low, found["name"].high) == ((), (LONGEST_NAME,))
    assert found["share"].high == ("pages", MOST)
    assert impossible("t", list(found.values()), [[1], [1], [1], ["a"], [0.5]], DUMP) == []


def test_no_machine_counts_more_than_it_had_time_for() -> None:
    up = replace(DUMP, most_events=Machine.of({"uptime_seconds": 9, "online_cpus": 2}).most_events)
    rows = [VmCounter("pgalloc", "event", 5, 0), VmCounter("pgfault", "event", 1 << 40, 0)]
    assert [str(mark) for mark in rows_that_cannot_be("t", columns(VmCounter), rows, up)] == [
        "t.value, pgfault: 1,099,511,627,776 is more than this machine can have counted since boot"
    ]
    assert not rows_that_cannot_be("t", columns(VmCounter), rows[:1], up)
    # Where nobody knows how long it was up, anything may have been counted.
    assert Machine.of({"online_cpus": 2}).most_events is None
    assert not rows_that_cannot_be("t", columns(VmCounter), rows, DUMP)


@pytest.mark.parametrize("name", ["pgscan_kh\\xffgepaged", "nr_\x07free", "größe"])
def test_the_kernels_own_names_are_text(name: str) -> None:
    (mark,) = rows_that_cannot_be("t", columns(VmCounter), [VmCounter(name, "event", 1, 0)], DUMP)
    assert (mark.column_name, mark.bound) == ("name", "a name with what is no text")
