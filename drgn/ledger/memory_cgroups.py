# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The section of memory cgroups: the tree of them, what they use and may use, their pages by the
ledger's classes, and what keeps those that were removed.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
from drgn import Program

from mmscope.drgn.cgroups.cgroup_files import memory_cgroups_from_files
from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths, misplaced
from mmscope.drgn.cgroups.cgroup_rows import (
    MAX_COUNTED,
    V1,
    MemoryCgroup,
    MemoryCgroupCounter,
    MemoryCgroupPages,
    cgroup_rows,
    counter_rows,
    largest_first,
    page_rows,
)
from mmscope.drgn.cgroups.charged_pages import charges
from mmscope.drgn.cgroups.dying_pins import DyingPin, dying_pins
from mmscope.drgn.cgroups.memcgs import STATS, TIMES, Memcgs, memcgs_once
from mmscope.drgn.free.zones import node_page_state
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.ledger.page_kinds import KINDS
from mmscope.drgn.machine.vm_counters import drift
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.mem_sections import memory_pages
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Against, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.table import tables_of

NOT_IN_MEMORY = {"zswapped"}  # lines of memory.stat whose pages are swapped out
ROOT_LIMITS = ("max_bytes", "high_bytes", "swap_max_bytes")


def memory_cgroups_from_memory(memory: Memory) -> Found:
    memcgs = memcgs_once(memory)
    pages, gaps = ledger_pages(memory)
    more = Gaps(memcgs.gaps.bytes)
    paths = cgroup_paths(memory.prog, memcgs.columns["cgroup"], more)
    found = Found(memory.live)
    charged, unknown_pages = None, None
    if pages.charged is not None:
        charged, unknown_pages = charges(memory.prog, pages.charged, memcgs, more)
    rows = cgroup_rows(memcgs, paths, charged)
    found.add(MemoryCgroup, rows)
    if charged is not None and pages.charged is not None:
        kinds = [(kind.owner, kind.part) for kind in KINDS]
        classes = page_rows(memcgs, paths, charged, kinds)
        found.add(MemoryCgroupPages, classes)
        if not memory.live and not memcgs.flat:
            found.remarks += unlike_pages(memory.prog, rows, classes)
        pins = dying_pins(memory.prog, memcgs, pages.charged.mappings, charged, more)
        found.add(DyingPin, pins)
    counters = counter_rows(memcgs, paths)
    found.add(MemoryCgroupCounter, counters)
    found.unreadable_bytes = gaps.bytes + more.bytes
    if not memory.live:
        _hold_against_each_other(memcgs, rows, found)
        _hold_against_all(memcgs, rows, counters, found)
        odd = misplaced(memory.prog, memcgs.columns["cgroup"])
        found.notes += if_any(odd, "the directories of {} are not theirs", "memory cgroup")
    _say(found, memory, memcgs, sum(path is None for path, _ in paths), unknown_pages)
    return found


def _hold_against_each_other(memcgs: Memcgs, rows: list[MemoryCgroup], found: Found) -> None:
    """
    Mark what a cgroup of a dump uses, if those below it use more, and a peak that is no peak:
    ``page_counter_try_charge()`` (mm/page_counter.c) charges all on the way up.

    A CPU may have been on that way. Removed ones are left out: what they had passes to the parent
    (``memcg_reparent_objcgs()``, mm/memcontrol.c), and is taken from its counter alone when freed.
    """
    page = int(memcgs.prog["PAGE_SIZE"].value_())
    usage = memcgs.columns["memory.usage.counter"].astype(np.int64)
    below = np.zeros(len(usage), np.int64)
    child = (memcgs.parent >= 0) & ~memcgs.dying
    np.add.at(below, memcgs.parent[child], usage[child])
    order = largest_first(memcgs)
    sums = dict(zip(map(id, rows), (below[order] * page).tolist(), strict=True))
    most = drift(memcgs.prog) * page

    def of_children(row: MemoryCgroup) -> Against | None:
        return None if memcgs.flat else (max(row.usage_bytes or 0, sums[id(row)]), most)

    def highest(row: MemoryCgroup) -> Against:
        return max(row.peak_bytes or 0, row.usage_bytes or 0), most

    def of_root(row: MemoryCgroup) -> Against | None:
        return (0, 0) if row.depth == 0 else None

    swap = int(memcgs.prog["total_swap_pages"]) * page if "total_swap_pages" in memcgs.prog else 0

    def room(row: MemoryCgroup, name: str) -> Against:
        """Version 1 has memory and swap in one."""
        also = row.usage_bytes or 0 if name == "memsw_bytes" else 0
        return min(getattr(row, name) or 0, swap + also), most

    for name in ("low_bytes", "min_bytes", "low_events"):
        found.hold_against(rows, name, of_root, "as the root protects nothing")
    found.hold_against(rows, "high_events", of_root, "as the root has no limit")
    for name in ("swap_bytes", "memsw_bytes"):
        words = "as swap areas have no more room"
        found.hold_against(rows, name, partial(room, name=name), words)
    # mem_cgroup_write(), and CFTYPE_NOT_ON_ROOT of version 2 (mm/memcontrol.c)
    roots = [row for row in rows if row.depth == 0]
    if any(getattr(row, name) is not None for row in roots for name in ROOT_LIMITS):
        found.notes.append("the root of all memory cgroups has a limit, which the kernel refuses")
    found.hold_against(rows, "usage_bytes", of_children, "what those below use")
    found.hold_against(rows, "peak_bytes", highest, "what it uses now")
    # Of a machine from which three quarters were taken since, it may be more than there is.
    all_memory = 4 * memory_pages(memcgs.prog) * page

    def possible(row: MemoryCgroup) -> Against:
        return min(row.peak_bytes or 0, all_memory), 0

    found.hold_against(rows, "peak_bytes", possible, "as there is no more memory")
    try:
        cpus = len(online_cpus(memcgs.prog))
    except ValueError as error:  # what CPUs have not counted yet has no bound
        found.notes.append(str(error))
        return
    for name in ("max", "oom", "oom_kill"):

        def own(row: MemoryCgroup, name: str = name) -> Against | None:
            """Nothing from below gets to the root, nor anywhere with version 1."""
            mine, all_of = getattr(row, f"{name}_own_events"), getattr(row, f"{name}_events")
            if mine is None or all_of is None or row.depth is None:
                return None
            return (max(all_of, mine) if row.depth and memcgs.unified else mine), cpus

        found.hold_against(rows, f"{name}_events", own, "memory.events.local")


# A cgroup of this or fewer bytes may be half another one before its counters are flushed.
MOST_UNFLUSHED = 64 << 20


def unlike_pages(
    prog: Program, rows: list[MemoryCgroup], classes: list[MemoryCgroupPages]
) -> Iterator[str]:
    """
    Words where memory.stat has not half of what was counted of a cgroup, or more than twice as
    much: it is flushed every two seconds (FLUSH_TIME, mm/memcontrol.c).
    """
    page, counted = int(prog["PAGE_SIZE"].value_()), Counter[tuple[str | None, int | None, str]]()
    for each in classes:
        counted[each.cgroup, each.cgroup_id, each.owner] += each.pages_below * page
    for name, owner in (("anon_bytes", "anonymous"), ("file_bytes", "page cache")):
        odd = 0
        for row in rows:
            said = getattr(row, name) or 0
            there = counted[row.cgroup, row.cgroup_id, owner]
            odd += abs(said - there) > max(MOST_UNFLUSHED, max(said, there) // 2)
        if odd:
            yield (
                f"{name} of {plural(odd, 'memory cgroup')} are far from what was counted of "
                "their pages: not flushed yet, or damage"
            )


def _hold_against_all(
    memcgs: Memcgs, rows: list[MemoryCgroup], counters: list[MemoryCgroupCounter], found: Found
) -> None:
    """
    Mark lines of memory.stat that are more than the cgroup ever had (``page_counter.watermark``;
    the root's own pages are charged to no counter), and events that are more than the nodes
    counted: ``mod_lruvec_state()`` (include/linux/vmstat.h) counts both.
    """
    prog = memcgs.prog
    page = int(prog["PAGE_SIZE"].value_())
    memory, most = memory_pages(prog) * page, drift(prog)
    had = {
        (row.cgroup, row.cgroup_id): max(row.peak_bytes or 0, row.usage_bytes or 0)
        for row in rows
        if row.depth and not memcgs.flat
    }
    counted = {
        name: sum(node_page_state(pgdat, items[0]) for pgdat in online_nodes(prog))
        for name, items, unit in STATS
        if unit == TIMES and name in memcgs.stats
    }

    def bound(row: MemoryCgroupCounter) -> Against | None:
        if row.counter in counted:
            return min(row.value, counted[row.counter]), most
        if row.counter in NOT_IN_MEMORY:
            return None
        return min(row.value, had.get((row.cgroup, row.cgroup_id), memory)), most * page

    words = "the most that the cgroup has had, or what nodes have counted"
    found.hold_against(counters, "value", bound, words)


def _say(
    found: Found,
    memory: Memory,
    memcgs: Memcgs,
    no_path: int,
    unknown_pages: int | None,
) -> None:
    """Say why tables are not whole, and what to know of them."""
    gone = found.remarks if memory.live else found.notes
    gone += if_any(memcgs.vanished, "{} entries of css_idr are no memory cgroups")
    found.notes += if_any(memcgs.damaged_nodes, "{} nodes of css_idr cannot be read")
    for words, count in (
        ("have no path that can be read", no_path),
        ("have no way up to the root", int((memcgs.depth < 0).sum())),
        ("have flags that none has, or are the root and dying", memcgs.odd_flags),
        ("have no counters that can be read", int((~memcgs.stats_read).sum())),
    ):
        gone += if_any(count, f"{{}} memory cgroups {words}")
    if unknown_pages is None:
        found.notes.append("pages are not counted: struct page has no memcg_data")
    elif unknown_pages:
        charged = plural(unknown_pages, "page is", "pages are")
        gone.append(f"{charged} charged to no memory cgroup that is known")
    if len(memcgs.address) > MAX_COUNTED:
        found.unlisted.append(
            f"memory_cgroup_counters has the {MAX_COUNTED:,} largest of "
            f"{len(memcgs.address):,} memory cgroups"
        )
    if not memcgs.unified:
        found.remarks.append(V1)
    if memcgs.flat:
        found.remarks.append(
            "memory.use_hierarchy is 0 above some memory cgroups: what these use is in the usage "
            "of the root, and in none between"
        )


MEMORY_CGROUPS_SECTION = Section(
    name="memory_cgroups",
    title="Memory cgroups",
    since="0.2.0",
    tables=tables_of(MemoryCgroup, MemoryCgroupPages, DyingPin, MemoryCgroupCounter),
    intro="""
The tree of [memory cgroups](https://docs.kernel.org/admin-guide/cgroup-v2.html#memory): what each
uses, what it may use, and what happened to it. Usage, events and counters are with those of the
cgroups below; pages are those that are charged to the cgroup itself, in the classes of the ledger.
The usage of the root is what all others use: its own memory is not limited, and not in it.

A cgroup that was removed stays in the kernel, *dying*, while anything refers to it. Until 6.12 each
page that is charged to it does, so that a file that outlives the service that wrote it keeps the
service's cgroup; in 7.2 such pages are charged to the parent.
""",
    command=Command("the memory cgroups, and what keeps dying ones", top=TOP),
    from_memory=memory_cgroups_from_memory,
    from_files=memory_cgroups_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.CGROUPS,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_cgroups")
