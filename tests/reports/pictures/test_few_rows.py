# SPDX-License-Identifier: LGPL-2.1-or-later
"""
No picture takes rows for granted: none, one and two of every table that it looks at, in all
combinations or, where these are many, with each pair of tables combined.
"""

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import report_bundle as made
from declared_rows import (
    TABLES_OF_BUNDLES,
    Rows,
    Stacks,
    bare,
    combinations,
    least,
    looked_at,
    plain,
    real_rows,
    row_of,
    write,
)
from page_tree import NOTHING

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.compare.comparison import compare
from mmscope.reports.compare.difference_pictures import DIFFERENCES
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.drawn import PictureView, draw
from mmscope.reports.page.environment import context_of
from mmscope.reports.page.report import render
from mmscope.reports.page.views import differences
from mmscope.reports.pictures.registry import PICTURES

# How many rows a table has, and which; stacks likewise.
Levels = Sequence[Mapping[str, Rows]]
StacksLevels = Sequence[Mapping[str, Stacks]]
Drawn = dict[str, PictureView]
# Of a page; what is to be downloaded has no place here.
CONTEXT = context_of(4096) | {"offer": lambda download: download.name}

REAL = real_rows()
REAL_LEVELS: Levels = [{name: rows[:n] for name, rows in REAL.items()} for n in range(3)]
REAL_STACKS: StacksLevels = [
    {name: stacks[:n] for name, stacks in made.PROFILED.items()} for n in range(3)
]
# Nothing, what may be unknown, the least that may be, and two rows.
KINDS = ([], [bare], [least], [plain, bare])
MADE_LEVELS: Levels = [
    {name: [row_of(name, value, at) for at, value in enumerate(kind)] for name in TABLES_OF_BUNDLES}
    for kind in KINDS
]
FILES = [plain(c, at) for c in columns(TABLES["profiles"].row) if c.name == "file" for at in (0, 1)]
MADE_STACKS: StacksLevels = [
    {name: [(f"task;f_[k];g{n}_[k]", n + 1) for n in range(len(kind))] for name in FILES}
    for kind in KINDS
]


def drawn(tmp_path: Path, levels: Levels, stacks: StacksLevels) -> Iterator[tuple[Bundle, Drawn]]:
    """Bundles of all combinations, each with its pictures."""
    groups = [looked_at(picture, stacks[0]) for picture in PICTURES]
    names = {name for group in groups for name in group} - stacks[0].keys()
    whole = [
        write(tmp_path / str(n), {name: level[name] for name in names}, stacks[n])
        for n, level in enumerate(levels)
    ]
    files = {
        item.name: item.path.name for item in (*whole[0].tables.values(), *whole[0].folded.values())
    }
    now = tmp_path / "now"
    shutil.copytree(whole[0].path, now)
    for chosen in combinations(groups, len(levels)):
        for name, level in chosen.items():
            shutil.copyfile(whole[level].path / files[name], now / files[name])
        bundle = Bundle(now)
        views = itertools.chain(*draw(bundle, CONTEXT).values())
        yield bundle, {view.name: view for view in views}


def test_each_picture_is_drawn_or_its_table_is_empty(tmp_path: Path) -> None:
    seen = set()
    for bundle, views in drawn(tmp_path, REAL_LEVELS, REAL_STACKS):
        for picture in PICTURES:
            shown = picture.name in views
            # Of a table that is held in part, it may be that no row is wanted.
            wanted = shown or picture.table not in picture.parts
            assert shown == (wanted and bool(bundle.count(picture.table))), picture.name
        for view in views.values():
            assert view.html and not view.error, (view.name, view.error)
            seen.add(view.name)
    assert seen >= {picture.name for picture in PICTURES if picture.table not in picture.parts}


def test_no_value_that_a_declaration_allows_is_a_fault(tmp_path: Path) -> None:
    """A picture may say that rows do not go together, as runs that overlap."""
    for _, views in drawn(tmp_path, MADE_LEVELS, MADE_STACKS):
        for view in views.values():
            assert view.fault is None, (view.name, view.error)
            assert view.html or view.error.startswith("table ")


EVERY = [(REAL_LEVELS, REAL_STACKS), (MADE_LEVELS, MADE_STACKS)]


@pytest.mark.parametrize(("levels", "stacks"), EVERY, ids=["real", "declared"])
def test_so_are_differences(tmp_path: Path, levels: Levels, stacks: StacksLevels) -> None:
    names = {table for _, table, *_ in DIFFERENCES}
    bundles = [
        write(tmp_path / str(number), {name: level[name] for name in names}, {})
        for number, level in enumerate(levels)
    ]
    seen = set()
    for before, after in itertools.product(bundles, repeat=2):
        comparison = compare(before, after, (NOTHING, NOTHING), draw=True)
        for view in differences(comparison, context_of(4096)):
            assert view.fault is None, (view.name, view.error)
            assert view.html or view.error.startswith("table ")
            seen.add(view.name)
    assert seen


# Of no row at all both are the same.
ROWS = [(REAL_LEVELS[1:], REAL_STACKS[1:]), (MADE_LEVELS, MADE_STACKS)]


@pytest.mark.parametrize(("levels", "stacks"), ROWS, ids=["real", "declared"])
def test_the_page_is_of_few_rows_too(tmp_path: Path, levels: Levels, stacks: StacksLevels) -> None:
    """With findings, and what changed against another: each number of rows against the next."""
    bundles = [
        write(tmp_path / str(number), level, stacks[number]) for number, level in enumerate(levels)
    ]
    verdicts = [evaluate(bundle) for bundle in bundles]
    for after, bundle in enumerate(bundles):
        before = after - 1
        pair = verdicts[before], verdicts[after]
        comparison = compare(bundles[before], bundle, pair, draw=True)
        faults: list[Fault] = []
        page = render(bundle, verdicts[after], comparison, faults=faults)
        assert not faults
        assert 'id="comparison"' in page and "fault of mmscope" not in page
