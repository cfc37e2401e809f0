# SPDX-License-Identifier: LGPL-2.1-or-later
"""A case of a finding, and the bundle of its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows_of_tables import TABLE_OF, rows_by_type

from mmscope.drgn.free.zones import Zone
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer

TARGET = {
    "kind": "vmcore", "release": "7.2.12", "page_size": 4096, "total_pages": 1 << 20,
    "uptime_seconds": 7200.0,
}  # fmt: skip
# A machine of 256 GiB.
LARGE = TARGET | {"total_pages": 1 << 26}


def bundle(
    path: Path, rows: Iterable[Any], empty: Iterable[type] = (), target: dict[str, Any] = TARGET,
    sections: Sequence[SectionResult] = (),
) -> Bundle:  # fmt: skip
    """A bundle of these rows, each in its table, and of empty tables."""
    tables = rows_by_type(rows, empty)
    with Writer(path) as writer:
        for row_type, of_type in tables.items():
            name = TABLE_OF[row_type].name
            writer.table(name, name, row_type, of_type, section="x")
        pages = [row.present_pages for row in tables.get(Zone, [])]
        total = {"total_pages": max([*pages, target["total_pages"]])} if pages else {}
        writer.finish(target | total, sections)
    return Bundle(path)


@dataclass
class Case:
    """What a finding says of some rows."""

    id: str
    rows: list[Any]
    words: list[str] = field(default_factory=list)  # in order; none: it is not found
    severity: str | None = None
    unlike: list[str] = field(default_factory=list)
    empty: tuple[type, ...] = ()
    sections: tuple[SectionResult, ...] = ()
    target: dict[str, Any] = field(default_factory=lambda: TARGET)
    why_not: str | None = None  # it cannot be checked
