# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pools of stacks: what comes out of one is what was put in, in Python and in a browser.

``files`` reads a pool as its own ``read`` says, and shares no code with what writes or reads it.
"""

import json
import re
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
import report_bundle as made
from browser_page import WIDE
from hypothesis import given
from hypothesis import strategies as st
from rows import column, columns

from reports import downloads, report
from reports.bundle import Bundle
from reports.downloads import Downloads
from reports.stack_pool import MAX_INTEGER, Derived, StackPool


@dataclass
class Held:
    """A row with a stack and whatever may stand beside one."""

    handle: int = column(key=True)
    pages: int = column(unit="pages")
    allocations: int = column()
    owner: str | None = column()
    module: str | None = column()
    stack: str | None = column()
    maybe: int | None = column()
    rate: float | None = column()
    offline: bool = column()
    note: str | None = column()


def files(text: bytes) -> tuple[dict[str, list[list[Any]]], dict[str, dict[str, int]]]:
    """(tables as rows of cells, folded files) of a pool."""
    pool = json.loads(text)
    stacks: list[str] = []
    runs: list[int] = []
    for text in pool["stacks"]:
        shared, *further = (number(character) for character in text)
        if further and shared < len(runs):
            further[0] += runs[shared]
        runs = runs[:shared] + further
        stacks.append(";".join(pool["runs"][run] for run in runs))
    tables, columns_by_table = {}, {}
    for table in pool["tables"]:
        found: dict[str, list[Any]] = {}
        later = []
        for one in table["columns"]:
            if "leaf" in one or "module" in one:
                later.append(one)
            found[one["name"]] = plain(one, found, stacks)
        frames: list[str | None] = []
        for one in later:
            if "leaf" in one:
                frames = [
                    None if place is None else (stack or "").split(";")[-1 - place]
                    for place, stack in zip(one["leaf"], found["stack"], strict=True)
                ]
                found[one["name"]] = [f if f is None else f.partition(" [")[0] for f in frames]
            else:
                found[one["name"]] = [
                    None if f is None else f.partition(" [")[2].removesuffix("]") or None
                    for f in frames
                ]
        columns_by_table[table["name"]] = found
        tables[table["name"]] = [list(row) for row in zip(*found.values(), strict=True)]
    folded: dict[str, dict[str, int]] = {}
    for file in pool["folded"]:
        sums = folded[file["name"]] = {}
        if "values" in file:
            pairs = zip(stacks, file["values"], strict=True)
        else:
            cells = columns_by_table[file["table"]]
            roots = [f"{root};" for root in cells[file["root"]]] if file["root"] else None
            names = [stack or file["none"] for stack in cells["stack"]]
            pairs = zip(
                [a + b for a, b in zip(roots, names, strict=True)] if roots else names,
                [(value or 0) * file["times"] for value in cells[file["value"]]],
                strict=True,
            )
        for stack, value in pairs:
            if value > 0:
                sums[stack] = sums.get(stack, 0) + value
    return tables, folded


def number(character: str) -> int:
    return ord(character) - 35 - (0x800 if ord(character) > 0xDFFF else 0)


def plain(one: dict[str, Any], found: dict[str, list[Any]], stacks: list[str]) -> list[Any]:
    def numbers(cells: Any) -> list[int]:
        if isinstance(cells, list):
            return cells
        digits, base = one["digits"], one["base"]
        groups = [cells[at : at + digits] for at in range(0, len(cells), digits)]
        return [sum(number(d) * base**n for n, d in enumerate(group[::-1])) for group in groups]

    if "stack" in one:
        return [stacks[n] if n < len(stacks) else None for n in numbers(one["stack"])]
    if "cells" in one:
        return numbers(one["cells"])
    if "steps" in one:
        return list(accumulate(one["steps"]))
    if "times" in one:
        return [
            base * times + rest if times > 0 else (base - rest) // -times if times else rest
            for base, times, rest in zip(found[one["of"]], one["times"], one["rest"], strict=True)
        ]
    return [one["values"][place] for place in one["at"]] if "at" in one else []


def cells(rows: list[Held]) -> list[list[Any]]:
    """The rows as they come out: numbers that JavaScript holds as such, all others as text."""

    def exact(values: list[Any]) -> bool:
        return all(type(value) is int and abs(value) < MAX_INTEGER for value in values)

    by_column = list(zip(*(vars(row).values() for row in rows), strict=True))
    shown = [
        values if exact(list(values)) else ["" if v is None else said(v) for v in values]
        for values in by_column
    ]
    return [list(row) for row in zip(*shown, strict=True)]


def said(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def texts(rows: list[list[Any]]) -> list[list[str]]:
    return [["" if cell is None else str(cell) for cell in row] for row in rows]


FRAMES = st.sampled_from(
    ["a", "b", "c [ext4]", "d [ext4] ", "", "e e", "do_exit", "x [", "y [z", '"', "\u2028"]
)
STACKS = st.lists(FRAMES, min_size=1, max_size=9).map(";".join)
INTEGERS = st.one_of(st.integers(-5, 400), st.integers(-(1 << 63), 1 << 63))
ROWS = st.builds(
    Held,
    handle=st.integers(0, 1 << 32),
    pages=INTEGERS,
    allocations=INTEGERS,
    owner=st.none() | FRAMES | st.text(),
    module=st.none() | st.just("ext4"),
    stack=st.none() | STACKS,
    maybe=st.none() | st.integers(),
    rate=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    offline=st.booleans(),
    note=st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)


class TestInPython:
    @given(
        st.lists(ROWS, min_size=1, max_size=30), st.dictionaries(STACKS, st.integers(1, 1 << 40))
    )
    def test_of_any_table_and_any_stacks_all_comes_back(
        self, rows: list[Held], stacks: dict[str, int]
    ) -> None:
        pool = StackPool()
        pool.add_table("held.csv", columns(Held), [vars(row) for row in rows])
        pool.add_folded("odd.folded", stacks)
        tables, folded = files(b"".join(pool.read()))
        assert texts(tables["held.csv"]) == texts(cells(rows))
        assert folded == {"odd.folded": stacks}
        assert pool.count() == len({row.stack for row in rows} - {None} | stacks.keys())

    def test_a_folded_file_follows_from_its_table(self) -> None:
        rows = [("a;b", 2), (None, 3), ("a;b", 5)]
        wanted = {"a;b": 28, "(none)": 12}
        derived = Derived("t.csv", "pages", 4, "", "(none)")
        named = [c for c in columns(Held) if c.name in ("stack", "pages")]
        with_table, alone = StackPool(), StackPool()
        with_table.add_table("t.csv", named, [{"stack": s, "pages": n} for s, n in rows])
        for pool in (with_table, alone):
            pool.add_folded("t.folded", wanted, derived)
            assert files(b"".join(pool.read()))[1] == {"t.folded": wanted}
        assert with_table.count() == 1
        assert alone.count() == 2

    def test_a_chain_of_frames_is_one_run(self) -> None:
        pool = StackPool()
        pool.add_folded("f", {"entry;do_syscall;x;y": 1, "entry;do_syscall;x;z": 1, "x;y": 1})
        runs = json.loads(b"".join(pool.read()))["runs"]
        assert sorted(runs) == ["entry;do_syscall;x", "x", "y", "z"]

    def test_more_runs_than_there_are_characters_below_the_surrogates(self) -> None:
        stacks = {f"f{number};f{number * 7919 % 60_000}": 1 for number in range(60_000)}
        pool = StackPool()
        pool.add_folded("f", stacks)
        text = b"".join(pool.read())
        assert len(json.loads(text)["runs"]) > 0xD800
        assert files(text)[1]["f"] == stacks

    def test_numbers_that_a_browser_would_round_are_refused(self) -> None:
        pool = StackPool()
        pool.add_folded("f", {"a": MAX_INTEGER})
        with pytest.raises(OverflowError, match=r"beyond 2\^52"):
            list(pool.read())

    def test_a_stack_of_a_hundred_thousand_frames_takes_no_time_to_speak_of(self) -> None:
        deep = ";".join(f"f{number}" for number in range(100_000))
        pool = StackPool()
        pool.add_folded("f", {deep: 1, deep + ";more": 2, "f7;" + deep: 3})
        assert files(b"".join(pool.read()))[1]["f"][deep] == 1


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A table of many stacks that are alike, with words that are not nice."""
    random = Random(7)
    words = ("entry", "do_exit", "ext4_x [ext4]", "=cmd|x", "<b>", 'say "so"', "a, b", "\u2028", "")
    rows = []
    for number in range(900):
        frames = [words[random.randrange(len(words))] for _ in range(3 + number % 20)]
        place = number % 3
        symbol, _, module = frames[-1 - place].partition(" [")
        pages = 5_000_000 // (number + 1)
        rows.append(
            Held(
                random.randrange(1 << 32), pages, max(1, pages >> number % 4),
                symbol, module.removesuffix("]") or None,
                None if number == 800 else ";".join(frames),
                number - 450 if number % 7 else None, number / 7 if number % 5 else None,
                number % 2 == 0, made.HOSTILE[number % len(made.HOSTILE)] if number % 4 else None,
            )
        )  # fmt: skip
    contents: dict[str, made.Table] = {"held": ("Held", Held, rows, "odd section")}
    return made.write_bundle(tmp_path / "bundle", contents)


@pytest.fixture
def page(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, bytes]]:
    """A page that has no room for the table as it is; and what its files are to become."""
    monkeypatch.setattr(downloads, "SMALL", 0)
    environment = report._environment(4096, "")
    script = environment.get_template("report.js").render()
    stacks = {row["stack"] or "(none)": row["pages"] * 4096 for row in bundle.rows("held")}
    derived = Derived("held.csv", "pages", 4096, "", "(none)")
    sums: dict[str, int] = {}
    for row in bundle.rows("held"):
        name = row["stack"] or "(none)"
        sums[name] = sums.get(name, 0) + row["pages"] * 4096
    offered = [
        downloads.folded(sums, "held.folded", "held.csv", "odd section", derived),
        downloads.table(bundle, bundle.tables["held"]),
        downloads.folded(stacks, "alone.folded", "alone.folded", "alone"),
    ]

    def filled(most: int) -> str:
        offers = Downloads()
        places = "".join(f"<p>{offers.offer(download)}</p>" for download in offered)
        start = f"<!DOCTYPE html><meta charset=utf-8>{places}{offers.pools()}"
        return offers.fill(f"{start}<script>{script}</script>", most)

    whole = filled(1 << 30)
    assert 'pooled" href' not in whole
    for most in range(len(filled(0).encode()), len(whole.encode()), 500):
        html = filled(most)
        assert len(html.encode()) <= most
        if len(re.findall('class="pooled" href="#pool-[12]"', html)) == 3:
            path = tmp_path / "page.html"
            path.write_text(html)
            return path, {one.name: b"".join(one.read()) for one in offered}
    raise AssertionError("never pooled")


class TestInABrowser:
    def test_the_files_are_made_of_the_pool(
        self, opening, page: tuple[Path, dict[str, bytes]], tmp_path: Path  # type: ignore[no-untyped-def]
    ) -> None:  # fmt: skip
        path, wanted = page
        opened = opening(path, WIDE)
        for name, text in wanted.items():
            with opened.page.expect_download() as download:
                opened.page.locator(f'a.pooled[data-file="{name}"]').click()
            assert download.value.suggested_filename == name
            download.value.save_as(tmp_path / name)
            found = (tmp_path / name).read_bytes()
            if name.endswith(".folded"):  # in any order
                assert sorted(found.splitlines()) == sorted(text.splitlines())
            else:
                assert found == text
        assert opened.complaints == []

    def test_without_script_the_pool_can_be_had(
        self, opening, page: tuple[Path, dict[str, bytes]]  # type: ignore[no-untyped-def]
    ) -> None:  # fmt: skip
        plain = opening(page[0], WIDE, script=False).page
        plain.locator('a.pooled[data-file="held.csv"]').click()
        assert plain.url.endswith("#pool-1")
        with plain.expect_download() as download:
            plain.locator("#pool-1 a").click()
        assert download.value.suggested_filename == "odd_section.pool.json.gz"
