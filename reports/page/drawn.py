# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle's pictures as the HTML that the page has, and the rows that they are drawn from.

Cannot know: the rows of a table that is damaged or too long; it says so in their place.
"""

import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.page.environment import environment
from mmscope.reports.page.missing import why_missing
from mmscope.reports.pictures import profile_pictures
from mmscope.reports.pictures.picture import Picture, Row, Tables
from mmscope.reports.pictures.registry import LOOKED_AT, PARTS, PICTURES

# Of the tables that are held in part.
MAX_PART_ROWS = 300_000
# Where some rows fail: so many parts of a picture are tried each by itself.
MAX_APART = 32
Draw = Callable[[Picture, Tables], Markup]


@dataclass(frozen=True, slots=True)
class PictureView:
    """A picture, or why it is missing; or both, where a part of it is."""

    name: str
    html: Markup
    error: str
    tables: frozenset[str] = frozenset()  # that it shows
    fault: Fault | None = None  # where mmscope failed


def draw(bundle: Bundle, context: dict[str, Any]) -> dict[str, list[PictureView]]:
    """
    Draw the pictures of a bundle, by the table that they belong to.

    :param context: of the page.
    """
    known, errors = picture_rows(bundle)

    def html(picture: Picture, tables: Tables) -> Markup:
        template = environment().get_template(f"picture_{picture.name}.html")
        data = picture.draw(tables, context["page_size"])
        return Markup(template.render(context, data=data))  # escapes everything

    found: dict[str, list[PictureView]] = {}
    for picture in PICTURES:
        if picture.table in bundle.tables and (view := _view(bundle, picture, known, errors, html)):
            found.setdefault(picture.table, []).append(view)
    return found


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
    return found


def blame(bundle: Bundle, error: BundleError | str) -> str:
    """An error without the folder's path, which says nothing on another machine."""
    return str(error).replace(f"{bundle.path}{os.sep}", "").replace(f"{bundle.path}: ", "")


def _view(
    bundle: Bundle, picture: Picture, known: Tables, errors: dict[str, str], html: Draw
) -> PictureView | None:
    """
    A picture, or why it is missing; None where its table has no rows. Of one that failed, what
    fails by itself is left out.
    """
    name = picture.table
    lacking = picture.columns - bundle.tables[name].column_names
    why = f"table {name} has no column {', '.join(sorted(lacking))}" if lacking else ""
    if why := why or errors.get(name, ""):
        return PictureView(picture.name, Markup(), why)
    if not known[name]:
        return None
    shown = picture.others | {name}
    # Whatever comes of a picture must cost this picture alone.
    try:
        return PictureView(picture.name, html(picture, known), "", shown)
    except Exception as error:
        why, fault = _why(bundle, picture, known, error)
    parts: dict[Any, list[Row]] = {}
    for row in known[name] if picture.apart else ():
        parts.setdefault(row[picture.apart], []).append(row)
    whole: list[Row] = []
    failed: list[tuple[str, Fault | None]] = []
    for part, rows in parts.items() if len(parts) <= MAX_APART else ():
        alone = known | {name: rows}
        try:
            html(picture, alone)
            whole += rows
        except Exception as error:
            said, its_fault = _why(bundle, picture, alone, error)
            failed.append((f"{picture.apart} {part}: {said}", its_fault))
    if whole and failed:
        with contextlib.suppress(Exception):  # which is said of the whole
            drawn = html(picture, known | {name: whole})
            first = next((each for _, each in failed if each), None)
            return PictureView(picture.name, drawn, "; ".join(w for w, _ in failed), shown, first)
    return PictureView(picture.name, Markup(), why, fault=fault)


def _why(
    bundle: Bundle, picture: Picture, known: Tables, error: Exception
) -> tuple[str, Fault | None]:
    names = sorted(picture.tables & known.keys(), key=lambda name: (name != picture.table, name))
    return why_missing(
        picture.name, error, picture.table, ((bundle, name, known[name]) for name in names)
    )
