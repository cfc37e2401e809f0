# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The rows of a recording that has been folded, for all tables of ``profile_rows``.

Costs a sort of the stacks.

Cannot know: what was not recorded; of that nothing is said, and not 0.
"""

import dataclasses
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables.table import Table
from mmscope.perf.folding import UNNAMED, Fold, Folded, nanoseconds
from mmscope.perf.perf_record import Recorded
from mmscope.perf.perf_script import Reading
from mmscope.perf.recipe import Recipe, event_name
from mmscope.perf.stack_parts import KnownFrames
from mmscope.reports.profiles.making import Making
from mmscope.reports.profiles.table_growth import growth_rows
from mmscope.reports.rows import profile_rows
from mmscope.reports.rows.profile_rows import (
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
    ProfileVictim,
)

TOP_FRAMES = 50
TABLES = {table.name: table for table in vars(profile_rows).values() if isinstance(table, Table)}
# The low bits of folio->mapping that say that the rest is a stable node: PAGE_MAPPING_KSM
# (include/linux/page-flags.h), FOLIO_MAPPING_KSM since v6.18.
NODE_BITS = 3
SOFTWARE_FAULTS = ("minor-faults", "major-faults", "page-faults")


@dataclass
class Profiled:
    """The rows of one recording, by table, and its folded stacks."""

    name: str
    rows: dict[str, list[Any]]
    folded: list[tuple[str, str, str, list[tuple[str, int]]]]  # name, title, unit, stacks


def _not_counted(fold: Fold) -> Iterator[str]:
    """Lines about what was beyond the limits."""
    if fold.more_durations:
        yield f"the last {fold.more_durations:,} durations are not counted"
    if fold.more_about:
        yield f"{fold.more_about:,} walks of other KSM pages are not in profile_ksm_walks"


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
    partial, remarks = _said_of_reading(reading, recorded, making)
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
    partial += _said_of_losses(rows["profiles"], fold, reading, making)
    remarks += _not_counted(fold)
    rows["profile_recordings"] = [_recording(name, recipe, making)]
    rows["profile_moments"] = [
        ProfileMoment(name, round((ns - fold.begin_ns) / 1e9, 9), event, pid, comm, text)
        for ns, event, pid, comm, text in fold.timeline
    ]
    rows["profile_allocations"] = _allocations(name, fold, making)
    rows["profile_victims"] = [
        _victim(name, row) for row in rows["profile_moments"] if row.event == "oom:mark_victim"
    ]
    rows["profile_page_tables"] = _page_tables(name, making)
    rows["profile_table_growth"] = growth_rows(name, fold, making)
    rows["profile_commands"] = _commands(name, reading, making)
    rows["profile_counts"] = [
        ProfileCount(name, event, count, share, _period(rows["profiles"], event), why or None)
        for event, count, share, why in making.counted
    ]
    rows["profile_durations"] = [_duration(name, *item) for item in fold.durations.items()]
    rows["profile_ksm_walks"] = [
        ProfileKsmWalk(name, hex(about & ~NODE_BITS), *times)
        for (_, about), times in fold.about.items()
        if about & NODE_BITS == NODE_BITS
    ]
    rows["profile_faults"] = _faults(name, fold, making)
    rows["profile_counters"] = [
        ProfileCounter(name, counter, gained, round(gained * 60 / making.seconds, 3))
        if making.seconds
        else ProfileCounter(name, counter, gained, None)
        for counter, gained in making.counters.items()
    ]
    rows["profile_notes"] = [ProfileNote(name, "partial", note) for note in partial]
    rows["profile_notes"] += [ProfileNote(name, "remark", note) for note in remarks]
    return Profiled(name, rows, stacks)


def _said_of_reading(
    reading: Reading, recorded: Recorded | None, making: Making
) -> tuple[list[str], list[str]]:
    """A recording's partial parts and notes, before its events."""
    partial, remarks = list(making.partial), list(making.remarks)
    if making.ended and "limit" in making.ended:
        partial.append(f"the recording ended early: {making.ended}")
    if reading.unread_bytes:
        partial.append(
            f"{reading.unread_bytes:,} bytes of perf's text fit no sample and are not counted"
        )
    if recorded is not None and recorded.throttled:
        remarks.append(f"the kernel throttled sampling {recorded.throttled:,} times: too frequent")
    return partial, remarks


def _said_of_losses(
    profiles: list[Profile], fold: Fold, reading: Reading, making: Making
) -> list[str]:
    """Losses of perf and the kernel, and what is not kept."""
    partial = []
    lost = sum(row.lost or 0 for row in profiles) or reading.lost
    if lost:
        kept = sum(row.recorded for row in profiles)
        partial.append(
            f"{lost:,} samples were lost, {kept:,} are here: larger buffers or fewer events"
        )
    for event in fold.events.values():
        if number := event.removed.get(UNNAMED):
            partial.append(
                f"{number:,} of {event.event} are left out: perf printed their flags as numbers, "
                "which differ by kernel"
            )
    for probed, times in making.missed.items():
        if times:
            partial.append(
                f"{probed}: the kernel met the probe {times:,} more times and could not run it"
            )
    if fold.more_moments:
        partial.append(f"{fold.more_moments:,} more events are not in profile_moments")
    return partial


def _recording(name: str, recipe: Recipe | None, making: Making) -> ProfileRecording:
    return ProfileRecording(
        profile=name,
        label=making.label,
        against=making.against,
        seconds=None if making.seconds is None else round(making.seconds, 3),
        scope=making.scope,
        ended=making.ended,
        command=making.command,
        captured_at=making.captured_at,
        release=making.release,
        booted_at=making.booted_at,
        recipe=recipe.name if recipe else None,
    )


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
    yield "profile_frames", _frames(name, event)
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
    if again["reaper"] and event.parts:
        counts = (again[who] for who in ("reaper", "beside", "after"))
        yield "profile_reaping", [ProfileReaping(name, event.event, *counts)]


def _frames(name: str, event: Folded) -> list[ProfileFrame]:
    """The frames that most samples end in, or have at all."""
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
    return [
        ProfileFrame(name, event.event, frame, own.get(frame, 0), total[frame])
        for frame in sorted(top, key=lambda f: (-own.get(f, 0), -total[f], f))
    ]


def _faults(name: str, fold: Fold, making: Making) -> list[ProfileFaults]:
    # A PTE table has an entry of 8 bytes for each page.
    region = making.page_bytes * making.page_bytes // 8
    return [
        ProfileFaults(
            name,
            event,
            pid,
            comm,
            t.faults,
            len(t.regions),
            f"{t.first:#x}",
            f"{t.last:#x}",
            region,
        )
        for (event, pid, comm), t in sorted(fold.tasks.items(), key=lambda item: -item[1].faults)
    ]


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
            counts["attempts"],
            counts["failures"],
            counts["reservations"] if "reservations" in seen else None,
            counts["from_reserve"] if "from_reserve" in seen else None,
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


def _commands(name: str, reading: Reading, making: Making) -> list[ProfileCommand]:
    if making.used is None:
        return []
    real = None
    if making.gone is not None and reading.begun:
        real = max(round(making.gone - nanoseconds(reading.begun) / 1e9, 6), 0.0)
    user, system = making.used
    return [ProfileCommand(name, making.command, real, user, system)]


def _period(profiles: list[Profile], event: str) -> int | None:
    """The period of an event's samples, of user code alone as it was counted."""
    plain = event.removesuffix(":u")
    same = (row for row in profiles if row.event.removesuffix(":u") == plain)
    return next((row.period for row in same if row.samples), None)


def _duration(name: str, what: str, values: "array[int]") -> ProfileDuration:
    order = sorted(values)
    half, most = (order[min(int(len(order) * share), len(order) - 1)] for share in (0.5, 0.99))
    return ProfileDuration(name, what, len(order), sum(order), half, most, order[-1])
