# SPDX-License-Identifier: LGPL-2.1-or-later
"""A damaged vmcore: a few of the ways that ``make soak`` tries, and what must be said of it."""

import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soak
from capture import Capture, capture
from conftest import FUNCTIONS_ONLY, KERNELS, WITHOUT_BTF, Lab
from drgn import Object, Program, container_of
from drgn.helpers.linux.block import for_each_disk
from drgn.helpers.linux.fs import for_each_mount, mount_dst
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import follow_page
from drgn.helpers.linux.pid import find_task, for_each_task
from forked import in_a_fork, opened
from named_damage import (
    DAMAGE,
    NOWHERE,
    cache,
    first_cpu_alone,
    lack_struct_pages,
    largest_zone,
    processes,
    put,
    say,
)

from mmscope.drgn.filesystems.cached_files import cached_files_once
from mmscope.drgn.filesystems.super_blocks import read_super_blocks
from mmscope.drgn.holders.kernel_buffers import saved_in_one_block
from mmscope.drgn.ledger.memory_cgroups import memory_cgroups_from_memory
from mmscope.drgn.ledger.memory_ledger import memory_ledger_from_memory
from mmscope.drgn.ledger.page_holders import page_holders_from_memory
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.ledger.page_places import page_places
from mmscope.drgn.ledger.percpu_chunks import OTHER, chunks, percpu
from mmscope.drgn.ledger.pins import pins_from_memory
from mmscope.drgn.machine.direct_map import direct_map
from mmscope.drgn.machine.vm_counters import names_apart, vm_counters
from mmscope.drgn.opening.target import describe
from mmscope.drgn.owners.slab_caches import misnamed
from mmscope.drgn.page_tables.vmalloc_areas import vmalloc_areas
from mmscope.drgn.processes.open_files import PIPES, open_files
from mmscope.drgn.reading.io_resources import io_resources
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.nodes import misnumbered
from mmscope.drgn.reclaim.lru_lists import asked_of_no_zone
from mmscope.drgn.rmap.rwsem_waiters import taken_locks
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.all_tasks import all_tasks, states_apart
from mmscope.drgn.waits.writeback import writeback_devices
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.findings.findings import evaluate

Together = tuple[str, ...]  # names of damage


@pytest.fixture(scope="module")
def seeds(lab: Lab) -> Iterator[Callable[[str], dict[str, Any]]]:
    """What is made of a seed."""
    with soak.opened(lab.capture.vmcore, lab.capture.vmlinux) as run:
        yield run


@pytest.mark.any_kernel
@pytest.mark.parametrize(
    "seed",
    # One of each kind of page and of each damage at least; 16: nr_cpu_ids in the billions, where a
    # loop over all CPUs took minutes; 271: no section left; 297: an array across the end of all
    # addresses; 334: a list of processes in a circle, which took 44 s; 571: a cache that says that
    # it keeps tracks.
    [0, 2, 7, 16, 271, 297, 334, 571],
)
def test_nothing_ends_badly(seeds: Callable[[str], dict[str, Any]], seed: int) -> None:
    result = seeds(str(seed))
    assert "died" not in result, result["died"]
    assert not result["defects"], "".join(result["defects"])
    print(f"seed {seed}: {result['what']}, {result['seconds']:.1f} s")
    for section, status in result["sections"].items():
        assert status in ("ok", "partial", "absent") or result["messages"][section]
    assert result["page_bytes"] > 10_000


@dataclass(frozen=True)
class Read:
    """What came of a vmcore."""

    sections: dict[str, SectionResult]
    found: set[str]
    not_checked: dict[str, str]
    marks: list[str]


@functools.cache
def read(
    taken: Capture,
    damage: Together = (),
    *,
    ask: bool = False,
    lacks: tuple[int, int] | None = None,
) -> Read:
    """
    Read a vmcore, with damage that has names, or none.

    :param ask: whether to look for findings.
    :param lacks: of the struct pages, so many KiB of so many.
    """
    prog = opened(taken)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"

        def collected() -> list[SectionResult]:
            for name in damage:
                DAMAGE[name](prog)
            if lacks:
                lack_struct_pages(prog, *lacks)
            with Writer(path) as writer:
                return collect(Memory(prog), describe(prog, "vmcore"), writer)

        sections = in_a_fork(collected)
        bundle = Bundle(path)
        verdict = evaluate(bundle) if ask else None
        return Read(
            {section.section: section for section in sections},
            {f"{found.id}: {found.severity}" for found in verdict.found} if verdict else set(),
            {found.id: found.reason for found in verdict.not_checked} if verdict else {},
            [str(mark) for name in bundle.tables for mark in bundle.impossible(name)],
        )


# What each damage is told of by, section by section; the others stay as they were.
PAGES_OF_ANY = r"[0-9,]+ is beyond any machine's 17,592,186,044,416 pages"
PAGES_HERE = r"[0-9,]+ is beyond this machine's [0-9,]+ pages"
WHAT_IF = {"memory_metadata": r"memmap_what_if\.\w+: [0-9,]+ is beyond"}
TOO_MANY = "the zones are damaged: they have more pages than any machine"
PRESENT = {
    "memory_ledger": r"zone \w+ of node 1 has [0-9,]+ present pages, 262,144 were found",
}
VMA_IS_DAMAGED = {
    **dict.fromkeys(("process_shares", "would_free"), "1 VMA is damaged: not counted here"),
    "page_tables": "1 VMA or node of a tree is damaged, and left out",
}
FILE_IS_DAMAGED = dict.fromkeys(
    ("file_maps", "rmap_cost"), r"\d+ bytes of (files, mappings and inodes|mapped files) could"
)
SAID: dict[str, dict[str, str]] = {
    "present_pages 2^60": {
        "zones": rf"zones\.present_pages: {PAGES_OF_ANY}",
        "pageblocks": r"found in zone \w+ of node 1 have 262,144 pages, but it has 1,152,921,504",
        **PRESENT,
        "physical_memory": TOO_MANY,
        **WHAT_IF,
    },
    "present_pages -1": {
        "zones": rf"zones\.present_pages: {PAGES_OF_ANY}",
        "pageblocks": "have 262,144 pages, but it has 18,446,744,073,709,551,615 present",
        **PRESENT,
        "physical_memory": TOO_MANY,
        **WHAT_IF,
    },
    "spanned_pages 2^60": {"zones": r"zones\.spanned_pages: 1,152,921,504,606,846,976 is beyond"},
    "spanned_pages -1": {"zones": r"zones\.spanned_pages: 18,446,744,073,709,551,615 is beyond"},
    "managed_pages 2^60": {
        "zones": rf"zones\.managed_pages: {PAGES_HERE}",
        "physical_memory": TOO_MANY,
        "memory_ledger": TOO_MANY,
    },
    "managed_pages -1": {"zones": r"zones\.managed_pages: -1 is below 0"},
    "nr_reserved_highatomic 2^60": {"zones": rf"highatomic_reserved_pages: {PAGES_HERE}"},
    "nr_reserved_highatomic -1": {"zones": rf"highatomic_reserved_pages: {PAGES_HERE}"},
    "_watermark 2^60": {"zones": rf"zones\.wmark_min: {PAGES_HERE}"},
    "_watermark -1": {"zones": rf"zones\.wmark_min: {PAGES_HERE}"},
    "zone_start_pfn a section up": {
        "zones": r"zone \w+ of node 1 reaches from PFN 0x(108|68)000 to 0x(148|a8)000, beyond",
        "pageblocks": r"found in zone \w+ of node 1 have 229,376 pages, but it has 262,144",
    },
    "zone_start_pfn a section down": {
        "zones": r"zone \w+ of node 1 reaches from PFN 0x[f5]8000 to 0x(138|98)000, beyond",
        "pageblocks": r"found in zone \w+ of node 1 have 229,376 pages, but it has 262,144",
    },
    "vm_zone_stat ones": {"vm_counters": r"value, nr_\w+: -\d+ is below 0, and \d+ more"},
    "nr_huge_pages 2^60": {
        "hugetlb": rf"hugetlb_sizes\.pages: {PAGES_HERE}",
        "memory_ledger": r"ledger_checks\.kernel_pages",
    },
    "free_huge_pages -1": {"hugetlb": r"free_pages: 18,446,744,073,709,551,615 is more than pages"},
    "kmem_cache.size 0": {
        "slab_caches": r"slab_caches\.slot_bytes: 0 is below 4",
        "dentries": "cache of dentries is not found",
    },
    "kmem_cache.size 1": {
        "slab_caches": r"object_bytes: 192 is more than slot_bytes, 1",
        "dentries": "an object of 1 bytes has no",
    },
    "kmem_cache.size 2^28": {
        "slab_caches": "the slabs of 1 cache do not add up",
        "dentries": r"nr_dentry is [\d,]+, 0 were found",
    },
    "kmem_cache.size 2^31": {
        "slab_caches": r"slot_bytes: 2,147,483,648 is beyond 1,073,741,824",
        "dentries": "cache of dentries is not found",
    },
    "kmem_cache.object_size 2^20": {
        "slab_caches": "object_bytes: 1,048,576 is more than slot_bytes"
    },
    "ksm_max_page_sharing -1": {"ksm": r"ksm_totals\.value, max_page_sharing: -1 is below 2"},
    "oom_mm 8": {"task_waits": r"signal_struct\.oom_mm, could not be read"},
    "nr_zspages 2^17": {
        "memory_ledger": r"ledger_checks\.kernel_pages: 131,072 is not 0, the pages of that kind",
        "vm_counters": r"value, nr_zspages: 131,072 is not 0, what zones and nodes have of it",
    },
    "map_count + 1": {"page_tables": r"page_table_details\.vmas: \d+ is not \d+, its map_count"},
    "total_vm + 1": {"page_tables": r"mapped_bytes: [0-9,]+ is not [0-9,]+, its total_vm"},
    "vm_dirty_bytes beside vm_dirty_ratio": {
        "vm_counters": "vm_dirty_bytes and vm_dirty_ratio are both set"
    },
    "totalreserve_pages 1": {"vm_counters": r"totalreserve_pages is 1, but [0-9,]+ by the nodes"},
    "contig_hint 2^20": {
        "percpu": r"contig_hint has [0-9,]+ bytes in one piece, its bitmap [0-9,]+"
    },
    "map_count -1": {
        "anon_vmas": r"process_vmas\.vmas: -1 is below 0",
        "page_tables": r"page_table_details\.vmas: \d+ is not [0-9,-]+, its map_count",
    },
    "pid -1": {
        "task_waits": r"tasks? (has|have) another PID than struct pid",
        "page_tables": r"page_tables\.pid: -1 is below 0",
        "process_memory": r"process_memory\.pid: -1 is below 0",
        "process_shares": r"process_shares\.pid: -1 is below 0",
        "anon_vmas": r"process_vmas\.pid: -1 is below 0",
        "file_maps": r"file_mappings\.pid: -1 is below 0",
        "rmap_cost": r"rmap_walks\.pid: -1 is below 0",
        "would_free": r"would_free\.pid: -1 is below 0",
        "page_holders": r"page_holders\.pid: -1 is below 0",
    },
    "pid twice": {
        "task_waits": r"tasks? (has|have) another PID than struct pid",
        "page_tables": r"page_tables\.pid: the key of row \d+ is that of row \d+",
        "process_memory": r"process_memory\.pid: the key of row \d+ is that of row \d+",
        "process_shares": r"process_shares\.pid: the key of row \d+ is that of row \d+",
        "anon_vmas": r"process_vmas\.pid: the key of row \d+ is that of row \d+",
        "would_free": r"would_free\.pid: the key of row \d+ is that of row \d+",
    },
    "all caches of one name": {"slab_caches": "kmem_cache goes by the name 'dentry'"},
    "a name without end": {"slab_caches": r"slab_caches\.cache: 256 characters, more than a name"},
    "no CPU online": dict.fromkeys(
        (
            *("zones", "accounting", "pcp_lists", "physical_memory", "vm_counters"),
            *("memory_ledger", "process_memory", "cached_files", "lru_lists", "vmalloc"),
            *("memory_cgroups", "contiguity", "would_free", "pins", "page_holders", "task_waits"),
        ),
        "no CPU is online",
    ),
    "a zone's lock 0x80": {"zones": r"the lock of zone \w+ of node 1 is 0x80, as none is"},
    "a zone's lock with a queue of no CPU": {"zones": r"the lock of zone \w+ of node 1 is 0xfa0"},
    "memory.max of the root 1": {"memory_cgroups": "the root of all memory cgroups has a limit"},
    "a stack nowhere": dict.fromkeys(
        ("memory_ledger", "contiguity", "page_holders"),
        "kernel stacks: 1 stack could not be found",
    ),
    "a tail without a head": {"memory_ledger": "1 tail without a head"},
    "nr_node_ids 2^31": dict.fromkeys(
        (
            *("memory_ledger", "memory_cgroups", "zones", "free_lists", "accounting", "pcp_lists"),
            *("pageblocks", "lru_lists", "cached_files", "physical_memory", "poisoned_pages"),
            *("vmemmap", "hugetlb", "device_pagemaps", "memory_metadata", "vm_counters"),
            *("contiguity", "pins", "task_waits"),
        ),
        r"nr_node_ids is 2147483648, but masks of nodes have \d+ bits: damaged",
    ),
    "memory.low of the root -1": {
        "memory_cgroups": r"memory_cgroups\.low_bytes: [0-9,]+ is beyond"
    },
    "oom_kill of the root 7": {
        "memory_cgroups": r"oom_kill_events: 7 is not 0, memory\.events\.local"
    },
    "low events of the root 7": {
        "memory_cgroups": r"low_events: 7 is not 0, as the root protects nothing"
    },
    "nr_threads + 1": {"task_waits": r"\d+ tasks were found, nr_threads says \d+"},
    "a node without its kswapd": {"task_waits": r"no node says that it has kswapd\d"},
    "nr_empty_pop_pages 2^20": {
        "percpu": r"nr_empty_pop_pages is 1,048,576, by its bitmaps \d+",
    },
    "a ring of no page": dict.fromkeys(
        ("memory_ledger", "contiguity", "page_holders"),
        r"rings of ftrace: a ring of 1 page, of which \d+ were found",
    ),
    "init in no namespace": dict.fromkeys(
        ("cached_files", "dentries"), "the mount namespace of init cannot be read"
    ),
    "nrpages of a program 0": {"cached_files": "nrpages of 1 file cannot be"},
    "a CPU without its ring": dict.fromkeys(
        ("memory_ledger", "contiguity", "page_holders"), "rings of ftrace: that of CPU 0"
    ),
    "kcompactd that ended": {"task_waits": "kcompactd0 has ended"},
    "kswapd_failures 1000": {"lru_lists": r"kswapd failed 1,0[0-9]+ times, and ran [0-9,]+ times"},
    "pgtables_bytes + 1": {"page_tables": "1 process is charged for a part of a table"},
    "pinned_vm 2^40": {"process_memory": r"pinned_bytes: [0-9,]+ is not [0-9,]+, a thousand times"},
    "anon of a process -2^40": {
        "process_memory": r"anon_bytes: -[0-9,]+ is below 0",
        "page_tables": r"resident_bytes: [0-9,]+ is not -[0-9,]+, what the kernel counts",
    },
    "a task in no state": {"task_waits": "1 task is in a state that there is not"},
    "nr_threads of init 65": {"task_waits": "1 process has more threads, or fewer, than"},
    "huge_zero_pfn + 128": dict.fromkeys(
        ("memory_ledger", "contiguity"), r"huge_zero_pfn is 0x\w+, huge_zero_\w+ is 0x\w+"
    ),
    "anon_vma_cachep 0": dict.fromkeys(
        ("anon_vmas", "file_maps", "ksm", "rmap_cost"),
        "anon_vma_cachep leads to none of the slab caches that were found",
    ),
    "no reserved chunk": {"percpu": r"pcpu_first_chunk begins at 0x\w+, the kernel's"},
    "the first zone 2048 pages up": {
        "zones": r"the zones of node 0 reach from PFN 0x\w+ to 0x\w+ only, not from",
        "pageblocks": r"beyond the ends of zone \w+ of node 0: \d pageblock",
    },
    "a log line of no letter": dict.fromkeys(
        ("kernel_log", "kernel_complaints", "oom_kills", "allocation_failures"),
        "lost or damaged: 1 record",
    ),
    "transparent_hugepage_flags ones": {"settings": "as no setting leaves it"},
    "a dentry held 2^20 times": dict.fromkeys(
        ("cached_files", "would_free"), "1 dentr.* of files of shared memory"
    ),
    "a counter with a bracket": {"vm_counters": r"no counter is called '\[r_free_pages'"},
    "a zone of another node": {"zones": r"zone \w+ of node 1 says that it is of another"},
    "a stall since before boot": {"memory_pressure": "stalls of 1 group took longer than can be"},
    "kcompactd asked for order 259": {"task_waits": r"reclaim_threads\.order: 259 is beyond"},
    "code that is data": {"page_tables": "flags of VMAs of 1 process are not those counted"},
    "shared memory of another device": dict.fromkeys(
        ("cached_files", "dentries"), "1 file system of another device than its own"
    ),
    "a thread group that there is not": {
        "task_waits": "1 task has another PID than struct pid, or"
    },
    "a VMA of a file without operations": VMA_IS_DAMAGED,
    "a VMA with a flag of no name": VMA_IS_DAMAGED,
    "a file of no mapping": FILE_IS_DAMAGED,
    "a file of mapping 0": FILE_IS_DAMAGED,
    "a mapped file with an empty tree": {"file_maps": r"mapped files that do not fit together"},
    "ksm_rmap_items 2^28": {"ksm": "KSM pages of 1 process are more than can be"},
    "min_free_kbytes -1": {"settings": r"settings\.value, vm\.min_free_kbytes: -1 is below 0"},
}


# Of other sections, what is told on some kernels.
ALSO: dict[str, dict[str, str]] = {
    # 5.10 counts page tables by zone.
    "vm_zone_stat ones": {"memory_ledger": r"nr_\w+: -1 is not [0-9,]+, the pages of that kind"},
    # Nodes have barns of sheaves (7.x).
    "nr_node_ids 2^31": {"slab_caches": "the sheav"},
}


# Of which findings are asked.
ASKED = ("nr_reserved_highatomic -1", "vm_zone_stat ones")
# What no section has two of is done at once. Some of each section also on a second kernel: where a
# field is, the tests against that kernel's own words say.
ON_ANY: tuple[Together, ...] = (
    ("zone_start_pfn a section up", "kmem_cache.size 1", "pid -1"),
    ("spanned_pages 2^60", "free_huge_pages -1", "map_count -1", "min_free_kbytes -1"),
    ("no CPU online",),
)
ON_ONE: tuple[Together, ...] = (
    ASKED,
    ("present_pages 2^60", "kmem_cache.size 0"),
    ("present_pages -1", "kmem_cache.size 2^31"),
    ("spanned_pages -1", "pid twice", "kmem_cache.size 2^28"),
    ("managed_pages 2^60", "low events of the root 7", "nr_empty_pop_pages 2^20"),
    ("nr_zspages 2^17", "total_vm + 1", "kmem_cache.object_size 2^20"),
    (
        *("map_count + 1", "vm_dirty_bytes beside vm_dirty_ratio"),
        *("a CPU without its ring", "kcompactd that ended"),
    ),
    (
        *(
            "a counter with a bracket",
            "kswapd_failures 1000",
            "pgtables_bytes + 1",
            "pinned_vm 2^40",
            "a task in no state",
        ),
        *("no reserved chunk", "anon_vma_cachep 0", "the first zone 2048 pages up"),
        "a log line of no letter",
    ),
    (
        "a dentry held 2^20 times",
        "transparent_hugepage_flags ones",
        "totalreserve_pages 1",
        "contig_hint 2^20",
        "ksm_max_page_sharing -1",
        "oom_mm 8",
    ),
    (
        *("a zone of another node", "a stall since before boot"),
        *("kcompactd asked for order 259", "code that is data"),
        "shared memory of another device",
    ),
    (
        *("managed_pages -1", "nr_threads + 1", "a ring of no page"),
        "a mapped file with an empty tree",
    ),
    ("nr_reserved_highatomic 2^60", "nr_huge_pages 2^60", "anon of a process -2^40"),
    ("_watermark 2^60", "all caches of one name", "nr_threads of init 65", "huge_zero_pfn + 128"),
    ("_watermark -1", "a name without end", "a node without its kswapd"),
    ("zone_start_pfn a section down", "init in no namespace"),
    ("a zone's lock 0x80", "memory.low of the root -1", "nrpages of a program 0"),
    (
        *("oom_kill of the root 7", "a tail without a head"),
        *("a VMA of a file without operations", "a file of no mapping"),
        *("ksm_rmap_items 2^28", "a thread group that there is not"),
    ),
    ("a zone's lock with a queue of no CPU", "memory.max of the root 1", "a stack nowhere"),
    ("nr_node_ids 2^31", "a VMA with a flag of no name", "a file of mapping 0"),
)


def test_each_damage_that_has_a_name_is_told_of() -> None:
    assert SAID.keys() == DAMAGE.keys()
    tried = [name for together in ON_ANY + ON_ONE for name in together]
    assert sorted(tried) == sorted(DAMAGE)
    for together in ON_ANY + ON_ONE:
        sections = [section for name in together for section in SAID[name]]
        assert len(sections) == len(set(sections)), together


@pytest.mark.parametrize(
    "together",
    [*ON_ANY, *(pytest.param(names, marks=pytest.mark.any_kernel) for names in ON_ONE)],
    ids=", ".join,
)
def test_a_field_that_says_what_cannot_be_is_told_of_where_it_is_shown(
    lab: Lab, together: Together
) -> None:
    found = read(lab.capture, together, ask=together == ASKED).sections
    said = {section: words for name in together for section, words in SAID[name].items()}
    also = {section: words for name in together for section, words in ALSO.get(name, {}).items()}
    rss = lab.prog.type("struct mm_struct").member("rss_stat").type
    if "no CPU online" in together and rss.type_name() == "struct mm_rss_stat":
        del said["process_memory"]  # of 6.1: what CPUs have is not in it
    try:
        lab.prog.type("struct swap_slots_cache")
    except LookupError:  # since v6.15 no CPU keeps slots of swap for itself
        if "no CPU online" in together:
            del said["would_free"]
    for section, whole in read(lab.capture, ask=True).sections.items():
        status, message = found[section].status, str(found[section].message)
        if section in said and whole.status != "absent":
            assert status in ("partial", "failed"), section
            assert re.search(said[section], message), message
        elif words := also.get(section):
            assert status == whole.status or re.search(words, message), message
        else:
            assert status == whole.status, message


@pytest.mark.any_kernel
def test_a_node_of_another_number_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)

    def odd() -> list[str]:
        say(largest_zone(prog).zone_pgdat.node_id, 7)
        return misnumbered(prog)

    assert in_a_fork(odd) == ["node 1 says that it is node 7"]
    assert misnumbered(prog) == []


def test_a_cpu_that_went_offline_keeps_the_stack_of_its_idle_task(lab: Lab) -> None:
    prog = opened(lab.capture)

    def notes(change: Callable[[Program], None]) -> list[str]:
        change(prog)
        return page_holders_from_memory(Memory(prog)).notes

    whole = in_a_fork(lambda: notes(lambda _: None))
    assert in_a_fork(lambda: notes(first_cpu_alone)) == whole


def test_a_tasks_stack_is_a_kernel_stack_whoever_allocated_it(lab: Lab) -> None:
    prog = opened(lab.capture)

    def stacks(change: Callable[[Program], None]) -> int:
        change(prog)
        kinds = page_places(Memory(prog)).area_kinds
        return 0 if kinds is None else int((kinds == Kind.STACK).sum())

    whole = in_a_fork(lambda: stacks(lambda _: None))
    of_one = processes(prog)[0].stack_vm_area.caller
    assert in_a_fork(lambda: stacks(lambda _: say(of_one, NOWHERE))) == whole > 0


PLACES = {
    "ftrace_number_of_pages": (99, r"records of ftrace: 99 pages, of which \d+ were found"),
    "pool_size_kernel": (99, "atomic_pool_kernel has [0-9,]+ bytes, pool_size_kernel says 99"),
    "integrity_buf_pool": (99, r"integrity_buf_pool is damaged: 99 of \d, of order \d"),
    "poking_mm": (0, "poking_mm is 0, as it is at boot alone"),
}


@pytest.mark.any_kernel
def test_places_that_are_not_what_the_kernel_says_elsewhere_are_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)

    def missing(name: str) -> list[str]:
        if name:
            field = prog[name]
            say(field.curr_nr if hasattr(field, "curr_nr") else field, PLACES[name][0])
        return page_places(Memory(prog)).missing

    assert in_a_fork(lambda: missing("")) == []
    for name in (of_this := [name for name in PLACES if name in prog]):
        (words,) = in_a_fork(functools.partial(missing, name))
        assert re.fullmatch(PLACES[name][1], words), words
    assert of_this


@pytest.mark.any_kernel
def test_a_space_of_the_kernels_without_tables_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)

    def missing(name: str, pgd: int) -> list[str]:
        say(prog[name].pgd, pgd)
        return page_places(Memory(prog)).missing

    for name in ("poking_mm", "text_poke_mm"):  # arm64 has none
        if name in prog:
            pgd = prog[name].pgd.value_()
            assert in_a_fork(functools.partial(missing, name, pgd)) == []
            assert in_a_fork(functools.partial(missing, name, 0)) == [f"{name} has no page tables"]


def test_a_percpu_chunk_that_is_not_where_its_memory_is_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    further = next(chunk for kind, chunk in chunks(prog) if kind == OTHER)

    def notes(pages: int) -> list[str]:
        say(further.base_addr, further.base_addr.value_() + 4096 * pages)
        return percpu(prog)[2]

    assert in_a_fork(lambda: notes(0)) == []
    (words,) = in_a_fork(lambda: notes(1))
    assert re.search(r"chunk 0x\w+1000: its first vmalloc area begins at 0x\w+0000$", words)


def test_a_mount_whose_root_is_not_of_its_file_system_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    mount = next(each for each in for_each_mount(prog) if mount_dst(each) == b"/proc")

    def lost(root: int) -> int:
        say(mount.mnt.mnt_root, root)
        blocks = read_super_blocks(prog)
        assert any([blocks.roots(at) for at in range(len(blocks.address))])
        return blocks.mounts_lost

    assert in_a_fork(lambda: lost(mount.mnt.mnt_root.value_())) == 0
    for other in (NOWHERE, mount.mnt_parent.mnt.mnt_root.value_()):
        assert in_a_fork(functools.partial(lost, other)) == 1


def _task(prog: Program, comm: bytes) -> Any:
    return next(each for each in for_each_task(prog) if each.comm.string_() == comm)


@pytest.mark.any_kernel
def test_tasks_that_run_nowhere_or_are_of_no_kind_are_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    kswapd = _task(prog, b"kswapd0")
    state = kswapd.member_("__state" if hasattr(kswapd, "__state") else "state")

    def words(field: Any, value: int) -> list[str]:
        say(field, value)
        return states_apart(all_tasks(prog, Gaps()))

    assert in_a_fork(lambda: words(state, state.value_())) == []
    assert in_a_fork(lambda: words(state, 0)) == ["1 task runs on no queue of a CPU"]
    (said,) = in_a_fork(lambda: words(kswapd.flags, 0))
    assert said.startswith("1 task is no kernel thread, and without memory")


@pytest.mark.any_kernel
def test_a_slab_cache_of_a_name_that_sysfs_has_not_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)

    def words(letters: int) -> list[str]:
        name = cache(prog, b"dentry").name
        say(name, name.value_() + letters)
        return misnamed(prog)

    assert in_a_fork(lambda: words(0)) == []
    (said,) = in_a_fork(lambda: words(1))
    assert said.startswith("no slab cache in sysfs is called 'entry'")


@pytest.mark.any_kernel
@pytest.mark.parametrize("member", ["start", "end"])
def test_a_resource_beyond_its_parent_is_told_of(lab: Lab, member: str) -> None:
    prog = opened(lab.capture)
    each = prog["iomem_resource"].child
    while not each.child:
        each = each.sibling

    def why(value: int) -> str:
        say(each.child.member_(member), value)
        return io_resources(prog)[1]

    assert in_a_fork(lambda: why(each.child.member_(member).value_())) == ""
    assert "reaches beyond" in in_a_fork(lambda: why(1 << 62))


@pytest.mark.any_kernel
def test_a_resource_with_a_letter_off_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    each = prog["iomem_resource"].child
    while each.name.string_() != b"System RAM":
        each = each.sibling

    def why(letter: bytes) -> str:
        put(prog, each.name.value_(), letter)
        return io_resources(prog)[1]

    assert in_a_fork(lambda: why(b"S")) == ""
    assert in_a_fork(lambda: why(b"C")) == "no physical resource is called 'Cystem RAM'"


@pytest.mark.any_kernel
def test_a_lock_with_more_readers_than_there_are_tasks_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    mapping = find_task(prog, 1).mm.exe_file.f_mapping.read_()

    def problems(count: int) -> str:
        say(mapping.i_mmap_rwsem.count.counter, count)
        at, words = np.array([mapping.value_()], np.uint64), np.array([count], np.int64)
        return " ".join(taken_locks(prog, "struct address_space", "i_mmap_rwsem", at, words)[2])

    assert in_a_fork(lambda: problems(0)) == ""
    assert "36,028,797,018,963,967 readers: -0x1" in in_a_fork(lambda: problems(-1))
    assert "0 readers: 0x8" in in_a_fork(lambda: problems(8))


@pytest.mark.any_kernel
def test_a_peak_of_more_memory_than_there_is_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    peak = prog["root_mem_cgroup"].memory.watermark

    def marks(pages: int) -> list[str]:
        say(peak, pages)
        found = memory_cgroups_from_memory(Memory(prog)).impossible
        return [mark.bound for mark in found if mark.column_name == "peak_bytes"]

    assert in_a_fork(lambda: marks(peak.value_())) == []
    (words,) = in_a_fork(lambda: marks(1 << 40))
    assert words.endswith("as there is no more memory")


@pytest.mark.any_kernel
def test_an_area_whose_caller_is_no_code_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    area = find_task(prog, 1).stack_vm_area

    def whole(caller: int) -> bool:
        say(area.caller, caller)
        return vmalloc_areas(prog).whole

    caller = area.caller.value_()
    assert in_a_fork(lambda: whole(caller))
    assert not in_a_fork(lambda: whole(caller ^ 1 << 47))


@pytest.mark.any_kernel
def test_a_counter_of_half_of_its_pages_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    # A counter of nodes since v7.1.
    of_nodes = "nr_vmalloc_pages" not in prog
    total = prog["vm_node_stat"][prog.constant("NR_VMALLOC")] if of_nodes else None
    field = (prog["nr_vmalloc_pages"] if total is None else total).counter

    def remarks(none: bool) -> str:
        if none:
            say(field, 0)
        return " ".join(memory_ledger_from_memory(Memory(prog)).remarks)

    assert "less than half" not in in_a_fork(lambda: remarks(False))
    assert "nr_vmalloc: less than half of the pages" in in_a_fork(lambda: remarks(True))


@pytest.mark.any_kernel
def test_pipes_that_are_not_what_their_inode_or_indexes_say_are_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    files = open_files(Memory(prog)).files
    kinds = [prog.symbol(name).address for name in PIPES if prog.symbols(name)]
    ours = files[np.isin(files["f_op"], np.array(kinds, np.uint64))]
    pipes = [Object(prog, "struct pipe_inode_info", address=at) for at in ours["private_data"]]
    fullest = max(pipes, key=lambda pipe: (pipe.head - pipe.tail).value_() & 0xFFFFFFFF)
    second = fullest.bufs[(fullest.tail + 1) & (fullest.ring_size - 1)]
    private = Object(prog, "struct file", address=ours["address"][0]).private_data

    def notes(field: Object, value: int) -> str:
        say(field, value)
        return " ".join(page_holders_from_memory(Memory(prog)).notes)

    assert "pipe" not in in_a_fork(lambda: notes(private, private.value_()))
    assert "1 pipe or socket of no file" in in_a_fork(lambda: notes(private, NOWHERE))
    assert "the buffers of 1 are not those" in in_a_fork(lambda: notes(second.ops, 0))


@pytest.mark.any_kernel
def test_a_page_with_owners_of_objects_and_no_slab_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    mm = processes(prog)[0].mm
    page = follow_page(mm, mm.arg_start)
    word = page.member_("memcg_data" if hasattr(page, "memcg_data") else "mem_cgroup")

    def notes(value: int) -> str:
        say(word, value)
        return " ".join(memory_cgroups_from_memory(Memory(prog)).notes)

    assert "no memory cgroup" not in in_a_fork(lambda: notes(word.value_()))
    assert "no memory cgroup" in in_a_fork(lambda: notes(word.value_() | 1))


@pytest.mark.any_kernel
def test_inodes_of_shared_memory_that_cannot_be_are_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    inode = find_task(prog, 1).mm.exe_file.f_mapping.host
    dentry = find_task(prog, 1).mm.exe_file.f_path.dentry

    def found(field: Object, value: int) -> tuple[int, ...]:
        say(field, value)
        files = cached_files_once(Memory(prog))
        odd = files.numbers_unlike, files.dentries_lost, files.links_unlike, files.beyond_end
        return *odd, files.in_use

    knows_end = prog.type("struct shmem_inode_info").has_member("fallocend")
    assert in_a_fork(lambda: found(inode.i_ino, inode.i_ino.value_())) == (0, 0, 0, 0, 0)
    assert in_a_fork(lambda: found(inode.i_ino, 1 << 40)) == (1, 0, 0, 0, 0)
    assert in_a_fork(lambda: found(dentry.d_inode, NOWHERE)) == (0, 1, 0, 0, 0)
    assert in_a_fork(lambda: found(dentry.d_hash.pprev, 0)) == (0, 0, 1, 0, 0)
    assert in_a_fork(lambda: found(inode.i_size, 0)) == (0, 0, 0, int(knows_end), 0)
    assert in_a_fork(lambda: found(dentry.d_lockref.count, 1)) == (0, 0, 0, 0, 1)


@pytest.mark.any_kernel
def test_a_count_of_the_direct_map_beyond_it_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    if "direct_pages_count" not in prog:  # arm64
        return
    count = prog["direct_pages_count"][prog.constant("PG_LEVEL_4K")]

    def levels(value: int) -> int:
        say(count, value)
        return len(direct_map(prog, Gaps()))

    assert in_a_fork(lambda: levels(count.value_())) > 1
    with pytest.raises(RuntimeError, match="direct_pages_count is damaged: 1,099,511,627,776"):
        in_a_fork(lambda: levels(1 << 40))


@pytest.mark.any_kernel
def test_a_kswapd_that_was_asked_for_zones_of_another_node_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    asked = largest_zone(prog).zone_pgdat.kswapd_highest_zoneidx

    def words(zone: int) -> list[str]:
        say(asked, zone)
        return list(asked_of_no_zone(prog))

    assert in_a_fork(lambda: words(asked.value_())) == []
    assert in_a_fork(lambda: words(0)) == ["kswapd of node 1 was asked for zones that it has not"]

    def without_kswapd() -> list[str]:
        say(largest_zone(prog).zone_pgdat.kswapd, 0)
        return words(0)

    assert in_a_fork(without_kswapd) == []


@pytest.mark.any_kernel
def test_pools_and_queues_that_lead_elsewhere_are_told_of(lab: Lab) -> None:
    prog = opened(capture(lab.capture.kernel, "ledger"))
    pool = prog["atomic_pool_kernel"]
    pool = pool.pool if hasattr(pool, "pool") else pool
    head = pool.chunks.address_of_()
    chunk = next(iter(list_for_each_entry("struct gen_pool_chunk", head, "next_chunk")))
    queue = next(for_each_disk(prog)).queue

    def missing(field: Object, value: int) -> str:
        say(field, value)
        return " ".join(page_places(Memory(prog)).missing)

    assert in_a_fork(lambda: missing(queue.tag_set, queue.tag_set.value_())) == ""
    assert "a queue has no tags" in in_a_fork(lambda: missing(queue.tag_set, 0))
    assert "huge_zero_pfn is 0xf" in in_a_fork(lambda: missing(prog["huge_zero_pfn"], -1))
    assert "a pool of DMA memory is at" in in_a_fork(lambda: missing(chunk.phys_addr, 4096))


@pytest.mark.any_kernel
def test_a_device_of_another_name_or_with_less_than_nothing_to_write_is_told_of(lab: Lab) -> None:
    prog = opened(capture(lab.capture.kernel, "ledger"))
    head = prog["bdi_list"].address_of_()
    bdis = list(list_for_each_entry("struct backing_dev_info", head, "bdi_list"))
    bdi = max(bdis, key=lambda bdi: bdi.wb.stat[prog.constant("WB_DIRTIED")].count.value_())

    def lost(field: Object, value: int) -> str:
        say(field, value)
        words = list[str]()
        writeback_devices(prog, lambda bdi: "", lambda name: 0, words, None)
        return " ".join(words)

    name = bdi.dev_name[0]
    assert in_a_fork(lambda: lost(name, name.value_())) == ""
    assert "has another name" in in_a_fork(lambda: lost(name, ord("x")))
    under_way = bdi.wb.stat[prog.constant("WB_WRITEBACK")].count
    assert "-1,000 pages are counted" in in_a_fork(lambda: lost(under_way, -1000))


@pytest.mark.any_kernel
def test_a_counter_whose_name_was_cut_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    rows = vm_counters(prog)
    at = [row.name for row in rows].index("pgfault")
    assert names_apart(prog, rows) == []

    def odd() -> list[str]:
        put(prog, prog["vmstat_text"][at].value_() + 5, b"\0")
        return names_apart(prog, vm_counters(prog))

    assert in_a_fork(odd) == ["pgfau"]


@pytest.mark.any_kernel
def test_a_chunk_with_free_pages_and_no_hint_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    hint = max(chunk.chunk_md.contig_hint for _, chunk in chunks(prog))

    def notes(value: int) -> list[str]:
        say(hint, value)
        return percpu(prog)[2]

    assert in_a_fork(lambda: notes(hint.value_())) == []
    (words,) = in_a_fork(lambda: notes(0))
    assert "contig_hint has 0 bytes in one piece" in words


@pytest.mark.any_kernel
def test_an_area_that_begins_inside_a_page_is_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)
    areas = prog["vmap_nodes"][0].busy if "vmap_nodes" in prog else None
    root = prog["vmap_area_root"] if areas is None else areas.root
    area = container_of(root.rb_node, "struct vmap_area", "rb_node")

    def whole(start: int) -> bool:
        say(area.va_start, start)
        return vmalloc_areas(prog).whole

    start = area.va_start.value_()
    assert in_a_fork(lambda: whole(start))
    assert not in_a_fork(lambda: whole(start + 2048))


@pytest.mark.any_kernel
def test_names_of_tasks_that_are_not_there_are_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)

    def notes(lost: bool) -> str:
        if lost:
            say(prog["savedcmd"].cmdline_num, 0)
        return " ".join(page_holders_from_memory(Memory(prog)).notes)

    assert "names of tasks" not in in_a_fork(lambda: notes(False))
    # Of older kernels they are kmalloc()'s memory.
    if "savedcmd" in prog and saved_in_one_block(prog["savedcmd"]):
        assert "savedcmd leads elsewhere" in in_a_fork(lambda: notes(True))


@pytest.mark.any_kernel
def test_more_pinned_pages_than_there_are_pins_are_told_of(lab: Lab) -> None:
    prog = opened(lab.capture)

    def remarks(pages: int) -> list[str]:
        say(processes(prog)[0].mm.pinned_vm.counter, pages)
        return pins_from_memory(Memory(prog)).remarks

    assert in_a_fork(lambda: remarks(0)) == []
    (words,) = in_a_fork(lambda: remarks(100_000))
    assert words.startswith("processes say that they have pinned 100,000 pages (pinned_vm), but ")


@pytest.mark.any_kernel
def test_no_finding_is_made_of_a_column_with_a_value_that_cannot_be(lab: Lab) -> None:
    why = read(lab.capture, ASKED, ask=True).not_checked
    for finding in ("below-watermarks", "highatomic-starves-thp", "highatomic-reserve-full"):
        assert why[finding].startswith(
            "zones.highatomic_reserved_pages: 18,446,744,073,709,551,615 is beyond this machine's"
        )
    # What asks for other columns of that row, or for other rows of a table of counters, is made.
    assert "external-fragmentation" not in why
    assert "compaction-fails" not in why


LACKS = [(4, 200), (64 << 10, 64 << 10), (4, 8), (512, 1024)]


@pytest.mark.any_kernel
@pytest.mark.parametrize("lacks", LACKS if os.environ.get("MMSCOPE_ALL") else LACKS[:2])
def test_no_finding_is_made_of_struct_pages_that_a_dump_lacks(
    lab: Lab, lacks: tuple[int, int]
) -> None:
    whole, found = read(lab.capture, ask=True), read(lab.capture, ask=True, lacks=lacks)
    assert found.found <= whole.found
    assert found.sections["memory_ledger"].unreadable_bytes > 0
    for finding in ("free-lists-damaged", "free-pages-unaccounted"):
        assert finding not in whole.not_checked
        assert finding in found.not_checked


def test_a_whole_kernel_says_nothing_that_cannot_be(lab: Lab) -> None:
    whole = read(lab.capture, ask=True)
    assert not whole.marks
    assert {section.status for section in whole.sections.values()} <= {"ok", "absent"}


# Of the others test_no_debug_info.py reads every workload.
if here := (FUNCTIONS_ONLY | WITHOUT_BTF).intersection(KERNELS):

    @pytest.mark.parametrize("kernel", sorted(here))
    @pytest.mark.parametrize("workload", ["slab", "tables", "vmemmap", "rmap"])
    def test_no_workload_has_a_value_that_cannot_be(kernel: str, workload: str, say: Any) -> None:
        assert not read(capture(kernel, workload, say=say)).marks
