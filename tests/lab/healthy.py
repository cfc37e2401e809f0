# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make healthy``: readings of the waits of a guest that is busy and healthy, in which nothing may be
a circle, no lock may be said to have no holder, and no reclaim to get nowhere; and of one that
thrashes, of which the last must be said.

``programs/busy.c`` keeps both of the guest's CPUs busy, and then ``programs/thrash.c``. It is read
from outside, over QMP, while it runs: as a live host is, by a reader that is not slowed down by the
emulation. Readings follow one another until there are as many as asked for, or the time is over;
those count while which the guest's CPUs changed from task to task. A reading costs 0.04 s of CPU,
so 10,000 take a quarter of an hour on a machine that has one for the guest and one for the reader.

    python tests/lab/healthy.py [KERNEL [READINGS [SECONDS]]]      # stable 10000 14400
"""

import contextlib
import itertools
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kernels
import machine
from archive import LabError
from children import DIES_WITH_US, exit_if_killed
from drgn import Program
from drgn.helpers.linux.percpu import per_cpu
from holders_lab import PROGRAMS, build, make_disk
from kernels import Kernel
from roles import resolve

from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.task_waits import from_memory
from mmscope.drgn.waits.wait_chains import Waits
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.findings.findings import evaluate

WARM_UP_SECONDS = 20
NOWHERE, DEEP = "reclaim-gets-nowhere", 3  # the finding, and the priority that it begins at
WHOLE = 10  # readings, of which one is of all tables of the section


def main() -> int:
    """Read until it is enough, and say what was wrong."""
    name, readings, seconds = [*sys.argv[1:], *("stable", "10000", "14400")[len(sys.argv) - 1 :]]
    kernel = kernels.get(resolve(name, say), say)
    with guest(kernel, "busy") as prog:
        seen, wrong = _read(prog, int(readings), int(seconds))
    say(f"{seen['readings']:,} readings; {dict(seen)}")
    for each, times in wrong.most_common(20):
        say(f"wrong, {times} times: {each}")
    with guest(kernel, "thrash") as prog:
        found = _accused(prog, int(seconds))
    return 1 if wrong or found != {"/thrash"} else 0


def say(line: str) -> None:
    print(line, flush=True)


@contextlib.contextmanager
def guest(
    kernel: Kernel, program: str, options: str = "", seconds: float = WARM_UP_SECONDS
) -> Iterator[Program]:
    """A guest with a disk that has run a program for so long, to be read over QMP."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        init = build(kernel, PROGRAMS / f"{program}.c", folder)
        initramfs = machine.build_initramfs(folder, init, kernel.modules)
        arch = kernel.architecture
        line = [machine.COMMAND_LINE, f"console={arch.console}", arch.options, kernel.options]
        qemu = subprocess.Popen(
            [
                *DIES_WITH_US,
                *(arch.qemu, *arch.machine, *make_disk(folder, 64 << 20)),
                *("-serial", f"file:{folder / 'console.log'}"),
                *("-qmp", f"unix:{folder / 'qmp'},server,nowait"),
                *("-kernel", str(kernel.vmlinuz), "-initrd", str(initramfs)),
                *("-append", " ".join([*line, "lab.workload=sizes", options])),
            ],
            stdin=subprocess.DEVNULL,
        )
        try:
            _wait_for("workload sizes", folder / "console.log", qemu)
            time.sleep(seconds)
            yield open_target(None, [], qemu=str(folder / "qmp"))
            if qemu.poll() is not None:
                raise LabError("the guest died")
        finally:
            qemu.kill()
            qemu.wait()


def _wait_for(words: str, console: Path, guest: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 10 * machine.BOOT_SECONDS
    while not console.exists() or words not in console.read_text(errors="replace"):
        if guest.poll() is not None or time.monotonic() > end:
            raise LabError(f"the guest never said '{words}'")
        time.sleep(0.1)


def _read(prog: Program, readings: int, seconds: int) -> tuple[Counter[str], Counter[str]]:
    """What was seen, and what was wrong with it; each tenth time all tables."""
    seen: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while seen["readings"] < readings and time.monotonic() < until:
        before = _switches(prog)
        if seen["readings"] % WHOLE == 0:
            found = from_memory(Memory(prog))
            tasks, roots = found.by_name["task_waits"], found.by_name["wait_roots"]
            wrong.update(found.notes)
        else:
            waits = Waits(Memory(prog), Gaps())
            tasks, roots = waits.rows()
            seen["went on meanwhile"] += waits.moved
        switches = _switches(prog) - before
        seen["readings" if switches else "of a guest that had no CPU"] += 1
        seen["switches meanwhile"] += switches
        seen["rows"] += len(tasks)
        seen["reclaiming"] += sum(row.reclaims_from is not None for row in tasks)
        seen["with a holder"] += sum(row.holder_pid is not None for row in tasks)
        seen.update(f"queued: {row.kind}" for row in tasks if row.kind)
        seen["circles by a last reader"] += sum(
            root.circle and root.by_last_reader for root in roots
        )
        for root in roots:
            if root.no_holder or (root.circle and not root.by_last_reader):
                wrong[repr(root)] += 1
                say(f"wrong: {root}, of {tasks}")
        for row in tasks:
            if (row.reclaims_from or "").startswith("0x"):
                wrong["reclaims from what is no cgroup"] += 1
                say(f"wrong: {row}")
            # Of the group over memory.high nothing can be reclaimed, and it is so for a moment.
            deep = row.priority is not None and row.priority <= DEEP
            if deep and row.reclaimed_pages < 32 and row.reclaims_from != "/high":
                wrong["reclaim gets nowhere"] += 1
                say(f"wrong: {row}")
        if seen["readings"] % 250 == 0:
            say(f"{dict(seen)}; {wrong.total()} wrong; {time.thread_time():.0f} s of CPU")
    return seen, wrong


def _switches(prog: Program) -> int:
    """Changes from task to task of all CPUs."""
    queues = prog["runqueues"]
    return sum(per_cpu(queues, cpu).nr_switches.value_() for cpu in online_cpus(prog))


def _accused(prog: Program, seconds: int) -> set[str]:
    """The cgroups of which it was said that reclaim gets nowhere, at the first reading with one."""
    until = time.monotonic() + seconds
    for number in itertools.count(1):
        with tempfile.TemporaryDirectory() as place:
            with Writer(Path(place) / "bundle") as writer:
                sections = ["task_waits", "memory_cgroups"]
                collect(Memory(prog), describe(prog, "live"), writer, sections)
            found = evaluate(Bundle(Path(place) / "bundle")).found
        said = {dict(each.subject)["target"]: each.title for each in found if each.id == NOWHERE}
        if said or time.monotonic() > until:
            say(f"after {number} readings: {said}")
            return set(said)
    raise AssertionError


if __name__ == "__main__":
    exit_if_killed()
    sys.exit(main())
