# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The one environment that every value of a page goes through: it makes control characters visible
and escapes; and the policy that forbids whatever might slip through.

Cannot know: what a browser does that ignores the policy.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from mmscope import FOLDER
from mmscope.drgn.free.watermarks import thp_order
from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.drawing import charts
from mmscope.reports.drawing.cells import heading, is_name, unit_shown
from mmscope.reports.page.glossary import Glossary
from mmscope.reports.page.sentences import section_title, with_commands
from mmscope.reports.pictures import free_heatmap, pageblock_map
from mmscope.reports.pictures.registry import PICTURES

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


class CompiledTemplates(BytecodeCache):
    """Compiled templates, for all environments of a process: a page has several."""

    def __init__(self) -> None:
        self._codes: dict[str, CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get(bucket.key)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.code


COMPILED = CompiledTemplates()


def environment_of(page_size: int | None, uptime: str) -> Environment:
    """The one place where values become HTML."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=_shown,
        bytecode_cache=COMPILED,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # what filters make of a constant is a page's own
    )
    environment.filters.update(
        count=display.count,
        size=display.size,
        signed_size=display.signed_size,
        percent=display.percent,
        prose=display.prose,
        commands=with_commands,
        heading=heading,
        unit_shown=unit_shown,
        pages=lambda value: display.pages(value, page_size),
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        terms=lambda text: text,
        compact=lambda value: display.compact(value, page_size),
    )
    environment.globals.update(
        page_size=page_size,
        uptime=uptime,
        glossary=Glossary(),
        section_title=section_title,
        plural=display.plural,
        share=display.share,
        short_size=display.short_size,
        is_name=is_name,
        when_empty={name: table.empty for name, table in TABLES.items() if table.empty},
        max_rows=MAX_ROWS,
        columns=pageblock_map.COLUMNS,
        look=pageblock_map.look,
        level_starts=free_heatmap.level_starts(page_size),
        thp_order=thp_order(page_size),
        max_lines=charts.MAX_LINES,
        styles=Markup("\n".join(picture.style for picture in PICTURES if picture.style)),
        max_text_columns=MAX_TEXT_COLUMNS,
        text_classes=text_classes,
    )
    return environment


def _shown(value: Any) -> Any:
    """What every expression of every template goes through before it is escaped."""
    return visible(value) if type(value) is str else value
