# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Why something is not drawn: rows that a picture refuses, in words for the reader; or mmscope failed,
which any other exception says.
"""

import traceback
from dataclasses import dataclass

from mmscope.drgn.tables.hostile_text import cut

MAX_SAID = 200  # characters of an exception's text


class NotDrawn(ValueError):
    """
    These rows are not drawn: they are too many, or do not go together.

    :param table: that they are of; by default the one that the picture belongs to.
    """

    def __init__(self, words: str, table: str = "") -> None:
        super().__init__(words)
        self.table = table


class Damaged(NotDrawn):
    """Rows say what cannot be."""


def number_of(text: object, base: int = 0, table: str = "") -> int:
    """
    The number that a text of a table is.

    :raises Damaged: it is none.
    """
    try:
        return int(str(text), base)
    except ValueError:
        raise Damaged(f"{cut(repr(text), 40)} is not a number", table) from None


@dataclass(frozen=True, slots=True)
class Fault:
    """mmscope failed to draw a picture of sound rows."""

    picture: str
    error: str  # in a line
    trace: str

    @classmethod
    def of(cls, picture: str, error: Exception) -> "Fault":
        text = " ".join(f"{type(error).__name__}: {error}".split())
        trace = "".join(traceback.format_exception(error))
        return cls(picture, cut(text.removesuffix("."), MAX_SAID), trace)

    @property
    def words(self) -> str:
        """For the reader of a page."""
        return (
            f"mmscope could not draw it (a fault of mmscope): {self.error}; "
            "with -v the command shows the traceback"
        )
