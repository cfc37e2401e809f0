# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page tables of every process of a real kernel, against what that kernel printed of them, and
against how they were made (guest/workload_tables.c).
"""

import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from capture import Capture, capture
from conftest import KERNELS, Lab
from drgn import FaultError, Object, Program, ProgramFlags
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import for_each_vma, virt_to_phys, vma_find
from drgn.helpers.linux.pid import find_task, for_each_task
from forked import in_a_fork, opened
from named_damage import say, vm_flags

from mmscope.drgn.free.zones import zones
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.page_tables import page_table_scan
from mmscope.drgn.page_tables.page_table_entries import (
    REMEMBERED,
    new_walk,
    process_roots,
    walk_page_tables,
)
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.page_tables.page_table_scan import (
    DETAILED,
    PageTableScan,
    scan_page_tables,
    users_apart,
)
from mmscope.drgn.page_tables.page_tables import (
    dontneed_frees_tables,
    exit_costs,
    page_table_details,
    page_table_occupancy,
    page_table_regions,
    page_tables,
    read_status,
)
from mmscope.drgn.page_tables.swap_types import KINDS, NONE, PAGE, SPECIAL, entry_kinds, swap_kinds
from mmscope.drgn.processes import address_spaces as spaces_of
from mmscope.drgn.processes.address_spaces import address_spaces
from mmscope.drgn.processes.vm_areas import VM_HUGETLB, VM_PFNMAP, VM_SHARED, read_vm_areas
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES, Gaps
from mmscope.drgn.reading.mem_sections import memory_pages
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

pytestmark = pytest.mark.any_page

# Of the pages that were to be swapped out: some are not, or come back.
SWAPPED = 0.94
HOSTILE = '<b>thr\x1b[1m;"&'


def both(scan: PageTableScan) -> list[SimpleNamespace]:
    """Both tables about each process in one."""
    pairs = zip(page_tables(scan), page_table_details(scan), strict=True)
    return [SimpleNamespace(**(asdict(row) | asdict(detail))) for row, detail in pairs]


@dataclass(frozen=True)
class TablesLab:
    """A frozen guest with page tables of every shape."""

    capture: Capture
    prog: Program
    scan: PageTableScan
    rows: list[SimpleNamespace]  # of both tables
    made: dict[tuple[str, str], tuple[int, int]]  # (process, what) to (address, count)

    @property
    def page(self) -> int:
        """Bytes of a page, and of a table."""
        return int(self.prog["PAGE_SIZE"].value_())

    @property
    def slots(self) -> int:
        """Entries in a table."""
        return self.page // 8

    @property
    def huge(self) -> int:
        """What an entry of a PMD table maps."""
        return self.page * self.slots

    @property
    def short(self) -> bool:
        """
        Whether kswapd swaps out what it likes: the workload takes two thirds of memory in huge
        pages of 32 MiB, and sets a size of THP, at which the kernel raises min_free_kbytes to 5 %
        of it (set_recommended_min_free_kbytes()).
        """
        return self.page == 16384

    def row(self, comm: str) -> SimpleNamespace:
        (found,) = (row for row in self.rows if row.comm == comm)
        return found

    def zeros(self, comm: str) -> int:
        """Entries of the zero page beside those that it has from init, as who does nothing has."""
        zeros: int = self.row(comm).zero_ptes - self.row("plain").zero_ptes
        return zeros

    def said(self, set_: Path, name: str) -> dict[int, str]:
        """A file of /proc/PID or of the one live thread of a process without leader, by PID."""
        found = {}
        for path in set_.glob(f"proc/[0-9]*/{name}"):
            found[int(path.parts[-2])] = path.read_text()
        for path in set_.glob(f"proc/[0-9]*/task/[0-9]*/{name}"):
            found[int(path.parts[-4])] = path.read_text()
        return found

    def tables_at(self, comm: str, address: int, size: int) -> Counter[str]:
        """How many tables of each level, and entries of each kind, there are for a range."""
        form = page_table_format(self.prog)
        kinds = swap_kinds(self.prog)
        pid = self.row(comm).pid
        mm = next(t.mm for t in for_each_task(self.prog) if t.tgid == pid and t.mm)
        walk = new_walk(form, 1)
        found: Counter[str] = Counter()
        roots = process_roots(self.prog, np.array([mm.pgd.value_()], np.uint64))
        for chunk in walk_page_tables(
            self.prog, form, roots, walk, start=address, end=address + size
        ):
            found[form.levels[chunk.level].name] += len(chunk)
            if chunk.level == form.last:
                flat = chunk.entries.ravel()
                # No page of a child is the zero page unless it is special.
                some = entry_kinds(form, kinds, np.zeros(0, np.uint64), flat)
                counts = np.bincount(some, minlength=KINDS)
                found["page"] += int(counts[PAGE])
                found["special"] += int(counts[SPECIAL])
                found["none"] += int(counts[NONE])
        return found


@pytest.fixture(scope="module", params=KERNELS)
def lab_of_tables(request: pytest.FixtureRequest, say) -> TablesLab:  # type: ignore[no-untyped-def]
    taken = capture(request.param, "tables", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    scan = scan_page_tables(prog)
    console = taken.console.read_text(errors="replace")
    made = {
        (process, what): (int(address, 16), int(count))
        for process, what, address, count in re.findall(
            r"\] tables: (\S+) (\S+) (0x[0-9a-f]+) (\d+)", console
        )
    }
    return TablesLab(taken, prog, scan, both(scan), made)


def has_markers(taken: Capture) -> bool:
    """Since v5.19; on arm64 with userfaultfd's write protection or guards, which 6.1 has not."""
    return taken.kernel not in ("5.10", "arm64-6.1")


def fields(text: str) -> dict[str, int]:
    """The sums, in bytes, of each line of an smaps."""
    sums: Counter[str] = Counter()
    for name, value in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE):
        sums[name] += int(value) << 10
    return sums


def test_users_of_a_shared_table_are_those_that_were_found(lab_of_tables: TablesLab) -> None:
    tables = lab_of_tables.scan.hugetlb_tables
    assert users_apart(lab_of_tables.scan) == 0
    assert tables.total() > len(tables)  # some are shared
    ((frame, others), users) = tables.most_common(1)[0]
    one_more = Counter({(frame, others + 1): users})
    assert users_apart(replace(lab_of_tables.scan, hugetlb_tables=one_more)) == 1


@pytest.mark.brief
def test_nothing_is_unread_unaccounted_or_damaged(lab_of_tables: TablesLab) -> None:
    scan = lab_of_tables.scan
    assert scan.gaps.bytes == 0
    assert not scan.spaces.broken_off and not scan.damaged_vmas
    assert not any(scan.numbers.values())
    assert [(row.comm, row.unaccounted_tables, row.bad_entries) for row in lab_of_tables.rows] == [
        (row.comm, 0, 0) for row in lab_of_tables.rows
    ]


def test_every_process_and_no_kernel_thread_has_a_row(lab_of_tables: TablesLab) -> None:
    said = lab_of_tables.said(lab_of_tables.capture.truth_b, "status")
    assert 2 in said and read_status(said.pop(2)) is None  # kthreadd
    by_pid = {row.pid: row for row in lab_of_tables.rows}
    sharers = set(said) - set(by_pid)
    assert [read_status(said[pid]).comm for pid in sharers] == ["the-sharer"]  # type: ignore[union-attr]
    assert set(by_pid) <= set(said)
    assert len(by_pid) >= 15


@pytest.mark.brief
def test_sizes_are_those_of_proc_pid_status(lab_of_tables: TablesLab) -> None:
    said = lab_of_tables.said(lab_of_tables.capture.truth_b, "status")
    for row in lab_of_tables.rows:
        printed = read_status(said[row.pid])
        assert printed is not None
        assert row.comm == printed.comm
        assert row.pgtables_bytes == printed.pgtables_bytes
        # The kernel's count leaves out what came with a PMD table that was shared already.
        shared = 6 * lab_of_tables.huge if row.comm == "hugetlb-2" else 0
        assert row.hugetlb_bytes == (printed.hugetlb_bytes or 0) + shared
        if row.comm != "leaderless":  # its file is a thread's
            (threads,) = re.findall(r"^Threads:\t(\d+)$", said[row.pid], re.MULTILINE)
            assert row.threads == int(threads) + row.processes - 1
        counted = (row.pte_tables or 0) + (row.pmd_tables or 0) + (row.pud_tables or 0)
        assert (
            lab_of_tables.page * (counted + (row.deposited_pte_tables or 0))
            == printed.pgtables_bytes
        )
        swap = re.search(r"^VmSwap:\s+(\d+) kB$", said[row.pid], re.MULTILINE)
        assert swap is not None and (row.swap_ptes or 0) * lab_of_tables.page == int(swap[1]) << 10


@pytest.mark.brief
def test_what_is_mapped_is_the_sum_of_smaps(lab_of_tables: TablesLab) -> None:
    said = lab_of_tables.said(lab_of_tables.capture.truth_b, "smaps")
    for row in lab_of_tables.rows:
        sums = fields(said[row.pid])
        resident = row.resident_bytes or 0
        if row.comm == "poisoned":  # for smaps a lost page is resident, for VmRSS it is not
            assert sums["Rss"] in (
                resident,
                resident + lab_of_tables.page * (row.poisoned_ptes or 0),
            )
        elif row.comm == "huge" and lab_of_tables.capture.series == "6.1":
            # Its smaps leaves out huge pages of PROT_NONE (follow_trans_huge_pmd()).
            assert (
                sums["Rss"]
                == resident - lab_of_tables.huge * lab_of_tables.made["huge", "huge_protnone"][1]
            )
            continue
        else:
            assert sums["Rss"] == resident, row.comm
        # What is swapped out of a shared mapping, or of the file in memory that init runs from, has
        # no entry in the page table. Those are held against VmSwap above.
        entries = lab_of_tables.page * (row.swap_ptes or 0)
        assert sums["Swap"] == entries or (lab_of_tables.short and sums["Swap"] > entries)
        huge = sums["AnonHugePages"] + sums["ShmemPmdMapped"] + sums["FilePmdMapped"]
        assert huge == lab_of_tables.huge * (row.huge_pmds or 0)
        assert sums["Shared_Hugetlb"] + sums["Private_Hugetlb"] == row.hugetlb_bytes
        # Special mappings ([vvar]) are in smaps, and VMAs of their own.
        assert sums["Size"] == row.mapped_bytes
        assert said[row.pid].count("VmFlags:") == row.vmas


def test_the_sums_of_smaps_are_not_all_zero(lab_of_tables: TablesLab) -> None:
    everything = Counter()  # type: ignore[var-annotated]
    for row in lab_of_tables.rows:
        everything.update({k: v for k, v in vars(row).items() if isinstance(v, int)})
    always = ("present_ptes", "zero_ptes", "huge_pmds", "huge_zero_pmds", "hugetlb_bytes")
    for name in (*always, "empty_pte_tables", "shared_pmd_tables"):
        assert everything[name] > 0, name
    assert (everything["marker_ptes"] > 0) is has_markers(lab_of_tables.capture)


def test_sparse_tables_are_as_they_were_made(lab_of_tables: TablesLab) -> None:
    row = lab_of_tables.row("sparse")
    for what, each in (
        ("written", {"page": 1}),
        ("zero", {"special": 1}),
        ("full", {"page": lab_of_tables.slots}),
    ):
        address, count = lab_of_tables.made["sparse", what]
        found = lab_of_tables.tables_at("sparse", address, count * lab_of_tables.huge)
        assert found["pte"] == count
        for kind, number in each.items():
            assert found[kind] == count * number
        assert (
            sum(found[kind] for kind in ("page", "special", "none")) == lab_of_tables.slots * count
        )
    assert lab_of_tables.zeros("sparse") == lab_of_tables.made["sparse", "zero"][1]
    occupied = {
        (o.least, o.most): o.tables
        for o in page_table_occupancy(lab_of_tables.scan)
        if o.pid == row.pid and o.level == "pte"
    }
    assert occupied[1, 1] >= 600 and occupied[lab_of_tables.slots, lab_of_tables.slots] >= 3
    assert sum(occupied.values()) == row.pte_tables


@pytest.mark.brief
def test_huge_pages_have_their_tables_deposited(lab_of_tables: TablesLab) -> None:
    row, made = lab_of_tables.row("huge"), lab_of_tables.made
    zero = made["huge", "huge_zero"][1]
    # Of the last three one was split, and took its table along.
    huge = made["huge", "huge"][1] + made["huge", "huge_protnone"][1] + 3 - 1
    # To swap one out is to split it.
    assert row.huge_pmds == huge or (lab_of_tables.short and 0 < row.huge_pmds < huge)
    assert row.huge_zero_pmds == zero
    assert row.deposited_pte_tables == zero + row.huge_pmds
    address, count = made["huge", "huge_zero"]
    assert lab_of_tables.tables_at("huge", address, count * lab_of_tables.huge)["pte"] == 0
    address, _ = made["huge", "huge_split"]
    split = lab_of_tables.tables_at("huge", address, lab_of_tables.huge)["page"]
    assert split == lab_of_tables.slots - 1 or (lab_of_tables.short and split < lab_of_tables.slots)


def test_breadth_first_faults_cost_what_the_arithmetic_says(lab_of_tables: TablesLab) -> None:
    address, faults = lab_of_tables.made["breadth", "faults"]
    page, small = lab_of_tables.page, lab_of_tables.page == 4096
    entries, puds, pmds = 253, 16 if small else 1, 3 if small else 16
    assert faults == entries * puds * pmds
    size = lab_of_tables.huge * lab_of_tables.slots * (lab_of_tables.slots if small else 1)
    found = lab_of_tables.tables_at("breadth", address, entries * size)
    # PUD tables: of each entry of the PGD, or the one that has all of them.
    upper = entries if small else 1
    assert (found["pud"], found["pmd"], found["pte"]) == (upper, entries * puds, faults)
    tables = page * (found["pud"] + found["pmd"] + found["pte"])
    if small:
        # 12 KiB for each of the first 253 faults, 8 for those that bring a new PUD entry, then 4.
        assert tables == 12288 * entries + 8192 * entries * (puds - 1) + 4096 * entries * puds * (
            pmds - 1
        )
    row = lab_of_tables.row("breadth")
    assert lab_of_tables.zeros("breadth") == faults
    assert row.pgtables_bytes > (50 if small else 10) * (row.resident_bytes or 0)


def test_what_madvise_gives_back_and_what_it_does_not(lab_of_tables: TablesLab) -> None:
    made = lab_of_tables.made

    def tables(what: str) -> Counter[str]:
        address, count = made["given-back", what]
        return lab_of_tables.tables_at("given-back", address, count * lab_of_tables.huge)

    reclaims = lab_of_tables.capture.series not in ("5.10", "6.1", "6.12")
    assert dontneed_frees_tables(lab_of_tables.prog) == reclaims
    assert tables("dontneed")["pte"] == (0 if reclaims else 100)
    assert tables("huge_dontneed")["pte"] == 0
    assert lab_of_tables.row("given-back").deposited_pte_tables == 0
    assert tables("free")["pte"] == tables("free")["special"] == 40
    assert (
        tables("pages_dontneed")["pte"] == 50
        and tables("pages_dontneed")["none"] == 50 * lab_of_tables.slots
    )
    empty = lab_of_tables.row("given-back").empty_pte_tables
    assert empty == 50 + (0 if reclaims else 100)


@pytest.mark.parametrize("comm", ["free", "free-thp", "dontneed", "dontneed-thp"])
def test_who_gives_back_what_it_has_read_keeps_its_tables_or_not(
    lab_of_tables: TablesLab, comm: str
) -> None:
    """
    MADV_FREE keeps tables, with huge pages or without; MADV_DONTNEED gives back those behind huge
    pages, and others on kernels that can.
    """
    address, regions = lab_of_tables.made[comm, "regions"]
    found = lab_of_tables.tables_at(comm, address, regions * lab_of_tables.huge)
    row, thp = lab_of_tables.row(comm), comm.endswith("-thp")
    printed = read_status(lab_of_tables.said(lab_of_tables.capture.truth_b, "status")[row.pid])
    assert printed is not None and printed.pgtables_bytes is not None
    reclaims = dontneed_frees_tables(lab_of_tables.prog)
    kept = {"free": True, "free-thp": True, "dontneed": not reclaims, "dontneed-thp": False}[comm]
    # What the program has without them is less than half of that.
    assert (printed.pgtables_bytes >= regions * lab_of_tables.page) == kept
    assert found["pte"] == (regions if kept and not thp else 0)
    assert row.deposited_pte_tables == (regions if kept and thp else 0)


@pytest.mark.brief
def test_pages_that_may_not_be_touched_are_mapped_all_the_same(lab_of_tables: TablesLab) -> None:
    made = lab_of_tables.made
    address, count = made["protected", "protnone"]
    assert lab_of_tables.tables_at("protected", address, lab_of_tables.huge)["page"] == count == 30
    # An inverted address is still the zero page's.
    assert lab_of_tables.zeros("protected") == made["protected", "protnone_zero"][1]


@pytest.mark.brief
def test_entries_that_map_nothing_are_told_apart(lab_of_tables: TablesLab) -> None:
    made = lab_of_tables.made
    markers = made["markers", "guard"][1] + made["markers", "uffd_wp"][1]
    assert lab_of_tables.row("markers").marker_ptes == markers
    assert (markers > 0) is has_markers(lab_of_tables.capture)
    assert lab_of_tables.row("poisoned").poisoned_ptes == made["poisoned", "hwpoison"][1]
    for row in lab_of_tables.rows:
        assert row.device_ptes == 0
        assert row.comm == "swapped" or row.swap_ptes == 0 or lab_of_tables.short
    wanted, most = made["swapped", "swap"][1], 4096 if lab_of_tables.short else 3072
    swapped = lab_of_tables.row("swapped").swap_ptes or 0
    assert wanted == 3072 and SWAPPED * wanted <= swapped <= most


def test_a_shared_address_space_counts_once(lab_of_tables: TablesLab) -> None:
    row = lab_of_tables.row("vforked")
    assert (row.processes, row.threads) == (2, 2)
    assert not [row for row in lab_of_tables.rows if row.comm == "the-sharer"]
    address, count = lab_of_tables.made["vforked", "written"]
    assert lab_of_tables.tables_at("vforked", address, count * lab_of_tables.huge)["pte"] == count
    threads = lab_of_tables.row(HOSTILE)
    assert (threads.processes, threads.threads) == (1, 5)
    assert (lab_of_tables.row("leaderless").pte_tables or 0) >= 10


def test_shared_pmd_tables_are_in_both_processes(lab_of_tables: TablesLab) -> None:
    for comm in ("hugetlb-1", "hugetlb-2"):
        row = lab_of_tables.row(comm)
        assert row.shared_pmd_tables == 1
        assert row.hugetlb_bytes == 8 * lab_of_tables.huge
        assert (row.huge_pmds, row.deposited_pte_tables) == (0, 0)
    assert all(
        row.shared_pmd_tables == 0 for row in lab_of_tables.rows if "hugetlb" not in row.comm
    )


def test_exit_slots_are_those_of_the_mappings_that_have_tables(lab_of_tables: TablesLab) -> None:
    prog, form = lab_of_tables.prog, page_table_format(lab_of_tables.prog)
    checked = 0
    for row in lab_of_tables.rows:
        if row.comm == "breadth":
            continue
        mm = next(t.mm for t in for_each_task(prog) if t.tgid == row.pid and t.mm)
        walk = new_walk(form, 1)
        roots = process_roots(prog, np.array([mm.pgd.value_()], np.uint64))
        bases = {
            base
            for chunk in walk_page_tables(prog, form, roots, walk)
            if chunk.level == form.last
            for base in chunk.addresses.tolist()
        }
        slots = reaped = 0
        for vma in for_each_vma(mm):
            start, end, flags = (
                vma.member_(name).value_() for name in ("vm_start", "vm_end", "vm_flags")
            )
            for base in range(start & -lab_of_tables.huge, end, lab_of_tables.huge):
                if base in bases:
                    here = (
                        min(end, base + lab_of_tables.huge) - max(start, base)
                    ) // lab_of_tables.page
                    slots += here
                    shared = flags & VM_SHARED and vma.vm_ops
                    if not (shared or flags & (VM_HUGETLB | VM_PFNMAP)):
                        reaped += here
        assert (row.exit_pte_slots, row.reaped_pte_slots) == (slots, reaped), row.comm
        checked += slots > 0
    assert checked > 10


def test_an_exit_costs_what_its_tables_do(lab_of_tables: TablesLab) -> None:
    rows, details = page_tables(lab_of_tables.scan), page_table_details(lab_of_tables.scan)
    costs = {cost.comm: cost for cost in exit_costs(rows, details, dontneed_frees_tables=False)}
    assert len(costs) == len(lab_of_tables.rows)
    # All of the tables are walked and freed, and next to nothing else.
    breadth, row = costs["breadth"], lab_of_tables.row("breadth")
    assert breadth.pte_slots > lab_of_tables.slots * lab_of_tables.made["breadth", "faults"][1]
    assert breadth.tables == 1 + row.p4d_tables + row.pgtables_bytes // lab_of_tables.page
    assert breadth.tables_seconds > 0.9 * breadth.exit_seconds
    assert breadth.oom_seconds > 1.3 * breadth.exit_seconds
    # Huge pages spare the walk: more than 300 of them, and hardly a slot.
    huge = costs["huge"]
    assert huge.deposited_tables > 300 and huge.pte_slots < 5 * lab_of_tables.slots
    assert huge.oom_seconds < 1.1 * huge.exit_seconds


def test_regions_hold_what_the_process_holds(lab_of_tables: TablesLab) -> None:
    regions = page_table_regions(lab_of_tables.scan)
    detailed = {region.pid for region in regions}
    assert len(detailed) == min(len(lab_of_tables.rows), DETAILED)
    for row in lab_of_tables.rows:
        if row.pid not in detailed:
            continue
        here = [region for region in regions if region.pid == row.pid]
        assert 0 < len(here) <= 24
        assert sum(region.mapped_bytes for region in here) == row.mapped_bytes
        assert sum(region.vmas for region in here) == row.vmas
        assert sum(region.pte_tables for region in here) == row.pte_tables
        resident = sum(region.small_bytes + region.huge_bytes for region in here)
        assert resident == row.resident_bytes
        assert sum(region.hugetlb_bytes for region in here) == row.hugetlb_bytes
        assert sum(region.zero_bytes for region in here) == lab_of_tables.page * (
            row.zero_ptes or 0
        )
        assert sum(region.huge_zero_bytes for region in here) == lab_of_tables.huge * (
            row.huge_zero_pmds or 0
        )
        assert sum(region.swap_bytes for region in here) == lab_of_tables.page * (
            row.swap_ptes or 0
        )
        bounds = [(int(region.start, 16), int(region.end, 16)) for region in here]
        assert bounds == sorted(bounds)


@pytest.mark.brief
def test_vm_areas_are_those_of_a_walk(lab_of_tables: TablesLab) -> None:
    prog, gaps = lab_of_tables.prog, Gaps()
    spaces = address_spaces(prog, gaps)
    areas = read_vm_areas(prog, spaces.columns["tree"], gaps)
    expected = []
    for at, process in enumerate(spaces.processes):
        mm = next(t.mm for t in for_each_task(prog) if t.tgid == process.pid and t.mm)
        for vma in for_each_vma(mm):
            values = (vma.member_(n).value_() for n in ("vm_start", "vm_end", "vm_flags"))
            expected.append((at, *values, not vma.vm_ops))
    columns = (areas.owners, areas.starts, areas.ends, areas.flags, areas.anonymous)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected
    assert len(expected) > 280 and not areas.damaged and not gaps.bytes


@pytest.mark.parametrize(("has_enum", "no_enum"), [(42, 63), (60, 60)], ids=["sealed", "no flag"])
def test_a_sealed_vma_is_as_good_as_any_and_one_with_no_flags_bit_is_not(
    lab_of_tables: TablesLab, has_enum: int, no_enum: int
) -> None:
    """VM_SEALED (include/linux/mm.h) is bit 63 from v6.10 to v6.18, and then VMA_SEALED_BIT."""
    prog = opened(lab_of_tables.capture)
    bit = has_enum if constant(prog, "VMA_READ_BIT", -1) == 0 else no_enum
    mm = find_task(prog, 1).mm
    vma = vma_find(mm, mm.start_code)
    trees = address_spaces(prog, Gaps()).columns["tree"]

    def damaged() -> int:
        say(vm_flags(vma), vma.vm_flags.value_() | 1 << bit)
        return read_vm_areas(prog, trees, Gaps()).damaged

    assert in_a_fork(damaged) == (bit == 60)


class Running:
    """A mock: a vmcore that calls itself a kernel that runs, as which it is read by other rules."""

    def __init__(self, prog: Program) -> None:
        self._prog = prog
        self.flags = prog.flags | ProgramFlags.IS_LIVE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prog, name)


def test_a_node_that_leads_nowhere_is_missing_from_a_dump_and_has_moved_in_a_live_kernel(
    lab_of_tables: TablesLab,
) -> None:
    prog = lab_of_tables.prog
    trees = address_spaces(prog, Gaps()).columns["tree"]
    whole = read_vm_areas(prog, trees, Gaps())
    lost = trees.copy()
    lost[0] = np.uint64(0x1000_0000_0000 | (int(lost[0]) & 0xFF))  # in nobody's memory
    of_dump, of_live = Gaps(), Gaps()
    dump = read_vm_areas(prog, lost, of_dump)
    live = read_vm_areas(cast(Program, Running(prog)), lost, of_live)
    assert (dump.damaged, live.damaged, of_live.bytes) == (0, 1, 0)
    assert of_dump.bytes > 0
    for areas in (dump, live):
        assert areas.owners.tolist() == whole.owners[whole.owners != 0].tolist()


def test_address_spaces_are_found_once_in_a_dump_and_each_time_in_a_live_kernel(
    lab_of_tables: TablesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There processes have ended when the next section asks, and their memory is another's."""
    prog, asked = lab_of_tables.prog, []
    found = address_spaces(prog, Gaps())
    monkeypatch.setattr(spaces_of, "address_spaces", lambda *given: asked.append(given) or found)
    for of, times in ((prog, 1), (cast(Program, Running(prog)), 2)):
        asked.clear()
        memory = Memory(of)
        assert all(spaces_of.kept_address_spaces(memory, Gaps()) is found for _ in range(2))
        assert len(asked) == times


def test_five_levels(lab: Lab) -> None:
    """The other captures are of a processor with five levels of page tables."""
    # Which Debian built without CONFIG_X86_5LEVEL, and for arm64 with addresses of 48 bits. With
    # pages of 16 KiB four levels are enough for 52.
    five = (
        lab.capture.kernel not in ("5.10", "arm64-6.1") and lab.prog["PAGE_SIZE"].value_() == 4096
    )
    assert len(page_table_format(lab.prog).levels) == (5 if five else 4)
    scan = scan_page_tables(lab.prog)
    rows = both(scan)
    assert {row.pid for row in rows} >= {1} and len(rows) >= 2
    assert all(row.p4d_tables == five for row in rows)
    assert [(row.unaccounted_tables, row.bad_entries) for row in rows] == [(0, 0)] * len(rows)
    assert sum(row.pgtables_bytes for row in rows) > 3 << 20
    assert find_task(lab.prog, 1).mm.pgtables_bytes.counter.value_() in {
        row.pgtables_bytes for row in rows
    }


# Damage: laid over the memory of the same vmcore, so that what is undamaged must stay as it was.


def damaged(lab: TablesLab, pages: dict[int, bytes | None]) -> Program:
    """The vmcore with other physical memory; pages that are None cannot be read."""
    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])
    for page, data in pages.items():

        def read(
            address: int, count: int, offset: int, physical: bool, data: bytes | None = data
        ) -> bytes:
            if data is None:
                raise FaultError("no memory here", address)
            return data[offset:][:count]

        prog.add_memory_segment(page, lab.page if data is None else len(data), read, physical=True)
    return prog


def others(rows: list[SimpleNamespace], comm: str) -> list[SimpleNamespace]:
    return [row for row in rows if row.comm != comm]


def tables_of(lab: TablesLab, comm: str) -> dict[str, list[int]]:
    """The physical addresses of a process's tables by level."""
    form = page_table_format(lab.prog)
    mm = next(t.mm for t in for_each_task(lab.prog) if t.tgid == lab.row(comm).pid and t.mm)
    found: dict[str, list[int]] = {}
    roots = process_roots(lab.prog, np.array([mm.pgd.value_()], np.uint64))
    for chunk in walk_page_tables(lab.prog, form, roots, new_walk(form, 1)):
        found.setdefault(form.levels[chunk.level].name, []).extend(chunk.frames.tolist())
    return found


def test_a_tree_that_leads_back_to_its_root(lab_of_tables: TablesLab) -> None:
    form = page_table_format(lab_of_tables.prog)
    # No entry can lead to a root that is smaller than a page.
    (root,) = tables_of(lab_of_tables, "sparse")[
        "pgd" if form.slots(0) == form.slots(1) else form.levels[1].name
    ]
    entries = np.full(lab_of_tables.slots, root | form.table[1], np.uint64).tobytes()
    scan = scan_page_tables(damaged(lab_of_tables, {root: entries}))
    rows = both(scan)
    assert others(rows, "sparse") == others(lab_of_tables.rows, "sparse")
    (row,) = (row for row in rows if row.comm == "sparse")
    assert (
        scan.numbers["repeated_tables"] > 500
        and (row.bad_entries or 0) > 500
        and row.unaccounted_tables
    )


@pytest.mark.any_kernel
def test_tables_full_of_garbage(lab_of_tables: TablesLab) -> None:
    dice = np.random.default_rng(7)
    pages: dict[int, bytes | None] = {
        frame: (dice.integers(0, 1 << 34, lab_of_tables.slots, np.uint64) | np.uint64(1)).tobytes()
        for frame in tables_of(lab_of_tables, "sparse")["pud"]
    }
    scan = scan_page_tables(damaged(lab_of_tables, pages))
    rows = both(scan)
    assert others(rows, "sparse") == others(lab_of_tables.rows, "sparse")
    (row,) = (row for row in rows if row.comm == "sparse")
    assert row.unaccounted_tables and row.bad_entries
    assert sum(row.pte_tables or 0 for row in rows) < 60_000


@pytest.mark.any_kernel
def test_tables_that_are_not_in_the_dump(lab_of_tables: TablesLab) -> None:
    missing = tables_of(lab_of_tables, "breadth")["pte"][100:150]
    scan = scan_page_tables(damaged(lab_of_tables, dict.fromkeys(missing)))
    rows = both(scan)
    assert others(rows, "breadth") == others(lab_of_tables.rows, "breadth")
    (row,) = (row for row in rows if row.comm == "breadth")
    whole = lab_of_tables.row("breadth")
    # They are known to be there, but not what is in them.
    assert (row.pte_tables, row.unaccounted_tables) == (whole.pte_tables, 0)
    assert (row.zero_ptes, row.bad_entries) == ((whole.zero_ptes or 0) - 50, 50)
    assert scan.gaps.bytes == 50 * lab_of_tables.page


def cover(prog: Program, address: int, value: int) -> None:
    """Put another number over one of the kernel's."""

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        return value.to_bytes(8, "little")[offset : offset + count]

    prog.add_memory_segment(address, 8, read, physical=False)


def test_without_any_vma_tables_are_counted(lab_of_tables: TablesLab) -> None:
    prog = damaged(lab_of_tables, {})
    for mm in {task.mm.value_(): task.mm for task in for_each_task(prog) if task.mm}.values():
        root = mm.mm_mt.ma_root if hasattr(mm, "mm_mt") else mm.mm_rb.rb_node
        assert root.address_ is not None
        cover(prog, root.address_, 0)
    scan = scan_page_tables(prog)
    assert not scan.sums["vmas"].any()
    assert (scan.sums["tables"] == lab_of_tables.scan.sums["tables"]).all()
    assert (scan.sums["kinds"] == lab_of_tables.scan.sums["kinds"]).all()
    section, _ = run_section(SECTIONS["page_tables"], Memory(prog))
    assert section.status in ("ok", "partial"), section


def wood(lab: TablesLab) -> tuple[Program, np.ndarray]:
    """Every slot of every table of a process leads to some table; the kernel's count is damaged."""
    form = page_table_format(lab.prog)
    frames = np.concatenate([np.array(f, np.uint64) for f in tables_of(lab, "breadth").values()])
    # No entry can lead to a root that is smaller than a page.
    tables = frames[frames % np.uint64(lab.page) == 0]
    (root,) = tables_of(lab, "breadth")["pgd"]
    dice = np.random.default_rng(3)
    sizes = dict.fromkeys(frames.tolist(), lab.slots) | {root: form.root_slots}
    prog = damaged(
        lab,
        {
            frame: (dice.choice(tables, slots) | np.uint64(form.table[1])).tobytes()
            for frame, slots in sizes.items()
        },
    )
    charge = find_task(prog, lab.row("breadth").pid).mm.pgtables_bytes.counter
    assert charge.address_ is not None
    cover(prog, charge.address_, 1 << 62)
    return prog, frames


def tables_taken(scan: PageTableScan, comm: str) -> np.ndarray:
    """How many tables of each level of a process were looked at."""
    (at,) = (n for n, process in enumerate(scan.spaces.processes) if process.comm == comm)
    levels: np.ndarray = scan.totals["filled"][scan.largest.index(at)].sum(axis=1)
    return levels


@pytest.mark.any_kernel
def test_tables_that_lead_to_each_other_are_looked_at_once(lab_of_tables: TablesLab) -> None:
    prog, tables = wood(lab_of_tables)
    frames = len(tables)
    scan = scan_page_tables(prog)
    assert scan.absurd_charges == 1 and scan.numbers["repeated_tables"] > 1_000_000
    assert others(both(scan), "breadth") == others(lab_of_tables.rows, "breadth")
    # PMD tables may be shared: these once for each chunk of PUD tables.
    taken = tables_taken(scan, "breadth")
    # Two tables forget each other where they have one place among those that are remembered: two
    # that lie apart by as many pages of 4 KiB, which nodes may, or some of different levels.
    levels = (level for level in range(1, scan.form.last + 1) if level != scan.form.last - 1)
    places = [(tables | np.uint64(level << 56)) % np.uint64(REMEMBERED) for level in levels]
    twins = np.concatenate(places).size - np.unique(np.concatenate(places)).size
    assert 0.6 * frames < taken[scan.form.last] <= frames * (5 if twins else 1)
    chunks = -(-taken[scan.form.last - 2] // (CHUNK_BYTES >> scan.form.page_shift))
    assert taken.sum() <= (2 + chunks) * frames * (5 if twins else 1)


@pytest.mark.any_kernel
def test_no_more_tables_than_there_is_memory(
    lab_of_tables: TablesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    prog, _ = wood(lab_of_tables)
    present = sum(zone.present_pages for zone in zones(prog))
    assert present <= memory_pages(prog) < present + (1 << 16)  # sections are not all full
    most = (
        max(row.pgtables_bytes for row in lab_of_tables.rows if row.comm != "breadth")
        // lab_of_tables.page
    )
    monkeypatch.setattr(page_table_scan, "memory_pages", lambda prog: most)
    scan = scan_page_tables(prog)
    assert others(both(scan), "breadth") == others(lab_of_tables.rows, "breadth")
    assert (
        tables_taken(scan, "breadth").sum() <= most + 1025 and scan.numbers["dropped_tables"] > 1000
    )
    section, _ = run_section(SECTIONS["page_tables"], Memory(prog))
    assert section.status == "partial" and section.message
    for words in (
        "1 process is charged for more page tables than there is memory",
        f"{scan.numbers['dropped_tables']:,} tables are more than the process was charged for",
        # With so few tables none may have been met twice.
        *(["to a table that was met before"] if scan.numbers["repeated_tables"] else []),
    ):
        assert words in section.message


def listed_tasks(prog: Program) -> list[Object]:
    tasks = prog["init_task"].tasks.address_of_()
    return list(list_for_each_entry("struct task_struct", tasks, "tasks"))


@pytest.mark.any_kernel
def test_a_list_of_processes_that_runs_in_a_circle(lab_of_tables: TablesLab) -> None:
    prog = damaged(lab_of_tables, {})
    tasks = listed_tasks(prog)
    pids = [task.tgid.value_() for task in tasks]
    end = pids.index(lab_of_tables.row("sparse").pid)
    link = tasks[end].tasks.next
    assert link.address_ is not None
    cover(prog, link.address_, tasks[1].tasks.address_of_().value_())
    memory = Memory(prog)
    section, _ = run_section(SECTIONS["page_tables"], memory)
    assert section.status == "partial" and "runs in a circle" in (section.message or "")
    scan = scan_page_tables(prog)
    assert scan.spaces.broken_off and not scan.spaces.damaged
    # Each process once, with as many threads as it has.
    seen = [row for row in lab_of_tables.rows if row.pid in pids[: end + 1]]
    assert both(scan) == seen and 1 < len(seen) < len(lab_of_tables.rows)


def test_a_list_of_threads_that_runs_in_a_circle_costs_its_process(
    lab_of_tables: TablesLab,
) -> None:
    prog = damaged(lab_of_tables, {})
    # Its first thread has ended: the address space is that of another one.
    leader = find_task(prog, lab_of_tables.row("leaderless").pid)
    link = leader.thread_node.next
    assert not leader.mm and link.address_ is not None
    cover(prog, link.address_, leader.thread_node.address_of_().value_())
    scan = scan_page_tables(prog)
    assert not scan.spaces.broken_off and scan.spaces.damaged == 1
    assert both(scan) == others(lab_of_tables.rows, "leaderless")
    section, _ = run_section(SECTIONS["page_tables"], Memory(prog))
    assert section.status == "partial"
    assert "1 process could not be read" in (section.message or "")


def test_a_tree_of_vmas_that_leads_back_to_its_root(lab_of_tables: TablesLab) -> None:
    prog = lab_of_tables.prog
    mm = next(
        t.mm for t in for_each_task(prog) if t.tgid == lab_of_tables.row("files").pid and t.mm
    )
    if not hasattr(mm, "mm_mt"):  # a red-black tree: the root's left one is the root
        left = mm.mm_rb.rb_node.rb_left
        assert left.address_ is not None
        physical = virt_to_phys(left.address_of_()).value_()
        page = bytearray(
            prog.read(physical & -lab_of_tables.page, lab_of_tables.page, physical=True)
        )
        np.frombuffer(page, np.uint64)[(physical & lab_of_tables.page - 1) // 8] = (
            mm.mm_rb.rb_node.value_()
        )
        scan = scan_page_tables(
            damaged(lab_of_tables, {physical & -lab_of_tables.page: bytes(page)})
        )
        assert scan.damaged_vmas > 0
        assert others(both(scan), "files") == others(lab_of_tables.rows, "files")
        return
    root = mm.mm_mt.ma_root.value_()
    node = root & ~0xFF
    physical = virt_to_phys(prog, node).value_()
    page = bytearray(prog.read(physical & -lab_of_tables.page, lab_of_tables.page, physical=True))
    words = np.frombuffer(page, np.uint64)
    at = (node & lab_of_tables.page - 1) // 8
    slots = words[at + 10 : at + 20]
    leading = slots > lab_of_tables.page
    slots[leading] = root
    scan = scan_page_tables(damaged(lab_of_tables, {physical & -lab_of_tables.page: bytes(page)}))
    assert scan.damaged_vmas > 0
    assert others(both(scan), "files") == others(lab_of_tables.rows, "files")
