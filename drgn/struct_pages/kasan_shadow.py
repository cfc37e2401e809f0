# SPDX-License-Identifier: LGPL-2.1-or-later
"""
KASAN's shadow: a byte for eight of the kernel's, so an eighth of RAM, and of what vmalloc() has.

It is a range of the kernel's addresses (arch/x86/include/asm/kasan.h), most of which one page of
zeros maps, ``kasan_early_shadow_page``, with tables of its own. What else is mapped there is the
shadow: of the direct map from the boot allocator (``kasan_init()``, arch/x86/mm/kasan_init_64.c),
of vmalloc areas from the page allocator, page by page (``kasan_populate_vmalloc()``,
mm/kasan/shadow.c). Costs a walk over the tables of the range, nothing without KASAN.

Cannot know: where the shadow is on other architectures than x86-64; and the tags of KASAN's other
two modes, which only arm64 has. Freed objects that KASAN keeps for a while (its quarantine) are
slab memory in use, here as in the kernel's own counts.
"""

import numpy as np
from drgn import Program
from drgn.helpers.linux.mm import follow_phys

from mmscope.drgn.opening.kasan import SCALE_SHIFT, has_known_place, shadow_address
from mmscope.drgn.page_tables.page_table_entries import kernel_root, new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.struct_pages.memmap import NO_FRAMES, Frames

EARLY = ("page", "pte", "pmd", "pud", "p4d")


def find_shadow(memory: Memory) -> Frames:
    """The shadow, once for all sections."""
    return memory.once("kasan_shadow", lambda: kasan_shadow(memory.prog))


def kasan_shadow(prog: Program) -> Frames:
    """
    Find the shadow: none where the kernel is built without.

    :raises NotImplementedError: where it is on this architecture is not known.
    :raises LookupError: it is not there.
    """
    addresses = _early_addresses(prog)
    if not addresses:
        return Frames(NO_FRAMES, NO_FRAMES, NO_FRAMES)
    if not has_known_place(prog):
        raise NotImplementedError("where KASAN's shadow is on this architecture is not known")
    form = page_table_format(prog)
    half = form.span // 2  # the kernel's half of all addresses
    start = shadow_address(2**64 - half)
    end = start + (half >> SCALE_SHIFT)
    walk = new_walk(form, 1)
    starts, sizes, tables = [NO_FRAMES], [NO_FRAMES], [NO_FRAMES]
    for chunk in walk_page_tables(prog, form, kernel_root(prog), walk, start=start, end=end):
        last = chunk.addresses + np.uint64((chunk.slots << form.levels[chunk.level].shift) - 1)
        # With five levels a table after the shadow is the kernel image's as well: kasan_init().
        its_own = (last < np.uint64(end)) & (chunk.level > 0)
        frames = chunk.frames[its_own] >> np.uint64(form.page_shift)
        tables.append(frames.astype(np.int64))
        leaves = chunk.entries[form.is_leaf(chunk.entries, chunk.level)]
        frames = form.physical(leaves, chunk.level) >> np.uint64(form.page_shift)
        pages = 1 << form.levels[chunk.level].shift - form.page_shift
        starts.append(frames.astype(np.int64))
        sizes.append(np.full(len(frames), pages, np.int64))
    init_mm = prog["init_mm"].address_of_()
    early = [follow_phys(init_mm, at).value_() >> form.page_shift for at in addresses]
    found, its_tables = np.concatenate(starts), np.concatenate(tables)
    if not np.isin(found, early).any():
        raise LookupError("it is not where it was up to 7.3")
    own = ~np.isin(found, early)
    return Frames(
        found[own],
        np.concatenate(sizes)[own],
        distinct(its_tables[~np.isin(its_tables, early)]),
        walk.gaps.bytes,
    )


def _early_addresses(prog: Program) -> list[int]:
    """Addresses of the page of zeros and its tables, in the kernel's image; none without KASAN."""
    found: list[int] = []
    for name in EARLY:
        try:
            found.append(prog.symbol(f"kasan_early_shadow_{name}").address)
        except LookupError:
            if not found:
                return []  # p4d: only where there are five levels
    return found
