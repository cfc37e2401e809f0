# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mmscope watch`` reads, and the command itself."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import children
from checkout import ROOT, TESTS
from command_line import run
from page_owner_inputs import make_stacks, series, show_handles, show_stacks, show_stacks_handles

from mmscope.reports.watch.sample_log import NAME
from mmscope.reports.watch.samples import Sampler
from mmscope.reports.watch.watch_tables import Log, open_log

DATA = TESTS / "data" / "7.2"
RUN = [sys.executable, "-m", "mmscope"]
STACKS = make_stacks(60)
PRESSURE = (
    "some avg10=1.50 avg60=0.30 avg300=0.06 total=2000000\n"
    "full avg10=0.75 avg60=0.15 avg300=0.03 total=1000000\n"
)
KSM = {
    "full_scans": 7, "pages_scanned": 900, "pages_skipped": 0, "pages_shared": 3,
    "pages_sharing": 40, "pages_unshared": 0, "pages_volatile": 0, "ksm_zero_pages": 0,
    "stable_node_chains": 1, "stable_node_dups": 2, "general_profit": -4096, "run": 1,
}  # fmt: skip


def watch(tmp_path: Path, *words: object, prefix: Sequence[str] = ()) -> Any:
    command = ["watch", "--debugfs", tmp_path / "none", "--interval", 0.02, "-o", tmp_path / "b"]
    return run(*command, *words, prefix=prefix)


def start(tmp_path: Path, *words: object) -> subprocess.Popen[str]:
    command = [*RUN, "watch", "--interval", "0.02", "-o", tmp_path / "b", *words]
    return children.start(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def in_log(tmp_path: Path) -> int:
    """Samples so far."""
    try:
        return (tmp_path / "b.samples" / NAME).read_bytes().count(b'\n{"wall"')
    except FileNotFoundError:
        return 0


T = TypeVar("T")


def wait_for(condition: Callable[[], T]) -> T:
    """Wait until it is so, however busy the machine is; returns what was true."""
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def debugfs(tmp_path: Path, handles: bool = True) -> Path:
    folder = tmp_path / "debug" / "page_owner_stacks"
    folder.mkdir(parents=True)
    snapshot = next(series(STACKS, 1))
    (folder / "show_stacks").write_text(show_stacks(snapshot))
    if handles:
        (folder / "show_handles").write_text(show_handles(snapshot))
        (folder / "show_stacks_handles").write_text(show_stacks_handles(STACKS))
    return tmp_path / "debug"


def make_host(root: Path) -> None:
    """The files of a guest, with memory pressure and KSM."""
    shutil.copytree(DATA, root)
    (root / "proc/pressure").mkdir()
    (root / "proc/pressure/memory").write_text(PRESSURE)
    (root / "sys/kernel/mm/ksm").mkdir()
    for name, value in KSM.items():
        (root / "sys/kernel/mm/ksm" / name).write_text(f"{value}\n")


def samples_of(folder: Path, said: Sequence[dict[str, Any]]) -> Log:
    """A log of samples five seconds apart with this in them; the last is said after them."""
    host = folder / "host"
    make_host(host)
    sample = Sampler(str(host), 9).take()
    lines: list[dict[str, Any]] = [{"watch": 1, "interval": 5.0, "target": {}, "page_owner": "off"}]
    for number, more in enumerate(said[:-1], 1):
        at = {name: 1000.0 + 5 * (number - 1) for name in ("mono", "boot", "wall", "vmstat_at")}
        lines.append(sample | at | more | {"number": number, "cpu_total": 0.0})
    path = folder / NAME
    path.write_text("".join(json.dumps(line) + "\n" for line in (*lines, said[-1])))
    return open_log(path)
