# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope with what this machine has beside this environment: the oldest drgn, and each other Python
that is installed. A vmcore of the lab and a bundle that is committed, cell by cell.

All versions of both: ``make drgn-versions``, ``make box``.
"""

import sys
from pathlib import Path

import boxes
import pytest
from conftest import FUNCTIONS_ONLY, Lab

pytestmark = pytest.mark.any_kernel

BOXES = {
    "the oldest drgn": (sys.executable, boxes.OLDEST_DRGN),
    **{f"Python {version}": (path, boxes.PINNED) for version, path in boxes.installed().items()},
}


def symbols(lab: Lab) -> Path | None:
    """The vmlinux, where the vmcore cannot be read without."""
    return lab.capture.vmlinux if lab.capture.kernel in FUNCTIONS_ONLY else None


@pytest.fixture(scope="module")
def here(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What this environment makes."""
    folder = tmp_path_factory.mktemp("box") / "here"
    return boxes.makes(sys.executable, lab.capture.vmcore, folder, symbols(lab))


@pytest.mark.parametrize("name", BOXES)
def test_tables_findings_and_report_are_the_same(
    name: str, lab: Lab, here: dict[str, bytes], tmp_path: Path
) -> None:
    python, core = boxes.box(*BOXES[name]), lab.capture.vmcore
    there = boxes.makes(python, core, tmp_path / "there", symbols(lab))
    assert len(here) > 80
    assert not boxes.differing(here, there)
