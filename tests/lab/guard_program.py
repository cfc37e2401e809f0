# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What runs in a guest beside ``mmscope guard``: it drives the kernel out of memory, out of free
blocks of THP size, and into a leak of pages that no line of /proc/meminfo has (pipes' buffers).

The guest looks for captures itself, and notes when the first thing that names the cause is there.
An emulated CPU is some fifty times as slow: guard may take most of one.
"""

from shared_guest import PROCESSES

UID = "3f2a8c1e-93d4-4b7a-8a11-0c5d9e7f1a2%d"
SLICE = "/kubepods.slice/kubepods-pod{}.slice".format(UID.replace("-", "_"))
# Cgroups of containers, each of a pod of its own, as kubelet and the runtimes name them: with
# systemd's driver and with cgroupfs'.
CONTAINERS = {
    f"{SLICE % 0}/cri-containerd-{'0' * 64}.scope": "containerd",
    f"{SLICE % 1}/crio-{'1' * 64}.scope": "CRI-O",
    f"{SLICE % 2}/docker-{'2' * 64}.scope": "Docker",
    f"/kubepods/burstable/pod{UID % 3}/{'3' * 64}": None,
    f"/kubepods/burstable/pod{UID % 4}/crio-{'4' * 64}": "CRI-O",
}

# Before guard begins: a node's cgroups, and its files that have the names.
NODE = f"""
import ctypes
from pathlib import Path

ROOT, LOGS = Path("/sys/fs/cgroup"), Path("/var/log")
if not ROOT.is_mount():  # another program of the guest may have done it
    assert not ctypes.CDLL(None).mount(b"cgroup2", bytes(ROOT), b"cgroup2", 0, None)
(LOGS / "containers").mkdir(parents=True)
for number, path in enumerate({[*CONTAINERS]}):
    (LOGS / f"pods/shop_web-{{number}}_{{{UID!r} % number}}").mkdir(parents=True)
    link = f"web-{{number}}_shop_nginx-{{str(number) * 64}}.log"
    (LOGS / "containers" / link).symlink_to("/none")
    at = ROOT
    for name in path[1:].split("/"):
        (at / "cgroup.subtree_control").write_text("+memory")
        at /= name
        at.mkdir(exist_ok=True)
"""

BEGIN = (
    PROCESSES
    + """
import datetime, fcntl, json, signal, subprocess, sys, time
from mmscope.reports.guard.capture import mmscope

FOLDER = Path("/out/guard/captures")
said = {"seconds": {}, "written": {}}

def of(trigger):
    return [p for p in FOLDER.glob("2*") if p.name.endswith(trigger)]

def wait_for(what, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.2)

def has_bundle(trigger):
    return [p for p in of(trigger) if (p / "bundle/datapackage.json").exists()]

def done(trigger):
    return [p for p in of(trigger)
            if json.loads((p / "incident.json").read_text())["state"] == "done"]

def note(trigger, begin, patience):
    if found := wait_for(lambda: has_bundle(trigger), patience):
        said["seconds"][trigger] = time.monotonic() - begin
        # The trigger's time is whole seconds.
        at = json.loads((found[0] / "incident.json").read_text())["at"]
        at = datetime.datetime.fromisoformat(at).timestamp()
        said["written"][trigger] = (found[0] / "bundle/datapackage.json").stat().st_mtime - at

def resident():
    status = Path(f"/proc/{guard.pid}/status").read_text()
    words = Path(f"/proc/{guard.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(words[11]) + int(words[12])
    kib = {l.split(":")[0]: int(l.split()[1]) for l in status.splitlines() if l.startswith("Vm")}
    return {"cpu": ticks / 100, "rss": kib["VmRSS"] << 10, "locked": kib["VmLck"] << 10,
            "swap": kib.get("VmSwap", 0)}

log = open("/out/guard/guard.log", "wb")
began = time.monotonic()
guard = subprocess.Popen(
    mmscope("guard", "run", "-o", str(FOLDER), "--interval", "2", "--distance", "0",
            "--timeout", "1800", "--collect=--only zones,vm_counters,kernel_log,oom_kills,"
            "containers,free_lists"),
    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
wait_for(lambda: b"triggers, every" in Path("/out/guard/guard.log").read_bytes(), 300)
said["start"] = time.monotonic() - began
told("guard: begun")
time.sleep(10)
said["before"] = dict(resident(), seconds=time.monotonic())
"""
)

OOM = """
# MADV_POPULATE_WRITE: by the kernel alone.
begin = time.monotonic()
pid = child(lambda: memory(8 << 30, mmap.MADV_HUGEPAGE).madvise(23))
said["killed"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
said["dying"] = time.monotonic() - begin
told("guard: killed")
note("oom-kill", time.monotonic(), 600)
told("guard: captured")
wait_for(lambda: done("oom-kill"), 1200)
"""

POD = f"""
def in_pod():
    (group / "cgroup.procs").write_text("0")
    memory(256 << 20, mmap.MADV_NOHUGEPAGE).madvise(23)

group = Path("/sys/fs/cgroup{next(iter(CONTAINERS))}")
(group / "memory.max").write_text("32M")
pid = child(in_pod)
said["killed"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
told("guard: killed")
note("cgroup-out-of-memory", time.monotonic(), 600)
wait_for(lambda: done("cgroup-out-of-memory"), 1200)
"""

FAMINE = """
def free():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) << 10 for name, rest in (l.split(":") for l in lines)}

def huge_pages():
    lines = (l.split() for l in Path("/proc/vmstat").read_text().splitlines())
    return {name: int(value) for name, value in lines if name.startswith("thp_fault_")}

def famine():
    # No compaction in the background, by tasks or by khugepaged; then all memory in pieces.
    Path("/proc/sys/vm/compaction_proactiveness").write_text("0")
    Path("/sys/kernel/mm/transparent_hugepage/defrag").write_text("never")
    Path("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag").write_text("0")
    Path("/sys/kernel/mm/transparent_hugepage/enabled").write_text("always")
    parts = []
    while (left := free()["MemFree"]) > (96 << 20):
        part = memory(min(left - (64 << 20), 64 << 20), mmap.MADV_NOHUGEPAGE)
        part.madvise(23)
        parts.append(part)
    for part in parts:
        for at in range(0, len(part) - (256 << 10), 256 << 10):
            part.madvise(mmap.MADV_DONTNEED, at + 4096, (256 << 10) - 4096)
    wanted = []  # and kept: what is given back would be there for others
    while True:
        wanted.append(memory(64 << 20, mmap.MADV_HUGEPAGE))
        for at in range(0, len(wanted[-1]), 2 << 20):
            wanted[-1][at] = 1
        time.sleep(1)

def famine_ended():
    if "famine" not in said and (done := os.waitpid(pid, os.WNOHANG)) != (0, 0):
        said["famine"] = f"ended by itself with {os.waitstatus_to_exitcode(done[1])}"
    return "famine" in said

def say_famine(words):
    # What the kernel has left, and how huge pages fared: the reason where nothing fires.
    said["famine_seen"] = [words, Path("/proc/buddyinfo").read_text(), huge_pages(), free()]
    told(f"guard: {words}: {huge_pages()}")
    for line in said["famine_seen"][1].splitlines():
        told(f"guard: {line}")

before = huge_pages()["thp_fault_fallback"]
pid = child(famine)
wait_for(lambda: famine_ended() or huge_pages()["thp_fault_fallback"] >= before + 20, 600)
say_famine("huge pages fail")
# Bounded by the guest's clock alone, and far beyond what is asked for.
begin = time.monotonic()
if wait_for(lambda: of("huge-blocks-gone") or famine_ended(), 600) and not famine_ended():
    note("huge-blocks-gone", begin, 600)
say_famine("captured" if of("huge-blocks-gone") else "no capture")
if not famine_ended():
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    said["famine"] = "killed"
told(f"guard: famine: {said['famine']}")
if of("huge-blocks-gone"):
    wait_for(lambda: done("huge-blocks-gone"), 1200)
"""

LEAK = """
pipes = []
begin = time.monotonic()
while not of("memory-unaccounted") and time.monotonic() - begin < 400:
    pipe = os.pipe()
    fcntl.fcntl(pipe[1], 1031, 1 << 20)  # F_SETPIPE_SZ
    pipes.append(pipe)
    os.write(pipe[1], bytes(1 << 20))
    time.sleep(0.7)
said["leaked"] = len(pipes) << 20
said["leaking"] = time.monotonic() - begin
note("memory-unaccounted", time.monotonic(), 600)
wait_for(lambda: done("memory-unaccounted"), 1200)
for pipe in pipes:
    os.close(pipe[0])
    os.close(pipe[1])
"""

END = """
said["after"] = dict(resident(), seconds=time.monotonic())
guard.send_signal(signal.SIGTERM)
said["code"] = guard.wait()
Path("/out/guard/said.json").write_text(json.dumps(said))
"""
