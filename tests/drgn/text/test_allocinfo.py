# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Lines of source that hold memory, by ioctl and by text. What a kernel answers by ioctl is made here,
as allocinfo_ioctl() does (mm/alloc_tag.c, 7.3); tests/lab/test_handover.py asks a real one.
"""

import errno
import fcntl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmscope.drgn.text import allocinfo
from mmscope.drgn.text.allocinfo import held_by_ioctl, held_by_text, lines_holding

MIB = 1 << 20
# (file, line, function, module, bytes)
TAGS = [
    ("mm/slub.c", 10, "alloc_slab_page", "", 300 * MIB),
    ("init/main.c", 20, "f", "", 5),
    ("drivers/net/x.c", 30, "take", "x", 40 * MIB),
    ("include/linux/y.h", 40, "inlined", "", 8 * MIB),
    ("include/linux/y.h", 40, "inlined", "", 9 * MIB),
    ("fs/z.c", 50, "freed_elsewhere", "", -4096),
]
TEXT = "allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n" + "".join(
    f"{size:12} {1:8} {file}:{line} {f'[{module}] ' if module else ''}func:{function} \n"
    for file, line, function, module, size in TAGS
)
HELD = {
    "mm/slub.c:10 (alloc_slab_page)": 300 * MIB,
    "drivers/net/x.c:30 (take [x])": 40 * MIB,
    "include/linux/y.h:40 (inlined)": 17 * MIB,
}


class Kernel:
    """Answers the ioctls of /proc/allocinfo."""

    def __init__(self, tags: list[tuple[str, int, str, str, int]]) -> None:
        self.tags, self.at, self.least = tags, 0, 0
        self.content_id: Callable[[], int] = lambda: 7

    def ioctl(self, file: int, request: int, argument: bytearray) -> int:
        direction, size, kind, number = (
            request >> 30, request >> 16 & 0x3FFF, request >> 8 & 0xFF, request & 0xFF
        )  # fmt: skip
        assert kind == 0xA6 and size == len(argument)
        if number == 0:
            assert (direction, size) == (2, 8)
            argument[:] = struct.pack("=Q", self.content_id())
            return 0
        if number == 1:
            assert (direction, size) == (3, 464)
            position, mask = struct.unpack_from("=QQ", argument)
            (self.least,) = struct.unpack_from("=Q", argument, 216)
            assert (position, mask) == (0, 1 << 5) and not any(argument[16:216])
            self.at = 0
        else:
            assert (number, direction, size) == (2, 2, 224)
        for file_name, line, function, module, held in self.tags[self.at :]:
            self.at += 1
            if held & (1 << 64) - 1 >= self.least:  # which they are compared as
                names = (name.encode()[-63:] for name in (module, function, file_name))
                argument[-224:] = struct.pack(
                    "=64s64s64sQQQB7x", *names, line, held & (1 << 64) - 1, 1, 1
                )
                return 0
        raise OSError(errno.ENOENT, "no more")


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "allocinfo").write_text(TEXT)
    return str(tmp_path / "allocinfo")


def test_the_text_is_read_where_the_file_does_not_answer(file: str) -> None:
    assert held_by_ioctl(file, MIB) is None
    assert lines_holding(file, MIB) == HELD
    assert len(held_by_text(TEXT, 0)) == 4  # and none that is below zero


def test_the_kernel_is_asked_where_it_answers(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", Kernel(TAGS).ioctl)
    monkeypatch.setattr(allocinfo, "read_plain", None)
    assert lines_holding(file, MIB) == HELD
    monkeypatch.setattr(fcntl, "ioctl", Kernel([]).ioctl)
    assert lines_holding(file, MIB) == {}


def test_of_a_long_name_the_kernel_gives_the_end(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "drivers/" + "d/" * 40 + "x.c"
    monkeypatch.setattr(fcntl, "ioctl", Kernel([(long, 1, "f", "", MIB)]).ioctl)
    assert list(held_by_ioctl(file, MIB) or ()) == [f"{long[-63:]}:1 (f)"]


@pytest.mark.parametrize("number", [errno.ENOTTY, errno.EINVAL])
def test_a_kernel_that_does_not_know_what_is_asked_is_read_by_its_text(
    file: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Kernel(TAGS)

    def ioctl(of: int, request: int, argument: bytearray) -> int:
        if request & 0xFF == 1:
            raise OSError(number, "")
        return asked.ioctl(of, request, argument)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert lines_holding(file, MIB) == HELD


def test_what_was_read_while_a_module_came_is_read_again(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = Kernel(TAGS), iter([1, 2, 3, 3])
    asked.content_id = lambda: next(answers)
    monkeypatch.setattr(fcntl, "ioctl", asked.ioctl)
    assert held_by_ioctl(file, MIB) == HELD
    endless = iter(range(99))
    asked.content_id = lambda: next(endless)
    with pytest.raises(ValueError, match="modules came and went"):
        held_by_ioctl(file, MIB)


def test_another_error_is_an_error(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ioctl(*_: Any) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(OSError, match="broken"):
        lines_holding(file, MIB)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT[:-1], "cut short"),
        (TEXT.split("\n", 1)[1], "first line is not there"),
        (TEXT.replace("func:take", "take"), "damaged: '    41943040"),
        ("", "first line is not there"),
    ],
)
def test_a_text_that_is_not_whole_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        held_by_text(text, MIB)
