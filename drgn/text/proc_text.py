# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/proc/zoneinfo, /proc/pagetypeinfo, /proc/buddyinfo, /proc/vmstat and /proc/sysvipc/shm as the
kernel prints them.

The probes beside this file make their rows of it; what reads again and again takes it as it is.
Imports neither drgn nor numpy, which take longer to load than these files take to read.
"""

import re
from dataclasses import dataclass

from mmscope.drgn.text.kernel_text import printed_number, whole_lines, wrapped_number


@dataclass(frozen=True)
class ZoneText:
    """One zone of /proc/zoneinfo."""

    node: int
    zone: str
    fields: dict[str, int]  # every "name value" outside the pagesets
    pagesets: dict[int, dict[str, int]]  # by CPU; they have a "high" of their own


def parse_zoneinfo(text: str) -> list[ZoneText]:
    """
    Read /proc/zoneinfo.

    A text cut exactly between two zones looks like one of fewer zones.

    :raises ValueError: the text is not /proc/zoneinfo's, or not all of it.
    """
    file = "/proc/zoneinfo"
    zones: dict[tuple[int, str], ZoneText] = {}
    fields: dict[str, int] = {}
    for line in whole_lines(text, file):
        if match := re.fullmatch(r"Node (\d+), zone +(\S+)", line):
            key = printed_number(match.group(1), file), match.group(2)
            if key in zones:
                raise ValueError(f"{file} is damaged: node {key[0]} zone {key[1]} is there twice")
            zones[key] = zone = ZoneText(*key, {}, {})
            fields = zone.fields
        elif not zones:
            break
        elif match := re.fullmatch(r" +cpu: (\d+)", line):
            fields = zone.pagesets.setdefault(printed_number(match.group(1), file), {})
        elif match := re.fullmatch(r"( +)(?:pages )?(\w+):? +(\d+)", line):
            # What is not indented as deep as a pageset's lines is the zone's again.
            fields = zone.fields if len(match.group(1)) <= 2 else fields
            name = match.group(2)
            if name in fields:
                raise ValueError(f"{file} is damaged: {name} is twice in zone {zone.zone}")
            read = wrapped_number if fields is zone.fields else printed_number
            fields[name] = read(match.group(3), file)
    if not zones:
        raise ValueError(f"not {file}: it does not begin with a line 'Node N, zone NAME'")
    # Before v3.8 a zone has no such count.
    if not any("managed" in zone.fields for zone in zones.values()):
        for zone in zones.values():
            zone.fields.setdefault("managed", zone.fields.get("present", 0))
    if why := _why_not_whole([*zones.values()]):
        raise ValueError(f"{file} is cut short or damaged: {why}")
    return [*zones.values()]


ZONE_FIELDS = ("free", "min", "low", "high", "spanned", "present", "managed")


def _why_not_whole(zones: list[ZoneText]) -> str:
    """Say what zones lack that the kernel prints of each; empty: nothing."""
    # Every zone with memory ends with the same line, whichever that is on this kernel.
    ends = {[*zone.fields][-1] for zone in zones if zone.fields.get("present")}
    if len(ends) > 1:
        return f"its zones end with {' or '.join(sorted(ends))}"
    for zone in zones:
        missing = [name for name in ZONE_FIELDS if name not in zone.fields]
        # Of a zone without memory (ZONE_DEVICE) the kernel prints no more than these.
        if not missing and zone.fields["present"] and "start_pfn" not in zone.fields:
            missing = ["start_pfn"]
        missing += [
            f"count of CPU {cpu}" for cpu, said in zone.pagesets.items() if "count" not in said
        ]
        if missing:
            return f"zone {zone.zone} of node {zone.node} has no {missing[0]}"
    return ""


def zone_file_pages(fields: dict[str, int]) -> int | None:
    """The page cache on a zone's LRU lists; None if the kernel does not say."""
    lists = [fields.get(f"nr_zone_{which}_file") for which in ("inactive", "active")]
    return None if None in lists else sum(filter(None, lists))


@dataclass(frozen=True)
class PageTypeInfo:
    """/proc/pagetypeinfo: two tables a node, of the same zones and migratetypes."""

    block_order: int
    names: list[str]  # of the migratetypes
    # by order; None where the kernel stopped counting at 100,000 and printed ">100000"
    # (pagetypeinfo_showfree_print(), mm/vmstat.c)
    free: dict[tuple[int, str, str], list[int | None]]
    blocks: dict[tuple[int, str], list[int]]  # by migratetype


def parse_pagetypeinfo(text: str) -> PageTypeInfo:
    """
    Read /proc/pagetypeinfo.

    Every zone must be in both tables, with every migratetype and every order: what is missing was
    cut away. A text cut exactly between two nodes looks like one of fewer nodes.

    :raises ValueError: the text is not /proc/pagetypeinfo's, or not all of it.
    """
    file = "/proc/pagetypeinfo"
    block_orders: list[int] = []  # one a node, all the same
    info = PageTypeInfo(0, [], {}, {})
    orders, table = 0, ""
    for line in whole_lines(text, file):
        if line.startswith("Page block order: "):
            block_orders.append(printed_number(line.split()[-1], file))
        elif line.startswith("Free pages count per migrate type at order "):
            table, orders = "free", len(line.split()) - 8
        elif line.startswith("Number of blocks type "):
            table, here = "blocks", line.split()[4:]
            if info.names not in ([], here):
                raise ValueError(f"{file} is damaged: its nodes have different migratetypes")
            info.names[:] = here
        elif line.startswith("Number of mixed blocks "):  # page_owner's, of the same shape
            table = "mixed"
        elif line.startswith("Node") and table != "mixed":
            _pagetypeinfo_row(info, line, table, orders)
    if len(set(block_orders)) != 1 or block_orders[0] > 63:
        raise ValueError(f"not {file}: it has no line 'Page block order: N'")
    if not info.free and not info.blocks:
        raise ValueError(f"not {file}: it has no line 'Node N, zone NAME'")
    if info.free.keys() != {(*zone, name) for zone in info.blocks for name in info.names}:
        raise ValueError(f"{file} is cut short: its two tables are not of the same zones and types")
    if len(block_orders) != len({node for node, _ in info.blocks}):
        raise ValueError(f"{file} is cut short: a node has no tables")
    return PageTypeInfo(block_orders[0], info.names, info.free, info.blocks)


def _pagetypeinfo_row(info: PageTypeInfo, line: str, table: str, orders: int) -> None:
    """Add a line of the table ``free`` or ``blocks`` to what was read before it."""
    file = "/proc/pagetypeinfo"
    match = re.fullmatch(r"Node +(\d+), zone +(\S+?)(?:, type +(\S+))? ([\d> ]+)", line)
    if not match or ("free" if match.group(3) else "blocks") != table:
        raise ValueError(f"{file} is damaged: {line[:60]!r} does not belong where it is")
    node, zone, migratetype, counts = match.groups()
    number, cells = printed_number(node, file), counts.split()
    if migratetype:
        row: list[int | None] = [
            None if cell.startswith(">") else printed_number(cell, file) for cell in cells
        ]
        if len(row) != orders or (number, zone, migratetype) in info.free:
            raise ValueError(f"{file} is damaged: {line[:60]!r} is cut or there twice")
        info.free[number, zone, migratetype] = row
    else:
        if len(cells) != len(info.names) or (number, zone) in info.blocks:
            raise ValueError(f"{file} is damaged: {line[:60]!r} is cut or there twice")
        info.blocks[number, zone] = [printed_number(cell, file) for cell in cells]


def parse_buddyinfo(text: str) -> dict[tuple[int, str], list[int]]:
    """
    Read /proc/buddyinfo: (node, zone) to free blocks by order.

    A text cut exactly between two zones looks like one of fewer zones.

    :raises ValueError: the text is not /proc/buddyinfo's, or not all of it.
    """
    file = "/proc/buddyinfo"
    zones: dict[tuple[int, str], list[int]] = {}
    for line in filter(str.strip, whole_lines(text, file)):
        match = re.fullmatch(r"Node (\d+), zone +(\S+) ([\d ]+)", line)
        if not match:
            raise ValueError(f"not {file}: {line[:60]!r} is no 'Node N, zone NAME' and its counts")
        zone = printed_number(match.group(1), file), match.group(2)
        counts = [printed_number(cell, file) for cell in match.group(3).split()]
        if zone in zones or len(counts) != len(next(iter(zones.values()), counts)) or not counts:
            raise ValueError(f"{file} is damaged: {line[:60]!r} is cut or there twice")
        zones[zone] = counts
    return zones


# The first counter of each kind, in the order of /proc/vmstat; a kernel may lack "numa".
FIRST_OF_KIND = {
    "nr_free_pages": "zone",
    "numa_hit": "numa",
    "nr_inactive_anon": "node",
    "nr_dirty_threshold": "vm_stat",
    "pgpgin": "event",
}
# Of kind "node", what is counted since boot; all others there are states. Kernels keep the same
# counter in either array: pgscan*, pgsteal* and pgrefill are events up to 6.12, pgdemote* in 6.1.
# Nothing of it is ever taken back (5.10, 6.1, 6.12, 7.2, 7.3) but from nr_dirtied, where writeback
# declines to write a page (folio_redirty_for_writepage(), mm/page-writeback.c).
_NODE_EVENTS = (
    r"pg\w+|workingset_(refault|activate|restore|nodereclaim)\w*|nr_vmscan_\w+"
    r"|nr_(dirtied|written|throttled_written|foll_pin_acquired|foll_pin_released)"
)
# The same in SQL, of columns ``name`` and ``kind``. The expression means the same in RE2 and here.
SINCE_BOOT = (
    f"kind in ('event', 'numa') or kind = 'node' and regexp_full_match(name, '{_NODE_EVENTS}')"
)


def since_boot(name: str, kind: str) -> bool:
    """True if a counter of /proc/vmstat is counted since boot; the others are states."""
    return kind in ("event", "numa") or (
        kind == "node" and re.fullmatch(_NODE_EVENTS, name, re.ASCII) is not None
    )


# What zones still counted after "mm, vmstat: add infrastructure for per-node vmstats"
# (75ef71840539, in v4.8).
_OF_ZONES = {
    *("nr_free_pages", "nr_alloc_batch", "nr_mlock", "nr_page_table_pages", "nr_kernel_stack"),
    *("nr_bounce", "nr_zspages", "nr_free_cma"),
}


def _older_kind(name: str, by_order: str) -> str:
    """
    The kind of a counter of a kernel before v4.8, whose zones had all of them: those that nodes
    have now are of kind "node".
    """
    if by_order in ("vm_stat", "event"):
        return by_order
    if name.startswith("numa_"):
        return "numa"
    return "zone" if name in _OF_ZONES else "node"


def parse_vmstat(text: str) -> list[tuple[str, str, int]]:
    """
    Read /proc/vmstat: (name, kind, value) of each line, in its order.

    The text has no kinds; they follow from its order (zone, NUMA, node, vm_stat, events), whose
    borders have kept their names since 4.14, and from names before (:func:`_older_kind`). Which
    counters there are is a matter of the kernel's configuration, so that a text cut at a line after
    ``pgpgin`` looks whole.

    :raises ValueError: the text is not /proc/vmstat's, or not all of it.
    """
    file = "/proc/vmstat"
    rows: dict[str, tuple[str, str, int]] = {}
    kinds: list[str] = []
    for line in whole_lines(text, file):
        match = re.fullmatch(r"(\w+) (\d+)", line)
        if not match or match.group(1) in rows:
            raise ValueError(f"not {file}: {line[:60]!r} is not a counter, or there twice")
        name, value = match.group(1), printed_number(match.group(2), file)
        if name in FIRST_OF_KIND:
            kinds.append(FIRST_OF_KIND[name])
        elif name.startswith("numa_") and kinds == ["zone"]:
            break  # numa_hit was lost, and the others would pass for a zone's
        if not kinds:
            break
        # Up to 4.13 NUMA counters stand among a zone's.
        numa = kinds == ["zone", "numa"] and not name.startswith("numa_")
        rows[name] = name, "zone" if numa else kinds[-1], value
    # Printed for old readers (vmstat_show()); no counter is behind it.
    rows.pop("nr_unstable", None)
    if "nr_zone_inactive_anon" not in rows and kinds[:2] == ["zone", "node"] and "event" in kinds:
        return [(name, _older_kind(name, kind), value) for name, kind, value in rows.values()]
    if kinds not in (order := list(FIRST_OF_KIND.values()), [k for k in order if k != "numa"]):
        raise ValueError(f"not {file}: its counters are not in the kernel's order, up to pgpgin")
    return list(rows.values())


@dataclass(frozen=True)
class SegmentText:
    """One segment of /proc/sysvipc/shm; *rss* and *swap* are in bytes."""

    key: int
    shmid: int
    size: int
    cpid: int
    nattch: int
    cuid: int
    rss: int
    swap: int


def parse_segments(text: str) -> list[SegmentText]:
    """
    Read /proc/sysvipc/shm (sysvipc_shm_proc_show(), ipc/shm.c): the segments of an IPC namespace.

    :raises ValueError: the text is not that file's, or not all of it.
    """
    file = "/proc/sysvipc/shm"
    head, *lines = whole_lines(text, file) or [""]
    columns = head.split()
    if columns[:4] + columns[-2:] != ["key", "shmid", "perms", "size", "rss", "swap"]:
        raise ValueError(f"not {file}: it does not begin with its columns")
    rows = []
    for line in lines:
        if not re.fullmatch(r" *-?\d{1,10}( +\d{1,20}){15}", line):
            raise ValueError(f"{file} is damaged: {line.strip()!r}")
        key, shmid, _, size, cpid, _, nattch, _, _, cuid, *_, rss, swap = map(int, line.split())
        rows.append(SegmentText(key, shmid, size, cpid, nattch, cuid, rss, swap))
    return rows
