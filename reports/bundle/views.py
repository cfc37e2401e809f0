# SPDX-License-Identifier: LGPL-2.1-or-later
"""The views over a bundle's tables, out of ``views.sql``; without DuckDB, which asks them."""

import functools
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

VIEWS = Path(__file__).resolve().parent / "views.sql"


@functools.cache
def views() -> list[tuple[str, str, str]]:
    """(name, title, SQL) of each view in ``views.sql``."""
    result = []
    for part in re.split(r"\n\n(?=-- )", VIEWS.read_text(encoding="utf-8")):
        if match := re.search(r"^create view (\w+) as$", part, re.MULTILINE):
            result.append((match.group(1), part.splitlines()[0].removeprefix("-- "), part))
    return result


def with_stand_ins(
    tables: Mapping[str, Container[str]], optional: Mapping[str, Iterable[str]], query: str
) -> str:
    """
    A query with an empty table in place of each optional one that is not there, and unknown values
    in place of columns that an older bundle lacks.

    :param tables: columns of those that are there.
    :param optional: columns that it asks of each: ``name type``, or the name where that is text.
    """
    stand_ins = []
    for table, wanted in optional.items():
        columns = (each.partition(" ") for each in wanted)
        nothing = ", ".join(
            f"null::{kind or 'varchar'} as {column}"
            for column, _, kind in columns
            if column not in tables.get(table, ())
        )
        if table not in tables:
            stand_ins.append(f"{table} as (select {nothing} limit 0)")
        elif nothing:
            stand_ins.append(f"{table} as (select *, {nothing} from main.{table})")
    if not stand_ins:
        return query
    rest = re.sub(r"^\s*with\s", ", ", query)  # it may begin with such a list of its own
    return f"with {', '.join(stand_ins)} {rest}"
