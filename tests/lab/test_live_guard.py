# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard`` on a running stock kernel, inside the guest, which runs out of memory.

The guest looks for captures itself, and notes when the first thing that names the cause is there.
An emulated CPU is some fifty times as slow: guard may take most of one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import STANDS_ON
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.guard import captures

PROGRAM = """
import json, mmap, os, signal, subprocess, sys, time
from pathlib import Path
from mmscope.reports.guard.capture import mmscope

FOLDER = Path("/out/guard/captures")
said = {"seconds": {}, "state": {}}

def child(work):
    pid = os.fork()
    if not pid:
        Path("/proc/self/oom_score_adj").write_text("1000")
        try:
            work()
        finally:
            os._exit(0)
    return pid

def memory(size, advice):
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    found.madvise(advice)
    return found

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
    if wait_for(lambda: has_bundle(trigger), patience):
        said["seconds"][trigger] = time.monotonic() - begin

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
    mmscope("guard", "run", "-o", str(FOLDER), "--interval", "2", "--cpu", "90", "--distance", "0",
            "--timeout", "1800", "--collect=--only zones,vm_counters,kernel_log,oom_kills,"
            "free_lists"),
    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
wait_for(lambda: b"triggers, every" in Path("/out/guard/guard.log").read_bytes(), 300)
said["start"] = time.monotonic() - began
time.sleep(10)
said["before"] = dict(resident(), seconds=time.monotonic())

# MADV_POPULATE_WRITE: by the kernel alone.
begin = time.monotonic()
pid = child(lambda: memory(8 << 30, mmap.MADV_HUGEPAGE).madvise(23))
said["killed"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
said["dying"] = time.monotonic() - begin
note("oom-kill", time.monotonic(), 600)
wait_for(lambda: done("oom-kill"), 1200)

said["after"] = dict(resident(), seconds=time.monotonic())
guard.send_signal(signal.SIGTERM)
said["code"] = guard.wait()
Path("/out/guard/said.json").write_text(json.dumps(said))
"""

# Before the one that locks the kernel down.
IN_GUEST = InGuest("guard", STANDS_ON, 8, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def said(out: Path) -> Any:
    """What the guest saw."""
    found = json.loads((out / "said.json").read_text())
    print(found, (out / "guard.log").read_text())
    assert found["code"] == 0 and found["killed"] == -9
    return found


def captured(out: Path, trigger: str) -> tuple[Path, captures.Incident]:
    """The capture of a trigger."""
    those = [one for one in captures.captures(out / "captures") if one[1]["trigger"] == trigger]
    assert those, [incident for _, incident in captures.captures(out / "captures")]
    return those[-1]


def test_what_names_the_cause_is_there(out: Path, said: Any) -> None:
    """How soon is printed: an emulated CPU that others use is no measure."""
    print(f"a bundle {said['seconds']['oom-kill']:.1f} s after the kill")
    assert captured(out, "oom-kill")[1]["trigger"] == "oom-kill"


def test_an_oom_kill_is_captured_with_who_was_killed(out: Path, said: Any) -> None:
    path, incident = captured(out, "oom-kill")
    assert incident["state"] == "done" and incident["source"] == "live"
    assert "The OOM killer took 1 process(es): Out of memory: Killed process" in incident["title"]
    bundle = Bundle(path / "bundle")
    found = {finding.id for finding in evaluate(bundle).found}
    assert {"watch-oom-kill", "oom-kills-told"} <= found
    # Both what was before and what the kernel's memory said.
    assert {"counter_rates", "zones", "free_blocks"} <= bundle.tables.keys()
    assert bundle.target["kind"] == "live"


def test_the_resident_stays_in_memory_and_small(said: Any) -> None:
    before, after = said["before"], said["after"]
    assert before["locked"] > 0 and after["swap"] == 0
    assert after["rss"] < 48 << 20
    seconds = after["seconds"] - before["seconds"]
    print(f"{(after['cpu'] - before['cpu']) / seconds:.0%} of this CPU")
