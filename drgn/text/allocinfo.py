# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/proc/allocinfo: what each line of the kernel's source has allocated and not freed.

As text (``allocinfo_show()``, mm/alloc_tag.c; lib/alloc_tag.c up to 7.2) it has a line for every
tag, some 5,000 for a small kernel. Since 7.3 the open file also answers ioctls
(include/uapi/linux/alloc_tag.h, ``allocinfo_ioctl()``), by which the kernel leaves out what holds
less than is asked for. Whether it answers is seen by asking.

By ioctl the kernel adds up the counters of every tag, as for the text, but prints none.

Cannot know: by ioctl, the begin of a name of more than 63 characters; of a line with several tags,
as in a header, those that hold less than is asked for.

Imports neither drgn nor numpy: a sample of a watch must cost less than what it measures.
"""

import errno
import fcntl
import os
import re
import struct
from collections import Counter

from mmscope.drgn.text.kernel_text import signed, whole_lines
from mmscope.drgn.text.plain_file import open_plain, read_plain

ALLOCINFO = "/proc/allocinfo"
# alloc_tag_to_text() and codetag_to_text(); " accurate:no" since version 2.0 of the text.
LINE = re.compile(
    r" *(-?[0-9]{1,20}) +([0-9]{1,20}) "
    r"(\S.{0,300}?):([0-9]{1,10})(?: \[([^][]{1,300})\])? func:(\S.{0,300}?)( accurate:no)? ?",
    re.ASCII,
)
HEADER = re.compile(r"allocinfo - version: [12]\.[0-9]{1,3}\n", re.ASCII)

MOST_TAGS = 1 << 20
# struct allocinfo_tag_data: module, function, file, line, bytes, calls, whether these are accurate.
_TAG = struct.Struct("=64s64s64sQQQB7x")
# struct allocinfo_get_at: a position, the filter's mask, names and line, sizes from and to, whether
# inaccurate; then the answer.
_GET_AT = struct.Struct(f"=QQ200xQQQ{_TAG.size}x")
_ID = struct.Struct("=Q")
_MIN_SIZE = 1 << 5  # ALLOCINFO_FILTER_MASK_MIN_SIZE
# asm-generic/ioctl.h. powerpc has its own numbers: there the text is read.
_READ, _WRITE, _TYPE = 2 << 30, 1 << 30, 0xA6 << 8
CONTENT_ID = _READ | _ID.size << 16 | _TYPE | 0
GET_AT = _READ | _WRITE | _GET_AT.size << 16 | _TYPE | 1
GET_NEXT = _READ | _TAG.size << 16 | _TYPE | 2
# As a kernel answers that has no such ioctl, or not with this filter.
NOT_ANSWERED = (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP)
ATTEMPTS = 3  # while modules come and go

# File:line (function [module]) to bytes.
Held = Counter[str]


def lines_holding(path: str, least: int) -> Held:
    """
    The lines of source with tags that hold so many bytes or more each, by ioctl, or by the text.

    :param path: the file: a running kernel's, or a copy of its text.
    :raises OSError: it cannot be read.
    :raises ValueError: it is damaged, or cut; or modules came and went all the time.
    """
    by_ioctl = held_by_ioctl(path, least)
    if by_ioctl is not None:
        return by_ioctl
    return held_by_text(read_plain(path).decode("utf-8", "backslashreplace"), least)


def held_by_ioctl(path: str, least: int) -> Held | None:
    """
    The same by ioctl; None if the kernel does not answer so.

    :raises OSError: the file cannot be opened, or the kernel answers with another error.
    :raises ValueError: modules came and went all the time.
    """
    file = open_plain(path)
    try:
        for _ in range(ATTEMPTS):
            before = _content_id(file)
            held = _asked(file, least)
            if _content_id(file) == before:
                return held
    except OSError as error:
        if error.errno in NOT_ANSWERED:
            return None
        raise
    finally:
        os.close(file)
    raise ValueError(f"modules came and went while {ALLOCINFO} was read")


def _content_id(file: int) -> int:
    """Changes when a module comes or goes (``codetag_get_content_id()``, lib/codetag.c)."""
    answer = bytearray(_ID.size)
    fcntl.ioctl(file, CONTENT_ID, answer)
    return int(_ID.unpack(answer)[0])


def _asked(file: int, least: int) -> Held:
    held: Held = Counter()
    first = bytearray(_GET_AT.pack(0, _MIN_SIZE, least, 0, 0))
    answer = bytearray(_TAG.size)
    try:
        fcntl.ioctl(file, GET_AT, first)
        answer = first[-_TAG.size :]
        for _ in range(MOST_TAGS):
            module, function, source, line, size, _, _ = _TAG.unpack(answer)
            # What CPUs that were read later freed may leave less than zero.
            if signed(size) >= least:
                held[called(*map(_text, (source, str(line), function, module)))] += size
            fcntl.ioctl(file, GET_NEXT, answer)
    except OSError as error:
        if error.errno != errno.ENOENT:  # there are no more
            raise
    return held


def _text(name: bytes | str) -> str:
    if isinstance(name, str):
        return name
    return name.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def called(file: str, line: str, function: str, module: str = "") -> str:
    """A line of source, in words."""
    return f"{file}:{line} ({function}{f' [{module}]' if module else ''})"


def held_by_text(text: str, least: int) -> Held:
    """
    The same from the text.

    :raises ValueError: it is damaged, or cut.
    """
    held: Held = Counter()
    if not HEADER.match(text):
        raise ValueError(f"{ALLOCINFO} is not whole: its first line is not there")
    for row in whole_lines(text, ALLOCINFO):
        size = row[:12].lstrip().partition(" ")[0]
        if size.isdecimal() and int(size) < least:
            continue  # most of them, at the price of a glance
        if row.startswith(("#", "allocinfo")):
            continue
        if not (match := LINE.fullmatch(row)):
            raise ValueError(f"{ALLOCINFO} is damaged: {row[:80]!r}")
        number, _, file, line, module, function, _ = match.groups()
        if int(number) >= least:
            held[called(file, line, function, module or "")] += int(number)
    return held
