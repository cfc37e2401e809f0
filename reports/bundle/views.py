# SPDX-License-Identifier: LGPL-2.1-or-later
"""The views over a bundle's tables, out of ``views.sql``; without DuckDB, which asks them."""

import functools
import re
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
