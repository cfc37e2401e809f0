# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The source of code, by what a kernel says of itself: files and lines, and what was inlined.

No kernel that was released has either. Both readers are written against series on the kernel's
lists, held by blobs that tests make, and answer "nothing is known" where the symbols are not there:

- lines: CONFIG_KALLSYMS_LINEINFO (Sasha Levin, 2026; in linux-next): addresses from ``_text`` on in
  blocks of 64, each a delta to the last in LEB128 (include/linux/mod_lineinfo.h,
  kallsyms_lookup_lineinfo());
- inlined functions: CONFIG_DEBUG_INFO_BTF_INLINE (Alan Maguire, September 2026): split BTF between
  ``__start_BTF_inline`` and ``__stop_BTF_inline``, of kinds LOC_PARAM, LOC_PROTO and LOCSEC
  (include/uapi/linux/btf.h of that series).

Costs some reads a line; the inline BTF is read once, 10 MB. Cannot know: where an inlined function
ends, as a site has a beginning only; modules.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Program

from mmscope.drgn.dumps.bulk_reads import read_bytes
from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import LIMITS, Btf

BLOCK = 64  # LINEINFO_BLOCK_ENTRIES
LONGEST = 5  # bytes of a number of 32 bits
MOST_NAME = 4096
U32 = 1 << 32


@dataclass(frozen=True, slots=True)
class InlineSite:
    """A place where a function was inlined: its name, and the address at which its code begins."""

    function: str
    address: int


def source_line(prog: Program, address: int) -> tuple[str, int] | None:
    """
    The file and the line that the code at an address of the kernel was made of.

    :return: None where the kernel has no such tables, or no line of this function before the
        address.
    :raises NoDebugInfoError: the tables are damaged.
    :raises FaultError: they cannot be read.
    """
    table = {}
    try:
        text = prog.symbol("_text").address
        begin = prog.symbol(address).address
        for name in ("block_addrs", "block_offsets", "data", "file_offsets", "filenames"):
            table[name] = prog.symbol(f"lineinfo_{name}").address
        for name in ("num_entries", "num_blocks", "data_size", "num_files", "filenames_size"):
            table[name] = prog.read_u32(prog.symbol(f"lineinfo_{name}").address)
    except LookupError:
        return None
    offset, blocks = address - text, table["num_blocks"]
    if not 0 <= offset < U32 or not blocks:
        return None
    if not 0 <= blocks * BLOCK - table["num_entries"] < BLOCK:
        raise _damaged("its blocks have not as many entries as it has")

    def word(name: str, at: int) -> int:
        return int(prog.read_u32(table[name] + 4 * at))

    block = bisect.bisect_right(range(blocks), offset, key=lambda at: word("block_addrs", at)) - 1
    if block < 0:
        return None
    first = word("block_offsets", block)
    last = word("block_offsets", block + 1) if block + 1 < blocks else table["data_size"]
    if not first <= last <= table["data_size"] or last - first > 3 * LONGEST * BLOCK:
        raise _damaged("a block lies beyond its end")
    count = min(BLOCK, table["num_entries"] - block * BLOCK)
    entries = _entries(
        bytes(prog.read(table["data"] + first, last - first)), word("block_addrs", block), count
    )
    before = [entry for entry in entries if begin - text <= entry[0] <= offset]
    if not before:
        return None
    _, file, line = before[-1]
    if not 0 <= file < table["num_files"]:
        raise _damaged(f"there is no file {file}")
    at = word("file_offsets", file)
    if at >= table["filenames_size"]:
        raise _damaged(f"the name of file {file} lies beyond its end")
    raw = prog.read(table["filenames"] + at, min(table["filenames_size"] - at, MOST_NAME))
    spelled, end, _ = bytes(raw).partition(b"\0")
    if not end or not spelled:
        raise _damaged(f"the name of file {file} has no end")
    return spelled.decode("utf-8", "backslashreplace"), line


def _entries(data: bytes, address: int, count: int) -> list[tuple[int, int, int]]:
    """(offset from _text, file, line) of each entry of a block."""
    numbers = _numbers(data)
    try:
        file, line = next(numbers), next(numbers)
        found = [(address, file, line)]
        for _ in range(count - 1):
            address += next(numbers)
            file += _signed(next(numbers))
            line += _signed(next(numbers))
            found.append((address, file, line))
    except StopIteration:
        raise _damaged("a block ends too soon") from None
    if any(not 0 <= line < U32 for _, _, line in found):
        raise _damaged("a line is less than none")
    return found


def _numbers(data: bytes) -> Iterator[int]:
    """Numbers in LEB128, without sign."""
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
        elif shift >= 7 * LONGEST:
            raise _damaged("a number has no end")


def _signed(number: int) -> int:
    """A number whose lowest bit is its sign, as ``zigzag_decode()`` has it."""
    return number >> 1 ^ -(number & 1)


def _damaged(how: str) -> NoDebugInfoError:
    return NoDebugInfoError(f"the kernel's table of lines is damaged: {how}")


def inline_sites(prog: Program) -> list[InlineSite] | None:
    """
    All places in the kernel at which a function was inlined, by address.

    :return: None where the kernel does not say.
    :raises NoDebugInfoError: what it says is damaged.
    :raises FaultError: it cannot be read.
    """
    kept: list[InlineSite] | None = prog.cache.get("inline sites")
    if kept is None:
        try:
            blobs = [_section(prog, name) for name in ("BTF", "BTF_inline")]
            starts = {name: prog.symbol(name).address for name in ("_stext", "_sinittext")}
        except LookupError:
            return None
        types = Btf(prog, *blobs)
        places = {".text": starts["_stext"], ".init.text": starts["_sinittext"]}
        found = [
            InlineSite(function, places[section] + offset)
            for section, function, offset in types.inline_sites()
            if section in places
        ]
        kept = prog.cache["inline sites"] = sorted(found, key=lambda site: site.address)
    return kept


def inlined_into(prog: Program, function: str, callers: Sequence[str]) -> list[str] | None:
    """
    Find those of some functions that have another inlined.

    :return: None where the kernel does not say.
    :raises NoDebugInfoError, FaultError: as of :func:`inline_sites`.
    """
    sites = inline_sites(prog)
    if sites is None:
        return None
    places = np.array([site.address for site in sites if site.function == function], np.uint64)
    found = []
    for caller in callers:
        try:
            symbol = prog.symbol(caller)
        except LookupError:
            continue
        if np.any((places >= symbol.address) & (places < symbol.address + symbol.size)):
            found.append(caller)
    return found


def _section(prog: Program, name: str) -> bytes:
    """The bytes between the symbols of a section."""
    begin = prog.symbol(f"__start_{name}").address
    size = prog.symbol(f"__stop_{name}").address - begin
    if not 24 <= size <= LIMITS["bytes"]:
        raise NoDebugInfoError(f"the kernel's {name} has {size:,} bytes")
    try:
        return bytes(read_bytes(prog, begin, size))
    except FaultError as error:
        raise NoDebugInfoError(f"the kernel's {name} cannot be read: {error}") from error
