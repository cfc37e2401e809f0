# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles of a lab guest: ``mmscope record`` runs in it, with perf, over programs that make page
faults and leave page tables behind (``programs/faults.c``).

Costs: one boot, and some seconds a recording, most of which perf and Python take to start under
emulation. Needs perf (Debian: linux-perf); it and its libraries go to the guest's disk.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from architectures import AMD64, Architecture
from archive import LabError
from kernels import architecture
from live import run_live
from shared_guest import InGuest

HERE = Path(__file__).resolve().parent

# (name of the log, bundle, arguments of `mmscope record`)
Run = tuple[str, str, Sequence[str]]

_SETUP = """
import ctypes, os, sys
from pathlib import Path

# Once for all recordings: under emulation this takes as long as one of them.
import mmscope.reports.collect.collect
import mmscope.reports.commands.record_command
from mmscope.reports.commands.command import main

libc = ctypes.CDLL(None, use_errno=True)

def mount(kind, where):
    os.makedirs(where, exist_ok=True)
    if libc.mount(kind.encode(), where.encode(), kind.encode(), 0, None):
        raise OSError(ctypes.get_errno(), kind)

mount("tracefs", "/sys/kernel/tracing")
mount("cgroup2", "/sys/fs/cgroup")
cgroup = Path("/sys/fs/cgroup")
(cgroup / "cgroup.subtree_control").write_text("+memory")
for name in ("oom", "pressed"):
    (cgroup / name).mkdir()
    (cgroup / name / "memory.max").write_text("160M")

def run(name, *arguments):
    child = os.fork()
    if child == 0:
        log = os.open(f"{OUT}/{name}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["mmscope", *arguments]
        code = 99
        try:
            code = main()
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 98)
    status = os.waitpid(child, 0)[1]
    Path(f"{OUT}/{name}.code").write_text(str(os.waitstatus_to_exitcode(status)))
    told(f"recorded {name}")

"""


def faults_program(folder: Path, on: Architecture = AMD64) -> Path:
    """Compile ``programs/faults.c``, which needs no library."""
    program = folder / "faults"
    words = [on.compiler, "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", str(program)]
    done = subprocess.run([*words, str(HERE / "programs/faults.c")], capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{on.compiler} failed: {done.stderr.strip()}")
    return program


def record_in_guest(
    runs: Sequence[Run],
    folder: Path,
    kernel: str,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """
    Boot *kernel* and record in it, in this order; returns the folder that has the bundles, and for
    each run ``<name>.log`` and ``<name>.code``.

    :raises LabError: the guest failed, or perf is not installed here.
    """
    made = binaries(kernel)(folder)
    return run_live(_program("/out", runs), folder, kernel, say, binaries=made, symbols=False)


def recordings(
    name: str, kernel: str, place: int, runs: Sequence[Run], *, after: str = ""
) -> InGuest:
    """
    The same in a guest that is shared.

    :param after: more of the program that runs in the guest.
    """
    return InGuest(name, kernel, place, _program(f"/out/{name}", runs) + after, binaries(kernel))


def binaries(kernel: str) -> Callable[[Path], list[Path]]:
    """What makes perf and the programs that are recorded, in a folder."""
    return partial(_binaries, on=architecture(kernel))


def _program(out: str, runs: Sequence[Run]) -> str:
    lines = [
        f"run({name!r}, 'record', '-o', '{out}/{bundle}', *{list(arguments)!r})\n"
        for name, bundle, arguments in runs
    ]
    return f"OUT = {out!r}\n{_SETUP}{''.join(lines)}"


def _binaries(folder: Path, on: Architecture) -> list[Path]:
    faults = faults_program(folder, on)
    if on is not AMD64:  # its disk has Debian's perf
        return [faults]
    perf = shutil.which("perf")
    if perf is None:
        raise LabError("perf is not installed: apt-get install linux-perf")
    return [Path(perf).resolve(), faults]
