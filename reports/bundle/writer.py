# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Writes a bundle: a folder of tables that one reading of one machine leaves.

Written with the standard library alone, so that it can be made on the box.

Writing is atomic: tables go to a folder beside the target name, which is renamed when everything
is on disk. A bundle is whole or absent. What a killed process leaves beside it is cleared up by the
next one that writes the same name.

Cannot know: whether the file system keeps what ``fsync()`` has promised.
"""

import contextlib
import datetime
import json
import operator
import os
import re
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from mmscope import __version__
from mmscope.drgn.tables.rows import Column, columns, write_csv
from mmscope.drgn.text.plain_file import check_output, make_folder
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import (
    DESCRIPTION,
    ESCAPE,
    FORMAT,
    BundleError,
    Cell,
    SectionResult,
    check_plain,
    older,
)
from mmscope.reports.bundle.leftovers import clear_up, exchange, to_disk, unfinished
from mmscope.reports.bundle.modes import mode_of_file, mode_of_folder

PROFILE = "https://datapackage.org/profiles/2.0/datapackage.json"
# What str.splitlines() takes for the end of a line.
LINE_BREAK = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Writer:
    """
    Writes a bundle; use it as a context manager.

    Leaving the block normally makes the bundle appear at its name at once; leaving it by an
    exception removes what was written. Anything that is in the way is refused before work starts.

    :param path: the bundle's name, which must not exist unless *replace*.
    :param mode: of its files, as asked for (``modes``).
    :raises BundleError: the name is taken, or the folder cannot be made.
    """

    def __init__(self, path: Path, *, replace: bool = False, mode: int | None = None) -> None:
        try:
            check_output(path)
        except OSError as error:
            raise BundleError(f"{error.filename}: {error.strerror}") from None
        self.path = path
        self._mode = mode_of_file(mode, path / DESCRIPTION if replace else None)
        self.replace = replace
        self._tables: list[dict[str, Any]] = []
        self._format, self._version = FORMAT, __version__
        if not replace and os.path.lexists(path):
            raise BundleError(f"{path}: already exists; choose another name or use --force")
        if path.exists() and not (path / DESCRIPTION).is_file():
            raise BundleError(f"{path}: exists and is not a bundle, so it is not replaced")
        try:
            make_folder(path.parent)
            clear_up(path)
            self._folder, self._lock = unfinished(path)
        except OSError as error:
            raise BundleError(f"{path}: cannot write there: {error.strerror}") from error

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Gone already if it was finished; or what it replaced, which may have been a link to one.
        if self._folder.is_symlink():
            self._folder.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BundleError(f"{self.path}: cannot write: {error.strerror}") from error

    def table(
        self,
        name: str,
        title: str,
        row_type: type | list[Column],
        rows: Iterable[Any],
        *,
        section: str,
    ) -> int:
        """
        Write the rows of one table; returns how many there were.

        :param row_type: of the rows; or, of another bundle's table, its columns.
        :param rows: of *row_type*, or tuples of its columns' values where there are very many.
        :raises BundleError: they cannot be written.
        """
        described = row_type if isinstance(row_type, list) else columns(row_type)
        names = [c.name for c in described]
        # With one name it gives no tuple.
        read = operator.attrgetter(*names, *names[:1])
        cells = (row if isinstance(row, tuple) else read(row)[: len(names)] for row in rows)
        path = self._folder / f"{name}.csv"
        # A row must never break a bundle, so that what UTF-8 cannot hold is written out.
        with self._writing(), path.open("w", newline="", encoding="utf-8", errors=ESCAPE) as file:
            count = write_csv(file, names, cells)
        fields = []
        for c in described:
            field: dict[str, Any] = {"name": c.name, "type": c.type, "description": c.help}
            if c.unit:
                field["unit"] = c.unit
            if c.holds:
                field["holds"] = c.holds
            limits = {"low": c.low, "high": c.high, "ranges": c.ranges}
            if limits := {name: limit for name, limit in limits.items() if limit}:
                field["bounds"] = limits
            if not c.nullable:
                field["constraints"] = {"required": True}
                if c.type == "string":  # which may be empty, but not missing
                    field["missingValues"] = []
            fields.append(field)
        schema: dict[str, Any] = {"fields": fields, "missingValues": [""]}
        if keys := [c.name for c in described if c.key]:
            schema["primaryKey"] = keys
        kind = {"path": f"{name}.csv", "type": "table", "format": "csv", "mediatype": "text/csv"}
        self._describe(name, title, kind, {"section": section, "schema": schema})
        return count

    def folded(
        self, name: str, title: str, stacks: Iterable[tuple[str, int]], *, unit: str, section: str
    ) -> int:
        """
        Write folded stacks, ``root;…;leaf value`` a line, for flame graphs; returns how many.

        :raises BundleError: they cannot be written.
        """
        count = 0
        path = self._folder / f"{name}.folded"
        with self._writing(), path.open("w", encoding="utf-8", errors=ESCAPE) as file:
            for stack, value in stacks:
                file.write(f"{LINE_BREAK.sub(' ', stack)} {value}\n")
                count += 1
        kind = {"path": f"{name}.folded", "format": "folded", "mediatype": "text/plain"}
        self._describe(f"{name}_folded", title, kind, {"section": section, "unit": unit})
        return count

    def _describe(
        self, name: str, title: str, kind: Mapping[str, str], of: Mapping[str, Any]
    ) -> None:
        resource = {"name": name, "title": title, **kind, "encoding": "utf-8", **of}
        self._tables.append(resource)

    def made_of(self, bundle: Bundle) -> None:
        """Mark what is written as no newer than a bundle that it is made of."""
        self._format = min(bundle.format, self._format)
        self._version = older(bundle.version, self._version)

    def keep(self, bundle: Bundle, *, without: Container[str]) -> None:
        """
        Take over another bundle's tables and stacks as they are.

        :param without: names of tables that are not wanted.
        :raises BundleError: they cannot be read or written.
        """
        self.made_of(bundle)
        here = [*bundle.tables.values(), *bundle.folded.values()]
        paths = {item.path.name: item.path for item in here}
        for resource in bundle.resources:
            if resource["name"] not in without:
                path = paths[resource["path"]]
                check_plain(path)
                with self._writing():
                    shutil.copyfile(path, self._folder / path.name)
                self._tables.append(resource)

    def finish(self, target: dict[str, Cell], sections: Iterable[SectionResult]) -> None:
        """
        Write ``sections`` and the description, and make the bundle appear at its name.

        :raises BundleError: it cannot be written.
        """
        self.table(
            "sections", "How each section fared", SectionResult, sections, section="sections"
        )
        description = {
            "$schema": PROFILE,
            "name": "mmscope-bundle",
            "title": "mmscope bundle",
            "format": self._format,
            "version": self._version,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "target": target,
            "resources": self._tables,
        }
        with self._writing():
            text = json.dumps(description, indent=1)
            (self._folder / DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")
            # On disk before the name appears: a machine that is about to die must not leave a
            # bundle whose files are empty.
            for entry in (*self._folder.iterdir(), self._folder):
                # The folder, which was its owner's alone, last.
                entry.chmod(self._mode if entry != self._folder else mode_of_folder(self._mode))
                to_disk(entry)
            if not (self.replace and self.path.exists()):
                self._folder.rename(self.path)
            elif not exchange(self._folder, self.path):
                # Killed between these two, the old bundle is left under the other name.
                old = self._folder.with_suffix(".old")
                self.path.rename(old)
                self._folder.rename(self.path)
                shutil.rmtree(old, ignore_errors=True)
            to_disk(self.path.parent)
