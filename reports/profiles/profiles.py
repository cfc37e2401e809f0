# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles in a bundle: a recording is folded, and its tables join those that are there.

The bundle is written anew beside the old one and takes its place at once, so that it has the whole
profile or none of it.
"""

import contextlib
import dataclasses
import datetime
import os
import re
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import Table
from mmscope.perf import stack_parts
from mmscope.perf.folding import Fold, Folded
from mmscope.perf.perf_record import Recorded
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.recipe import Recipe, event_name
from mmscope.perf.stack_parts import KnownFrames
from mmscope.reports.bundle.bundle import Bundle, BundleError, Cell, SectionResult, Writer
from mmscope.reports.profiles import profile_rows
from mmscope.reports.profiles.profile_rows import (
    Profile,
    ProfileAllocation,
    ProfileCounter,
    ProfileDuration,
    ProfileFaults,
    ProfileFrame,
    ProfileGroup,
    ProfileMoment,
    ProfileNote,
    ProfilePageTables,
    ProfilePart,
    ProfileReaping,
    ProfileRecording,
    ProfileSite,
    ProfileVictim,
)

SECTION = "profiles"
TOP_FRAMES = 50
PAGE_TABLES, FAULTS = "nr_page_table_pages", "pgfault"  # of /proc/vmstat
# A name for the time that an irq-enable site stands for, once it is its caller's.
REATTRIBUTED = "(with interrupts off)_[k]"
TABLES = {table.name: table for table in vars(profile_rows).values() if isinstance(table, Table)}
# Of these no rows is an answer, too.
ALWAYS = {"profiles", "profile_parts", "profile_sites", "profile_reaping", "profile_notes"}
SOFTWARE_FAULTS = ("minor-faults", "major-faults", "page-faults")

Progress = Callable[[int, int], None]


@dataclass
class Making:
    """How a recording was made. What a file that was brought in does not tell is None."""

    label: str | None = None
    against: str | None = None
    seconds: float | None = None
    scope: str | None = None
    ended: str | None = None
    command: str | None = None
    captured_at: str | None = None
    release: str | None = None
    architecture: str = "x86_64"
    by_period: bool = False
    partial: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)  # whose descendants are wanted
    left_out: list[str] = field(default_factory=list)  # events of the recipe
    missed: dict[str, int] = field(default_factory=dict)  # probes that could not run, by event
    # At the begin, and when there were most page tables: as of page_tables_now().
    page_tables: list[list[int]] = field(default_factory=list)

    def told(self, recorded: Recorded) -> dict[str, Any]:
        """All of it that belongs to the recording, to be written beside its text."""
        told = {name: getattr(self, name) for name in _TOLD}
        return told | {"recorded": dataclasses.asdict(recorded)}

    def hear(self, told: dict[str, Any]) -> Recorded:
        """
        Take what :meth:`told` gave, possibly elsewhere.

        :raises ValueError: it is something else.
        """
        for name, kinds in _TOLD.items():
            value = told.get(name, _TOLD_SINCE[name]) if name in _TOLD_SINCE else told[name]
            if not isinstance(value, kinds):
                raise ValueError(f"{name} is {str(value)[:40]!r}")
            setattr(self, name, value)
        recorded = Recorded(**told["recorded"])
        for values in (self.counters, self.pids, self.missed, recorded.samples, recorded.lost):
            numbers = values.values() if isinstance(values, dict) else values
            if not all(isinstance(value, int) for value in numbers):
                raise ValueError("a number is not valid")
        for three in self.page_tables:
            if not (isinstance(three, list) and len(three) == 3):
                raise ValueError("page_tables is not valid")
            if not all(isinstance(value, int) for value in three):
                raise ValueError("a number is not valid")
        if not all(isinstance(n, str) for n in self.partial + self.remarks + self.left_out):
            raise ValueError("a note is not valid")
        return recorded


_TOLD: dict[str, Any] = {
    "seconds": float | None,
    "scope": str | None,
    "ended": str | None,
    "command": str | None,
    "captured_at": str | None,
    "release": str | None,
    "architecture": str,
    "partial": list,
    "remarks": list,
    "counters": dict,
    "pids": list,
    "left_out": list,
    "missed": dict,
    "page_tables": list,
}
# Texts that were kept before lack these.
_TOLD_SINCE: dict[str, Any] = {"left_out": [], "missed": {}, "page_tables": []}


@dataclass
class Profiled:
    """The rows of one recording, by table, and its folded stacks."""

    name: str
    rows: dict[str, list[Any]]
    folded: list[tuple[str, str, str, list[tuple[str, int]]]]  # name, title, unit, stacks


def now() -> str:
    """This moment, as it is written down."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def vmstat(names: Iterable[str]) -> dict[str, int]:
    """Counters of /proc/vmstat; those that this kernel lacks are left out."""
    wanted = set(names)
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name in wanted:
                found[name] = int(value)
    return found


def page_tables_now() -> list[int] | None:
    """[monotonic ns, bytes of page tables, page faults since boot]; None: the kernel tells not."""
    found = vmstat((PAGE_TABLES, FAULTS))
    if len(found) < 2:
        return None
    return [time.monotonic_ns(), found[PAGE_TABLES] * os.sysconf("SC_PAGE_SIZE"), found[FAULTS]]


def profile_name(wanted: str, taken: Iterable[str]) -> str:
    """A name for a recording that no other has."""
    base = re.sub(r"[^a-z0-9]+", "_", wanted.lower()).strip("_")[:40] or "profile"
    base = base if base[0].isalpha() else f"p_{base}"
    names, number, name = set(taken), 1, base
    while name in names:
        number += 1
        name = f"{base}_{number}"
    return name


def fold_stream(fold: Fold, reading: Reading, stream: IO[bytes], progress: Progress | None) -> None:
    """Fold the text of ``perf script``."""
    reading.on_fork = fold.fork
    add = fold.add
    for sample in read_samples(stream, reading, progress):
        add(sample)


def profiled(
    name: str,
    fold: Fold,
    reading: Reading,
    recorded: Recorded | None,
    recipe: Recipe | None,
    making: Making,
) -> Profiled:
    """The rows of a recording that has been folded."""
    fold.finish()
    partial, remarks = list(making.partial), list(making.remarks)
    if making.ended and "limit" in making.ended:
        partial.append(f"the recording ended early: {making.ended}")
    if reading.unread_bytes:
        partial.append(
            f"{reading.unread_bytes:,} bytes of perf's text fit no sample and are not counted"
        )
    if recorded is not None and recorded.throttled:
        remarks.append(f"the kernel throttled sampling {recorded.throttled:,} times: too frequent")
    rows: dict[str, list[Any]] = {table: [] for table in TABLES}
    stacks = []
    for event in fold.events.values():
        row, cells, unit = _event_rows(name, event, fold.known, recorded, recipe, making, partial)
        if reading.lost and recorded is None and row.lost is None:
            row = dataclasses.replace(row, lost=reading.lost if len(fold.events) == 1 else None)
        rows["profiles"].append(row)
        if row.file is not None:
            title = f"{recipe.title if recipe else name}: {event.event}, width in {unit}"
            stacks.append((row.file, title, unit, cells))
        for table, made in _details(name, event, fold, row.nmi):
            rows[table] += made
    lost = sum(row.lost or 0 for row in rows["profiles"]) or reading.lost
    if lost:
        kept = sum(row.recorded for row in rows["profiles"])
        partial.append(
            f"{lost:,} samples were lost, {kept:,} are here: larger buffers or fewer events"
        )
    for probed, times in making.missed.items():
        if times:
            partial.append(
                f"{probed}: the kernel met the probe {times:,} more times and could not run it"
            )
    if fold.more_moments:
        partial.append(f"{fold.more_moments:,} more events are not in profile_moments")
    if fold.more_durations:
        remarks.append(f"the last {fold.more_durations:,} durations are not counted")
    rows["profile_recordings"] = [
        ProfileRecording(
            profile=name,
            label=making.label,
            against=making.against,
            seconds=None if making.seconds is None else round(making.seconds, 3),
            scope=making.scope,
            ended=making.ended,
            command=making.command,
            captured_at=making.captured_at,
            release=making.release,
        )
    ]
    rows["profile_moments"] = [
        ProfileMoment(
            name, round((m.time_ns - fold.begin_ns) / 1e9, 9), m.event, m.pid, m.comm, m.text
        )
        for m in fold.timeline
    ]
    rows["profile_allocations"] = _allocations(name, fold, making)
    rows["profile_victims"] = [
        _victim(name, row) for row in rows["profile_moments"] if row.event == "oom:mark_victim"
    ]
    rows["profile_page_tables"] = _page_tables(name, making)
    rows["profile_durations"] = [_duration(name, *item) for item in fold.durations.items()]
    rows["profile_faults"] = [
        ProfileFaults(
            name, event, pid, comm, t.faults, len(t.regions), f"{t.first:#x}", f"{t.last:#x}"
        )
        for (event, pid, comm), t in sorted(fold.tasks.items(), key=lambda item: -item[1].faults)
    ]
    rows["profile_counters"] = [
        ProfileCounter(name, counter, gained, round(gained * 60 / making.seconds, 3))
        if making.seconds
        else ProfileCounter(name, counter, gained, None)
        for counter, gained in making.counters.items()
    ]
    rows["profile_notes"] = [ProfileNote(name, "partial", note) for note in partial]
    rows["profile_notes"] += [ProfileNote(name, "remark", note) for note in remarks]
    return Profiled(name, rows, stacks)


def _event_rows(
    name: str,
    event: Folded,
    known: KnownFrames,
    recorded: Recorded | None,
    recipe: Recipe | None,
    making: Making,
    partial: list[str],
) -> tuple[Profile, list[tuple[str, int]], str]:
    said = lost = None
    if recorded is not None:
        said = _of_event(recorded.samples, event.event)
        lost = _of_event(recorded.lost, event.event) or 0
        if said is not None and said != event.recorded:
            partial.append(
                f"{event.event}: perf recorded {said:,} samples, {event.recorded:,} could be read"
            )
    if event.overflow:
        partial.append(
            f"{event.event}: {event.overflow:,} samples have stacks beyond the limit of those kept"
        )
    nmi = known.nmi(event.event, making.architecture)
    drawn = bool(event.stacks)
    by_period = making.by_period and event.period != event.samples
    unit = "samples"
    if by_period:
        unit = "ns" if nmi == "no" else event.event
    elif event.event in SOFTWARE_FAULTS:
        unit = "faults"
    elif ":" in event.event:
        unit = "events"
    cells = sorted(
        ((stack, values[by_period]) for stack, values in event.stacks.items()),
        key=lambda item: (-item[1], item[0]),
    )
    row = Profile(
        profile=name,
        event=event.event,
        recipe=recipe.name if recipe else None,
        unit=unit,
        samples=event.samples,
        period=event.period,
        recorded=event.recorded if said is None else said,
        removed=sum(event.removed.values()),
        removed_why=", ".join(f"{n:,} {why}" for why, n in sorted(event.removed.items())) or None,
        lost=lost,
        missed=making.missed.get(event.event),
        kernel_samples=event.kernel_samples,
        stacks=len(event.stacks),
        nmi=nmi or None,
        file=re.sub(r"[^a-z0-9]+", "_", f"{name}_{event.event}".lower()) if drawn else None,
    )
    return row, cells, unit


def _of_event(counts: dict[str, int], event: str) -> int | None:
    """perf may name an event with the terms that it was asked for with."""
    for name, value in counts.items():
        if name == event or name.split("/")[0] == event:
            return value
    return None


def _details(
    name: str, event: Folded, fold: Fold, nmi: str | None
) -> Iterable[tuple[str, list[Any]]]:
    inside = sum(event.parts.values())
    if fold.split is not None and inside:
        order = sorted(event.parts.items(), key=lambda item: (-item[1], item[0]))
        yield (
            "profile_parts",
            [
                ProfilePart(
                    name,
                    event.event,
                    fold.split.name,
                    who,
                    part,
                    count,
                    round(count / inside, 6),
                    round(count / event.samples, 6),
                )
                for (who, part), count in order
            ],
        )
    yield (
        "profile_groups",
        [
            ProfileGroup(name, event.event, found, count)
            for found, count in sorted(event.found.items(), key=lambda item: (-item[1], item[0]))
        ],
    )
    own: dict[str, int] = {}
    total: dict[str, int] = {}
    for stack, (count, _) in event.stacks.items():
        # The first is the comm.
        frames = stack.split(";")[1:] or [stack]
        own[frames[-1]] = own.get(frames[-1], 0) + count
        for frame in set(frames):
            total[frame] = total.get(frame, 0) + count
    top = set(sorted(own, key=lambda f: (-own[f], f))[:TOP_FRAMES])
    top |= set(sorted(total, key=lambda f: (-total[f], f))[:TOP_FRAMES])
    yield (
        "profile_frames",
        [
            ProfileFrame(name, event.event, frame, own.get(frame, 0), total[frame])
            for frame in sorted(top, key=lambda f: (-own.get(f, 0), -total[f], f))
        ],
    )
    if nmi in ("no", "unknown"):
        sites = sorted(event.sites.items(), key=lambda item: (-item[1], item[0]))
        yield (
            "profile_sites",
            [
                ProfileSite(name, event.event, leaf, caller, count, fold.known.stands_for(leaf))
                for (leaf, caller), count in sites
            ],
        )
    again = fold.again
    if again.reaper and event.parts:
        yield (
            "profile_reaping",
            [ProfileReaping(name, event.event, again.reaper, again.beside, again.after)],
        )


def _allocations(name: str, fold: Fold, making: Making) -> list[ProfileAllocation]:
    recipe = fold.recipe
    # Of what was not recorded, nothing is known; of what was and did not happen, it is 0.
    seen = {
        event.tally
        for event in (recipe.events if recipe else ())
        if event.tally and not {*map(event_name, event.first_of)} & {*making.left_out}
    }
    if "attempts" not in seen:
        return []
    found = sorted(fold.allocations.items(), key=lambda item: (item[0] is None, item[0] or 0))
    return [
        ProfileAllocation(
            name,
            order,
            counts.attempts,
            counts.failures,
            counts.reservations if "reservations" in seen else None,
            counts.from_reserve if "from_reserve" in seen else None,
        )
        for order, counts in found
    ]


# oom:mark_victim; before its fields came (6.10, and stable releases of 6.1 and 6.6) pid alone.
_VICTIM = re.compile(
    r"pid=(\d{1,10})(?: comm=(.*) total-vm=(\d{1,15})kB anon-rss=(\d{1,15})kB "
    r"file-rss:(\d{1,15})kB shmem-rss:(\d{1,15})kB uid=(\d{1,10}) pgtables=(\d{1,15})kB "
    r"oom_score_adj=(-?\d{1,5}))?\s*",
    re.DOTALL,
)


def _victim(name: str, moment: ProfileMoment) -> ProfileVictim:
    match = _VICTIM.fullmatch(moment.text)
    if match is None or match[2] is None:
        pid = int(match[1]) if match else moment.pid
        return ProfileVictim(name, moment.seconds, pid, *([None] * 8))
    total, anon, file, shmem, tables = (int(match[n]) << 10 for n in (3, 4, 5, 6, 8))
    return ProfileVictim(
        profile=name,
        seconds=moment.seconds,
        pid=int(match[1]),
        comm=match[2],
        total_vm_bytes=total,
        anon_bytes=anon,
        file_bytes=file,
        shmem_bytes=shmem,
        pgtables_bytes=tables,
        uid=int(match[7]),
        oom_score_adj=int(match[9]),
    )


def _page_tables(name: str, making: Making) -> list[ProfilePageTables]:
    if len(making.page_tables) < 2:
        return []
    (begin, before, faults_before), (end, table_bytes, faults) = making.page_tables
    faults -= faults_before
    table_bytes -= before
    each = round(table_bytes / faults, 3) if faults > 0 and table_bytes > 0 else None
    return [ProfilePageTables(name, (end - begin) / 1e9, faults, table_bytes, each)]


def _duration(name: str, what: str, values: "array[int]") -> ProfileDuration:
    order = sorted(values)
    half, most = (order[min(int(len(order) * share), len(order) - 1)] for share in (0.5, 0.99))
    return ProfileDuration(name, what, len(order), sum(order), half, most, order[-1])


def names_in(bundle: Bundle | None) -> list[str]:
    """The recordings that a bundle has."""
    if bundle is None or "profiles" not in bundle.tables:
        return []
    return list(dict.fromkeys(str(row["profile"]) for row in bundle.rows("profiles")))


def files_of(bundle: Bundle, what: str) -> list[str]:
    """The folded stacks of a recording, or of all of them if *what* is ``profiles``."""
    if "profiles" not in bundle.tables:
        return []
    rows = [row for row in bundle.rows("profiles") if what in (SECTION, row["profile"])]
    return [row["file"] for row in rows if row["file"] in bundle.folded]


def existing(path: Path) -> Bundle | None:
    """
    The bundle of that name, which is to be added to; None if there is nothing.

    :raises BundleError: something else is there, or a bundle without names.
    """
    bundle = Bundle(path) if os.path.lexists(path) else None
    if bundle is not None and "redacted" in bundle.target:
        raise BundleError(
            f"{path}: its names are replaced, and a recording would bring new ones; record into "
            "another bundle, or into the one that this was made of, and redact that again"
        )
    return bundle


def add_to_bundle(
    path: Path,
    made: Profiled,
    seconds: float,
    target: dict[str, Cell],
    *,
    mode: int | None = None,
) -> SectionResult:
    """
    Write a recording into a bundle, new or there already; returns the section of all profiles.

    :param target: of a new bundle.
    :param mode: of its files, as asked for.
    :raises BundleError: the bundle cannot be read or written.
    """
    bundle = existing(path)
    if bundle is not None and made.name in names_in(bundle):
        raise BundleError(f"{path}: has a profile {made.name} already; give another --label")
    with Writer(path, replace=bundle is not None, mode=mode) as writer:
        if bundle is not None:
            writer.keep(bundle, without={*TABLES, "sections"})
            target = bundle.target
        written = 0
        partial = False
        for table, declared in TABLES.items():
            names = [c.name for c in columns(declared.row)]
            old: list[Any] = []
            if bundle is not None and table in bundle.tables:
                old = [tuple(row.get(n) for n in names) for row in bundle.rows(table)]
            if old or made.rows[table] or table in ALWAYS:
                rows = [*old, *made.rows[table]]
                written += writer.table(table, declared.title, declared.row, rows, section=SECTION)
            if table == "profile_notes":
                kind = names.index("kind")
                partial = any(row[kind] == "partial" for row in old)
        for name, title, unit, stacks in made.folded:
            writer.folded(name, title, stacks, unit=unit, section=SECTION)
        notes = [row for row in made.rows["profile_notes"] if row.kind == "partial"]
        message = "; ".join(f"{made.name}: {row.note}" for row in notes) or None
        sections = [s for s in bundle.sections if s.section != SECTION] if bundle else []
        before = [s for s in bundle.sections if s.section == SECTION] if bundle else []
        if before and before[0].message:
            message = "; ".join(filter(None, (before[0].message, message)))
        section = SectionResult(
            SECTION,
            "partial" if notes or partial else "ok",
            round(seconds + sum(s.seconds for s in before), 3),
            written,
            0,
            message,
        )
        writer.finish(target, [*sections, section])
    return section


def reattributed(
    stacks: Iterable[tuple[str, int]], known: KnownFrames
) -> Iterable[tuple[str, int]]:
    """Stacks whose leaf is where interrupts come back on, given to its caller, and labelled."""
    for stack, value in stacks:
        above, _, leaf = stack.rpartition(";")
        if above and known.stands_for(stack_parts.plain(_symbol(leaf))):
            stack = f"{above};{REATTRIBUTED}"
        yield stack, value


def is_site(frame: str, known: KnownFrames) -> str:
    """What samples on a folded stack's leaf stand for; empty if it is no irq-enable site."""
    return known.stands_for(stack_parts.plain(_symbol(frame))) if frame.endswith("_[k]") else ""


def _symbol(frame: str) -> str:
    return frame.removesuffix("_[k]").partition(" [")[0]


def summary(made: Profiled, file: IO[str] | None = None) -> None:
    """A recording in a few lines."""
    for row in made.rows["profiles"]:
        of = f" ({row.recorded:,} recorded; left out: {row.removed_why})" if row.removed else ""
        lost = f", {row.lost:,} LOST" if row.lost else ""
        print(f"{row.event}: {counted(row.samples, row.unit)}{of}{lost}", file=file)
    parts = made.rows["profile_parts"]
    if parts:
        print(f"\n{'samples':>9}  {'share':>7}  part", file=file)
        for part in parts[:20]:
            share = f"{100 * part.share_of_all:.1f} %"
            print(f"{part.samples:>9,}  {share:>7}  {part.who}: {part.part}", file=file)
    for again in made.rows["profile_reaping"]:
        print(
            f"\nclearing entries: {again.reaper_samples:,} samples by the reaper, "
            f"{again.beside_samples:,} by the victim beside it, {again.again_samples:,} by the "
            "victim when the reaper was done (a second walk)",
            file=file,
        )
    for row in made.rows["profile_allocations"]:
        of_order = "of unknown order" if row.order is None else f"of order {row.order}"
        print(
            f"\natomic allocations {of_order}: {row.attempts:,}, {row.failures:,} failed; "
            f"{_or_not_seen(row.reservations)} pageblocks reserved, "
            f"{_or_not_seen(row.from_reserve)} blocks out of the reserve",
            file=file,
        )
    for took in made.rows["profile_durations"]:
        print(
            f"{took.name}: {counted(took.count, 'times')}, {took.total_ns / 1e6:,.3f} ms in all, "
            f"longest {took.max_ns / 1e6:,.3f} ms",
            file=file,
        )
    sites = sum(site.samples for site in made.rows["profile_sites"])
    if sites:
        print(
            f"\n{sites:,} samples end where interrupts come back on: this sampler has no NMI, so "
            "they stand for what ran before with interrupts off (profile_sites)",
            file=file,
        )


def _or_not_seen(number: int | None) -> str:
    return "not seen:" if number is None else f"{number:,}"


def counted(number: int, unit: str) -> str:
    """``1 sample``, ``2 faults``; of a period, samples are what was counted."""
    unit = unit if unit in ("faults", "events", "times") else "samples"
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def progress_line() -> Progress | None:
    """Progress on a terminal; silence in a pipe."""
    if not sys.stderr.isatty():
        return None
    last = 0.0

    def show(size: int, samples: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            words = f"{samples:,} samples, {size / 2**20:,.0f} MiB of text read"
            print(f"\r{words}\x1b[K", end="\r", file=sys.stderr)

    return show
