# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Lines and numbers of the kernel's text files (/proc/zoneinfo and its like).

A text may have been cut short, pasted together or edited on its way here. The kernel ends every
line, names every row and prints a row only as a whole, so that a reader notices most of it and
refuses: half a table would be taken for the whole one.
"""

# Rows are 64-bit signed numbers wherever they go. The kernel prints a negative number that it takes
# for unsigned as one beyond.
MAX_COUNT = (1 << 63) - 1


def whole_lines(text: str, name: str) -> list[str]:
    """
    The lines of a text.

    :param name: of the file, for the words.
    :raises ValueError: it is empty, or its last line is not ended.
    """
    if not text.strip():
        raise ValueError(f"{name} is empty")
    if not text.endswith("\n"):
        raise ValueError(f"{name} is cut short: its last line has no end")
    return text[:-1].split("\n")


def printed_number(text: str, name: str) -> int:
    """
    A number as the kernel prints one.

    :raises ValueError: it is not a count.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > MAX_COUNT:
        raise ValueError(f"{name} is damaged: {text[:40]!r} is not a count")
    return int(text)


def signed(number: int) -> int:
    """A count that the kernel keeps as unsigned, of 64 bits, and that may have fallen below 0."""
    return number - (1 << 64) if number > MAX_COUNT else number


def wrapped_number(text: str, name: str) -> int:
    """
    A number that the kernel prints as unsigned, and that may have fallen below 0, as a zone's pages
    after a balloon that counted wrong: so it costs itself, and nothing beside it.

    :raises ValueError: it is not a count.
    """
    if text.isascii() and len(text) <= 20 and MAX_COUNT < int(text) < 1 << 64:
        return signed(int(text))
    return printed_number(text, name)


def row_number(value: int, name: str) -> int:
    """
    A number that was computed from printed ones, if a row can hold it.

    :raises ValueError: it is beyond any machine, so one of those that it comes from is damaged.
    """
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{name} is damaged: its numbers give {value:,}, beyond any machine")
    return value
