# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Where the memory is, page by page, against what the kernel counts, prints, and was made to have.
"""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from capture import capture
from conftest import KERNELS, Lab, StructPagesLab
from drgn import sizeof
from drgn.helpers.linux.block import disk_name, for_each_disk
from ledger_lab import MAY_DIFFER, LedgerLab, assert_adds_up, meminfo, read_ledger

from mmscope.drgn.free.pageblocks import migratetype_names
from mmscope.drgn.free.pcp_lists import PcpFinder, pcp_pages
from mmscope.drgn.ledger.ledger_pages import LedgerPages
from mmscope.drgn.ledger.memory_ledger import (
    REMAINDER,
    LedgerRow,
    UnexplainedRow,
    memory_ledger_from_files,
    memory_ledger_from_memory,
)
from mmscope.drgn.ledger.page_holders import PageHolder, page_holders_from_memory
from mmscope.drgn.ledger.page_places import page_places
from mmscope.drgn.ledger.vmalloc_callers import from_memory as vmalloc_from_memory
from mmscope.drgn.ledger.vmalloc_callers import read_vmallocinfo
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.processes.process_memory import from_memory as processes_from_memory
from mmscope.drgn.processes.process_memory import read_status_memory
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory

PAGE, MIB = 4096, 1 << 20
# guest/workload_ledger.c
SHARED, ANONYMOUS, IN_PIPES = (
    size * MIB // PAGE for size in (40 + 1 + 10 + 12 + 8 + 3 + 4, 32, 16)
)
THREADS, HUGE, BPF_MAP = 200, 512, 4 * MIB // PAGE
# Per-CPU counters that a text is read without (32 pages of each of two CPUs), or, before 6.2, what
# tasks have not given to theirs (64 faults).
LAG = 64 * PAGE


@pytest.fixture(scope="module", params=KERNELS)
def ledger_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> LedgerLab:
    """The ``ledger`` workload on a kernel."""
    return read_ledger(capture(request.param, "ledger", say=say))


def test_every_page_is_counted_once_and_as_the_kernel_counts_it(ledger_lab: LedgerLab) -> None:
    assert not ledger_lab.found.notes
    assert_adds_up(ledger_lab.found)
    assert ledger_lab.checks["present_pages - managed_pages"].difference_pages == 0


def test_so_are_those_of_a_fragmented_machine(lab: Lab) -> None:
    found = memory_ledger_from_memory(Memory(lab.prog))
    assert not found.notes
    assert_adds_up(found)


def test_hardly_anything_is_unexplained(ledger_lab: LedgerLab) -> None:
    unexplained = ledger_lab.pages("unexplained")
    total = sum(row.pages for row in ledger_lab.rows)
    assert ledger_lab.pages("pipes") == IN_PIPES
    assert unexplained < 0.0005 * total
    listed: list[UnexplainedRow] = ledger_lab.found.by_name["ledger_unexplained"]
    assert sum(row.pages for row in listed) == unexplained


@pytest.mark.parametrize("kernel", KERNELS)
def test_so_is_hardly_anything_of_a_machine_with_many_page_tables(
    kernel: str, say: Callable[[str], None]
) -> None:
    taken = capture(kernel, "tables", say=say)
    found = memory_ledger_from_memory(Memory(open_target(taken.vmcore, [taken.vmlinux])))
    rows: list[LedgerRow] = found.by_name["memory_ledger"]
    unexplained = sum(row.pages for row in rows if row.owner == "unexplained")
    assert unexplained < 0.0006 * sum(row.pages for row in rows)


def test_requests_of_block_devices_are_as_many_as_queues_are_deep(ledger_lab: LedgerLab) -> None:
    prog = ledger_lab.prog
    (disk,) = (disk for disk in for_each_disk(prog) if disk_name(disk) == b"vda")
    tags = disk.queue.tag_set
    size = sizeof(prog.type("struct request")) + tags.cmd_size.value_()
    requests = tags.queue_depth.value_() * tags.nr_hw_queues.value_()
    found = ledger_lab.pages("kernel reserves", "requests of block devices") * PAGE
    # Each takes whole cache lines, and blocks have room for less than one more at their end.
    assert size * requests <= found <= 1.25 * size * requests + 4 * 16 * PAGE
    rows: list[PageHolder] = page_holders_from_memory(Memory(prog)).by_name["page_holders"]
    assert {row.holder: row.bytes for row in rows if row.kind == "block requests"} == {"vda": found}


def test_stacks_and_maps_have_their_processes(ledger_lab: LedgerLab) -> None:
    found = page_holders_from_memory(Memory(ledger_lab.prog))
    assert not found.notes
    rows: list[PageHolder] = found.by_name["page_holders"]
    stacks = [row for row in rows if row.kind == "kernel stacks"]
    (threads,) = (row for row in stacks if row.comm == "ledger-threads")
    assert threads.objects == THREADS + 1
    assert threads.pages == 4 * threads.objects
    # Those that CPUs keep for the next thread are in no counter, and nobody's.
    said = ledger_lab.checks["nr_kernel_stack"].kernel_pages
    assert sum(row.pages for row in stacks) in range(said - LAG // PAGE, said + LAG // PAGE)
    (array,) = (row for row in rows if row.kind == "BPF map")
    assert (array.owner, array.comm, array.pages) == ("vmalloc", "init", BPF_MAP + 1)


def test_pages_of_hugetlb_have_their_files_and_processes(ledger_lab: LedgerLab) -> None:
    found = page_holders_from_memory(Memory(ledger_lab.prog))
    rows: list[PageHolder] = [r for r in found.by_name["page_holders"] if r.owner == "hugetlb"]
    assert {(row.kind, row.holder, row.comm): row.pages for row in rows} == {
        ("hugetlb file", "memfd:ledger-hugetlb", "init"): HUGE,
        ("hugetlb memory", "", "init"): 3 * HUGE,
    }
    text = (ledger_lab.capture.truth_b / "proc/meminfo").read_text()
    pool = {name: int(count) for name, count in re.findall(r"HugePages_(\w+): +(\d+)", text)}
    assert sum(row.pages for row in rows) == (pool["Total"] - pool["Free"]) * HUGE


def test_what_was_planted_is_in_its_class(ledger_lab: LedgerLab) -> None:
    said = meminfo(ledger_lab.capture)
    assert ledger_lab.pages("page cache", "shmem") == said["Shmem"]
    assert SHARED <= ledger_lab.pages("page cache", "shmem") < SHARED + 500
    assert ANONYMOUS <= ledger_lab.pages("anonymous", "base pages") < ANONYMOUS + 1000
    assert ledger_lab.pages("hugetlb", "in use") == 4 * HUGE
    assert ledger_lab.pages("hugetlb", "free in the pool") == 4 * HUGE
    stacks = ledger_lab.pages("kernel stacks")
    assert stacks >= 4 * THREADS
    assert stacks - said["KernelStack"] in MAY_DIFFER["nr_kernel_stack"]


@pytest.mark.parametrize("pages", [192, 1536])
def test_pages_that_belong_together_may_be_read_apart(ledger_lab: LedgerLab, pages: int) -> None:
    """Of compound pages and free blocks the first page decides, in whatever chunk it was."""
    prog = ledger_lab.prog
    places = page_places(Memory(prog))
    sums = []
    for chunk_bytes in (CHUNK_BYTES, pages * sizeof(prog.type("struct page"))):
        finder = PcpFinder(prog)
        counted = LedgerPages(prog, places.ram, places.owned)
        scan = scan_struct_pages(prog, [finder, counted], chunk_bytes=chunk_bytes)
        assert not scan.failures
        listed = pcp_pages(prog, finder, migratetype_names(prog))
        counted.settle(listed.pfns, listed.orders)
        sums.append(counted.pages.tolist())
    assert sums[0] == sums[1]


def test_it_agrees_with_what_meminfo_printed(ledger_lab: LedgerLab) -> None:
    said = meminfo(ledger_lab.capture)
    assert ledger_lab.pages("percpu") + ledger_lab.pages("boot", "percpu") == (said["Percpu"])
    assert ledger_lab.pages("page tables", "with the page type") == said["PageTables"]
    assert ledger_lab.pages("slab", "reclaimable") == said["SReclaimable"]
    vmalloc = ledger_lab.pages("vmalloc") + ledger_lab.pages("kernel stacks")
    assert vmalloc == said["VmallocUsed"]


def test_the_counters_alone_give_the_same_classes(ledger_lab: LedgerLab) -> None:
    files = Files(ledger_lab.capture.truth_b)
    rows = memory_ledger_from_files(files).by_name["memory_ledger"]
    by_counter = {(row.owner, row.part): row.pages for row in rows}
    for owner, part in [("page cache", "shmem"), ("slab", "reclaimable"), ("free", "free lists")]:
        assert abs(by_counter[owner, part] - ledger_lab.pages(owner, part)) <= LAG // PAGE, part
    remainder = by_counter["unexplained", REMAINDER]
    # Pages in pipes and what else is unexplained, and what has no line in /proc/meminfo.
    assert IN_PIPES < remainder < IN_PIPES + 30_000
    assert sum(row.percent for row in rows) == pytest.approx(100)


def test_vmalloc_memory_is_by_caller_as_in_vmallocinfo(ledger_lab: LedgerLab) -> None:
    rows = vmalloc_from_memory(Memory(ledger_lab.prog)).by_name["vmalloc_callers"]
    ours: dict[str, tuple[int, int]] = {}
    for row in rows:
        areas, pages = ours.get(row.caller, (0, 0))
        # Of percpu chunks the text has no pages.
        ours[row.caller] = areas + row.areas, pages + (row.use != "percpu") * row.pages
    text = (ledger_lab.capture.truth_b / "proc/vmallocinfo").read_text()
    theirs: dict[str, tuple[int, int]] = {}
    for row in read_vmallocinfo(text):
        areas, pages = theirs.get(row.caller, (0, 0))
        theirs[row.caller] = areas + row.areas, pages + (row.pages or 0)
    assert ours == theirs
    # The uses, too, but that the text does not tell kernel stacks.
    by_use = {
        (row.caller, "vmalloc" if row.use == "kernel stacks" else row.use): row.areas
        for row in rows
        if row.use != "other"
    }
    assert by_use == {
        (row.caller, row.use): row.areas for row in read_vmallocinfo(text) if row.use != "other"
    }
    space = sum(row.address_bytes for row in rows)
    assert space == sum(row.address_bytes for row in read_vmallocinfo(text))
    percpu = sum(row.pages for row in rows if row.use == "percpu")
    assert percpu == ledger_lab.pages("percpu")
    assert sum(row.pages for row in rows) - percpu == meminfo(ledger_lab.capture)["VmallocUsed"]


def test_the_memory_of_a_bpf_map_has_its_caller(ledger_lab: LedgerLab) -> None:
    rows = vmalloc_from_memory(Memory(ledger_lab.prog)).by_name["vmalloc_callers"]
    (found,) = [row for row in rows if row.caller in ("array_map_alloc", "bpf_map_area_alloc")]
    assert BPF_MAP <= found.pages < BPF_MAP + 16


def test_processes_have_the_memory_that_their_status_says(ledger_lab: LedgerLab) -> None:
    rows = processes_from_memory(Memory(ledger_lab.prog)).by_name["process_memory"]
    texts = list((ledger_lab.capture.truth_b / "proc").glob("*/status"))
    assert len(texts) == 4
    for text in texts:
        said = read_status_memory(text.read_text())
        (ours,) = [row for row in rows if said and row.pid == said.pid]
        assert said is not None
        lags = replace(said, processes=ours.processes, threads=ours.threads)
        for kind in ("anon", "file", "shmem", "resident"):
            name = f"{kind}_bytes"
            assert abs(getattr(ours, name) - getattr(said, name)) <= LAG, (ours, said)
            lags = replace(lags, **{name: getattr(ours, name)})
        assert ours == lags
    (one,) = [row for row in rows if row.comm == "ledger-anon"]
    assert ANONYMOUS * PAGE <= one.anon_bytes < (ANONYMOUS + 1000) * PAGE


def test_huge_pages_that_share_their_struct_pages_are_counted_whole(
    hvo_boot_lab: StructPagesLab,
) -> None:
    found = memory_ledger_from_memory(Memory(hvo_boot_lab.prog))
    assert_adds_up(found)
    said = meminfo(hvo_boot_lab.capture)
    rows = [row for row in found.by_name["memory_ledger"] if row.owner == "hugetlb"]
    assert sum(row.pages for row in rows) == said["Hugetlb"]


def test_hot_added_memory_is_counted_and_devices_are_not(vmemmap_lab: StructPagesLab) -> None:
    found = memory_ledger_from_memory(Memory(vmemmap_lab.prog))
    assert_adds_up(found)
    assert {row.zone for row in found.by_name["memory_ledger"]} <= {"DMA", "DMA32", "Normal", ""}
