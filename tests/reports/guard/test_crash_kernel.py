# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook for the crash kernel, with commands in mmscope's place that do as they are bidden.

Over a real dump: ``tests/lab/test_kdump.py``.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.commands.command import build_parser

HOOK = ROOT / "deploy/crash-kernel/crash-kernel"
UNIT = ROOT / "debian/mmscope.mmscope-crash-kernel.service"
SECONDS = 90
# Says what it was asked for, makes what a bundle has, or ends as it is told.
STAND_IN = """#!/bin/sh
echo "$@" >> {folder}/asked
for last; do :; done
[ "$1" = why ] && {{ echo "cause    a test of ${{last##*/}}"; exit 0; }}
case "$last" in */{dies}) kill -9 $$ ;; esac
mkdir -p "$last" && echo {{}} > "$last/datapackage.json"
exit 1
"""


def hook(
    folder: Path, dies: str = "", core: str = "core", words: list[str] | None = None, **more: str
) -> Any:
    stand_in = folder / "mmscope"
    stand_in.write_text(STAND_IN.format(folder=folder, dies=dies or "nothing"))
    stand_in.chmod(0o755)
    (folder / "core").write_bytes(b"")
    return subprocess.run(
        [HOOK, *([f"{folder}/crash", str(SECONDS)] if words is None else words)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MMSCOPE": str(stand_in),
             "MMSCOPE_CORE": f"{folder}/{core}", "MMSCOPE_BACKEND": "/none", **more},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def made(folder: Path) -> set[str]:
    (case,) = (folder / "crash").iterdir()
    return {path.name for path in case.iterdir() if path.suffix != ".log"}


def deadline(line: str) -> int:
    (found,) = re.findall(r"--deadline (\d+) ", line)
    return int(found)


def test_what_tells_most_comes_first_and_why_is_on_the_console(tmp_path: Path) -> None:
    done = hook(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert made(tmp_path) == {"first", "all", "why-first.txt", "why-all.txt"}
    assert "cause    a test of first\ncause    a test of all\n" in done.stdout
    first, why_first, everything, why = (tmp_path / "asked").read_text().splitlines()
    assert "--only kernel_log,oom_kills," in first and deadline(first) <= SECONDS // 3
    # What the first did not need is for the rest.
    assert "--only" not in everything and deadline(first) < deadline(everything) < SECONDS
    assert why_first.endswith("/first") and why.endswith("/all")
    for line in (first, everything, why):
        args = build_parser([line.split()[0]]).parse_args(line.split())
        assert set(getattr(args, "only", ())) <= SECTIONS.keys()


def test_time_for_all_is_what_the_unit_has_and_some_more(tmp_path: Path) -> None:
    unit = UNIT.read_text()
    (given,) = re.findall(r"^ExecStart=\S+ /var/crash (\d+)$", unit, re.MULTILINE)
    (most,) = re.findall(r"^TimeoutStartSec=(\d+)$", unit, re.MULTILINE)
    (default,) = re.findall(r"^folder=\S+ seconds=(\d+)$", HOOK.read_text(), re.MULTILINE)
    assert given == default and int(given) + 20 <= int(most)
    said = (ROOT / "docs/guard.md").read_text()
    assert f"within {given} s" in said and f"`TimeoutStartSec={most}`" in said


def test_what_nothing_ends_is_left_and_the_host_reboots(tmp_path: Path) -> None:
    """As a command is in an uninterruptible sleep: `timeout` waits for it as long as it takes."""
    programs, seconds = tmp_path / "programs", 26
    programs.mkdir()
    for name in ("timeout", "sync"):
        (programs / name).write_text("#!/bin/sh\nexec sleep 600\n")
        (programs / name).chmod(0o755)
    begin, path = time.monotonic(), f"{programs}:/usr/bin:/bin"
    with subprocess.Popen(
        [HOOK, tmp_path / "crash", str(seconds)],
        env={"PATH": path, "MMSCOPE": "/bin/true", "MMSCOPE_CORE": "/dev/null"},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        code = process.wait(600)
        took = time.monotonic() - begin
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout
        said = process.stdout.read()
    assert code == 0 and took < seconds + 10, took
    for name in ("first", "all"):
        assert f"mmscope: {name}: no bundle: exit status 137\n" in said


@pytest.mark.parametrize(("dies", "left"), [("all", "first"), ("first", "all")])
def test_what_is_killed_leaves_the_other_and_ends_well(
    tmp_path: Path, dies: str, left: str
) -> None:
    done = hook(tmp_path, dies)
    assert done.returncode == 0 and made(tmp_path) == {left, f"why-{left}.txt"}
    assert f"mmscope: {dies}: no bundle: exit status 137" in done.stdout
    assert f"cause    a test of {left}" in done.stdout


def test_where_it_cannot_work_it_ends_well(tmp_path: Path) -> None:
    done = hook(tmp_path, core="none")
    assert done.returncode == 0 and "none is not there: this is no crash kernel" in done.stdout
    (tmp_path / "crash").write_text("")
    done = hook(tmp_path, MMSCOPE_MEMORY=str(tmp_path / "crash"))
    assert done.returncode == 0 and ": nothing is read\n" in done.stdout
    assert not (tmp_path / "asked").exists()


def test_a_disk_that_cannot_be_written_leaves_the_lines(tmp_path: Path) -> None:
    (tmp_path / "crash").write_text("")  # a disk that is full: tests/lab/crash_kernel.py
    done = hook(tmp_path, MMSCOPE_MEMORY=str(tmp_path / "memory"))
    assert done.returncode == 0 and "is told, and gone with this kernel" in done.stdout
    assert "cause    a test of first" in done.stdout and "bundles in" not in done.stdout
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


@pytest.mark.parametrize(("backend", "kept"), [("(null)", False), ("efi_pstore", True)])
def test_pstore_without_a_place_for_lines_has_them_in_the_log(
    tmp_path: Path, backend: str, kept: bool
) -> None:
    (tmp_path / "backend").write_text(f"{backend}\n")
    log = tmp_path / "kmsg"
    log.touch()
    hook(tmp_path, MMSCOPE_BACKEND=str(tmp_path / "backend"), MMSCOPE_KMSG=str(log),
         MMSCOPE_PMSG="/none")  # fmt: skip
    # Each is written by itself, as the device takes a record; a file keeps the last.
    assert log.read_text() == ("<5>mmscope: cause    a test of all\n" if kept else "")


def test_without_mmscope_it_ends_well(tmp_path: Path) -> None:
    done = hook(tmp_path, MMSCOPE=str(tmp_path / "no-such-command"), MMSCOPE_ROOT="/none")
    assert done.returncode == 0 and not (tmp_path / "crash").exists()
    assert "no-such-command is not here, nor in /none, nor in " in done.stdout


def elsewhere(folder: Path, root: Path, ends: int = 0, **more: Any) -> tuple[str, list[str]]:
    """What a hook without mmscope says, and does to get to that of another root."""
    programs = folder / "programs"
    for path in (
        root / "usr/libexec/mmscope/crash-kernel",
        *(programs / name for name in ("mount", "umount", "chroot")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {folder}/asked\nexit {ends}\n')
        path.chmod(0o755)
    # Nothing else is surely in an initramfs of dracut's; chroot is what kdump.conf is told of.
    (programs / "mkdir").symlink_to("/bin/mkdir")
    done = hook(folder, MMSCOPE=str(folder / "no-such-command"), PATH=str(programs), **more)
    # kdump_pre that ends with anything else reboots without a dump.
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize("words", [[], ["0"], ["1"]])
@pytest.mark.parametrize("ends", [0, 1])
def test_as_kdump_post_of_rhel_it_is_that_of_the_mounted_root(
    tmp_path: Path, words: list[str], ends: int
) -> None:
    """do_kdump_post() of kdump-utils (dracut/99kdumpbase/kdump.sh) has the dump's exit status."""
    root = tmp_path / "sysroot"
    said, asked = elsewhere(tmp_path, root, ends, words=words, MMSCOPE_ROOT=str(root))
    assert asked == [
        *(f"mount --bind /{place} {root}/{place}" for place in ("proc", "sys", "dev")),
        f"chroot {root} /usr/libexec/mmscope/crash-kernel /var/crash 150",
        *(f"umount {root}/{place}" for place in ("proc", "sys", "dev")),
    ]
    assert ("exit status 1" in said) == bool(ends)


def test_without_a_python_it_is_that_of_the_runtime(tmp_path: Path) -> None:
    root, crash = tmp_path / "runtime", tmp_path / "crash"
    _, asked = elsewhere(tmp_path, root, MMSCOPE_ROOT="/none", MMSCOPE_RUNTIME=str(root))
    assert asked[3:5] == [
        f"mount --bind {crash} {root}{crash}",
        f"chroot {root} /usr/libexec/mmscope/crash-kernel {crash} {SECONDS}",
    ]
    assert asked[-1] == f"umount {root}{crash}" and (root / str(crash)[1:]).is_dir()
