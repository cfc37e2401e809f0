# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory that stands for a disk: files of ext4, a swap file and its cache, and zram, against mincore()
and what the kernel prints.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from capture import Capture, capture
from conftest import FUNCTIONS_ONLY, KERNELS
from drgn import FaultError, Object, Program, container_of
from drgn.helpers.linux.list import list_for_each_entry
from forked import in_a_fork, opened
from ledger_lab import meminfo
from named_damage import say as put

from mmscope.drgn.filesystems.cached_files import (
    CachedFile,
    CachedFilesystem,
    cached_files_from_memory,
    disk_name,
)
from mmscope.drgn.ledger import swap_areas
from mmscope.drgn.ledger.memory_ledger import LedgerCheck, LedgerRow, memory_ledger_from_memory
from mmscope.drgn.ledger.swap_areas import (
    SwapArea,
    Zswap,
    read_swaps,
    swap_area,
    swap_infos,
    zram_of,
)
from mmscope.drgn.machine.vm_counters import read_vmstat
from mmscope.drgn.opening.btf import module_types
from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.page_tables.process_shares import ProcessShare, read_smaps_rollup
from mmscope.drgn.page_tables.process_shares import from_memory as shares_from_memory
from mmscope.drgn.processes.process_memory import from_memory as processes_from_memory
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits import task_waits

pytestmark = pytest.mark.any_config

PAGE, MIB = 4096, 1 << 20
# guest/workload_storage.c
DELETED, READ_BACK, SWAPPED = (size * MIB // PAGE for size in (4, 2, 8))
IN_ZRAM = 14 * MIB
IN_ZSWAP = 6 * MIB
CROWD_PAGES, CROWD = 48, {"crowd-few": 5, "crowd-many": 50, "crowd-some": 15}


KNOWN_BY = ("vmlinux", pytest.param("BTF", marks=pytest.mark.btf))


@dataclass(frozen=True)
class StorageLab:
    """A frozen guest with a disk, a swap file on it, and zram."""

    capture: Capture
    prog: Program
    memory: Memory

    @property
    def told(self) -> list[SwapArea]:
        """The areas as the kernel printed them."""
        return read_swaps((self.capture.truth_b / "proc/swaps").read_text())

    @property
    def zram(self) -> tuple[int, int]:
        """Bytes stored, and the memory they take: mm_stat_show(), drivers/block/zram/zram_drv.c."""
        numbers = (self.capture.truth_b / "sys/block/zram0/mm_stat").read_text().split()
        return int(numbers[0]), int(numbers[2])

    @property
    def knows_modules(self) -> bool:
        """Whether the kernel keeps its modules' types."""
        return self.capture.kernel != "5.10"

    @property
    def has_zswap(self) -> bool:
        """Whether the kernel was built with it."""
        return "Zswap" in meminfo(self.capture)


@pytest.fixture(scope="module", params=KERNELS)
def storage_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StorageLab:
    """The ``storage`` workload on a kernel."""
    taken = capture(request.param, "storage", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return StorageLab(taken, prog, Memory(prog))


def without_debug_info(taken: Capture) -> Program:
    prog = Program()
    prog.set_core_dump(taken.vmcore)
    attach(prog)
    return prog


@pytest.mark.parametrize("known_by", KNOWN_BY)
def test_swap_areas_are_what_the_kernel_prints(storage_lab: StorageLab, known_by: str) -> None:
    prog = storage_lab.prog
    found = swap_areas.from_memory(
        Memory(prog if known_by == "vmlinux" else without_debug_info(storage_lab.capture))
    )
    file, zram = sorted(found.by_name["swap_areas"], key=lambda row: row.kind)
    assert [(row.path, row.kind) for row in (file, zram)] == [
        ("/disk/swap-file", "file"),
        ("/dev/zram0", "partition"),
    ]
    printed = {row.path: (row.bytes, row.used_bytes, row.priority) for row in storage_lab.told}
    assert {r.path: (r.bytes, r.used_bytes, r.priority) for r in (file, zram)} == printed
    assert (file.stored_bytes, file.memory_bytes) == (None, None)
    if storage_lab.knows_modules:
        assert not found.notes
        assert (zram.stored_bytes, zram.memory_bytes) == storage_lab.zram
    else:
        assert zram.memory_bytes is None
        assert [words.partition(": ")[0] for words in found.notes] == ["/dev/zram0"]


def test_a_priority_that_is_damaged_is_not_that_of_the_list(storage_lab: StorageLab) -> None:
    prog = storage_lab.prog

    def damaged() -> list[str]:
        put(next(swap_infos(prog)).prio, 19873)
        return swap_areas.from_memory(Memory(prog)).notes

    notes = in_a_fork(damaged)
    assert any(" its priority is 19873, in the list of areas " in words for words in notes)


def test_a_whole_disk_is_no_partition(storage_lab: StorageLab) -> None:
    prog = storage_lab.prog
    disk = next(info.bdev for info in swap_infos(prog) if "zram" in str(swap_area(info).path))
    inode = container_of(disk, "struct bdev_inode", "bdev").vfs_inode.address_
    assert inode is not None and disk_name(prog, inode) == "zram0"

    def damaged() -> str:
        try:
            number = disk.bd_partno
        except AttributeError:
            number = disk.member_("__bd_flags").counter
        put(number, 3)
        with pytest.raises(ValueError, match="the number of a partition of zram0 is damaged: 3"):
            disk_name(prog, inode)
        return "damaged"

    assert in_a_fork(damaged)


@pytest.mark.parametrize("known_by", KNOWN_BY)
def test_zswap_has_what_meminfo_says(storage_lab: StorageLab, known_by: str) -> None:
    prog = storage_lab.prog
    found = swap_areas.from_memory(
        Memory(prog if known_by == "vmlinux" else without_debug_info(storage_lab.capture))
    )
    rows: list[Zswap] = found.by_name["zswap"]
    if not storage_lab.has_zswap:
        assert not rows
        return
    (row,) = rows
    told = meminfo(storage_lab.capture)
    assert (row.memory_bytes, row.stored_bytes) == (told["Zswap"] * PAGE, told["Zswapped"] * PAGE)
    parameters = storage_lab.capture.truth_b / "sys/module/zswap/parameters"
    assert row.compressor == (parameters / "compressor").read_text().strip()
    assert row.enabled is ((parameters / "enabled").read_text() == "Y\n")
    assert row.pools and row.stored_bytes > IN_ZSWAP - MIB
    assert row.memory_bytes and row.memory_bytes < row.stored_bytes / 2


def test_zram_has_what_was_written_to_it(storage_lab: StorageLab) -> None:
    stored, taken = storage_lab.zram
    assert stored > IN_ZRAM - MIB  # what a CPU has yet to put on an LRU list stays
    assert 0 < taken < stored / 2


def test_zsmalloc_is_a_class_of_its_own(storage_lab: StorageLab) -> None:
    found = memory_ledger_from_memory(storage_lab.memory)
    rows: list[LedgerRow] = found.by_name["memory_ledger"]
    checks: dict[str, LedgerCheck] = {row.counter: row for row in found.by_name["ledger_checks"]}
    # Before its page type it is known by a variable, which a kernel without these does not name:
    # its pages are then some driver's, and the kernel's counter says how many are missing.
    told = storage_lab.capture.kernel not in FUNCTIONS_ONLY
    part = "zsmalloc" if told else "pages that can be migrated"
    compressed = sum(row.pages for row in rows if row.part == part)
    # The pools of both are zsmalloc's.
    zswap = meminfo(storage_lab.capture).get("Zswap", 0)
    assert compressed * PAGE == storage_lab.zram[1] + zswap * PAGE
    assert checks["nr_zspages"].difference_pages == (0 if told else -compressed)
    assert checks["nr_file_pages"].difference_pages == 0
    for zone in (row for row in checks.values() if row.counter == "present_pages"):
        assert zone.difference_pages == 0


def test_the_swap_cache_is_told(storage_lab: StorageLab) -> None:
    rows: list[LedgerRow] = memory_ledger_from_memory(storage_lab.memory).by_name["memory_ledger"]
    cached = sum(row.pages for row in rows if "swap cache" in row.part)
    assert cached == meminfo(storage_lab.capture)["SwapCached"] >= READ_BACK - 8


def test_files_on_a_disk_have_the_pages_that_mincore_said(storage_lab: StorageLab) -> None:
    found = cached_files_from_memory(storage_lab.memory)
    assert not found.notes
    text = (storage_lab.capture.truth_a / "stages/storage").read_text()
    noted = {path: int(pages) for path, pages in map(str.split, text.splitlines())}
    files: dict[str | None, CachedFile] = {row.path: row for row in found.by_name["cached_files"]}
    assert files["/disk/written back"].pages == noted["written-back"]
    assert files["/disk/written back"].dirty_pages == 0
    assert files["/disk/dirty"].pages == files["/disk/dirty"].dirty_pages == noted["dirty"]
    deleted = files["/disk/deleted (deleted)"]
    assert deleted.pages == noted["deleted"] == DELETED
    assert deleted.deleted
    systems: list[CachedFilesystem] = found.by_name["cached_filesystems"]
    (ext4,) = (row for row in systems if row.filesystem == "ext4")
    assert (ext4.mount, ext4.id, ext4.deleted_pages) == ("/disk", "vda", DELETED)
    dirty = sum(row.dirty_pages or 0 for row in systems)
    assert dirty == meminfo(storage_lab.capture)["Dirty"]


def test_processes_have_in_swap_what_their_status_says(storage_lab: StorageLab) -> None:
    rows = processes_from_memory(storage_lab.memory).by_name["process_memory"]
    ours = {
        row.comm: row.swap_bytes
        for row in rows
        if row.swap_bytes and not row.comm.startswith("crowd")
    }
    told = {}
    for path in (storage_lab.capture.truth_b / "proc").glob("*/status"):
        text = path.read_text()
        swap = re.search(r"^VmSwap:\s+(\d+) kB$", text, re.MULTILINE)
        if swap and int(swap[1]):
            told[re.findall(r"^Name:\t(.*)$", text, re.MULTILINE)[0]] = int(swap[1]) << 10
    assert ours == told
    zswap = {"in-zswap"} if storage_lab.has_zswap else set()
    assert told.keys() == {"in-the-file", "in-zram"} | zswap


@pytest.mark.parametrize("known_by", KNOWN_BY)
def test_what_is_swapped_out_is_shared_as_smaps_rollup_says(
    storage_lab: StorageLab, known_by: str
) -> None:
    prog = storage_lab.prog
    found = shares_from_memory(
        Memory(prog if known_by == "vmlinux" else without_debug_info(storage_lab.capture))
    )
    assert not found.notes
    rows: list[ProcessShare] = found.by_name["process_shares"]
    for row in rows:
        text = storage_lab.capture.truth_b / f"proc/{row.pid}/smaps_rollup"
        told = read_smaps_rollup(text.read_text(), row.pid, row.comm)
        assert row.pss_swap_bytes is not None
        assert row.pss_swap_bytes >> 10 << 10 == told.pss_swap_bytes, row
    of = {row.comm: row.pss_swap_bytes for row in rows}
    each = [row.comm for row in rows if row.comm.startswith("crowd")]
    assert len(each) == 1 + sum(CROWD.values())
    page = CROWD_PAGES // 3 * PAGE
    many, some = 1 + CROWD["crowd-few"] + CROWD["crowd-many"], 1 + sum(CROWD.values())
    assert of["crowd-some"] == page // 2 // some
    everyones = page // 2 * (1 / many + 1 / some)
    assert of["crowd-many"] == pytest.approx(everyones, abs=1)
    assert of["crowd-few"] == pytest.approx(everyones + page / 6, abs=1)
    assert of["crowd"] == pytest.approx(everyones + page / 6 + page, abs=1)


def test_counts_of_swap_slots_that_cannot_be_read_are_said(storage_lab: StorageLab) -> None:
    prog = open_target(storage_lab.capture.vmcore, [storage_lab.capture.vmlinux])
    info = max(swap_infos(prog), key=lambda info: int(info.prio.value_()))  # zram
    counts = info.swap_map if hasattr(info, "swap_map") else info.cluster_info

    def missing(address: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("no memory here", address)

    # Half of the area's slots, one of which is in use by somebody, if they are bytes.
    size = int(info.max.value_()) // 2 if hasattr(info, "swap_map") else 64
    prog.add_memory_segment(counts.value_(), size, missing)
    found = shares_from_memory(Memory(prog))
    assert any("swapped pages could not be read" in note for note in found.notes)
    assert found.unreadable_bytes
    whole = shares_from_memory(storage_lab.memory).by_name["process_shares"]
    before, after = (
        sum(row.pss_swap_bytes or 0 for row in rows)
        for rows in (whole, found.by_name["process_shares"])
    )
    assert 0 < after < before


class TestAModulesTypes:
    @pytest.mark.btf
    def test_are_those_that_the_kernels_are_not(self, storage_lab: StorageLab) -> None:
        if not storage_lab.knows_modules:
            with pytest.raises(LookupError, match="btf_modules"):
                module_types(storage_lab.prog, "zram")
            return
        types = module_types(storage_lab.prog, "zram")
        zram = types.struct("zram")
        assert zram is not None and zram.has_member("stats")
        # A member's type is the kernel's, by its number there.
        assert zram.member("disk").type.type.tag == "gendisk"
        with pytest.raises(LookupError, match="no BTF of a module nowhere"):
            module_types(storage_lab.prog, "nowhere")

    @pytest.mark.btf
    def test_are_found_by_name_where_the_kernel_has_none(self, storage_lab: StorageLab) -> None:
        prog = Program()
        prog.set_core_dump(storage_lab.prog.core_dump_path)
        attach(prog)
        with pytest.raises(LookupError, match="could not find 'struct nowhere'"):
            prog.type("struct nowhere")
        if storage_lab.knows_modules:
            assert prog.type("struct zram").has_member("stats")
            # What the kernel has is the kernel's.
            assert prog.type("struct gendisk").size == storage_lab.prog.type("struct gendisk").size

    def test_are_not_believed_of_what_is_no_such_device(
        self, storage_lab: StorageLab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not storage_lab.knows_modules:
            return
        prog = storage_lab.prog
        disks = [info.bdev.bd_disk.read_() for info in swap_infos(prog)]
        (disk,) = (disk for disk in disks if zram_of(disk) is not None)
        other = Object(prog, "struct gendisk", address=disk.value_())
        monkeypatch.setattr(swap_areas, "Object", lambda prog, type_, address: Disguised(other))
        with pytest.raises(ValueError, match="no struct zram of it"):
            zram_of(disk)


@pytest.mark.any_kernel
@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("dirty_ratelimit", r"1,099,511,627,776 pages a second are written"),
        ("stat", r"[0-9,]+ pages were written back, by all nodes [0-9,]+"),
    ],
)
def test_a_device_that_has_written_more_than_can_be_is_told_of(
    storage_lab: StorageLab, member: str, words: str
) -> None:
    prog = opened(storage_lab.capture)
    head = prog["bdi_list"].address_of_()
    devices = list_for_each_entry("struct backing_dev_info", head, "bdi_list")
    written = prog.constant("WB_WRITTEN")
    wb = next(each.wb for each in devices if each.wb.stat[written].count)
    field = wb.dirty_ratelimit if member == "dirty_ratelimit" else wb.stat[written].count

    def notes(value: int) -> list[str]:
        put(field, value)
        return task_waits.from_memory(Memory(prog)).notes

    assert in_a_fork(lambda: notes(field.value_())) == []
    (said,) = in_a_fork(lambda: notes(1 << 40))
    assert re.search(words, said), said


class Disguised:
    """What another struct would read as."""

    def __init__(self, disk: Object) -> None:
        self.disk = disk.part0


@pytest.mark.parametrize("known_by", KNOWN_BY)
def test_what_is_dirty_by_device_is_what_the_kernel_counts(
    storage_lab: StorageLab, known_by: str
) -> None:
    """Nothing else is written to than the disk and, by its own file, zram's device."""
    prog = storage_lab.prog if known_by == "vmlinux" else without_debug_info(storage_lab.capture)
    rows = task_waits.from_memory(Memory(prog)).by_name["writeback_devices"]
    printed = (storage_lab.capture.truth_b / "proc/vmstat").read_text()
    vmstat = {row.name: row.value for row in read_vmstat(printed)}
    assert sum(row.dirty_pages for row in rows) == vmstat["nr_dirty"] > 0
    assert sum(row.writeback_pages for row in rows) == vmstat["nr_writeback"]
    assert sum(row.dirtied_pages for row in rows) == vmstat["nr_dirtied"]
    disk = rows[0]
    assert disk.file_systems.startswith("ext4 of /dev/vda at /disk (")
    assert disk.dirtied_pages - disk.written_pages == disk.dirty_pages
    assert disk.oldest_seconds is not None and disk.oldest_seconds < 3600 and not disk.exceeded
