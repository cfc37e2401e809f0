# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reading much of a kdump-compressed file at once, by a second handle of the library that drgn reads
it with.

libkdumpfile keeps 1,024 pages (``cache.size``; ``DEFAULT_CACHE_SIZE``, kdumpfile-priv.h, 0.5.4),
and looks at each of them before it unpacks another: 3.5 µs a page, where lzo takes 1.2. drgn
(0.3.0) has no way to say how many it shall keep. Who reads a long stretch needs no page of it
twice. So stretches go through a handle that keeps 16, and what is small through drgn's, whose cache
then has what is asked for again.

The handle is made as drgn makes its own (``drgn_program_set_kdump()``, libdrgn/kdump.c, 0.3.0) and
asked as drgn asks (``drgn_read_kdump()``), so the library translates and unpacks as it does for
drgn. Where it fails, drgn is asked: every error is drgn's. Where there can be no handle, drgn reads
all.

What is relied on: ``kdump_new()``, ``kdump_free()``, ``kdump_set_attr()``, ``kdump_read()``, the
layout of ``kdump_attr_t`` and the values named below, which are the same in the headers of 0.5.0 to
0.5.4 (.so.10), and for drgn in 0.5.5 and 0.5.6 (.so.12). Files are mapped, or read by pread(2)
(fcache.c): forked processes do not move each other's place.

Costs: 2.5 ms for a dump of 16 GiB, and what the library keeps of its bitmap, once more.

Cannot know: memory segments that were added to the program beside the dump's.
"""

import ctypes
import os
import re
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from drgn import FaultError, Program

OWN = "mmscope bulk reads"  # in Program.cache
LEAST, MOST = 1 << 16, 1 << 26
# Beside the page that is copied, translation holds on to four (READ_CACHE_SLOTS, addrxlat-priv.h):
# with four in all nothing can be translated.
FEW_PAGES = ((b"cache.size", 16),)
PAGE = 4096

# include/libkdumpfile/kdumpfile.h
KDUMP_NUMBER, KDUMP_STRING = 2, 4  # enum _kdump_attr_type
KDUMP_KPHYSADDR, KDUMP_KVADDR = 0, 2  # enum _kdump_addrspace
KDUMP_OK = 0
# Up to 0.5.4 the cache may lose the room for a page once a read has failed, and a page is unpacked
# to NULL then: libkdumpfile's commit e63dab40c8ce ("cache: Get data buffer before adjusting ghost
# partition size").
LOSES_ROOM, SOUND = 10, 12

MAPS = Path("/proc/self/maps")
LOADED = r"^(?:\S+ +){5}(/.*/%s[^/]*\.so\.(\d+)[.\d]*)$"


class _Attribute(ctypes.Structure):
    """``kdump_attr_t`` with a number, or the address of a string."""

    _fields_ = (("type", ctypes.c_int), ("value", ctypes.c_uint64))


class Handle:
    """
    A dump that is open in libkdumpfile.

    :param settings: attributes with a number; by default it keeps few pages.
    :raises OSError: the library is not there, is another one, or refuses; the file cannot be
        opened.
    """

    def __init__(self, core: Path, settings: Sequence[tuple[bytes, int]] = FEW_PAGES) -> None:
        path, version = loaded("libkdumpfile", (LOSES_ROOM, SOUND))
        self._gives_up = version == LOSES_ROOM
        self.library = library = _library(path)
        self._read = library.kdump_read
        file = os.open(core, os.O_RDONLY | os.O_CLOEXEC)
        self.context = library.kdump_new()
        self._close = weakref.finalize(self, _close, library, self.context, file)
        self._close.atexit = False  # nothing of it outlives the process
        if not self.context:
            raise OSError("kdump_new() failed")
        linux = ctypes.create_string_buffer(b"linux")
        for key, type_, value in (
            # First: a cache that is made smaller forgets who holds pages of it, and how the file is
            # read is looked at when it is opened (open_dump(), open.c).
            *((name, KDUMP_NUMBER, number) for name, number in settings),
            (b"file.fd", KDUMP_NUMBER, file),
            (b"addrxlat.ostype", KDUMP_STRING, ctypes.addressof(linux)),
        ):
            attribute = _Attribute(type_, value)
            if library.kdump_set_attr(self.context, key, ctypes.byref(attribute)) != KDUMP_OK:
                self._close()
                raise OSError(f"libkdumpfile refuses {key.decode()}")

    def read(self, address: int, size: int, physical: bool) -> memoryview | None:
        """Memory; None where not all of it can be read."""
        if not self._close.alive or address < 0 or address + size > 1 << 64:
            return None
        found = np.empty(size, np.uint8)
        room = ctypes.c_size_t(size)
        space = KDUMP_KPHYSADDR if physical else KDUMP_KVADDR
        status = self._read(self.context, space, address, found.ctypes.data, ctypes.byref(room))
        if status == KDUMP_OK and room.value == size:
            return found.data.toreadonly()
        if self._gives_up:
            self._close()
        return None


def drgn_translates() -> bool:
    """
    True if drgn has to translate addresses by itself; the library may do so differently
    (``prefer_drgn_vaddr_reader()``, libdrgn/kdump.c, which asks atoi()).
    """
    said = re.match(r"\s*[+-]?(\d+)", os.environ.get("DRGN_PREFER_PGTABLE_READER", ""))
    return bool(said and int(said[1]))


def attach(prog: Program, core: Path, sample: int) -> None:
    """
    Have :func:`read_bytes` read stretches of a kdump-compressed file by a handle of its own, if
    there can be one.

    :param sample: a kernel address of which the handle has to say what drgn says.
    """
    if drgn_translates():
        return
    try:
        handle = Handle(core)
        begin = sample & -PAGE
        if handle.read(begin, PAGE, False) == prog.read(begin, PAGE):
            prog.cache[OWN] = handle
    except (OSError, FaultError):
        return


def read_bytes(
    prog: Program, address: int, size: int, physical: bool = False
) -> bytes | memoryview:
    """
    ``Program.read()``, and what it raises.

    :raises FaultError: a part of it cannot be read.
    """
    if LEAST <= size <= MOST:
        handle: Handle | None = prog.cache.get(OWN)
        if handle and (found := handle.read(address, size, physical)) is not None:
            return found
    data: bytes = prog.read(address, size, physical)
    return data


def loaded(name: str, versions: Sequence[int], maps: Path = MAPS) -> tuple[str, int]:
    """
    Path and version of a library that is loaded, by what /proc/self/maps says.

    :raises OSError: it is not, or not in one of these versions.
    """
    lines = maps.read_text("utf-8", "surrogateescape")
    pattern = re.compile(LOADED % name, re.MULTILINE)
    found = {(path, int(version)) for path, version in pattern.findall(lines)}
    if len(found) != 1:
        raise OSError(f"{len(found)} of {name} are loaded")
    ((path, version),) = found
    if version not in versions or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(f"another {name}: {path}")
    return path, version


def _library(path: str) -> ctypes.PyDLL:
    """
    The library. Like drgn's own reads, a call keeps Python's lock: no handle is for two threads.
    """
    library = ctypes.PyDLL(path)
    pointer = ctypes.c_void_p
    try:
        library.kdump_new.argtypes, library.kdump_new.restype = (), pointer
        library.kdump_free.argtypes, library.kdump_free.restype = (pointer,), None
        library.kdump_set_attr.argtypes = (pointer, ctypes.c_char_p, pointer)
        library.kdump_read.argtypes = (
            *(pointer, ctypes.c_int, ctypes.c_uint64, pointer),
            ctypes.POINTER(ctypes.c_size_t),
        )
        library.kdump_get_addrxlat.argtypes = (pointer, pointer, pointer)
        library.kdump_get_err.argtypes = (pointer,)
        library.kdump_get_err.restype = ctypes.c_char_p
    except AttributeError as error:
        raise OSError(str(error)) from error
    return library


def _close(library: ctypes.PyDLL, context: int | None, file: int) -> None:
    if context:
        library.kdump_free(context)
    os.close(file)
