# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Huge pages by size: ``mthp_stats`` (include/linux/huge_mm.h), which counts for each order what was
allocated, refused, swapped and split; or files in stats/ of each size below
/sys/kernel/mm/transparent_hugepage.

Names are the kernel's own (``enum mthp_stat_item``), so that a counter which a new kernel adds is
there without a change here. "mm: add per-order mTHP anon_fault_alloc and anon_fault_fallback
counters" (ec33687c6749, in v6.10). All but ``nr_*`` are counted since boot.

Costs a read of some hundred bytes for each CPU. Cannot know: when it was.
"""

import numpy as np
from drgn import ObjectNotFoundError, Program, sizeof

from mmscope.drgn.reading.cpus import percpu_offsets
from mmscope.drgn.reading.kernel_arrays import read_whole
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import LONGEST_NAME, MOST, column, event_column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_text import printed_number

FOLDER = "sys/kernel/mm/transparent_hugepage"
PREFIX, LAST = "MTHP_STAT_", "__MTHP_STAT_COUNT"
NO_COUNTERS = (
    "the kernel does not count huge pages by size: it is older than v6.10, or built without "
    "CONFIG_TRANSPARENT_HUGEPAGE"
)
# Files that are not called as their items are (DEFINE_MTHP_STAT_ATTR() of mm/huge_memory.c, 7.2).
CALLED = {
    f"collapse_exceed_{what}": f"collapse_exceed_{what}_pte" for what in ("swap", "none", "shared")
}


@table("thp_sizes", "Huge pages by size", since_boot="counter not like 'nr\\_%' escape '\\'")
class ThpSize:
    """One counter of huge pages of a size."""

    page_bytes: int = column(
        unit="bytes", low=1, key=True, high=1 << 40, help="size of such a page"
    )
    counter: str = column(
        holds="kernel",
        key=True,
        low=1,
        high=LONGEST_NAME,
        help="file in stats/ of the size; nr_*: existing pages, else since boot",
    )
    value: int = event_column(high=MOST, help="huge pages of that size; zeros are left out")


def thp_sizes(prog: Program) -> list[ThpSize]:
    """
    ``sum_mthp_stat()`` (mm/huge_memory.c) for each order and item.

    :raises Absent: the kernel has none.
    :raises drgn.FaultError: a CPU's cannot be read.
    :raises ValueError: as :func:`percpu_offsets`.
    """
    try:
        stats = prog["mthp_stats"]
    except ObjectNotFoundError:
        raise Absent(NO_COUNTERS) from None
    assert stats.address_ is not None
    items = int(prog.constant(LAST))
    names = {
        int(value): name.removeprefix(PREFIX).lower()
        for name, value in prog.type("enum mthp_stat_item").enumerators or ()
        if name.startswith(PREFIX)
    }
    words = sizeof(stats.type_) // 8
    total = sum(
        (
            read_whole(prog, int(address), words, np.dtype("<i8"))
            for address in percpu_offsets(prog) + np.uint64(stats.address_)
        ),
        np.zeros(words, np.int64),
    )
    page = int(prog["PAGE_SIZE"].value_())
    rows = [
        ThpSize(page << order, CALLED.get(names[item], names[item]), value)
        for order, values in enumerate(total.reshape(-1, items).tolist())
        for item, value in enumerate(values)
        if value > 0 and item in names
    ]
    return sorted(rows, key=lambda row: (row.page_bytes, row.counter))


def thp_sizes_from_files(files: Files) -> Found:
    """
    The same rows from /sys.

    :raises Absent: no size has a folder stats/.
    """
    rows, found, counters, unread = list[ThpSize](), Found(), 0, 0
    for kib in files.numbers(FOLDER, r"hugepages-(\d+)kB"):
        here = f"{FOLDER}/hugepages-{kib}kB/stats"
        for name in files.names(here):
            counters += 1
            try:
                value = printed_number(files.open(f"{here}/{name}").strip(), here)
            except (OSError, ValueError):
                unread += 1
                continue
            if value:
                rows.append(ThpSize(kib << 10, name, value))
    if not counters:
        raise Absent(
            f"{files.root / FOLDER} has no hugepages-*kB/stats: {NO_COUNTERS}, or the tree lacks "
            "its files"
        )
    found.notes += if_any(unread, "{} could not be read", "counter")
    return found.add(ThpSize, rows)


THP_SIZES_SECTION = Section(
    name="thp_sizes",
    title="Huge pages by size",
    since="0.3.0",
    tables=tables_of(
        ThpSize,
    ),
    intro="""
Transparent huge pages of each size ([monitoring
usage](https://docs.kernel.org/admin-guide/mm/transhuge.html#monitoring-usage)): what page faults
got and did not get, what went to swap whole or had to be split for it, what was split. A fault
that gets no page of a size tries the next smaller one that is enabled.
""",
    command=Command("huge pages by size", top=TOP),
    from_memory=lambda memory: Found().add(ThpSize, thp_sizes(memory.prog)),
    from_files=thp_sizes_from_files,
    reads=(prices.SETTINGS,),
    optional=True,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("thp_sizes")
