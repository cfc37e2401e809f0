# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of many bundles in DuckDB, each row with the number of its bundle.

They are loaded, then the database is locked, as that of one bundle is. What a file has is held
against what was written: a bundle that has fewer rows of a table, or more, does not have that table
here, and the reason is kept. So a torn file costs the bundles in it one table, and no other
bundle anything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import TARGET, connect, in_a_line, lock, sql_type
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.lake.catalog import Catalog, Taken
from mmscope.reports.lake.keyed import NUMBER
from mmscope.reports.lake.layout import (
    BUNDLES,
    File,
    Lake,
    LakeError,
    files_of,
    literal,
    torn,
    whole_of,
)
from mmscope.reports.lake.shape import Shape, shapes_of
from mmscope.reports.lake.staging import MARKS

MEMORY = "1536MiB"
# Rows of all tables that are loaded at once: those of ten thousand small bundles.
MAX_ROWS = 10_000_000


@dataclass
class Batch:
    """
    Bundles whose tables are loaded.

    :ivar missing: by number of the bundle: tables that cannot be read here, and why.
    :ivar marks: by number of the bundle: values of its tables that cannot be.
    :ivar shapes: what the tables of a bundle of that shape have.
    :ivar said: what is wrong with files, a line each.
    :ivar files: by table, those that are whole.
    :ivar faults: files that cannot be used.
    """

    bundles: Sequence[Taken]
    connection: duckdb.DuckDBPyConnection
    shapes: dict[str, Shape] = field(default_factory=dict)
    missing: dict[int, dict[str, str]] = field(default_factory=dict)
    marks: dict[int, list[Impossible]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    files: dict[str, list[File]] = field(default_factory=dict)
    faults: set[File] = field(default_factory=set)


def batches(bundles: Sequence[Taken], parts: int = 1) -> list[list[Taken]]:
    """Bundles in portions that fit into memory, at least so many *parts* if there are bundles."""
    most = min(MAX_ROWS, sum(bundle.rows for bundle in bundles) // parts)
    portions: list[list[Taken]] = []
    room = 0
    for bundle in bundles:
        room -= bundle.rows
        if room < 0 or not portions:
            portions.append([])
            room = most - bundle.rows
        portions[-1].append(bundle)
    return portions


def load(catalog: Catalog, bundles: Sequence[Taken], names: Iterable[str]) -> Batch:
    """
    Load the tables of some bundles.

    :param names: of the tables that are wanted; other words may be among them.
    """
    wanted = set(names)
    while True:
        catalog.files = files_of(catalog.lake)
        batch = _load_all(catalog, bundles, wanted)
        # Files that are gone were merged into others meanwhile, or are lost.
        if not batch.faults or files_of(catalog.lake) == catalog.files:
            return batch
        batch.connection.close()


def _load_all(catalog: Catalog, bundles: Sequence[Taken], wanted: set[str]) -> Batch:
    connection = connect(MEMORY, threads=None)
    connection.execute("create schema lake")
    connection.execute(
        f"create table lake.lake_batch as select unnest($numbers::bigint[]) as {NUMBER}, "
        "unnest($ids::varchar[]) as lake_bundle",
        {"numbers": list(range(len(bundles))), "ids": [bundle.id for bundle in bundles]},
    )
    batch = Batch(bundles, connection)
    days = {bundle.day for bundle in bundles}
    files: dict[str, list[File]] = {table: [] for table in sorted(wanted & TABLES.keys())}
    files[MARKS] = []
    for file in catalog.files:
        if file.table in files and file.day in days:
            files[file.table].append(file)
    catalog.lake.fetch(file for of_table in files.values() for file in of_table)
    marks = files.pop(MARKS)
    for table, of_table in files.items():
        _load(catalog.lake, batch, table, of_table)
    of_bundles = [f for f in catalog.files if f.table == BUNDLES and f not in catalog.damaged]
    lists, faults = whole_of(catalog.lake, of_bundles)
    batch.faults |= faults.keys()
    batch.files["target"] = [file for file in of_bundles if file not in faults]
    try:
        _load_target(batch, lists)
    except duckdb.Error as error:
        raise LakeError(f"{catalog.lake}: its list of bundles lacks what all have") from error
    for file in marks:
        _load_marks(catalog.lake, batch, file)
    lock(connection)
    batch.shapes.update(shapes_of(lists, (bundle.shape for bundle in bundles), wanted))
    if unknown := [bundle for bundle in bundles if bundle.shape not in batch.shapes]:
        batch.said.append(
            f"{catalog.lake}: {plural(len(unknown), 'bundle')} cannot be asked: what describes "
            f"their tables is damaged ({unknown[0].host}, bundle {unknown[0].id}, is the first)"
        )
    return batch


def _load(lake: Lake, batch: Batch, table: str, files: Sequence[File]) -> None:
    """Load one table, of the files that are whole."""
    kinds = {c.name: sql_type(c) for c in columns(TABLES[table].row)}
    described = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
    batch.connection.execute(f'create table lake."{table}" ({NUMBER} BIGINT, {described})')
    paths, faults = whole_of(lake, files)
    try:
        _read(batch, table, kinds, paths)
    except duckdb.Error:  # one of them is damaged inside
        batch.connection.execute(f'delete from lake."{table}"')
        for file in files:
            if file not in faults:
                try:
                    _read(batch, table, kinds, [literal(lake.path(file))])
                except duckdb.Error as error:
                    faults[file] = f"{lake}/{file.path(Path())}: damaged: {in_a_line(error)}"
    batch.said += faults.values()
    batch.faults |= faults.keys()
    _compare(batch, table, "; ".join(faults.values()))
    batch.files[table] = [file for file in files if file not in faults]


def _read(batch: Batch, table: str, kinds: dict[str, str], paths: Sequence[str]) -> None:
    if not paths:
        return
    source = "read_parquet($paths, union_by_name = true, hive_partitioning = false)"
    described = batch.connection.execute(f"describe select * from {source}", {"paths": paths})
    there = {name for name, *_ in described.fetchall()}
    # What is not declared is asked by nothing.
    known = [name for name in kinds if name in there]
    names = ", ".join(f'"{name}"' for name in known)
    values = ", ".join(f'l."{name}"::{kinds[name]}' for name in known)
    batch.connection.execute(
        f'insert into lake."{table}" ({NUMBER}, {names}) select b.{NUMBER}, {values} '
        f"from {source} as l join lake.lake_batch as b using (lake_bundle)",
        {"paths": paths},
    )


def _compare(batch: Batch, table: str, fault: str) -> None:
    """Check that each bundle has the rows that it had when it was added."""
    counted = f'select {NUMBER}, count(*) from lake."{table}" group by all'
    found = dict(batch.connection.execute(counted).fetchall())
    off = []
    for number, bundle in enumerate(batch.bundles):
        expected = bundle.counts.get(table, 0)
        if found.get(number, 0) != expected:
            off.append(number)
            why = fault or f"{found.get(number, 0):,} of {expected:,} rows are in the lake"
            batch.missing.setdefault(number, {})[table] = why
    if off:
        batch.connection.execute(f'delete from lake."{table}" where {NUMBER} in $off', {"off": off})
        batch.said += [] if fault else [f"table {table}: rows of {len(off):,} bundles are missing"]


def _load_target(batch: Batch, paths: Sequence[str]) -> None:
    # Lakes of before 0.3.0 have it by another name alone.
    of = {"booted_at": "epoch(l.lake_boot)"}
    names = ", ".join(
        f"{of.get(name, f'l.{name}')}::{kind} as {name}" for name, kind in TARGET.items()
    )
    batch.connection.execute(
        f"create table lake.target as select b.{NUMBER}, {names} from "
        "read_parquet($paths, hive_partitioning = false) as l "
        "join lake.lake_batch as b using (lake_bundle)",
        {"paths": paths},
    )


def _load_marks(lake: Lake, batch: Batch, file: File) -> None:
    """
    Load values that cannot be. A file of them that is torn costs all that might be in it: nothing
    else tells which values not to compute with.
    """
    try:
        if why := torn(lake, file):
            raise duckdb.IOException(why)
        rows = batch.connection.execute(
            f"select b.{NUMBER}, {', '.join(c.name for c in columns(Impossible))} from "
            "read_parquet($path, hive_partitioning = false) join lake.lake_batch as b "
            "using (lake_bundle)",
            {"path": literal(lake.path(file))},
        ).fetchall()
    except duckdb.Error as error:
        why = in_a_line(error)
        batch.faults.add(file)
        batch.said.append(f"{why}; bundles of {file.day} are not asked")
        for number, bundle in enumerate(batch.bundles):
            if bundle.day == file.day:
                gone = f"which values are impossible is lost: {why}"
                batch.missing.setdefault(number, {}).update(dict.fromkeys(bundle.counts, gone))
        return
    for number, *mark in rows:
        batch.marks.setdefault(number, []).append(Impossible(*mark))
