# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope on other Pythons (``make box``), each with every version of drgn: in roots of Debian that
have that Python and nothing else, a vmcore must give the tables that it gives here, byte by byte,
and its bundle findings and a report.

Costs: for each Python a root (100 MB fetched, none of it kept) and a minute or two. Needs root, and
mmdebstrap. Cannot: have 3.12, which no suite of Debian carries; or a Python for which drgn or
DuckDB has no wheel.

    python tests/box_versions.py 3.14
"""

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from drgn_versions import ROOT, VERSIONS, differing, files, packages, tables

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/lab")]

from archive import LabError  # noqa: E402
from capture import capture  # noqa: E402
from make_deb import in_a_root  # noqa: E402
from make_dist import MACHINE, PLATFORMS, project  # noqa: E402

# The suite of Debian that has it.
SUITES = {"3.13": "trixie", "3.14": "sid"}
TRY = """
set -e
export LC_ALL=C.UTF-8 PYTHONPATH=/tried/site-{drgn}
cd /tried
run() {{ python{python} -m mmscope "$@"; }}
python{python} -c 'import drgn, sys; print(sys.version.split()[0], drgn.__version__)'
code=0; run collect --core vmcore -o made-{drgn} || code=$?; [ $code -le 1 ]
run findings -v made-{drgn} > findings-{drgn}.txt
run report -v made-{drgn} -o report-{drgn}.html
"""


def site(python: str, drgn: str, folder: Path) -> None:
    """What is installed for that Python: that drgn, otherwise what is pinned, and mmscope."""
    words = ["-m", "pip", "install", "--quiet", "--target", str(folder), "--only-binary", ":all:"]
    words += ["--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        words += ["--platform", f"{platform}_{MACHINE}"]
    subprocess.run([sys.executable, *words, *packages(drgn)], check=True)
    zipfile.ZipFile(io.BytesIO(project())).extractall(folder)
    shutil.copytree(ROOT / "templates", folder / "mmscope/templates")


def try_out(python: str, core: Path, folder: Path) -> None:
    """Leave what that Python makes of a vmcore: a bundle, findings, a report for each drgn."""
    for drgn in VERSIONS:
        site(python, drgn, folder / f"site-{drgn}")
    script = "".join(TRY.format(python=python, drgn=drgn) for drgn in VERSIONS)
    (folder / "try.sh").write_text(script)
    in_a_root(
        [f"python{python}"],
        f'cp -r {folder} "$1/tried"',
        f'cp --sparse=always {core} "$1/tried/vmcore"',
        'chroot "$1" sh /tried/try.sh',
        f'cp -r "$1"/tried/made-* "$1"/tried/report-* "$1"/tried/findings-* {folder}',
        suite=SUITES[python],
    )


def main() -> int:
    wrong = 0
    try:
        core = capture("stable", "sizes", print).vmcore
        with tempfile.TemporaryDirectory(prefix="mmscope-box-") as name:
            here = tables(Path(sys.executable), core, Path(name) / "here")
            for python in sys.argv[1:] or SUITES:
                folder = Path(name) / python
                folder.mkdir()
                try_out(python, core, folder)
                for drgn in VERSIONS:
                    made = files(folder / f"made-{drgn}")
                    wrong += differing(here, made, f"Python {python}, drgn {drgn}")
                    words = (folder / f"findings-{drgn}.txt").read_text().splitlines()
                    size = (folder / f"report-{drgn}.html").stat().st_size
                    print(f"    {len(words)} lines of findings, a report of {size:,} bytes")
    except (LabError, subprocess.CalledProcessError) as error:
        print(f"box_versions.py: {error}", file=sys.stderr)
        return 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
