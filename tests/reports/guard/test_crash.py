# SPDX-License-Identifier: LGPL-2.1-or-later
"""After a crash: which dumps ``mmscope guard crash`` takes, what it waits for, what it says."""

import gzip
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import pytest
from command_line import ROOT, run
from watched_host import wait_for

from mmscope.reports.guard import captures, dumps

FLAT = struct.pack(">16sqq", b"makedumpfile", 1, 1).ljust(4096, b"\0")
NOT_A_DUMP = FLAT + struct.pack(">qq", 0, 10) + b"not a dump" + struct.pack(">qq", -1, -1)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder as kdump-tools makes it, with what it leaves beside a dump."""
    before = os.umask(0o022)  # that of root
    folder = tmp_path / "crash" / "202611230300"
    folder.mkdir(parents=True)
    for other in ("dmesg.202611230300", "vmcore-dmesg.txt", "kexec_cmd"):
        (folder / other).write_text("")
    yield folder
    os.umask(before)


def words(place: Path, *more: str) -> list[str]:
    output = place.parents[1] / "captures"
    return ["guard", "crash", str(place.parent), "-o", str(output), "--settled", "0", *more]


def crash(place: Path) -> Any:
    return run(*words(place))


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


def test_others_are_given_paths_that_hold_wherever_they_are(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "dump.202611230300").write_bytes(b"not a dump")
    monkeypatch.chdir(tmp_path)
    tell = f"sh -c 'printenv MMSCOPE_CAPTURE MMSCOPE_ALERT >> {tmp_path}/told'"
    run("guard", "crash", "crash", "-o", "captures", "--settled", "0", "--exec", tell)
    ((path, _),) = found(place)
    (alert,) = json.loads((path / "alert.json").read_text())
    assert alert["annotations"]["capture"] == str(path)
    assert {*(tmp_path / "told").read_text().split()} == {str(path), f"{path}/alert.json"}


def test_one_whose_capture_made_room_for_another_is_not_read_again(place: Path) -> None:
    dump = place / "dump.202611230300"
    dump.write_bytes(b"not a dump")
    assert crash(place).returncode == 1
    ((path, _),) = found(place)
    shutil.rmtree(path)
    assert (crash(place).stderr, found(place)) == ("", [])
    dump.write_bytes(b"another dump")
    assert crash(place).returncode == 1 and len(found(place)) == 1


@pytest.mark.parametrize(
    "core", [5, None, [], {}, {"path": 5}, {"path": "\0"}, {"path": "x" * 5000}], ids=str
)
def test_what_is_kept_of_dumps_may_be_damaged(place: Path, core: object) -> None:
    (place / "dump.202611230300").write_bytes(b"not a dump")
    crash(place)
    ((path, said),) = found(place)
    captures.write_incident(path, said | {"core": core})
    captures.write(path.parent / ".dumps.json", json.dumps([5, {"name": "x", "core": core}]))
    again = crash(place)
    assert again.returncode == 1 and "could not be read" in again.stderr, again.stderr
    assert len(found(place)) == 2


def test_one_whose_reading_was_cut_short_is_tried_once_more(place: Path) -> None:
    (place / "dump.202611230300").write_bytes(b"not a dump")
    assert crash(place).returncode == 1
    for number in (1, 2):
        for path, said in found(place):
            assert said["boot"]
            captures.write_incident(path, said | {"state": captures.CUT})
        # What kept it from being read is still so: a timer may look as often as it likes.
        assert crash(place).returncode == 0 and len(found(place)) == number
        for path, said in found(place):
            captures.write_incident(path, said | {"state": captures.CUT, "boot": "another"})
        assert crash(place).returncode == (1 if number == 1 else 0)
    assert len(found(place)) == 2


def test_whoever_names_it_has_it_tried_again(place: Path) -> None:
    dump = place / "dump.202611230300"
    dump.write_bytes(FLAT)
    for number in range(1, 4):
        done = run("guard", "crash", dump, *words(place)[3:])
        assert done.returncode == 1 and len(found(place)) == number


def test_a_flattened_dump_is_rebuilt_and_nothing_of_that_is_left(place: Path) -> None:
    """As kdump-tools of Debian writes every dump."""
    (place / "dump.202611230300").write_bytes(NOT_A_DUMP)
    assert crash(place).returncode == 1
    ((path, _),) = found(place)
    log = (path / "log.txt").read_text()
    assert "was in makedumpfile's flattened format; rebuilt" in log
    # Of the file that was rebuilt, under the name that the dump has.
    assert "dump.202611230300: not a vmcore" in log
    left = sorted(one.name for one in path.iterdir())
    assert left == ["alert.json", "event.json", "incident.json", "log.txt"]


def test_one_that_cannot_be_rebuilt_now_may_be_at_the_next_boot(place: Path) -> None:
    (place / "dump.202611230300").write_bytes(FLAT)
    for _ in range(2):
        done = crash(place)
        assert done.returncode == 1
        assert done.stderr == (
            f"mmscope: {place}/dump.202611230300: is a flattened dump that is cut short at its "
            f"very beginning; to try once more: mmscope guard crash {place}/dump.202611230300\n"
        )
        for path, said in found(place):
            captures.write_incident(path, said | {"boot": "another"})
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


def test_one_that_is_written_to_during_the_look_is_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = place / "dump-incomplete"
    writing.write_bytes(NOT_A_DUMP)
    os.utime(place, (1, 1))
    look = dumps._trusted

    def slow(paths: list[Path]) -> Iterator[dumps.Seen]:
        time.sleep(0.1)
        os.utime(writing)
        yield from look(paths)

    monkeypatch.setattr(dumps, "_trusted", slow)
    assert dumps.coming([place.parent], settled=20) == writing


def test_a_dump_that_kdump_gave_up_is_said_and_left_alone(place: Path) -> None:
    left = place / "vmcore.flat-incomplete"
    left.write_bytes(NOT_A_DUMP)
    ago = time.time() - 3600
    os.utime(left, (ago, ago))
    done = run(*words(place, "--settled", "1"))
    assert done.returncode == 0 and found(place) == []
    assert f"{left}: kdump did not finish it; left alone" in done.stderr
    # Nor is it said whenever a timer has it looked for.
    again = run(*words(place, "--settled", "1"))
    assert (again.returncode, again.stderr) == (0, "")


def test_one_that_is_unpacked_where_it_lies_is_found(place: Path) -> None:
    packed = place / "dump.202611230300.gz"
    packed.write_bytes(gzip.compress(NOT_A_DUMP))
    assert crash(place).returncode == 1
    packed.with_suffix("").write_bytes(NOT_A_DUMP)
    done = crash(place)
    assert done.returncode == 1 and "dump.202611230300: could not be read" in done.stderr
    assert [said["core"]["path"] for _, said in found(place)].count(str(packed)) == 1
    assert len(found(place)) == 2 and crash(place).stderr == ""


# Whose dumps root reads: /var/crash of Ubuntu is for everybody to write to.


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda dump: dump.chmod(0o666), "may be written to by others"),
        (lambda dump: dump.parent.chmod(0o775), "its folder may be written to by others"),
        (lambda dump: dump.parents[1].chmod(0o777), "its folder may be written to by others"),
        (lambda dump: dump.symlink_to(dump.rename(dump.with_name("x"))), "is a symbolic link"),
    ],
)
def test_one_that_others_may_have_made_is_said_and_left_alone(
    place: Path, change: Callable[[Path], object], why: str
) -> None:
    dump = place / "dump.202611230300"
    dump.write_bytes(b"not a dump")
    change(dump)
    done = crash(place)
    assert (done.returncode, done.stdout, found(place)) == (0, "", [])
    assert done.stderr == f"mmscope: {dump}: {why}; left alone unless it is named\n"
    assert crash(place).stderr == ""  # once
    # Who names it wants it read.
    named = run("guard", "crash", dump, *words(place)[3:])
    assert named.returncode == 1 and len(found(place)) == 1


def test_one_behind_a_linked_folder_is_left_alone(place: Path) -> None:
    (place / "vmcore").write_bytes(b"not a dump")
    place.rename(place.parents[1] / "elsewhere")
    place.symlink_to(place.parents[1] / "elsewhere")
    assert (
        crash(place).stderr
        == f"mmscope: {place}: is a symbolic link; left alone unless it is named\n"
    )
    assert found(place) == []


def test_in_a_sticky_folder_that_is_for_all_a_folder_of_ones_own_counts(place: Path) -> None:
    place.parent.chmod(0o3777)  # as apport makes it
    (place / "dump.202611230300").write_bytes(b"not a dump")
    # A hard link, which anybody can make there, would look like this.
    (place.parent / "vmcore").write_bytes(b"not a dump")
    done = crash(place)
    why = "its folder may be written to by others; left alone unless it is named"
    assert f"mmscope: {place.parent}/vmcore: {why}\n" in done.stderr
    ((_, said),) = found(place)
    assert said["core"]["path"] == str(place / "dump.202611230300")


@pytest.fixture
def of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests owns their files; here that is neither root nor the one who runs."""
    monkeypatch.setattr(dumps, "_trusted_uids", lambda: {4242})


@pytest.mark.usefixtures("of_another")
@pytest.mark.parametrize("mode", [0o755, 0o3777])
def test_one_of_another_user_is_neither_read_nor_waited_for(place: Path, mode: int) -> None:
    place.parent.chmod(mode)
    for name in ("dump.202611230300", "dump-incomplete"):
        (place / name).write_bytes(NOT_A_DUMP)
    assert dumps.dumps([place.parent]) == dumps.unfinished([place.parent], 0) == []
    assert dumps.coming([place.parent], settled=3600) is None
    (line,) = dumps.foreign([place.parent])
    whose = f"its folder belongs to user {os.getuid()}; left alone unless it is named"
    assert line == f"{place}/dump.202611230300: {whose}"


def test_what_is_no_plain_file_is_not_opened(place: Path) -> None:
    """Whoever opens a pipe waits for who writes to it."""
    os.mkfifo(place / "vmcore")
    assert dumps.dumps([place.parent]) == dumps.foreign([place.parent]) == []


def test_many_that_are_left_alone_are_few_lines(place: Path) -> None:
    for number in range(30):
        (place / f"dump.{number}").symlink_to("/dev/null")
    lines = crash(place).stderr.splitlines()
    assert len(lines) == 11 and lines[-1] == "mmscope: and 20 more are left alone"


def test_where_no_dumps_can_be_is_said(tmp_path: Path) -> None:
    done = run("guard", "crash", tmp_path / "none", "-o", tmp_path / "captures")
    assert done.returncode == 2 and "no such file or folder" in done.stderr
