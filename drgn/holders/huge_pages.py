# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages of hugetlb that are in use, by file and by process.

A huge page has in ``mapping`` its file's ``struct address_space`` or, of private memory, the
``struct anon_vma`` of the VMAs that may map it, so that they are counted in the pass over all
struct pages. The process is one that maps the file, or has such a VMA: that with the least number.
Costs some reads for each file and VMA.

Cannot know: who has a file that no process maps; processes behind the first :data:`MOST_VMAS` VMAs
of a file.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from drgn import FaultError, Object, Program
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry

from mmscope.drgn.holders.holdings import Holder
from mmscope.drgn.processes.open_files import NO_PROCESS, Opener
from mmscope.drgn.reading.dentry_paths import alias_offset, dentry_name

MOST_FILES, MOST_VMAS = 1 << 16, 1 << 12
ANON, FLAGS = 1, 3  # PAGE_MAPPING_ANON, PAGE_MAPPING_FLAGS; of FOLIO_MAPPING_FLAGS the same
FILE, MEMORY, UNMAPPED = "hugetlb file", "hugetlb memory", "hugetlb page without a file"


def huge_page_holders(
    prog: Program, mappings: Sequence[int], processes: Mapping[int, Opener]
) -> Mapping[int, Holder]:
    """
    The holder of each of some values of ``mapping``; of those that can be read.

    :param processes: by the address of their ``struct mm_struct``.
    """
    found = dict[int, Holder]()
    for mapping in mappings[:MOST_FILES]:
        kind = FILE if not mapping & FLAGS else MEMORY
        try:
            vmas = _vmas(prog, mapping)
            spaces = {vma.vm_mm.value_() for vma in itertools.islice(vmas, MOST_VMAS)}
            name = _name(prog, mapping) if kind == FILE and mapping else ""
        except FaultError:
            continue
        who = [processes[space] for space in spaces if space in processes]
        process = min(who, key=lambda each: each.pid or 0, default=NO_PROCESS)
        found[mapping] = Holder(kind if mapping else UNMAPPED, name, process)
    return found


def _vmas(prog: Program, mapping: int) -> Iterator[Object]:
    """The VMAs of a file, or of an anon_vma."""
    if not mapping:
        return
    if mapping & FLAGS == ANON:
        tree = Object(prog, "struct anon_vma", address=mapping - ANON).rb_root
        for link in _each("struct anon_vma_chain", tree, "rb"):
            yield link.vma
    elif not mapping & FLAGS:
        tree = Object(prog, "struct address_space", address=mapping).i_mmap
        yield from _each("struct vm_area_struct", tree, "shared.rb")


def _each(type_: str, tree: Object, member: str) -> Iterator[Object]:
    """The entries of an interval tree."""
    root = tree.rb_root.address_of_()
    yield from rbtree_inorder_for_each_entry(type_, root, member)


def _name(prog: Program, mapping: int) -> str:
    """The name of a file, as the last part of a path has it."""
    first = Object(prog, "struct address_space", address=mapping).host.i_dentry.first.value_()
    if not first:
        return ""
    return dentry_name(Object(prog, "struct dentry", address=first - alias_offset(prog)))
