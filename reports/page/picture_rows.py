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
from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.pictures import profile_pictures
from mmscope.reports.pictures.picture import Picture, Tables
from mmscope.reports.pictures.registry import CHOSEN, LOOKED_AT, PARTS, PICTURES, READS

# Of the tables that are held in part.
MAX_PART_ROWS = 300_000
# Of the files that pictures are drawn from: what takes a third of a second.
LONG_BYTES = 4 << 20


def groups(bundle: Bundle) -> list[tuple[Picture, ...]]:
    """
    All pictures, in their order. Of a bundle that is long, in two groups that take about as long as
    each other, and of whose tables none is in both.
    """
    parts: list[tuple[frozenset[str], tuple[Picture, ...]]] = []
    for picture in PICTURES:
        mine = [part for part in parts if part[0] & picture.tables]
        parts = [part for part in parts if part not in mine]
        tables = picture.tables.union(*(part[0] for part in mine))
        parts.append((tables, (*itertools.chain(*(part[1] for part in mine)), picture)))
    sizes = [_bytes(bundle, tables) for tables, _ in parts]
    if sum(sizes) < LONG_BYTES:
        return [PICTURES]
    # The longest first, to whom has less.
    found: list[list[Picture]] = [[], []]
    given = [0, 0]
    for size, (_, pictures) in sorted(zip(sizes, parts, strict=True), key=lambda each: -each[0]):
        less = given.index(min(given))
        given[less] += size
        found[less] += pictures
    return [tuple(picture for picture in PICTURES if picture in group) for group in found]


def _bytes(bundle: Bundle, tables: Container[str]) -> int:
    """What the files of some tables have, with the stacks of profiles."""
    paths = [table.path for table in bundle.tables.values() if table.name in tables]
    if profile_pictures.TABLE in tables:
        paths += [folded.path for folded in bundle.folded.values()]
    size = 0
    for path in paths:
        with contextlib.suppress(OSError):  # missing, which is said where it is read
            size += path.lstat().st_size
    return size


def picture_rows(bundle: Bundle, pictures: Sequence[Picture]) -> tuple[Tables, dict[str, str]]:
    """Rows by table, and of a profile's stacks by file; and why a table could not be read."""
    tables = frozenset[str]().union(*(picture.tables for picture in pictures))
    names = LOOKED_AT & tables & bundle.tables.keys()
    if len(pictures) < len(PICTURES):
        known, why = bundle.whole(names, READS)
    else:
        why = bundle.hold(names)
        known = {name: list(bundle.rows(name)) for name in sorted(names - why.keys())}
    errors = {name: blame(bundle, error) for name, error in why.items()}
    known |= _parts(bundle, known, tables, errors)
    if profile_pictures.TABLE in tables:
        known |= profile_pictures.stacks(bundle)
    return known, errors


def _parts(
    bundle: Bundle, known: Tables, tables: AbstractSet[str], errors: dict[str, str]
) -> Tables:
    """The rows that pictures want of these; none of a table that is damaged, which is an error."""
    found: Tables = {}
    for name in PARTS.keys() & tables & bundle.tables.keys():
        try:
            column, wanted = PARTS[name]
            rows = bundle.rows(name, where=(column, wanted(known)))
            found[name] = list(itertools.islice(rows, MAX_PART_ROWS))
        except BundleError as error:
            errors[name] = blame(bundle, error)
        except (LookupError, TypeError, ValueError) as error:
            errors[name] = f"table {name} is damaged, or one that its rows are chosen by: {error}"
    for name in CHOSEN.keys() & tables & bundle.tables.keys():
        with contextlib.suppress(BundleError, LookupError, TypeError):
            chosen = filter(CHOSEN[name](known), bundle.rows(name))
            found[name] = list(itertools.islice(chosen, MAX_PART_ROWS))
    return found


def blame(bundle: Bundle, error: BundleError | str) -> str:
    """An error without the folder's path, which is nobody's business on another machine."""
    return str(error).replace(f"{bundle.path}{os.sep}", "").replace(f"{bundle.path}: ", "")
