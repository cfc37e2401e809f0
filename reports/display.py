# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How values look in the report: numbers, sizes, shares, and text that may be hostile.

Everything here is a pure function to plain text; escaping for HTML is the templates' work. Cannot
know what a number means: its unit comes with its column (``rows.column``).
"""

import math
import re
import unicodedata

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# One cell of a hostile table must not be the whole report.
MAX_TEXT = 4000


def visible(text: str) -> str:
    """
    Text with everything that could hide or reorder it made visible.

    Control bytes, invisible and undefined characters, such as the right-to-left override or a lone
    surrogate, are written out as ``\\x1b`` or ``\\u202e``: legible in any font, as on the terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    # Control, format, surrogate, private, unassigned; line and paragraph separators.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return ascii(char)[1:-1]
    return char


def cut(text: str, length: int = MAX_TEXT) -> str:
    """At most *length* characters of a text, with words for what is missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]}… ({len(text) - length:,} more characters)"


def prose(text: str) -> str:
    """Words of a finding or a message on one line: a line break in them must not fake another."""
    return re.sub(r"\s*\n\s*", " ", text.strip())


def count(value: int | float) -> str:
    """A number with thousands separators; a fraction with at most three decimals."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    text = f"{value:,.3f}".rstrip("0").rstrip(".")
    return text if text not in ("0", "-0") or value == 0 else f"{value:.3g}"


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


def share(part: int, whole: int) -> str:
    """
    A share in per cent, never rounded to all or nothing unless it is: ``<0.1 %``, ``>99.9 %``.

    Empty when there is no denominator: no share is not zero.
    """
    if whole <= 0 or part < 0:
        return ""
    if part in (0, whole):
        return "100 %" if part else "0 %"
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "<0.1 %"
    if percent >= 99.95 and part < whole:
        return ">99.9 %"
    return f"{percent:.1f} %" if percent < 1000 else f"{percent:,.0f} %"


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
