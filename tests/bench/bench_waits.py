# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a reading of who waits for whom costs on a running guest: threads that sleep, and tasks that
wait for one lock, whose holder must be named.

    python tests/bench/bench_waits.py [KERNEL [SLEEPERS,WAITERS…]]   # stable 10000,0 10000,200

It is read from outside, over QMP (``lab/healthy.py`` says why): what the kernel spends to copy its
memory to a reader of /proc/kcore is not in it. CPU time is the reader's own, of several readings.
Costs: a boot for each, some minutes.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT / "tests/support"), str(ROOT)]

import kernels  # noqa: E402
from archive import LabError  # noqa: E402
from children import exit_if_killed  # noqa: E402
from drgn import Program  # noqa: E402
from healthy import guest, say  # noqa: E402
from roles import resolve  # noqa: E402

from mmscope.drgn.sections.memory import Memory  # noqa: E402
from mmscope.drgn.waits.task_waits import from_memory  # noqa: E402

TIMES = 5
BEGIN_SECONDS = 600  # of a guest, to have all tasks


def wait_for_tasks(prog: Program, wanted: int) -> None:
    """
    Wait until the guest has so many threads, and a little longer, until they sleep.

    :raises LabError: it has them not.
    """
    threads = prog.symbol("nr_threads").address
    end = time.monotonic() + BEGIN_SECONDS
    while prog.read_u32(threads) < wanted:
        if time.monotonic() > end:
            raise LabError(f"the guest has {prog.read_u32(threads)} of {wanted} threads")
        time.sleep(1)
    time.sleep(10)


def main() -> int:
    """Print what a reading takes, and what it says; 1 if it does not name the root."""
    name, *sizes = sys.argv[1:] or ("stable",)
    kernel, good = kernels.get(resolve(name, say), say), True
    for size in sizes or ("10000,0", "10000,200"):
        sleepers, waiters = map(int, size.split(","))
        options = f"lab.sleepers={sleepers} lab.waiters={waiters}"
        with guest(kernel, "waiters", options) as prog:
            wait_for_tasks(prog, sleepers + waiters)
            seconds = []
            for _ in range(TIMES):
                begin = time.process_time()
                found = from_memory(Memory(prog))
                seconds.append(time.process_time() - begin)
        roots = [(root.root, root.waiters, root.lock) for root in found.by_name["wait_roots"]]
        print(
            f"{kernel.release}, {sleepers:,} that sleep, {waiters} that wait: "
            f"{min(seconds):.2f} to {max(seconds):.2f} s of CPU; roots: {roots}; {found.notes}"
        )
        named = [root for root in roots if root[0].startswith("w-holds (")]
        good = good and (not waiters or [root[1] for root in named] == [waiters])
    return 0 if good else 1


if __name__ == "__main__":
    exit_if_killed()
    sys.exit(main())
