# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A section's stacks, each once, with the tables and folded files that are made of them.

50,000 stacks of page_owner are 18 MB of text and pack to 1.3 MB: too much for a report. Pooled they
take a third of that. Frames that always follow each other are one run. Stacks are sorted by their
runs, so that each says only where it leaves the one before. A table has the stack's number, its
other columns lie beside each other, each in whichever way packs best, and rows keep their order. A
folded file that is a column of a table says which.

It is JSON (``read`` in it says how to read it), so that whoever has no browser at hand reads it
with ten lines of any language; ``report.js`` makes the files of it.

Cannot know: whether a symbol of an owner is the one frame meant or another of the same name; it is
the text that counts.
"""

import itertools
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mmscope.drgn.tables.rows import Column
from mmscope.reports.pictures.flame_graph import MAX_FRAMES_HELD

# What JavaScript's numbers hold exactly, and the difference of two.
MAX_INTEGER = 1 << 52
# Numbers as characters begin with #; up to [ none is escaped in JSON.
ZERO, DIGITS = 35, 57
MAX_CHARACTER = 1 << 20
READ = (
    "Frames of a stack go from the root to the leaf. 'runs' are frames that always follow each "
    "other, joined by ';'. The characters of a text in 'stacks' are numbers, # (U+0023) being 0, $ "
    "1 and so on, without surrogates: how many runs it has in common with the stack before it; by "
    "how much the number of its next run is beyond the one that stands there in the stack before, "
    "or if none does, that number itself; then the numbers of its further runs. The cells of a "
    "table's column are, in the order of its rows: 'cells', the numbers, or where there are "
    "'digits', a text of so many such characters for each row, in the 'base'; 'steps', the "
    "difference from the row before (from 0); 'times' and 'rest', "
    "of the column 'of': its number times this plus the rest, or where times is negative, its "
    "number less the rest, divided by -times, or where times is 0, the rest; 'at', the place of "
    "the text in 'values', null being an empty cell; 'stack', the number of a stack, written like "
    "'cells', one beyond the last being none; 'leaf', the "
    "symbol of the frame so many from the stack's leaf; 'module', the module of the frame whose "
    "symbol is in that column. Of 'folded', 'values' are those of the stacks by number; or 'value' "
    "and 'root' are columns of 'table', the value to be multiplied by 'times', 'none' the name of "
    "no stack, and rows without a value left out."
)


@dataclass(frozen=True)
class Derived:
    """
    How a folded file follows from a table.

    :ivar value: the column with the values.
    :ivar times: what they are multiplied by.
    :ivar root: the column that is the root of each stack, or nothing.
    :ivar none: what a row without a stack is called.
    """

    table: str
    value: str
    times: int
    root: str
    none: str


class StackPool:
    """The pool of one section."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[list[Column], list[dict[str, Any]]]] = {}
        self._folded: dict[str, dict[str, int]] = {}
        self._derived: dict[str, Derived] = {}
        self._most: list[int] = []

    def add_table(self, name: str, columns: list[Column], rows: list[dict[str, Any]]) -> None:
        """A table with a column ``stack``; *name* is that of its file."""
        self._tables[name] = columns, rows

    def add_folded(self, name: str, stacks: dict[str, int], derived: Derived | None = None) -> None:
        """A folded file. It follows from a table if that is in the pool already."""
        self._most.append(max(stacks.values(), default=0))
        if derived and derived.table in self._tables:
            self._derived[name] = derived
        else:
            self._folded[name] = stacks

    def count(self) -> int:
        """How many stacks there are."""
        return len(self._stacks())

    def _stacks(self) -> set[str]:
        found = {row["stack"] for _, rows in self._tables.values() for row in rows} - {None}
        return found.union(*self._folded.values())

    def read(self) -> Iterator[bytes]:
        """
        The JSON, in pieces.

        :raises OverflowError: there are more runs than it can name, or a file has numbers that
            JavaScript would round.
        """
        # Of folded files that follow from a table, too: they add up.
        if any(value >= MAX_INTEGER for value in self._most):
            raise OverflowError("numbers beyond 2^52")
        runs, lines, numbers = pool(self._stacks())
        yield _json({"what": "mmscope stack pool 1", "read": READ, "runs": runs})[:-1]
        yield b',\n"stacks": ' + _json(lines)
        yield b',\n"tables": ['
        for place, (name, (columns, rows)) in enumerate(self._tables.items()):
            yield b",\n" * bool(place) + _json({"name": name, "rows": len(rows)})[:-1]
            yield b', "columns": [\n'
            yield b",\n".join(_columns(columns, rows, numbers))
            yield b"]}"
        folded: list[dict[str, Any]] = [
            {"name": name, **vars(derived)} for name, derived in self._derived.items()
        ]
        for name, stacks in self._folded.items():
            values = [0] * len(numbers)
            for stack, value in stacks.items():
                values[numbers[stack]] = value
            folded.append({"name": name, "values": values})
        yield b'],\n"folded": ' + _json(folded) + b"}\n"


def _character(number: int) -> str:
    return chr(number + ZERO if number + ZERO < 0xD800 else number + ZERO + 0x800)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def pool(stacks: Iterable[str]) -> tuple[list[str], list[str], dict[str, int]]:
    """
    Stacks without what they have in common.

    :return: (runs of frames; for every stack in characters how many runs it shares with the one
        before, and its further runs; the stacks' numbers).
    :raises OverflowError: there are more than :data:`MAX_CHARACTER` runs.
    """
    stacks = set(stacks)
    if sum(stack.count(";") + 1 for stack in stacks) > MAX_FRAMES_HELD:
        raise OverflowError(f"more than {MAX_FRAMES_HELD:,} frames")
    split = {stack: stack.split(";") for stack in stacks}
    follower: dict[str, str] = {}
    # What is followed by different frames, or by none.
    forks = {frames[-1] for frames in split.values()}
    for frames in split.values():
        for frame, next_frame in pairwise(frames):
            if follower.setdefault(frame, next_frame) != next_frame:
                forks.add(frame)
    run: dict[str, list[str]] = {}
    begins: dict[str, list[str]] = {}
    for stack, frames in split.items():
        at, found = 0, []
        while at < len(frames):
            frame = frames[at]
            if frame not in run:
                run[frame] = chain = [frame]
                while chain[-1] not in forks:
                    chain.append(follower[chain[-1]])
            found.append(frame)
            at += len(run[frame])
        begins[stack] = found
    # Short numbers for what comes often.
    often = Counter(frame for found in begins.values() for frame in found)
    order = sorted(often, key=lambda frame: (-often[frame], frame))
    number = {frame: place for place, frame in enumerate(order)}
    coded = sorted(([number[frame] for frame in begins[stack]], stack) for stack in split)
    if max(len(order), max((len(line) for line, _ in coded), default=0)) >= MAX_CHARACTER:
        raise OverflowError(f"more than {MAX_CHARACTER:,} runs of frames")
    characters = [_character(place) for place in range(len(order))]
    lines: list[str] = []
    before: list[int] = []
    for line, _ in coded:
        shared = 0
        for here, there in zip(line, before, strict=False):
            if here != there:
                break
            shared += 1
        further = [characters[run] for run in line[shared:]]
        if shared < min(len(before), len(line)):
            # They are sorted, so that it is beyond, and not by much.
            further[0] = characters[line[shared] - before[shared]]
        lines.append(_character(shared) + "".join(further))
        before = line
    names = {stack: place for place, (_, stack) in enumerate(coded)}
    return [";".join(run[frame]) for frame in order], lines, names


def _columns(
    columns: list[Column], rows: list[dict[str, Any]], numbers: dict[str, int]
) -> Iterator[bytes]:
    """The columns of a table, each in the way that packs best."""
    stacks = [row["stack"] for row in rows]
    base = owner = ""
    modules: list[str | None] | None = None
    for column in columns:
        name = column.name
        cells = [row[name] for row in rows]
        ways: list[dict[str, Any]] = []
        if name == "stack":
            # One more than the last one stands for no stack.
            ways += _ways("stack", [numbers.get(cell, len(numbers)) for cell in cells])
        elif all(map(_is_exact, cells)):
            ways.append({"steps": [now - was for was, now in pairwise([0, *cells])]})
            ways += _ways("cells", cells)
            if base:
                ways.append(_multiples(base, [row[base] for row in rows], cells))
            base = name
        elif cells == modules:
            ways.append({"module": owner})
        elif column.type == "string" and (found := _from_leaf(cells, stacks)):
            ways.append({"leaf": [place for place, _ in found]})
            owner, modules = name, [module for _, module in found]
        else:
            ways.append(_texts(cells))
        # A text that begins like a formula is marked in the file that becomes of it.
        head = {"name": name, "text": column.type == "string"}
        yield min((_json(head | way) for way in ways), key=lambda text: len(zlib.compress(text, 1)))


def _ways(kind: str, cells: list[int]) -> list[dict[str, Any]]:
    """Numbers as they are; and, for those without any order, as digits of a base that fits."""
    most = max(cells, default=0)
    if min(cells, default=0) < 0:
        return [{kind: cells}]
    digits = next(digits for digits in itertools.count(1) if DIGITS**digits > most)
    base = next(base for base in range(2, DIGITS + 1) if base**digits > most)
    alphabet = [_character(digit) for digit in range(base)]
    by_place = [
        [alphabet[cell // base**place % base] for cell in cells]
        for place in reversed(range(digits))
    ]
    text = "".join(map("".join, zip(*by_place, strict=True)))
    return [{kind: cells}, {kind: text, "digits": digits, "base": base}]


def _is_exact(cell: Any) -> bool:
    return type(cell) is int and abs(cell) < MAX_INTEGER


def _multiples(base: str, bases: list[int], cells: list[int]) -> dict[str, Any]:
    """Cells by those of the column before: bytes of objects, allocations of pages."""
    times, rest = [], []
    for number, cell in zip(bases, cells, strict=True):
        quotient, remainder = 0, cell
        if 0 < number <= cell:
            quotient, remainder = divmod(cell, number)
        elif 0 < cell < number:
            quotient, remainder = divmod(number, cell)
            quotient = -quotient
        times.append(quotient)
        rest.append(remainder)
    return {"of": base, "times": times, "rest": rest}


def _from_leaf(
    cells: list[str | None], stacks: list[str | None]
) -> list[tuple[int | None, str | None]] | None:
    """(how far from the leaf, module) of the frames that cells name; None if one names none."""
    found: list[tuple[int | None, str | None]] = []
    for cell, stack in zip(cells, stacks, strict=True):
        if cell is None:
            found.append((None, None))
            continue
        # As text: to take every stack apart takes several times as long.
        frames = f";{stack or ''};"
        end = len(frames)
        while (begin := frames.rfind(f";{cell}", 0, end)) >= 0:
            after = begin + 1 + len(cell)
            if frames.startswith((";", " ["), after):
                break
            end = after - 1
        if begin < 0 or ";" in cell or " [" in cell:
            return None
        module = frames[after : frames.index(";", after)].removeprefix(" [").removesuffix("]")
        found.append((frames.count(";", after) - 1, module or None))
    return found if any(cells) else None


def _texts(cells: list[Any]) -> dict[str, Any]:
    texts = [_text(cell) for cell in cells]
    values = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {"values": list(values), "at": [values[text] for text in texts]}


def _text(cell: Any) -> str | None:
    """A cell as it stands in a table's file, without quotes; None for an empty one."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return None
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell).replace("\0", "\\x00")
