# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tables of two bundles, held against each other row by row.

Every table that has a key is joined on it, in DuckDB, and each row is new, gone, grown, shrunk,
otherwise changed or the same. Where a table knows the same thing by a name that lasts (a stack, a
comm), its rows are added up by that.

Cannot know: whether a key that is in both bundles names the same thing. Of one boot it nearly
always does; a pid counts as the same only with the same comm.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column
from mmscope.drgn.tables.table import Table as Declared
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import new_tables
from mmscope.reports.bundle.database import TOO_LARGE, connect, in_a_line, load_tables, lock, views
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import Table
from mmscope.reports.compare.relation import BOOT_NAMES, Relation
from mmscope.reports.drawing.row_names import DESCRIBES

# Of each table; the others are counted.
MAX_CHANGES = 30


def known(name: str) -> Declared:
    """How a table is declared; of one that is not, nothing."""
    return TABLES.get(name, UNKNOWN)


UNKNOWN = Declared("", "", object)


@dataclass(frozen=True, slots=True)
class Change:
    """
    A row that is not the same in both.

    :ivar what: values of the columns that say what it is.
    :ivar others: other columns that differ: (column, before, after).
    :ivar counted: it is counted since boot.
    """

    change: str  # new, gone, grew, shrank, changed
    what: tuple[Any, ...]
    before: int | float | None
    after: int | float | None
    difference: int | float | None
    others: list[tuple[Column, Any, Any]]
    counted: bool


@dataclass(frozen=True, slots=True)
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


def compare_tables(
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
    """Without the folder's path, which says nothing on another machine."""
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


def _row_names(
    old: Table, new: Table, here: dict[str, Column], chosen: set[str], related: Relation
) -> tuple[list[str], bool]:
    """
    The columns that name a row in both bundles, and whether rows of the same name are added up.

    :param here: columns that both have.
    :param chosen: columns of names that were not replaced in both bundles together.
    :raises _Incomparable: there are no such columns.
    """
    keys = [c.name for c in new.columns if c.key]
    if {c.name for c in old.columns if c.key} != set(keys):
        raise _Incomparable("its key is another in the other bundle")
    if not keys:
        raise _Incomparable("it has no key")
    if "pid" in keys and "comm" in here and "comm" not in keys:
        keys.append("comm")
    summed = False
    if not related.one_boot and BOOT_NAMES & set(keys):
        lasting = known(new.name).lasting
        if not lasting or not all(column in here for column in lasting):
            named = ", ".join(c for c in keys if c in BOOT_NAMES)
            raise _Incomparable(f"its rows are named by {named}, which each boot numbers itself")
        keys, summed = list(lasting), True
    if apart := [key for key in keys if key in chosen]:
        raise _Incomparable(
            f"its rows are named by {', '.join(apart)}, which was not replaced in both together"
        )
    if missing := [key for key in keys if key not in here]:
        raise _Incomparable(f"its key {', '.join(missing)} is of another type in the other bundle")
    return keys, summed


def _rows_compared(name: str, related: Relation) -> tuple[str, list[str]]:
    """SQL: which of a table's rows are compared; and what is to be said of them."""
    notes = []
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
    return where, notes


@dataclass(frozen=True, slots=True)
class _Plan:
    """
    How two tables are compared.

    :ivar keys: columns that name a row in both.
    :ivar what: columns that say what a row is: the keys, and others that describe it.
    :ivar measure: the column that rows are ranked by.
    :ivar compared: the other columns whose differences are shown.
    :ivar where: SQL: the rows that are compared.
    :ivar summed: rows of the same keys are added up.
    """

    name: str
    keys: list[str]
    what: list[Column]
    measure: Column | None
    compared: list[Column]
    where: str
    summed: bool
    notes: list[str]


def _joined(
    connection: duckdb.DuckDBPyConnection, old: Table, new: Table, related: Relation
) -> TableChanges:
    plan = _planned(old, new, related)
    _join(connection, plan)
    if not plan.summed and (other := _differing(connection, plan.measure, plan.compared)):
        # What the table is ranked by is the same in every row; some other amount of memory is not.
        columns = [c for c in (plan.measure, *plan.compared) if c is not None and c != other]
        plan = dataclasses.replace(plan, measure=other, compared=columns)
        _join(connection, plan)
    twice = _twice(connection, plan)
    if any(twice) and not plan.summed:
        plan.notes.append(
            f"keys that are there more than once, left out: {twice[0]:,} {related.sides[0]}, "
            f"{twice[1]:,} {related.sides[1]}"
        )
    by_change = 'select "#change", count(*) from joined group by 1'
    counted = dict(connection.execute(by_change).fetchall())
    return TableChanges(
        name=new.name,
        title=new.title,
        section=new.section,
        what=plan.what,
        measure=plan.measure,
        summed=plan.summed,
        changes=_changes(connection, plan.what, plan.compared),
        counts={change: counted.get(change, 0) for change in ORDER},
        totals=_totals(connection, plan.measure),
        notes=plan.notes,
    )


def _planned(old: Table, new: Table, related: Relation) -> _Plan:
    """:raises _Incomparable: the tables cannot be compared."""
    both, notes = _columns_of_both(old, new)
    here = {c.name: c for c in both}
    chosen = set() if related.same_names else _chosen_names((*old.columns, *new.columns))
    keys, summed = _row_names(old, new, here, chosen, related)
    pages_differ = any("Page sizes differ" in words for words in related.words)
    values = [
        c
        for c in both
        if c.name not in {*keys, *chosen} and not (pages_differ and c.unit in ("pages", "blocks"))
    ]
    measure = _measure(new.name, [c for c in values if not is_a_name(c)])
    where, left_out = _rows_compared(new.name, related)
    notes += left_out
    what = [here[key] for key in keys]
    if summed:
        notes.append(f"rows of the same {' and '.join(keys)} are added up")
        if measure is None:
            raise _Incomparable("nothing in it can be added up")
        return _Plan(new.name, keys, what, measure, [], where, summed, notes)
    describing = [c for c in values if c.name in DESCRIBES]
    compared = [c for c in values if c != measure and c not in describing]
    return _Plan(new.name, keys, what + describing, measure, compared, where, summed, notes)


def _columns_of_both(old: Table, new: Table) -> tuple[list[Column], list[str]]:
    """Columns that both tables have, of one type; and what is to be said of the others."""
    there, notes = {c.name: c for c in old.columns}, []
    both = [c for c in new.columns if c.name in there and c.type == there[c.name].type]
    if odd := [c.name for c in new.columns if c.name in there and c not in both]:
        notes.append(f"of another type in the other bundle: {', '.join(odd)}")
    if either := {c.name for c in new.columns} ^ there.keys():
        notes.append(f"only in one of the bundles: {', '.join(sorted(either))}")
    return both, notes


def _chosen_names(columns: Iterable[Column]) -> set[str]:
    """Columns of names that people chose, which ``redact`` replaces."""
    return {c.name for c in columns if c.type == "string" and c.holds not in ("kernel", "words")}


ORDER = ("new", "gone", "grew", "shrank", "changed", "same")


def is_a_name(column: Column) -> bool:
    """True if a number says which, and not how much."""
    return column.name in BOOT_NAMES or column.name.endswith(("_pfn", "_pid"))


def _measure(name: str, values: Sequence[Column]) -> Column | None:
    """The column that a table's rows are ranked by."""
    numbers = [c for c in values if c.type in ("integer", "number")]
    chosen = [c for c in numbers if c.name == known(name).measure]
    chosen += [c for c in numbers if c.unit in ("bytes", "pages")]
    return next(iter([*chosen, *numbers]), None)


def _join(connection: duckdb.DuckDBPyConnection, plan: _Plan) -> None:
    connection.execute(f"create or replace temp table joined as {_query(plan)}")


def _differing(
    connection: duckdb.DuckDBPyConnection, measure: Column | None, compared: Sequence[Column]
) -> Column | None:
    """The first amount of memory that differs in some row, if the measure does in none."""
    amounts = [c for c in compared if c.type == "integer" and c.unit in ("bytes", "pages")]
    if measure is None or not amounts:
        return None
    same = "select bool_and(\"#change\" in ('changed', 'same')) from joined"
    (alike,) = connection.execute(same).fetchone() or (None,)
    if not alike:
        return None
    differ = ", ".join(f'bool_or("old {c.name}" <> "new {c.name}")' for c in amounts)
    found = connection.execute(f"select {differ} from joined").fetchone() or ()
    return next((c for c, differs in zip(amounts, found, strict=False) if differs), None)


def _twice(connection: duckdb.DuckDBPyConnection, plan: _Plan) -> tuple[int, ...]:
    """Number of keys that each side's table has more than once. All names are identifiers."""
    by = ", ".join(f'"{key}"' for key in plan.keys)
    both = (
        f'(select count(*) from (select 1 from {schema}."{plan.name}" where {plan.where} '
        f"group by {by} having count(*) > 1))"
        for schema in ("old", "new")
    )
    return connection.execute(f"select {', '.join(both)}").fetchone() or (0, 0)


def _query(plan: _Plan) -> str:
    """
    SQL: both tables joined, with what became of each row.

    Names are identifiers, which was checked when the bundles were opened; ``#`` is in none.
    """
    measure = plan.measure
    by = ", ".join(f'"{key}"' for key in plan.keys)
    kind = "double" if measure and measure.type == "number" else "hugeint"
    m = f'"{measure.name}"::{kind}' if measure else "null::hugeint"
    sides = []
    for side in ("old", "new"):
        if plan.summed:
            # A sum with an unknown part is unknown.
            total = f"case when count(*) = count({m}) then sum({m}) end"
            picked = f'select {by}, {total} as "#m", 1 as "#here", false as "#counted"'
            rest = f"group by {by}"
        else:
            # Of a key that a side has more than once, neither side's row is any row's other.
            picked = (
                f'select *, {m} as "#m", count(*) over (partition by {by}) as "#here", '
                f'({known(plan.name).since_boot or "false"}) as "#counted"'
            )
            rest = f"qualify row_number() over (partition by {by}) = 1"
        sides.append(
            f'{side}_side as ({picked} from {side}."{plan.name}" where {plan.where} {rest})'
        )
    on = " and ".join(f'o."{key}" is not distinct from n."{key}"' for key in plan.keys)
    shown = [f'coalesce(n."{c.name}", o."{c.name}") as "what {c.name}"' for c in plan.what]
    pairs = [
        f'{side}."{c.name}" as "{word} {c.name}"'
        for c in plan.compared
        for side, word in (("o", "old"), ("n", "new"))
    ]
    differs = " or ".join(f'o."{c.name}" is distinct from n."{c.name}"' for c in plan.compared)
    columns = ", ".join([*shown, *pairs])
    return f"""
        with {", ".join(sides)}
        select {columns}, o."#m" as "#before", n."#m" as "#after",
            coalesce(n."#counted", o."#counted") as "#counted",
            case when o."#here" is null then n."#m" when n."#here" is null then -o."#m"
                else n."#m" - o."#m" end as "#difference",
            case when o."#here" is null then 'new' when n."#here" is null then 'gone'
                when n."#m" > o."#m" then 'grew' when n."#m" < o."#m" then 'shrank'
                when n."#m" is distinct from o."#m" or {differs or "false"} then 'changed'
                else 'same' end as "#change"
        from old_side as o full join new_side as n on {on}
        where coalesce(o."#here", 1) = 1 and coalesce(n."#here", 1) = 1
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
    if not found:
        return None
    before, after = found
    return before or 0, after or 0


def _changes(
    connection: duckdb.DuckDBPyConnection, what: Sequence[Column], compared: Sequence[Column]
) -> list[Change]:
    by = ", ".join(str(number) for number in range(1, len(what) + 1))
    cursor = connection.execute(
        "select * from joined where \"#change\" <> 'same' "
        'order by abs("#difference") desc nulls last, '
        f'greatest("#before", "#after") desc nulls last, {by} limit {MAX_CHANGES}'
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
                bool(row["#counted"]),
            )
        )
    return result
