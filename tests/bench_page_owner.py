# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How fast page_owner's text is read: beside it a plain reading, and the kernel's page_owner_sort.

Whole processes, interpreter start included, files in the page cache. Each round runs all of them
one after the other; a ratio is the median of the rounds' ratios, so that a busy machine slows both
sides. Wall time is what a user waits; CPU time is of all processes together. Peak memory is of the
largest process. It measures and never fails on a number.

Inputs are made up (``page_owner_inputs.py``), or given with ``--input FOLDER``: ``page_owner``,
``show_stacks.*``, ``show_handles.*``, ``show_stacks_handles``.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRGN = HERE.parent / "drgn"
sys.path[:0] = [str(HERE), str(HERE.parent)]

from page_owner_inputs import (  # noqa: E402
    make_stacks,
    page_owner_records,
    series,
    show_handles,
    show_stacks,
    show_stacks_handles,
)
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

PLAIN = [sys.executable, str(HERE / "page_owner_plain.py")]
# Not by the file's name: Python would compile it each time.
SCRIPT = f"import sys; sys.path[0] = {str(DRGN)!r}; from page_owner_series import main; main()"
OURS = [sys.executable, "-c", SCRIPT]
COMMAND = [sys.executable, "-m", "reports.start", "page-owner", "--interval", "60"]
SORT_SOURCE = "tools/mm/page_owner_sort.c"
Run = tuple[float, float, float]  # wall s, CPU s, peak MiB


def run(words: Sequence[str]) -> Run:
    """Run a process to its end and see what it took."""
    # By way of a small shell: a process is charged with the memory of whoever started it.
    begin = time.perf_counter()
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@"', "sh", *words], stdout=subprocess.DEVNULL, cwd=HERE.parent
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    # 1: mmscope is done, with something left to say.
    if process.returncode not in ((0, 1) if "reports.start" in words else (0,)):
        raise SystemExit(f"{' '.join(words[:4])} … ended with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def make_page_owner(path: Path, size: int) -> None:
    """A ``page_owner`` file of about that many bytes: 3000 stacks, repeated after 200 MB."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        for record in page_owner_records(make_stacks(3000), 1 << 62):
            file.write(record)
            if file.tell() >= min(size, 200_000_000):
                break
    with path.open("wb") as file:
        while file.tell() < size:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
    part.unlink()


def make_series(folder: Path, stacks: int, count: int) -> tuple[list[str], list[str], str]:
    """(show_stacks files, show_handles files, resolver)."""
    folder.mkdir()
    known = make_stacks(stacks)
    by_stack, by_handle = [], []
    for number, snapshot in enumerate(series(known, count)):
        for form, files in ((show_stacks, by_stack), (show_handles, by_handle)):
            path = folder / f"{form.__name__}.{number}"
            path.write_text(form(snapshot))
            files.append(str(path))
    resolver = folder / "show_stacks_handles"
    resolver.write_text(show_stacks_handles(known))
    return by_stack, by_handle, str(resolver)


def build_page_owner_sort(folder: Path, source: Path | None) -> tuple[Path | None, str]:
    """The kernel's own tool, compiled from a linux-source tarball or tree; or why there is none."""
    source = source or next(
        iter(sorted(Path("/usr/src").glob("linux-source-*.tar.xz"))[::-1]), None
    )
    if source is None:
        return None, "no linux-source package (give --linux-source)"
    if not shutil.which("gcc"):
        return None, "gcc is not installed"
    code = folder / "page_owner_sort.c"
    if source.is_dir():
        shutil.copy(source / SORT_SOURCE, code)
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.name.endswith(SORT_SOURCE) and (file := archive.extractfile(member)):
                    code.write_bytes(file.read())
                    break
    tool = folder / "page_owner_sort"
    subprocess.run(["gcc", "-O2", "-w", "-o", str(tool), str(code)], check=True)
    return tool, ""


def measure(
    table: Table, what: str, rounds: int, ways: dict[str, Sequence[str]], beside: str = "plain"
) -> None:
    """Run all ways in turn, and add a row for each."""
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for words in ways.values():
        run(words)  # once, for the page cache and compiled files
    for _ in range(rounds):
        for name, words in ways.items():
            found[name].append(run(words))
    for name, runs in found.items():
        wall, cpu, peak = (statistics.median(values) for values in zip(*runs, strict=True))
        ratios = [
            statistics.median(
                base[n] / here[n] for base, here in zip(found[beside], runs, strict=True)
            )
            for n in (0, 1)
        ]
        table.add_row(
            what,
            name,
            f"{wall:.3f}",
            f"{cpu:.3f}",
            *(f"{ratio:.1f}x" if name != beside else "" for ratio in ratios),
            f"{peak:.0f}",
        )
        what = ""


def mebibytes(paths: Sequence[str]) -> str:
    """The size of some files."""
    return f"{sum(map(os.path.getsize, paths)) / 2**20:,.1f} MiB"


def into(folder: Path, words: Sequence[str]) -> list[str]:
    """The whole command with a bundle, a new one each time, without the folder in the way."""
    return [*COMMAND, *words, "--force", "-o", str(folder / "bundle")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", type=Path, help="folder with files of a real kernel")
    parser.add_argument("--linux-source", type=Path, help="tarball or tree with tools/mm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="without the 1 GiB file")
    args = parser.parse_args()
    table = Table("what", "how", "wall s", "CPU s", "ratio", "CPU ratio", "peak MiB")
    for column in table.columns[2:]:
        column.justify = "right"
    notes = []
    with tempfile.TemporaryDirectory(prefix="mmscope-bench.") as name:
        folder = Path(name)
        sort, why = build_page_owner_sort(folder, args.linux_source)
        if sort is None:
            notes.append(f"page_owner_sort: {why}")

        def page_owner(what: str, path: Path, rounds: int) -> None:
            ways = {
                "plain": [*PLAIN, "page_owner", str(path)],
                "ours": [*OURS, str(path)],
                "mmscope page-owner": [*COMMAND, str(path)],
                "with bundle and findings": into(folder, [str(path)]),
            }
            if sort is not None:
                ways["page_owner_sort"] = [str(sort), "-m", str(path), str(folder / "sorted")]
            measure(table, f"{what}: {path.stat().st_size / 2**20:,.0f} MiB", rounds, ways)

        def joined(what: str, files: tuple[list[str], list[str], str], rounds: int) -> None:
            by_stack, by_handle, resolver = files
            measure(table, f"{len(by_stack)} show_stacks{what}: {mebibytes(by_stack)}", rounds, {
                "plain": [*PLAIN, "stacks", *by_stack],
                "ours": [*OURS, *by_stack],
                "mmscope page-owner": [*COMMAND, *by_stack],
                "with bundle and findings": into(folder, by_stack),
            })  # fmt: skip
            measure(table, f"{len(by_handle)} show_handles{what}: {mebibytes(by_handle)}", rounds, {
                "plain": [*PLAIN, "handles", resolver, *by_handle],
                "ours": [*OURS, "--stacks", resolver, *by_handle],
                "mmscope page-owner": [*COMMAND, "--stacks", resolver, *by_handle],
                "with bundle and findings": into(folder, ["--stacks", resolver, *by_handle]),
            })  # fmt: skip

        if args.input is not None:
            here = args.input
            found = [
                sorted(map(str, here.glob(f"{kind}.*"))) for kind in ("show_stacks", "show_handles")
            ]
            if (here / "page_owner").exists():
                page_owner("page_owner", here / "page_owner", args.rounds)
            joined("", (found[0], found[1], str(here / "show_stacks_handles")), args.rounds)
        else:
            path = folder / "page_owner"
            make_page_owner(path, 60 << 20)
            page_owner("page_owner", path, args.rounds)
            if not args.quick:
                make_page_owner(path, 1 << 30)
                page_owner("page_owner", path, 1)
            path.unlink()
            joined("", make_series(folder / "900", 900, 100), args.rounds)
            joined(", ten times the stacks", make_series(folder / "9000", 9000, 100), 2)
        console = Console(width=140)
        console.print(table)
        for note in notes:
            console.print(note)
        console.print(f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
