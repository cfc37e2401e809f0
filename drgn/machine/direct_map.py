# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The direct map: the kernel's own mapping of all memory, and what is missing from it.

Walks ``init_mm`` from ``page_offset_base`` to ``vmalloc_base`` (arm64: from ``PAGE_OFFSET`` to
``PAGE_END``; powerpc: to its vmalloc memory; without counters). What is mapped by small entries
costs the kernel TLB misses; what is set up and not present is out of the kernel's reach: secret
memory (memfd_secret), memory of confidential guests, pages under debug_pagealloc. Held against
``direct_pages_count[]``, the DirectMap lines of /proc/meminfo (arch/x86/mm/pat/set_memory.c).

That counter also takes the splits of the kernel image's second mapping, at ``__START_KERNEL_map``,
for its own: ``__split_large_page()`` asks whether the memory is mapped, not by which address. There
are as many of those as the image has PTE tables. While the kernel boots, it also counts an entry
again for each range of memory that touches it (arch/x86/mm/init_64.c, ``phys_pud_init()``): a
machine of 1.5 GiB may have 3 GiB in DirectMap1G. What is mapped is by the page tables.

Costs a read for each page table of both ranges, which are few where memory is mapped by 2 MiB and
1 GiB.

Cannot know: why an entry is not present.
"""

from collections import Counter

import numpy as np
from drgn import Program

from mmscope.drgn.opening.constants import vmcoreinfo_number
from mmscope.drgn.page_tables.page_table_entries import kernel_root, new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import PageTableFormat, page_table_format
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.kernel_text import printed_number, row_number

# Entries that are counted again at boot: a table or two a range (init_memory_mapping(),
# arch/x86/mm/init.c), of which firmware gives hundreds, each in a few steps.
MOST_REPEATED = 1 << 22
# enum pg_level (arch/x86/include/asm/pgtable_types.h), and the line of /proc/meminfo.
COUNTERS = {
    "pud": ("PG_LEVEL_1G", "DirectMap1G"),
    "pmd": ("PG_LEVEL_2M", "DirectMap2M"),
    "pte": ("PG_LEVEL_4K", "DirectMap4k"),
}

# RADIX_VMALLOC_START (arch/powerpc/include/asm/book3s/64/radix.h), behind powerpc's direct map.
POWER_VMALLOC = 0xC008 << 48


@table("direct_map", "The direct map by level", measure="kernel_bytes", memory="mapped")
class DirectMapLevel:
    """The direct map by level of page tables."""

    level: str = column(
        holds="words",
        key=True,
        help="pud, pmd or pte: 1 GiB, 2 MiB or 4 KiB an entry (with 4 KiB pages)",
    )
    entries: int | None = column(unit="entries", help="that map memory")
    bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="that they map")
    not_present_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="of entries set up but not present: unreachable for the kernel",
    )
    tables: int | None = column(unit="tables", help="tables of this level, a page each")
    kernel_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="DirectMap4k, 2M or 1G of /proc/meminfo; none on arm64",
    )
    image_bytes: int | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="of that: splits of the kernel image's mapping, counted as this one's; negative: "
        "missing",
    )
    repeated_bytes: int | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="of that: counted again at boot, once a range",
    )


def direct_map(prog: Program, gaps: Gaps) -> list[DirectMapLevel]:
    """
    The levels from the largest entries down.

    ``kernel_bytes`` is the sum of ``bytes``, ``not_present_bytes``, ``image_bytes`` and
    ``repeated_bytes``, unless the kernel runs.

    :param gaps: gets what could not be read of the page tables.
    :raises NotImplementedError: the page tables are of an architecture that is not known.
    :raises LookupError: the kernel does not say where its direct map is.
    :raises ValueError: a counter or VMCOREINFO is damaged.
    """
    form = page_table_format(prog)
    counts = image = None
    if "page_offset_base" in prog:
        start, end = (int(prog[name].value_()) for name in ("page_offset_base", "vmalloc_base"))
        counts = prog["direct_pages_count"]
    elif form.powerpc:
        start, end = form.kernel[0], POWER_VMALLOC
    else:
        # arm64 has no counters: up to PAGE_END, where its modules begin
        # (arch/arm64/include/asm/memory.h).
        modules = vmcoreinfo_number(prog, "NUMBER(MODULES_VADDR)", base=16)
        if modules is None:
            raise LookupError("the kernel does not say where its direct map is")
        start, end = (1 << 64) - form.user_end, modules
    found = _count(prog, form, start, end, gaps)
    if counts is not None:
        image = _count(prog, form, *_image(prog), gaps)
    rows = []
    for level in form.levels:
        if level.name not in COUNTERS:
            continue
        mapped, absent = found[level.name, "mapped"], found[level.name, "absent"]
        kernel = of_image = repeated = None
        if counts is not None and image is not None:
            counter, _ = COUNTERS[level.name]
            number = counts[prog.constant(counter).value_()].value_()
            kernel = number << level.shift
            most = mapped + absent + image[level.name, "mapped"] + MOST_REPEATED
            if number > most and not gaps.bytes:
                why = f"{number:,} entries in {level.name}s"
                raise ValueError(f"direct_pages_count is damaged: {why}")
            # Of each PMD that was split, one table.
            split = image["pte", "tables"] << form.above_ptes.shift
            of_image = {"pte": split, "pmd": -split}.get(level.name, 0)
            repeated = max((number - mapped - absent << level.shift) - of_image, 0)
        rows.append(
            DirectMapLevel(
                level.name,
                mapped,
                mapped << level.shift,
                absent << level.shift,
                found[level.name, "tables"],
                kernel,
                of_image,
                repeated,
            )
        )
    return rows


def _image(prog: Program) -> tuple[int, int]:
    """
    Begin and end of the kernel image.

    drgn (0.3.0) leaves a symbol after the last section of an ELF file where it was linked: then
    _end lies before __bss_stop, as a kernel is moved by more than what is between them (.brk).
    """
    start, stop, end = (prog.symbol(name).address for name in ("_text", "__bss_stop", "_end"))
    if end < stop:
        moved = vmcoreinfo_number(prog, "KERNELOFFSET", base=16)
        if moved is None:
            raise LookupError("VMCOREINFO has no KERNELOFFSET")
        end += moved
    return start, end


def _count(
    prog: Program, form: PageTableFormat, start: int, end: int, gaps: Gaps
) -> Counter[tuple[str, str]]:
    """
    By the name of a level: entries that map memory (``mapped``), entries that are not present
    (``absent``), and ``tables``.

    What is present and not valid is memory that a process may not touch (PROT_NONE). Here it is
    memory that the kernel took out of its reach: arm64 marks it so (PTE_PRESENT_INVALID) in
    ``set_direct_map_invalid_noflush()``.
    """
    counts: Counter[tuple[str, str]] = Counter()
    walk = new_walk(form, 1)
    root = kernel_root(prog)
    valid = np.uint64(form.valid)
    for chunk in walk_page_tables(prog, form, root, walk, start=start, end=end):
        level = form.levels[chunk.level]
        mapped = form.is_leaf(chunk.entries, chunk.level) & ((chunk.entries & valid) != 0)
        absent = ~(mapped | form.is_none(chunk.entries) | form.is_table(chunk.entries, chunk.level))
        counts[level.name, "mapped"] += int(np.count_nonzero(mapped))
        counts[level.name, "absent"] += int(np.count_nonzero(absent)) if level.leaf else 0
        counts[level.name, "tables"] += len(chunk)
    gaps.bytes += walk.gaps.bytes
    return counts


def read_direct_map(meminfo: str) -> list[DirectMapLevel]:
    """
    The kernel's counters from /proc/meminfo; none on an architecture that has no such lines.

    :raises ValueError: a line holds no number.
    """
    lines = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    rows = []
    for level, (_, name) in COUNTERS.items():
        if name in lines:
            number = printed_number(lines[name].removesuffix("kB").strip(), "/proc/meminfo")
            size = row_number(number << 10, "/proc/meminfo")
            rows.append(DirectMapLevel(level, None, None, None, None, size, None, None))
    return rows


def missing_bytes(rows: list[DirectMapLevel]) -> int:
    """Bytes that the kernel's counters lack of what the walk found, over all levels."""
    missing = 0
    for row in rows:
        if row.bytes is not None and row.kernel_bytes is not None:
            found = row.bytes + (row.not_present_bytes or 0) + (row.image_bytes or 0)
            missing += max(found - row.kernel_bytes, 0)
    return missing


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("physical_memory", "direct_map")
