# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Boxes: other Pythons and other versions of drgn than this environment has, and what each of them
makes of the same vmcore and of a bundle that is committed. All of it must be the same.

Costs: an environment for each, some 20 s of CPU time and 200 MB from the package index, once; kept
in ``$XDG_CACHE_HOME/mmscope/lab/boxes`` under a hash of what is in it.

Cannot: have versions of drgn that have no wheel for a Python.
"""

import csv
import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mmscope.drgn.opening.oldest_drgn import OLDEST_DRGN

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab")]

from archive import LabError, cache_folder, run  # noqa: E402

LOCK = ROOT / "requirements.lock"
BUNDLE = ROOT / "tests/bundles/v0.1.0"
PINNED = re.findall(r"(?m)^drgn==(\S+)", LOCK.read_text())[0]
VERSIONS = (OLDEST_DRGN, "0.2.0", PINNED)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Where those who install more than the distribution's have them.
HOMES = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin")
# One of each of these names the version, or says how long something took.
DIFFER = "datapackage.json"
TIMED = ("sections.csv", "seconds")


def installed() -> dict[str, str]:
    """The Pythons of this machine that mmscope is made for, but this one: their paths."""
    found = {}
    for version in PYTHONS:
        places = [shutil.which(f"python{version}")]
        for home in HOMES:
            places += sorted(str(path) for path in Path.home().glob(f"{home}/python{version}"))
        here = [place for place in places if place and _starts(place)]
        if here and version != f"{sys.version_info[0]}.{sys.version_info[1]}":
            found[version] = here[0]
    return found


def _starts(python: str) -> bool:
    """Not a name that only tells how to get one; and it has what mmscope needs of its library."""
    words = [python, "-I", "-c", "import ctypes, mmap, ssl, venv, zlib"]
    return subprocess.run(words, capture_output=True).returncode == 0


def packages(drgn: str) -> list[str]:
    """That drgn, and otherwise what is pinned."""
    names = "numpy|rich|duckdb|jinja2"
    return [f"drgn=={drgn}", *re.findall(rf"(?m)^(?:{names})==\S+", LOCK.read_text())]


def box(python: str, drgn: str) -> Path:
    """
    The interpreter of an environment with that Python and that drgn, from the cache if there.

    :raises LabError: the package index does not have it.
    """
    what = [run(python, "-I", "-c", "import sys; print(sys.version, sys.executable)")]
    digest = hashlib.sha256("\n".join([*what, *packages(drgn)]).encode()).hexdigest()[:12]
    stem = f"python{what[0].split()[0]}-drgn{drgn}-"
    boxes = cache_folder() / "boxes"
    boxes.mkdir(parents=True, exist_ok=True)
    folder = boxes / f"{stem}{digest}"
    with (boxes / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for older in boxes.glob(f"{stem}*"):
                shutil.rmtree(older)
            with tempfile.TemporaryDirectory(prefix=".box-", dir=boxes) as name:
                made = Path(name) / "made"
                run(python, "-m", "venv", "--without-pip", str(made))
                words = ["-m", "pip", "--python", str(made / "bin/python"), "install", "--quiet"]
                words += ["--no-compile", "--only-binary", ":all:", *packages(drgn)]
                run(sys.executable, *words)
                made.rename(folder)  # whole or absent
    return folder / "bin/python"


def makes(
    python: str | Path, core: Path, folder: Path, symbols: Path | None = None
) -> dict[str, bytes]:
    """
    What a Python makes, of this tree: the tables of a vmcore, and of a bundle that is committed the
    findings and the report.

    :param symbols: the vmlinux, for a vmcore that cannot be read without.
    :raises LabError: a command of it failed; has what it said.
    """
    folder.mkdir()

    def mmscope(*words: str | Path, most: int = 0) -> str:
        done = subprocess.run(
            [python, "-m", "mmscope", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        if done.returncode > most:
            raise LabError(f"{words[0]} ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    given = ("--symbols", symbols) if symbols else ()
    mmscope("collect", "--no-findings", "--core", core, *given, "-o", "made", most=1)
    (folder / "findings.txt").write_text(mmscope("findings", "--all", BUNDLE))
    mmscope("report", BUNDLE, "-o", "report.html")
    return everything(folder)


def everything(folder: Path) -> dict[str, bytes]:
    """What was made in a folder, by its path there, but for what cannot be the same."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in (*folder.glob("made/*"), folder / "findings.txt", folder / "report.html")
        if path.name != DIFFER
    }
    name, column = TIMED
    rows = list(csv.DictReader(io.StringIO(found[f"made/{name}"].decode())))
    found[f"made/{name}"] = "\n".join(str({**row, column: ""}) for row in rows).encode()
    return found


def differing(here: Mapping[str, bytes], there: Mapping[str, bytes]) -> list[str]:
    """The names of what is not the same."""
    return sorted(name for name in here.keys() | there if here.get(name) != there.get(name))


def compared(here: Mapping[str, bytes], there: Mapping[str, bytes], who: str) -> bool:
    """Say what differs; returns whether anything does."""
    wrong = differing(here, there)
    said = ", ".join(wrong) or "none differ"
    print(f"{who}: {len(there)} files; {said}", flush=True)
    return bool(wrong)
