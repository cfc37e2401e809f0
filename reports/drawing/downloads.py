# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tables and stacks that a report shows in part, whole, in the report itself: as far as there is room.

A report has at most :data:`MAX_REPORT_BYTES`. What the page leaves of them is for downloads: packed
tables and folded stacks, as links with ``data:`` addresses, which need no script and no request.
The smallest come first, until :data:`MISSES` in a row found no room. In the place of the others the
page says their size, and which file of the bundle has it. Stacks, which the page itself draws, come
before tables, with the largest ones where all find no room.

While the page is made, every download is a mark that no text of a bundle can forge (control
characters are shown as words everywhere); when all of the page is known, :meth:`Downloads.fill`
puts links in. What was drawn and is not in the page takes no room.

Cannot know: how small something packs. So much of it is packed as there is room, and then dropped.
"""

import base64
import csv
import functools
import heapq
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from markupsafe import Markup, escape

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import csv_line
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import Table

MAX_REPORT_BYTES = 2_000_000
# Packing is what takes time, and what is larger still hardly fits.
MISSES = 3
# Of the room, for stacks that do not fit whole; and how often less of them are tried.
STACKS_SHARE, TRIES = 0.6, 5
# Fewer say little. At best, stacks pack to such a part of their size.
LEAST_STACKS, PACKS = 50, 12
# What a spreadsheet takes for the beginning of a formula (OWASP, CSV injection).
FORMULA = re.compile(r"[=+\-@\t\r]")
# The same anywhere in lines of CSV, except for numbers below zero.
SUSPECT = re.compile(rb"(?:\A|[,\n\r])\"?(?:[=+@\t\r]|-(?!\d+(?:\.\d+)?(?:e[+-]?\d+)?[,\n]))")
PIECE = 1 << 18
MARK = re.compile("\0([0-9]+)\0")


@dataclass(frozen=True, slots=True)
class Download:
    """
    Something to download.

    :ivar name: of the file that it becomes, unpacked.
    :ivar raw_bytes: its size, about.
    :ivar kept: the bundle's file that has all of it.
    :ivar read: gives it, in pieces.
    :ivar stacks: how many it has, and gives the largest of them, with the others as one.
    """

    name: str
    raw_bytes: int
    kept: str
    read: Callable[[], Iterable[bytes]]
    stacks: tuple[int, Callable[[int], Iterable[bytes]]] | None = None

    @property
    def file(self) -> str:
        """The name that a browser saves it under."""
        return _file(self.name)


class Downloads:
    """The downloads of one report."""

    def __init__(self) -> None:
        self.offered: list[Download] = []

    def offer(self, download: Download) -> Markup:
        """The place of a download in the page, after a colon: a link, or where else it is."""
        self.offered.append(download)
        return Markup(f"\0{len(self.offered) - 1}\0")

    def fill(self, html: str, most: int = MAX_REPORT_BYTES) -> str:
        """
        The page with its downloads.

        :param most: bytes that it may have; it has more only if it had them before.
        """
        words = {number: _without(self.offered[number]) for number in map(int, MARK.findall(html))}
        room = most - len(html.encode()) - sum(len(text.encode()) for text in words.values())
        smallest = sorted(words, key=lambda number: self.offered[number].raw_bytes)
        stacks = [number for number in smallest if self.offered[number].stacks]
        share = int(room * STACKS_SHARE)
        for place, number in enumerate(stacks):
            before = words[number]
            words[number] = _stacks_within(
                self.offered[number], before, share // (len(stacks) - place)
            )
            grown = len(words[number].encode()) - len(before.encode())
            room, share = room - grown, share - grown
        missed = 0
        for number in (number for number in smallest if number not in stacks):
            if missed == MISSES:
                break
            download, before = self.offered[number], words[number]
            packed = _packed(download.read(), _fits(room, before, _link(download.name, b"")))
            link = _link(download.name, packed)
            left = room + len(before.encode()) - len(link.encode())
            if packed and left >= 0:
                words[number], room, missed = link, left, 0
            else:
                missed += 1
        return MARK.sub(lambda mark: words[int(mark[1])], html)


def _fits(room: int, before: str, link: str) -> int:
    """Bytes that a packed download may have, beside the rest of its link."""
    return (room + len(before.encode()) - len(link.encode()) - 16) // 4 * 3


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _link(name: str, packed: bytes, also: str = "and in the bundle") -> str:
    text = base64.b64encode(packed).decode()
    return (
        f'<a class="download" href="data:application/gzip;base64,{text}" '
        f'download="{_file(name)}.gz">{_file(name)}</a> '
        f"(packed {display.size(len(packed))}, {also})"
    )


def _stacks_within(download: Download, said: str, share: int) -> str:
    """
    A link to stacks, all or as many as find room; what was said where hardly any do.

    :param share: bytes that it may have more than what was said.
    """
    assert download.stacks is not None
    count, largest = download.stacks
    if packed := _packed(download.read(), _fits(share, said, _link(download.name, b""))):
        return _link(download.name, packed)
    kept = f"<code>{escape(visible(download.kept))}</code>"

    def words(some: int) -> str:
        return f"the {some:,} largest of {count:,} stacks; all of them: {kept} in the bundle"

    fits = _fits(share, said, _link(download.name, b"", words(count)))
    some = min(count, count * fits * PACKS // max(download.raw_bytes, 1))
    for _ in range(TRIES):
        if some < LEAST_STACKS:
            break
        packed = b"".join(_gzip(largest(some)))
        if len(packed) <= fits:
            return _link(download.name, packed, words(some))
        some = int(some * fits / len(packed) * 0.95)
    return said


def _without(download: Download) -> str:
    return (
        f"<code>{escape(visible(download.kept))}</code> in the bundle "
        f"({display.size(download.raw_bytes)}, too much for this file, "
        f"which is to stay below {MAX_REPORT_BYTES // 1_000_000} MB)"
    )


def _packed(pieces: Iterable[bytes], room: int) -> bytes:
    """Gzip, the same bytes for the same content; nothing if it takes more room."""
    parts: list[bytes] = []
    size = 0
    for part in _gzip(pieces):
        parts.append(part)
        size += len(part)
        if size > room:
            return b""
    return b"".join(parts)


def _gzip(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def table(bundle: Bundle, table: Table) -> Download:
    """
    A table of a bundle as CSV, where no text begins like a formula: a quote stands before it.

    :raises BundleError: it cannot be read.
    """
    path = bundle.plain_path(table)
    names = [column.name for column in table.columns]
    texts = [number for number, column in enumerate(table.columns) if column.type == "string"]

    def read() -> Iterator[bytes]:
        with path.open("rb") as raw:
            if not any(map(SUSPECT.search, _pieces(raw))):
                raw.seek(0)
                yield from _pieces(raw)
                return
        yield csv_line(names).encode()
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            next(rows)
            for cells in rows:
                for number in texts:
                    if FORMULA.match(cells[number]):
                        cells[number] = f"'{cells[number]}"
                yield csv_line(cell or None for cell in cells).encode()

    return Download(f"{table.name}.csv", path.stat().st_size, path.name, read)


def _pieces(raw: IO[bytes]) -> Iterator[bytes]:
    """A file in pieces of whole lines."""
    while piece := raw.read(PIECE):
        yield piece + raw.readline()


def folded(stacks: dict[str, int], name: str, kept: str) -> Download:
    """
    Stacks as FlameGraph and its like read them, a line each, in the order of their frames from the
    root: what stands beside each other is alike, and packs to a third of what it else would.
    """
    size = sum(len(stack) + 8 for stack in stacks)
    largest = functools.partial(_largest, stacks)
    return Download(name, size, kept, functools.partial(_lines, stacks), (len(stacks), largest))


def _lines(stacks: dict[str, int]) -> Iterator[bytes]:
    for stack in sorted(stacks):
        line = f"{' '.join(stack.split())} {stacks[stack]}\n"
        yield line.encode("utf-8", "backslashreplace")


def _largest(stacks: dict[str, int], count: int) -> Iterator[bytes]:
    some = dict(heapq.nlargest(count, stacks.items(), key=lambda each: (each[1], each[0])))
    left = len(stacks) - len(some)
    if left:
        some[f"({left:,} smaller stacks)"] = sum(stacks.values()) - sum(some.values())
    return _lines(some)
