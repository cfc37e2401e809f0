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
RB_POWER_OFF, MCL_CURRENT = 0x4321FEDC, 1
# 4: also what the log has at a reboot.
RAMOOPS = b"mem_address=0x50000000 mem_size=0x100000 record_size=0x10000 max_reason=4"
OUT, CGROUPS, BALLAST = Path("/out"), Path("/sys/fs/cgroup"), Path("/tmp/ballast")
WINDOW = 64 << 20  # of the dump, mapped at once
zeros = bytes(1 << 20)
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


def at_second(name: str) -> list[int]:
    """Processes of the command when it is at reading all sections."""
    return readers() if list((OUT / name).glob("*/.all.*")) else []


def kill_second(done: threading.Event) -> None:
    """Kill the command that reads all sections, when it is at it."""
    while not done.wait(0.2):
        if found := at_second("killed"):
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


def fill_memory(done: threading.Event) -> None:
    """Take all memory when the command reads all sections, until the kernel kills for it."""
    mount(b"tmpfs", BALLAST, b"size=100%")
    kills = oom_kills()
    while not at_second("out_of_memory"):
        if done.wait(0.2):
            return
    libc.mlockall(MCL_CURRENT)  # what is to be killed is to wait for the disk, not this
    with (BALLAST / "full").open("wb", buffering=0) as file:
        while oom_kills() == kills and not done.is_set():
            with contextlib.suppress(OSError):
                file.write(zeros)
    libc.munlockall()


def oom_kills() -> int:
    return int(Path("/proc/vmstat").read_text().split("\noom_kill ")[1].split()[0])


WATCHERS = {"killed": kill_second, "out_of_memory": fill_memory}


def hook(name: str, seconds: int, limit: int = 0) -> dict[str, object]:
    """What came of the hook, which has so many seconds, and so many bytes of a memory cgroup."""
    told(f"{name}: {seconds} s, {limit >> 20} MiB")
    group = CGROUPS / name
    group.mkdir()
    if limit:
        (group / "memory.max").write_text(str(limit))
    done, most, begin = threading.Event(), dict[str, int](), time.monotonic()
    watchers = [threading.Thread(target=high_water, args=(done, most))]
    if name in WATCHERS:
        watchers.append(threading.Thread(target=WATCHERS[name], args=(done,)))
    kills = oom_kills()
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
    kills = oom_kills() - kills
    return {"code": code, "seconds": took, "peak": peak, "kills": kills, **most}


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
    crc, begin = 0, time.monotonic()
    with open("/proc/vmcore", "rb") as core, open("/dev/vdb", "wb") as disk:
        size = os.fstat(core.fileno()).st_size
        for at in range(0, size, WINDOW):
            length = min(WINDOW, size - at)
            # read(2) maps each page for itself.
            with mmap.mmap(core.fileno(), length, prot=mmap.PROT_READ, offset=at) as window:
                while chunk := window.read(len(zeros)):
                    if chunk == zeros:
                        disk.seek(len(chunk), os.SEEK_CUR)
                    else:
                        disk.write(chunk)
                        crc = zlib.crc32(chunk, crc)
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
        if name == "disk_full":
            filled = disk_filled()
        elif name == "out_of_memory":
            filled = BALLAST / "full"
        case = hook(name, seconds, limit)
        # The dump is saved as things are.
        case["size"], case["crc"], case["saving"] = saved()
        told(f"{name}: {case['size']} bytes of dump in {case['saving']:.1f} s")
        if filled:
            filled.unlink(missing_ok=True)
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
