# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What struct pages cost, as pictures: which frame each page of one huge page's struct pages lies on,
the machine's sections by mapping, and memory about memory as a sum.

Drawn from run-length encoded tables, without ever unfolding them to entries: of a page of 1 GiB the
first of its 4,096 entries are drawn, and how many more there are is said. On a machine of more than
:data:`MAX_CELLS` sections a cell of the map stands for several.

Cannot know: more than the tables say. Which section a cell stands for is in the table.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mmscope.drgn.tables.amounts import size
from mmscope.reports.drawing.refusals import Damaged
from mmscope.reports.pictures.picture import Picture, Tables

Rows = list[dict[str, Any]]

# Of one huge page: entries drawn one by one.
MAX_DRAWN = 8
MAX_EXAMPLES = 8
COLUMNS = 64
MAX_CELLS = 4096
# 1 PiB in sections of 128 MiB; more is damage.
MAX_SECTIONS = 1 << 23
LOOKS = ("pmd", "pte", "pud", "pmd+pte", "none")
MARKS = {"device": "device", "self-hosted": "hosted"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of struct pages, or a row of them that is not drawn one by one."""

    row: int
    label: str
    frame: int  # index into Example.frames
    look: str
    title: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A page frame that entries lead to."""

    row: int
    label: str
    users: int
    shared: bool


@dataclass
class Example:
    """The struct pages of one huge page."""

    title: str
    piece: str  # what one entry stands for: a page
    entries: list[Entry] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    total: int = 0
    distinct: int = 0

    @property
    def rows(self) -> int:
        return max(len(self.entries), len(self.frames), 1)


def examples(tables: Tables, page_size: int | None) -> list[Example]:
    """Each huge page of the table, head first."""
    drawn: dict[tuple[str, int], Rows] = {}
    for row in tables["vmemmap_examples"]:
        drawn.setdefault((str(row["example"]), int(row["pfn"])), []).append(row)
    return [
        _example(f"{name}, {size(int(runs[0]['page_bytes']))} at pfn {pfn:#x}", runs, page_size)
        for (name, pfn), runs in list(drawn.items())[:MAX_EXAMPLES]
    ]


def _example(title: str, runs: Rows, page_size: int | None) -> Example:
    example = Example(title, size(page_size) if page_size else "a page")
    users: dict[int, int] = {}
    ranges: list[tuple[int, int]] = []
    for run in runs:
        count, frame = int(run["entries"]), int(run["frame_pfn"])
        if count <= 0:
            raise Damaged("a run of no entries")
        example.total += count
        if run["same_frame"]:
            users[frame] = users.get(frame, 0) + count
        else:
            ranges.append((frame, count))
    for frame, count in ranges:
        example.distinct += count
        # One of these may be a frame that others share: the head's, on kernels before 7.1.
        for shared in [each for each in users if frame <= each < frame + count]:
            users[shared] += 1
            example.distinct -= 1
    example.distinct += len(users)
    places: dict[int, int] = {}
    for run in runs:
        _draw_run(example, run, users, places)
    return example


def _draw_run(
    example: Example, run: dict[str, Any], users: dict[int, int], places: dict[int, int]
) -> None:
    first, count, frame = int(run["first"]), int(run["entries"]), int(run["frame_pfn"])
    same, writable = bool(run["same_frame"]), bool(run["writable"])
    look = "rw" if writable else "ro"
    access = "" if writable else ", read-only"
    room = max(MAX_DRAWN - len(example.entries), 1)
    one_by_one = count if count <= room else room - 1
    for number in range(one_by_one + (one_by_one < count)):
        at = frame if same else frame + number
        rest = count - one_by_one if number == one_by_one else 1
        label = f"{first + number}" if rest == 1 else f"{first + number} … {first + count - 1}"
        if rest > 1 and not same:
            # Frames that follow one another stand for each other.
            users[at] = rest
        if at not in places:
            places[at] = len(example.frames)
            shared = users.get(at, 1)
            many = rest > 1 and not same
            words = f"{at:#x} … {at + rest - 1:#x}" if many else f"{at:#x}"
            example.frames.append(Frame(places[at], words, shared, shared > 1 and not many))
        title = f"page {label} of the struct pages: frame {at:#x}{access}, by a {run['level']}"
        example.entries.append(Entry(len(example.entries), label, places[at], look, title))


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of one look, as a path of horizontal strokes."""

    look: str
    path: str
    height: float  # of the cell, from its bottom


@dataclass
class SectionMap:
    """The machine's sections."""

    sections: int = 0
    per_cell: int = 1
    rows: int = 0
    cells: list[Cells] = field(default_factory=list)
    borders: list[tuple[int, int, str]] = field(default_factory=list)  # row, column, what begins
    legend: list[tuple[str, str, int, int]] = field(default_factory=list)


def section_map(tables: Tables, page_size: int | None) -> SectionMap:
    """Every section in physical order; holes between them are left out and marked."""
    runs = sorted(tables["vmemmap_sections"], key=lambda row: int(row["start_pfn"]))
    total = sum(int(run["sections"]) for run in runs)
    for run in runs:
        if int(run["sections"]) <= 0:
            raise Damaged(f"a run of {run['sections']} sections cannot be")
    if total > MAX_SECTIONS:
        raise Damaged(f"{total:,} sections cannot be")
    drawn = SectionMap(total, -(-total // MAX_CELLS))
    cells = -(-total // drawn.per_cell)
    drawn.rows = -(-cells // COLUMNS)
    strokes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    counts: dict[tuple[str, str], list[int]] = {}
    at, zone = 0, ""
    for run in runs:
        count = int(run["sections"])
        look = run["mapping"] if run["mapping"] in LOOKS else "none"
        origin = str(run["origin"])
        sums = counts.setdefault((look.replace("+", "-"), origin), [0, 0])
        sums[0] += count
        sums[1] += int(run["reused_bytes"])
        name = f"node {run['node']} {str(run['zone']).rstrip('*')}"
        first, behind = -(-at // drawn.per_cell), -(-(at + count) // drawn.per_cell)
        if first < behind:
            if name != zone and len(drawn.borders) < MAX_EXAMPLES * 8:
                drawn.borders.append((first // COLUMNS, first % COLUMNS, name))
                zone = name
            own = 8 - min(max(int(run["reused_eighths"]), 0), 8)
            for key in ((f"{look.replace('+', '-')} whole", 8), (look.replace("+", "-"), own)):
                strokes.setdefault(key, []).append((first, behind))
            if origin in MARKS:
                strokes.setdefault((MARKS[origin], 2), []).append((first, behind))
        at += count
    # Pale cells below, then what is not saved, then marks.
    order = sorted(
        strokes, key=lambda key: (not key[0].endswith("whole"), key[0] in MARKS.values())
    )
    drawn.cells = [Cells(key[0], _path(strokes[key]), key[1] / 8) for key in order if key[1]]
    drawn.legend = [(*names, sections, saved) for names, (sections, saved) in counts.items()]
    return drawn


def _path(spans: Iterable[tuple[int, int]]) -> str:
    """Horizontal strokes through cells, broken at the ends of rows."""
    parts = []
    for first, behind in spans:
        while first < behind:
            row, column = divmod(first, COLUMNS)
            length = min(behind - first, COLUMNS - column)
            parts.append(f"M{column} {row}h{length}")
            first += length
    return "".join(parts)


@dataclass
class Sum:
    """The parts of one counter of /proc/vmstat, and the counter."""

    counter: str
    parts: Rows
    total: int
    remainder: int


def memory_about_memory(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The parts grouped by the counter that has them, and what all of them take of RAM."""
    rows = tables["memory_about_memory"]
    counters = list(dict.fromkeys(row["counted_in"] or "" for row in rows))
    sums = []
    for counter in sorted(counters, key=lambda name: (not name, name)):
        here = [row for row in rows if (row["counted_in"] or "") == counter]
        parts = [row for row in here if not str(row["part"]).startswith("remainder")]
        rest = [int(row["bytes"]) for row in here if str(row["part"]).startswith("remainder")]
        total = sum(int(row["bytes"]) for row in here)
        sums.append(Sum(counter, parts, total, sum(rest)))
    ram = [row for group in sums for row in group.parts if not row["on_device"]]
    widest = max((int(row["bytes"]) for row in ram), default=0)
    return {
        "sums": sums,
        "ram": sum(int(row["bytes"]) for row in ram),
        "percent": sum(float(row["percent"]) for row in ram),
        "widest": widest,
    }


def what_if(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The table with a bar for each scheme."""
    names = ("initialised_struct_pages", "init_ms_low", "init_ms_high")
    timed: dict[str, Any] = dict.fromkeys(names)
    rows = [timed | row for row in tables["memmap_what_if"]]  # older bundles do not have these
    most = max(int(row["saved_bytes"]) for row in rows)
    return {"rows": rows, "most": most}


VMEMMAP_SECTIONS = Picture(
    "vmemmap_sections",
    "vmemmap_sections",
    frozenset({"start_pfn", "sections", "node", "zone", "origin", "mapping"})
    | {"reused_eighths", "reused_bytes"},
    section_map,
)
VMEMMAP_EXAMPLES = Picture(
    "vmemmap_examples",
    "vmemmap_examples",
    frozenset({"example", "pfn", "page_bytes", "first", "entries", "frame_pfn", "same_frame"})
    | {"level", "writable"},
    examples,
)
MEMORY_ABOUT_MEMORY = Picture(
    "memory_about_memory",
    "memory_about_memory",
    frozenset({"part", "bytes", "percent", "counted_in", "on_device"}),
    memory_about_memory,
)
MEMMAP_WHAT_IF = Picture(
    "memmap_what_if",
    "memmap_what_if",
    frozenset({"scheme", "metadata_bytes", "saved_bytes", "saved_percent", "formula"}),
    what_if,
)
