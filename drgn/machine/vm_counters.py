# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``vm_zone_stat``, ``vm_numa_event``, ``vm_node_stat`` and ``vm_event_states``: /proc/vmstat.

Names are the kernel's own (``vmstat_text[]``, mm/vmstat.c), so a counter that a new kernel adds is
there without a change here. The values are exact: each CPU's difference that is not folded in yet
is added, and shown beside it, since /proc/vmstat lags by it. Costs a few reads a CPU and zone.

In a dump each is held against its parts: what zones and nodes have of it themselves, and what a CPU
may hold back.

These are counters since boot, or states, and not rates. A rate takes two readings.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from drgn import FaultError, Object, ObjectNotFoundError, Program, ProgramFlags, sizeof
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.free.zones import per_cpu_zone_stats, thp_in_pages
from mmscope.drgn.opening.constants import pmd_order
from mmscope.drgn.reading.cpus import copy_of, online_cpus
from mmscope.drgn.reading.kernel_arrays import S64s, read_whole
from mmscope.drgn.reading.kernel_names import names_at, nearly
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Against, Command, Found, Section
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import LONGEST_NAME, MOST, Bound, column, event_column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.meminfo import counters_of_meminfo
from mmscope.drgn.text.proc_text import SINCE_BOOT, parse_vmstat

# States count page frames, each once, or what takes memory: KiB of stacks, nodes of xarrays. All
# else is counted since boot (5.10 to 7.3).
RANGES: dict[str, tuple[Bound, Bound]] = {
    "nr_*": (0, "total_pages"),
    **dict.fromkeys(
        ("nr_kernel_stack", "nr_shadow_call_stack", "workingset_nodes"), (0, "total_bytes")
    ),
    "nr_tlb_*": (0, MOST),
    "nr_vmscan_*": (0, MOST),
    "nr_foll_pin_*": (0, MOST),
    **dict.fromkeys(("nr_dirtied", "nr_written", "nr_throttled_written"), (0, MOST)),
    # A kernel that forgets to count down has more than there is (file-lists-miscounted), if not
    # beyond any machine.
    **dict.fromkeys(("nr_active_file", "nr_inactive_file"), (0, 1 << 36)),
    **dict.fromkeys(("nr_zone_active_file", "nr_zone_inactive_file"), (0, 1 << 36)),
}
# vmstat_refresh() (mm/vmstat.c): "stats known to go negative occasionally".
BELOW_ZERO = {"nr_zone_write_pending", "nr_free_cma", "nr_writeback"}


@table("vm_counters", "Counters of /proc/vmstat", since_boot=SINCE_BOOT)
class VmCounter:
    """One line of /proc/vmstat."""

    name: str = column(
        holds="kernel", key=True, low=1, high=LONGEST_NAME, help="as in /proc/vmstat"
    )
    kind: str = column(
        holds="words",
        help="zone, vm_stat: states; event, numa: since boot; node: states, but pg*, nr_vmscan_*, "
        "nr_dirtied, nr_written, nr_throttled_written, nr_foll_pin_* and workingset_* without "
        "workingset_nodes since boot; before 4.8 zones' are here, too",
    )
    value: int = event_column(
        ranges=RANGES, help="in /proc/vmstat's unit, per-CPU differences included"
    )
    unfolded: int | None = column(
        low=None,
        help="per-CPU part, missing in /proc/vmstat",
    )


# vmstat_item_print_in_thp() (include/linux/mmzone.h): kept in base pages (see thp_in_pages()),
# printed in huge pages.
IN_THP = {
    "nr_anon_transparent_hugepages",
    "nr_file_hugepages",
    "nr_shmem_hugepages",
    "nr_file_pmdmapped",
    "nr_shmem_pmdmapped",
}
# Of the threshold, and of that in the background: bytes, or else a hundredth.
DIRTY = (
    ("vm_dirty_bytes", "vm_dirty_ratio"),
    ("dirty_background_bytes", "dirty_background_ratio"),
)
# vmstat_start(): kept in sectors, printed in KiB.
IN_SECTORS = {"pgpgin", "pgpgout"}


def _counters(prog: Program, array: Object) -> S64s:
    """An array of atomic_long_t as numbers."""
    assert array.address_ is not None
    return read_whole(prog, array.address_, array.type_.length or 0, np.dtype("<i8"))


def _differences(structures: Iterable[Object], member: str, count: int) -> S64s:
    """The sum of a per-CPU array of s8 (u16, unsigned long) over structures."""
    total = np.zeros(count, np.int64)
    for structure in structures:
        array = structure.member_(member)
        assert array.address_ is not None
        sign = "i" if array.type_.type.unaliased().is_signed else "u"
        dtype = np.dtype(f"<{sign}{sizeof(array.type_) // count}")
        total += read_whole(structure.prog_, array.address_, count, dtype).astype(np.int64)
    return total


def _per_cpu(prog: Program) -> tuple[list[Object], list[Object]]:
    """Counts of zones, and of nodes, that CPUs have not folded in yet."""
    cpus, nodes = online_cpus(prog), online_nodes(prog)
    zones = [zone for node in nodes for zone in node.node_zones if zone.present_pages.value_()]
    return (
        [per_cpu_zone_stats(zone, cpu) for zone in zones for cpu in cpus],
        [copy_of(node.per_cpu_nodestats, cpu) for node in nodes for cpu in cpus],
    )


def vm_counters(prog: Program) -> list[VmCounter]:
    """
    All of /proc/vmstat, in its order.

    :raises FaultError: a counter cannot be read.
    :raises LookupError: the kernel is built without CONFIG_VM_EVENT_COUNTERS.
    """
    cpus = online_cpus(prog)
    zonestats, nodestats = _per_cpu(prog)
    values: list[tuple[str, S64s, S64s]] = []

    def state(kind: str, array: Object, structures: Iterable[Object], member: str) -> None:
        folded = _counters(prog, array)
        values.append((kind, folded, _differences(structures, member, len(folded))))

    state("zone", prog["vm_zone_stat"], zonestats, "vm_stat_diff")
    # The first since "mm/vmstat: convert NUMA statistics to basic NUMA counters" (f19298b9516c, in
    # v5.14). A kernel without CONFIG_NUMA has none of them: the first is there, without items.
    for name, member in (("vm_numa_event", "vm_numa_event"), ("vm_numa_stat", "vm_numa_stat_diff")):
        if name in prog and prog[name].type_.length:
            state("numa", prog[name], zonestats, member)
    state("node", prog["vm_node_stat"], nodestats, "vm_node_stat_diff")
    derived = np.array(_vm_stat_items(prog, values), np.int64)
    values.append(("vm_stat", derived, np.zeros_like(derived)))
    events = prog["vm_event_states"].event
    folded = np.zeros(events.type_.length or 0, np.int64)
    for cpu in cpus:
        folded += _counters(prog, per_cpu(events, cpu))
    values.append(("event", folded, np.zeros_like(folded)))

    names = _names(prog)
    if len(names) != sum(len(folded) for _, folded, _ in values):
        raise LookupError(
            f"vmstat_text has {len(names)} names for {sum(len(v) for _, v, _ in values)} counters"
        )
    huge = 1 << pmd_order(prog) if thp_in_pages(prog) else 1
    running = bool(prog.flags & ProgramFlags.IS_LIVE)
    rows: list[VmCounter] = []
    for kind, folded, differences in values:
        for value, difference in zip(folded.tolist(), differences.tolist(), strict=True):
            name = names[len(rows)]
            scale = huge if name in IN_THP else 2 if name in IN_SECTORS else 1
            # The kernel shows a state that is below zero for a moment as zero. In a dump, with the
            # differences, none is but by damage.
            shown, exact = max(value, 0) // scale, (value + difference) // scale
            if running or name in BELOW_ZERO:
                exact = max(exact, 0)
            rows.append(VmCounter(name, kind, exact, exact - shown))
    return rows


def vm_counters_once(memory: Memory) -> list[VmCounter]:
    """All of /proc/vmstat: of a dump once for all sections; a live kernel is asked each time."""
    if memory.live:
        return vm_counters(memory.prog)
    return memory.once("vm_counters", lambda: vm_counters(memory.prog))


def _names(prog: Program) -> list[str]:
    """``vmstat_text[]``, read at once."""
    texts = prog["vmstat_text"]
    assert texts.address_ is not None
    where = read_whole(prog, texts.address_, texts.type_.length or 0, np.dtype("<u8"))
    names = names_at(prog, where)
    for name, address in zip(names, where.tolist(), strict=True):
        if name is None:
            raise FaultError("the name of a counter cannot be read", address)
    return [name for name in names if name is not None]


def _vm_stat_items(prog: Program, values: list[tuple[str, S64s, S64s]]) -> list[int]:
    """The items of ``enum vm_stat_item`` (``enum writeback_stat_item`` before v6.12)."""
    folded = {kind: array for kind, array, _ in values}
    items = list(dirty_thresholds(prog, folded["zone"], folded["node"]))
    for name in ("nr_memmap_pages", "nr_memmap_boot_pages"):
        # "mm: don't account memmap per-node" (f4cb78af91e3, in v6.12)
        try:
            items.append(prog[name].counter.value_())
        except ObjectNotFoundError:
            break
    return items


def dirty_thresholds(prog: Program, zone_stat: S64s, node_stat: S64s) -> tuple[int, int]:
    """
    ``global_dirty_limits()`` (mm/page-writeback.c): (threshold, background threshold) in pages.

    Derived from the counters at this moment, as /proc/vmstat derives them when it is read.
    """

    def count(array: S64s, item: str) -> int:
        return max(int(array[prog.constant(item)]), 0)

    free = count(zone_stat, "NR_FREE_PAGES")
    available = free - min(free, prog["totalreserve_pages"].value_())
    available += count(node_stat, "NR_INACTIVE_FILE") + count(node_stat, "NR_ACTIVE_FILE") + 1
    page = 1 << prog["PAGE_SHIFT"].value_()

    def threshold(bytes_name: str, ratio_name: str) -> int:
        if size := prog[bytes_name].value_():
            return int(-(-size // page))
        return int(prog[ratio_name].value_() * page // 100 * available // page)

    limit, background = (threshold(*names) for names in DIRTY)
    return limit, (limit // 2 if background >= limit else background)


def read_vmstat(text: str) -> list[VmCounter]:
    """
    The same rows from /proc/vmstat.

    :raises ValueError: the text is not /proc/vmstat's, or not all of it.
    """
    return [VmCounter(*row, None) for row in parse_vmstat(text)]


def counter(rows: Iterable[VmCounter], name: str) -> Any:
    """The value of one counter, None if this kernel does not have it."""
    return next((row.value for row in rows if row.name == name), None)


# MAX_THRESHOLD of calculate_normal_threshold() (mm/vmstat.c).
MOST_HELD_BACK = 125


def normal_threshold(cpus: int, pages: int, page_shift: int) -> int:
    """
    ``calculate_normal_threshold()`` (mm/vmstat.c): so many pages a CPU holds back of a counter of a
    zone at most.

    :param pages: the zone's, managed.
    """
    memory = max(pages, 0) >> (27 - page_shift)
    return min(2 * cpus.bit_length() * (1 + memory.bit_length()), MOST_HELD_BACK)


def drift(prog: Program) -> int:
    """
    By how many pages a counter of a dump may differ from what it counts: each CPU may have been
    stopped between the two, with as much as it may hold back.
    """
    try:
        cpus = len(online_cpus(prog))
    except ValueError:  # the mask is damaged, which sections say that need it
        return MOST_HELD_BACK
    shift = int(prog["PAGE_SHIFT"].value_())
    pages = [
        int(zone.managed_pages.counter.value_())
        for pgdat in online_nodes(prog)
        for zone in pgdat.node_zones
    ]
    return cpus * normal_threshold(cpus, max(pages, default=0), shift)


def _held_back(prog: Program) -> Iterator[str]:
    """Words where a CPU holds back more of a counter than it may."""
    most = drift(prog) // max(len(online_cpus(prog)), 1) + 1  # of which it is about to fold in
    zones, nodes = _per_cpu(prog)
    for structures, member, what in (
        (zones, "vm_stat_diff", "zone"),
        (nodes, "vm_node_stat_diff", "node"),
    ):
        for structure in structures:
            array = structure.member_(member)
            held = _differences([structure], member, array.type_.length or 0)
            if (largest := int(abs(held).max(initial=0))) > most:
                yield (
                    f"a CPU has not added {largest:,} pages to a counter of a {what} yet, and "
                    f"{most - 1:,} is the most that it may hold back"
                )


def _nodes(prog: Program) -> list[Object]:
    """Every ``struct pglist_data``, also of nodes that are offline: they keep their counters."""
    try:
        nodes = prog["node_data"]
    except LookupError:  # !CONFIG_NUMA
        return online_nodes(prog)
    return [node[0] for node in nodes if node]


def parts_of_counters(prog: Program) -> dict[str, int]:
    """
    Difference of each counter to what zones and nodes have of it: ``zone_page_state_add()`` and its
    like (include/linux/vmstat.h) add to both.
    """
    nodes = _nodes(prog)
    zones = [zone for node in nodes for zone in node.node_zones]
    names, at = _names(prog), 0
    found: dict[str, int] = {}
    for name, structures, member in (
        ("vm_zone_stat", zones, "vm_stat"),
        ("vm_numa_event", zones, "vm_numa_event"),
        ("vm_numa_stat", zones, "vm_numa_stat"),
        ("vm_node_stat", nodes, "vm_stat"),
    ):
        if name not in prog or not (count := prog[name].type_.length):
            continue
        parts = sum(
            (_counters(prog, s.member_(member)) for s in structures), np.zeros(count, "<i8")
        )
        apart = (_counters(prog, prog[name]) - parts).tolist()
        found |= dict(zip(names[at : at + count], apart, strict=True))
        at += count
    return found


def _hold_against_parts(prog: Program, rows: list[VmCounter], found: Found) -> None:
    """Mark counters that are not the sum of their parts."""
    apart, most = parts_of_counters(prog), drift(prog)
    thp = 1 << pmd_order(prog) if thp_in_pages(prog) else 1

    def parts(row: VmCounter) -> Against | None:
        if row.name not in apart or row.kind not in ("zone", "node", "numa"):
            return None
        return row.value - apart[row.name] // (thp if row.name in IN_THP else 1), most

    found.hold_against(rows, "value", parts, "what zones and nodes have of it")
    if odd := [name for name, pages in apart.items() if 0 < abs(pages) <= most]:
        found.remarks.append(
            f"{', '.join(odd)}: a little more or less than zones and nodes have of it: a CPU was "
            "stopped between the two, or damage"
        )


# zone_statistics() (mm/page_alloc.c): what a node got was meant for it or not, was asked for by its
# CPUs or by others, and what was not meant for it another node missed.
NUMA_SUMS = (
    (("numa_hit", "numa_miss"), ("numa_local", "numa_other")),
    (("numa_miss",), ("numa_foreign",)),
)


def numa_sums_apart(rows: Iterable[VmCounter], cpus: int) -> list[str]:
    """
    Words on counts of allocations by NUMA node that do not fit each other.

    Each CPU may have been stopped between two of them, with as many pages as it takes at once.
    """
    values = {row.name: row.value for row in rows if row.kind == "numa"}
    most, found = cpus * MOST_HELD_BACK, []
    for ours, theirs in NUMA_SUMS:
        if not {*ours, *theirs} <= {*values}:
            continue
        one, other = (sum(values[name] for name in names) for names in (ours, theirs))
        if one != other:
            names = f"{' and '.join(ours)} are {one:,}, {' and '.join(theirs)} {other:,}"
            slight = abs(one - other) <= most
            why = ": a CPU was stopped between them, or damage" if slight else ", not as many"
            found.append(names + why)
    return found


def _thresholds_apart(prog: Program) -> Iterator[str]:
    """Parts of the thresholds of dirty pages that cannot be, in words."""
    # dirty_bytes_handler(), dirty_ratio_handler() and their like (mm/page-writeback.c): to set the
    # one is to clear the other.
    for bytes_name, ratio_name in DIRTY:
        if prog[bytes_name].value_() and prog[ratio_name].value_():
            yield f"{bytes_name} and {ratio_name} are both set, of which the kernel clears one"
    # calculate_totalreserve_pages() (mm/page_alloc.c)
    said = prog["totalreserve_pages"].value_()
    parts = sum(node.totalreserve_pages.value_() for node in online_nodes(prog))
    if said != parts:
        yield f"totalreserve_pages is {said:,}, but {parts:,} by the nodes"


def _hold_against_processes(memory: Memory, rows: list[VmCounter], found: Found) -> None:
    """
    Hold counters of mapped pages against what all processes of a dump share, if all of that was
    read.

    The counters also have the pages of an exit that is under way, whose process is in no list, and
    those of a device, which have no struct page.
    """
    shares = memory.kept("process_shares")
    if shares is None:
        return
    page, most = int(memory.prog["PAGE_SIZE"].value_()), drift(memory.prog)
    mapped = {
        "nr_anon_pages": sum(row.pss_anon_bytes for row in shares),
        "nr_mapped": sum(row.pss_file_bytes + row.pss_shmem_bytes for row in shares),
    }

    def pages(row: VmCounter) -> Against | None:
        if row.name not in mapped:
            return None
        return max(row.value, -(-mapped[row.name] // page)), most

    found.hold_against(rows, "value", pages, "what processes map")
    for name, size in mapped.items():
        if (more := (counter(rows, name) or 0) + size // -page) > most:
            found.remarks.append(
                f"{name} has {plural(more, 'page')} that no process in the list maps: an exit was "
                "under way, a device is mapped, or damage"
            )


ITEMS = {"zone": "zone_stat_item", "node": "node_stat_item", "event": "vm_event_item"}


def names_apart(prog: Program, rows: list[VmCounter]) -> list[str]:
    """Counters called almost as the enumerator in their place: the text is damaged."""
    odd = []
    for kind, items in ITEMS.items():
        called: dict[int, list[str]] = {}  # some have two, as NR_LRU_BASE
        for name, value in prog.type(f"enum {items}").enumerators or ():
            called.setdefault(value, []).append(name.lower())
        for at, name in enumerate(row.name for row in rows if row.kind == kind):
            items_here = called.get(at, [])
            # nr_kernel_stack, nr_slab_reclaimable, nr_free_cma
            right = any(name + end in items_here for end in ("", "_kb", "_b", "_pages"))
            odd += [] if right or not any(nearly(name, each) for each in items_here) else [name]
    return odd


def vm_counters_from_memory(memory: Memory) -> Found:
    prog = memory.prog
    rows = vm_counters_once(memory)
    found = Found(memory.live).add(VmCounter, rows)
    odd = [row.name for row in rows if not re.fullmatch("[a-z0-9_]+", row.name)]
    if odd := odd + names_apart(prog, rows):
        found.differ(f"no counter is called {odd[0][:40]!r}")
    if not memory.live:
        _hold_against_parts(prog, rows, found)
        _hold_against_processes(memory, rows, found)
        found.notes += [*_thresholds_apart(prog), *_held_back(prog)]
        found.remarks += numa_sums_apart(rows, len(online_cpus(prog)))
    return found


def vm_counters_from_files(files: Files) -> Found:
    """
    The rows of /proc/vmstat; where there is none, the states that /proc/meminfo has as well.

    :raises Absent: neither is there.
    """
    try:
        return Found().add(VmCounter, read_vmstat(files.read("proc/vmstat")))
    except Absent as missing:
        page = files.page_size()
        if "vmstat" in files.names("proc") or files.lxcfs or page is None:
            raise
        try:
            rows = counters_of_meminfo(files.read("proc/meminfo"), page)
        except Absent:
            rows = []
        if not rows:
            raise
        instead = f"{missing}; these {len(rows)} states are /proc/meminfo's, which has no events"
        return Found(notes=[instead]).add(VmCounter, [VmCounter(*row, None) for row in rows])


VM_COUNTERS_SECTION = Section(
    name="vm_counters",
    title="Counters since boot",
    tables=tables_of(
        VmCounter,
    ),
    intro="""
The counters of /proc/vmstat, with each CPU's part that is not folded in yet. Events are counted
since boot: they are not rates, and do not say when. For a rate take two bundles ([THP
counters](https://docs.kernel.org/admin-guide/mm/transhuge.html#monitoring-usage), [NUMA
counters](https://docs.kernel.org/admin-guide/numastat.html)).
""",
    command=Command("/proc/vmstat, exact", picks="name"),
    from_memory=vm_counters_from_memory,
    from_files=vm_counters_from_files,
    reads=(prices.VMSTAT,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vm_counters")
