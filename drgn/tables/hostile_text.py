# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Text from the kernel is anybody's: comm, cmdline, file names, cgroup names.

What could hide, reorder or command is written out, on the terminal and in a report alike.
"""

import unicodedata
from typing import IO

# One text of a stranger must not be all that is shown.
MAX_TEXT = 4000


def cut(text: str, length: int = MAX_TEXT) -> str:
    """At most *length* characters of a text, with words for what is missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]}… ({len(text) - length:,} more characters)"


# Control, format, surrogate, private, unassigned; line and paragraph separators.
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def visible(text: str) -> str:
    r"""
    Text with every control, invisible or undefined character written out.

    An escape byte becomes ``\\x1b``, a right-to-left override ``\\u202e``: legible in any font, and
    no command to a terminal.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in INVISIBLE else char for char in text
    )


def echo(
    *words: object,
    sep: str = " ",
    begin: str = "",
    end: str = "\n",
    file: IO[str] | None = None,
    flush: bool = False,
) -> None:
    """
    Print as ``print()`` does, every word through :func:`visible`: the one way out for text.

    :param begin, sep, end: before, between and after the words, as they are; of several lines,
        each is a word.
    """
    text = sep.join(visible(str(word)) for word in words)
    print(f"{begin}{text}", end=end, file=file, flush=flush)
