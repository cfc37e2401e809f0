# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The one environment that every value of a page goes through: it makes control characters visible
and escapes; and the policy that forbids whatever might slip through.

Cannot know: what a browser does that ignores the policy.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context

from mmscope import FOLDER
from mmscope.drgn.tables import display
from mmscope.drgn.tables.display import bar_percent
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.drawing import charts, class_looks
from mmscope.reports.drawing.cells import heading, is_name, unit_shown
from mmscope.reports.page.glossary import Glossary
from mmscope.reports.page.sentences import section_title, with_commands
from mmscope.reports.pictures import free_heatmap, pageblock_map

TEMPLATES = FOLDER / "templates"
# A browser lays so much out at once; more is not read in a report.
MAX_ROWS = 500
# For so many columns report.css has a rule; text beyond them is set like numbers.
MAX_TEXT_COLUMNS = 24


def squeeze(text: str) -> str:
    """Without the empty lines that template statements leave, so that hashes fit what is sent."""
    return re.sub(r"\n\s*\n+", "\n", text).strip()


def text_classes(texts: Iterable[bool]) -> str:
    """The classes of a table that say which of its columns are text; the others are numbers."""
    numbers = (number for number, is_text in enumerate(texts, 1) if is_text)
    return " ".join(f"t{number}" for number in numbers if number <= MAX_TEXT_COLUMNS)


def policy_of(style: str, script: str) -> str:
    """The Content-Security-Policy: this style, this script, no request, no form, no frame."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@functools.cache
def environment() -> Environment:
    """The one place where values become HTML; those that belong to a page are in its context."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=_shown,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=display.count,
        size=display.size,
        signed_size=display.signed_size,
        percent=_whole(display.percent),
        prose=_whole(display.prose),
        commands=with_commands,
        label=class_looks.label,
        heading=heading,
        unit_shown=unit_shown,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        pages=pass_context(lambda page, value: display.pages(value, page["page_size"])),
        compact=pass_context(lambda page, value: display.compact(value, page["page_size"])),
        terms=pass_context(lambda page, text: page["glossary"].mark(text)),
    )
    environment.globals.update(
        section_title=section_title,
        plural=display.plural,
        share=_whole(display.share),
        short_size=display.short_size,
        is_name=is_name,
        when_empty={name: table.empty for name, table in TABLES.items() if table.empty},
        max_rows=MAX_ROWS,
        columns=pageblock_map.COLUMNS,
        look=pageblock_map.look,
        class_look=class_looks.look,
        bar_percent=bar_percent,
        heat_level=free_heatmap.level,
        max_lines=charts.MAX_LINES,
        max_text_columns=MAX_TEXT_COLUMNS,
        text_classes=text_classes,
    )
    return environment


def context_of(
    page_size: int | None, uptime: str = "", thp_order: int | None = None
) -> dict[str, Any]:
    """Values that all templates of a page have, beside their own."""
    return {
        "page_size": page_size,
        "uptime": uptime,
        "glossary": Glossary(),
        "level_starts": free_heatmap.level_starts(page_size),
        "thp_order": thp_order,
    }


def _whole(words: Callable[..., str]) -> Callable[..., str]:
    """The same words, but no line ends between a number and its per cent or seconds."""
    return lambda *given: re.sub(r"(?<=\d) (?=%|s\b)", "\N{NO-BREAK SPACE}", words(*given))


def _shown(value: Any) -> Any:
    """Make control characters visible in every expression, before it is escaped."""
    return visible(value) if type(value) is str else value
