# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sections about memory by its physical address: what the kernel does not get, how it maps what it
has, and what is bad of it.
"""

from drgn import FaultError

from mmscope.drgn.free.zones import read_zoneinfo
from mmscope.drgn.machine.boot_options import MEMORY_OPTIONS, MemoryOption, memory_options
from mmscope.drgn.machine.direct_map import DIRECT_MAP, direct_map, missing_bytes, read_direct_map
from mmscope.drgn.machine.physical_memory import (
    PHYSICAL_MEMORY,
    PHYSICAL_MEMORY_PARTS,
    PhysicalMemory,
    lay_out,
    physical_memory,
    read_firmware_map,
)
from mmscope.drgn.machine.poisoned_pages import (
    POISON_COUNTERS,
    POISONED_PAGES,
    PoisonedPages,
    PoisonFinder,
    marked_pages,
    poison_counters,
    poisoned_pages,
    read_poison_counters,
)
from mmscope.drgn.reading.io_resources import read_iomem
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, Command, Found, Section, disagreement
from mmscope.drgn.struct_pages.struct_page_cost import struct_page_cost
from mmscope.drgn.tables.amounts import size_name

BUILT_WITHOUT = "the kernel is built without CONFIG_MEMORY_FAILURE: it marks no page as bad"


def physical_memory_once(memory: Memory) -> PhysicalMemory:
    """The machine's memory by address, once for all sections."""
    return memory.once("physical_memory", lambda: physical_memory(memory.prog))


def physical_memory_from_memory(memory: Memory) -> Found:
    read = physical_memory_once(memory)
    found = _found(read)
    if read.pages_beyond:
        disagreement(
            memory,
            found,
            f"zones have {read.pages_beyond:,} pages that are in no range of System RAM",
        )
    gaps = Gaps()
    try:
        levels = direct_map(memory.prog, gaps)
    except (FaultError, LookupError, NotImplementedError, ValueError) as error:
        found.notes.append(f"the direct map could not be read: {error}")
        return found
    found.unreadable_bytes += gaps.bytes
    if gaps.bytes:
        found.notes.append(f"{gaps.bytes:,} bytes of page tables could not be read")
    elif missing := missing_bytes(levels):
        disagreement(
            memory, found, f"the kernel's counters lack {size_name(missing)} of the direct map"
        )
    if repeated := sum(row.repeated_bytes or 0 for row in levels):
        found.remarks.append(
            f"the DirectMap lines of /proc/meminfo are {size_name(repeated)} too high: the kernel "
            "counted large entries again while it booted"
        )
    return found.add(DIRECT_MAP, levels)


def _found(read: PhysicalMemory) -> Found:
    found = Found(notes=[f"{read.more}: ranges are missing"] if read.more else [])
    if any(row.firmware is None for row in read.ranges):
        found.remarks.append("the firmware's map is not known: what was cut off of it is not shown")
    found.add(PHYSICAL_MEMORY_PARTS, read.parts)
    found.add(PHYSICAL_MEMORY, read.ranges)
    return found.add(MEMORY_OPTIONS, read.options)


def physical_memory_from_files(files: Files) -> Found:
    found, missing = Found(), []
    options: list[MemoryOption] | None = None
    try:
        options = memory_options(files.read("proc/cmdline"))
    except Absent as reason:
        missing.append(str(reason))
    try:
        read = _ranges_from_files(files, options or [], missing)
    except (Absent, ValueError) as reason:
        missing.append(str(reason))
    else:
        found = _found(read)
    if options is not None and not found.tables:
        found.add(MEMORY_OPTIONS, options)
    try:
        levels = read_direct_map(files.read("proc/meminfo"))
    except (Absent, ValueError) as reason:
        missing.append(str(reason))
        levels = []
    if levels:
        found.add(DIRECT_MAP, levels)
        found.remarks.append("the direct map is by the kernel's counters; its page tables are not")
    if not found.tables:
        raise Absent("; ".join(missing))
    found.notes += missing
    return found


def _ranges_from_files(
    files: Files, options: list[MemoryOption], missing: list[str]
) -> PhysicalMemory:
    """
    The ranges of /proc/iomem, laid over the firmware's map if it is there.

    :raises Absent: a file is not there, or shows too little.
    :raises ValueError: a file is damaged.
    """
    resources = read_iomem(files.read("proc/iomem"))
    if not resources:
        raise Absent("/proc/iomem shows its addresses to root only: run as root")
    zones = read_zoneinfo(files.read("proc/zoneinfo"))
    page = files.page_size(files.read("proc/meminfo"), sum(zone.managed_pages for zone in zones))
    if page is None:
        raise Absent("the size of a page cannot be derived from /proc/meminfo and /proc/zoneinfo")
    firmware = None
    try:
        if numbers := files.numbers("sys/firmware/memmap", r"(\d+)"):
            firmware = read_firmware_map(files.open, numbers)
    except OSError as error:
        missing.append(f"{files.root / 'sys/firmware/memmap'}: {error.strerror}")
    return lay_out(resources, firmware, [], options, zones, page)


def poisoned_pages_from_memory(memory: Memory) -> Found:
    try:
        counters = poison_counters(memory.prog)
    except LookupError:
        raise Absent(BUILT_WITHOUT) from None
    marked, gaps = marked_pages(memory)
    found = Found(unreadable_bytes=gaps.bytes)
    if gaps.bytes:
        found.notes.append(f"{gaps.bytes:,} bytes of struct pages could not be read{gaps.why}")
    if marked.more:
        found.notes.append(f"{marked.more:,} more pages are marked: the memory map is damaged")
    rows: list[PoisonedPages] = []
    if marked.pfns:
        cost = struct_page_cost(memory)
        rows, unread = poisoned_pages(memory.prog, marked, cost.huge_pages, cost.hvo)
        if unread:
            found.notes.append(f"the lists of {unread:,} huge pages could not be read")
    size = memory.prog["PAGE_SIZE"].value_()
    ours = sum(row.bad_pages or 0 for row in rows) * size
    counted = sum(row.bytes or 0 for row in counters)
    if ours != counted and not found.notes and not any(row.unlisted for row in rows):
        disagreement(
            memory,
            found,
            f"the kernel counts {size_name(counted)} as bad, {size_name(ours)} are marked",
        )
    found.add(POISONED_PAGES, rows)
    return found.add(POISON_COUNTERS, counters)


def poisoned_pages_from_files(files: Files) -> Found:
    nodes = files.numbers("sys/devices/system/node", r"node(\d+)")
    rows = read_poison_counters(files.read("proc/meminfo"), files.open, nodes)
    if not rows:
        raise Absent(BUILT_WITHOUT)
    found = Found(remarks=["which pages are bad is not in /proc; read the kernel's memory"])
    return found.add(POISON_COUNTERS, rows)


PHYSICAL_MEMORY_SECTION = Section(
    name="physical_memory",
    title="Physical memory and what the kernel does not get",
    since="0.2.0",
    tables=(PHYSICAL_MEMORY_PARTS, PHYSICAL_MEMORY, MEMORY_OPTIONS, DIRECT_MAP),
    intro="""
The machine's memory by physical address: the firmware's map laid over what the kernel made of
it. Options of the command line keep memory from the page allocator (`mem=`, `memmap=`,
`crashkernel=`), firmware sets some aside for a driver (soft-reserved), and memory blocks may be
offline ([kernel documentation: command-line
parameters](https://docs.kernel.org/admin-guide/kernel-parameters.html)). The parts add up to
the first line. What the firmware calls reserved is not in that sum: it may not be memory.

The direct map is the kernel's own mapping of all memory, in entries of 1 GiB, 2 MiB and 4 KiB:
each large one that was split costs TLB misses. The kernel cannot reach memory whose entry is set
up and not present, such as secret memory (`memfd_secret(2)`). The kernel's counters, the
DirectMap lines of /proc/meminfo, also count splits of the kernel image's own mapping. While the
kernel booted, they counted an entry again for each range of memory that touched it, so
DirectMap1G may exceed the machine's memory.
""",
    command=Command("memory that the kernel does not get"),
    from_memory=physical_memory_from_memory,
    from_files=physical_memory_from_files,
    reads=(prices.NAMES, prices.IOMEM, prices.ZONEINFO, prices.MEMINFO, prices.SETTINGS),
)


POISONED_PAGES_SECTION = Section(
    name="poisoned_pages",
    title="Pages marked as bad",
    since="0.2.0",
    tables=(POISONED_PAGES, POISON_COUNTERS),
    intro="""
Pages that the kernel gave up, since hardware, or an administrator in its place, reported them bad
(`PG_hwpoison`, [kernel documentation: hwpoison](https://docs.kernel.org/mm/hwpoison.html)). A
base page is lost alone. One bad page of a hugetlb page keeps all of it out of use until it is
dissolved. If HVO had optimised it, that first takes memory for the struct pages that were given
away.
""",
    command=Command("pages marked as bad (PG_hwpoison)"),
    from_memory=poisoned_pages_from_memory,
    from_files=poisoned_pages_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.MEMINFO, prices.SETTINGS),
    optional=True,
    consumer=lambda memory: PoisonFinder(memory.prog),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("physical_memory", "poisoned_pages")
