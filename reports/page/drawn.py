# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle's pictures as the HTML that the page has.

Cannot know: the number of a download in the page, which is given where the picture is placed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from mmscope.drgn.tables import display
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import Table
from mmscope.reports.drawing.downloads import Download, Downloads
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.page.environment import environment_of
from mmscope.reports.page.missing import why_missing
from mmscope.reports.page.picture_rows import picture_rows
from mmscope.reports.page.sentences import uptime_of
from mmscope.reports.pictures.picture import Picture, Row, Tables
from mmscope.reports.pictures.registry import PICTURES

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


@dataclass(frozen=True, slots=True)
class Drawn:
    """
    Pictures of a bundle.

    :ivar pictures: by the table that they belong to, with the downloads that their HTML counts.
    """

    pictures: dict[str, tuple[list[PictureView], list[Download]]]

    def of(self, table: str, offers: Downloads) -> list[PictureView]:
        """The pictures of a table, with their downloads among those of the page."""
        views, offered = self.pictures.get(table, ([], []))
        return [replace(view, html=offers.taken(view.html, offered)) for view in views]


def page_size_of(bundle: Bundle) -> int | None:
    """The bytes of a page; None where the bundle does not say, or says what cannot be."""
    size = display.plain_int(bundle.target.get("page_size"))
    return size if size is not None and 0 < size < 1 << 40 else None


def draw(bundle: Bundle) -> Drawn:
    """Draw the pictures of a bundle."""
    page_size, offers = page_size_of(bundle), Downloads()
    environment = environment_of(page_size, uptime_of(bundle))
    environment.globals["offer"] = offers.offer
    known, errors = picture_rows(bundle)

    def html(picture: Picture, tables: Tables) -> Markup:
        template = environment.get_template(f"picture_{picture.name}.html")
        return Markup(template.render(data=picture.draw(tables, page_size)))  # escapes everything

    found: dict[str, list[PictureView]] = {}
    for picture in PICTURES:
        table = bundle.tables.get(picture.table)
        if table and (view := _view(bundle, picture, table, known, errors, html)):
            found.setdefault(table.name, []).append(view)
    return Drawn({table: (views, offers.offered) for table, views in found.items()})


def _view(
    bundle: Bundle,
    picture: Picture,
    table: Table,
    known: Tables,
    errors: dict[str, str],
    html: Draw,
) -> PictureView | None:
    """A picture, or why it is missing; None where its table has no rows."""
    missing = picture.columns - {column.name for column in table.columns}
    if missing:
        why = f"table {table.name} has no column {', '.join(sorted(missing))}"
        return PictureView(picture.name, Markup(), why)
    if table.name in errors:
        return PictureView(picture.name, Markup(), errors[table.name])
    if not known[table.name]:
        return None
    # Whatever comes of a picture must cost this picture alone.
    try:
        return PictureView(picture.name, html(picture, known), "", picture.others | {picture.table})
    except Exception as error:
        if (rest := _without_what_fails(bundle, picture, known, html)) is not None:
            return rest
        why, fault = _why(bundle, picture, known, error)
        return PictureView(picture.name, Markup(), why, fault=fault)


def _without_what_fails(
    bundle: Bundle, picture: Picture, known: Tables, html: Draw
) -> PictureView | None:
    """A picture that failed, without what fails by itself; None where that leaves nothing."""
    parts: dict[Any, list[Row]] = {}
    for row in known[picture.table] if picture.apart else ():
        parts.setdefault(row[picture.apart], []).append(row)
    if not 1 < len(parts) <= MAX_APART:
        return None
    whole, said, faults = [], [], []
    for name, rows in parts.items():
        alone = known | {picture.table: rows}
        try:
            html(picture, alone)
            whole += rows
        except Exception as error:
            why, fault = _why(bundle, picture, alone, error)
            said.append(f"{picture.apart} {name}: {why}")
            faults.append(fault)
    if not whole or not said:
        return None
    try:
        drawn = html(picture, known | {picture.table: whole})
    except Exception:  # which is said of the whole
        return None
    fault = next(filter(None, faults), None)
    shown = picture.others | {picture.table}
    return PictureView(picture.name, drawn, "; ".join(said), shown, fault)


def _why(
    bundle: Bundle, picture: Picture, known: Tables, error: Exception
) -> tuple[str, Fault | None]:
    names = sorted(picture.tables & known.keys(), key=lambda name: (name != picture.table, name))
    return why_missing(
        picture.name, error, picture.table, ((bundle, name, known[name]) for name in names)
    )
