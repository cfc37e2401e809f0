# SPDX-License-Identifier: LGPL-2.1-or-later
"""What docs/guard.md says of the units' hardening is what systemd-analyze prints of them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from unit_figures import UNITS, documented, exposure


@pytest.mark.parametrize("unit", UNITS)
def test_figures_are_those_that_systemd_prints(tmp_path: Path, unit: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    version = subprocess.check_output(["systemd-analyze", "--version"], text=True)
    if unit not in documented(version):
        pytest.skip(f"docs/guard.md has no figures of {version.splitlines()[0]}")
    # By the name that it has when it is installed.
    path = shutil.copy(ROOT / "debian" / f"mmscope.{unit}", tmp_path / unit)
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    printed = subprocess.run(words, capture_output=True, text=True).stdout
    assert exposure(printed) == documented(version)[unit]
