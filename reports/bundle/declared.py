# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Everything that is declared of tables and sections: by the probes, and by recordings, watching and
bundles themselves. Finding it imports every probe.
"""

from mmscope.drgn.sections.registry import SECTIONS, declared, modules
from mmscope.drgn.tables import bounds
from mmscope.drgn.tables.table import Heading, Table
from mmscope.reports.bundle import description
from mmscope.reports.rows import profile_rows, watch_rows

# Of sections that no reading has.
OTHERS = (bounds, description, profile_rows, watch_rows)

TABLES = {table.name: table for table in declared([*modules(), *OTHERS], Table)}
HEADINGS: dict[str, Heading] = {
    **SECTIONS,
    **{heading.name: heading for heading in declared(OTHERS, Heading)},
}
