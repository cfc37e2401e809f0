# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Shares of one work, done by the process that asks for it and by its children (fork); or one work
beside what its caller does.

The first process has all shares to do, one after the other, straight into its own sums. A child
takes over the last half of what one of the processes has still to do, and so each time that it has
nothing more to do: so it costs one fork, hands over a few results, and all are done at about the
same time, though of some shares (free memory) there is less to do than of others.

A child has all that its parent had read and opened. One that is killed costs the shares that it had
begun and no result of, which the caller is told. No child outlives the work, nor its parent.

Costs: a fork for each further job, some milliseconds; results lie in memory until all are there.
Where no process is to be had, the first one does all.

Cannot: fork where reading the target needs a conversation (a socket): whose answer is whose?
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import itertools
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

# What a child tells: the first share that is done, one behind the last, and where in its file the
# result begins; or STEPS, and how many. Less than PIPE_BUF: it comes whole.
MESSAGE = struct.Struct("<qQQ")
STEPS = -1
PROTOCOL = pickle.HIGHEST_PROTOCOL
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MFD_NOEXEC_SEAL = 8  # linux/memfd.h, since v6.3; vm.memfd_noexec may ask for it
ONE = range(1)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE)

Tell = Callable[[int], None]  # of steps done
Own = Callable[[int, Tell], Any]  # of the number of a share
Work = Callable[[Iterator[int], Tell], Any]  # of those of neighbours


@dataclass(frozen=True)
class Died:
    """Shares without a result; *how* their process ended."""

    how: str


@dataclass(frozen=True)
class _Raised:
    """What was left instead of a result."""

    error: Exception


@dataclass
class _Child:
    pid: int
    reader: int  # of the pipe in which it tells
    file: int  # in which its results are
    found: dict[range, int] = field(default_factory=dict)  # where that of some shares begins
    ended: bool = False  # it has nothing more to tell
    status: int | None = None  # as of waitpid()

    def hear(self) -> int:
        """Take what it has told: the steps."""
        data = os.read(self.reader, MESSAGE.size << 12)
        self.ended = not data
        steps = 0
        for first, end, at in MESSAGE.iter_unpack(data):
            if first == STEPS:
                steps += end
            else:
                self.found[range(first, end)] = at
        return steps

    def result(self, shares: range) -> Any:
        """Of one that has ended. What the work raised is raised."""
        with open(self.file, "rb", closefd=False) as file:
            file.seek(self.found[shares])
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


class Left:
    """
    The shares that nobody has begun, in a file that all processes have: for each, the first that it
    has to do and one behind the last. The kernel takes the lock from one that dies.

    :param processes: that may have some; the first has all.
    """

    NUMBERS = struct.Struct("<QQ")

    def __init__(self, shares: int, processes: int = 1) -> None:
        self._file = _memory_file()
        self._write([range(shares), *[range(0)] * (processes - 1)])

    def close(self) -> None:
        os.close(self._file)

    def most(self) -> int:
        """Of one process."""
        return max(map(len, self._read()))

    def of(self, process: int) -> Iterator[int]:
        """One share after the other; not what others take over meanwhile."""
        while taken := self._take(process):
            yield taken.start

    def taken_over(self, process: int) -> Iterator[Iterator[int]]:
        """The last half of what another one has still to do, as often as there is any."""
        while taken := self._take(process, take_over=True):
            yield itertools.chain(taken, self.of(process))

    def _take(self, process: int, take_over: bool = False) -> range:
        """The next share of a process, if there is one."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            left = self._read()
            if take_over:
                longest = max(left, key=len)
                half = len(longest) // 2
                left[left.index(longest)], left[process] = longest[:half], longest[half:]
            taken, left[process] = left[process][:1], left[process][1:]
            self._write(left)
            return taken
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> list[range]:
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        return [range(*each) for each in self.NUMBERS.iter_unpack(data)]

    def _write(self, left: list[range]) -> None:
        data = b"".join(self.NUMBERS.pack(each.start, each.stop) for each in left)
        os.pwrite(self._file, data, 0)


def in_workers(
    jobs: int,
    shares: int,
    own: Own,
    work: Work,
    progress: Tell | None = None,
    busy: Callable[[], int] = lambda: 0,
) -> Iterator[tuple[range, Any]]:
    """
    Do the shares; then give those that children did, which are behind what was done here, in their
    order, with the result of some neighbours at a time. :class:`Died` where a process was killed.

    :param jobs: processes that work at a time, this one among them.
    :param own: does a share here, and keeps what it finds: of the first share, and those after it.
    :param work: does at least one share in a child, which was forked when the first share had begun
        and may have done others, that come behind these. What it raises is raised here.
    :param progress: called here with the steps that both tell.
    :param busy: how many of the processes do something else, as it is now.
    """
    children: list[_Child] = []
    left = Left(shares, jobs + 1)

    def ended() -> bool:
        return all(child.ended for child in children)

    def look(working: bool, seconds: float | None = 0) -> None:
        """
        At what else is done; what there is left is taken over.

        :param working: whether this process does shares of its own.
        """
        nonlocal jobs
        _hear(children, progress, seconds)
        # Who is at work begins its last share sooner than a child that is forked now.
        least = 1 if working or ended() else 2
        while len(children) < jobs - working - busy() and left.most() >= least:
            number = len(children) + 1
            if not _start(left.taken_over(number), work, children):
                jobs = 1

    mine = 0

    def tell(steps: int) -> None:
        if progress is not None:
            progress(steps)
        look(True)

    try:
        for number in left.of(0):
            look(True)
            own(number, tell)
            mine = number + 1
        look(False)
        while not ended():
            look(False, None)
        yield from _results(children, range(mine, shares))
    finally:
        left.close()
        for child in children:
            child.end()


def _results(children: list[_Child], shares: range) -> Iterator[tuple[range, Any]]:
    """What children did of the shares, in their order, and which of them nobody did."""
    at = shares.start
    found = [(done, child) for child in children for done in child.found]
    for done, child in sorted(found, key=lambda each: each[0].start):
        if at < done.start:
            yield range(at, done.start), _died(children)
        yield done, child.result(done)
        at = done.stop
    if at < shares.stop:
        yield range(at, shares.stop), _died(children)


class Beside:
    """One work that a child does. To be called, once, for its result."""

    def __init__(self, work: Callable[[Tell], Any]) -> None:
        self._work = work
        self._children: list[_Child] = []
        _start((iter(ONE),), lambda _, tell: work(tell), self._children)

    def busy(self) -> bool:
        """Whether it is still at it."""
        _hear(self._children, None, 0)
        return not all(child.ended for child in self._children)

    def __call__(self) -> Any:
        """
        :class:`Died` if the child was killed. What the work raised is raised here. Where there was
        no child to be had, it is done now.
        """
        if not self._children:
            return self._work(lambda steps: None)
        (child,) = self._children
        while not child.ended:
            _hear(self._children, None)
        return child.result(ONE) if child.found else _died(self._children)

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


def _start(shares: Iterable[Iterator[int]], work: Work, children: list[_Child]) -> bool:
    """Whether there is one child more; no process, memory or file may be left for it."""
    parent = os.getpid()
    # No deadline or Ctrl-C between a child's birth and its name on the list.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with contextlib.ExitStack() as ends, contextlib.ExitStack() as unless_born:
        ends.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        try:
            file = _memory_file()
            unless_born.callback(os.close, file)
            reader, writer = os.pipe()
            unless_born.callback(os.close, reader)
            ends.callback(os.close, writer)
            with warnings.catch_warnings():
                # A thread that draws a progress bar does nothing that the child needs.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:
            return False
        if not pid:
            for child in children:
                os.close(child.reader)
                os.close(child.file)
            os.close(reader)
            _live(shares, work, writer, file, parent)
        children.append(_Child(pid, reader, file))
        unless_born.pop_all()
    return True


def die_with(parent: int) -> None:
    """End this process, a child that was just forked, when its parent ends, or if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _live(
    shares: Iterable[Iterator[int]], work: Work, writer: int, file: int, parent: int
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

        def say(first: int, end: int, at: int = 0) -> None:
            os.write(writer, MESSAGE.pack(first, end, at))

        with os.fdopen(file, "wb") as results:
            for some in shares:
                begun = [next(some)]
                numbers = itertools.chain(tuple(begun), _noted(some, begun))
                try:
                    result = work(numbers, functools.partial(say, STEPS))
                    at = _leave(result, results)
                except Exception as error:
                    say(begun[0], begun[-1] + 1, _leave(_Raised(picklable(error)), results))
                    break
                say(begun[0], begun[-1] + 1, at)
        os.close(writer)  # the parent need not wait until all memory is given back
        status = 0
    finally:
        os._exit(status)


def _noted(shares: Iterator[int], begun: list[int]) -> Iterator[int]:
    for number in shares:
        begun.append(number)
        yield number


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
