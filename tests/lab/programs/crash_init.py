# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/sbin/init of a disk that is the root of a machine which crashes, and of its crash kernel, as with
Debian's kdump-tools: ``crash_kernel.py`` puts it there, behind what Python begins with.

Booted first, it loads the crash kernel (kexec_file_load(2)) and crashes by sysrq. Booted as the
crash kernel, which has /proc/vmcore, it runs the hook, once as it is meant and once for each thing
that may go wrong, copies the dump to the second disk each time, and reboots. Booted after that, it
keeps what pstore has (ramoops, whose memory no boot touches), and ends the machine.
"""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import subprocess
import threading
import time
import zlib
from pathlib import Path

LINE = b"console=ttyS0 panic=-1 nr_cpus=1 reset_devices irqpoll"
SYS_FINIT_MODULE, SYS_KEXEC_FILE_LOAD, KEXEC_FILE_ON_CRASH = 313, 320, 2
RB_POWER_OFF = 0x4321FEDC
# 4: also what the log has at a reboot.
RAMOOPS = b"mem_address=0x50000000 mem_size=0x100000 record_size=0x10000 max_reason=4"
OUT, CGROUPS, BALLAST = Path("/out"), Path("/sys/fs/cgroup"), Path("/tmp/ballast")
HOOK = "/usr/libexec/mmscope/crash-kernel"
CRASHED, SAID = OUT / "crashed", OUT / "said.json"
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
    CRASHED.touch()
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
    with Path(f"/dev/{name}.txt").open("wb") as output:  # the disk may be full
        code = subprocess.run(
            ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$1" "$2" "$3"',
             str(group), HOOK, str(OUT / name), str(seconds)],
            stdout=output, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    took = time.monotonic() - begin
    done.set()
    for watcher in watchers:
        watcher.join()
    peak = int((group / "memory.peak").read_text())
    told(f"{name}: {code} after {took:.1f} s, {peak >> 20} MiB")
    return {"code": code, "seconds": took, "peak": peak, **most}


def memory_filled(left: int) -> Path:
    """Fill memory until so many bytes are available; with what."""
    mount(b"tmpfs", BALLAST, b"size=100%")
    with (BALLAST / "full").open("wb", buffering=0) as file:
        while True:
            available = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
            if int(available) << 10 <= left:
                return BALLAST / "full"
            file.write(bytes(1 << 20))


def disk_filled() -> Path:
    """Fill the disk; with what."""
    with (OUT / "full").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return OUT / "full"


def saved() -> tuple[int, int, float]:
    """Copy the dump to the second disk; its size and sum, and how long it took."""
    size, crc, zeros, begin = 0, 0, bytes(1 << 20), time.monotonic()
    with open("/proc/vmcore", "rb", buffering=0) as core, open("/dev/vdb", "wb") as disk:
        while chunk := core.read(1 << 20):
            if chunk == zeros:
                disk.seek(len(chunk), os.SEEK_CUR)
            else:
                disk.write(chunk)
                crc = zlib.crc32(chunk, crc)
            size += len(chunk)
        disk.flush()
        os.fsync(disk.fileno())
    return size, crc, time.monotonic() - begin


def after() -> None:
    """All that is tried in the crash kernel."""
    mount(b"cgroup2", CGROUPS)
    (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    asked = json.loads(Path("/asked.json").read_text())
    said = {"meminfo": Path("/proc/meminfo").read_text()}
    for name, seconds, limit in asked:
        filled = None
        if name == "out_of_memory":
            filled, limit = memory_filled(limit), 0
        elif name == "disk_full":
            filled = disk_filled()
        case = hook(name, seconds, limit)
        # The dump is saved as things are.
        case["size"], case["crc"], case["saving"] = saved()
        told(f"{name}: {case['size']} bytes of dump in {case['saving']:.1f} s")
        if filled:
            filled.unlink()
        (OUT / f"{name}.txt").write_bytes(Path(f"/dev/{name}.txt").read_bytes())
        said[name] = case
        SAID.write_text(json.dumps(said))


def pstore() -> None:
    """Have the module for it, and its files in a folder."""
    for name in ("reed_solomon", "ramoops"):
        module = os.open(f"/boot/{name}.ko", os.O_RDONLY)
        words = RAMOOPS if name == "ramoops" else b""
        if libc.syscall(SYS_FINIT_MODULE, module, words, 0):
            raise OSError(ctypes.get_errno(), name)
    mount(b"pstore", Path("/sys/fs/pstore"))


try:
    mount(b"proc", Path("/proc"))
    mount(b"sysfs", Path("/sys"))
    os.environ["PATH"] = "/bin"
    if Path("/proc/vmcore").exists():
        pstore()
        after()
        told("rebooting")
        os.sync()
        Path("/proc/sysrq-trigger").write_text("b")
    elif SAID.exists():
        pstore()
        for path in Path("/sys/fs/pstore").iterdir():
            (OUT / f"pstore-{path.name}").write_bytes(path.read_bytes())
        told("done")
    elif CRASHED.exists():
        told("failed: it crashed, and there was no crash kernel")
    else:
        crash()
except BaseException as error:  # PID 1 must not end
    told(f"failed: {error!r}")
finally:
    os.sync()
    libc.reboot(RB_POWER_OFF)
