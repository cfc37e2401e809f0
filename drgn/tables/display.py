# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How values look in the report: numbers, sizes, shares, and text that may be hostile.

Everything here is a pure function to plain text; escaping for HTML is the templates' work. Cannot
know what a number means: its unit comes with its column (``rows.column``).
"""

import math
import re

from mmscope.drgn.tables.hostile_text import cut as cut

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


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


def size(value: int) -> str:
    """Bytes in the unit that suits them, with four significant digits: ``4 KiB``, ``1.465 GiB``."""
    if value < 0:
        return f"-{size(-value)}"
    power = min(max(0, (value.bit_length() - 1) // 10), len(UNITS) - 1)
    scaled = value / (1 << 10 * power)
    if round(scaled) >= 1024 and power + 1 < len(UNITS):
        power, scaled = power + 1, 1.0
    number = f"{scaled:.4g}" if scaled < 9999.5 else f"{scaled:,.0f}"
    return f"{number} {UNITS[power]}"


def short_size(value: int) -> str:
    """A power of two as the kernel's people write it: ``4K``, ``2M``."""
    power = max(0, (value.bit_length() - 1) // 10)
    power = min(power, len(UNITS) - 1)
    return f"{value >> 10 * power}{UNITS[power][0]}"


def pages(value: int, page_size: int | None) -> str:
    """Pages as bytes; as a number of pages where the page size is not known."""
    return f"{value:,} pages" if page_size is None else size(value * page_size)


def compact(value: int, page_size: int | None) -> str:
    """Pages as bytes where there is little room: ``16.02M``; ``12p`` without a page size."""
    if page_size is None:
        return f"{value:,}p"
    return size(value * page_size).replace(" ", "").removesuffix("iB")


def percent(share: float) -> str:
    """
    A share of 1 in per cent, never rounded to all or nothing unless it is: ``<0.1 %``, ``>99.9 %``.
    """
    if share in (0, 1):
        return "100 %" if share else "0 %"
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %" if share < 10 else f"{100 * share:,.0f} %"


def share(part: int, whole: int) -> str:
    """A part in per cent of the whole; empty without a denominator: no share is not zero."""
    return percent(part / whole) if whole > 0 and part >= 0 else ""


def duration(seconds: float) -> str:
    """A time in its two largest units: ``3 d 4 h``, ``17 s``."""
    if not math.isfinite(seconds) or seconds < 0:
        return ""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    parts = [(days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number:,} {unit}" for number, unit in parts[:2])


def plain_int(value: object) -> int | None:
    """An integer that a bundle's target may hold, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
