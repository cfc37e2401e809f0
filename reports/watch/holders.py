# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Holders of memory while a host is watched: processes, cgroups, slab caches, callers of vmalloc,
files of shared memory, processes with sockets that are full, and lines of the kernel's source.

A reading opens a file for each process and some for each cgroup, so that it is taken less often
than the rest: no more than :data:`SHARE` of a CPU, :data:`IN_HASTE` while memory comes and goes
fast, and once when the watch ends. It names the largest, and what became of those named before.
A cgroup's events are its own, those of cgroups below it are theirs; and what it had before the
watch is taken off. With more than :data:`MAX_PROCESSES` processes none is read.

Mappings are counted where there may be enough in all to come near vm.max_map_count (objects of
vm_area_struct), and of processes that are large enough. Maps wait for the mmap_lock of a process,
which a stuck task may hold: a process of its own reads them (:mod:`~mmscope.drgn.sections.apart`),
and who gave no answer once is not asked again.

Lines of source are those of /proc/allocinfo, where the kernel has it: of 0.1 % of memory and 1 MiB.
What they hold is in other holders, too.

Files of shared memory are looked for where it is a tenth of memory or more: what is below the
mounts of tmpfs, SysV segments, and what processes have open.

Cannot know: who came and went between two readings; files of tmpfs in other mount namespaces that
no process has open, segments in other IPC namespaces; of a file that no process has open, whether
one has it mapped, unless processes have hardly any shared memory mapped (RssShmem); mappings of
processes that are neither of the largest address spaces nor of those with most page tables.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import heapq
import math
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from mmscope.drgn.processes.shared_files import shared_files
from mmscope.drgn.processes.socket_memory import socket_memory
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.sections.prices import is_live, why_left_out
from mmscope.drgn.text.allocinfo import lines_holding
from mmscope.drgn.text.kernel_text import whole_lines
from mmscope.drgn.text.plain_file import read_text
from mmscope.drgn.text.proc_text import parse_segments

SHARE, IN_HASTE = 0.01, 0.1  # of a CPU
# What has moved since the last reading, of memory, is haste.
MOVED = 0.03
MAX_PROCESSES = 4000
MAX_CGROUPS = 1000
# Of each kind in a reading, and all that have this part of memory.
MOST, PART = 8, 0.01

PROCESS, CGROUP, SLAB, VMALLOC = "process", "cgroup", "slab cache", "vmalloc caller"
SHARED, SOCKETS, LINE = "shared file", "sockets", "line of source"
# Of memory, that files of shared memory are worth looking for.
SHARED_PART = 0.1
# Of memory, and bytes, that a line of source is asked for: a leak shows before it is large.
LINE_PART, LINE_BYTES = 0.001, 1 << 20
# Of vm.max_map_count; of processes by size, and by page tables; seconds for an answer.
NEAR_LIMIT, MOST_MAPS, PATIENCE = 0.8, 8, 0.5
MANY_DYING = 1000  # cgroups
LEVELS = ("dying_below", "protected_bytes")  # of a cgroup, beside what is counted
Key = tuple[str, int | None]  # name and pid
# Bytes that are held, and what else there is to say, by columns of watch_rows.WatchHolder.
Held = tuple[int, dict[str, float]]

_STATUS = re.compile(r"^(VmSize|VmLck|VmPTE|VmSwap|RssAnon|RssShmem):[\t ]+([0-9]{1,15}) kB$", re.M)
_ONE_NODE = re.compile(r"^Mems_allowed_list:\t([0-9]{1,4})$", re.M)
_THREADS = re.compile(r"^Threads:\t([0-9]{1,10})$", re.M)
_SHMEM = re.compile(r"^Shmem: +([0-9]{1,15}) kB$", re.M)
_SLAB = re.compile(
    r"(.+?) +\d+ +(\d{1,15}) +\d+ +\d+ +(\d{1,6}) : tunables [\d ]+ : "
    r"slabdata +\d+ +(\d{1,15}) +\d+",
    re.ASCII,
)
_VMALLOC = re.compile(
    r"0x\S+ +\d{1,18} (\S+?)(?:\+0x\S+)?( \[\S+\])? .*?pages=(\d{1,12}) vmalloc", re.ASCII
)
_STALLS = re.compile(r"^(some|full) .* total=(\d{1,18})$", re.M)
_EVENTS = {"oom_kill": "oom_kills", "high": "high_events", "max": "max_events"}


def cpu_seconds() -> float:
    """CPU time of this process, and of those that it had read for it."""
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + others.ru_utime + others.ru_stime


class Budget:
    """A reading's share of a CPU."""

    def __init__(self) -> None:
        self._last, self._spent = -math.inf, 0.0

    def due(self, share: float) -> bool:
        """Tell if another reading takes no more than a share, by what the last one took."""
        return (time.monotonic() - self._last) * share >= self._spent

    @contextlib.contextmanager
    def spend(self) -> Iterator[None]:
        """Take a reading."""
        self._last, begin = time.monotonic(), cpu_seconds()
        try:
            yield
        finally:
            self._spent = cpu_seconds() - begin


class Holders:
    """
    Reads who holds memory.

    :param root: the folder that has ``proc/`` and ``sys/`` in it.
    :param everything: also what is dear to read on a running host.
    :ivar unread: kinds that were not read, and why.
    """

    def __init__(self, root: str, *, everything: bool = False) -> None:
        self._root, self.unread = root, dict[str, str]()
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._careful = not everything and is_live(root)
        self._first: dict[str, dict[Key, Held]] = {}
        self._reclaimable: dict[str, bool | None] = {}
        self._named: set[tuple[str, Key]] = set()
        self._budget, self._available = Budget(), 0
        self._total = self._mapped = 0
        self._vmas: int | None = None  # of all processes, at most
        self._silent: set[Key] = set()  # whose maps gave no answer

    def due(self, available: int, total: int) -> bool:
        """Tell if it is time for a reading, with so much memory available."""
        moved = abs(available - self._available) > MOVED * total
        due = self._budget.due(IN_HASTE if moved else SHARE)
        if due:
            self._available = available
        return due

    def read(self, total: int) -> list[list[Any]]:
        """
        Read all kinds: [kind, name, pid, bytes or None where it is gone, bytes at first, more].

        :param total: of memory, in bytes.
        """
        rows: list[list[Any]] = []
        self.unread, self._total = {}, total
        kinds: dict[str, Callable[[], Iterator[tuple[Key, Held]]]] = {
            SLAB: self._slab_caches,  # says whether mappings of processes are to be counted
            PROCESS: self._processes,
            CGROUP: self._cgroups,
            VMALLOC: self._vmalloc,
            LINE: self._lines_of_source,
            SHARED: self._shared,
            SOCKETS: self._sockets,
        }
        with self._budget.spend():
            for kind, read in kinds.items():
                try:
                    found = dict(read())
                except (OSError, ValueError) as error:
                    said = isinstance(error, OSError) and error.strerror
                    self.unread[kind] = said or str(error)
                    continue
                rows += self._rows(kind, found, total)
        return rows

    def _rows(self, kind: str, found: dict[Key, Held], total: int) -> Iterator[list[Any]]:
        first = self._first.setdefault(kind, found)
        before = {key for of, key in self._named if of == kind}
        largest = heapq.nlargest(MOST, found, key=lambda key: found[key][0])
        named = set(largest)
        for key, (size, more) in found.items():
            _, at_first = first.get(key, (0, {}))
            met = any(more.get(name, 0) > at_first.get(name, 0) for name in _EVENTS.values())
            met |= more.get("dying_below", 0) >= MANY_DYING
            met |= more.get("mappings", 0) >= NEAR_LIMIT * more.get("max_map_count", math.inf)
            if met or size >= PART * total:
                named.add(key)
        for key in sorted(named | before, key=str):
            now, more = found.get(key, (None, {}))
            began, at_first = first.get(key, (0, {}))
            if kind == CGROUP:
                more = {
                    name: value if name in LEVELS else max(value - at_first.get(name, 0), 0)
                    for name, value in more.items()
                }
            yield [kind, *key, now, began, more]
        self._named -= {(kind, key) for key in before}
        self._named |= {(kind, key) for key in (named | before) & found.keys()}

    def _text(self, path: str) -> str:
        return read_text(os.path.join(self._root, path))

    def _list(self, path: str) -> list[str]:
        if self._careful and (why := why_left_out(self._root, path)):
            raise ValueError(why)
        return whole_lines(self._text(path), f"/{path}")

    def _processes(self) -> Iterator[tuple[Key, Held]]:
        pids = [name for name in os.listdir(os.path.join(self._root, "proc")) if name.isdecimal()]
        if len(pids) > MAX_PROCESSES:
            raise ValueError(f"{len(pids):,} processes are more than a watch reads")
        self._mapped, sizes = 0, dict[Key, tuple[int, int]]()
        found: dict[Key, Held] = {}
        nodes = self._several_nodes()
        for pid in pids:
            try:
                text = self._text(f"proc/{pid}/status")
            except OSError:
                continue  # it has exited
            lines = {name: int(size) << 10 for name, size in _STATUS.findall(text)}
            name = re.match(r"Name:\t(.*)\n", text)
            if name and "RssAnon" in lines:  # else a kernel thread, or it is exiting
                swap, shmem = lines.get("VmSwap", 0), lines.get("RssShmem", 0)
                tables = lines.get("VmPTE", 0)
                more: dict[str, float] = {"shmem_bytes": shmem, "swap_bytes": swap}
                more |= {"pgtables_bytes": tables, "locked_bytes": lines.get("VmLck", 0)}
                if threads := _THREADS.search(text):
                    more["threads"] = int(threads[1])
                if nodes and (node := _ONE_NODE.search(text)):
                    more["only_node"] = int(node[1])
                self._mapped += shmem
                key = name[1], int(pid)
                found[key] = lines["RssAnon"] + shmem + swap + tables, more
                sizes[key] = lines.get("VmSize", 0), tables
        self._count_mappings(found, sizes)
        yield from found.items()

    def _several_nodes(self) -> bool:
        with contextlib.suppress(OSError):
            return not self._text("sys/devices/system/node/has_memory").strip().isdecimal()
        return False

    def _count_mappings(self, found: dict[Key, Held], sizes: dict[Key, tuple[int, int]]) -> None:
        """Count the mappings of processes that may have nearly as many as one is allowed."""
        try:
            limit = int(self._text("proc/sys/vm/max_map_count"))
        except (OSError, ValueError):
            return
        near = NEAR_LIMIT * limit
        # A mapping is a page or more.
        enough = self._vmas is None or self._vmas >= near
        may = [key for key, (size, _) in sizes.items() if enough and size >= near * self._page]
        for key in found.keys() - may:
            found[key][1]["max_map_count"] = limit
        asked = {*heapq.nlargest(MOST_MAPS, may, key=lambda key: sizes[key][0]),
                 *heapq.nlargest(MOST_MAPS, may, key=lambda key: sizes[key][1])}  # fmt: skip
        with ReaderApart(PATIENCE) as reader:  # which begins no process before it has to
            for key in sorted(asked - self._silent, key=str):
                path = os.path.join(self._root, "proc", str(key[1]), "maps")
                try:
                    # vsyscall is in every process's maps, and is no mapping.
                    mappings = sum(b"[vsyscall]" not in line
                                   for line in reader.read(path).splitlines())  # fmt: skip
                except TimeoutError:
                    self._silent.add(key)
                except OSError as error:
                    if not isinstance(error, FileNotFoundError | ProcessLookupError):
                        self.unread["mappings"] = error.strerror or str(error)
                else:
                    found[key][1].update(mappings=mappings, max_map_count=limit)

    def _shared(self) -> Iterator[tuple[Key, Held]]:
        if not is_live(self._root):
            return  # a copy has neither links nor mounts
        shmem = _SHMEM.search(self._text("proc/meminfo"))
        if not shmem or int(shmem[1]) << 10 < SHARED_PART * self._total:
            return
        if PROCESS in self.unread:
            raise ValueError(f"processes: {self.unread[PROCESS]}")
        for name, size, held, pid, comm in shared_files(self._root, int(PART * self._total)):
            yield (f"{name}, open by {comm}" if held else name, pid), (size, self._has(size, held))
        with contextlib.suppress(OSError):  # no SysV here
            for row in parse_segments(self._text("proc/sysvipc/shm")):
                if row.rss + row.swap:
                    name = f"SYSV{row.key & 0xFFFFFFFF:08x} (shmid {row.shmid})"
                    size = row.rss + row.swap
                    yield (name, None), (size, self._has(size, row.nattch > 0))

    def _sockets(self) -> Iterator[tuple[Key, Held]]:
        if is_live(self._root):
            for key, size, number in socket_memory(self._root, int(PART * self._total)):
                yield key, (size, {"sockets": number})

    def _has(self, size: int, held: bool | None) -> dict[str, float]:
        """Column ``held``; empty where it is not known."""
        return {} if held is None or (not held and self._mapped >= 0.1 * size) else {"held": held}

    def _cgroups(self) -> Iterator[tuple[Key, Held]]:
        below = "sys/fs/cgroup/unified", "sys/fs/cgroup"
        root = next((path for path in below if self._is_v2(path)), None)
        if root is None:
            raise ValueError("no cgroups of version 2 here")
        waiting, read = [""], 0
        for folder in waiting:
            place = f"{root}{folder}"
            with os.scandir(os.path.join(self._root, place)) as entries:
                names = sorted(
                    entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
                )
            waiting += [f"{folder}/{name}" for name in names]
            held = self._cgroup(place) if folder else (0, {})
            if held is not None and folder.count("/") < 2:
                held[1].update(self._near_the_root(place, held[0]))
            # Of cgroups right below the root that are gone it alone tells.
            if held is not None and (folder or held[1].get("dying_below", 0) >= MANY_DYING):
                yield (folder or "/", None), held
                read += 1
            if read >= MAX_CGROUPS:
                return

    def _is_v2(self, path: str) -> bool:
        return os.path.exists(os.path.join(self._root, path, "cgroup.controllers"))

    def _cgroup(self, place: str) -> Held | None:
        try:
            current = int(self._text(f"{place}/memory.current"))
            more = dict.fromkeys(_EVENTS.values(), 0.0)
            for line in self._text(f"{place}/memory.events.local").splitlines():
                name, _, number = line.partition(" ")
                if name in _EVENTS and number.isdecimal():
                    more[_EVENTS[name]] = int(number)
        except (OSError, ValueError):
            return None  # it went, or has no memory controller
        with contextlib.suppress(OSError):  # without CONFIG_PSI
            for kind, stalled in _STALLS.findall(self._text(f"{place}/memory.pressure")):
                more[f"{kind}_seconds"] = int(stalled) / 1e6
        return current, more

    def _near_the_root(self, place: str, size: int) -> dict[str, float]:
        """
        Cgroups below one that were removed and are still in the kernel; and what of its memory is
        protected, in which those below have their shares.
        """
        found: dict[str, float] = {}
        with contextlib.suppress(OSError):
            text = self._text(f"{place}/cgroup.stat")
            if number := re.search(r"^nr_dying_descendants ([0-9]{1,12})$", text, re.M):
                found["dying_below"] = int(number[1])
        with contextlib.suppress(OSError):  # the root has none
            text = self._text(f"{place}/memory.min").strip()
            least = size if text == "max" else int(text) if text.isdecimal() else 0
            found["protected_bytes"] = min(least, size)
        return found

    def _slab_caches(self) -> Iterator[tuple[Key, Held]]:
        self._vmas = None
        for line in self._list("proc/slabinfo"):
            if match := _SLAB.fullmatch(line):
                cache, objects, pages, slabs = match.groups()
                more: dict[str, float] = {}
                if (given := self._given_back(cache)) is not None:
                    more["reclaimable"] = given
                if cache == "vm_area_struct":
                    self._vmas = int(objects)
                yield (cache, None), (int(pages) * int(slabs) * self._page, more)

    def _given_back(self, cache: str) -> bool | None:
        """Tell if a shrinker gives a cache's objects back (SLAB_RECLAIM_ACCOUNT); asked once."""
        if cache not in self._reclaimable:
            try:
                text = self._text(f"sys/kernel/slab/{cache}/reclaim_account")
            except OSError:
                text = ""
            self._reclaimable[cache] = {"0\n": False, "1\n": True}.get(text)
        return self._reclaimable[cache]

    def _vmalloc(self) -> Iterator[tuple[Key, Held]]:
        sizes: dict[Key, int] = {}
        for line in self._list("proc/vmallocinfo"):
            if match := _VMALLOC.match(line):
                key: Key = f"{match[1]}{match[2] or ''}", None
                sizes[key] = sizes.get(key, 0) + int(match[3]) * self._page
        for key, size in sizes.items():
            yield key, (size, {})

    def _lines_of_source(self) -> Iterator[tuple[Key, Held]]:
        with contextlib.suppress(FileNotFoundError):  # no CONFIG_MEM_ALLOC_PROFILING
            for name, size in _lines(self._root, self._total).items():
                yield (name, None), (size, {})


def _lines(root: str, total: int) -> Counter[str]:
    least = max(LINE_BYTES, int(LINE_PART * total))
    return lines_holding(os.path.join(root, "proc/allocinfo"), least)


class Lines:
    """
    Reads lines of source for who keeps the last minutes alone: whatever reading is the first that
    is kept, it says of each line what it had then.

    :param share: of a CPU, that readings may take.
    """

    def __init__(self, root: str, share: float) -> None:
        self._root, self._share, self._budget = root, share, Budget()
        self._there = os.path.exists(os.path.join(root, "proc/allocinfo"))
        self._before: Counter[str] | None = None

    @property
    def due(self) -> bool:
        """Tell if it is time for a reading, and there is something to read."""
        return self._there and self._budget.due(self._share)

    def read(self, total: int) -> list[list[Any]]:
        """
        Rows as of :meth:`Holders.read`. What the reading before did not have had nothing at first.

        :raises OSError, ValueError: it cannot be read.
        """
        with self._budget.spend():
            held = _lines(self._root, total)
        before = held if self._before is None else self._before
        self._before = held
        rows: list[list[Any]] = [
            [LINE, name, None, size, size if name in before else 0, {}]
            for name, size in held.items()
        ]
        gone = before.keys() - held.keys()
        return rows + [[LINE, name, None, None, before[name], {}] for name in sorted(gone)]
