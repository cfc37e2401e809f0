# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Values as people read them: numbers, sizes, shares and times, in the unit that suits each.

Everything here is a pure function to plain text; escaping for HTML is the templates' work. Cannot
know what a number means: its unit comes with its column (``rows.column``).
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence

# What a table is printed as.
FORMATS = ("table", "csv", "json")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


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


def signed_size(value: int) -> str:
    """A difference in bytes: ``+4 KiB``, ``-1.465 GiB``."""
    return f"{'+' if value > 0 else ''}{size(value)}"


def duration(seconds: float) -> str:
    """A time in its two largest units: ``3 d 4 h``, ``17 s``."""
    if not math.isfinite(seconds) or seconds < 0:
        return ""
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    parts = [(days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number:,} {unit}" for number, unit in parts[:2])


def time_text(seconds: float) -> str:
    """A time with three digits, or all before the point: ``23 µs``, ``1.22 ms``, ``1,234 s``."""
    if not seconds or not math.isfinite(seconds):
        return f"{seconds:g} s"
    # What would be rounded to 1000 of a unit is 1 of the next.
    scale, unit = next(
        (each for each in TIME_UNITS if abs(seconds) >= 0.9995 * each[0]), TIME_UNITS[-1]
    )
    value = seconds / scale
    return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:,.0f} {unit}"


def size_name(value: int) -> str:
    """The size that something is known by, exact: ``2 MiB``, ``1 GiB``, ``1,000 B``."""
    power = max((at for at in range(len(UNITS)) if value and not value % (1 << 10 * at)), default=0)
    return f"{value >> 10 * power:,} {UNITS[power]}"


def bar_percent(part: int, whole: int) -> float:
    """*part* in per cent of a bar of *whole*, kept inside the bar, to two decimals."""
    return round(min(max(100 * part / whole, 0.0), 100.0), 2) if whole > 0 else 0.0


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table without rules: columns to the right, the last one, of text, to the left."""
    lines = [heads, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads) - 1)]
    for *numbers, text in lines:
        cells = [number.rjust(width) for number, width in zip(numbers, widths, strict=True)]
        yield "  ".join([*cells, text])


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


def if_any(number: int, words: str, *thing: str) -> list[str]:
    """
    Say something of so many things; nothing of none.

    :param words: with ``{}`` for the number.
    :param thing: what one is called, and several (:func:`plural`); none: *words* say it.
    """
    return [words.format(plural(number, *thing) if thing else f"{number:,}")] if number else []


def pages(value: int, page_size: int | None) -> str:
    """Pages as bytes; as a number of pages where the page size is not known."""
    return plural(value, "page") if page_size is None else size(value * page_size)


def compact(value: int, page_size: int | None) -> str:
    """Pages as bytes where there is little room: ``16.02M``; ``12p`` without a page size."""
    if page_size is None:
        return f"{value:,}p"
    return size(value * page_size).replace(" ", "").removesuffix("iB")


def plain_int(value: object) -> int | None:
    """An integer that a bundle's target may hold, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Text breaks at blanks, and behind these, as a path, a stack or a name of several words does.
# A number is whole.
WORD = re.compile(
    r"[+-]?\d+(?:[.,]\d+)+[;/_,.:|=-]*|[^\s;/_,.:|=-]*[;/_,.:|=-]+|[^\s;/_,.:|=-]+|\s+"
)


def folded(text: str, width: int) -> str:
    """
    A text as lines that are no wider; words are whole. One that is itself wider breaks behind its
    marks, such as the slashes of a path.
    """
    lines = [""]
    words = (
        [word] if len(word) <= width else WORD.findall(word)
        for word in re.findall(r"\S+|\s+", text)
    )
    for word in itertools.chain.from_iterable(words):
        if len(lines[-1]) + len(word.rstrip()) > width and lines[-1]:
            lines.append("")
        if not lines[-1]:
            word = word.lstrip()
        while len(word) > width:
            lines[-1], word = word[:width], word[width:]
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)
