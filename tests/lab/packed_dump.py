# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A vmcore as a kdump-compressed file, packed by a library of choice: makedumpfile of Debian is built
without snappy and zstd.

All pages of zeros are one in it, as ``makedumpfile -d 1`` has them (``pd_zero``). What is a hole in
a sparse core is not read. Written from makedumpfile's ``IMPLEMENTATION`` and ``diskdump_mod.h``
(header version 6, 1.7.2).

Costs: 20 to 60 µs a page, in one process.
"""

import ctypes
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from archive import LabError
from dump_formats import segments, vmcoreinfo_note
from numpy.typing import NDArray

from mmscope.drgn.dumps.core_file import KDUMP, PAGE_DESCRIPTOR

PAGE = 4096
CHUNK = 1 << 24
PT_LOAD, PT_NOTE = 1, 4
UTSNAME_FIELD = 65
MACHINES = {62: b"x86_64", 183: b"aarch64"}  # e_machine

Pack = Callable[[bytes], bytes]


def library(name: str) -> ctypes.CDLL:
    """
    A library of the system.

    :raises LabError: it is not installed.
    """
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise LabError(f"{error}: apt-get install libsnappy1v5 libzstd1 liblzo2-2") from None


def _lzo() -> Pack:
    lzo = library("liblzo2.so.2")
    work, room, size = (
        ctypes.create_string_buffer(16384 * 8),
        ctypes.create_string_buffer(2 * PAGE),
        ctypes.c_size_t(),
    )

    def pack(page: bytes) -> bytes:
        lzo.lzo1x_1_compress(page, len(page), room, ctypes.byref(size), work)
        return room.raw[: size.value]

    return pack


def _snappy() -> Pack:
    snappy = library("libsnappy.so.1")
    room, size = ctypes.create_string_buffer(2 * PAGE), ctypes.c_size_t()

    def pack(page: bytes) -> bytes:
        size.value = len(room)
        snappy.snappy_compress(page, ctypes.c_size_t(len(page)), room, ctypes.byref(size))
        return room.raw[: size.value]

    return pack


def _zstd() -> Pack:
    zstd = library("libzstd.so.1")
    zstd.ZSTD_createCCtx.restype = ctypes.c_void_p
    zstd.ZSTD_compressCCtx.restype = ctypes.c_size_t
    room, size = ctypes.create_string_buffer(2 * PAGE), ctypes.c_size_t
    # For all pages: to make one takes longer than to pack a page.
    context = ctypes.c_void_p(zstd.ZSTD_createCCtx())

    def pack(page: bytes) -> bytes:
        packed = zstd.ZSTD_compressCCtx(context, room, size(len(room)), page, size(len(page)), 1)
        return room.raw[:packed]

    return pack


# The flag of a page that is packed so (DUMP_DH_COMPRESSED_*), and who packs it.
KINDS: dict[str, tuple[int, Callable[[], Pack]]] = {
    "zlib": (0x01, lambda: lambda page: zlib.compress(page, 1)),
    "lzo": (0x02, _lzo),
    "snappy": (0x04, _snappy),
    "zstd": (0x20, _zstd),
}


def packed_dump(core: Path, target: Path, kind: str) -> Path:
    """
    The core as a kdump-compressed file.

    :param core: of QEMU or the kernel, a machine with pages of 4 KiB.
    :param kind: a key of :data:`KINDS`.
    :raises LabError: the library is not installed.
    """
    flag, packer = KINDS[kind]
    pack = packer()
    with core.open("rb") as file, target.open("wb") as out:
        machine, parts = segments(file)
        (notes,) = (_read(file, part[2], part[5]) for part in parts if part[0] == PT_NOTE)
        loads = [part for part in parts if part[0] == PT_LOAD]
        pages = np.concatenate([_pages(file, part) for part in loads])
        pages = pages[np.argsort(pages[:, 0])]
        frames = max((part[4] + part[6]) // PAGE for part in loads)
        size = -(-frames // 8)
        blocks = -(-size // PAGE)
        begin = _write_headers(out, machine, notes, frames, 2 * blocks, flag)
        memory = np.zeros(blocks * PAGE * 8, bool)
        for part in loads:
            memory[part[4] // PAGE : (part[4] + part[6]) // PAGE] = True
        out.seek(begin)
        # What there is, and what is in the dump.
        out.write(2 * np.packbits(memory, bitorder="little").tobytes())
        numbers = np.cumsum(memory) - 1
        descriptors = np.zeros(int(numbers[-1]) + 1, PAGE_DESCRIPTOR)
        _write_pages(file, out, descriptors, numbers[pages[:, 0]], pages[:, 1], flag, pack)
    return target


def _pages(file: BinaryIO, part: list[int]) -> NDArray[np.int64]:
    """PFN and place in the file of a segment's pages that are not zero."""
    found = [np.empty((0, 2), np.int64)]
    for begin, end in _data(file, part[2], part[2] + part[5]):
        for place in range(begin, end, CHUNK):
            data = np.frombuffer(_read(file, place, min(CHUNK, end - place)), np.uint64)
            used = np.flatnonzero(data.reshape(-1, PAGE // 8).any(axis=1))
            places = place + used * PAGE
            found.append(np.column_stack(((places - part[2] + part[4]) // PAGE, places)))
    return np.concatenate(found)


def _data(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """What is no hole, by whole pages of the segment."""
    place = begin
    while place < end:
        try:
            data = os.lseek(file.fileno(), place, os.SEEK_DATA)
        except OSError:  # ENXIO: holes to the end
            return
        hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
        first = max(begin + (data - begin) // PAGE * PAGE, place)
        place = min(begin - (begin - hole) // PAGE * PAGE, end)
        if first < place:
            yield first, place


def _write_headers(
    out: BinaryIO, machine: int, notes: bytes, frames: int, bitmap_blocks: int, flag: int
) -> int:
    """struct disk_dump_header, kdump_sub_header, and the notes; where the bitmaps begin."""
    # libkdumpfile takes it for none where a word is missing.
    words = (b"Linux", b"lab", b"0.0.0", b"#1", MACHINES[machine], b"(none)")
    uts = b"".join(word.ljust(UTSNAME_FIELD, b"\0") for word in words)
    sub_blocks = 1 + -(-len(notes) // PAGE)
    out.write(struct.pack("<8si390s6xqqI", KDUMP, 6, uts, 0, 0, flag))
    out.write(struct.pack("<iiIIIIIIi", PAGE, sub_blocks, bitmap_blocks, frames, 0, 0, 0, 0, 1))
    begin, size = vmcoreinfo_note(notes)
    out.seek(PAGE)
    out.write(struct.pack("<Qii", 0, 1, 0))
    out.write(struct.pack("<QQ", 0, 0))  # start_pfn, end_pfn
    out.write(struct.pack("<QQ", 2 * PAGE + begin, size))
    out.write(struct.pack("<QQ", 2 * PAGE, len(notes)))
    out.write(struct.pack("<QQQQQ", 0, 0, 0, 0, frames))
    out.seek(2 * PAGE)
    out.write(notes)
    return (1 + sub_blocks) * PAGE


def _write_pages(
    file: BinaryIO,
    out: BinaryIO,
    descriptors: NDArray[np.void],
    numbers: NDArray[np.int64],
    places: NDArray[np.int64],
    flag: int,
    pack: Pack,
) -> None:
    """The descriptors, and behind them the pages, that of zeros before those with these numbers."""
    begin = out.tell()
    place = begin + descriptors.nbytes
    descriptors["size"], descriptors["offset"] = PAGE, place
    out.seek(place)
    sizes, flags, packed = [], [], bytearray(PAGE)
    for each in places.tolist():
        page = os.pread(file.fileno(), PAGE, each)
        data = pack(page)
        whole = len(data) >= PAGE  # as it is, without the flag
        packed += page if whole else data
        sizes.append(PAGE if whole else len(data))
        flags.append(0 if whole else flag)
        if len(packed) >= CHUNK:
            out.write(packed)
            packed.clear()
    out.write(packed)
    ends = place + PAGE + np.cumsum(sizes, dtype=np.uint64)
    descriptors["size"][numbers], descriptors["flags"][numbers] = sizes, flags
    descriptors["offset"][numbers] = ends - np.array(sizes, np.uint64)
    out.seek(begin)
    out.write(descriptors.tobytes())


def _read(file: BinaryIO, begin: int, length: int) -> bytes:
    return os.pread(file.fileno(), length, begin)
