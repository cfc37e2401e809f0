# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about profiles: folding a recording, with perf's own folding beside it, and
what each recipe costs a program that does nothing but page faults.

Needs perf and the right to record (root, or CAP_PERFMON); ``inferno-collapse-perf`` is measured
where it is installed. As ``bench.py``: medians, and the ratio is what to look at.

``--big [MIB]`` instead: a recording of that size (2048), folded once beside ``perf script`` alone,
which is the bound of a reading that takes its text. Every sample is recorded: 29 million for 2 GiB.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT)]

from profiled import faults_program  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.perf import perf_events, perf_record  # noqa: E402
from mmscope.perf import recipe as recipes  # noqa: E402
from mmscope.perf.folding import Fold  # noqa: E402
from mmscope.perf.perf_script import FIELDS, Reading, read_samples  # noqa: E402
from mmscope.perf.stack_parts import load_known_frames, load_split  # noqa: E402

RUNS = 5
TOUCHES = 24  # of 32 MiB each
MIB_A_TOUCH = 0.57  # of perf.data
FAULTS = 400_000
# Each is answered out of softirq with blocks of order 3 (GFP_ATOMIC): what atomic-alloc is about.
PINGS = 20_000
# Not a tracepoint, which perf's stackcollapse does not look at.
TOUCH = """
import mmap, sys
for _ in range(int(sys.argv[1])):
    memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
"""
# CPU time of the command, not of perf: on a machine with other work the clock on the wall tells of
# that. What perf writes, it writes on its own time, and on another CPU if there is one.
TIMED = """
import resource, subprocess, sys
subprocess.run(sys.argv[2:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(str(used.ru_utime + used.ru_stime))
"""


def median(work: Callable[[], object], runs: int = RUNS) -> float:
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def cpu() -> tuple[float, float]:
    """CPU time so far, of this process and of those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    mine, others = (each.ru_utime + each.ru_stime for each in used)
    return mine, others


def taken(work: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds on the wall, of CPU in this process, and of CPU in others."""
    before, begin = cpu(), time.perf_counter()
    work()
    wall, after = time.perf_counter() - begin, cpu()
    return wall, after[0] - before[0], after[1] - before[1]


def both(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the wall, and of CPU."""
    wall, mine, others = taken(work)
    return wall, mine + others


def new_fold() -> Fold:
    return Fold(recipes.load("page-fault"), load_split("page-fault"), load_known_frames())


def fold_text(path: Path) -> int:
    folder, reading = new_fold(), Reading()
    with path.open("rb") as text:
        for sample in read_samples(text, reading):
            folder.add(sample)
    return sum(event.recorded for event in folder.events.values())


def fold_data(perf: str, data: Path) -> int:
    """As ``mmscope record`` does it, with perf's count."""
    folder, reading = new_fold(), Reading()
    perf_record.recorded(perf, [data])
    with perf_record.script(perf, data, addresses=False) as text:
        for sample in read_samples(text, reading):
            folder.add(sample)
    return sum(event.recorded for event in folder.events.values())


def quietly(*words: str, out: Path | None = None, pipe_from: list[str] | None = None) -> None:
    with (out or Path(os.devnull)).open("wb") as target:
        source = None
        if pipe_from is not None:
            source = subprocess.Popen(pipe_from, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        subprocess.run(
            words,
            stdin=source.stdout if source else subprocess.DEVNULL,
            stdout=target,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        if source is not None:
            source.wait()


def peak(path: Path) -> int:
    """The peak memory, in KiB, of a process that folds a text."""
    script = f"""
import sys
sys.path[:0] = {[str(ROOT / "tests/support"), *sys.path[:4]]!r}
import bench_perf, pathlib, re
bench_perf.fold_text(pathlib.Path({str(path)!r}))
# Not ru_maxrss, which has that of whoever started the process.
print(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""
    return int(subprocess.check_output([sys.executable, "-c", script]))


def record_faults(perf: str, data: Path, touches: int) -> None:
    words = [perf, "record", "-q", "-N", "--sample-cpu", "-P", "-m", "8M", "--call-graph", "fp"]
    words += ["-e", "page-faults", "-c", "1"]
    quietly(*words, "-o", str(data), "--", sys.executable, "-c", TOUCH, str(touches))


def bound(table: Table, perf: str, data: Path, runs: int) -> None:
    """Folding, and beside it the same ``perf script`` whose text nobody reads."""
    alone = perf_record.script_arguments(perf, data, [f for f in FIELDS if f != "addr"])
    samples = 0

    def fold() -> None:
        nonlocal samples
        samples = fold_data(perf, data)

    # In turn, since a machine that has other work changes from second to second.
    pairs = [(*taken(fold), *taken(lambda: quietly(*alone))) for _ in range(runs)]
    wall, python, script, alone_wall, _, alone_cpu = (
        statistics.median(c) for c in zip(*pairs, strict=True)
    )
    size = data.stat().st_size / 2**20
    for what, here, beside in (
        (f"{samples:,} samples, {size:,.0f} MiB: folded", wall, alone_wall),
        ("the same, CPU of perf and Python", python + script, alone_cpu),
        ("the same, CPU of Python alone", python, alone_cpu),
    ):
        table.add_row(
            what,
            f"{here:.2f} s",
            f"{beside:.2f} s perf script alone",
            f"{here / beside:.2f} of it",
        )


def folding(table: Table, perf: str, folder: Path) -> None:
    data, text = folder / "perf.data", folder / "perf.txt"
    record_faults(perf, data, TOUCHES)
    bound(table, perf, data, RUNS)
    fields = "comm,pid,tid,time,event,ip,sym,dso"
    quietly(perf, "script", "-i", str(data), "-F", fields, "--ns", out=text)
    samples = fold_data(perf, data)

    def row(what: str, here: float, beside: float, other: str) -> None:
        table.add_row(
            what,
            f"{samples / here:,.0f} samples/s",
            f"{samples / beside:,.0f} samples/s {other}",
            f"{beside / here:.1f}x",
        )

    stackcollapse = (perf, "script", "report", "stackcollapse", "-i", str(data))
    runs = [
        (*both(lambda: fold_data(perf, data)), *both(lambda: quietly(*stackcollapse)))
        for _ in range(RUNS)
    ]
    here, here_cpu, own, own_cpu = (statistics.median(c) for c in zip(*runs, strict=True))
    size = data.stat().st_size / 2**20
    row(f"perf.data of {samples:,} samples, {size:.0f} MiB", here, own, "perf's stackcollapse")
    row("the same by CPU time, of perf and Python", here_cpu, own_cpu, "perf's stackcollapse")
    of_text = median(lambda: fold_text(text), 3)
    if inferno := shutil.which("inferno-collapse-perf"):
        print_text = [perf, "script", "-i", str(data), "-F", fields]
        piped = median(lambda: quietly(inferno, pipe_from=print_text), 3)
        row("the same", here, piped, "perf script | inferno-collapse-perf")
        alone = median(lambda: quietly(inferno, str(text)), 3)
        row("its text alone", of_text, alone, "inferno-collapse-perf")
    else:
        table.add_row("its text alone", f"{samples / of_text:,.0f} samples/s", "", "")
    once = peak(text)
    large = folder / "large.txt"
    with large.open("wb") as out:
        for _ in range(8):
            out.write(text.read_bytes())
    sizes = [path.stat().st_size / 2**20 for path in (text, large)]
    grown = peak(large)
    table.add_row(
        "peak memory",
        f"{once / 1024:.0f} MiB for {sizes[0]:,.0f} MiB of text",
        f"{grown / 1024:.0f} MiB for {sizes[1]:,.0f} MiB",
        "",
    )


def overhead(table: Table, machine: perf_events.Machine, folder: Path) -> None:
    program = str(faults_program(folder))
    result = folder / "seconds"
    timed = [sys.executable, "-c", TIMED, str(result), program]

    def seconds(words: list[str]) -> float:
        subprocess.run(
            words,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return float(result.read_text())

    loads = [(name, "dense", FAULTS, "fault") for name in recipes.names()]
    for name, what, times, one in (*loads, ("atomic-alloc", "ping", PINGS, "ping")):
        loop = [*timed, what, str(times)]
        loaded = recipes.load(name)
        plan = perf_events.plan(loaded, machine)
        data = folder / f"{name}.data"
        words = perf_record.arguments(loaded, plan, machine, data, loop, [])
        pairs = []
        for _ in range(RUNS):
            # Beside each other, since a machine that has other work changes from second to second.
            pairs.append((seconds(loop), seconds(words)))
            for file in folder.glob(f"{name}.data*"):
                file.unlink()
        bare = statistics.median(pair[0] for pair in pairs)
        recorded = statistics.median(pair[1] for pair in pairs)
        each = (recorded - bare) / times * 1e9
        missing = ", ".join(e.first_of[0] for e, _ in plan.missing)
        table.add_row(
            f"record {name}" + (f" (without {missing})" if missing else ""),
            f"{recorded * 1000:.0f} ms of CPU",
            f"{bare * 1000:.0f} ms bare, {times:,} {one}s",
            f"{100 * (recorded / bare - 1):+.0f} %, {each:+.0f} ns a {one}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="folding and recording of profiles")
    help_ = "fold a recording of that many MiB beside perf script alone, and nothing else"
    parser.add_argument("--big", nargs="?", const=2048, type=int, metavar="MIB", help=help_)
    args = parser.parse_args()
    machine = perf_events.look()
    if machine.perf is None or not machine.privileged or machine.tracefs is None:
        print(
            "bench_perf: not run: needs perf, CAP_PERFMON and tracefs "
            "(mount -t tracefs nodev /sys/kernel/tracing)",
            file=sys.stderr,
        )
        return
    table = Table("what", "here", "beside it", "ratio", title="profiles")
    for column in table.columns[1:]:
        column.justify = "right"
    with tempfile.TemporaryDirectory(prefix="mmscope-bench-") as name:
        if args.big:
            record_faults(machine.perf, Path(name) / "perf.data", round(args.big / MIB_A_TOUCH))
            bound(table, machine.perf, Path(name) / "perf.data", 1)
        else:
            folding(table, machine.perf, Path(name))
            overhead(table, machine, Path(name))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
