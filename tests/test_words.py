# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Words that the code does without, in docstrings, comments, messages and the text of options, and
the docs in their own words.

The text of findings and triggers (TOML) has tests of its own.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from why_inputs import BEGIN, END

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    path
    for top in ("drgn", "perf", "reports", "templates")
    for path in sorted((ROOT / top).rglob("*"))
    if path.suffix in {".py", ".html", ".js", ".css", ".sql"}
]
# What is plainer stands beside it. The list may grow.
AVOIDED = {
    "in vain": "failed, not found",
    "nobody": "no task, no process, not",
    "somebody": "a task, a process, another, or the passive",
    "whoever": "the one who, those who, or its name",
    "whosoever": "of any owner",
    r"(?:is|are) told(?! apart| from)": "is notified, is known",
    "anew": "again, re-",
}
# Words of tables, which bundles of released versions have.
VALUES = ("nobody could be killed", "swapped in, of nobody yet")

# No docstring begins so, but that of a table's row, whose first sentence is in docs/tables.md.
NO_NOUNS = {"What", "Whether", "How", "Of", "Those", "Whose", "Who", "Which", "Where", "When"}


def avoided(text: str) -> Iterator[tuple[int, str]]:
    """Each such word, with its line; a line's end may be within it."""
    for value in VALUES:
        text = text.replace(f'"{value}"', '""')
    pattern = r"\b(?:" + "|".join(AVOIDED).replace(" ", r"(?:\s|\#|//)+") + r")\b"
    for found in re.finditer(pattern, text, re.IGNORECASE):
        yield text.count("\n", 0, found.start()) + 1, found[0]


def first_words(tree: ast.Module) -> Iterator[str]:
    """The first word of each docstring, but for those of a table's rows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = map(ast.unparse, getattr(node, "decorator_list", []))
            rows = any(re.match(r"table_row$|table\(|recorded\(", each) for each in decorators)
            if (text := ast.get_docstring(node)) and not rows:
                yield text.split()[0]


@pytest.mark.parametrize("top", ["drgn", "perf", "reports"])
def test_docstrings_begin_with_a_noun_or_an_imperative(top: str) -> None:
    files = [path for path in FILES if path.is_relative_to(ROOT / top) and path.suffix == ".py"]
    assert files
    for path in files:
        assert not NO_NOUNS.intersection(first_words(ast.parse(path.read_text()))), path


def test_which_docstrings_are_seen() -> None:
    text = """'''What is here.'''
@table_row
class Row:
    '''What a row is.'''
@table("rows", "Rows")
class Other:
    '''What another is.'''
class Other:
    '''How it is.'''
    def name(self) -> str:
        '''Its name.'''
"""
    assert list(first_words(ast.parse(text))) == ["What", "How", "Its"]


@pytest.mark.parametrize("top", ["drgn", "perf", "reports", "templates"])
def test_has_none_of_the_words(top: str) -> None:
    files = [path for path in FILES if path.is_relative_to(ROOT / top)]
    assert files
    found = [f"{path}:{line}: {word}" for path in files for line, word in avoided(path.read_text())]
    assert not found, f"better is {AVOIDED}"


# What a finding or a trigger says is read by everyone: these besides, of which some stand in code.
SAID = {
    "in vain": "failed",
    "measured to take": "for its overhead see …",
    "out of proportion": "unusually large",
    "just gone": "unaccounted for",
    "whose end": "that exits",
    "could be asked": "could be checked",
    "agree to the page": "match exactly",
    "nothing that is marked": "no events",
    "put out": "clear",
    "point at a moment": "hover",
}


def test_what_users_read_has_no_tics() -> None:
    told = [*(ROOT / "reports").rglob("*.toml"), *(ROOT / "templates").glob("*.*")]
    told += (ROOT / "drgn/log").glob("*.toml")
    pattern = r"\b(?:" + "|".join(SAID).replace(" ", r"\s+") + r")\b"
    found = []
    for path in told:
        # Comments are for those who change it.
        text = re.sub(r"(?m)^\s*(?:#|//).*$", "", path.read_text())
        found += [f"{path.name}: {m[0]}" for m in re.finditer(pattern, text, re.IGNORECASE)]
    assert len(told) > 100 and not found, f"better is {SAID}"


def test_docs_have_none_of_the_words() -> None:
    # docs/tables.md is made of declarations, and what a command printed is the command's.
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        f"{page.name}: {word}"
        for page in pages
        if page.name != "tables.md"
        for _, word in avoided(re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    ]
    assert len(pages) > 10 and not found, f"better is {AVOIDED}"


def words_of(text: str) -> list[str]:
    """Words, without the rules and bars of tables."""
    return [word for word in text.split() if re.search(r"\w", word)]


def test_docs_are_short_enough_to_be_read() -> None:
    # What commands print included, but for what `make inputs` writes of some fifty inputs: no one
    # wrote it, and who looks for theirs reads ten lines of it. Its captions count.
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = {page.name: page.read_text() for page in pages}
    before, rest = texts["inputs.md"].split(BEGIN)
    made, after = rest.split(END)
    texts["inputs.md"] = before + re.sub(r"(?ms)^```.*?^```$", "", made) + after
    assert BEGIN not in "".join(texts.values())
    assert len(words_of("\n".join(texts.values()))) <= 30_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# Looked up in\n# vain.", ["in\n# vain"]),
        ('"""Whoever reads it."""', ["Whoever"]),
        ("They are told apart.", []),
        ("The user is told.", ["is told"]),
        ('OUTCOME = "nobody could be killed"', []),
        ('print("nobody could be killed today")', ["nobody"]),
    ],
)
def test_which_words_are_seen(text: str, words: list[str]) -> None:
    assert [word for _, word in avoided(text)] == words
