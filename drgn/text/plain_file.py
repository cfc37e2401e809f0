# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files that others wrote, opened so that nothing about them can stop or fill this process.

What is to be read is a plain file: a pipe or a device would be waited for, or would never end. A
line has a bound, so that reading by lines needs no more memory than that, however large the
file says it is: a sparse one of terabytes costs nothing to make.

Costs a look at each piece that is read, at the speed of memory.

It cannot know: whether a file is written to while it is read.
"""

import errno
import io
import os
import stat
from typing import Any

# Of a line: more than any stack, sample of a watch or row of a table has; DuckDB takes no more.
MAX_LINE_BYTES = 2 << 20
# Of a file that is read as a whole, as those of /proc are: several times what 8 nodes and 512 CPUs
# print.
MAX_TEXT_BYTES = 16 << 20
PIECE = 64 << 10


class LineTooLong(ValueError):
    """A line is longer than any that was written by us or by a kernel."""


def open_plain(path: str | os.PathLike[str]) -> int:
    """
    Open a plain file to read it; returns the descriptor.

    :raises OSError: it cannot be opened, or is something else (``EINVAL``, with words).
    """
    # A device may act on being opened.
    if stat.S_ISREG(os.stat(path).st_mode):
        # What has become a pipe since is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EINVAL, "is not a plain file", os.fspath(path))


def read_plain(path: str | os.PathLike[str], most: int = MAX_TEXT_BYTES) -> bytes:
    """
    All of a plain file.

    :raises OSError: it cannot be read, is not a plain file, or (``EFBIG``) has more than *most*
        bytes.
    """
    with open(open_plain(path), "rb", buffering=0) as file:
        why = f"has more than {most >> 20} MiB, which no such file has"
        too_large = OSError(errno.EFBIG, why, os.fspath(path))
        if os.fstat(file.fileno()).st_size > most:
            raise too_large
        pieces, size = [], 0
        # Those of /proc have no size.
        while piece := file.read(min(most + 1 - size, 1 << 20)):
            pieces.append(piece)
            if (size := size + len(piece)) > most:
                raise too_large
    return b"".join(pieces)


class _Bounded(io.FileIO):
    """A file that ends in an error where a line is longer than it may be."""

    def __init__(self, descriptor: int, most: int) -> None:
        super().__init__(descriptor, "rb")
        self._most, self._length, self._line = most, 0, 1

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        piece = bytes(memoryview(buffer)[:count])
        first = piece.find(b"\n")
        self._length += first if first >= 0 else len(piece)
        # Those that begin and end in one piece are no longer than that.
        if self._length > self._most:
            line = self._line
            raise LineTooLong(f"line {line:,} has more than {self._most:,} bytes, which none has")
        if first >= 0:
            self._line += piece.count(b"\n")
            self._length = len(piece) - piece.rfind(b"\n") - 1
        return count

    def readall(self) -> bytes:
        raise io.UnsupportedOperation("is read by lines, or so many bytes at a time")

    def seek(self, offset: int, whence: int = 0) -> int:
        self._length, self._line = 0, 1
        return super().seek(offset, whence)


def open_lines(path: str | os.PathLike[str], most: int = MAX_LINE_BYTES) -> io.BufferedReader:
    """
    Open a plain file to read its lines, each with at most so many bytes: then reading
    raises :class:`LineTooLong`.

    :raises OSError: it cannot be opened, or is not a plain file.
    """
    return io.BufferedReader(_Bounded(open_plain(path), most), PIECE)
