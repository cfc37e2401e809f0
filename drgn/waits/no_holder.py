# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reason why no task is known to hold what others wait for, and whether none can."""

import contextlib
import re
import time
from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
from drgn import FaultError

from mmscope.drgn.reclaim.lru_lists import jiffies_a_second
from mmscope.drgn.tables.display import plural
from mmscope.drgn.waits.spins import SPINLOCK
from mmscope.drgn.waits.stacks import Shared, stack_from
from mmscope.drgn.waits.task_stacks import DEAD, MAX_STACKS, TaskStacks
from mmscope.drgn.waits.waiters import Awaited, awaited

MOST_NAMED = 8  # tasks that may have a spinlock: more are no help
AGAIN_SECONDS = 1.0  # after which what seems to have no holder is looked at again
# A task that lets a lock go, or wakes one that waits for it: for a moment no task has the lock.
LETS_GO = re.compile(r"mutex_unlock|^_*up_(read|write)|rwsem_wake|^wake_up|^try_to_wake_up")


class NoHolder:
    """Reasons why no holder is named, by the tasks of one reading."""

    def __init__(self, stacks: TaskStacks) -> None:
        self.stacks = stacks
        self.asked: tuple[float, int] | None = None  # when, for a lock without holder: jiffies

    def why(
        self, found: Awaited, queued: Container[int], direct: Sequence[int]
    ) -> tuple[str, bool]:
        """
        Reason why no task is known to hold what is waited for; whether none can.

        :param direct: the tasks that wait for it.
        """
        if found.holder is not None:
            return "it notes a task that is not there: it ended, or the note is damaged", False
        if found.kind == SPINLOCK:
            return self._why_spun_for(direct), False
        if found.is_free:
            return self._why_free(found, queued)
        if found.kind.startswith("VMA lock"):
            return self._why_read(found, direct)
        if found.readers:
            return f"{plural(found.readers, 'reader')}, of which the kernel notes none", False
        if found.kind == "memory.high":
            return "over its limit: who allocates in it sleeps, 2 s at most at a time", False
        if found.kind in ("mutex", "rt_mutex") or found.kind.startswith("rwsem"):
            return "it is being handed over", False
        return "the kernel notes no task for it", False

    def _why_spun_for(self, direct: Sequence[int]) -> str:
        """Reason why no task is named that has a spinlock, and which could have it."""
        words = "a CPU has it, the kernel does not note which"
        others = [a for a in self.stacks.on_cpus if self.stacks.stack_of(a) and a not in direct]
        if not 0 < len(others) <= MOST_NAMED or not self.stacks.all_known(
            sorted(self.stacks.on_cpus)
        ):
            return words
        names = ", ".join(sorted(f"{comm} ({pid})" for pid, comm in map(self.stacks.named, others)))
        return f"{words}; on CPUs, in the kernel and not spinning for it: {names}"

    def _why_free(self, found: Awaited, queued: Container[int]) -> tuple[str, bool]:
        """Reason why no task has a lock that tasks wait for."""
        # One that was woken takes it next; one that is not read here may have been.
        if not found.queue or not all(task in queued for task in found.queue):
            return "free by now: one of those in its queue was woken, or was not seen", False
        running = [address for address in self.stacks.frames if self.stacks.runs(address)]
        if any(LETS_GO.search(name) for each in running for name in self.stacks.frames[each]):
            return "free by now: a task may be handing it over", False
        if self.stacks.left_out or self.stacks.tasks.unread or self.stacks.tasks.broken_off:
            return "free, though those in its queue sleep; not every task was looked at", False
        if not (self.lasts(found) if self.stacks.memory.live else self.stacks.all_known(running)):
            return "free by now: a task that runs may be handing it over", False
        one = len(found.queue) == 1
        words = f"free, though the {plural(len(found.queue), 'task')} in its queue"
        words += " sleeps: it" if one else " sleep: one"
        return f"{words} should have been woken", True

    def lasts(self, found: Awaited) -> bool:
        """
        True if, a second after it was first asked, those that wait have slept all the while, and
        what they wait for is as it was.

        The stack of a task that runs is not known on a live kernel: it may be letting a lock go,
        for as long as its CPU is the hypervisor's.
        """
        try:
            now = self.stacks.prog["jiffies_64"]
            if self.asked is None:
                self.asked = time.monotonic(), int(now.value_())
            begin, ticks = self.asked
            time.sleep(max(begin + AGAIN_SECONDS - time.monotonic(), 0))
            # In a guest that is stopped, or gets no CPU, nothing moves.
            ran = int(now.value_()) - ticks >= AGAIN_SECONDS / 2 * (
                jiffies_a_second(self.stacks.prog) or 1
            )
        except (FaultError, LookupError):
            return False
        known = ran and self.stacks.unmoved(found.queue) == found.queue
        return known and all(self._still(found, task) for task in found.queue)

    def _still(self, found: Awaited, task: int) -> bool:
        """True if a task waits for the same, in the same state."""
        with contextlib.suppress(FaultError, LookupError):
            stack = stack_from(self.stacks.task(task), self.stacks.pointers[task], Shared())
            if (
                stack is not None
                and (again := awaited(stack, self.stacks.frames[task])) is not None
            ):
                before, now = ((e.address, e.is_free, e.readers) for e in (found, again))
                return before == now
        return False

    def _why_read(self, found: Awaited, direct: Sequence[int]) -> tuple[str, bool]:
        """Reason why no reader of a VMA is named: none is in a fault that was found."""
        words = plural(found.readers, "reference")
        if (
            len(self.stacks.places) > MAX_STACKS
            or self.stacks.tasks.unread
            or self.stacks.tasks.broken_off
        ):
            return f"{words}; not every task was looked at", False
        own = {address for address in self.stacks.places if self._has(address, found.address)}
        gone = self.stacks.tasks.columns["state"] & DEAD != 0
        bare = [
            each
            for each, at in self.stacks.places.items()
            if not (self.stacks.frames[each] or gone[at])
        ]
        if unknown := [each for each in bare if not self.stacks.in_user_space(each)]:
            return f"{words}; the stack of {plural(len(unknown), 'task')} is not known", False
        names = sorted(
            f"{comm} ({pid})" for pid, comm in map(self.stacks.named, own.difference(direct))
        )
        if names:
            return f"{words}; on the stack of {', '.join(names[:3])}", False
        if self.stacks.memory.live and not self.lasts(replace(found, queue=frozenset(direct))):
            return f"{words}, which may be gone", False
        words += f", and none of {plural(len(self.stacks.places), 'task')} has the VMA on its stack"
        return f"{words}: lost, or kept by what is no task", True

    def _has(self, address: int, word: int) -> bool:
        """True if a task has a word on its stack."""
        self.stacks.stack_of(address)
        with contextlib.suppress(FaultError, LookupError):
            if (pointer := self.stacks.pointers.get(address)) is not None:
                stack = stack_from(self.stacks.task(address), pointer, self.stacks.shared)
                return stack is not None and bool((stack.words == np.uint64(word)).any())
        return False
