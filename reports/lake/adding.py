# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Adds bundles to a lake: each once, all of a slice or none of it, small files merged on the way.

Slices are as large as a writer may make others wait for. Within one, bundles are read by as many
processes as there are CPUs. A slice's files are merged with those that are not larger, so that
each byte is written again a dozen times at most, however many come singly, and a day has a dozen
files a table at most.

Cannot know: that a bundle was changed by a single byte, which makes it another.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from mmscope.reports.bundle.database import connect
from mmscope.reports.bundle.leftovers import to_disk
from mmscope.reports.bundle.redact import Names
from mmscope.reports.lake.catalog import open_lake, query
from mmscope.reports.lake.layout import (
    BUNDLES,
    STAGE,
    Changed,
    File,
    Lake,
    LakeError,
    commit,
    in_words,
    literal,
    torn,
    whole_of,
    writing,
)
from mmscope.reports.lake.staging import Staged, identity, stage

SLICE = 1000
# Each time another process has added something.
TRIES = 20
# Fewer are read sooner than another process has started.
WORTH_A_PROCESS = 12
# A file that is not merged any more.
LARGE = 128 << 20
MERGING = "512MiB"


def add(
    where: str | Path,
    bundles: Sequence[Path],
    say: Callable[[str], None],
    labels: Sequence[tuple[str, str]] = (),
    host: str | None = None,
    names: Names | None = None,
    jobs: int | None = None,
) -> tuple[int, int, bool]:
    """
    Add bundles to the lake in a folder, or at a URL. What cannot be added is said, a line each, and
    costs no other.

    :param labels, host: of all of them.
    :param names: replace names by these first.
    :returns: how many were added and how many had been before; and whether all of them are there
        now, with all their tables and stacks.
    :raises LakeError: there is something else than a lake, or it cannot be written.
    """
    lake = open_lake(where)
    staging = functools.partial(
        stage, folder=lake.folder / STAGE, labels=labels, host=host, names=names
    )
    jobs = 1 if names else jobs or os.cpu_count() or 1
    total, before, whole = 0, 0, True
    for begin in range(0, len(bundles), SLICE):
        some = bundles[begin : begin + SLICE]
        for last in (*[False] * TRIES, True):
            try:
                known, made = _add(lake, some, staging, jobs)
                break
            except Changed as error:
                if last:
                    raise
                say(f"{error}: again")
            except duckdb.IOException as error:
                raise LakeError(f"{lake}: cannot be written: {_cause(error)}") from error
        before += known
        for each in made:
            total += each.added
            whole = whole and not (each.refused or each.left_out)
            for line in (*each.refused, *each.left_out, *each.said):
                say(line)
    return total, before, whole


def _cause(error: duckdb.IOException) -> str:
    """Words of the system, which DuckDB quotes in words and JSON of its own."""
    number = re.search(r'"errno":"(\d{1,4})"', str(error))
    return os.strerror(int(number[1])) if number else in_words(error)


def _add(
    lake: Lake, bundles: Sequence[Path], staging: Callable[..., Staged], jobs: int
) -> tuple[int, list[Staged]]:
    """Add bundles at once; returns how many are there already, and what became of the others."""
    with writing(lake) as files:
        there = _ids(lake, files)
        work: dict[str, Path] = {}
        for path in bundles:
            try:
                id = identity(path)
            except OSError:
                id = f"?{path}"  # its reader says what is wrong
            if id not in there:
                work.setdefault(id, path)
        made = _stage([(path, id) for id, path in work.items()], staging, jobs)
        _keep(lake, files, made)
    return len(bundles) - len(work), made


def _ids(lake: Lake, files: list[File]) -> set[str]:
    """
    The bundles that are there.

    :raises LakeError: they are not known.
    """
    lists = [file for file in files if file.table == BUNDLES]
    lake.fetch(lists)
    paths, faults = whole_of(lake, lists)
    try:
        ids = "select lake_bundle from read_parquet($paths, hive_partitioning = false)"
        there = {id for (id,) in query(ids, {"paths": paths})} if paths else set()
    except duckdb.Error:
        faults |= {f: f"{lake}: its list of bundles is damaged" for f in lists if f not in faults}
    for why in faults.values():
        raise LakeError(
            f"{why}; which bundles are in the lake is not known, so that none can be added "
            "once: restore the file, or begin another lake"
        )
    return there


def _stage(work: list[tuple[Path, str]], staging: Callable[..., Staged], jobs: int) -> list[Staged]:
    """Stage bundles by several processes, if they are worth it."""
    jobs = min(jobs, max(1, len(work) // WORTH_A_PROCESS))
    if jobs == 1:
        return [staging(work, "0")]
    # Not by fork: DuckDB has threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        shares = [work[n::jobs] for n in range(jobs)]
        return list(pool.map(staging, shares, map(str, range(jobs))))


def _keep(lake: Lake, files: list[File], made: list[Staged]) -> None:
    """Make the staged files the lake's, merged with what is not larger."""
    groups: dict[tuple[str, str], list[tuple[Path, int]]] = {}
    for each in made:
        for table, day, path, rows in each.files:
            groups.setdefault((table, day), []).append((path, rows))
    if not groups:
        return
    kept, gone = set(files), []
    for (table, day), new in groups.items():
        size = sum(path.stat().st_size for path, _ in new)
        merged: list[File] = []
        there = [file for file in files if (file.table, file.day) == (table, day)]
        for file in sorted(there, key=lambda file: file.size):
            if file.size <= size < LARGE and not torn(lake, file):
                merged.append(file)
                size += file.size
        old = [(lake.path(file), file.rows) for file in reversed(merged)]
        try:
            file = _merge(lake, table, day, [*old, *new])
        except duckdb.Error:  # one of them is damaged inside, which its readers say
            merged, file = [], _merge(lake, table, day, new)
        gone += merged
        kept = (kept - {*merged}) | {file}
    for folder in {lake.folder / table / f"day={day}" for table, day in groups}:
        to_disk(folder)
        to_disk(folder.parent)
    commit(lake, list(kept))
    for file in gone:
        lake.remove(file)


def _merge(lake: Lake, table: str, day: str, parts: list[tuple[Path, int]]) -> File:
    """One file of several, in their order."""
    name = secrets.token_hex(8)
    made = lake.folder / STAGE / f"{name}.parquet"
    if len(parts) == 1:
        ((made, _),) = parts
    else:
        with contextlib.closing(connect(MERGING)) as connection:
            connection.execute(
                "copy (select * from read_parquet($parts, union_by_name = true, "
                "hive_partitioning = false)) to $path (format parquet, compression zstd)",
                {"parts": [literal(part) for part, _ in parts], "path": str(made)},
            )
    to_disk(made)
    file = File(table, day, name, sum(rows for _, rows in parts), made.stat().st_size)
    path = file.path(lake.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.rename(made, path)
    return file
