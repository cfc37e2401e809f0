# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Shares of one work, done by the process that asks for it and by its children (fork); or one work
beside what its caller does.

The first process takes shares from the first on, straight into its own sums; its children take them
from the last on, one after the other, until both meet. So a child costs one fork, however many
shares it does, and only what children did is handed over.

A child has all that its parent had read and opened. One that is killed costs the share that it was
at, which the caller is told. No child outlives the work, nor its parent.

Costs: a fork for each further job, some milliseconds; results lie in memory until all are there.

Cannot: fork where reading the target needs a conversation (a socket): whose answer is whose?
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import os
import pickle
import select
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn

# What a child tells: the number of a share, and where in its file the result begins; or STEPS, and
# how many. Less than PIPE_BUF: it comes whole.
MESSAGE = struct.Struct("<qQ")
STEPS = -1
PROTOCOL = pickle.HIGHEST_PROTOCOL
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MFD_NOEXEC_SEAL = 8  # linux/memfd.h, since v6.3; vm.memfd_noexec may ask for it
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE)

Tell = Callable[[int], None]  # of steps done
Work = Callable[[int, Tell], Any]  # of the number of a share


@dataclass(frozen=True)
class Died:
    """A share without a result; *how* its process ended."""

    how: str


@dataclass(frozen=True)
class _Raised:
    """What a share left instead of a result."""

    error: Exception


@dataclass
class _Child:
    pid: int
    reader: int  # of the pipe in which it tells
    file: int  # in which its results are
    found: dict[int, int] = field(default_factory=dict)  # where that of each share begins
    ended: bool = False  # it has nothing more to tell
    status: int | None = None  # as of waitpid()

    def hear(self) -> int:
        """Take what it has told: the steps."""
        data = os.read(self.reader, MESSAGE.size << 12)
        self.ended = not data
        steps = 0
        for number, value in MESSAGE.iter_unpack(data):
            if number == STEPS:
                steps += value
            else:
                self.found[number] = value
        return steps

    def result(self, number: int) -> Any:
        """Of one that has ended. What the work raised is raised."""
        with open(self.file, "rb", closefd=False) as file:
            file.seek(self.found[number])
            result = pickle.load(file)
        if isinstance(result, _Raised):
            raise result.error
        return result

    def how(self) -> str:
        """How it ended."""
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        code = os.waitstatus_to_exitcode(self.status)
        return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"

    def end(self) -> None:
        """Nobody wants its results any more."""
        os.close(self.reader)
        os.close(self.file)
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class _Left:
    """
    The shares that nobody has begun: the first and one behind the last, in a file that all
    processes have. The kernel takes the lock from one that dies.
    """

    NUMBERS = struct.Struct("<QQ")

    def __init__(self, shares: int) -> None:
        self.file = _memory_file()
        os.pwrite(self.file, self.NUMBERS.pack(0, shares), 0)

    def __bool__(self) -> bool:
        first, end = self._read()
        return first < end

    def from_the_first(self) -> Iterator[int]:
        while (number := self._take(1, 0)) is not None:
            yield number

    def from_the_last(self) -> Iterator[int]:
        while (number := self._take(0, 1)) is not None:
            yield number

    def _read(self) -> tuple[int, int]:
        first, end = self.NUMBERS.unpack(os.pread(self.file, self.NUMBERS.size, 0))
        return first, end

    def _take(self, of_first: int, of_last: int) -> int | None:
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        try:
            first, end = self._read()
            if first == end:
                return None
            os.pwrite(self.file, self.NUMBERS.pack(first + of_first, end - of_last), 0)
            return first if of_first else end - 1
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)


def in_workers(
    jobs: int,
    shares: int,
    own: Work,
    work: Work,
    progress: Tell | None = None,
    busy: Callable[[], int] = lambda: 0,
) -> Iterator[tuple[int, Any]]:
    """
    Do the shares; then give the number and the result of each that a child did, in their order:
    those behind what was done here. :class:`Died` of one whose process was killed.

    :param jobs: processes that work at a time, this one among them.
    :param own: does a share here, and keeps what it finds: of the first share, and those after it.
    :param work: does a share in a child, which was forked when the first share had begun and may
        have done others, that come after this one. What it raises is raised here.
    :param progress: called here with the steps that both tell.
    :param busy: how many of the processes do something else, as it is now.
    """
    children: list[_Child] = []
    left = _Left(shares)

    def look() -> None:
        """At what else is done; what others have left is taken up."""
        _hear(children, progress, 0)
        while len(children) < jobs - 1 - busy() and left:
            _start(left.from_the_last(), work, children)

    def tell(steps: int) -> None:
        if progress is not None:
            progress(steps)
        look()

    mine = 0
    try:
        for number in left.from_the_first():
            look()
            own(number, tell)
            mine = number + 1
        while not all(child.ended for child in children):
            _hear(children, progress)
        found = {number: child for child in children for number in child.found}
        for number in range(mine, shares):
            yield number, found[number].result(number) if number in found else _died(children)
    finally:
        os.close(left.file)
        for child in children:
            child.end()


class Beside:
    """One work that a child does. To be called, once, for its result."""

    def __init__(self, work: Callable[[Tell], Any]) -> None:
        self._children: list[_Child] = []
        _start((0,), lambda _, tell: work(tell), self._children)

    def busy(self) -> bool:
        """Whether it is still at it."""
        _hear(self._children, None, 0)
        return not all(child.ended for child in self._children)

    def __call__(self) -> Any:
        """:class:`Died` if the child was killed. What the work raised is raised here."""
        (child,) = self._children
        while not child.ended:
            _hear(self._children, None)
        return child.result(0) if child.found else _died(self._children)

    def end(self) -> None:
        for child in self._children:
            child.end()


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


def _hear(children: list[_Child], progress: Tell | None, seconds: float | None = None) -> None:
    """Take what children have told; wait so long for one that does."""
    readers = {child.reader: child for child in children if not child.ended}
    if not readers:
        return
    steps = sum(readers[reader].hear() for reader in select.select(readers, [], [], seconds)[0])
    if steps and progress is not None:
        progress(steps)


def _died(children: list[_Child]) -> Died:
    """Of what was lost with one of them; if several were killed, it is not known with which."""
    hows = {child.how(): child.status for child in children}
    killed = [how for how, status in hows.items() if status]
    return Died(" or ".join(killed or hows))


def _memory_file() -> int:
    """A file without a name, in memory, for this process and those that it forks."""
    try:
        return os.memfd_create("mmscope", os.MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create("mmscope")


def _start(shares: Iterable[int], work: Work, children: list[_Child]) -> None:
    file = _memory_file()
    reader, writer = os.pipe()
    parent = os.getpid()
    # No deadline or Ctrl-C between a child's birth and its name on the list.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        with warnings.catch_warnings():
            # A thread that draws a progress bar does nothing that the child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            for child in children:
                os.close(child.reader)
                os.close(child.file)
            os.close(reader)
            _live(shares, work, writer, file, parent)
        children.append(_Child(pid, reader, file))
    finally:
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """End this process, a child that was just forked, when its parent ends, or if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _live(shares: Iterable[int], work: Work, writer: int, file: int, parent: int) -> NoReturn:
    """A child's whole life."""
    status = 1
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        die_with(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        gc.disable()  # it would touch, and so copy, all that is shared
        sys.stderr = sys.__stderr__  # not by way of a progress bar, whose lock may be held for ever
        tell = functools.partial(_say, writer, STEPS)
        with os.fdopen(file, "wb") as results:
            for share in shares:
                try:
                    begin = _leave(work(share, tell), results)
                except Exception as error:
                    _say(writer, share, _leave(_Raised(picklable(error)), results))
                    break
                _say(writer, share, begin)
        os.close(writer)  # the parent need not wait until all memory is given back
        status = 0
    finally:
        os._exit(status)


def _say(writer: int, share: int, value: int) -> None:
    os.write(writer, MESSAGE.pack(share, value))


def _leave(result: Any, results: IO[bytes]) -> int:
    """Where it begins."""
    begin = results.tell()
    pickle.dump(result, results, PROTOCOL)
    results.flush()
    return begin


def picklable(error: Exception) -> Exception:
    """The error, or one of the same words where it cannot be handed over."""
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")
