# SPDX-License-Identifier: LGPL-2.1-or-later
"""Devices that are written to, of the text of debugfs. Kernels: tests/lab."""

from pathlib import Path

import pytest

from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.waits.writeback import BDIS, WritebackDevice, devices_by_text

# As bdi_debug_stats_show() of 6.12 prints it.
STATS = """\
BdiWriteback:             1024 kB
BdiReclaimable:           4096 kB
BdiDirtyThresh:              0 kB
DirtyThresh:             12960 kB
BackgroundThresh:         6472 kB
BdiDirtied:               8192 kB
BdiWritten:               2048 kB
BdiWriteBandwidth:         400 kBps
b_dirty:                     3
state:                       1
"""
MOUNTS = "25 30 8:1 / /data rw,nosuid shared:4 - ext4 /dev/sda1 rw\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Files, "page_size", lambda files: 4096)
    for device, text in (("8:1", STATS), ("8:16", STATS.replace("4096", "   0")), ("0:7", "")):
        (tmp_path / BDIS / device).mkdir(parents=True)
        (tmp_path / BDIS / device / "stats").write_text(text)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    return tmp_path


def test_each_that_was_written_to_with_its_file_systems(root: Path) -> None:
    found = Found()
    own = (None, None, None, 3240)
    assert devices_by_text(Files(root), found) == [
        WritebackDevice("8:1", None, "ext4 of /dev/sda1 at /data", 1024, 256, 2048, 512, 100, *own),
        WritebackDevice("8:16", None, "device 8:16", 0, 256, 2048, 512, 100, *own),
    ]
    assert found.notes == [f"{BDIS}/0:7/stats is damaged"]


def test_without_debugfs_it_is_not_known(tmp_path: Path) -> None:
    assert devices_by_text(Files(tmp_path), Found()) is None
