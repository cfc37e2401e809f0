# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Description of a bundle, ``datapackage.json``: its format, its target, its tables and their columns.

A Frictionless Data Package v2, which describes the target and every table. A table's path must be
a plain file name inside the folder, and names must be identifiers, since SQL is written with them.

Costs nothing to speak of: a description has a few hundred bytes a column.

Cannot know: whether the tables hold what it declares.
"""

import datetime
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import MAX_TEXT, cut
from mmscope.drgn.tables.rows import MOST, MOST_PAGES, OF_MACHINE, Bound, Column, column
from mmscope.drgn.tables.table import table
from mmscope.reports.bundle.cells import READERS
from mmscope.reports.bundle.outcome import UsageError

DESCRIPTION = "datapackage.json"
LAKE = "lake.json"  # a lake has it in that place
# What columns mean, as docs/bundle-format.md has it: one more when a column is renamed, retyped or
# dropped. 0 is that of mmscope 0.1.0, whose bundles do not say it.
FORMAT = 1
ESCAPE = "backslashreplace"
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\Z")
# A description is small (a few hundred bytes a column); anything far larger is not ours.
MAX_DESCRIPTION_BYTES = 4 << 20
MAX_RESOURCES, MAX_COLUMNS, MAX_SECTIONS = 1000, 500, 1000
# Readings whose boots are no farther apart are of one boot: captured_at and the uptime are rounded,
# or read one after the other; NTP slews both clocks alike. A clock that was set in between makes
# one boot look like two.
SAME_BOOT_SECONDS = 3.0

Cell = int | float | str | bool | None
# What a target says of every machine; None is unknown.
FACTS = (
    *("kind", "release", "architecture", "page_size", "hostname", "captured_at", "uptime_seconds"),
    *("total_pages", "online_cpus", "source"),
)


class BundleError(UsageError):
    """The folder is not a bundle that can be read, or cannot be written. One line, for the user."""


@table("sections", "How each section fared", not_compared="it is about the readings")
class SectionResult:
    """How one section of the reading fared."""

    section: str = column(holds="words", key=True, help="as for collect --only")
    status: str = column(holds="words", help="ok, partial, absent (the target has none) or failed")
    seconds: float = column(unit="s", help="time it took")
    rows: int = column(help="rows in its tables")
    unreadable_bytes: int = column(
        unit="bytes", high=MOST, help="kernel memory that could not be read"
    )
    message: str | None = column(holds="words", help="why it is not ok, or what to know")

    @classmethod
    def of(
        cls, section: str, notes: list[str], remarks: list[str], seconds: float, rows: int
    ) -> "SectionResult":
        """
        A section that was read.

        :param notes: what keeps it from being whole. :param remarks: what is to be known of it.
        """
        status, message = "partial" if notes else "ok", "; ".join(notes + remarks) or None
        return cls(section, status, round(seconds, 3), rows, 0, message)

    def with_words(self, words: str, status: str = "") -> "SectionResult":
        """The same, and more to be said of it; with another status, if one is given."""
        message = f"{self.message}; {words}" if self.message else words
        return replace(self, status=status or self.status, message=message)


@dataclass(frozen=True, slots=True)
class Table:
    """
    One table of a bundle, or folded stacks (``root;…;leaf value`` a line), as declared.

    :ivar unit: of the values of folded stacks, which have no columns.
    """

    name: str
    section: str
    title: str
    columns: list[Column]
    path: Path
    unit: str = ""

    @property
    def column_names(self) -> set[str]:
        """Names of its columns."""
        return {column.name for column in self.columns}


def table_of(resource: dict[str, Any], folder: Path) -> Table:
    """
    A table, or folded stacks, as a resource declares it.

    :raises ValueError, KeyError, TypeError, AttributeError: it does not declare one.
    """
    name, path = resource["name"], resource["path"]
    folded = resource.get("format") == "folded"
    name, end = (name.removesuffix("_folded"), "folded") if folded else (name, "csv")
    if not IDENTIFIER.match(name):
        raise ValueError(f"table name {name!r} is not an identifier")
    if path != f"{name}.{end}":
        raise ValueError(f"table {name} lies at {path!r}, not at {name}.{end}")
    described = [] if folded else _columns(name, resource["schema"])
    section, title, unit = (
        short_text(str(resource.get(key, otherwise)))
        for key, otherwise in (("section", ""), ("title", name), ("unit", ""))
    )
    return Table(name, section, title, described, folder / path, unit)


def _columns(name: str, schema: Any) -> list[Column]:
    """The columns of a table, as its schema declares them."""
    key = schema.get("primaryKey", [])
    described = []
    numbers = {f["name"] for f in schema["fields"] if f["type"] in ("integer", "number")}
    for field in schema["fields"]:
        if not IDENTIFIER.match(field["name"]):
            raise ValueError(f"column name {field['name']!r} is not an identifier")
        if field["type"] not in READERS:
            raise ValueError(f"column {name}.{field['name']} has type {field['type']!r}")
        unit, help, holds = (
            short_text(str(field.get(word, ""))) for word in ("unit", "description", "holds")
        )
        described.append(
            Column(
                field["name"],
                field["type"],
                not field.get("constraints", {}).get("required", False),
                unit,
                help,
                field["name"] in key,
                holds,
                *_bounds(field, numbers),
            )
        )
    if len({c.name for c in described}) < len(described) or not described:
        raise ValueError(f"table {name} has a column twice, or none")
    if len(described) > MAX_COLUMNS:
        raise ValueError(f"table {name} has more than {MAX_COLUMNS} columns")
    return described


def _bounds(
    field: dict[str, Any], numbers: set[str]
) -> tuple[tuple[Bound, ...], tuple[Bound, ...], dict[str, tuple[Bound, Bound]]]:
    """
    The bounds of a column, as a bundle declares them; a number is never without.

    :param numbers: the columns of its table that hold some.
    :raises ValueError: they are not bounds.
    """

    def bound(value: Any, others: Container[str] = ()) -> Bound:
        if isinstance(value, int):
            return max(-MOST, min(value, 1 << 64))  # which numbers that are names may reach
        if value not in OF_MACHINE and value not in others:
            raise ValueError(f"column {field['name']} has the bound {str(value)[:40]!r}")
        return str(value)

    declared = field.get("bounds", {})
    low, high = (tuple(bound(v, numbers) for v in declared.get(n, ())) for n in ("low", "high"))
    if field["name"] in numbers:
        low, high = (
            (*limits, most) if numbers.issuperset(limits) else limits
            for limits, most in ((low, -MOST), (high, MOST))
        )
    ranges = {
        str(name): (bound(least), bound(most))
        for name, (least, most) in declared.get("ranges", {}).items()
    }
    return low, high, ranges


def older(version: str, other: str) -> str:
    """The older one of two versions; empty if one of them is not a version."""
    numbers = version_number(version), version_number(other)
    return "" if None in numbers else ".".join(map(str, min(filter(None, numbers))))


def version_number(version: str) -> tuple[int, ...] | None:
    """A version as numbers that compare; None if it is not a version."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version, re.ASCII)
    return tuple(map(int, found.groups())) if found else None


def moment(text: str) -> float | None:
    """A date as bundles have it, UTC where it does not say, in seconds since 1970."""
    try:
        at = datetime.datetime.fromisoformat(text)
        return at.replace(tzinfo=at.tzinfo or datetime.UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def check_plain(path: Path) -> None:
    # A bundle is data: a link may lead anywhere, and a pipe or a device would never end.
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{path}: is not a plain file, which a bundle's files are")


def plain_texts(value: Any) -> Any:
    """
    Values of JSON, without what is too long or no text: surrogates are written out, and texts cut.

    :raises RecursionError: it is too deep.
    """
    if isinstance(value, str):
        return short_text(value)
    if isinstance(value, list):
        return list(map(plain_texts, value))
    if isinstance(value, dict):
        return {short_text(name): plain_texts(item) for name, item in value.items()}
    return value


def short_text(value: Any) -> Any:
    if not isinstance(value, str) or (value.isascii() and len(value) <= MAX_TEXT):
        return value  # as nearly all are
    return cut(value).encode("utf-8", ESCAPE).decode()


def checked_target(data: dict[str, Any]) -> dict[str, Cell]:
    """
    The target, if it is one: views and reports compute with it.

    :raises ValueError: a value is not what its name says.
    """
    target = dict(data)
    for name, value in target.items():
        kinds = TARGET_NUMBERS.get(name, Cell)
        if not isinstance(value, kinds) or (name in TARGET_NUMBERS and isinstance(value, bool)):
            raise ValueError(f"target.{name} is {str(value)[:40]!r}")
        if isinstance(value, (int, float)) and not 0 <= value <= TARGET_MOST.get(name, MOST):
            raise ValueError(f"target.{name} is {str(value)[:40]}")
    return target


TARGET_MOST = {"page_size": 1 << 20, "total_pages": MOST_PAGES}
TARGET_NUMBERS = {
    "page_size": int | None,
    "total_pages": int | None,
    "online_cpus": int | None,
    "uptime_seconds": int | float | None,
}
