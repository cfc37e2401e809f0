# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Runs in the guest of ``systemd_try.py``, as a service of its systemd: what the units of the Debian
packages do there, as /try/said.json. The standard library alone. It is root there, and kills by
the number that systemd says.

A dump comes to /var/crash as ``kdump_save_core()`` of kdump-tools (1.10.7) lets one come: a folder,
dmesg in it, ``dump-incomplete`` that grows, and its name at the end.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRY, CRASHES = Path("/try"), Path("/var/crash")
FOLDER = Path("/var/lib/mmscope/guard")
UNITS = ("mmscope-guard.service", "mmscope-crash.service", "mmscope-crash.path",
         "mmscope-crash.timer")  # fmt: skip
EARLIER, STAMP = "202611230100", "202611230300"
PIECES = 4
SHOWN = ("ActiveState", "Result", "ExecMainStatus", "MemoryPeak", "CPUUsageNSec", "TasksCurrent",
         "NRestarts", "MainPID")  # fmt: skip
# A quarter of an hour is for machines that have other work.
SOON = "[Timer]\nOnActiveSec=\nOnActiveSec=5s\nOnUnitInactiveSec=30s\n"
# An emulated CPU has hardly started perf after five seconds.
RECORD = "/usr/bin/mmscope record reclaim -a --frequency 99 --seconds 45 --buffer 256K"
BUSY = "while True: pass"
GREEDY = "held = bytearray(256 << 20)"
# As the drop-ins of the other units have it (systemd_try.py).
NUMPY = 'Environment="NPY_DISABLE_CPU_FEATURES=AVX2 FMA3"'
said: dict[str, Any] = {"seconds": {}}


def told(words: str) -> None:
    """The console has it, and with it whoever waits."""
    with open("/dev/console", "w") as console:
        print(f"try: [{time.clock_gettime(time.CLOCK_BOOTTIME):5.1f}] {words}", file=console)


def output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    return done.stdout + done.stderr


def shown(unit: str) -> dict[str, str]:
    lines = output("systemctl", "show", unit, f"--property={','.join(SHOWN)}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def wait_for(what: str, ready: Callable[[], Any], seconds: float) -> Any:
    begin = time.monotonic()
    while not (found := ready()):
        if time.monotonic() - begin > seconds:
            told(f"{what}: not after {seconds:.0f} s")
            return None
        time.sleep(0.5)
    said["seconds"][what] = round(time.monotonic() - begin, 1)
    told(f"{what}: {said['seconds'][what]} s")
    return found


def incident(*triggers: str, of: str = "", done: bool = True) -> dict[str, Any] | None:
    """A capture for one of these triggers, of a dump of such a name."""
    for path in sorted(FOLDER.glob("2*/incident.json")):
        one = json.loads(path.read_text())
        if one["trigger"] not in triggers or not one.get("core", {}).get("path", "").endswith(of):
            continue
        if not done or one["state"] == "done":
            files = {file.name: file.stat().st_size for file in path.parent.iterdir()}
            log = (path.parent / "log.txt").read_text()
            return {**one, "files": files, "log": log, "folder": str(path.parent)}
    return None


def is_in(unit: str, *states: str) -> bool:
    return shown(unit)["ActiveState"] in states


def started_by() -> str | None:
    """The unit that made systemd start the service that is at work (systemd.exec(5))."""
    pid = shown("mmscope-crash.service")["MainPID"]
    try:
        words = Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except FileNotFoundError:
        return None
    return next((w[13:].decode() for w in words if w.startswith(b"TRIGGER_UNIT=")), None)


def crash_service_rests() -> None:
    wait_for("crash-service-rests", lambda: is_in("mmscope-crash.service", "inactive", "failed"),
             600)  # fmt: skip


def at_boot() -> None:
    """A dump was there before, compressed, so that it is a line; and one that root did not make."""
    said["boot"] = wait_for("at-boot", lambda: incident("crash", of=".gz"), 1200)
    crash_service_rests()
    said["boot_service"] = shown("mmscope-crash.service")
    said["waiting"] = {unit: shown(unit)["ActiveState"] for unit in UNITS[2:]}


def a_dump_comes() -> None:
    place = CRASHES / STAMP
    place.mkdir()
    (place / f"dmesg.{STAMP}").write_text("of no use")
    incomplete = place / "dump-incomplete"
    begun = os.path.getsize(TRY / "flat") // PIECES + 1
    with (TRY / "flat").open("rb") as old, incomplete.open("wb") as new:
        while piece := old.read(begun):
            new.write(piece)
            new.flush()
            time.sleep(8)
    said["while_it_was_written"] = shown("mmscope-crash.service")["ActiveState"]
    said["path_started_it"] = started_by()
    said["too_early"] = incident("crash", of=STAMP, done=False)
    incomplete.rename(place / f"dump.{STAMP}")
    told("crash: the dump has its name")
    said["crash"] = wait_for("crash", lambda: incident("crash", of=STAMP), 3000)
    said["crash_service_at_work"] = shown("mmscope-crash.service")
    crash_service_rests()
    said["crash_service"] = shown("mmscope-crash.service")
    said["rebuilt_left"] = [str(path) for path in FOLDER.glob("*/.*")]


def a_dump_is_unpacked() -> None:
    """As a person does who was told to: into a folder that is there already."""
    packed = CRASHES / EARLIER / f"dump.{EARLIER}.gz"
    output("gunzip", "-k", str(packed))
    time.sleep(10)
    said["path_missed_it"] = is_in("mmscope-crash.service", "inactive")
    told("unpacked: the timer comes soon")
    drop_in = Path("/run/systemd/system/mmscope-crash.timer.d/soon.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(SOON)
    output("systemctl", "daemon-reload")
    output("systemctl", "restart", "mmscope-crash.timer")
    said["timer_started_it"] = wait_for("timer", started_by, 300)
    said["unpacked"] = wait_for("unpacked", lambda: incident("crash", of=f"dump.{EARLIER}"), 3000)
    crash_service_rests()
    said["unpacked_service"] = shown("mmscope-crash.service")
    output("systemctl", "stop", "mmscope-crash.timer")


def main_pid(unit: str) -> int:
    return int(shown(unit)["MainPID"])


def begun(times: int) -> bool:
    words = output("journalctl", "-u", "mmscope-guard", "-o", "cat", "--no-pager")
    return words.count("triggers, every") == times


def guard() -> None:
    """A trigger fires: a memory cgroup runs out. What guard can see of that is what it may read."""
    unit = "mmscope-guard.service"
    output("systemctl", "start", unit)
    wait_for("guard-begins", lambda: begun(1), 900)
    time.sleep(10)
    limits = ("-p", "MemoryMax=64M", "-p", "MemorySwapMax=0")
    # --wait would want a D-Bus.
    said["greedy"] = output("systemd-run", *limits, "python3", "-I", "-c", GREEDY)
    fired = ("cgroup-out-of-memory", "oom-kill")
    if wait_for("guard-sees", lambda: incident(*fired, done=False), 900):
        said["out_of_memory"] = wait_for("guard-captures", lambda: incident(*fired), 3000)
    said["guard_service"] = shown(unit)
    pid = main_pid(unit)
    status = Path(f"/proc/{pid}/status").read_text()
    said["guard_status"] = dict(
        line.split(":\t", 1)
        for line in status.splitlines()
        if line.startswith(("VmLck", "VmRSS", "VmSize", "CapBnd", "NoNewPrivs", "Seccomp:"))
    )
    said["guard_oom_score_adj"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()


def a_profile() -> None:
    """
    What a stall is profiled with, under the hardening of guard's unit, all of it. By itself: an
    emulated CPU may take longer than a capture has for it. Beside something that is there to be
    seen: an idle CPU is not sampled.
    """
    unit = Path("/usr/lib/systemd/system/mmscope-guard.service").read_text()
    changed = {"Type": "oneshot", "ExecStart": f"{RECORD} -o {FOLDER}/recorded", "Restart": "no"}
    lines = [
        f"{key}={changed[key]}" if (key := line.partition("=")[0]) in changed else line
        for line in unit.splitlines()
    ]
    lines.insert(lines.index("[Service]") + 1, NUMPY)
    Path("/run/systemd/system/try-record.service").write_text("\n".join(lines) + "\n")
    output("systemctl", "daemon-reload")
    begin = time.monotonic()
    with subprocess.Popen(["python3", "-I", "-c", BUSY]) as busy:
        output("systemctl", "start", "try-record.service")
        busy.kill()
    said["seconds"]["profile"] = round(time.monotonic() - begin, 1)
    said["profile_service"] = shown("try-record.service")
    words = ("journalctl", "-u", "try-record", "-o", "cat", "--no-pager")
    said["profile"] = output(*words)
    told(f"profile: {said['seconds']['profile']} s, {said['profile_service']['Result']}")


def guard_is_killed() -> None:
    """systemd starts it again; then it is stopped in the midst of a capture."""
    unit = "mmscope-guard.service"
    pid = main_pid(unit)
    os.kill(pid, signal.SIGKILL)
    wait_for("guard-again", lambda: main_pid(unit) not in (0, pid) and begun(2), 900)
    said["asked"] = output("mmscope", "guard", "trigger")
    wait_for("by-hand", lambda: incident("by-hand", done=False), 900)
    output("systemctl", "restart", unit)
    wait_for("guard-once-more", lambda: begun(3), 900)
    said["cut"] = incident("by-hand", done=False)
    said["guard_again"] = shown(unit)
    output("systemctl", "stop", unit)
    said["guard_ended"] = shown(unit)


def journal() -> None:
    """What others are told: the fields, by which they would ask for it."""
    asked = ("journalctl", "-o", "json", "--no-pager", "-t", "mmscope-guard", "MMSCOPE_STATE=done")
    said["events"] = [
        {key: value for key, value in json.loads(line).items() if not key.startswith("__")}
        for line in output(*asked).splitlines()
        if line.startswith("{")
    ]
    for unit in UNITS:
        words = output("journalctl", "-u", unit, "--no-pager", "-o", "short-monotonic")
        (TRY / f"{unit}.log").write_text(words)


def main() -> None:
    said["systemd"] = output("systemctl", "--version").splitlines()[0]
    said["verify"] = output("systemd-analyze", "verify", "--man=no", *UNITS)
    said["security"] = {
        unit: output("systemd-analyze", "security", "--no-pager", unit).splitlines()[-1]
        for unit in UNITS
        if unit.endswith("service")
    }
    told(said["systemd"])
    for work in (at_boot, a_dump_comes, a_dump_is_unpacked, guard, a_profile, guard_is_killed):
        try:
            work()
        except Exception as error:  # the rest is to be seen all the same
            said.setdefault("failed", []).append(f"{work.__name__}: {error!r}")
            told(said["failed"][-1])
    journal()


if __name__ == "__main__":
    try:
        main()
    finally:
        (TRY / "said.json").write_text(json.dumps(said, indent=1))
        told("done")
        subprocess.run(["systemctl", "--no-block", "poweroff"])
