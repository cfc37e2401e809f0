# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tasks that wait in memory management, what for, and who is at the end of the chain.

Every task (``struct task_struct``, threads too) in D state, and those that could run and are inside
of reclaim, compaction, or another part of memory management that takes long; each with its stack,
what it is queued on (:mod:`~mmscope.drgn.waits.waiters`) and who holds that. Followed from holder
to holder, a chain ends at a task that waits for no other, at a lock of which no holder is known, or
in a circle.

Costs a few reads for each task, and for those with a row a millisecond for the stack, of which
there are :data:`MAX_STACKS` at most. On a live host nothing is stopped: a task may go on while its
stack is read, and a lock change hands; chains are made of tasks that slept all the while.

Cannot know: since when a task sleeps. ``seconds`` are since it was last put on a CPU
(``sched_info.last_arrival``, as crash's ``ps -l``), so the time that it ran then is among them. The
stack of a task that runs on a live host; readers of a lock but the last one.

The text is /proc/PID/status, which has the state of each process's first thread and no more.
/proc/PID/stack has the stack, but waits itself for the lock of an exec that is under way
(fs/proc/base.c, ``lock_trace()``), so it is not read.
"""

import contextlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from drgn import FaultError, Object, Program, offsetof
from drgn.helpers.linux.percpu import per_cpu
from drgn.helpers.linux.slab import slab_object_info
from numpy.typing import NDArray

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.processes.kernel_stacks import folded, function_names, kernel_frames
from mmscope.drgn.processes.process_status import parse_status, rows_of_processes
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Columns, Gaps
from mmscope.drgn.reading.kernel_names import name_at, name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.rmap.rwsem_waiters import LAST_READER
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.waits.waiters import Awaited, awaited

MAX_STACKS = 1000
MAX_TASKS = MOST_PIDS
ADDRESSES = (1 << 64) - 1
# include/linux/sched.h
RUNNING, UNINTERRUPTIBLE, NOLOAD = 0, 2, 0x400
NANOSECONDS = 1_000_000_000
# 10 years: more is no time that a task has slept.
MOST_SECONDS = 10 * 365 * 86400

TASK: Columns = {
    # "sched: Change task_struct::state" (2f064a59a11f, in v5.14)
    "state": ("__state", "state"),
    "pid": "pid",
    "comm": "comm",
    "cgroups": "cgroups",
    "switches": "nvcsw",
}
# What a task does, by a function on its stack: the first that fits, from 5.10 to 7.3.
DOING = (
    ("kills for lack of memory", ("out_of_memory", "oom_kill_process")),
    ("is held back at memory.high", ("mem_cgroup_handle_over_high",)),
    ("is held back by dirty pages", ("balance_dirty_pages",)),
    ("is held back in reclaim", ("reclaim_throttle", "throttle_direct_reclaim", "wait_iff_cong")),
    ("reclaims from its cgroup", ("try_to_free_mem_cgroup_pages",)),
    ("reclaims", ("try_to_free_pages", "node_reclaim", "shrink_node", "shrink_slab")),
    ("compacts", ("compact_zone", "try_to_compact_pages")),
    ("drains per-CPU lists", ("drain_all_pages", "lru_add_drain_all")),
    ("migrates pages", ("migrate_pages",)),
    ("reads from swap", ("swap_page", "swapin_readahead")),
    ("exits", ("exit_mmap", "mmput")),
    ("faults", ("handle_mm_fault", "user_addr_fault", "page_fault", "exc_page_fault")),
    ("changes mappings", ("mprotect", "mmap_region", "munmap", "vm_mmap", "vm_munmap")),
    ("changes mappings", ("madvise", "mremap", "brk", "dup_mmap", "vmi_munmap")),
    ("writes back", ("writeback_sb_inodes", "wb_workfn", "writepages")),
    ("waits for a page", ("folio_wait_bit", "wait_on_page_bit", "folio_lock", "lock_page")),
    ("allocates", ("alloc_pages", "alloc_frozen_pages")),
)
# What a function's name begins with that a system call, or an inner part of it, is given.
BEFORE = re.compile(r"^_*(?:(?:x64|arm64|se)_sys_|do_sys_|sys_)?(?:do_)?_*")
# Locks of a struct inode; of its mapping since "mm: Protect operations adding pages to page cache
# with invalidate_lock" (730633f0b7f9, in v5.15) also the last.
INODE_LOCKS = ("i_rwsem", "i_data.i_mmap_rwsem", "i_data.invalidate_lock")
# Of one that could run: only what takes long.
LONG = {words for words, _ in DOING[:9]}


@table_row
class TaskWait:
    """A task that waits, or works inside of memory management for long."""

    pid: int = column(key=True, high=MOST_PIDS, help="task, each thread for itself")
    comm: str = column(holds="comm", help="its name")
    cgroup: str | None = column(holds="cgroup", help="its memory cgroup")
    state: str = column(
        holds="words",
        help="D: sleeps, and takes no signal or only one that kills; R: could run, or runs",
    )
    seconds: float | None = column(
        unit="seconds",
        high=MOST_SECONDS,
        help="since it was last put on a CPU: what it ran then is among them",
    )
    doing: str | None = column(
        holds="words", help="what of memory management it is in, by its stack; empty: another part"
    )
    kind: str | None = column(holds="words", help="what it is queued on; empty: not found")
    target: str | None = column(holds="file", help="which lock, page or queue")
    holder_pid: int | None = column(high=MOST_PIDS, help="task that holds it; empty: none is noted")
    holder_comm: str | None = column(holds="comm", help="its name")
    holder_is: str | None = column(
        holds="words", help="owner, writer, or last reader, which may have let it go"
    )
    stack: str | None = column(holds="kernel", help="where it is: root;…;leaf")


TASK_WAITS = Table(
    "task_waits",
    "Tasks that wait in the kernel",
    TaskWait,
    measure="seconds",
    empty="No task waited at that moment.",
    not_compared="it is a state that changes from moment to moment",
)


@table_row
class WaitRoot:
    """What is at the end of chains of tasks that wait for each other."""

    root: str = column(holds="file", key=True, help="the task that waits for no other, or the lock")
    pid: int | None = column(high=MOST_PIDS, help="of the task; empty: no holder is noted")
    comm: str | None = column(holds="comm", help="its name")
    circle: bool = column(help="it waits for one of those that wait for it")
    by_last_reader: bool = column(
        help="a task on the way, or in the circle, is the last reader of a lock, and may have let "
        "it go: others may hold it"
    )
    waiters: int = column(unit="tasks", help="that wait for it, directly or by way of others")
    longest_seconds: float | None = column(
        unit="seconds", high=MOST_SECONDS, help="of the one that waits longest"
    )
    doing: str | None = column(holds="words", help="what of memory management it is in")
    stack: str | None = column(holds="kernel", help="where it is: root;…;leaf")


WAIT_ROOTS = Table(
    "wait_roots",
    "What they wait for in the end",
    WaitRoot,
    measure="waiters",
    empty="No task waited for a lock or page at that moment.",
    not_compared="it is a state that changes from moment to moment",
)


@dataclass(frozen=True, slots=True)
class Tasks:
    """
    All tasks.

    :ivar unread: those that could not be read; :ivar broken_off: a list has no end, or leads
        nowhere.
    """

    addresses: NDArray[np.uint64]
    columns: NDArray[np.void]
    unread: int
    broken_off: bool


def all_tasks(prog: Program, gaps: Gaps) -> Tasks:
    """Every task of ``init_task.tasks`` and of its process's list of threads."""
    type_ = prog.type("struct task_struct")
    head = prog["init_task"].tasks.address_of_().value_()
    leaders, whole = _list(prog, head, offsetof(type_, "tasks"))
    signals = prog.type("struct signal_struct")
    columns, read = read_members(
        prog, np.array(leaders, np.uint64), type_, {"signal": "signal"}, Gaps()
    )
    numbers, known = read_members(
        prog, columns["signal"][read], signals, {"threads": "nr_threads"}, Gaps()
    )
    shared = columns["signal"][read][known][numbers["threads"][known] != 1]
    tasks = list(leaders)
    head_at, link = offsetof(signals, "thread_head"), offsetof(type_, "thread_node")
    for signal in np.unique(shared).tolist():
        threads, ended = _list(prog, signal + head_at, link)
        tasks += threads
        whole &= ended
    addresses = np.unique(np.array(tasks, np.uint64))
    columns, read = read_members(prog, addresses, type_, TASK, gaps)
    return Tasks(addresses[read], columns[read], int(np.count_nonzero(~read)), not whole)


def _list(prog: Program, head: int, link: int) -> tuple[list[int], bool]:
    """The entries of a list, and whether it came back to its head."""
    found: dict[int, None] = {}
    with contextlib.suppress(FaultError):
        node = prog.read_u64(head)
        while node != head and node not in found and len(found) < MAX_TASKS:
            found[node] = None
            node = prog.read_u64(node)
        return [node - link & ADDRESSES for node in found], node == head
    return [node - link & ADDRESSES for node in found], False


def doing(frames: Sequence[str]) -> str | None:
    """Part of memory management that a task is in, by the functions of its stack."""
    names = [BEFORE.sub("", frame) for frame in frames]
    for words, functions in DOING:
        if any(name.startswith(functions) for name in names):
            return words
    return None


def end_of_chain(
    address: int, queued: Mapping[int, Awaited], tasks: Container[int]
) -> tuple[int, bool, bool]:
    """
    Address of the task, or of the lock without a known holder, that a chain ends at; whether it is
    a circle; and whether a last reader is among those that it leads over.

    :param queued: by the address of the task, as *tasks* are.
    """
    over: list[int] = []

    def by_last_reader(those: list[int]) -> bool:
        return any(queued[each].holder_is == LAST_READER for each in those)

    while (found := queued.get(address)) is not None:
        if address in over:
            circle = over[over.index(address) :]
            return min(circle), True, by_last_reader(circle)
        if found.holder is None or found.holder.value_() not in tasks:
            return found.address, False, by_last_reader(over)
        over.append(address)
        address = found.holder.value_()
    return address, False, by_last_reader(over)


class Waits:
    """Waiting tasks of one kernel, and the chains that they form."""

    def __init__(self, prog: Program, gaps: Gaps) -> None:
        self.prog = prog
        self.tasks = all_tasks(prog, gaps)
        self.now = _now(prog)
        self.left_out = 0
        self.frames: dict[int, list[str]] = {}  # by the task's address
        self.pointers: dict[int, int] = {}
        self.bounds: dict[int, range] = {}
        self.places: dict[int, int] = {
            address: at for at, address in enumerate(self.tasks.addresses.tolist())
        }

    def rows(self) -> tuple[list[TaskWait], list[WaitRoot]]:
        """Waiting tasks, those that wait longest first, and the roots of their chains."""
        rows: dict[int, TaskWait] = {}
        queued: dict[int, Awaited] = {}
        state = self.tasks.columns["state"]
        sleeps = ((state & UNINTERRUPTIBLE) != 0) & ((state & NOLOAD) == 0)
        chosen = [*np.flatnonzero(sleeps).tolist(), *np.flatnonzero(state == RUNNING).tolist()]
        self.left_out = max(len(chosen) - MAX_STACKS, 0)
        for at in chosen[:MAX_STACKS]:
            address = int(self.tasks.addresses[at])
            frames = self.stack_of(address)
            does = doing(frames)
            if not sleeps[at] and does not in LONG:
                continue
            task = Object(self.prog, "struct task_struct", address=address).address_of_()
            found = None
            if sleeps[at] and address in self.pointers:
                with contextlib.suppress(FaultError):
                    found = awaited(task, self.pointers[address], frames, self.bounds)
            if found is not None:
                queued[address] = found
            rows[address] = self._row(at, "D" if sleeps[at] else "R", does, found)
        named = self._with_cgroups(rows)
        order = sorted(named.values(), key=lambda row: (-(row.seconds or 0), row.pid))
        return order, self._roots(named, self._still(queued))

    def _still(self, queued: dict[int, Awaited]) -> dict[int, Awaited]:
        """
        The tasks that have slept all the while, as ``check_hung_task()`` (kernel/hung_task.c) tells
        it. On a live host others have gone on, and what was read of them at different moments may
        look like a circle.
        """
        addresses = np.fromiter(queued, np.uint64, len(queued))
        type_ = self.prog.type("struct task_struct")
        now, read = read_members(self.prog, addresses, type_, {"switches": "nvcsw"}, Gaps())
        at_first = self.tasks.columns["switches"][[self.places[address] for address in queued]]
        asleep = read & (now["switches"] == at_first)
        return {address: queued[address] for address in addresses[asleep].tolist()}

    def stack_of(self, address: int) -> list[str]:
        """The functions of a task's stack in the kernel, leaf first; none where it is not known."""
        if address not in self.frames:
            task = Object(self.prog, "struct task_struct", address=address).address_of_()
            if frames := kernel_frames(self.prog, task):
                self.pointers[address] = frames[0].sp
            self.frames[address] = function_names(frames)
        return self.frames[address]

    def _row(self, at: int, state: str, does: str | None, found: Awaited | None) -> TaskWait:
        address, columns = int(self.tasks.addresses[at]), self.tasks.columns[at]
        pid = comm = None
        if found is not None and found.holder is not None:
            pid, comm = self._who(found.holder.value_())
        return TaskWait(
            int(columns["pid"]),
            name_in(columns["comm"].item()),
            None,
            state,
            self._seconds(address),
            does,
            found.kind if found else None,
            self._name(found) if found else None,
            pid,
            comm,
            found.holder_is if found and pid is not None else None,
            folded(self.stack_of(address)),
        )

    def _who(self, address: int) -> tuple[int | None, str | None]:
        at = self.places.get(address)
        if at is None:  # it has ended, or this is no task
            return None, None
        columns = self.tasks.columns[at]
        return int(columns["pid"]), name_in(columns["comm"].item())

    def _seconds(self, address: int) -> float | None:
        with contextlib.suppress(LookupError, FaultError, AttributeError):
            task = Object(self.prog, "struct task_struct", address=address)
            arrived = task.sched_info.last_arrival.value_()
            if arrived and self.now is not None:
                seconds = max(self.now - arrived, 0) / NANOSECONDS
                return round(seconds, 3) if seconds <= MOST_SECONDS else None
        return None

    def _with_cgroups(self, rows: dict[int, TaskWait]) -> dict[int, TaskWait]:
        """The rows with the paths of their tasks' memory cgroups."""
        with contextlib.suppress(LookupError):
            number = self.prog.constant("memory_cgrp_id").value_()
            sets = self.tasks.columns["cgroups"][[self.places[address] for address in rows]]
            wanted, back = np.unique(sets, return_inverse=True)
            css = self._pointers("struct css_set", wanted, f"subsys[{number}]")
            cgroups = self._pointers("struct cgroup_subsys_state", css, "cgroup")
            paths = cgroup_paths(self.prog, cgroups, Gaps())
            return {
                address: replace(row, cgroup=paths[back[at]][0])
                for at, (address, row) in enumerate(rows.items())
            }
        return rows

    def _pointers(self, type_: str, of: NDArray[np.uint64], member: str) -> NDArray[np.uint64]:
        """A member of structures; 0 of those that cannot be read."""
        struct = self.prog.type(type_)
        found, read = read_members(self.prog, of, struct, {"pointer": member}, Gaps())
        return np.where(read, found["pointer"], np.uint64(0))

    def _name(self, found: Awaited) -> str:
        """Name of a lock, by the object or variable that it is in."""
        address = found.address
        with contextlib.suppress(LookupError, FaultError, ValueError):
            if (info := slab_object_info(self.prog, address)) is not None:
                return self._in_object(name_at(info.slab_cache.name), info.address, address)
        with contextlib.suppress(LookupError):
            symbol = self.prog.symbol(address)
            return f"{symbol.name}+{address - symbol.address:#x}".removesuffix("+0x0")
        return hex(address)

    def _in_object(self, cache: str, start: int, address: int) -> str:
        """The name of a lock in an object of a slab cache."""
        mm, inode = self.prog.type("struct mm_struct"), self.prog.type("struct inode")
        if cache == "mm_struct" and address - start == offsetof(mm, "mmap_lock"):
            # CONFIG_MEMCG alone has the owner.
            owner = getattr(Object(self.prog, mm, address=start), "owner", None)
            pid, comm = self._who(owner.value_()) if owner else (None, None)
            return f"mmap_lock of {comm} ({pid})" if pid else f"mmap_lock of mm {start:#x}"
        if cache == "anon_vma":
            return f"anon_vma {start:#x}"
        for lock in INODE_LOCKS:
            with contextlib.suppress(LookupError, FaultError):
                of = Object(self.prog, inode, address=address - offsetof(inode, lock))
                if of.i_data.host.value_() == of.address_:
                    return f"{lock.split('.')[-1]} of inode {of.i_ino.value_()}"
        return f"{cache} {start:#x}+{address - start:#x}"

    def _roots(self, rows: dict[int, TaskWait], queued: dict[int, Awaited]) -> list[WaitRoot]:
        """Follow each queued task to the end of its chain."""
        ends: dict[tuple[int, bool], list[int]] = {}
        doubtful: set[int] = set()
        for address in queued:
            end, circle, by_last_reader = end_of_chain(address, queued, self.places)
            ends.setdefault((end, circle), []).append(address)
            if by_last_reader:
                doubtful.add(end)
        roots = [
            self._root(end, circle, end in doubtful, tasks, rows, queued)
            for (end, circle), tasks in ends.items()
        ]
        return sorted(roots, key=lambda root: (-root.waiters, -(root.longest_seconds or 0)))

    def _root(
        self,
        end: int,
        circle: bool,
        by_last_reader: bool,
        tasks: list[int],
        rows: dict[int, TaskWait],
        queued: dict[int, Awaited],
    ) -> WaitRoot:
        times = [seconds for each in tasks if (seconds := rows[each].seconds) is not None]
        pid, comm = self._who(end)
        frames = self.stack_of(end) if pid is not None else []
        root = f"{comm} ({pid})"
        if pid is None:
            root = next(self._name(each) for each in queued.values() if each.address == end)
        return WaitRoot(
            root,
            pid,
            comm,
            circle,
            by_last_reader,
            len(tasks),
            max(times, default=None),
            doing(frames),
            folded(frames),
        )


def _now(prog: Program) -> int | None:
    """The latest ``rq.clock`` of all CPUs: an idle CPU's stands still (CONFIG_NO_HZ)."""
    with contextlib.suppress(LookupError, FaultError, ValueError):
        return int(max(per_cpu(prog["runqueues"], cpu).clock.value_() for cpu in online_cpus(prog)))
    return None


def from_memory(memory: Memory) -> Found:
    found, gaps = Found(), Gaps()
    waits = Waits(memory.prog, gaps)
    tasks, roots = waits.rows()
    found.add(TASK_WAITS, tasks).add(WAIT_ROOTS, roots)
    if waits.tasks.broken_off:
        found.notes.append(
            "the list of processes, or one of threads, could not be followed to its end"
        )
    if waits.tasks.unread:
        found.notes.append(f"{plural(waits.tasks.unread, 'task')} could not be read")
    if waits.left_out:
        found.notes.append(
            f"{plural(waits.left_out, 'more task')} waited or could run: not looked at"
        )
    found.unreadable_bytes = gaps.bytes
    return found


def sleeping(status: str) -> TaskWait | None:
    """
    The row of a process whose first thread is in D state, from its /proc/PID/status.

    :raises ValueError: the text is damaged.
    """
    parsed = parse_status(status)
    if not parsed.lines.get("State", "").startswith("D"):
        return None
    return TaskWait(parsed.pid, parsed.comm, None, "D", *[None] * 8)


def from_files(files: Files) -> Found:
    rows, notes = rows_of_processes(files, lambda text: [sleeping(text)])
    found = Found().add(TASK_WAITS, [row for (row,) in rows if row is not None])
    found.notes += notes
    found.unlisted.append(
        "threads but the first of each process, stacks, locks and holders: memory alone has them"
    )
    return found


TASK_WAITS_SECTION = Section(
    name="task_waits",
    title="Tasks that wait",
    since="0.3.0",
    tables=(WAIT_ROOTS, TASK_WAITS),
    intro="""
Tasks that sleep in the kernel and take no signal, or only one that kills (D state), and those that
reclaim, compact or are held back: what each is queued on, who holds that, and what stands at the
end of the chain. A task in D state for a moment is nothing unusual; many behind one, for seconds,
are a stall.
""",
    command=Command("who waits for whom", top=TOP),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.STATUS,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
