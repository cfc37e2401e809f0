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

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from drgn import Program

from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.page_tables.page_table_entries import kernel_root, new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import Entries, PageTableFormat, page_table_format
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, S64s, distinct
from mmscope.drgn.reading.struct_pages import flag_fields
from mmscope.drgn.struct_pages.memmap import LEAF, Leaves, Memmap, memmap, page_flags, self_hosted
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, column
from mmscope.drgn.tables.table import RUNS, table

# How much of the array is looked at together. Page tables of the last two levels do not cross it,
# nor does what belongs to one huge page.
WINDOW = 1 << 30
LEVELS = ("pud", "pmd", "pte")
# By which levels map struct pages of a section: bit 0 the PMD, bit 1 the PTE, bit 2 the PUD.
MAPPINGS = ("none", "pmd", "pte", "pmd+pte", "pud")


@table("vmemmap_mappings", "Struct pages by mapping", measure="distinct_frames")
class VmemmapMapping:
    """Entries of one level of page tables that map struct pages."""

    level: str = column(
        holds="words",
        key=True,
        help="pud, pmd or pte: 1 GiB, 2 MiB or 4 KiB an entry (with 4 KiB pages)",
    )
    entries: int = column(unit="entries", help="mapping struct pages")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="of struct pages mapped, as addresses")
    distinct_frames: int = column(
        unit="frames", high=MOST_PAGES, help="page frames, each counted once"
    )
    shared_entries: int = column(unit="entries", help="on a frame that another entry maps, too")
    read_only_entries: int = column(
        unit="entries", help="HVO maps a huge page's tails read-only, DAX does not"
    )
    tables: int = column(unit="tables", help="tables of this level, a page each")


@table("vmemmap_zones", "Struct pages by zone", measure="reused_bytes")
class VmemmapZone:
    """The struct pages of one zone."""

    node: int = column(key=True, low=-1, help="NUMA node; -1: unknown")
    zone: str = column(holds="kernel", key=True, help="Device: device memory, not for allocation")
    memmap_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of struct pages, those of holes included"
    )
    pmd_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped by PMDs or above")
    pte_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped by PTEs")
    read_only_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped read-only")
    reused_bytes: int = column(
        unit="bytes",
        high=MOST_BYTES,
        help="saved: on a frame of struct pages at a lower address",
    )


@table(
    "vmemmap_sections",
    "Sections by mapping, run-length encoded",
    not_compared=RUNS + " (vmemmap_zones has the sums)",
)
class VmemmapSections:
    """Consecutive sections whose struct pages are mapped alike."""

    start_pfn: int = column(key=True, high=MOST_PAGES, help="first page frame of the first section")
    sections: int = column(unit="sections", help="consecutive sections")
    node: int = column(low=-1, help="NUMA node; -1: unknown")
    zone: str = column(holds="kernel", help="of most pages; *: several zones")
    origin: str = column(
        holds="words",
        help="boot; hotplug; self-hosted: hot-added, struct pages in itself; device",
    )
    mapping: str = column(holds="words", help="level: pud, pmd, pte, or pmd+pte")
    reused_eighths: int = column(help="struct pages on another's frame, in eighths")
    read_only_eighths: int = column(help="mapped read-only, in eighths")
    memmap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="of all their struct pages")
    reused_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="saved: on a frame shared with others"
    )


ORIGINS = ("boot", "hotplug", "self-hosted", "device")
UNKNOWN_ZONE = -1

# (Node and name of each zone; by section, the zone of most pages; of the sections of several zones,
# the zone of each page.) A zone is node * zones_per_node + zone.
SectionZones = tuple[dict[int, tuple[int, str]], S64s, dict[int, S64s]]


def section_zones(prog: Program, where: Memmap, gaps: Gaps) -> SectionZones:
    """
    The zones that each section's pages are of, as ``page.flags`` says: read of the first and the
    last page, and of all where these differ.

    The zone of a hole, whose struct pages may never have been initialised, is not known; it counts
    with the rest of its section.
    """
    fields = flag_fields(prog)
    names: dict[int, tuple[int, str]] = {}
    spans: dict[int, tuple[int, int]] = {}
    for node, number, zone in for_each_zone(prog):
        names[number] = node, zone_name(zone)
        start = zone.zone_start_pfn.value_()
        spans[number] = start, start + zone.spanned_pages.value_()

    def zones_of(pfns: S64s) -> S64s:
        flags, known = page_flags(prog, where, pfns, gaps)
        return np.where(known, fields.zone_index(flags), UNKNOWN_ZONE)

    def spanned(zones: S64s, pfns: S64s) -> Bools:
        """Mask of the pages that lie in the zone that their flags name."""
        result = np.zeros(len(zones), np.bool_)
        for zone in distinct(zones).tolist():
            low, high = spans.get(zone, (0, 0))
            result |= (zones == zone) & (pfns >= low) & (pfns < high)
        return result

    size = where.sections.pages
    starts = where.sections.numbers * size
    main = zones_of(starts)
    mixed: dict[int, S64s] = {}
    odd = (main != zones_of(starts + size - 1)) | ~spanned(main, starts)
    for at in np.flatnonzero(odd).tolist():
        pfns = np.arange(starts[at], starts[at] + size)
        of_page = zones_of(pfns)
        # A struct page that was never initialised (of a hole, of a device's own metadata) names a
        # zone that is elsewhere.
        of_page[~spanned(of_page, pfns)] = UNKNOWN_ZONE
        found, counts = np.unique(of_page[of_page != UNKNOWN_ZONE], return_counts=True)
        main[at] = found[np.argmax(counts)] if len(found) else UNKNOWN_ZONE
        of_page[of_page == UNKNOWN_ZONE] = main[at]
        if len(found) > 1:
            mixed[at] = of_page
    return names, main, mixed


class VmemmapScan:
    """
    Sums over all entries that map struct pages: by level, by section, by zone.

    :ivar mapped: bytes of struct pages, by section; so are by_pte, reused and unwritable.
    :ivar stray: entries that map struct pages of no present section.
    :ivar repeated_tables: page tables that a second entry points to.
    """

    def __init__(
        self, where: Memmap, form: PageTableFormat, zones: SectionZones, gaps: Gaps
    ) -> None:
        self.memmap, self.gaps = where, gaps
        self.zone_names, self.main_zones, self.mixed_zones = zones
        self.page = 1 << form.page_shift
        self.sizes = {level.name: 1 << level.shift for level in form.levels if level.name in LEVELS}
        self.entries, self.read_only = dict.fromkeys(LEVELS, 0), dict.fromkeys(LEVELS, 0)
        self.tables: dict[str, list[Entries]] = {name: [] for name in LEVELS}
        self.frames = np.empty(0, np.int64)  # of PTEs, ascending
        self.users = np.empty(0, np.int64)  # entries that lead to each
        self.large: dict[str, list[S64s]] = {"pud": [], "pmd": []}
        sections = len(where.sections.numbers)
        self.sums = np.zeros((4, sections), np.int64)
        self.mapped, self.by_pte, self.unwritable, self.reused = self.sums
        self.puds = np.zeros(sections, np.bool_)
        self.first_frames = np.full(sections, -1, np.int64)
        self.zone_sums = defaultdict[int, S64s](lambda: np.zeros(4, np.int64))
        self.stray = self.repeated_tables = 0

    @property
    def unmapped_sections(self) -> int:
        """Present sections whose struct pages nothing maps."""
        return int(np.count_nonzero(self.mapped == 0))

    def take(self, leaves: Leaves) -> None:
        """Mark the reused entries of a window, and add them all."""
        self._mark_reused(leaves)
        for level, size in self.sizes.items():
            here = leaves["size"] == size
            self.entries[level] += int(np.count_nonzero(here))
            self.read_only[level] += int(np.count_nonzero(here & ~leaves["writable"]))
            if level in self.large:
                self.large[level].append(leaves["frame"][here])
        self._add_to_sections(leaves)

    def _mark_reused(self, leaves: Leaves) -> None:
        """Find the PTEs whose frame an earlier one has, and remember their frames."""
        ptes = np.flatnonzero(leaves["size"] == self.page)
        frames, first, counts = np.unique(
            leaves["frame"][ptes], return_index=True, return_counts=True
        )
        at = np.searchsorted(self.frames, frames)
        at[at == len(self.frames)] = 0
        known = self.frames[at] == frames if len(self.frames) else np.zeros(len(frames), np.bool_)
        reused = np.ones(len(ptes), np.bool_)
        reused[first[~known]] = False
        leaves["reused"][ptes] = reused
        self.users[at[known]] += counts[known]
        merged = np.concatenate([self.frames, frames[~known]])
        order = np.argsort(merged, kind="stable")
        self.frames = merged[order]
        self.users = np.concatenate([self.users, counts[~known]])[order]

    def _add_to_sections(self, leaves: Leaves) -> None:
        numbers, section_bytes = self.memmap.sections.numbers, self.memmap.section_bytes
        spans = leaves["size"] // section_bytes
        plain = leaves[spans <= 1]
        number = plain["offset"] // section_bytes
        section = np.searchsorted(numbers, number)
        section[section == len(numbers)] = 0
        present = numbers[section] == number
        self.stray += int(np.count_nonzero(~present))
        plain, section = plain[present], section[present]
        pte = plain["size"] == self.page
        # In the order of sums.
        kinds = np.stack([np.ones_like(pte), pte, ~plain["writable"], plain["reused"]])
        amounts = kinds * plain["size"]
        for sums, values in zip(self.sums, amounts, strict=True):
            np.add.at(sums, section, values)
        for mixed in np.intersect1d(section, list(self.mixed_zones)).tolist():
            here = section == mixed
            self._add_to_zones(plain[here], mixed, amounts[:, here])
        # The leaves ascend, so that the last to be written is the first of its section.
        self.first_frames[section[::-1]] = plain["frame"][::-1]
        for leaf, span in zip(leaves[spans > 1], spans[spans > 1].tolist(), strict=True):
            first = int(leaf["offset"]) // section_bytes
            inside = (numbers >= first) & (numbers < first + span)
            self.mapped[inside] += section_bytes
            self.puds |= inside
            frames = (numbers[inside] - first) * (section_bytes // self.page)
            self.first_frames[inside] = int(leaf["frame"]) + frames

    def _add_to_zones(self, leaves: Leaves, section: int, amounts: S64s) -> None:
        """A section of several zones: a PTE is of the zone that its first page is of."""
        of_page = self.mixed_zones[section]
        first = leaves["offset"] % self.memmap.section_bytes // self.memmap.page_bytes
        zone_of = of_page[np.minimum(first, len(of_page) - 1)]
        pte = leaves["size"] == self.page
        for zone in distinct(of_page).tolist():
            sums = self.zone_sums[zone]
            sums += amounts[:, pte & (zone_of == zone)].sum(axis=1)
            if not pte.all():  # a larger entry maps the whole section
                sums[0] += np.count_nonzero(of_page == zone) * self.memmap.page_bytes

    def _eighths(self, amounts: S64s) -> S64s:
        """Shares of what is mapped; non-zero ones round up to 1."""
        shares = np.rint(8 * amounts / np.maximum(self.mapped, 1)).astype(np.int64)
        return np.where(amounts > 0, np.maximum(shares, 1), 0)

    def finish(self, prog: Program) -> None:
        """Make the rows, and forget the frames that they were made from."""
        self.mappings, self.zones = self.level_rows(), self._zone_rows()
        self.runs = self._runs(prog)
        tables = [frames for parts in self.tables.values() for frames in parts]
        frames = distinct(np.concatenate([np.empty(0, np.uint64), *tables]))
        self.table_frames = (frames // np.uint64(self.page)).astype(np.int64)
        self.frames, self.users, self.large = self.frames[:0], self.users[:0], {}

    def level_rows(self) -> list[VmemmapMapping]:
        rows = []
        # Of fewer than four levels one may not be there: arm64's PUDs, with pages of 64 KiB.
        for level, size in self.sizes.items():
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
                    entries * size,
                    len(frames) * (size // self.page),
                    int(users[users > 1].sum()),
                    self.read_only[level],
                    tables,
                )
            )
        return rows

    def _is_mixed(self) -> Bools:
        """By section, whether it has several zones."""
        return np.isin(np.arange(len(self.main_zones)), list(self.mixed_zones))

    def _zone_name(self, zone: int) -> tuple[int, str]:
        """Its node and name."""
        return self.zone_names.get(zone, (UNKNOWN_ZONE, "unknown"))

    def _zone_rows(self) -> list[VmemmapZone]:
        main, mixed = self.main_zones, self._is_mixed()
        for zone in distinct(main).tolist():
            self.zone_sums[zone] += self.sums[:, (main == zone) & ~mixed].sum(axis=1)
        return [
            VmemmapZone(*self._zone_name(zone), mapped, mapped - by_pte, by_pte, unwritable, reused)
            for zone, (mapped, by_pte, unwritable, reused) in sorted(
                (zone, sums.tolist()) for zone, sums in self.zone_sums.items() if sums.any()
            )
        ]

    def _runs(self, prog: Program) -> list[VmemmapSections]:
        """The sections, run-length encoded."""
        sections, main, mixed = self.memmap.sections, self.main_zones, self._is_mixed()
        hosted = self_hosted(prog, self.memmap, self.first_frames)
        device = [number for number, (_, zone) in self.zone_names.items() if zone == "Device"]
        # Positions in ORIGINS.
        origins = np.where(sections.early, 0, np.where(hosted, 2, 1))
        origins[np.isin(main, device)] = 3
        reused, unwritable = self._eighths(self.reused), self._eighths(self.unwritable)
        some_pmd, some_pte = self.mapped > self.by_pte, self.by_pte > 0
        mapping = np.where(self.puds, 4, some_pmd + 2 * some_pte)
        keys = np.stack([main, mixed, origins, mapping, reused, unwritable], axis=1)
        changed = np.ones(len(keys), np.bool_)
        changed[1:] = (keys[1:] != keys[:-1]).any(axis=1) | (np.diff(sections.numbers) != 1)
        firsts = np.flatnonzero(changed)
        rows = []
        # Without sections there are no runs, but there is an end.
        for first, stop in zip(firsts, [*firsts[1:], len(keys)], strict=False):
            node, zone = self._zone_name(int(main[first]))
            rows.append(
                VmemmapSections(
                    start_pfn=int(sections.numbers[first]) * sections.pages,
                    sections=int(stop - first),
                    node=node,
                    zone=zone + ("*" if mixed[first] else ""),
                    origin=ORIGINS[int(origins[first])],
                    mapping=MAPPINGS[int(mapping[first])],
                    reused_eighths=int(reused[first]),
                    read_only_eighths=int(unwritable[first]),
                    memmap_bytes=int(self.mapped[first:stop].sum()),
                    reused_bytes=int(self.reused[first:stop].sum()),
                )
            )
        return rows


def scan_vmemmap(
    prog: Program,
    take: Callable[[Memmap, Leaves], None] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> VmemmapScan:
    """
    Walk the page tables of the vmemmap.

    :param take: is shown all entries, 1 GiB of struct pages at a time.
    :param progress: called with (sections done, sections in all).
    :raises NotImplementedError: there is no vmemmap, or the page tables are of an unknown
        architecture.
    """
    gaps = Gaps()
    where = memmap(prog, gaps)
    form = page_table_format(prog)
    scan = VmemmapScan(where, form, section_zones(prog, where, gaps), gaps)
    # Windows begin where page tables do, at or below the array's base.
    lead = where.base % WINDOW
    starts = lead + where.sections.numbers * where.section_bytes
    ends = starts + where.section_bytes
    root = kernel_root(prog)
    for number in distinct(np.concatenate([starts, ends - 1]) // WINDOW).tolist():
        leaves = _read_window(prog, form, root, scan, where.base - lead + number * WINDOW)
        if len(leaves):
            scan.take(leaves)
            if take is not None:
                take(where, leaves)
        if progress is not None:
            progress(int(np.searchsorted(ends, (number + 1) * WINDOW, "right")), len(ends))
    scan.finish(prog)
    return scan


def _read_window(
    prog: Program, form: PageTableFormat, root: Entries, scan: VmemmapScan, start: int
) -> Leaves:
    """The entries that map a part of the array."""
    walk = new_walk(form, 1)
    parts = [np.empty(0, LEAF)]
    for chunk in walk_page_tables(prog, form, root, walk, start=start, end=start + WINDOW):
        level = form.levels[chunk.level]
        if level.name in scan.tables and chunk.level:
            scan.tables[level.name].append(chunk.frames)
        rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
        entries = chunk.entries[rows, slots]
        leaves = np.zeros(len(rows), LEAF)
        addresses = chunk.slot_addresses(level.shift, rows, slots)
        leaves["offset"] = addresses - np.uint64(scan.memmap.base)
        leaves["frame"] = form.physical(entries, chunk.level) >> np.uint64(form.page_shift)
        leaves["size"] = 1 << level.shift
        leaves["writable"] = form.is_writable(entries)
        parts.append(leaves)
    scan.gaps.bytes += walk.gaps.bytes
    scan.repeated_tables += int(walk.repeated.sum())
    whole = np.concatenate(parts)
    return whole[np.argsort(whole["offset"], kind="stable")]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vmemmap")
