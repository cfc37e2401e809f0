# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The ``struct zone`` that each section's pages are of, as ``page.flags`` of its struct pages say.

Costs two reads for each section, and one of all its struct pages where it has several zones.

Cannot know: the zone of a hole, whose struct pages may never have been initialised; it counts with
the rest of its section.
"""

import numpy as np
from drgn import Program
from numpy.typing import NDArray

from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct
from mmscope.drgn.reading.struct_pages import FlagFields, flag_fields
from mmscope.drgn.struct_pages.memmap import Memmap, page_flags

UNKNOWN_ZONE = -1


class SectionZones:
    """
    The zone that each section's pages are of, as their flags say: read of the first and the last
    page, and of all where these differ.
    """

    def __init__(self, prog: Program, where: Memmap, gaps: Gaps) -> None:
        self.fields = flag_fields(prog)
        self.names: dict[int, tuple[int, str]] = {}
        self.spans: dict[int, tuple[int, int]] = {}
        for node, index, zone in for_each_zone(prog):
            number = node * self.fields.zones_per_node + index
            self.names[number] = node, zone_name(zone)
            start = zone.zone_start_pfn.value_()
            self.spans[number] = start, start + zone.spanned_pages.value_()
        size = where.sections.pages
        starts = where.sections.numbers * size
        first = page_zones(prog, where, self.fields, starts, gaps)
        last = page_zones(prog, where, self.fields, starts + size - 1, gaps)
        self.main = first  # the zone of most of the section's pages
        self.mixed = np.zeros(len(starts), np.bool_)
        self.pages: dict[int, NDArray[np.int64]] = {}  # of mixed sections, by page
        for at in np.flatnonzero((first != last) | ~self._spanned(first, starts)).tolist():
            pfns = np.arange(starts[at], starts[at] + size)
            of_page = page_zones(prog, where, self.fields, pfns, gaps)
            # A struct page that was never initialised (of a hole, of a device's own metadata) names
            # a zone that is elsewhere.
            of_page[~self._spanned(of_page, pfns)] = UNKNOWN_ZONE
            found, counts = np.unique(of_page[of_page != UNKNOWN_ZONE], return_counts=True)
            self.main[at] = found[np.argmax(counts)] if len(found) else UNKNOWN_ZONE
            of_page[of_page == UNKNOWN_ZONE] = self.main[at]
            if len(found) > 1:
                self.mixed[at] = True
                self.pages[at] = of_page

    def _spanned(self, zones: NDArray[np.int64], pfns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which pages lie in the zone that their flags name."""
        result = np.zeros(len(zones), np.bool_)
        for zone in distinct(zones).tolist():
            low, high = self.spans.get(zone, (0, 0))
            result |= (zones == zone) & (pfns >= low) & (pfns < high)
        return result

    def named(self, name: str) -> NDArray[np.bool_]:
        """Which sections are of a zone of this name, on any node."""
        numbers = [number for number, (_, zone) in self.names.items() if zone == name]
        return np.isin(self.main, numbers)

    def name(self, zone: int) -> tuple[int, str]:
        return self.names.get(zone, (UNKNOWN_ZONE, "unknown"))


def page_zones(
    prog: Program, where: Memmap, fields: FlagFields, pfns: NDArray[np.int64], gaps: Gaps
) -> NDArray[np.int64]:
    """``node * zones_per_node + zone`` of some pages, -1 of those that cannot be read."""
    flags, known = page_flags(prog, where, pfns, gaps)
    return np.where(known, fields.zone_index(flags), UNKNOWN_ZONE)
