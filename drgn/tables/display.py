# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Values as the report shows them: numbers, sizes, shares, and text that may be hostile.

Everything here is a pure function to plain text; escaping for HTML is the templates' work. Cannot
know what a number means: its unit comes with its column (``rows.column``).
"""

import math
import re

from mmscope.drgn.tables.amounts import UNITS as UNITS
from mmscope.drgn.tables.amounts import duration as duration
from mmscope.drgn.tables.amounts import percent as percent
from mmscope.drgn.tables.amounts import share as share
from mmscope.drgn.tables.amounts import short_size as short_size
from mmscope.drgn.tables.amounts import signed_size as signed_size
from mmscope.drgn.tables.amounts import size as size
from mmscope.drgn.tables.amounts import time_text as time_text
from mmscope.drgn.tables.hostile_text import cut as cut

# What a table is printed as.
FORMATS = ("table", "csv", "json")


def prose(text: str) -> str:
    """Words of a finding or a message on one line: a line break in them must not fake another."""
    return re.sub(r"\s*\n\s*", " ", text.strip())


def count(value: int | float) -> str:
    """A number with thousands separators; a fraction with three decimals, or all it needs."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    text = f"{value:,.3f}".rstrip("0").rstrip(".")
    if value == 0 or text not in ("0", "-0"):
        return text
    # In one column with others, 0.000023 is read more easily than 2.3e-05.
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}".rstrip("0") if decimals <= 12 else f"{value:.3g}"


def plural(value: int, one: str, many: str = "") -> str:
    """``1 pageblock``, ``2 pageblocks``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def pages(value: int, page_size: int | None) -> str:
    """Pages as bytes; as a number of pages where the page size is not known."""
    return f"{value:,} pages" if page_size is None else size(value * page_size)


def compact(value: int, page_size: int | None) -> str:
    """Pages as bytes where there is little room: ``16.02M``; ``12p`` without a page size."""
    if page_size is None:
        return f"{value:,}p"
    return size(value * page_size).replace(" ", "").removesuffix("iB")


def plain_int(value: object) -> int | None:
    """An integer that a bundle's target may hold, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
