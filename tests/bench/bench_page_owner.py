# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about text: how fast page_owner's files are read, with a plain reading and
the kernel's own page_owner_sort beside it.

Whole processes, interpreter start included, files in the page cache. Each round runs all of them
one after the other; a ratio is the median of the rounds' ratios, so that a busy machine slows both
sides. Wall time is what a user waits; CPU time is of all processes together. Peak memory is of the
largest process. It measures and never fails on a number.

Inputs are what page_owner of three kernels prints when many processes have taken turns
(``owner_text()``; page_owner_stacks is there since v6.9, so of one of them only), and what the
lab's kernel with PAGE_OWNER wrote (``lab/owner_inputs.py``), and the same
scaled up: ten times the records of ``page_owner`` by as many more tasks, ten times the stacks of
``show_stacks`` and ``show_handles``.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "support"), str(HERE / "lab"), str(HERE.parent)]

import archive  # noqa: E402
import kernels  # noqa: E402
from archive import LabError  # noqa: E402
from owner_inputs import OwnerInputs, owner_inputs, owner_text  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

PLAIN = [sys.executable, str(HERE / "support/page_owner_plain.py")]
COMMAND = [str(Path(sys.executable).with_name("mmscope")), "page-owner", "--interval", "60"]
# With PAGE_OWNER, from which page_owner can be read.
TEXTS = ("owner", "owner-6.1", "owner-5.10")
HANDLE = re.compile(rb"(?<=^handle: )[0-9]+", re.M)
HANDLE_STEP = 1 << 25  # more than the handles of one boot of the lab's kernel
# As a user starts it: compiled files are kept, and output to a pipe is buffered.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
}
Run = tuple[float, float, float]  # wall s, CPU s, peak MiB


def run(words: Sequence[str]) -> Run:
    """Run a process to its end and see what it took."""
    # By way of a small shell: a process is charged with the memory of whoever started it.
    begin = time.perf_counter()
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@"', "sh", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=HERE.parent,
        env=ENVIRONMENT,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    # 1: mmscope is done, with something left to say.
    if process.returncode not in ((0, 1) if "page-owner" in words else (0,)):
        raise SystemExit(f"{' '.join(words[:4])} … ended with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def scaled_page_owner(source: Path, target: Path, times: int) -> None:
    """The records of a ``page_owner`` again and again, each time of other tasks."""
    text = source.read_bytes()
    with target.open("wb") as file:
        file.write(text)
        for copy in range(1, times):
            # 123 becomes 7123: the pids of a larger machine.
            other = text.replace(b", pid ", b", pid %d" % copy)
            file.write(other.replace(b", tgid ", b", tgid %d" % copy))


def scaled_counts(sources: Iterable[Path], folder: Path, times: int) -> list[str]:
    """Files with as many times the stacks, under names and handles of their own."""
    folder.mkdir(exist_ok=True)
    written = []
    for source in sources:
        text = source.read_bytes()
        path = folder / source.name
        with path.open("wb") as file:
            file.write(text)
            for copy in range(1, times):
                other = text.replace(b"+0x", b"_%d+0x" % copy)
                file.write(
                    HANDLE.sub(lambda m, n=copy: b"%d" % (int(m[0]) + n * HANDLE_STEP), other)
                )
        written.append(str(path))
    return written


def measure(table: Table, what: str, rounds: int, ways: dict[str, Sequence[str]]) -> None:
    """Run all ways in turn, and add a row for each."""
    found: dict[str, list[Run]] = {name: [] for name in ways}
    if rounds > 1:
        for words in ways.values():
            run(words)  # once, for the page cache and compiled files
    for _ in range(rounds):
        for name, words in ways.items():
            found[name].append(run(words))
    for name, runs in found.items():
        wall, cpu, peak = (statistics.median(values) for values in zip(*runs, strict=True))
        ratios = [
            statistics.median(
                base[n] / here[n] for base, here in zip(found["plain"], runs, strict=True)
            )
            for n in (0, 1)
        ]
        table.add_row(
            what,
            name,
            f"{wall:.3f}",
            f"{cpu:.3f}",
            *(f"{ratio:.1f}x" if name != "plain" else "" for ratio in ratios),
            f"{peak:.0f}",
        )
        what = ""
    table.add_section()


def aside(make: Callable[..., Any], *words: Any) -> Any:
    """Make files in a process of its own: what it takes in memory would be charged to all after."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(make, *words).result()


def mebibytes(paths: Sequence[str]) -> str:
    """The size of some files."""
    return f"{sum(map(os.path.getsize, paths)) / 2**20:,.1f} MiB"


def into(folder: Path, words: Sequence[str]) -> list[str]:
    """The whole command with a bundle, a new one each time, without the folder in the way."""
    return [*COMMAND, *words, "--force", "-o", str(folder / "bundle")]


def page_owner(table: Table, inputs: OwnerInputs, times: int, rounds: int, folder: Path) -> None:
    """One ``page_owner`` file."""
    path = inputs.page_owner
    if times > 1:
        path = folder / "page_owner"
        aside(scaled_page_owner, inputs.page_owner, path, times)
    ways: dict[str, Sequence[str]] = {
        "plain": [*PLAIN, "page_owner", str(path)],
        "mmscope page-owner": [*COMMAND, str(path)],
        "with bundle and findings": into(folder, [str(path)]),
    }
    if times < 100:  # it keeps the whole text in memory
        sort = kernels.get("owner").vmlinuz.with_name("page_owner_sort")
        ways["page_owner_sort"] = [str(sort), "-m", str(path), str(folder / "sorted")]
    measure(table, f"page_owner: {mebibytes([str(path)])}", rounds, ways)


def texts(table: Table, rounds: int) -> None:
    """``page_owner`` of each kernel, of many processes."""
    for name in TEXTS:
        try:
            path = str(owner_text(name, lambda line: print(line, file=sys.stderr)))
        except LabError as error:  # the source of a kernel may be gone
            print(f"{name}: {error}", file=sys.stderr)
            continue
        measure(table, f"page_owner of {name}, busy: {mebibytes([path])}", rounds, {
            "plain": [*PLAIN, "page_owner", path],
            "mmscope page-owner": [*COMMAND, path],
        })  # fmt: skip


def counts(table: Table, inputs: OwnerInputs, times: int, rounds: int, folder: Path) -> None:
    """A series of ``show_stacks``, and of ``show_handles`` with what resolves them."""
    many = f", {times} times the stacks" if times > 1 else ""
    files = aside(scaled_counts, inputs.show_stacks, folder / "stacks", times)
    measure(table, f"{len(files)} show_stacks{many}: {mebibytes(files)}", rounds, {
        "plain": [*PLAIN, "stacks", *files],
        "mmscope page-owner": [*COMMAND, *files],
        "with bundle and findings": into(folder, files),
    })  # fmt: skip
    if not inputs.show_handles:
        return
    files = aside(scaled_counts, inputs.show_handles, folder / "handles", times)
    (resolver,) = aside(scaled_counts, [inputs.show_stacks_handles], folder / "handles", times)
    measure(table, f"{len(files)} show_handles{many}: {mebibytes(files)}", rounds, {
        "plain": [*PLAIN, "handles", resolver, *files],
        "mmscope page-owner": [*COMMAND, "--stacks", resolver, *files],
        "with bundle and findings": into(folder, ["--stacks", resolver, *files]),
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--times", type=int, nargs="+", default=[1, 10, 100], help="how far to scale the inputs up"
    )
    parser.add_argument("--rounds", type=int, default=5, help="for the inputs as they are")
    args = parser.parse_args()
    inputs = owner_inputs(lambda line: print(line, file=sys.stderr))
    table = Table("what", "how", "wall s", "CPU s", "ratio", "CPU ratio", "peak MiB")
    for column in table.columns[2:]:
        column.justify = "right"
    texts(table, args.rounds)
    for times in args.times:
        rounds = max(args.rounds // times, 2 if times < 100 else 1)
        # In the cache: /tmp may be memory, which 8 GiB would fill.
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=archive.cache_folder()) as name:
            page_owner(table, inputs, times, rounds, Path(name))
            counts(table, inputs, times, rounds, Path(name))
    console = Console(width=140)
    console.print(table)
    console.print(f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
