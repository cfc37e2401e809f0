# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make demo``: the main job from end to end, on a real kernel.

Fetches a stock kernel, boots it under emulation, lets the workload drive its memory into the state
of a known incident, takes a vmcore, and runs the command on it as a user would. In a second boot of
the same kernel it records page faults and the page tables that they make, the end of processes and
of some that the OOM killer takes, with transparent huge pages and without, and who turns free
memory into HighAtomic reserve, and adds that. Everything it prints comes from those commands.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from archive import LabError
from capture import capture, one_at_a_time
from profiled import record_in_guest
from roles import resolve

ROOT = Path(__file__).resolve().parents[2]
MMSCOPE = Path(sys.executable).with_name("mmscope")
SPARSE = ("/bin/faults", "sparse", "20000")
# 252 faults of three new tables each, 2,772 of two, 4,976 of one.
BREADTH = ("/bin/faults", "breadth", "8000", "12")
OOM = ("/bin/faults", "oom", "/sys/fs/cgroup/oom", "database")
# recipe, label, against, what runs
PROFILES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("page-fault", "breadth first", "", BREADTH),
    ("exit-path", "dense", "", ("/bin/faults", "dense", "60000")),
    ("exit-path", "sparse", "", SPARSE),
    ("exit-path", "sparse thp", "exit_path_sparse", (*SPARSE, "thp")),
    ("oom", "database", "", OOM),
    ("oom", "database thp", "oom_database", (*OOM, "thp")),
    # Last: it turns free memory into reserve.
    ("atomic-alloc", "large pings", "", ("/bin/faults", "reserve", "12")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Boot, break, collect, report.")
    parser.add_argument("--kernel", default="stable", help="a row or role of kernels.toml")
    parser.add_argument("--output", type=Path, default=ROOT / "demo", help="folder to write")
    args = parser.parse_args()
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f} s] {text}", flush=True)

    def run(*command: str | Path) -> int:
        words = [str(word) for word in command]
        shown = [Path(word).name if word == str(MMSCOPE) else word for word in words]
        say("$ " + " ".join(shown))
        return subprocess.run(words).returncode

    try:
        kernel = resolve(args.kernel, say, symbols=False)
        lab = capture(kernel, "demo", say, fresh=True, symbols=False)
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    bundle, report = args.output / "bundle", args.output / "report.html"
    shutil.rmtree(args.output, ignore_errors=True)
    args.output.mkdir(parents=True)
    code = run(MMSCOPE, "collect", "--core", lab.vmcore, "-o", bundle)
    if code > 1:
        return code
    try:
        code = code or add_profiles(kernel, bundle, run, say)
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    code = code or run(MMSCOPE, "report", bundle, "-o", report)
    if code == 0:
        say(f"done: open {report}")
        print(
            f"\nThe tables are in {bundle}; look at one with\n"
            f"  .venv/bin/mmscope show free_blocks {bundle}\n"
            "or at the kernel itself with\n"
            f"  .venv/bin/drgn -c {lab.vmcore} --no-default-symbols drgn/free/free_lists.py"
        )
    return code


def add_profiles(
    kernel: str, bundle: Path, run: Callable[..., int], say: Callable[[str], None]
) -> int:
    """Record in a guest, and bring the text that perf wrote there into the bundle."""
    with tempfile.TemporaryDirectory(prefix="mmscope-demo-") as folder, one_at_a_time():
        out = record_in_guest(
            [
                (str(n), "bundle", (recipe, "--keep", f"/out/kept{n}", "--", *command))
                for n, (recipe, _, _, command) in enumerate(PROFILES)
            ],
            Path(folder),
            kernel,
            say,
        )
        for n, (recipe, label, against, _) in enumerate(PROFILES):
            kept = out / f"kept{n}" / "perf-script.txt.gz"
            if not kept.exists():
                raise LabError(f"{recipe}: {(out / f'{n}.log').read_text()}")
            compared = ("--against", against) if against else ()
            code = run(
                MMSCOPE,
                "record",
                recipe,
                "--input",
                kept,
                "--label",
                label,
                *compared,
                "-o",
                bundle,
            )
            if code > 1:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
