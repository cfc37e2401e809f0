# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A file of text to read: plain or compressed, or standard input; and which of page_owner's it is.

Nothing is read that is not asked for.
"""

import contextlib
import os
import re
from collections.abc import Iterator

from mmscope.drgn.text.packed import (
    BZIP2,
    DAMAGED,
    GZIP,
    UTF_16,
    XZ,
    ZSTD,
    PackedError,
    Stream,
    unpacked,
)
from mmscope.drgn.text.plain_file import open_plain

# Stays in a CPU's cache.
CHUNK_BYTES = 64 << 10
PEEK_BYTES = 64 << 10
MAGIC_BYTES = 6
# Of a compressed text: what a host with 16 million allocations prints. The bound is for those made
# to have no end: 4 MB of gzip hold 4 GiB.
MAX_UNPACKED_BYTES = 16 << 30
TOO_LARGE = f"unpacked it has more than {MAX_UNPACKED_BYTES >> 30} GiB; unpack it before"
# Standard input, or a file that a shell made of what another command prints: <(zcat page_owner.gz).
SUBSTITUTED = re.compile(r"-|/dev/(?:fd/([0-9]{1,7})|stdin)")
# A line that shows which file it is in.
KIND = re.compile(
    rb"^(?:(?P<page_owner>Page allocated via order |[0-9]{1,18} times, [0-9]{1,18} pages)"
    rb"|(?P<show_stacks>nr_base_pages: )"
    rb"|handle: -?[0-9]+\n(?:(?P<show_handles>n)|(?P<show_stacks_handles>)))",
    re.MULTILINE,
)
MAGIC = {GZIP: "gzip", ZSTD: "zstd", XZ: "xz", BZIP2: "bzip2"}


MARK = b"\xef\xbb\xbf"  # of UTF-8, as editors write it


class TextError(ValueError):
    """The file cannot be read as page_owner's text. One line, for the user."""


class Source:
    """
    Bytes to read, compressed or not.

    :ivar name: for messages.
    :ivar size: in bytes as stored, 0 if unknown.
    :ivar plain: a file whose size is that of its text.

    :raises OSError: it cannot be opened, or is not a plain file.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        substituted = SUBSTITUTED.fullmatch(path)
        file = os.dup(int(substituted[1] or 0)) if substituted else open_plain(path)
        self._open = contextlib.ExitStack()
        self._raw = self._open.enter_context(open(file, "rb", buffering=0))  # noqa: SIM115
        self._stream: Stream = self._raw
        self.head = b""
        while len(self.head) < MAGIC_BYTES and (more := self._raw.read(PEEK_BYTES)):
            self.head += more
        self.size = os.fstat(self._raw.fileno()).st_size
        self.plain = path != "-" and self.size > 0
        self._program = next((MAGIC[magic] for magic in MAGIC if self.head.startswith(magic)), "")
        if self._program and not self.plain:
            self.close()
            raise TextError(
                f"{self.name}: compressed; decompress it before: {self._program} -dc FILE | "
                "mmscope …"
            )
        if self.plain and self.head.startswith((*MAGIC, *UTF_16)):
            self._raw.seek(0)
            packed, self.plain, self.head = self.head, False, b""
            try:
                self._stream = self._open.enter_context(unpacked(self._raw, packed))
            except PackedError as error:
                self.close()
                raise TextError(f"{self.name}: {error}") from error

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (*DAMAGED, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise TextError(f"{self.name}: damaged: {self._program}: {error}") from error

    def peek(self) -> bytes:
        """The beginning, a whole record if there is one; it stays to be read."""
        while (
            b"\n\n" not in self.head
            and len(self.head) < PEEK_BYTES
            and (more := self._read(PEEK_BYTES))
        ):
            self.head += more
        self.head = self.head.removeprefix(MARK)
        return self.head

    def position(self) -> int:
        """Bytes of the file read so far, as stored; 0 if unknown."""
        try:
            return os.lseek(self._raw.fileno(), 0, os.SEEK_CUR)
        except OSError:
            return 0

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """
        All bytes, in pieces of at most that size.

        :raises TextError: it is damaged, or unpacks to more than a text has.
        """
        if self.head:
            yield self.head
        read = len(self.head)
        while chunk := self._read(size):
            read += len(chunk)
            if self._program and read > MAX_UNPACKED_BYTES:
                raise TextError(f"{self.name}: {TOO_LARGE}: {self._program} -dc")
            yield chunk

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def recognise(data: bytes) -> str | None:
    """
    Kind of file that this is the beginning of: ``page_owner``, ``show_stacks``, ``show_handles`` or
    ``show_stacks_handles``; None if none of them.
    """
    # The first record decides, most often.
    first = data[: data.find(b"\n\n") + 1]
    match = KIND.search(first) or KIND.search(data)
    return match.lastgroup if match else None


def recognise_source(source: Source) -> str:
    """
    Name of the file that a source is.

    :raises TextError: none of them.
    """
    kind = recognise(source.peek())
    if kind is None:
        empty = "" if source.head else ": it is empty (is page_owner=on on the command line?)"
        raise TextError(
            f"{source.name}: not a page_owner, show_stacks, show_handles or "
            f"show_stacks_handles file{empty}"
        )
    return kind
