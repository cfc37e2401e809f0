# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The memory that there was when it ran out, as the OOM killer has it printed: ``show_mem()``
(mm/show_mem.c; 6.1: mm/page_alloc.c and lib/show_mem.c), and memory.stat of a cgroup.

Costs a look at each line of a call. Cannot know: what lines say that no kernel of 5.10 to 7.3
prints so, as those of unreclaimable slab and of allocation profiling; they are in the log.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from mmscope.drgn.log.oom_rows import OomCgroupMemory, OomFreeBlocks, OomMemory
from mmscope.drgn.tables.rows import MOST_ORDER

KIB = 1024
N = r"([0-9]{1,15})"
CGROUP_STAT = re.compile(r"([a-z][a-z0-9_]{2,40}) ([0-9]{1,18})")
MACHINE = re.compile(r" ?[a-z_]+:[0-9]{1,15}(?: [a-z_]+:[0-9]{1,15}){1,3}")
MACHINE_COUNTERS = {
    *("active_anon", "inactive_anon", "isolated_anon", "active_file", "inactive_file"),
    *("isolated_file", "unevictable", "dirty", "writeback", "slab_reclaimable"),
    *("slab_unreclaimable", "mapped", "shmem", "pagetables", "sec_pagetables", "bounce"),
    *("kernel_misc_reclaimable", "free", "free_pcp", "free_cma"),
}
PAGES = re.compile(
    rf"{N} (total pagecache pages|pages (?:in swap cache|RAM|HighMem/MovableOnly|reserved"
    r"|cma reserved|hwpoisoned))"
)
SWAP = re.compile(rf"(Free swap|Total swap) += {N}kB")
NODE = re.compile(
    r"Node ([0-9]{1,4})((?: [A-Za-z_()]{3,30}: ?[0-9]{1,15}kB| all_unreclaimable\? (?:yes|no)){5,})"
)
HUGEPAGES = re.compile(
    rf"Node ([0-9]{{1,4}}) hugepages_total={N} hugepages_free={N} hugepages_surp={N} "
    rf"hugepages_size={N}kB"
)
# reserved_highatomic has a "KB" of its own up to 7.2.
ZONE = re.compile(
    r"(?:Node ([0-9]{1,4}) )?([A-Za-z0-9]{1,12})((?: [a-z_]{3,30}:[0-9]{1,15}[kK]B){5,})"
)
COUNTER = re.compile(r"([A-Za-z_()]{3,30}): ?([0-9]{1,15})[kK]B")
BLOCKS = re.compile(
    r"(?:Node ([0-9]{1,4}) )?([A-Za-z0-9]{1,12}): "
    rf"((?:[0-9]{{1,15}}\*[0-9]{{1,12}}kB (?:\([UMEHCI]+\) )?){{5,{MOST_ORDER}}})= {N}kB"
)
BLOCK = re.compile(rf"{N}\*{N}kB (?:\(([UMEHCI]+)\) )?")
MIGRATETYPES = {
    **{"U": "Unmovable", "M": "Movable", "E": "Reclaimable", "H": "HighAtomic", "C": "CMA"},
    "I": "Isolate",
}


@dataclass
class MemoryThen:
    """Memory as one call of the OOM killer printed it."""

    memory: dict[tuple[int, str, str], int] = field(default_factory=dict)  # bytes
    machine: dict[str, int] = field(default_factory=dict)  # pages
    page_kib: int | None = None
    blocks: dict[tuple[int, str, int], OomFreeBlocks] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    in_stats: bool = False  # what follows is memory.stat
    damaged: Counter[str] = field(default_factory=Counter)


def memory_line(then: MemoryThen, text: str) -> bool:
    """Take a line of show_mem() or of memory.stat; says whether it is one."""
    if then.in_stats and (match := CGROUP_STAT.fullmatch(text)):
        then.stats[match[1]] = int(match[2])
        return True
    if match := ZONE.fullmatch(text):
        node, zone, counters = int(match[1] or 0), match[2], match[3]
    elif match := NODE.fullmatch(text):
        node, zone, counters = int(match[1]), "", match[2]
    elif match := BLOCKS.fullmatch(text):
        _blocks(then, int(match[1] or 0), match[2], match[3], int(match[4]))
        return True
    elif match := HUGEPAGES.fullmatch(text):
        size = int(match[5])
        for name, number in zip(("total", "free", "surp"), match.groups()[1:4], strict=True):
            _keep(then, int(match[1]), "", f"hugepages_{name} {size}kB", int(number) * size)
        return True
    elif match := SWAP.fullmatch(text):
        _keep(then, -1, "", match[1], int(match[2]))
        return True
    elif match := PAGES.fullmatch(text):
        then.machine[match[2]] = int(match[1])
        return True
    elif MACHINE.fullmatch(text):
        found = re.findall(r"([a-z_]+):([0-9]+)", text)
        if not {name for name, _ in found} <= MACHINE_COUNTERS:
            return False
        then.machine |= {name: int(value) for name, value in found}
        return True
    else:
        return False
    for name, value in COUNTER.findall(counters):
        _keep(then, node, zone, name, int(value))
    return True


def _keep(then: MemoryThen, node: int, zone: str, name: str, kib: int) -> None:
    key = node, zone, name
    if then.memory.setdefault(key, kib * KIB) != kib * KIB:
        then.damaged["memory that is there twice"] += 1


def _blocks(then: MemoryThen, node: int, zone: str, text: str, total: int) -> None:
    printed = BLOCK.findall(text)
    sizes = [int(size) for _, size, _ in printed]
    whole = sum(int(blocks) * int(size) for blocks, size, _ in printed)
    if whole != total or sizes != [sizes[0] << order for order in range(len(sizes))]:
        then.damaged["free blocks of a zone"] += 1
        return
    then.page_kib = sizes[0] or None
    for order, (blocks, _, types) in enumerate(printed):
        names = ", ".join(MIGRATETYPES[letter] for letter in types)
        row = OomFreeBlocks(0, node, zone, order, int(blocks), names)
        then.blocks[node, zone, order] = row


def memory_rows(
    oom: int, then: MemoryThen, page_bytes: int | None
) -> tuple[list[OomMemory], list[OomFreeBlocks], list[OomCgroupMemory]]:
    """
    The rows of a call.

    :param page_bytes: of the machine; else it is that of the smallest blocks.
    """
    page = page_bytes or (then.page_kib * KIB if then.page_kib else None)
    memory = [
        OomMemory(oom, -1, "", name, None if page is None else pages * page)
        for name, pages in then.machine.items()
    ]
    memory += [OomMemory(oom, *place, size) for place, size in then.memory.items()]
    blocks = [replace(row, oom=oom) for row in then.blocks.values()]
    return memory, blocks, [OomCgroupMemory(oom, *stat) for stat in then.stats.items()]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("oom_kills", "oom_memory", "oom_free_blocks", "oom_cgroup_memory")
