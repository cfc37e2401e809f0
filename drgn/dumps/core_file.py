# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The header of a core file, before anything is read through it: ELF, and makedumpfile's
kdump-compressed format.

Which memory is missing since the file was cut short, or since makedumpfile left it out, is in the
file alone: drgn knows only that a read fails. Nor does libkdumpfile (0.5.0 to 0.5.6) check what the
headers and descriptors say of places and sizes: it maps, allocates and copies as they say. Formats:
``elf(5)``; makedumpfile's ``IMPLEMENTATION`` and ``diskdump_mod.h`` (header version 6, 1.7.2).

Costs: a few reads, and of a kdump its bitmaps and page descriptors (24 bytes a page).

It cannot know: what an ELF core of makedumpfile leaves out, which reads as zeros there.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

EI_DATA, EI_NIDENT, ELF64_SIZE = 5, 16, 64
E_PHOFF, E_PHENTSIZE = 32, 54  # of an Elf64_Ehdr; e_phnum is after the latter
E_SHOFF, E_SHENTSIZE = 40, 58  # e_shnum and e_shstrndx are after the latter
ELF64_SEGMENT, ELF64_SECTION = "IIQQQQQQ", "IIQQQQIIQQ"
ET_CORE, PT_LOAD, PT_NOTE, NT_GNU_BUILD_ID = 4, 1, 4, 3

KDUMP = b"KDUMP   "
# struct disk_dump_header on a 64-bit machine: header_version; block_size, sub_hdr_size,
# bitmap_blocks, max_mapnr.
KDUMP_VERSION_OFFSET = 8
KDUMP_HEADER, KDUMP_HEADER_OFFSET = "<IIII", 428
# struct kdump_sub_header: dump_level, split; and start_pfn_64, end_pfn_64, max_mapnr_64.
KDUMP_LEVEL, KDUMP_LEVEL_OFFSET = "<II", 8
KDUMP_RANGE, KDUMP_RANGE_OFFSET = "<QQQ", 80
# And (offset, size) of what it leads to, each with the header_version that has it first. What was
# erased is written after the pages, so that it may be missing.
KDUMP_PLACE = "<QQ"
KDUMP_PLACES = (
    ("VMCOREINFO", 3, 32, False),
    ("notes", 4, 48, False),
    ("erased names", 5, 64, True),
)
MOST_NOTES = 256 << 20  # the notes of 8,192 CPUs are 3 MiB
PAGE_DESCRIPTOR = np.dtype([("offset", "<u8"), ("size", "<u4"), ("flags", "<u4"), ("page", "<u8")])
CHUNK_BYTES, BITMAP_CHUNK = 24 << 16, 1 << 13  # so many descriptors, for so many bits
# The bits of a dump level: what makedumpfile(8) -d leaves out.
DUMP_LEVELS = {
    1: "zero",
    2: "page cache",
    4: "private page cache",
    8: "user",
    16: "free",
}


@dataclass(frozen=True, slots=True)
class Kdump:
    """
    The headers of a kdump-compressed file.

    :ivar dump_level: as given to makedumpfile's -d.
    :ivar split: one of several files of ``--split``, which holds PFNs from start_pfn to end_pfn.
    :ivar bitmaps: offset of the two bitmaps: which page frames are memory, and which are in the
        file.
    :ivar bitmap_bytes: of each of them.
    """

    page_size: int
    dump_level: int
    split: bool
    start_pfn: int
    end_pfn: int
    bitmaps: int
    bitmap_bytes: int

    @property
    def descriptors(self) -> int:
        """Offset of the page descriptors, after the bitmaps."""
        return self.bitmaps + 2 * self.bitmap_bytes


def read_kdump(path: Path) -> Kdump | None:
    """The headers of a kdump-compressed file; None if it is another, or cut short in them."""
    head = _read(path, 0, 512)
    if not head.startswith(KDUMP) or len(head) < 512:
        return None
    block, sub_blocks, bitmap_blocks, _ = struct.unpack_from(
        KDUMP_HEADER, head, KDUMP_HEADER_OFFSET
    )
    sub = _read(path, block, KDUMP_RANGE_OFFSET + struct.calcsize(KDUMP_RANGE))
    if block not in (4096, 8192, 16384, 65536) or len(sub) < KDUMP_RANGE_OFFSET + 24:
        return None
    level, split = struct.unpack_from(KDUMP_LEVEL, sub, KDUMP_LEVEL_OFFSET)
    start, end, _ = struct.unpack_from(KDUMP_RANGE, sub, KDUMP_RANGE_OFFSET)
    return Kdump(
        page_size=block,
        dump_level=level,
        split=split != 0,
        start_pfn=start,
        end_pfn=end,
        bitmaps=(1 + sub_blocks) * block,
        bitmap_bytes=bitmap_blocks * block // 2,
    )


def left_out(path: Path) -> str | None:
    """The pages that makedumpfile left out of a file, in words; None if it has all."""
    kdump = read_kdump(path)
    if kdump is None or ends_before_pages(path):
        return None
    memory, dumped = (_bits(path, kdump, number) for number in (0, 1))
    kinds = [name for bit, name in DUMP_LEVELS.items() if kdump.dump_level & bit]
    out = (memory - dumped) * kdump.page_size
    if not kinds or out <= 0:
        return None
    return (
        f"{out:,} bytes, at dump level {kdump.dump_level}: {', '.join(kinds)} pages; "
        "a makedumpfile older than the kernel may have taken kernel data for user pages"
    )


def ends_before_pages(path: Path) -> bool:
    """
    True if a kdump-compressed file was cut short before it says which pages it has. libkdumpfile
    (0.5.5) maps what should be there, and the process dies of SIGBUS.
    """
    kdump = read_kdump(path)
    return kdump is not None and path.stat().st_size < kdump.descriptors


def damaged_header(path: Path) -> str | None:
    """
    Name what the sub-header of a kdump-compressed file says that cannot be; None if nothing is.
    libkdumpfile (0.5.5) reads there, and the process dies of SIGSEGV.
    """
    kdump, size = read_kdump(path), path.stat().st_size
    if kdump is None:
        return None
    (version,) = struct.unpack("<I", _read(path, KDUMP_VERSION_OFFSET, 4))
    for what, since, offset, behind in KDUMP_PLACES if not kdump.split else ():
        if version < since:
            continue
        data = _read(path, kdump.page_size + offset, struct.calcsize(KDUMP_PLACE))
        begin, length = struct.unpack(KDUMP_PLACE, data)
        if length > MOST_NOTES or begin + length > (1 << 63 if behind else size):
            return f"{length:,} bytes of {what} at {begin:,} of {size:,}"
    return None


def split_part(path: Path) -> str | None:
    """The part of a dump that a file is, in words; None if it is a whole one."""
    kdump = read_kdump(path)
    if kdump is None or not kdump.split:
        return None
    return (
        f"one part of a dump in several files, PFN {kdump.start_pfn:#x} to {kdump.end_pfn:#x}; "
        "join them first: makedumpfile --reassemble PART… WHOLE"
    )


def _bits(path: Path, kdump: Kdump, number: int) -> int:
    """The number of bits that are set in a bitmap."""
    begin = kdump.bitmaps + number * kdump.bitmap_bytes
    # What a damaged header says may be far more than there is.
    size = max(min(kdump.bitmap_bytes, path.stat().st_size - begin), 0)
    count = 0
    for offset in range(0, size, CHUNK_BYTES):
        data = _read(path, begin + offset, min(CHUNK_BYTES, size - offset))
        count += int.from_bytes(data, "little").bit_count()
    return count


def _missing(path: Path, kdump: Kdump) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """
    Page frames that are in a dump by its bitmap, but have their descriptor or data past the end
    of the file, or a descriptor that no page has: the first PFN of a stretch, and of each in it
    whether. From the last stretch on.

    Nothing of a split dump, whose bitmap is that of the whole.
    """
    size, begin = path.stat().st_size, kdump.bitmaps + kdump.bitmap_bytes
    # What a damaged header says may be far more than there is.
    length = 0 if kdump.split else max(min(kdump.bitmap_bytes, size - begin), 0)
    number = _bits(path, kdump, 1)  # descriptors are in the order of PFNs
    for offset in range((length - 1) // BITMAP_CHUNK * BITMAP_CHUNK, -1, -BITMAP_CHUNK):
        data = _read(path, begin + offset, min(BITMAP_CHUNK, length - offset))
        dumped = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").view(bool)
        count = int(np.count_nonzero(dumped))
        number -= count
        itemsize = PAGE_DESCRIPTOR.itemsize
        data = _read(path, kdump.descriptors + number * itemsize, count * itemsize)
        pages = np.frombuffer(data[: len(data) // itemsize * itemsize], PAGE_DESCRIPTOR)
        # Data is never larger than a page: what cannot be packed is stored as it is. The sum of a
        # damaged one may wrap around. At 0 is the file's header: zeros are where a dump was rebuilt
        # of one that was cut short.
        outside = np.ones(count, bool)
        outside[: len(pages)] = (
            (pages["size"] > kdump.page_size)
            | (pages["offset"] > size)
            | (pages["offset"] + pages["size"] > size)
            | (pages["offset"] == 0)
        )
        if outside.any():
            dumped[dumped] = outside
            yield offset * 8, dumped


def missing_frames(path: Path) -> NDArray[np.uint8] | None:
    """
    The page frames of a kdump-compressed file whose data lies past the end of the file, or whose
    descriptor no page has, as a bitmap up to the last of them, that of PFN 0 the lowest bit of the
    first byte: 32 MiB a TiB, however many pages of zeros, which share a place, are among them. None
    if all are there.
    """
    kdump, frames = read_kdump(path), None
    for first, missing in _missing(path, kdump) if kdump else ():
        packed = np.packbits(missing, bitorder="little")
        if frames is None:  # of the last stretch
            frames = np.zeros(first // 8 + len(packed), np.uint8)
        frames[first // 8 : first // 8 + len(packed)] = packed
    return frames


def missing_bytes(path: Path) -> int:
    """
    Bytes of a core's memory beyond the end of the file, which was cut short or is damaged.

    0 for a whole core, and for formats that do not say.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    if (kdump := read_kdump(path)) is not None:
        pages = sum(int(np.count_nonzero(missing)) for _, missing in _missing(path, kdump))
        return pages * kdump.page_size
    return sum(
        max(begin + length - max(size, begin), 0)
        for kind, begin, length in _segments(path)
        if kind == PT_LOAD
    )


def build_id(path: Path) -> str | None:
    """The GNU build ID of an ELF file, as hexadecimal digits; None if it has none."""
    order = _byte_order(path)
    for kind, begin, length in _segments(path):
        if kind == PT_NOTE:
            for name, note, data in _notes(_read(path, begin, min(length, 1 << 20)), order):
                if name == b"GNU\0" and note == NT_GNU_BUILD_ID:
                    return data.hex()
    return None


def elf_section(path: Path, wanted: str, most: int) -> bytes:
    """
    A section of a 64-bit ELF file; nothing if it has none of that name, not all of it, or if it is
    of more than *most* bytes.
    """
    if not (order := _byte_order(path)):
        return b""
    header = _read(path, 0, ELF64_SIZE)
    (begin,) = struct.unpack_from(order + "Q", header, E_SHOFF)
    entry_size, number, names_at = struct.unpack_from(order + "HHH", header, E_SHENTSIZE)
    section = struct.Struct(order + ELF64_SECTION)
    if entry_size < section.size:
        return b""
    data = _read(path, begin, entry_size * number)
    sections = [
        section.unpack_from(data, start)
        for start in range(0, len(data) - section.size + 1, entry_size)
    ]
    if names_at >= len(sections):
        return b""
    begin, length = sections[names_at][4:6]
    names = _read(path, begin, min(length, 1 << 20))
    for name, _, _, _, begin, length, *_ in sections:
        if names[name:].startswith(wanted.encode() + b"\0") and length <= most:
            found = _read(path, begin, length)
            return found if len(found) == length else b""
    return b""


def _read(path: Path, begin: int, length: int) -> bytes:
    """Bytes of a file; fewer where it has no more, none where it cannot be read."""
    try:
        with path.open("rb") as file:
            # Python makes room for all that is asked for, and a damaged header asks for anything.
            left = file.seek(0, os.SEEK_END) - begin
            file.seek(begin)
            return file.read(max(min(length, left), 0))
    except (OSError, OverflowError, ValueError):  # the latter two: an offset beyond any file
        return b""


def _byte_order(path: Path) -> str:
    """``<`` or ``>`` of a 64-bit ELF file, empty for anything else."""
    head = _read(path, 0, ELF64_SIZE)
    if len(head) < ELF64_SIZE or not head.startswith(b"\x7fELF\x02"):
        return ""
    return {1: "<", 2: ">"}.get(head[EI_DATA], "")


def elf_type(path: Path) -> int | None:
    """``e_type`` of a 64-bit ELF file; None if it is another file."""
    order = _byte_order(path)
    if not order:
        return None
    (kind,) = struct.unpack_from(order + "H", _read(path, 0, ELF64_SIZE), EI_NIDENT)
    return int(kind)


def _segments(path: Path) -> list[tuple[int, int, int]]:
    """(p_type, p_offset, p_filesz) of each segment of a 64-bit ELF file, if it is one."""
    if not (order := _byte_order(path)):
        return []
    header = _read(path, 0, ELF64_SIZE)
    (begin,) = struct.unpack_from(order + "Q", header, E_PHOFF)
    entry_size, number = struct.unpack_from(order + "HH", header, E_PHENTSIZE)
    segment = struct.Struct(order + ELF64_SEGMENT)
    if entry_size < segment.size:
        return []
    data = _read(path, begin, entry_size * number)
    segments = []
    for start in range(0, len(data) - segment.size + 1, entry_size):
        kind, _, begin, _, _, length, _, _ = segment.unpack_from(data, start)
        segments.append((kind, begin, length))
    return segments


def _notes(data: bytes, order: str) -> Iterator[tuple[bytes, int, bytes]]:
    note = struct.Struct(order + "III")
    position = 0
    while position + note.size <= len(data):
        name_size, size, kind = note.unpack_from(data, position)
        name = position + note.size
        begin = name + (name_size + 3 & ~3)
        yield data[name : name + name_size], kind, data[begin : begin + size]
        position = begin + (size + 3 & ~3)
