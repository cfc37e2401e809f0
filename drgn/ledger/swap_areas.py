# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct swap_info_struct`` (include/linux/swap.h): swap areas and how full they are.

Exact: ``pages`` and ``inuse_pages`` are what /proc/swaps prints (``swap_show()``, mm/swapfile.c).
Costs a few reads an area.

A slot is in use also while its page is in the swap cache, or of nobody until the slot is freed:
``used`` is at least what processes and shmem have there. The text, /proc/swaps, has the same; of
zram devices /sys/block/zram*/mm_stat has the memory that they take, which is read from text only,
as struct zram is a module's.

Cannot know: how full an area of more than 4 TiB is on a kernel from v6.14 on whose mark of a full
area is bit 30 of the count (:func:`used_slots`).
"""

import dataclasses
import re
from collections.abc import Iterator

from drgn import FaultError, Object, Program

from mmscope.drgn.reading.dentry_paths import path_of
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Command, Found, Section, disagreement
from mmscope.drgn.tables.rows import MOST_BYTES, column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import printed_number, whole_lines

SWP_USED, SWP_WRITEOK = 1 << 0, 1 << 1  # include/linux/swap.h
S_IFMT, S_IFBLK = 0o170000, 0o060000
# SWAP_USAGE_OFFLIST_BIT: the area is on no list of those with free slots. Bit 30 since "mm, swap:
# clean up plist removal and adding" (v6.14), until "mm, swap: fix SWAP_USAGE_OFFLIST_BIT collision
# with real usage count" (in 7.2).
OFFLIST, OLD_OFFLIST = 1 << 62, 1 << 30
MAX_AREAS = 1 << 10  # of a text; MAX_SWAPFILES is 32 at most


@table_row
class SwapArea:
    """A swap area."""

    path: str | None = column(
        holds="file", key=True, help="of the device or file, as swapon got it"
    )
    kind: str = column(holds="words", help="partition: a block device; file")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="usable for swap")
    used_bytes: int = column(
        unit="bytes", high="bytes", help="slots in use; processes and shmem may have less"
    )
    priority: int = column(low=-(1 << 15), high=1 << 15, help="the highest is filled first")
    leaving: bool | None = column(help="swapoff is at work: nothing more is written to it")
    stored_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="zram: what was written to it; empty: no zram, or unknown",
    )
    memory_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="zram: memory that it takes for that"
    )


SWAP_AREAS = Table(
    "swap_areas",
    "Swap areas",
    SwapArea,
    empty="The machine has no swap.",
    memory="again",
    measure="used_bytes",
    lasting=("path",),
)


def swap_areas(prog: Program) -> Iterator[SwapArea]:
    """
    The areas in use, the one that is filled first before the others.

    :raises LookupError: the kernel was built without swap (CONFIG_SWAP=n).
    :raises FaultError: ``swap_info`` cannot be read.
    """
    found = []
    page = int(prog["PAGE_SIZE"].value_())
    infos = prog["swap_info"]
    # swap_info[] is filled from its start, and never shrinks.
    number = min(int(prog["nr_swapfiles"].value_()), infos.type_.unaliased().length or 0)
    for at in range(number):
        info = infos[at].read_()
        flags = int(info.flags.value_()) if info else 0
        if flags & SWP_USED and int(info.max.value_()):
            found.append(_area(prog, info, flags, page))
    yield from sorted(found, key=lambda row: -row.priority)


def _area(prog: Program, info: Object, flags: int, page: int) -> SwapArea:
    in_use = info.inuse_pages
    if in_use.type_.unaliased().type_name() != "unsigned int":  # an atomic_long_t (in v6.14)
        in_use = in_use.counter
    pages, file = int(info.pages.value_()), info.swap_file.read_()
    mode = int(file.f_inode.i_mode.value_()) if file else 0
    return SwapArea(
        path_of(prog, file.value_()) if file else None,
        "partition" if mode & S_IFMT == S_IFBLK else "file",
        pages * page,
        used_slots(int(in_use.value_()), pages) * page,
        int(info.prio.value_()),
        not flags & SWP_WRITEOK,
        None,
        None,
    )


def used_slots(in_use: int, pages: int) -> int:
    """
    ``swap_usage_in_pages()`` (mm/swapfile.c): slots in use, out of ``inuse_pages``.

    :param pages: slots of the area, which no count is above.
    """
    in_use &= ~OFFLIST
    return in_use & ~OLD_OFFLIST if in_use > pages else in_use


def read_swaps(text: str) -> list[SwapArea]:
    """
    Areas by /proc/swaps.

    :raises ValueError: the text is not /proc/swaps', or not all of it.
    """
    name = "/proc/swaps"
    head, *lines = whole_lines(text, name)
    if not head.startswith("Filename"):
        raise ValueError(f"{name} is damaged: {head[:60]!r}")
    rows = []
    for line in lines[:MAX_AREAS]:
        match = re.fullmatch(r"(\S+)\s+(partition|file)\s+(\d+)\s+(\d+)\s+(-?\d{1,5})", line, re.A)
        if not match:
            raise ValueError(f"{name} is damaged: {line[:60]!r}")
        # mangle_path() writes blanks as octal numbers, which stay, as in a path from memory.
        size, used = (printed_number(match[group], name) << 10 for group in (3, 4))
        rows.append(SwapArea(match[1], match[2], size, used, int(match[5]), None, None, None))
    return rows


def from_memory(memory: Memory) -> Found:
    prog, found = memory.prog, Found()
    try:
        rows = list(swap_areas(prog))
    except LookupError as error:
        raise Absent(f"the kernel has no swap: {error}") from None
    found.add(SWAP_AREAS, rows)
    try:
        usable = sum(row.bytes for row in rows if not row.leaving)
        told = int(prog["total_swap_pages"].value_()) * int(prog["PAGE_SIZE"].value_())
    except (FaultError, LookupError) as error:
        found.notes.append(f"total_swap_pages cannot be read: {error}")
    else:
        if usable != told:
            words = f"areas have {usable:,} bytes, total_swap_pages says {told:,}"
            disagreement(memory, found, words)
    return found


def from_files(files: Files) -> Found:
    rows = []
    for row in read_swaps(files.read("proc/swaps")):
        match = re.fullmatch(r"/dev/(zram\d{1,5})", row.path or "", re.ASCII)
        rows.append(_with_zram(files, row, match[1]) if match else row)
    return Found().add(SWAP_AREAS, rows)


def _with_zram(files: Files, row: SwapArea, device: str) -> SwapArea:
    """With what the device says of itself: mm_stat_show(), drivers/block/zram/zram_drv.c."""
    try:
        numbers = files.read(f"sys/block/{device}/mm_stat").split()
    except Absent:
        return row
    if len(numbers) < 3 or not all(number.isascii() and number.isdigit() for number in numbers[:3]):
        return row
    stored, memory = (printed_number(numbers[at], "mm_stat") for at in (0, 2))
    return dataclasses.replace(row, stored_bytes=stored, memory_bytes=memory)


SWAP_SECTION = Section(
    name="swap",
    title="Swap",
    place=72,
    intro="""
Where anonymous memory and shmem are written to when memory is short. Slots are in use as long as
anybody may read them back, also while the page is in memory again. A zram device keeps what is
written to it in memory, compressed.
""",
    command=Command("swap areas and how full they are", name="swap_areas"),
    since="0.2.0",
    tables=(SWAP_AREAS,),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.SWAPS, prices.ZRAM),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("swap")
