# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The folder of a lake: Parquet files by table and day, and ``lake.json``.

It says which of the files count::
    LAKE/lake.json
    LAKE/zones/day=2026-11-23/3f0c….parquet
    LAKE/lake_bundles/day=2026-11-23/77ab….parquet      a row each bundle

A file is never changed. Who adds something writes new files and then replaces ``lake.json``: the
lake has all of it from then on, or nothing of it. What ``lake.json`` does not name was left by
a process that was killed, and is removed by the next who adds. Writers wait for each other
(``flock``); readers never wait: a file that is gone when they come to it was merged into another,
and they begin again with the new ``lake.json``. A lake in object storage is ``bucket.Bucket``.

Cannot know: that a file system does not lock across machines; NFS does, others may not.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmscope import __version__
from mmscope.drgn.text.plain_file import check_folder, open_plain
from mmscope.reports.bundle.description import IDENTIFIER, LAKE
from mmscope.reports.bundle.leftovers import clear_up, is_unfinished, replaced
from mmscope.reports.bundle.modes import as_umask, mode_of_file, mode_of_folder, no_wider_than
from mmscope.reports.bundle.outcome import UsageError, say

DESCRIPTION, LOCK, STAGE = LAKE, ".lock", ".stage"
# What lake.json means: one more when a reader of before would be wrong.
LAYOUT = 1
BUNDLES, STACKS = "lake_bundles", "lake_stacks"
# Of the lake itself, in every table; no bundle's column or table may be called so.
OURS = "lake_"
MAX_BYTES = 256 << 20
MAGIC = b"PAR1"
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
NAME = re.compile(r"[0-9a-f]{16}\Z")


class LakeError(UsageError):
    """The folder is not a lake that can be read, or cannot be written. One line, for the user."""


class Changed(LakeError):
    """Another process added to it meanwhile: what was to be added is added to what is there now."""


@dataclass(frozen=True, order=True)
class File:
    """
    A Parquet file of a lake.

    :ivar size: in bytes, when it was whole.
    """

    table: str
    day: str
    name: str
    rows: int
    size: int

    def path(self, folder: Path) -> Path:
        """Path in a lake's folder."""
        return folder / self.table / f"day={self.day}" / f"{self.name}.parquet"


class Lake:
    """A lake in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where it is, as processes in other folders find it."""
        return Lake, (self.folder.absolute(),)

    def description(self) -> bytes:
        """
        Read ``lake.json``.

        :raises FileNotFoundError: there is no lake.
        :raises OSError: it cannot be read.
        """
        with open(open_plain(self.folder / DESCRIPTION), "rb") as file:
            return file.read(MAX_BYTES)

    def describe(self, data: bytes, files: Sequence[File]) -> None:
        """
        From now on it has these files, which are on the disk.

        :raises OSError: they cannot be written.
        :raises Changed: another process did that meanwhile.
        """
        with replaced(self.folder / DESCRIPTION, as_umask()) as file:
            file.write(data)

    def path(self, file: File) -> Path:
        """
        Path of a file on this machine, if it is there.

        :raises OSError: it cannot be had.
        """
        return file.path(self.folder)

    def fetch(self, files: Iterable[File]) -> None:
        """Have these files on this machine; one that cannot be had is said when it is read."""

    def remove(self, file: File) -> None:
        """Remove a file that does not count any more."""
        file.path(self.folder).unlink(missing_ok=True)

    def shared(self) -> Path | None:
        """A link or mount in it, which may lead to another lake."""
        places = itertools.chain(self.folder.glob("*"), self.folder.glob("*/day=*"))
        return next((path for path in places if path.is_symlink() or path.is_mount()), None)

    def clear_up(self, files: Iterable[File]) -> None:
        """Remove what does not count: left by who was killed, or merged and replaced since."""
        stage = self.folder / STAGE
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        count = {file.path(self.folder) for file in files}
        for path in self.folder.glob("*/day=*/*.parquet"):
            if path not in count and NAME.match(path.stem):
                # What is mounted here, maybe of another lake, refuses that.
                path.rename(stage / path.name).unlink()

    def others(self) -> list[str]:
        """List what is there where no lake is."""
        described = self.folder / DESCRIPTION
        clear_up(described)
        return sorted(
            name
            for name in os.listdir(self.folder)
            # Another process may be making a lake here.
            if name not in (LOCK, STAGE) and not is_unfinished(name, described)
        )


def in_words(error: object) -> str:
    """An error in a line of 200 characters at most."""
    return " ".join(str(error).split())[:200]


def files_of(lake: Lake) -> list[File]:
    """
    The files that count.

    :raises LakeError: there is no lake, or one that must not be read.
    """
    try:
        return _files_in(lake, lake.description())
    except FileNotFoundError:
        raise LakeError(
            f"{lake}: not a lake: it has no {DESCRIPTION}; 'mmscope lake add' makes one"
        ) from None
    except OSError as error:
        raise LakeError(
            f"{lake}: {DESCRIPTION} cannot be read: {error.strerror or error}"
        ) from error


def _files_in(lake: Lake, description: bytes) -> list[File]:
    try:
        data = json.loads(description)
        number = _not_negative(data["lake"])
        if number > LAYOUT:
            raise LakeError(
                f"{lake}: is a lake of layout {number}, by mmscope {str(data.get('mmscope'))[:40]};"
                f" mmscope {__version__} reads layout {LAYOUT}: use a newer mmscope"
            )
        files = [_file(item) for item in data["files"]]
        if len({(file.table, file.day, file.name) for file in files}) < len(files):
            raise ValueError("a file is listed twice")  # its rows would count twice
        return files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = in_words(f"{type(error).__name__}: {error}")
        raise LakeError(f"{lake}: {DESCRIPTION} is damaged: {why}") from error


def _not_negative(value: Any) -> int:
    """A number of rows or bytes, or of a layout: what else JSON may have there is damage."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no whole number")
    return value


def _file(item: dict[str, Any]) -> File:
    file = File(**{field.name: item[field.name] for field in dataclasses.fields(File)})
    # They become paths, and SQL.
    if not (IDENTIFIER.match(file.table) and DAY.match(file.day) and NAME.match(file.name)):
        raise ValueError(f"{str(item)[:80]} is no file of a lake")
    return dataclasses.replace(file, rows=_not_negative(file.rows), size=_not_negative(file.size))


def torn(lake: Lake, file: File) -> str:
    """Damage of a file, as far as its size and its ends tell; empty if there is none."""
    name = f"{lake}/{file.path(Path())}"
    try:
        with open(open_plain(lake.path(file)), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            begin = opened.read(4)
            opened.seek(max(size - 4, 0))
            end = opened.read(4)
    except OSError as error:
        return f"{name}: cannot be read: {error.strerror or error}"
    if size != file.size:
        return f"{name}: torn: it has {size:,} bytes, not the {file.size:,} that were written"
    return "" if (begin, end) == (MAGIC, MAGIC) else f"{name}: damaged: it is no Parquet file"


def whole_of(lake: Lake, files: Iterable[File]) -> tuple[list[str], dict[File, str]]:
    """Paths of files that are whole, as DuckDB takes them; and damage of the others."""
    paths, faults = [], {}
    for file in files:
        if why := torn(lake, file):
            faults[file] = why
        else:
            paths.append(literal(lake.path(file)))
    return paths, faults


def literal(path: Path) -> str:
    """A path that DuckDB takes for no pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))


@contextlib.contextmanager
def writing(lake: Lake) -> Iterator[list[File]]:
    """
    Lock a lake for writing, as soon as no other process has; gives the files that count then.

    :raises LakeError: there is something else than a lake, or it cannot be written.
    """
    folder = lake.folder
    try:
        check_folder(folder, alone=True)
        # What root reads is root's alone, as a bundle is: no other user gets into the folder.
        folder.mkdir(mode_of_folder(mode_of_file()), parents=True, exist_ok=True)
        _files_if_any(lake)  # nothing is written where there is something else
        with no_wider_than(folder), open(_lock(folder), "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"{lake}: another process adds to it; waiting")
                fcntl.flock(lock, fcntl.LOCK_EX)
            files = _files_if_any(lake)
            if files is None:
                commit(lake, files := [])
            lake.clear_up(files)
            try:
                yield files
            finally:
                shutil.rmtree(folder / STAGE, ignore_errors=True)
    except FileExistsError as error:
        raise LakeError(f"{error.filename or lake}: not a lake: it is a file") from error
    except OSError as error:
        raise LakeError(f"{error.filename or lake}: {error.strerror or error}") from error


def _lock(folder: Path) -> int:
    """The open file that writers lock; no link is followed."""
    path = folder / LOCK
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    return open_plain(path)


def _files_if_any(lake: Lake) -> list[File] | None:
    """
    The files of a lake; None: there is none yet.

    :raises LakeError: there is something else, or a part of it may be another lake's.
    """
    if place := lake.shared():
        raise LakeError(
            f"{place}: leads out of the lake; what is behind it may be another lake's, and would "
            "be removed as unknown: all in a lake's folder must be its own"
        )
    with contextlib.suppress(FileNotFoundError):
        return _files_in(lake, lake.description())
    others = lake.others()
    if not others:
        return None
    with contextlib.suppress(FileNotFoundError):  # it may have been made meanwhile
        return _files_in(lake, lake.description())
    raise LakeError(
        f"{lake}: not a lake, and not empty: it has {others[0][:80]}; choose another folder"
    )


def commit(lake: Lake, files: list[File]) -> None:
    """
    From now on these files count, and no others: all of them are on the disk.

    :raises Changed: another process did that meanwhile.
    """
    data = {
        "lake": LAYOUT,
        "mmscope": __version__,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": [dataclasses.asdict(file) for file in sorted(files)],
    }
    lake.describe(json.dumps(data, indent=0).encode(), files)
