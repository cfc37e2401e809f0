# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Shares of one work, each done by a child process (fork), with the results in their order; or one
work beside what its caller does.

A child has all that its parent had read and opened. It hands over one result and ends. One that is
killed costs its share, which the caller is told. No child outlives the work, nor its parent.

Costs: a fork for each share, some milliseconds; the result goes through a pipe.

Cannot: fork where reading the target needs a conversation (a socket): whose answer is whose?
"""

import contextlib
import ctypes
import fcntl
import gc
import os
import pickle
import select
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

# What a child sends: a kind, and a number: of steps done since the last, or of bytes that follow,
# up to a multiple of a header's. A result is followed by its arrays, which are not pickled.
HEADER = struct.Struct("<QQ")
STEPS, RESULT, ARRAY, ERROR = range(4)
PROTOCOL = pickle.HIGHEST_PROTOCOL
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE)
AHEAD = 3  # shares for each worker that may be done before the one that is waited for
PIECE = 1 << 20

Tell = Callable[[int], None]  # of steps done


@dataclass(frozen=True)
class Died:
    """A share without a result; *how* its process ended."""

    how: str


@dataclass
class _Child:
    pid: int
    share: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def works(self) -> bool:
        """Whether it has nothing to hand over yet."""
        return not self.data


def in_workers(
    jobs: int,
    shares: int,
    work: Callable[[int, Tell], Any],
    progress: Tell | None = None,
    busy: Callable[[], int] = lambda: 0,
) -> Iterator[Any]:
    """
    The result of each share, in their order; :class:`Died` of one whose process was killed.

    :param jobs: processes that work at a time; others may be handing over.
    :param busy: how many of these do something else, as it is now. One share is always worked at.
    :param work: of the number of a share; runs in a child. What it raises is raised here.
    :param progress: called here with the steps that *work* tells.
    """
    children: dict[int, _Child] = {}  # by the end of the pipe that is read
    results: dict[int, Any] = {}
    started = 0
    try:
        for number in range(shares):
            while number not in results:
                while started < min(shares, number + jobs * AHEAD) and (
                    not children or sum(child.works for child in children.values()) < jobs - busy()
                ):
                    _start(started, work, children)
                    started += 1
                for reader in select.select(list(children), [], [])[0]:
                    if data := os.read(reader, PIECE):
                        children[reader].data += data
                        _tell_steps(children[reader].data, progress)
                        continue
                    child = children.pop(reader)
                    os.close(reader)
                    results[child.share] = _result(child)
            result = results.pop(number)
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        _end(children)


class Beside:
    """One work that a child does. To be called, once, for its result."""

    def __init__(self, work: Callable[[Tell], Any]) -> None:
        self._children: dict[int, _Child] = {}
        _start(0, lambda _, tell: work(tell), self._children)

    def busy(self) -> bool:
        """Whether it is still at it; of one that tells no steps."""
        readers = list(self._children)
        return bool(readers) and not select.select(readers, [], [], 0)[0]

    def __call__(self) -> Any:
        """:class:`Died` if the child was killed. What the work raised is raised here."""
        ((reader, child),) = self._children.items()
        while data := os.read(reader, PIECE):
            child.data += data
            _tell_steps(child.data, None)
        del self._children[reader]
        os.close(reader)
        result = _result(child)
        if isinstance(result, BaseException):
            raise result
        return result

    def end(self) -> None:
        _end(self._children)


@contextlib.contextmanager
def beside(work: Callable[[Tell], Any]) -> Iterator[Beside]:
    """
    One work, done by a child while the caller does another.

    :param work: runs in a child.
    """
    child = Beside(work)
    try:
        yield child
    finally:
        child.end()


def _end(children: dict[int, _Child]) -> None:
    """End those that still work, whose results nobody wants."""
    for reader, child in children.items():
        os.close(reader)
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


def _start(share: int, work: Callable[[int, Tell], Any], children: dict[int, _Child]) -> None:
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):  # more than this user may have
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIECE)
    parent = os.getpid()
    # No deadline or Ctrl-C between a child's birth and its name on the list.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        with warnings.catch_warnings():
            # A thread that draws a progress bar does nothing that the child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _live(share, work, writer, [reader, *children], parent)
        children[reader] = _Child(pid, share)
    finally:
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """End this process, a child that was just forked, when its parent ends, or if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _live(
    share: int, work: Callable[[int, Tell], Any], writer: int, close: list[int], parent: int
) -> NoReturn:
    """A child's whole life."""
    status = 1
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        die_with(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        gc.disable()  # it would touch, and so copy, all that is shared
        sys.stderr = sys.__stderr__  # not by way of a progress bar, whose lock may be held for ever
        for reader in close:
            os.close(reader)
        with os.fdopen(writer, "wb", buffering=0) as pipe:

            def tell(steps: int) -> None:
                pipe.write(HEADER.pack(STEPS, steps))

            arrays: list[pickle.PickleBuffer] = []
            try:
                result = work(share, tell)
                kind, data = RESULT, pickle.dumps(result, PROTOCOL, buffer_callback=arrays.append)
            except Exception as error:
                kind, data = ERROR, _packed(error)
            _send(writer, kind, data)
            for array in arrays:
                _send(writer, ARRAY, array.raw())
        status = 0
    finally:
        os._exit(status)


def _send(writer: int, kind: int, data: bytes | memoryview) -> None:
    for part in (HEADER.pack(kind, len(data)), data, bytes(-len(data) % HEADER.size)):
        left = memoryview(part)
        while left:
            left = left[os.write(writer, left) :]


def picklable(error: Exception) -> Exception:
    """The error, or one of the same words where it cannot be handed over."""
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _packed(error: Exception) -> bytes:
    return pickle.dumps(picklable(error), PROTOCOL)


def _tell_steps(data: bytearray, progress: Tell | None) -> None:
    """Take the messages about steps off the beginning."""
    at, steps = 0, 0
    while len(data) - at >= HEADER.size and data[at] == STEPS:
        steps += HEADER.unpack_from(data, at)[1]
        at += HEADER.size
    del data[:at]
    if steps and progress is not None:
        progress(steps)


def _received(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Kind and bytes of each."""
    at = 0
    while at < len(data):
        kind, size = HEADER.unpack_from(data, at)
        at += HEADER.size
        yield kind, data[at : at + size]
        at += size + -size % HEADER.size


def _result(child: _Child) -> Any:
    """What a child that has closed its pipe leaves."""
    status = os.waitpid(child.pid, 0)[1]
    if not status and child.data:
        (kind, data), *arrays = _received(memoryview(child.data))
        # Each by itself: or one that is kept would keep all of them.
        result = pickle.loads(data, buffers=[bytearray(array) for _, array in arrays])
        if kind == ERROR or not isinstance(result, BaseException):
            return result
    code = os.waitstatus_to_exitcode(status)
    return Died(f"was killed by signal {-code}" if code < 0 else f"ended with status {code}")
