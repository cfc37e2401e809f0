# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files read by a process of their own, which is left behind if it gets no answer.

/proc/PID/maps waits for a lock of that process (``mmap_read_lock_killable()``, fs/proc/task_mmu.c).
While the lock is held, a reader sleeps, and no alarm wakes it: who reads a process that is stuck is
stuck with it. So a separate process reads, one for any number of files. If it does not answer for
:data:`PATIENCE` seconds it is killed, and the next file gets a new one. Killing may not end it:
it may sleep without heeding signals, or have to tear down the address space of a process that ended
meanwhile. It is then left behind until the kernel lets it go, and holds no file, terminal or folder
of ours.

Costs the start of a Python without its modules, some 10 ms, and two passes of the text through a
pipe.
"""

import os
import select
import struct
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, Self

PATIENCE = 2.0  # seconds
# What may be spent on waiting without an answer; files after that have a last, short chance.
PATIENCE_IN_ALL = 30.0
SHORT = 0.1
STARTS_WITHIN = 20.0
ENDS_WITHIN = 1.0  # after SIGKILL

# Says that it is there. For each line, a path: the file in pieces, each after its length, and 0;
# or minus the errno.
READER = """
import os, sys
def say(number, data=b""):
    data = number.to_bytes(4, "little", signed=True) + data
    while data:
        data = data[os.write(1, data):]
os.write(1, b"\\n")
for line in sys.stdin.buffer:
    try:
        file = os.open(line[:-1], os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(file, 1 << 16):
                say(len(piece), piece)
        finally:
            os.close(file)
    except OSError as error:
        say(-error.errno)
    else:
        say(0)
"""


class ReaderApart:
    """
    Reads files, one after the other, in a ``with`` statement.

    :ivar left: ids of processes that could not be ended.
    """

    def __init__(self, patience: float = PATIENCE, in_all: float = PATIENCE_IN_ALL) -> None:
        self.left: list[int] = []
        self._patience, self._in_all = patience, in_all
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: str | Path) -> bytes:
        """
        The content of a file.

        :raises TimeoutError: nothing came for so long; ``strerror`` says what became of the reader.
        :raises OSError: as of reading it here.
        """
        if self._process is None:
            self._process = _start()
            self._exactly(1, STARTS_WITHIN)
        self._write(os.fsencode(path) + b"\n")
        patience = self._patience if self._in_all > 0 else min(SHORT, self._patience)
        pieces = []
        try:
            while (number := struct.unpack("<i", self._exactly(4, patience))[0]) > 0:
                pieces.append(self._exactly(number, patience))
        except TimeoutError:
            self._in_all -= patience
            words = f"no answer within {patience:g} s"
            if left := self._end():
                words += f"; process {left}, which waits for it, cannot be ended and is left behind"
            raise TimeoutError(0, words, str(path)) from None
        if number < 0:
            raise OSError(-number, os.strerror(-number), str(path))
        return b"".join(pieces)

    def _write(self, data: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except BrokenPipeError:
            self._has_ended()

    def _exactly(self, size: int, patience: float) -> bytes:
        """So many bytes of what the process writes."""
        assert self._process is not None and self._process.stdout is not None
        data = b""
        while len(data) < size:
            if not select.select([self._process.stdout], [], [], patience)[0]:
                raise TimeoutError
            piece = self._process.stdout.read(size - len(data))
            if not piece:
                self._has_ended()
            data += piece
        return data

    def _has_ended(self) -> NoReturn:
        """It was killed; the next file has a new one."""
        self._end()
        raise OSError(0, "the process that was to read it has ended")

    def _end(self) -> int | None:
        """End the process; returns its id if that cannot be done."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.left.append(process.pid)
            process.returncode = 0  # it is waited for no more
            return process.pid
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


def _start() -> subprocess.Popen[bytes]:
    # What it holds when it is left behind must be its own: not the terminal, not a pipe that
    # is read to its end, not a folder that is to be unmounted.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", READER],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
