# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks by their addresses: their stacks in the kernel, whether they moved, which CPUs run."""

import contextlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from drgn import FaultError, Object, Program, StackFrame
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.processes.kernel_stacks import function_names, in_user_space, kernel_frames
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.all_tasks import TASK, all_tasks
from mmscope.drgn.waits.reclaim_threads import MOST_SECONDS
from mmscope.drgn.waits.stacks import Shared

MAX_STACKS = 1000  # tasks that are looked at: a stack takes a millisecond
# include/linux/sched.h
RUNNING, INTERRUPTIBLE, DEAD, NOLOAD = 0, 1, 0x80, 0x400
NANOSECONDS = 1_000_000_000


class TaskStacks:
    """
    The tasks of one kernel, and the stacks of those that were looked at.

    Methods take the address of a ``struct task_struct``.

    :ivar left_out: tasks that wait, or could run, and that were not looked at.
    """

    def __init__(self, memory: Memory, gaps: Gaps) -> None:
        self.memory, self.prog = memory, memory.prog
        self.tasks = all_tasks(self.prog, gaps)
        self.now = _now(self.prog)
        self.left_out = 0
        self.frames: dict[int, list[str]] = {}
        self._type = self.prog.type("struct task_struct")
        self._named: dict[tuple[int, ...], list[str]] = {}
        self.pointers: dict[int, int] = {}
        self.leaves: dict[int, StackFrame] = {}
        self.shared = Shared()
        self.places: dict[int, int] = {
            address: at for at, address in enumerate(self.tasks.addresses.tolist())
        }

    def task(self, address: int) -> Object:
        """``struct task_struct *``."""
        return Object(self.prog, self._type, address=address).address_of_()

    def stack_of(self, address: int) -> list[str]:
        """The functions of a task's stack in the kernel, leaf first; none where it is not known."""
        if address not in self.frames:
            if frames := kernel_frames(self.prog, self.task(address)):
                self.pointers[address], self.leaves[address] = frames[0].sp, frames[0]
            # Many wait in the same place.
            place = tuple(frame.pc for frame in frames)
            if place not in self._named:
                self._named[place] = function_names(frames)
            self.frames[address] = self._named[place]
        return self.frames[address]

    def pid(self, address: int) -> int:
        """Number of a task that is one of them."""
        return int(self.tasks.columns["pid"][self.places[address]])

    def named(self, address: int) -> tuple[int | None, str | None]:
        """pid and comm of a task by its address; None where it is not one of them."""
        at = self.places.get(address)
        if at is None:  # it has ended, or this is no task
            return None, None
        columns = self.tasks.columns[at]
        return int(columns["pid"]), name_in(columns["comm"].item())

    def seconds(self, address: int) -> float | None:
        """Seconds since it was last put on a CPU."""
        with contextlib.suppress(LookupError, FaultError, AttributeError):
            arrived = self.task(address).sched_info.last_arrival.value_()
            if arrived and self.now is not None:
                seconds = max(self.now - arrived, 0) / NANOSECONDS
                return round(seconds, 3) if seconds <= MOST_SECONDS else None
        return None

    def unmoved(self, tasks: Iterable[int]) -> set[int]:
        """Tasks that are still in the state, and at the switch, in which they were at first."""
        addresses = np.fromiter(tasks, np.uint64)
        wanted = {name: TASK[name] for name in ("state", "switches")}
        now, read = read_members(self.prog, addresses, self._type, wanted, Gaps())
        first = self.tasks.columns[[self.places[address] for address in addresses.tolist()]]
        same = read & (now["state"] == first["state"]) & (now["switches"] == first["switches"])
        return set(addresses[same].tolist())

    def is_asleep(self, address: int) -> bool:
        """True of a task that sleeps and takes signals."""
        at = self.places.get(address)
        # Beside it may be TASK_FREEZABLE.
        return at is not None and bool(self.tasks.columns["state"][at] & INTERRUPTIBLE)

    def runs(self, address: int) -> bool:
        """True of a task that runs, or could."""
        return bool(self.tasks.columns["state"][self.places[address]] == RUNNING)

    def in_user_space(self, address: int) -> bool:
        """True of a task that runs there, and so has no stack in the kernel."""
        return in_user_space(self.prog, self.task(address))

    def all_known(self, running: Sequence[int]) -> bool:
        """True if of each of these tasks it is known what of the kernel's it runs."""
        return all(self.frames[each] or self.in_user_space(each) for each in running)

    @cached_property
    def on_cpus(self) -> set[int]:
        """Tasks that CPUs run, but for their idle ones; none where that is not known."""
        with contextlib.suppress(FaultError, LookupError, ValueError):
            queues, cpus = self.prog["runqueues"], online_cpus(self.prog)
            now = {per_cpu(queues, cpu).curr.value_() for cpu in cpus}
            return now & self.places.keys()
        return set()


def _now(prog: Program) -> int | None:
    """The latest ``rq.clock`` of all CPUs: an idle CPU's stands still (CONFIG_NO_HZ)."""
    with contextlib.suppress(LookupError, FaultError, ValueError):
        return int(max(per_cpu(prog["runqueues"], cpu).clock.value_() for cpu in online_cpus(prog)))
    return None
