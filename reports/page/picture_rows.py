# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The rows that a bundle's pictures are drawn from.

Of a small bundle they are held, for whatever else of the page needs them. Of a long one they take
most of a report's time and memory: only the columns are read that a picture looks at.

Cannot know: the rows of a table that is damaged or too long; it says so in their place.
"""

import contextlib
import itertools
import os

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.pictures import profile_pictures
from mmscope.reports.pictures.picture import Tables
from mmscope.reports.pictures.registry import CHOSEN, LOOKED_AT, PARTS, READS

# Of the tables that are held in part.
MAX_PART_ROWS = 300_000
# Of the files that pictures are drawn from: what takes a third of a second.
LONG_BYTES = 4 << 20


def is_long(bundle: Bundle) -> bool:
    """Whether the pictures of a bundle take much longer to draw than a process takes to begin."""
    drawn = LOOKED_AT | PARTS.keys() | CHOSEN.keys()
    paths = [table.path for table in bundle.tables.values() if table.name in drawn]
    paths += [folded.path for folded in bundle.folded.values()]
    size = 0
    for path in paths:
        with contextlib.suppress(OSError):  # missing, which is said where it is read
            size += path.lstat().st_size
    return size >= LONG_BYTES


def picture_rows(bundle: Bundle) -> tuple[Tables, dict[str, str]]:
    """Rows by table, and of a profile's stacks by file; and why a table could not be read."""
    names = LOOKED_AT & bundle.tables.keys()
    if is_long(bundle):
        known, why = bundle.whole(names, READS)
    else:
        why = bundle.hold(names)
        known = {name: list(bundle.rows(name)) for name in sorted(names - why.keys())}
    errors = {name: blame(bundle, error) for name, error in why.items()}
    return known | _parts(bundle, known) | profile_pictures.stacks(bundle), errors


def _parts(bundle: Bundle, known: Tables) -> Tables:
    """The rows that pictures of other tables want of these; none of a table that is damaged."""
    found: Tables = {}
    for name in PARTS.keys() & bundle.tables.keys():
        with contextlib.suppress(BundleError, LookupError, TypeError, ValueError):
            column, wanted = PARTS[name]
            rows = bundle.rows(name, where=(column, wanted(known)))
            found[name] = list(itertools.islice(rows, MAX_PART_ROWS))
    for name in CHOSEN.keys() & bundle.tables.keys():
        with contextlib.suppress(BundleError, LookupError, TypeError):
            chosen = filter(CHOSEN[name](known), bundle.rows(name))
            found[name] = list(itertools.islice(chosen, MAX_PART_ROWS))
    return found


def blame(bundle: Bundle, error: BundleError | str) -> str:
    """An error without the folder's path, which is nobody's business on another machine."""
    return str(error).replace(f"{bundle.path}{os.sep}", "").replace(f"{bundle.path}: ", "")
