# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sections about reverse maps: anon_vmas, mapped files, KSM, the cost of walks."""

import contextlib

import numpy as np

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.processes.processes import PROCESS_VMAS, ProcessVmas, read_process_vmas
from mmscope.drgn.rmap.anon_vma_trees import ANON_VMA_CHECKS, check_sample, owner_of
from mmscope.drgn.rmap.anon_vmas import (
    ANON_VMA_FANOUT,
    ANON_VMA_MAP,
    ANON_VMAS,
    anon_vma_rows,
    fanout,
    process_vmas,
    tree_map,
)
from mmscope.drgn.rmap.file_maps import (
    FILE_MAPPING_FANOUT,
    FILE_MAPPINGS,
    FileMapping,
    MappedFiles,
    file_fanout,
    file_mapping_rows,
    mapped_files,
)
from mmscope.drgn.rmap.file_trees import FILE_MAPPING_CHECKS
from mmscope.drgn.rmap.file_trees import check_sample as check_file_sample
from mmscope.drgn.rmap.file_trees import owner_of as file_owner_of
from mmscope.drgn.rmap.folio_walks import (
    ANON_FOLIO_WALKS,
    FolioPlaces,
    anon_folio_walks,
    folio_places,
    scan_folios,
)
from mmscope.drgn.rmap.ksm import (
    KSM_CHAINS,
    KSM_PROCESSES,
    KSM_TOTALS,
    ksm_chains,
    ksm_processes,
    ksm_totals,
    read_ksm_totals,
)
from mmscope.drgn.rmap.ksm_visits import ksm_items_by_anon_vma
from mmscope.drgn.rmap.reverse_maps import mapped_file_trees, reverse_maps
from mmscope.drgn.rmap.rmap_cost import (
    KSM_PAGES,
    RMAP_COSTS,
    RMAP_WALKS,
    ksm_pages,
    node_cost,
    rmap_costs,
    rmap_walks,
)
from mmscope.drgn.rmap.rwsem_waiters import (
    ANON_VMA_LOCKS,
    ANON_VMA_WAITERS,
    FILE_MAPPING_LOCKS,
    FILE_MAPPING_WAITERS,
    anon_vma_locks,
    file_mapping_locks,
)
from mmscope.drgn.rmap.vma_splits import VMA_NEIGHBOURS, VMA_SPLITS, vma_splits
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.apart import reader_apart
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section, disagreement
from mmscope.drgn.tables.display import plural


def anon_vmas_from_memory(memory: Memory) -> Found:
    rmap = reverse_maps(memory)
    maps = rmap.maps
    found = Found(unreadable_bytes=maps.unreadable_bytes)
    _rmap_notes(memory, found)
    checks = maps.checks + check_sample(memory.prog, maps)
    if checks:
        disagreement(
            memory,
            found,
            f"{plural(len(checks), 'count')} of anon_vmas that do not fit together "
            "(anon_vma_checks)",
        )
    items = ksm_items_by_anon_vma(maps, rmap.visits) if rmap.visits else None
    rows = anon_vma_rows(maps, items)
    if len(rows) < len(maps.anon_vmas):
        found.unlisted.append(
            f"{len(rows):,} of {len(maps.anon_vmas):,} anon_vmas are listed, those with most VMAs "
            "first; anon_vma_fanout has them all"
        )
    found.add(ANON_VMA_FANOUT, fanout(maps, items))
    # Of several, the one that comes first in anon_vmas.
    sizes = maps.tree_size
    order = np.lexsort((sizes if items is None else items, sizes))
    largest = int(order[-1]) if len(order) else -1
    index = None
    if rmap.visits is not None and largest >= 0:
        index = rmap.visits.index[(rmap.visits.anon_vma == largest) & rmap.visits.placed]
    found.add(
        ANON_VMA_MAP,
        tree_map(maps, largest, index) if largest >= 0 else [],
    )
    sums, kinds, problems = vma_splits(memory.prog, maps, rmap.vma_slots)
    found.add(VMA_SPLITS, sums)
    found.add(VMA_NEIGHBOURS, kinds)
    found.add(ANON_VMAS, rows)
    locks, queued, more_problems = anon_vma_locks(memory.prog, maps)
    for problem in problems + more_problems:
        disagreement(memory, found, problem)
    found.add(ANON_VMA_LOCKS, locks)
    found.add(ANON_VMA_WAITERS, queued)
    rows_by_process = process_vmas(memory.prog, maps)
    found.add(PROCESS_VMAS, rows_by_process)
    return found.add(ANON_VMA_CHECKS, checks)


def anon_vmas_from_files(files: Files) -> Found:
    rows, missing, _ = _process_maps(files)
    if not rows and not missing:
        raise Absent(f"{files.root}: proc has no maps of processes; anon_vmas are in memory only")
    found = Found(remarks=["anon_vmas are in the kernel's memory only; VMAs are counted from maps"])
    _say_missing(found, missing)
    return found.add(PROCESS_VMAS, rows[:500])


NAMED = 5  # of the processes that something is wrong with


def _process_maps(
    files: Files,
) -> tuple[list[ProcessVmas], dict[str, list[int]], MappedFiles]:
    """
    /proc/PID/maps of all processes, each read once, by a process that may be left behind.

    :return: the processes, those that are missing by reason, and the files they map.
    """
    if "process_maps" not in files.kept:
        pids = files.numbers("proc", r"(\d+)")
        mapped = MappedFiles()
        with reader_apart() as reader:

            def read_maps(path: str) -> str:
                text = files.open_apart(path, reader)
                mapped.take(int(path.split("/")[1]), text)
                return text

            files.kept["process_maps"] = *read_process_vmas(files.open, pids, read_maps), mapped
    kept: tuple[list[ProcessVmas], dict[str, list[int]], MappedFiles] = files.kept["process_maps"]
    return kept


def _say_missing(found: Found, missing: dict[str, list[int]]) -> None:
    """Count and name the processes whose maps could not be read."""
    for why, these in missing.items():
        named = ", ".join(map(str, these[:NAMED])) + (", …" if len(these) > NAMED else "")
        found.notes.append(
            f"{plural(len(these), 'process', 'processes')} not counted: maps of {named}: {why}"
        )


def file_maps_from_memory(memory: Memory) -> Found:
    maps = mapped_file_trees(memory)
    found = Found(unreadable_bytes=maps.gaps.bytes + reverse_maps(memory).maps.unreadable_bytes)
    _rmap_notes(memory, found)
    if maps.gaps.bytes:
        words = f"{maps.gaps.bytes:,} bytes of files, mappings and inodes could not be read"
        disagreement(memory, found, words)
    checks = maps.checks + check_file_sample(memory.prog, maps)
    if checks:
        disagreement(
            memory,
            found,
            f"{plural(len(checks), 'count')} of mapped files that do not fit together "
            "(file_mapping_checks)",
        )
    rows = file_mapping_rows(memory.prog, maps)
    _not_all(found, rows, len(maps.mapping))
    found.add(FILE_MAPPING_FANOUT, file_fanout(maps))
    found.add(FILE_MAPPINGS, rows)
    locks, queued, problems = file_mapping_locks(memory.prog, maps)
    for problem in problems:
        disagreement(memory, found, problem)
    found.add(FILE_MAPPING_LOCKS, locks)
    found.add(FILE_MAPPING_WAITERS, queued)
    return found.add(FILE_MAPPING_CHECKS, checks)


def file_maps_from_files(files: Files) -> Found:
    processes, missing, mapped = _process_maps(files)
    if not processes and not missing:
        raise Absent(f"{files.root}: proc has no maps of processes")
    page_size = None
    with contextlib.suppress(Absent):
        page_size = describe_files(files).page_size
    comms = {row.pid: row.comm for row in processes}
    rows, classes = mapped_files(mapped, comms, page_size)
    found = Found(remarks=["counted from maps, by device and inode"])
    _say_missing(found, missing)
    _not_all(found, rows, len(mapped.numbers))
    found.add(FILE_MAPPING_FANOUT, classes)
    return found.add(FILE_MAPPINGS, rows)


def _not_all(found: Found, rows: list[FileMapping], files: int) -> None:
    if len(rows) < files:
        found.unlisted.append(
            f"{len(rows):,} of {files:,} mapped files are listed, those with most VMAs and those "
            "with most over one page; file_mapping_fanout has them all"
        )


NO_KSM = "the kernel has no KSM (CONFIG_KSM)"


def ksm_from_memory(memory: Memory) -> Found:
    rmap = reverse_maps(memory)
    if rmap.ksm is None or rmap.visits is None:
        raise Absent(NO_KSM)
    found = Found(unreadable_bytes=rmap.maps.unreadable_bytes)
    _rmap_notes(memory, found)
    totals = ksm_totals(memory.prog, rmap.ksm)
    wrong = [row.name for row in totals if row.counted not in (None, row.value)]
    if wrong or rmap.ksm.problems:
        words = [*rmap.ksm.problems]
        if wrong:
            words.append(f"{', '.join(wrong)} differ from what the stable trees have (ksm_totals)")
        disagreement(memory, found, "; ".join(words))
    found.add(KSM_TOTALS, totals)
    pages = ksm_pages(memory.prog, rmap.ksm, rmap.visits, node_cost(memory.rmap_node_ns))
    if len(pages) < len(rmap.ksm.node):
        found.unlisted.append(
            f"{len(pages):,} of {len(rmap.ksm.node):,} KSM pages are listed, the most expensive"
        )
    found.add(KSM_CHAINS, ksm_chains(rmap.ksm))
    rows = ksm_processes(memory.prog, rmap.ksm, rmap.maps)
    found.add(KSM_PROCESSES, rows)
    return found.add(KSM_PAGES, pages)


def ksm_from_files(files: Files) -> Found:
    folder = files.root / "sys/kernel/mm/ksm"
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        raise Absent(
            f"{folder} is not there: {NO_KSM}, or the tree was copied without it"
        ) from None
    rows = read_ksm_totals(names, lambda name: files.open(f"sys/kernel/mm/ksm/{name}"))
    return Found().add(KSM_TOTALS, rows)


def rmap_cost_from_memory(memory: Memory) -> Found:
    rmap, files = reverse_maps(memory), mapped_file_trees(memory)
    kept = memory.kept_consumer(FolioPlaces)
    folios, of_files, gaps = scan_folios(
        memory.prog,
        rmap.maps,
        files,
        progress=memory.progress,
        jobs=memory.jobs,
        places=kept[0] if kept else None,
    )
    cost = node_cost(memory.rmap_node_ns)
    found = Found(unreadable_bytes=gaps.bytes + files.gaps.bytes + rmap.maps.unreadable_bytes)
    _rmap_notes(memory, found)
    if gaps.bytes:
        found.notes.append(f"{gaps.bytes:,} bytes of struct pages could not be read{gaps.why}")
    if files.gaps.bytes:
        words = f"{files.gaps.bytes:,} bytes of mapped files could not be read"
        disagreement(memory, found, words)
    if folios.unknown:
        words = f"{folios.unknown:,} anonymous folios are of no anon_vma that was found"
        disagreement(memory, found, words)
    measured = "as given" if cost.measured else "not measured here: give --rmap-node-ns"
    found.remarks.append(
        f"times are estimates: visits times {cost.ns:g} ns ({cost.low:g} to {cost.high:g}), "
        f"{measured}; {cost.one:g} ns ({cost.one_low:g} to {cost.one_high:g}) for those of VMAs "
        "that may map the page"
    )
    walks = rmap_walks(
        rmap.maps,
        rmap.ksm,
        rmap.visits,
        folios,
        owner_of(rmap.maps),
        cost,
        (of_files, file_owner_of(files)) if of_files else None,
    )
    costs = rmap_costs(rmap.visits, folios, cost, of_files)
    found.add(RMAP_COSTS, costs)
    found.add(RMAP_WALKS, walks)
    return found.add(
        ANON_FOLIO_WALKS,
        anon_folio_walks(folios),
    )


def rmap_cost_from_files(files: Files) -> Found:
    raise Absent("reverse maps are in the kernel's memory only; read that (as root)")


def _rmap_notes(memory: Memory, found: Found) -> None:
    """What keeps the reverse maps themselves from being whole."""
    rmap, notes = reverse_maps(memory), found.notes
    if rmap.maps.orphans:
        words = (
            f"{rmap.maps.orphans:,} anon_vma_chains are only in a tree, or only on the list of a "
            "VMA, as while it is split"
        )
        if rmap.maps.attempts > 1:
            words += f" (the best of {rmap.maps.attempts} readings)"
        disagreement(memory, found, words)
    if rmap.maps.unreadable_bytes:
        notes.append(
            f"{rmap.maps.unreadable_bytes:,} bytes of slabs could not be read: what is in them, "
            "and in trees below them, is not counted"
        )
    if rmap.maps.odd_slabs:
        notes.append(f"{plural(rmap.maps.odd_slabs, 'damaged slab')} not used")
    if rmap.maps.tasks.unreadable:
        notes.append(
            f"{plural(rmap.maps.tasks.unreadable, 'process', 'processes')} could not be read"
        )
    if rmap.maps.tasks.gone:
        found.remarks.append(
            f"{plural(rmap.maps.tasks.gone, 'process', 'processes')} ended while being read"
        )


ANON_VMAS_SECTION = Section(
    name="anon_vmas",
    title="Reverse maps",
    tables=(
        ANON_VMA_FANOUT,
        ANON_VMA_MAP,
        VMA_SPLITS,
        VMA_NEIGHBOURS,
        ANON_VMAS,
        ANON_VMA_LOCKS,
        ANON_VMA_WAITERS,
        PROCESS_VMAS,
        ANON_VMA_CHECKS,
    ),
    intro="""
Anonymous pages are found through their `anon_vma`: a tree of the VMAs that may map them, with a
lock for all that were forked from one ([kernel documentation: process
addresses](https://docs.kernel.org/mm/process_addrs.html)). Every VMA that `mprotect` or
`madvise` splits off stays on the same one. What a walk then costs is in the section on the cost
of reverse map walks.
""",
    command=Command("anon_vmas by their VMAs", top=TOP, picks="anon_vma"),
    from_memory=anon_vmas_from_memory,
    from_files=anon_vmas_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.MAPS, prices.STATUS, prices.SETTINGS),
)


FILE_MAPS_SECTION = Section(
    name="file_maps",
    title="File reverse maps",
    since="0.2.0",
    tables=(
        FILE_MAPPING_FANOUT,
        FILE_MAPPINGS,
        FILE_MAPPING_LOCKS,
        FILE_MAPPING_WAITERS,
        FILE_MAPPING_CHECKS,
    ),
    intro="""
Pages of files, of shared memory and of hugetlbfs are found through their file's
`address_space`: `i_mmap` is the tree of all VMAs that map the file, in all processes, under one
lock, `i_mmap_rwsem` ([kernel documentation: process
addresses](https://docs.kernel.org/mm/process_addrs.html)). A walk takes the lock to read and
visits the VMAs that lie over the page, on every kernel; `mmap`, `munmap`, `fork` and the end of
a process take it to write, once for each VMA that maps the file. So a page that very many VMAs
map is slow to reclaim, to write back and to migrate, and the lock of a file that very many
processes map is contended. What walks of cached pages cost is in the section on the cost of
reverse map walks.
""",
    command=Command("mapped files by their VMAs", top=TOP, picks="address_space"),
    from_memory=file_maps_from_memory,
    from_files=file_maps_from_files,
    deadline=PASS_SECONDS,
    reads=(
        prices.MAPS,
        prices.STATUS,
        prices.SETTINGS,
        prices.ZONEINFO,
        prices.MEMINFO,
        prices.NAMES,
    ),
)


KSM_SECTION = Section(
    name="ksm",
    title="KSM",
    tables=(
        KSM_TOTALS,
        KSM_CHAINS,
        KSM_PROCESSES,
        KSM_PAGES,
    ),
    intro="""
Pages with the same content that KSM has merged ([kernel documentation: kernel samepage
merging](https://docs.kernel.org/admin-guide/mm/ksm.html)). What was found in its stable trees
stands beside what the kernel counts. A content with more mappings than `max_page_sharing` has a
chain of pages.
""",
    command=Command("KSM's counters, chains, pages and processes", top=TOP),
    from_memory=ksm_from_memory,
    from_files=ksm_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.SETTINGS,),
)


RMAP_COST_SECTION = Section(
    name="rmap_cost",
    title="The cost of reverse map walks",
    tables=(
        RMAP_COSTS,
        RMAP_WALKS,
        ANON_FOLIO_WALKS,
    ),
    intro="""
Reclaim, compaction and migration find the mappings of a page by a walk through trees of VMAs
([kernel documentation: page migration](https://docs.kernel.org/mm/page_migration.html)). Visits
are counted exactly, by the rules of this kernel; *times are estimates*, visits times what one
visit costs, with a low and a high end. A walk holds the page's lock from its beginning to its
end. The lock of the anon_vma, or of the file's mappings, is held for all of it as well. A walk
of a KSM page locks and unlocks each mapping's anon_vma in turn instead, so that it holds a lock
as many times as the page has mappings. Reclaim and the unmapping of a migration take one pass
over the mappings of a KSM page, unless processes that were forked since map it too. To map it
again after the migration takes two.
""",
    command=Command("what reverse map walks visit", top=TOP, picks="anon_vma"),
    from_memory=rmap_cost_from_memory,
    from_files=rmap_cost_from_files,
    deadline=PASS_SECONDS,
    consumer=folio_places,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("anon_vmas", "file_maps", "ksm", "rmap_cost")
