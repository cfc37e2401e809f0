# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a report shows only in part, whole, in the report itself: as far as there is room.

A report has at most :data:`MAX_REPORT_BYTES`. What the page leaves of them is for downloads: packed
tables and folded stacks, as links with ``data:`` addresses, which need no script and no request.
If there is no room for all, those of stacks are pooled by section (``stack_pool``): their links
make the file of the pool, which takes script; without, the pool itself can be had. Small tables
come first, then the pools in the order of the page, then the other tables, the smallest first,
until :data:`MISSES` in a row found no room. What is not there says so with its size, and where the
bundle has it.

While the page is made, every download is a mark that no text of a bundle can forge (control
characters are shown as words everywhere); when all of the page is known, :meth:`Downloads.fill`
puts links in.

Cannot know: how small something packs. So much of it is packed as there is room, and then dropped.
"""

import base64
import csv
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from markupsafe import Markup, escape

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import csv_line
from mmscope.reports.bundle.bundle import Bundle, Table
from reports.stack_pool import Derived, StackPool

MAX_REPORT_BYTES = 2_000_000
# Files below this are not to suffer from large ones: all of them together are little.
SMALL = 1 << 17
# How many times smaller tables and stacks become, at most: beyond, not all can have room.
PACKS = 60
# What a stack takes in a pool at least: its line, and a cell that stands for it.
STACK_BYTES = 2
# Packing is what takes time, and what is larger still hardly fits.
MISSES = 3
# What a spreadsheet takes for the beginning of a formula (OWASP, CSV injection).
FORMULA = re.compile(r"[=+\-@\t\r]")
# The same anywhere in lines of CSV, where a number below zero is none.
SUSPECT = re.compile(rb"(?:\A|[,\n\r])\"?(?:[=+@\t\r]|-(?!\d+(?:\.\d+)?(?:e[+-]?\d+)?[,\n]))")
PIECE = 1 << 18
MARK = re.compile("\0([0-9]*)\0")
POOLS = """<h3>Pools of stacks</h3>
<p>Where stacks are too many for files of their own, every stack is here once, and the links to such
files make them of it, which takes JavaScript. A pool is JSON that says itself how it is read.</p>
<ul>
{}</ul>
"""


@dataclass(frozen=True)
class Download:
    """
    Something to download.

    :ivar name: of the file that it becomes, unpacked.
    :ivar raw_bytes: its size, about.
    :ivar kept: the bundle's file that has all of it.
    :ivar read: gives it, in pieces.
    :ivar pool: the section whose pool of stacks can have it, or nothing.
    :ivar put: puts it there.
    """

    name: str
    raw_bytes: int
    kept: str
    read: Callable[[], Iterable[bytes]]
    pool: str = ""
    put: Callable[[StackPool], None] | None = None


class Downloads:
    """The downloads of one report."""

    def __init__(self) -> None:
        self.offered: list[Download] = []

    def offer(self, download: Download) -> Markup:
        """The place of a download in the page, after a colon: a link, or where else it is."""
        self.offered.append(download)
        return Markup(f"\0{len(self.offered) - 1}\0")

    def pools(self) -> Markup:
        """The place of the pools in the page; nothing if there are none."""
        return Markup("\0\0")

    def fill(self, html: str, most: int = MAX_REPORT_BYTES) -> str:
        """
        The page with its downloads.

        :param most: bytes that it may have; it has more only if it had them before.
        """
        words = {str(number): _without(download) for number, download in enumerate(self.offered)}
        words[""] = ""
        room = _Room(most - len(html.encode()) - sum(len(text.encode()) for text in words.values()))
        order = sorted(
            range(len(self.offered)), key=lambda number: (self.offered[number].raw_bytes, number)
        )
        links: dict[str, str] = {}
        if sum(download.raw_bytes for download in self.offered) // PACKS <= room.bytes:
            links = self._links(order, words, _Room(room.bytes), misses=1)
        if len(links) < len(order):
            small = [number for number in order if self.offered[number].raw_bytes <= SMALL]
            links = self._links(small, words, room)
            links |= self._pooled(links.keys(), words, room)
            links |= self._links([n for n in order if str(n) not in links], words, room)
        words |= links
        return MARK.sub(lambda mark: words[mark[1]], html)

    def _links(
        self, order: list[int], words: dict[str, str], room: "_Room", misses: int = MISSES
    ) -> dict[str, str]:
        """These as they are, until so many in a row found no room."""
        links: dict[str, str] = {}
        missed = 0
        for number in order:
            if missed == misses:
                break
            download, said = self.offered[number], words[str(number)]
            packed = _packed(download.read(), room.packed(_link(download.name, b""), said))
            if packed and room.take(link := _link(download.name, packed), said):
                links[str(number)] = link
                missed = 0
            else:
                missed += 1
        return links

    def _pooled(self, done: Iterable[str], words: dict[str, str], room: "_Room") -> dict[str, str]:
        """Those of stacks, by section, as far as there is room; the pools themselves under ''."""
        sections: dict[str, dict[str, Download]] = {}
        for number, download in enumerate(self.offered):
            if download.put and str(number) not in done:
                sections.setdefault(download.pool, {})[str(number)] = download
        links: dict[str, str] = {}
        items: list[str] = []
        room.bytes -= len(POOLS.format(""))
        for section, offered in sections.items():
            anchor, name = f"pool-{len(items) + 1}", f"{section}.pool.json"
            made = {number: _pooled_link(one.name, anchor) for number, one in offered.items()}
            said = "".join(words[number] for number in made)
            left = room.packed("".join(made.values()) + _pool_item(anchor, name, 0, b""), said)
            count, packed = _pool(offered.values(), left)
            item = _pool_item(anchor, name, count, packed)
            if packed and room.take("".join(made.values()) + item, said):
                items.append(item)
                links |= made
        return links | {"": POOLS.format("".join(items)) if items else ""}


@dataclass
class _Room:
    """Bytes that the page may still grow by."""

    bytes: int

    def packed(self, link: str, said: str) -> int:
        """How long something packed may be, whose link takes so much else."""
        return (self.bytes + len(said.encode()) - len(link.encode()) - 16) // 4 * 3

    def take(self, link: str, said: str) -> bool:
        """Put a link in the place of what was said there, if it fits."""
        left = self.bytes + len(said.encode()) - len(link.encode())
        if left < 0:
            return False
        self.bytes = left
        return True


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _link(name: str, packed: bytes, bundle: bool = True) -> str:
    text = base64.b64encode(packed).decode()
    return (
        f'<a class="download" href="data:application/gzip;base64,{text}" '
        f'download="{_file(name)}.gz">{_file(name)}</a> '
        f"(packed {display.size(len(packed))}{', and in the bundle' * bundle})"
    )


def _pool(offered: Iterable[Download], room: int) -> tuple[int, bytes]:
    """How many stacks a pool of these has, and the pool, packed; nothing if it takes more room."""
    pool = StackPool()
    # Tables first, of which folded files follow.
    for download in sorted(offered, key=lambda one: not one.name.endswith(".csv")):
        if download.put:
            download.put(pool)
    count = pool.count()
    # What can't fit need not be packed to know.
    if count * STACK_BYTES > room:
        return count, b""
    try:
        return count, _packed(pool.read(), room)
    except OverflowError:
        return count, b""


def _pooled_link(name: str, anchor: str) -> str:
    return (
        f'<a class="pooled" href="#{anchor}" data-file="{_file(name)}">{_file(name)}</a> '
        "(of a pool of stacks in this file, and in the bundle)"
    )


def _pool_item(anchor: str, name: str, count: int, packed: bytes) -> str:
    link = _link(name, packed, bundle=False)
    return f'<li id="{anchor}">{link}: {display.plural(count, "stack")}</li>\n'


def _without(download: Download) -> str:
    return (
        f"<code>{escape(visible(download.kept))}</code> in the bundle "
        f"({display.size(download.raw_bytes)}, too much for this file, "
        f"which is to stay below {MAX_REPORT_BYTES // 1_000_000} MB)"
    )


def _packed(pieces: Iterable[bytes], room: int) -> bytes:
    """Gzip, the same bytes for the same content; nothing if it takes more room."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(packer.compress(piece))
        size += len(parts[-1])
        if size > room:
            return b""
    parts.append(packer.flush())
    return b"".join(parts) if size + len(parts[-1]) <= room else b""


def table(bundle: Bundle, table: Table, rows: list[dict[str, Any]] | None = None) -> Download:
    """
    A table of a bundle as CSV, where no text begins like a formula: a quote stands before it.

    :param rows: all of them, where they are at hand.

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

    name = f"{table.name}.csv"

    def put(pool: StackPool) -> None:
        pool.add_table(name, table.columns, list(bundle.rows(table.name)) if rows is None else rows)

    stacks = any(column.name == "stack" and column.type == "string" for column in table.columns)
    pool = (table.section, put) if stacks else ()
    return Download(name, path.stat().st_size, path.name, read, *pool)


def _pieces(raw: IO[bytes]) -> Iterator[bytes]:
    """A file in pieces of whole lines."""
    while lines := raw.readlines(PIECE):
        yield b"".join(lines)


def folded(
    stacks: dict[str, int], name: str, kept: str, section: str, derived: Derived | None = None
) -> Download:
    """
    Stacks as FlameGraph and its like read them, a line each, in the order of their frames from the
    root: what stands beside each other is alike, and packs to a third of what it else would.

    :param section: whose pool they can be in.
    :param derived: how they follow from a table.
    """

    def read() -> Iterator[bytes]:
        for stack in sorted(stacks):
            line = f"{' '.join(stack.split())} {stacks[stack]}\n"
            yield line.encode("utf-8", "backslashreplace")

    def put(pool: StackPool) -> None:
        pool.add_folded(name, stacks, derived)

    size = sum(len(stack) + 8 for stack in stacks)
    return Download(name, size, kept, read, section, put)
