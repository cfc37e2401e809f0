# SPDX-License-Identifier: LGPL-2.1-or-later
"""A row a stack, a column a reading: held against the plain way to read each kind of file."""

import csv
import io
import json
import os
import pty
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import page_owner_plain
import pytest
from command_line import ROOT, RUN, run
from page_owner_inputs import (
    Stack,
    make_stacks,
    page_owner_records,
    series,
    show_handles,
    show_stacks,
    show_stacks_handles,
)
from page_tree import by_id, elements, parse, texts
from watched_host import debugfs, watch

from mmscope.drgn.owners.page_owner_rows import PageOwnerTask
from mmscope.drgn.text.stack_text import folded
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.pictures.owner_pictures import MAX_STACKS, levels
from mmscope.reports.rows import owner_matrix

STACKS = make_stacks(60)
SNAPSHOTS = list(series(STACKS, 12))
# As show_stacks has it: less than a threshold is not listed.
LISTED = [[(s, n) for s, n in snapshot if n > 1005] for snapshot in SNAPSHOTS]
Listed = list[tuple[Stack, int]]
FIXED = ["handle", "owner", "module", "stack", "note"]


def write(folder: Path, text: Callable[[Listed], str], snapshots: list[Listed]) -> list[str]:
    """Files with numbers in their names and one change time, in the order of those."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number, snapshot in enumerate(snapshots, 1):
        path = folder / f"show.{number}"
        path.write_text(text(snapshot))
        os.utime(path, (1000, 1000))
        paths.append(str(path))
    return paths


def bundle_of(folder: Path, paths: list[str], *words: object, code: int = 0) -> Path:
    """A bundle of files as a shell's glob orders them."""
    out = folder / "b"
    result = run("page-owner", *sorted(paths), *words, "-o", out)
    assert result.returncode == code, result.stderr
    return out


def shown(bundle: Path, *words: object) -> list[list[str]]:
    result = run("show", "page_owner_matrix", bundle, "--format", "csv", *words)
    assert result.returncode == 0, result.stderr
    return list(csv.reader(io.StringIO(result.stdout)))


def pages_of(rows: list[list[str]]) -> list[tuple[str, list[int]]]:
    """Stack and pages of each row; 0 where it has none, as the plain way has it."""
    assert rows[0][:5] == FIXED
    return sorted((row[3], [int(cell or 0) for cell in row[5:]]) for row in rows[1:])


def plain(printed: str) -> list[tuple[str, list[int]]]:
    """What the plain way printed: a stack, and a line of its pages."""
    found = []
    for part in printed.strip("\n").split("\n\n"):
        *frames, numbers = part.split("\n")
        stack = "".join(f"{frame}\n" for frame in frames)
        found.append((folded(stack.encode()), [int(word) for word in numbers.split()]))
    return sorted(found)


@pytest.mark.parametrize("snapshots", [SNAPSHOTS, LISTED], ids=["all", "above a threshold"])
def test_handles_over_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshots: list[Listed]
) -> None:
    paths = write(tmp_path, show_handles, snapshots)
    resolver = tmp_path / "stacks"
    resolver.write_text(show_stacks_handles(STACKS))
    rows = shown(bundle_of(tmp_path, paths, "--stacks", resolver))
    page_owner_plain.plain_handles(str(resolver), paths)
    assert pages_of(rows) == plain(capsys.readouterr().out)
    assert rows[0][5:] == [f"show.{number}" for number in range(1, 13)]


@pytest.mark.parametrize("snapshots", [SNAPSHOTS, LISTED], ids=["all", "above a threshold"])
def test_stacks_over_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshots: list[Listed]
) -> None:
    paths = write(tmp_path, show_stacks, snapshots)
    rows = shown(bundle_of(tmp_path, paths))
    page_owner_plain.plain_stacks(paths)
    assert pages_of(rows) == plain(capsys.readouterr().out)


def test_whole_page_owner_files_over_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths, expected = [], dict[str, list[int]]()
    for number in range(11):
        path = tmp_path / f"page_owner.{number}"
        path.write_bytes(b"".join(page_owner_records(STACKS, 200 + 20 * number, seed=number)))
        os.utime(path, (1000, 1000))
        paths.append(str(path))
        page_owner_plain.plain_page_owner(str(path))
        for stack, (pages,) in plain(capsys.readouterr().out.replace("nr_base_pages: ", "")):
            expected.setdefault(stack, [0] * 11)[number] = pages
    bundle = bundle_of(tmp_path, paths)
    assert pages_of(shown(bundle)) == sorted(expected.items())
    # What only the last file has is of the last by number, not by the glob's order.
    total = sum(row["pages"] for row in Bundle(bundle).rows("page_owner_tasks"))
    assert total == sum(pages[-1] for pages in expected.values())


def leak(tmp_path: Path, count: int = 100) -> list[str]:
    """A stack of 100 pages that gains 37 a reading, beside one that stays."""
    return write(tmp_path, show_handles, [[(STACKS[0], 100 + 37 * n), (STACKS[1], 500)]
                                          for n in range(count)])  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--interval", "60"]], ids=["numbers", "interval"])
def test_a_leak_is_one_in_whatever_order_its_snapshots_are_given(
    tmp_path: Path, words: list[str]
) -> None:
    paths = leak(tmp_path)
    assert [Path(path).name for path in sorted(paths)[:3]] == ["show.1", "show.10", "show.100"]
    bundle = Bundle(bundle_of(tmp_path, paths, *words, code=1))  # no stacks of handles
    (row,) = [row for row in bundle.rows("page_owner_growth") if row["gained"]]
    assert (row["gained"], row["rises"], row["steadiness"]) == (37 * 99, 99, 1.0)
    assert row["slope"] == (pytest.approx(37 / 60) if words else None)
    assert {row["ordered_by"] for row in bundle.rows("page_owner_snapshots")} == {
        "interval" if words else "numbers in names"
    }


def shuffle(paths: list[str]) -> None:
    for number, path in enumerate(sorted(paths)):
        os.utime(path, (2000 + number, 2000 + number))


def rename(paths: list[str]) -> None:
    for number, path in enumerate(paths):
        Path(path).rename(Path(path).with_name("snap-" + "abcdefghijklm"[number]))
    paths[:] = [str(path) for path in Path(paths[0]).parent.glob("snap-*")]


@pytest.mark.parametrize("spoil", [shuffle, rename])
def test_without_an_order_nothing_is_called_growth(
    tmp_path: Path, spoil: Callable[[list[str]], None]
) -> None:
    paths = leak(tmp_path, 12)
    spoil(paths)
    result = run("page-owner", *paths)
    assert result.returncode == 1 and "gained" not in result.stdout
    (line,) = [line for line in result.stderr.splitlines() if "order of the snapshots" in line]
    assert "is unknown, and nothing is called growth: " in line
    last = "show.12" if spoil is shuffle else "snap-l"
    assert line.endswith(f"the amounts are those of {last}")
    bundle = bundle_of(tmp_path, paths, code=1)
    tables = Bundle(bundle).tables
    assert "page_owner_growth" not in tables and "page_owner_series" in tables
    assert {row["ordered_by"] for row in Bundle(bundle).rows("page_owner_snapshots")} == {None}
    said = run("show", "page_owner_matrix", bundle)
    assert "the order of the readings is unknown: nothing is called growth" in said.stderr
    # By name, the stack with most pages in the last column first.
    assert [row[5:] for row in shown(bundle)[1:]] == [
        [str(100 + 37 * number) for number in range(12)],
        ["500"] * 12,
    ]
    assert run("report", bundle, "-o", tmp_path / "r.html").returncode == 0
    html = (tmp_path / "r.html").read_text()
    assert "What grew:" not in html
    assert "nothing is called growth" in texts(by_id(parse(html), "picture-page_owner_matrix"))


def test_times_that_are_unknown_are_not_seconds(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, leak(tmp_path, 12), code=1)
    said = run("findings", bundle).stdout
    assert "pages grow steadily, +1.59 MiB in 12 snapshots" in said and " 11 s " not in said
    assert run("report", bundle, "-o", tmp_path / "r.html").returncode == 0
    html = (tmp_path / "r.html").read_text()
    growth = texts(by_id(parse(html), "picture-page_owner_growth"))
    assert "only their order: there is no rate and no chart over time" in growth
    assert 'class="time-plot"' not in html and " 11 s " not in growth


def test_a_watch_has_the_matrix_with_its_times(tmp_path: Path) -> None:
    assert watch(tmp_path, "--debugfs", debugfs(tmp_path), "--count", 4).returncode == 0
    rows = shown(tmp_path / "b")
    snapshots = list(Bundle(tmp_path / "b").rows("page_owner_snapshots"))
    # A machine that is busy for an interval leaves a sample out.
    assert rows[0][5:] == [row["at"] for row in snapshots] and 2 <= len(snapshots) <= 4
    assert pages_of(rows) == sorted(
        (folded(s.text.encode()), [n] * len(snapshots)) for s, n in next(series(STACKS, 1))
    )


def test_json_has_a_key_a_reading(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, leak(tmp_path, 3), "--interval", 60, code=1)
    result = run("show", "page_owner_matrix", bundle, "--format", "json", "--top", 1)
    (row,) = json.loads(result.stdout)
    assert [*row] == [*FIXED, "0 s", "60 s", "120 s"]
    assert [row[name] for name in ("handle", "0 s", "60 s", "120 s")] == [27000000, 100, 137, 174]


def on_terminal(bundle: Path, columns: int) -> str:
    """What ``show`` prints on a terminal so wide."""
    ours, theirs = pty.openpty()
    try:
        process = children.start(
            [*RUN, "show", "page_owner_matrix", str(bundle)], cwd=ROOT, stdout=theirs,
            stderr=theirs, env=os.environ | {"COLUMNS": str(columns), "TERM": "dumb"},
        )  # fmt: skip
        os.close(theirs)
        said = b""
        try:
            while more := os.read(ours, 65536):
                said += more
        except OSError:  # the other end is closed
            pass
        assert process.wait(600) == 0
    finally:
        os.close(ours)
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_has_the_readings_that_fit(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, leak(tmp_path), code=1)
    narrow = on_terminal(bundle, 80)
    heads = [word for word in narrow.splitlines()[1].split() if word.startswith("…")]
    assert heads[0] == "…1" and heads[-1] == "…100" and 2 <= len(heads) < 100
    assert f"{len(heads)} of 100 readings fit" in narrow
    assert f"{100 - len(heads)} are left out, --format csv and json have all" in narrow
    assert max(map(len, narrow.splitlines()[1:-1])) <= 80
    assert "left out" not in on_terminal(bundle, 1000)


def test_tables_lists_it_where_there_is_a_series(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, leak(tmp_path, 2), code=1)
    assert "page_owner_matrix " in run("show", "tables", bundle).stdout
    shutil.rmtree(bundle)
    one = bundle_of(tmp_path, leak(tmp_path, 1), code=1)
    assert "page_owner_matrix" not in run("show", "tables", one).stdout
    result = run("show", "page_owner_matrix", one)
    assert result.returncode == 2 and "made of a series" in result.stderr


# Columns


def reading_names(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(r.name, r.short) for r in owner_matrix.readings_of(rows, [])]


def snapshot(time: float, at: str | None, source: str = "s", by: str | None = None) -> Any:
    return {"time": time, "at": at, "source": source, "ordered_by": by}


@pytest.mark.parametrize(
    "moments, short",
    [
        (["2026-11-01T10:00:00.000+00:00", "2026-11-01T10:01:00.000+00:00"],
         ["10:00:00", "10:01:00"]),
        (["2026-11-01T10:00:00.000+00:00", "2026-11-02T10:00:00.000+00:00"],
         ["11-01 10:00:00", "11-02 10:00:00"]),
        (["2026-11-01T10:00:00.000+00:00", "2026-11-01T10:00:00.250+00:00"],
         ["10:00:00.000", "10:00:00.250"]),
    ],
)  # fmt: skip
def test_columns_are_headed_by_times_of_day(moments: list[str], short: list[str]) -> None:
    rows = [snapshot(float(n), at) for n, at in enumerate(moments)]
    assert reading_names(rows) == list(zip(moments, short, strict=True))


def test_columns_without_times_are_headed_by_files() -> None:
    rows = [snapshot(float(n), None, f"a.{n}", "numbers in names") for n in (9, 10)]
    assert reading_names(rows) == [("a.9", "…9"), ("a.10", "…10")]
    same = [snapshot(float(n), None, "a") for n in (0, 1)]
    assert reading_names(same) == [("a #1", "a #1"), ("a #2", "a #2")]
    spaced = [snapshot(60.0 * n, None, "a", "interval") for n in (0, 1)]
    assert reading_names(spaced) == [("0 s", "0 s"), ("60 s", "60 s")]


def test_a_file_named_as_another_column_is_told_apart() -> None:
    rows = [snapshot(0.0, None, "stack"), snapshot(1.0, None, "other")]
    assert [name for name, _ in reading_names(rows)] == ["stack #1", "other #2"]


def test_a_strangers_tables_cost_a_line(tmp_path: Path) -> None:
    with Writer(tmp_path / "b") as writer:
        writer.table("page_owner_series", "Odd", PageOwnerTask, [], section="page_owner")
        writer.finish({"kind": "files"}, [])
    assert run("show", "page_owner_matrix", tmp_path / "b").returncode == 0  # no rows
    rows = [PageOwnerTask(1, 2, "a", 3, 4)]
    with Writer(tmp_path / "b", replace=True) as writer:
        writer.table("page_owner_series", "Odd", PageOwnerTask, rows, section="page_owner")
        writer.finish({"kind": "files"}, [])
    for form in ("table", "csv", "json"):
        result = run("show", "page_owner_matrix", tmp_path / "b", "--format", form)
        assert result.returncode == 2
        assert "page_owner_series is damaged" in result.stderr


@pytest.mark.parametrize(
    "count, room, positions",
    [(3, 5, [0, 1, 2]), (1, 2, [0]), (100, 2, [0, 99]), (100, 0, [0, 99]), (9, 3, [0, 4, 8])],
)
def test_the_first_and_the_last_always_fit(count: int, room: int, positions: list[int]) -> None:
    assert owner_matrix.spread(count, room) == positions


# The picture


def test_the_picture_has_the_numbers_of_the_matrix(tmp_path: Path) -> None:
    paths = write(tmp_path, show_stacks, SNAPSHOTS)
    bundle = bundle_of(tmp_path, paths)
    rows = shown(bundle)[1:]
    run("report", bundle, "-o", tmp_path / "r.html")
    picture = by_id(parse((tmp_path / "r.html").read_text()), "picture-page_owner_matrix")
    (table,) = elements(picture, "table")
    drawn = [[texts(cell) for cell in elements(line, "td")] for line in elements(table, "tr")[1:]]
    assert len(drawn) == MAX_STACKS == 20
    for line, row in zip(drawn, rows[:MAX_STACKS], strict=True):
        assert line[:-1] == [f"{int(cell):,}" for cell in row[5:]]
        assert line[-1].startswith(f"+{int(row[-1]) - int(row[5]):,}")


def test_a_shade_is_by_its_row_and_little_is_little() -> None:
    def shades(*pages: int | None) -> list[int]:
        return levels(list(pages))

    assert shades(100, 150, 200) == [1, 4, 8]
    assert shades(None, 1, 2) == [1, 4, 8]
    assert shades(7, 7, 7) == [0, 0, 0]
    assert shades(60_000, 60_002) == [1, 1]
