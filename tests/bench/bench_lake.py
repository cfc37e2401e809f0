# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a lake costs as it grows: to add the bundles of a fleet, and to ask all of them every finding.

``bench_lake.py [--hosts 100,1000,10000] [--spark] [--real BUNDLE…] [--keep FOLDER]``. The hosts are
those of ``made_fleet``, no two alike, every finding among them; what is run is the command. CPU
time and memory are those of all processes that it starts: memory is the most that they had
together, as looked at twice a second (pages that they share count for each).

10,000 bundles take some gigabytes. With ``--keep`` they and their lakes stay, and what is there is
not made again.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "tests", "tests/support")]
RUN = [sys.executable, "-m", "mmscope"]
PERIOD = 0.5
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Cost:
    """What a command took: CPU time, time by the clock, bytes at most; and how busy others were."""

    cpu: float
    clock: float
    memory: int
    load: float
    printed: str

    def __str__(self) -> str:
        memory = f"{self.memory >> 20:,} MiB"
        return f"{self.cpu:.1f} s CPU, {self.clock:.1f} s clock, {memory}, load {self.load:.1f}"


class Watched:
    """The processes of a session, looked at as long as it runs."""

    def __init__(self, session: int) -> None:
        self.session, self.memory = session, 0
        self._ticks: dict[int, int] = {}

    def look(self) -> None:
        memory = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.session:
                self._ticks[int(name)] = int(fields[11]) + int(fields[12])
                memory += int(fields[21]) * PAGE
        self.memory = max(self.memory, memory)

    @property
    def cpu(self) -> float:
        return sum(self._ticks.values()) / TICK


def cost(*words: str | Path) -> Cost:
    """Run a command of mmscope's; what it says goes on to stderr."""
    begin = time.monotonic()
    child = subprocess.Popen(
        [*RUN, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout
    watched, out, printed = Watched(child.pid), child.stdout, [b""]
    reader = threading.Thread(target=lambda: printed.append(out.read()))
    reader.start()
    while True:
        watched.look()
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(PERIOD)
    clock = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    assert child.returncode in (0, 1), child.returncode
    # Those whom nobody waited for, as Spark's Java, are only looked at.
    cpu = max(used.ru_utime + used.ru_stime, watched.cpu)
    memory = max(watched.memory, used.ru_maxrss << 10)
    return Cost(cpu, clock, memory, os.getloadavg()[0], b"".join(printed).decode())


def fleet(folder: Path, hosts: int, real: list[Path]) -> list[Path]:
    """The bundles of so many hosts."""
    from made_fleet import Fleet

    there = folder / f"bundles-{hosts}"
    if not there.exists():
        made = folder / f"made-{hosts}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        begin = time.process_time()
        kinds = Fleet(made / "kinds", real)
        (made / "hosts").mkdir()
        kinds.write(made / "hosts", range(hosts))
        print(f"{hosts:,} bundles of {len(kinds.kinds)} kinds made: "
              f"{time.process_time() - begin:.1f} s CPU", flush=True)  # fmt: skip
        (made / "hosts").rename(there)
    return sorted(there.iterdir())


def size(folder: Path, pattern: str) -> tuple[int, int]:
    """How many files, and their bytes."""
    sizes = [path.stat().st_size for path in folder.rglob(pattern)]
    return len(sizes), sum(sizes)


def measure(folder: Path, hosts: int, real: list[Path], spark: bool) -> dict[str, Cost]:
    costs = {}
    lake = folder / f"lake-{hosts}"
    paths = fleet(folder, hosts, real)
    if not (lake / "lake.json").exists():
        files, given = size(folder / f"bundles-{hosts}", "*.*")
        print(f"{hosts:,} hosts: {given >> 20:,} MiB in {files:,} files", flush=True)
        costs["added"] = cost("lake", "add", *paths, lake)
    files, kept = size(lake, "*.parquet")
    print(f"{hosts:,} hosts: lake of {files} files, {kept >> 20:,} MiB", flush=True)
    asked: list[str | Path] = ["lake", "findings", lake, "--format", "csv"]
    costs["findings"] = cost(*asked)
    # The words for each host are Python's work, whatever the engine.
    each = costs["findings of each host"] = cost(*asked, "--by", "host")
    if spark:
        here = [*asked, "--by", "host", "--engine", "spark", "--master", "local[2]"]
        costs["findings of each host on Spark"] = by_spark = cost(*here)
        if by_spark.printed != each.printed:
            (folder / "duckdb.csv").write_text(each.printed)
            (folder / "spark.csv").write_text(by_spark.printed)
            sys.exit(f"{hosts:,} hosts: Spark prints something else than DuckDB; --keep keeps both")
        print(f"{hosts:,} hosts: Spark prints the same")
    found = len(costs["findings"].printed.splitlines()) - 1
    rows = len(each.printed.splitlines()) - 1
    print(f"{hosts:,} hosts: {found} findings, {rows:,} of hosts")
    for what, one in costs.items():
        print(f"{hosts:,} hosts: {what}: {one}", flush=True)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="100,1000,10000")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--real", type=Path, nargs="*", default=[], metavar="BUNDLE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    before: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory(prefix="mmscope-bench-") as temporary:
        for hosts in map(int, args.hosts.split(",")):
            folder = args.keep or Path(temporary)
            for what, each in measure(folder, hosts, args.real, args.spark).items():
                if what in before:
                    few, cpu = before[what]
                    slope = math.log(each.cpu / cpu) / math.log(hosts / few)
                    print(f"{what}: CPU time grows with hosts to the power of {slope:.2f}")
                before[what] = hosts, each.cpu
            if not args.keep:
                shutil.rmtree(folder / f"bundles-{hosts}")


if __name__ == "__main__":
    main()
