# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every table and section heading: those of the probes, of recordings, of watching and of bundles.

Importing this file imports every probe, with drgn and numpy.
"""

from mmscope.drgn.sections.registry import SECTIONS, modules
from mmscope.drgn.tables import bounds
from mmscope.drgn.tables.table import Heading, Table, declared_tables
from mmscope.reports.bundle import description
from mmscope.reports.rows.profile_rows import PROFILES_HEADING
from mmscope.reports.rows.watch_rows import WATCH_HEADING

OTHERS = (PROFILES_HEADING, WATCH_HEADING)  # that no probe reads
HEADINGS: dict[str, Heading] = {**SECTIONS, **{heading.name: heading for heading in OTHERS}}
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *declared_tables([*modules(), bounds, description]),
        *(table for heading in OTHERS for table in heading.tables),
    )
}
