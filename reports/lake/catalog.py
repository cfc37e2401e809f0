# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The bundles of a lake: whose they are, when they were taken, what they lack.

A host is a name. Two readings of one name that were of two boots at one time are of two machines
with that name, or of one whose clock was set: they are distinguished by their boots.

Cannot know: two machines of one name whose readings do not overlap; they are one host here.
"""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.hostile_text import cut
from mmscope.reports.bundle.database import connect
from mmscope.reports.bundle.description import SAME_BOOT_SECONDS
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.lake.layout import (
    BUNDLES,
    DAY,
    File,
    Lake,
    files_of,
    literal,
    whole_of,
)

# What comes of a list of bundles that is something else.
DAMAGE = (
    duckdb.Error,
    ArithmeticError,
    AttributeError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
MEMORY = "1GiB"
# A reading of one boot may end after the next boot's began where the clock was set a little.
OVERLAP_SECONDS = 60.0


@dataclass(frozen=True)
class Taken:
    """
    A bundle of a lake.

    :ivar host: its name, with its boot where several machines have that name.
    :ivar at: when it was taken, or else added; in seconds since 1970.
    :ivar counts: rows of each table that it has.
    :ivar missing: as of ``database.Database``.
    """

    id: str
    host: str
    kernel: str
    boot: float | None
    at: float
    day: str
    labels: dict[str, str]
    note: str
    page_size: int | None
    shape: str
    version: str
    counts: dict[str, int]
    missing: dict[str, str]

    @property
    def rows(self) -> int:
        """Rows of all its tables."""
        return sum(self.counts.values())


@dataclass
class Catalog:
    """
    The bundles of a lake, the newest last.

    :ivar files: that the lake had then.
    :ivar said: what is wrong with the lake, a line each.
    :ivar damaged: lists of bundles that cannot be read.
    """

    lake: Lake
    files: list[File]
    bundles: list[Taken]
    said: list[str]
    damaged: Collection[File] = ()


def query(text: str, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """
    Rows of Parquet files, by a database of its own: DuckDB's shared one is one thread's.

    :raises duckdb.Error: they cannot be read.
    """
    with contextlib.closing(connect(MEMORY, threads=None)) as connection:
        return connection.execute(text, given).fetchall()


def open_lake(where: str | Path) -> Lake:
    """
    The lake in a folder, or in object storage if that is a URL.

    :raises UsageError: what reads object storage is not installed.
    """
    if isinstance(where, Path) or "://" not in where:
        return Lake(Path(where))
    try:
        from mmscope.reports.lake.bucket import Bucket
    except ModuleNotFoundError as error:
        raise UsageError(f"{where}: {error.name} is missing: pip install 'mmscope[s3]'") from error
    return Bucket(where)


def read_catalog(
    where: str | Path,
    since: str | None = None,
    until: str | None = None,
    hosts: Collection[str] = (),
    kernels: Collection[str] = (),
    labels: Iterable[tuple[str, str]] = (),
) -> Catalog:
    """
    The bundles of the lake in a folder, or at a URL: all, or those that are wanted.

    :param since, until: days. :param labels: each of which a bundle has.
    :raises LakeError: there is no lake, or nothing of it can be read.
    :raises UsageError: a day is none.
    """
    for day in (since, until):
        if day is not None and not DAY.match(day):
            raise UsageError(f"{day[:40]!r} is no day; it is written 2026-11-23")
    lake = open_lake(where)
    for last in (False, True):
        files = [f for f in files_of(lake) if (since or "") <= f.day <= (until or "9999")]
        lists = [file for file in files if file.table == BUNDLES]
        lake.fetch(lists)
        paths, faults = whole_of(lake, lists)
        try:
            found = _bundles(paths)
        except DAMAGE:
            if not last:
                continue  # merged into another in between
            found, inside = _bundles_of_each(lake, [f for f in lists if f not in faults])
            faults |= inside
        known, twice = _named_apart(found)
        said = [
            f"{why}; {plural(file.rows, 'bundle')} of {file.day} cannot be asked"
            for file, why in faults.items()
        ]
        kept = [
            bundle
            for bundle in known
            if (not hosts or bundle.host in hosts)
            and (not kernels or bundle.kernel in kernels)
            and all(bundle.labels.get(name) == value for name, value in labels)
        ]
        names = {bundle.host for bundle in kept}
        said += [line for first, line in twice if first in names]
        return Catalog(lake, files, kept, said + _notes(kept), faults.keys())
    raise AssertionError


def _notes(bundles: Iterable[Taken]) -> list[str]:
    """Lines of what was odd with bundles when they were added; of many with one reason, one."""
    by_reason: dict[str, list[Taken]] = {}
    for bundle in bundles:
        if bundle.note:
            # Before that, a clock that was wrong has its time.
            reason = bundle.note.rpartition(" UTC: ")[2]
            by_reason.setdefault(reason, []).append(bundle)
    said = []
    for reason, noted in by_reason.items():
        first = f"{noted[0].host}, bundle {noted[0].id}"
        if len(noted) == 1:
            said.append(f"{first}: {noted[0].note}")
        else:
            hosts = plural(len({bundle.host for bundle in noted}), "host")
            reason = reason.replace("filed under today", "filed under the day when it was added")
            said.append(
                f"{len(noted):,} bundles of {hosts}, each: {reason} ({first}, is the first; column "
                "note of 'mmscope lake show LAKE bundles' marks them)"
            )
    return said


def _bundles(paths: Sequence[str]) -> list[Taken]:
    """The bundles that files list, the newest last."""
    if not paths:
        return []
    rows = query(
        "select lake_bundle::varchar, lake_host::varchar, lake_kernel::varchar, "
        "epoch(lake_boot::timestamp), "
        "epoch(case when note = '' then captured::timestamp else added::timestamp end), "
        "lake_labels::map(varchar, varchar), note::varchar, page_size::bigint, shape::varchar, "
        "version::varchar, counts::varchar, missing::varchar "
        "from read_parquet($paths, hive_partitioning = false)",
        {"paths": list(paths)},
    )
    # Hosts of a fleet have the same tables, or nearly so.
    of_tables, why = functools.cache(_counts), functools.cache(_reasons)
    bundles = [
        Taken(
            id,
            cut(host or "unnamed", 200),
            cut(kernel or "unknown", 200),
            boot,
            at,
            datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat(),
            dict(labels or {}),
            note or "",
            page_size,
            shape,
            version,
            of_tables(counts),
            why(missing),
        )
        for id, host, kernel, boot, at, labels, note, page_size, shape, version, counts, missing
        in rows
    ]  # fmt: skip
    return sorted(bundles, key=_age)


def _age(bundle: Taken) -> tuple[float, str]:
    return bundle.at, bundle.id


def _bundles_of_each(lake: Lake, lists: Iterable[File]) -> tuple[list[Taken], dict[File, str]]:
    """The bundles that files list, the newest last, and what is wrong with the other files."""
    found, faults = [], {}
    for file in lists:
        try:
            found += _bundles([literal(lake.path(file))])
        except DAMAGE:
            faults[file] = f"{lake}/{file.path(Path())}: damaged: it is no list of bundles"
    return sorted(found, key=_age), faults


def _counts(text: str) -> dict[str, int]:
    """Rows of each table."""
    counts: dict[str, int] = json.loads(text)
    if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts.values()):
        raise ValueError
    return counts


def _reasons(text: str) -> dict[str, str]:
    """Why each table is missing that is."""
    return {str(name): str(why) for name, why in json.loads(text).items()}


def _named_apart(bundles: list[Taken]) -> tuple[list[Taken], list[tuple[str, str]]]:
    """Name machines of one name by their boots too; and say which they are."""
    names: dict[str, str] = {}
    said: list[tuple[str, str]] = []
    for host, readings in by_host(bundles).items():
        boots = boots_of(readings)
        # Of one machine no boot is read after the next one has begun.
        if all(
            max(bundle.at for bundle in of_boot) <= after + OVERLAP_SECONDS
            for (_, of_boot), (after, _) in itertools.pairwise(boots)
        ):
            continue
        new = []
        for begun, of_boot in boots:
            when = datetime.datetime.fromtimestamp(begun, datetime.UTC)
            new.append(f"{host} (booted {when:%Y-%m-%dT%H:%M:%SZ})")
            names.update((bundle.id, new[-1]) for bundle in of_boot)
        line = f"{host}: {len(new)} machines have this name, or a clock was set: they are asked as "
        said.append((new[0], line + ", ".join(new)))
    return [dataclasses.replace(b, host=names.get(b.id, b.host)) for b in bundles], said


def by_host(bundles: Iterable[Taken]) -> dict[str, list[Taken]]:
    """The bundles of each host, in their order."""
    found: dict[str, list[Taken]] = {}
    for bundle in bundles:
        found.setdefault(bundle.host, []).append(bundle)
    return found


def boots_of(readings: Iterable[Taken]) -> list[tuple[float, list[Taken]]]:
    """The boots of a host, and their readings."""
    boots: list[tuple[float, list[Taken]]] = []
    known = [(bundle.boot, bundle) for bundle in readings if bundle.boot is not None]
    for boot, bundle in sorted(known, key=lambda pair: pair[0]):
        if boots and boot - boots[-1][0] <= SAME_BOOT_SECONDS:
            boots[-1][1].append(bundle)
        else:
            boots.append((boot, [bundle]))
    return boots
