# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The descriptors of page tables: ``struct ptdesc``, or the ``struct page`` that it was before.

They have the PTE tables that are deposited with a PMD table, and how many processes share one.
Costs a look at the types; the scan reads the descriptors of some PMD tables.

Cannot know: what a table holds, which is only in the table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import Program, sizeof
from drgn.helpers.linux.mm import pfn_to_page

from mmscope.drgn.reading.kernel_arrays import member_path, struct_dtype


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Where the descriptors of page tables (``struct ptdesc``) are, and what is in them."""

    base: int  # of that of page frame 0
    size: int
    dtype: np.dtype[Any]  # deposited, shared
    shared_from: int  # a table whose count is this has more than one user
    links: np.dtype[Any]  # next
    list_offset: int


def table_descriptors(prog: Program) -> Descriptors:
    """
    The members of page tables' descriptors.

    The series "Split ptdesc from struct page" (v6.6) gave them a structure of their own.
    """
    page = prog.type("struct page")
    try:
        kind = prog.type("struct ptdesc")
    except LookupError:
        kind = page
    # "mm: hugetlb: independent PMD page table shared count" (59d9094df3d7, in v6.13, and in stable
    # kernels) counts the users beside the first; before, it was the page's reference count.
    own_count = "pt_share_count.counter"
    counts = (own_count, "__page_refcount.counter", "_refcount.counter")
    links = struct_dtype(kind, {"next": ("pt_list.next", "lru.next")})
    assert links.fields is not None
    return Descriptors(
        pfn_to_page(prog, 0).value_(),
        sizeof(page),
        struct_dtype(kind, {"deposited": "pmd_huge_pte", "shared": counts}),
        1 if member_path(kind, counts) == own_count else 2,
        links,
        links.fields["next"][1],
    )
