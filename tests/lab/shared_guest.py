# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Live guests that test files share. Each file brings a Python program; the programs of a kernel run
one after the other in one guest, which boots once and imports once.

A program is a process of its own, forked from one that has imported what it needs, and finds an
empty folder ``/out/<name>``. What it leaves running is killed before the next one begins. One that
fails, fails the tests of its own file only.

Costs: see ``live.py``; under emulation it takes half a minute to boot, and as long to import.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from archive import LabError
from live import run_live

# With options that only some of its programs need: they are nothing to the others.
OPTIONS = {"owner": "slab_debug=U,mmscope_lab"}

# For programs that make memory short: a process that the OOM killer takes first, and memory that
# nothing backs yet (MAP_NORESERVE).
PROCESSES = """
import mmap, os, traceback
from pathlib import Path

def child(work):
    pid = os.fork()
    if not pid:
        Path("/proc/self/oom_score_adj").write_text("1000")
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid

def memory(size, advice):
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    found.madvise(advice)
    return found
"""

# For programs beside `mmscope watch`, which do something between two of its samples.
SAMPLES = """
import time
from pathlib import Path

def samples(folder):
    try:
        return Path(folder, "samples.jsonl").read_bytes().count(b'\\n{"wall"')
    except FileNotFoundError:
        return 0

def wait_for_samples(folder, more):
    until = samples(folder) + more
    while samples(folder) < until:
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class InGuest:
    """A test file's program. Each leaves the guest in a state that those behind it can stand."""

    name: str
    kernel: str
    place: int  # it runs before those with a higher one
    program: str
    binaries: Callable[[Path], list[Path]] = lambda folder: []  # made in a folder


_MAIN = """
import gc, os, signal, sys, time, traceback
from pathlib import Path

# All that commands import when they need it, once for all of them.
import drgn, numpy
import mmscope.drgn.sections.registry
import mmscope.reports.bundle.declared
import mmscope.reports.collect.collect
import mmscope.reports.commands.command
import mmscope.reports.commands.doctor
import mmscope.reports.commands.record_command
import mmscope.reports.commands.command
import mmscope.reports.watch.watch

gc.freeze()
told("imported")

def left_behind():
    # Kernel threads have no command line.
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    for pid in pids:
        try:
            if pid not in (1, os.getpid()) and Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid
        except OSError:
            pass

for name, program in PROGRAMS:
    out = Path("/out", name)
    out.mkdir()
    begin = time.monotonic()
    child = os.fork()
    if not child:
        code = 1
        # Not where /vmlinux is: perf takes one in its folder for the kernel's, without modules.
        os.chdir("/tmp")
        try:
            exec(compile(program, f"{name}.py", "exec"), {"__name__": "__main__", "told": told})
            code = 0
        except BaseException:
            (out / "failed").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code and not (out / "failed").exists():
        (out / "failed").write_text(f"ended with {code}")
    told(f"{name}: done")
    (out / "seconds").write_text(f"{time.monotonic() - begin:.0f}")
    for pid in left_behind():
        os.kill(pid, signal.SIGKILL)
"""


def run_programs(
    programs: Iterable[InGuest], kernel: str, folder: Path, say: Callable[[str], None]
) -> Path:
    """
    Boot *kernel* and run its *programs*; returns the folder that has a folder for each.

    :param folder: an empty folder to work in.
    :raises LabError: the guest failed, twice.
    """
    chosen = sorted((one for one in programs if one.kernel == kernel), key=lambda one: one.place)
    program = f"PROGRAMS = {[(one.name, one.program) for one in chosen]!r}\n{_MAIN}"
    binaries = [path for one in chosen for path in one.binaries(folder)]
    symbols = any("/vmlinux" in one.program for one in chosen)

    def run(place: Path) -> Path:
        place.mkdir()
        options = OPTIONS.get(kernel, "")
        return run_live(
            program, place, kernel, say, binaries=binaries, symbols=symbols, options=options
        )

    try:
        out = run(folder / "first")
    except LabError as error:
        # As of capture.py: emulation has flaws that a second boot does not meet.
        say(f"{str(error).splitlines()[0]}; once more")
        shutil.rmtree(folder / "first")
        out = run(folder / "second")
    for one in chosen:
        say(f"{one.name}: {(out / one.name / 'seconds').read_text()} s")
    return out


def of_program(out: Path, asked: InGuest) -> Path:
    """
    The folder of a program, of those that :func:`run_programs` returned.

    :raises LabError: the program failed; has its traceback.
    """
    failed = out / asked.name / "failed"
    if failed.exists():
        raise LabError(f"the program {asked.name} failed in the guest:\n{failed.read_text()}")
    return out / asked.name
