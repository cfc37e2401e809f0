# SPDX-License-Identifier: LGPL-2.1-or-later
"""What probes find, found in the plain way: with drgn's helpers, one object at a time."""

from collections import Counter
from collections.abc import Iterator

from drgn import Object, Program
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.idr import idr_for_each
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import pfn_to_page
from drgn.helpers.linux.mmzone import pfn_to_section
from drgn.helpers.linux.percpu import per_cpu_ptr

from mmscope.drgn.free.block_heads import buddy_mapcount, max_order
from mmscope.drgn.free.zones import for_each_zone
from mmscope.drgn.reading.page_ext import page_ext_size


def walk_free_lists(prog: Program) -> int:
    """Every free list with drgn's list helper, and the order of every block."""
    blocks = 0
    for _, _, zone in for_each_zone(prog):
        if not zone.present_pages:
            continue
        for area in zone.free_area:
            for head in area.free_list:
                for page in list_for_each_entry("struct page", head.address_of_(), "lru"):
                    page.private.value_()
                    blocks += 1
    return blocks


def page_owner_loop(prog: Program, start_pfn: int, end_pfn: int) -> Counter[int]:
    """Allocations by handle, page frame by page frame, as read_page_owner() goes about it."""
    size, offset = page_ext_size(prog), prog["page_owner_ops"].offset.value_()
    buddy, last_order = buddy_mapcount(prog), max_order(prog)
    found: Counter[int] = Counter()
    pfn = start_pfn
    while pfn < end_pfn:
        page = pfn_to_page(prog, pfn)
        if page._mapcount.counter.value_() == buddy:
            order = page.private.value_()
            pfn += 1 << order if order <= last_order else 1
            continue
        section = pfn_to_section(prog, pfn)
        address = (section.page_ext.value_() + size * pfn) & 0xFFFFFFFFFFFFFFFF
        flags = Object(prog, "struct page_ext", address=address).flags.value_()
        owner = Object(prog, "struct page_owner", address=address + offset)
        handle = owner.handle.value_()
        if flags & 3 == 3 and pfn % (1 << owner.order.value_()) == 0 and handle:
            found[handle] += 1
        pfn += 1
    return found


def alloc_tag_loop(prog: Program) -> Iterator[tuple[str, str, int, str, int, int]]:
    """Module, file, line, function, calls and bytes of every alloc_tag, as alloc_tag_read()."""
    cpus = list(for_each_possible_cpu(prog))
    tag_type = prog.type("struct alloc_tag *")
    for _, entry in idr_for_each(prog["alloc_tag_cttype"].mod_idr.address_of_()):
        module = Object(prog, "struct codetag_module *", value=entry.value_())
        tag = Object(prog, tag_type, value=module.range.start.value_())
        while tag.value_() < module.range.stop.value_():
            counters = [per_cpu_ptr(tag.counters, cpu) for cpu in cpus]
            yield (
                tag.ct.modname.string_().decode() if tag.ct.modname else "",
                tag.ct.filename.string_().decode(),
                tag.ct.lineno.value_(),
                tag.ct.function.string_().decode(),
                sum(each.calls.value_() for each in counters) & (1 << 64) - 1,
                sum(each.bytes.value_() for each in counters) & (1 << 64) - 1,
            )
            tag += 1


def inode_pages(prog: Program) -> dict[int, int]:
    """Cached pages (nrpages) by address_space, of every inode on the list of its super block."""
    found = {}
    head = prog["super_blocks"].address_of_()
    for sb in list_for_each_entry("struct super_block", head, "s_list"):
        for inode in list_for_each_entry("struct inode", sb.s_inodes.address_of_(), "i_sb_list"):
            if pages := inode.i_data.nrpages.value_():
                found[inode.i_data.address_] = pages
    return found
