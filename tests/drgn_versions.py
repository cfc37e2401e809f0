# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A vmcore read with other versions of drgn (``make drgn-versions``): every table of its bundle must
be that of the version which is pinned.

Costs: an environment for each version, some 20 s and 200 MB in a temporary folder, from the package
index. Cannot: say anything of versions that have no wheel for this Python.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
sys.path[:0] = [str(ROOT / "tests/lab")]

from archive import LabError  # noqa: E402
from capture import capture  # noqa: E402

VERSIONS = ("0.1.0", "0.2.0", "0.3.0")
# They name the version, or say how long something took.
DIFFER = {"datapackage.json", "sections.csv"}


def environment(version: str, folder: Path) -> Path:
    """A Python with these packages, and this tree."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", *packages(version)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "mmscope.pth").write_text(f"{ROOT}\n")
    return folder / "bin/python"


def tables(python: Path, core: Path, folder: Path) -> dict[str, bytes]:
    """The files of the bundle that a Python makes of a vmcore."""
    command = [python, "-m", "mmscope", "collect", "--core", core, "-o", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr, end="")
    if done.returncode > 1:
        raise LabError(f"collect ended with {done.returncode}")
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    """The files of a bundle that must be the same."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in DIFFER}


def differing(pinned: dict[str, bytes], found: dict[str, bytes], who: str) -> int:
    """How many files are not the same; says which."""
    names = sorted(name for name in pinned.keys() | found if pinned.get(name) != found.get(name))
    print(f"{who}: {len(found)} tables; {', '.join(names) or 'none'} differ")
    return len(names)


def packages(version: str) -> list[str]:
    """That drgn, and otherwise what is pinned."""
    names = "numpy|rich|duckdb|jinja2|pygal"
    return [f"drgn=={version}", *re.findall(rf"(?m)^(?:{names})==\S+", LOCK.read_text())]


def main() -> int:
    wrong = 0
    try:
        core = capture("stable", "sizes", print).vmcore
        with tempfile.TemporaryDirectory(prefix="mmscope-drgn-") as name:
            folder = Path(name)
            pinned = tables(Path(sys.executable), core, folder / "pinned")
            for version in sys.argv[1:] or VERSIONS:
                python = environment(version, folder / f"venv-{version}")
                found = tables(python, core, folder / version)
                wrong += differing(pinned, found, f"drgn {version}")
    except LabError as error:
        print(f"drgn_versions.py: {error}", file=sys.stderr)
        return 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
