# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about opening: a vmcore by the kernel's own BTF and symbol table, and by
its debug info; then one table of it, and everything that ``collect`` reads.

Each is a process of its own, from its start to its end: CPU and memory are what the kernel charges
it with. Medians of several runs, the files in the page cache. Beside them drgn alone, and crash.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT)]

from capture import capture  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

# By way of a small process: one is charged with the memory of whoever started it.
CHARGED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
said = done.stdout.decode().split()[-1:] if b"opened in" in done.stdout else [0]
row = used.ru_utime, used.ru_utime + used.ru_stime, used.ru_maxrss, float(said[0])
print(json.dumps([done.returncode, *row]))
"""
OURS = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}]
from pathlib import Path
from mmscope.drgn.opening.target import open_target
begin = time.process_time()
prog = open_target(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
prog["init_task"].comm.string_()
print("opened in", time.process_time() - begin)
"""
DRGN = """
import sys, time
from drgn import Program
begin = time.process_time()
prog = Program()
prog.set_core_dump(sys.argv[1])
prog.load_debug_info(sys.argv[2:])
prog["init_task"].comm.string_()
print("opened in", time.process_time() - begin)
"""
SHOW = [str(Path(sys.executable).with_name("mmscope")), "show", "zones"]
# As on a box: findings take duckdb.
COLLECT = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
sys.modules["duckdb"] = None
from mmscope.reports.commands.command import main
sys.argv = ["mmscope", "collect", "--force", *sys.argv[1:]]
sys.exit(main())
"""


def charged(words: list[str], runs: int) -> tuple[float, float, float, float]:
    """
    (user CPU in seconds, all CPU in seconds, memory in MiB, CPU of the opening alone) of a command,
    medians.
    """
    rows = []
    for _ in range(runs + 1):
        text = subprocess.check_output([sys.executable, "-c", CHARGED, *words], text=True)
        code, *used = json.loads(text)
        if code not in (0, 1):
            raise SystemExit(f"{words}: exit code {code}")
        rows.append(used)
    user, every, kib, opening = map(statistics.median, zip(*rows[1:], strict=True))
    return user, every, kib / 1024, opening


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="stable,6.1")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    console = Console()
    python = [sys.executable, "-c"]
    for kernel in args.kernels.split(","):
        taken = capture(kernel, "fragment", lambda line: print(line, file=sys.stderr))
        core, vmlinux = str(taken.vmcore), str(taken.vmlinux)
        table = Table(title=f"{taken.kernel}, {taken.vmcore.stat().st_size >> 20} MiB")
        for head in ("", "CPU, s", "user, s", "opening, s", "ratio", "MiB", "ratio"):
            table.add_column(head, justify="right" if head else "left")
        with tempfile.TemporaryDirectory(prefix="mmscope-bench.") as folder:
            collect = [*python, COLLECT, "--core", core]
            pairs = {
                "opened by BTF and kallsyms": [*python, OURS, core],
                "opened with vmlinux": [*python, OURS, core, vmlinux],
                "drgn alone, with vmlinux": [*python, DRGN, core, vmlinux],
                "shown by BTF and kallsyms": [*SHOW, "--core", core],
                "shown with vmlinux": [*SHOW, "--core", core, "--symbols", vmlinux],
                "Python, numpy and drgn alone": [*python, "import numpy, drgn"],
                "collected by BTF and kallsyms": [*collect, "-o", f"{folder}/own"],
                "collected with vmlinux": [*collect, "--symbols", vmlinux, "-o", f"{folder}/dwarf"],
            }
            found = {name: charged(words, args.runs) for name, words in pairs.items()}
        for name, (user, every, mib, opening) in found.items():
            beside = {"drgn": "opened", "Python,": "shown"}.get(name.split()[0], name.split()[0])
            against = found[f"{beside} with vmlinux"]
            table.add_row(
                name,
                f"{every:.2f}",
                f"{user:.2f}",
                f"{opening:.2f}" if opening else "",
                f"{opening / against[3]:.2f}" if opening else f"{every / against[1]:.2f}",
                f"{mib:.0f}",
                f"{mib / against[2]:.2f}",
            )
        crash = ["crash", "-s", vmlinux, core]  # which ends at the end of its input
        if not shutil.which("crash"):
            table.add_row("crash: is not installed")
        elif subprocess.run(crash, stdin=subprocess.DEVNULL, capture_output=True).returncode:
            table.add_row("crash: cannot open this core")
        else:
            user, every, mib, _ = charged(crash, args.runs)
            table.add_row(
                "crash, with vmlinux", f"{every:.2f}", f"{user:.2f}", "", "", f"{mib:.0f}"
            )
        console.print(table)


if __name__ == "__main__":
    main()
