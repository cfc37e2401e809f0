# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Groups of machines held against each other: the measures of each host, and what they come to.

Made for A/B trials: the same questions asked of every host, the median and the range of each side.
Each bundle is opened by itself and only its small tables are loaded, so that a damaged one costs
that host alone, and a hundred hosts take seconds.

What the kernel counts since boot is taken in one of three ways, for all hosts alike. If each has
two readings or more of one boot, shares and rates are over the time from the first to the last. If
each has a recording of atomic allocations, they are over that. Otherwise shares of attempts are
since boot, whatever the host did in its first hours included, and there are no rates.

Cannot know: whether the sides differ in anything else than what is tried.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import duckdb

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column, columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, open_database
from mmscope.reports.bundle.declared import HEADINGS
from mmscope.reports.compare.host_measures import (
    ATTEMPTS,
    BETWEEN,
    COUNTERS,
    MEASURES,
    RATES,
    RECORDED,
    SINCE_BOOT,
    STATES,
    SUCCESS,
    Group,
    Host,
    Measured,
)
from mmscope.reports.compare.rank_test import chance, differing
from mmscope.reports.compare.recorded_allocations import COSTLY, Allocations, recorded
from mmscope.reports.compare.relation import elapsed, same_boot

TABLES = frozenset({"zones", "free_blocks", "pageblocks", "vm_counters"})
ASKED = TABLES | {"thp_blocks", "zones_in_part"}  # and views over them
# Said once, of all rates.
ONE_READING = "rates need two readings of one boot of every host, some minutes apart"
UNNAMED = "unknown"
NO_ATTEMPT = "there was no attempt"
# Kinds of what was recorded in parts.
ALLOCATIONS, FAILURES, RESERVATIONS = "allocations of", "failures of", "reservations by"


def hosts_of(sides: Sequence[tuple[str, Sequence[Bundle]]]) -> list[Measured]:
    """The measures of every host of every side; a host that was rebooted is another."""
    readings = [(side, boot) for side, bundles in sides for boot in _by_boot(bundles)]
    recordings = [recorded(boot) for _, boot in readings]
    counted = SINCE_BOOT
    if all(_seconds(boot) for _, boot in readings):
        counted = BETWEEN
    elif all(recording.counters for recording in recordings):
        counted = RECORDED
    return [_host(*of, one, counted) for of, one in zip(readings, recordings, strict=True)]


def _by_boot(bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    """The bundles of one boot of one host each, in the order of time."""
    found: list[list[Bundle]] = []
    for bundle in sorted(bundles, key=lambda bundle: bundle.captured or 0.0):
        mine = next((group for group in found if same_boot(group[0], bundle)), None)
        if mine is None:
            found.append([bundle])
        else:
            mine.append(bundle)
    return found


def _seconds(boot: list[Bundle]) -> float | None:
    """From the first reading of a boot to the last; None if there is but one."""
    seconds = elapsed(boot[0], boot[-1])
    return seconds if seconds and seconds > 0 else None


def _host(side: str, boot: list[Bundle], recording: Allocations, counted: str) -> Measured:
    last = boot[-1]
    database = open_database(last, ASKED)
    why: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, (table, sql) in STATES.items():
        values[name] = next((number for (number,) in _asked(database, sql)), None)
        why[name] = _why_not(last, database, table) or f"table {table} does not have it"
    counters, seconds, fell = _counted(boot, database, recording, counted)
    lacks = _why_not(last, database, "vm_counters") if counted != RECORDED else ""
    for name, (good, bad) in SUCCESS.items():
        lack = [counter for counter in (good, bad) if counter not in counters]
        attempts = None if lack else counters[good] + counters[bad]
        values[f"{name}_attempts"] = attempts
        values[f"{name}_success"] = counters[good] / attempts if attempts else None
        reason = lacks or _no_counter(" and ".join(lack), counted, fell.intersection(lack))
        why[f"{name}_attempts"] = reason
        why[f"{name}_success"] = reason if lack else NO_ATTEMPT
    for name, wanted in RATES.items():
        here = [value for counter, value in counters.items() if wanted.fullmatch(counter)]
        # A counter since boot is not a rate: it does not say when. A recording has not all zones'.
        whole = counted == BETWEEN or (counted == RECORDED and name in counters)
        values[name] = sum(here) * 60 / seconds if whole and here and seconds else None
        why[name] = lacks or _no_counter(name, counted, filter(wanted.fullmatch, fell))
        if counted == SINCE_BOOT:
            why[name] = ONE_READING
    parts, seen = _recorded(recording, values, why)
    release = last.target.get("release")
    missing = [f"{name}: damaged" for name in sorted(TABLES & database.missing.keys())]
    missing += [f"{name}: not there" for name in sorted(TABLES - last.tables.keys())]
    return Measured(
        side=side,
        host=last.hostname or UNNAMED,
        bundle=last.path.name,
        release=None if release is None else str(release),
        readings=len(boot),
        counted=counted,
        seconds=seconds,
        recorded_seconds=recording.seconds or None,
        missing="; ".join(missing) or None,
        **values,
        why={name: reason for name, reason in why.items() if values[name] is None},
        parts=parts,
        seen=seen,
        lost=recording.lost,
    )


def _no_counter(name: str, counted: str, fell: Iterable[str]) -> str:
    """Why there is no number of a counter, where counters could be read."""
    if named := ", ".join(sorted(fell)):
        return f"{named} fell between the readings: it was reset, or is damaged"
    if counted == RECORDED:
        return f"the recording has not all of {name}"
    return f"table vm_counters has no {name}"


def _counted(
    boot: list[Bundle], database: Database, recording: Allocations, counted: str
) -> tuple[dict[str, int], float | None, set[str]]:
    """Counters, in how many seconds they were counted, and those that fell meanwhile."""
    counters = dict(_asked(database, COUNTERS))
    seconds: float | None
    if counted == BETWEEN:
        before = dict(_asked(open_database(boot[0], ASKED), COUNTERS))
        seconds = _seconds(boot)
        counters = {name: n - before[name] for name, n in counters.items() if name in before}
    elif counted == RECORDED:
        counters, seconds = recording.counters, recording.seconds
    else:
        seconds = boot[-1].uptime
    # One that fell was reset, or is damaged.
    fell = {name for name, number in counters.items() if number < 0}
    return {name: n for name, n in counters.items() if name not in fell}, seconds, fell


def _recorded(
    recording: Allocations, values: dict[str, Any], why: dict[str, str]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Fill in the measures of a recording; returns what was recorded in parts, of which kinds."""
    a_minute, attempts, failures = recording.a_minute, recording.attempts, recording.failures
    counts = {
        "atomic_allocations": sum(attempts.values()),
        "atomic_4_up": sum(n for order, n in attempts.items() if order >= COSTLY),
        "atomic_failures_1_to_3": sum(n for order, n in failures.items() if order < COSTLY),
        "atomic_failures_4_up": sum(n for order, n in failures.items() if order >= COSTLY),
        "reservations": recording.reservations,
    }
    if recording.why:
        values |= dict.fromkeys(counts)
        why |= dict.fromkeys(counts, recording.why)
        return {}, ()
    values |= {name: None if n is None else a_minute(n) for name, n in counts.items()}
    why["reservations"] = "its recording could not see who reserves: no kprobe"
    parts = {
        f"{kind} order {order}": a_minute(number)
        for kind, of_kind in ((ALLOCATIONS, attempts), (FAILURES, failures))
        for order, number in of_kind.items()
        if number or kind == ALLOCATIONS
    }
    if recording.callers is None:
        return parts, (ALLOCATIONS, FAILURES)
    parts |= {f"{RESERVATIONS} {name}": a_minute(n) for name, n in recording.callers.items()}
    return parts, (ALLOCATIONS, FAILURES, RESERVATIONS)


def _why_not(bundle: Bundle, database: Database, table: str) -> str:
    """Why a bundle's table cannot be asked; empty if it can."""
    if table in bundle.tables:
        return f"table {table} is damaged" if table in database.missing else ""
    section = next(
        (h.name for h in HEADINGS.values() if table in {of.name for of in h.tables}), table
    )
    status = next((s for s in bundle.sections if s.section == section), None)
    why = f" (section {section}: {status.message or status.status})" if status else ""
    return f"table {table} is not there{why}"


def _asked(database: Database, sql: str) -> list[Any]:
    """The rows of a query; none where the bundle lacks what it needs."""
    try:
        return database.connection.execute(sql).fetchall()
    except duckdb.Error:
        return []


def groups_of(hosts: Sequence[Measured]) -> list[Group]:
    """
    Each measure of both sides: first that in which it is least by chance that they differ; of two
    that are equal in that, the one whose medians are farther apart, for their size.
    """
    return _sorted(_group(measure, hosts) for measure in MEASURES)


def parts_of(hosts: Sequence[Measured]) -> list[Group]:
    """Recorded events by order and by caller, in the same way; empty without a recording."""
    found = []
    for name in sorted({name for host in hosts for name in host.parts}):
        values = [
            [part for h in hosts if h.side == side and (part := h.part(name)) is not None]
            for side in ("A", "B")
        ]
        found.append(_compared(name, "1/min", values, [sum(of_side) for of_side in values]))
    return _sorted(found)


def _sorted(groups: Iterable[Group]) -> list[Group]:
    found = list(groups)
    differ = differing([group.chance for group in found])
    found = [replace(group, differs=said) for group, said in zip(found, differ, strict=True)]
    return sorted(found, key=_order)


def _order(group: Group) -> tuple[bool, float, float]:
    most = max(abs(group.a_median or 0.0), abs(group.b_median or 0.0))
    apart = abs(group.difference or 0.0) / most if most else 0.0
    return group.chance is None, group.chance or 0.0, -apart


def _group(measure: Column, hosts: Sequence[Measured]) -> Group:
    values, together, missing = [], [], []
    for side in ("A", "B"):
        mine = [host for host in hosts if host.side == side]
        known = [host for host in mine if measure.name not in host.why]
        values.append([float(getattr(host, measure.name)) for host in known])
        together.append(_all(measure, known))
        # Each reason once, the most frequent first.
        reasons = Counter(h.why[measure.name] for h in mine if measure.name in h.why)
        order = sorted(reasons, key=lambda why: (-reasons[why], why))
        missing.append("; ".join(order) or None)
    unit = measure.unit or ("share" if measure.type == "number" else "count")
    group = _compared(measure.name, unit, values, together)
    return replace(group, a_missing=missing[0], b_missing=missing[1])


def _compared(
    measure: str, unit: str, values: Sequence[list[float]], together: Sequence[float | None]
) -> Group:
    """Both sides' hosts that have a number."""
    a, b = values
    difference = statistics.median(b) - statistics.median(a) if a and b else None
    apart = by_chance = None
    if len(a) > 1 and len(b) > 1:  # of single hosts it would only say that they differ
        apart, by_chance = max(a) < min(b) or max(b) < min(a), chance(a, b)
    sides = *_side(a, together[0]), *_side(b, together[1])
    return Group(measure, unit, *sides, difference, apart, by_chance, None, None, None)


def _side(
    values: list[float], together: float | None
) -> tuple[int, float | None, float | None, float | None, float | None]:
    """Hosts of a side, their median, lowest, highest, and all together."""
    if not values:
        return 0, None, None, None, None
    return len(values), statistics.median(values), min(values), max(values), together


def _all(measure: Column, hosts: Sequence[Host]) -> float | None:
    """The hosts together: a sum, or a share of all attempts; other shares do not add up."""
    if not hosts:
        return None
    if attempts := ATTEMPTS.get(measure.name):
        whole = sum(getattr(host, attempts) for host in hosts)
        parts = sum(getattr(host, measure.name) * getattr(host, attempts) for host in hosts)
        return parts / whole if whole else None
    if measure.type == "number" and not measure.unit:
        return None
    return float(sum(getattr(host, measure.name) for host in hosts))


def unlike(hosts: Sequence[Measured], *, same_names: bool = True) -> list[str]:
    """
    Differences between the groups that a reader must know before any number.

    :param same_names: a host has the same name in all bundles.
    """
    words = []
    if not same_names:
        words.append(
            "names were not replaced in all bundles together: host-1 may be several hosts, and a "
            "host may have several names"
        )
    releases = {
        side: sorted({str(host.release) for host in hosts if host.side == side})
        for side in ("A", "B")
    }
    for side, named in releases.items():
        if len(named) > 1:
            words.append(f"side {side} has {len(named)} kernels: {', '.join(named)}")
    if releases["A"] != releases["B"]:
        a, b = (", ".join(named) or "none" for named in releases.values())
        words.append(f"kernels differ: A {a}; B {b}")
    names = [{host.host for host in hosts if host.side == side} for side in ("A", "B")]
    if same_names and (both := sorted((names[0] & names[1]) - {UNNAMED})):
        words.append(f"hosts on both sides: {', '.join(both)}")
    over = hosts[0].counted if hosts else SINCE_BOOT
    spans = _spans(hosts, "seconds")
    recordings = "atomic allocations and reservations"
    if over == RECORDED:
        words.append(f"shares and rates of counters, {recordings} are {over}: {spans}")
    elif over == SINCE_BOOT:
        words.append(f"shares of attempts are since boot ({spans}); {ONE_READING}")
    else:
        words.append(f"shares and rates of counters are {over}: {spans}")
    if over != RECORDED and any(host.seen for host in hosts):
        words.append(f"{recordings} are {RECORDED}: {_spans(hosts, 'recorded_seconds')}")
    if incomplete := sum(host.lost > 0 for host in hosts):
        words.append(
            f"{display.plural(incomplete, 'recording')} lost samples: there were more atomic "
            "allocations than are counted"
        )
    return words


def _spans(hosts: Sequence[Host], column: str) -> str:
    """The shortest and longest time of each side's hosts, in words."""
    spans = []
    for side in ("A", "B"):
        of_hosts = (getattr(host, column) for host in hosts if host.side == side)
        known = sorted(seconds for seconds in of_hosts if seconds)
        words = " to ".join(dict.fromkeys(map(display.duration, (*known[:1], *known[-1:]))))
        spans.append(f"{side} {words or 'for an unknown time'}")
    return ", ".join(spans)


def as_rows(row_type: type, rows: Sequence[Any]) -> list[list[Any]]:
    """Rows of a table as lists of cells."""
    names = [column.name for column in columns(row_type)]
    return [[getattr(row, name) for name in names] for row in rows]
