# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make silent-lies``: single fields of a vmcore that are damaged, and how often nothing is said.

First a vmcore is read with an eye on what of it is read: the members of structures that come as
columns, entries of page tables, and what drgn reads one by one. Then a seed chooses a field, one of
its places, and another value for it; the vmcore itself is not touched. All sections run again. A
damage is *silent* if a table is another than that of the whole vmcore, while every section ends as
it did, no value is marked, nothing more could not be read, and no section says other words (numbers
in them aside).

Fields are chosen, not bytes: each line of source that reads a member has the same chance, however
many pages or processes there are. Some damage nobody can notice: what the kernel keeps in one place
and what may have any value, as a name (:data:`KEPT_ONCE`). It is silent as well, and counted apart
where nothing else of the tables changed. What was silent is printed by field.

Costs: 2 to 4 s of CPU a damage.

    python tests/support/silent_lies.py --times 1000
    python tests/support/silent_lies.py --kernel 7.2 --only 17      # what one does, cell by cell
"""

import argparse
import collections
import csv
import difflib
import functools
import io
import mmap
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

import numpy as np  # noqa: E402
from drgn import FaultError, Program  # noqa: E402
from drgn.helpers.linux.mm import follow_phys  # noqa: E402
from dump_formats import segments  # noqa: E402
from forked import in_a_fork  # noqa: E402

# Three series of x86-64, and arm64.
CORES = (("5.10", "fragment"), ("6.12", "ledger"), ("7.2", "rmap"), ("arm64-6.12", "fragment"))
PLACES = 64  # of a field, that are remembered
WORD = 8
PAGE = 4096
PT_LOAD = 1
SECONDS = 60
MOST_SHOWN = 6
MOST_SILENT = 5  # of 200
NUMBERS = re.compile(r"0x[0-9a-f]+|[\d,.]*\d")
READERS = ("kernel_arrays", "scattered_reads", "bulk_reads")
SILENT, SAID, NO_MATTER = "silent", "said", "no matter"
ONCE = "silent, kept once"
# What the kernel has in one place alone and what may have any value, by table and column, as a
# pattern: no second reading can tell. Beside these, names that people chose, and events.
KEPT_ONCE = {
    "a name": r"slab_\w+ cache|\w+ (holder|module|name|id|filesystem|resource|compressor)|"
    r"vmalloc_callers caller",
    "a number that is given once": r"\w+ (inode|device|shmid|key|creator_\w+|cgroup_id)",
    "what an administrator sets": r"settings value|hugetlb_sizes (overcommit_pages|hvo)|"
    r"memory_cgroups \w*(max|high|low|min)_bytes|swap_areas priority|process_vmas max_map_count",
    "what was written down once": r"(kernel_log|kernel_complaints|oom_\w+|allocation_\w+) "
    r"(\w*seconds|\w*date|level|facility|caller|text|record|what|means|times|kind)",
    "the most that there has been": r"\w+ peak_bytes",
    "what only a file says of itself": r"cached_files (size_bytes|deleted)|file_mappings deleted",
}
CHOSEN = {"comm", "command", "cgroup", "host", "file", "label", "log", "source"}
# Rows of a table of events that are states.
STATES = re.compile(r"nr_|(?!pg|thp_|workingset_|zsw|swp|numa_)\w+$")


@dataclass
class Field:
    """What one line of source reads: its places in memory, some of them if there are many."""

    name: str
    size: int
    seen: int = 0
    sections: set[str] = field(default_factory=set)  # that were first to read it
    places: list[tuple[int, bool]] = field(default_factory=list)  # address, whether physical

    def add(self, address: int, physical: bool, dice: random.Random) -> None:
        self.seen += 1
        if len(self.places) < PLACES:
            self.places.append((address, physical))
        elif (at := dice.randrange(self.seen)) < PLACES:
            self.places[at] = address, physical


class Watched:
    """Notes what is read of a program while sections run. For a fork: it is not taken back."""

    def __init__(self, prog: Program) -> None:
        self.fields: dict[str, Field] = {}
        self._dice = random.Random(0)
        self._within = 0
        self.section = ""
        from mmscope.drgn.reading import kernel_arrays, scattered_reads

        wrapped = {
            kernel_arrays.read_array: self._array,
            kernel_arrays.read_whole: self._array,
            scattered_reads.read_scattered: self._scattered,
        }
        for name, module in list(sys.modules.items()):
            for key, value in list(vars(module).items()) if name.startswith("mmscope.") else ():
                if callable(value) and value.__hash__ and value in wrapped:
                    setattr(module, key, self._noting(value, wrapped[value]))
        self._note_single_reads(prog)

    def _noting(self, function: Any, note: Any) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            note(*args, **options)
            self._within += 1
            try:
                result = function(*args, **options)
                return iter(list(result)) if isinstance(result, Iterator) else result
            finally:
                self._within -= 1

        return noted

    def _add(self, what: str, size: int, addresses: Iterable[int], physical: bool = False) -> None:
        name = f"{_who(sys._getframe(1))} {what}".strip()
        found = self.fields.setdefault(name, Field(name, size))
        found.sections.add(self.section)
        for address in addresses:
            found.add(address, physical, self._dice)

    def _members(self, dtype: np.dtype[Any], addresses: Sequence[int], physical: bool) -> None:
        for name, (format_, offset, *_) in (dtype.fields or {"": (dtype, 0)}).items():
            # Of text, and of arrays, one letter or element.
            size = format_.base.itemsize if format_.base.kind in "iu" else 1
            room = range(0, format_.itemsize, size)
            each = [at + offset + self._dice.choice(room) for at in addresses]
            self._add(name, size, each, physical)

    def _array(
        self,
        prog: Program,
        address: int,
        count: int,
        dtype: np.dtype[Any],
        *gaps: Any,
        physical: bool = False,
        **options: Any,
    ) -> None:
        chosen = self._dice.sample(range(count), min(count, PLACES))
        self._members(dtype, [int(address) + at * dtype.itemsize for at in chosen], physical)

    def _scattered(self, prog: Program, addresses: Any, dtype: np.dtype[Any], gaps: Any) -> None:
        chosen = self._dice.sample(range(len(addresses)), min(len(addresses), PLACES))
        self._members(dtype, [int(addresses[at]) for at in chosen], False)

    def _note_single_reads(self, prog: Program) -> None:
        """What drgn reads one by one, and page tables, by putting all memory in its own place."""
        with Path(prog.core_dump_path or "").open("rb") as file:
            loads = [part for part in segments(file)[1] if part[0] == PT_LOAD]
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for _, _, place, _, first, size, _, _ in loads:

            def read(
                address: int, count: int, offset: int, physical: bool, place: int = place
            ) -> bytes:
                if not self._within:
                    self._single(address, count)
                return data[place + offset : place + offset + count]

            prog.add_memory_segment(first, size, read, True)

    def _single(self, address: int, count: int) -> None:
        words = range(address, address + count - WORD + 1, WORD)
        # Not the kernel's own page tables, which drgn reads up to their end for what lies there.
        if count <= WORD and (address + count) % PAGE:
            self._add("", count, [address], True)
        elif count > WORD and "page_table_entries" in _who(sys._getframe(1)):
            self._add("entry", WORD, self._dice.sample(words, min(len(words), PLACES)), True)


def _who(frame: FrameType | None) -> str:
    """The line of mmscope that reads."""
    while frame is not None:
        module = frame.f_globals["__name__"]
        if module.startswith("mmscope.drgn.") and not module.endswith(READERS):
            return f"{module.rpartition('.')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def fields_of(prog: Program) -> list[Field]:
    """Every field that the sections read, and its places."""

    def watched() -> list[Field]:
        watch = Watched(prog)
        collected(prog, progress=lambda section, *_: setattr(watch, "section", section))
        return sorted(watch.fields.values(), key=lambda each: each.name)

    return [each for each in in_a_fork(watched) if each.places and each.size]


@dataclass(frozen=True)
class Reading:
    """What a user has of a vmcore: files of tables, and what the sections say."""

    tables: dict[str, bytes]
    said: list[tuple[Any, ...]]


def collected(prog: Program, only: Sequence[str] = (), progress: Any = None) -> Reading:
    """All sections, or some, as a bundle."""
    from mmscope.drgn.opening.target import describe
    from mmscope.drgn.sections.memory import Memory
    from mmscope.reports.bundle.writer import Writer
    from mmscope.reports.collect.collect import collect

    with tempfile.TemporaryDirectory(prefix="mmscope-lies.") as name:
        path = Path(name) / "bundle"
        with Writer(path) as writer:
            target = describe(prog, "vmcore")
            sections = collect(Memory(prog), target, writer, only, progress=progress)
        tables = {each.name: each.read_bytes() for each in sorted(path.glob("*.csv"))}
    del tables["sections.csv"]  # has seconds
    marks = tables.pop("impossible_values.csv", b"")
    said = [
        (each.section, each.status, each.unreadable_bytes, NUMBERS.sub("", each.message or ""))
        for each in sections
    ]
    return Reading(tables, [*said, (marks,)])


def other_value(dice: random.Random, old: bytes) -> tuple[str, bytes]:
    """Another value of a field, and what it is."""
    bits = 8 * len(old)
    number = int.from_bytes(old, "little")
    values = {
        "a bit flips": number ^ 1 << dice.randrange(bits),
        "noise": dice.getrandbits(bits),
        "zeros": 0,
        "ones": (1 << bits) - 1,
        "a high bit": number | 1 << bits * 5 // 8,
    }
    how = dice.choice([how for how, value in values.items() if value != number])
    return how, values[how].to_bytes(len(old), "little")


@dataclass(frozen=True)
class Result:
    """What came of a damage."""

    seed: str
    field: str
    how: str
    outcome: str  # one of the three, or how it ended
    cells: list[str]


def damaged(
    prog: Program,
    fields: Sequence[Field],
    whole: Reading,
    some: Callable[[tuple[str, ...]], Reading],
    seed: str,
) -> Result:
    """
    Damage the field that a seed chooses, and hold what comes of it against the whole.

    :param some: what some sections make of it without damage.
    :raises FaultError: it has no place in memory.
    """
    dice = random.Random(seed)
    chosen = dice.choice(fields)
    address, physical = dice.choice(chosen.places)
    if not physical:
        address = follow_phys(prog["init_mm"].address_of_(), address).value_()
    old = prog.read(address, chosen.size, True)
    how, new = other_value(dice, old)

    def read(at: int, count: int, offset: int, physical: bool) -> bytes:
        return new[offset : offset + count]

    first = tuple(sorted(chosen.sections))
    said = some(first).said

    def again() -> tuple[str, list[str]]:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
        prog.add_memory_segment(address, len(new), read, True)
        # Mostly those that were first to read it say so, and the others need not run.
        found, usual = collected(prog, first), said
        if found.said == said:
            found, usual = collected(prog), whole.said
        if found.said != usual:
            both = zip(usual, found.said, strict=True)
            return SAID, [f"{was} / {now}" for was, now in both if was != now]
        cells = list(changes(whole.tables, found.tables))
        if cells and known_elsewhere(whole.tables) == known_elsewhere(found.tables):
            return ONCE, cells
        return (SILENT if cells else NO_MATTER), cells

    try:
        outcome, cells = in_a_fork(again)
    except RuntimeError as error:
        outcome, cells = f"died: {str(error).strip().splitlines()[-1]}", []
    values = f"{how}, {old[::-1].hex()} is {new[::-1].hex()}"
    return Result(seed, chosen.name, values, outcome, cells[:MOST_SHOWN])


def changes(whole: dict[str, bytes], found: dict[str, bytes]) -> Iterator[str]:
    """The lines of tables that are others, before and after."""
    for name in sorted({*whole, *found}):
        lines = [tables.get(name, b"").decode().splitlines() for tables in (whole, found)]
        if lines[0] != lines[1]:
            yield from (
                f"{name} {line}"
                for line in difflib.unified_diff(*lines, n=0, lineterm="")
                if line[:1] in "+-" and line[:3] not in ("+++", "---")
            )


def known_elsewhere(tables: dict[str, bytes]) -> dict[str, list[tuple[str, ...]]]:
    """The rows without what is kept once; in an order of their own, as names are part of it."""
    from mmscope.drgn.sections.registry import SECTIONS
    from mmscope.drgn.tables.rows import columns

    found = {}
    of = {table.name: columns(table.row) for spec in SECTIONS.values() for table in spec.tables}
    once = re.compile("|".join(KEPT_ONCE.values()))
    for file, data in tables.items():
        name = file.removesuffix(".csv")
        declared = of.get(name, [])
        kept = {
            c.name: c.holds in CHOSEN or bool(once.fullmatch(f"{name} {c.name}")) for c in declared
        }
        events = {c.name for c in declared if c.events}
        rows = []
        for row in csv.DictReader(io.StringIO(data.decode())):
            state = "counter" in row or "kind" in row
            named = row.get("counter") or row.get("name") or "pg"
            passed = events if not state or not STATES.match(named) else set()
            rows.append(tuple(v for k, v in row.items() if not kept.get(k) and k not in passed))
        found[name] = sorted(rows)
    return found


def run(kernel: str, workload: str, seeds: Iterable[str]) -> list[Result]:
    """Damages of one vmcore, one for each seed."""
    from capture import capture
    from conftest import FUNCTIONS_ONLY, WITHOUT_BTF

    from mmscope.drgn.opening.target import open_target
    from mmscope.drgn.sections import registry  # noqa: F401  # once for all forks

    taken = capture(kernel, workload)
    needs = taken.kernel in FUNCTIONS_ONLY | WITHOUT_BTF
    prog = open_target(taken.vmcore, [taken.vmlinux] if needs else [])
    fields = fields_of(prog)

    @functools.cache
    def some(sections: tuple[str, ...]) -> Reading:
        return in_a_fork(lambda: collected(prog, sections))

    whole = some(())
    print(f"{kernel}, {workload}: {len(fields)} fields are read", flush=True)
    results = []
    for seed in seeds:
        try:
            result = damaged(prog, fields, whole, some, f"{kernel} {seed}")
        except FaultError:
            continue
        results.append(result)
        print(f"seed {seed}: {result.field}: {result.how}: {result.outcome}", flush=True)
        for cell in result.cells:
            print(f"    {cell[:200]}")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="single damaged fields of which nothing is said")
    parser.add_argument("--times", type=int, default=1000, help="damages, of all kernels together")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kernel", help="of one of the kernels only")
    parser.add_argument("--only", help="one seed")
    parser.add_argument("--seconds", type=float, default=7200, help="no damage begins after")
    args = parser.parse_args()
    begin = time.monotonic()
    results = []
    cores = [core for core in CORES if args.kernel in (None, core[0])]
    for number, (kernel, workload) in enumerate(cores):
        numbers = range(args.first + number, args.first + args.times, len(cores))
        until = begin + args.seconds * (number + 1) / len(cores)
        seeds = (str(n) for n in numbers if time.monotonic() < until)
        results += run(kernel, workload, [args.only] if args.only else seeds)
    counts = collections.Counter(result.outcome.partition(":")[0] for result in results)
    for outcome in (SILENT, ONCE):
        fields = collections.Counter(each.field for each in results if each.outcome == outcome)
        print(f"\n{outcome}, by field:")
        for what, times in fields.most_common():
            print(f"{times:5} {what}")
    silent, share = counts[SILENT] + counts[ONCE], 200 / max(len(results), 1)
    print(
        f"{len(results)} damages: {', '.join(f'{n} {what}' for what, n in counts.most_common())}; "
        f"{share * silent:.1f} of 200 are silent, {share * counts[SILENT]:.1f} of what is not kept "
        f"once ({time.monotonic() - begin:,.0f} s)"
    )
    return 1 if counts["died"] or share * silent > MOST_SILENT else 0


if __name__ == "__main__":
    sys.exit(main())
