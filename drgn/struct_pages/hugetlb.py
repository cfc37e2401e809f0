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
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from drgn import Object, Program, sizeof
from drgn.helpers.linux.hugetlb import for_each_hstate
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import constant, flag, vmcoreinfo_number, yes_or_no
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, read_array, struct_dtype
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.struct_pages import (
    COLUMNS,
    compound_info_is_mask,
    flag_fields,
    second_page_dtype,
)
from mmscope.drgn.reading.symbols import has_symbol
from mmscope.drgn.struct_pages.memmap import Leaves, Memmap, self_hosted
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.kernel_text import printed_number, signed, wrapped_number

HVO_FLAG = "HPG_vmemmap_optimized"
# The switch, newest first: "mm: hugetlb_vmemmap: replace early_param() with core_param()"
# (30152245c63b, in v6.0); up to v5.17 a variable that the command line sets.
SWITCH, SWITCH_BEFORE = "vmemmap_optimize_enabled", "hugetlb_free_vmemmap_enabled"
# Between, a static key of v5.18 and a mode of v5.19, neither of them read here.
KEYS = ("hugetlb_optimize_vmemmap_key", "hugetlb_free_vmemmap_enabled_key")
# Beyond any architecture's: damage.
MAX_SIZES, MAX_ORDER = 32, 30


@table("hugetlb_pools", "hugetlb pools by size and node", measure="pages")
class HugetlbPool:
    """The huge pages of one size on one node."""

    page_bytes: int = column(unit="bytes", key=True, high=MOST_BYTES, help="of a huge page")
    node: int = column(key=True, help="NUMA node")
    pages: int = column(high="total_pages", help="persistent and surplus")
    free_pages: int = column(high="pages", help="free, reserved ones included")
    surplus_pages: int = column(
        high="pages", help="beyond those asked for: overcommitted, or about to be freed"
    )
    optimized_pages: int | None = column(help="whose struct pages HVO has freed")
    self_hosted_pages: int | None = column(
        help="hosting their own struct pages (memmap_on_memory): HVO cannot",
    )
    vmemmap_bytes: int | None = column(unit="bytes", help="of their struct pages")
    vmemmap_saved_bytes: int | None = column(unit="bytes", help="freed by HVO")
    vmemmap_reclaimable_bytes: int | None = column(
        unit="bytes", help="HVO could free more: pages neither optimised nor self-hosted"
    )


@table("hugetlb_sizes", "hugetlb page sizes", measure="pages", setting="hvo")
class HugetlbSize:
    """A size of huge pages on the whole machine."""

    page_bytes: int = column(unit="bytes", key=True, high=MOST_BYTES, help="of a huge page")
    pages: int = column(high="total_pages", help="persistent and surplus, all nodes")
    free_pages: int = column(high="pages", help="free, reserved ones included")
    reserved_pages: int = column(
        low=None,
        high="free_pages",
        help="free, promised to mappings that have not touched them; below 0: the kernel took back "
        "more promises than it gave",
    )
    surplus_pages: int = column(
        high="pages", help="beyond those asked for: overcommitted, or about to be freed"
    )
    overcommit_pages: int | None = column(help="most allowed beyond those asked for")
    hvo: str | None = column(
        holds="words", help="vm.hugetlb_optimize_vmemmap: on, off, or why this kernel cannot"
    )
    page_saves_bytes: int | None = column(
        unit="bytes", help="struct pages that HVO frees a huge page"
    )


@table(
    "hugetlb_checks",
    "Huge pages that the kernel counts otherwise",
    empty="Every pool has the pages it counts, and page tables agree with their flags.",
    measure="pages",
)
class HugetlbCheck:
    """Huge pages about which two places in the kernel disagree."""

    page_bytes: int = column(unit="bytes", key=True, high=MOST_BYTES, help="of a huge page")
    node: int = column(key=True, help="NUMA node")
    problem: str = column(holds="words", key=True, help="what disagrees")
    pages: int = column(help="huge pages affected")


# A huge page, by its struct pages; and what the page tables say of these, as far as they were seen.
HUGE_PAGE = np.dtype(
    [
        ("pfn", "<i8"),
        ("order", "<i8"),
        ("node", "<i8"),
        ("flagged", "?"),  # HPG_vmemmap_optimized
        ("own", "<i8"),  # frames that its struct pages have for themselves; -1: not seen
        ("entries", "<i8"),  # pages that its struct pages fill
        ("hosted", "?"),  # they lie in the memory that they describe
    ]
)
HugePages = NDArray[np.void]


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
                # "mm: hugetlb: fix incorrect fallback for subpool" (a833a693a490)
                signed(hstate.resv_huge_pages.value_()),
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
            enabled = yes_or_no(prog.variable(name))
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
    prog: Program, gaps: Gaps, *, progress: Callable[[int, int], None] | None = None
) -> HugePages:
    """
    Every huge page of every pool, ascending; see :data:`HUGE_PAGE`.

    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown.
    :raises ValueError: the pools are damaged.
    """
    orders = [order for hstate, order in _hstates(prog) if hstate.nr_huge_pages.value_()]
    if not orders:
        return np.zeros(0, HUGE_PAGE)
    size = sizeof(prog.type("struct page"))
    step = 1 << min(orders)
    dtype, mark, value = _head_dtype(prog, size * step)
    head = np.uint64(1 << int(prog.constant("PG_head").value_()))
    optimized = np.uint64(flag(prog, HVO_FLAG))
    masked = compound_info_is_mask(prog)
    fields = flag_fields(prog)
    parts = [np.zeros(0, HUGE_PAGE)]
    ranges = valid_page_ranges(prog)
    total, done = sum(end - start for start, end, _ in ranges), 0
    for start, end, address in ranges:
        skip = -start % step
        count = (end - start - skip) // step
        for first, array in read_array(prog, address + skip * size, count, dtype, gaps):
            done += len(array) * step
            at = np.flatnonzero(((array["flags"] & head) != 0) & (array[mark] == value))
            addresses = np.uint64(address + skip * size) + (
                (first + at).astype(np.uint64) * np.uint64(size * step)
            )
            # Up to 7.0, tails that HVO mapped to the head's frame look like the head. The page
            # after the real one names it as its head.
            info = array["tail"][at]
            heads = (addresses + np.uint64(size)) & info if masked else info - np.uint64(1)
            at = at[((info & np.uint64(1)) != 0) & (heads == addresses)]
            found, pages = np.zeros(len(at), HUGE_PAGE), array[at]
            found["pfn"] = start + skip + (first + at) * step
            found["order"] = pages["order"] & 0xFF
            found["node"] = fields.zone_index(pages["flags"]) // fields.zones_per_node
            found["flagged"] = (pages["private"] & optimized) != 0
            found["own"] = -1
            parts.append(found)
            if progress is not None:
                progress(done, total)
    whole = np.concatenate(parts)
    return whole[np.isin(whole["order"], orders)]


def _head_dtype(prog: Program, itemsize: int) -> tuple[np.dtype[Any], str, int]:
    """
    Columns that a hugetlb page is recognised by, one element for each place where one can begin;
    the column whose value says that it is one, and that value.
    """
    page = prog.type("struct page")
    mark, value = "mapcount", vmcoreinfo_number(prog, "NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)")
    if value is None:
        # Until "mm: turn folio_test_hugetlb into a PageType" (d99e3140a4d3, in v6.9)
        mark, value = "dtor", vmcoreinfo_number(prog, "NUMBER(HUGETLB_PAGE_DTOR)")
        if value is None:
            raise LookupError("VMCOREINFO has no HUGETLB_PAGE_DTOR")
    else:
        value = int(np.uint32(value & 0xFFFF_FFFF).astype(np.int32))  # written as unsigned
    first = struct_dtype(page, {name: COLUMNS[name] for name in ("flags", "mapcount", "private")})
    second = second_page_dtype(prog, ["order", "dtor"] if mark == "dtor" else ["order"])
    # The second page, whose tail names the head.
    tail = struct_dtype(page, {"tail": COLUMNS["tail"]})
    places = [(first, 0), (second, sizeof(page)), (tail, sizeof(page))]
    parts = {
        name: (field[0], field[1] + shift)
        for dtype, shift in places
        for name, field in (dtype.fields or {}).items()
    }
    dtype = np.dtype(
        {
            "names": list(parts),
            "formats": [kind for kind, _ in parts.values()],
            "offsets": [offset for _, offset in parts.values()],
            "itemsize": itemsize,
        }
    )
    return dtype, mark, value


def add_page_tables(prog: Program, where: Memmap, pages: HugePages, leaves: Leaves) -> None:
    """Fill in what some entries of the page tables say of the struct pages of each huge page."""
    page = 1 << where.page_shift
    offsets = leaves["offset"]
    # Both in bytes from the array's base.
    starts = pages["pfn"] * where.page_bytes
    lengths = where.page_bytes << pages["order"]
    low, high = offsets[0], offsets[-1] + leaves["size"][-1]
    here = np.flatnonzero((starts >= low) & (starts + lengths <= high))
    if not len(here):
        return
    first = np.searchsorted(offsets, starts[here], "right") - 1
    stop = np.searchsorted(offsets, (starts + lengths)[here], "left")
    # An entry of 2 MiB maps struct pages of several huge pages: none of them shares anything.
    # Nor does one whose struct pages fill no page (2 MiB with pages of 16 KiB).
    plain = (leaves["size"][first] > page) | (lengths[here] < page)
    entries = lengths[here] // page
    pages["entries"][here] = entries
    # Otherwise: the first entry's frame, and those that are writable or not reused, are own.
    own = np.concatenate([[0], np.cumsum(leaves["writable"] & ~leaves["reused"])])
    counted = np.where(stop - first == entries, own[stop] - own[first], -1)
    pages["own"][here] = np.where(plain, entries, counted)
    within = np.where(plain, (starts[here] - offsets[first]) // page, 0)
    pages["hosted"][here] = self_hosted(prog, where, leaves["frame"][first] + within)


def optimized_pages(pages: HugePages) -> Bools:
    """Mask of pages whose struct pages take less memory than they have addresses."""
    return np.asarray((pages["own"] >= 0) & (pages["own"] < pages["entries"]))


def hugetlb_pools(prog: Program, pages: HugePages) -> tuple[list[HugetlbPool], list[HugetlbCheck]]:
    """The pools by size and node, and what does not agree."""
    page_shift = prog["PAGE_SHIFT"].value_()
    saves = {row.page_bytes: row.page_saves_bytes or 0 for row in hugetlb_sizes(prog)}
    rows, checks = [], []
    for hstate, order in _hstates(prog):
        page_bytes = 1 << (order + page_shift)
        struct_pages = sizeof(prog.type("struct page")) << order
        counts = np.array(hstate.nr_huge_pages_node.value_())
        of_size = pages[pages["order"] == order]
        found = np.bincount(of_size["node"], minlength=len(counts))
        for node in np.flatnonzero((counts > 0) | (found[: len(counts)] > 0)).tolist():
            here = of_size[of_size["node"] == node]
            seen = here[here["own"] >= 0]
            optimized, flagged = optimized_pages(seen), seen["flagged"]
            hosted = here["hosted"] & ~optimized_pages(here)
            plain = np.count_nonzero(~optimized & ~seen["hosted"])
            counted = int(counts[node])
            rows.append(
                HugetlbPool(
                    page_bytes=page_bytes,
                    node=node,
                    pages=counted,
                    free_pages=hstate.free_huge_pages_node[node].value_(),
                    surplus_pages=hstate.surplus_huge_pages_node[node].value_(),
                    optimized_pages=int(np.count_nonzero(optimized)),
                    self_hosted_pages=int(np.count_nonzero(hosted)),
                    vmemmap_bytes=len(here) * struct_pages,
                    vmemmap_saved_bytes=int((seen["entries"] - seen["own"]).sum()) << page_shift,
                    vmemmap_reclaimable_bytes=int(plain) * saves[page_bytes],
                )
            )
            problems = {
                f"the pool counts {counted:,} pages, its struct pages are those of "
                f"{len(here):,}": abs(counted - len(here)),
                "flagged as optimised, but not in the page tables": int(
                    np.count_nonzero(flagged & ~optimized)
                ),
                "optimised in the page tables, but not flagged": int(
                    np.count_nonzero(optimized & ~flagged)
                ),
                "struct pages that are not mapped, or could not be read": len(here) - len(seen),
            }
            checks += [
                HugetlbCheck(page_bytes, node, problem, number)
                for problem, number in problems.items()
                if number
            ]
    return rows, checks


def _read_counts(read: Callable[[str], str], where: str, *names: str) -> list[int]:
    """The files of a pool in /sys; empty if they cannot be read."""
    try:
        return [
            (wrapped_number if name == "resv" else printed_number)(
                read(f"{where}/{name}_hugepages").strip(), where
            )
            for name in names
        ]
    except OSError:
        return []


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
            counts = _read_counts(read, where, "nr", "free", "surplus")
            if counts and counts[0]:
                rows.append(HugetlbPool(size, node, *counts, *[None] * 5))
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
        counts = _read_counts(read, where, "nr", "free", "resv", "surplus")
        if counts:
            pages, free, reserved, surplus = counts
            more = _read_counts(read, where, "nr_overcommit")
            most = more[0] if more else None
            rows.append(HugetlbSize(size, pages, free, reserved, surplus, most, hvo, None))
    return rows


def read_default_size(meminfo: str) -> tuple[list[HugetlbSize], int | None]:
    """
    The row of the default size, of /proc/meminfo, which has no other, and the bytes of all sizes,
    which it has since v4.17 (hugetlb_report_meminfo(), mm/hugetlb.c).
    """
    said = {
        name: signed(int(number))
        for name, number in re.findall(r"^(Huge\w{1,20}): +([0-9]{1,20})(?: kB)?$", meminfo, re.M)
        if len(number) <= 12 or name == "HugePages_Rsvd"
    }
    counts = [said.get(f"HugePages_{what}") for what in ("Total", "Free", "Rsvd", "Surp")]
    if not said.get("Hugepagesize") or None in counts:
        return [], None
    total, free, reserved, surplus = (count or 0 for count in counts)
    every = said.get("Hugetlb")
    row = HugetlbSize(said["Hugepagesize"] << 10, total, free, reserved, surplus, None, None, None)
    return [row], None if every is None else every << 10


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("hugetlb")
