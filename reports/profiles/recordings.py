# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Recordings as files: perf.data, or the text of ``perf script``, as it is, packed, or piped.

A text that ``record --keep`` wrote begins with a line about its recording.
"""

import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mmscope.drgn.text.packed import PACKED, PIECE, PackedError, Stream, unpacked
from mmscope.drgn.text.plain_file import open_plain
from mmscope.drgn.text.text_source import MAX_UNPACKED_BYTES, TOO_LARGE
from mmscope.perf import perf_events, perf_record
from mmscope.perf.perf_events import RecordError
from mmscope.perf.perf_record import PERF_DATA, Recorded
from mmscope.perf.perf_script import FIELDS, NotPerfText
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.profiles.making import Making

PEEK_BYTES = 6  # that show how a file is packed
MADE_BY = "# mmscope "


@contextmanager
def _unpacked(file: Path) -> Iterator[io.BufferedReader]:
    """
    The bytes of a file, unpacked, as far as their bound.

    :raises OSError: it cannot be read, or is not a plain file.
    :raises UsageError: of the block, too: it is damaged, or another's.
    """
    with open(open_plain(file), "rb") as raw:
        try:
            with unpacked(raw, raw.peek(PEEK_BYTES)) as stream:
                yield raw if stream is raw else io.BufferedReader(_Unpacked(stream), PIECE)
        except (NotPerfText, PackedError) as error:
            raise UsageError(f"{file}: {error}") from error


class _Unpacked(io.RawIOBase):
    """Unpacked bytes, as far as their bound."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._left = stream, MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise NotPerfText(TOO_LARGE)
        buffer[: len(data)] = data
        return len(data)


def begins(file: Path) -> bytes:
    """
    The first bytes of a file, unpacked, which show what it is.

    :raises OSError: it cannot be read, or is not a plain file. :raises UsageError: it is damaged.
    """
    with _unpacked(file) as stream:
        return stream.read(len(PERF_DATA[0]))


def plain_file(file: Path, folder: Path) -> Path:
    """
    A file that others can open: what is piped, or a recording that is packed, is copied.

    :raises UsageError: it is damaged, or there is no room for it.
    """
    if str(file) == "-":
        with open(os.dup(0), "rb") as pipe:
            file = _copy(pipe, folder / "standard input")
    piped = Path("/proc/self/fd") == file.parent
    with open(open_plain(file), "rb") as raw:
        packed = raw.read(PEEK_BYTES).startswith(PACKED)
    if begins(file) not in PERF_DATA or not (piped or packed):
        return file
    folder = Path(tempfile.mkdtemp(dir=folder))
    with _unpacked(file) as stream:
        return _copy(stream, folder / (file.stem if packed else file.name))


def _copy(stream: IO[bytes], file: Path) -> Path:
    """
    Write a stream to a file of our own.

    :raises UsageError: it takes more than half of what is free.
    """
    room = min(shutil.disk_usage(file.parent).free // 2, MAX_UNPACKED_BYTES)
    with open(file, "xb") as copy:
        while piece := stream.read(PIECE):
            room -= len(piece)
            if room < 0:
                raise UsageError(f"{file.name}: has no room in {file.parent}: give it as a file")
            copy.write(piece)
    return file


def perf_for(file: Path) -> str:
    """
    The perf that reads a recording.

    :raises RecordError: perf was not found.
    """
    perf = shutil.which("perf")
    if perf is None:
        to_get_it = perf_events.where_to_get_perf(os.uname().release, perf_events.os_release())
        raise RecordError(
            f"{file}: perf is needed to read it: {to_get_it}; or bring the text of "
            f"'perf script --ns -F {','.join(FIELDS)}'"
        )
    return perf


@contextmanager
def opened(
    file: Path, counted: Recorded, making: Making, *, addresses: bool
) -> Iterator[tuple[IO[bytes], bool]]:
    """
    The text of ``perf script`` of a recording, and whether it is straight out of perf.

    :param counted, making: what a text that was kept says of its recording is put there, and what
        perf says that a recording lacks.
    :raises UsageError: of the block, too: the text is damaged, or another's.
    """
    begin = begins(file)
    try:
        if begin in PERF_DATA:
            perf, lacks = perf_for(file), making.partial
            with perf_record.script(perf, file, addresses=addresses, lacks=lacks) as text:
                yield text, True
        else:
            with _unpacked(file) as stream:
                yield _text(stream, counted, making)
    except NotPerfText as error:
        raise UsageError(f"{file}: {error}") from error


def _text(
    stream: io.BufferedReader, counted: Recorded, making: Making
) -> tuple[io.BufferedReader, bool]:
    """A text, and whether it was kept: such a one begins with a line about its recording."""
    kept = stream.peek(len(MADE_BY))[: len(MADE_BY)] == MADE_BY.encode()
    if kept:
        line = stream.readline(1 << 20)
        try:
            counted.add(making.from_json(json.loads(line[len(MADE_BY) :])))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UsageError(f"the line about the recording is damaged: {why}") from error
    return stream, kept
