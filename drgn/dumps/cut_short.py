# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reading a kdump-compressed file that was cut short, or has descriptors that no page has: what is
there, and an error for the rest.

libkdumpfile maps a file and looks only at where a page's data begins (``fcache_get_mmap()``,
fcache.c, 0.5.0 to 0.5.6). Data across the end kills the process by SIGBUS. Data past the end is
read instead, and what cannot be read is zeros (``fcache_get_read()``): a page that is not
compressed reads as a page of zeros.

So of such a file drgn reads all memory through a handle of mmscope's own
(:class:`~mmscope.drgn.dumps.bulk_reads.Handle`), which maps nothing, and asks it for no page whose
data is not there (:func:`~mmscope.drgn.dumps.core_file.missing_frames`). It is put above drgn's own
as memory segments: the last that is added counts (``drgn_memory_reader_add_segment()``,
libdrgn/memory_reader.c, 0.3.0). Until then drgn reads no memory (``drgn_program_set_kdump()``,
libdrgn/kdump.c). Addresses are translated by the library, as for drgn.

What is relied on, beside what bulk_reads names: ``kdump_get_addrxlat()``, ``kdump_get_err()``,
``addrxlat_fulladdr_conv()`` and the layout of ``addrxlat_fulladdr_t``, the same in 0.5.0 to 0.5.6
(libaddrxlat.so.3); ``file.mmap_policy``, which counts when the file is opened. The file is read by
pread(2): forked processes do not move each other's place.

Costs: one bit of memory a page frame; some 20 µs more a page the first time that it is read, and
2 µs a read.

Cannot know: a page table that lies past the end. The library reads its entries as zeros, not
present, or cannot unpack it; either is an error for all that it maps. Nor a page that a damaged
descriptor takes for one past the end of a file that is whole.
"""

import ctypes
from pathlib import Path

import numpy as np
from drgn import FaultError, Program
from numpy.typing import NDArray

from mmscope.drgn.dumps.bulk_reads import (
    KDUMP_KPHYSADDR,
    KDUMP_KVADDR,
    KDUMP_OK,
    Handle,
    drgn_translates,
    loaded,
)
from mmscope.drgn.dumps.core_file import read_kdump
from mmscope.drgn.dumps.first_opening import little_memory

KDUMP_MMAP_NEVER = 0  # enum _kdump_mmap_policy
UNMAPPED = ((b"file.mmap_policy", KDUMP_MMAP_NEVER),)
# The address space by which the library finds pages of this format (open_common(), diskdump.c).
KDUMP_MACHPHYSADDR = 1
ADDRXLAT_OK = 0
TRANSLATION = (3,)  # versions of libaddrxlat
MOST_KNOWN = 1 << 16
HALF = 1 << 63  # of all addresses; a size does not hold all

FAULT = "could not read memory from kdump: "  # drgn's words
BEHIND = "behind the end of the file, which was cut short or is damaged"

Bytes = ctypes.Array[ctypes.c_char]


class _Place(ctypes.Structure):
    """``addrxlat_fulladdr_t``."""

    _fields_ = (("address", ctypes.c_uint64), ("space", ctypes.c_int))


class Reader:
    """
    Memory of a dump that was cut short.

    :param missing: see :func:`~mmscope.drgn.dumps.core_file.missing_frames`.
    :raises OSError: the libraries are not there, are others, or refuse; the file cannot be opened.
    """

    def __init__(self, core: Path, missing: NDArray[np.uint8], page_size: int) -> None:
        path, _ = loaded("libaddrxlat", TRANSLATION)
        self._translation = _library(path)
        self._handle = Handle(core, UNMAPPED)
        self._missing, self._page_size = missing.data, page_size
        self._context: ctypes.c_void_p | None = None
        self._system = ctypes.c_void_p()
        self._known: dict[int, int] = {}  # pages that are there

    def read(self, address: int, size: int, offset: int, physical: bool) -> Bytes:
        """
        As drgn asks a memory segment.

        :raises FaultError: a part of it cannot be read.
        """
        found = ctypes.create_string_buffer(size)
        done = 0
        while done < size:
            begin = address + done
            place = self._place(begin, physical)
            length = self._page_size - begin % self._page_size
            # As far as each page is after the one before it in the machine as well.
            while done + length < size and self._place(begin + length, physical) == place + length:
                length += self._page_size
            length = min(length, size - done)
            room, to = ctypes.c_size_t(length), ctypes.byref(found, done)
            library, context = self._handle.library, self._handle.context
            status = library.kdump_read(context, KDUMP_MACHPHYSADDR, place, to, ctypes.byref(room))
            if status != KDUMP_OK:
                raise self._error(begin)
            done += length
        return found

    def _place(self, address: int, physical: bool) -> int:
        """The library's address of it."""
        offset = address % self._page_size
        page = address - offset
        place = self._known.get(page | physical)
        if place is None:
            place = self._translated(page, physical)
            frame = place // self._page_size
            if frame // 8 < len(self._missing) and self._missing[frame // 8] >> frame % 8 & 1:
                raise FaultError(f"{FAULT}it lies {BEHIND}", address)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[page | physical] = place
        return place + offset

    def _translated(self, page: int, physical: bool) -> int:
        if self._context is None:
            self._context = self._prepare(page)
        place = _Place(page, KDUMP_KPHYSADDR if physical else KDUMP_KVADDR)
        # Page tables whose descriptors are damaged: as much is allocated as these say.
        with little_memory():
            status = self._translation.addrxlat_fulladdr_conv(
                ctypes.byref(place), KDUMP_MACHPHYSADDR, self._context, self._system
            )
        if status != ADDRXLAT_OK:
            words = f"it is not mapped, or its page tables lie {BEHIND}"
            raise FaultError(FAULT + words, page)
        return int(place.address)

    def _prepare(self, page: int) -> ctypes.c_void_p:
        """Set up the library's translation, by page tables."""
        context, library = ctypes.c_void_p(), self._handle.library
        # Where those of the kernel's text are missing it fails, once, and does without what it
        # would have known of them (vtop_init(), vtop.c).
        for _ in range(2):
            with little_memory():
                status = library.kdump_get_addrxlat(
                    self._handle.context, ctypes.byref(context), ctypes.byref(self._system)
                )
            if status == KDUMP_OK:
                # Both are held by the handle as long as it is open.
                self._translation.addrxlat_ctx_decref(context)
                self._translation.addrxlat_sys_decref(self._system)
                return context
        raise self._error(page)

    def _error(self, address: int) -> FaultError:
        """In drgn's words."""
        said = self._handle.library.kdump_get_err(self._handle.context) or b""
        words = said.decode("utf-8", "backslashreplace")
        return FaultError(FAULT + words, address)


def attach(prog: Program, core: Path, missing: NDArray[np.uint8] | None) -> bool:
    """
    If a kdump-compressed file was cut short, have the program read all of its memory so that what
    is missing is an error. To be called before any is read.

    :param missing: see :func:`~mmscope.drgn.dumps.core_file.missing_frames`.
    :returns: whether it was.
    :raises OSError: it was, but there can be no handle for it, or the file cannot be opened.
    """
    kdump = read_kdump(core)
    if kdump is None or missing is None:
        return False
    reader = Reader(core, missing, kdump.page_size)
    # Where drgn translates, it does so by physical addresses.
    for physical in (True,) if drgn_translates() else (True, False):
        for begin in (0, HALF):
            prog.add_memory_segment(begin, HALF, reader.read, physical)
    return True


def _library(path: str) -> ctypes.PyDLL:
    library, pointer = ctypes.PyDLL(path), ctypes.c_void_p
    try:
        library.addrxlat_fulladdr_conv.argtypes = (pointer, ctypes.c_int, pointer, pointer)
        library.addrxlat_ctx_decref.argtypes = (pointer,)
        library.addrxlat_sys_decref.argtypes = (pointer,)
    except AttributeError as error:
        raise OSError(str(error)) from error
    return library
