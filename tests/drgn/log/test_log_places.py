# SPDX-License-Identifier: LGPL-2.1-or-later
"""Logs wherever a tree keeps them: all are read, and what two of them have is there once."""

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.log import log_places
from mmscope.drgn.log.log_places import join, log_of_tree
from mmscope.drgn.sections import files as files_module
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.kernel_log import LogRecord
from mmscope.reports.collect.run_section import run_section


def lines(first: int, end: int) -> list[str]:
    """Some lines, every third of them one that comes again and again."""
    return [
        "Call Trace:" if i % 3 == 0 else f"record number {i} of a kernel" for i in range(first, end)
    ]


def ring(first: int, end: int) -> str:
    stamped = zip(range(first, end), lines(first, end), strict=True)
    return "".join(f"[{i:5}.000001] {line}\n" for i, line in stamped)


def syslog(first: int, end: int) -> str:
    return "".join(f"Nov 28 00:00:01 host kernel: {line}\n" for line in lines(first, end))


def texts(root: Path) -> list[str]:
    return [record.text for record in log_of_tree(Files(root))[0].records]


def put(root: Path, place: str, content: str | bytes) -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize(
    "place",
    [
        *("dmesg", "vmcore-dmesg.txt", "sos_commands/kernel/dmesg", "sos_commands/kernel/dmesg_-T"),
        *("sos_commands/general/dmesg", "sos_commands/logs/journalctl_--no-pager_--boot"),
        *("var/log/dmesg", "var/log/dmesg.0", "var/log/messages", "var/log/syslog.1"),
        *("var/log/kern.log", "var/log/kern.log.4", "var/log/messages-20261101"),
        *("var/crash/127.0.0.1-2026-11-28-00:00:00/vmcore-dmesg.txt", "journalctl.txt"),
    ],
)
def test_a_log_is_found_where_others_put_it(tmp_path: Path, place: str) -> None:
    put(tmp_path, place, ring(0, 5))
    (_, found) = run_section(SECTIONS["kernel_log"], Files(tmp_path))
    assert [row.text for row in found.by_name["kernel_log"]] == lines(0, 5)


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)]
)
def test_a_packed_one_is_read(tmp_path: Path, ending: str, pack: object) -> None:
    put(tmp_path, f"var/log/messages.2.{ending}", pack(syslog(0, 9).encode()))  # type: ignore[operator]
    assert texts(tmp_path) == lines(0, 9)


def test_all_are_joined_by_what_they_have_in_common(tmp_path: Path) -> None:
    put(tmp_path, "var/log/messages-20261101.gz", gzip.compress(syslog(0, 90).encode()))
    put(tmp_path, "var/log/messages", syslog(90, 290))
    put(tmp_path, "sos_commands/kernel/dmesg", ring(150, 300))
    log, said = log_of_tree(Files(tmp_path))
    assert [record.text for record in log.records] == lines(0, 300)
    # Of lines that both have, that with the time.
    timed = [record.nanoseconds for record in log.records if record.nanoseconds]
    assert len(timed) == 150
    assert "read from var/log/messages, which has the most" in said[0]


def test_what_is_rotated_is_older(tmp_path: Path) -> None:
    for place, (first, end) in {
        "var/log/syslog": (6, 9), "var/log/syslog.1": (3, 6), "var/log/syslog.2": (0, 3),
    }.items():  # fmt: skip
        put(tmp_path, place, syslog(first, end))
    assert texts(tmp_path) == lines(0, 9)


def test_archived_journals_are_older_by_the_time_in_their_names(tmp_path: Path) -> None:
    """No line is in two of them."""
    folder, series = "var/log/journal/1", ("a" * 32, "b" * 32)
    for name, (first, end) in {
        "system.journal": (9, 12),
        f"system@{series[0]}-00000000000003e8-0006100000000002.journal": (6, 9),
        "system@0006100000000001-0123456789abcdef.journal~": (3, 6),
        f"system@{series[1]}-0000000000000001-0006100000000000.journal": (0, 3),
    }.items():
        put(tmp_path, f"{folder}/{name}", syslog(first, end))
    assert texts(tmp_path) == lines(0, 12)


@pytest.mark.parametrize(
    "wrong", ["", "dmesg: read kernel buffer failed: Operation not permitted\n", "\n\n"]
)
def test_a_file_without_a_log_never_wins(tmp_path: Path, wrong: str) -> None:
    put(tmp_path, "dmesg", wrong)
    put(tmp_path, "sos_commands/kernel/dmesg", wrong)
    put(tmp_path, "var/log/kern.log", syslog(0, 5))
    section, found = run_section(SECTIONS["kernel_log"], Files(tmp_path))
    assert [row.text for row in found.by_name["kernel_log"]] == lines(0, 5)
    assert "read from var/log/kern.log" in (section.message or "")
    assert "dmesg: " in (section.message or "")


def test_a_damaged_one_costs_itself_alone(tmp_path: Path) -> None:
    put(tmp_path, "var/log/messages.1.gz", gzip.compress(b"x" * 9000)[:20])
    os.mkfifo(tmp_path / "var/log/messages.2")
    put(tmp_path, "var/log/messages", syslog(0, 5))
    log, said = log_of_tree(Files(tmp_path))
    assert [record.text for record in log.records] == lines(0, 5)
    assert any("messages.1.gz: is damaged" in words for words in said)
    assert any("messages.2: is not a plain file" in words for words in said)


def test_of_a_very_long_log_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "MOST_OF_LOG", 400)
    for place in ("var/log/messages", "dmesg"):
        put(tmp_path, place, ring(0, 500))
    put(tmp_path, "var/log/syslog.1.gz", gzip.compress(ring(0, 500).encode()))
    read = texts(tmp_path)
    assert read == lines(500 - len(read), 500)
    assert 5 < len(read) < 50


def test_no_log_says_what_was_there_instead(tmp_path: Path) -> None:
    put(tmp_path, "dmesg", "dmesg: Operation not permitted\n")
    with pytest.raises(Absent, match=r"no log of the kernel.*Operation not permitted"):
        log_of_tree(Files(tmp_path))


def made(words: list[str]) -> list[LogRecord]:
    return [LogRecord(None, None, None, None, None, None, text) for text in words]


@given(st.data())
def test_two_parts_of_one_log_make_it_again(data: st.DataObject) -> None:
    """However they overlap, if they do by a line that is there once."""
    count = data.draw(st.integers(20, 60))
    whole = data.draw(
        st.lists(st.sampled_from(["Call Trace:", "x"]), min_size=count, max_size=count)
    )
    at = data.draw(st.integers(5, count - 5))
    whole[at] = "the only line of its kind"
    begin, end = data.draw(st.integers(0, at)), data.draw(st.integers(at + 1, count))
    older, newer = made(whole[:end]), made(whole[begin:])
    assert [record.text for record in join(older, newer)] == whole
    assert [record.text for record in join(newer, older)] == whole


def test_a_line_is_not_looked_at_as_often_as_there_are_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 65):
        put(tmp_path, f"var/log/messages.{number}", syslog(640 - 10 * number, 650 - 10 * number))
    looked = []
    key = log_places._key
    monkeypatch.setattr(log_places, "_key", lambda record: looked.append(record) or key(record))
    assert texts(tmp_path) == lines(0, 640)
    assert len(looked) == 640 * 6  # log2(64)


def test_older_logs_are_left_out_where_newer_ones_have_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_places, "MOST_TOGETHER", 25)
    for number in range(1, 9):
        put(tmp_path, f"var/log/messages.{number}", syslog(80 - 10 * number, 90 - 10 * number))
    log, said = log_of_tree(Files(tmp_path))
    assert [record.text for record in log.records] == lines(50, 80)
    assert "not read: 5 older logs" in said
