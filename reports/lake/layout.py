# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The folder of a lake: Parquet files by table and day, and ``lake.json``, which says which of them
count::

    LAKE/lake.json
    LAKE/zones/day=2026-11-23/3f0c….parquet
    LAKE/lake_bundles/day=2026-11-23/77ab….parquet      a row each bundle

A file is never changed. Who adds something writes new files and then replaces ``lake.json``: the
lake has all of it from then on, or nothing of it. What ``lake.json`` does not name was left by
somebody who was killed, and is removed by the next who adds. Writers wait for each other
(``flock``); readers never wait: a file that is gone when they come to it was merged into another,
and they begin anew with the new ``lake.json``.

Cannot know: that a file system does not lock across machines; NFS does, others may not.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmscope import __version__
from mmscope.reports.bundle.description import IDENTIFIER
from mmscope.reports.bundle.leftovers import clear_up, replaced
from mmscope.reports.bundle.modes import as_umask, mode_of_file, mode_of_folder
from mmscope.reports.bundle.outcome import Refused, say

DESCRIPTION, LOCK, STAGE = "lake.json", ".lock", ".stage"
# What lake.json means: one more when a reader of before would be wrong.
LAYOUT = 1
BUNDLES, STACKS = "lake_bundles", "lake_stacks"
# Of the lake itself, in every table; no bundle's column or table may be called so.
OURS = "lake_"
MAX_BYTES = 256 << 20
MAGIC = b"PAR1"
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
NAME = re.compile(r"[0-9a-f]{16}\Z")


class LakeError(Refused):
    """The folder is not a lake that can be read, or cannot be written. One line, for the user."""


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

    def path(self, lake: Path) -> Path:
        """Where it is."""
        return lake / self.table / f"day={self.day}" / f"{self.name}.parquet"


def files_of(lake: Path) -> list[File]:
    """
    The files that count.

    :raises LakeError: there is no lake, or one that must not be read.
    """
    path = lake / DESCRIPTION
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(MAX_BYTES + 1)[:MAX_BYTES])
        number = data["lake"]
        if isinstance(number, int) and number > LAYOUT:
            raise LakeError(
                f"{lake}: is a lake of layout {number}, by mmscope {str(data.get('mmscope'))[:40]};"
                f" mmscope {__version__} reads layout {LAYOUT}: use a newer mmscope"
            )
        return [_file(item) for item in data["files"]]
    except FileNotFoundError:
        raise LakeError(
            f"{lake}: not a lake: it has no {DESCRIPTION}; 'mmscope lake add' makes one"
        ) from None
    except OSError as error:
        raise LakeError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise LakeError(f"{path}: damaged: {why}") from error


def _file(item: dict[str, Any]) -> File:
    file = File(**{field.name: item[field.name] for field in dataclasses.fields(File)})
    # They become paths, and SQL.
    if not (IDENTIFIER.match(file.table) and DAY.match(file.day) and NAME.match(file.name)):
        raise ValueError(f"{str(item)[:80]} is no file of a lake")
    if not isinstance(file.rows, int) or not isinstance(file.size, int):
        raise ValueError(f"{str(item)[:80]} has no size")
    return file


def torn(lake: Path, file: File) -> str:
    """What is wrong with a file, as far as its size and its ends tell; empty if nothing."""
    path = file.path(lake)
    try:
        with open(path, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            begin = opened.read(4)
            opened.seek(max(size - 4, 0))
            end = opened.read(4)
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    if size != file.size:
        return f"{path}: torn: it has {size:,} bytes, not the {file.size:,} that were written"
    return "" if (begin, end) == (MAGIC, MAGIC) else f"{path}: damaged: it is no Parquet file"


@contextlib.contextmanager
def writing(lake: Path) -> Iterator[list[File]]:
    """
    Be the one who writes, as soon as nobody else does; gives the files that count then.

    :raises LakeError: there is something else than a lake, or it cannot be written.
    """
    try:
        # What root reads is root's alone, as a bundle is: nobody else gets into the folder.
        lake.mkdir(mode_of_folder(mode_of_file()), parents=True, exist_ok=True)
        with open(lake / LOCK, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"{lake}: somebody else adds to it; waiting")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not (lake / DESCRIPTION).exists():
                clear_up(lake / DESCRIPTION)
                if others := [name for name in os.listdir(lake) if name not in (LOCK, STAGE)]:
                    raise LakeError(
                        f"{lake}: not a lake, and not empty: it has {sorted(others)[0][:80]}; "
                        "choose another folder"
                    )
                commit(lake, [])
            files = files_of(lake)
            _clear_up(lake, files)
            (lake / STAGE).mkdir(exist_ok=True)
            try:
                yield files
            finally:
                shutil.rmtree(lake / STAGE, ignore_errors=True)
    except FileExistsError as error:
        raise LakeError(f"{lake}: not a lake: it is a file") from error
    except OSError as error:
        raise LakeError(f"{error.filename or lake}: {error.strerror}") from error


def commit(lake: Path, files: list[File]) -> None:
    """From now on these files count, and no others: all of them are on the disk."""
    data = {
        "lake": LAYOUT,
        "mmscope": __version__,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": [dataclasses.asdict(file) for file in sorted(files)],
    }
    with replaced(lake / DESCRIPTION, as_umask()) as file:
        file.write(json.dumps(data, indent=0).encode())


def _clear_up(lake: Path, files: list[File]) -> None:
    """Remove what nobody counts: left by who was killed, or merged and replaced since."""
    shutil.rmtree(lake / STAGE, ignore_errors=True)
    count = {file.path(lake) for file in files}
    for path in lake.glob("*/day=*/*.parquet"):
        if path not in count and NAME.match(path.stem):
            path.unlink(missing_ok=True)
