# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Compressed bytes read as they are unpacked, in memory, by the standard library: gzip, bzip2, xz; by
the program ``zstd`` where it is installed. Texts in UTF-16 are UTF-8 then, and a journal's own file
is what ``journalctl`` has in it of the kernel.

Costs what unpacking costs, and memory for a piece and the decompressor's window. What is taken of
it has a bound, so that what was made to have no end takes no more time than that.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from typing import IO, Protocol

GZIP, ZSTD, XZ, BZIP2 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh"
JOURNAL = b"LPKSHHRH"  # HEADER_SIGNATURE (src/libsystemd/sd-journal/journal-def.h of systemd)
UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
PACKED = (GZIP, ZSTD, XZ, BZIP2, JOURNAL, *UTF_16)
PIECE = 1 << 18
# Of a decompressor of xz, which takes what the file asks for: xz -9 needs 65 MiB.
MOST_WINDOW = 256 << 20
MOST_OF_JOURNAL = 512 << 20  # that comes in a stream; journald ends a file at 128 MiB
JOURNAL_SECONDS = 300.0
# The kernel's records, and those of programs that end processes to have memory.
TO_READ_JOURNAL = (
    *("-q", "--no-pager", "-o", "short-monotonic", "_TRANSPORT=kernel"),
    *("+", "SYSLOG_IDENTIFIER=systemd-oomd", "+", "SYSLOG_IDENTIFIER=earlyoom"),
)
# What unpacking raises of a damaged file.
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class PackedError(ValueError):
    """It cannot be unpacked. One line, for the user."""


class Stream(Protocol):
    """Bytes that are read one after the other: a file, or what unpacks one."""

    def read(self, size: int = -1, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def seekable(self) -> bool: ...
    def fileno(self) -> int: ...


@contextlib.contextmanager
def unpacked(raw: Stream, head: bytes) -> Iterator[Stream]:
    """
    Open what was packed once, or what is not packed as it is.

    :param raw: at its beginning.
    :param head: its first bytes.
    :raises PackedError: the program that unpacks it is not there; of the block, too: it is damaged.
    """
    try:
        if head.startswith(GZIP):
            with gzip.GzipFile(fileobj=raw) as stream:
                yield stream
        elif head.startswith(BZIP2):
            with bz2.BZ2File(raw) as stream:
                yield stream
        elif head.startswith(XZ):
            yield io.BufferedReader(_Xz(raw), PIECE)
        elif head.startswith(ZSTD):
            with _zstd(raw) as stream:
                yield stream
        elif head.startswith(JOURNAL):
            with _journal(raw) as stream:
                yield stream
        elif head.startswith(tuple(UTF_16)):
            yield as_utf8(raw)
        else:
            yield raw
    except OSError as error:  # bz2 knows no other
        if error.errno is not None:
            raise
        raise PackedError(f"is damaged: {error}") from error
    except DAMAGED as error:
        raise PackedError(f"is damaged: {error}") from error


class _Xz(io.RawIOBase):
    """Bytes of xz, with a bound to its memory."""

    def __init__(self, raw: Stream) -> None:
        self._raw, self._ended = raw, False
        self._new()

    def _new(self, left: bytes = b"") -> None:
        self._unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, MOST_WINDOW)
        self._left = left.lstrip(b"\0")  # between streams there may be zeros

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(buffer)  # type: ignore[arg-type]
        while not self._ended:
            if self._unpack.eof:
                self._new(self._unpack.unused_data or self._raw.read(PIECE))
                self._ended = not self._left
                continue
            data = self._left or (self._raw.read(PIECE) if self._unpack.needs_input else b"")
            if not data and self._unpack.needs_input:
                raise EOFError("it is cut short")
            self._left = b""
            if made := self._unpack.decompress(data, len(room)):
                room[: len(made)] = made
                return len(made)
        return 0


def as_utf8(raw: Stream) -> io.BufferedReader:
    """A text in UTF-16, from its mark on, as UTF-8."""
    return io.BufferedReader(_Utf8(raw), PIECE)


class _Utf8(io.RawIOBase):
    def __init__(self, raw: Stream) -> None:
        decode = codecs.getincrementaldecoder(UTF_16[raw.read(2)])
        self._raw, self._decoder, self._left, self._ended = raw, decode("replace"), b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(buffer)  # type: ignore[arg-type]
        while not self._left and not self._ended:
            data = self._raw.read(PIECE)
            self._ended = not data
            self._left = self._decoder.decode(data, final=self._ended).encode()
        made, self._left = self._left[: len(room)], self._left[len(room) :]
        room[: len(made)] = made
        return len(made)


def _has_a_name(raw: Stream) -> bool:
    """True for a file on a disk: sd-journal takes no other (journal_file_fstat())."""
    with contextlib.suppress(OSError):
        return os.fstat(raw.fileno()).st_nlink > 0
    return False


@contextlib.contextmanager
def _journal(raw: Stream) -> Iterator[Stream]:
    """The kernel's records of a journal's own file, of all boots in it."""
    words = " ".join(TO_READ_JOURNAL)
    if shutil.which("journalctl") is None:
        raise PackedError(
            f"a journal's own file, and journalctl is not installed: journalctl --file FILE {words}"
        )
    with contextlib.ExitStack() as stack:
        if not _has_a_name(raw):
            kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="mmscope-"))
            while piece := raw.read(PIECE):
                if kept.tell() > MOST_OF_JOURNAL:
                    raise PackedError("a journal's own file that is too large: unpack it before")
                kept.write(piece)
            kept.flush()
            raw = kept
        program = subprocess.Popen(
            ["journalctl", "--file", "/dev/stdin", *TO_READ_JOURNAL],
            stdin=raw.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )
        until = threading.Timer(JOURNAL_SECONDS, program.kill)
        until.start()
        try:
            yield _Ended(program)
        finally:
            until.cancel()
            _end(program)


@contextlib.contextmanager
def _zstd(raw: Stream) -> Iterator[Stream]:
    if shutil.which("zstd") is None:
        raise PackedError(
            "is compressed with zstd, which is not installed: install the package 'zstd', or "
            "unpack it elsewhere"
        )
    program = subprocess.Popen(
        ["zstd", "-dcq"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    feeder = threading.Thread(target=_feed, args=(raw, program.stdin), daemon=True)
    feeder.start()
    try:
        assert program.stdout is not None and program.stderr is not None
        yield _Ended(program)
    finally:
        program.kill()
        feeder.join()
        _end(program)


def _end(program: "subprocess.Popen[bytes]") -> None:
    """End a program of which no more is wanted."""
    program.kill()
    program.wait()
    for pipe in (program.stdout, program.stderr):
        if pipe is not None:
            pipe.close()


def _feed(raw: Stream, pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    with contextlib.suppress(OSError, ValueError):  # it reads no more
        while piece := raw.read(PIECE):
            pipe.write(piece)
    with contextlib.suppress(OSError):
        pipe.close()


class _Ended(io.RawIOBase):
    """Output of a decompressor; an error of it is one of the reader."""

    def __init__(self, program: "subprocess.Popen[bytes]") -> None:
        self._program = program

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert self._program.stdout is not None and self._program.stderr is not None
        made: bytes = self._program.stdout.read(size)
        if not made and size and self._program.wait():
            words = self._program.stderr.read(200).decode("utf-8", "replace").strip()
            raise EOFError(words or "it could not be unpacked")
        return made


def tail(stream: Stream, most: int, longest: int | None = None) -> tuple[bytes, int]:
    """
    The last of a stream, whole lines, and how many bytes come before it.

    :param longest: bytes that are unpacked at most.
    :raises PackedError: it has more than that.
    """
    kept: deque[bytes] = deque()
    size = held = 0
    while piece := stream.read(PIECE):
        size += len(piece)
        if longest is not None and size > longest:
            raise PackedError(f"unpacked it has more than {longest >> 20:,} MiB")
        kept.append(piece)
        held += len(piece)
        while held - len(kept[0]) >= most:
            held -= len(kept.popleft())
    data = b"".join(kept)
    if held > most:
        data = data[held - most :]
    before = size - len(data)
    if before:
        data = data[data.find(b"\n") + 1 :]
    return data, size - len(data)
