# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Killed at any step, out of disk, or where nothing may be written: what is there afterwards is whole,
or as it was, or absent; never half.
"""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import children
import pytest
from command_line import ROOT, run

from mmscope.reports.bundle.bundle import Bundle

TESTS = ROOT / "tests"
DATA = TESTS / "data" / "7.2"
PERF = TESTS / "corpus" / "perf" / "clock"
# Each table takes the same steps: a few of them are enough.
COLLECT = ["collect", "--proc-root", str(DATA), "--only", "zones,free_lists,vm_counters"]


LOOKED_AT: dict[frozenset[tuple[str, bytes]], dict[str, bytes]] = {}


def tables(path: Path) -> dict[str, bytes]:
    """What a bundle says, without when and how fast; it must be whole."""
    files = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    # Most are as they were, byte by byte.
    key = frozenset(files.items())
    if key not in LOOKED_AT:
        LOOKED_AT[key] = _tables(path, files)
    return LOOKED_AT[key]


def _tables(path: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    bundle = Bundle(path)
    for table in bundle.tables:
        list(bundle.rows(table))
    for name in bundle.folded:
        list(bundle.stacks(name))
    listed = {item.path.name for item in (*bundle.tables.values(), *bundle.folded.values())}
    assert files.keys() == {*listed, "datapackage.json"}
    timed = ("sections.csv", "datapackage.json", "profiles.csv")
    return {name: files[name] for name in listed if name not in timed}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle in it, and the inputs of the commands."""
    folder = tmp_path_factory.mktemp("collected")
    assert run(*COLLECT, "-o", folder / "b").returncode in (0, 1)
    (folder / "perf").write_bytes(PERF.read_bytes()[1:])
    stacks = folder / "debug" / "page_owner_stacks"
    stacks.mkdir(parents=True)
    (stacks / "show_stacks").write_bytes((TESTS / "corpus/counts/stacks").read_bytes())
    return folder


# What is run in a copy of that folder, and the name that it writes.
ADDED = ["record", "exit-path", "--input", "{}/perf", "-o", "{}/b"]
COMMANDS: dict[str, tuple[list[str], str]] = {
    "collect": ([*COLLECT, "-o", "{}/new"], "new"),
    "collect --force": (
        ["collect", "--proc-root", str(DATA), "--only", "zones", "--force", "-o", "{}/b"], "b",
    ),
    "record, into a bundle": (ADDED, "b"),
    "record": ([*ADDED[:-1], "{}/new"], "new"),
    "page-owner": (["page-owner", "{}/debug/page_owner_stacks/show_stacks", "-o", "{}/new"], "new"),
    "watch": (
        ["watch", "--interval", "0.001", "--count", "2", "--debugfs", "{}/debug", "-o", "{}/new"],
        "new",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_before_any_step_a_bundle_is_whole_or_as_it_was(
    collected: Path, tmp_path: Path, name: str
) -> None:
    words, output = COMMANDS[name]
    before = tables(collected / "b")
    done = children.run(
        [sys.executable, TESTS / "support/killed.py", tmp_path, collected, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    steps = [tmp_path / line for line in done.stdout.split()]
    assert len(steps) > 5
    whole = tables(steps[-1] / output)
    seen = set()
    for place in steps:
        # Under its name is what was there, or what is to be there; nothing else looks like one.
        state = "absent"
        if os.path.lexists(place / output):
            found = tables(place / output)
            if name == "watch":  # whose samples are of its own moments
                found = whole if found.keys() == whole.keys() else found
            assert found in ((whole, before) if output == "b" else (whole,))
            state = "new" if found == whole else "old"
        seen.add(state)
        assert state != "absent" or output != "b", "a bundle that was there is gone"
        assert tables(place / "b") == before or output == "b"
    assert seen == ({"old", "new"} if output == "b" else {"absent", "new"})
    assert not list(steps[-1].glob(".*")), "nothing is left behind where nothing was killed"
    # The next one is not disturbed by what is left, and clears it up.
    worst = max(steps, key=lambda place: len(list(place.rglob("*"))))
    left = [path for path in (steps[-2], worst) if list(path.glob(".*.partial"))]
    for place in left:
        again = run(*COLLECT, "--force", "-o", place / output)
        assert again.returncode in (0, 1), again.stderr
        assert not list(place.glob(".*"))


def test_killed_before_any_step_a_report_is_whole_or_as_it_was(
    collected: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template"
    shutil.copytree(collected, template)
    (template / "report.html").write_text("the report before")
    done = children.run(
        [
            *(sys.executable, TESTS / "support/killed.py", tmp_path / "runs", template),
            *("report", "{}/b", "-o", "{}/report.html"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    steps = [tmp_path / "runs" / line for line in done.stdout.split()]
    pages = [(place / "report.html").read_text() for place in steps]
    assert pages[0] == "the report before" and pages[-1].endswith("</html>\n")
    assert len(steps) > 2
    assert set(pages) == {"the report before", pages[-1]}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment(collected: Path, tmp_path: Path, name: str) -> None:
    """By the clock, which also hits the middle of a write."""
    dice = random.Random(name)
    words, output = COMMANDS[name]
    place = tmp_path / "place"
    shutil.copytree(collected, place)
    before = tables(place / "b")
    command = [word.replace("{}", str(place)) for word in words]
    process = children.start(
        [sys.executable, "-m", "mmscope", *command],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # Until it has begun to write, then some time more.
    while process.poll() is None and not list(place.glob(".*")):
        time.sleep(0.001)
    time.sleep(dice.random() * 0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if os.path.lexists(place / output):
        tables(place / output)
    found = tables(place / "b")
    assert output == "b" or found == before


# No room, no permission.


@pytest.fixture(params=["full disk", "read-only"])
def refusing(request: pytest.FixtureRequest, collected: Path, tmp_path: Path) -> Iterator[Path]:
    """A file system with the bundle and inputs on it that takes nothing more; needs root."""
    libc, folder = ctypes.CDLL(None, use_errno=True), tmp_path / "disk"
    folder.mkdir()
    assert libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=1m") == 0, "needs root"
    try:
        shutil.copytree(collected, folder, dirs_exist_ok=True)
        if request.param == "full disk":
            room = os.statvfs(folder)
            with (folder / "ballast").open("wb") as file:
                file.write(bytes((room.f_bavail - 3) * room.f_bsize))
        else:
            remount_read_only = 32 | 1
            assert libc.mount(b"none", bytes(folder), b"tmpfs", remount_read_only, None) == 0
        yield folder
    finally:
        libc.umount2(bytes(folder), 2)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_written_is_one_line_and_changes_nothing(refusing: Path, name: str) -> None:
    words, output = COMMANDS[name]
    before = tables(refusing / "b")
    there = {path.name for path in refusing.iterdir()}
    done = run(*(word.replace("{}", str(refusing)) for word in words))
    assert done.returncode in (2, 3), (done.stdout, done.stderr)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("mmscope: ") and str(refusing / output) in last
    assert "No space left" in last or "Read-only file system" in last
    assert "Traceback" not in done.stderr
    assert tables(refusing / "b") == before
    # What watch has sampled is kept, and it says how to make a bundle of it.
    left = {path.name for path in refusing.iterdir()} - there
    assert left <= {"new.samples"} and (not left or name == "watch")


def test_a_report_that_cannot_be_written_is_one_line(refusing: Path) -> None:
    there = {path.name for path in refusing.iterdir()}
    done = run("report", refusing / "b", "-o", refusing / "report.html")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and str(refusing / "report.html") in done.stderr
    assert {path.name for path in refusing.iterdir()} == there
