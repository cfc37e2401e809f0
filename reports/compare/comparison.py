# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Two bundles held against each other: a machine before and after, or two machines.

Every table that has a key is joined on it, in DuckDB, and each row is new, gone, grown, shrunk,
otherwise changed or the same. What must not be compared is not: counters since two boots are no
differences in time; pids, handles and addresses of two boots name different things. Where a table
knows the same thing by a name that lasts (a stack, a comm), its rows are added up by that.

Findings are compared by what they are about (``subject``), and how bad they are (``worse``).

Cannot know: whether a key that is in both bundles names the same thing. Of one boot it nearly
always does; a pid counts as the same only with the same comm.
"""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column
from mmscope.drgn.tables.table import Table as Declared
from mmscope.reports.bundle.bundle import Bundle, BundleError, Table
from mmscope.reports.bundle.bundle_format import lacking, new_tables, not_written
from mmscope.reports.bundle.database import TOO_LARGE, connect, in_a_line, load_tables, lock, views
from mmscope.reports.compare.declared import TABLES
from mmscope.reports.drawing.flame_graph import FlameGraph, differential, fold
from mmscope.reports.findings.findings import Finding, Verdict, severity_rank
from mmscope.reports.pictures.owner_pictures import NO_STACK
from mmscope.reports.pictures.profile_pictures import without_comm
from mmscope.reports.profiles import profiles

# Of each table; the others are counted.
MAX_CHANGES = 30
# Of a graph, and of all of them.
MAX_FRAMES = 260
MAX_GRAPHS = 8
# captured_at and the uptime are rounded, or read one after the other. NTP slews both clocks alike.
SAME_BOOT_SECONDS = 3.0
# What a finding's number must change by, to be better or worse.
NOTABLE = 0.01

# What names a thing during one boot only.
BOOT_NAMES = frozenset(
    {
        *("pid", "tgid", "handle", "anon_vma", "root", "root_pid", "address_space", "chain"),
        *("pfn", "content"),
    }
)
# Of a finding's subject, what somebody chose.
CHOSEN_NAMES = frozenset({"comm", "root_comm", "profile"})
# What tells a reader more of a row than its key.
DESCRIBES = ("comm", "owner", "module", "stack", "kind")


def known(name: str) -> Declared:
    """How a table is declared; of one that is not, nothing."""
    return TABLES.get(name, UNKNOWN)


UNKNOWN = Declared("", "", object)


@dataclass(frozen=True)
class Relation:
    """
    What two bundles have to do with each other.

    :ivar same_host: None where the bundles do not tell; so for the boot, which is then treated as
        two.
    :ivar seconds: from the first to the second, of one boot.
    :ivar same_names: False where ``comm-1`` of one is not that of the other.
    """

    same_host: bool | None
    same_boot: bool | None
    seconds: float | None
    sides: tuple[str, str]  # what the two are called
    words: list[str]
    same_names: bool = True
    # Rows that the mmscope of one side does not write: table, column of its key, value.
    one_sided: tuple[tuple[str, str, str], ...] = ()

    @property
    def one_boot(self) -> bool:
        return self.same_boot is True


@dataclass(frozen=True)
class Change:
    """
    A row that is not the same in both.

    :ivar what: values of the columns that say what it is.
    :ivar others: other columns that differ: (column, before, after).
    """

    change: str  # new, gone, grew, shrank, changed
    what: tuple[Any, ...]
    before: int | float | None
    after: int | float | None
    difference: int | float | None
    others: list[tuple[Column, Any, Any]]


@dataclass(frozen=True)
class TableChanges:
    """What changed in one table."""

    name: str
    title: str
    section: str
    what: list[Column]
    measure: Column | None
    summed: bool  # rows of the same name are added up
    changes: list[Change]  # those that differ most
    counts: dict[str, int]  # new, gone, grew, shrank, changed, same
    totals: tuple[Any, Any] | None  # of the measure, where amounts of memory add up
    notes: list[str]

    @property
    def differing(self) -> int:
        return sum(number for change, number in self.counts.items() if change != "same")


@dataclass(frozen=True)
class FindingChange:
    """
    A finding that is new, worse, better or the same, that is no longer over its threshold
    (``under``), or that is not found now (``gone``).

    A threshold that is crossed says little by itself; where its measure is known on the other side
    too, that side's words have it.
    """

    change: str
    before: Finding | None
    after: Finding | None

    @property
    def finding(self) -> Finding:
        """What was found: of one that is no more, what it was."""
        found = self.before if self.change == "under" else self.after or self.before
        assert found is not None
        return found

    @property
    def words(self) -> str:
        """How it changed."""
        return CHANGE_WORDS.get(self.change, self.change)

    @property
    def other(self) -> tuple[int, Finding] | None:
        """What the other side says of the same: (0 for before, 1 for after, what)."""
        side, found = (0, self.before) if self.finding is self.after else (1, self.after)
        return None if found is None else (side, found)


@dataclass(frozen=True)
class Graphs:
    """A differential flame graph in both directions."""

    title: str
    unit: str
    totals: tuple[int, int]
    normalised: bool
    same: bool  # every stack has the same in both
    after: FlameGraph
    before: FlameGraph


@dataclass(frozen=True)
class Comparison:
    """Everything that two bundles say of each other."""

    bundles: tuple[Bundle, Bundle]
    relation: Relation
    tables: list[TableChanges]
    not_compared: list[tuple[str, str]]  # table, why
    findings: list[FindingChange]
    not_checked: tuple[int, int]  # findings of one that the other could not be asked for
    graphs: list[Graphs]

    @property
    def changed(self) -> list[TableChanges]:
        return [table for table in self.tables if table.differing]


CHANGES = ("new", "worse", "better", "under", "gone", "same")
CHANGE_WORDS = {"under": "no longer over the threshold", "gone": "not found now"}


def compare(
    before: Bundle, after: Bundle, verdicts: tuple[Verdict, Verdict], *, draw: bool
) -> Comparison:
    """
    Hold two bundles against each other.

    :param draw: flame graphs, too.
    """
    related = relation(before, after)
    tables, not_compared = _tables(before, after, related)
    found, not_checked = compare_findings(
        *verdicts, same_boot=related.one_boot, same_names=related.same_names
    )
    return Comparison(
        (before, after),
        related,
        tables,
        not_compared,
        found,
        not_checked,
        _graphs(before, after, related, not_compared) if draw else [],
    )


def boot_time(bundle: Bundle) -> float | None:
    """When the machine was booted, in seconds since 1970, as far as the bundle tells."""
    uptime = bundle.target.get("uptime_seconds")
    taken = captured(bundle)
    if taken is None or isinstance(uptime, (bool, str)) or not uptime:
        return None
    return taken - uptime


def captured(bundle: Bundle) -> float | None:
    """When a bundle's machine was read, in seconds since 1970."""
    try:
        at = datetime.datetime.fromisoformat(str(bundle.target.get("captured_at")))
        return at.replace(tzinfo=at.tzinfo or datetime.UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def elapsed(before: Bundle, after: Bundle) -> float | None:
    """
    Seconds between two readings of one boot: by the uptime, which is finer than the date; negative
    if they are the other way round.
    """
    old, new = (bundle.target.get("uptime_seconds") for bundle in (before, after))
    numbers = isinstance(old, (int, float)) and isinstance(new, (int, float))
    return round(float(new or 0) - float(old or 0), 3) if numbers else None


def same_names(bundles: Sequence[Bundle]) -> bool:
    """Whether a name is the same in all bundles: none is redacted, or all were together."""
    redactions = [b.target.get("redaction") for b in bundles if "redacted" in b.target]
    together = len(redactions) == len(bundles) and None not in redactions
    return not redactions or (together and len(set(redactions)) == 1)


def same_boot(before: Bundle, after: Bundle) -> bool | None:
    """
    Whether two bundles are of one boot of one machine; None where they do not tell.

    Same names, and the clock less the uptime says the same. A clock that was set in between makes
    it two boots, which costs differences but tells none that is not there. Machines that share a
    name and were started within the same seconds cannot be told apart.
    """
    if not same_names((before, after)):
        return None
    for name in ("hostname", "release", "architecture"):
        here, there = before.target.get(name), after.target.get(name)
        if here and there and here != there:
            return False
    booted = boot_time(before), boot_time(after)
    named = before.target.get("hostname") and after.target.get("hostname")
    if booted[0] is None or booted[1] is None or not named:
        return None
    return abs(booted[1] - booted[0]) <= SAME_BOOT_SECONDS


def relation(before: Bundle, after: Bundle) -> Relation:
    """What two bundles have to do with each other, and what follows for the numbers, in words."""

    def said(name: str) -> tuple[str, str]:
        values = (bundle.target.get(name) for bundle in (before, after))
        old, new = (str(value or "unknown") for value in values)
        return old, new

    words = []
    hosts, releases = said("hostname"), said("release")
    named = same_names((before, after))
    same_host = None if "unknown" in hosts or not named else hosts[0] == hosts[1]
    sides = ("before", "after") if same_host else ("baseline", "this")
    taken = captured(before), captured(after)
    one = same_boot(before, after)
    if one:
        seconds = elapsed(before, after)
    else:
        seconds = None if None in taken else (taken[1] or 0.0) - (taken[0] or 0.0)
    if not named:
        words.append(
            "Names were not replaced in both bundles together: comm-1 or host-1 of one is not that "
            "of the other. Tables, findings and profiles that go by such names are not compared."
        )
    if same_host is None:
        words.append("Whether the bundles are of one machine is unknown.")
    elif not same_host:
        words.append(f"Two machines: the baseline is of {hosts[0]}, this is of {hosts[1]}.")
    if releases[0] != releases[1]:
        words.append(f"Two kernels: {releases[0]} in the baseline, {releases[1]} here.")
    uptimes = [_uptime(bundle) for bundle in (before, after)]
    if one:
        apart = display.duration(abs(seconds or 0.0))
        words.append(f"One boot of {hosts[0]}, read {apart} apart (uptime {uptimes[1]}).")
    else:
        known = "Two boots" if one is False else "Whether this is one boot is unknown"
        words.append(
            f"{known} (uptime {uptimes[0]} and {uptimes[1]}). Counters since boot are left out of "
            "the differences: across two boots they do not show what changed over time. Pids, "
            "handles and addresses name other things, so tables are joined by names that "
            "last. Findings on such counters are about each boot's own time."
        )
    if same_host and seconds is not None and seconds < 0:
        sides = ("baseline", "this")
        words.append(
            "The baseline was read later than this; differences are from it to this all the same."
        )
    if before.target.get("page_size") != after.target.get("page_size"):
        words.append(
            f"Page sizes differ ({' and '.join(said('page_size'))}): what is counted in pages or "
            "pageblocks is not subtracted."
        )
    if before.target.get("total_pages") != after.target.get("total_pages"):
        words.append(f"Memory differs: {' and '.join(said('total_pages'))} pages.")
    lacks = lacking(before), lacking(after)
    if before.version != after.version:
        for name, bundle, lack in zip(
            ("The baseline", "This"), (before, after), lacks, strict=True
        ):
            if lack.words:
                words.append(f"{name} is older: {not_written(bundle)}. These are not compared.")
    one_sided = tuple(dict.fromkeys(row for lack in lacks for row in lack.rows))
    return Relation(same_host, one, seconds if one else None, sides, words, named, one_sided)


def _uptime(bundle: Bundle) -> str:
    uptime = bundle.target.get("uptime_seconds")
    known = isinstance(uptime, (int, float)) and not isinstance(uptime, bool) and uptime > 0
    return display.duration(float(uptime or 0)) if known else "unknown"


def compare_findings(
    before: Verdict, after: Verdict, *, same_boot: bool, same_names: bool = True
) -> tuple[list[FindingChange], tuple[int, int]]:
    """
    Findings of two bundles, worst first within each change; and how many of each side the other
    side could not be asked for: these are neither new nor gone.
    """

    def sorted_out(findings: list[Finding]) -> dict[tuple[Any, ...], list[Finding]]:
        found: dict[tuple[Any, ...], list[Finding]] = {}
        for finding in findings:
            subject = [
                (name, value)
                for name, value in finding.subject
                if same_boot or name not in BOOT_NAMES
            ]
            found.setdefault((finding.id, *subject), []).append(finding)
        return found

    unasked = [{item.id for item in verdict.not_checked} for verdict in (before, after)]
    old, new = sorted_out(before.found), sorted_out(after.found)
    below = sorted_out(before.under), sorted_out(after.under)
    changes: list[FindingChange] = []
    lost, only = 0, 0
    for key in dict.fromkeys([*new, *old]):
        pairs = max(len(old.get(key, [])), len(new.get(key, [])))
        for number in range(pairs):
            was = next(iter(old.get(key, [])[number:]), None)
            now = next(iter(new.get(key, [])[number:]), None)
            apart = not same_names and any(name in CHOSEN_NAMES for name, _ in key[1:])
            if apart:
                only, lost = only + (now is not None), lost + (was is not None)
            elif was is None and key[0] in unasked[0]:
                only += 1
            elif now is None and key[0] in unasked[1]:
                lost += 1
            else:
                change = _finding_change(was, now)
                # What is of neither side's findings may still have been measured there.
                was = was or next(iter(below[0].get(key, [])[number:]), None)
                now = now or next(iter(below[1].get(key, [])[number:]), None)
                change = "under" if change == "gone" and now else change
                changes.append(FindingChange(change, was, now))
    changes.sort(
        key=lambda item: (CHANGES.index(item.change), severity_rank(item.finding.severity))
    )
    return changes, (lost, only)


def _finding_change(was: Finding | None, now: Finding | None) -> str:
    if was is None or now is None:
        return "gone" if now is None else "new"
    steps = severity_rank(was.severity) - severity_rank(now.severity)
    if steps:
        return "worse" if steps > 0 else "better"
    if was.badness is None or now.badness is None:
        return "same"
    change = now.badness - was.badness
    if abs(change) < NOTABLE * max(abs(was.badness), abs(now.badness)) or not change:
        return "same"
    return "worse" if change > 0 else "better"


def _tables(
    before: Bundle, after: Bundle, related: Relation
) -> tuple[list[TableChanges], list[tuple[str, str]]]:
    connection = connect()
    left_out: list[dict[str, str]] = []
    both = {
        name for name in before.tables.keys() & after.tables.keys() if not known(name).not_compared
    }
    for schema, bundle in (("old", before), ("new", after)):
        connection.execute(f"create schema {schema}")
        left_out.append(load_tables(connection, bundle, schema, both))
    lock(connection)
    found: list[TableChanges] = []
    not_compared: list[tuple[str, str]] = []
    ours = {name for name, _, _ in views()} | {"target"}
    for name in dict.fromkeys([*after.tables, *before.tables]):
        if name == "sections":
            continue
        if name not in both or name in ours:
            not_compared.append((name, known(name).not_compared or _why(name, before, after)))
            continue
        trouble = [
            f"{side}: {_local(reasons[key], bundle)}"
            for side, reasons, bundle in zip(related.sides, left_out, (before, after), strict=True)
            for key in (name, f"table {name}")
            if key in reasons
        ]
        if trouble:
            not_compared.append((name, "; ".join(trouble)))
            continue
        try:
            found.append(_joined(connection, before.tables[name], after.tables[name], related))
        except _Incomparable as reason:
            not_compared.append((name, str(reason)))
        except (duckdb.OutOfRangeException, duckdb.ConversionException):
            not_compared.append((name, "its numbers are too large to compute with: damaged"))
        except duckdb.OutOfMemoryException:
            not_compared.append((name, f"it is {TOO_LARGE}"))
        except duckdb.Error as error:
            not_compared.append((name, in_a_line(error)))
    return found, not_compared


def _local(words: str, bundle: Bundle) -> str:
    """Without the folder's path, which is nobody's business on another machine."""
    return words.replace(f"{bundle.path}/", "")


def _why(name: str, before: Bundle, after: Bundle) -> str:
    """Why one of the bundles does not have a table."""
    lacks, has, side = (before, after, "the baseline") if name in after.tables else (
        after, before, "this bundle")  # fmt: skip
    section = has.tables[name].section
    status = next((s for s in lacks.sections if s.section == section), None)
    why = f" ({section}: {status.message or status.status})" if status else ""
    if name in new_tables(lacks):
        why = f" (mmscope {lacks.version} did not write it)"
    return f"{side} does not have it{why}"


class _Incomparable(Exception):
    """A table cannot be compared, for this reason."""


def _joined(
    connection: duckdb.DuckDBPyConnection, old: Table, new: Table, related: Relation
) -> TableChanges:
    name, notes = new.name, []
    there = {c.name: c for c in old.columns}
    both = [c for c in new.columns if c.name in there and c.type == there[c.name].type]
    if odd := [c.name for c in new.columns if c.name in there and c not in both]:
        notes.append(f"of another type in the other bundle: {', '.join(odd)}")
    either = {c.name for c in new.columns} ^ there.keys()
    if either:
        notes.append(f"only in one of the bundles: {', '.join(sorted(either))}")
    here = {c.name: c for c in both}
    keys = [c.name for c in new.columns if c.key]
    if {c.name for c in old.columns if c.key} != set(keys):
        raise _Incomparable("its key is another in the other bundle")
    if not keys:
        raise _Incomparable("it has no key")
    if "pid" in keys and "comm" in here and "comm" not in keys:
        keys.append("comm")
    summed = False
    if not related.one_boot and BOOT_NAMES & set(keys):
        lasting = known(name).lasting
        if not lasting or not all(column in here for column in lasting):
            named = ", ".join(c for c in keys if c in BOOT_NAMES)
            raise _Incomparable(f"its rows are named by {named}, which another boot gives anew")
        keys, summed = list(lasting), True
    chosen = {
        c.name
        for c in (*old.columns, *new.columns)
        if not related.same_names and c.type == "string" and c.holds not in ("kernel", "words")
    }
    if apart := [key for key in keys if key in chosen]:
        raise _Incomparable(
            f"its rows are named by {', '.join(apart)}, which was not replaced in both together"
        )
    if missing := [key for key in keys if key not in here]:
        raise _Incomparable(f"its key {', '.join(missing)} is of another type in the other bundle")
    pages_differ = any("Page sizes differ" in words for words in related.words)
    values = [
        c
        for c in both
        if c.name not in {*keys, *chosen} and not (pages_differ and c.unit in ("pages", "blocks"))
    ]
    measure = _measure(name, [c for c in values if not is_a_name(c)])
    describing = [c for c in values if c.name in DESCRIBES]
    compared = [] if summed else [c for c in values if c != measure and c not in describing]
    where = "true"
    if not related.one_boot and (since := known(name).since_boot):
        where = f"not ({since})"
        notes.append("what is counted since boot is left out: these are two boots")
    if unread := [(key, value) for table, key, value in related.one_sided if table == name]:
        # Words of our own, without quotes.
        named = ", ".join(f"'{value}'" for _, value in unread)
        where = f'({where}) and "{unread[0][0]}" not in ({named})'
        notes.append(f"only one side's mmscope writes these rows, left out: {named}")
    if related.one_boot and known(name).since_boot and related.seconds is not None:
        notes.append(f"what is counted since boot grew in {display.duration(abs(related.seconds))}")
    if summed:
        notes.append(f"rows of the same {' and '.join(keys)} are added up")
        if measure is None:
            raise _Incomparable("nothing in it can be added up")
    what = [here[key] for key in keys] + ([] if summed else describing)
    _join(connection, _query(name, keys, what, measure, compared, where, summed))
    if not summed and (other := _differing(connection, measure, compared)):
        # What the table is ranked by is the same in every row; some other amount of memory is not.
        compared = [c for c in [measure, *compared] if c is not None and c != other]
        measure = other
        _join(connection, _query(name, keys, what, measure, compared, where, summed))
    twice = connection.execute(
        f"select {', '.join(_twice(schema, name, keys, where) for schema in ('old', 'new'))}"
    ).fetchone() or (0, 0)
    if any(twice) and not summed:
        notes.append(
            f"keys that are there more than once, left out: {twice[0]:,} {related.sides[0]}, "
            f"{twice[1]:,} {related.sides[1]}"
        )
    counted = dict(
        connection.execute('select "#change", count(*) from joined group by 1').fetchall()
    )
    return TableChanges(
        name,
        new.title,
        new.section,
        what,
        measure,
        summed,
        _changes(connection, what, compared),
        {change: counted.get(change, 0) for change in ORDER},
        _totals(connection, measure),
        notes,
    )


ORDER = ("new", "gone", "grew", "shrank", "changed", "same")


def is_a_name(column: Column) -> bool:
    """Whether a number tells which and not how much."""
    return column.name in BOOT_NAMES or column.name.endswith(("_pfn", "_pid"))


def _measure(name: str, values: Sequence[Column]) -> Column | None:
    """The column that a table's rows are ranked by."""
    numbers = [c for c in values if c.type in ("integer", "number")]
    chosen = [c for c in numbers if c.name == known(name).measure]
    chosen += [c for c in numbers if c.unit in ("bytes", "pages")]
    return next(iter([*chosen, *numbers]), None)


def _join(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    connection.execute(f"create or replace temp table joined as {query}")


def _differing(
    connection: duckdb.DuckDBPyConnection, measure: Column | None, compared: Sequence[Column]
) -> Column | None:
    """The first amount of memory that differs in some row, if the measure does in none."""
    amounts = [c for c in compared if c.type == "integer" and c.unit in ("bytes", "pages")]
    if measure is None or not amounts:
        return None
    same = "select bool_and(\"#change\" in ('changed', 'same')) from joined"
    if not (connection.execute(same).fetchone() or (None,))[0]:
        return None
    differ = ", ".join(f'bool_or("old {c.name}" <> "new {c.name}")' for c in amounts)
    found = connection.execute(f"select {differ} from joined").fetchone() or ()
    return next((c for c, differs in zip(amounts, found, strict=False) if differs), None)


def _twice(schema: str, name: str, keys: Sequence[str], where: str) -> str:
    """SQL: how many keys a table has more than once. All names are identifiers."""
    by = ", ".join(f'"{key}"' for key in keys)
    return (
        f'(select count(*) from (select 1 from {schema}."{name}" where {where} '
        f"group by {by} having count(*) > 1))"
    )


def _query(
    name: str,
    keys: Sequence[str],
    what: Sequence[Column],
    measure: Column | None,
    compared: Sequence[Column],
    where: str,
    summed: bool,
) -> str:
    """
    SQL: both tables joined, with what became of each row.

    Names are identifiers, which was checked when the bundles were opened; ``#`` is in none.
    """
    by = ", ".join(f'"{key}"' for key in keys)
    kind = "double" if measure and measure.type == "number" else "hugeint"
    m = f'"{measure.name}"::{kind}' if measure else "null::hugeint"
    sides = []
    for side in ("old", "new"):
        if summed:
            # A sum with an unknown part is unknown.
            total = f"case when count(*) = count({m}) then sum({m}) end"
            picked = f'select {by}, {total} as "#m", 1 as "#here"'
            rest = f"group by {by}"
        else:
            picked = f'select *, {m} as "#m", 1 as "#here"'
            rest = f"qualify count(*) over (partition by {by}) = 1"
        sides.append(f'{side}_side as ({picked} from {side}."{name}" where {where} {rest})')
    on = " and ".join(f'o."{key}" is not distinct from n."{key}"' for key in keys)
    shown = [f'coalesce(n."{c.name}", o."{c.name}") as "what {c.name}"' for c in what]
    pairs = [
        f'{side}."{c.name}" as "{word} {c.name}"'
        for c in compared
        for side, word in (("o", "old"), ("n", "new"))
    ]
    differs = " or ".join(f'o."{c.name}" is distinct from n."{c.name}"' for c in compared)
    columns = ", ".join([*shown, *pairs])
    return f"""
        with {", ".join(sides)}
        select {columns}, o."#m" as "#before", n."#m" as "#after",
            case when o."#here" is null then n."#m" when n."#here" is null then -o."#m"
                else n."#m" - o."#m" end as "#difference",
            case when o."#here" is null then 'new' when n."#here" is null then 'gone'
                when n."#m" > o."#m" then 'grew' when n."#m" < o."#m" then 'shrank'
                when n."#m" is distinct from o."#m" or {differs or "false"} then 'changed'
                else 'same' end as "#change"
        from old_side as o full join new_side as n on {on}
    """


def _totals(
    connection: duckdb.DuckDBPyConnection, measure: Column | None
) -> tuple[Any, Any] | None:
    """Both sums of the measure; unknown where a part is."""
    if measure is None or measure.unit not in ("bytes", "pages", "blocks"):
        return None
    found = connection.execute("""
        select sum("#before"), sum("#after") from joined
        having bool_and("#change" = 'new' or "#before" is not null)
            and bool_and("#change" = 'gone' or "#after" is not null)
    """).fetchone()
    return (found[0] or 0, found[1] or 0) if found else None


def _changes(
    connection: duckdb.DuckDBPyConnection, what: Sequence[Column], compared: Sequence[Column]
) -> list[Change]:
    by = ", ".join(str(number) for number in range(1, len(what) + 1))
    cursor = connection.execute(
        "select * from joined where \"#change\" <> 'same' "
        f'order by abs("#difference") desc nulls last, {by} limit {MAX_CHANGES}'
    )
    names = [d[0] for d in cursor.description or ()]
    result = []
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        others = [
            (c, row[f"old {c.name}"], row[f"new {c.name}"])
            for c in compared
            if row["#change"] not in ("new", "gone")
            and row[f"old {c.name}"] != row[f"new {c.name}"]
        ]
        result.append(
            Change(
                row["#change"],
                tuple(row[f"what {c.name}"] for c in what),
                row["#before"],
                row["#after"],
                row["#difference"],
                others,
            )
        )
    return result


def bytes_of(value: int | float, column: Column | None, page_size: int | None) -> int | None:
    """A value in bytes, if it is an amount of memory."""
    if column is None or isinstance(value, float):
        return None
    if column.unit == "bytes":
        return value
    return value * page_size if column.unit == "pages" and page_size else None


def set_differently(comparison: Comparison) -> list[tuple[TableChanges, Change, Any, Any]]:
    """What is set otherwise: (table, row, before, after); of a switch its first row."""
    found = []
    for table in comparison.changed:
        for change in table.changes:
            pairs = [(a, b) for c, a, b in change.others if c.name == known(table.name).setting]
            found += [(table, change, *pair) for pair in pairs]
            if pairs and table.name != "settings":
                break
    return found


def most_changed(
    comparison: Comparison, page_size: int | None
) -> list[tuple[TableChanges, Change]]:
    """
    The largest change of each table, memory first, by bytes; then the others in their order.

    Who has the memory goes before what is left of it, and a stack before its coarser parts, unless
    it accounts for less than half. Of free memory counts what has gone from it or come to it.
    """
    tops = [(table, table.changes[0]) for table in comparison.changed]
    freed = _freed(comparison, page_size)

    def rank(item: tuple[TableChanges, Change]) -> float:
        table, change = item
        kind = known(table.name).memory
        amount = abs(bytes_of(change.difference or 0, table.measure, page_size) or 0)
        if kind == "mapped":
            amount = 0
        if kind == "free" and freed is not None:
            amount = min(amount, freed)
        return amount / 2 if kind in ("free", "again") else amount

    return sorted(tops, key=rank, reverse=True)


def _freed(comparison: Comparison, page_size: int | None) -> int | None:
    """By how many bytes free memory differs, that on the CPUs' lists included."""
    known = {table.name: table for table in comparison.tables}
    sums = []
    for name in ("zones", "pcp_pages"):
        table = known.get(name)
        if table is None or table.totals is None:
            return None
        before, after = table.totals
        sums.append(bytes_of(after - before, table.measure, page_size))
    return None if None in sums else abs(sum(filter(None, sums)))


def _graphs(
    before: Bundle, after: Bundle, related: Relation, not_compared: list[tuple[str, str]]
) -> list[Graphs]:
    """
    Differential flame graphs of every kind of stacks that both bundles have.

    What one machine held at two moments is compared as it is; profiles, and what two machines
    hold, by shares of the totals.

    :param not_compared: gets what is too large to be drawn.
    """
    sizes = {display.plain_int(bundle.target.get("page_size")) for bundle in (before, after)}
    page_size = sizes.pop() if len(sizes) == 1 else None
    two_hosts = related.same_host is False
    wanted: list[tuple[str, str, str, bool]] = []
    for name, title, unit in (
        ("page_owner_stacks", "Pages by allocation stack", "bytes" if page_size else "pages"),
        ("slab_owner_stacks", "Slab objects by cache and allocation stack", "bytes"),
    ):
        if name in before.tables and name in after.tables:
            wanted.append((name, title, unit, two_hosts))
    for name, folded in after.folded.items():
        other = before.folded.get(name)
        profile = folded.section == profiles.SECTION
        if profile and not related.same_names:
            continue
        if other and other.unit == folded.unit and f"{name}_stacks" not in before.tables:
            title = f"Profile {name}" if profile else folded.title
            wanted.append((name, title, folded.unit, profile or two_hosts))
    drawn = []
    for name, title, unit, normalise in wanted[:MAX_GRAPHS]:
        try:
            old, new = (_stacks(bundle, name, page_size or 1) for bundle in (before, after))
        except (BundleError, LookupError, TypeError):
            continue  # the sections say what is damaged
        totals = sum(value for _, value in old), sum(value for _, value in new)
        if not any(totals):
            continue
        try:
            pair = differential(
                old,
                new,
                unit=unit,
                describe=f"Differential flame graph: {title}",
                normalise=normalise,
                frames=MAX_FRAMES,
            )
        except ValueError as error:
            not_compared.append((f"stacks of {name}", str(error)))
            continue
        same = fold(old) == fold(new)
        drawn.append(Graphs(title, unit, totals, normalise and all(totals), same, *pair))
    return drawn


def _stacks(bundle: Bundle, name: str, page_size: int) -> list[tuple[str, int]]:
    """
    What a flame graph is drawn from: a table of owners, or folded stacks.

    :raises BundleError: it is damaged.
    """
    rows: Iterable[tuple[str, int]]
    if name in bundle.tables and bundle.hold([name]):
        raise BundleError(f"table {name} is damaged, or too large to be drawn")
    if name == "page_owner_stacks":
        rows = ((row["stack"] or NO_STACK, row["pages"] * page_size) for row in bundle.rows(name))
    elif name == "slab_owner_stacks":
        rows = (
            (f"{row['cache']};{row['stack'] or NO_STACK}", row["bytes"] or 0)
            for row in bundle.rows(name)
        )
    else:
        # Programs that are compared may bear different names.
        rows = without_comm(bundle.drawn_stacks(name))
    return [(stack, value) for stack, value in rows if value > 0]
