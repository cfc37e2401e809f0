# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever a command prints fits a terminal of 80 and of 120 columns, and no word is cut."""

import contextlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator

import made_lake
import pytest
import report_bundle as made

from mmscope.drgn.tables.display import WORD
from mmscope.drgn.tables.terminal import WHOLE_WORD, print_rows
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import DECLARED, main

# What a terminal alone has: of a table that lacks columns.
ON_A_TERMINAL = {*["No", "room", "for", "--format", "csv", "and", "json", "have", "all."], "none"}


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("screens")
    made.write_bundle(folder / "other", made.tables(), target=made.TARGET | {"hostname": "other"})
    case = made.write_bundle(folder / "case", made.tables())
    made_lake.lake_of(folder / "lake", folder / "case", folder / "other")
    return case


def fits(shown: str, width: int, whole: str, also: Iterable[str] = ()) -> None:
    """
    No line is wider, and each word is one of the whole text; of one that is too long for a column,
    its parts between slashes, semicolons, underscores.
    """
    words = {*whole.split(), *also, *ON_A_TERMINAL}
    parts = {part for word in words if len(word) > WHOLE_WORD for part in WORD.findall(word)}
    for line in shown.splitlines():
        assert len(line) <= width, line
        cut = [
            word
            for word in line.split()
            if {word, word.removesuffix(":")}.isdisjoint(words)
            and not parts.issuperset(WORD.findall(word))
            and word.strip("─")
        ]
        assert not cut, line


def parts_of(name: str) -> Iterator[str]:
    """A column's name, and what a line of its head may have of it."""
    pieces = WORD.findall(name)
    for first, last in itertools.combinations(range(len(pieces) + 1), 2):
        yield "".join(pieces[first:last])


@pytest.mark.parametrize("width", [80, 120])
def test_each_table_of_a_bundle_fits(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    for name, table in bundle.tables.items():
        rows = [[row[c.name] for c in table.columns] for row in bundle.rows(name)]
        screen, pipe = Screen(), io.StringIO()
        for file in (screen, pipe):
            print_rows(table.columns, rows, title=table.title, file=file)
        # A name breaks at its underscores; a unit may stand beside it.
        heads = {part for c in table.columns for part in parts_of(c.name)}
        units = {word for c in table.columns for word in f"({c.unit})".split()}
        dropped = {f"{c.name}," for c in table.columns}
        fits(screen.getvalue(), width, pipe.getvalue(), heads | units | dropped)


PLAIN = [
    *(f"help {name}" for name in DECLARED),
    *("help", "record --list", "record thp --list"),
]
READING = [
    *("show tables case", "findings case", "findings --all case", "why case"),
    *("compare case -- other", "compare case other -- case other"),
    *("lake findings lake/lake", "lake show lake/lake", "doctor", "doctor --all"),
]


@pytest.mark.parametrize("line", PLAIN)
def test_each_command_fits_without_a_word_that_is_cut(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    whole = said(monkeypatch, line, 10_000)
    for width in (80, 120):
        fits(said(monkeypatch, line, width), width, whole)


@pytest.mark.parametrize("line", READING)
def test_each_command_that_reads_something_fits(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(bundle.path.parent)
    shown = said(monkeypatch, line, 80)
    assert shown
    assert [each for each in shown.splitlines() if len(each) > 80] == []


def said(monkeypatch: pytest.MonkeyPatch, line: str, width: int) -> str:
    """What a command says on a terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    streams = contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen)
    with streams[0], streams[1], contextlib.suppress(SystemExit):
        main(line.split())
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
