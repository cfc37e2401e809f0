# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How many pages each stack holds: ``/sys/kernel/debug/page_owner_stacks/show_*``.

Three files (``mm/page_owner.c``, read at 6.12, 7.2 and 7.3; :func:`text_source.recognise`):

``show_stacks`` (6.9)
    A stack and ``nr_base_pages: N``, a blank line (``stack_print()``).
``show_handles`` (6.19)
    ``handle: N`` and ``nr_base_pages: N``. The handle is printed as ``%d``.
``show_stacks_handles`` (6.19)
    A stack and ``handle: N``: what the handles mean.

Costs 0.5 µs a record, and a hash of its stack where there is one. Memory: each distinct stack.

It cannot know: stacks below ``count_threshold``, and on 7.2 those whose first allocation could not
reclaim, which the kernel never lists.
"""

import re
from collections.abc import Callable, Iterator

from mmscope.drgn.text.stack_text import is_stack, stack_id
from mmscope.drgn.text.text_source import Source, TextError

CHUNK_BYTES = 64 << 10
MAX_RECORD_BYTES = 1 << 20  # a stack has at most some 64 frames
MARK = b"?"
# The stack depot keeps at most 128 MiB of stacks by default, some 300 bytes each;
# as text they take several times that.
MAX_RECORDS, MAX_BYTES = 1_000_000, 512 << 20
NONE = "no kernel keeps so many"
# Handles and counts are 32 bits.
MAX_DIGITS = 10
HANDLE_PAGES = re.compile(rb"handle: (-?[0-9]{1,10})\nnr_base_pages: ([0-9]{1,10})")

# A record's key and pages; None where it is not what the kernel prints.
Read = Callable[[bytes], tuple[int, int] | None]


class Counts:
    """
    The counts of a ``show_stacks`` or ``show_handles``, and then of the next one.

    :ivar pages: handle, or id of a stack (:func:`stack_text.stack_id`), to base pages.
    :ivar total: of all of them.
    :ivar changed: keys whose pages differ from those of the file before.
    :ivar stacks: stack as printed to its id, of all files (``show_stacks``).
    :ivar skipped: records of this file that were not understood.
    :ivar truncated: this file's last record was cut short.
    """

    def __init__(self, kind: str, stacks: dict[bytes, int] | None = None) -> None:
        """:param stacks: ids that are known already; those that are new are added."""
        self.stacks = {} if stacks is None else stacks
        self.pages: dict[int, int] = {}
        self.total = 0
        self.changed: set[int] = set()
        self.skipped, self.truncated = 0, False
        self._read: Read = _handle_pages if kind == "show_handles" else self._stack_pages

    def read(self, source: Source) -> None:
        """
        Read a file.

        :raises text_source.TextError: it cannot be decompressed.
        """
        before, self.pages = self.pages, {}
        self.skipped, self.truncated, records = 0, False, 0
        for record in _records(source):
            if record is None:
                self.truncated = True
            elif counted := self._read(record):
                key, pages = counted
                self.pages[key] = self.pages.get(key, 0) + pages
                records += 1
            else:
                self.skipped += 1
            if records > MAX_RECORDS:
                raise TextError(f"{source.name}: has more than {MAX_RECORDS:,} stacks: {NONE}")
        self.total = sum(self.pages.values())
        self.changed = {key for key, _ in self.pages.items() ^ before.items()}

    def _stack_pages(self, record: bytes) -> tuple[int, int] | None:
        """Of a record of ``show_stacks``."""
        stack, _, pages = record.rpartition(b"nr_base_pages: ")
        if not pages.isdigit() or len(pages) > MAX_DIGITS:
            return None
        key = self.stacks.get(stack)
        if key is None:
            if not is_stack(stack):
                return None
            key = self.stacks[stack] = stack_id(stack)
        return key, int(pages)


def _handle_pages(record: bytes) -> tuple[int, int] | None:
    """Of a record of ``show_handles``."""
    match = HANDLE_PAGES.fullmatch(record)
    # Printed as %d, though a depot_stack_handle_t is unsigned.
    return (int(match[1]) & 0xFFFFFFFF, int(match[2])) if match else None


def read_show_stacks_handles(source: Source) -> tuple[dict[int, bytes], int, bool]:
    """
    What handles mean, of ``show_stacks_handles``: (stack as printed by handle, records that were
    not understood, True if the last one was cut short).

    :raises text_source.TextError: it cannot be decompressed.
    """
    stacks: dict[int, bytes] = {}
    skipped, truncated = 0, False
    for record in _records(source):
        if record is None:
            truncated = True
            continue
        stack, _, handle = record.rpartition(b"handle: ")
        digits = handle.removeprefix(b"-")
        if digits.isdigit() and len(digits) <= MAX_DIGITS and is_stack(stack):
            stacks[int(handle) & 0xFFFFFFFF] = stack
        else:
            skipped += 1
        if len(stacks) > MAX_RECORDS:
            raise TextError(f"{source.name}: has more than {MAX_RECORDS:,} stacks: {NONE}")
    return stacks, skipped, truncated


def _records(source: Source) -> Iterator[bytes | None]:
    """
    What stands between blank lines; at last None where the file does not end with one.

    :raises TextError: the file is larger than any kernel's.
    """
    too_large = TextError(f"{source.name}: has more than {MAX_BYTES >> 20} MiB: {NONE}")
    # A compressed one or a pipe has not the size of its text, those of debugfs have none.
    if source.plain and source.size > MAX_BYTES:
        raise too_large
    rest, size = b"", 0
    for chunk in source.chunks(CHUNK_BYTES):
        if (size := size + len(chunk)) > MAX_BYTES:
            raise too_large
        *records, rest = (rest + chunk).split(b"\n\n")
        for record in records:
            if record := record.strip(b"\n"):
                yield record
        if len(rest) > MAX_RECORD_BYTES:  # with which no record begins; and half a blank line
            rest = MARK + rest[-1:]
    if rest:
        yield None
