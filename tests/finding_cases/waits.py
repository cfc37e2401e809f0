# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about tasks that wait."""

from finding_cases.case import Case

from mmscope.drgn.waits.task_waits import WaitRoot

STACK = "entry_SYSCALL_64_after_hwframe;do_syscall_64;ksys_write;handle_mm_fault;handle_userfault"


def _root(seconds: float | None, **other: object) -> WaitRoot:
    values = {
        "root": "writer (321)",
        "pid": 321,
        "comm": "writer",
        "circle": False,
        "by_last_reader": False,
        "waiters": 214,
        "longest_seconds": seconds,
        "doing": "faults",
        "stack": STACK,
    }
    return WaitRoot(**(values | other))


FOUND = {
    "a queue behind one task": Case(
        "tasks-wait-behind-one",
        [_root(48.2)],
        ["214 tasks wait for writer (321), one for 48 s", "end of the chain and faults"],
        severity="warning",
    ),
    "a queue for longer than the kernel calls hung": Case(
        "tasks-wait-behind-one", [_root(121.0)], ["for 121 s"], severity="critical"
    ),
    "a lock of which no holder is noted": Case(
        "tasks-wait-behind-one",
        [_root(30.0, root="anon_vma 0xffff88", pid=None, comm=None, waiters=1, doing=None)],
        ["1 task waits for anon_vma 0xffff88, for 30 s", "notes no task that holds"],
    ),
    "a last reader, which may have gone": Case(
        "tasks-wait-behind-one",
        [_root(48.2, by_last_reader=True)],
        ["214 tasks wait for writer (321) or another reader", "may have let it go"],
        severity="warning",
    ),
    "what is a circle if the last reader is still there": Case(
        "tasks-wait-behind-one",
        [_root(12.0, circle=True, by_last_reader=True, waiters=2)],
        ["if the last reader of one of the locks still has it"],
        severity="warning",
    ),
    "a circle": Case(
        "tasks-wait-behind-one",
        [_root(2.0, circle=True, waiters=2)],
        ["a deadlock"],
        severity="critical",
    ),
}
CLEAR = {
    "a moment's circle over a last reader": Case(
        "tasks-wait-behind-one", [_root(2.0, circle=True, by_last_reader=True, waiters=2)]
    ),
    "locks that are waited for a moment": Case("tasks-wait-behind-one", [_root(0.4)]),
}
NOT_CHECKED = {
    "since when is not known": Case(
        "tasks-wait-behind-one",
        [_root(None)],
        why_not="wait_roots.longest_seconds is unknown in this bundle",
    ),
    "text does not say who waits for whom": Case(
        "tasks-wait-behind-one", [], why_not="no table wait_roots in this bundle"
    ),
}
