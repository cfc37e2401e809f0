# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about size: ``mmscope collect`` over machines of 1, 16 and 64 GiB, as its
user runs it; time and peak memory against size, and where the time goes by section.

The machines are emulated, filled in proportion to their size, and their memory is a sparse file
(see ``lab/sparse_machine.py``). MMSCOPE_BENCH_GIB=64,256,1020 measures others; what is larger than
64 GiB takes minutes to boot and is removed afterwards, unless --keep.

What is opened (start, debug info) is measured by a command that opens the same and reads next to
nothing. Wall time is this machine's with all that runs on it; user and system time are the
command's own. The run with the least CPU time of several is shown, and the files are in the page
cache as far as they fit.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT)]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from sparse_machine import SparseMachine, sparse_machine  # noqa: E402

MMSCOPE = Path(sys.executable).with_name("mmscope")
KEPT_GIB = 64
DONE = (0, 1)  # 1: done, with sections missing; they are shown


@dataclass
class Run:
    """What a command took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    read_bytes: int  # from disks: 0 if all was in the page cache
    sections: dict[str, tuple[str, float]] = field(default_factory=dict)  # status, seconds


# A process is charged with the memory of whoever started it: this one is small.
LAUNCHER = """
import os, sys, time
begin = time.perf_counter()
pid = os.fork()
if not pid:
    os.dup2(int(sys.argv[2]), 1)
    os.dup2(1, 2)
    os.execvp(sys.argv[3], sys.argv[3:])
_, status, used = os.wait4(pid, 0)
cpu = used.ru_utime + used.ru_stime
seconds = time.perf_counter() - begin
told = f"{status} {seconds} {cpu} {used.ru_maxrss << 10} {used.ru_inblock * 512}"
os.write(int(sys.argv[1]), told.encode())
"""


def run(*command: str | Path) -> Run:
    """Run a command to its end, and say what it took."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as told:
        files = (output.fileno(), told.fileno())
        numbers = [str(files[1]), str(files[0])]
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, *numbers, *words]
        subprocess.run(launcher, check=True, pass_fds=files)
        told.seek(0)
        status, seconds, cpu, peak, read = told.read().split()
        if os.waitstatus_to_exitcode(int(status)) not in DONE:
            output.seek(0)
            raise SystemExit(f"{words[0]} {words[1]}: {output.read()[-2000:].decode()}")
    return Run(float(seconds), float(cpu), int(peak), int(read))


def measure(machine: SparseMachine, runs: int) -> tuple[Run, Run]:
    """The command that only opens, and the one that collects."""
    target = ("--core", machine.vmcore, "--symbols", machine.vmlinux)
    opened, collected = [], []
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        for _ in range(runs):
            opened.append(run(MMSCOPE, "show", "settings", "--format", "csv", *target))
            collected.append(run(MMSCOPE, "collect", *target, "--force", "-o", bundle))
            with (bundle / "sections.csv").open(newline="") as file:
                collected[-1].sections = {
                    row["section"]: (row["status"], float(row["seconds"]))
                    for row in csv.DictReader(file)
                }
    return (
        min(opened, key=lambda run: run.cpu_seconds),
        min(collected, key=lambda run: run.cpu_seconds),
    )


def sizes_table(measured: list[tuple[SparseMachine, Run, Run]]) -> Table:
    """By size; what a GiB costs is what it costs more than the next smaller machine."""
    table = Table(title="mmscope collect, by the size of the machine")
    for name in (
        *("GiB", "core on disk", "wall", "opening", "beyond", "further GiB"),
        *("CPU", "opening", "beyond", "further GiB", "peak", "opening", "read from disk"),
    ):
        table.add_column(name, justify="right")
    smaller: tuple[int, float, float] | None = None
    for machine, opened, collected in measured:
        wall = collected.seconds - opened.seconds
        cpu = collected.cpu_seconds - opened.cpu_seconds
        further = ["", ""]
        if smaller is not None:
            gib = machine.gib - smaller[0]
            further = [f"{(wall - smaller[1]) / gib * 1000:.0f} ms"]
            further += [f"{(cpu - smaller[2]) / gib * 1000:.0f} ms"]
        smaller = machine.gib, wall, cpu
        table.add_row(
            f"{machine.gib:,}",
            f"{machine.disk_bytes / 2**30:,.1f} GiB",
            f"{collected.seconds:.1f} s",
            f"{opened.seconds:.1f} s",
            f"{wall:.1f} s",
            further[0],
            f"{collected.cpu_seconds:.1f} s",
            f"{opened.cpu_seconds:.1f} s",
            f"{cpu:.1f} s",
            further[1],
            f"{collected.peak_bytes >> 20:,} MiB",
            f"{opened.peak_bytes >> 20:,} MiB",
            f"{collected.read_bytes >> 20:,} MiB",
        )
    return table


def sections_table(measured: list[tuple[SparseMachine, Run, Run]]) -> Table:
    """Seconds of each section that takes some; who waits for a shared pass first, pays for it."""
    table = Table("section", title="seconds by section")
    for machine, _, _ in measured:
        table.add_column(f"{machine.gib:,} GiB", justify="right")
    largest = measured[-1][2].sections
    for name in sorted(largest, key=lambda name: -largest[name][1]):
        ran = [collected.sections[name] for _, _, collected in measured]
        if all(status in ("ok", "absent") and seconds < 0.02 for status, seconds in ran):
            continue
        table.add_row(
            name,
            *(
                f"{seconds:.2f}" + ("" if status == "ok" else f" {status}")
                for status, seconds in ran
            ),
        )
    rest = []
    for _, opened, collected in measured:
        inside = sum(seconds for _, seconds in collected.sections.values())
        rest.append(f"{max(collected.seconds - opened.seconds - inside, 0):.2f}")
    table.add_row("writing, findings", *rest)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gib", default=os.environ.get("MMSCOPE_BENCH_GIB", "1,16,64"), help="sizes, in GiB"
    )
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="also machines of more than 64 GiB")
    args = parser.parse_args()
    console = Console(width=150)
    measured = []
    for gib in sorted(int(size) for size in args.gib.split(",")):
        machine = sparse_machine(gib, lambda text: print(text, file=sys.stderr))
        measured.append((machine, *measure(machine, args.runs)))
        if gib > KEPT_GIB and not args.keep:
            shutil.rmtree(machine.vmcore.parent)
    console.print(sizes_table(measured))
    console.print(sections_table(measured))
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    console.print(f"load of this machine's {os.cpu_count()} CPUs now: {load}")


if __name__ == "__main__":
    main()
