# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The exam's kinds: what is planted in a guest, by parameters from a seed.

A kind is a function that runs in the guest: it plants, holds it against the kernel's own files
(``check``), and returns what is true: ``owner``, words of which one names whose it is; and whatever
else of its own. What does not come about is no case. ``cause`` is a word of ``exam_score.CAUSES``;
an innocent kind has none. ``like`` says which trouble an innocent one looks like.

Sizes are shares of the machine's memory, of a large one of ``WRITTEN``: its host does not have all
of it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exam_guest import (
    CGROUPS,
    DATA,
    MIB,
    PAGE,
    SYSTEM_CALLS,
    Plant,
    anonymous,
    cgroup,
    check,
    filled,
    for_ever,
    grow,
    libc,
    load_module,
    load_modules_to,
    log,
    meminfo,
    module,
    module_says,
    mount,
    numbers,
    populated,
    pressure,
    read_through,
    sparse,
    spawn,
    swap_on,
    sysctl,
    vmstat,
    wait_until,
    write,
    write_bytes,
    write_pages,
    written,
)

WRITTEN = 12 << 30
SERVICES = ("ingestd", "reporter", "billing", "indexer", "java", "node", "worker", "postgres")


@dataclass(frozen=True)
class Kind:
    """One kind of case."""

    name: str
    plant: Plant
    cause: str = ""
    like: str = ""
    shape: str = "one"
    balloon: float = 0.0

    @property
    def sick(self) -> bool:
        return bool(self.cause)


KINDS: dict[str, Kind] = {}


def sick(cause: str, **more: Any) -> Callable[[Plant], Plant]:
    def declare(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        KINDS[name] = Kind(name, plant, cause=cause, **more)
        return plant

    return declare


def innocent(like: str, **more: Any) -> Callable[[Plant], Plant]:
    def declare(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        KINDS[name] = Kind(name, plant, like=like, **more)
        return plant

    return declare


def total() -> int:
    return meminfo()["MemTotal"]


def writable() -> int:
    """What can be written of the machine's memory."""
    return min(total(), WRITTEN)


def share(rng: random.Random, low: float, high: float) -> int:
    """So much of the machine's memory, in whole pages."""
    return int(writable() * rng.uniform(low, high)) // PAGE * PAGE


def service(rng: random.Random) -> str:
    return f"{rng.choice(SERVICES)}{rng.choice(('', '', '-1', '-7'))}"


def all_but(part: float) -> int:
    """What is free to take, but for a share of memory."""
    return int(meminfo()["MemAvailable"] - part * writable()) // PAGE * PAGE


def left() -> float:
    said = meminfo()
    return said["MemAvailable"] / said["MemTotal"]


def leak(what: str, low: float, high: float, rng: random.Random) -> int:
    """A module takes more and more, and goes on while the watch does; returns what it holds."""
    size = share(rng, low, high)
    steps = rng.randrange(20, 28)
    for step in range(steps):
        begin = time.monotonic()
        module(what, size * (step + 1) // steps // MIB - size * step // steps // MIB)
        time.sleep(max(0.0, 1 + begin - time.monotonic()))
    return module_says()[what]


def locked(size: int) -> mmap.mmap:
    memory = populated(size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc("mlock", ctypes.c_void_p(address), ctypes.c_size_t(size))
    return memory


def in_pieces(number: int) -> mmap.mmap:
    """Memory of so many mappings, a page each."""
    memory = anonymous(number * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for at in range(0, number * PAGE, 2 * PAGE):
        libc("mprotect", ctypes.c_void_p(address + at), ctypes.c_size_t(PAGE), mmap.PROT_READ)
    return memory


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def drop_cache() -> None:
    """Page cache goes, also what was written just now: it would stay another cgroup's."""
    os.sync()
    sysctl("vm/drop_caches", 1)


def largest_zone(node: int) -> dict[str, int]:
    """Bytes of a node's largest zone: free, min, low, managed."""
    text = Path("/proc/zoneinfo").read_text()
    zones = []
    for zone in re.split(r"(?m)^Node ", text):
        said = dict(re.findall(r"(?m)^(?:  pages)? +(free|min|low|managed) +(\d+)$", zone))
        if zone.startswith(f"{node}, ") and "managed" in said:
            zones.append({name: int(pages) * PAGE for name, pages in said.items()})
    return max(zones, key=lambda zone: zone["managed"])


# ---- sick


@sick("process")
def process_leak(rng: random.Random) -> dict[str, Any]:
    """A process grows until hardly anything is left, and goes on a little."""
    name = service(rng)
    steps, until = rng.randrange(12, 24), rng.uniform(0.02, 0.04)
    size = all_but(until)
    pid = spawn(name, grow(size, steps, rng.uniform(0.4, 0.9)))
    check(left() < 0.08, f"{left():.0%} are left")
    held = numbers(f"/proc/{pid}/status")["VmRSS"]
    check(held > 0.5 * total(), "it holds too little")
    return {"owner": [name], "pid": pid, "bytes": held, "steps": steps}


@sick("slab")
def slab_leak_of_module(rng: random.Random) -> dict[str, Any]:
    """A module never frees its objects."""
    held = leak("slab", 0.3, 0.5, rng)
    check(meminfo()["SUnreclaim"] > held > 0.25 * writable(), "slab did not grow")
    return {"owner": ["exam_request", "mmscope_exam"], "bytes": held}


@sick("vmalloc")
def vmalloc_leak_of_module(rng: random.Random) -> dict[str, Any]:
    """A module never frees what it took with vmalloc()."""
    held = leak("vmalloc", 0.25, 0.45, rng)
    check(meminfo()["VmallocUsed"] > held > 0.2 * writable(), "vmalloc did not grow")
    return {"owner": ["exam_leak_vmalloc", "mmscope_exam"], "bytes": held}


@sick("percpu")
def percpu_leak_of_module(rng: random.Random) -> dict[str, Any]:
    """A module never frees its percpu memory."""
    held = leak("percpu", 0.12, 0.25, rng)
    check(meminfo()["Percpu"] > held > 0.1 * total(), "percpu did not grow")
    return {"owner": [], "bytes": held}


@sick("unaccounted")
def page_leak_of_module(rng: random.Random) -> dict[str, Any]:
    """Pages that no counter has."""
    held = leak("pages", 0.25, 0.45, rng)
    check(held > 0.2 * total(), "no leak")
    return {"owner": [], "bytes": held}


@sick("shmem")
def tmpfs_left_behind(rng: random.Random) -> dict[str, Any]:
    """Files of a job that has ended, in /dev/shm."""
    size, files = share(rng, 0.35, 0.45), rng.randrange(1, 9)
    stem = rng.choice(("job", "frame", "cache", "torch"))

    def job() -> None:
        for number in range(files):
            write_bytes(f"/dev/shm/{stem}_{number}", size // files)

    pid = spawn(stem, job)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    check(meminfo()["Shmem"] > 0.3 * total(), "no shmem")
    return {"owner": [f"{stem}_"], "bytes": size, "files": files}


@sick("shmem")
def memfd_held(rng: random.Random) -> dict[str, Any]:
    """A process never closes its memfds, and memory runs short."""
    name, kept = service(rng), []
    size = all_but(rng.uniform(0.02, 0.04))
    count = rng.randrange(8, 24)

    def hold() -> list[int]:
        for number in range(count):
            kept.append(libc("memfd_create", b"buffer", 0))
            os.set_inheritable(kept[-1], False)
            block = bytes(MIB)
            for _ in range(size // count // MIB):
                os.write(kept[-1], block)
            time.sleep(0.4 if number else 0)
        return kept

    pid = spawn(name, hold)
    check(meminfo()["Shmem"] > 0.4 * total() and left() < 0.1, "no memfds")
    return {"owner": [name, "memfd:buffer"], "pid": pid, "bytes": size, "files": count}


@sick("deleted")
def deleted_tmpfs_file(rng: random.Random) -> dict[str, Any]:
    """A file on tmpfs that is deleted and open, and memory is short."""
    name = service(rng)
    path = Path("/dev/shm", rng.choice(("spool", "journal.tmp", "upload.part")))
    size = all_but(rng.uniform(0.03, 0.05))

    def hold() -> Any:
        write_bytes(path, size)
        kept = path.open("rb")
        path.unlink()
        return kept

    pid = spawn(name, hold)
    check(meminfo()["Shmem"] > 0.4 * total() and left() < 0.1, "no file")
    return {"owner": [path.name, name], "pid": pid, "bytes": size}


@sick("sockets")
def unread_sockets(rng: random.Random) -> dict[str, Any]:
    """A process whose sockets fill, and that reads none of them."""
    name = service(rng)
    size = share(rng, 0.25, 0.35)
    sysctl("net/core/wmem_max", 8 * MIB)

    def hold() -> list[socket.socket]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
        kept: list[socket.socket] = []
        block = bytes(32 << 10)
        sent = 0
        while sent < size:
            pair = socket.socketpair()
            pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MIB)
            pair[0].setblocking(False)
            try:
                while True:
                    sent += pair[0].send(block)
            except BlockingIOError:
                pass
            kept += pair
        return kept

    before = meminfo()["MemFree"]
    pid = spawn(name, hold)
    check(before - meminfo()["MemFree"] > 0.15 * total(), "the sockets hold little")
    return {"owner": [name], "pid": pid, "bytes": size}


@sick("dying-cgroups")
def dying_cgroups(rng: random.Random) -> dict[str, Any]:
    """Sessions that are gone, and each left a page in a file of tmpfs, or since 7.2 a socket."""
    number = rng.randrange(2400, 2800)
    cgroup("user.slice")
    write(CGROUPS / "user.slice/cgroup.subtree_control", "+memory")

    def sessions(first: int, last: int, leave: Callable[[int], Any]) -> list[Any]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
        kept = []
        for each in range(first, last):
            place = CGROUPS / "user.slice" / f"session-{each}.scope"
            place.mkdir()
            write(place / "cgroup.procs", os.getpid())
            kept.append(leave(each))
            write(CGROUPS / "cgroup.procs", os.getpid())
            place.rmdir()
        return kept

    def dying() -> int:
        return numbers(CGROUPS / "cgroup.stat")["nr_dying_descendants"]

    with open("/dev/shm/journal", "wb", buffering=0) as file:

        def page(each: int) -> int:
            return os.pwrite(file.fileno(), b"x" * PAGE, each * PAGE)

        # 7.2 gives the pages of a removed cgroup to its parent, and is rid of it soon.
        few = spawn("sessions", lambda: sessions(0, 100, page))
        pages_keep = not wait_until(lambda: dying() < 50, 5)
        if pages_keep:
            rest = spawn("sessions", lambda: sessions(100, number, page))
            os.kill(rest, signal.SIGKILL)
            os.waitpid(rest, 0)
    os.kill(few, signal.SIGKILL)
    os.waitpid(few, 0)
    if not pages_keep:
        spawn("sessiond", lambda: sessions(100, number, lambda each: socket.socket()))
    check(dying() > 1000, f"{dying()} dying cgroups")
    return {"owner": ["journal"] if pages_keep else ["sessiond", "user.slice"], "cgroups": dying()}


@sick("cgroup-thrash")
def cgroup_thrash(rng: random.Random) -> dict[str, Any]:
    """A cgroup whose working set of files is larger than its limit."""
    group, limit = rng.choice(("web", "search", "batch")), rng.randrange(14, 22) * MIB
    index = DATA / "index"
    place = cgroup(f"kube/{group}", memory_max=limit)
    write_bytes(index, int(limit * rng.uniform(1.3, 1.6)))
    drop_cache()
    for number in range(3):
        spawn(f"{group}-{number}", for_ever(lambda: read_through(index)), place, ready=False)
    stat = place / "memory.stat"
    came_back = wait_until(
        lambda: numbers(stat)["workingset_refault_file"] * PAGE > 12 * limit, 150
    )
    check(came_back, "its pages do not come back")
    return {"owner": [group], "limit": limit}


@sick("cgroup-throttled")
def memory_high_throttle(rng: random.Random) -> dict[str, Any]:
    """A process that is at memory.high for good."""
    group = rng.choice(("build", "etl", "render"))
    high = rng.randrange(64, 160) * MIB
    place = cgroup(f"kube/{group}", memory_high=high)
    data = DATA / "data"
    write_bytes(data, high)
    drop_cache()

    def work() -> None:
        kept = populated(int(high * 0.8) // PAGE * PAGE)
        while kept:
            read_through(data)

    for _ in range(2):
        spawn(group, work, place, ready=False)
    check(wait_until(lambda: numbers(place / "memory.events")["high"] > 1000, 60), "not throttled")
    wait_until(lambda: pressure("full", place / "memory.pressure") > 20, 30)
    check(pressure("full", place / "memory.pressure") > 5, "nothing waits")
    return {"owner": [group], "high": high}


@sick("fragmented")
def unmovable_scatter(rng: random.Random) -> dict[str, Any]:
    """Unmovable pages in every block, and programs that want huge pages."""
    write("/sys/kernel/mm/transparent_hugepage/enabled", "always")
    module("scatter", int(meminfo()["MemAvailable"] * rng.uniform(0.88, 0.94)) // MIB)
    name = service(rng)
    before = vmstat()["thp_fault_fallback"]
    spawn(name, lambda: populated(share(rng, 0.25, 0.35), huge=True))
    failed = vmstat()["thp_fault_fallback"] - before
    check(failed > 50, f"{failed} faults fell back")
    check(meminfo()["MemFree"] > 0.2 * total(), "no memory is free")
    return {"owner": [], "fallbacks": failed}


@sick("oom")
def oom_global(rng: random.Random) -> dict[str, Any]:
    """A process takes more than there is, and another is left with little."""
    name = service(rng)
    before = vmstat()["oom_kill"]
    pid = spawn(name, grow(2 * total(), 30, 0.1), ready=False)
    check(wait_until(lambda: vmstat()["oom_kill"] > before, 100), "no kill")
    os.waitpid(pid, 0)
    check("Out of memory: Killed process" in log(), "no kill in the log")
    return {"owner": [name], "pid": pid}


@sick("oom-cgroup")
def pod_killed_again_and_again(rng: random.Random) -> dict[str, Any]:
    """A pod with a limit below what it needs: it is begun and killed, and so on."""
    name, group = service(rng), f"pod{rng.randrange(1000, 9999)}"
    limit = rng.randrange(32, 96) * MIB
    place = cgroup(f"kube/{group}", memory_max=limit, memory_swap_max=0)
    times = rng.randrange(6, 9)
    for _ in range(times):
        os.waitpid(spawn(name, lambda: populated(2 * limit), place, ready=False), 0)
        time.sleep(rng.uniform(0.3, 1.5))
    check(numbers(place / "memory.events")["oom_kill"] >= times, "not killed")
    return {"owner": [group, name], "limit": limit, "times": times}


@sick("oom", shape="nodes")
def oom_cpuset(rng: random.Random) -> dict[str, Any]:
    """A process may use one node alone, which fills."""
    name = service(rng)
    node = rng.randrange(2)
    place = cgroup("partition", cpuset_mems=node)
    before = vmstat()["oom_kill"]
    pid = spawn(name, grow(2 * total(), 20, 0.1), place, ready=False)
    check(wait_until(lambda: vmstat()["oom_kill"] > before, 100), "no kill")
    os.waitpid(pid, 0)
    check("constraint=CONSTRAINT_CPUSET" in log(), "another constraint")
    return {"owner": [name], "node": node}


@sick("oom", shape="nodes")
def oom_mempolicy(rng: random.Random) -> dict[str, Any]:
    """A process bound to a node, which fills; the other has room."""
    name = service(rng)
    node = rng.randrange(2)

    def bound() -> Any:
        mask, number = ctypes.c_ulong(1 << node), SYSTEM_CALLS["set_mempolicy"]
        check(ctypes.CDLL(None).syscall(number, 2, ctypes.byref(mask), 64) == 0, "set_mempolicy")
        return grow(2 * total(), 20, 0.1)()

    before = vmstat()["oom_kill"]
    pid = spawn(name, bound, ready=False)
    check(wait_until(lambda: vmstat()["oom_kill"] > before, 100), "no kill")
    os.waitpid(pid, 0)
    check("constraint=CONSTRAINT_MEMORY_POLICY" in log(), "another constraint")
    return {"owner": [name], "node": node}


@sick("swap")
def swap_storm(rng: random.Random) -> dict[str, Any]:
    """A process's working set is larger than memory, with a disk to swap on."""
    swap_on(1800 * MIB)
    name = service(rng)
    # What else there is goes to the disk first: on 7.2 a tenth more than MemAvailable had room.
    size = int(total() * rng.uniform(0.95, 1.05))

    def work() -> None:
        # By the process itself: on 7.2 MADV_POPULATE_WRITE spins once pages of it are swapped out.
        memory = anonymous(size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        while True:
            ctypes.memset(address, 1, size)

    spawn(name, work, ready=False)
    # It goes through all of it again and again.
    check(wait_until(lambda: vmstat()["pswpin"] * PAGE > 0.3 * total(), 150), "no pages come back")
    return {"owner": [name], "bytes": size}


@sick("page-tables")
def page_table_bloat(rng: random.Random) -> dict[str, Any]:
    """A page of each 2 MiB is read: page tables for the zero page."""
    name = service(rng)
    tables = share(rng, 0.25, 0.4)
    size = tables // PAGE * (2 * MIB)

    def work() -> mmap.mmap:
        memory = anonymous(size)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, size, 2 * MIB):
            memory[at]
        return memory

    pid = spawn(name, work)
    check(meminfo()["PageTables"] > 0.2 * total(), "no page tables")
    return {"owner": [name], "pid": pid, "bytes": tables}


@sick("hugetlb")
def hugetlb_misconfigured(rng: random.Random) -> dict[str, Any]:
    """Most memory is in a pool that has no user, and the rest is full."""
    pages = max(share(rng, 0.5, 0.62), total() - (4 << 30)) // (2 * MIB)
    sysctl("vm/nr_hugepages", pages)
    got = meminfo()["HugePages_Free"]
    check(got * 2 * MIB > 0.45 * total(), f"{got} huge pages")
    name = service(rng)
    spawn(name, lambda: populated(all_but(0.025)))
    check(left() < 0.08, "there is room")
    return {"owner": [], "pages": got}


@sick("locked")
def memory_locked(rng: random.Random) -> dict[str, Any]:
    """A process locks nearly all memory."""
    name = service(rng)
    size = all_but(rng.uniform(0.03, 0.06))

    pid = spawn(name, lambda: locked(size))
    check(meminfo()["Mlocked"] > 0.5 * total(), "not locked")
    return {"owner": [name], "pid": pid, "bytes": size}


@sick("waits")
def mmap_lock_convoy(rng: random.Random) -> dict[str, Any]:
    """Another keeps a process's mmap_lock, and its threads wait."""
    name, threads = service(rng), rng.randrange(4, 12)
    load_module("mmscope_exam")
    ours, theirs = os.pipe()

    def work() -> Any:
        def want() -> None:
            os.read(ours, 1)
            # Without the interpreter's lock, as mmap.mmap() is not.
            ctypes.CDLL(None).mmap(None, PAGE, 3, 0x22, -1, 0)

        for _ in range(threads):
            threading.Thread(target=want, daemon=True).start()
        return None

    pid = spawn(name, work)
    collector = rng.choice(("collector", "profilerd", "scanner"))
    spawn(collector, lambda: module("hold", pid), ready=False)
    time.sleep(3)
    os.write(theirs, b"x" * threads)
    time.sleep(14)
    states = [Path(f"/proc/{pid}/task", tid, "stat").read_text().rpartition(")")[2].split()[0]
              for tid in os.listdir(f"/proc/{pid}/task")]  # fmt: skip
    check(states.count("D") >= threads - 1, f"threads are {states}")
    return {"owner": [name, collector], "pid": pid, "threads": threads, "locked": [pid]}


@sick("protected")
def protection_too_large(rng: random.Random) -> dict[str, Any]:
    """memory.min of one cgroup keeps what the others need."""
    name = service(rng)
    size = share(rng, 0.62, 0.7)
    place = cgroup("db", memory_min=size + 64 * MIB)
    spawn(name, lambda: populated(size), place)
    other = cgroup("web")
    read = sparse(DATA / "site", share(rng, 0.5, 0.6))
    spawn("web", lambda: populated(all_but(0.06)), other)
    for number in range(2):
        spawn(f"web-{number}", for_ever(lambda: read_through(read)), other, ready=False)
    waits = wait_until(lambda: pressure("some") > 10, 40)
    check(waits and left() < 0.15, f"{left():.0%} are left, some wait {pressure('some')} %")
    return {"owner": ["db", name], "min": size + 64 * MIB}


@sick("node", shape="nodes")
def node_exhausted(rng: random.Random) -> dict[str, Any]:
    """A process bound to one node fills it; the other is nearly empty. Nothing is killed."""
    name = service(rng)
    node = rng.randrange(2)

    place = cgroup("bound", cpuset_mems=node)

    def fill() -> None:
        held = []
        while True:
            zone = largest_zone(node)
            # Between the marks: kswapd reclaims, and nothing is killed.
            room = zone["free"] - (zone["min"] + zone["low"]) // 2
            if room > MIB:
                held.append(populated(min(room, 32 * MIB) // PAGE * PAGE))
            time.sleep(0.2)

    pid = spawn(name, fill, place, ready=False)
    wait_until(lambda: largest_zone(node)["free"] < largest_zone(node)["low"], 60)
    time.sleep(5)
    full, other = largest_zone(node), largest_zone(1 - node)
    check(full["free"] < full["low"] and other["free"] > 200 * MIB, f"{full}, {other}")
    return {"owner": [name], "node": node, "pid": pid}


def segment(rng: random.Random, size: int, attach: bool) -> int:
    """A filled SysV segment; its key."""
    key = rng.randrange(1 << 20, 1 << 30)
    kept = libc("shmget", key, ctypes.c_size_t(size), 0o1600)
    at = ctypes.CDLL(None).shmat
    at.restype = ctypes.c_void_p
    address = at(kept, None, 0)
    write_pages(address, size)
    if not attach:
        libc("shmdt", ctypes.c_void_p(address))
    return key


@sick("shmem")
def segments_left_behind(rng: random.Random) -> dict[str, Any]:
    """SysV segments of programs that have ended."""
    size, number = share(rng, 0.35, 0.45), rng.randrange(1, 5)
    seed = rng.random()

    def run() -> list[int]:
        own = random.Random(seed)
        return [segment(own, size // number // PAGE * PAGE, attach=False) for _ in range(number)]

    pid = spawn(service(rng), run)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    check(meminfo()["Shmem"] > 0.3 * total(), "no segments")
    return {"owner": ["SYSV"], "bytes": size, "segments": number}


@sick("stacks")
def thread_leak(rng: random.Random) -> dict[str, Any]:
    """A process begins threads and ends none: each has a kernel stack."""
    name, number = service(rng), int(total() * rng.uniform(0.05, 0.07)) >> 14
    sysctl("kernel/threads-max", 4 * number)
    sysctl("vm/max_map_count", 8 * number)

    def begin() -> None:
        threading.stack_size(32 << 10)
        for _ in range(number):
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

    pid = spawn(name, begin)
    check(meminfo()["KernelStack"] > 0.045 * total(), "few stacks")
    return {"owner": [name], "pid": pid, "threads": number}


@sick("maps")
def mappings_at_the_limit(rng: random.Random) -> dict[str, Any]:
    """A process maps more and more pieces, and vm.max_map_count is near."""
    name, limit = service(rng), rng.randrange(4000, 9000)
    sysctl("vm/max_map_count", limit)

    # Beside those that it has already.
    pid = spawn(name, lambda: in_pieces(int(limit * 0.97) - mappings()))
    maps = len(Path(f"/proc/{pid}/maps").read_text().splitlines())
    check(0.9 * limit < maps <= limit, f"{maps} mappings of {limit}")
    return {"owner": [name], "pid": pid, "mappings": maps}


# ---- innocent


@innocent("process")
def idle(rng: random.Random) -> dict[str, Any]:
    """Nothing but the neighbours."""
    time.sleep(5)
    return {}


@innocent("memory is short")
def cache_warming(rng: random.Random) -> dict[str, Any]:
    """Page cache fills memory, once."""
    path = sparse(DATA / "table", share(rng, 0.9, 1.2))
    spawn("postgres", lambda: read_through(path))
    check(meminfo()["MemFree"] < 0.25 * total() < meminfo()["Cached"], "no cache")
    check(left() > 0.6, "it is not free to take")
    return {}


@innocent("thrash")
def backup_reads_everything(rng: random.Random) -> dict[str, Any]:
    """Twice memory is read once, sequentially, still at the end."""
    path = sparse(DATA / "everything", 6 << 30)
    pause = rng.uniform(0.001, 0.004)
    spawn("backup", for_ever(lambda: read_through(path, pause=pause)), ready=False)
    stolen = vmstat().get("pgsteal_kswapd", 0)
    came = wait_until(lambda: vmstat()["pgsteal_kswapd"] > stolen + 20_000, 90)
    check(came, "nothing is reclaimed")
    check(pressure("full") < 5, "it waits")
    return {}


@innocent("process leak")
def java_heap_at_its_size(rng: random.Random) -> dict[str, Any]:
    """A heap that is as large as it was told, in a pod with a limit just above."""
    size = min(share(rng, 0.5, 0.6), all_but(0.24))
    place = cgroup("kube/java", memory_max=int(size * 1.06))
    spawn("java", lambda: populated(size), place)
    check(left() > 0.2, "memory is short")
    return {}


@innocent("shmem left behind")
def database_starts(rng: random.Random) -> dict[str, Any]:
    """Shared memory of many processes that all have it mapped."""
    size = share(rng, 0.3, 0.4)
    buffers = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)

    def fill() -> mmap.mmap:
        return written(buffers)

    for number in range(rng.randrange(12, 24)):
        spawn("postgres", fill if number < 2 else lambda: buffers[0])
    buffers.close()
    check(meminfo()["Shmem"] > 0.25 * total(), "no shared memory")
    return {}


@innocent("swap storm")
def zram_at_work(rng: random.Random) -> dict[str, Any]:
    """Cold memory lies compressed in zram, and nothing comes back."""
    load_modules_to("zram")
    write("/sys/block/zram0/disksize", total() // 2 // PAGE * PAGE)
    device = "/dev/zram0"
    wait_until(lambda: Path(device).exists(), 5)
    swap_on(total() // 2 // PAGE * PAGE, device)
    size = share(rng, 0.25, 0.35)

    def cold() -> mmap.mmap:
        memory = filled(size)
        memory.madvise(21)  # MADV_PAGEOUT
        return memory

    spawn("app", cold)
    said = meminfo()
    check(said["SwapTotal"] - said["SwapFree"] > 0.15 * total(), "nothing is swapped")
    check(left() > 0.4, "memory is short")
    return {}


@innocent("swap storm")
def cold_pages_in_swap(rng: random.Random) -> dict[str, Any]:
    """A swap device full of what no task needs again."""
    size = share(rng, 0.2, 0.3)
    swap_on(int(size * rng.uniform(1.05, 1.2)) // PAGE * PAGE)

    def cold() -> mmap.mmap:
        memory = filled(size)
        memory.madvise(21)
        return memory

    spawn("app", cold)
    said = meminfo()
    check(said["SwapTotal"] - said["SwapFree"] > 0.7 * said["SwapTotal"], "swap is not used")
    return {}


@innocent("hugetlb misconfigured")
def hugetlb_in_use(rng: random.Random) -> dict[str, Any]:
    """A virtual machine has the whole pool."""
    sysctl("vm/nr_hugepages", share(rng, 0.4, 0.5) // (2 * MIB))
    pages = meminfo()["HugePages_Total"]
    check(pages * 2 * MIB > 0.35 * total(), "no pool")

    def guest() -> mmap.mmap:
        return written(anonymous(pages * 2 * MIB, 0x40000))

    spawn("qemu", guest)
    check(meminfo()["HugePages_Free"] == 0, "the pool is not in use")
    return {}


@innocent("out of memory")
def routine_pod_kill(rng: random.Random) -> dict[str, Any]:
    """One pod met its limit, once."""
    limit = rng.randrange(32, 64) * MIB
    group = f"pod{rng.randrange(1000, 9999)}"
    place = cgroup(f"kube/{group}", memory_max=limit, memory_swap_max=0)
    os.waitpid(spawn("worker", lambda: populated(2 * limit), place, ready=False), 0)
    check(numbers(place / "memory.events")["oom_kill"] == 1, "not killed")
    check(left() > 0.5, "memory is short")
    return {"cgroup": group}


@innocent("fragmentation")
def boot_time_compaction(rng: random.Random) -> dict[str, Any]:
    """Much was compacted once, and huge pages come as they are asked for."""
    write("/sys/kernel/mm/transparent_hugepage/enabled", "always")
    memory = populated(share(rng, 0.5, 0.6))
    for at in range(0, len(memory), 2 * PAGE):
        memory.madvise(mmap.MADV_DONTNEED, at, PAGE)
    for _ in range(2):
        sysctl("vm/compact_memory", 1)
    memory.close()
    spawn("java", lambda: populated(share(rng, 0.15, 0.2), huge=True))
    check(vmstat()["thp_fault_alloc"] > 50, "no huge pages")
    return {}


@innocent("shmem left behind")
def tmpfs_in_use(rng: random.Random) -> dict[str, Any]:
    """A large tmpfs whose files are open."""
    size, files = share(rng, 0.3, 0.4), rng.randrange(2, 6)
    mount("tmpfs", "/tmp/ramdisk", "none", "size=80%")

    def work() -> list[Any]:
        paths = [f"/tmp/ramdisk/segment-{number}" for number in range(files)]
        for path in paths:
            write_bytes(path, size // files)
        return [open(path, "rb") for path in paths]

    spawn("elastic", work)
    check(meminfo()["Shmem"] > 0.25 * total(), "no tmpfs")
    return {}


@innocent("slab leak")
def dentries_warm(rng: random.Random) -> dict[str, Any]:
    """A file server has seen many names."""
    number = rng.randrange(25_000, 40_000)

    def serve() -> None:
        for at in range(number):
            os.close(os.open(DATA / f"f{at}", os.O_CREAT | os.O_WRONLY))

    spawn("smbd", serve)
    check(meminfo()["SReclaimable"] > 0.02 * total(), "no slab")
    return {"files": number}


@innocent("cgroup at its limit")
def build_pod_full_of_cache(rng: random.Random) -> dict[str, Any]:
    """A cgroup at its limit with pages that were read once."""
    limit = rng.randrange(64, 128) * MIB
    place = cgroup("kube/build", memory_max=limit)
    path = sparse(DATA / "objects", 8 * limit)
    spawn("cc", lambda: read_through(path), place)
    check(numbers(place / "memory.events")["max"] > 20, "not at its limit")
    check(numbers(place / "memory.stat")["workingset_refault_file"] < 1000, "pages come back")
    return {}


@innocent("throttled")
def memory_high_at_a_peak(rng: random.Random) -> dict[str, Any]:
    """memory.high was met at a peak that is over."""
    high = rng.randrange(64, 128) * MIB
    place = cgroup("kube/etl", memory_high=high)
    path = sparse(DATA / "input", 2 * high)

    def peak() -> mmap.mmap:
        read_through(path)
        return populated(high // 4)

    spawn("etl", peak, place)
    check(numbers(place / "memory.events")["high"] > 0, "not met")
    return {}


@innocent("memory in no counter")
def arc_with_a_shrinker(rng: random.Random) -> dict[str, Any]:
    """A module's cache that gives back whatever is asked for, as ZFS's ARC."""
    module("arc", share(rng, 0.3, 0.4) // MIB)
    check(module_says()["arc"] > 0.25 * total(), "no cache")
    return {}


@innocent("memory in no counter", balloon=0.25)
def balloon_inflated(rng: random.Random) -> dict[str, Any]:
    """The hypervisor has taken memory back."""
    before = meminfo()["MemTotal"]
    load_module("virtio_balloon")
    taken = wait_until(lambda: vmstat()["balloon_inflate"] * PAGE > 300 * MIB, 60)
    check(taken, f"balloon_inflate {vmstat()['balloon_inflate']}")
    return {"before": before}


@innocent("process leak")
def batch_grows_and_shrinks(rng: random.Random) -> dict[str, Any]:
    """A job takes a lot, and gives it back, several times."""
    size = share(rng, 0.3, 0.5)

    def batch() -> None:
        for _ in range(3):
            held = grow(size, 6, 0.3)()
            time.sleep(0.5)
            for part in held:
                part.close()
            time.sleep(0.5)

    spawn("batch", batch)
    check(left() > 0.6, "memory is short")
    return {}


@innocent("protection")
def protected_with_room(rng: random.Random) -> dict[str, Any]:
    """memory.min of a database, and room for all others."""
    size = min(share(rng, 0.25, 0.35), all_but(0.45))
    place = cgroup("db", memory_min=size)
    spawn("db", lambda: populated(size), place)
    check(left() > 0.4, "memory is short")
    return {}


@innocent("writeback stuck")
def server_that_writes(rng: random.Random) -> dict[str, Any]:
    """Files are written all the time, and the disk keeps up."""
    size = rng.randrange(4, 12) * MIB

    def write_on() -> None:
        for number in range(8):
            write_bytes(DATA / f"log.{number}", size)
            time.sleep(0.3)

    spawn("kafka", for_ever(write_on), ready=False)
    time.sleep(12)
    check(numbers("/proc/vmstat")["nr_written"] > 1000, "nothing is written")
    return {}


@innocent("lock convoy")
def many_threads(rng: random.Random) -> dict[str, Any]:
    """A server of many threads that all sleep, and maps memory now and then."""
    number = rng.randrange(150, 400)

    def serve() -> None:
        threading.stack_size(64 << 10)
        for _ in range(number):
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

    spawn("tomcat", serve)
    return {"threads": number}


@innocent("locked")
def locked_with_room(rng: random.Random) -> dict[str, Any]:
    """A virtual machine's memory is locked, and there is room."""
    size = share(rng, 0.25, 0.35)

    spawn("qemu", lambda: locked(size))
    check(meminfo()["Mlocked"] > 0.2 * total() and left() > 0.3, "not so")
    return {}


@innocent("segments left behind")
def segments_in_use(rng: random.Random) -> dict[str, Any]:
    """A database that has its SysV segments attached."""
    size, seed = share(rng, 0.3, 0.4), rng.random()
    spawn("oracle", lambda: segment(random.Random(seed), size, attach=True))
    check(meminfo()["Shmem"] > 0.25 * total(), "no segment")
    return {}


@innocent("mappings at the limit")
def many_mappings_with_room(rng: random.Random) -> dict[str, Any]:
    """A search server of thousands of mappings, which a raised limit has room for."""
    number = rng.randrange(3000, 6000)
    sysctl("vm/max_map_count", 262_144)

    pid = spawn("elasticsearch", lambda: in_pieces(number))
    check(len(Path(f"/proc/{pid}/maps").read_text().splitlines()) > 0.9 * number, "too few")
    return {"mappings": number}


@innocent("deleted file")
def deleted_log_still_open(rng: random.Random) -> dict[str, Any]:
    """A small log on tmpfs that was rotated away, and is still written to."""
    path, size = Path("/dev/shm/access.log"), share(rng, 0.01, 0.03)

    def hold() -> Any:
        write_bytes(path, size)
        kept = path.open("rb")
        path.unlink()
        return kept

    spawn("nginx-log", hold)
    check(left() > 0.5, "memory is short")
    return {}
