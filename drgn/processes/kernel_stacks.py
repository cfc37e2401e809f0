# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The stack of a task in the kernel: where it lies, and the functions on it.

Costs a millisecond a stack, most of it for unwinding; and once the list of modules.

Cannot know: the stack of a task that runs on a live kernel. How long a stack is that is no vmalloc
memory: of the first task, and of all without CONFIG_VMAP_STACK. THREAD_SIZE is a macro.
"""

import contextlib
import itertools
import os
from collections.abc import Sequence

from drgn import FaultError, Object, Program, ProgramFlags, StackFrame

from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.opening.no_debug_info import know_modules

FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO (include/linux/proc_ns.h)


def kernel_frames(prog: Program, task: Object) -> list[StackFrame]:
    """
    The kernel's part of a task's stack, leaf first; none where it cannot be unwound (it runs on a
    live kernel), was in user space, or is another task's.
    """
    try:
        upper = kernel_byte(prog)
        know_modules(prog)
        # What the unwinder finds above a user's frame is no code.
        trace = itertools.takewhile(lambda frame: frame.pc >> 56 == upper, prog.stack_trace(task))
        frames = list(trace)
        return frames if frames and on_its_stack(task, _within(frames[-1])) else []
    except (FaultError, LookupError, ValueError, RuntimeError):
        return []


def _within(frame: StackFrame) -> int:
    """
    An address of the stack that a frame is on: its stack pointer, or its frame pointer where frames
    are found by these (arm64 without debug info).

    :raises LookupError: neither is known.
    """
    try:
        return int(frame.sp)
    except LookupError:
        return int(frame.register("fp"))


def in_user_space(prog: Program, task: Object) -> bool:
    """
    True if a task that runs is known to be in no function of the kernel that matters: it was in
    user space when the machine was dumped, or it is this process, which reads.
    """
    with contextlib.suppress(OSError, FaultError, LookupError, ValueError, RuntimeError):
        if prog.flags & ProgramFlags.IS_LIVE:
            own = os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
            return own and bool(task.tgid.value_() == os.getpid())
        return bool(prog.stack_trace(task)[0].pc >> 56 != kernel_byte(prog))
    return False


def function_names(frames: Sequence[StackFrame]) -> list[str]:
    """Names of the functions, as they are in a folded stack."""
    return [(frame.name or hex(frame.pc)).replace(";", ":") for frame in frames]


def folded(names: Sequence[str]) -> str | None:
    """Functions, leaf first, as root;…;leaf; None if there are none."""
    return ";".join(reversed(names)) or None


def stack_bounds(task: Object) -> tuple[int, int] | None:
    """
    Begin and end of the stack of a ``struct task_struct *``; None where nothing says its end.

    :raises FaultError: the task cannot be read.
    """
    # CONFIG_VMAP_STACK: "fork: Add generic vmalloced stack support" (ba14a194a434, in v4.9); not of
    # the first task.
    area = getattr(task, "stack_vm_area", None)
    if not area:
        return None
    begin = task.stack.value_()
    return begin, begin + area.nr_pages.value_() * task.prog_["PAGE_SIZE"].value_()


def on_its_stack(task: Object, pointer: int) -> bool:
    """
    True if a stack pointer is in the stack of a ``struct task_struct *``, as far as can be told.

    A CPU that changes over to a task says that it runs it while its registers are still those of
    the task before (kernel/sched/core.c, __schedule(): rq->curr, then context_switch()).

    :raises FaultError: the task cannot be read.
    """
    bounds = stack_bounds(task)
    return bounds is None or bounds[0] <= pointer <= bounds[1]
