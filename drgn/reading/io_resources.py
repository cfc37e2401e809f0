# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``iomem_resource``: what lies where in the physical address space, as in /proc/iomem.

A tree of ``struct resource``, siblings ascending. Costs two reads for each; a machine has
some hundreds. Whatever is in the tree, the walk ends: each resource is taken once, and
:data:`MAX_RESOURCES` at most.
"""

import re
from dataclasses import dataclass

from drgn import FaultError, Program

from mmscope.drgn.reading.kernel_arrays import read_whole, struct_dtype
from mmscope.drgn.reading.kernel_names import nearly
from mmscope.drgn.text.kernel_text import whole_lines

MAX_RESOURCES = 1 << 14
MAX_NAME = 64
MAX_DEPTH = 16


# Names that the kernel gives (e820_type_to_string(), arch/x86/kernel/e820.c; setup.c).
GIVEN = (
    *(
        "System RAM",
        "System ROM",
        "Reserved",
        "Soft Reserved",
        "Unusable memory",
        "Persistent Memory",
    ),
    *("ACPI Tables", "ACPI Non-volatile Storage", "Crash kernel"),
    *("Kernel code", "Kernel rodata", "Kernel data", "Kernel bss"),
)
GIVEN_LOWER = {name.lower() for name in GIVEN}


@dataclass(frozen=True, slots=True)
class Resource:
    """A range of physical addresses, and whose it is."""

    start: int
    end: int  # after the last byte
    name: str
    depth: int
    parent: int  # index in the list, which has parents first; -1 for none


def io_resources(prog: Program) -> tuple[list[Resource], str]:
    """
    All resources, each after its parent, and why there may be more, if so.

    :raises LookupError: the kernel's layout is unknown.
    """
    dtype = struct_dtype(
        prog.type("struct resource"),
        {name: name for name in ("start", "end", "name", "sibling", "child")},
    )
    found: list[Resource] = []
    seen: set[int] = set()
    why = ""
    todo = [(prog["iomem_resource"].child.value_(), 0, -1)]
    while todo:
        address, depth, parent = todo.pop()
        if not address:
            continue
        if address in seen or len(found) == MAX_RESOURCES or depth == MAX_DEPTH:
            return found, "the tree of physical resources is damaged, or larger than any machine's"
        seen.add(address)
        try:
            (row,) = read_whole(prog, address, 1, dtype)
            name = prog.read_c_string(int(row["name"]), max_size=MAX_NAME) if row["name"] else b""
        except FaultError as error:
            return found, f"the tree of physical resources breaks off: {error}"
        text = name.decode("utf-8", "backslashreplace")
        above = found[parent] if parent >= 0 else None
        start, end = int(row["start"]), int(row["end"])
        # __request_resource() (kernel/resource.c)
        if start > end or (above and not above.start <= start <= end < above.end):
            return found, f"the resource {text!r} reaches beyond the one that it is in"
        found.append(Resource(start, end + 1, text, depth, parent))
        if text.lower() not in GIVEN_LOWER and any(nearly(text, given) for given in GIVEN):
            why = f"no physical resource is called {text!r}"
        todo.append((int(row["sibling"]), depth, parent))
        todo.append((int(row["child"]), depth + 1, len(found) - 1))
    return found, why


def read_iomem(text: str) -> list[Resource]:
    """
    The same of /proc/iomem; none if it shows no addresses, as it does to all but root.

    :raises ValueError: it is not /proc/iomem's text, or not all of it.
    """
    found: list[Resource] = []
    above: list[int] = []  # indices of the resources that a line may be in
    for line in whole_lines(text, "/proc/iomem"):
        match = re.fullmatch(r"( {0,10})([0-9a-f]{8,16})-([0-9a-f]{8,16}) : (.*)", line)
        depth = len(match[1]) // 2 if match else 0
        if not match or depth > len(above) or len(found) == MAX_RESOURCES:
            raise ValueError(f"/proc/iomem is damaged: {line[:60]!r}")
        del above[depth:]
        parent = above[-1] if above else -1
        above.append(len(found))
        found.append(
            Resource(int(match[2], 16), int(match[3], 16) + 1, match[4][:MAX_NAME], depth, parent)
        )
    return found if any(each.end > 1 for each in found) else []


def names_at(resources: list[Resource], addresses: list[int]) -> list[str]:
    """The innermost resource that each physical address lies in."""
    names = []
    for address in addresses:
        inside = [each for each in resources if each.start <= address < each.end]
        names.append(max(inside, key=lambda each: each.depth).name if inside else "")
    return names
