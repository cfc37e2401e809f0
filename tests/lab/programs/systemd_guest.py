# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Runs in the guest of ``systemd_try.py``, as a service of its systemd: what the units of the Debian
packages do there, as /try/said.json. The standard library alone.

A dump comes to /var/crash as ``kdump_save_core()`` of kdump-tools (1.10.7) lets one come: a folder,
dmesg in it, ``dump-incomplete`` that grows, and its name at the end.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRY, CRASHES = Path("/try"), Path("/var/crash")
FOLDER = Path("/var/lib/mmscope/guard")
UNITS = ("mmscope-guard.service", "mmscope-crash.service", "mmscope-crash.path")
STAMP = "202611230300"
PIECES = 4
SHOWN = ("ActiveState", "Result", "ExecMainStatus", "MemoryPeak", "CPUUsageNSec", "TasksCurrent",
         "NRestarts")  # fmt: skip
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


def incident(trigger: str, state: str | None = "done", of: str = "") -> dict[str, Any] | None:
    """A capture for a trigger in a state, of a dump of such a name."""
    for path in FOLDER.glob(f"2*-{trigger}*/incident.json"):
        one = json.loads(path.read_text())
        if state in (None, one["state"]) and of in one.get("core", {}).get("path", ""):
            files = {file.name: file.stat().st_size for file in path.parent.iterdir()}
            log = (path.parent / "log.txt").read_text()
            return {**one, "files": files, "log": log, "folder": str(path.parent)}
    return None


def inactive(unit: str) -> bool:
    return shown(unit)["ActiveState"] in ("inactive", "failed")


def at_boot() -> None:
    """The dump that was there before: compressed, so that it is a line. The service finds it."""
    said["boot"] = wait_for("at-boot", lambda: incident("crash", of=".gz"), 900)
    wait_for("service-ends", lambda: inactive("mmscope-crash.service"), 300)
    said["boot_service"] = shown("mmscope-crash.service")
    # What is said to be failed would hide what comes.
    output("systemctl", "reset-failed", "mmscope-crash.service")
    said["path"] = shown("mmscope-crash.path")


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
    said["too_early"] = incident("crash", None, of=STAMP)
    incomplete.rename(place / f"dump.{STAMP}")
    told("crash: the dump has its name")
    said["crash"] = wait_for("crash", lambda: incident("crash", of=STAMP), 3000)
    said["crash_service_at_work"] = shown("mmscope-crash.service")
    wait_for("crash-service-ends", lambda: inactive("mmscope-crash.service"), 300)
    said["crash_service"] = shown("mmscope-crash.service")
    said["rebuilt_left"] = [str(path) for path in FOLDER.glob("*/.*")]


def guard() -> None:
    output("systemctl", "start", "mmscope-guard.service")
    of = ("journalctl", "-u", "mmscope-guard", "-o", "cat", "--no-pager")
    said["begun"] = wait_for("guard-begins", lambda: "triggers, every" in output(*of), 900)
    said["asked"] = output("mmscope", "guard", "trigger")
    said["by_hand"] = wait_for("by-hand", lambda: incident("by-hand"), 3000)
    said["guard_service"] = shown("mmscope-guard.service")
    pid = output("systemctl", "show", "mmscope-guard.service", "--value", "-p", "MainPID").strip()
    status = Path("/proc", pid, "status").read_text()
    said["guard_status"] = dict(
        line.split(":\t", 1)
        for line in status.splitlines()
        if line.startswith(("VmLck", "VmRSS", "VmSize", "CapBnd", "NoNewPrivs", "Seccomp:"))
    )
    said["guard_oom_score_adj"] = Path("/proc", pid, "oom_score_adj").read_text().strip()
    output("systemctl", "stop", "mmscope-guard.service")
    said["guard_ended"] = shown("mmscope-guard.service")


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
    for work in (at_boot, a_dump_comes, guard):
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
