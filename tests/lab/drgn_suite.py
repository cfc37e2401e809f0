# SPDX-License-Identifier: LGPL-2.1-or-later
"""
drgn's own tests for Linux on a running stock kernel, once with its DWARF and once by what it says
of itself: what passes with DWARF has to pass without.

    make drgn-suite KERNEL=7.2      (or: python tests/lab/drgn_suite.py --kernel 7.2 [FOLDER])

The tests are those of the pinned drgn's source at PyPI, or of a checkout, with drgn's test module,
built for this kernel and read by its own debug info in both. Left out is what needs Python packages
and programs that the guest has not. The kernel is one of Debian's for x86-64 with debug info. Costs
seven minutes of CPU. Ends with 1 where less than SHARE passes, or something fails that WHY does not
have.
"""

import argparse
import json
import re
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import children
import kernels
from archive import LabError, cache_folder
from live import run_live
from roles import resolve

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARE = 0.99
# What passes with DWARF alone, and why: patterns of names of tests.
WHY = {
    r"TestDebugInfo\.test_debug_info$|TestSys\.test_sys$": (
        "it asks for the file that the debug info is from"
    ),
    r"TestKernfs\.test_kernfs_root$": "it asks for a static by its file: two files have one",
    r"TestPrintAnnotatedStack\.": "it asks for files and lines",
    # The module's debug info is in use in both, and where the kernel's is not, beside BTF.
    r"TestSlab\.test_slab_cache_(usage|for_each_allocated_object)$": (
        "the debug info of drgn's module only declares struct kmem_cache"
    ),
    r"TestCallFunction\.test_(many_out_params|string_args)$": (
        "char of the debug info of drgn's module is not char of BTF"
    ),
}


def say(text: str) -> None:
    print(f"  lab: {text}", file=sys.stderr, flush=True)


def source() -> Path:
    """The archive with the source of the pinned drgn."""
    name = f"drgn-{version('drgn')}"
    kept = cache_folder() / f"{name}.tar.gz"
    if not kept.exists():
        lock = (ROOT / "requirements.lock").read_text()
        (pinned,) = re.findall(r"^drgn==(?:.*\\\n)*.*\n", lock, re.MULTILINE)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            asked = Path(folder, "drgn.txt")
            asked.write_text(pinned)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes"]
            pip += ["--no-deps", "--no-binary=drgn", f"--dest={folder}", f"--requirement={asked}"]
            if children.run(pip).returncode:
                raise LabError(f"{name}'s source cannot be had: give a checkout of it, DRGN=FOLDER")
            Path(folder, kept.name).rename(kept)
    return kept


def unpacked(folder: Path) -> Path:
    """The source of the pinned drgn."""
    with tarfile.open(source()) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"drgn-{version('drgn')}"


def packed(given: Path, folder: Path) -> Path:
    """drgn's tests in a file for the guest."""
    made = folder / "suite.tar"
    with tarfile.open(made, "w") as archive:
        for name in ("tests", "util.py"):
            archive.add(given / name, name)
    return made


def built(kernel: str, folder: Path) -> Path:
    """drgn's test module for a stock kernel."""
    return kernels.with_built(kernels.get(kernel, say), folder, say).modules[-1]


def main() -> int:
    """Run both, print what differs, and the share."""
    parser = argparse.ArgumentParser(description="drgn's own tests for Linux in a stock guest")
    parser.add_argument("--kernel", default="stable", help="a row or a role of kernels.toml")
    parser.add_argument("folder", nargs="?", type=Path, help="a checkout of drgn")
    args = parser.parse_args()
    program = (HERE / "programs/drgn_suite_guest.py").read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            kernel = resolve(args.kernel, say)
            given = args.folder or unpacked(folder)
            module = built(kernel, given / "tests/linux_kernel/kmod")
            suite = packed(given, folder)
            work = folder / "guest"
            work.mkdir()
            out = run_live(program, work, kernel, say, binaries=[suite, module])
        except (LabError, OSError) as error:
            print(f"drgn_suite.py: {error}", file=sys.stderr)
            return 1
        dwarf, none = (json.loads((out / f"{way}.json").read_text()) for way in ("dwarf", "none"))
    return said(kernel, dwarf, none)


def said(kernel: str, dwarf: dict[str, str], none: dict[str, str]) -> int:
    """Print what passes with DWARF and fails without; 1 where that is too much."""
    passed = [test for test, outcome in dwarf.items() if outcome == "passed"]
    failed = {test: none.get(test, "did not run") for test in passed}
    failed = {test: outcome for test, outcome in failed.items() if outcome != "passed"}
    unknown = 0
    for test, outcome in failed.items():
        why = next((words for of, words in WHY.items() if re.search(of, test)), "")
        unknown += not why
        print(f"{test}: {outcome}\n    {why or 'not known'}")
    skipped = sum(outcome == "skipped" for outcome in dwarf.values())
    more = [test for test, outcome in none.items() if outcome == "passed" and test not in passed]
    share = 1 - len(failed) / len(passed) if passed else 0.0
    print(
        f"drgn {version('drgn')} on {kernel}: {len(passed)} tests pass with DWARF, "
        f"{len(passed) - len(failed)} of them without ({share:.1%}); {len(more)} without alone; "
        f"{skipped} skipped, {len(dwarf) - len(passed) - skipped} fail with it, too"
    )
    return int(share < SHARE or unknown > 0)


if __name__ == "__main__":
    sys.exit(main())
