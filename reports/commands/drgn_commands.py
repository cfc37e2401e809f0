# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The sections as commands of drgn, as ``make docs`` writes them to ``drgn_commands.csv``.

What sections declare is known to who imports every probe, which would let drgn start half a second
later. ``description`` goes on from "Print"; ``top`` is how many rows of a table are printed, empty:
all; ``picks`` is the column that an argument picks rows by, and ``place`` where the section is, for
``pkgutil.resolve_name()``.
"""

import csv
from pathlib import Path

with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
    COMMANDS = list(csv.DictReader(file))
