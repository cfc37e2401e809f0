# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about what a running host pays: the longest times with interrupts off, and
the longest single readings, that each file and each command causes, in a lab guest with memory in
pieces, a slab cache with long lists, a process of many VMAs, and others at work.

The guest's clock counts instructions (QEMU's ``-icount shift=0``: each takes 1 ns), so that the
numbers are the same on any machine, however busy, and say what the kernel does, entry by entry.
They do not have the misses of the caches that real memory adds: an entry that is in no cache takes
some 100 ns, so that a walk takes longer on a machine, by up to ten times and more. The guest has
one CPU: nobody else holds a lock that is waited for.

A timer of the lab's module that is due every 10 µs notes how late it comes, and whom it interrupts
then: what is shorter than that is not seen. Two boots, with page_owner off and, for the files
alone, on. Some minutes on a machine that has nothing else to do.

    .venv/bin/python tests/bench/bench_prices.py [FOLDER]        # keeps FOLDER/prices-*.json
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from live import run_live  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

PERIOD_NS = 10_000
OBJECTS = 240_000
VMAS = 50_000
MIB = 900  # every other page of which is free; on the node that has the most
SECONDS = 1800.0
# One CPU; a node of 512 MiB and one of 3.5 GiB.
MACHINE = (
    *("-icount", "shift=0", "-m", "4G"),
    *("-object", "memory-backend-ram,id=more,size=2560M", "-numa", "node,nodeid=2,memdev=more"),
)

PROGRAM = f"""
import ctypes, json, mmap, os, re, resource, signal, sys, time
from pathlib import Path

LATE = Path("/sys/kernel/debug/mmscope_late")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
number = ctypes.c_int
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = 4096
found = {{"commands": [], "files": []}}

def name(text):
    Path("/proc/self/comm").write_text(text)

def memory(size):
    address = libc.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
    libc.madvise(address, size, 15)  # MADV_NOHUGEPAGE
    return address

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid

ready = os.pipe()

def many_vmas():
    name("vmas")
    address = memory({VMAS} * PAGE)
    for page in range(1, {VMAS}, 2):
        libc.mprotect(address + page * PAGE, PAGE, 1)
    os.write(ready[1], b"x")
    while True:
        signal.pause()

def in_pieces():
    name("pieces")
    nodes = ctypes.c_ulong(1 << 2)
    if libc.syscall(238, 2, ctypes.byref(nodes), 64):  # set_mempolicy(MPOL_BIND)
        raise OSError(ctypes.get_errno())
    size = {MIB} << 20
    address = memory(size)
    ctypes.memset(address, 1, size)
    for page in range(0, size // PAGE, 2):
        libc.madvise(address + page * PAGE, PAGE, 4)  # MADV_DONTNEED
    os.write(ready[1], b"x")
    while True:
        signal.pause()

def at_work():
    name("load")
    while True:
        address = libc.mmap(None, 4 << 20, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        ctypes.memset(address, 1, 4 << 20)
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(4 << 20))
        time.sleep(0.03)

def say(*words):
    print("lab:", *words, flush=True)

def measured(what, work):
    LATE.write_text("{PERIOD_NS}")
    begin = time.monotonic()
    more = work()
    seconds = time.monotonic() - begin
    LATE.write_text("0")
    rows = []
    for line in LATE.read_text().splitlines():
        late, times, comm, where = line.split(maxsplit=3)
        rows.append([int(late), int(times), comm, where])
    ours = sorted((row for row in rows if row[2].startswith("reader")), reverse=True)
    row = {{"what": what, "seconds": seconds, "ours": ours[:6], **(more or {{}})}}
    say(what, f"{{seconds:.3f}} s", ours[:2], more or "")
    return row

def read(path, size=1 << 16, offset=None):
    file = os.open(path, os.O_RDONLY)
    longest = total = 0
    while True:
        begin = time.thread_time_ns()
        data = os.read(file, size)
        longest = max(longest, time.thread_time_ns() - begin)
        total += len(data)
        if not data:
            break
    os.close(file)
    return {{"longest_read_ns": longest, "bytes": total}}

def opened(path):
    begin = time.thread_time_ns()
    file = os.open(path, os.O_RDONLY)
    longest = time.thread_time_ns() - begin
    os.close(file)
    return {{"longest_read_ns": longest, "bytes": 0}}

def kcore():
    # The struct pages: read in 2 MiB, as collect does.
    file = os.open("/proc/kcore", os.O_RDONLY)
    head = os.read(file, 1 << 16)
    import struct
    offset, count = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<H", head, 56)[0]
    longest = total = 0
    for number in range(count):
        kind, _, at, address, _, size = struct.unpack_from("<IIQQQQ", head, offset + 56 * number)
        if kind != 1 or size > 1 << 40:
            continue
        for piece in range(0, min(size, 64 << 20), 2 << 20):
            begin = time.thread_time_ns()
            try:
                total += len(os.pread(file, 2 << 20, at + piece))
            except OSError:
                continue
            longest = max(longest, time.thread_time_ns() - begin)
    os.close(file)
    return {{"longest_read_ns": longest, "bytes": total}}

def command(*words):
    def run():
        pid = os.fork()
        if pid == 0:
            name("reader")
            log = os.open("/out/commands.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if not words:
                import numpy, rich.console
                os._exit(0)
            from mmscope.reports.commands.command import main
            sys.argv = ["mmscope", *words]
            os._exit(main())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {{"code": code}}
    return run

Path("/proc/sys/vm/max_map_count").write_text("200000")
say("making the load")
lots = child(many_vmas)
os.read(ready[0], 1)
pieces = child(in_pieces)
os.read(ready[0], 1)
Path("/sys/kernel/debug/mmscope_lab").write_text("slab_cache {OBJECTS}")
busy = child(at_work)
name("reader")

slab = Path("/sys/kernel/slab/mmscope_lab")
found["partial_slabs"] = int((slab / "partial").read_text().split()[0])
found["objects"] = {OBJECTS} * 3 // 4
owner = Path("/sys/kernel/debug/page_owner").exists()
found["page_owner"] = owner
found["release"] = os.uname().release

def nothing():
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass

found["files"].append(measured("nothing", nothing))
for path in ("/proc/zoneinfo", "/proc/buddyinfo", "/proc/pagetypeinfo", "/proc/vmstat",
             "/proc/meminfo", "/proc/pressure/memory", "/proc/slabinfo", f"/proc/{{lots}}/maps",
             f"/proc/{{lots}}/status"):
    found["files"].append(measured(path, lambda: read(path)))
found["files"].append(measured("/proc/kcore", kcore))
traces = "/sys/kernel/debug/slab/mmscope_lab/alloc_traces"
found["files"].append(measured(traces, lambda: opened(traces)))
if owner:
    counts = "/sys/kernel/debug/page_owner_stacks/show_stacks"
    handles = "/sys/kernel/debug/page_owner_stacks/show_handles"
    path = handles if os.path.exists(handles) else counts
    found["files"].append(measured(path, lambda: read(path)))
found["pagetypeinfo"] = Path("/proc/pagetypeinfo").read_text()
found["zoneinfo"] = Path("/proc/zoneinfo").read_text()
for words in (
    (),
    ("doctor",),
    ("watch", "--interval", "0.5", "--count", "3", "-o", "/out/watch"),
    ("collect", "--proc-root", "/", "-o", "/out/careful"),
    ("collect", "--proc-root", "/", "--all", "-o", "/out/all"),
    ("collect", "--symbols", "/vmlinux", "-o", "/out/memory"),
) if not owner else ():
    found["commands"].append(measured(" ".join(words) or "nothing", command(*words)))
Path("/out/prices.json").write_text(json.dumps(found))
for pid in (lots, pieces, busy):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def run(folder: Path, options: str) -> Any:
    """What a guest with such options found."""
    out = run_live(
        PROGRAM,
        folder,
        "owner",
        print,
        options=f"maxcpus=1 {options} slab_debug=U,mmscope_lab",
        qemu_args=MACHINE,
        seconds=SECONDS,
    )
    return json.loads((out / "prices.json").read_text())


def time_text(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f} ms" if nanoseconds >= 1e6 else f"{nanoseconds / 1e3:.0f} µs"


def show(found: Any) -> None:
    """Two tables: files and commands."""
    print(f"\n{found['release']}, page_owner {'on' if found['page_owner'] else 'off'}")
    blocks = [int(n.strip(">")) for n in re.findall(r"type +\w+ +(>?\d+)", found["pagetypeinfo"])]
    spans = [int(n) for n in re.findall(r"spanned +(\d+)", found["zoneinfo"])]
    print(
        f"longest free list {max(blocks):,}; largest zone {max(spans) // 512:,} pageblocks; "
        f"mmscope_lab: {found['objects']:,} objects, {found['partial_slabs']:,} partial slabs"
    )
    for kind in filter(found.get, ("files", "commands")):
        table = Table(
            "what", "interrupts off", "where they came back", "longest call, CPU", "all of it"
        )
        for row in found[kind]:
            latest, _, _, where = (*row["ours"], [0, 0, "", "-"])[0]
            call = row.get("longest_read_ns")
            table.add_row(
                re.sub(r"/\d+/", "/PID/", row["what"]),
                time_text(latest) if latest >= PERIOD_NS else f"< {time_text(PERIOD_NS)}",
                where.partition("+")[0] if latest >= PERIOD_NS else "-",
                time_text(call) if call else "-",
                time_text(row["seconds"] * 1e9),
            )
        Console(width=140).print(table)


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        for name, options in (("off", "page_owner=off"), ("on", "page_owner=on")):
            folder = Path(made) / name
            folder.mkdir()
            found = run(folder, options)
            if sys.argv[1:]:
                Path(sys.argv[1], f"prices-{name}.json").write_text(json.dumps(found))
            show(found)


if __name__ == "__main__":
    main()
