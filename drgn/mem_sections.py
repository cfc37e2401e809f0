# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct mem_section``: the sections (128 MiB on x86-64) by which SPARSEMEM knows what memory there
is.

Read root by root (a page of 256 sections each), so that the 65,536 sections of 8 TiB take a few
hundred reads. What cannot be read is counted, and its sections are missing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import Program, TypeKind, sizeof
from kernel_arrays import Gaps, read_array, struct_dtype
from numpy.typing import NDArray

SECTION_MARKED_PRESENT = 1
MAX_SECTIONS = 1 << 21  # 256 TiB in sections of 128 MiB; more is damage


@dataclass(frozen=True)
class Sections:
    """The present sections, ascending."""

    numbers: NDArray[np.int64]
    early: NDArray[np.bool_]  # which were there when the machine booted
    pages: int  # in a section
    root_bytes: int  # what the array of sections and the array of its roots take


def present_sections(prog: Program, gaps: Gaps) -> Sections:
    """
    All present sections.

    :raises LookupError: the kernel is built without SPARSEMEM.
    :raises ValueError: there are more than any machine has.
    """
    type_ = prog.type("struct mem_section")
    dtype = struct_dtype(type_, {"map": "section_mem_map"})
    per_root = prog["SECTIONS_PER_ROOT"].value_()
    roots, root_bytes = _roots(prog, gaps)
    numbers, maps, total = [], [], 0
    for number, address in roots:
        root_bytes += per_root * sizeof(type_)
        for first, array in read_array(prog, address, per_root, dtype, gaps):
            present = np.flatnonzero(array["map"] & np.uint64(SECTION_MARKED_PRESENT))
            numbers.append(number * per_root + first + present)
            maps.append(array["map"][present])
            total += len(present)
            if total > MAX_SECTIONS:
                raise ValueError("mem_section is damaged: more sections than any machine has")
    early = np.uint64(1 << int(prog.constant("SECTION_IS_EARLY_BIT").value_()))
    return Sections(
        np.concatenate([np.empty(0, np.int64), *numbers]),
        (np.concatenate([np.empty(0, np.uint64), *maps]) & early) != 0,
        1 << (prog["SECTION_SIZE_BITS"].value_() - prog["PAGE_SHIFT"].value_()),
        root_bytes,
    )


def _roots(prog: Program, gaps: Gaps) -> tuple[list[tuple[int, int]], int]:
    """(Number, address) of each root there is, and the bytes of the array of their addresses."""
    mem_section = prog["mem_section"]
    count = prog["NR_SECTION_ROOTS"].value_()
    if mem_section.type_.unaliased().kind is not TypeKind.POINTER:
        # CONFIG_SPARSEMEM_EXTREME=n: all roots are one array of arrays, with one section each.
        first = mem_section[0].address_of_().value_()
        size = sizeof(mem_section[0])
        return [(number, first + number * size) for number in range(count)], 0
    pointer: np.dtype[Any] = np.dtype(np.uint64)
    roots = []
    for first, addresses in read_array(prog, mem_section.value_(), count, pointer, gaps):
        # The array is all zeros but for its first few of up to 131,072.
        for at in np.flatnonzero(addresses).tolist():
            roots.append((first + at, int(addresses[at])))
    return roots, count * pointer.itemsize
