# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The readers of /proc's text files: what the kernel printed comes out, and nothing else does.

A text that is not whole, or not the kernel's, is a ValueError of one line that names the file;
never another exception, and never half a table. What a reader cannot tell (a text cut exactly
between two zones) is said in its docstring and here.

``data/7.2`` is what a guest printed. ``data/6.1`` is written by hand after mm/vmstat.c and
mm/page_owner.c of that kernel, with as few lines as show what differs.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import TESTS
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.filesystems.dentry_cache import (
    dentry_count_rows,
    read_dentry_state,
    read_inode_nr,
)
from mmscope.drgn.free.free_lists import FreeBlocks, read_buddyinfo, read_pagetypeinfo
from mmscope.drgn.free.pageblocks import Pageblocks, read_pagetypeinfo_blocks
from mmscope.drgn.free.pcp_lists import PcpPages, read_zoneinfo_pcp
from mmscope.drgn.free.zones import Zone, read_zoneinfo
from mmscope.drgn.machine.settings import Setting, read_settings
from mmscope.drgn.machine.vm_counters import counter, read_vmstat
from mmscope.drgn.processes.process_memory import from_files as process_memory_from_files
from mmscope.drgn.processes.process_memory import read_status_memory
from mmscope.drgn.sections.files import Files
from mmscope.drgn.text.proc_text import parse_pagetypeinfo

DATA = TESTS / "data"
ROOT = DATA / "7.2"
PAGETYPEINFO = (ROOT / "proc/pagetypeinfo").read_text()
ZONEINFO = (ROOT / "proc/zoneinfo").read_text()
BUDDYINFO = (ROOT / "proc/buddyinfo").read_text()
VMSTAT = (ROOT / "proc/vmstat").read_text()
ZONEINFO_6_1 = (DATA / "6.1/zoneinfo").read_text()
PAGETYPEINFO_PAGE_OWNER = (DATA / "6.1/pagetypeinfo").read_text()

DENTRY_STATE = "20645\t20037\t45\t0\t20000\t0\n"
INODE_NR = "670\t12\n"

Reader = Callable[[str], list[Any]]


def rows_of(read: Callable[[str], dict[str, int]]) -> Reader:
    return lambda text: dentry_count_rows(read(text))


READERS: dict[str, tuple[Reader, str, str]] = {
    "free blocks of pagetypeinfo": (read_pagetypeinfo, PAGETYPEINFO, "/proc/pagetypeinfo"),
    "pageblocks of pagetypeinfo": (read_pagetypeinfo_blocks, PAGETYPEINFO, "/proc/pagetypeinfo"),
    "buddyinfo": (read_buddyinfo, BUDDYINFO, "/proc/buddyinfo"),
    "zoneinfo": (read_zoneinfo, ZONEINFO, "/proc/zoneinfo"),
    "pagesets of zoneinfo": (read_zoneinfo_pcp, ZONEINFO, "/proc/zoneinfo"),
    "vmstat": (read_vmstat, VMSTAT, "/proc/vmstat"),
    "dentry-state": (rows_of(read_dentry_state), DENTRY_STATE, "/proc/sys/fs/dentry-state"),
    "inode-nr": (rows_of(read_inode_nr), INODE_NR, "/proc/sys/fs/inode-nr"),
}
every_reader = pytest.mark.parametrize(
    ("read", "text", "file"), READERS.values(), ids=READERS.keys()
)


def refusal(read: Reader, text: str) -> str | None:
    """The words with which a reader refuses a text, or None."""
    try:
        read(text)
    except ValueError as error:
        return str(error)
    return None


# What the kernel printed.


def test_pagetypeinfo_free_blocks_of_every_node() -> None:
    rows = read_pagetypeinfo(PAGETYPEINFO)
    assert len(rows) == 3 * 6 * 11
    assert FreeBlocks(0, "DMA32", 3, "HighAtomic", 3, 24) in rows
    assert FreeBlocks(1, "Normal", 10, "Unmovable", 1, 1024) in rows
    assert FreeBlocks(1, "Normal", 0, "Movable", 12273, 12273) in rows


def test_pagetypeinfo_pageblocks_of_every_node() -> None:
    rows = read_pagetypeinfo_blocks(PAGETYPEINFO)
    assert len(rows) == 3 * 6
    assert Pageblocks(0, "DMA32", "HighAtomic", 1) in rows
    assert Pageblocks(1, "Normal", "Movable", 492) in rows
    assert parse_pagetypeinfo(PAGETYPEINFO).block_order == 9


def test_page_owners_table_of_mixed_blocks_is_another_table() -> None:
    rows = read_pagetypeinfo_blocks(PAGETYPEINFO_PAGE_OWNER)
    assert rows == [
        Pageblocks(0, "DMA32", "Unmovable", 23),
        Pageblocks(0, "DMA32", "Movable", 990),
        Pageblocks(1, "Normal", "Unmovable", 141),
        Pageblocks(1, "Normal", "Movable", 371),
    ]
    assert len(read_pagetypeinfo(PAGETYPEINFO_PAGE_OWNER)) == 2 * 2 * 3


def test_free_blocks_that_the_kernel_stopped_counting_are_no_number() -> None:
    text = PAGETYPEINFO.replace(" 12273   6273", ">100000   6273")
    assert text != PAGETYPEINFO
    words = refusal(read_pagetypeinfo, text)
    assert words is not None
    assert "stopped counting free blocks at 100,000 (zone Normal, Movable)" in words
    assert read_pagetypeinfo_blocks(text) == read_pagetypeinfo_blocks(PAGETYPEINFO)


def test_buddyinfo_is_pagetypeinfo_summed_over_migratetypes() -> None:
    summed: dict[tuple[int, str, int], int] = {}
    for row in read_pagetypeinfo(PAGETYPEINFO):
        if row.migratetype != "Isolate":
            key = row.node, row.zone, row.order
            summed[key] = summed.get(key, 0) + row.blocks
    rows = read_buddyinfo(BUDDYINFO)
    assert {(row.node, row.zone, row.order): row.blocks for row in rows} == summed
    assert {row.migratetype for row in rows} == {None}
    assert all(row.pages == row.blocks << row.order for row in rows)


def test_dentries_and_inodes_are_counted_as_their_files_say() -> None:
    assert read_dentry_state(DENTRY_STATE) == {
        "dentry_stat.nr_dentry": 20645,
        "dentry_stat.nr_unused": 20037,
        "dentry_stat.nr_negative": 20000,
    }
    assert read_inode_nr(INODE_NR) == {"inodes_stat.nr_inodes": 670, "inodes_stat.nr_unused": 12}


def test_zoneinfo_watermarks_are_the_zones_not_the_pagesets() -> None:
    rows = read_zoneinfo(ZONEINFO)
    assert [(row.node, row.zone) for row in rows] == [(0, "DMA"), (0, "DMA32"), (1, "Normal")]
    assert rows[1] == Zone(
        node=0,
        zone="DMA32",
        present_pages=126944,
        managed_pages=108402,
        spanned_pages=126944,
        free_pages=46859,
        wmark_min=5102,
        wmark_low=6377,
        wmark_high=7652,
        wmark_boost=0,
        highatomic_reserved_pages=512,
        highatomic_free_pages=28,
        highatomic_cap_pages=None,
        start_pfn=4096,
        lock_held=None,
        node_unreclaimable=False,
        file_pages=0,
    )
    said = re.findall(r"nr_zone_(?:in)?active_file +(\d+)", ZONEINFO)
    assert sum(row.file_pages or 0 for row in rows) == sum(map(int, said))


def status(nodes: str) -> str:
    """/proc/PID/status of a process that may use some NUMA nodes."""
    lines = ("VmRSS", "VmSize", "VmLck", "VmPin", "VmPTE", "VmSwap", "RssAnon", "RssFile",
             "RssShmem")  # fmt: skip
    text = "".join(f"{line}:\t       4 kB\n" for line in lines)
    return f"Name:\tdb\nTgid:\t7\nPid:\t7\n{text}Mems_allowed_list:\t{nodes}\n"


def test_a_process_that_may_use_one_of_several_nodes() -> None:
    for nodes, several, only in (("1", True, 1), ("1", False, None), ("0-1", True, None)):
        row = read_status_memory(status(nodes), several)
        assert row is not None and row.only_node == only


@pytest.mark.parametrize(
    ("nodes", "with_memory", "only"),
    [("01", "0-1\n", 1), ("01", "1\n", None), ("01", None, 1), ("1", None, None)],
    ids=["two", "one of two", "two, unknown which have memory", "one"],
)
def test_a_node_without_memory_is_none_that_a_process_could_use(
    tmp_path: Path, nodes: str, with_memory: str | None, only: int | None
) -> None:
    place = tmp_path / "sys/devices/system/node"
    for node in nodes:
        (place / f"node{node}").mkdir(parents=True)
    if with_memory is not None:
        (place / "has_memory").write_text(with_memory)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text(status("1"))
    (row,) = process_memory_from_files(Files(tmp_path)).by_name["process_memory"]
    assert row.only_node == only


def test_zoneinfo_of_6_1_has_no_reserve_and_a_device_zone_no_start() -> None:
    normal, device = read_zoneinfo(ZONEINFO_6_1)
    assert (normal.wmark_min, normal.wmark_low, normal.wmark_high) == (10993, 13743, 16493)
    assert (normal.wmark_boost, normal.start_pfn) == (7, 1048576)
    assert normal.highatomic_reserved_pages is None
    assert normal.highatomic_free_pages is None
    assert (device.zone, device.present_pages, device.spanned_pages) == ("Device", 0, 65536)
    assert device.start_pfn is None, "the kernel does not print it, and 0 would be a guess"


def test_zoneinfo_pagesets() -> None:
    rows = read_zoneinfo_pcp(ZONEINFO)
    assert all(row.order is None and row.migratetype is None for row in rows)
    printed = re.findall(r"count: +(\d+)", ZONEINFO)
    assert [row.pages for row in rows] == [int(pages) for pages in printed if pages != "0"]
    assert read_zoneinfo_pcp(ZONEINFO_6_1) == [
        PcpPages(0, "Normal", 0, None, None, 312),
        PcpPages(0, "Normal", 3, None, None, 9),
    ]


def test_vmstat_kinds_follow_the_kernels_order() -> None:
    rows = read_vmstat(VMSTAT)
    kinds = {row.name: row.kind for row in rows}
    assert kinds["nr_free_pages"] == kinds["nr_unaccepted"] == "zone"
    assert kinds["numa_hit"] == kinds["numa_other"] == "numa"
    assert kinds["nr_inactive_anon"] == kinds["nr_foll_pin_released"] == "node"
    assert kinds["nr_dirty_threshold"] == kinds["nr_memmap_boot_pages"] == "vm_stat"
    assert kinds["pgpgin"] == kinds["thp_fault_alloc"] == "event"
    assert counter(rows, "numa_hit") == 241130
    assert counter(rows, "no_such_counter") is None


def test_vmstat_unstable_is_no_counter() -> None:
    assert "\nnr_unstable 0\n" in VMSTAT
    assert len(read_vmstat(VMSTAT)) == len(VMSTAT.splitlines()) - 1


def test_vmstat_of_a_kernel_without_numa() -> None:
    text = "".join(line for line in VMSTAT.splitlines(keepends=True) if not line.startswith("numa"))
    assert [row for row in read_vmstat(VMSTAT) if row.kind != "numa"][:30] == read_vmstat(text)[:30]


# What the kernel did not print.


@every_reader
def test_another_files_text_is_refused_by_name(read: Reader, text: str, file: str) -> None:
    for other in {PAGETYPEINFO, BUDDYINFO, ZONEINFO, VMSTAT} - {text}:
        words = refusal(read, other)
        assert words is not None
        assert file in words
        assert "\n" not in words


@every_reader
@pytest.mark.parametrize("nothing", ["", "\n", " \n\n", "\0\n"])
def test_nothing_is_refused(read: Reader, text: str, file: str, nothing: str) -> None:
    words = refusal(read, nothing)
    assert words is not None
    assert file in words


@every_reader
@given(data=st.data())
def test_arbitrary_text_is_refused_in_one_line(
    read: Reader, text: str, file: str, data: st.DataObject
) -> None:
    pieces = st.sampled_from([*text.splitlines()[:40], "Node 0, zone", "Node -1, zone x, type y 1"])
    lines = data.draw(st.lists(st.one_of(pieces, st.text(max_size=30)), max_size=12))
    words = refusal(read, "\n".join(lines) + data.draw(st.sampled_from(["", "\n"])))
    if words is not None:
        assert words
        assert "\n" not in words


def unseen_cuts(text: str, file: str) -> set[int]:
    """Where a cut leaves a text that a kernel could have printed."""
    if file == "/proc/vmstat":  # before a counter behind the first event
        return {m.start() for m in re.finditer(r"^", text, re.M)} - set(
            range(text.index("pgpgin") + 1)
        )
    if file == "/proc/pagetypeinfo":  # before a node
        return {m.start() for m in re.finditer(r"^Page block order", text, re.M)} - {0}
    cuts = {m.start() for m in re.finditer(r"^Node", text, re.M)}
    # In /proc/zoneinfo also behind the sizes of a zone without memory, of which nothing is read,
    # and in the first zone behind start_pfn, where the text of an older kernel ends.
    empty = re.finditer(r"^ +present +0\n +managed.*\n()( +cma.*\n)()", text, re.M)
    older = re.search(r"^  start_pfn.*\n()(  .*\n)()", text, re.M)
    for match in [*empty, older] if older else empty:
        cuts |= {match.start(1), match.start(3)}
    return cuts - {0}


@every_reader
def test_a_text_cut_anywhere_is_refused_or_its_rows_are_whole(
    read: Reader, text: str, file: str
) -> None:
    whole, unseen = read(text), unseen_cuts(text, file)
    line_ends = {m.start() for m in re.finditer(r"^", text, re.M)}
    for cut in line_ends | set(range(0, len(text), 37)):
        words = refusal(read, text[:cut])
        assert (words is None) == (cut in unseen or cut == len(text)), (cut, words)
        if words is None:
            rows = read(text[:cut])
            assert_true(rows, whole[: len(rows)])


def test_a_zone_cut_behind_its_start_is_not_taken_for_an_older_kernels() -> None:
    text = ZONEINFO[: ZONEINFO.rindex("  reserved_highatomic")]
    words = refusal(read_zoneinfo, text)
    assert words is not None
    assert "its zones end with free_highatomic or start_pfn" in words


@every_reader
@given(data=st.data())
def test_a_text_with_a_line_lost_or_doubled_gives_no_wrong_row(
    read: Reader, text: str, file: str, data: st.DataObject
) -> None:
    whole = read(text)
    lines = text.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at : at + 1] = data.draw(st.sampled_from([[], [lines[at]] * 2]))
    if refusal(read, "".join(lines)) is None:
        rows = read("".join(lines))
        known = {_key(row): row for row in whole}
        assert_true(rows, [known[_key(row)] for row in rows])


def assert_true(rows: list[Any], whole: list[Any]) -> None:
    """Rows are those of the whole text; only what older kernels do not print may be unknown."""
    for row, true in zip(rows, whole, strict=True):
        for name, value in dataclasses.asdict(row).items():
            assert value in (None, getattr(true, name)), (row, name)


def _key(row: Any) -> tuple[Any, ...]:
    names = ("node", "zone", "cpu", "order", "migratetype", "name")
    return tuple(getattr(row, name, None) for name in names)


@pytest.mark.parametrize("name", ["free blocks of pagetypeinfo", "buddyinfo", "vmstat"])
@given(data=st.data())
def test_a_shuffled_text_is_refused_or_every_row_is_true(name: str, data: st.DataObject) -> None:
    """Of the texts whose lines each say what they are about."""
    read, text, _ = READERS[name]
    lines = data.draw(st.permutations(text.splitlines(keepends=True)))
    if refusal(read, "".join(lines)) is None:
        values = {_key(row): row for row in read(text)}
        for row in read("".join(lines)):
            true = values[_key(row)]
            assert getattr(row, "blocks", None) == getattr(true, "blocks", None)
            assert getattr(row, "value", None) == getattr(true, "value", None)


@pytest.mark.parametrize("name", ["zoneinfo", "pagesets of zoneinfo", "pageblocks of pagetypeinfo"])
@given(data=st.data())
def test_a_shuffled_text_is_no_crash(name: str, data: st.DataObject) -> None:
    read, text, _ = READERS[name]
    refusal(read, "".join(data.draw(st.permutations(text.splitlines(keepends=True)))))


BAD_NUMBERS = [
    "x",
    "-5",
    "1e3",
    "0x10",
    "+4",
    "1_000",
    "٣",
    "²",
    "9" * 25,
    str(1 << 63),
    "9" * 5000,
]


@every_reader
@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=range(len(BAD_NUMBERS)))
def test_a_number_that_the_kernel_cannot_print_is_refused(
    read: Reader, text: str, file: str, bad: str
) -> None:
    patterns = {
        "/proc/vmstat": r"(?<=^pgpgin )\d+",
        "/proc/zoneinfo": r"(?<=^              count:    )\d+",
        "/proc/buddyinfo": r"\d+(?= *$)",
        "/proc/pagetypeinfo": r"\d+(?= *$)",
        "/proc/sys/fs/dentry-state": r"\d+$",
        "/proc/sys/fs/inode-nr": r"\d+$",
    }
    damaged = re.sub(patterns[file], lambda _: bad, text, flags=re.M)
    assert damaged != text
    words = refusal(read, damaged)
    assert words is not None
    assert file in words
    assert len(words) < 300


def test_a_count_of_a_zone_that_fell_below_0_costs_itself_alone() -> None:
    text = re.sub(r"(?<=^        managed  )\d+", str((1 << 64) - 7), ZONEINFO, count=1, flags=re.M)
    bad, *others = read_zoneinfo(text)
    assert bad.managed_pages == -7
    assert others == read_zoneinfo(ZONEINFO)[1:]
    assert dataclasses.replace(bad, managed_pages=1) == dataclasses.replace(
        read_zoneinfo(ZONEINFO)[0], managed_pages=1
    )


def test_a_watermark_that_is_missing_is_named() -> None:
    text = re.sub(r"^ +low +6377\n", "", ZONEINFO, flags=re.M)
    assert refusal(read_zoneinfo, text) == (
        "/proc/zoneinfo is cut short or damaged: zone DMA32 of node 0 has no low"
    )


@pytest.mark.parametrize("order", ["64", "999999999", "-1", "x"])
def test_an_impossible_pageblock_order_is_refused(order: str) -> None:
    text = PAGETYPEINFO.replace("Page block order: 9", f"Page block order: {order}")
    assert refusal(read_pagetypeinfo_blocks, text) is not None


def test_nodes_with_different_pageblock_orders_are_no_machine() -> None:
    text = PAGETYPEINFO.replace("Page block order: 9", "Page block order: 10", 1)
    assert refusal(read_pagetypeinfo, text) is not None


# Settings, which are files of one value.


def settings_of(files: dict[str, str]) -> list[Setting]:
    def read(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    return read_settings(read)


def test_settings_are_named_as_they_are_typed() -> None:
    assert settings_of(
        {
            "proc/sys/vm/min_free_kbytes": "45056\n",
            "sys/kernel/mm/transparent_hugepage/defrag": "always defer [defer+madvise] never\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise never\n",
        }
    ) == [
        Setting("vm.min_free_kbytes", "45056"),
        Setting("transparent_hugepage.defrag", "defer+madvise"),
    ]


@pytest.mark.parametrize("value", ["", "\n", "many\n", "1 2\n", "1\n2\n"])
def test_a_setting_that_is_no_number_is_left_out(value: str) -> None:
    assert settings_of({"proc/sys/vm/swappiness": value}) == []
