# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part beside drgn-tools: what modules of its ``corelens`` take on the same core
as the sections that answer the same question.

drgn-tools (https://github.com/oracle-samples/drgn-tools) is in no package index: DRGN_TOOLS names a
checkout, and without one nothing is measured. Each of its modules runs in a process of its own,
with this environment's drgn and the vmlinux loaded before the clock starts; what it prints is
thrown away. A module that ends in an error has that in place of a time: it was written for Oracle's
kernels. CPU seconds, and the ratio is what to look at.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from bench import cpu_seconds  # noqa: E402
from capture import Capture, capture  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.sections.memory import Memory  # noqa: E402
from mmscope.drgn.sections.registry import SECTIONS  # noqa: E402
from mmscope.drgn.tables.display import plural  # noqa: E402
from mmscope.reports.collect.run_section import run_section  # noqa: E402

# The kernel that the other benches stand on, and one on which more of these modules run.
KERNELS = "stable,6.1"
SOURCE = "https://github.com/oracle-samples/drgn-tools"
MOST_SECONDS = 600


class Pair(NamedTuple):
    """A module with its arguments, and the sections that say the same and more."""

    module: str
    sections: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.sections)} beside {self.module}"


PAIRS = (
    Pair("numastat", ("vm_counters", "zones")),
    Pair("memstate", ("memory_ledger", "slab_caches", "process_memory", "swap")),
    Pair("buddyinfo", ("free_lists",)),
    Pair("slabinfo", ("slab_caches",)),
    Pair("filecache --limit 1000000", ("cached_files",)),
    Pair("dentrycache --limit 0", ("dentries",)),
    Pair("num-memcgroups", ("memory_cgroups",)),
    Pair("pages-pinning-memcg", ("memory_cgroups",)),
)


def in_child(checkout: str, module: str, vmcore: str, vmlinux: str) -> dict[str, Any]:
    """How long a module takes and how many lines it prints, or why it does not run."""
    sys.path.insert(0, checkout)
    from drgn_tools.corelens import all_corelens_modules  # type: ignore[import-not-found]

    prog = open_target(Path(vmcore), [Path(vmlinux)])
    name, *words = module.split()
    theirs = all_corelens_modules()[name]
    arguments = theirs._parse_args(words)
    printed = io.StringIO()

    def work() -> None:
        printed.seek(0)
        printed.truncate()
        theirs.run(prog, arguments)

    try:
        with contextlib.redirect_stdout(printed):
            seconds = cpu_seconds(work)
    except Exception as error:
        said = str(error).partition("\n")[0]
        return {"error": f"{type(error).__name__}: {said}"}
    return {"seconds": seconds, "lines": printed.getvalue().count("\n")}


def in_process(lab: Capture, checkout: str, module: str) -> dict[str, Any]:
    """:func:`in_child` in a process of its own."""
    argv = [sys.executable, __file__, "--child", checkout, module, lab.vmcore, lab.vmlinux]
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {MOST_SECONDS} s"}
    if ran.returncode:
        lines = ran.stderr.splitlines()
        return {"error": lines[-1] if lines else f"exit code {ran.returncode}"}
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def version_of(checkout: str) -> str:
    """The commit of a checkout, where it has one."""
    git = ["git", "-C", checkout, "log", "-1", "--format=%h of %cs"]
    ran = subprocess.run(git, capture_output=True, text=True)
    own = (Path(checkout) / ".git").exists()
    return ran.stdout.strip() if own and not ran.returncode else "of no known commit"


def compare(lab: Capture, checkout: str) -> Table:
    """A row for each module."""
    prog = open_target(lab.vmcore, [lab.vmlinux])
    table = Table("what", "here", "corelens", "ratio")
    table.title = f"{lab.release}: beside drgn-tools {version_of(checkout)}"
    for column in table.columns[1:]:
        column.justify = "right"
    for pair in PAIRS:

        def here(sections: tuple[str, ...] = pair.sections) -> None:
            memory = Memory(prog)
            for name in sections:
                run_section(SECTIONS[name], memory)

        seconds = cpu_seconds(here)
        found = in_process(lab, checkout, pair.module)
        if "error" in found:
            beside, ratio = found["error"], ""
        else:
            beside = f"{found['seconds'] * 1000:,.1f} ms, {plural(found['lines'], 'line')}"
            two_digits = f"{found['seconds'] / seconds:.2g}"
            ratio = f"{float(two_digits):,g}x"
        table.add_row(str(pair), f"{seconds * 1000:,.1f} ms", beside, ratio)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default=KERNELS)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(in_child(*args.child)))
        return
    checkout = os.environ.get("DRGN_TOOLS")
    if not checkout:
        print(f"corelens: not measured; DRGN_TOOLS=FOLDER, with a checkout of {SOURCE}")
        return
    if not (Path(checkout) / "drgn_tools" / "corelens.py").exists():
        sys.exit(f"DRGN_TOOLS={checkout}: no checkout of drgn-tools ({SOURCE})")
    for name in args.kernels.split(","):
        lab = capture(name, "cgroups", say=lambda text: print(text, file=sys.stderr))
        Console(width=150).print(compare(lab, checkout))


if __name__ == "__main__":
    main()
