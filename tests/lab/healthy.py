# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make healthy``: readings of the waits of a guest that is busy and healthy, in which nothing may be
a circle, and no lock may be said to have no holder.

``programs/busy.c`` keeps both of its CPUs busy. It is read from outside, over QMP, while it runs:
as a live host is, by a reader that is not slowed down by the emulation. Readings follow one another
until there are as many as asked for, or the time is over.

    python tests/lab/healthy.py [KERNEL [READINGS [SECONDS]]]      # stable 10000 14400
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import kernels
import machine
from archive import LabError
from children import DIES_WITH_US
from holders_lab import PROGRAMS, build, make_disk
from kernels import Kernel
from roles import resolve

from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.task_waits import from_memory

WARM_UP_SECONDS = 20


def main() -> int:
    """Read until it is enough, and say what was wrong."""
    name, readings, seconds = [*sys.argv[1:], *("stable", "10000", "14400")[len(sys.argv) - 1 :]]
    kernel = kernels.get(resolve(name, _say), _say)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        guest = _boot(kernel, folder)
        try:
            _wait_for("workload sizes", folder / "console.log", guest)
            time.sleep(WARM_UP_SECONDS)
            seen, wrong = _read(folder / "qmp", int(readings), int(seconds), guest)
        finally:
            guest.kill()
            guest.wait()
    _say(f"{seen['readings']:,} readings; {dict(seen)}")
    for each, times in wrong.most_common(20):
        _say(f"wrong, {times} times: {each}")
    return 1 if wrong else 0


def _say(line: str) -> None:
    print(line, flush=True)


def _boot(kernel: Kernel, folder: Path) -> "subprocess.Popen[bytes]":
    """A guest with a disk and a QMP socket."""
    init = build(kernel, PROGRAMS / "busy.c", folder)
    initramfs = machine.build_initramfs(folder, init, kernel.modules)
    arch = kernel.architecture
    line = [machine.COMMAND_LINE, f"console={arch.console}", arch.options, kernel.options]
    return subprocess.Popen(
        [
            *DIES_WITH_US,
            *(arch.qemu, *arch.machine, *make_disk(folder, 64 << 20)),
            *("-serial", f"file:{folder / 'console.log'}"),
            *("-qmp", f"unix:{folder / 'qmp'},server,nowait"),
            *("-kernel", str(kernel.vmlinuz), "-initrd", str(initramfs)),
            *("-append", " ".join([*line, "lab.workload=sizes"])),
        ],
        stdin=subprocess.DEVNULL,
    )


def _wait_for(words: str, console: Path, guest: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 10 * machine.BOOT_SECONDS
    while not console.exists() or words not in console.read_text(errors="replace"):
        if guest.poll() is not None or time.monotonic() > end:
            raise LabError(f"the guest never said '{words}'")
        time.sleep(0.1)


def _read(
    socket: Path, readings: int, seconds: int, guest: "subprocess.Popen[bytes]"
) -> tuple[Counter[str], Counter[str]]:
    """What was seen, and what was wrong with it."""
    seen: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    prog = open_target(None, [], qemu=str(socket))
    until = time.monotonic() + seconds
    while seen["readings"] < readings and time.monotonic() < until:
        if guest.poll() is not None:
            raise LabError("the guest died")
        found = from_memory(Memory(prog))
        roots, tasks = found.by_name["wait_roots"], found.by_name["task_waits"]
        seen["readings"] += 1
        seen["tasks"] += len(tasks)
        seen["queued"] += sum(root.waiters for root in roots)
        seen["with a holder"] += sum(row.holder_pid is not None for row in tasks)
        seen["moved"] += bool(found.remarks)
        seen["circles by a last reader"] += sum(
            root.circle and root.by_last_reader for root in roots
        )
        for root in roots:
            if root.no_holder or (root.circle and not root.by_last_reader):
                wrong[repr(root)] += 1
        wrong.update(found.notes)
        if seen["readings"] % 500 == 0:
            _say(f"{dict(seen)}; {wrong.total()} wrong")
    return seen, wrong


if __name__ == "__main__":
    sys.exit(main())
