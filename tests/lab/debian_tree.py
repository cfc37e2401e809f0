# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The disk of a live guest of another architecture than this machine's: Python, drgn, numpy, rich and
perf as Debian has them there. The packages are unpacked, not set up, which would have to run there;
nothing of this machine is changed, and its QEMU for programs is not needed.

Costs: 150 MB fetched each time, of which nothing is kept, and a minute; 450 MB on the disk.
Needs root, and mmdebstrap. sid, as drgn is too old in the suites before.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from architectures import Architecture
from archive import LabError

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

from make_deb import in_a_root  # noqa: E402

SUITE = "sid"
PACKAGES = ("base-files", "python3-drgn", "python3-numpy", "python3-rich", "linux-perf")
# Of BLAS there are several; what sets its package up would choose one.
BLAS = {"arm64": "/usr/lib/aarch64-linux-gnu/blas:/usr/lib/aarch64-linux-gnu/lapack"}
# What its Python begins with. Where libraries are searched is read as a program begins.
START = """
import os, sys
if "LD_LIBRARY_PATH" not in os.environ:
    os.environ |= {{"LD_LIBRARY_PATH": {blas!r}, "OPENBLAS_NUM_THREADS": "1"}}
    os.execv("/python", ["/python", *sys.argv])
os.environ["PATH"] = "/bin:/usr/bin"
sys.path[:0] = ["/site"]
"""


def start(architecture: Architecture) -> str:
    """What a program begins with that is run there, in Python."""
    return START.format(blas=BLAS[architecture.name])


def unpack(architecture: Architecture, tree: Path) -> None:
    """
    Unpack the packages into an empty folder.

    :raises LabError: mmdebstrap or the archive failed; what they said is on stderr.
    """
    # -x: mmdebstrap mounts /proc and /sys there.
    copied = f'cp -ax "$1"/. {shlex.quote(str(tree))}'
    try:
        in_a_root(PACKAGES, copied, suite=SUITE, foreign=architecture.name)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise LabError(f"no root of Debian for {architecture.name}: {error}") from None
    (tree / "python").symlink_to("/usr/bin/python3")
