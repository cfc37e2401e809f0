# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``_totalram_pages`` (mm/show_mem.c; before v6.7 mm/page_alloc.c): the pages that zones manage.

Costs one read. Cannot know: to which zone they belong; table ``zones`` has that.
"""

import re

from drgn import Program

from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Command, Found, Section
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table


@table_row
class ManagedMemory:
    """The memory that the page allocator manages."""

    managed_bytes: int = column(unit="bytes", help="MemTotal of /proc/meminfo")


MANAGED_MEMORY = Table("managed_memory", "Managed memory", ManagedMemory)


def managed_memory(prog: Program) -> list[ManagedMemory]:
    """
    ``totalram_pages()`` (include/linux/mm.h).

    :raises FaultError: it cannot be read.
    """
    pages = prog["_totalram_pages"].counter.value_()
    return [ManagedMemory(pages << prog["PAGE_SHIFT"].value_())]


def read_meminfo(text: str) -> list[ManagedMemory]:
    """
    The same row from /proc/meminfo, ``meminfo_proc_show()`` (fs/proc/meminfo.c).

    :raises ValueError: the text is not /proc/meminfo's.
    """
    match = re.search(r"^MemTotal: +([0-9]{1,15}) kB$", text, re.MULTILINE)
    if not match:
        raise ValueError("/proc/meminfo has no line MemTotal")
    return [ManagedMemory(int(match[1]) << 10)]


def from_memory(memory: Memory) -> Found:
    return Found().add(MANAGED_MEMORY, managed_memory(memory.prog))


def from_files(files: Files) -> Found:
    return Found().add(MANAGED_MEMORY, read_meminfo(files.read("proc/meminfo")))


MANAGED_MEMORY_SECTION = Section(
    name="managed_memory",
    title="Managed memory",
    tables=(MANAGED_MEMORY,),
    intro="""
The memory that the page allocator manages: MemTotal of
[/proc/meminfo](https://docs.kernel.org/filesystems/proc.html#meminfo).
""",
    command=Command("how much memory the page allocator manages"),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.MEMINFO,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("managed_memory")
