# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A finding's query as Spark's SQL, over many bundles at once.

The text is the one that DuckDB is given, in a ``lateral`` of each bundle as there (``keyed``). But
Spark lets a query name columns of the query around it alone, and of no other. So each source of a
select has the number of its bundle as a column, with which the subqueries of this select compare
theirs; views and CTEs are written where they are named.

sqlglot writes one engine's SQL as the other's. Where an operator means something else for Spark,
DuckDB's meaning is written out (:data:`MEANINGS`). What cannot be said is refused, not guessed.

Cannot know: which of several equal rows ``arg_max`` or a limit takes.
"""

import functools
from collections.abc import Callable
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import find_all_in_scope

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import TARGET, sql_type
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.findings.findings import named
from mmscope.reports.findings.question import Question
from mmscope.reports.lake.asking import QueryFailed
from mmscope.reports.lake.keyed import HOSTS, NUMBER, PLACE, views_of
from mmscope.reports.lake.layout import in_words

ASKED = HOSTS.partition(".")[2]
# As wide as HUGEINT, nearly.
WIDE = "decimal(38, 0)"
INTEGERS = (*exp.DataType.INTEGER_TYPES, exp.DataType.Type.BIGINT)
NUMBERS = (*INTEGERS, "decimal", "hugeint", "int128", "double")
# The queries of CTEs by name, each with those that it may name.
Ctes = dict[str, tuple[exp.Expression, Any]]


def spark_sql(question: Question) -> str:
    """
    A question's SQL over all bundles in :data:`ASKED`: a row has the number of its bundle, and its
    place among that bundle's.

    :raises QueryFailed: it cannot be said.
    """
    words = named([question])
    try:
        tree = sqlglot.parse_one(question.sql, read="duckdb")
        if not isinstance(tree, exp.Select):
            raise QueryFailed(f"a {tree.key} in place of a select")
        views = [
            exp.CTE(
                this=sqlglot.parse_one(text, read="duckdb"),
                alias=exp.TableAlias(this=exp.to_identifier(name)),
            )
            for name, text in views_of().items()
            if name in words
        ]
        tree.set("with_", exp.With(expressions=views + tree.ctes))
        tree = qualify(tree, schema=_schema(), dialect="duckdb")
        tree = annotate_types(tree, schema=_schema(), dialect="duckdb")
        for node in reversed(list(tree.walk(bfs=True))):  # the innermost first
            if (meaning := MEANINGS.get(type(node))) and (new := meaning(node)) is not node:
                new.type = node.type
                node.replace(new)
        order = _order(tree)
        _of_bundle(tree, exp.column(NUMBER, "b"), {})
        place = exp.alias_(exp.Window(this=exp.RowNumber(), order=order), PLACE)
        placed = exp.select(place, "*").from_(tree.subquery("lake_rows"))
        level = sqlglot.ErrorLevel.RAISE
        text = placed.sql(dialect="spark", identify=True, unsupported_level=level)
    except sqlglot.errors.SqlglotError as error:
        raise QueryFailed(in_words(error)) from error
    return f"select b.{NUMBER}, f.* from {ASKED} as b, lateral ({text}) as f"


@functools.cache
def _schema() -> dict[str, Any]:
    tables: dict[str, Any] = {
        name: {c.name: sql_type(c) for c in columns(table.row)} for name, table in TABLES.items()
    }
    return tables | {"target": dict(TARGET)}


def _order(tree: exp.Expression) -> exp.Expression:
    """The order of a query, by columns that it gives besides."""

    def meant(node: exp.Expression) -> exp.Expression:
        """Expand the name of a column of the result."""
        of_result = isinstance(node, exp.Column) and not node.table
        return named_by.get(node.name, node).copy() if of_result else node

    order = tree.args.get("order")
    if order is None:
        return exp.Order(expressions=[exp.Ordered(this=exp.Literal.number(1))])
    named_by = {one.alias_or_name: one.unalias() for one in tree.expressions}
    placed = order.copy()
    for number, item in enumerate(placed.expressions):
        name = f"lake_order_{number}"
        tree.append("expressions", exp.alias_(item.this.copy().transform(meant), name))
        item.set("this", exp.column(name))
    if not tree.args.get("limit"):
        tree.set("order", None)
    return placed


def _of_bundle(query: exp.Expression, key: exp.Expression, ctes: Ctes) -> None:
    """
    Restrict a query, and all that it has, to one bundle.

    :param key: the number of the bundle, a column of the query around it.
    """
    if with_ := query.args.get("with_"):
        for cte in with_.pop().expressions:
            ctes = ctes | {cte.alias: (cte.this, ctes)}
    if not isinstance(query, exp.Select):
        for part in filter(None, (query.this, query.args.get("expression"))):
            _of_bundle(part, key, ctes)
        return
    _part(query)
    if source := query.args.get("from_"):
        number = _source(source, key, ctes)
    else:
        number = exp.column(f"{key.name}_", "lake_one")
        one = exp.select(exp.alias_(key.copy(), number.name)).subquery("lake_one")
        query.set("from_", exp.From(this=one))
    for join in query.args.get("joins") or []:
        if join.side not in ("", "LEFT"):
            raise QueryFailed(f"a {join.side} join")
        source = join.this
        if not join.side:
            _source(join, key, ctes)
        # Right of a left join, Spark takes no column of the query around it.
        elif isinstance(source, exp.Table) and source.name not in ctes:
            same = exp.EQ(this=exp.column(NUMBER, source.alias_or_name), expression=number.copy())
            join.on(same, copy=False)
        else:
            _source(join, number, ctes)
            source = join.this
            join.set("this", exp.Lateral(this=source.this.subquery(), alias=source.args["alias"]))
    for inner in _subqueries(query):
        _of_bundle(inner, number, ctes)


def _source(clause: exp.Expression, key: exp.Expression, ctes: Ctes) -> exp.Expression:
    """Restrict a table, or what is in place of one, to a bundle; returns its column of that."""
    source = clause.this
    alias = exp.to_identifier(source.alias_or_name, quoted=True)
    number = exp.column(f"{key.name}_", alias)  # a name that no query around it has
    numbered = exp.select("*", exp.alias_(key.copy(), number.name))
    if isinstance(source, exp.Table) and source.name not in ctes:
        of = exp.EQ(this=exp.column(NUMBER, source.name), expression=key.copy())
        numbered = numbered.from_(exp.to_table(source.name)).where(of)
    else:
        if isinstance(source, exp.Table):
            inner, known = ctes[source.name]
            inner = inner.copy()
            _of_bundle(inner, key, known)
        elif isinstance(source, exp.Subquery):
            inner = source.this
            _of_bundle(inner, key, ctes)
        else:
            inner = exp.select("*").from_(source.copy())
        numbered = numbered.from_(inner.subquery("lake_source"))
    clause.set("this", numbered.subquery(alias))
    return number


def _subqueries(select: exp.Expression) -> list[exp.Expression]:
    """The queries in the expressions of a select."""
    found = find_all_in_scope(select, exp.UNWRAPPED_QUERIES)
    return [query for query in found if query is not select]


def _part(select: exp.Expression) -> None:
    """
    Part aggregates from the subqueries beside them, which Spark does not take: the aggregates
    become a source. In a group a subquery gives one value, which is any.
    """
    beside = [
        query
        for query in _subqueries(select)
        if query.find_ancestor(exp.Where, exp.Select) is select
    ]
    if beside and select.args.get("group"):
        for query in beside:
            query.parent.replace(_any_value(query.parent.copy()))
        return
    aggregates = [
        node
        for node in find_all_in_scope(select, exp.AggFunc)
        if not node.find_ancestor(exp.AggFunc, exp.Window)
    ]
    if not (beside and aggregates):
        return
    inner = exp.Select()
    for part in ("from_", "joins", "where"):
        inner.set(part, select.args.get(part))
        select.set(part, None)
    for number, node in enumerate(aggregates):
        name = f"lake_{number}"
        whole = node.parent if isinstance(node.parent, exp.Filter) else node
        whole.replace(exp.column(name, "lake_aggregates"))
        inner.append("expressions", exp.alias_(whole, name))
    select.set("from_", exp.From(this=inner.subquery("lake_aggregates")))
    if having := select.args.get("having"):
        select.set("where", exp.Where(this=having.this))
        select.set("having", None)


def _any_value(of: exp.Expression) -> exp.Expression:
    return exp.AnonymousAggFunc(this="any_value", expressions=[of, exp.true()])


def _type(node: exp.Expression) -> exp.Expression:
    return exp.DataType.build(WIDE) if node.is_type("hugeint", "int128") else node


def _quotient(node: exp.Expression) -> exp.Expression:
    """A division of doubles, which by 0 gives infinity, or what is no number."""
    above, below = (exp.cast(part.copy(), "double") for part in (node.this, node.expression))
    quotient = exp.Div(this=above, expression=below)
    if isinstance(node.expression, exp.Literal) and float(node.expression.this):
        return exp.paren(quotient)
    infinite = exp.Mul(
        this=above.copy(), expression=exp.cast(exp.Literal.string("Infinity"), "double")
    )
    zero = exp.EQ(this=below.copy(), expression=exp.Literal.number(0))
    return exp.If(this=zero, true=infinite, false=quotient)


def _left_shift(node: exp.Expression) -> exp.Expression:
    """A shift that fails if it overflows."""
    power = exp.Pow(this=exp.Literal.number(2), expression=node.expression.copy())
    shifted = exp.cast(node.this.copy(), "bigint")
    return exp.paren(exp.Mul(this=shifted, expression=exp.cast(power, "bigint")))


def _right_shift(node: exp.Expression) -> exp.Expression:
    node.set("expression", exp.cast(node.expression.copy(), "int"))
    return node


def _sum(node: exp.Expression) -> exp.Expression:
    """A sum of integers, which is as wide as HUGEINT."""
    if isinstance(node.this, exp.Distinct):
        return node
    if node.this.type is None or node.this.is_type(exp.DataType.Type.UNKNOWN):
        raise QueryFailed(f"the type of {node.this.sql()[:60]} is not known")
    if node.this.is_type(*INTEGERS):
        return exp.Sum(this=exp.cast(node.this.copy(), WIDE))
    return node


def _integer(node: exp.Expression) -> exp.Expression:
    """DuckDB rounds where Spark cuts off: doubles to even, decimals away from zero."""
    what = node.this.copy()
    if not node.to.is_type(*INTEGERS) or not what.type:
        return node
    if what.is_type("double", "float"):
        node.set("this", exp.func("rint", what))
    elif what.is_type("decimal"):
        node.set("this", exp.func("round", what, exp.Literal.number(0)))
    elif what.is_type("varchar", "text"):
        exact = type(node)(this=what, to=exp.DataType.build("decimal(38, 10)"))
        node.set("this", exp.func("round", exact, exp.Literal.number(0)))
    return node


def _extreme(node: exp.Expression) -> exp.Expression:
    """``arg_max`` and ``arg_min`` leave out rows without a value."""
    there = exp.Not(this=exp.Is(this=node.this.copy(), expression=exp.Null()))
    if isinstance(node.parent, exp.Filter):
        where = node.parent.expression
        where.set("this", exp.and_(there, where.this, copy=False))
        return node
    return exp.Filter(this=node.copy(), expression=exp.Where(this=there))


def _first(node: exp.Expression) -> exp.Expression:
    """The first row by an order, NULL last."""
    if not isinstance(node.this, exp.Order):
        return node
    keys: list[exp.Expression] = []
    for item in node.this.expressions:
        value = item.this.copy()
        if item.args.get("desc"):
            if not item.this.is_type(*NUMBERS):
                raise QueryFailed("the first row by a descending value that is not a number")
            value = exp.Neg(this=value)
        keys += [exp.Is(this=item.this.copy(), expression=exp.Null()), value]
    return exp.ArgMin(this=node.this.this.copy(), expression=exp.func("struct", *keys))


def _window(node: exp.Expression) -> exp.Expression:
    """A window over some rows only, which Spark has no filter for."""
    if not isinstance(node.this, exp.Filter):
        return node
    aggregate, condition = node.this.this.copy(), node.this.expression.this
    value = exp.Literal.number(1) if isinstance(aggregate.this, exp.Star) else aggregate.this
    aggregate.set("this", exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())]))
    node.set("this", aggregate)
    return node


# What DuckDB means by a node, for Spark.
MEANINGS: dict[type, Callable[[Any], exp.Expression]] = {
    exp.DataType: _type,
    exp.Div: _quotient,
    exp.BitwiseLeftShift: _left_shift,
    exp.BitwiseRightShift: _right_shift,
    exp.Sum: _sum,
    exp.Cast: _integer,
    exp.TryCast: _integer,
    exp.IgnoreNulls: lambda node: _any_value(node.this.this.copy()),
    exp.ArgMax: _extreme,
    exp.ArgMin: _extreme,
    exp.First: _first,
    exp.Window: _window,
}
