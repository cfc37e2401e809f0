# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct swap_info_struct`` (include/linux/swap.h): swap areas and how full they are.

Exact: ``pages`` and ``inuse_pages`` are what /proc/swaps prints (``swap_show()``, mm/swapfile.c).
Costs a few reads an area.

A slot is in use also while its page is in the swap cache, or of nobody until the slot is freed:
``used`` is at least what processes and shmem have there. The text, /proc/swaps, has the same.

``struct zram`` (drivers/block/zram/zram_drv.h), which is a module's, has what a device stores and
the memory that it takes for that: the numbers of /sys/block/zram*/mm_stat (``mm_stat_show()``).

Cannot know: how full an area of more than 4 TiB is on a kernel from v6.14 on whose mark of a full
area is bit 30 of the count (:func:`used_slots`).
"""

import dataclasses
import re
from collections.abc import Iterator

from drgn import FaultError, Object, Program

from mmscope.drgn.opening.module_types import module_types
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


def swap_infos(prog: Program) -> Iterator[Object]:
    """
    ``struct swap_info_struct`` of each area in use.

    :raises LookupError: the kernel was built without swap (CONFIG_SWAP=n).
    :raises FaultError: ``swap_info`` cannot be read.
    """
    infos = prog["swap_info"]
    # swap_info[] is filled from its start, and never shrinks.
    number = min(int(prog["nr_swapfiles"].value_()), infos.type_.unaliased().length or 0)
    for at in range(number):
        info = infos[at].read_()
        if info and int(info.flags.value_()) & SWP_USED and int(info.max.value_()):
            yield info


def swap_area(info: Object) -> SwapArea:
    """An area, but for what only zram has."""
    prog = info.prog_
    page = int(prog["PAGE_SIZE"].value_())
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
        not int(info.flags.value_()) & SWP_WRITEOK,
        None,
        None,
    )


def zram_memory(info: Object) -> tuple[int, int] | None:
    """
    (bytes that its zram device stores, bytes of memory that it takes for them), as
    ``mm_stat_show()`` has them; None if it is on no zram device.

    :raises LookupError: the kernel keeps no BTF of modules, which ``struct zram`` is one's.
    :raises ValueError: its BTF is damaged, or the device.
    """
    prog, disk = info.prog_, info.bdev.bd_disk.read_()
    name = disk.disk_name.string_().decode(errors="replace")
    if not re.fullmatch(r"zram\d{1,5}", name, re.ASCII):
        return None
    type_ = module_types(prog, "zram").struct("zram")
    if type_ is None:
        raise LookupError("the BTF of module zram has no struct zram")
    zram = Object(prog, type_, address=disk.private_data.value_())
    if zram.disk.value_() != disk.value_():
        raise ValueError(f"{name}: what its private_data leads to is no struct zram of it")
    page = int(prog["PAGE_SIZE"].value_())
    return int(zram.stats.pages_stored.counter.value_()) * page, _pool_pages(prog, zram) * page


def _pool_pages(prog: Program, zram: Object) -> int:
    """``zs_get_total_pages()`` (mm/zsmalloc.c, which may be a module too)."""
    pool = zram.mem_pool.read_()
    if not pool:  # the device has no size yet
        return 0
    try:
        type_ = prog.type("struct zs_pool")
    except LookupError:
        found = module_types(prog, "zsmalloc").struct("zs_pool")
        if found is None:
            raise LookupError("the BTF of module zsmalloc has no struct zs_pool") from None
        type_ = found
    pages = Object(prog, type_, address=pool.value_()).pages_allocated
    return int(pages.counter.value_())


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
        infos = list(swap_infos(prog))
    except LookupError as error:
        raise Absent(f"the kernel has no swap: {error}") from None
    rows = [_with_zram(info, found) for info in infos]
    # The one that is filled first comes first.
    found.add(SWAP_AREAS, sorted(rows, key=lambda row: -row.priority))
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


def _with_zram(info: Object, found: Found) -> SwapArea:
    row = swap_area(info)
    try:
        numbers = zram_memory(info)
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"{row.path}: the memory that it takes is unknown: {error}")
        numbers = None
    if numbers is None:
        return row
    stored, taken = numbers
    return dataclasses.replace(row, stored_bytes=stored, memory_bytes=taken)


def from_files(files: Files) -> Found:
    rows = []
    for row in read_swaps(files.read("proc/swaps")):
        match = re.fullmatch(r"/dev/(zram\d{1,5})", row.path or "", re.ASCII)
        rows.append(_with_mm_stat(files, row, match[1]) if match else row)
    return Found().add(SWAP_AREAS, rows)


def _with_mm_stat(files: Files, row: SwapArea, device: str) -> SwapArea:
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
