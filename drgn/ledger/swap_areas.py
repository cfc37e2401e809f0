# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct swap_info_struct`` (include/linux/swap.h): swap areas and how full they are.

Exact: ``pages`` and ``inuse_pages`` are what /proc/swaps prints (``swap_show()``, mm/swapfile.c).
Costs a few reads an area.

A slot is in use also while its page is in the swap cache, or of no process until the slot is freed:
``used`` is at least what processes and shmem have there. The text, /proc/swaps, has the same.

``struct zram`` (drivers/block/zram/zram_drv.h), which is a module's, has what a device stores and
the memory that it takes for that: the numbers of /sys/block/zram*/mm_stat (``mm_stat_show()``).

zswap (mm/zswap.c) keeps pages that are to be swapped out compressed in memory. It is no area: each
of its pages has a slot of one too, to which nothing was written. Its numbers are what Zswap and
Zswapped of /proc/meminfo print.

Cannot know: how full an area of more than 4 TiB is on a kernel from v6.14 on whose mark of a full
area is bit 30 of the count (:func:`used_slots`).
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator

from drgn import FaultError, Object, Program
from drgn.helpers.linux.block import disk_name, for_each_disk
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.holders.holdings import Holder
from mmscope.drgn.ledger.swap_cgroups import Area, SwapCgroup, swap_cgroups
from mmscope.drgn.opening.btf import struct_of
from mmscope.drgn.opening.constants import yes_or_no
from mmscope.drgn.reading.dentry_paths import path_of
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import LONGEST_NAME, MOST_BYTES, column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines

SWP_USED, SWP_WRITEOK = 1 << 0, 1 << 1  # include/linux/swap.h
S_IFMT, S_IFBLK = 0o170000, 0o060000
# SWAP_USAGE_OFFLIST_BIT: the area is on no list of those with free slots. Bit 30 since "mm, swap:
# clean up plist removal and adding" (b228386cf237, in v6.14), until "mm, swap: fix
# SWAP_USAGE_OFFLIST_BIT collision with real usage count" (12e9ac7bc5b2, in 7.2).
OFFLIST, OLD_OFFLIST = 1 << 62, 1 << 30
MAX_POOLS = 1 << 10  # of zswap: one for each compressor that still has pages
MOST_DISKS = 1 << 16
MAX_AREAS = 1 << 10  # of a text; MAX_SWAPFILES is 32 at most


@table(
    "swap_areas",
    "Swap areas",
    empty="The machine has no swap.",
    memory="again",
    measure="used_bytes",
    lasting=("path",),
)
class SwapArea:
    """A swap area."""

    path: str | None = column(holds="file", key=True, help="of device or file, as given to swapon")
    kind: str = column(holds="words", help="partition (a block device) or file")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="usable for swap")
    # More than the machine has memory: swap may be larger.
    used_bytes: int = column(
        unit="bytes",
        high=(MOST_BYTES, "bytes"),
        help="slots in use; processes and shmem may hold less",
    )
    priority: int = column(low=-(1 << 15), high=1 << 15, help="the highest is filled first")
    leaving: bool | None = column(help="swapoff in progress: nothing more is written to it")
    stored_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="zram: data written to it; empty: no zram, or unknown",
    )
    memory_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="zram: memory used for it"
    )


@table("zswap", "zswap", empty="The kernel has no zswap.", memory="again", measure="memory_bytes")
class Zswap:
    """What zswap stores."""

    enabled: bool | None = column(
        help="new swapped-out pages go there; stored ones stay either way"
    )
    compressor: str | None = column(
        holds="kernel",
        key=True,
        high=LONGEST_NAME,
        help="of the pool for new pages; empty: no pool yet",
    )
    pools: int | None = column(help="pools of other compressors run empty")
    stored_bytes: int = column(
        unit="bytes",
        high=MOST_BYTES,
        help="Zswapped: size of the stored pages uncompressed",
    )
    memory_bytes: int | None = column(unit="bytes", help="Zswap: memory they take")


# zpool_driver.type, which is also the name of the module that may have it, to what it calls a pool
# and the pool's pages: zs_get_total_pages(), z3fold_get_pool_pages() and zbud_get_pool_pages().
ZPOOLS = {
    "zsmalloc": ("zs_pool", "pages_allocated"),
    "z3fold": ("z3fold_pool", "pages_nr"),
    "zbud": ("zbud_pool", "pages_nr"),
}


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


def zram_of(disk: Object) -> Object | None:
    """
    The ``struct zram`` of a ``struct gendisk *``; None if that is no zram device.

    :raises LookupError: zram is a module, and the kernel keeps no BTF of modules.
    :raises ValueError: its BTF is damaged, or the device.
    """
    name = disk.disk_name.string_().decode(errors="replace")
    if not re.fullmatch(r"zram\d{1,5}", name, re.ASCII):
        return None
    type_ = struct_of(disk.prog_, "zram", "zram")
    zram = Object(disk.prog_, type_, address=disk.private_data.value_())
    if zram.disk.value_() != disk.value_():
        raise ValueError(f"{name}: what its private_data leads to is no struct zram of it")
    return zram


def zram_memory(zram: Object) -> tuple[int, int]:
    """
    (bytes that a zram device stores, bytes of memory that it takes for them), as
    ``mm_stat_show()`` has them.

    :raises LookupError, ValueError: as :func:`zram_of`.
    """
    prog = zram.prog_
    page, pages = int(prog["PAGE_SIZE"].value_()), 0
    if pool := zram.mem_pool.value_():  # none before the device has a size
        # zs_get_total_pages(), mm/zsmalloc.c
        pool = Object(prog, struct_of(prog, "zs_pool", "zsmalloc"), address=pool)
        pages = int(pool.pages_allocated.counter.value_())
    return int(zram.stats.pages_stored.counter.value_()) * page, pages * page


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


def zswap(prog: Program, notes: list[str]) -> list[Zswap]:
    """
    The pages in zswap; none, if the kernel was built without it.

    :param notes: get why the memory that it takes is unknown, if it is.
    :raises FaultError: a part of it cannot be read.
    :raises ValueError: its pools are damaged.
    """
    try:
        stored = int(prog["zswap_stored_pages"].counter.value_())
    except LookupError:
        return []
    pools, page = _pools(prog), int(prog["PAGE_SIZE"].value_())
    compressor = pools[0].tfm_name.string_().decode(errors="replace") if pools else None
    enabled = yes_or_no(prog["zswap_enabled"])
    memory = None
    try:
        memory = zswap_memory(prog)
    except (FaultError, LookupError, ValueError) as error:
        notes.append(f"the memory of zswap is unknown: {error}")
    return [Zswap(enabled, compressor, len(pools), max(stored, 0) * page, memory)]


def _pools(prog: Program) -> list[Object]:
    """``struct zswap_pool``: the one in use, and then those before it."""
    pools: list[Object] = []
    head = prog["zswap_pools"].address_of_()
    for pool in list_for_each_entry("struct zswap_pool", head, "list"):
        if len(pools) == MAX_POOLS:
            raise ValueError(f"the list of zswap's pools does not end after {MAX_POOLS:,}")
        pools.append(pool)
    return pools


def zswap_memory(prog: Program) -> int:
    """
    The bytes that zswap takes: ``zswap_total_pages()``; before v6.10 ``zswap_pool_total_size``.

    :raises FaultError, LookupError: a pool's pages cannot be read.
    :raises ValueError: the list of pools is damaged.
    """
    pools, page = _pools(prog), int(prog["PAGE_SIZE"].value_())
    # "mm: zswap: interact directly with zsmalloc" (5c3f8be0c6b1, in v6.18)
    if prog.type("struct zswap_pool").has_member("zs_pool"):
        return page * sum(int(pool.zs_pool.pages_allocated.counter.value_()) for pool in pools)
    try:
        # Kept until "mm: zswap: optimize zswap pool size tracking" (91cdcd8d624b, in v6.10).
        return int(prog["zswap_pool_total_size"].value_())
    except LookupError:
        return page * sum(_zpool_pages(prog, zpool) for zpool in _zpools(pools))


def _zpools(pools: list[Object]) -> list[Object]:
    """``struct zpool``, of kernels before v6.18."""
    # Several until "mm/zswap: use only one pool in zswap" (8edc9c4e72fe, in v6.11).
    return [
        zpool
        for pool in pools
        for zpool in (pool.zpools if hasattr(pool, "zpools") else [pool.zpool])
    ]


def _zpool_pages(prog: Program, zpool: Object) -> int:
    """``zpool_get_total_pages()`` (mm/zpool.c), which asks the pool's driver."""
    driver = name_at(zpool.driver.type)
    if driver not in ZPOOLS:
        raise LookupError(f"a zpool of {driver!r} is not known")
    name, member = ZPOOLS[driver]
    type_ = struct_of(prog, name, driver)
    pages = Object(prog, type_, address=zpool.pool.value_()).member_(member)
    # zbud's is a plain u64, the others are atomic.
    return int((pages.counter if hasattr(pages, "counter") else pages).value_())


def zsmalloc_pools(prog: Program) -> Iterator[tuple[Holder, int, int]]:
    """
    Pools of zsmalloc: each zram device, whatever it is used for, and zswap; how many pages they
    store, and how many they take.

    :raises LookupError, ValueError: as :func:`zram_of`.
    """
    found = []
    for disk in itertools.islice(for_each_disk(prog), MOST_DISKS):
        if (zram := zram_of(disk)) is not None:
            name = disk_name(disk).decode(errors="backslashreplace")
            found.append((Holder("zram", name), *zram_memory(zram)))
    for row in zswap(prog, []):
        pools = _pools(prog)
        by_zpool = pools and not hasattr(pools[0], "zs_pool")
        if not by_zpool or {name_at(zpool.driver.type) for zpool in _zpools(pools)} == {"zsmalloc"}:
            found.append((Holder("zswap"), row.stored_bytes, row.memory_bytes or 0))
    page = int(prog["PAGE_SIZE"].value_())
    for holder, stored, taken in found:
        yield holder, stored // page, taken // page


def read_zswap(files: Files) -> list[Zswap]:
    """
    The same from /proc/meminfo; none, if that has no such lines.

    :raises ValueError: they are damaged.
    """
    said = dict(re.findall(r"^(Zswap|Zswapped): +(\d{1,20}) kB$", files.read("proc/meminfo"), re.M))
    if len(said) < 2:
        return []
    enabled = _parameter(files, "enabled")
    return [
        Zswap(
            {"Y": True, "N": False}.get(enabled or ""),
            _parameter(files, "compressor"),
            None,
            row_number(int(said["Zswapped"]) << 10, "/proc/meminfo"),
            row_number(int(said["Zswap"]) << 10, "/proc/meminfo"),
        )
    ]


def _parameter(files: Files, name: str) -> str | None:
    try:
        return files.read(f"sys/module/zswap/parameters/{name}").strip()[:LONGEST_NAME] or None
    except Absent:
        return None


def from_memory(memory: Memory) -> Found:
    prog, found = memory.prog, Found(memory.live)
    try:
        infos = list(swap_infos(prog))
    except LookupError as error:
        raise Absent(f"the kernel has no swap: {error}") from None
    areas = [_area(info, found) for info in infos]
    rows = [row for row, _ in areas]
    found.differ(
        *if_any(sum(row.path is None for row in rows), "the names of {} cannot be read", "area")
    )
    for row, info in zip(rows, infos, strict=True):
        # setup_swap_info(), mm/swapfile.c
        if (said := -int(info.list.prio.value_())) != row.priority:
            found.differ(f"{row.path}: its priority is {row.priority}, in the list of areas {said}")
    # The one that is filled first comes first.
    found.add(SwapArea, sorted(rows, key=lambda row: -row.priority))
    try:
        found.add(Zswap, zswap(prog, found.notes))
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"what zswap stores is unknown: {error}")
    _by_cgroup(memory, infos, areas, found)
    try:
        usable = sum(row.bytes for row in rows if not row.leaving)
        total = int(prog["total_swap_pages"].value_()) * int(prog["PAGE_SIZE"].value_())
    except (FaultError, LookupError) as error:
        found.notes.append(f"total_swap_pages cannot be read: {error}")
    else:
        if usable != total:
            found.differ(f"areas have {usable:,} bytes, total_swap_pages says {total:,}")
    return found


def _area(info: Object, found: Found) -> tuple[SwapArea, Object | None]:
    """An area, and the ``struct zram`` that it is on, if it is and that is known."""
    row = swap_area(info)
    try:
        zram = zram_of(info.bdev.bd_disk.read_())
        if zram is None:
            return row, None
        stored, taken = zram_memory(zram)
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"{row.path}: the memory that it takes is unknown: {error}")
        return row, None
    return dataclasses.replace(row, stored_bytes=stored, memory_bytes=taken), zram


def _by_cgroup(
    memory: Memory, infos: list[Object], areas: list[tuple[SwapArea, Object | None]], found: Found
) -> None:
    """Add what memory cgroups have in the areas."""
    gaps = Gaps()
    try:
        # The blocks of a file on zram are not its slots.
        on = [
            Area(info, row.path, zram if row.kind == "partition" else None)
            for info, (row, zram) in zip(infos, areas, strict=True)
        ]
        found.add(SwapCgroup, swap_cgroups(memcgs_once(memory), on, gaps))
    except Absent as error:
        found.remarks.append(f"swap is of no memory cgroup: {error}")
    except TORN as error:
        found.differ(f"what memory cgroups have swapped out is unknown: {error}")
    found.unreadable_bytes += gaps.bytes


def from_files(files: Files) -> Found:
    rows = []
    for row in read_swaps(files.read("proc/swaps")):
        match = re.fullmatch(r"/dev/(zram\d{1,5})", row.path or "", re.ASCII)
        rows.append(_with_mm_stat(files, row, match[1]) if match else row)
    found = Found().add(SwapArea, rows)
    try:
        found.add(Zswap, read_zswap(files))
    except (Absent, ValueError) as error:
        found.notes.append(f"what zswap stores is unknown: {error}")
    return found


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
    intro="""
Where anonymous memory and shmem are written to when memory is short. Slots are in use as long as
anybody may read them back, also while the page is in memory again. A zram device keeps what is
written to it in memory, compressed. zswap does so before a page is written to any area; the page
has its slot there all the same.

What is swapped out stays charged to its memory cgroup, also to one that was removed meanwhile.
""",
    command=Command("swap areas and how full they are", name="swap_areas"),
    since="0.2.0",
    tables=tables_of(SwapArea, Zswap, SwapCgroup),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.SWAPS, prices.ZRAM, prices.MEMINFO, prices.ZSWAP),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("swap")
