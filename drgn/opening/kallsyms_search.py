# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Search for the parts of the kernel's symbol table, in a dump that does not say where they lie.

VMCOREINFO names them since v6.0 (f09bddbd8661). Before, scripts/kallsyms.c (write_src(), v5.10)
writes them one after the other into .rodata, each at a multiple of 8: kallsyms_offsets,
kallsyms_relative_base, kallsyms_num_syms, kallsyms_names, kallsyms_markers, (where 60443c88f3a8,
v6.2, was taken back, kallsyms_seqs_of_names,) kallsyms_token_table, kallsyms_token_index. In the
token table each character that occurs in names stands for itself, so that the ten digits stand
there in their order; what is around them must fit in every part.

Costs a look at the kernel image up to there: some tens of MiB, 0.05 s.

Cannot find: tables in the order of v6.4 and later, and of kernels without
CONFIG_KALLSYMS_BASE_RELATIVE (ia64).
"""

from collections.abc import Iterator

import numpy as np
from drgn import FaultError, Program

DIGITS = b"".join(b"%d\0" % digit for digit in range(10))
TOKENS = 256
# Of text and .rodata; a kernel image has half a GiB of addresses at most, and 40 MiB in use.
MOST_IMAGE = 128 << 20
MOST_TOKENS = 8 << 10  # bytes of the token table
MOST_NAMES = 32 << 20  # bytes of the packed names, of their markers and of their order by name
MAX_SYMBOLS = 1_000_000
NAMES_A_MARKER = 256
CHUNK = 2 << 20
PAGE = 4096


def find_tables(prog: Program, start: int) -> dict[str, int] | None:
    """
    The addresses of the parts by their symbols' names; None if they are not found.

    :param start: where the kernel's code begins, ``_stext``.
    """
    for address in _digits(prog, start):
        if (tokens := _token_table(prog, address)) and (found := _names(prog, tokens[0], start)):
            return {
                **found,
                "kallsyms_token_table": tokens[0],
                "kallsyms_token_index": tokens[1],
            }
    return None


def _digits(prog: Program, start: int) -> Iterator[int]:
    """Addresses at which ten tokens in a row are the digits."""
    before = b""  # the end of the last chunk, in which a match may begin
    for address in range(start & -PAGE, (start & -PAGE) + MOST_IMAGE, CHUNK):
        data = before + _read(prog, address, CHUNK)
        at = data.find(DIGITS)
        while at >= 0:
            yield address - len(before) + at
            at = data.find(DIGITS, at + 1)
        before = data[-len(DIGITS) + 1 :]


def _read(prog: Program, address: int, size: int) -> bytes:
    """Memory, with zeros for pages that the dump does not have."""
    try:
        return bytes(prog.read(address, size))
    except FaultError:
        if size == PAGE:
            return bytes(PAGE)
    half = size // 2 // PAGE * PAGE
    return _read(prog, address, half) + _read(prog, address + half, size - half)


def _token_table(prog: Program, digits: int) -> tuple[int, int] | None:
    """(kallsyms_token_table, kallsyms_token_index) around the digits' tokens."""
    first = (digits - MOST_TOKENS) & -PAGE
    data = _read(prog, first, 4 * MOST_TOKENS)
    at = digits - first
    # The tokens of smaller characters stand before, none of them empty.
    before = data[:at].split(b"\0")[:-1][-ord("0") :]
    begin = at - sum(len(token) + 1 for token in before)
    tokens = data[begin:].split(b"\0", TOKENS)[:TOKENS]
    if begin % 8 or len(tokens) < TOKENS or not all(tokens):
        return None
    lengths = np.array([len(token) + 1 for token in tokens])
    index = begin + int(lengths.sum()) + 7 & -8
    said = np.frombuffer(data[index : index + 2 * TOKENS], dtype="<u2")
    if not np.array_equal(said, np.cumsum(lengths) - lengths):
        return None
    return first + begin, first + index


def _names(prog: Program, tokens: int, start: int) -> dict[str, int] | None:
    """The other parts, which stand before the token table."""
    first = (tokens - MOST_NAMES) & -PAGE
    data = _read(prog, first, tokens - first & -PAGE) + _read(prog, tokens & -PAGE, PAGE)
    words = np.frombuffer(data, dtype="<u8")
    # The symbols' base, which is _text, and then how many they are.
    bases, counts = words[:-1], words[1:]
    near = (bases <= np.uint64(start)) & (bases > np.uint64(start - (1 << 30)))
    for at in np.flatnonzero(near & (counts > 0) & (counts <= MAX_SYMBOLS)).tolist():
        count, names = int(counts[at]), 8 * at + 16
        if _fit(data, names, count):
            base = first + 8 * at
            return {
                "kallsyms_offsets": base - (4 * count + 7 & -8),
                "kallsyms_relative_base": base,
                "kallsyms_num_syms": base + 8,
                "kallsyms_names": first + names,
            }
    return None


def _fit(data: bytes, names: int, count: int) -> bool:
    """True if the markers follow so many names, which say where every 256th of them begins."""
    places, at = [], names
    for number in range(count):
        if at + 1 >= len(data):
            return False
        if number % NAMES_A_MARKER == 0:
            places.append(at - names)
        # Two bytes, where one does not do (73bbb94466fd, v6.1).
        length = data[at]
        at += 2 + (length & 0x7F | data[at + 1] << 7) if length & 0x80 else 1 + length
    return data.startswith(np.array(places, dtype="<u4").tobytes(), at + 7 & -8)
