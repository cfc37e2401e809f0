# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make healthy``: readings of the waits of a guest that is busy and healthy, in which nothing may be
a circle, and no lock may be said to have no holder.

Processes fault, map and unmap in the threads of one address space, write and sync the same files,
make and remove names in one directory, queue for pipes, fork and end; the two CPUs are kept busy.
Readings follow one another until there are as many as asked for, or the time is over.

    python tests/lab/healthy.py [KERNEL [READINGS [SECONDS]]]      # stable 10000 14400
"""

import json
import sys
import tempfile
from pathlib import Path

from live import run_live
from roles import resolve

PROGRAM = """
import json, mmap, os, threading, time
from collections import Counter
from pathlib import Path
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.task_waits import from_memory

def busy(name, work, threads=1):
    pid = os.fork()
    if not pid:
        Path("/proc/self/comm").write_text(name)
        for _ in range(threads - 1):
            threading.Thread(target=forever, args=(work,)).start()
        forever(work)
    return pid

def forever(work):
    while True:
        work()

def maps():
    memory = mmap.mmap(-1, 1 << 20)
    for at in range(0, 1 << 20, 1 << 16):
        memory[at] = 1
    memory.close()

def syncs():
    with open("/busy/file", "r+b") as file:
        file.write(bytes(65536))
        os.fsync(file.fileno())

def names():
    path = f"/busy/name-{os.getpid()}"
    Path(path).write_text("x")
    os.rename(path, f"{path}-too")
    os.unlink(f"{path}-too")

def forks():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)

Path("/busy").mkdir()
Path("/busy/file").write_bytes(bytes(65536))
read, write = os.pipe()
piece = bytes(4096)
children = [
    *(busy("maps", maps, 4) for _ in range(2)), *(busy("syncs", syncs, 2) for _ in range(2)),
    *(busy("names", names) for _ in range(3)), *(busy("forks", forks) for _ in range(2)),
    *(busy("writes", lambda: os.write(write, piece)) for _ in range(2)),
    *(busy("reads", lambda: os.read(read, 4096)) for _ in range(2)),
]
prog, seen, wrong = open_target(None, []), Counter(), []
until = time.monotonic() + SECONDS
while seen["readings"] < READINGS and time.monotonic() < until:
    found = from_memory(Memory(prog))
    roots = found.by_name["wait_roots"]
    seen["readings"] += 1
    seen["tasks"] += len(found.by_name["task_waits"])
    seen["queued"] += sum(root.waiters for root in roots)
    seen["notes"] += len(found.notes)
    wrong += [repr(each) for each in roots if each.no_holder or (each.circle and not each.by_last_reader)]
    if found.notes:
        wrong += found.notes
    if seen["readings"] % 20 == 0:
        told(f"{seen['readings']} readings, {seen['queued']} queued, {len(wrong)} wrong")
for pid in children:
    os.kill(pid, 9)
Path("/out/said.json").write_text(json.dumps({"seen": seen, "wrong": wrong[:20], "wrongs": len(wrong)}))
"""  # noqa: E501


def main() -> int:
    """Read until it is enough, and say what was wrong."""
    kernel, readings, seconds = [*sys.argv[1:], *("stable", "10000", "14400")[len(sys.argv) - 1 :]]
    program = f"READINGS, SECONDS = {int(readings)}, {int(seconds)}\n{PROGRAM}"

    def say(line: str) -> None:
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        out = run_live(
            *(program, Path(folder), resolve(kernel, say), say),
            symbols=False,
            seconds=int(seconds) + 900.0,
        )
        said = json.loads((out / "said.json").read_text())
    print(f"{said['seen']['readings']:,} readings; {said['seen']}")
    for each in said["wrong"]:
        print(f"wrong: {each}")
    return 1 if said["wrongs"] else 0


if __name__ == "__main__":
    sys.exit(main())
