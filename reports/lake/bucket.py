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
import contextlib
import datetime
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
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
    in_words,
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
            raise LakeError(f"{self.url[:200]}: {in_words(error)}") from error
        self._tag: dict[str, str] | None = None
        self._there: set[File] = set()

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.url,)

    def description(self) -> bytes:
        """Read ``lake.json``; what is written next replaces this one and no other."""
        self._tag = None
        with _as_os_errors():
            got = obstore.get(self._store, DESCRIPTION)
            if got.meta["size"] > MAX_BYTES:
                raise OSError(f"it has {got.meta['size']:,} bytes")
            self._tag = _version(got.meta)
            return bytes(got.bytes())

    def describe(self, data: bytes, files: Sequence[File]) -> None:
        """Send the new files, then ``lake.json``: files are there before they count."""
        try:
            with _as_os_errors():
                for file in set(files) - self._there:
                    obstore.put(self._store, _key(file), file.path(self.folder), mode="overwrite")
                mode: Any = self._tag or "create"
                put = obstore.put(self._store, DESCRIPTION, data, mode=mode)
                if self._tag is None:
                    self._prove(data)
        except (AlreadyExistsError, PreconditionError) as error:
            # The new files stay: of a request that was sent twice the first may have succeeded.
            raise Changed(f"{self}: another process added to it meanwhile") from error
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
        """Find a file on this machine; it is fetched, if it is not there yet."""
        path = file.path(self.folder)
        if path.exists() and path.stat().st_size == file.size:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_up(path)
        try:
            with _as_os_errors():
                got = obstore.get(self._store, _key(file))
                if got.meta["size"] > file.size:
                    raise OSError(f"it has {got.meta['size']:,} bytes, {file.size:,} were written")
                with replaced(path, 0o600, durable=False) as out:
                    for part in got.stream(min_chunk_size=PART):
                        out.write(part)
        except FileNotFoundError as error:
            raise OSError(f"it is not in {self.url}") from error
        return path

    def fetch(self, files: Iterable[File]) -> None:
        """Fetch files, several at once."""
        wanted = [file for file in files if not file.path(self.folder).exists()]
        if size := sum(file.size for file in wanted):
            say(f"{self}: fetching {plural(len(wanted), 'file')}, {size / 2**20:,.1f} MiB")
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self.path, file) for file in wanted]:
                done.exception()

    def remove(self, file: File) -> None:
        """Remove a file here and there."""
        super().remove(file)
        with contextlib.suppress(BaseError, FileNotFoundError):  # or else the next one removes it
            obstore.delete(self._store, _key(file))

    def clear_up(self, files: Iterable[File]) -> None:
        """Remove what does not count, here; and there what is too old to be on its way."""
        self._there = set(files)
        super().clear_up(self._there)
        count = {_key(file) for file in self._there}
        before = datetime.datetime.now(datetime.UTC) - ON_ITS_WAY
        with _as_os_errors():
            for item in itertools.chain.from_iterable(obstore.list(self._store)):
                path = Path(item["path"])
                ours = path.suffix == ".parquet" and NAME.match(path.stem)
                if ours and str(path) not in count and item["last_modified"] < before:
                    obstore.delete(self._store, item["path"])

    def others(self) -> list[str]:
        """List what is there."""
        with _as_os_errors():
            found = obstore.list_with_delimiter(self._store)
        paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        return sorted(paths)


def copies() -> Path:
    """The folder for copies of lakes."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "mmscope" / "lakes"


def _version(of: Any) -> dict[str, str]:
    """Entity tag and version of a file, of which each text that it had has others."""
    if not of.get("e_tag"):
        raise OSError("its store gives no entity tags, without which none can add")
    return {name: of[name] for name in ("e_tag", "version") if of.get(name)}


def _key(file: File) -> str:
    return str(file.path(Path()))


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Errors of a store, but those of conditions, as a file system has them."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except NotFoundError as error:
        raise FileNotFoundError(in_words(error)) from error
    except (BaseError, NotImplementedError) as error:
        raise OSError(in_words(error)) from error
