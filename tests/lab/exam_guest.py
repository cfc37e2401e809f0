# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The exam's guest: process 1 of a machine that plays one case, from a program of the host.

It imports what a watch needs and waits until its second disk has a case (``exam_wait.py``): the
machine is kept there, and each case begins with it. Then it starts some neighbours and ``mmscope
watch``, plants the trouble, ends the watch, copies /proc and /sys as text and its log, writes all
of it to its third disk, and says so; what was planted stays until the host has stopped the machine.

Truth is what the plant did and what the kernel's own files say of it. mmscope never reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import mmap
import os
import random
import re
import select
import shutil
import signal
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
PAGE = 4096
CGROUPS = Path("/sys/fs/cgroup")
OUT = Path("/out")
GO, COLLECTOR = Path("/tmp/go"), Path("/tmp/collector")
DATA = Path("/data")
SAMPLES = OUT / "watch.samples"
# Numbers of the architecture.
SYSTEM_CALLS = {
    "x86_64": {"finit_module": 313, "set_mempolicy": 238},
    "aarch64": {"finit_module": 273, "set_mempolicy": 237},
}.get(os.uname().machine, {})
# A plant takes about as long; the watch has no fewer than this.
LEAST_SAMPLES = 26
_libc = ctypes.CDLL(None, use_errno=True)

NEIGHBOURS = ("nginx", "sshd", "cron", "agent", "redis", "consul", "fluentd", "rsyslogd")
Plant = Callable[[random.Random], dict[str, Any]]


class NotPlantedError(Exception):
    """The trouble did not come about: no case."""


def check(so: bool, what: str) -> None:
    if not so:
        raise NotPlantedError(what)


def libc(name: str, *args: Any) -> int:
    result = int(getattr(_libc, name)(*args))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def told(words: str) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(1, f"\nexam: [{now:5.1f}] {words}\n".encode())


def mount(kind: str, where: str | Path, source: str = "none", data: str = "") -> None:
    Path(where).mkdir(parents=True, exist_ok=True)
    _libc.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)
    libc("mount", source.encode(), str(where).encode(), kind.encode(), 0, data.encode())


def write(path: str | Path, text: object) -> None:
    Path(path).write_text(str(text))


def sysctl(name: str, value: object) -> None:
    write(f"/proc/sys/{name}", value)


def numbers(path: str | Path) -> dict[str, int]:
    """The number behind each name: meminfo in bytes, vmstat, memory.stat, memory.events."""
    found = {}
    for line in Path(path).read_text().splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    return found


def meminfo() -> dict[str, int]:
    return numbers("/proc/meminfo")


def vmstat() -> dict[str, int]:
    return numbers("/proc/vmstat")


def pressure(kind: str = "full", path: str | Path = "/proc/pressure/memory") -> float:
    """Share of the last ten seconds."""
    (average,) = re.findall(rf"^{kind} avg10=(\S+)", Path(path).read_text(), re.MULTILINE)
    return float(average)


def cgroup(path: str, **limits: object) -> Path:
    """A cgroup with limits: ``memory_max`` is memory.max."""
    place = CGROUPS
    for part in path.strip("/").split("/"):
        write(place / "cgroup.subtree_control", "+memory +cpuset")
        place = place / part
        place.mkdir(exist_ok=True)
    for name, value in limits.items():
        write(place / name.replace("_", "."), value)
    return place


def spawn(
    name: str,
    work: Callable[[], Any],
    group: Path | None = None,
    *,
    ready: bool = True,
    priority: int = 500,
) -> int:
    """
    A process of that name, which then sleeps; returns its pid.

    :param ready: wait until its work is done.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        if ready:
            select.select([ours], [], [], 120)
            done = os.read(ours, 1)
            os.close(ours)
            check(done == b"y", f"{name} died")
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if group is not None:
            write(group / "cgroup.procs", os.getpid())
        write("/proc/self/oom_score_adj", priority)
        write("/proc/self/comm", name)
        work_kept = work()
        os.write(theirs, b"y")
        while work_kept is not theirs:
            time.sleep(1000)
    except BaseException:
        told(f"{name}: {traceback.format_exc()}")
    os._exit(1)


def anonymous(size: int, flags: int = 0) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000 | flags)


def populated(size: int, huge: bool = False) -> mmap.mmap:
    """Anonymous memory, written."""
    memory = anonymous(size)
    memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return written(memory)


def written(memory: mmap.mmap) -> mmap.mmap:
    write_pages(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory))
    return memory


def write_pages(address: int, size: int) -> None:
    """Have all pages, by the kernel alone where it can (MADV_POPULATE_WRITE, since 5.14)."""
    try:
        libc("madvise", ctypes.c_void_p(address), ctypes.c_size_t(size), 23)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        memory[::PAGE] = bytes(-(-size // PAGE))


def filled(size: int) -> mmap.mmap:
    """The same with words in it: of pages of zeros a kernel may keep none."""
    memory, block = populated(size), bytes(range(256)) * 256
    for at in range(0, size - len(block) + 1, len(block)):
        memory[at : at + len(block)] = block
    return memory


def grow(size: int, steps: int, pause: float) -> Callable[[], list[mmap.mmap]]:
    """Memory that comes bit by bit."""

    def work() -> list[mmap.mmap]:
        held = []
        for _ in range(steps):
            held.append(populated(max(size // steps // PAGE, 1) * PAGE))
            time.sleep(pause)
        return held

    return work


def write_bytes(path: str | Path, size: int) -> None:
    block = bytes(range(256)) * 4096
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, len(block)):
            file.write(block[: size - at])


def sparse(path: str | Path, size: int) -> Path:
    """A file whose pages come without a disk."""
    with open(path, "wb") as file:
        file.truncate(size)
    return Path(path)


def read_through(path: str | Path, pause: float = 0.0) -> None:
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            if pause:
                time.sleep(pause)


def for_ever(work: Callable[[], Any]) -> Callable[[], Any]:
    def again() -> None:
        while True:
            work()

    return again


def swap_on(size: int, device: str = "/dev/vde") -> None:
    header = bytearray(PAGE)
    header[1024:1032] = (1).to_bytes(4, "little") + (size // PAGE - 1).to_bytes(4, "little")
    header[4086:4096] = b"SWAPSPACE2"
    with open(device, "r+b", buffering=0) as disk:
        disk.write(header)
    libc("swapon", device.encode(), 0)


def load_module(name: str) -> None:
    (path,) = Path("/modules").glob(f"*-{name}.ko")
    with open(path, "rb") as file:
        number = SYSTEM_CALLS["finit_module"]
        if _libc.syscall(number, file.fileno(), b"", 0) and ctypes.get_errno() != errno.EEXIST:
            raise OSError(ctypes.get_errno(), f"cannot load {name}")


def load_modules_to(name: str) -> None:
    """A module, and all before it: which it needs differs between kernels."""
    for path in sorted(Path("/modules").iterdir()):
        load_module(path.stem.partition("-")[2])
        if path.stem.endswith(f"-{name}"):
            return


def module(command: str, number: int) -> None:
    """A command of the exam's own module."""
    load_module("mmscope_exam")
    with open("/sys/kernel/debug/mmscope_exam", "wb", buffering=0) as file:
        file.write(f"{command} {number}".encode())


def module_says() -> dict[str, int]:
    return numbers("/sys/kernel/debug/mmscope_exam")


def samples() -> int:
    with contextlib.suppress(FileNotFoundError):
        return (SAMPLES / "samples.jsonl").read_bytes().count(b'\n{"wall"')
    return 0


def wait_for_samples(until: int, patience: float = 150.0) -> None:
    deadline = time.monotonic() + patience
    while samples() < until and time.monotonic() < deadline:
        time.sleep(0.2)


def wait_until(so: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if so():
            return True
        time.sleep(0.5)
    return so()


def log() -> str:
    """The kernel's log, as dmesg prints it."""
    size = libc("klogctl", 10, None, 0)
    buffer = ctypes.create_string_buffer(size)
    length = libc("klogctl", 3, buffer, size)
    text = buffer.raw[:length].decode(errors="replace")
    return re.sub(r"(?m)^<\d+>", "", text)


# Of a tree what mmscope, or another, reads of such a machine.
_PROC = (
    *("meminfo", "vmstat", "zoneinfo", "buddyinfo", "pagetypeinfo", "slabinfo", "vmallocinfo"),
    *("swaps", "iomem", "cmdline", "version", "uptime", "stat", "loadavg", "modules", "mounts"),
    *("pressure/memory", "pressure/io", "pressure/cpu", "cgroups", "locks", "sysvipc/shm"),
    "net/sockstat",
    *("sys/vm/*", "sys/kernel/shm*", "sys/kernel/osrelease"),
    *("sys/fs/file-nr", "sys/fs/dentry-state", "sys/fs/inode-nr", "sys/fs/inode-state"),
    *("[0-9]*/" + name for name in ("status", "smaps_rollup", "maps", "comm", "cmdline", "cgroup",
                                    "stat", "statm", "oom_score_adj")),
)  # fmt: skip
LOCKED = {"maps", "smaps_rollup", "cmdline"}  # read with the mmap_lock held
_SYS = (
    *("fs/cgroup/**/memory.*", "fs/cgroup/**/cgroup.*", "fs/cgroup/**/cpuset.*"),
    *("kernel/mm/**/*", "devices/system/node/**/*", "block/zram*/mm_stat"),
    *("kernel/debug/shrinker/*/count", "kernel/debug/bdi/*/stats"),
)


def copy_tree(to: Path, without: set[str]) -> None:
    """
    Copy what can be read.

    :param without: pids whose memory map nobody can read.
    """
    for root, patterns in ((Path("/proc"), _PROC), (Path("/sys"), _SYS)):
        for pattern in patterns:
            for path in root.glob(pattern):
                with contextlib.suppress(OSError):
                    if path.is_symlink() or not path.is_file():
                        continue
                    if path.name in LOCKED and path.parent.name in without:
                        continue
                    content = path.read_bytes()
                    target = to / path.relative_to("/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)


def begin_collector() -> None:
    """
    A process that reads the machine's text when it is told to. It has done so once before: what
    memory it takes is gone before anything is planted, and no plant's machine is killed for it.
    """
    from mmscope.reports.commands.command import main

    os.mkfifo(GO)
    pid = os.fork()
    if pid:
        COLLECTOR.write_text(str(pid))
        with GO.open("rb") as warm:
            check(warm.read() == b"warm", "the collector does not begin")
        return
    write("/proc/self/comm", "mmscope")
    write("/proc/self/oom_score_adj", -900)
    os.dup2(os.open("/tmp/collector.log", os.O_WRONLY | os.O_CREAT), 2)
    for to in ("/tmp/warm", str(OUT / "collected")):
        sys.argv = ["mmscope", "collect", "--proc-root", "/", "--no-findings", "-o", to]
        status = main()
        if to == "/tmp/warm":
            shutil.rmtree(to)
            GO.write_bytes(b"warm")
            GO.read_bytes()
    os._exit(status)


def collect(pid: int, seconds: float) -> None:
    """Have it read the text now."""
    GO.write_bytes(b"go")
    done = ends(pid, seconds)
    said = Path("/tmp/collector.log").read_text()[-300:]
    check(done and (OUT / "collected/datapackage.json").exists(), f"no text: {said}")


def ends(pid: int, seconds: float) -> bool:
    """Wait until a process has ended."""
    deadline = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def neighbours(rng: random.Random) -> list[str]:
    """Processes that are there on any machine: names, cgroups and sizes by chance."""
    names = rng.sample(NEIGHBOURS, 4)
    for name in names:
        group = cgroup(f"system.slice/{name}.service")
        size = rng.randrange(1, 12) * MIB
        spawn(name, lambda size=size: populated(size), group, priority=0)
    return names


def facts() -> dict[str, Any]:
    """What the kernel says of the machine when the case is over and all that looked has ended."""
    kept = ("MemTotal", "MemFree", "MemAvailable", "AnonPages", "Shmem", "SUnreclaim", "SwapTotal",
            "SwapFree", "PageTables", "VmallocUsed", "Percpu", "Mlocked", "Unevictable",
            "HugePages_Total", "HugePages_Free", "Cached", "Dirty", "Writeback")  # fmt: skip
    said = meminfo()
    counters = vmstat()
    return {
        "meminfo": {name: said[name] for name in kept if name in said},
        "vmstat": {
            name: value for name, value in counters.items()
            if name.startswith(("oom_kill", "workingset_refault", "pswp", "allocstall", "thp_fault",
                                "compact_fail", "compact_success", "pgsteal_k", "pgsteal_d"))
        },
        "pressure": Path("/proc/pressure/memory").read_text().splitlines(),
    }  # fmt: skip


def play(case: dict[str, Any], plant: Plant, watch: Any) -> None:
    """One case, and all that is to be had of it, on the third disk."""
    rng = random.Random(f"{case['seed']} {case['kind']}")
    around = neighbours(rng)
    pid = os.fork()
    if not pid:
        write("/proc/self/comm", "mmscope")
        write("/proc/self/oom_score_adj", -900)
        log_file = os.open(OUT / "watch.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log_file, 1)
        os.dup2(log_file, 2)
        sys.argv = ["mmscope", "watch", "--interval", "1", "-o", str(OUT / "watch")]
        os._exit(watch())
    wait_for_samples(4)
    told("watched")
    planted = plant(rng)
    told("planted")
    wait_for_samples(LEAST_SAMPLES)
    os.kill(pid, signal.SIGINT)
    collect(int(COLLECTOR.read_text()), 200)
    copy_tree(OUT / "text", set(map(str, planted.get("locked", ()))))
    (OUT / "log").write_text(log())
    check(ends(pid, 240), "the watch does not end")
    # As the dump will see it, without the memory of the watch and the collector.
    planted["facts"] = facts()
    check((OUT / "watch" / "datapackage.json").exists(), (OUT / "watch.log").read_text()[-300:])
    truth = {"neighbours": around, **planted}
    (OUT / "truth.json").write_text(json.dumps(case | truth, indent=1))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("truth.json", "collected", "text", "log", "watch", "watch.log"):
            tar.add(OUT / name, name)
    with open("/dev/vdc", "r+b", buffering=0) as disk:
        for at in range(0, len(packed.getbuffer()), MIB):
            disk.write(packed.getbuffer()[at : at + MIB])
        os.fsync(disk.fileno())


def main() -> None:
    """What is done before the machine is kept: mounts, and imports that take most of a minute."""
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    for kind, where in (("debugfs", "/sys/kernel/debug"), ("cgroup2", CGROUPS), ("tmpfs", OUT),
                        ("tmpfs", "/tmp")):  # fmt: skip
        mount(kind, where)
    import mmscope.reports.bundle.declared
    import mmscope.reports.commands.command
    import mmscope.reports.watch.watch  # noqa: F401

    load_module("unix_diag")  # as where somebody has called ss
    begin_collector()
    told("waiting")


def begin(case: dict[str, Any], plant: Plant) -> None:
    """Play the case, and stay."""
    from mmscope.reports.commands.command import main as command

    try:
        mount("ext4", DATA, "/dev/vdd")
        mount("tmpfs", "/dev/shm", data="size=90%")
        play(case, plant, command)
        told("ready")
    except BaseException as error:
        told(f"FAILED {type(error).__name__}: {error}".replace("\n", " | ")[:400])
        told(traceback.format_exc())
    while True:
        time.sleep(1000)
