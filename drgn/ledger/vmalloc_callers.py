# SPDX-License-Identifier: LGPL-2.1-or-later
"""
vmalloc memory by who asked for it: the function that called vmalloc(), vmap() or ioremap().

Out of all areas and the page tables under them (``vmalloc_areas``). The text that says the same,
area by area, is /proc/vmallocinfo (root only).

Cannot know: the caller's callers, which page_owner's stacks have.
"""

import re

import numpy as np
from drgn import Program

from mmscope.drgn.ledger.page_kinds import KINDS, Kind
from mmscope.drgn.ledger.page_places import PagePlaces, find_places
from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.owners.alloc_tags import known_sum
from mmscope.drgn.page_tables.vmalloc_areas import VM_IOREMAP, VM_MAP
from mmscope.drgn.reading.symbols import frame_names
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import Inside, table, tables_of
from mmscope.drgn.text.kernel_text import printed_number, whole_lines


@table(
    "vmalloc_callers",
    "vmalloc memory by caller",
    memory="again",
    measure="pages",
    inside=tuple(Inside(use, "pages", ("use", (use,))) for use in ("vmalloc", "kernel stacks")),
)
class VmallocCaller:
    """Areas that one function asked for."""

    caller: str = column(
        holds="kernel", key=True, help="function that asked for the areas [module]"
    )
    use: str = column(
        holds="words",
        key=True,
        help="vmalloc, kernel stacks (in text vmalloc), percpu: own pages; vmap: another owner's; "
        "ioremap: device memory",
    )
    areas: int = column(help="areas")
    pages: int | None = column(
        unit="pages",
        help="mapped in page tables; empty: percpu chunks, in /proc/vmallocinfo",
    )
    address_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="addresses, guard pages included"
    )


# The last addresses are errors, not pointers (include/linux/err.h).
ERRORS = np.uint64((1 << 64) - 4096)


def vmalloc_callers(prog: Program, places: PagePlaces) -> list[VmallocCaller]:
    """
    All areas by caller and use, those with the most pages first.

    :raises LookupError: the areas could not be read.
    """
    areas, kinds = places.areas, places.area_kinds
    if kinds is None:
        raise LookupError("; ".join(places.missing) or "no area was found")
    entries = places.entries
    mapped = np.bincount(entries["area"], entries["pages"], minlength=len(kinds)).astype(np.int64)
    # pcpu_get_vm_areas() gives its own address, others the one they return to.
    callers = areas["caller"] + (kinds == Kind.PERCPU).astype(np.uint64)
    unique, back = np.unique(callers, return_inverse=True)
    names = frame_names(prog, unique)
    by_use: dict[tuple[str, str], list[tuple[int | None, int]]] = {}
    space = (areas["end"] - areas["start"]).tolist()
    for at, (kind, flags) in enumerate(zip(kinds.tolist(), areas["flags"].tolist(), strict=True)):
        if kind:
            use = KINDS[kind].owner
        else:
            use = "ioremap" if flags & VM_IOREMAP else "vmap" if flags & VM_MAP else "other"
        pages = int(mapped[at]) if kind else 0
        by_use.setdefault((names[int(back[at])], use), []).append((pages, space[at]))
    return _rows(by_use)


def _rows(by_use: dict[tuple[str, str], list[tuple[int | None, int]]]) -> list[VmallocCaller]:
    """Rows of (pages, bytes of addresses) by caller and use, those with the most pages first."""
    rows = []
    for key, areas in by_use.items():
        pages, space = known_sum([pages for pages, _ in areas]), sum(space for _, space in areas)
        rows.append(VmallocCaller(*key, len(areas), pages, space))
    return sorted(rows, key=lambda row: (-(row.pages or 0), -row.address_bytes, row.caller))


VMALLOCINFO = "/proc/vmallocinfo"
# vmalloc_info_show(), mm/vmalloc.c; s_show() in 6.1. An area that vm_map_ram() mapped has no
# caller, nor pages of its own.
LINE = re.compile(
    r"0x[0-9a-f]+-0x[0-9a-f]+ +([0-9]+)"
    r"(?: (vm_map_ram|unpurged vm_area)| (\S+)\+0x[0-9a-f]+/0x[0-9a-f]+( \[\S+\])?)?(.*)",
    re.ASCII,
)
# What an area is for, by the words after its pages; the first counts.
USES = ("ioremap", "vmalloc", "vmap")
PERCPU_CALLER = "pcpu_get_vm_areas"  # whose pages are not told


def read_vmallocinfo(text: str) -> list[VmallocCaller]:
    """
    The same rows from /proc/vmallocinfo, where kernel stacks are vmalloc's like any other area.

    :raises ValueError: the text is not /proc/vmallocinfo's, or not all of it.
    """
    by_use: dict[tuple[str, str], list[tuple[int | None, int]]] = {}
    for line in whole_lines(text, VMALLOCINFO):
        match = LINE.fullmatch(line)
        if not match:
            raise ValueError(f"{VMALLOCINFO} is damaged: {line[:60]!r}")
        size, special, caller, module, rest = match.groups()
        if special == "unpurged vm_area":
            continue  # given back, but for its addresses
        words = rest.split()
        use = next((use for use in USES if use in words), "other")
        found = [word.removeprefix("pages=") for word in words if word.startswith("pages=")]
        pages: int | None = sum(printed_number(number, VMALLOCINFO) for number in found)
        if caller == PERCPU_CALLER:
            use, pages = "percpu", None
        key = special or (caller or "") + (module or ""), use
        by_use.setdefault(key, []).append((pages, printed_number(size, VMALLOCINFO)))
    return _rows(by_use)


def from_memory(memory: Memory) -> Found:
    places = find_places(memory)
    found = Found(memory.live)
    found.notes += [words for words in places.missing if words.startswith("vmalloc areas")]
    found.unreadable_bytes = places.area_gaps.bytes
    if not places.missing and places.areas is not None:
        callers = places.areas["caller"]
        upper = np.uint64(kernel_byte(memory.prog))
        strange = int(np.count_nonzero((callers >> np.uint64(56) != upper) | (callers >= ERRORS)))
        found.differ(*if_any(strange, "the caller of {} of vmalloc memory is no code", "area"))
    return found.add(VmallocCaller, vmalloc_callers(memory.prog, places))


def from_files(files: Files) -> Found:
    if why := files.left_out("proc/vmallocinfo"):
        raise Absent(f"{VMALLOCINFO}: {why}")
    return Found().add(VmallocCaller, read_vmallocinfo(files.read("proc/vmallocinfo")))


VMALLOC_SECTION = Section(
    name="vmalloc",
    title="vmalloc memory",
    intro="""
Memory that is contiguous in the kernel's addresses only, by the function that asked for it: large
tables, kernel stacks, percpu chunks, code of modules and of BPF programs, BPF maps. What vmap() and
ioremap() map has another owner.
""",
    command=Command("vmalloc memory by caller", top=TOP),
    since="0.2.0",
    tables=tables_of(
        VmallocCaller,
    ),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.VMALLOCINFO,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vmalloc")
