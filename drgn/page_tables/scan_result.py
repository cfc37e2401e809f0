# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What the page tables of all processes hold, as a scan adds it up by process; and what several
scans, each of some of the processes, make together.

Costs 300 bytes of memory for each process.

Cannot know: what a process looked at that was killed. Its processes are left out.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.page_tables.mapped_pages import MappedPages
from mmscope.drgn.page_tables.page_table_formats import PageTableFormat
from mmscope.drgn.page_tables.regions import Regions
from mmscope.drgn.processes.address_spaces import AddressSpaces
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.tables.display import plural

# Of how many processes the occupancy and the regions are kept, those with the most tables.
DETAILED = 20
# Entries in use in a table: none, 1, 2-3, 4-7, … 256-511, all 512; and up to the 8,192 of a page of
# 64 KiB.
BINS = 15


# What is added up for each process.
SUMS = (
    *("deposited", "shared_pmds", "empty", "vmas", "mapped"),
    *(
        "huge",
        "huge_bytes",
        "huge_puds",
        "huge_zero",
        "other_huge",
        "migration_pmds",
        "hugetlb_bytes",
        "poisoned_pmds",
    ),
    *("exit_slots", "reaped_slots", "bad"),
)


@dataclass
class PageTableScan:
    """What the page tables of all processes hold."""

    form: PageTableFormat
    spaces: AddressSpaces
    largest: list[int]  # the processes with the most tables
    kinds: NDArray[np.int64]  # [process, kind of PTE]
    tables: NDArray[np.int64]  # [process, level]
    sums: dict[str, NDArray[np.int64]]  # by SUMS: [process]
    # [a process of detailed, or all others together; level or, behind them, deposited; bin], and
    # the entries in use in them
    filled: NDArray[np.int64]
    filled_entries: NDArray[np.int64]
    regions: Regions
    gaps: Gaps = field(default_factory=Gaps)
    unreadable_tables: int = 0
    repeated_tables: int = 0
    dropped_tables: int = 0
    broken_deposits: int = 0
    damaged_vmas: int = 0
    mapped: MappedPages | None = None  # who shares what is mapped, if that was asked for
    absurd_charges: int = 0  # processes with more page tables than there is memory, by their count

    lost: int = 0  # processes that are left out, as who looked at them was killed

    @cached_property
    def order(self) -> list[int]:
        """All processes, those with the most tables first."""
        return by_size(self.spaces)


# What is added up of all processes together.
NUMBERS = ("unreadable_tables", "repeated_tables", "dropped_tables", "broken_deposits")


def blank(scan: PageTableScan, mapped: MappedPages | None) -> PageTableScan:
    """A scan of the same processes with nothing counted yet."""
    kinds, tables, filled, filled_entries, mapped_bytes, pte_tables = (
        np.zeros(values.shape, np.int64) for values in _arrays(scan)
    )
    return replace(
        scan,
        kinds=kinds,
        tables=tables,
        filled=filled,
        filled_entries=filled_entries,
        regions=replace(scan.regions, bytes=mapped_bytes, pte_tables=pte_tables),
        sums={name: np.zeros(len(scan.spaces), np.int64) for name in SUMS},
        gaps=Gaps(),
        mapped=mapped,
        unreadable_tables=0,
        repeated_tables=0,
        dropped_tables=0,
        broken_deposits=0,
    )


def _arrays(scan: PageTableScan) -> list[NDArray[np.int64]]:
    return [
        scan.kinds,
        scan.tables,
        scan.filled,
        scan.filled_entries,
        scan.regions.bytes,
        scan.regions.pte_tables,
    ]


Counted = tuple[list[NDArray[np.int64]], list[NDArray[np.int64]], list[int], int]


def counted(scan: PageTableScan, part: slice) -> Counted:
    """What a scan that was blank counted of some processes."""
    kinds, tables, *rest = _arrays(scan)
    own = [kinds[part], tables[part], *(values[part] for values in scan.sums.values())]
    numbers, uncounted = [getattr(scan, name) for name in NUMBERS], 0
    numbers.append(scan.gaps.bytes)
    if scan.mapped is not None:
        own += [values[part] for values in scan.mapped.sums.values()]
        numbers.append(scan.mapped.gaps.bytes)
        uncounted = scan.mapped.uncounted
    return own, rest, numbers, uncounted


def add_counted(scan: PageTableScan, part: slice, counts: Counted) -> None:
    """Add what another one counted of some processes."""
    own, rest, numbers, uncounted = counts
    mapped = scan.mapped
    sums = [*scan.sums.values(), *(mapped.sums.values() if mapped is not None else ())]
    for values, more in zip([scan.kinds, scan.tables, *sums], own, strict=True):
        values[part] += more
    for values, more in zip(_arrays(scan)[2:], rest, strict=True):
        values += more
    for name, number in zip(NUMBERS, numbers, strict=False):
        setattr(scan, name, getattr(scan, name) + number)
    scan.gaps.bytes += numbers[len(NUMBERS)]
    if mapped is not None:
        mapped.gaps.bytes += numbers[-1]
        mapped.uncounted += uncounted


def without(scan: PageTableScan, lost: NDArray[np.bool_]) -> PageTableScan:
    """The scan without some processes that could not be read."""
    kept = np.flatnonzero(~lost)
    number = np.cumsum(~lost) - 1
    spaces = scan.spaces
    left = replace(
        spaces,
        processes=[spaces.processes[at] for at in kept.tolist()],
        addresses=spaces.addresses[kept],
        columns=spaces.columns[kept],
    )
    places = [place for place, at in enumerate(scan.largest) if not lost[at]]
    regions = scan.regions
    here = ~lost[regions.owners]
    filled = [*places, len(scan.largest)]
    if scan.mapped is not None:
        scan.mapped.sums = {name: values[kept] for name, values in scan.mapped.sums.items()}
    return replace(
        scan,
        spaces=left,
        largest=[int(number[scan.largest[place]]) for place in places],
        kinds=scan.kinds[kept],
        tables=scan.tables[kept],
        sums={name: values[kept] for name, values in scan.sums.items()},
        filled=scan.filled[filled],
        filled_entries=scan.filled_entries[filled],
        regions=Regions(
            number[regions.owners[here]],
            *(getattr(regions, each.name)[here] for each in fields(regions)[1:]),
        ),
        lost=len(lost) - len(kept),
    )


def words_of_lost(scan: PageTableScan) -> list[str]:
    """That some processes are left out, and why."""
    if not scan.lost:
        return []
    missing = plural(scan.lost, "process is", "processes are")
    return [f"{missing} missing: who read their page tables {'; '.join(scan.gaps.died)}"]


def by_size(spaces: AddressSpaces) -> list[int]:
    """All processes, those with the most tables first."""
    pids = np.array([process.pid for process in spaces.processes], np.int64)
    charged = spaces.columns["pgtables_bytes"].astype(np.int64)
    order: list[int] = np.lexsort((pids, -charged)).tolist()
    return order
