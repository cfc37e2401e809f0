# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tasks that wait in memory management, what for, and who is at the end of the chain.

Every task (``struct task_struct``, threads too) in D state, and those that could run and are inside
of reclaim, compaction, or another part of memory management that takes long, or are counted as
waiting for memory; each with its stack, what it is queued on (:mod:`~mmscope.drgn.waits.waiters`)
and who holds that. Who reads an mmap_lock or a VMA is known by the page faults on stacks
(:mod:`~mmscope.drgn.waits.faults`). Followed from holder to holder, a chain ends at a task that
waits for no other, at what no task is known to hold, at the server or device that has to finish a
page or a request, or in a circle.

Costs a few reads for each task, and for those with a row a millisecond for the stack, of which
there are :data:`MAX_STACKS` at most. On a live host nothing is stopped: a task may go on while its
stack is read, and a lock change hands; chains are made of tasks that slept all the while, and of
others it is not said what they wait for.

Cannot know: since when a task sleeps. ``seconds`` are since it was last put on a CPU
(``sched_info.last_arrival``, as crash's ``ps -l``), so the time that it ran then is among them. The
stack of a task that runs on a live host; readers of a lock but the last one and those in faults.

The text is /proc/PID/status, which has the state of each process's first thread and no more.
/proc/PID/stack has the stack, but waits itself for the lock of an exec that is under way
(fs/proc/base.c, ``lock_trace()``), so it is not read.
"""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, StackFrame, offsetof
from drgn.helpers.linux.percpu import per_cpu
from numpy.typing import NDArray

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.machine.vm_counters import counter, vm_counters_once
from mmscope.drgn.processes.address_spaces import PF_KTHREAD
from mmscope.drgn.processes.kernel_stacks import (
    folded,
    function_names,
    in_user_space,
    kernel_frames,
)
from mmscope.drgn.processes.open_files import open_files
from mmscope.drgn.processes.process_status import parse_status, rows_of_processes
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import TORN, Columns, Gaps
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.linked_lists import walk_list
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.reclaim.lru_lists import jiffies_a_second
from mmscope.drgn.rmap.rwsem_waiters import LAST_READER
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section, disagreement
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column
from mmscope.drgn.tables.table import MOMENT, table, table_of, tables_of
from mmscope.drgn.waits.awaited_names import Names
from mmscope.drgn.waits.faults import Fault, fault_of
from mmscope.drgn.waits.fuse import SERVER, FuseConnection, Server, connection_row
from mmscope.drgn.waits.reclaim_threads import (
    IN_D,
    MOST_SECONDS,
    OomVictim,
    ReclaimThread,
    reaped,
    stacks_unlike,
    thread_state,
    threads,
)
from mmscope.drgn.waits.reclaiming import (
    DEF_PRIORITY,
    MOST_ORDER,
    PF_MEMALLOC,
    Reclaiming,
    reclaiming,
)
from mmscope.drgn.waits.spins import SPINLOCK
from mmscope.drgn.waits.stacks import Shared, stack_from
from mmscope.drgn.waits.waiters import Awaited, awaited
from mmscope.drgn.waits.writeback import WritebackDevice, writeback_devices

MAX_STACKS = 1000
MAX_TASKS = MOST_PIDS
# include/linux/sched.h
RUNNING, INTERRUPTIBLE, DEAD, NOLOAD = 0, 1, 0x80, 0x400
NANOSECONDS = 1_000_000_000

TASK: Columns = {
    # "sched: Change task_struct::state" (2f064a59a11f, in v5.14)
    "state": ("__state", "state"),
    "pid": "pid",
    "comm": "comm",
    "cgroups": "cgroups",
    "switches": "nvcsw",
    "mm": "mm",
    "signal": "signal",
    "flags": "flags",
}
# What a task does, by a function on its stack: the first that fits, from 5.10 to 7.3.
DOING = (
    ("kills for lack of memory", ("out_of_memory", "oom_kill_process")),
    ("is held back at memory.high", ("mem_cgroup_handle_over_high",)),
    ("is held back by dirty pages", ("balance_dirty_pages",)),
    ("is held back in reclaim", ("reclaim_throttle", "throttle_direct_reclaim", "wait_iff_cong")),
    ("reclaims from a cgroup", ("try_to_free_mem_cgroup_pages",)),
    ("reclaims", ("try_to_free_pages", "node_reclaim", "shrink_node", "shrink_slab")),
    ("compacts", ("compact_zone", "try_to_compact_pages")),
    ("drains per-CPU lists", ("drain_all_pages", "lru_add_drain_all")),
    ("migrates pages", ("migrate_pages",)),
    ("reads from swap", ("swap_page", "swapin_readahead")),
    ("exits", ("exit_mmap", "mmput")),
    ("waits for a FUSE server", ("request_wait_answer",)),
    ("is stopped", ("signal_stop", "jobctl_trap", "ptrace_stop")),
    ("is frozen", ("freezer_trap", "refrigerator")),
    ("waits for an NFS server", ("rpc_wait_bit", "nfs_wait", "nfs_lock_and_join", "rpc_wait_for")),
    ("waits for a page of userfaultfd", ("handle_userfault",)),
    ("faults", ("handle_mm_fault", "user_addr_fault", "page_fault", "exc_page_fault")),
    ("changes mappings", ("mprotect", "mmap_region", "munmap", "vm_mmap", "vm_munmap")),
    ("changes mappings", ("madvise", "mremap", "brk", "dup_mmap", "vmi_munmap")),
    ("writes back", ("writeback_sb_inodes", "wb_workfn", "writepages")),
    ("waits for a page", ("folio_wait_bit", "wait_on_page_bit", "folio_lock", "lock_page")),
    ("allocates", ("alloc_pages", "alloc_frozen_pages")),
)
# What a function's name begins with that a system call, or an inner part of it, is given.
BEFORE = re.compile(r"^_*(?:(?:x64|arm64|se)_sys_|do_sys_|sys_)?(?:do_)?_*")
# Of one that could run: only what takes long.
LONG = {words for words, _ in DOING[:9]}
READER = "reader, in a fault"
MOST_NAMED = 8  # tasks that may have a spinlock: more are no help
AGAIN_SECONDS = 1.0  # after which what seems to have no holder is looked at again
# A task that lets a lock go, or wakes one that waits for it: for a moment no task has the lock.
LETS_GO = re.compile(r"mutex_unlock|^_*up_(read|write)|rwsem_wake|^wake_up|^try_to_wake_up")


@table(
    "task_waits",
    "Tasks that wait in the kernel",
    measure="seconds",
    empty="No task waited at that moment.",
    not_compared=MOMENT,
)
class TaskWait:
    """A task that waits, or works in memory management for long."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread")
    comm: str = column(holds="comm", help="name of the process")
    cgroup: str | None = column(holds="cgroup", help="its memory cgroup")
    state: str = column(
        holds="words",
        help="D: sleeps, takes no signal or only fatal ones; R: runnable; S: sleeps, and holds a "
        "lock or waits for a FUSE server",
    )
    seconds: float | None = column(
        unit="seconds",
        high=MOST_SECONDS,
        help="since it was last put on a CPU",
    )
    doing: str | None = column(
        holds="words", help="part of memory management, by its stack; empty: another"
    )
    kind: str | None = column(holds="words", help="what it is queued on; empty: unknown")
    target: str | None = column(holds="file", help="lock, page or queue")
    holder_pid: int | None = column(high=MOST_PIDS, help="task holding it; empty: none is recorded")
    holder_comm: str | None = column(holds="comm", help="name of the process")
    holder_is: str | None = column(
        holds="words",
        help="owner, writer, reader in a fault, last reader (may have released it), or FUSE server "
        "(owes an answer)",
    )
    finished_by: str | None = column(
        holds="file", help="device or server that has to finish it, as in wait_roots"
    )
    for_memory: bool | None = column(
        help="counted by the kernel as waiting for memory (/proc/pressure/memory); empty: not "
        "counted"
    )
    stack: str | None = column(holds="kernel", help="where it is: root;…;leaf")
    reclaims_from: str | None = column(
        holds="cgroup", default=None, help="cgroup whose memory it reclaims; /: any memory"
    )
    zones: str | None = column(
        holds="words", default=None, help="that it reclaims from, or compacts; empty: neither"
    )
    order: int | None = column(
        default=None, high=MOST_ORDER, help="of the block that it reclaims or compacts for"
    )
    priority: int | None = column(
        default=None,
        high=DEF_PRIORITY,
        help="of its reclaim: scans 1/2^priority of LRU lists; 0: all, its last try",
    )
    reclaimed_pages: int | None = column(
        default=None, unit="pages", high=MOST, help="freed so far by this call"
    )


@table(
    "wait_roots",
    "What they wait for in the end",
    measure="waiters",
    empty="No task waited for a lock or page at that moment.",
    not_compared=MOMENT,
)
class WaitRoot:
    """The end of chains of waiting tasks."""

    root: str = column(
        holds="file", key=True, help="task that waits for no other, or lock that no task holds"
    )
    kind: str = column(holds="words", help="task, device or server, or what else it is")
    pid: int | None = column(
        high=MOST_PIDS,
        help="of the task, else of its only direct waiter; empty: several",
    )
    comm: str | None = column(holds="comm", help="name of the process")
    circle: bool = column(help="it waits for one of its own waiters")
    by_last_reader: bool = column(
        help="a link is a lock's last reader, which may have released it: others may hold it"
    )
    waiters: int = column(unit="tasks", help="direct and indirect waiters")
    unsure_waiters: int = column(
        unit="tasks", help="of these, those whose chain has such a last reader"
    )
    longest_seconds: float | None = column(
        unit="seconds", high=MOST_SECONDS, help="longest wait among them"
    )
    lock: str = column(holds="file", help="what most direct waiters are queued on")
    lock_waiters: int = column(unit="tasks", help="queued on that")
    seconds: float | None = column(unit="seconds", high=MOST_SECONDS, help="since pid last ran")
    doing: str | None = column(holds="words", help="part of memory management that pid is in")
    no_holder: bool = column(help="no task holds it although waiters sleep on it")
    why: str | None = column(holds="words", help="why no holder is named; empty: it is a task")
    stack: str | None = column(holds="kernel", help="of pid: root;…;leaf")


@dataclass(frozen=True, slots=True)
class Tasks:
    """
    All tasks.

    :ivar victims: of processes that the OOM killer chose: their mm, by the task's address.
    :ivar unread: those that could not be read; :ivar broken_off: a list has no end, or leads
        nowhere.
    """

    addresses: NDArray[np.uint64]
    columns: NDArray[np.void]
    unread: int
    broken_off: bool
    victims: dict[int, int]


def all_tasks(prog: Program, gaps: Gaps) -> Tasks:
    """Every task of ``init_task.tasks`` and of its process's list of threads."""
    type_, signals = prog.type("struct task_struct"), prog.type("struct signal_struct")
    head = prog["init_task"].tasks.address_of_().value_()
    leaders, whole = walk_list(prog, head, offsetof(type_, "tasks"), MAX_TASKS)
    first = np.unique(np.array(leaders, np.uint64))
    columns, read = read_members(prog, first, type_, TASK, gaps)
    numbers, known = read_members(
        *(prog, columns["signal"], signals),
        *({"threads": "nr_threads", "oom_mm": "oom_mm"}, Gaps()),
    )
    mms = np.where(known, numbers["oom_mm"], np.uint64(0))
    victims = {int(first[at]): int(mms[at]) for at in np.flatnonzero(mms)}
    threads: list[int] = []
    head_at, link = offsetof(signals, "thread_head"), offsetof(type_, "thread_node")
    for at in np.flatnonzero(known & (numbers["threads"] != 1)).tolist():
        signal = int(columns["signal"][at])
        members, ended = walk_list(prog, signal + head_at, link, MAX_TASKS)
        threads += members
        victims |= dict.fromkeys(members, int(mms[at])) if mms[at] else {}
        whole &= ended
    others = np.setdiff1d(np.array(threads, np.uint64), first)
    more, also = read_members(prog, others, type_, TASK, gaps)
    addresses, columns = np.concatenate((first, others)), np.concatenate((columns, more))
    order = np.argsort(addresses)
    order = order[np.concatenate((read, also))[order]]
    unread = len(addresses) - len(order)
    return Tasks(addresses[order], columns[order], unread, not whole, victims)


def doing(frames: Sequence[str]) -> str | None:
    """Part of memory management that a task is in, by the functions of its stack."""
    return _doing(tuple(frames))


@lru_cache(1024)  # in a convoy most stacks are alike
def _doing(frames: tuple[str, ...]) -> str | None:
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
            return found.end, False, by_last_reader(over)
        over.append(address)
        address = found.holder.value_()
    return address, False, by_last_reader(over)


@dataclass(frozen=True, slots=True)
class Seen:
    """A task that was looked at: its state, what it does, what it is queued on, how far it is."""

    state: str
    doing: str | None
    awaited: Awaited | None
    reclaims: Reclaiming | None


class Waits:
    """Waiting tasks of one kernel, and the chains that they form."""

    def __init__(self, memory: Memory, gaps: Gaps) -> None:
        self.memory, self.prog = memory, memory.prog
        prog = memory.prog
        self.tasks = all_tasks(prog, gaps)
        self.now = _now(prog)
        self.left_out = self.moved = 0
        self.lost_devices: list[str] = []  # why they could not be read
        self.asked: tuple[float, int] | None = None  # when, for a lock without holder: jiffies
        self.frames: dict[int, list[str]] = {}  # by the task's address
        self.pointers: dict[int, int] = {}
        self.leaves: dict[int, StackFrame] = {}
        self.faults: dict[int, Fault] = {}
        self.shared = Shared()
        self.reclaimed: dict[int, str] = {}  # paths of cgroups, by struct mem_cgroup
        self.owed: dict[int, set[int]] = {}  # tasks that wait for a FUSE server, by fuse_conn
        self.servers: dict[int, int | None] = {}
        self.names = Names(prog, self.named)
        self.places: dict[int, int] = {
            address: at for at, address in enumerate(self.tasks.addresses.tolist())
        }

    def rows(self) -> tuple[list[TaskWait], list[WaitRoot]]:
        """Waiting tasks, those that wait longest first, and the roots of their chains."""
        state = self.tasks.columns["state"]
        sleeps = ((state & IN_D) != 0) & ((state & NOLOAD) == 0)
        chosen = [*np.flatnonzero(sleeps).tolist(), *np.flatnonzero(state == RUNNING).tolist()]
        self.left_out = max(len(chosen) - MAX_STACKS, 0)
        wanted = {
            int(self.tasks.addresses[at]): "D" if sleeps[at] else "R" for at in chosen[:MAX_STACKS]
        }
        wanted |= {a: "S" for a in self._asking() if a not in wanted}
        seen: dict[int, Seen] = {}
        queued: dict[int, Awaited] = {}
        # Who holds what these wait for may sleep in another way, and wait itself.
        while wanted and len(seen) < 2 * MAX_STACKS:
            found = {address: self._look_at(address, state) for address, state in wanted.items()}
            seen |= found
            new = {a: each.awaited for a, each in found.items() if each.awaited is not None}
            # Of those that slept all the while, as check_hung_task() (kernel/hung_task.c) tells it:
            # what was read of others at different moments may look like a circle.
            still = self._unmoved(new)
            self.moved += len(new) - len(still)
            queued |= self._with_servers(
                self._with_readers({a: each for a, each in new.items() if a in still})
            )
            holders = {each.holder.value_() for each in queued.values() if each.holder is not None}
            wanted = dict.fromkeys(filter(self._is_asleep, holders - set(seen)), "S")
        rows = {
            address: self._row(address, each, queued.get(address))
            for address, each in seen.items()
            if each.state == "D"
            or each.doing in LONG
            or each.reclaims is not None
            or address in queued
            or self._for_memory(address)
        }
        named = self._with_cgroups(rows)
        order = sorted(named.values(), key=lambda row: (-(row.seconds or 0), row.pid))
        return order, self._roots(named, queued)

    def _is_asleep(self, address: int) -> bool:
        """True of a task that sleeps and takes signals."""
        at = self.places.get(address)
        # Beside it may be TASK_FREEZABLE.
        return at is not None and bool(self.tasks.columns["state"][at] & INTERRUPTIBLE)

    def _asking(self) -> list[int]:
        """Tasks that sleep and take signals, and whose request a FUSE server has not answered."""
        pids = {
            request.pid for each in self.names.connections.values() for request in each.requests
        }
        at = np.flatnonzero(np.isin(self.tasks.columns["pid"], [*pids - {0}])).tolist()
        return list(filter(self._is_asleep, self.tasks.addresses[at].tolist()))

    def _look_at(self, address: int, state: str) -> Seen:
        frames = self.stack_of(address)
        found = None
        if address in self.pointers:
            with contextlib.suppress(FaultError, LookupError):
                stack = stack_from(self._task(address), self.pointers[address], self.shared)
                if stack is not None and (fault := fault_of(stack, frames)) is not None:
                    self.faults[address] = fault
                if stack is not None and state != "R":
                    found = awaited(stack, frames)
                elif stack is not None and address in self.on_cpus:
                    found = self.names.spins.spun_for(self.leaves[address])
        reclaims = self._reclaims(address)
        does = doing(frames)
        if reclaims is not None and not frames:  # it runs, on a live kernel
            does = reclaims.doing
        return Seen(state, does, found, reclaims)

    def _reclaims(self, address: int) -> Reclaiming | None:
        at = self.places[address]
        works = self.tasks.columns["flags"][at] & PF_MEMALLOC
        return reclaiming(self._task(address), self.reclaimed) if works else None

    def _task(self, address: int) -> Object:
        """``struct task_struct *``."""
        return Object(self.prog, "struct task_struct", address=address).address_of_()

    def _unmoved(self, tasks: Iterable[int]) -> set[int]:
        """Tasks that are still in the state, and at the switch, in which they were at first."""
        addresses = np.fromiter(tasks, np.uint64)
        type_ = self.prog.type("struct task_struct")
        wanted = {name: TASK[name] for name in ("state", "switches")}
        now, read = read_members(self.prog, addresses, type_, wanted, Gaps())
        first = self.tasks.columns[[self.places[address] for address in addresses.tolist()]]
        same = read & (now["state"] == first["state"]) & (now["switches"] == first["switches"])
        return set(addresses[same].tolist())

    def _with_readers(self, queued: dict[int, Awaited]) -> dict[int, Awaited]:
        """Name readers of what is read, where they are in a page fault with it."""
        read = {found.address for found in queued.values() if found.readers}
        self._look_for_faults(queued)
        readers: dict[int, list[int]] = {}
        for address in sorted(self._unmoved(self.faults), key=self._pid):
            fault = self.faults[address]
            with contextlib.suppress(FaultError, LookupError):
                if fault.holds and (lock := fault.lock) in read:
                    readers.setdefault(lock, []).append(address)
                    if fault.by_vma:
                        self.names.vmas[lock] = fault.vma
        result = {}
        for address, found in queued.items():
            known = readers.get(found.address, []) if found.readers else []
            last = found.holder.value_() if found.holder is not None else None
            if known and found.holder_is in (None, LAST_READER):
                chosen = last if last in known else known[0]
                found = replace(found, holder=self._task(chosen), holder_is=READER)
            result[address] = found
        return result

    def _look_for_faults(self, queued: Mapping[int, Awaited]) -> None:
        """Look at the tasks of the processes whose locks are read, whatever state they are in."""
        offset = offsetof(self.prog.type("struct mm_struct"), "mmap_lock")
        mms, read = self.tasks.columns["mm"], [a for a, each in queued.items() if each.readers]
        wanted = {int(mms[self.places[address]]) for address in read}
        wanted |= {queued[address].address - offset for address in read}
        for at in np.flatnonzero(np.isin(mms, [*wanted - {0}])).tolist():
            address = int(self.tasks.addresses[at])
            if address not in self.frames and len(self.frames) < 2 * MAX_STACKS:
                self._look_at(address, "R")

    def _with_servers(self, queued: dict[int, Awaited]) -> dict[int, Awaited]:
        """Name the FUSE server that owes an answer or pages, or what else is written to."""
        result = {}
        for address, found in queued.items():
            if found.holder is None and (conn := self.names.owed_by(found)) is not None:
                self.owed.setdefault(conn, set()).add(address)
                if (server := self._server(conn)) is not None:
                    found = replace(found, holder=self._task(server), holder_is=SERVER)
            if found.holder is None and (bdi := self.names.finished_by(found)):
                found = replace(found, bdi=bdi)
            result[address] = found
        return result

    def _server(self, conn: int) -> int | None:
        """The task that stands for a server: of its threads the first, or one that could answer."""
        if conn not in self.servers:
            self.servers[conn] = self._find_server(conn)
        return self.servers[conn]

    def _find_server(self, conn: int) -> int | None:
        connection = self.names.connections.get(conn)
        if connection is None:
            return None
        idle = [task for task in connection.idle if task in self.places]
        if idle:
            first = self._task(idle[0]).group_leader.value_()
        else:
            opened = open_files(self.memory)
            # Of the pointer a bit may be set: FUSE_DEV_SYNC_INIT (fs/fuse/fuse_dev_i.h).
            data = opened.files["private_data"] & ~np.uint64(7)
            has = np.flatnonzero(np.isin(data, np.array([*connection.devices], np.uint64)))
            first_file = opened.files["process"][has[:1]].tolist()
            pid = opened.processes[first_file[0]].pid if first_file else None
            found = self.tasks.addresses[self.tasks.columns["pid"] == (pid or -1)].tolist()
            first = found[0] if found else None
        if first not in self.places:
            return None
        columns = self.tasks.columns
        same = columns["mm"] == columns["mm"][self.places[first]]
        able = self.tasks.addresses[same & (columns["state"] & IN_D == 0)].tolist()
        return first if first in able or not able else int(able[0])

    def fuse_connections(self) -> list[FuseConnection]:
        """FUSE servers that owe answers, those that owe most first."""
        rows = []
        for conn, connection in self.names.connections.items():
            server: Server = (None, None, None, None)
            owed = self.owed.get(conn, set())
            times = [seconds for each in owed if (seconds := self._seconds(each)) is not None]
            task = self._server(conn) if owed or connection.idle else None
            if task is not None:
                first = self._task(task).group_leader.read_()
                frames = self.stack_of(first.value_())
                server = (*self.named(first.value_()), thread_state(first), doing(frames))
            name, supers = self.names.file_system(connection.place), self.names.supers
            told = (server, len(owed), max(times, default=None))
            rows.append(connection_row(connection, supers, name, *told))
        return sorted(rows, key=lambda row: (-row.waiting, row.device))

    def reclaim_threads(self) -> list[ReclaimThread]:
        """kswapd and kcompactd of each node, and the OOM reaper."""
        reapers = np.flatnonzero(self.tasks.columns["comm"] == b"oom_reaper").tolist()
        found = [
            *threads(self.prog),
            *((self._task(int(self.tasks.addresses[at])), *(None,) * 4) for at in reapers),
        ]
        rows = []
        for task, node, order, failures, zone in found:
            frames, now = self.stack_of(task.value_()), reclaiming(task, self.reclaimed)
            comm = name_in(task.comm.string_())
            state, does = thread_state(task), doing(frames)
            if now is not None:
                zone, order, does = now.zones, now.order, does or now.doing
            own = (node, state, order, failures, does, folded(frames), zone)
            more = (now.priority, now.pages) if now else ()
            rows.append(ReclaimThread(task.pid.value_(), comm, *own, *more))
        return rows

    def nameless_threads(self, known: Collection[int]) -> list[str]:
        """In words, threads that reclaim by their names, and that no node has; of a dump."""
        comms = self.tasks.columns["comm"]
        named = np.char.startswith(comms, b"kswapd") | np.char.startswith(comms, b"kcompactd")
        every = (self._task(int(self.tasks.addresses[at])) for at in np.flatnonzero(named))
        names = [
            name_in(task.comm.string_())
            for task in every
            if task.flags & PF_KTHREAD and task.pid.value_() not in known
        ]
        found = [f"no node says that it has {', '.join(names)}"] if names else []
        return found if (comms == b"oom_reaper").any() else [*found, "no task is the OOM reaper"]

    def oom_victims(self, waits: Sequence[TaskWait]) -> list[OomVictim]:
        """Tasks of processes that the OOM killer chose."""
        by_pid = {row.pid: row for row in waits}
        rows = []
        for address, mm in self.tasks.victims.items():
            if address not in self.places:
                continue
            pid, comm = self.named(address)
            row, frames = by_pid.get(pid or 0), self.stack_of(address)
            state = thread_state(self._task(address))
            gone = reaped(Object(self.prog, "struct mm_struct *", mm))
            queued = (row.kind, row.target, row.holder_pid, row.holder_comm) if row else (None,) * 4
            own = (row.cgroup if row else None, state, self._seconds(address), gone, doing(frames))
            rows.append(OomVictim(pid or 0, comm or "", *own, *queued, folded(frames)))
        return sorted(rows, key=lambda row: (-(row.seconds or 0), row.pid))

    def writeback_devices(self, waits: Sequence[TaskWait]) -> list[WritebackDevice]:
        """Dirty memory by device or server."""
        held = Counter(row.target for row in waits if row.kind == "dirty pages")
        threshold = None
        with contextlib.suppress(*TORN):
            threshold = counter(vm_counters_once(self.memory), "nr_dirty_threshold")
        told = (self.names.device, lambda name: held[name], self.lost_devices)
        return writeback_devices(self.prog, *told, threshold)

    def stack_of(self, address: int) -> list[str]:
        """The functions of a task's stack in the kernel, leaf first; none where it is not known."""
        if address not in self.frames:
            if frames := kernel_frames(self.prog, self._task(address)):
                self.pointers[address], self.leaves[address] = frames[0].sp, frames[0]
            self.frames[address] = function_names(frames)
        return self.frames[address]

    def _pid(self, address: int) -> int:
        return int(self.tasks.columns["pid"][self.places[address]])

    def _row(self, address: int, seen: Seen, found: Awaited | None) -> TaskWait:
        pid = comm = None
        if found is not None and found.holder is not None:
            pid, comm = self.named(found.holder.value_())
        own, name = self.named(address)
        return TaskWait(
            own or 0,
            name or "",
            None,
            seen.state,
            self._seconds(address),
            seen.doing,
            found.kind if found else None,
            self.names.of(found) if found else None,
            pid,
            comm,
            found.holder_is if found and pid is not None else None,
            self.names.device(found.bdi) if found and found.bdi else None,
            self._for_memory(address),
            folded(self.stack_of(address)),
            *(astuple(seen.reclaims) if seen.reclaims else ()),
        )

    def _for_memory(self, address: int) -> bool | None:
        """``task_struct.in_memstall`` (CONFIG_PSI), which psi_memstall_enter() sets."""
        with contextlib.suppress(FaultError, AttributeError):
            return bool(self._task(address).in_memstall)
        return None

    def named(self, address: int) -> tuple[int | None, str | None]:
        """pid and comm of a task by its address; None where it is not one of them."""
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

    def _roots(self, rows: dict[int, TaskWait], queued: dict[int, Awaited]) -> list[WaitRoot]:
        """Follow each queued task to the end of its chain."""
        ends: dict[tuple[int, bool], list[int]] = {}
        doubtful: Counter[int] = Counter()
        for address in queued:
            end, circle, by_last_reader = end_of_chain(address, queued, self.places)
            ends.setdefault((end, circle), []).append(address)
            doubtful[end] += by_last_reader
        roots = [
            self._root(end, (circle, doubtful[end]), tasks, rows, queued)
            for (end, circle), tasks in ends.items()
        ]
        return sorted(roots, key=lambda root: (-root.waiters, -(root.longest_seconds or 0)))

    def _root(
        self,
        end: int,
        said: tuple[bool, int],
        tasks: list[int],
        rows: dict[int, TaskWait],
        queued: dict[int, Awaited],
    ) -> WaitRoot:
        times = [seconds for each in tasks if (seconds := rows[each].seconds) is not None]
        locks = Counter(rows[each].target or "" for each in tasks)
        (lock, count), *_ = locks.most_common(1)
        # Of a lock of PREEMPT_RT others wait for the one that waits for its readers.
        direct = [each for each in tasks if queued[each].end == end and self._last(queued[each])]
        last = end if end in self.places else direct[0] if len(direct) == 1 else None
        kind, root, why, no_holder = "task", "", None, False
        if end not in self.places:
            found = queued[direct[0]]
            if found.bdi:
                kind, root = "device or server", self.names.device(end)
                why = self._why_unfinished(end, {queued[each].kind for each in direct})
            else:
                kind, root = found.kind.partition(",")[0], self.names.of(found)
                why, no_holder = self.why(found, queued, direct)
        pid, comm = self.named(last) if last is not None else (None, None)
        frames = self.stack_of(last) if last is not None else []
        return WaitRoot(
            root or f"{comm} ({pid})",
            kind,
            pid,
            comm,
            *(said[0], said[1] > 0, len(tasks), said[1]),
            max(times, default=None),
            lock,
            count,
            self._seconds(last) if last is not None else None,
            doing(frames),
            no_holder,
            why,
            folded(frames),
        )

    def _last(self, found: Awaited) -> bool:
        """True where a chain ends: no task that is there holds it."""
        return found.holder is None or found.holder.value_() not in self.places

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
        others = [a for a in self.on_cpus if self.stack_of(a) and a not in direct]
        if not 0 < len(others) <= MOST_NAMED or not self._all_known(sorted(self.on_cpus)):
            return words
        names = ", ".join(sorted(f"{comm} ({pid})" for pid, comm in map(self.named, others)))
        return f"{words}; on CPUs, in the kernel and not spinning for it: {names}"

    def _why_unfinished(self, bdi: int, kinds: Container[str]) -> str:
        """Reason why tasks wait for a device or server."""
        words = {
            "RPC": "requests to it are unanswered",
            "writeback": "pages on their way to it are not written yet",
            "dirty pages": "who makes pages of it dirty sleeps until enough are written",
        }
        said = [text for kind, text in words.items() if kind in kinds]
        if self.names.is_suspended(bdi):
            said.insert(0, "it is suspended, by the device mapper")
        return "; ".join(said)

    def _why_free(self, found: Awaited, queued: Container[int]) -> tuple[str, bool]:
        """Reason why no task has a lock that tasks wait for."""
        # One that was woken takes it next; one that is not read here may have been.
        if not found.queue or not all(task in queued for task in found.queue):
            return "free by now: one of those in its queue was woken, or was not seen", False
        running = [address for address in self.frames if self._runs(address)]
        if any(LETS_GO.search(name) for each in running for name in self.frames[each]):
            return "free by now: a task may be handing it over", False
        if self.left_out or self.tasks.unread or self.tasks.broken_off:
            return "free, though those in its queue sleep; not every task was looked at", False
        if not (self.lasts(found) if self.memory.live else self._all_known(running)):
            return "free by now: a task that runs may be handing it over", False
        one = len(found.queue) == 1
        words = f"free, though the {plural(len(found.queue), 'task')} in its queue"
        words += " sleeps: it" if one else " sleep: one"
        return f"{words} should have been woken", True

    def _all_known(self, running: Sequence[int]) -> bool:
        """True if of each of these tasks it is known what of the kernel's it runs."""
        return all(self.frames[each] or self._in_user_space(each) for each in running)

    def lasts(self, found: Awaited) -> bool:
        """
        True if, a second after it was first asked, those that wait have slept all the while, and
        what they wait for is as it was.

        The stack of a task that runs is not known on a live kernel: it may be letting a lock go,
        for as long as its CPU is the hypervisor's.
        """
        try:
            now = self.prog["jiffies_64"]
            if self.asked is None:
                self.asked = time.monotonic(), int(now.value_())
            begin, ticks = self.asked
            time.sleep(max(begin + AGAIN_SECONDS - time.monotonic(), 0))
            # In a guest that is stopped, or gets no CPU, nothing moves.
            ran = int(now.value_()) - ticks >= AGAIN_SECONDS / 2 * (
                jiffies_a_second(self.prog) or 1
            )
        except (FaultError, LookupError):
            return False
        known = ran and self._unmoved(found.queue) == found.queue
        return known and all(self._still(found, task) for task in found.queue)

    def _still(self, found: Awaited, task: int) -> bool:
        """True if a task waits for the same, in the same state."""
        with contextlib.suppress(FaultError, LookupError):
            stack = stack_from(self._task(task), self.pointers[task], Shared())
            if stack is not None and (again := awaited(stack, self.frames[task])) is not None:
                before, now = ((e.address, e.is_free, e.readers) for e in (found, again))
                return before == now
        return False

    def _why_read(self, found: Awaited, direct: Sequence[int]) -> tuple[str, bool]:
        """Reason why no reader of a VMA is named: none is in a fault that was found."""
        words = plural(found.readers, "reference")
        if len(self.places) > MAX_STACKS or self.tasks.unread or self.tasks.broken_off:
            return f"{words}; not every task was looked at", False
        own = {address for address in self.places if self._has(address, found.address)}
        gone = self.tasks.columns["state"] & DEAD != 0
        bare = [each for each, at in self.places.items() if not (self.frames[each] or gone[at])]
        if unknown := [each for each in bare if not self._in_user_space(each)]:
            return f"{words}; the stack of {plural(len(unknown), 'task')} is not known", False
        names = sorted(f"{comm} ({pid})" for pid, comm in map(self.named, own.difference(direct)))
        if names:
            return f"{words}; on the stack of {', '.join(names[:3])}", False
        if self.memory.live and not self.lasts(replace(found, queue=frozenset(direct))):
            return f"{words}, which may be gone", False
        words += f", and none of {plural(len(self.places), 'task')} has the VMA on its stack"
        return f"{words}: lost, or kept by what is no task", True

    def _has(self, address: int, word: int) -> bool:
        """True if a task has a word on its stack."""
        self.stack_of(address)
        with contextlib.suppress(FaultError, LookupError):
            if (pointer := self.pointers.get(address)) is not None:
                stack = stack_from(self._task(address), pointer, self.shared)
                return stack is not None and bool((stack.words == np.uint64(word)).any())
        return False

    def _in_user_space(self, address: int) -> bool:
        return in_user_space(self.prog, self._task(address))

    @cached_property
    def on_cpus(self) -> set[int]:
        """Tasks that CPUs run, but for their idle ones; none where that is not known."""
        with contextlib.suppress(FaultError, LookupError, ValueError):
            queues, cpus = self.prog["runqueues"], online_cpus(self.prog)
            now = {per_cpu(queues, cpu).curr.value_() for cpu in cpus}
            return now & self.places.keys()
        return set()

    def _runs(self, address: int) -> bool:
        return bool(self.tasks.columns["state"][self.places[address]] == RUNNING)


def _now(prog: Program) -> int | None:
    """The latest ``rq.clock`` of all CPUs: an idle CPU's stands still (CONFIG_NO_HZ)."""
    with contextlib.suppress(LookupError, FaultError, ValueError):
        return int(max(per_cpu(prog["runqueues"], cpu).clock.value_() for cpu in online_cpus(prog)))
    return None


def from_memory(memory: Memory) -> Found:
    found, gaps = Found(), Gaps()
    waits = Waits(memory, gaps)
    tasks, roots = waits.rows()
    found.add(WaitRoot, roots).add(TaskWait, tasks)
    more: tuple[tuple[type[Any], Callable[[], list[Any]]], ...] = (
        (OomVictim, lambda: waits.oom_victims(tasks)),
        (ReclaimThread, waits.reclaim_threads),
        (WritebackDevice, lambda: waits.writeback_devices(tasks)),
        (FuseConnection, waits.fuse_connections),
    )
    for row, read in more:
        try:
            found.add(row, read())
        except TORN as error:
            found.notes.append(f"{table_of(row).title}: {error}")
    # As kswapd_run() and kcompactd_run() name them.
    wrong = [
        row
        for row in found.by_name.get(table_of(ReclaimThread).name, [])
        if row.node is not None and row.comm not in (f"kswapd{row.node}", f"kcompactd{row.node}")
    ]
    if wrong:
        words = f"a thread that reclaims for node {wrong[0].node} is called {wrong[0].comm!r}"
        found.notes.append(words)
    if not memory.live:
        rows = found.by_name.get(table_of(ReclaimThread).name, [])
        found.notes += waits.nameless_threads({row.pid for row in rows})
        # All but the idle tasks (copy_process(), kernel/fork.c).
        if (said := int(memory.prog["nr_threads"])) != (number := len(waits.tasks.addresses)):
            found.notes.append(f"{plural(number, 'task')} were found, nr_threads says {said:,}")
        found.notes += stacks_unlike(found.by_name.get(table_of(ReclaimThread).name, []))
    if any(row.reaped is None for row in found.by_name.get(table_of(OomVictim).name, [])):
        found.notes.append("the memory of an OOM victim, signal_struct.oom_mm, could not be read")
    if waits.lost_devices:
        words = plural(
            len(waits.lost_devices), "device that writes back", "devices that write back"
        )
        disagreement(memory, found, f"{words} could not be read: {waits.lost_devices[0]}")
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
    if waits.moved:
        found.remarks.append(
            f"{plural(waits.moved, 'task')} went on while they were read: what they waited for is "
            "left out"
        )
    if unread := waits.names.unread_connections:
        found.notes.append(f"{plural(unread, 'FUSE connection')} could not be read")
    if waits.names.fuse_unknown:
        found.unlisted.append("what FUSE servers owe: the types of their module are not known")
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
    return TaskWait(parsed.pid, parsed.comm, None, "D", *[None] * 10)


def from_files(files: Files) -> Found:
    rows, notes = rows_of_processes(files, lambda text: [sleeping(text)])
    found = Found().add(TaskWait, [row for (row,) in rows if row is not None])
    found.notes += notes
    found.unlisted.append(
        "threads but the first of each process, stacks, locks and holders: memory alone has them"
    )
    return found


TASK_WAITS_SECTION = Section(
    name="task_waits",
    title="Tasks that wait",
    since="0.3.0",
    tables=tables_of(
        *(WaitRoot, TaskWait, OomVictim, ReclaimThread, WritebackDevice, FuseConnection)
    ),
    intro="""
Tasks that sleep in the kernel and take no signal, or only one that kills (D state), and those that
reclaim, compact or are held back: what each is queued on, who holds that, and what stands at the
end of the chain. A task in D state for a moment is nothing unusual; many behind one, for seconds,
are a stall ([kernel documentation: lock types](https://docs.kernel.org/locking/locktypes.html)).
""",
    command=Command("who waits for whom", top=TOP),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.STATUS,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
