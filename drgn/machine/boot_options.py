# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel command line: what of it decides how much memory the kernel gets and how it maps it.

From ``saved_command_line``, or /proc/cmdline, which shows it. The kernel ignores an option that it
does not know; that one is written here says what was asked for, not what came of it.
"""

import re

from drgn import Program

from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table

MAX_LINE = 64 << 10
MAX_WORDS = 4096
MAX_OPTIONS = 512
UNITS = {unit: 10 * power for power, unit in enumerate("KMGTPE", 1)}
# memmap= (arch/x86/kernel/e820.c, parse_memmap_one()).
MEMMAP = {
    "@": "RAM, whatever the firmware says",
    "#": "ACPI tables",
    "$": "reserved: not used by the kernel",
    "!": "persistent memory: a device's",
    "%": "memory of another type",
    "": "memory from this address on is cut off",
}
SOFT_RESERVED = "soft-reserved: for a driver"
E820_SOFT_RESERVED = 0xEFFFFFFF
# Names as the kernel compares them: a dash is an underscore (kernel/params.c, parameq()).
MEANINGS = {
    "mem": "x86: memory from this address on is cut off; elsewhere: this much is used",
    "memmap": "",
    "crashkernel": "kept for the kernel that writes a vmcore",
    "hugepages": "huge pages that are taken into the pool at boot",
    "hugepagesz": "size of the huge pages that the next hugepages= asks for",
    "default_hugepagesz": "size of the huge pages that programs get which name none",
    "hugetlb_cma": "kept for gigantic pages; movable pages may lie there until then",
    "hugetlb_free_vmemmap": "HVO, from boot on",
    "cma": "kept for drivers; movable pages may lie there until then",
    "kho": "on: memory can be handed to the kernel of the next kexec",
    "kho_scratch": "kept for the start of that kernel; movable pages may lie there until then",
    "reserve_mem": "kept under a name, across a warm boot",
    "movablecore": "in zone Movable, where the kernel's own data may not lie",
    "kernelcore": "outside of zone Movable",
    "movable_node": "hot-pluggable memory is zone Movable",
    "memhp_default_state": "what hot-added memory is used for",
    "memory_hotplug.memmap_on_memory": "hot-added memory hosts its own struct pages",
    "efi_fake_mem": "EFI memory attributes, made up: a range may become soft-reserved",
    "efi": "nosoftreserve: soft-reserved memory is RAM",
    "memtest": "RAM is tested at boot, and what is bad reserved",
    "nogbpages": "the direct map has no entries of 1 GiB",
    "gbpages": "the direct map has entries of 1 GiB, if the CPU can",
    "debug_pagealloc": "pages that are free are not mapped; entries of 4 KiB throughout",
    "secretmem.enable": "memfd_secret(2), whose pages leave the direct map",
    "page_poison": "free pages are filled with a pattern",
    "init_on_free": "pages are cleared when they are freed",
    "page_owner": "a record of each page's allocation, in page_ext",
}
# Those that name a size.
SIZES = {"mem", "memmap", "crashkernel", "cma", "hugetlb_cma", "hugepagesz", "default_hugepagesz"}
SIZES |= {"movablecore", "kernelcore", "reserve_mem"}


@table(
    "memory_options",
    "Memory on the command line",
    empty="No option of the command line that was looked for is about memory.",
)
class MemoryOption:
    """A word of the command line that is about memory."""

    position: int = column(key=True, help="order on the command line; a later one may override")
    name: str = column(holds="kernel", help="as the kernel knows it")
    value: str = column(holds="words", help="as given")
    bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="if it names a size")
    start: str | None = column(holds="kernel", help="physical address it names, if any")
    means: str = column(holds="words", help="what it asks for, granted or not")


def command_line(prog: Program) -> str:
    """
    The kernel command line.

    :raises FaultError: it cannot be read.
    """
    text = prog.read_c_string(prog["saved_command_line"].value_(), max_size=MAX_LINE)
    return bytes(text).decode("utf-8", "backslashreplace")


def memory_options(line: str) -> list[MemoryOption]:
    """The options of a command line that are about memory; of memmap= each of its parts."""
    rows: list[MemoryOption] = []
    for word in _words(line):
        name, _, value = word.partition("=")
        name, value = name.replace("-", "_"), value.strip('"')
        if name not in MEANINGS:
            continue
        for part in value.split(",") if name == "memmap" else [value]:
            rows.append(_option(len(rows), name, part))
    return rows[:MAX_OPTIONS]


def _words(line: str) -> list[str]:
    """The words of the kernel: what comes after ``--`` is init's."""
    words = re.findall(r'(?:[^\s"]|"[^"]*"?)+', line[:MAX_LINE])[:MAX_WORDS]
    return words[: words.index("--")] if "--" in words else words


def _option(position: int, name: str, value: str) -> MemoryOption:
    size, rest = memparse(value)
    start, means = None, MEANINGS[name]
    if name == "memmap" and size is not None:
        kind = rest[:1] if rest[:1] in MEMMAP else ""
        means = MEMMAP[kind]
        if kind:
            start, rest = memparse(rest[1:])
        becomes = re.search(r"\+(\w+)$", rest) if kind == "%" else None
        if becomes and memparse(becomes[1])[0] == E820_SOFT_RESERVED:
            means = SOFT_RESERVED
    elif name == "memmap":
        means = "exactmap: no memory but that of the other memmap=" if value == "exactmap" else ""
    elif name == "crashkernel" and rest.startswith("@"):
        start, _ = memparse(rest[1:])
    # crashkernel=1G-4G:256M,…, hugetlb_cma=0:1G and movablecore=10% are not sizes.
    whole = not rest or (rest[0] in "@,:" and name in ("crashkernel", "cma", "reserve_mem"))
    if name not in SIZES or not (whole or name == "memmap"):
        size = None
    address = None if start is None else f"{start:#x}"
    return MemoryOption(position, name, value, size, address, means)


def memparse(text: str) -> tuple[int | None, str]:
    """``memparse()`` (lib/cmdline.c): a number with a unit, and what follows it."""
    match = re.match(r"(0x[0-9a-f]{1,16}|[0-9]{1,20})([KMGTPE]?)", text, re.IGNORECASE | re.ASCII)
    if not match:
        return None, text
    number = match[1].lower()
    base = 16 if number.startswith("0x") else 8 if re.fullmatch(r"0[0-7]+", number) else 10
    value = int(number, base) << UNITS.get(match[2].upper(), 0)
    return (value if value <= MOST_BYTES else None), text[match.end() :]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("physical_memory", "memory_options")
