# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How many pages each stack holds: ``/sys/kernel/debug/page_owner_stacks/show_*``, many times over.

Three files (``mm/page_owner.c``, read at 6.12, 7.2 and 7.3; :func:`text_source.recognise`):

``show_stacks`` (6.9)
    A stack and ``nr_base_pages: N``, a blank line (``stack_print()``).
``show_handles`` (6.19)
    ``handle: N`` and ``nr_base_pages: N``. The handle is printed as ``%d``.
``show_stacks_handles`` (6.19)
    A stack and ``handle: N``: what the handles mean.

The kernel's list of stacks only grows, at its head, and between two snapshots few counts change. So
a file is cut into blocks of some records, each is compared with the text that the file before had
in its place, and only what differs is read. The order is a guess and no more: blocks that are not
found are read, whatever the file before was.

Costs 1 to 4 µs a record of the first file; of the following ones a comparison of bytes, and some
20 µs a block that changed. Memory: the text of one file, and each distinct stack.

It cannot know: stacks below ``count_threshold``, and on 7.2 those whose first allocation could not
reclaim, which the kernel never lists.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mmscope.drgn.text.stack_text import is_stack, stack_id
from mmscope.drgn.text.text_source import Source, TextError

CHUNK_BYTES = 64 << 10
MAX_RECORD_BYTES = 1 << 20  # a stack has at most some 64 frames
MARK = b"?"
# The stack depot keeps at most 128 MiB of stacks by default, some 300 bytes each;
# as text they take several times that.
MAX_RECORDS, MAX_BYTES = 1_000_000, 512 << 20
NONE = "no kernel keeps so many"
# Few enough that a change costs little, enough that what stays the same costs little.
BLOCK_RECORDS = 16
# How many blocks further on to look for text that goes on as before.
LOOK_AHEAD = 4
NEAR_BYTES = 16 << 10
MAX_DIGITS = 10  # handles and counts are 32 bits
NUMBER = b"nr_base_pages: "
HANDLE = b"handle: "
HANDLE_SHAPE = b"handle: \nnr_base_pages: \n\n"
HANDLE_PAGES = rb"handle: (-?[0-9]{1,10})\nnr_base_pages: ([0-9]{1,10})\Z"


class Block:
    """
    Some records, one after the other.

    :ivar first: what the first begins with, without the number of pages, which is what changes.
    :ivar counted: (key, pages) of each.
    :ivar skipped: records that were not understood.
    """

    __slots__ = ("counted", "first", "skipped", "text")

    def __init__(
        self, text: bytes, first: bytes, counted: Sequence[tuple[int, int]], skipped: int
    ) -> None:
        self.text, self.first, self.counted, self.skipped = text, first, counted, skipped


class Counts:
    """
    The counts of a ``show_stacks`` or ``show_handles``, and then of the next one.

    :ivar pages: handle, or id of a stack (:func:`stack_text.stack_id`), to base pages.
    :ivar total: of all of them.
    :ivar changed: keys whose pages may differ from those of the file before.
    :ivar stacks: stack as printed to its id, of all files (``show_stacks``).
    :ivar skipped: records of this file, in all of its blocks, that were not understood.
    :ivar truncated: this file's last record was cut short.
    """

    def __init__(self, kind: str, stacks: dict[bytes, int] | None = None) -> None:
        """:param stacks: ids that are known already; those that are new are added."""
        self.stacks = {} if stacks is None else stacks
        self.pages: dict[int, int] = {}
        self.total = 0
        self.changed: set[int] = set()
        self.skipped, self.truncated = 0, False
        self._parse = _HandleParser() if kind == "show_handles" else _StackParser(self.stacks)
        self._blocks: list[Block] = []
        self._times: dict[int, int] = {}  # how often a key is listed, where more than once

    def read(self, source: Source) -> None:
        """
        Read a file; what it has in common with the one before is compared, not read.

        :raises text_source.TextError: it cannot be decompressed.
        """
        gone: list[Block] = []
        new: list[Block] = []
        here = 0  # the first block of the file before that is not passed yet
        expected = self._blocks
        blocks: list[Block] = []
        records, rest = 0, b""
        for chunk in itertools.chain(_bounded(source), (None,)):
            data = rest + chunk if chunk else rest
            starts_with = data.startswith
            end, position = data.rfind(b"\n\n") + 2, 0
            if end == 1:
                end, rest = 0, _begun(data)
            while position < end:
                first = here
                for block in itertools.islice(expected, first, None):
                    if not starts_with(block.text, position):
                        break
                    position += len(block.text)
                    here += 1
                blocks += expected[first:here]
                if position == end or (
                    # The rest of it is in the next chunk.
                    chunk and here < len(expected) and end - position < len(expected[here].text)
                ):
                    break
                stop, after = _resume(data, position, end, expected, here)
                gone += expected[here:after]
                here = after
                read = self._parse.blocks(data[position:stop])
                records += sum(len(block.counted) for block in read)
                if records > MAX_RECORDS:
                    raise TextError(f"{source.name}: has more than {MAX_RECORDS:,} stacks: {NONE}")
                new += read
                blocks += read
                position = stop
            rest = data[position:] if end else rest
        self.truncated = bool(rest)
        gone += expected[here:]
        self._blocks = blocks
        self.skipped += sum(block.skipped for block in new) - sum(block.skipped for block in gone)
        self._count(gone, new)

    def _count(self, gone: Iterable[Block], new: Iterable[Block]) -> None:
        """Take away the counts of some blocks, and add those of others."""
        pages, times, changed = self.pages, self._times, set[int]()
        added = [count for block in new for count in block.counted]
        taken = [count for block in gone for count in block.counted]
        # Of a block that changed, most records did not. (Where one is there twice, count.)
        before, now = set(taken), set(added)
        if len(before) == len(taken) and len(now) == len(added):
            added = [count for count in added if count not in before]
            taken = [count for count in taken if count not in now]
        self.total += sum([number for _, number in added]) - sum([number for _, number in taken])
        # First what is new, so that a key in both is never out of the way.
        for key, number in added:
            if key in pages:
                times[key] = times.get(key, 1) + 1
                pages[key] += number
            else:
                pages[key] = number
            changed.add(key)
        for key, number in taken:
            if key in times:
                pages[key] -= number
                times[key] -= 1
                if times[key] == 1:
                    del times[key]
            else:
                del pages[key]
            changed.add(key)
        self.changed = changed


def _resume(
    data: bytes, position: int, end: int, expected: Sequence[Block], here: int
) -> tuple[int, int]:
    """Where, behind a difference, the text goes on as before: (position, block)."""
    first = here
    if here < len(expected) and data.startswith(expected[here].first, position):
        first += 1  # this one is where it was, with another number
    # Near by first: to search all of the text takes longer than to read a block.
    for limit in (min(position + NEAR_BYTES, end), end):
        for ahead in range(first, min(first + LOOK_AHEAD, len(expected))):
            found = data.find(b"\n\n" + expected[ahead].first, position, limit)
            if found >= 0:
                return found + 2, ahead
    return end, len(expected)


class _HandleParser:
    """Reads records of ``show_handles``."""

    def blocks(self, text: bytes) -> list[Block]:
        """Text of whole records, as blocks."""
        # As the kernel prints it, whatever the digits are: no other blanks or forms of numbers, of
        # which int() takes more.
        shape, words = text.translate(None, b"0123456789"), text.split()
        if (
            shape == HANDLE_SHAPE * (len(words) // 4)
            and set(words[::4]) == {b"handle:"}
            and set(words[2::4]) == {b"nr_base_pages:"}
        ):
            try:
                handles, pages = list(map(int, words[1::4])), list(map(int, words[3::4]))
            except ValueError:  # thousands of digits
                return _each(text, self._record)
            if max(handles) < 1 << 32 and max(pages) < 1 << 32:
                counted = list(zip(handles, pages, strict=True))
                if len(counted) <= BLOCK_RECORDS:
                    return [Block(text, text[: text.index(NUMBER)], counted, 0)]
                return _blocks(text, text[:-2].split(b"\n\n"), counted)
        return _each(text, self._record)

    @staticmethod
    def _record(record: bytes) -> tuple[int, int] | None:
        match = re.match(HANDLE_PAGES, record.strip(b"\n"))
        # Printed as %d, though a depot_stack_handle_t is unsigned.
        return (int(match[1]) & 0xFFFFFFFF, int(match[2])) if match else None


class _StackParser:
    """Reads records of ``show_stacks``."""

    def __init__(self, ids: dict[bytes, int]) -> None:
        self._ids = ids

    def blocks(self, text: bytes) -> list[Block]:
        """Text of whole records, as blocks."""
        return _each(text, self._record)

    def _record(self, record: bytes) -> tuple[int, int] | None:
        # One blank line more than the kernel prints is nobody's.
        stack, _, number = record.strip(b"\n").rpartition(NUMBER)
        if not number.isdigit() or len(number) > MAX_DIGITS:
            return None
        key = self._ids.get(stack)
        if key is None:
            if not is_stack(stack):
                return None
            key = self._ids[stack] = stack_id(stack)
        return key, int(number)


def _each(text: bytes, read: Any) -> list[Block]:
    """Read record by record, where one may be damaged."""
    records = text[:-2].split(b"\n\n")
    return _blocks(text, records, list(map(read, records)))


def _blocks(
    text: bytes, records: Sequence[bytes], counted: Sequence[tuple[int, int] | None]
) -> list[Block]:
    """Cut text into blocks."""
    blocks: list[Block] = []
    position = 0
    for begin in range(0, len(records), BLOCK_RECORDS):
        part = records[begin : begin + BLOCK_RECORDS]
        understood = [count for count in counted[begin : begin + BLOCK_RECORDS] if count]
        size = sum(map(len, part)) + 2 * len(part)
        first, _, _ = part[0].rpartition(NUMBER)
        blocks.append(
            Block(
                text[position : position + size],
                first or part[0],
                understood,
                sum(1 for record in part if record.strip(b"\n")) - len(understood)
                if len(understood) < len(part)
                else 0,
            )
        )
        position += size
    return blocks


def read_show_stacks_handles(source: Source) -> tuple[dict[int, bytes], int, bool]:
    """
    What handles mean, of ``show_stacks_handles``: (stack as printed by handle, records that were
    not understood, whether the last one was cut short).

    :raises text_source.TextError: it cannot be decompressed.
    """
    stacks: dict[int, bytes] = {}
    seen: set[bytes] = set()
    skipped, rest = 0, b""
    for chunk in _bounded(source):
        data = rest + chunk
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            rest = _begun(data)
            continue
        data, rest = data[:end], data[end:]
        records = data[:-2].split(b"\n\n")
        sound = _are_stacks(data, len(records), seen)
        for record in records:
            stack, _, handle = record.rpartition(HANDLE)
            digits = handle.removeprefix(b"-")
            if (
                digits.isdigit()
                and len(digits) <= MAX_DIGITS
                and stack
                and (sound or is_stack(stack))
            ):
                stacks[int(handle) & 0xFFFFFFFF] = stack
            else:
                skipped += 1
        if len(stacks) > MAX_RECORDS:
            raise TextError(f"{source.name}: has more than {MAX_RECORDS:,} stacks: {NONE}")
    return stacks, skipped, bool(rest)


def _begun(record: bytes) -> bytes:
    """
    What is kept of a record that has not ended yet.

    No record is longer than :data:`MAX_RECORD_BYTES`: of one that is, a mark with which none
    begins, so that it is skipped once it ends, and what may be the first half of its blank line.
    """
    too_long = len(record) > MAX_RECORD_BYTES or record.startswith(MARK)
    return MARK + record[-1:] if too_long else record


def _bounded(source: Source) -> Iterator[bytes]:
    """
    The pieces of a file, which is not endless.

    :raises TextError: it is.
    """
    too_large = TextError(f"{source.name}: has more than {MAX_BYTES >> 20} MiB: {NONE}")
    # One that is compressed or a pipe has not the size of its text.
    if source.plain and source.size > MAX_BYTES:
        raise too_large
    size = 0
    for chunk in source.chunks(CHUNK_BYTES):  # those of debugfs have no size
        if (size := size + len(chunk)) > MAX_BYTES:
            raise too_large
        yield chunk


def _are_stacks(text: bytes, records: int, seen: set[bytes]) -> bool:
    """
    Whether all lines are those of stacks, and one a record begins with ``handle: ``.

    :param seen: lines of stacks met before. Few of all lines are distinct, and those are looked at
        once, all together.
    """
    new = set(text.split(b"\n")) - seen
    frames = {line for line in new if line and not line.startswith(HANDLE)}
    if frames and not is_stack(b"\n".join(frames) + b"\n"):
        return False
    seen |= frames
    return text.startswith(HANDLE) + text.count(b"\n" + HANDLE) == records
