# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Runs in the guest of ``kdump_try.py``, as a service of its systemd, behind kdump-tools. Booted
first, it crashes by sysrq, with what a report speaks of: memory that is held. Booted after that, it
keeps the journal of all boots, the crash kernel's among them, and ends the machine. In the crash
kernel it does not run: that boots no further than kdump-tools. The standard library alone.
"""

import json
import subprocess
import time
from pathlib import Path

TRY = Path("/try")
SAID, JOURNAL = TRY / "said.json", TRY / "journal.json"
HELD = 64 << 20


def told(words: str) -> None:
    """The console has it, and with it whoever waits."""
    with open("/dev/console", "w") as console:
        print(f"try: [{time.clock_gettime(time.CLOCK_BOOTTIME):5.1f}] {words}", file=console)


def output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    return done.stdout + done.stderr


def read(path: str) -> str:
    return Path(path).read_text().strip()


def boot() -> dict[str, str]:
    """What this boot is, and what systemd and kdump-tools made of it."""
    return {
        "boot_id": read("/proc/sys/kernel/random/boot_id").replace("-", ""),
        "release": read("/proc/sys/kernel/osrelease"),
        "loaded": read("/sys/kernel/kexec_crash_loaded"),
        "kdump": output("kdump-config", "show"),
        "hook": output(
            "systemctl", "show", "mmscope-crash-kernel", "--property=ActiveState,ConditionResult"
        ),
    }


def main() -> None:
    boots = json.loads(SAID.read_text()) if SAID.exists() else []
    boots.append(boot())
    SAID.write_text(json.dumps(boots))
    subprocess.run(["sync"], check=True)
    if len(boots) == 1:
        held = b"mmscope " * (HELD >> 3)
        told(f"crashing, with {len(held) >> 20} MiB held")
        Path("/proc/sysrq-trigger").write_text("c")
    JOURNAL.write_text(output("journalctl", "--output=json", "--no-pager"))
    subprocess.run(["sync"], check=True)
    told("done")
    subprocess.run(["systemctl", "poweroff", "--force"], check=True)


main()
