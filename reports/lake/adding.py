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
import multiprocessing
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.leftovers import to_disk
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.bundle.redact import Names, redact
from mmscope.reports.lake.catalog import literal, open_lake, query
from mmscope.reports.lake.layout import (
    BUNDLES,
    STAGE,
    Changed,
    File,
    Lake,
    LakeError,
    commit,
    torn,
    writing,
)
from mmscope.reports.lake.staging import Given, Stage, Staged, identity, stage

SLICE = 1000
# Each time another process has added something.
TRIES = 20
# Fewer are read sooner than another process has started.
WORTH_A_PROCESS = 12
# A file that is not merged any more.
LARGE = 128 << 20
MERGING: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "512MiB",
    "temp_directory": "",
    "threads": 1,
}


@dataclass
class Added:
    """
    How many bundles were added, had been before, could not be; and tables and stacks that were left
    out of those that were added.
    """

    added: int = 0
    known: int = 0
    refused: int = 0
    left_out: int = 0


def add(
    where: str | Path,
    bundles: Sequence[Path],
    given: Given,
    say: Callable[[str], None],
    names: Names | None = None,
    jobs: int | None = None,
) -> Added:
    """
    Add bundles to the lake in a folder, or at a URL. What cannot be added is said, a line each, and
    costs no other.

    :param names: replace names by these first.
    :raises LakeError: there is something else than a lake, or it cannot be written.
    """
    lake, total = open_lake(where), Added()
    jobs = 1 if names else jobs or os.cpu_count() or 1
    for begin in range(0, len(bundles), SLICE):
        some = bundles[begin : begin + SLICE]
        for last in (*[False] * TRIES, True):
            try:
                known, made = _add(lake, some, given, names, jobs)
                break
            except Changed as error:
                if last:
                    raise
                say(f"{error}: again")
        total.known += known
        for each in made:
            total.added += len(each.ids)
            total.refused += len(each.refused)
            total.left_out += len(each.left_out)
            for line in (*each.refused, *each.left_out, *each.said):
                say(line)
    return total


def _add(
    lake: Lake, bundles: Sequence[Path], given: Given, names: Names | None, jobs: int
) -> tuple[int, list[Staged]]:
    """Add bundles at once; returns how many are there already, and what became of the others."""
    with writing(lake) as files:
        there = _ids(lake, files)
        work: dict[str, Path] = {}
        known = 0
        for path in bundles:
            try:
                id = identity(path)
            except OSError:
                id = f"?{path}"  # its reader says what is wrong
            if id in there or id in work:
                known += 1
            else:
                work[id] = path
        folder = lake.folder / STAGE
        made = list(_stage([(path, id) for id, path in work.items()], folder, given, names, jobs))
        _keep(lake, files, made)
    return known, made


def _ids(lake: Lake, files: list[File]) -> set[str]:
    """
    Of the bundles that are there.

    :raises LakeError: that cannot be told.
    """
    found: set[str] = set()
    lake.fetch(file for file in files if file.table == BUNDLES)
    for file in files:
        if file.table == BUNDLES:
            if why := torn(lake, file):
                raise LakeError(
                    f"{why}; which bundles are in the lake is not known, so that none can be added "
                    "once: restore the file, or begin another lake"
                )
            rows = query(
                "select lake_bundle from read_parquet($path, hive_partitioning = false)",
                {"path": literal(lake.path(file))},
            )
            found.update(id for (id,) in rows)
    return found


def _stage(
    work: list[tuple[Path, str]], folder: Path, given: Given, names: Names | None, jobs: int
) -> Iterator[Staged]:
    if names:
        yield _redacted(work, folder, given, names)
        return
    jobs = min(jobs, max(1, len(work) // WORTH_A_PROCESS))
    if jobs == 1:
        yield stage(work, folder, given, "0")
        return
    # Not by fork: DuckDB has threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        shares = [work[n::jobs] for n in range(jobs)]
        yield from pool.map(stage, shares, [folder] * jobs, [given] * jobs, map(str, range(jobs)))


def _redacted(work: list[tuple[Path, str]], folder: Path, given: Given, names: Names) -> Staged:
    """The same of bundles whose names are replaced first: nothing else of them gets into it."""
    made = Stage(folder, given, "0")
    for path, id in work:
        with tempfile.TemporaryDirectory(prefix="mmscope-") as there:
            try:
                made.add(path, redact(Bundle(path), Path(there) / "bundle", names), id)
            except (UsageError, duckdb.Error, OSError, ValueError) as error:
                made.staged.refused.append(f"{path}: cannot be added: {str(error)[:200]}")
    made.flush()
    return made.staged


def _keep(lake: Lake, files: list[File], made: list[Staged]) -> None:
    """The staged files become the lake's, merged with what is not larger."""
    groups: dict[tuple[str, str], list[tuple[Path, int]]] = {}
    for each in made:
        for table, day, path, rows in each.files:
            groups.setdefault((table, day), []).append((Path(path), rows))
    if not groups:
        return
    kept: dict[tuple[str, str], list[File]] = {}
    for file in files:
        kept.setdefault((file.table, file.day), []).append(file)
    gone: list[File] = []
    for where, new in groups.items():
        size = sum(path.stat().st_size for path, _ in new)
        merged: list[File] = []
        for file in sorted(kept.get(where, []), key=lambda file: file.size):
            if file.size <= size < LARGE and not torn(lake, file):
                merged.append(file)
                size += file.size
        old = [(lake.path(file), file.rows) for file in merged]
        try:
            file = _merge(lake, where, [*reversed(old), *new])
        except duckdb.Error:  # one of them is damaged inside, which its readers say
            merged, file = [], _merge(lake, where, new)
        gone += merged
        kept[where] = [f for f in kept.get(where, []) if f not in merged] + [file]
    for folder in {lake.folder / table / f"day={day}" for table, day in groups}:
        to_disk(folder)
        to_disk(folder.parent)
    commit(lake, [file for several in kept.values() for file in several])
    for file in gone:
        lake.remove(file)


def _merge(lake: Lake, where: tuple[str, str], parts: list[tuple[Path, int]]) -> File:
    """One file of several, in their order."""
    table, day = where
    name = secrets.token_hex(8)
    file = File(table, day, name, sum(rows for _, rows in parts), 0)
    path = file.path(lake.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = lake.folder / STAGE / f"{name}.parquet"
    if len(parts) == 1:
        made = parts[0][0]
    else:
        with contextlib.closing(duckdb.connect(":memory:", config=MERGING)) as connection:
            connection.execute(
                "copy (select * from read_parquet($parts, union_by_name = true, "
                "hive_partitioning = false)) to $path (format parquet, compression zstd)",
                {"parts": [literal(part) for part, _ in parts], "path": str(made)},
            )
    to_disk(made)
    os.rename(made, path)
    return File(table, day, name, file.rows, path.stat().st_size)
