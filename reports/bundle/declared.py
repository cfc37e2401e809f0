# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Everything that is declared of tables and sections: by the probes, and by recordings, watching and
bundles themselves.

To find it, every probe is imported, with drgn and numpy, which takes a third of a report's time.
So it is kept for later processes, where Python keeps compiled modules (``__pycache__``), if it does
and may: names, words and columns, without what a probe does. It holds as long as the files of which
it was made are the same, by size and time, as Python has it for modules.
"""

import contextlib
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, TypeVar

from mmscope import FOLDER
from mmscope.drgn.opening.quick_start import helpers_one_by_one
from mmscope.drgn.tables import bounds
from mmscope.drgn.tables.rows import Column, columns, row_of
from mmscope.drgn.tables.table import Heading, Table, declared
from mmscope.reports.bundle import description
from mmscope.reports.bundle.leftovers import replaced

Made = TypeVar("Made")
REGISTRY = "mmscope.drgn.sections.registry"
# All that a declaration may be made of.
SOURCES = tuple(FOLDER / folder for folder in ("drgn", "perf", "reports/bundle", "reports/rows"))
SUMS = hashlib.blake2b(digest_size=32)


def kept(
    name: str,
    sources: Iterable[Path],
    make: Callable[[], Made],
    *,
    version: str = "",
    instead: Made | None = None,
) -> Made:
    """
    What is made of files of mmscope's own: as an earlier process left it, or made, and kept.

    :param name: under which it is kept.
    :param sources: these folders' files, and those of the folders in them.
    :param version: of what else it is made with.
    :param instead: what serves as well where nothing can be kept, and takes less to make.
    """
    path = Path(cache_from_source(str(FOLDER / "reports" / "bundle" / f"{name}.kept.py")))
    stamps = [list(_stamps(str(folder))) for folder in sources]
    key = repr((sys.version, version, stamps)).encode()
    # What is torn, or made of other files, is made anew.
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if data[: SUMS.digest_size] == _sum(key, data[SUMS.digest_size :]):
            found: Made = pickle.loads(data[SUMS.digest_size :])
            return found
    keeps = not sys.dont_write_bytecode and _may_write(path.parent)
    if not keeps and instead is not None:
        return instead
    made = make()
    if keeps:
        data = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
        with contextlib.suppress(OSError), replaced(path, 0o644, durable=False) as file:
            file.write(_sum(key, data) + data)
    return made


def _may_write(folder: Path) -> bool:
    """Whether files can be put into a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _sum(key: bytes, data: bytes) -> bytes:
    sums = SUMS.copy()
    sums.update(key + data)
    return sums.digest()


def _stamps(folder: str) -> Iterator[tuple[str, int, int]]:
    """Which files a folder has, how large they are, and when they were written."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.endswith((".py", ".toml")):
            stat = entry.stat()
            yield entry.path, stat.st_size, stat.st_mtime_ns
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _stamps(entry.path)


def of_probes() -> tuple[dict[str, Table], dict[str, Heading]]:
    """The tables and the sections, as they are declared."""
    if "drgn" not in sys.modules:  # nobody's session
        helpers_one_by_one()
    from mmscope.drgn.sections.registry import SECTIONS, modules
    from mmscope.reports.rows import profile_rows, watch_rows

    of_none = (bounds, description, profile_rows, watch_rows)  # sections that no reading has
    others = {heading.name: heading for heading in declared(of_none, Heading)}
    found = declared([*modules(), *of_none], Table)
    return {table.name: table for table in found}, {**SECTIONS, **others}


# What a probe does is left out: tables have their columns beside them, sections are headings.
Plain = tuple[dict[str, tuple[Table, list[Column]]], dict[str, Heading]]


def _plain() -> Plain:
    tables, headings = of_probes()
    plain = {name: replace(table, row=object) for name, table in tables.items()}
    names = [field.name for field in fields(Heading) if field.name != "tables"]
    return (
        {name: (table, columns(tables[name].row)) for name, table in plain.items()},
        {
            name: Heading(
                **{each: getattr(heading, each) for each in names},
                tables=tuple(plain[table.name] for table in heading.tables),
            )
            for name, heading in headings.items()
        },
    )


def kept_or_made() -> tuple[dict[str, Table], dict[str, Heading]]:
    """The same, without what a probe does."""
    tables, headings = kept("declared", SOURCES, _plain)
    for table, described in tables.values():
        vars(table)["row"] = row_of(described)
    return {name: table for name, (table, _) in tables.items()}, headings


TABLES: dict[str, Table]
HEADINGS: dict[str, Heading]


def __getattr__(name: str) -> Any:
    """The two when they are first asked for; where the probes are loaded anyway, theirs."""
    if name not in ("TABLES", "HEADINGS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tables, headings = of_probes() if REGISTRY in sys.modules else kept_or_made()
    globals().update(TABLES=tables, HEADINGS=headings)
    return globals()[name]
