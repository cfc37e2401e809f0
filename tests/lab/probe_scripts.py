# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Probes as scripts of drgn: by the ``drgn`` command, which opens the vmcore (a second or two), or
as it runs them, on a program that is open.
"""

import runpy
import subprocess
import sys
from pathlib import Path

import children
import pytest
from capture import Capture
from drgn import Program, set_default_prog

FOLDER = Path(__file__).resolve().parents[2] / "drgn"


def by_drgn(taken: Capture, script: str) -> "subprocess.CompletedProcess[str]":
    """What the command makes of ``drgn/<script>.py``."""
    drgn = Path(sys.executable).with_name("drgn")
    return children.run(
        [drgn, "-q", "-c", taken.vmcore, "-s", taken.vmlinux, FOLDER / f"{script}.py"],
        capture_output=True,
        text=True,
        timeout=600,
    )


def as_drgn_does(prog: Program, script: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What ``drgn/<script>.py`` prints, and what it says on stderr, run as drgn.cli does."""
    capsys.readouterr()
    set_default_prog(prog)
    try:
        runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    finally:
        set_default_prog(None)
    said = capsys.readouterr()
    return said.out, said.err
