# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's log as text: /dev/kmsg, dmesg in its forms, and copied trees.

Reads of /dev/kmsg are written after ``info_print_ext_header()`` and ``msg_print_ext_body()``
(kernel/printk/printk.c); that a running kernel's are read is in the lab.
"""

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.log.kernel_log import MOST_ROWS, facilities_apart, kernel_log, times_apart
from mmscope.drgn.reading.printk_ring import ID_MASK, _text
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text import kernel_log as reader
from mmscope.drgn.text.kernel_log import (
    Log,
    LogRecord,
    caller_name,
    gather,
    parse_dmesg,
    parse_kmsg,
    read_kmsg,
)
from mmscope.reports.collect.run_section import run_section


def record(sequence: int | None, text: str = "x") -> LogRecord:
    return LogRecord(sequence, 0, 6, 0, "T1", False, text)


class TestKmsg:
    def test_a_record_with_its_caller_and_its_device(self) -> None:
        read = b"30,339,5140900,c,caller=C1;a\\x09b \\xc3\\xa9 \\x5cx41 \\xff\n SUBSYSTEM=pci\n"
        assert parse_kmsg(read) == LogRecord(
            339, 5_140_900_000, 6, 3, "C1", True, "a\tb é \\x41 \\xff"
        )

    def test_a_record_of_a_kernel_without_callers(self) -> None:
        read = b"6,0,0,-;Linux version 6.1.0 (x; y)\n"
        assert parse_kmsg(read) == LogRecord(0, 0, 6, 0, None, False, "Linux version 6.1.0 (x; y)")

    def test_what_is_missing_between_is_lost(self) -> None:
        log = gather([b"6,7,0,-;a\n", b"6,10,0,-;b\n", b"nonsense", b"6,11,0,-;c\n"])
        assert [each.sequence for each in log.records] == [7, 10, 11]
        assert (log.overwritten, log.lost) == (7, 3)

    def test_what_is_no_device_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "kmsg").write_text("6,0,0,-;x\n")
        with pytest.raises(OSError, match="is not the kernel's log"):
            read_kmsg(tmp_path / "kmsg")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "kmsg")
        with pytest.raises(OSError, match="is not the kernel's log"):
            read_kmsg(tmp_path / "kmsg")

    @given(st.binary(max_size=300))
    def test_any_bytes(self, read: bytes) -> None:
        found = parse_kmsg(read)
        assert found is None or found.sequence is not None


class TestDmesg:
    @pytest.mark.parametrize(
        ("line", "seconds", "level", "facility", "caller"),
        [
            ("[    1.500000] x y", 1.5, None, None, None),
            ("<3>[   12.000001] x y", 12.000001, 3, 0, None),
            ("<14>[   12.000001] x y", 12.000001, 6, 1, None),
            ("[    1.500000][    T1] x y", 1.5, None, None, "T1"),
            ("<6>[    1.500000][   C12] x y", 1.5, 6, 0, "C12"),
            ("kern  :warn  : [    1.500000] x y", 1.5, 4, 0, None),
            ("[Sun Nov 22 10:24:00 2026] x y", None, None, None, None),
            ("Nov 22 10:24:00 host kernel: [    1.500000] x y", 1.5, None, None, None),
            ("Nov 22 10:24:00 host kernel: x y", None, None, None, None),
            ("x y", None, None, None, None),
        ],
    )
    def test_forms_of_a_line(
        self,
        line: str,
        seconds: float | None,
        level: int | None,
        facility: int | None,
        caller: str | None,
    ) -> None:
        (found,) = parse_dmesg(f"{line}\n").records
        at = None if seconds is None else round(seconds * 10**9)
        date = "11-22 10:24:00" if "Nov" in line else None
        date = f"2026-{date}" if "2026" in line else date
        assert found == LogRecord(None, at, level, facility, caller, None, "x y", date)

    def test_a_line_without_a_prefix_belongs_to_the_record_before(self) -> None:
        text = "[    1.000000] active_anon:1\n               active_file:2\nend\n[    2.000000] x\n"
        assert [each.text for each in parse_dmesg(text).records] == [
            "active_anon:1\nactive_file:2\nend", "x",
        ]  # fmt: skip

    def test_without_prefixes_every_line_is_a_record(self) -> None:
        assert [each.text for each in parse_dmesg("a\n b\n\nc").records] == ["a", " b", "", "c"]

    def test_nothing_is_no_log(self) -> None:
        with pytest.raises(ValueError, match="is empty"):
            parse_dmesg("\n")

    @given(st.text(max_size=300))
    def test_any_text(self, text: str) -> None:
        try:
            records = parse_dmesg(text).records
        except ValueError as error:
            assert not text.strip() or "no line is the kernel's" in str(error)
            return
        assert 1 <= len(records) <= text.count("\n") + 1


class TestLength:
    def test_the_last_records_of_a_long_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "MOST_RECORDS", 2)
        log = parse_dmesg("[    1.000000] a\n[    2.000000] b\n[    3.000000] c\n")
        assert ([each.text for each in log.records], log.left_out) == (["b", "c"], 1)
        assert [(row.number, row.text) for row in kernel_log(log)] == [(1, "b"), (2, "c")]

    def test_the_table_has_the_last_rows_and_says_what_it_lacks(self, tmp_path: Path) -> None:
        lines = (f"[{number:5d}.000000] x\n" for number in range(MOST_ROWS + 3))
        (tmp_path / "dmesg").write_text("".join(lines))
        (tmp_path / "proc").mkdir()
        section, found = run_section(SECTIONS["kernel_log"], Files(tmp_path))
        rows = found.by_name["kernel_log"]
        assert (len(rows), rows[0].number, rows[-1].seconds) == (MOST_ROWS, 3, MOST_ROWS + 2.0)
        assert "3 older records" in (section.message or "")

    def test_what_was_overwritten_and_what_is_lost_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = Files(Path("/nowhere"))
        files.kept["kernel_log"] = Log([record(7), record(9)], overwritten=7, lost=1)
        section, _ = run_section(SECTIONS["kernel_log"], files)
        assert section.status == "partial"
        assert "lost or damaged: 1 record" in (section.message or "")
        assert "it begins 7 records after the boot" in (section.message or "")


def test_a_tree_without_a_log_says_where_it_was_looked_for(tmp_path: Path) -> None:
    section, _ = run_section(SECTIONS["oom_kills"], Files(tmp_path))
    assert section.status == "absent"
    assert "sos_commands/*/dmesg" in (section.message or "")


class TestRing:
    """Data blocks of a ring of 64 bytes (``get_data()``): made here, as a kernel places them."""

    SIZE = 64

    def block(self, at: int, number: int, text: bytes) -> bytes:
        data = bytearray(self.SIZE)
        data[at : at + 8] = number.to_bytes(8, "little")
        data[at + 8 : at + 8 + len(text)] = text
        return bytes(data)

    def test_a_block_in_the_middle(self) -> None:
        assert _text(self.block(16, 5, b"hello"), 16, 32, 5, 5) == b"hello"

    def test_a_block_that_ends_where_the_ring_does(self) -> None:
        assert _text(self.block(48, 5, b"hello"), 48, 64, 5, 5) == b"hello"

    def test_a_block_that_wraps_lies_at_the_beginning(self) -> None:
        assert _text(self.block(0, 5, b"hello"), 48, 64 + 16, 5, 5) == b"hello"

    def test_a_block_where_positions_overflow(self) -> None:
        first = (1 << 64) - 64
        assert _text(self.block(0, ID_MASK, b"hello"), first, first + 16, ID_MASK, 5) == b"hello"
        assert _text(self.block(0, 5, b"hello"), (1 << 64) - 16, 16, 5, 5) == b"hello"

    def test_an_empty_line_has_no_block(self) -> None:
        assert _text(bytes(64), 3, 3, 5, 0) == b""

    def test_a_longer_text_than_its_block_is_lost(self) -> None:
        assert _text(self.block(16, 5, b"hello wo"), 16, 32, 5, 8) == b"hello wo"
        assert _text(self.block(16, 5, b"hello wo"), 16, 32, 5, 9) is None

    def test_a_text_of_a_much_larger_block_is_lost(self) -> None:
        assert _text(self.block(16, 5, b"hello"), 16, 48, 5, 5) == b"hello"
        assert _text(self.block(16, 5, b"hello"), 16, 56, 5, 5) is None

    @pytest.mark.parametrize(
        ("begin", "end"), [(1, 1), (16, 16), (32, 16), (16, 200), (17, 32), (0, 16)]
    )
    def test_what_is_not_its_own_is_lost(self, begin: int, end: int) -> None:
        assert _text(self.block(16, 5, b"hello"), begin, end, 5, 5) is None

    def test_a_block_of_another_record_is_lost(self) -> None:
        assert _text(self.block(16, 6, b"hello"), 16, 32, 5, 5) is None

    @given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, 65535))
    def test_any_positions(self, begin: int, end: int, length: int) -> None:
        text = _text(bytes(64), begin, end, 0, length)
        assert text is None or len(text) <= 64


def test_callers_are_tasks_and_cpus() -> None:
    assert (caller_name(12), caller_name(1 << 31 | 3)) == ("T12", "C3")


def at(seconds: float) -> LogRecord:
    return LogRecord(None, int(seconds * 10**9), 6, 0, None, False, "x")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([0, 0, 1, 2, 1.1, 3], []),  # clocks of two CPUs
        ([0, 1, 18446744073, 2, 3], ["times of 1 record run backwards, or are damaged"]),
        ([500, 501, 0, 502], ["times of 1 record run backwards, or are damaged"]),
        ([0, 40, 41, 20, 21, 42], ["times of 2 records run backwards, or are damaged"]),
    ],
)
def test_times_that_run_backwards_are_said(times: list[float], said: list[str]) -> None:
    assert times_apart(Log([at(seconds) for seconds in times])) == said


@pytest.mark.parametrize(("caller", "wrong"), [("T1", 1), ("T0", 0), ("C1", 0), (None, 0)])
def test_a_time_of_zero_behind_others_is_of_a_cpu_that_starts(
    caller: str | None, wrong: int
) -> None:
    """In its idle task, in which its clock begins."""
    zero = dataclasses.replace(at(0), caller=caller)
    said = times_apart(Log([zero, zero, at(0.4), zero, at(0.5)]))
    assert said == ["times of 1 record run backwards, or are damaged"] * wrong


@pytest.mark.parametrize(
    ("facility", "said"), [(0, []), (23, []), (24, ["1 record of a facility that there is not"])]
)
def test_a_facility_that_syslog_has_not_is_named(facility: int, said: list[str]) -> None:
    record = dataclasses.replace(at(1), facility=facility)
    assert facilities_apart(Log([at(0), record])) == said
