# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bundle of plain rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.rows import column
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer

TARGET = {"kind": "vmcore", "release": "7.2.12", "page_size": 4096, "total_pages": 131072}
OK = SectionResult("zones", "ok", 0.25, 1, 0, None)


@dataclass(frozen=True)
class Plain:
    """A row of one string and one number, and what may be unknown."""

    name: str = column(key=True)
    value: int = column(unit="pages")
    share: float | None = column()
    note: str | None = column()
    sure: bool | None = column()


def write(path: Path, rows: list[Any], row_type: type = Plain, **options: Any) -> None:
    with Writer(path, **options) as writer:
        writer.table("plain", "Plain rows", row_type, rows, section="zones")
        writer.finish(TARGET, [OK])
