# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Guard in trouble: other users' hands in its folder, and disks that are full, read-only or gone.

It is asked for captures by hand. As root.
"""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import pytest
from command_line import ROOT, RUN, run
from watched_host import wait_for

from mmscope.reports.guard import captures
from mmscope.reports.guard.capture import LOCK as CAPTURE_LOCK
from mmscope.reports.guard.guard import LOCK, started
from mmscope.reports.watch import openmetrics

NO_ONE = 65534
AS_NO_ONE = ["setpriv", f"--reuid={NO_ONE}", f"--regid={NO_ONE}", "--clear-groups"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where captures will be; it is not there yet."""
    return tmp_path / "captures"


def of_no_one(path: Path) -> None:
    os.chown(path, NO_ONE, NO_ONE, follow_symlinks=False)


def start(folder: Path, *words: object) -> "subprocess.Popen[str]":
    """A guard that is at work."""
    command = [*RUN, "guard", "run", "-o", folder, "--text", "--interval", "0.5",
               "--collect", "--only zones", "--distance", "0", *words]  # fmt: skip
    process = children.start(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while "triggers, every" not in (line := process.stderr.readline()):
        assert line, "guard did not start"
    return process


def ended(process: "subprocess.Popen[str]") -> str:
    """Its last words, after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def begun(folder: Path) -> int:
    """Captures that have their names, whether or not their reports are made by now."""
    return len(list(captures.captures(folder))) if folder.exists() else 0


def done(folder: Path) -> int:
    states = [said["state"] for _, said in captures.captures(folder)] if folder.exists() else []
    return states.count(captures.DONE)


# Locks, and whom a signal goes to.


def test_no_other_user_can_open_or_hold_a_lock(folder: Path) -> None:
    umask = os.umask(0)
    try:
        process = start(folder)
    finally:
        os.umask(umask)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / LOCK).stat().st_mode & 0o777 == 0o600
    folder.chmod(0o755)  # as an older version made it
    held = children.run([*AS_NO_ONE, "flock", "--nonblock", folder / LOCK, "true"],
                        capture_output=True)  # fmt: skip
    assert held.returncode and b"Permission denied" in held.stderr
    ended(process)


@pytest.mark.parametrize("name", [LOCK, CAPTURE_LOCK])
def test_a_lock_that_others_could_hold_is_replaced(folder: Path, name: str) -> None:
    folder.mkdir(0o755)
    (folder / name).touch(0o644)
    with (folder / name).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lock = captures.locked(folder / name, wait=False)
        assert (folder / name).stat().st_mode & 0o777 == 0o600
        with pytest.raises(BlockingIOError):
            captures.locked(folder / name, wait=False)
        os.close(lock)


@pytest.mark.parametrize("name", [LOCK, CAPTURE_LOCK, ".left-alone"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "of another user"])
def test_what_is_in_the_place_of_a_file_of_state_is_not_used(
    folder: Path, tmp_path: Path, name: str, kind: str
) -> None:
    folder.mkdir()
    (tmp_path / "victim").write_text("root's")
    make: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to("../victim"),
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "of another user": lambda path: (path.touch(0o600), of_no_one(path)),
    }
    make[kind](folder / name)
    with pytest.raises(OSError, match=r"is not a plain file|belongs to user 65534"):
        captures.locked(folder / name, wait=True)
    assert (tmp_path / "victim").read_text() == "root's"
    if name != ".left-alone":
        for action in ("run", "trigger"):
            refused = run("guard", action, "-o", folder, prefix=["env"])
            assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
            assert str(folder / name) in refused.stderr


@pytest.mark.parametrize("action", ["run", "crash"])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, action: str) -> None:
    folder.mkdir()
    for mode in (0o777, 0o1777, 0o700):
        folder.chmod(mode)
        if mode == 0o700:
            of_no_one(folder)
        refused = run("guard", action, "-o", folder, prefix=["env", "-u", "SUDO_UID"])
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
        assert f"{folder}: " in refused.stderr and "root does not use it" in refused.stderr
        assert not os.listdir(folder)


@pytest.fixture
def bystander() -> "subprocess.Popen[Any]":
    """A process that SIGUSR1 would end."""
    return children.start(["sleep", "600"])


@pytest.mark.parametrize(
    "words",
    ["{pid}", "{pid} 1", "0 0", "0 {start}", "-1 {start}", "-{pid} {start}", "1 2 3", "", "\0",
     "9" * 40 + " 1", "4194304 1", "x y"],
)  # fmt: skip
def test_only_a_process_that_is_guard_is_signaled(
    folder: Path, words: str, bystander: "subprocess.Popen[Any]"
) -> None:
    """PID 0 would be the group of who asks; a PID may be another's by now."""
    folder.mkdir()
    lock = captures.locked(folder / LOCK, wait=False)
    os.write(lock, words.format(pid=bystander.pid, start=started(os.getpid())).encode())
    refused = run("guard", "trigger", "-o", folder, prefix=["env"])
    os.close(lock)
    assert refused.returncode == 2 and bystander.poll() is None
    assert refused.stderr == f"mmscope: {folder / LOCK}: does not name a guard; none is signaled\n"


def test_who_asks_where_no_guard_is_hears_so(folder: Path) -> None:
    for _ in range(2):
        refused = run("guard", "trigger", "-o", folder)
        words = f"mmscope: {folder}: no guard is at work there: systemctl start mmscope-guard\n"
        assert (refused.returncode, refused.stderr) == (2, words)
        folder.mkdir(exist_ok=True)


# Housekeeping that fails.


def test_whatever_call_fails_it_watches_on_and_captures_again(tmp_path: Path) -> None:
    """
    Each call that it makes, once or from then on; each line about it is said once.

    Each call fails with one of the first four; with ``MMSCOPE_ALL`` with all of them. With the last
    it cannot begin, and its calls are counted from there.
    """
    errors = [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOENT]
    step = 1 if os.environ.get("MMSCOPE_ALL") else 4
    failed = set()
    for number, error in enumerate(errors):
        folder = tmp_path / str(error)
        folder.mkdir()
        done = children.run(
            [sys.executable, ROOT / "tests/support/guard_faults.py", folder, error,
             1 + number % step, step],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 100
        failed |= {*done.stderr.split()}
    assert {"open", "fsync", "statvfs", "pwrite", "os.rename", "Popen"} <= failed


@pytest.fixture
def small(folder: Path) -> Iterator[Path]:
    """A disk of 96 MiB."""
    folder.mkdir(0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m,mode=0700", "tmpfs", folder]
    subprocess.run([*map(str, mount)], check=True)
    yield folder
    children.end_all()
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def filled(folder: Path) -> None:
    # Without a buffer: what did not fit is not written again when the file is closed.
    with (
        (folder / "ballast").open("wb", buffering=0) as file,
        pytest.raises(OSError, match="No space"),
    ):
        while True:
            file.write(bytes(1 << 20))


def test_a_disk_that_is_full_again_and_again_costs_no_incident_that_had_room(small: Path) -> None:
    """
    Each time it fills up while the capture before is still being made; ten times with
    ``MMSCOPE_ALL``.
    """
    process, times = start(small), 10 if os.environ.get("MMSCOPE_ALL") else 2
    for number in range(1, times + 1):
        filled(small)
        assert run("guard", "trigger", "-o", small).returncode == 0
        time.sleep(0.3)
        assert process.poll() is None and begun(small) == number - 1
        (small / "ballast").unlink()
        wait_for(lambda number=number: begun(small) == number)
    wait_for(lambda: all(said["state"] != captures.RUNNING for _, said in captures.captures(small)))
    assert begun(small) == times and done(small) > 0
    said = ended(process)
    assert "by-hand: not captured yet: less than 64 MiB are free; watching goes on" in said
    assert "Traceback" not in said


def test_on_a_full_disk_it_starts(small: Path) -> None:
    filled(small)
    process = start(small)
    (small / "ballast").unlink()
    wait_for(lambda: re.fullmatch(r"\d+ \d+\n", (small / LOCK).read_text()))
    assert run("guard", "trigger", "-o", small).returncode == 0
    wait_for(lambda: begun(small) == 1)
    ended(process)


def test_on_a_disk_that_is_read_only_it_starts_and_waits(small: Path) -> None:
    remount = ["mount", "-o", "remount,{}", str(small)]
    subprocess.run([word.format("ro") for word in remount], check=True)
    process = start(small)
    time.sleep(0.3)
    assert process.poll() is None
    subprocess.run([word.format("rw") for word in remount], check=True)
    wait_for(lambda: (small / LOCK).exists() and (small / LOCK).read_text())
    assert run("guard", "trigger", "-o", small).returncode == 0
    wait_for(lambda: begun(small) == 1)
    assert "Traceback" not in ended(process)


def test_a_folder_that_vanished_is_made_again(folder: Path) -> None:
    process = start(folder)
    wait_for(lambda: (folder / LOCK).exists() and (folder / LOCK).read_text())
    shutil.rmtree(folder)
    wait_for(lambda: (folder / LOCK).exists() and (folder / LOCK).read_text())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run("guard", "trigger", "-o", folder).returncode == 0
    wait_for(lambda: begun(folder) == 1)
    ended(process)


def test_an_index_page_that_is_a_folder_is_said_once(folder: Path) -> None:
    (folder / "index.html").mkdir(parents=True)
    folder.chmod(0o700)
    process = start(folder)
    wait_for(lambda: (folder / LOCK).exists() and (folder / LOCK).read_text())
    assert run("guard", "trigger", "-o", folder).returncode == 0
    wait_for(lambda: begun(folder) == 1)
    (folder / "index.html").rmdir()
    wait_for((folder / "index.html").is_file)
    ended(process)


# --exec and other options.


def test_a_slow_command_does_not_hold_up_the_capture(folder: Path, tmp_path: Path) -> None:
    script, told, go = (tmp_path / name for name in ("command", "told", "go"))
    script.write_text(
        f"#!/bin/sh\necho $MMSCOPE_STATE $MMSCOPE_CAPTURE >> {told}\n"
        f"until [ -e {go} ]; do sleep 0.1; done\n"
    )
    script.chmod(0o755)
    process = start(folder, "--exec", script)
    assert run("guard", "trigger", "-o", folder).returncode == 0
    wait_for(told.exists)
    wait_for(lambda: done(folder) == 1)
    assert told.read_text().count("\n") == 1
    go.touch()
    ((capture, _),) = captures.captures(folder)
    wait_for(lambda: told.read_text() == f"running {capture}\ndone {capture}\n")
    ended(process)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--exec", "/no/such x"], "/no/such: no such command"),
        (["--exec", "no-such-command"], "no-such-command: no such command"),
        (["--exec", "echo 'x"], "No closing quotation"),
        (["--exec", ""], "names no command"),
        (["--exec", " "], "names no command"),
        (["--interval", "0"], "0 is not a number above 0"),
        (["--distance", "x"], "--distance: invalid value 'x'"),
        (["--proc-root", "/no/such"], "--proc-root /no/such: has no folder 'proc'"),
        (["--collect=--no-such"], "--collect: --no-such: unknown"),
        (["--collect=--only zone"], "no section 'zone'"),
        (["--collect='"], "--collect ': No closing quotation"),
        (["--collect=/a/dump"], "--collect: '/a/dump' is no option; guard says what is read"),
    ],
)
def test_options_are_checked_at_the_start(folder: Path, words: list[str], why: str) -> None:
    refused = run("guard", "run", "-o", folder, *words)
    assert refused.returncode == 2 and why in refused.stderr.splitlines()[-1]
    assert not folder.exists()


def test_the_file_of_metrics_is_never_a_pipe_or_a_device(folder: Path, tmp_path: Path) -> None:
    """It is replaced at every sample, and removed at the end."""
    os.mkfifo(tmp_path / "pipe")
    refused = run("guard", "run", "-o", folder, "--openmetrics", tmp_path / "pipe")
    assert refused.returncode == 2 and "pipe: is not a file; name one of" in refused.stderr
    openmetrics.withdraw(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_is_no_folder_of_captures(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = run("guard", "run", "--text", "-o", tmp_path / "file")
    said = f"mmscope: {tmp_path}/file: is a file, no folder\n"
    assert (refused.returncode, refused.stderr) == (2, said)
