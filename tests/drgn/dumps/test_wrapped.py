# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps in makedumpfile's flattened format, rebuilt: held against makedumpfile -R where it can."""

import os
import random
import struct
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import children
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.dumps import wrapped
from mmscope.drgn.dumps.wrapped import FlattenedError, rebuild

END = struct.pack(">qq", -1, -1)


def header(kind: int = 1, version: int = 1) -> bytes:
    return struct.pack(">16sqq", b"makedumpfile", kind, version).ljust(4096, b"\0")


def record(offset: int, data: bytes) -> bytes:
    return struct.pack(">qq", offset, len(data)) + data


def flattened(
    folder: Path, records: Iterable[tuple[int, bytes]], end: bytes = END, head: bytes = header()
) -> Path:
    path = folder / "flat"
    path.write_bytes(head + b"".join(record(*one) for one in records) + end)
    return path


def refusal(source: Path, target: Path, seconds: float = 60) -> str:
    with pytest.raises(FlattenedError) as caught:
        rebuild(source, target, seconds)
    assert not target.exists(), "what is of no use is not left behind"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def of_makedumpfile(source: Path, target: Path) -> bytes:
    with source.open("rb") as file:
        children.run(["makedumpfile", "-R", target], stdin=file, capture_output=True, check=True)
    return target.read_bytes()


RECORDS = [
    pytest.param([(0, b"KDUMP   ".ljust(4096, b"h")), (8192, b"d" * 5000)], id="with-a-hole"),
    pytest.param([(9000, b"later"), (0, b"first"), (3, b"over")], id="in-any-order-overlapping"),
    pytest.param([(0, bytes(1 << 20)), (0, b"x" * 17), ((1 << 20) - 1, b"yy")], id="written-again"),
    pytest.param(
        [(n * 65_521, random.Random(n).randbytes(65_536)) for n in range(40)], id="in-many-pieces"
    ),
]


@pytest.mark.parametrize("records", RECORDS)
def test_it_is_rebuilt_as_makedumpfile_does(
    tmp_path: Path, records: list[tuple[int, bytes]]
) -> None:
    source = flattened(tmp_path, records)
    assert rebuild(source, tmp_path / "own") is None
    assert (tmp_path / "own").read_bytes() == of_makedumpfile(source, tmp_path / "theirs")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600


def test_what_comes_behind_the_end_is_of_no_concern(tmp_path: Path) -> None:
    source = flattened(tmp_path, [(0, b"data")], END + b"rest")
    assert rebuild(source, tmp_path / "own") is None
    assert (tmp_path / "own").read_bytes() == b"data"


def test_one_that_was_cut_short_anywhere_has_what_lies_before(tmp_path: Path) -> None:
    source, own = flattened(tmp_path, [(0, b"a" * 100), (100, b"b" * 100)]), tmp_path / "own"
    whole = source.read_bytes()
    for size in (0, 31, 4095, *range(4096, len(whole))):
        source.write_bytes(whole[:size])
        if size <= 4096 + 16:
            refusal(source, own)
            continue
        said = rebuild(source, own)
        assert said and f"is cut short at byte {size:,} of {size:,}" in said
        body = size - 4096 - 16
        expected = b"a" * min(body, 100) + b"b" * max(min(body - 116, 100), 0)
        assert own.read_bytes() == expected
        own.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        bytes(4096),  # blocks that never came to the disk
        struct.pack(">qq", -2, 10),
        struct.pack(">qq", -1, 10),
        struct.pack(">qq", 10, -1),
        struct.pack(">qq", 10, 0),
        struct.pack(">qq", 1 << 60, 10) + b"x" * 10,
        struct.pack(">qq", (1 << 63) - 1, (1 << 63) - 1),
    ],
)
def test_behind_a_record_that_cannot_be_nothing_is_believed(tmp_path: Path, damage: bytes) -> None:
    source = flattened(tmp_path, [(0, b"good")], damage + END)
    said = rebuild(source, tmp_path / "own")
    assert said and "is damaged at byte 4,116" in said
    assert (tmp_path / "own").read_bytes() == b"good"
    source.write_bytes(header() + damage + END)
    refusal(source, tmp_path / "first")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"", "is not in makedumpfile's flattened format"),
        (b"KDUMP   ".ljust(4096, b"\0"), "is not in makedumpfile's flattened format"),
        (header(kind=2), "of type 2, version 1"),
        (header(version=-7), "of type 1, version -7"),
    ],
)
def test_what_is_no_flattened_dump_is_not_written(tmp_path: Path, head: bytes, words: str) -> None:
    assert words in refusal(flattened(tmp_path, [(0, b"data")], head=head), tmp_path / "own")


def test_one_without_data_is_none(tmp_path: Path) -> None:
    assert "without any data" in refusal(flattened(tmp_path, []), tmp_path / "own")


def test_a_length_that_the_file_does_not_have_takes_no_memory_and_no_disk(tmp_path: Path) -> None:
    source = flattened(tmp_path, [(0, b"good")], struct.pack(">qq", 4096, 1 << 34) + b"more")
    os.truncate(source, 1 << 20)
    said = rebuild(source, tmp_path / "own")
    assert said and f"is cut short at byte {1 << 20:,}" in said
    assert (tmp_path / "own").stat().st_size <= 1 << 20


def test_memory_is_that_of_a_piece_whatever_a_record_has(tmp_path: Path) -> None:
    source = flattened(tmp_path, [], struct.pack(">qq", 0, 64 << 20))
    with source.open("r+b") as file:
        file.truncate(4096 + 16 + (64 << 20))
        file.seek(0, os.SEEK_END)
        file.write(END)
    tracemalloc.start()
    try:
        assert rebuild(source, tmp_path / "own") is None
        assert tracemalloc.get_traced_memory()[1] < 4 * wrapped.PIECE
    finally:
        tracemalloc.stop()
    assert (tmp_path / "own").stat().st_size == 64 << 20


def test_bytes_scattered_over_blocks_do_not_fill_the_disk(tmp_path: Path) -> None:
    """Seventeen bytes of the dump for 4096 of the disk."""
    records = [(number << 16, b"x") for number in range(20_000)]
    assert "is scattered as makedumpfile leaves none" in refusal(
        flattened(tmp_path, records), tmp_path / "own"
    )


def test_room_is_asked_for_first(tmp_path: Path, small_disk: Path) -> None:
    said = refusal(flattened(tmp_path, [(0, b"x" * 40_000)]), small_disk / "own")
    assert "to rebuild it takes 64 MiB, but " in said and " 0 MiB free" in said


def test_a_disk_that_others_fill_meanwhile_is_said(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapped, "_check_room", lambda size, folder: None)
    said = refusal(flattened(tmp_path, [(0, b"x" * 400_000)]), small_disk / "own")
    assert "cannot be rebuilt" in said


def test_time_is_bounded(tmp_path: Path) -> None:
    assert "takes too long: 0 of 0 MiB" in refusal(
        flattened(tmp_path, [(0, b"data")]), tmp_path / "own", seconds=-1
    )


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("of somebody")
    with pytest.raises(FlattenedError, match="File exists"):
        rebuild(flattened(tmp_path, [(0, b"data")]), tmp_path / "own")
    assert (tmp_path / "own").read_text() == "of somebody"


@given(st.binary(max_size=200), st.binary(max_size=64))
def test_whatever_the_records_are_it_ends_in_a_line_or_a_file(
    tmp_path: Path, body: bytes, tail: bytes
) -> None:
    source, own = tmp_path / "flat", tmp_path / "own"
    own.unlink(missing_ok=True)
    source.write_bytes(header() + record(0, body or b"x") + tail)
    said = rebuild(source, own)
    assert own.read_bytes()[: len(body)] == body or said is None
    assert said is None or "\n" not in said
