# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every table and section heading: those of the probes, of recordings, of watching and of bundles.

Importing this file imports every probe, with drgn and numpy.
"""

from mmscope.drgn.sections.registry import SECTIONS, modules
from mmscope.drgn.tables import bounds
from mmscope.drgn.tables.table import Heading, Table, declared
from mmscope.reports.bundle import description
from mmscope.reports.rows import profile_rows, watch_rows

# Their sections are read by no probe.
OTHERS = (bounds, description, profile_rows, watch_rows)

TABLES: dict[str, Table] = {t.name: t for t in declared([*modules(), *OTHERS], Table)}
HEADINGS: dict[str, Heading] = {**SECTIONS, **{h.name: h for h in declared(OTHERS, Heading)}}
