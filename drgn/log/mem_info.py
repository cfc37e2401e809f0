# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The memory that there was, as ``show_mem()`` prints it to the log where an allocation failed or
memory ran out (mm/show_mem.c; 6.1: mm/page_alloc.c and lib/show_mem.c; 3.10:
``show_free_areas()``).

Lines of 3.10 to 7.3: what a kernel does not print is not there. Cannot know: the size of a page,
where neither free blocks nor some amounts are printed.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from mmscope.drgn.tables.rows import MOST_ORDER
from mmscope.drgn.text.log_lines import UNSEEN

KIB = 1024
N, S = r"([0-9]{1,15})", r"(-?[0-9]{1,10})"

# A mail may have moved it in.
MACHINE = re.compile(r" {0,24}[a-z_]+:[0-9]{1,15}(?: [a-z_]+:[0-9]{1,15}){0,5}")
MACHINE_COUNTERS = {
    *("active_anon", "inactive_anon", "isolated_anon", "active_file", "inactive_file"),
    *("isolated_file", "unevictable", "dirty", "writeback", "unstable", "slab_reclaimable"),
    *("slab_unreclaimable", "mapped", "shmem", "pagetables", "sec_pagetables", "bounce"),
    *("kernel_misc_reclaimable", "free", "free_pcp", "free_cma", "zspages"),
}
PAGES = re.compile(
    rf"{N} (total pagecache pages|pages (?:in swap cache|RAM|HighMem/MovableOnly|reserved"
    r"|cma reserved|hwpoisoned))"
)
SWAP = re.compile(rf"(Free swap|Total swap) += {N}kB")
# 4.8 to 4.12 count scanned pages here.
NODE = re.compile(
    r"Node ([0-9]{1,4})((?: [A-Za-z_()]{3,30}: ?[0-9]{1,15}kB| pages_scanned:[0-9]{1,15}"
    r"| all_unreclaimable\? (?:yes|no)){5,})"
)
HUGEPAGES = re.compile(
    rf"Node ([0-9]{{1,4}}) hugepages_total={N} hugepages_free={N} hugepages_surp={N} "
    rf"hugepages_size={N}kB"
)
# reserved_highatomic has a "KB" of its own up to 7.2; before 4.8 a zone had isolated(anon), a count
# of scanned pages and all_unreclaimable.
ZONE = re.compile(
    r"(?:Node ([0-9]{1,4}) )?([A-Za-z0-9]{1,12})( free:[0-9]{1,15}kB"
    r"(?: [a-z_]{3,30}(?:\([a-z]{3,5}\))?:[0-9]{1,15}(?:[kK]B)?"
    r"| all_unreclaimable\? (?:yes|no)){2,})"
)
COUNTER = re.compile(r"([A-Za-z_()]{3,30}): ?([0-9]{1,15})[kK]B")
RESERVE = re.compile(r"lowmem_reserve\[\]:((?: [0-9]{1,15}){1,8})")
# R: MIGRATE_RESERVE, until 4.4.
BLOCKS = re.compile(
    r"(?:Node ([0-9]{1,4}) )?([A-Za-z0-9]{1,12}): "
    rf"((?:[0-9]{{1,15}}\*[0-9]{{1,12}}kB (?:\([UMERHCI]+\) )?){{5,{MOST_ORDER}}})= {N}kB"
)
LONG_LINES = (NODE, HUGEPAGES, ZONE, BLOCKS)
BLOCK = re.compile(rf"{N}\*{N}kB (?:\(([UMERHCI]+)\) )?")
LAST_FIELD = re.compile(rf"(?: [a-z_()]+[:?])? ?\S*{UNSEEN}\Z")  # of a line that a pager cut
LIKE = re.compile(r"(?:Node [0-9]{1,4} )?[A-Za-z0-9]{1,12}(?: free:[0-9]|: [0-9]{1,15}\*[0-9])")
FIRST_BLOCK = re.compile(r"[^:]+: [0-9]{1,15}\*(4|8|16|32|64)kB ")
MIGRATETYPES = {
    **{"U": "Unmovable", "M": "Movable", "E": "Reclaimable", "H": "HighAtomic", "C": "CMA"},
    **{"I": "Isolate", "R": "Reserve"},
}
PAGE_KIB = (4, 8, 16, 32, 64)
# Different amounts, to have nothing but a page in common: the smallest, or a larger one.
ENOUGH, ENOUGH_OF_LARGE = 6, 16
# Printed of the machine in pages and of each node in kB.
ON_LISTS = ("active_anon", "inactive_anon", "active_file", "inactive_file")
# ___GFP_DMA, ___GFP_HIGHMEM, ___GFP_DMA32, ___GFP_MOVABLE: the same in all kernels (gfp_types.h).
DMA, HIGHMEM, DMA32, MOVABLE = 1, 2, 4, 8
ZONES = ("DMA", "DMA32", "Normal", "HighMem", "Movable")  # the highest last
# With these the cpuset's nodes are the only ones (__GFP_HARDWALL).
OF_CPUSET = re.compile(r"GFP_USER|GFP_HIGHUSER|__GFP_HARDWALL")


@dataclass
class MemInfo:
    """
    The memory that was printed so far.

    :ivar memory: bytes by node (-1: the machine), zone (empty: the node) and counter.
    :ivar machine: pages.
    :ivar blocks: number and lists by node, zone and order.
    """

    memory: dict[tuple[int, str, str], int] = field(default_factory=dict)
    machine: dict[str, int] = field(default_factory=dict)
    blocks: dict[tuple[int, str, int], tuple[int, str]] = field(default_factory=dict)
    reserves: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # pages
    damaged: Counter[str] = field(default_factory=Counter)
    zone: tuple[int, str] | None = None  # the last one
    page_kib: int | None = None

    def take(self, text: str) -> bool:
        """True if a line is one of these."""
        cut = text.endswith(UNSEEN)
        text = LAST_FIELD.sub("", text) if cut else text
        if match := ZONE.fullmatch(text):
            self.damaged.update(["memory of a zone"] * cut)
            self.zone = int(match[1] or 0), match[2]
            for name, value in COUNTER.findall(match[3]):
                self._keep(*self.zone, name, int(value))
        elif not cut and (match := RESERVE.fullmatch(text)):
            if self.zone is not None:
                self.reserves[self.zone] = [int(pages) for pages in match[1].split()]
        elif match := NODE.fullmatch(text):
            self.damaged.update(["memory of a node"] * cut)
            for name, value in COUNTER.findall(match[2]):
                self._keep(int(match[1]), "", name, int(value))
        elif match := BLOCKS.fullmatch(text):
            self._add_blocks(int(match[1] or 0), match[2], match[3], int(match[4]))
        elif LIKE.match(text):
            self.damaged["free blocks of a zone" if "*" in text else "memory of a zone"] += 1
            # Also of a cut line the first block is a page.
            if first := FIRST_BLOCK.match(text):
                self.page_kib = int(first[1])
        else:
            return self._take_machine(text)
        return True

    def _take_machine(self, text: str) -> bool:
        if match := HUGEPAGES.fullmatch(text):
            size = int(match[5])
            for name, number in zip(("total", "free", "surp"), match.groups()[1:4], strict=True):
                self._keep(int(match[1]), "", f"hugepages_{name} {size}kB", int(number) * size)
        elif match := SWAP.fullmatch(text):
            self._keep(-1, "", match[1], int(match[2]))
        elif match := PAGES.fullmatch(text):
            self.machine[match[2]] = int(match[1])
        elif MACHINE.fullmatch(text):
            found = re.findall(r"([a-z_]+):([0-9]+)", text)
            if not {name for name, _ in found} & MACHINE_COUNTERS:
                return False
            self.machine |= {name: int(value) for name, value in found}
        else:
            return False
        return True

    def _keep(self, node: int, zone: str, name: str, kib: int) -> None:
        if self.memory.setdefault((node, zone, name), kib * KIB) != kib * KIB:
            self.damaged["memory that is there twice"] += 1

    def _add_blocks(self, node: int, zone: str, text: str, total: int) -> None:
        printed = BLOCK.findall(text)
        sizes = [int(size) for _, size, _ in printed]
        whole = sum(int(blocks) * int(size) for blocks, size, _ in printed)
        if whole != total or sizes != [sizes[0] << order for order in range(len(sizes))]:
            self.damaged["free blocks of a zone"] += 1
            return
        self.page_kib = sizes[0] or None
        for order, (blocks, _, types) in enumerate(printed):
            names = ", ".join(MIGRATETYPES[letter] for letter in types)
            self.blocks[node, zone, order] = int(blocks), names

    def page_bytes(self) -> int | None:
        """
        The size of a page: of the smallest block, else of the lists, of which the machine has pages
        and nodes have kB, else what all amounts are multiples of.
        """
        if self.page_kib is not None:
            return self.page_kib * KIB
        if (of_lists := self._page_of_lists()) is not None:
            return of_lists
        sizes = {
            size // KIB
            for (_, zone, name), size in self.memory.items()
            if zone and size and name != "kernel_stack"
        }
        common = math.gcd(*sizes)
        enough = ENOUGH if common == PAGE_KIB[0] else ENOUGH_OF_LARGE
        return common * KIB if common in PAGE_KIB and len(sizes) >= enough else None

    def _page_of_lists(self) -> int | None:
        pages = {name: self.machine[name] for name in ON_LISTS if self.machine.get(name)}
        sizes = dict.fromkeys(pages, 0)
        for (node, zone, name), size in self.memory.items():
            if node >= 0 and not zone and name in sizes:
                sizes[name] += size
        # Printed one after the other, and may differ by what changed meanwhile.
        for page in (kib * KIB for kib in PAGE_KIB):
            ratios = [sizes[name] / (pages[name] * page) for name in pages]
            if ratios.count(1) > 1 and all(abs(ratio - 1) < 0.1 for ratio in ratios):
                return page
        return None

    def rows(self, page_bytes: int | None) -> list[tuple[int, str, str, int | None]]:
        """Node, zone, counter and bytes of all that was printed."""
        machine = ((-1, "", name, pages * page_bytes if page_bytes else None)
                   for name, pages in self.machine.items())  # fmt: skip
        return [*machine, *((*place, size) for place, size in self.memory.items())]

    def usable_bytes(self, request: "Request", page_bytes: int | None) -> int | None:
        """
        Free memory of the zones that a request could use, without free CMA pages unless it is of
        movable memory, and without what is kept from it for requests of lower zones
        (``__zone_watermark_ok()``, mm/page_alloc.c).

        None: it is not known of a zone, or no zone was printed.
        """
        free = {
            (node, zone): size
            for (node, zone, name), size in self.memory.items()
            if name == "free" and zone in ZONES
        }
        page_bytes = page_bytes or self.page_bytes()
        highest = request.highest_zone()
        if not free or highest is None or request.one_node or self.damaged["memory of a zone"]:
            return None
        if self.blocks and {(node, zone) for node, zone, _ in self.blocks} != {*free}:
            return None  # a line is lost
        at = self._class_index(highest)
        usable = 0
        for (node, zone), size in free.items():
            if ZONES.index(zone) > ZONES.index(highest) or not request.may_use(node):
                continue
            if not request.movable:
                size -= self.memory.get((node, zone, "free_cma"), 0)
            reserve = self.reserves.get((node, zone))
            if reserve is None or (page_bytes is None and any(reserve)):
                return None
            size -= reserve[min(at, len(reserve) - 1)] * (page_bytes or 0)
            usable += max(size, 0)
        return usable

    def suitable_blocks(self, request: "Request", order: int | None) -> int | None:
        """Free blocks of an order or more in zones that a request could use; None: not known."""
        highest = request.highest_zone()
        if order is None or highest is None or request.one_node or not self.blocks:
            return None
        return sum(
            blocks
            for (node, zone, of), (blocks, _) in self.blocks.items()
            if of >= order
            and zone in ZONES
            and ZONES.index(zone) <= ZONES.index(highest)
            and request.may_use(node)
        )

    def _class_index(self, highest: str) -> int:
        """
        The place of the reserve for requests whose highest zone it is: where the next zone has
        pages, its own is the first that is not 0; else all above are the same.
        """
        for (_, zone), reserve in self.reserves.items():
            if zone == highest and any(reserve):
                return next(at for at, pages in enumerate(reserve) if pages) - 1
        return len(max(self.reserves.values(), key=len, default=[0])) - 1


@dataclass(frozen=True)
class Request:
    """An allocation, as far as it says which zones could serve it."""

    mask: str | None
    flags: str | None
    nodemask: str | None = None
    mems_allowed: str | None = None

    @property
    def _bits(self) -> int:
        return int(self.mask or "0", 16)

    @property
    def movable(self) -> bool:
        return bool(self._bits & MOVABLE)

    @property
    def one_node(self) -> bool:
        return "__GFP_THISNODE" in (self.flags or "")

    def highest_zone(self) -> str | None:
        """``gfp_zone()`` (include/linux/gfp.h)."""
        if self.mask is None:
            return None
        for bits, zone in ((DMA, "DMA"), (DMA32, "DMA32"), (HIGHMEM | MOVABLE, "Movable")):
            if self._bits & bits == bits:
                return zone
        return "HighMem" if self._bits & HIGHMEM else "Normal"

    def may_use(self, node: int) -> bool:
        allowed = [nodes(self.nodemask)]
        if OF_CPUSET.search(self.flags or ""):
            allowed.append(nodes(self.mems_allowed))
        return all(each is None or node in each for each in allowed)


def nodes(text: str | None) -> set[int] | None:
    """Nodes as ``%*pbl`` prints them; None: not limited, or not known."""
    ranges = re.findall(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", text or "")
    if not ranges:
        return None
    return {node for low, high in ranges for node in range(int(low), int(high or low) + 1)}
