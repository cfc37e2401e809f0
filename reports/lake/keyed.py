# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A finding's query over many bundles at once, with the text that it has for one.

``from bundles, lateral (query)`` is by its definition what a loop over bundles gives: the query is
asked for each, of tables that have this bundle's rows alone. DuckDB does not run it as a loop: it
rewrites any such query into joins (T. Neumann and A. Kemper, *Unnesting Arbitrary Queries*, 2015).
So no text is changed, and what a window, a limit, an aggregate over nothing or ``not exists`` means
for one bundle it means here.

Costs next to nothing. Cannot know: which of several rows a query without an order takes.
"""

import functools
import re

from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.views import views
from mmscope.reports.findings.query import asked
from mmscope.reports.findings.question import Question

NUMBER, PLACE = "lake_number", "lake_place"
HOSTS = "lake.lake_asked"


@functools.cache
def views_of() -> dict[str, str]:
    """The query of each view."""
    return {
        name: re.split(rf"^create view {name} as$", text, flags=re.MULTILINE)[1].rstrip(" ;\n")
        for name, _, text in views()
    }


def keyed(question: Question) -> str:
    """
    A question's SQL over all bundles in :data:`HOSTS`: a row has the number of its bundle, and its
    place among that bundle's.
    """
    words, _ = asked(question)
    parts = [
        f'{name} as (select * exclude ({NUMBER}) from lake."{name}" as l '
        f"where l.{NUMBER} = b.{NUMBER})"
        for name in (*sorted(TABLES.keys() & words), "target")
    ]
    parts += [f"{name} as ({text})" for name, text in views_of().items() if name in words]
    # The place is also what keeps DuckDB 2.0.0 from "INTERNAL Error: Failed to bind column
    # reference" where a query has nothing but `not exists` over a table.
    return (
        f"select b.{NUMBER}, f.* from {HOSTS} as b, lateral (with {', '.join(parts)} "
        f"select row_number() over () as {PLACE}, * from ({question.sql})) as f"
    )
