# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope on other boxes, in roots of Debian that have a Python and nothing else. A vmcore must give
the tables that it gives here, byte by byte, and a bundle that is committed the findings and the
report that it gives here.

``make box``: other Pythons, each with every version of drgn. Costs for each Python a root (100 MB
fetched, none of it kept) and a minute or two.

``make box-arm64``: Debian's packages of drgn, numpy and rich for arm64, and its Python, run by QEMU
instruction by instruction (qemu-aarch64-static), on a vmcore of arm64. The packages are only
unpacked, as what sets them up would have to run there: no binfmt_misc is needed, and nothing of the
machine is changed. Costs 5 minutes of CPU time, once that vmcore is in the cache.

Needs root, and mmdebstrap. Cannot: have 3.12, which no suite of Debian carries (``make
drgn-versions`` takes it where it is installed); a Python for which drgn or DuckDB has no wheel; or
read the running kernel of arm64.

    python tests/support/box_versions.py 3.14
"""

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import boxes
from boxes import BUNDLE, ROOT, VERSIONS, LabError, packages

sys.path[:0] = [str(ROOT / "tools")]

from capture import capture  # noqa: E402
from make_deb import in_a_root  # noqa: E402
from make_dist import MACHINE, PLATFORMS, project  # noqa: E402

# Of BLAS there are several; what sets its package up would choose one.
BLAS = "/usr/lib/aarch64-linux-gnu/blas:/usr/lib/aarch64-linux-gnu/lapack"
QEMU = Path("/usr/bin/qemu-aarch64-static")


@dataclass(frozen=True)
class Root:
    """
    A root of Debian.

    :ivar packages: of Debian, beside the Python.
    :ivar drgns: versions of drgn that are tried there; none: the one of its packages.
    :ivar cores: lab kernels whose vmcores are read.
    """

    python: str
    suite: str
    packages: tuple[str, ...] = ()
    drgns: tuple[str, ...] = VERSIONS
    cores: tuple[str, ...] = ("stable",)
    foreign: str | None = None
    machine: str = MACHINE
    run: str = ""


ROOTS = {
    "3.13": Root("3.13", "trixie"),
    "3.14": Root("3.14", "sid"),
    "arm64": Root(
        "3.14",
        "sid",
        ("base-files", "python3-drgn", "python3-numpy", "python3-rich", "python3-jinja2"),
        drgns=("",),
        cores=("arm64-6.12",),
        foreign="arm64",
        machine="aarch64",
        run=f"/qemu -E LD_LIBRARY_PATH={BLAS} ",
    ),
}
SCRIPT = """
set -e
root=$1
mount -t proc proc "$root/proc"
export LC_ALL=C.UTF-8 OPENBLAS_NUM_THREADS=1
run() {{ chroot "$root" {run}/usr/bin/python{python} "$@"; }}
"""
DOCTOR = """
export PYTHONPATH=/tried/site-{drgn}
run -c 'import drgn, sys, os; print(sys.version.split()[0], os.uname().machine, drgn.__version__)'
code=0; run -m mmscope doctor > "$root/tried/doctor" || code=$?; [ $code -le 1 ]
head -n 3 "$root/tried/doctor"
"""
TRY = """
made=/tried/made-{core}-{drgn}
mkdir "$root$made"
code=0; run -m mmscope collect --no-findings --core /tried/{core} -o $made/made || code=$?
[ $code -le 1 ]
run -m mmscope findings --all {bundle} > "$root$made/findings.txt"
run -m mmscope report {bundle} -o $made/report.html
"""


def site(root: Root, drgn: str, folder: Path) -> None:
    """What is installed for that Python beside Debian's packages, and mmscope."""
    words = ["-m", "pip", "install", "--quiet", "--target", str(folder), "--only-binary", ":all:"]
    words += ["--implementation", "cp", "--python-version", root.python]
    for platform in PLATFORMS:
        words += ["--platform", f"{platform}_{root.machine}"]
    names = [
        name
        for name in packages(drgn)
        if drgn or f"python3-{name.partition('==')[0]}" not in root.packages
    ]
    subprocess.run([sys.executable, *words, *names], check=True)
    zipfile.ZipFile(io.BytesIO(project())).extractall(folder)
    shutil.copytree(ROOT / "templates", folder / "mmscope/templates")


def try_out(root: Root, cores: dict[str, Path], folder: Path) -> None:
    """Leave what each drgn there makes of each vmcore and of the bundle: ``made-CORE-DRGN``."""
    script = SCRIPT.format(run=root.run, python=root.python)
    for drgn in root.drgns:
        site(root, drgn, folder / f"site-{drgn}")
        script += DOCTOR.format(drgn=drgn)
        script += "".join(TRY.format(core=core, drgn=drgn, bundle=BUNDLE) for core in cores)
    (folder / "try.sh").write_text(script)
    in_a_root(
        [f"python{root.python}", *root.packages],
        f'cp -r {folder} "$1/tried"',
        f'mkdir -p "$1{BUNDLE.parent}" && cp -r {BUNDLE} "$1{BUNDLE.parent}"',
        *(f'cp --sparse=always {core} "$1/tried/{name}"' for name, core in cores.items()),
        *([f'cp -L {QEMU} "$1/qemu"'] if root.foreign else []),
        # DuckDB is given open files.
        'ln -sfn /proc/self/fd "$1/dev/fd"',
        # What is mounted goes with the script, and so does what it started.
        f'unshare --mount --pid --fork sh {folder}/try.sh "$1"',
        f'cp -r "$1"/tried/made-* {folder}',
        suite=root.suite,
        foreign=root.foreign,
    )


def main() -> int:
    wrong = False
    try:
        with tempfile.TemporaryDirectory(prefix="mmscope-box-") as name:
            for which in sys.argv[1:] or [name for name in ROOTS if not ROOTS[name].foreign]:
                root, folder = ROOTS[which], Path(name) / which
                folder.mkdir()
                cores = {core: capture(core, "sizes", print).vmcore for core in root.cores}
                try_out(root, cores, folder)
                for core, path in cores.items():
                    here = boxes.makes(sys.executable, path, folder / f"here-{core}")
                    for drgn in root.drgns:
                        made = boxes.everything(folder / f"made-{core}-{drgn}")
                        who = f"{which}, drgn {drgn or 'of Debian'}, vmcore of {core}"
                        wrong |= boxes.compared(here, made, who)
    except (LabError, subprocess.CalledProcessError) as error:
        print(f"box_versions.py: {error}", file=sys.stderr)
        return 1
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
