# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A file of text to read: plain or compressed, or standard input; and which of page_owner's it is.

Nothing is read that is not asked for. A decompressor is a process of its own, on another CPU.
"""

import os
import re
from collections.abc import Iterator
from typing import IO, Any

from mmscope.drgn.text.packed import BZIP2, GZIP, UTF_16, XZ, ZSTD, as_utf8
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
        self._program: Any = None
        substituted = SUBSTITUTED.fullmatch(path)
        file = os.dup(int(substituted[1] or 0)) if substituted else open_plain(path)
        raw: IO[bytes] = open(file, "rb", buffering=0)  # noqa: SIM115 (closed by close())
        self._raw = raw
        self.head = b""
        while len(self.head) < MAGIC_BYTES and (more := raw.read(PEEK_BYTES)):
            self.head += more
        self.size = os.fstat(raw.fileno()).st_size
        regular = path != "-" and self.size > 0
        self.plain = regular
        self._stream: IO[bytes] = raw
        if regular and self.head.startswith(tuple(UTF_16)):
            raw.seek(0)
            self.plain, self.head, self._stream = False, b"", as_utf8(raw)
        for magic, program in MAGIC.items():
            if self.head.startswith(magic):
                self.plain, self.head = False, b""
                self._stream = self._decompressed(program, seekable=regular)
                break

    def _decompressed(self, program: str, *, seekable: bool) -> IO[bytes]:
        """Start a decompressor of the file: another process, on another CPU."""
        import shutil  # with all that these load, a tenth of a start that most do not need
        import subprocess

        if shutil.which(program) is None:
            self._raw.close()
            raise TextError(
                f"{self.name}: compressed with {program}, which is not installed; "
                f"install the package '{program}' or decompress the file elsewhere"
            )
        if not seekable:
            self._raw.close()
            raise TextError(
                f"{self.name}: compressed; decompress it before: {program} -dc FILE | mmscope …"
            )
        self._raw.seek(0)
        self._program = subprocess.Popen(
            [program, "-dc"],
            stdin=self._raw,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        stream: IO[bytes] = self._program.stdout
        return stream

    def peek(self) -> bytes:
        """The beginning, a whole record if there is one; it stays to be read."""
        while (
            b"\n\n" not in self.head
            and len(self.head) < PEEK_BYTES
            and (more := self._stream.read(PEEK_BYTES))
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

        :raises TextError: the decompressor fails, or unpacks more than a text has.
        """
        if self.head:
            yield self.head
        unpacked = len(self.head)
        while chunk := self._stream.read(size):
            unpacked += len(chunk)
            if self._program is not None and unpacked > MAX_UNPACKED_BYTES:
                raise TextError(f"{self.name}: {TOO_LARGE}: {self._program.args[0]} -dc")
            yield chunk
        if self._program is not None:
            _, errors = self._program.communicate()
            words = errors.decode("utf-8", "replace").strip()
            if code := self._program.returncode:
                raise TextError(
                    f"{self.name}: damaged: {words or f'decompressor ended with {code}'}"
                )

    def close(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._program.communicate()
        self._raw.close()

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
