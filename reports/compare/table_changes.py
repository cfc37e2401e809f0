# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tables of two bundles, held against each other row by row.

Every table that has a key is joined on it, in DuckDB, and each row is new, gone, grown, shrunk,
otherwise changed or the same. Where a table knows the same thing by a name that lasts (a stack, a
comm), its rows are added up by that.

Cannot know: whether a key that is in both bundles names the same thing. Of one boot it nearly
always does; a pid counts as the same only with the same comm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column
from mmscope.drgn.tables.table import Table as Declared
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import new_tables
from mmscope.reports.bundle.database import TOO_LARGE, connect, in_a_line, load_tables, lock
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import Table
from mmscope.reports.bundle.views import views
from mmscope.reports.compare.relation import BOOT_NAMES, Relation
from mmscope.reports.drawing.row_names import DESCRIBES

# Of each table; the others are counted.
MAX_CHANGES = 30


def known(name: str) -> Declared:
    """The declaration of a table; an empty one if there is none."""
    return TABLES.get(name, UNKNOWN)


UNKNOWN = Declared("", "", object)
ORDER = ("new", "gone", "grew", "shrank", "changed", "same")


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


@dataclass(slots=True)
class TableChanges:
    """
    Changes of one table, and how its rows were compared.

    :ivar keys: columns that name a row in both bundles.
    :ivar what: columns that say what a row is: the keys, and others that describe it.
    :ivar measure: the column that rows are ranked by.
    :ivar compared: the other columns whose differences are shown.
    :ivar where: SQL: the rows that are compared.
    :ivar summed: rows of the same keys are added up.
    :ivar changes: the rows that differ most.
    :ivar counts: rows by what became of them: new, gone, grew, shrank, changed, same.
    :ivar totals: both sums of the measure, where amounts of memory add up.
    """

    name: str
    title: str
    section: str
    keys: list[str]
    what: list[Column]
    measure: Column | None
    compared: list[Column]
    where: str
    summed: bool
    notes: list[str]
    changes: list[Change] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    totals: tuple[Any, Any] | None = None

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
        # Without the folders' paths, which say nothing on another machine.
        trouble = [
            f"{side}: {reasons[key].replace(f'{bundle.path}/', '')}"
            for side, reasons, bundle in zip(related.sides, left_out, (before, after), strict=True)
            for key in (name, f"table {name}")
            if key in reasons
        ]
        if trouble:
            not_compared.append((name, "; ".join(trouble)))
            continue
        try:
            table = _planned(before.tables[name], after.tables[name], related)
            _compare(connection, table, related)
            found.append(table)
        except _IncomparableError as reason:
            not_compared.append((name, str(reason)))
        except (duckdb.OutOfRangeException, duckdb.ConversionException):
            not_compared.append((name, "its numbers are too large to compute with: damaged"))
        except duckdb.OutOfMemoryException:
            not_compared.append((name, f"it is {TOO_LARGE}"))
        except duckdb.Error as error:
            not_compared.append((name, in_a_line(error)))
    return found, not_compared


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


class _IncomparableError(Exception):
    """A table cannot be compared; says why."""


def _row_names(
    old: Table, new: Table, here: dict[str, Column], chosen: set[str], related: Relation
) -> tuple[list[str], bool]:
    """
    The columns that name a row in both bundles, and whether rows of the same name are added up.

    :param here: columns that both have.
    :param chosen: columns of names that were not replaced in both bundles together.
    :raises _IncomparableError: there are no such columns.
    """
    keys = [c.name for c in new.columns if c.key]
    if {c.name for c in old.columns if c.key} != set(keys):
        raise _IncomparableError("its key is another in the other bundle")
    if not keys:
        raise _IncomparableError("it has no key")
    if "pid" in keys and "comm" in here and "comm" not in keys:
        keys.append("comm")
    summed = False
    if not related.one_boot and BOOT_NAMES & set(keys):
        lasting = known(new.name).lasting
        if not lasting or not all(column in here for column in lasting):
            named = ", ".join(c for c in keys if c in BOOT_NAMES)
            raise _IncomparableError(
                f"its rows are named by {named}, which each boot numbers itself"
            )
        keys, summed = list(lasting), True
    if apart := [key for key in keys if key in chosen]:
        raise _IncomparableError(
            f"its rows are named by {', '.join(apart)}, which was not replaced in both together"
        )
    if missing := [key for key in keys if key not in here]:
        raise _IncomparableError(
            f"its key {', '.join(missing)} is of another type in the other bundle"
        )
    return keys, summed


def _rows_compared(name: str, related: Relation) -> tuple[str, list[str]]:
    """SQL for the rows of a table that are compared; and notes on the others."""
    notes = []
    where, since_boot = "true", known(name).since_boot
    if not related.one_boot and since_boot:
        where = f"not ({since_boot})"
        notes.append("what is counted since boot is left out: these are two boots")
    if unread := [(key, value) for table, key, value in related.one_sided if table == name]:
        # Words of our own, without quotes.
        named = ", ".join(f"'{value}'" for _, value in unread)
        where = f'({where}) and "{unread[0][0]}" not in ({named})'
        notes.append(f"only one side's mmscope writes these rows, left out: {named}")
    if related.one_boot and since_boot and related.seconds is not None:
        notes.append(f"what is counted since boot grew in {display.duration(abs(related.seconds))}")
    return where, notes


def _planned(old: Table, new: Table, related: Relation) -> TableChanges:
    """
    Plan how two tables are compared.

    :raises _IncomparableError: they cannot be.
    """
    there, notes = {c.name: c for c in old.columns}, []
    both = [c for c in new.columns if c.name in there and c.type == there[c.name].type]
    if odd := [c.name for c in new.columns if c.name in there and c not in both]:
        notes.append(f"of another type in the other bundle: {', '.join(odd)}")
    if either := {c.name for c in new.columns} ^ there.keys():
        notes.append(f"only in one of the bundles: {', '.join(sorted(either))}")
    here = {c.name: c for c in both}
    # Columns of names that people chose, which ``redact`` replaces.
    chosen = {
        c.name
        for c in (*old.columns, *new.columns)
        if not related.same_names and c.type == "string" and c.holds not in ("kernel", "words")
    }
    keys, summed = _row_names(old, new, here, chosen, related)
    pages_differ = any("Page sizes differ" in words for words in related.words)
    values = [
        c
        for c in both
        if c.name not in {*keys, *chosen} and not (pages_differ and c.unit in ("pages", "blocks"))
    ]
    measure = _measure(new.name, values)
    where, left_out = _rows_compared(new.name, related)
    notes += left_out
    what, compared = [here[key] for key in keys], []
    if summed:
        notes.append(f"rows of the same {' and '.join(keys)} are added up")
        if measure is None:
            raise _IncomparableError("nothing in it can be added up")
    else:
        describing = [c for c in values if c.name in DESCRIBES]
        compared = [c for c in values if c != measure and c not in describing]
        what += describing
    named = new.name, new.title, new.section
    return TableChanges(*named, keys, what, measure, compared, where, summed, notes)


def is_a_name(column: Column) -> bool:
    """True if a number says which, and not how much."""
    return column.name in BOOT_NAMES or column.name.endswith(("_pfn", "_pid"))


def _measure(name: str, values: Sequence[Column]) -> Column | None:
    """The column that a table's rows are ranked by: the declared one, memory, or any number."""
    numbers = [c for c in values if c.type in ("integer", "number") and not is_a_name(c)]
    chosen = [c for c in numbers if c.name == known(name).measure]
    chosen += [c for c in numbers if c.unit in ("bytes", "pages")]
    return next(iter([*chosen, *numbers]), None)


def _compare(connection: duckdb.DuckDBPyConnection, table: TableChanges, related: Relation) -> None:
    """Join both sides of a table, and fill in what changed."""
    _join(connection, table)
    if not table.summed and (other := _differing(connection, table)):
        # What the table is ranked by is the same in every row; some other amount of memory is not.
        columns = [table.measure, *table.compared]
        table.compared = [c for c in columns if c is not None and c != other]
        table.measure = other
        _join(connection, table)
    counts = ", ".join(f"count(*) filter (\"#change\" = '{change}')" for change in ORDER)
    rows = ", ".join(
        f'(select count(*) from {side}."{table.name}" where {table.where})'
        for side in ("old", "new")
    )
    summary = connection.execute(f"""
        select {counts}, {rows}, coalesce(sum("#before"), 0), coalesce(sum("#after"), 0),
            coalesce(bool_and("#change" = 'new' or "#before" is not null)
                and bool_and("#change" = 'gone' or "#after" is not null), false) as known
        from joined
    """).fetchone()
    assert summary is not None
    *numbers, old, new, was, now, known_totals = summary
    table.counts = dict(zip(ORDER, numbers, strict=True))
    both = sum(numbers) - table.counts["new"] - table.counts["gone"]
    if not table.summed and (old, new) != (both + table.counts["gone"], both + table.counts["new"]):
        _note_repeated(connection, table, related)
    if table.differing:
        table.changes = _changes(connection, table)
    if known_totals and table.measure and table.measure.unit in ("bytes", "pages", "blocks"):
        table.totals = was, now  # unknown where a part is


def _differing(connection: duckdb.DuckDBPyConnection, table: TableChanges) -> Column | None:
    """The first amount of memory that differs in some row, if the measure does in none."""
    amounts = [c for c in table.compared if c.type == "integer" and c.unit in ("bytes", "pages")]
    if table.measure is None or not amounts:
        return None
    differ = "".join(f', bool_or("old {c.name}" <> "new {c.name}")' for c in amounts)
    same = "bool_and(\"#change\" in ('changed', 'same'))"
    alike, *found = connection.execute(f"select {same}{differ} from joined").fetchone() or (None,)
    return next((c for c, differs in zip(amounts, found, strict=False) if alike and differs), None)


def _note_repeated(
    connection: duckdb.DuckDBPyConnection, table: TableChanges, related: Relation
) -> None:
    """Note how many keys each side has more than once. All names are identifiers."""
    by = ", ".join(f'"{key}"' for key in table.keys)
    repeated = (
        f'(select count(*) from (select 1 from {schema}."{table.name}" where {table.where} '
        f"group by {by} having count(*) > 1))"
        for schema in ("old", "new")
    )
    old, new = connection.execute(f"select {', '.join(repeated)}").fetchone() or (0, 0)
    if old or new:
        table.notes.append(
            f"keys that are there more than once, left out: {old:,} {related.sides[0]}, "
            f"{new:,} {related.sides[1]}"
        )


def _join(connection: duckdb.DuckDBPyConnection, table: TableChanges) -> None:
    """
    Join both tables, with what became of each row.

    Names are identifiers, which was checked when the bundles were opened; ``#`` is in none.
    """
    measure = table.measure
    by = ", ".join(f'"{key}"' for key in table.keys)
    kind = "double" if measure and measure.type == "number" else "hugeint"
    m = f'"{measure.name}"::{kind}' if measure else "null::hugeint"
    if table.summed:
        # A sum with an unknown part is unknown.
        total = f"case when count(*) = count({m}) then sum({m}) end"
        picked = f'{by}, {total} as "#m", 1 as "#here", false as "#counted"'
        rest = f"group by {by}"
    else:
        # Of a key that a side has more than once, neither side's row is any row's other.
        picked = (
            f'*, {m} as "#m", count(*) over (partition by {by}) as "#here", '
            f'({known(table.name).since_boot or "false"}) as "#counted"'
        )
        rest = f"qualify row_number() over (partition by {by}) = 1"
    old, new = (
        f'(select {picked} from {side}."{table.name}" where {table.where} {rest})'
        for side in ("old", "new")
    )
    on = " and ".join(f'o."{key}" is not distinct from n."{key}"' for key in table.keys)
    columns = [f'coalesce(n."{c.name}", o."{c.name}") as "what {c.name}"' for c in table.what]
    for c in table.compared:
        columns += [f'o."{c.name}" as "old {c.name}"', f'n."{c.name}" as "new {c.name}"']
    differs = [f'o."{c.name}" is distinct from n."{c.name}"' for c in table.compared]
    connection.execute(f"""
        create or replace temp table joined as
        select {", ".join(columns)}, o."#m" as "#before", n."#m" as "#after",
            coalesce(n."#counted", o."#counted") as "#counted",
            case when o."#here" is null then n."#m" when n."#here" is null then -o."#m"
                else n."#m" - o."#m" end as "#difference",
            case when o."#here" is null then 'new' when n."#here" is null then 'gone'
                when n."#m" > o."#m" then 'grew' when n."#m" < o."#m" then 'shrank'
                when n."#m" is distinct from o."#m" or {" or ".join(differs) or "false"}
                then 'changed' else 'same' end as "#change"
        from {old} as o full join {new} as n on {on}
        where coalesce(o."#here", 1) = 1 and coalesce(n."#here", 1) = 1
    """)


def _changes(connection: duckdb.DuckDBPyConnection, table: TableChanges) -> list[Change]:
    """The rows that differ most."""
    by = ", ".join(str(number) for number in range(1, len(table.what) + 1))
    cursor = connection.execute(
        "select * from joined where \"#change\" <> 'same' "
        'order by abs("#difference") desc nulls last, '
        f'greatest("#before", "#after") desc nulls last, {by} limit {MAX_CHANGES}'
    )
    names = [d[0] for d in cursor.description or ()]
    changes = []
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        both = table.compared if row["#change"] not in ("new", "gone") else []
        pairs = [(c, row[f"old {c.name}"], row[f"new {c.name}"]) for c in both]
        changes.append(
            Change(
                row["#change"],
                tuple(row[f"what {c.name}"] for c in table.what),
                row["#before"],
                row["#after"],
                row["#difference"],
                [(c, was, now) for c, was, now in pairs if was != now],
                bool(row["#counted"]),
            )
        )
    return changes
