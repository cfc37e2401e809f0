# SPDX-License-Identifier: LGPL-2.1-or-later
"""After a crash: which dumps ``mmscope guard crash`` takes, what it waits for, what it says."""

import gzip
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import children
import pytest
from command_line import ROOT, run
from watched_host import wait_for

from mmscope.reports.guard import captures

FLAT = struct.pack(">16sqq", b"makedumpfile", 1, 1).ljust(4096, b"\0")
NOT_A_DUMP = FLAT + struct.pack(">qq", 0, 10) + b"not a dump" + struct.pack(">qq", -1, -1)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as kdump-tools makes it, with what it leaves beside a dump."""
    folder = tmp_path / "crash" / "202611230300"
    folder.mkdir(parents=True)
    for other in ("dmesg.202611230300", "vmcore-dmesg.txt", "kexec_cmd"):
        (folder / other).write_text("")
    return folder


def words(place: Path, *more: str) -> list[str]:
    output = place.parents[1] / "captures"
    return ["guard", "crash", str(place.parent), "-o", str(output), "--settled", "0", *more]


def crash(place: Path) -> Any:
    return run(*words(place), prefix=["env"])


def found(place: Path) -> list[tuple[Path, captures.Incident]]:
    return list(captures.captures(place.parents[1] / "captures"))


def test_a_dump_that_cannot_be_read_is_said_once(place: Path) -> None:
    (place / "dump.202611230300").write_bytes(b"not a dump")
    done = crash(place)
    assert done.returncode == 1 and "could not be read" in done.stderr
    ((path, said),) = found(place)
    assert said["state"] == "done" and said["source"] is None and said["core"]["bytes"] == 10
    assert "dump.202611230300" in (path / "log.txt").read_text()
    again = crash(place)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(found(place)) == 1


def test_one_whose_reading_was_cut_short_is_tried_once_more(place: Path) -> None:
    (place / "dump.202611230300").write_bytes(b"not a dump")
    assert crash(place).returncode == 1
    for number in (1, 2):
        for path, said in found(place):
            captures.write_incident(path, said | {"state": captures.CUT})
        assert crash(place).returncode == (1 if number == 1 else 0)
    assert len(found(place)) == 2


def test_a_flattened_dump_is_rebuilt_and_nothing_of_that_is_left(place: Path) -> None:
    """As kdump-tools of Debian writes every dump."""
    (place / "dump.202611230300").write_bytes(NOT_A_DUMP)
    assert crash(place).returncode == 1
    ((path, _),) = found(place)
    log = (path / "log.txt").read_text()
    assert "was in makedumpfile's flattened format; rebuilt" in log
    # Of the file that was rebuilt, under the name that the dump has.
    assert "dump.202611230300: not a vmcore" in log
    assert sorted(one.name for one in path.iterdir()) == ["alert.json", "incident.json", "log.txt"]


def test_one_that_cannot_be_rebuilt_now_may_be_at_the_next_boot(place: Path) -> None:
    (place / "dump.202611230300").write_bytes(FLAT)
    for _ in range(2):
        done = crash(place)
        assert done.returncode == 1
        assert done.stderr == (
            f"mmscope: {place}/dump.202611230300: is a flattened dump that is cut short "
            "at its very beginning\n"
        )
    assert crash(place).returncode == 0
    assert {said["state"] for _, said in found(place)} == {captures.CUT}
    assert "not read: is a flattened dump" in found(place)[0][1]["title"]


@pytest.mark.parametrize(
    ("name", "head", "command"),
    [
        ("dump.202611230300.gz", gzip.compress(b"x"), "gunzip -k"),
        ("dump.202611230300.lz4", b"\x04\x22\x4d\x18" + bytes(60), "lz4 -d"),
        ("dump.202611230300.xz", b"\xfd7zXZ\0" + bytes(60), "xz -dk"),
        ("dump.202611230300.bz2", b"BZh91AY" + bytes(60), "bunzip2 -k"),
        ("vmcore.zst", b"\x28\xb5\x2f\xfd" + bytes(60), "zstd -d"),
    ],
)
def test_one_that_is_compressed_is_a_line_that_says_what_to_do(
    place: Path, name: str, head: bytes, command: str
) -> None:
    """As KDUMP_COMPRESSION of kdump-tools does."""
    (place / name).write_bytes(head)
    done = crash(place)
    assert (done.returncode, done.stdout) == (1, "")
    line = f"{place / name}: is compressed; unpack it first: {command} {place / name}"
    assert done.stderr == f"mmscope: {line}\n"
    ((path, said),) = found(place)
    assert said["title"].endswith(f"not read: {line.partition(': ')[2]}")
    assert said["title"][:200] in (path.parent / "index.html").read_text().replace("&#39;", "'")
    assert crash(place).stderr == ""  # it is said once


def test_a_dump_that_is_being_written_is_waited_for(place: Path) -> None:
    writing = place / "dump-incomplete"
    writing.write_bytes(NOT_A_DUMP[:100])
    log = place.parents[1] / "log"
    with log.open("wb") as said:
        command = [sys.executable, "-m", "mmscope", *words(place, "--settled", "1")]
        process = children.start(command, cwd=ROOT, stdout=said, stderr=said)
        wait_for(lambda: "waiting until it is whole" in log.read_text())
        with writing.open("ab") as file:
            file.write(NOT_A_DUMP[100:])
        assert found(place) == [] and process.poll() is None
        writing.rename(place / "dump.202611230300")
        assert process.wait(120) == 1
    ((_, incident),) = found(place)
    assert incident["core"]["path"] == str(place / "dump.202611230300")
    assert incident["core"]["bytes"] == len(NOT_A_DUMP)


def test_a_dump_that_kdump_gave_up_is_said_and_left_alone(place: Path) -> None:
    left = place / "vmcore.flat-incomplete"
    left.write_bytes(NOT_A_DUMP)
    ago = time.time() - 3600
    os.utime(left, (ago, ago))
    done = run(*words(place, "--settled", "1"), prefix=["env"])
    assert done.returncode == 0 and found(place) == []
    assert f"{left}: kdump did not finish it; left alone" in done.stderr


def test_where_no_dumps_can_be_is_said(tmp_path: Path) -> None:
    done = run("guard", "crash", tmp_path / "none", "-o", tmp_path / "captures")
    assert done.returncode == 2 and "no such file or folder" in done.stderr
