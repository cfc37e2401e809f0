# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/sbin/init of a disk that is the root of a machine which crashes, and of its crash kernel, as with
Debian's kdump-tools: ``crash_kernel.py`` puts it there, behind what Python begins with.

Booted first, it loads the crash kernel (kexec_file_load(2)) and crashes by sysrq. Booted as the
crash kernel, which has /proc/vmcore, it runs the hook, once as it is meant and once for each thing
that may go wrong, copies the dump to the second disk, and reboots.
"""

import ctypes
import json
import mmap
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

LINE = b"console=ttyS0 panic=-1 nr_cpus=1 reset_devices irqpoll"
SYS_KEXEC_FILE_LOAD, KEXEC_FILE_ON_CRASH = 320, 2
OUT, CGROUPS, BALLAST = Path("/out"), Path("/sys/fs/cgroup"), Path("/tmp/ballast")
BEGAN = time.monotonic()
libc = ctypes.CDLL(None, use_errno=True)


def told(words: str) -> None:
    print(f"crash: [{time.monotonic() - BEGAN:6.1f}] {words}", flush=True)


def mount(kind: bytes, place: Path, options: bytes | None = None) -> None:
    if libc.mount(kind, os.fsencode(place), kind, 0, options):
        raise OSError(ctypes.get_errno(), f"cannot mount {place}")


def crash() -> None:
    """Load the crash kernel and crash, with what a report speaks of: memory that is held."""
    kernel, initramfs = (os.open(f"/boot/{name}", os.O_RDONLY) for name in ("vmlinuz", "initramfs"))
    if libc.syscall(
        SYS_KEXEC_FILE_LOAD, kernel, initramfs, len(LINE) + 1, LINE, KEXEC_FILE_ON_CRASH
    ):
        raise OSError(ctypes.get_errno(), "kexec_file_load")
    held = []
    for size in (64 << 20, 8 << 20):
        held.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for at in range(0, size, mmap.PAGESIZE):
            held[-1][at] = 1
        if os.fork() == 0:
            signal.pause()
    os.sync()
    told("crashing")
    Path("/proc/sysrq-trigger").write_text("c")


def readers() -> list[int]:
    """Processes of the command, the hook's shell not among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mmscope" in words and b"collect" in words and words[0].endswith(b"python"):
            found.append(int(path.name))
    return found


def kill_second(done: threading.Event) -> None:
    """Kill the command that reads all sections, when it is at it."""
    while not done.wait(0.2):
        if list((OUT / "killed").glob("*/.all.*")) and (found := readers()):
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            return


def high_water(done: threading.Event, most: dict[str, int]) -> None:
    """VmHWM of the command, in bytes, and the least that was available meanwhile."""
    while not done.wait(0.5):
        for pid in readers():
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith("VmHWM:"):
                    most["VmHWM"] = max(most.get("VmHWM", 0), int(line.split()[1]) << 10)
        available = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
        most["MemAvailable"] = min(most.get("MemAvailable", 1 << 62), int(available) << 10)


def hook(name: str, seconds: int, limit: int = 0) -> dict[str, object]:
    """What came of the hook, which has so many seconds, and so many bytes of a memory cgroup."""
    told(f"{name}: {seconds} s, {limit >> 20} MiB")
    group = CGROUPS / name
    group.mkdir()
    if limit:
        (group / "memory.max").write_text(str(limit))
    done, most, begin = threading.Event(), dict[str, int](), time.monotonic()
    watchers = [threading.Thread(target=high_water, args=(done, most))]
    if name == "killed":
        watchers.append(threading.Thread(target=kill_second, args=(done,)))
    for watcher in watchers:
        watcher.start()
    with (OUT / f"{name}.txt").open("wb") as output:
        code = subprocess.run(
            ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec /hook "$1" "$2"',
             str(group), str(OUT / name), str(seconds)],
            stdout=output, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    took = time.monotonic() - begin
    done.set()
    for watcher in watchers:
        watcher.join()
    peak = int((group / "memory.peak").read_text())
    told(f"{name}: {code} after {took:.1f} s, {peak >> 20} MiB")
    return {"code": code, "seconds": took, "peak": peak, **most}


def ballast(left: int) -> None:
    """Fill memory until so many bytes are available."""
    mount(b"tmpfs", BALLAST, b"size=100%")
    with (BALLAST / "full").open("wb", buffering=0) as file:
        while True:
            available = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
            if int(available) << 10 <= left:
                return
            file.write(bytes(1 << 20))


def saved() -> int:
    """Copy the dump to the second disk; its size."""
    size, zeros = 0, bytes(1 << 20)
    with open("/proc/vmcore", "rb", buffering=0) as core, open("/dev/vdb", "wb") as disk:
        while chunk := core.read(1 << 20):
            if chunk == zeros:
                disk.seek(len(chunk), os.SEEK_CUR)
            else:
                disk.write(chunk)
            size += len(chunk)
        disk.flush()
        os.fsync(disk.fileno())
    return size


def after() -> None:
    """All that is tried in the crash kernel."""
    mount(b"cgroup2", CGROUPS)
    (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    asked = json.loads(Path("/asked.json").read_text())
    said = {"meminfo": Path("/proc/meminfo").read_text()}
    for name, seconds, limit in asked:
        if name == "out_of_memory":
            ballast(limit)
            limit = 0
        said[name] = hook(name, seconds, limit)
        (OUT / "said.json").write_text(json.dumps(said))
    if BALLAST.is_dir():
        (BALLAST / "full").unlink(missing_ok=True)
    begin = time.monotonic()
    said["saved"] = saved()
    said["saving"] = time.monotonic() - begin
    (OUT / "said.json").write_text(json.dumps(said))


try:
    mount(b"proc", Path("/proc"))
    mount(b"sysfs", Path("/sys"))
    os.environ["PATH"] = "/bin"
    if Path("/proc/vmcore").exists():
        after()
        told("done")
    else:
        crash()
except BaseException as error:  # PID 1 must not end
    told(f"failed: {error!r}")
finally:
    os.sync()
    Path("/proc/sysrq-trigger").write_text("b")  # QEMU runs with -no-reboot: the machine ends
