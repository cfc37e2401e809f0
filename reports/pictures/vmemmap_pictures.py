# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Cost of struct pages as pictures: which frame each page of one huge page's struct pages lies on,
the machine's sections by mapping, and page metadata as a sum.

Drawn from run-length encoded tables, without ever unfolding them to entries: of a page of 1 GiB the
first of its 4,096 entries are drawn, and how many more there are is said. On a machine of more than
:data:`MAX_CELLS` sections a cell of the map stands for several.

Cannot know: more than the tables say. Which section a cell stands for is in the table.
"""

from collections.abc import Iterable
from typing import Any

from mmscope.drgn.tables.display import size
from mmscope.reports.drawing.refusals import Damaged
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

# Of one huge page: entries drawn one by one.
MAX_DRAWN = 8
MAX_EXAMPLES = 8
COLUMNS = 64
MAX_CELLS = 4096
# 1 PiB in sections of 128 MiB; more is damage.
MAX_SECTIONS = 1 << 23
MAX_BORDERS = 64
LOOKS = ("pmd", "pte", "pud", "pmd+pte", "none")
MARKS = {"device": "device", "self-hosted": "hosted"}


@picture(
    "vmemmap_sections",
    "start_pfn sections node zone origin mapping reused_eighths reused_bytes",
)
def vmemmap_sections(tables: Tables, page_size: int | None) -> Row:
    """Every section in physical order; holes between them are left out and marked."""
    runs = sorted(tables["vmemmap_sections"], key=lambda row: row["start_pfn"])
    for run in runs:
        if run["sections"] <= 0:
            raise Damaged(f"a run of {run['sections']} sections cannot be")
    total = sum(run["sections"] for run in runs)
    if total > MAX_SECTIONS:
        raise Damaged(f"{total:,} sections cannot be")
    per_cell = -(-total // MAX_CELLS)
    strokes: dict[tuple[str, int], list[tuple[int, int]]] = {}  # by look and eighths of the height
    legend: dict[tuple[str, str], list[Row]] = {}
    borders: list[tuple[int, int, str]] = []  # row, column, what begins
    at, zone = 0, ""
    for run in runs:
        look = (run["mapping"] if run["mapping"] in LOOKS else "none").replace("+", "-")
        origin = str(run["origin"])
        legend.setdefault((look, origin), []).append(run)
        name = f"node {run['node']} {str(run['zone']).rstrip('*')}"
        first, at = -(-at // per_cell), at + run["sections"]
        end = -(-at // per_cell)
        if first == end:
            continue
        if name != zone and len(borders) < MAX_BORDERS:
            borders.append((*divmod(first, COLUMNS), name))
            zone = name
        own = 8 - min(max(run["reused_eighths"], 0), 8)
        for key in ((f"{look} whole", 8), (look, own), (MARKS.get(origin, ""), 2)):
            if all(key):
                strokes.setdefault(key, []).append((first, end))
    # Pale cells below, then what is not saved, then marks.
    order = sorted(
        strokes, key=lambda key: (not key[0].endswith("whole"), key[0] in MARKS.values())
    )
    return {
        "sections": total,
        "per_cell": per_cell,
        "rows": -(-total // per_cell // COLUMNS),
        "strokes": [(look, _path(strokes[look, eighths]), eighths / 8) for look, eighths in order],
        "borders": borders,
        "legend": [
            (*names, sum(r["sections"] for r in runs), sum(r["reused_bytes"] for r in runs))
            for names, runs in legend.items()
        ],
    }


def _path(spans: Iterable[tuple[int, int]]) -> str:
    """Horizontal strokes through cells, broken at the ends of rows."""
    parts = []
    for first, end in spans:
        while first < end:
            row, column = divmod(first, COLUMNS)
            length = min(end - first, COLUMNS - column)
            parts.append(f"M{column} {row}h{length}")
            first += length
    return "".join(parts)


@picture(
    "vmemmap_examples",
    "example pfn page_bytes first entries frame_pfn same_frame level writable",
)
def vmemmap_examples(tables: Tables, page_size: int | None) -> list[Row]:
    """Each huge page of the table, head first."""
    drawn: dict[tuple[str, int], list[Row]] = {}
    for row in tables["vmemmap_examples"]:
        drawn.setdefault((str(row["example"]), row["pfn"]), []).append(row)
    return [
        {
            "title": f"{name}, {size(runs[0]['page_bytes'])} at pfn {pfn:#x}",
            "piece": size(page_size) if page_size else "a page",  # what one entry stands for
        }
        | _example(runs)
        for (name, pfn), runs in list(drawn.items())[:MAX_EXAMPLES]
    ]


def _example(runs: Rows) -> Row:
    """Entries and the frames that they lead to, how many there are, and on how many frames."""
    users: dict[int, int] = {}
    ranges: list[tuple[int, int]] = []
    for run in runs:
        count, frame = run["entries"], run["frame_pfn"]
        if count <= 0:
            raise Damaged("a run of no entries")
        if run["same_frame"]:
            users[frame] = users.get(frame, 0) + count
        else:
            ranges.append((frame, count))
    distinct = len(users)
    for frame, count in ranges:
        distinct += count
        # One of these may be a frame that others share: the head's, on kernels before 7.1.
        for shared in [each for each in users if frame <= each < frame + count]:
            users[shared] += 1
            distinct -= 1
    entries: list[tuple[str, int, str, str]] = []  # label, place of the frame, look, title
    frames: dict[int, tuple[int, str, bool]] = {}  # by frame: place, label, shared
    for run in runs:
        first, count, same = run["first"], run["entries"], run["same_frame"]
        look, access = ("rw", "") if run["writable"] else ("ro", ", read-only")
        room = max(MAX_DRAWN - len(entries), 1)
        one_by_one = count if count <= room else room - 1
        for number in range(min(one_by_one + 1, count)):
            frame = run["frame_pfn"] + (0 if same else number)
            # Those that are not drawn one by one are the last.
            rest = count - one_by_one if number == one_by_one else 1
            label = f"{first + number}" if rest == 1 else f"{first + number} … {first + count - 1}"
            many = rest > 1 and not same  # frames that follow one another
            if frame not in frames:
                words = f"{frame:#x} … {frame + rest - 1:#x}" if many else f"{frame:#x}"
                frames[frame] = len(frames), words, users.get(frame, 1) > 1 and not many
            way = f"frame {frame:#x}{access}, by a {run['level']}"
            title = f"page {label} of the struct pages: {way}"
            entries.append((label, frames[frame][0], look, title))
    total = sum(run["entries"] for run in runs)
    return {"entries": entries, "frames": [*frames.values()], "total": total, "distinct": distinct}


@picture("memory_about_memory", "part bytes percent counted_in on_device")
def memory_about_memory(tables: Tables, page_size: int | None) -> Row:
    """The parts grouped by the counter that has them, and what all of them take of RAM."""
    counters: dict[str, list[Row]] = {}
    for row in tables["memory_about_memory"]:
        counters.setdefault(row["counted_in"] or "", []).append(row)
    sums: list[tuple[str, list[Row], int, int]] = []  # counter, parts, total, remainder
    for counter in sorted(counters, key=lambda name: (not name, name)):
        here = counters[counter]
        rest = [row for row in here if str(row["part"]).startswith("remainder")]
        parts = [row for row in here if row not in rest]
        total, remainder = (sum(row["bytes"] for row in rows) for rows in (here, rest))
        sums.append((counter, parts, total, remainder))
    ram = [row for _, parts, *_ in sums for row in parts if not row["on_device"]]
    return {
        "sums": sums,
        "ram": sum(row["bytes"] for row in ram),
        "percent": sum(float(row["percent"]) for row in ram),
        "widest": max((row["bytes"] for row in ram), default=0),
    }


@picture("memmap_what_if", "scheme metadata_bytes saved_bytes saved_percent formula")
def memmap_what_if(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The table with a bar for each scheme."""
    # Older bundles do not have these.
    timed: Row = dict.fromkeys(("initialised_struct_pages", "init_ms_low", "init_ms_high"))
    rows = [timed | row for row in tables["memmap_what_if"]]
    return {"rows": rows, "most": max(row["saved_bytes"] for row in rows)}
