# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The rows of a recording that has been folded, for all tables of ``profile_rows``.

Costs a sort of the stacks.

Cannot know: what was not recorded; of that nothing is said, and not 0. Of page tables over faults:
how many faults came between two looks at VmPTE one by one.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import table_of
from mmscope.perf.folding import UNNAMED, Fold, Folded, nanoseconds
from mmscope.perf.perf_record import Recorded
from mmscope.perf.perf_script import Reading
from mmscope.perf.recipe import event_name, is_tracepoint, printed_event
from mmscope.reports.profiles.making import Making
from mmscope.reports.rows.profile_rows import (
    ADDRESSES,
    PROFILES_HEADING,
    VMPTE,
    Profile,
    ProfileAllocation,
    ProfileCommand,
    ProfileCount,
    ProfileCounter,
    ProfileDuration,
    ProfileFaults,
    ProfileFrame,
    ProfileGroup,
    ProfileKsmWalk,
    ProfileMoment,
    ProfileNote,
    ProfilePageTables,
    ProfilePart,
    ProfileReaping,
    ProfileRecording,
    ProfileSite,
    ProfileTableGrowth,
    ProfileVictim,
)

TOP_FRAMES = 50
# The low bits of folio->mapping that say that the rest is a stable node: PAGE_MAPPING_KSM
# (include/linux/page-flags.h), FOLIO_MAPPING_KSM since v6.18.
NODE_BITS = 3
SOFTWARE_FAULTS = ("minor-faults", "major-faults", "page-faults")
# Of page tables over faults.
MOST_PROCESSES = 5
LEAST_FAULTS = 100  # a program that only starts has some tens
MOST_LOOKS = 24

# By table.
Rows = dict[str, list[Any]]
# Name, title, unit, stacks with their values.
Stacks = list[tuple[str, str, str, list[tuple[str, int]]]]


def profiled(
    name: str, fold: Fold, reading: Reading, recorded: Recorded | None, making: Making
) -> tuple[Rows, Stacks]:
    """The rows of a recording that has been folded, by table, and its folded stacks."""
    fold.finish()
    profiles: list[Profile] = []
    details: list[Any] = []
    stacks: Stacks = []
    for event in fold.events.values():
        row = _event(name, event, fold, reading, recorded, making)
        if row.file in {other.file for other in profiles} - {None}:
            # Names of events may differ in their signs alone: cycles:p and cycles:P.
            row = replace(row, file=f"{row.file}_{len(profiles) + 1}")
        profiles.append(row)
        details += _details(name, event, fold, row.nmi)
        if row.file is not None:
            by_period = making.by_period and event.period != event.samples
            values = {stack: pair[by_period] for stack, pair in event.stacks.items()}
            title = fold.recipe.title if fold.recipe else name
            title = f"{title}: {event.event}, width in {row.unit}"
            stacks.append((row.file, title, row.unit, _most_first(values)))
    notes = [
        *_notes_of_reading(profiles, fold, reading, recorded, making),
        *_notes_of_losses(profiles, fold, reading, making),
    ]
    # Partial ones come first.
    noted = [ProfileNote(name, *note) for note in sorted(notes, key=itemgetter(0))]
    of_recording = _of_recording(name, profiles, fold, reading, making)
    rows: Rows = {table.name: [] for table in PROFILES_HEADING.tables}
    for each in (*profiles, *details, *of_recording, *noted):
        rows[table_of(type(each)).name].append(each)
    return rows, stacks


def _of_recording(
    name: str, profiles: list[Profile], fold: Fold, reading: Reading, making: Making
) -> Iterator[Any]:
    """Rows about the recording as a whole."""
    yield _recording(name, fold, making)
    for ns, event, pid, comm, text in fold.timeline:
        seconds = round((ns - fold.begin_ns) / 1e9, 9)
        yield (moment := ProfileMoment(name, seconds, event, pid, comm, text))
        if event == "oom:mark_victim":
            yield _victim(name, moment)
    yield from _allocations(name, fold, making)
    yield from _page_tables(name, making)
    yield from growth_rows(name, fold, making)
    yield from _commands(name, reading, making)
    for event, count, share, why in making.counted:
        yield ProfileCount(name, event, count, share, _period(profiles, event), why or None)
    for what, values in fold.durations.items():
        yield _duration(name, what, values)
    for (_, about), times in fold.about.items():
        if about & NODE_BITS == NODE_BITS:
            yield ProfileKsmWalk(name, hex(about & ~NODE_BITS), *times)
    yield from _faults(name, fold, making)
    for counter, gained in making.counters.items():
        a_minute = round(gained * 60 / making.seconds, 3) if making.seconds else None
        yield ProfileCounter(name, counter, gained, a_minute)


def _most_first(counts: Mapping[Any, int]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _notes_of_reading(
    profiles: list[Profile], fold: Fold, reading: Reading, recorded: Recorded | None, making: Making
) -> Iterator[tuple[str, str]]:
    """Kind and words of what a recording lacks and what to know of it."""
    yield from (("partial", note) for note in making.partial)
    yield from (("remark", note) for note in making.remarks)
    if making.ended and "limit" in making.ended:
        yield "partial", f"the recording ended early: {making.ended}"
    if reading.unread_bytes:
        yield (
            "partial",
            f"{reading.unread_bytes:,} bytes of perf's text fit no sample and are not counted",
        )
    if recorded is not None and recorded.throttled:
        times = plural(recorded.throttled, "time")
        yield "remark", f"the kernel throttled sampling {times}: too frequent"
    for row, event in zip(profiles, fold.events.values(), strict=True):
        if row.recorded != event.recorded:
            counts = f"perf recorded {row.recorded:,} samples, {event.recorded:,} could be read"
            yield "partial", f"{event.event}: {counts}"
        if event.overflow:
            beyond = plural(event.overflow, "sample has a stack", "samples have stacks")
            yield "partial", f"{event.event}: {beyond} beyond the limit of those kept"


def _notes_of_losses(
    profiles: list[Profile], fold: Fold, reading: Reading, making: Making
) -> Iterator[tuple[str, str]]:
    """Kind and words of what perf and the kernel lost, and of what was beyond the limits."""
    if lost := sum(row.lost or 0 for row in profiles) or reading.lost:
        kept = sum(row.recorded for row in profiles)
        yield (
            "partial",
            f"{plural(lost, 'sample was', 'samples were')} lost, {kept:,} are here: "
            "larger buffers or fewer events",
        )
    for event in fold.events.values():
        if number := event.removed.get(UNNAMED):
            yield (
                "partial",
                f"{number:,} of {event.event} are left out: perf printed their flags as numbers, "
                "which differ by kernel",
            )
    for probed, times in making.missed.items():
        if times:
            met = f"the kernel met the probe {plural(times, 'more time')} and could not run it"
            yield "partial", f"{probed}: {met}"
    if fold.more_moments:
        more = plural(fold.more_moments, "more event is", "more events are")
        yield "partial", f"{more} not in profile_moments"
    if fold.without_address:
        faults = plural(fold.without_address, "fault has", "faults have")
        yield "partial", f"{faults} no address in perf's text, and no row in profile_faults"
    if fold.more_durations:
        yield "remark", f"the last {fold.more_durations:,} durations are not counted"
    if fold.more_about:
        walks = f"{fold.more_about:,} walks of other KSM pages are not in profile_ksm_walks"
        yield "remark", walks


def _recording(name: str, fold: Fold, making: Making) -> ProfileRecording:
    cells: dict[str, Any] = {
        c.name: getattr(making, c.name, None) for c in columns(ProfileRecording)
    }
    cells |= {"profile": name, "recipe": fold.recipe.name if fold.recipe else None}
    cells["seconds"] = None if making.seconds is None else round(making.seconds, 3)
    return ProfileRecording(**cells)


def _event(
    name: str,
    event: Folded,
    fold: Fold,
    reading: Reading,
    recorded: Recorded | None,
    making: Making,
) -> Profile:
    samples = None
    lost = reading.lost if reading.lost and len(fold.events) == 1 else None
    if recorded is not None:
        samples = _of_event(recorded.samples, event.event)
        lost = _of_event(recorded.lost, event.event) or 0
    nmi = fold.known.nmi(event.event, making.architecture)
    unit = "samples"
    if making.by_period and event.period != event.samples:
        unit = "ns" if nmi == "no" else event.event
    elif event.event in SOFTWARE_FAULTS:
        unit = "faults"
    elif is_tracepoint(event.event):
        unit = "events"
    file = re.sub(r"[^a-z0-9]+", "_", f"{name}_{event.event}".lower()).strip("_")
    return Profile(
        profile=name,
        event=event.event,
        recipe=fold.recipe.name if fold.recipe else None,
        unit=unit,
        samples=event.samples,
        period=event.period,
        recorded=event.recorded if samples is None else samples,
        removed=sum(event.removed.values()),
        removed_why=", ".join(f"{n:,} {why}" for why, n in sorted(event.removed.items())) or None,
        lost=lost,
        missed=making.missed.get(event.event),
        kernel_samples=event.kernel_samples,
        stacks=len(event.stacks),
        nmi=nmi or None,
        file=file if event.stacks else None,
    )


def _of_event(counts: dict[str, int], event: str) -> int | None:
    """perf may name an event with the terms that it was asked for with."""
    same = (value for name, value in counts.items() if event in (name, printed_event(name)))
    return next(same, None)


def _details(name: str, event: Folded, fold: Fold, nmi: str | None) -> Iterator[Any]:
    """Rows about an event, of several tables."""
    key = name, event.event
    inside = sum(event.parts.values())
    if fold.split is not None:
        for (who, part), count in _most_first(event.parts):
            shares = round(count / inside, 6), round(count / event.samples, 6)
            yield ProfilePart(*key, fold.split.name, who, part, count, *shares)
    for found in _most_first(event.found):
        yield ProfileGroup(*key, *found)
    yield from _frames(name, event)
    if nmi in ("no", "unknown"):
        for (leaf, caller), count in _most_first(event.sites):
            yield ProfileSite(*key, leaf, caller, count, fold.known.stands_for(leaf))
    again = fold.again
    if again["reaper"] and event.parts:
        yield ProfileReaping(*key, *(again[who] for who in ("reaper", "beside", "after")))


def _frames(name: str, event: Folded) -> Iterator[ProfileFrame]:
    """The frames that most samples end in, or have at all."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, (count, _) in event.stacks.items():
        # The first is the comm.
        frames = stack.split(";")[1:] or [stack]
        own[frames[-1]] += count
        for frame in set(frames):
            total[frame] += count
    top = {frame for counts in (own, total) for frame, _ in _most_first(counts)[:TOP_FRAMES]}
    for frame in sorted(top, key=lambda f: (-own[f], -total[f], f)):
        yield ProfileFrame(name, event.event, frame, own[frame], total[frame])


def _faults(name: str, fold: Fold, making: Making) -> Iterator[ProfileFaults]:
    # A PTE table has an entry of 8 bytes for each page.
    region = making.page_bytes * making.page_bytes // 8
    for (event, pid, comm), t in sorted(fold.tasks.items(), key=lambda item: -item[1].faults):
        addresses = f"{t.first:#x}", f"{t.last:#x}"
        yield ProfileFaults(name, event, pid, comm, t.faults, len(t.regions), *addresses, region)


def _allocations(name: str, fold: Fold, making: Making) -> Iterator[ProfileAllocation]:
    # Of what was not recorded, nothing is known; of what was and did not happen, it is 0.
    seen = {
        event.tally
        for event in (fold.recipe.events if fold.recipe else ())
        if event.tally and not {*map(event_name, event.first_of)} & {*making.left_out}
    }
    if "attempts" not in seen:
        return
    found = sorted(fold.allocations.items(), key=lambda item: (item[0] is None, item[0] or 0))
    for order, counts in found:
        yield ProfileAllocation(
            name,
            order,
            counts["attempts"],
            counts["failures"],
            counts["reservations"] if "reservations" in seen else None,
            counts["from_reserve"] if "from_reserve" in seen else None,
        )


# oom:mark_victim; before its fields came (6.10, and stable releases of 6.1 and 6.6) pid alone.
_VICTIM = re.compile(
    r"pid=(?P<pid>\d{1,10})(?: comm=(?P<comm>.*) total-vm=(?P<total_vm_bytes>\d{1,15})kB "
    r"anon-rss=(?P<anon_bytes>\d{1,15})kB file-rss:(?P<file_bytes>\d{1,15})kB "
    r"shmem-rss:(?P<shmem_bytes>\d{1,15})kB uid=(?P<uid>\d{1,10}) "
    r"pgtables=(?P<pgtables_bytes>\d{1,15})kB oom_score_adj=(?P<oom_score_adj>-?\d{1,5}))?\s*",
    re.DOTALL,
)


def _victim(name: str, moment: ProfileMoment) -> ProfileVictim:
    match = _VICTIM.fullmatch(moment.text)
    unknown = dict.fromkeys(_VICTIM.groupindex) | {"pid": moment.pid}
    cells: dict[str, Any] = match.groupdict() if match else unknown
    for column, text in cells.items():
        if text is not None and column != "comm":
            cells[column] = int(text) << (10 if column.endswith("_bytes") else 0)
    return ProfileVictim(name, moment.seconds, **cells)


def _page_tables(name: str, making: Making) -> Iterator[ProfilePageTables]:
    if len(making.page_tables) == 2:
        (begin, before, faults_before), (end, table_bytes, faults) = making.page_tables
        faults -= faults_before
        table_bytes -= before
        each = round(table_bytes / faults, 3) if faults > 0 and table_bytes > 0 else None
        yield ProfilePageTables(name, (end - begin) / 1e9, faults, table_bytes, each)


def _commands(name: str, reading: Reading, making: Making) -> Iterator[ProfileCommand]:
    if making.used is not None:
        real = None
        if making.gone is not None and reading.begun:
            real = max(round(making.gone - nanoseconds(reading.begun) / 1e9, 6), 0.0)
        yield ProfileCommand(name, making.command, real, *making.used)


def _period(profiles: list[Profile], event: str) -> int | None:
    """The period of an event's samples, of user code alone as it was counted."""
    plain = event.removesuffix(":u")
    same = (row for row in profiles if row.event.removesuffix(":u") == plain)
    return next((row.period for row in same if row.samples), None)


def _duration(name: str, what: str, values: "array[int]") -> ProfileDuration:
    order = sorted(values)
    half, most = (order[min(int(len(order) * share), len(order) - 1)] for share in (0.5, 0.99))
    return ProfileDuration(name, what, len(order), sum(order), half, most, order[-1])


# Of VmPTE: ns, faults, bytes.
Look = tuple[int, int, int]
# ns, faults, tables of three levels if known, bytes of all
_Point = tuple[int, int, tuple[int | None, int | None, int | None], int]


def growth_rows(name: str, fold: Fold, making: Making) -> list[ProfileTableGrowth]:
    """
    Page tables of the processes with most faults, over their faults, two ways: those that the
    addresses of the faults need, exact at each fault, and VmPTE, which the kernel keeps.
    """
    rows = []
    needed = sorted(fold.growths.items(), key=lambda item: (-item[1].faults, item[0]))
    points: list[_Point]
    for (pid, comm), growth in needed[:MOST_PROCESSES]:
        points = [
            (at, faults, (pte, pmd, pud), (pte + pmd + pud) * making.page_bytes)
            for at, faults, pte, pmd, pud in growth.points
        ]
        rows += _of_process(name, pid, comm, ADDRESSES, points)
    seen = sorted(
        (-max((faults for _, faults, _ in looks), default=0), pid, comm, looks)
        for pid, comm, looks in making.growths
    )
    for _, pid, comm, looks in seen[:MOST_PROCESSES]:
        points = [(at, faults, (None, None, None), size) for at, faults, size in thinned(looks)]
        rows += _of_process(name, pid, comm, VMPTE, points)
    return rows


def thinned(looks: list[Look]) -> list[Look]:
    """Looks with half as many faults again each, or more tables without a fault; and the last."""
    kept: list[Look] = []
    for look in looks:
        if not kept or look[1] >= 1.5 * kept[-1][1]:
            kept.append(look)
    if looks and kept[-1] is not looks[-1]:
        kept.append(looks[-1])
    return kept[-MOST_LOOKS:]


def _of_process(
    name: str, pid: int, comm: str, made_by: str, points: Iterable[_Point]
) -> list[ProfileTableGrowth]:
    rows: list[ProfileTableGrowth] = []
    faults_before = bytes_before = 0
    for at, faults, (pte, pmd, pud), size in points:
        # Before the first look there may have been tables without a fault, as of a parent.
        known = faults > faults_before and (rows or made_by == ADDRESSES)
        each = round((size - bytes_before) / (faults - faults_before), 3) if known else None
        seconds = round(at / 1e9, 6)
        rows.append(
            ProfileTableGrowth(name, pid, comm, made_by, faults, seconds, pte, pmd, pud, size, each)
        )
        faults_before, bytes_before = faults, size
    return rows if faults_before >= LEAST_FAULTS else []
