# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waiting tasks, what each is queued on, who holds that, and where these chains end."""

import contextlib
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from drgn import FaultError, Object, offsetof
from numpy.typing import NDArray

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.machine.vm_counters import counter, vm_counters_once
from mmscope.drgn.processes.address_spaces import PF_KTHREAD
from mmscope.drgn.processes.kernel_stacks import folded
from mmscope.drgn.processes.open_files import open_files
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.rmap.rwsem_waiters import LAST_READER
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.awaited_names import Names
from mmscope.drgn.waits.doing import LONG, doing
from mmscope.drgn.waits.faults import Fault, fault_of
from mmscope.drgn.waits.fuse import SERVER, FuseConnection, Server, connection_row
from mmscope.drgn.waits.no_holder import NoHolder
from mmscope.drgn.waits.reclaim_threads import (
    IN_D,
    OomVictim,
    ReclaimThread,
    reaped,
    thread_state,
    threads,
)
from mmscope.drgn.waits.reclaiming import PF_MEMALLOC, Reclaiming, reclaiming
from mmscope.drgn.waits.stacks import stack_from
from mmscope.drgn.waits.task_stacks import MAX_STACKS, NOLOAD, RUNNING, TaskStacks
from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot
from mmscope.drgn.waits.waiters import Awaited, awaited
from mmscope.drgn.waits.writeback import Limits, WritebackDevice, writeback_devices

READER = "reader, in a fault"
TSK_MEMSTALL = 2  # of psi_flags; a macro (include/linux/psi_types.h, 5.10 to 7.3)


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
        self.stacks = TaskStacks(memory, gaps)
        self.no_holder = NoHolder(self.stacks)
        self.moved = 0
        self.stalls_apart = 0  # tasks whose in_memstall is not what psi_flags says
        self.lost_devices: list[str] = []  # why they could not be read
        self.faults: dict[int, Fault] = {}  # by the task's address
        self.reclaimed: dict[int, str] = {}  # paths of cgroups, by struct mem_cgroup
        self.owed: dict[int, set[int]] = {}  # tasks that wait for a FUSE server, by fuse_conn
        self.servers: dict[int, int | None] = {}
        self.names = Names(self.prog, self.stacks.named)

    def rows(self) -> tuple[list[TaskWait], list[WaitRoot]]:
        """Waiting tasks, those that wait longest first, and the roots of their chains."""
        state = self.stacks.tasks.columns["state"]
        sleeps = ((state & IN_D) != 0) & ((state & NOLOAD) == 0)
        chosen = [*np.flatnonzero(sleeps).tolist(), *np.flatnonzero(state == RUNNING).tolist()]
        self.stacks.left_out = max(len(chosen) - MAX_STACKS, 0)
        wanted = {
            int(self.stacks.tasks.addresses[at]): "D" if sleeps[at] else "R"
            for at in chosen[:MAX_STACKS]
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
            still = self.stacks.unmoved(new)
            self.moved += len(new) - len(still)
            queued |= self._with_servers(
                self._with_readers({a: each for a, each in new.items() if a in still})
            )
            holders = {each.holder.value_() for each in queued.values() if each.holder is not None}
            wanted = dict.fromkeys(filter(self.stacks.is_asleep, holders - set(seen)), "S")
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

    def _asking(self) -> list[int]:
        """Tasks that sleep and take signals, and whose request a FUSE server has not answered."""
        pids = {
            request.pid for each in self.names.connections.values() for request in each.requests
        }
        at = np.flatnonzero(np.isin(self.stacks.tasks.columns["pid"], [*pids - {0}])).tolist()
        return list(filter(self.stacks.is_asleep, self.stacks.tasks.addresses[at].tolist()))

    def _look_at(self, address: int, state: str) -> Seen:
        frames = self.stacks.stack_of(address)
        found = None
        if address in self.stacks.pointers:
            with contextlib.suppress(FaultError, LookupError):
                stack = stack_from(
                    self.stacks.task(address), self.stacks.pointers[address], self.stacks.shared
                )
                if stack is not None and (fault := fault_of(stack, frames)) is not None:
                    self.faults[address] = fault
                if stack is not None and state != "R":
                    found = awaited(stack, frames)
                elif stack is not None and address in self.stacks.on_cpus:
                    found = self.names.spins.spun_for(self.stacks.leaves[address])
        reclaims = self._reclaims(address)
        does = doing(frames)
        # Without a stack it runs, on a live kernel.
        if reclaims is not None and (reclaims.asked or not frames):
            does = reclaims.doing
        return Seen(state, does, found, reclaims)

    def _reclaims(self, address: int) -> Reclaiming | None:
        # What runs may have begun since its flags were read.
        at = self.stacks.places[address]
        works = self.stacks.tasks.columns["flags"][at] & PF_MEMALLOC or self.stacks.runs(address)
        return reclaiming(self.stacks.task(address), self.reclaimed) if works else None

    def _with_readers(self, queued: dict[int, Awaited]) -> dict[int, Awaited]:
        """Name readers of what is read, where they are in a page fault with it."""
        read = {found.address for found in queued.values() if found.readers}
        self._look_for_faults(queued)
        readers: dict[int, list[int]] = {}
        for address in sorted(self.stacks.unmoved(self.faults), key=self.stacks.pid):
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
                found = replace(found, holder=self.stacks.task(chosen), holder_is=READER)
            result[address] = found
        return result

    def _look_for_faults(self, queued: Mapping[int, Awaited]) -> None:
        """Look at the tasks of the processes whose locks are read, whatever state they are in."""
        offset = offsetof(self.prog.type("struct mm_struct"), "mmap_lock")
        mms, read = (
            self.stacks.tasks.columns["mm"],
            [a for a, each in queued.items() if each.readers],
        )
        wanted = {int(mms[self.stacks.places[address]]) for address in read}
        wanted |= {queued[address].address - offset for address in read}
        for at in np.flatnonzero(np.isin(mms, [*wanted - {0}])).tolist():
            address = int(self.stacks.tasks.addresses[at])
            if address not in self.stacks.frames and len(self.stacks.frames) < 2 * MAX_STACKS:
                self._look_at(address, "R")

    def _with_servers(self, queued: dict[int, Awaited]) -> dict[int, Awaited]:
        """Name the FUSE server that owes an answer or pages, or what else is written to."""
        result = {}
        for address, found in queued.items():
            if found.holder is None and (conn := self.names.owed_by(found)) is not None:
                self.owed.setdefault(conn, set()).add(address)
                if (server := self._server(conn)) is not None:
                    found = replace(found, holder=self.stacks.task(server), holder_is=SERVER)
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
        idle = [task for task in connection.idle if task in self.stacks.places]
        if idle:
            first = self.stacks.task(idle[0]).group_leader.value_()
        else:
            opened = open_files(self.memory)
            # Of the pointer a bit may be set: FUSE_DEV_SYNC_INIT (fs/fuse/fuse_dev_i.h).
            data = opened.files["private_data"] & ~np.uint64(7)
            has = np.flatnonzero(np.isin(data, np.array([*connection.devices], np.uint64)))
            first_file = opened.files["process"][has[:1]].tolist()
            pid = opened.processes[first_file[0]].pid if first_file else None
            found = self.stacks.tasks.addresses[
                self.stacks.tasks.columns["pid"] == (pid or -1)
            ].tolist()
            first = found[0] if found else None
        if first not in self.stacks.places:
            return None
        columns = self.stacks.tasks.columns
        same = columns["mm"] == columns["mm"][self.stacks.places[first]]
        able = self.stacks.tasks.addresses[same & (columns["state"] & IN_D == 0)].tolist()
        return first if first in able or not able else int(able[0])

    def fuse_connections(self) -> list[FuseConnection]:
        """FUSE servers that owe answers, those that owe most first."""
        rows = []
        for conn, connection in self.names.connections.items():
            server: Server = (None, None, None, None)
            owed = self.owed.get(conn, set())
            times = [seconds for each in owed if (seconds := self.stacks.seconds(each)) is not None]
            task = self._server(conn) if owed or connection.idle else None
            if task is not None:
                first = self.stacks.task(task).group_leader.read_()
                frames = self.stacks.stack_of(first.value_())
                server = (*self.stacks.named(first.value_()), thread_state(first), doing(frames))
            name, supers = self.names.file_system(connection.place), self.names.supers
            told = (server, len(owed), max(times, default=None))
            rows.append(connection_row(connection, supers, name, *told))
        return sorted(rows, key=lambda row: (-row.waiting, row.device))

    def reclaim_threads(self) -> list[ReclaimThread]:
        """kswapd and kcompactd of each node, and the OOM reaper."""
        reapers = np.flatnonzero(self.stacks.tasks.columns["comm"] == b"oom_reaper").tolist()
        found = [
            *threads(self.prog),
            *(
                (self.stacks.task(int(self.stacks.tasks.addresses[at])), *(None,) * 4)
                for at in reapers
            ),
        ]
        rows = []
        for task, node, order, failures, zone in found:
            frames, now = self.stacks.stack_of(task.value_()), reclaiming(task, self.reclaimed)
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
        comms = self.stacks.tasks.columns["comm"]
        named = np.char.startswith(comms, b"kswapd") | np.char.startswith(comms, b"kcompactd")
        every = (
            self.stacks.task(int(self.stacks.tasks.addresses[at])) for at in np.flatnonzero(named)
        )
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
        for address, mm in self.stacks.tasks.victims.items():
            if address not in self.stacks.places:
                continue
            pid, comm = self.stacks.named(address)
            row, frames = by_pid.get(pid or 0), self.stacks.stack_of(address)
            state = thread_state(self.stacks.task(address))
            gone = reaped(Object(self.prog, "struct mm_struct *", mm))
            queued = (row.kind, row.target, row.holder_pid, row.holder_comm) if row else (None,) * 4
            own = (
                row.cgroup if row else None,
                state,
                self.stacks.seconds(address),
                gone,
                doing(frames),
            )
            rows.append(OomVictim(pid or 0, comm or "", *own, *queued, folded(frames)))
        return sorted(rows, key=lambda row: (-(row.seconds or 0), row.pid))

    def writeback_devices(self, waits: Sequence[TaskWait]) -> list[WritebackDevice]:
        """Dirty memory by device or server."""
        held = Counter(row.target for row in waits if row.kind == "dirty pages")
        limits = None
        with contextlib.suppress(*TORN):
            counters = vm_counters_once(self.memory)
            names = ("nr_dirty_threshold", "nr_dirty", "nr_writeback")
            threshold, dirty, written = (counter(counters, name) for name in names)
            limits = Limits(threshold, dirty + written)
        told = (self.names.device, lambda name: held[name], self.lost_devices)
        return writeback_devices(self.prog, *told, limits)

    def _row(self, address: int, seen: Seen, found: Awaited | None) -> TaskWait:
        pid = comm = None
        if found is not None and found.holder is not None:
            pid, comm = self.stacks.named(found.holder.value_())
        own, name = self.stacks.named(address)
        return TaskWait(
            own or 0,
            name or "",
            None,
            seen.state,
            self.stacks.seconds(address),
            seen.doing,
            found.kind if found else None,
            self.names.of(found) if found else None,
            pid,
            comm,
            found.holder_is if found and pid is not None else None,
            self.names.device(found.bdi) if found and found.bdi else None,
            self._for_memory(address),
            folded(self.stacks.stack_of(address)),
            *(seen.reclaims.cells if seen.reclaims else ()),
        )

    def _for_memory(self, address: int) -> bool | None:
        """``task_struct.in_memstall`` (CONFIG_PSI), which psi_memstall_enter() sets."""
        with contextlib.suppress(FaultError, AttributeError):
            task = self.stacks.task(address)
            stalled = bool(task.in_memstall)
            self.stalls_apart += stalled != bool(task.psi_flags.value_() & TSK_MEMSTALL)
            return stalled
        return None

    def _with_cgroups(self, rows: dict[int, TaskWait]) -> dict[int, TaskWait]:
        """The rows with the paths of their tasks' memory cgroups."""
        with contextlib.suppress(LookupError):
            number = self.prog.constant("memory_cgrp_id").value_()
            sets = self.stacks.tasks.columns["cgroups"][
                [self.stacks.places[address] for address in rows]
            ]
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
            end, circle, by_last_reader = end_of_chain(address, queued, self.stacks.places)
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
        last = end if end in self.stacks.places else direct[0] if len(direct) == 1 else None
        kind, root, why, no_holder = "task", "", None, False
        if end not in self.stacks.places:
            found = queued[direct[0]]
            if found.bdi:
                kind, root = "device or server", self.names.device(end)
                why = self._why_unfinished(end, {queued[each].kind for each in direct})
            else:
                kind, root = found.kind.partition(",")[0], self.names.of(found)
                why, no_holder = self.no_holder.why(found, queued, direct)
        pid, comm = self.stacks.named(last) if last is not None else (None, None)
        frames = self.stacks.stack_of(last) if last is not None else []
        return WaitRoot(
            root or f"{comm} ({pid})",
            kind,
            pid,
            comm,
            *(said[0], said[1] > 0, len(tasks), said[1]),
            max(times, default=None),
            lock,
            count,
            self.stacks.seconds(last) if last is not None else None,
            doing(frames),
            no_holder,
            why,
            folded(frames),
        )

    def _last(self, found: Awaited) -> bool:
        """True where a chain ends: no task that is there holds it."""
        return found.holder is None or found.holder.value_() not in self.stacks.places

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
