# SPDX-License-Identifier: LGPL-2.1-or-later
"""Folders in /tmp that a killed process left: the next process of that user removes them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mmscope.reports.bundle.leftovers import replaced, scratch

HOLD = """
import time
from mmscope.reports.bundle.leftovers import scratch
with scratch() as folder:
    (folder / "perf.data").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_a_folder_is_its_owners_alone_and_goes_with_the_block(tmp_path: Path) -> None:
    with scratch() as folder:
        assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


def test_what_the_living_use_stays_and_what_the_killed_left_goes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            theirs = Path(process.stdout.readline().decode().strip())
            with scratch():
                assert (theirs / "perf.data").exists()
        finally:
            process.send_signal(signal.SIGKILL)
    assert theirs.exists()
    with scratch() as ours:
        assert list(tmp_path.iterdir()) == [ours]


def test_no_link_is_followed_and_only_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "x").touch()
    (tmp_path / ".mmscope.a.partial").symlink_to(tmp_path / "victim")
    (tmp_path / ".mmscope.b.partial").touch()
    (tmp_path / ".mmscope.c.partial").mkdir()
    (tmp_path / ".mmscope.c.partial" / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / ".mmscope.d.partial")
    with scratch() as ours:
        left = {path.name for path in tmp_path.iterdir()} - {ours.name}
    assert left == {"victim", ".mmscope.a.partial", ".mmscope.b.partial", ".mmscope.d.partial"}
    assert (tmp_path / "victim" / "x").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_what_is_another_users_is_left(tmp_path: Path) -> None:
    (tmp_path / ".mmscope.a.partial").mkdir()
    os.chown(tmp_path / ".mmscope.a.partial", 65534, 65534)
    with scratch():
        pass
    assert (tmp_path / ".mmscope.a.partial").exists()


@pytest.mark.parametrize("what", ["pipe", "link to a pipe"])
def test_no_file_takes_the_place_of_a_pipe_or_a_device(tmp_path: Path, what: str) -> None:
    """Root's would take that of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to("pipe")
    wrong = pytest.raises(OSError, match="is not a plain file, and is not replaced")
    with wrong, replaced(tmp_path / what, 0o644) as file:
        file.write(b"x")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link to a pipe").is_symlink()
    assert len(os.listdir(tmp_path)) == 2
