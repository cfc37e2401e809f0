# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The machine's memory by physical address, and what of it the kernel does not get.

Three maps are laid over each other: the firmware's (``e820_table_firmware``, which the kernel does
not change; its copy for kexec is /sys/firmware/memmap), the kernel's own of it (``e820_table``,
after mem=, memmap= and its own corrections), and ``iomem_resource``, with what was added since.
Costs a read for each resource and two for the tables.

What is "Reserved" in the firmware's map may be memory or not (flash, configuration space of PCI,
holes that the processor keeps): it is listed, and not counted as the machine's memory.

Cannot know: what an architecture without an e820 table was given by its firmware; there the list
is of what the kernel has.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Program

from mmscope.drgn.free.zones import Zone, read_zoneinfo, zones
from mmscope.drgn.machine.boot_options import (
    SOFT_RESERVED,
    MemoryOption,
    command_line,
    memory_options,
)
from mmscope.drgn.machine.direct_map import (
    DirectMapLevel,
    direct_map,
    missing_bytes,
    read_direct_map,
)
from mmscope.drgn.reading.io_resources import Resource, io_resources, read_iomem
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct, read_whole, struct_dtype
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import NO_PAGE_SIZE, Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Command, Found, Section
from mmscope.drgn.tables.display import if_any, size_name
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table, tables_of

# enum e820_type to what /proc/iomem calls it (arch/x86/kernel/e820.c, e820_type_to_string()).
E820_NAMES = {
    "E820_TYPE_RAM": "System RAM",
    "E820_TYPE_RESERVED_KERN": "System RAM",  # setup_data, in 6.12
    "E820_TYPE_RESERVED": "Reserved",
    "E820_TYPE_ACPI": "ACPI Tables",
    "E820_TYPE_NVS": "ACPI Non-volatile Storage",
    "E820_TYPE_UNUSABLE": "Unusable memory",
    "E820_TYPE_PMEM": "Persistent Memory",
    "E820_TYPE_PRAM": "Persistent Memory (legacy)",
    "E820_TYPE_SOFT_RESERVED": "Soft Reserved",
}
RAM, RESERVED, SOFT, UNUSABLE = "System RAM", "Reserved", "Soft Reserved", "Unusable memory"
CRASH, SCRATCH = "Crash kernel", "KHO scratch"
PERSISTENT = ("Persistent Memory", "Persistent Memory (legacy)")
MEMORY = {RAM, SOFT, UNUSABLE, *PERSISTENT}
MAX_ADDRESS = 1 << 56  # beyond any machine's memory
MAX_ENTRIES = 1 << 12  # of a table: E820_MAX_ENTRIES is 128 and three for each node

# What a range is used for, and what that means.
KERNEL, IMAGE, FIRMWARE = "kernel", "kernel image", "firmware"
CRASHED, PERSISTED, SOFTLY = "crash kernel", "persistent memory", "soft reserved"
UNUSED, CUT_OFF, MARKED = "unusable", "cut off", "marked as reserved"
OURS = (KERNEL, IMAGE, CRASHED)  # System RAM of iomem_resource
KEPT = {
    CRASHED: "reserved for the kernel that writes a vmcore",
    PERSISTED: "persistent memory: a device's",
    SOFTLY: "set aside for a driver, by the firmware or the command line",
    UNUSED: "unusable, says the firmware",
    CUT_OFF: "the firmware's RAM that the kernel was told not to use",
    MARKED: "the firmware's RAM that the kernel marked as reserved",
}


@dataclass(frozen=True, slots=True)
class MappedRange:
    """A range of a memory map, the firmware's or the kernel's."""

    start: int
    end: int
    kind: str  # as /proc/iomem calls it


@table("physical_memory", "Physical memory by address", measure="bytes", memory="mapped")
class PhysicalRange:
    """A range of physical addresses that is memory, or named by the firmware."""

    start: str = column(holds="kernel", key=True, help="physical address")
    end: str = column(holds="kernel", help="address behind the last byte")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="from start to end")
    firmware: str | None = column(
        holds="kernel", help="type in the firmware's map; none: not in it"
    )
    resource: str = column(
        holds="kernel",
        help="resources of /proc/iomem, outermost first; KHO scratch: CMA that Kexec Handover "
        "keeps for the next kernel's start: in low memory, global, or of a node (pernode)",
    )
    use: str = column(
        holds="words",
        help="kernel, kernel image, crash kernel; persistent memory, soft reserved; unusable; cut "
        "off: RAM given to no one; marked as reserved: RAM, by the firmware's map; firmware: "
        "no RAM for the kernel",
    )
    option: str = column(
        holds="kernel",
        help="kernel option that names this range and explains its use",
    )


@table("physical_memory_parts", "Physical memory, part by part", measure="bytes", memory="again")
class PhysicalPart:
    """A part of the machine's memory. All lines after the first add up to the first."""

    part: str = column(
        holds="words",
        key=True,
        help="machine: the sum; page allocator: managed pages; else a use as in physical_memory",
    )
    bytes: int = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="negative: zones and ranges disagree",
    )
    percent: float = column(unit="%", low=None, help="of the first line")
    kept: bool = column(help="withheld from the page allocator, at boot or later")
    options: str = column(holds="words", help="kernel options that explain it")
    means: str = column(holds="words", help="what it is")


@dataclass
class PhysicalMemory:
    """Ranges and parts of the machine's memory, and the options that explain them."""

    ranges: list[PhysicalRange]
    parts: list[PhysicalPart]
    options: list[MemoryOption]
    more: str = ""  # why there may be more ranges
    pages_beyond: int = 0  # present pages of zones that are in no range
    apart: str = ""  # how the kernel's copies of the firmware's map differ


def physical_memory(prog: Program) -> PhysicalMemory:
    """
    Read the maps and the zones.

    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: the e820 tables or the command line cannot be read.
    :raises ValueError: an e820 table is damaged.
    """
    resources, more = io_resources(prog)
    options = memory_options(command_line(prog))
    firmware = e820_map(prog, "e820_table_firmware")
    kernel = e820_map(prog, "e820_table") or []
    page = 1 << int(prog["PAGE_SHIFT"].value_())
    resources += kho_scratch(prog, resources)
    found = lay_out(resources, firmware, kernel, options, zones(prog), page)
    found.more = more
    found.apart = copies_apart(prog, firmware)
    return found


def copies_apart(prog: Program, firmware: Sequence[MappedRange] | None) -> str:
    """
    In words, a range that is of one kind in ``e820_table_firmware`` and of another in
    ``e820_table_kexec``; empty: none. One is copied to the other (``e820__memory_setup()``,
    arch/x86/kernel/e820.c); of RAM there, the kernel may then reserve some.

    :raises ValueError: a table is damaged.
    """
    kexec = e820_map(prog, "e820_table_kexec")
    if firmware is None or kexec is None:
        return ""
    bounds = distinct(np.concatenate([_ends(firmware), _ends(kexec)]))
    both = zip(_innermost(bounds, firmware), _innermost(bounds, kexec), strict=True)
    for start, (one, other) in zip(bounds.tolist(), both, strict=False):
        said = firmware[one].kind if one >= 0 else "none"
        copied = kexec[other].kind if other >= 0 else "none"
        if said != copied and (said, copied) != (RAM, RESERVED):
            return f"memory at {start:#x} is {said} in e820_table_firmware, {copied} in its copy"
    return ""


def kho_scratch(prog: Program, resources: Sequence[Resource]) -> list[Resource]:
    """
    Scratch areas of Kexec Handover (v6.16), each in the RAM that it is part of: that in low memory,
    the global one, then one for each node (``kho_reserve_scratch()``,
    kernel/liveupdate/kexec_handover.c; kernel/kexec_handover.c before 6.19).

    :raises ValueError: they are damaged.
    """
    try:
        enabled = prog["kho_enable"].value_()
    except LookupError:
        return []
    if not enabled or not (first := prog["kho_scratch"].value_()):
        return []
    count = prog["kho_scratch_cnt"].value_()
    if count > MAX_ENTRIES:
        raise ValueError(f"kho_scratch is damaged: it has {count:,} areas")
    area = struct_dtype(prog.type("struct kho_scratch"), {"addr": "addr", "size": "size"})
    found = []
    kinds = itertools.chain(("lowmem", "global"), itertools.repeat("pernode"))
    areas = read_whole(prog, first, count, area).tolist()
    for (start, size), kind in zip(areas, kinds, strict=False):
        around = [
            at
            for at, each in enumerate(resources)
            if each.start <= start and start + size <= each.end and each.name.startswith(RAM)
        ]
        if around:
            found.append(Resource(start, start + size, f"{SCRATCH} ({kind})", 1, around[-1]))
    return found


def e820_map(prog: Program, name: str) -> list[MappedRange] | None:
    """
    A table of the firmware's map; None on an architecture without.

    :raises ValueError: it is damaged.
    """
    try:
        table = prog[name]
    except LookupError:
        return None
    count = table.nr_entries.value_()
    if count > MAX_ENTRIES:
        raise ValueError(f"{name} is damaged: it has {count:,} entries")
    entry = prog.type("struct e820_entry")
    kinds = {
        value & 0xFFFFFFFF: E820_NAMES.get(each, "Unknown E820 type")
        for each, value in prog.type("enum e820_type").enumerators or ()
    }
    address = table.entries.address_
    assert address is not None  # a member of what a pointer leads to
    entries = read_whole(
        prog, address, count, struct_dtype(entry, {n: n for n in ("addr", "size", "type")})
    )
    if any(start + size > MAX_ADDRESS for start, size in entries[["addr", "size"]].tolist()):
        raise ValueError(f"{name} is damaged: it has addresses that no machine has")
    return [
        MappedRange(start, min(start + size, 1 << 64), kinds.get(kind, "Unknown E820 type"))
        for start, size, kind in zip(
            entries["addr"].tolist(),
            entries["size"].tolist(),
            (entries["type"].astype(np.int64) & 0xFFFFFFFF).tolist(),
            strict=True,
        )
    ]


def read_firmware_map(read: Callable[[str], str], numbers: Iterable[int]) -> list[MappedRange]:
    """
    The firmware's map from /sys/firmware/memmap.

    :param read: gives the text of a path; it raises OSError if it cannot.
    :raises ValueError: a file does not hold a number.
    """
    found = []
    for number in sorted(numbers)[:MAX_ENTRIES]:
        where = f"sys/firmware/memmap/{number}"
        start, end, kind = (read(f"{where}/{name}").strip() for name in ("start", "end", "type"))
        if not all(re.fullmatch(r"0x[0-9a-f]{1,16}", each) for each in (start, end)):
            raise ValueError(
                f"{where} is damaged: {start[:20]!r} to {end[:20]!r} are not addresses"
            )
        found.append(MappedRange(int(start, 16), int(end, 16) + 1, kind[:64]))
    return found


def lay_out(
    resources: Sequence[Resource],
    firmware: Sequence[MappedRange] | None,
    kernel: Sequence[MappedRange],
    options: list[MemoryOption],
    zone_rows: Sequence[Zone],
    page: int,
) -> PhysicalMemory:
    """
    Lay the maps over each other.

    :param firmware: None if it is not known.
    :param kernel: the kernel's own copy; empty if it is not known.
    :param page: bytes of a page.
    :raises ValueError: the zones are damaged.
    """
    given = firmware or []
    bounds = distinct(np.concatenate([_ends(each) for each in (resources, given, kernel)]))
    inner = _innermost(bounds, resources)
    in_firmware, in_kernel = _innermost(bounds, given), _innermost(bounds, kernel)
    chains = [_chain(resources, at) for at in range(len(resources))]
    found: list[tuple[Any, ...]] = []
    for at, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
        chain = chains[inner[at]] if inner[at] >= 0 else []
        said = given[in_firmware[at]].kind if in_firmware[at] >= 0 else ""
        own = kernel[in_kernel[at]].kind if in_kernel[at] >= 0 else ""
        option = _option_for(options, start)
        use = _use(chain, said, own, option)
        if not use:
            continue
        explained = option and use not in (KERNEL, IMAGE, FIRMWARE)
        row = (
            None if firmware is None else said or "none",
            " / ".join(chain[:1] if use == FIRMWARE else chain),
            use,
            f"{option.name}={option.value}" if option and explained else "",
        )
        if found and found[-1][1:] == (start, *row):
            start, *_ = found.pop()
        found.append((start, end, *row))
    ranges = [PhysicalRange(f"{s:#x}", f"{e:#x}", e - s, *row) for s, e, *row in found]
    parts, beyond = _parts(ranges, options, zone_rows, page)
    return PhysicalMemory(ranges, parts, options, pages_beyond=beyond)


def _innermost(bounds: Any, ranges: Sequence[Resource] | Sequence[MappedRange]) -> Any:
    """By stretch between two bounds, the index of the last range that covers it, or -1."""
    found = np.full(max(len(bounds) - 1, 0), -1, np.int64)
    places = np.searchsorted(bounds, _ends(ranges)).reshape(-1, 2)
    # Parents come before their children.
    for number, (start, end) in enumerate(places.tolist()):
        found[start:end] = number
    return found


def _ends(ranges: Sequence[Resource] | Sequence[MappedRange]) -> Any:
    """The start and the end of each, in turn; what lies beyond all memory is taken to that end."""
    ends = [min(at, MAX_ADDRESS) for each in ranges for at in (each.start, each.end)]
    return np.array(ends, np.int64)


def _chain(resources: Sequence[Resource], at: int) -> list[str]:
    """Names from the outermost resource to this one."""
    names: list[str] = []
    while at >= 0:
        names.append(resources[at].name)
        at = resources[at].parent
    return names[::-1]


def _use(chain: list[str], said: str, own: str, option: MemoryOption | None) -> str:
    """Use of a range; empty if it is not memory."""
    if CRASH in chain:
        return CRASHED
    if any(name.startswith(RAM) for name in chain):  # also "System RAM (kmem)"
        return IMAGE if chain[-1].startswith("Kernel ") else KERNEL
    if {*PERSISTENT} & {*chain, own, said}:
        return PERSISTED
    asked = option is not None and option.means == SOFT_RESERVED
    # In 7.2, a soft-reserved range becomes a resource when a driver takes it.
    if SOFT in (*chain, own, said) or (asked and said == RAM):
        return SOFTLY
    if UNUSABLE in (*chain, own, said):
        return UNUSED
    if said == RAM:
        return MARKED if own or RESERVED in chain else CUT_OFF
    return FIRMWARE if said else ""


def _option_for(options: list[MemoryOption], start: int) -> MemoryOption | None:
    """The option that names the memory at an address, the last one that does."""
    for each in reversed(options):
        if each.name == "memmap" and each.start is not None and each.bytes:
            first = int(each.start, 16)
            if first <= start < first + each.bytes:
                return each
        elif each.name in ("mem", "memmap") and each.start is None and each.bytes:
            if start >= each.bytes:
                return each
        elif each.name == "memmap" and each.value == "exactmap":
            return each
    return None


def _parts(
    ranges: list[PhysicalRange], options: list[MemoryOption], zone_rows: Sequence[Zone], page: int
) -> tuple[list[PhysicalPart], int]:
    """The machine's memory by what became of it, and present pages beyond all ranges."""
    sums = dict.fromkeys((*OURS, *KEPT, FIRMWARE), 0)
    why: dict[str, list[str]] = {}
    pages = 0
    run = [0, 0]  # RAM that adjoins
    for row in ranges:
        start, end = int(row.start, 16), int(row.end, 16)
        sums[row.use] += row.bytes
        if row.option and row.option not in why.setdefault(row.use, []):
            why[row.use].append(row.option)
        if row.use in OURS:
            if start != run[1]:
                pages += _whole_pages(run, page)
                run = [start, end]
            run[1] = end
    pages += _whole_pages(run, page)
    total = sum(size for use, size in sums.items() if use != FIRMWARE)
    ours = sum(sums[use] for use in OURS)
    present = sum(zone.present_pages for zone in zone_rows if zone.zone != "Device")
    managed = sum(zone.managed_pages for zone in zone_rows if zone.zone != "Device")
    if max(present, managed) * page > MAX_ADDRESS:
        raise ValueError("the zones are damaged: they have more pages than any machine")
    boot = (min(present, pages) - managed) * page - sums[CRASHED]
    why[CRASHED] = [f"crashkernel={o.value}" for o in options if o.name == "crashkernel"]
    rows: list[PhysicalPart] = []

    def add(part: str, size: int, kept: bool, means: str) -> None:
        if size or not rows:
            percent = 100 * size / total if total else 0.0
            words = " ".join(why.get(part, []))
            rows.append(PhysicalPart(part, size, percent, kept, words, means))

    add("machine", total, False, "memory of the machine: the sum of all other lines")
    add("page allocator", managed * page, False, "managed pages: free, or allocated since")
    add("early allocations", boot, True, "kernel image, struct pages and others, since boot")
    add("offline", max(pages - present, 0) * page, True, "in memory blocks that are offline")
    for use, means in KEPT.items():
        add(use, sums[use], True, means)
    add("edges", ours - pages * page, True, "at the ends of RAM, less than a page each")
    return rows, max(present - pages, 0)


def _whole_pages(run: list[int], page: int) -> int:
    return max(run[1] // page - -(-run[0] // page), 0)


def physical_memory_once(memory: Memory) -> PhysicalMemory:
    """The machine's memory by address, once for all sections."""
    return memory.once("physical_memory", lambda: physical_memory(memory.prog))


def physical_memory_from_memory(memory: Memory) -> Found:
    read = physical_memory_once(memory)
    found = _found(read, memory.live)
    found.differ(
        *if_any(read.pages_beyond, "zones have {} pages that are in no range of System RAM")
    )
    found.differ(read.apart)
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
        found.differ(f"the kernel's counters lack {size_name(missing)} of the direct map")
    if repeated := sum(row.repeated_bytes or 0 for row in levels):
        found.remarks.append(
            f"the DirectMap lines of /proc/meminfo are {size_name(repeated)} too high: the kernel "
            "counted large entries again while it booted"
        )
    return found.add(DirectMapLevel, levels)


def _found(read: PhysicalMemory, live: bool | None = None) -> Found:
    found = Found(live, notes=[f"{read.more}: ranges are missing"] if read.more else [])
    if any(row.firmware is None for row in read.ranges):
        found.remarks.append("the firmware's map is not known: what was cut off of it is not shown")
    found.add(PhysicalPart, read.parts)
    found.add(PhysicalRange, read.ranges)
    return found.add(MemoryOption, read.options)


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
        found.add(MemoryOption, options)
    try:
        levels = read_direct_map(files.read("proc/meminfo"))
    except (Absent, ValueError) as reason:
        missing.append(str(reason))
        levels = []
    if levels:
        found.add(DirectMapLevel, levels)
        found.remarks.append("the direct map is by the kernel's counters, not its page tables")
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
    rows = read_zoneinfo(files.read("proc/zoneinfo"))
    page = files.page_size()
    if page is None:
        raise Absent(NO_PAGE_SIZE)
    firmware = None
    try:
        if numbers := files.numbers("sys/firmware/memmap", r"(\d+)"):
            firmware = read_firmware_map(files.open, numbers)
    except OSError as error:
        missing.append(f"{files.root / 'sys/firmware/memmap'}: {error.strerror}")
    return lay_out(resources, firmware, [], options, rows, page)


PHYSICAL_MEMORY_SECTION = Section(
    name="physical_memory",
    title="Physical memory and what the kernel does not get",
    since="0.2.0",
    tables=tables_of(PhysicalPart, PhysicalRange, MemoryOption, DirectMapLevel),
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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("physical_memory")
