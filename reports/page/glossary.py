# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The report's glossary: the words of ``glossary.toml``, marked where they first stand in a text.

A mark is a link to the word's place in the list at the end of the page: it is reached by keyboard,
works without script, and shows what the word means while it has the mouse or the focus. On paper
the list is all there is.
"""

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from mmscope.drgn.tables.hostile_text import visible

FILE = Path(__file__).resolve().parent / "glossary.toml"
# Where no other link may stand, or nothing is said.
SILENT = ("a", "button", "summary", "code")
TAG = re.compile(r"(<[^>]*>)")


@dataclass(frozen=True, slots=True)
class Term:
    """A word of the field."""

    name: str
    says: str
    words: str = ""
    link: str = ""

    @property
    def anchor(self) -> str:
        """Its id in the page."""
        return "term-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower())


@functools.cache
def load(path: Path = FILE) -> list[Term]:
    """
    All terms, by name.

    :raises ValueError: the file is not as it should be.
    """
    try:
        terms = [Term(**term) for term in tomllib.loads(path.read_text(encoding="utf-8"))["term"]]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    return sorted(terms, key=lambda term: term.name.lower())


class Glossary:
    """The glossary of one page, which knows what was used in it."""

    def __init__(self) -> None:
        self._terms = load()
        self._used: set[str] = set()
        # All that may fit at one place, the longest patterns first.
        by_length = sorted(enumerate(self._terms), key=lambda each: -len(each[1].name))
        words = "|".join(f"(?P<t{n}>{t.words or re.escape(t.name)})" for n, t in by_length)
        self._pattern = re.compile(rf"(?<![\w/.-])(?:{words})(?![\w/(]|\.\w)")

    def _term(self, match: re.Match[str]) -> Term:
        return self._terms[int((match.lastgroup or "t0")[1:])]

    def used(self) -> list[Term]:
        """The terms that were marked so far."""
        return [term for term in self._terms if term.name in self._used]

    def mark(self, text: str) -> Markup:
        """
        A text with its first use of each term marked.

        :param text: what is no Markup is plain text, and is escaped here.
        """
        html = text if isinstance(text, Markup) else escape(visible(text))
        seen: set[str] = set()

        def marked(match: re.Match[str]) -> str:
            term = self._term(match)
            if term.name in seen:
                return match[0]
            seen.add(term.name)
            self._used.add(term.name)
            return (
                f'<a class="term" href="#{term.anchor}" data-says="{escape(term.says)}">'
                f"{match[0]}</a>"
            )

        parts, silent = [], 0
        for part in TAG.split(str(html)):
            if part.startswith("<"):
                name = re.match(r"</?([a-z0-9]+)", part)
                if name and name[1] in SILENT:
                    silent += -1 if part.startswith("</") else 1
                parts.append(part)
            else:
                parts.append(part if silent else self._pattern.sub(marked, part))
        return Markup("".join(parts))

    def explain(self, text: str) -> str:
        """Meanings of the terms of a text, as plain text for a tooltip."""
        found = dict.fromkeys(map(self._term, self._pattern.finditer(text)))
        return " ".join(f"{term.name}: {term.says}" for term in found)
