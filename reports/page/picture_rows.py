# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The rows that a bundle's pictures are drawn from.

Cannot know: the rows of a table that is damaged or too long; it says so in their place.
"""

import contextlib
import itertools
import os

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.pictures import profile_pictures
from mmscope.reports.pictures.picture import Tables
from mmscope.reports.pictures.registry import CHOSEN, LOOKED_AT, PARTS

# Of the tables that are held in part.
MAX_PART_ROWS = 300_000


def picture_rows(bundle: Bundle) -> tuple[Tables, dict[str, str]]:
    """Rows by table, and of a profile's stacks by file; and why a table could not be read."""
    found, why = bundle.held(LOOKED_AT & bundle.tables.keys())
    known: Tables = {**found}
    errors = {name: blame(bundle, error) for name, error in why.items()}
    known |= _parts(bundle, known, errors)
    if profile_pictures.TABLE in bundle.tables:
        known |= profile_pictures.stacks(bundle)
    return known, errors


def _parts(bundle: Bundle, known: Tables, errors: dict[str, str]) -> Tables:
    """The rows that pictures want of these; none of a table that is damaged, which is an error."""
    found: Tables = {}
    for name in PARTS.keys() & bundle.tables.keys():
        try:
            column, wanted = PARTS[name]
            rows = bundle.rows(name, where=(column, wanted(known)))
            found[name] = list(itertools.islice(rows, MAX_PART_ROWS))
        except BundleError as error:
            errors[name] = blame(bundle, error)
        except (LookupError, TypeError, ValueError) as error:
            errors[name] = f"table {name} is damaged, or one that its rows are chosen by: {error}"
    for name in CHOSEN.keys() & bundle.tables.keys():
        with contextlib.suppress(BundleError, LookupError, TypeError):
            chosen = filter(CHOSEN[name], bundle.rows(name))
            found[name] = list(itertools.islice(chosen, MAX_PART_ROWS))
    return found


def blame(bundle: Bundle, error: BundleError | str) -> str:
    """An error without the folder's path, which says nothing on another machine."""
    return str(error).replace(f"{bundle.path}{os.sep}", "").replace(f"{bundle.path}: ", "")
