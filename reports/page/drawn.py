# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle's pictures as the HTML that the page has.

Cannot know: the number of a download in the page, which is given where the picture is placed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jinja2 import TemplateError
from markupsafe import Markup

from mmscope.drgn.tables import display
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import Table
from mmscope.reports.drawing.downloads import Download, Downloads
from mmscope.reports.page.environment import environment_of
from mmscope.reports.page.picture_rows import picture_rows
from mmscope.reports.page.sentences import uptime_of
from mmscope.reports.pictures.picture import Picture, Tables
from mmscope.reports.pictures.registry import PICTURES

# What a picture of a stranger's table may fail with.
EXPECTED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TemplateError)


@dataclass(frozen=True, slots=True)
class PictureView:
    """A picture, or why it is missing."""

    name: str
    html: Markup
    error: str
    tables: frozenset[str] = frozenset()  # that it shows


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
        return [
            PictureView(view.name, offers.taken(view.html, offered), view.error, view.tables)
            for view in views
        ]


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

    def html(picture: Picture) -> Markup:
        template = environment.get_template(f"picture_{picture.name}.html")
        return Markup(template.render(data=picture.draw(known, page_size)))  # escapes everything

    found: dict[str, list[PictureView]] = {}
    for picture in PICTURES:
        table = bundle.tables.get(picture.table)
        if table and (view := _view(picture, table, known, errors, html)):
            found.setdefault(table.name, []).append(view)
    return Drawn({table: (views, offers.offered) for table, views in found.items()})


def _view(
    picture: Picture,
    table: Table,
    known: Tables,
    errors: dict[str, str],
    html: Callable[[Picture], Markup],
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
    # Any value of a stranger's table may be missing or absurd, where a drawing does not expect
    # it. Whatever comes of that must cost this picture alone.
    try:
        return PictureView(picture.name, html(picture), "", picture.others | {picture.table})
    except EXPECTED as error:
        why = f"table {table.name} is damaged: {error}"
        return PictureView(picture.name, Markup(), why)
