# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The vmemmap: the array of all ``struct page``, and the page frames that it really lies on.

Walks the kernel's own page tables over the array. A section's 32,768 struct pages (2 MiB of them)
are usually one entry on the level of the PMD; HVO and device-dax split it into PTEs, most of which
lead to a frame that another one leads to as well, since the struct pages of a huge page's tails are
all alike. So the array takes less memory than it has addresses: an entry *reuses* a frame if an
entry at a lower address has it too, and every one that does is a page saved.

Costs a read for each page table (a 64 GiB machine has 500 of them) and two for each section. The
walk goes through the array 1 GiB at a time; what grows with the machine is 16 bytes for each frame
that is mapped by a PTE.

Cannot know: who allocated a frame, beyond what its own struct page says (see
``memory_metadata.py``). Struct pages of holes in a section are counted as the others are: they take
the same room.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import Program
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_entries import kernel_root, new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import Entries, PageTableFormat, page_table_format
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct
from mmscope.drgn.struct_pages.memmap import Memmap, memmap, self_hosted
from mmscope.drgn.struct_pages.section_zones import SectionZones
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, column, table_row
from mmscope.drgn.tables.table import RUNS, Table

# How much of the array is looked at together. Page tables of the last two levels do not cross it,
# nor does what belongs to one huge page.
WINDOW = 1 << 30
LEVELS = ("pud", "pmd", "pte")


@table_row
class VmemmapMapping:
    """Entries of one level of page tables that map struct pages."""

    level: str = column(
        holds="words",
        key=True,
        help="pud, pmd or pte: what one entry maps, 1 GiB, 2 MiB, 4 KiB (with pages of 4 KiB)",
    )
    entries: int = column(unit="entries", help="of that level that map struct pages")
    bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of struct pages that they map: addresses, not memory"
    )
    distinct_frames: int = column(
        unit="frames", high=MOST_PAGES, help="of a page that they lead to, each counted once"
    )
    shared_entries: int = column(
        unit="entries", help="that lead to a frame which another entry leads to as well"
    )
    read_only_entries: int = column(
        unit="entries", help="HVO maps the tails of a huge page read-only, DAX does not"
    )
    tables: int = column(unit="tables", help="page tables of this level, a page each")


VMEMMAP_MAPPINGS = Table(
    "vmemmap_mappings", "Struct pages by mapping", VmemmapMapping, measure="distinct_frames"
)


@table_row
class VmemmapZone:
    """The struct pages of one zone."""

    node: int = column(key=True, low=-1, help="NUMA node; -1: unknown")
    zone: str = column(
        holds="kernel", key=True, help="Device: memory of a device, that no allocation comes from"
    )
    memmap_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of struct pages, those of holes with them"
    )
    pmd_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of them, mapped by entries of a PMD or above"
    )
    pte_bytes: int = column(unit="bytes", high=MOST_BYTES, help="of them, mapped by PTEs")
    read_only_bytes: int = column(unit="bytes", high=MOST_BYTES, help="of them, mapped read-only")
    reused_bytes: int = column(
        unit="bytes",
        high=MOST_BYTES,
        help="of them, on a frame that struct pages at a lower address lie on: saved",
    )


VMEMMAP_ZONES = Table("vmemmap_zones", "Struct pages by zone", VmemmapZone, measure="reused_bytes")


@table_row
class VmemmapSections:
    """Consecutive sections whose struct pages are mapped alike."""

    start_pfn: int = column(key=True, high=MOST_PAGES, help="first page frame of the first section")
    sections: int = column(unit="sections", help="how many, one behind the other")
    node: int = column(low=-1, help="NUMA node; -1: unknown")
    zone: str = column(holds="kernel", help="of most pages; a * marks sections of several zones")
    origin: str = column(
        holds="words",
        help="boot; hotplug; self-hosted: hot-added, with its struct pages in itself; device",
    )
    mapping: str = column(holds="words", help="level of the entries, pud, pmd, pte, or pmd+pte")
    reused_eighths: int = column(
        help="share of the section's struct pages that lie on another's frame, in eighths"
    )
    read_only_eighths: int = column(help="share that is mapped read-only, in eighths")
    memmap_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of struct pages of all these sections"
    )
    reused_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of them, on a frame that others lie on: saved"
    )


VMEMMAP_SECTIONS = Table(
    "vmemmap_sections",
    "Sections by mapping, run-length encoded",
    VmemmapSections,
    not_compared=RUNS + " (vmemmap_zones has the sums)",
)


@dataclass(frozen=True, slots=True)
class Leaves:
    """Entries that map struct pages, ascending by the address that they map."""

    addresses: Entries
    frames: NDArray[np.int64]  # the first page frame that each leads to
    sizes: NDArray[np.int64]  # bytes that each maps
    writable: NDArray[np.bool_]
    reused: NDArray[np.bool_]  # a PTE whose frame an entry at a lower address leads to as well

    def __len__(self) -> int:
        return len(self.addresses)

    def part(self, which: NDArray[Any] | slice) -> "Leaves":
        return Leaves(
            self.addresses[which],
            self.frames[which],
            self.sizes[which],
            self.writable[which],
            self.reused[which],
        )


@dataclass
class VmemmapScan:
    """What the walk found."""

    memmap: Memmap
    mappings: list[VmemmapMapping] = field(default_factory=list)
    zones: list[VmemmapZone] = field(default_factory=list)
    runs: list[VmemmapSections] = field(default_factory=list)
    unmapped_sections: int = 0  # present, and nothing maps their struct pages
    stray_entries: int = 0  # that map struct pages of no present section
    repeated_tables: int = 0  # pointed to by a second entry
    # Page frames of the page tables that map struct pages.
    table_frames: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    gaps: Gaps = field(default_factory=Gaps)


Take = Callable[[Memmap, Leaves], None]


def scan_vmemmap(
    prog: Program,
    takers: tuple[Take, ...] = (),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> VmemmapScan:
    """
    Walk the page tables of the vmemmap.

    :param takers: are shown all entries, 1 GiB of struct pages at a time.
    :param progress: called with (sections done, sections in all).
    :raises NotImplementedError: there is no vmemmap, or the page tables are of an unknown
        architecture.
    """
    gaps = Gaps()
    where = memmap(prog, gaps)
    form = page_table_format(prog)
    scan = VmemmapScan(where, gaps=gaps)
    totals = _Totals(where, form, SectionZones(prog, where, gaps))
    for leaves in _windows(prog, form, scan, totals, progress):
        totals.take(leaves)
        for take in takers:
            take(where, leaves)
    scan.mappings = totals.mappings()
    scan.zones = totals.zone_rows()
    scan.runs = totals.runs(prog)
    scan.unmapped_sections = int(np.count_nonzero(totals.mapped == 0))
    scan.stray_entries = totals.stray
    scan.table_frames = totals.table_frames()
    return scan


def _windows(
    prog: Program,
    form: PageTableFormat,
    scan: VmemmapScan,
    totals: "_Totals",
    progress: Callable[[int, int], None] | None,
) -> Iterator[Leaves]:
    """The entries of the whole array, window by window."""
    where = scan.memmap
    # Windows begin where page tables do, at or below the array's base.
    lead = where.base % WINDOW
    starts = lead + where.sections.numbers * where.section_bytes
    ends = starts + where.section_bytes
    root = kernel_root(prog)
    for number in distinct(np.concatenate([starts, ends - 1]) // WINDOW).tolist():
        walk = new_walk(form, 1)
        start = where.base - lead + number * WINDOW
        parts: list[Leaves] = []
        for chunk in walk_page_tables(prog, form, root, walk, start=start, end=start + WINDOW):
            name = form.levels[chunk.level].name
            if chunk.level:
                totals.add_tables(name, chunk.frames)
            rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
            if not len(rows):
                continue
            entries = chunk.entries[rows, slots]
            shift = form.levels[chunk.level].shift
            parts.append(
                Leaves(
                    chunk.slot_addresses(shift, rows, slots),
                    (form.physical(entries, chunk.level) >> np.uint64(form.page_shift)).astype(
                        np.int64
                    ),
                    np.full(len(rows), 1 << shift, np.int64),
                    form.is_writable(entries),
                    np.zeros(len(rows), np.bool_),
                )
            )
        scan.gaps.bytes += walk.gaps.bytes
        scan.repeated_tables += int(walk.repeated.sum())
        if parts:
            yield totals.with_reuse(_sorted(parts))
        if progress is not None:
            progress(int(np.searchsorted(ends, (number + 1) * WINDOW, "right")), len(ends))


def _sorted(parts: list[Leaves]) -> Leaves:
    whole = Leaves(
        np.concatenate([part.addresses for part in parts]),
        np.concatenate([part.frames for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.writable for part in parts]),
        np.concatenate([part.reused for part in parts]),
    )
    return whole.part(np.argsort(whole.addresses, kind="stable"))


class _Totals:
    """What is kept of all windows: sums by level and by section, and the frames of PTEs."""

    def __init__(self, where: Memmap, form: PageTableFormat, zones: "SectionZones") -> None:
        self.where = where
        self.zones = zones
        self.page = 1 << form.page_shift
        self.sizes = {level.name: 1 << level.shift for level in form.levels if level.name in LEVELS}
        self.entries = dict.fromkeys(LEVELS, 0)
        self.read_only = dict.fromkeys(LEVELS, 0)
        self.tables: dict[str, list[Entries]] = {name: [] for name in LEVELS}
        self.frames = np.empty(0, np.int64)  # of PTEs, ascending
        self.users = np.empty(0, np.int64)  # entries that lead to each
        self.large: dict[str, list[NDArray[np.int64]]] = {"pud": [], "pmd": []}
        sections = len(where.sections.numbers)
        # In bytes, by section.
        self.mapped = np.zeros(sections, np.int64)
        self.by_pte = np.zeros(sections, np.int64)
        self.reused = np.zeros(sections, np.int64)
        self.unwritable = np.zeros(sections, np.int64)
        self.puds = np.zeros(sections, np.bool_)
        self.first_frames = np.full(sections, -1, np.int64)
        self.stray = 0
        self.zone_sums: dict[int, list[int]] = {}

    def add_tables(self, level: str, frames: Entries) -> None:
        if level in self.tables:
            self.tables[level].append(frames)

    def table_frames(self) -> NDArray[np.int64]:
        """Page frames of all tables."""
        parts = [part for parts in self.tables.values() for part in parts]
        frames = distinct(np.concatenate([np.empty(0, np.uint64), *parts]))
        return (frames // np.uint64(self.page)).astype(np.int64)

    def with_reuse(self, leaves: Leaves) -> Leaves:
        """Find the PTEs whose frame an earlier one has, and remember their frames."""
        ptes = np.flatnonzero(leaves.sizes == self.page)
        frames, first, counts = np.unique(
            leaves.frames[ptes], return_index=True, return_counts=True
        )
        at = np.searchsorted(self.frames, frames)
        at[at == len(self.frames)] = 0
        known = self.frames[at] == frames if len(self.frames) else np.zeros(len(frames), np.bool_)
        reused = np.ones(len(ptes), np.bool_)
        reused[first[~known]] = False
        leaves.reused[ptes] = reused
        self.users[at[known]] += counts[known]
        merged = np.concatenate([self.frames, frames[~known]])
        order = np.argsort(merged, kind="stable")
        self.frames = merged[order]
        self.users = np.concatenate([self.users, counts[~known]])[order]
        return leaves

    def take(self, leaves: Leaves) -> None:
        for level, size in self.sizes.items():
            here = leaves.sizes == size
            self.entries[level] += int(np.count_nonzero(here))
            self.read_only[level] += int(np.count_nonzero(here & ~leaves.writable))
            if level in self.large:
                self.large[level].append(leaves.frames[here])
        self._add_to_sections(leaves)

    def _add_to_sections(self, leaves: Leaves) -> None:
        numbers = self.where.sections.numbers
        offset = (leaves.addresses - np.uint64(self.where.base)).astype(np.int64)
        spans = leaves.sizes // self.where.section_bytes
        large = spans > 1
        plain = np.flatnonzero(~large)
        number = offset[plain] // self.where.section_bytes
        section = np.searchsorted(numbers, number)
        section[section == len(numbers)] = 0
        present = numbers[section] == number
        self.stray += int(np.count_nonzero(~present))
        plain, section = plain[present], section[present]

        def add(total: NDArray[np.int64], which: NDArray[np.bool_]) -> None:
            chosen = which[plain]
            np.add.at(total, section[chosen], leaves.sizes[plain][chosen])

        add(self.mapped, np.ones(len(leaves), np.bool_))
        add(self.by_pte, leaves.sizes == self.page)
        add(self.reused, leaves.reused)
        add(self.unwritable, ~leaves.writable)
        for mixed in np.intersect1d(section, np.flatnonzero(self.zones.mixed)).tolist():
            here = plain[section == mixed]
            self._add_to_zones(leaves.part(here), mixed, offset[here])
        # The leaves ascend, so that the last to be written is the first of its section.
        self.first_frames[section[::-1]] = leaves.frames[plain[::-1]]
        for at in np.flatnonzero(large).tolist():
            first = int(offset[at]) // self.where.section_bytes
            inside = (numbers >= first) & (numbers < first + int(spans[at]))
            self.mapped[inside] += self.where.section_bytes
            self.puds |= inside
            self.first_frames[inside] = int(leaves.frames[at]) + (numbers[inside] - first) * (
                self.where.section_bytes // self.page
            )

    def _eighths(self, amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shares of what is mapped; the least that is not nothing is one."""
        shares = np.rint(8 * amounts / np.maximum(self.mapped, 1)).astype(np.int64)
        return np.where(amounts > 0, np.maximum(shares, 1), 0)

    def mappings(self) -> list[VmemmapMapping]:
        rows = []
        for level in LEVELS:
            tables = len(distinct(np.concatenate([np.empty(0, np.uint64), *self.tables[level]])))
            frames, users = self.frames, self.users
            if level in self.large:
                found = np.concatenate([np.empty(0, np.int64), *self.large[level]])
                frames, users = np.unique(found, return_counts=True)
            entries = self.entries[level]
            rows.append(
                VmemmapMapping(
                    level,
                    entries,
                    entries * self.sizes[level],
                    len(frames) * (self.sizes[level] // self.page),
                    int(users[users > 1].sum()),
                    self.read_only[level],
                    tables,
                )
            )
        return rows

    def zone_rows(self) -> list[VmemmapZone]:
        """Sums by zone."""
        zones = self.zones
        for zone in distinct(zones.main).tolist():
            here = (zones.main == zone) & ~zones.mixed
            sums = [self.mapped, self.mapped - self.by_pte, self.by_pte]
            self._add_zone(
                zone, [int(v[here].sum()) for v in (*sums, self.unwritable, self.reused)]
            )
        return [
            VmemmapZone(*zones.name(zone), *sums)
            for zone, sums in sorted(self.zone_sums.items())
            if any(sums)
        ]

    def _add_zone(self, zone: int, amounts: list[int]) -> None:
        sums = self.zone_sums.setdefault(zone, [0] * len(amounts))
        for position, amount in enumerate(amounts):
            sums[position] += amount

    def _add_to_zones(self, leaves: Leaves, section: int, offset: NDArray[np.int64]) -> None:
        """A section of several zones: a PTE is of the zone that its first page is of."""
        of_page = self.zones.pages[section]
        first = offset % self.where.section_bytes // self.where.page_bytes
        pte = leaves.sizes == self.page
        for zone in distinct(of_page).tolist():
            here = pte & (of_page[np.minimum(first, len(of_page) - 1)] == zone)
            by_pte = int(leaves.sizes[here].sum())
            # A larger entry maps the whole section.
            whole = 0 if pte.all() else int(np.count_nonzero(of_page == zone))
            large = whole * self.where.page_bytes
            self._add_zone(
                zone,
                [
                    by_pte + large,
                    large,
                    by_pte,
                    int(leaves.sizes[here & ~leaves.writable].sum()),
                    int(leaves.sizes[here & leaves.reused].sum()),
                ],
            )

    def runs(self, prog: Program) -> list[VmemmapSections]:
        """The sections, run-length encoded."""
        sections = self.where.sections
        device = self.zones.named("Device")
        origins = _origins(prog, self.where, self.first_frames, device)
        zones = self.zones
        reused, unwritable = self._eighths(self.reused), self._eighths(self.unwritable)
        some_pmd, some_pte = self.mapped > self.by_pte, self.by_pte > 0
        mapping = np.where(self.puds, 3, some_pmd + 2 * some_pte)
        names = {0: "none", 1: "pmd", 2: "pte", 3: "pmd+pte"}
        keys = np.stack(
            [zones.main * 2 + zones.mixed, origins, mapping, reused, unwritable], axis=1
        )
        changed = np.ones(len(keys), np.bool_)
        changed[1:] = (keys[1:] != keys[:-1]).any(axis=1) | (np.diff(sections.numbers) != 1)
        firsts = np.flatnonzero(changed)
        rows = []
        # Without sections there are no runs, but there is an end.
        for first, behind in zip(firsts, [*firsts[1:], len(keys)], strict=False):
            node, zone = zones.name(int(zones.main[first]))
            level = "pud" if self.puds[first] else names[int(mapping[first])]
            rows.append(
                VmemmapSections(
                    start_pfn=int(sections.numbers[first]) * sections.pages,
                    sections=int(behind - first),
                    node=node,
                    zone=zone + ("*" if zones.mixed[first] else ""),
                    origin=ORIGINS[int(origins[first])],
                    mapping=level,
                    reused_eighths=int(reused[first]),
                    read_only_eighths=int(unwritable[first]),
                    memmap_bytes=int(self.mapped[first:behind].sum()),
                    reused_bytes=int(self.reused[first:behind].sum()),
                )
            )
        return rows


ORIGINS = ("boot", "hotplug", "self-hosted", "device")


def _origins(
    prog: Program, where: Memmap, first_frames: NDArray[np.int64], device: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Index into :data:`ORIGINS` of each section."""
    origins = np.where(device, 3, np.where(where.sections.early, 0, 1))
    hosted = self_hosted(prog, where, first_frames)
    return np.where(hosted & (origins == 1), 2, origins)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vmemmap")
