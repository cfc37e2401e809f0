# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A lake in object storage: S3, or what speaks as S3 does; Google's and Azure's.

Files are those of a folder, and are read through copies of them on this machine, because they never
change: each is fetched once. ``lake.json`` is replaced only if it is the one that was read (a
conditional write, by its entity tag), so that of two who add at once one succeeds, and the other
adds to what is there then. Who is there first is unknown: there is no waiting.

Keys, region and endpoint are those of the environment: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``.

Cannot know: what a store promises that says it knows conditional writes.
"""

import concurrent.futures
import datetime
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import from_url

from mmscope.drgn.tables.display import plural
from mmscope.reports.bundle.leftovers import clear_up, replaced
from mmscope.reports.bundle.outcome import say
from mmscope.reports.lake.layout import (
    DESCRIPTION,
    MAX_BYTES,
    NAME,
    Changed,
    File,
    Lake,
    LakeError,
)

AT_ONCE = 8
# What does not count may still be on its way, but no longer than so.
ON_ITS_WAY = datetime.timedelta(days=1)
PART = 8 << 20


class Bucket(Lake):
    """A lake at a URL: ``s3://BUCKET/PREFIX``."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        name = hashlib.sha256(self.url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        super().__init__(copies() / name)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # no other user gets in
            self._store: Any = from_url(self.url)
        except (BaseError, OSError, ValueError) as error:
            raise LakeError(f"{self.url[:200]}: {_in_a_line(error)}") from error
        self._tag: dict[str, str] | None = None
        self._there: set[File] = set()
        self._lost: set[File] = set()

    def __str__(self) -> str:
        return self.url

    def description(self) -> bytes:
        """As of ``Lake``; what is written next replaces this one and no other."""
        try:
            got = obstore.get(self._store, DESCRIPTION)
            if got.meta["size"] > MAX_BYTES:
                raise OSError(f"it has {got.meta['size']:,} bytes")
            self._tag = _version(got.meta)
            return bytes(got.bytes())
        except (FileNotFoundError, NotFoundError) as error:
            self._tag = None
            raise FileNotFoundError(f"{self}/{DESCRIPTION}") from error
        except BaseError as error:
            raise OSError(_in_a_line(error)) from error

    def describe(self, data: bytes, files: Sequence[File]) -> None:
        """As of ``Lake``: files are there before they count."""
        try:
            for file in set(files) - self._there:
                obstore.put(self._store, _key(file), file.path(self.folder), mode="overwrite")
            mode: Any = self._tag or "create"
            put = obstore.put(self._store, DESCRIPTION, data, mode=mode)
            if self._tag is None:
                self._prove(data)
        except (AlreadyExistsError, PreconditionError) as error:
            # The new files stay: of a request that was sent twice the first may have succeeded.
            raise Changed(f"{self}: another process added to it meanwhile") from error
        except (BaseError, NotImplementedError) as error:
            raise OSError(_in_a_line(error)) from error
        self._tag = _version(put)
        self._there = set(files)

    def _prove(self, data: bytes) -> None:
        """A store that ignores conditions would lose what others add: it is not used."""
        try:
            obstore.put(self._store, DESCRIPTION, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return
        obstore.delete(self._store, DESCRIPTION)
        raise LakeError(
            f"{self}: its store replaces a file that must not be there (If-None-Match is ignored): "
            "of two who add at once one would be lost; use a store that knows conditional writes"
        )

    def path(self, file: File) -> Path:
        """As of ``Lake``: fetched, if it is not on this machine yet."""
        path = file.path(self.folder)
        if path.exists() and path.stat().st_size == file.size:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_up(path)
        try:
            got = obstore.get(self._store, _key(file))
            if got.meta["size"] > file.size:
                raise OSError(f"it has {got.meta['size']:,} bytes, {file.size:,} were written")
            with replaced(path, 0o600, durable=False) as out:
                for part in got.stream(min_chunk_size=PART):
                    out.write(part)
        except (FileNotFoundError, NotFoundError) as error:
            self._lost.add(file)
            raise OSError(f"it is not in {self.url}") from error
        except BaseError as error:
            raise OSError(_in_a_line(error)) from error
        return path

    def fetch(self, files: Iterable[File]) -> None:
        """As of ``Lake``: several at once."""
        wanted = [file for file in files if not file.path(self.folder).exists()]
        if size := sum(file.size for file in wanted):
            say(f"{self}: fetching {plural(len(wanted), 'file')}, {size / 2**20:,.1f} MiB")
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self.path, file) for file in wanted]:
                done.exception()

    def lost(self, files: Iterable[File]) -> bool:
        """As of ``Lake``: those that were asked for and not there."""
        return not self._lost.isdisjoint(files)

    def remove(self, file: File) -> None:
        """As of ``Lake``, here and there."""
        super().remove(file)
        try:
            obstore.delete(self._store, _key(file))
        except (BaseError, FileNotFoundError):
            return  # the next one who adds removes it

    def clear_up(self, files: Iterable[File]) -> None:
        """As of ``Lake``, here and there; there only what is too old to be on its way."""
        self._there = set(files)
        super().clear_up(self._there)
        count = {_key(file) for file in self._there}
        before = datetime.datetime.now(datetime.UTC) - ON_ITS_WAY
        try:
            for some in obstore.list(self._store):
                for item in some:
                    path = Path(item["path"])
                    ours = path.suffix == ".parquet" and NAME.match(path.stem)
                    if ours and str(path) not in count and item["last_modified"] < before:
                        obstore.delete(self._store, item["path"])
        except BaseError as error:
            raise OSError(_in_a_line(error)) from error

    def others(self) -> list[str]:
        """As of ``Lake``."""
        try:
            found = obstore.list_with_delimiter(self._store)
        except BaseError as error:
            raise OSError(_in_a_line(error)) from error
        paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        return sorted(paths)


def copies() -> Path:
    """The folder for copies of lakes."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "mmscope" / "lakes"


def _version(of: Any) -> dict[str, str]:
    """What tells a file's text from those that were there before and after."""
    if not of.get("e_tag"):
        raise OSError("its store gives no entity tags, without which none can add")
    return {name: of[name] for name in ("e_tag", "version") if of.get(name)}


def _key(file: File) -> str:
    return str(file.path(Path()))


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
