# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The hook for the crash kernel, with commands in mmscope's place that do as they are bidden.

Over a real dump: ``tests/lab/test_kdump.py``.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.commands.command import build_parser

HOOK = ROOT / "deploy/crash-kernel/crash-kernel"
# Says what it was asked for, makes what a bundle has, or ends as it is told.
STAND_IN = """#!/bin/sh
echo "$@" >> {folder}/asked
for last; do :; done
[ "$1" = why ] && {{ echo "cause    a test"; exit 0; }}
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
        [HOOK, *([f"{folder}/crash", "30"] if words is None else words)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MMSCOPE": str(stand_in),
             "MMSCOPE_CORE": f"{folder}/{core}", **more},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def made(folder: Path) -> set[str]:
    (case,) = (folder / "crash").iterdir()
    return {path.name for path in case.iterdir()} - {"first.log", "all.log", "why.log"}


def test_what_tells_most_comes_first_and_why_is_on_the_console(tmp_path: Path) -> None:
    done = hook(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert made(tmp_path) == {"first", "all", "why.txt"} and "cause    a test" in done.stdout
    first, everything, why = (tmp_path / "asked").read_text().splitlines()
    assert "--only kernel_log,oom_kills," in first and "--deadline 10 " in first
    assert "--only" not in everything and "--deadline 20 " in everything
    assert why.endswith("/all")
    for line in (first, everything, why):
        args = build_parser([line.split()[0]]).parse_args(line.split())
        assert set(getattr(args, "only", ())) <= SECTIONS.keys()


@pytest.mark.parametrize(("dies", "left"), [("all", "first"), ("first", "all")])
def test_what_is_killed_leaves_the_other_and_ends_well(
    tmp_path: Path, dies: str, left: str
) -> None:
    done = hook(tmp_path, dies)
    assert done.returncode == 0 and made(tmp_path) == {left, "why.txt"}
    assert f"mmscope: {dies}: no bundle: exit status 137" in done.stdout
    assert (tmp_path / "asked").read_text().splitlines()[-1].endswith(f"/{left}")


def test_where_it_cannot_work_it_ends_well(tmp_path: Path) -> None:
    done = hook(tmp_path, core="none")
    assert done.returncode == 0 and "none is not there: this is no crash kernel" in done.stdout
    (tmp_path / "crash").write_text("")
    done = hook(tmp_path)
    assert done.returncode == 0 and "cannot be made; nothing is read" in done.stdout
    assert not (tmp_path / "asked").exists()


def test_without_mmscope_it_ends_well(tmp_path: Path) -> None:
    done = hook(tmp_path, MMSCOPE=str(tmp_path / "no-such-command"), MMSCOPE_ROOT="/none")
    assert done.returncode == 0 and not (tmp_path / "crash").exists()
    assert "no-such-command is not here, nor in /none: nothing is read" in done.stdout


@pytest.mark.parametrize("words", [[], ["0"], ["1"]])
@pytest.mark.parametrize("ends", [0, 1])
def test_as_kdump_post_of_rhel_it_is_that_of_the_mounted_root(
    tmp_path: Path, words: list[str], ends: int
) -> None:
    """do_kdump_post() of kdump-utils (dracut/99kdumpbase/kdump.sh) has the dump's exit status."""
    root, programs = tmp_path / "sysroot", tmp_path / "programs"
    there = root / "usr/libexec/mmscope/crash-kernel"
    for path in (there, programs / "mount", programs / "umount", programs / "chroot"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {tmp_path}/asked\nexit {ends}\n')
        path.chmod(0o755)
    done = hook(
        tmp_path, words=words, MMSCOPE=str(tmp_path / "no-such-command"), MMSCOPE_ROOT=str(root),
        PATH=f"{programs}:/usr/bin:/bin",
    )  # fmt: skip
    # kdump_pre that ends with anything else reboots without a dump.
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"mount --bind /proc {root}/proc",
        f"mount --bind /dev {root}/dev",
        f"chroot {root} /usr/libexec/mmscope/crash-kernel /var/crash 90",
        f"umount {root}/dev {root}/proc",
    ]
    assert ("exit status 1" in done.stdout) == bool(ends)
