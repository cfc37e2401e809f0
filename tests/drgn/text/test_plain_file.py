# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of strangers: plain ones, with lines and sizes that have a bound."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mmscope.drgn.text.plain_file import LineTooLong, open_lines, open_plain, read_plain


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)],
    ids=["pipe", "folder", "device"],
)  # fmt: skip
def test_what_is_no_plain_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    for read in (open_plain, read_plain, open_lines):
        with pytest.raises(OSError, match="is not a plain file") as error:
            read(tmp_path / "x")
        assert error.value.filename == str(tmp_path / "x")


@pytest.mark.parametrize("length", [70_000, 200_000])  # more than is read at once
@pytest.mark.parametrize("before", [0, 2, 65_530, 65_536, 300_000])
@pytest.mark.parametrize("end", [b"\n", b"\nx\n", b""])
def test_a_line_has_so_many_bytes_at_most(
    tmp_path: Path, length: int, before: int, end: bytes
) -> None:
    whole = b"a\n" * (before // 2) + b"y" * length + end
    (tmp_path / "x").write_bytes(whole)
    with open_lines(tmp_path / "x", most=length) as file:
        assert b"".join(file) == whole
    words = f"^line {before // 2 + 1:,} has more than {length - 1:,} bytes, which none has$"
    for wrapped in (False, True):
        with open_lines(tmp_path / "x", most=length - 1) as file:
            lines = io.TextIOWrapper(file) if wrapped else file
            with pytest.raises(LineTooLong, match=words):
                list(lines)


def test_lines_are_not_read_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\n")
    with open_lines(tmp_path / "x") as file, pytest.raises(io.UnsupportedOperation):
        file.read()


def test_a_file_that_is_read_whole_has_a_bound(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_plain(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="has more than 0 MiB") as error:
        read_plain(tmp_path / "x", 4)
    assert error.value.errno == errno.EFBIG
    assert b"MemTotal" in read_plain("/proc/meminfo")
    # That has no size: it is read to know.
    with pytest.raises(OSError, match="has more than 0 MiB"):
        read_plain("/proc/meminfo", 10)
