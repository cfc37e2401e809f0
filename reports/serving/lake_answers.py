# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a lake as plain data: hosts, findings by how many have them, rows of all hosts."""

import contextlib

import duckdb

from mmscope.reports.bundle.database import connect, in_a_line, lock
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.findings.question import OURS
from mmscope.reports.fleet.fleet import ask_fleet
from mmscope.reports.fleet.fleet_text import BY, LISTS, by_name, headline, rests_on, rows_query
from mmscope.reports.lake.catalog import read_catalog
from mmscope.reports.serving.answers import MOST_ROWS, ROWS, Row, asked, bounded, plain, tables_of

MEMORY = "512MiB"


class LakeCase:
    """
    A lake that is asked questions.

    :ivar name: under which it is asked for.
    """

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        read_catalog(where)  # what is no lake is said at once

    def about(self) -> Row:
        """List its hosts."""
        return self._listed("hosts")

    def tables(self) -> Row:
        """List its tables."""
        return self._listed("tables")

    def findings(self, by: str = "finding") -> Row:
        """
        List findings by how many hosts have them.

        :param by: finding, host, kernel, label or owner.
        :raises UsageError: by something else.
        """
        if by not in BY:
            raise UsageError(f"by {by[:80]!r}: there are {', '.join(BY)}")
        fleet = ask_fleet(read_catalog(self.where), OURS(), ledgers=by == "owner")
        listed = bounded(by_name(BY[by], fleet))
        cannot = [
            {"finding": id, "reason": plain(reason), "hosts": hosts}
            for (id, reason), hosts in fleet.unchecked.most_common(MOST_ROWS)
        ]
        said = {
            "sentence": plain(f"{headline(fleet)}. {rests_on(fleet)}"),
            "damage": plain(fleet.said),
        }
        return {"case": self.name, **said, **listed, "not_checked": cannot}

    def query(self, sql: str, limit: int = ROWS) -> Row:
        """
        Answer one SELECT over tables of all hosts, each row with its ``host`` and when it was
        ``taken``.

        :raises UsageError: it is something else, or cannot be answered.
        """
        limit = min(max(limit, 1), MOST_ROWS)
        tables, catalog = tables_of(sql), read_catalog(self.where)
        damage = list(catalog.said)
        with contextlib.closing(connect(MEMORY, threads=None)) as connection:
            for table in sorted(tables):
                said, query, given = rows_query(catalog, table)
                damage += said
                try:
                    connection.execute(f'create table "{table}" as {query}', given)
                except duckdb.Error as error:
                    raise UsageError(f"table {table}: {in_a_line(error)}") from error
            lock(connection)
            rows = asked(connection, sql, [], limit + 1)
        answer = bounded(rows[:limit])
        answer["cut_off"] |= len(rows) > limit
        return {"case": self.name, **answer, "damage": plain(damage)}

    def _listed(self, what: str) -> Row:
        catalog = read_catalog(self.where)
        listed = bounded(by_name(LISTS[what], catalog))
        return {"case": self.name, **listed, "damage": plain(catalog.said)}
