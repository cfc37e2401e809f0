# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows: declared by dataclasses, printed so that a kernel's text cannot drive the terminal."""

import csv
import io
import json
import random
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.tables import display
from mmscope.drgn.tables.display import time_text
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import Column, column, columns, csv_line, write_csv
from mmscope.drgn.tables.terminal import AMOUNT, format_cell, print_prose, print_rows


@dataclass(frozen=True)
class Row:
    """A row with every kind of column."""

    name: str = column(key=True, help="what it is")
    pages: int = column(unit="pages", help="how many")
    share: float | None = column(unit="of 1")
    note: str | None = column()
    sure: bool | None = column()


DESCRIBED = columns(Row)


def test_columns_are_what_the_dataclass_declares() -> None:
    assert [(c.name, c.type, c.nullable, c.unit, c.key) for c in DESCRIBED] == [
        ("name", "string", False, "", True),
        ("pages", "integer", False, "pages", False),
        ("share", "number", True, "of 1", False),
        ("note", "string", True, "", False),
        ("sure", "boolean", True, "", False),
    ]
    assert [c.help for c in DESCRIBED] == ["what it is", "how many", "", "", ""]


@dataclass
class WithList:
    ok: int
    cells: list[int]


@dataclass
class WithEither:
    either: int | str


@pytest.mark.parametrize("row_type", [WithList, WithEither])
def test_a_type_that_no_table_holds_is_named(row_type: type) -> None:
    with pytest.raises(
        TypeError, match=rf"{row_type.__name__}\.(cells|either): a table cannot hold"
    ):
        columns(row_type)


HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "a\rb\nc\td\be",
    "\x7f\x80\x9b31m",
    "\u202egnp.exe\u202c",
    "\u2066x\u2069\u200b\u200f\ufeff\u2028",
    "\udc80\udfff",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_visible_sends_no_control(text: str) -> None:
    shown = visible(text)
    assert not re.search(
        r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", shown
    )
    shown.encode()  # no surrogate is left


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_visible_leaves_plain_text_alone(text: str) -> None:
    assert visible(text) == text


def test_visible_writes_controls_out() -> None:
    assert visible("é\x1b\u202e\udc80") == "é\\x1b\\u202e\\udc80"


def of(kind: str, name: str = "x") -> Column:
    return Column(name, kind, True, "", "", False)


def named_by(unit: str) -> Column:
    return Column("x", "integer", False, unit, "", True)


@pytest.mark.parametrize(
    ("value", "column", "shown"),
    [
        (None, of("integer"), "-"),
        (None, of("string"), "-"),
        (0, of("integer"), "0"),
        (-1234567, of("integer"), "-1,234,567"),
        (4096, of("integer", "start_pfn"), "0x1000"),
        (2 << 20, named_by("bytes"), "2 MiB"),
        (1 << 30, named_by("bytes"), "1 GiB"),
        (1536 << 10, named_by("bytes"), "1,536 KiB"),
        (1000, named_by("bytes"), "1,000 B"),
        (0, named_by("bytes"), "0 B"),
        (-4096, named_by("bytes"), "-4 KiB"),
        (16384, named_by("VMAs"), "16,384"),
        (16384, named_by(""), "16384"),  # a pid
        (1234.5, of("number"), "1,234.500"),
        (0.0, of("number"), "0.000"),
        (-0.0004, of("number"), ">-0.001"),
        (3e-9, of("number"), "<0.001"),
        (0.0005, of("number"), "0.001"),
        ("", of("string"), ""),
        ("\x1b", of("string"), "\\x1b"),
    ],
)
def test_a_cell_on_a_terminal(value: Any, column: Column, shown: str) -> None:
    assert format_cell(value, column) == shown


def printed(rows: list[list[Any]], form: str = "table", described: list[Column] = DESCRIBED) -> str:
    file = io.StringIO()
    assert print_rows(described, rows, form=form, title="Rows", file=file) == len(rows)
    return file.getvalue()


def test_a_table_lines_up() -> None:
    text = printed(
        [
            ["long enough to matter", 5, 0.25, None, None],
            ["x", 1234567, None, "[bold]no markup", True],
        ]
    )
    title, *lines = text.splitlines()
    assert title.strip() == "Rows"
    first, second = lines[-2:]
    assert first.index(" 5 ") + 2 == second.index("1,234,567") + len("1,234,567"), "right-aligned"
    assert second.startswith("x ")
    assert re.split(r" {2,}", first.strip()) == ["long enough to matter", "5", "0.250", "-", "-"]
    assert "[bold]no markup" in second


def test_amounts_that_have_their_unit_are_right_aligned() -> None:
    described = [
        Column("what", "string", True, "", "", False),
        Column("size", AMOUNT, True, "", "", False),
    ]
    lines = printed(
        [["a", "4 KiB"], ["b", "1.465 GiB"], ["c", None]], described=described
    ).splitlines()
    assert [line[-9:] for line in lines[-3:]] == ["    4 KiB", "1.465 GiB", "        -"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"), (2.3e-05, "23 µs"), (0.000129, "129 µs"), (0.0009996, "1 ms"),
        (0.00122, "1.22 ms"), (0.0614, "61.4 ms"), (0.614, "614 ms"), (48.0, "48 s"),
        (1234.5, "1,234 s"), (3e-09, "3 ns"), (-0.002, "-2 ms"), (float("inf"), "inf s"),
    ],
)  # fmt: skip
def test_a_time_has_the_unit_that_suits_it(seconds: float, shown: str) -> None:
    assert time_text(seconds) == shown


def test_short_times_are_readable_and_exact_for_programs() -> None:
    described = [
        Column("time", "number", False, "s", "", True),
        Column("exit_seconds", "number", True, "s", "", False),
        Column("long_seconds", "number", False, "s", "", False),
    ]
    rows = [[0.0, 2.3e-05, 0.5], [0.002, 0.000129, 2.25], [10.0, None, 1234.5]]
    lines = [
        re.split(" {2,}", line.strip()) for line in printed(rows, described=described).splitlines()
    ]
    assert lines[-3:] == [
        ["0.000", "23 µs", "0.500"], ["0.002", "129 µs", "2.250"], ["10.000", "-", "1,234.500"],
    ]  # fmt: skip
    assert printed(rows, "csv", described).splitlines()[1] == "0.0,2.3e-05,0.5"
    assert json.loads(printed(rows, "json", described))[1]["exit_seconds"] == 0.000129


def test_a_table_without_rows_says_so() -> None:
    assert printed([]) == "Rows: none\n"
    assert printed([], "csv") == "name,pages,share,note,sure\n"
    assert json.loads(printed([], "json")) == []
    file = io.StringIO()
    assert print_rows(DESCRIBED, [], file=file) == 0
    assert file.getvalue() == "none\n"


def test_bytes_have_the_unit_that_suits_them_and_small_ones_stay_exact() -> None:
    file = io.StringIO()
    described = [Column("held_bytes", "integer", True, "bytes", "", False)]
    amounts = [8904, 4096, 1 << 30, 1536 << 10, (1 << 20) + 1, None]
    print_rows(described, [[amount] for amount in amounts], file=file)
    cells = file.getvalue().splitlines()[2:]
    assert [cell.strip() for cell in cells] == [
        *("8,904 B", "4 KiB", "1 GiB", "1.5 MiB", "1 MiB", "-")
    ]
    # Whatever is computed on has all digits.
    file = io.StringIO()
    print_rows(described, [[(1 << 20) + 1]], form="csv", file=file)
    assert file.getvalue().split() == ["held_bytes", "1048577"]


def test_in_a_pipe_a_row_is_a_line_however_long() -> None:
    long = "frame;" * 1000
    text = printed([[long, 1, None, None, None]])
    assert [line for line in text.splitlines() if long in line]


def test_in_a_pipe_no_text_is_folded_though_names_are() -> None:
    described = [Column(f"a_name_{n}", "string", False, "", "", key=not n) for n in range(4)]
    file = io.StringIO()
    print_rows(described, [["some words " * 9] * 4] * 9, file=file, piped_width=80)
    assert sum(line.count("some words") == 36 for line in file.getvalue().splitlines()) == 9


class Terminal(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_csv_is_written_out_on_a_terminal_and_nowhere_else() -> None:
    described = [Column("comm", "string", False, "", "", key=True)]
    for file, written in ((Terminal(), r"=1\u202e\x1b[2J"), (io.StringIO(), "=1\u202e\x1b[2J")):
        print_rows(described, [["=1\u202e\x1b[2J"]], form="csv", file=file)
        assert file.getvalue() == f"comm\n{written}\n"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_that_is_too_narrow_breaks_no_address(
    monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "60")
    described = [
        Column(name, "string", False, "", "", name == "address")
        for name in ("address", "first_name", "second_name", "third_name", "fourth_name")
    ]
    file = Terminal()
    print_rows(described, [[f"0xffff8880{n:08x}", *["word " * 9] * 4] for n in range(9)], file=file)
    assert all(f"0xffff8880{number:08x}" in file.getvalue() for number in range(9))
    assert "…" not in file.getvalue()


def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, described: list[Column], rows: list[list[Any]]
) -> list[str]:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", str(width))
    file = Terminal()
    print_rows(described, rows, file=file)
    return file.getvalue().splitlines()


def test_a_sentence_keeps_to_the_terminal_and_is_a_line_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    said = "free_blocks: 0 B to 28 MiB, +7,168 pages; " * 3
    screen, pipe = Terminal(), io.StringIO()
    print_prose(said, screen)
    print_prose(said, pipe)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 30 < len(said)
    assert " ".join(lines).split() == said.split()
    assert pipe.getvalue() == f"{said}\n"


def test_a_name_breaks_only_where_its_column_is_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    described = [
        Column("anon_vma", "string", False, "", "", True),
        Column("vmas_of_pid", "integer", False, "VMAs", "", False),
        Column("wmark_min", "integer", False, "pages", "", False),
    ]
    rows = [[f"0xffff8880{n:08x}", n, 1_000_000_000] for n in range(9)]
    lines = on_a_terminal(monkeypatch, 44, described, rows)
    assert lines[:4] == [
        "                     vmas_",
        "                       of_",
        "                       pid       wmark_min",
        "anon_vma              VMAs           pages",
    ]
    assert max(map(len, lines)) <= 44


def test_a_turned_table_has_its_units_and_keeps_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = [
        Column("name", "string", False, "", "", True),
        *(Column(f"wmark_{n}", "integer", False, "pages", "", False) for n in range(12)),
    ]
    rows = [["word " * 9, *range(12)], ["x", *range(12)]]
    lines = on_a_terminal(monkeypatch, 60, described, rows)
    assert max(map(len, lines)) <= 60
    (line,) = (line for line in lines if line.startswith("wmark_11"))
    assert line.split() == ["wmark_11", "(pages)", "11", "11"]


def test_a_turned_table_has_as_many_rows_side_by_side_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = [
        Column("host", "string", False, "", "", True),
        *(Column(f"scanned_{n}", AMOUNT, False, "", "", False) for n in range(6)),
    ]
    rows = [[f"h{n}", *["7,100,000/min"] * 6] for n in range(5)]
    lines = on_a_terminal(monkeypatch, 44, described, rows)
    assert max(map(len, lines)) <= 44
    assert [line.split()[1:] for line in lines if line.startswith("host")] == [
        *(["h0", "h1"], ["h2", "h3"], ["h4"]),
    ]
    assert lines.count("") == 2  # one between each two parts
    assert " ".join(lines).count("7,100,000/min") == 30  # in one piece


def test_a_number_is_never_broken_from_its_unit_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = [
        Column("measure", "string", False, "", "", True),
        Column("difference", AMOUNT, False, "", "", False),
    ]
    rows = [["pages scanned by kswapd " * 3, "-41,100,000/min"]] * 7
    lines = on_a_terminal(monkeypatch, 30, described, rows)
    assert max(map(len, lines)) <= 30
    assert sum(line.endswith(" -41,100,000/min") for line in lines) == 7


WORDS = ("kmalloc-rnd-15", "/sys/fs/cgroup", "0xffff888012345678", "init", "a;b;c", "page_pool")


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("seed", range(12))
def test_no_table_is_wider_than_its_terminal_or_breaks_a_word(
    monkeypatch: pytest.MonkeyPatch, width: int, seed: int
) -> None:
    """What there is no room for is left out by whole columns, and named."""
    made = random.Random(seed)
    kinds = [made.choice(("string", "integer", "number", AMOUNT)) for _ in range(1 + 2 * seed)]
    described = [
        Column(f"of_{kind}_{at}", kind, False, made.choice(("", "pages")), "", key=not at)
        for at, kind in enumerate(kinds)
    ]

    def cell(kind: str) -> Any:
        if kind == "string":
            return " ".join(made.choices(WORDS, k=made.randint(1, 6)))
        return f"{made.randint(1, 9)} MiB" if kind == AMOUNT else made.randint(0, 10**8)

    rows = [[cell(kind) for kind in kinds] for _ in range(made.choice((3, 30)))]
    lines = on_a_terminal(monkeypatch, width, described, rows)
    assert max(map(len, lines)) <= width
    told = " ".join(" ".join(lines).split())
    names = re.search(r"No room for (.*): --format csv and json have all\.", told)
    dropped = names[1].split(", ") if names else []
    shown = re.sub(r"\s", "", "".join(lines))
    for at, each in enumerate(described):
        if each.name in dropped:
            continue
        assert len(dropped) < len(described)
        for row in rows:
            for word in re.findall(r"[^-;/_ ]+", str(row[at]) if kinds[at] == "string" else ""):
                assert word in told.replace("-", " ").replace("_", " "), (each, word)
            if kinds[at] == "integer":
                assert format_cell(row[at], each) in shown


def test_what_says_nothing_goes_first_and_what_a_table_is_about_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = [
        Column("cache", "string", False, "", "", key=True),
        Column("address", "string", False, "", "", key=False),
        *(Column(f"pages_{n}", "integer", False, "", "", False) for n in range(5)),
        Column("failures", "integer", False, "", "", False),
        Column("order", "integer", False, "", "", False),
    ]
    rows = [
        [f"kmalloc-{n}", f"0xffff8880{n:08x}", *(n * 10**9 + at for at in range(5)), 0, n]
        for n in range(30)
    ]
    lines = on_a_terminal(monkeypatch, 84, described, rows)
    assert (
        lines[-1]
        == "No room for address, pages_4, failures, order: --format csv and json have all."
    )
    assert lines[0].split() == ["cache", *(f"pages_{n}" for n in range(4))]


@pytest.mark.parametrize(
    ("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")]
)
def test_a_terminal_that_wants_no_colour_gets_none(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, value)
    screen, pipe = Terminal(), io.StringIO()
    for file in (screen, pipe):
        print_rows(DESCRIBED, [["x", 1, None, None, None]], title="Rows", file=file)
    assert ("\x1b" in screen.getvalue()) == (value == "xterm")
    assert "\x1b" not in pipe.getvalue()


def test_a_title_and_a_unit_from_a_stranger_are_shown_not_sent() -> None:
    file = io.StringIO()
    described = [Column("x", "integer", True, "\x1b[31m", "", False)]
    print_rows(described, [[1]], title="\x1b]0;owned\x07", file=file)
    assert "\x1b" not in file.getvalue()
    assert "\x07" not in file.getvalue()


cells = st.tuples(
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.text(),
    st.none() | st.booleans(),
)


@given(st.lists(cells))
def test_csv_round_trips(rows: list[tuple[Any, ...]]) -> None:
    text = printed([list(row) for row in rows], "csv")
    header, *lines = csv.reader(io.StringIO(text, newline=""))
    assert header == [c.name for c in DESCRIBED]
    words = {None: "", True: "true", False: "false"}
    assert lines == [
        [
            name.replace("\0", "\\x00"),
            str(pages),
            "" if share is None else str(share),
            "" if note is None else note.replace("\0", "\\x00"),
            words[sure],
        ]
        for name, pages, share, note, sure in rows
    ]
    assert [float(line[2]) for line in lines if line[2]] == [r[2] for r in rows if r[2] is not None]


@given(st.lists(cells))
def test_json_round_trips(rows: list[tuple[Any, ...]]) -> None:
    text = printed([list(row) for row in rows], "json")
    assert [list(row.values()) for row in json.loads(text)] == [list(row) for row in rows]
    assert text.isascii()


a_cell = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@given(
    st.lists(st.tuples(a_cell, st.integers(), st.text(max_size=3)), max_size=3), st.integers(0, 70)
)
def test_rows_that_are_written_together_are_those_written_one_by_one(
    odd: list[tuple[Any, ...]], plain: int
) -> None:
    rows = [*(("x", number, "%s") for number in range(plain)), *odd, *odd]
    file = io.StringIO()
    assert write_csv(file, ["a", "b", "c"], rows) == len(rows)
    assert file.getvalue() == "".join(map(csv_line, [["a", "b", "c"], *rows]))


def test_an_unknown_and_an_empty_cell_differ_in_csv() -> None:
    assert csv_line([None, "", 0, float("nan")]) == ',"",0,\n'


def test_a_number_that_is_none_is_null_in_json() -> None:
    text = printed([["x", 1, float("nan"), None, None], ["y", 1, float("inf"), None, None]], "json")
    assert "NaN" not in text
    assert [row["share"] for row in json.loads(text)] == [None, None]


def test_a_cell_of_a_megabyte_is_cut_with_a_mark() -> None:
    text = printed([["y" * 1_000_000, 1, None, None, None]])
    assert "… (980,000 more characters)" in text and len(text) < 100_000


def test_a_table_to_look_at_has_so_many_rows_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    described = [Column("value", "integer", False, "", "", True)]
    assert print_rows(described, ([n] for n in range(1000)), most=10) == 10
    out, err = capsys.readouterr()
    assert len(out.split()) == 10 + 2
    assert err == ("mmscope: these are the first 10 rows; --format csv and json have all of them\n")


def test_a_number_is_never_folded_and_a_path_is_behind_a_slash() -> None:
    said = display.folded("PID 156, node-7: -2.508 MiB", 18)
    assert said.splitlines() == ["PID 156, node-7:", "-2.508 MiB"]
    assert display.folded("/kube/pod8028/java", 12).splitlines() == ["/kube/", "pod8028/java"]
