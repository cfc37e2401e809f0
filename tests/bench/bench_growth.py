# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench-growth``: CPU time, clock and memory against what there is more of;
beside it another tool, where one does the work.

Each size is a machine or a file of its own; a command is run as its user runs it, and the least of
several runs is taken, as other work on this machine only makes it longer. What grows is beyond the
smallest size: the slope is between it and the largest, and the exponent says whether it is a line.

Draws docs/growth.svg, and writes the table below it into docs/performance.md.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "support"), str(HERE / "lab"), str(HERE.parent)]

import archive  # noqa: E402
import kernels  # noqa: E402
from bench_lake import fleet  # noqa: E402
from bench_scale import MMSCOPE, Run, run  # noqa: E402
from page_owner_inputs import make_stacks, page_owner_records  # noqa: E402
from sparse_machine import many_processes, sparse_machine  # noqa: E402

from mmscope.reports.drawing.charts import Tick, line_chart  # noqa: E402

DOCS = HERE.parent / "docs"
BEGIN, END = "<!-- growth -->\n", "<!-- end of growth -->\n"
RECORDS = 10  # of page_owner, for each stack


@dataclass(frozen=True)
class Size:
    """How many there are, and the commands that read them."""

    count: int
    here: Sequence[str | Path]
    beside: Sequence[str | Path] | None = None


@dataclass
class Axis:
    """
    What there is more of.

    :ivar command: what is run, in words.
    :ivar comes_from: what the slope is spent on.
    """

    name: str
    command: str
    comes_from: str
    sizes: Callable[[Path], list[Size]]
    beside: str = ""
    here_runs: list[tuple[int, Run]] = field(default_factory=list)
    beside_runs: list[tuple[int, Run]] = field(default_factory=list)

    def measure(self, runs: int) -> None:
        """Run all sizes in turn, so that other work is shared out."""
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=archive.cache_folder()) as name:
            sizes = self.sizes(Path(name))
            for size in sizes:
                for words, into in ((size.here, self.here_runs), (size.beside, self.beside_runs)):
                    if words is not None:
                        taken = [run(*words) for _ in range(runs)]
                        into.append((size.count, min(taken, key=lambda each: each.cpu_seconds)))
                        print(self.name, size.count, into[-1][1], file=sys.stderr)


def pages(folder: Path) -> list[Size]:
    """Machines of so many GiB, by MMSCOPE_BENCH_GIB."""
    made = []
    for gib in map(int, os.environ.get("MMSCOPE_BENCH_GIB", "1,4,16,64").split(",")):
        machine = sparse_machine(gib, lambda line: print(line, file=sys.stderr))
        words = ("show", "memory_ledger", "--format", "csv", "--jobs", "1")
        made.append(Size(gib << 18, [MMSCOPE, *words, "--core", machine.vmcore]))
    return made


def stacks(sizes: Sequence[int]) -> Callable[[Path], list[Size]]:
    """Texts of page_owner with so many stacks."""

    def make(folder: Path) -> list[Size]:
        sort = kernels.get("owner").vmlinuz.with_name("page_owner_sort")
        made = []
        for count in sizes:
            path = folder / f"page_owner-{count}"
            with path.open("wb") as file:
                file.writelines(page_owner_records(make_stacks(count), count * RECORDS))
            words = [MMSCOPE, "page-owner", path]
            made.append(Size(count, words, [sort, "-m", path, folder / "sorted"]))
        return made

    return make


def processes(sizes: Sequence[int], sections: str) -> Callable[[Path], list[Size]]:
    """Machines that run so many processes, of which these sections are read."""

    def make(folder: Path) -> list[Size]:
        made = []
        for count in sizes:
            machine = many_processes(count, lambda line: print(line, file=sys.stderr))
            words = ("collect", "--only", sections, "--no-findings")
            into = ("--jobs", "1", "--force", "-o", folder / "bundle")
            made.append(Size(count, [MMSCOPE, *words, *into, "--core", machine.vmcore]))
        return made

    return make


def hosts(sizes: Sequence[int]) -> Callable[[Path], list[Size]]:
    """Lakes of so many hosts; 10,000 take half an hour to add: make bench-lake."""

    def make(folder: Path) -> list[Size]:
        made = []
        for count in sizes:
            lake = folder / f"lake-{count}"
            run(MMSCOPE, "lake", "add", *fleet(folder, count, []), lake)
            made.append(Size(count, [MMSCOPE, "lake", "findings", lake, "--format", "csv"]))
        return made

    return make


AXES = [
    Axis(
        "pages",
        "`show memory_ledger` of a vmcore, one process, without vmlinux",
        "each struct page is read, and put into a class",
        pages,
    ),
    Axis(
        "stacks",
        f"`page-owner` of a text with {RECORDS} records a stack",
        "each record's stack is found by its hash; each new stack is split into frames",
        stacks([1_000, 10_000, 100_000]),
        "page_owner_sort -m",
    ),
    Axis(
        "processes, of 16 VMAs",
        "`collect` of page tables, memory of processes and anon_vmas, one process",
        "tasks, address spaces, VMAs and page tables are read, and the anon_vmas of the VMAs",
        processes([1_000, 10_000, 100_000], "page_tables,process_memory,anon_vmas"),
    ),
    Axis(
        "sleeping processes",
        "`collect` of tasks that wait, one process",
        "tasks are read in runs with their neighbours; the list of them one by one",
        processes([1_000, 10_000, 100_000], "task_waits"),
    ),
    Axis(
        "hosts",
        "`lake findings`",
        "70 findings are asked once over all hosts; each host's tables are loaded",
        hosts([100, 400, 1_000]),
    ),
]


def slope(runs: list[tuple[int, Run]], of: Callable[[Run], float]) -> float:
    """How much more, for one more."""
    (few, small), (many, large) = runs[0], runs[-1]
    return (of(large) - of(small)) / (many - few)


def exponent(runs: list[tuple[int, Run]]) -> float | None:
    """Of CPU time beyond the smallest size, between the last two: 1 is a line."""
    if len(runs) < 3:
        return None
    first = runs[0]
    (few, small), (many, large) = (
        (count - first[0], each.cpu_seconds - first[1].cpu_seconds) for count, each in runs[-2:]
    )
    return math.log(large / small) / math.log(many / few) if small > 0 < large else None


def per_piece(seconds: float) -> str:
    """Time for one of something."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def rows(axis: Axis) -> list[str]:
    """Lines of the table."""
    made = []
    for name, runs in ((axis.command, axis.here_runs), (f"`{axis.beside}`", axis.beside_runs)):
        if not runs:
            continue
        (few, small), (many, large) = runs[0], runs[-1]
        power = exponent(runs)
        cells = (
            axis.name if runs is axis.here_runs else "",
            name,
            f"{few:,} to {many:,}",
            f"{small.cpu_seconds:.2f} to {large.cpu_seconds:.2f} s",
            f"{small.seconds:.2f} to {large.seconds:.2f} s",
            per_piece(slope(runs, lambda each: each.cpu_seconds)),
            "" if power is None else f"{power:.2f}",
            f"{small.peak_bytes >> 20:,} to {large.peak_bytes >> 20:,} MiB",
            f"{slope(runs, lambda each: each.peak_bytes):,.0f} B",
            axis.comes_from if runs is axis.here_runs else "",
        )
        made.append(f"| {' | '.join(cells)} |\n")
    return made


HEAD = (
    "| more | command | from, to | CPU | clock | for one more | exponent | peak memory "
    "| for one more | what it is |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|--:|---|\n"
)


COLORS = ("#0c3795", "#752641", "#b36300", "#6d7500", "#950c0c", "#187a52", "#8e44ad", "#555")
STYLE = """
svg { background: white; font: 12px monospace; }
text { text-anchor: middle; } .axis.y text { text-anchor: end; }
.legend text { text-anchor: start; } .guide { stroke: #ccc; } .zero { stroke: #333; }
.line { fill: none; stroke-width: 1.5; }
"""


def decades(values: Sequence[float]) -> list[Tick]:
    """Powers of ten around all of *values*."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [
        Tick(power, f"{10 ** (power - 6)} M" if power >= 6 else f"{10**power:,}")
        for power in range(first, last + 1)
    ]


def chart(axes: Sequence[Axis]) -> str:
    """CPU time against number, both in powers of ten; what stands beside it is dashed."""
    named = [
        (name, runs, dashes)
        for axis in axes
        for name, runs, dashes in (
            (axis.name, axis.here_runs, "none"),
            (f"{axis.name}: {axis.beside}", axis.beside_runs, "5 5"),
        )
        if runs
    ]
    drawn = line_chart(
        decades([count for _, runs, _ in named for count, _ in runs]),
        decades([each.cpu_seconds for _, runs, _ in named for _, each in runs]),
        [
            [
                (math.log10(n), math.log10(each.cpu_seconds), f"{n:,}: {each.cpu_seconds:.3g}")
                for n, each in runs
            ]
            for _, runs, _ in named
        ],
        x_title="how many; upwards: seconds of CPU",
        describe="CPU seconds, by what there is more of (both in powers of ten)",
        height=420,
    )
    style = "".join(
        f".color-{at} .line {{ stroke: {color}; stroke-dasharray: {dashes}; }} "
        f".color-{at} .dot {{ fill: {color}; }}\n"
        for at, (color, (_, _, dashes)) in enumerate(zip(COLORS, named, strict=False))
    )
    legend = "".join(
        f'<g class="legend color-{at}"><path class="line" d="M60 {20 + 16 * at}h30"/>'
        f'<text x="96" y="{24 + 16 * at}">{escape(name)}</text></g>\n'
        for at, (name, _, _) in enumerate(named)
    )
    head, _, body = drawn.partition("\n")
    return f"{head}\n<style>{STYLE}{style}</style>\n{body.removesuffix('</svg>')}{legend}</svg>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--only", help="axes, with commas between; the docs then have these alone")
    args = parser.parse_args()
    axes = [
        axis for axis in AXES if not args.only or axis.name.split(",")[0] in args.only.split(",")
    ]
    for axis in axes:
        axis.measure(args.runs)
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    table = HEAD + "".join(line for axis in axes for line in rows(axis))
    runs = "One run each" if args.runs == 1 else f"The least of {args.runs} runs each"
    table += f"\n{runs}; load of {os.cpu_count()} CPUs at the end: {load}.\n"
    print(table)
    (DOCS / "growth.svg").write_text(chart(axes) + "\n", encoding="utf-8")
    page = DOCS / "performance.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    if END not in rest:
        raise SystemExit(f"{page}: has no lines {BEGIN.strip()} and {END.strip()}")
    page.write_text(before + BEGIN + table + rest[rest.index(END) :], encoding="utf-8")


if __name__ == "__main__":
    main()
