# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A finding's query as Spark's SQL, over many bundles at once.

The text is the one that DuckDB is given. It is parsed, each source gets the number of its bundle,
and this number goes into each join, group, window, limit and subquery: Spark does not run every
query in a ``lateral``, as DuckDB does. What an aggregate over nothing gives, it gives for each
bundle that has no row.

Where the two engines differ, DuckDB's meaning is written out: sums of integers are as wide as
HUGEINT nearly (``decimal(38, 0)``), ``/`` is of doubles, casts to integers round, a shift that
overflows fails, ``arg_max`` leaves out rows without a value, and NULL comes last. What this does
not know how to say is refused, not guessed.

Cannot know: which of several equal rows ``arg_max`` or a limit takes.
"""

import functools
import itertools
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import TARGET, sql_type
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.findings.findings import Question, named
from mmscope.reports.lake.keyed import HOSTS, NUMBER, PLACE, views_of

ASKED = HOSTS.partition(".")[2]
WIDE = "decimal(38, 0)"


class UnsupportedQuery(Exception):
    """A query that cannot be said in Spark's SQL with the same meaning."""


def spark_sql(question: Question) -> str:
    """
    A question's SQL over all bundles in :data:`ASKED`: a row has the number of its bundle, and its
    place among that bundle's.

    :raises UnsupportedQuery: it cannot be said.
    """
    words = named([question])
    try:
        tree = sqlglot.parse_one(question.sql, read="duckdb")
        ours = [
            exp.CTE(
                this=sqlglot.parse_one(view, read="duckdb"),
                alias=exp.TableAlias(this=exp.to_identifier(name)),
            )
            for name, view in views_of().items()
            if name in words
        ]
        if ours:
            tree.set("with_", exp.With(expressions=ours + tree.ctes))
        tree = qualify(tree, schema=_schema(), dialect="duckdb")
        tree = annotate_types(tree, schema=_schema(), dialect="duckdb")
        for node in list(tree.find_all(exp.IgnoreNulls)):  # what any_value does here and there
            node.replace(node.this)
        keyed = _Keyed().query(tree, placed=True)
        return str(_Generator().generate(as_duckdb_means(keyed), copy=False))
    except sqlglot.errors.SqlglotError as error:
        raise UnsupportedQuery(" ".join(str(error).split())[:200]) from error


@functools.cache
def _schema() -> dict[str, Any]:
    tables: dict[str, Any] = {
        name: {c.name: sql_type(c) for c in columns(table.row)} for name, table in TABLES.items()
    }
    return tables | {"target": dict(TARGET)}


def _output(select: exp.Expression, item: exp.Expression) -> exp.Expression:
    """What is ordered by, where it is the name of a column of the result."""

    def meant(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and not node.table:
            for one in select.expressions:
                if one.alias_or_name == node.name:
                    return (one.this if isinstance(one, exp.Alias) else one).copy()
        return node

    return item.copy().transform(meant)


class _Keyed:
    """Puts the number of the bundle into a query and all that it has."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def _name(self, kind: str) -> str:
        return f"lake_{kind}{next(self._numbers)}"

    def query(self, tree: exp.Expression, placed: bool = False) -> exp.Expression:
        """
        The query with a column more, its last: the number of the bundle.

        :param placed: and one more, the row's place among its bundle's.
        """
        if isinstance(tree, exp.SetOperation):
            if tree.args.get("limit") or placed:
                raise UnsupportedQuery("a union with an order")
            tree.set("this", self.query(tree.this))
            tree.set("expression", self.query(tree.expression))
            tree.set("order", None)
            return tree
        if isinstance(tree, exp.Subquery):
            tree.set("this", self.query(tree.this))
            return tree
        if not isinstance(tree, exp.Select):
            raise UnsupportedQuery(f"a {tree.key} in place of a query")
        order = self._order(tree)
        key = self._select(tree)
        tree.append("expressions", exp.alias_(key.copy(), NUMBER))
        return self._ranked(tree, order, placed) if placed or tree.args.get("limit") else tree

    def _order(self, tree: exp.Expression) -> list[exp.Expression]:
        """The order of a query, as columns that are hidden again once its rows are ranked."""
        order = tree.args.get("order")
        tree.set("order", None)
        if tree.args.get("offset"):
            raise UnsupportedQuery("an offset")
        ordered = []
        for item in order.expressions if order else []:
            name = self._name("o")
            tree.append("expressions", exp.alias_(_output(tree, item.this), name))
            by = item.copy()
            by.set("this", exp.column(name))
            ordered.append(by)
        return ordered or [exp.Ordered(this=exp.Literal.number(1))]

    def _ranked(
        self, tree: exp.Expression, order: list[exp.Expression], placed: bool
    ) -> exp.Expression:
        limit, ctes = tree.args.get("limit"), tree.args.get("with_")
        tree.set("limit", None)
        tree.set("with_", None)
        names = [one.alias_or_name for one in tree.expressions]
        kept = [name for name in names if not name.startswith("lake_o")]
        rank = exp.Window(
            this=exp.RowNumber(),
            partition_by=[exp.column(NUMBER)],
            order=exp.Order(expressions=order),
        )
        columns = [exp.column(name, quoted=True) for name in names]
        ranked = exp.select(*columns, exp.alias_(rank, PLACE)).from_(tree.subquery(self._name("l")))
        result = exp.select(*(exp.column(name, quoted=True) for name in kept)).from_(
            ranked.subquery(self._name("l"))
        )
        if placed:
            result = result.select(exp.column(PLACE))
        if limit:
            result = result.where(exp.LTE(this=exp.column(PLACE), expression=limit.expression))
        result.set("with_", ctes)
        return result

    def _select(self, tree: exp.Expression, outer: exp.Expression | None = None) -> exp.Expression:
        """Key what a select has; returns the number of its rows' bundle."""
        for part in ("laterals", "qualify", "sample", "windows"):
            if tree.args.get(part):
                raise UnsupportedQuery(f"{part} in a {tree.key}")
        for cte in tree.ctes:
            cte.set("this", self.query(cte.this))
        inner = [
            node
            for node in _of_select(tree, exp.Select, exp.SetOperation, exp.Exists)
            if not isinstance(node.parent, exp.Exists)
        ]
        key = self._sources(tree)
        for query in inner:
            self._correlate(query, key)
        windows = _of_select(tree, exp.Window)
        if tree.args.get("group") or (outer is None and _aggregates(tree)):
            key = self._split(tree, key)
        for window in windows:
            window.set("partition_by", [*(window.args.get("partition_by") or []), key.copy()])
        return key

    def _sources(self, tree: exp.Expression) -> exp.Expression:
        clause = tree.args.get("from_")
        if clause is None:
            tree.set("from_", exp.From(this=exp.to_table(ASKED)))
            clause = tree.args["from_"]
        key = self._source(clause)
        for join in tree.args.get("joins") or []:
            if join.side not in ("", "LEFT") or join.args.get("using") or join.method:
                raise UnsupportedQuery(f"a join {join.side} {join.method}")
            mine = self._source(join)
            on = join.args.get("on")
            same = exp.EQ(this=mine, expression=key.copy())
            join.set("on", exp.and_(same, on, copy=False) if on else same)
            join.set("kind", None if join.side else "INNER")
        return key

    def _source(self, clause: exp.Expression) -> exp.Expression:
        """
        Key a source, under a name that no other has, so that a subquery with a source of the same
        name can speak of it.
        """
        source = clause.this
        name = self._name("k")
        alias = source.alias_or_name
        if isinstance(source, exp.Table):
            table: exp.Expression = exp.to_table(source.name)
        elif isinstance(source, exp.Subquery):
            table = self.query(source.this).subquery(self._name("s"))
        elif isinstance(source, exp.Values):
            every = exp.select("*").from_(source.copy()).join(ASKED, join_type="cross")
            table = every.subquery(self._name("s"))
        else:
            raise UnsupportedQuery(f"a {source.key} in place of a table")
        renamed = exp.alias_(exp.column(NUMBER), name)
        wrapped = exp.select("*", renamed).from_(table)
        clause.set("this", wrapped.subquery(exp.to_identifier(alias, quoted=True)))
        return exp.column(name, exp.to_identifier(alias, quoted=True))

    def _split(self, tree: exp.Expression, key: exp.Expression) -> exp.Expression:
        """
        Make of a select that aggregates two: one that has nothing but what is grouped by and the
        aggregates, and one over it that has all else, where Spark allows any subquery. Without
        ``group by`` there is a row for each bundle that is asked, also where there is none.
        """
        group = tree.args.get("group")
        by = [*_grouped(tree, group), key]
        name = self._name("g")
        inner = exp.Select(expressions=[], **{
            part: tree.args.pop(part) for part in ("from_", "joins", "where") if tree.args.get(part)
        })  # fmt: skip
        for node in (inner.args["from_"], *(inner.args.get("joins") or [])):
            node.parent = inner
        if inner.args.get("where"):
            inner.args["where"].parent = inner
        meant: dict[exp.Expression, exp.Expression] = {}
        for number, expression in enumerate(by):
            inner.append("expressions", exp.alias_(expression.copy(), f"{name}_{number}"))
            meant[expression.copy()] = _typed(exp.column(f"{name}_{number}", name), expression)
        inner.set("group", exp.Group(expressions=[expression.copy() for expression in by]))
        mine = meant[key]
        if group is None:
            asked = self._name("a")
            mine = exp.column(NUMBER, asked)
            meant = {key.copy(): mine}
        for number, node in enumerate(_aggregates(tree), len(by)):
            unit = node.parent if isinstance(node.parent, exp.Filter) else node
            inner.append("expressions", exp.alias_(unit.copy(), f"{name}_{number}"))
            value: exp.Expression = _typed(exp.column(f"{name}_{number}", name), unit)
            if group is None and isinstance(node, exp.Count | exp.CountIf):
                value = _typed(exp.Coalesce(this=value, expressions=[exp.Literal.number(0)]), unit)
            unit.replace(value)
        if having := tree.args.get("having"):
            tree.set("having", None)
            tree.set("where", exp.Where(this=having.this))
        tree.set("group", None)
        _say(tree, meant)
        derived = inner.subquery(name, copy=False)
        if group is not None:
            tree.set("from_", exp.From(this=derived))
            return mine.copy()
        tree.set("from_", exp.From(this=exp.alias_(exp.to_table(ASKED), asked, table=True)))
        on = exp.EQ(this=exp.column(f"{name}_{len(by) - 1}", name), expression=mine.copy())
        tree.set("joins", [exp.Join(this=derived, side="LEFT", on=on)])
        return mine.copy()

    def _correlate(self, tree: exp.Expression, outer: exp.Expression) -> None:
        """
        Restrict a subquery to the bundle of the row that it is asked for. Spark wants an aggregate
        in one that gives a value, and takes ``exists`` in a filter only.
        """
        if isinstance(tree, exp.Exists):
            query = tree.this
            query.set("expressions", [exp.AnyValue(this=exp.true())])
            query.set("limit", None)
            self._correlate(query, outer)
            there = exp.Coalesce(this=exp.Subquery(this=query), expressions=[exp.false()])
            tree.replace(there)
            return
        if not isinstance(tree, exp.Select):
            raise UnsupportedQuery("a union in an expression")
        is_value = not isinstance(tree.parent, exp.In) and tree.arg_key != "query"
        if tree.args.get("limit"):
            name = self._name("v")
            place = tree.parent
            limited = self.query(tree.copy())
            (value,) = (one.alias_or_name for one in limited.expressions[:1])
            new = exp.select(exp.AnyValue(this=exp.column(value, name, quoted=True)))
            new = new.from_(limited.subquery(name))
            new = new.where(exp.EQ(this=exp.column(NUMBER, name), expression=outer.copy()))
            place.set("this", new)
            return
        tree.set("order", None)
        if is_value and not _aggregates(tree):
            one = tree.expressions[0]
            value = one.this if isinstance(one, exp.Alias) else one
            tree.set("expressions", [_typed(exp.AnyValue(this=value.copy()), value)])
        key = self._select(tree, outer)
        tree.where(exp.EQ(this=key.copy(), expression=outer.copy()), copy=False)


def _typed(new: exp.Expression, like: exp.Expression) -> exp.Expression:
    new.type = like.type
    return new


def _grouped(tree: exp.Expression, group: exp.Expression | None) -> list[exp.Expression]:
    """What a select groups by."""
    if group is None:
        return []
    if group.args.get("all"):
        plain = [one.this if isinstance(one, exp.Alias) else one for one in tree.expressions]
        return [one for one in plain if not any(one.find_all(exp.AggFunc))]
    if {name for name, value in group.args.items() if value} - {"expressions"}:
        raise UnsupportedQuery("grouping sets")
    return list(group.expressions)


def _say(tree: exp.Expression, meant: dict[exp.Expression, exp.Expression]) -> None:
    """Say otherwise what is said of sources that are no longer a select's own."""
    where = tree.args.get("where")
    for root in [*tree.expressions, *([where] if where else [])]:
        for node in list(root.walk(bfs=True)):
            if node in meant and not _own(node, tree):
                node.replace(meant[node].copy())


def _own(node: exp.Expression, tree: exp.Expression) -> bool:
    """True if a column in a subquery is that of the subquery's own source."""
    columns = node.find_all(exp.Column)
    named = {column.table for column in columns if not column.name.startswith("lake_k")}
    select = node.parent_select
    while select is not None and select is not tree:
        sources = [select.args.get("from_"), *(select.args.get("joins") or [])]
        if named & {source.this.alias_or_name for source in sources if source}:
            return True
        select = select.parent_select
    return False


def _of_select(tree: exp.Expression, *kinds: type) -> list[Any]:
    """What is in the expressions of a select, but in none of its subqueries or sources."""
    found: list[Any] = []

    def walk(node: exp.Expression) -> None:
        for name, value in node.args.items():
            if node is tree and name == "with_":
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, exp.Expression):
                    continue
                if node is tree and name == "from_":
                    continue
                if isinstance(node, exp.Join) and name == "this":
                    continue
                if isinstance(child, kinds):
                    found.append(child)
                if not isinstance(child, exp.Query) or isinstance(child, exp.Subquery):
                    walk(child)

    walk(tree)
    return found


def _aggregates(tree: exp.Expression) -> list[exp.Expression]:
    """The aggregates of a select that no window has."""
    return [
        node
        for node in _of_select(tree, exp.AggFunc)
        if not isinstance(node, exp.RowNumber) and not _in_window(node)
        and node.find_ancestor(exp.AggFunc) is None
    ]  # fmt: skip


def _in_window(node: exp.Expression) -> bool:
    while isinstance(node.parent, exp.Filter):
        node = node.parent
    return isinstance(node.parent, exp.Window) and node.arg_key == "this"


def as_duckdb_means(tree: exp.Expression) -> exp.Expression:
    """What Spark means otherwise, said at length; the innermost first."""
    for node in reversed(list(tree.walk(bfs=True))):
        new = _meant(node)
        if new is not node:
            new.type = node.type
            node.replace(new)
    return tree


INTEGERS = (*exp.DataType.INTEGER_TYPES, exp.DataType.Type.BIGINT)
DECIMALS = (exp.DataType.Type.DECIMAL,)
NUMBERS = (*INTEGERS, *DECIMALS, "hugeint", "int128", "double")


def _meant(node: exp.Expression) -> exp.Expression:
    if isinstance(node, exp.DataType) and node.is_type("hugeint", "int128"):
        return exp.DataType.build(WIDE)
    if isinstance(node, exp.Window) and isinstance(node.this, exp.Filter):
        return _window(node)
    if isinstance(node, exp.Sum) and not isinstance(node.this, exp.Distinct):
        if node.this.is_type(exp.DataType.Type.UNKNOWN) or node.this.type is None:
            raise UnsupportedQuery(f"the type of {node.this.sql()[:60]} is not known")
        if node.this.is_type(*INTEGERS):
            return exp.Sum(this=exp.cast(node.this.copy(), WIDE))
    if isinstance(node, exp.Cast) and node.to.is_type(*INTEGERS) and node.this.type:
        return _rounded(node)
    if isinstance(node, exp.ArgMax | exp.ArgMin):
        there = exp.Not(this=exp.Is(this=node.this.copy(), expression=exp.Null()))
        if isinstance(node.parent, exp.Filter):
            where = node.parent.expression
            where.set("this", exp.and_(there, where.this, copy=False))
            return node
        return exp.Filter(this=node.copy(), expression=exp.Where(this=there))
    if isinstance(node, exp.First) and isinstance(node.this, exp.Order):
        return _first(node)
    return node


def _window(node: exp.Expression) -> exp.Expression:
    """A window over some rows only, which Spark has no filter for."""
    aggregate, condition = node.this.this.copy(), node.this.expression.this
    value = exp.Literal.number(1) if isinstance(aggregate.this, exp.Star) else aggregate.this
    aggregate.set("this", exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())]))
    new = node.copy()
    new.set("this", aggregate)
    return new


def _first(node: exp.Expression) -> exp.Expression:
    keys: list[exp.Expression] = []
    for item in node.this.expressions:
        value = item.this.copy()
        if item.args.get("desc"):
            if not item.this.is_type(*NUMBERS):
                raise UnsupportedQuery("the first row by a descending value that is not a number")
            value = exp.Neg(this=value)
        keys += [exp.Is(this=item.this.copy(), expression=exp.Null()), value]
    by = exp.Anonymous(this="struct", expressions=keys)
    return exp.Anonymous(this="min_by", expressions=[node.this.this.copy(), by])


def _rounded(node: exp.Expression) -> exp.Expression:
    """DuckDB rounds where Spark cuts off: doubles to even, decimals away from zero."""
    what = node.this.copy()
    new = node.copy()
    if what.is_type("double", "float"):
        new.set("this", exp.Anonymous(this="rint", expressions=[what]))
    elif what.is_type(*DECIMALS):
        new.set("this", exp.Anonymous(this="round", expressions=[what, exp.Literal.number(0)]))
    elif what.is_type("varchar", "text"):
        exact = exp.TryCast if isinstance(node, exp.TryCast) else exp.Cast
        wide = exact(this=what, to=exp.DataType.build("decimal(38, 10)"))
        new.set("this", exp.Anonymous(this="round", expressions=[wide, exp.Literal.number(0)]))
    return new


class _Generator(Spark.Generator):
    """Operators of DuckDB in Spark's SQL."""

    def __init__(self) -> None:
        super().__init__(dialect="spark", identify=True, unsupported_level=sqlglot.ErrorLevel.RAISE)

    def over(self, e: Any) -> str:
        """A division of doubles, which by 0 gives infinity, or what is no number."""
        above, below = (f"CAST({self.sql(e, part)} AS DOUBLE)" for part in ("this", "expression"))
        if isinstance(e.expression, exp.Literal) and float(e.expression.this):
            return f"({above} / {below})"
        infinite = f"{above} * CAST('Infinity' AS DOUBLE)"
        return f"IF({below} = 0D, {infinite}, TRY_DIVIDE({above}, {below}))"

    def listed(self, e: Any) -> str:
        """Texts in a line, in their order."""
        what, separator = e.this, self.sql(e, "separator") or "','"
        order = ""
        if isinstance(what, exp.Order):
            order = f" WITHIN GROUP ({self.sql(exp.Order(expressions=what.expressions)).strip()})"
            what = what.this
        return f"LISTAGG({self.sql(what)}, {separator}){order}"

    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **Spark.Generator.TRANSFORMS,
        exp.Div: lambda self, e: self.over(e),
        exp.IntDiv: lambda self, e: f"({self.sql(e, 'this')} DIV {self.sql(e, 'expression')})",
        exp.BitwiseLeftShift: lambda self, e: (
            f"(CAST({self.sql(e, 'this')} AS BIGINT) "
            f"* CAST(POWER(2D, {self.sql(e, 'expression')}) AS BIGINT))"
        ),
        exp.BitwiseRightShift: lambda self, e: (
            f"SHIFTRIGHT({self.sql(e, 'this')}, CAST({self.sql(e, 'expression')} AS INT))"
        ),
        exp.AnyValue: lambda self, e: f"FIRST({self.sql(e, 'this')}, TRUE)",
        exp.GroupConcat: lambda self, e: self.listed(e),
    }
