# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every table that is declared: those of the probes, and those that recordings, watching and bundles
themselves have. Finding them imports every probe.
"""

import importlib

from mmscope.drgn.sections.registry import declared, modules
from mmscope.drgn.tables.table import Table

# Whose tables come from no section of a reading.
OTHERS = ("reports.bundle.bundle", "reports.profiles.profile_rows", "reports.watch.watch_rows")

TABLES = {
    table.name: table
    for table in [
        *declared(modules(), Table),
        *declared((importlib.import_module(f"mmscope.{name}") for name in OTHERS), Table),
    ]
}
