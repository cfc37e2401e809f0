# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Samples on disk, as they are taken, in no more room than they may have.

A line of JSON each, after a line about the host. What is written is on disk before the next sample
is due, so that a machine that dies takes none with it. When the room is used up every other sample
goes, the first never; the copies of page_owner's counts go with their samples.

A log that is thinned is replaced here, and not with :func:`~leftovers.replaced`: it stays open and
locked while it takes its name, as it is written to afterwards.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from mmscope.drgn.text.text_source import TextError

NAME = "samples.jsonl"
FORMAT = 1
# With fewer than these samples there is nothing to thin.
LEAST = 5


class SampleLog:
    """
    A log that is being written. It is locked while it is, so that no other process finishes it.

    :param folder: to write in.
    :param limit: bytes that the log and the copies may take together.
    """

    def __init__(self, folder: Path, header: dict[str, Any], limit: float) -> None:
        self.path, self.limit = folder / NAME, limit
        self._header = _line({"watch": FORMAT, **header})
        self._copies: list[tuple[Path | None, int]] = []
        self._sizes: list[int] = []
        self._file = self.path.open("xb", buffering=0)
        lock(self._file.fileno(), folder)
        self._write(self._header)

    def add(self, sample: dict[str, Any], copy: Path | None) -> None:
        """Add a sample, and what was copied for it."""
        line = _line(sample)
        self._write(line)
        self._sizes.append(len(line))
        self._copies.append((copy, copy.stat().st_size if copy else 0))

    @property
    def full(self) -> bool:
        """True if the next sample might not fit; thinning takes room of its own for a moment."""
        log, copies = sum(self._sizes), sum(size for _, size in self._copies)
        return log + log // 2 + copies + max(self._sizes) > self.limit

    def say(self, words: dict[str, Any]) -> None:
        """Add a line that is not a sample, for the reader."""
        self._write(_line(words))

    def thin(self, interval: float) -> bool:
        """
        Let every other sample go.

        :param interval: from now on, in seconds.
        :return: whether there were enough to do so.
        :raises OSError: it cannot be written; the log is as it was.
        """
        if len(self._sizes) < LEAST:
            return False
        new = self.path.with_name(f".{NAME}.partial")
        with self.path.open("rb") as log:
            lines = [line for line in log if line.startswith(b'{"wall"')]
        file = new.open("wb", buffering=0)
        lock(file.fileno(), self.path.parent)
        old, self._file = self._file, file
        try:
            self._write(b"".join((self._header, *lines[::2], _line({"thinned": interval}))))
            new.rename(self.path)
        except OSError:
            old, self._file = file, old
            new.unlink()
            raise
        finally:
            old.close()
        for copy, _ in self._copies[1::2]:
            if copy is not None:
                copy.unlink()
        self._sizes, self._copies = self._sizes[::2], self._copies[::2]
        return True

    def close(self) -> None:
        """Stop writing."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            while data:  # of a disk that is nearly full, a part is written first
                data = data[self._file.write(data) :]
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def lock(descriptor: int, folder: Path) -> None:
    """
    Take a log for oneself.

    :raises TextError: another process has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TextError(f"{folder}: a watch is still writing there; end it with Ctrl-C") from None
