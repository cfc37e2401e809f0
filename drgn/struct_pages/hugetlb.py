# SPDX-License-Identifier: LGPL-2.1-or-later
"""
hugetlb pools and HVO, the HugeTLB vmemmap optimization: what it saves of the pools' struct pages,
and what it could.

Every huge page of a pool is found in the struct pages, in one pass that looks only where a huge
page can begin. No list is walked, so pages in use are found as well as free ones. Costs reading the
struct pages of the nodes that have pools (1 GiB of them for a machine of 64 GiB), and nothing if no
pool has a page.

Two things say whether a page is optimised: a flag of the page (``HPG_vmemmap_optimized``), and the
page tables, where all its struct pages except the first page of them lie on one frame, read-only.
The table goes by the page tables; pages for which the two differ are counted.

Cannot know: on which node a reserved page is. The kernel does not know either.
"""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import Object, Program, offsetof, sizeof
from drgn.helpers.linux.hugetlb import for_each_hstate
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import constant, flag, vmcoreinfo_number
from mmscope.drgn.reading.kernel_arrays import (
    CHUNK_BYTES,
    Gaps,
    member_path,
    read_array,
    struct_dtype,
)
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.struct_pages import (
    COLUMNS,
    compound_info_is_mask,
    flag_fields,
    second_page_dtype,
)
from mmscope.drgn.reading.symbols import has_symbol
from mmscope.drgn.struct_pages.memmap import Memmap, self_hosted
from mmscope.drgn.struct_pages.vmemmap import Leaves
from mmscope.drgn.tables.rows import MOST_BYTES, column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import printed_number

HVO_FLAG = "HPG_vmemmap_optimized"
# The switch, newest first: "mm: hugetlb_vmemmap: replace early_param() with core_param()"
# (30152245c63b, in v6.0); up to v5.17 a variable that the command line sets.
SWITCH, SWITCH_BEFORE = "vmemmap_optimize_enabled", "hugetlb_free_vmemmap_enabled"
# Between, a static key of v5.18 and a mode of v5.19, neither of them read here.
KEYS = ("hugetlb_optimize_vmemmap_key", "hugetlb_free_vmemmap_enabled_key")
# Beyond any architecture's: damage.
MAX_SIZES, MAX_ORDER = 32, 30


@table_row
class HugetlbPool:
    """The huge pages of one size on one node."""

    page_bytes: int = column(unit="bytes", key=True, high=MOST_BYTES, help="of a huge page")
    node: int = column(key=True, help="NUMA node")
    pages: int = column(high="total_pages", help="persistent and surplus ones")
    free_pages: int = column(high="pages", help="in the pool, reserved ones with them")
    surplus_pages: int = column(
        high="pages", help="beyond what was asked for: overcommitted, or waiting to be freed"
    )
    optimized_pages: int | None = column(
        help="whose struct pages HVO has freed, except for the first page of them"
    )
    self_hosted_pages: int | None = column(
        help="in memory that hosts its own struct pages (memmap_on_memory): HVO cannot",
    )
    vmemmap_bytes: int | None = column(unit="bytes", help="of struct pages that these pages have")
    vmemmap_saved_bytes: int | None = column(unit="bytes", help="of them, freed by HVO")
    vmemmap_reclaimable_bytes: int | None = column(
        unit="bytes", help="that HVO could free: of the pages neither optimised nor self-hosted"
    )


HUGETLB_POOLS = Table(
    "hugetlb_pools", "hugetlb pools by size and node", HugetlbPool, measure="pages"
)


@table_row
class HugetlbSize:
    """A size of huge pages on the whole machine."""

    page_bytes: int = column(unit="bytes", key=True, high=MOST_BYTES, help="of a huge page")
    pages: int = column(high="total_pages", help="persistent and surplus ones, of all nodes")
    free_pages: int = column(high="pages", help="in the pool, reserved ones with them")
    reserved_pages: int = column(
        high="free_pages", help="free, and promised to mappings that have not touched them yet"
    )
    surplus_pages: int = column(
        high="pages", help="beyond what was asked for: overcommitted, or waiting to be freed"
    )
    overcommit_pages: int | None = column(help="most that there may be beyond those asked for")
    hvo: str | None = column(
        holds="words", help="vm.hugetlb_optimize_vmemmap: on, off, or why this kernel cannot"
    )
    page_saves_bytes: int | None = column(
        unit="bytes", help="what HVO frees of the struct pages of one page"
    )


HUGETLB_SIZES = Table(
    "hugetlb_sizes", "hugetlb page sizes", HugetlbSize, measure="pages", setting="hvo"
)


@table_row
class HugetlbCheck:
    """Huge pages that two places in the kernel say different things of."""

    page_bytes: int = column(unit="bytes", key=True, high=MOST_BYTES, help="of a huge page")
    node: int = column(key=True, help="NUMA node")
    problem: str = column(holds="words", key=True, help="what does not fit")
    pages: int = column(help="huge pages that it is about")


HUGETLB_CHECKS = Table(
    "hugetlb_checks",
    "Huge pages that the kernel counts otherwise",
    HugetlbCheck,
    empty="Every pool has the pages it counts, and page tables agree with their flags.",
    measure="pages",
)


@dataclass
class HugePages:
    """Huge pages found among the struct pages, ascending."""

    pfns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    orders: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    nodes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    flagged: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    gaps: Gaps = field(default_factory=Gaps)


def _hstates(prog: Program) -> list[tuple[Object, int]]:
    """
    The ``struct hstate`` of each size, and its order.

    :raises ValueError: their number or an order cannot be.
    """
    found = list(itertools.islice(for_each_hstate(prog), MAX_SIZES + 1))
    hstates = [(hstate, int(hstate.order.value_())) for hstate in found]
    if len(found) > MAX_SIZES or any(not 0 < order <= MAX_ORDER for _, order in hstates):
        raise ValueError("the hstates of hugetlb are damaged")
    return hstates


def hugetlb_sizes(prog: Program) -> list[HugetlbSize]:
    """
    The sizes that the kernel has set up; none without CONFIG_HUGETLB_PAGE.

    :raises ValueError: they are damaged.
    """
    page_shift = prog["PAGE_SHIFT"].value_()
    switch, why = hvo_switch(prog)
    reserved = reserved_pages(prog)
    rows = []
    for hstate, order in _hstates(prog):
        struct_pages = sizeof(prog.type("struct page")) << order
        saves = max(struct_pages - (reserved << page_shift), 0)
        rows.append(
            HugetlbSize(
                1 << (order + page_shift),
                hstate.nr_huge_pages.value_(),
                hstate.free_huge_pages.value_(),
                hstate.resv_huge_pages.value_(),
                hstate.surplus_huge_pages.value_(),
                hstate.nr_overcommit_huge_pages.value_(),
                why or ("on" if switch else "off"),
                0 if why else saves,
            )
        )
    return rows


def hvo_switch(prog: Program) -> tuple[bool, str]:
    """``vm.hugetlb_optimize_vmemmap``, and why this kernel cannot optimise at all, if so."""
    size = sizeof(prog.type("struct page"))
    if constant(prog, HVO_FLAG, -1) < 0:
        # "mm: hugetlb: free the vmemmap pages associated with each HugeTLB page" (f41f2ed43ca5)
        return False, "this kernel has no HVO, which came with Linux 5.14"
    for name in (SWITCH, SWITCH_BEFORE):
        with contextlib.suppress(LookupError):
            enabled = bool(prog.variable(name).value_())
            break
    else:
        if any(has_symbol(prog, name) for name in KEYS):
            return False, "its switch on this kernel (5.18, 5.19) is not known here"
        return False, "not compiled in (CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP)"
    if size & (size - 1):
        return False, f"struct page has {size} bytes, no power of two: HVO cannot"
    return enabled, ""


def reserved_pages(prog: Program) -> int:
    """
    Pages that HVO keeps of a huge page's struct pages: HUGETLB_VMEMMAP_RESERVE_SIZE.

    Two before "mm: hugetlb: free the 2nd vmemmap page associated with each HugeTLB page"
    (e7d324850bfc, in v5.18), which came with "mm: hugetlb: replace hugetlb_free_vmemmap_enabled
    with a static_key".
    """
    return 2 if has_symbol(prog, SWITCH_BEFORE) else 1


def find_huge_pages(
    prog: Program, *, progress: Callable[[int, int], None] | None = None
) -> HugePages:
    """
    Every huge page of every pool.

    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown.
    :raises ValueError: the pools are damaged.
    """
    found = HugePages()
    orders = [order for hstate, order in _hstates(prog) if hstate.nr_huge_pages.value_()]
    if not orders:
        return found
    size = sizeof(prog.type("struct page"))
    step = 1 << min(orders)
    dtype, is_hugetlb, order_of = _head_dtype(prog, size * step)
    head = np.uint64(1 << int(prog.constant("PG_head").value_()))
    optimized = np.uint64(flag(prog, HVO_FLAG))
    masked = compound_info_is_mask(prog)
    fields = flag_fields(prog)
    parts: list[tuple[NDArray[Any], ...]] = []
    ranges = valid_page_ranges(prog)
    total, done = sum(end - start for start, end, _ in ranges), 0
    for start, end, address in ranges:
        skip = -start % step
        count = (end - start - skip) // step
        for first, array in read_array(
            prog, address + skip * size, count, dtype, found.gaps, chunk_bytes=CHUNK_BYTES
        ):
            done += len(array) * step
            at = np.flatnonzero(((array["flags"] & head) != 0) & is_hugetlb(array))
            addresses = np.uint64(address + skip * size) + (
                (first + at).astype(np.uint64) * np.uint64(size * step)
            )
            # Up to 7.0, tails that HVO mapped to the head's frame look like the head. The page
            # behind the real one names it as its head.
            info = array["tail"][at]
            heads = (addresses + np.uint64(size)) & info if masked else info - np.uint64(1)
            at = at[((info & np.uint64(1)) != 0) & (heads == addresses)]
            pages = array[at]
            parts.append(
                (
                    start + skip + (first + at) * step,
                    order_of(pages),
                    fields.zone_index(pages["flags"]) // fields.zones_per_node,
                    (pages["private"] & optimized) != 0,
                )
            )
            if progress is not None:
                progress(done, total)
    if parts:
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        known = np.isin(columns[1], orders)
        found.pfns, found.orders, found.nodes, found.flagged = (c[known] for c in columns)
    return found


def _head_dtype(
    prog: Program, itemsize: int
) -> tuple[
    np.dtype[Any],
    Callable[[NDArray[Any]], NDArray[np.bool_]],
    Callable[[NDArray[Any]], NDArray[np.int64]],
]:
    """
    What a hugetlb page is recognised by, one element for each place where one can begin; the test
    for being one, and its order.
    """
    page = prog.type("struct page")
    # The word's name since "mm: rework compound_head() for …" (8c846c879e22, in v7.1), and before.
    tail = member_path(page, ("compound_info", "compound_head"))
    parts = {
        **_fields(struct_dtype(page, {n: COLUMNS[n] for n in ("flags", "mapcount", "private")})),
        "tail": (np.dtype("<u8"), sizeof(page) + offsetof(page, tail)),
    }
    number = vmcoreinfo_number(prog, "NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)")
    second = _fields(
        second_page_dtype(prog, ["order"] if number is not None else ["order", "dtor"])
    )
    parts |= {name: (kind, at + sizeof(page)) for name, (kind, at) in second.items()}
    if number is not None:  # "mm: turn folio_test_hugetlb into a PageType" (d99e3140a4d3, in v6.9)
        value = np.array(number & 0xFFFFFFFF, np.uint32).view(np.int32)

        def is_hugetlb(pages: NDArray[Any]) -> NDArray[np.bool_]:
            return np.asarray(pages["mapcount"] == value)

    else:
        destructor = vmcoreinfo_number(prog, "NUMBER(HUGETLB_PAGE_DTOR)")
        if destructor is None:
            raise LookupError("VMCOREINFO has no HUGETLB_PAGE_DTOR")

        def is_hugetlb(pages: NDArray[Any]) -> NDArray[np.bool_]:
            return np.asarray(pages["dtor"] == destructor)

    dtype = np.dtype(
        {
            "names": list(parts),
            "formats": [kind for kind, _ in parts.values()],
            "offsets": [offset for _, offset in parts.values()],
            "itemsize": itemsize,
        }
    )
    return dtype, is_hugetlb, lambda pages: (pages["order"] & 0xFF).astype(np.int64)


def _fields(dtype: np.dtype[Any]) -> dict[str, tuple[np.dtype[Any], int]]:
    return {name: (of[0], of[1]) for name, of in (dtype.fields or {}).items()}


class HvoInPageTables:
    """
    What the page tables say of the struct pages of each huge page; a taker of the vmemmap walk.

    ``own`` counts the frames that a huge page's struct pages have for themselves, -1 of pages
    whose struct pages were not seen; ``hosted`` says which lie in the memory that they describe.
    """

    def __init__(self, prog: Program, pages: HugePages) -> None:
        self.prog = prog
        self.pages = pages
        self.own = np.full(len(pages.pfns), -1, np.int64)
        self.entries = np.zeros(len(pages.pfns), np.int64)
        self.hosted = np.zeros(len(pages.pfns), np.bool_)

    def take(self, where: Memmap, leaves: Leaves) -> None:
        page = 1 << where.page_shift
        # Both in bytes from the array's base.
        offsets = (leaves.addresses - np.uint64(where.base)).astype(np.int64)
        starts = self.pages.pfns * where.page_bytes
        lengths = where.page_bytes << self.pages.orders
        low, high = offsets[0], offsets[-1] + leaves.sizes[-1]
        here = np.flatnonzero((starts >= low) & (starts + lengths <= high))
        if not len(here):
            return
        first = np.searchsorted(offsets, starts[here], "right") - 1
        behind = np.searchsorted(offsets, (starts + lengths)[here], "left")
        # An entry of 2 MiB maps struct pages of several huge pages: none of them shares anything.
        # Nor does one whose struct pages fill no page (2 MiB with pages of 16 KiB).
        plain = (leaves.sizes[first] > page) | (lengths[here] < page)
        self.own[here] = lengths[here] // page
        self.entries[here] = lengths[here] // page
        # Otherwise: the first entry's frame, and those that are writable or not reused, are own.
        own = np.concatenate([[0], np.cumsum(leaves.writable & ~leaves.reused)])
        split = ~plain
        counted = own[behind[split]] - own[first[split]]
        whole = (behind - first)[split] == (lengths[here] // page)[split]
        self.own[here[split]] = np.where(whole, counted, -1)
        frames = leaves.frames[first] + np.where(plain, (starts[here] - offsets[first]) // page, 0)
        self.hosted[here] = self_hosted(self.prog, where, frames)

    @property
    def optimized(self) -> NDArray[np.bool_]:
        """Whose struct pages take less memory than they have addresses."""
        return np.asarray((self.own >= 0) & (self.own < self.entries))


def hugetlb_pools(
    prog: Program, pages: HugePages, tables: HvoInPageTables
) -> tuple[list[HugetlbPool], list[HugetlbCheck]]:
    """The pools by size and node, and what does not agree."""
    page_shift = prog["PAGE_SHIFT"].value_()
    size = sizeof(prog.type("struct page"))
    saves = {row.page_bytes: row.page_saves_bytes or 0 for row in hugetlb_sizes(prog)}
    rows, checks = [], []
    for hstate, order in _hstates(prog):
        page_bytes = 1 << (order + page_shift)
        counts = np.array(hstate.nr_huge_pages_node.value_())
        found = np.bincount(pages.nodes[pages.orders == order], minlength=len(counts))
        for node in np.flatnonzero((counts > 0) | (found[: len(counts)] > 0)).tolist():
            here = (pages.orders == order) & (pages.nodes == node)
            optimized = here & tables.optimized
            hosted = here & tables.hosted & ~tables.optimized
            seen = here & (tables.own >= 0)
            saved = int((tables.entries - tables.own)[seen].sum()) << page_shift
            plain = int(np.count_nonzero(seen & ~optimized & ~hosted))
            rows.append(
                HugetlbPool(
                    page_bytes=page_bytes,
                    node=node,
                    pages=int(counts[node]),
                    free_pages=hstate.free_huge_pages_node[node].value_(),
                    surplus_pages=hstate.surplus_huge_pages_node[node].value_(),
                    optimized_pages=int(np.count_nonzero(optimized)),
                    self_hosted_pages=int(np.count_nonzero(hosted)),
                    vmemmap_bytes=int(np.count_nonzero(here)) * (size << order),
                    vmemmap_saved_bytes=saved,
                    vmemmap_reclaimable_bytes=plain * saves[page_bytes],
                )
            )
            for problem, number in (
                (
                    f"the pool counts {int(counts[node]):,} pages, its struct pages are those of "
                    f"{int(np.count_nonzero(here)):,}",
                    abs(int(counts[node]) - int(np.count_nonzero(here))),
                ),
                (
                    "flagged as optimised, but not in the page tables",
                    int(np.count_nonzero(seen & pages.flagged & ~tables.optimized)),
                ),
                (
                    "optimised in the page tables, but not flagged",
                    int(np.count_nonzero(seen & ~pages.flagged & tables.optimized)),
                ),
                (
                    "struct pages that are not mapped, or could not be read",
                    int(np.count_nonzero(here & ~seen)),
                ),
            ):
                if number:
                    checks.append(HugetlbCheck(page_bytes, node, problem, number))
    return rows, checks


def read_pools(read: Callable[[str], str], nodes: list[int], sizes: list[int]) -> list[HugetlbPool]:
    """
    The same rows from /sys/devices/system/node, which does not say what is optimised.

    :param read: gives the text of a path; it raises OSError if it cannot.
    :param sizes: of the huge pages, in bytes.
    :raises ValueError: a file does not hold a number.
    """
    rows = []
    for size in sorted(sizes):
        for node in nodes:
            where = f"sys/devices/system/node/node{node}/hugepages/hugepages-{size >> 10}kB"
            try:
                pages, free, surplus = (
                    printed_number(read(f"{where}/{name}_hugepages").strip(), where)
                    for name in ("nr", "free", "surplus")
                )
            except OSError:
                continue
            if pages:
                rows.append(
                    HugetlbPool(
                        page_bytes=size,
                        node=node,
                        pages=pages,
                        free_pages=free,
                        surplus_pages=surplus,
                        optimized_pages=None,
                        self_hosted_pages=None,
                        vmemmap_bytes=None,
                        vmemmap_saved_bytes=None,
                        vmemmap_reclaimable_bytes=None,
                    )
                )
    return rows


def read_sizes(read: Callable[[str], str], sizes: list[int]) -> list[HugetlbSize]:
    """
    The same rows from /sys/kernel/mm/hugepages.

    :raises ValueError: a file does not hold a number.
    """
    try:
        hvo = {"0": "off", "1": "on"}.get(read("proc/sys/vm/hugetlb_optimize_vmemmap").strip())
    except OSError:
        hvo = None
    rows = []
    for size in sorted(sizes):
        where = f"sys/kernel/mm/hugepages/hugepages-{size >> 10}kB"
        try:
            pages, free, reserved, surplus = (
                printed_number(read(f"{where}/{name}_hugepages").strip(), where)
                for name in ("nr", "free", "resv", "surplus")
            )
        except OSError:
            continue
        try:
            overcommit = printed_number(read(f"{where}/nr_overcommit_hugepages").strip(), where)
        except OSError:
            overcommit = None
        rows.append(HugetlbSize(size, pages, free, reserved, surplus, overcommit, hvo, None))
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("hugetlb")
