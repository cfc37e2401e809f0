# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The words of a task's stack, from its stack pointer up.

Costs a read of the live part of a stack: some KiB. Cannot know: what is on the stack of a task that
runs.
"""

from dataclasses import dataclass, field

import numpy as np
from drgn import Object, Program
from numpy.typing import NDArray

from mmscope.drgn.processes.kernel_stacks import stack_bounds

# At least, of a stack that is no vmalloc memory (x86-64, arm64, ppc64); twice that with KASAN.
THREAD_SIZE = 16 << 10
# Bytes of a stack that are looked at: none has more, but what is damaged may say so.
MOST_STACK = 128 << 10


@dataclass(frozen=True, slots=True)
class Shared:
    """
    Finds of one stack that serve the others.

    :ivar bounds: of stacks, by the task's address.
    :ivar queues: by the address of each link of a ring: its head, and the tasks that are in it.
    """

    bounds: dict[int, range] = field(default_factory=dict)
    queues: dict[int, tuple[int, frozenset[int]]] = field(default_factory=dict)

    def bounds_of(self, task: Object) -> range:
        """
        Bounds of :func:`bounds_of`, read once for each task.

        :raises FaultError: the task cannot be read.
        """
        address = task.value_()
        if address not in self.bounds:
            self.bounds[address] = bounds_of(task)
        return self.bounds[address]


@dataclass(frozen=True, slots=True)
class Stack:
    """The words of a task's stack, from its stack pointer up."""

    task: Object
    start: int
    words: NDArray[np.uint64]
    shared: Shared

    @property
    def prog(self) -> Program:
        return self.task.prog_

    @property
    def end(self) -> int:
        return self.start + self.words.nbytes

    def places(self) -> list[int]:
        """The addresses at which it has the task's own."""
        own = np.flatnonzero(self.words == self.task.value_())
        return [self.start + 8 * at for at in own.tolist()]


def stack_from(task: Object, pointer: int, shared: Shared) -> Stack | None:
    """
    The stack of a ``struct task_struct *``; None where the pointer is not in it.

    :raises FaultError: it cannot be read.
    """
    own = shared.bounds_of(task)
    if pointer not in own:
        return None
    raw = task.prog_.read(pointer & ~7, min(own.stop - pointer, MOST_STACK) & ~7)
    return Stack(task, pointer & ~7, np.frombuffer(raw, "<u8"), shared)


def bounds_of(task: Object) -> range:
    """
    The addresses of a task's stack: at least, where nothing says its end.

    :raises FaultError: the task cannot be read.
    """
    begin = task.stack.value_()
    return range(*(stack_bounds(task) or (begin, begin + THREAD_SIZE)))
