# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct page_ext``: what some debugging features keep beside each struct page.

``mem_section.page_ext`` of every present section (SPARSEMEM) or ``pg_data_t.node_page_ext``
(FLATMEM) point to arrays whose element size is only known at run time (``page_ext_size``), as each
feature that was switched on at boot adds its own part (mm/page_ext.c, ``invoke_need_callbacks()``).
The arrays may be vmalloc memory, so they are read by virtual address; typically 80 bytes a page.
"""

from dataclasses import dataclass

from drgn import Program, sizeof
from drgn.helpers.linux.mmzone import for_each_present_section

from mmscope.drgn.reading.nodes import online_nodes

PAGE_EXT_INVALID = 1  # mm/page_ext.c: the section is going offline


@dataclass(frozen=True, slots=True)
class PageExtRange:
    """Page frames whose page_exts lie one after the other."""

    start_pfn: int
    end_pfn: int
    address: int  # of the first


def page_ext_size(prog: Program) -> int:
    """
    The size of one element; 0 if no feature that needs it was switched on at boot.

    :raises LookupError: the kernel is built without CONFIG_PAGE_EXTENSION.
    """
    size = int(prog["page_ext_size"].value_())
    # "mm/page_ext: do not allocate space for page_ext->flags if not needed" (6189eb82f0ae, in
    # v6.3): without a user it is 0. Before, it is the size of the flags alone.
    if prog.type("struct page_ext_operations").has_member("need_shared_flags"):
        return size
    return size if size > sizeof(prog.type("struct page_ext")) else 0


def page_ext_ranges(prog: Program) -> list[PageExtRange]:
    """
    Places of the page_exts of all page frames; those that have none are in no range.

    :raises LookupError: the kernel is built without CONFIG_PAGE_EXTENSION.
    """
    size = page_ext_size(prog)
    page_shift = prog["PAGE_SHIFT"].value_()
    ranges = []
    if "mem_section" not in prog:
        max_order = prog.type("struct zone").member("free_area").type.length or 1
        for pgdat in online_nodes(prog):
            address = pgdat.node_page_ext.value_()
            first = pgdat.node_start_pfn.value_()
            if address:
                # alloc_node_page_ext(): from a boundary of MAX_ORDER_NR_PAGES on.
                start = first >> (max_order - 1) << (max_order - 1)
                end = first + pgdat.node_spanned_pages.value_()
                ranges.append(PageExtRange(start, end, address))
        return ranges
    pages = 1 << (prog["SECTION_SIZE_BITS"].value_() - page_shift)
    for number, section in for_each_present_section(prog):
        base = section.page_ext.value_()
        if not base or base & PAGE_EXT_INVALID:
            continue
        start = number * pages
        # The pointer is biased: it is where page frame 0 would be.
        address = (base + size * start) & 0xFFFFFFFFFFFFFFFF
        ranges.append(PageExtRange(start, start + pages, address))
    return ranges
