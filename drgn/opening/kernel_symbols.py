# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's own symbol table (CONFIG_KALLSYMS), as a symbol finder of a :class:`drgn.Program`.

Of a vmcore it is read where VMCOREINFO says that its parts lie (since "vmcoreinfo: add
kallsyms_num_syms symbol", f09bddbd8661, v6.0), or where ``kallsyms_search`` finds them: names
packed by a table of 256 tokens, and offsets (scripts/kallsyms.c, kernel/kallsyms.c). Of the running
kernel it is the text of /proc/kallsyms, without its modules. 190,000 names take 0.06 to 0.1 s; they
stay packed, since hardly more than a hundred of them are asked for.

Everything is bounded and checked, since a dump may say anything, and a name that is not found tells
a layout: addresses ascend, each token is made of two others, every 256th name begins where
kallsyms_markers says. A name is missing only if none that is there may be it with one damaged byte,
of its own or of a token, by which it is no longer packed as scripts/kallsyms.c packs it. Cannot
know: that a byte of a name is another where it still is; sizes, which are the distance to the next
symbol; data symbols of a kernel without CONFIG_KALLSYMS_ALL.
"""

import bisect
import contextlib
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Program, Symbol, SymbolBinding, SymbolKind
from numpy.typing import NDArray

from mmscope.drgn.dumps.bulk_reads import read_bytes
from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.kallsyms_search import NAMES_A_MARKER, find_tables
from mmscope.drgn.opening.name_index import ITSELF, NameIndex
from mmscope.drgn.tables.hostile_text import cut

MAX_SYMBOLS = 4_000_000
MAX_NAME_BYTES = 64 << 20
TOKENS = 256
MOST_BEHIND = 256 << 20  # bytes that are looked at after an address, at most
CHUNK = 1 << 20
KSYM_NAME_LEN = 512  # include/linux/kallsyms.h, since 6.1; 128 before
PARTS = (
    *("kallsyms_num_syms", "kallsyms_offsets", "kallsyms_names"),
    *("kallsyms_token_table", "kallsyms_token_index"),
)
MAYBE = ("kallsyms_relative_base",)
MARK = b".llvm."  # of clang's ThinLTO
BANNER_BYTES = 512
# nm's, of data and code; few symbols are weak or absolute.
LETTERS = b"bBdDrRtT"
LARGEST_CONSTANT = 64 << 10  # utf8data, on the kernels of the lab, but for what makes up a section:
TABLES = re.compile(rb"kallsyms_|__st(art|op)_")
SOME_BYTES = 512
# Symbols that say where a section ends, which have no bytes (include/asm-generic/vmlinux.lds.h and
# vmlinux.lds.S of x86 and arm64, 5.10 to 7.3). Functions have such names too, as __stop_tty().
ENDS = re.compile(
    rb"_e(text|data|inittext)|(__pi_)?_end|__end_rodata|__brk_limit|__bss_stop|orc_lookup_end|"
    rb"__start_bss_decrypted_unused|__\w+_text_end|__stop_(BTF|notes|mcount_loc|(orc|runtime|_)_\w+)|"
    rb"__(per_cpu|per_cpu_hot|inittext|exittext|alt_instructions|indirect_thunk|\w+_sites|smp_locks|nosave|"
    rb"init_scratch|pi_rela|pi_relr)_end"
)


def _damaged(how: str) -> NoDebugInfoError:
    return NoDebugInfoError(f"the kernel's symbol table is damaged: {how}")


class SymbolsHidden(NoDebugInfoError):
    """There are symbols, but this user may not see where."""


@dataclass
class KernelSymbols:
    """
    Symbols by name and by address. Their names stay packed, since few of them are asked for.

    :ivar addresses: ascending.
    :ivar packed: all names, in the order of the addresses, each after nm's letter for it.
    :ivar starts, ends: where in ``packed`` each name, with its letter, is.
    :ivar tokens: what each byte of ``packed`` stands for.
    :ivar nameless: addresses at which something begins that no symbol names, ascending.
    :ivar by_name: their positions in the order of their names, where the kernel has that.
    :ivar pairs: which two codes a code of ``packed`` stands for, in the order in which
        scripts/kallsyms.c made them; none where names are not packed.
    """

    addresses: NDArray[np.uint64]
    packed: bytes = field(repr=False)  # megabytes
    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    tokens: Sequence[bytes] = ITSELF
    nameless: Sequence[int] = ()
    by_name: NDArray[np.uint32] | None = None
    pairs: Mapping[int, bytes] = field(default_factory=dict)
    _found: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _promoted: dict[bytes, list[int]] = field(default_factory=dict)
    _by_length: dict[int, NDArray[np.uint32]] = field(default_factory=dict)
    _made: dict[int, Symbol] = field(default_factory=dict)
    _around: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Whose items are Python's numbers, which are found faster than numpy's.
        self.in_order: Sequence[int] = self.addresses.data
        self._index = NameIndex(self.packed, self.starts, self.ends, self.tokens)
        sections = (("_stext", "_etext"), ("_sinittext", "_einittext"))
        self.text = [(self.address(begin) or 0, self.address(end) or 0) for begin, end in sections]
        # is_kernel() (include/asm-generic/sections.h, 5.10 to 7.3), with the head before _stext.
        first, last = (self.address("_text") or self.address("_stext"), self.address("_end"))
        self.image = range(first or 0, (1 << 64) if last is None else last)
        first, last = self.address("__start_rodata"), self.address("__end_rodata")
        self.constants = range(first or 0, last or 0)

    @property
    def count(self) -> int:
        """Number of symbols."""
        return len(self.addresses)

    def indexes(self, name: str) -> tuple[int, ...]:
        """
        The positions of a name, which statics of several files may share.

        :raises NoDebugInfoError: there is none, but names about there are damaged.
        """
        if name not in self._found:
            wanted = name.encode("utf-8", "surrogateescape")
            found = self._index.numbers(wanted) if name else []
            found = sorted([*found, *self._promoted.get(wanted, ())])
            if not found and (doubt := self._doubt(wanted)):
                raise _damaged(f"whether it has {name} is unknown, as {doubt}")
            self._found[name] = tuple(found)
        return self._found[name]

    def _doubt(self, wanted: bytes) -> str | None:
        """Why a name that is not found may be there all the same."""
        if self.by_name is not None and not self._in_order_about(wanted):
            return "names about there are not in order"
        for near in self._one_byte_from(wanted) if self.pairs else ():
            name = self._index.whole(near)
            # Names that are as scripts/kallsyms.c packs them are others: text_poke_bp is no
            # text_poke_mm.
            if packed(name, self.pairs) != self.packed[self.starts[near] : self.ends[near]]:
                return f"{name[1:].decode('ascii', 'backslashreplace')} may be it, damaged"
        return None

    def _one_byte_from(self, wanted: bytes) -> Iterator[int]:
        """
        The positions of names that would be the wanted one if one byte were another: a letter of a
        token, or a byte of the packed name. A millisecond.
        """
        yield from self._index.one_letter_from(wanted)
        firsts: dict[bytes, list[int]] = {}
        for letter in LETTERS if wanted else b"":
            whole = packed(bytes([letter]) + wanted, self.pairs)
            firsts.setdefault(whole[1:], []).append(whole[0])
        text = np.frombuffer(self.packed, np.uint8)
        for rest, possible in firsts.items():
            starts = self._of_length(len(rest) + 1)
            codes = [*enumerate(rest, 1)]
            # One of the last two is as it should be, which few have.
            last = [text[starts + np.uint32(at)] == code for at, code in codes[-2:]]
            starts = starts[np.logical_or.reduce(last)] if len(last) == 2 else starts
            wrong = np.zeros(len(starts), np.uint8)
            for at, code in codes:
                wrong += text[starts + np.uint32(at)] != code
            found = (wrong == 0) | (wrong == 1) & np.isin(text[starts], possible)
            yield from np.searchsorted(self.starts, starts[found]).tolist()

    def _of_length(self, length: int) -> NDArray[np.uint32]:
        """Starts of the names that are packed into so many bytes."""
        if length not in self._by_length:
            self._by_length[length] = self.starts[self.ends - self.starts == length]
        return self._by_length[length]

    def _in_order_about(self, wanted: bytes) -> bool:
        """
        True if the names before and behind one that is missing are in their order, by which the
        kernel finds them (``kallsyms_lookup_names()``, kernel/kallsyms.c): none of them was it.
        """
        assert self.by_name is not None
        at = bisect.bisect_left(self.by_name, wanted, key=self._name)
        about = [self._name(number) for number in self.by_name[max(at - 2, 0) : at + 2]]
        return about == sorted(about)

    def _name(self, number: int) -> bytes:
        return self._index.whole(int(number))[1:]

    def take_in_statics_of_lto(self) -> None:
        """
        From now on find statics that clang's ThinLTO lets other files use under the name that the
        source has: it adds ``.llvm.`` and a number of the file's. Costs a look at every name.
        """
        for at in self._index.having(MARK):
            name, mark, number = self._index.whole(at)[1:].rpartition(MARK)
            if name and mark and number.isdigit():
                self._promoted.setdefault(name, []).append(at)
        self._found.clear()

    def address(self, name: str) -> int | None:
        """The address of a name, if it has just one."""
        at = self.indexes(name)
        return self.in_order[at[0]] if len(at) == 1 else None

    def is_global(self, index: int) -> bool:
        """
        True if other files may use it by its name. Not known of per-CPU variables of x86 before
        6.15: kallsyms makes them absolute (scripts/kallsyms.c: make_percpus_absolute()).
        """
        return chr(self._index.whole(index)[0]) in "BDGRST"

    def room(self, index: int) -> int:
        """
        Bytes to the next symbol, or to what no symbol names: no more can belong to this one. None
        at the end of a section, of which only the end has a name there.
        """
        address = self.in_order[index]
        after = bisect.bisect_right(self.in_order, address)
        first = bisect.bisect_left(self.in_order, address)
        if after == len(self.in_order) or all(map(self._is_end, range(first, after))):
            return 0
        cut = bisect.bisect_right(self.nameless, address)
        return min([self.in_order[after], *self.nameless[cut : cut + 1]]) - address

    def _extent(self, index: int) -> int:
        """
        The bytes in which an address is said to be in a symbol. Where a constant has more room than
        any has bytes, string literals, which nothing names, are after it somewhere.
        """
        room = self.room(index)
        constant = self.in_order[index] in self.constants and room > LARGEST_CONSTANT
        if constant and not TABLES.match(self._index.whole(index), 1):
            return SOME_BYTES
        return room

    def _about(self, last: int) -> tuple[int, list[int]]:
        """The extent of the last symbol of its address, and all of that address."""
        if last not in self._around:
            first = bisect.bisect_left(self.in_order, self.in_order[last])
            self._around[last] = self._extent(last), [*range(first, last + 1)]
        return self._around[last]

    def _is_end(self, index: int) -> bool:
        return ENDS.fullmatch(self._index.whole(index), 1) is not None

    def symbol(self, index: int) -> Symbol:
        """One of them as drgn has it: those of tasks' stacks are asked for again and again."""
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]

    def _make(self, index: int) -> Symbol:
        whole = self._index.whole(index)
        code, name = chr(whole[0]), whole[1:].decode("utf-8", "replace")
        address = self.in_order[index]
        binding = SymbolBinding.GLOBAL if code.isupper() else SymbolBinding.LOCAL
        if code in "vVwW":
            binding = SymbolBinding.WEAK
        kind = SymbolKind.FUNC if self.is_text(address) else SymbolKind.OBJECT
        size = 0 if self._is_end(index) else self.room(index)
        return Symbol(name, address, size, binding, kind)

    def is_text(self, address: int) -> bool:
        """True if an address is of code; nm's letter does not say (7.2 has .data as "T")."""
        return any(begin <= address < end for begin, end in self.text)

    def find(
        self, prog: Program, name: str | None, address: int | None, one: bool
    ) -> Sequence[Symbol]:
        """
        A symbol finder, for :meth:`drgn.Program.register_symbol_finder`.

        By an address outside the kernel's image it finds nothing, as the kernel's own kallsyms.
        """
        indexes: Sequence[int] = range(len(self.in_order))
        if address is not None:
            # Of x86 before 6.15, those of per-CPU variables begin at 0: they are offsets.
            if address not in self.image:
                return []
            last = bisect.bisect_right(self.in_order, address) - 1
            if last < 0:
                return []
            extent, indexes = self._about(last)
            if not address - self.in_order[last] < max(extent, 1):
                return []
            if address != self.in_order[last]:
                indexes = [at for at in indexes if not self._is_end(at)]
        if name is not None:
            named = self.indexes(name)
            indexes = [at for at in named if address is None or at in indexes]
        return [self.symbol(at) for at in (indexes[:1] if one else indexes)]


def symbols_of_core(prog: Program, vmcoreinfo: Mapping[str, str]) -> KernelSymbols:
    """
    The symbols of a dump, where its VMCOREINFO says.

    :raises NoDebugInfoError: it does not say, they cannot be read, or are damaged.
    """
    where = tables_of(prog, vmcoreinfo)
    try:
        (count,) = np.frombuffer(prog.read(where["kallsyms_num_syms"], 4), dtype="u4").tolist()
        if not 0 < count <= MAX_SYMBOLS:
            raise _damaged(f"{count:,} symbols")
        offsets_at = where["kallsyms_offsets"]
        packed = read_bytes(prog, offsets_at, 4 * count)
        offsets = np.frombuffer(packed, dtype="i4").astype(np.int64)
        base = None
        if "kallsyms_relative_base" in where:
            (base,) = np.frombuffer(prog.read(where["kallsyms_relative_base"], 8), "u8").tolist()
        tokens, pairs = _tokens(prog, where["kallsyms_token_table"], where["kallsyms_token_index"])
        names = _names(prog, where["kallsyms_names"], count)
    except FaultError as error:
        raise NoDebugInfoError(f"the kernel's symbol table cannot be read: {error}") from error
    found = KernelSymbols(_addresses(offsets, offsets_at, base), *names, tokens, pairs=pairs)
    found.nameless = _ends_of_tables(where, found)
    if _may_be_by_clang(prog, found):
        # Which sorts its names without what it adds to them.
        found.take_in_statics_of_lto()
    else:
        found.by_name = _by_name(prog, where, count)
    return _checked(found, vmcoreinfo)


def _by_name(prog: Program, where: Mapping[str, int], count: int) -> NDArray[np.uint32] | None:
    """
    ``kallsyms_seqs_of_names``, three bytes each, behind the last of the other tables ("kallsyms:
    Improve the performance of kallsyms_lookup_name()", 60443c88f3a8, in v6.2); None where that is
    not what lies there.
    """
    place = where["kallsyms_offsets"] + 4 * count
    if "kallsyms_relative_base" in where:
        place = where["kallsyms_relative_base"] + 8
    try:
        parts = np.frombuffer(read_bytes(prog, place, 3 * count), np.uint8).reshape(count, 3)
    except FaultError:
        return None
    numbers = parts.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    seen = np.zeros(count, np.bool_)
    seen[numbers[numbers < count]] = True
    return numbers if seen.all() else None


def _may_be_by_clang(prog: Program, found: KernelSymbols) -> bool:
    """True if the kernel does not say that another compiler built it (init/version.c)."""
    banner = found.address("linux_banner")
    try:
        return banner is None or b"clang" in prog.read(banner, BANNER_BYTES)
    except FaultError:
        return True


def tables_of(prog: Program, vmcoreinfo: Mapping[str, str]) -> dict[str, int]:
    """
    Addresses of the parts of the symbol table: said by VMCOREINFO, or found.

    :raises NoDebugInfoError: neither.
    """
    if "SYMBOL(kallsyms_num_syms)" in vmcoreinfo:
        more = [name for name in MAYBE if f"SYMBOL({name})" in vmcoreinfo]
        return {name: _address(vmcoreinfo, name) for name in (*PARTS, *more)}
    found = find_tables(prog, _address(vmcoreinfo, "_stext"))
    if found is None:
        raise NoDebugInfoError(
            "this kernel's symbol table is not found: VMCOREINFO does not say where it is (kernels "
            "before 6.0 do not), and it does not look like that of 5.10 to 5.19"
        )
    return found


def bounded(found: KernelSymbols, prog: Program, vmcoreinfo: Mapping[str, str]) -> KernelSymbols:
    """The symbols, held off what no symbol names, where that can be told."""
    with contextlib.suppress(FaultError, NoDebugInfoError):
        found.nameless = _ends_of_tables(tables_of(prog, vmcoreinfo), found)
    return found


def _ends_of_tables(where: Mapping[str, int], found: KernelSymbols) -> list[int]:
    """
    Begin and end of the symbol table itself. Kernels before 6.2 have no symbols for its parts,
    and after the last are the string literals, which nothing names.
    """
    sizes = {
        "kallsyms_num_syms": 4,
        "kallsyms_offsets": 4 * found.count,
        "kallsyms_relative_base": 8,
        "kallsyms_token_index": 2 * TOKENS,
        # "kallsyms: Improve the performance of kallsyms_lookup_name()" (60443c88f3a8, v6.2)
        "kallsyms_seqs_of_names": 3 * found.count,
    }
    parts = {name: found.address(name) or where.get(name, 0) for name in sizes}
    return [min(where.values()), max(at + sizes[name] for name, at in parts.items())]


def _address(vmcoreinfo: Mapping[str, str], name: str) -> int:
    """
    Address of a symbol by VMCOREINFO: one of the kernel's, with room after it.

    :raises NoDebugInfoError: it says something else, or nothing.
    """
    said = vmcoreinfo.get(f"SYMBOL({name})", "")
    address = int(said, 16) if re.fullmatch("[0-9a-f]{16}", said) else 0
    if not 1 << 63 <= address < (1 << 64) - MOST_BEHIND:
        raise NoDebugInfoError(
            f"VMCOREINFO is damaged: {cut(said, 40) or 'nothing'} is no address of {name}"
        )
    return address


def _addresses(offsets: NDArray[np.int64], offsets_at: int, base: int | None) -> NDArray[np.uint64]:
    """
    Addresses out of ``kallsyms_offsets``.

    Each is relative to its own place where there is no kallsyms_relative_base ("kallsyms: Get rid
    of kallsyms relative base", a081b5789255, in v7.0). Before, they are relative to that, except
    that per-CPU symbols of x86 are absolute then, which makes the others negative
    (CONFIG_KALLSYMS_ABSOLUTE_PERCPU).
    """
    if base is None:
        places = np.uint64(offsets_at) + 4 * np.arange(len(offsets), dtype=np.uint64)
        return places + offsets.astype(np.uint64)
    if np.count_nonzero(offsets < 0) * 2 > len(offsets):
        relative = np.uint64(base) + (-1 - offsets).astype(np.uint64)
        return np.where(offsets < 0, relative, offsets.astype(np.uint64))
    return np.uint64(base) + offsets.astype(np.uint32).astype(np.uint64)


def packed(text: bytes, pairs: Mapping[int, bytes]) -> bytes:
    """A name with its letter, as ``compress_symbols()`` (scripts/kallsyms.c) packs it."""
    for code, pair in pairs.items():
        text = text.replace(pair, bytes([code]))
    return text


def _tokens(prog: Program, table: int, index: int) -> tuple[list[bytes], dict[int, bytes]]:
    """The text that each of the 256 bytes of a packed name stands for, and of which two it is."""
    places = np.frombuffer(prog.read(index, 2 * TOKENS), dtype="u2").tolist()
    text = prog.read(table, max(places) + 64)
    tokens = [text[place : text.find(b"\0", place)] for place in places]
    if any(not token or len(token) > 64 for token in tokens):
        raise _damaged("its tokens have no end")
    lengths = np.array([len(token) + 1 for token in tokens])
    if not np.array_equal(places, np.cumsum(lengths) - lengths):
        raise _damaged("its tokens are not where kallsyms_token_index has them")
    # A character stands for itself; all else for two others, the last code first
    # (optimize_result(), scripts/kallsyms.c, 5.10 to 7.3).
    pairs: dict[int, bytes] = {}
    for code in reversed(range(TOKENS)):
        if (token := tokens[code]) != bytes([code]):
            pairs[code] = packed(token, pairs)
            if len(pairs[code]) != 2:
                raise _damaged(f"token {code} is {token!r}, which no others make up")
    return tokens, pairs


def _names(
    prog: Program, address: int, count: int
) -> tuple[bytes, NDArray[np.uint32], NDArray[np.uint32]]:
    """The packed names, and where each begins and ends."""
    data, at = bytearray(), 0
    heads, long = array("I"), array("I")
    while len(heads) < count:
        # Read as far as needed: nothing says how long it is.
        if len(data) > MAX_NAME_BYTES:
            raise _damaged("its names have no end")
        more = _read_some(prog, address + len(data))
        data += more
        # A name may reach into what comes next.
        stop = len(data) - (1 << 15) if more else len(data) - 1
        if at >= stop and not more:
            raise _damaged("its names end too soon")
        for _ in range(count - len(heads)):
            if at >= stop:
                break
            heads.append(at)
            if (length := data[at]) < 0x80:
                at += length + 1
            else:
                long.append(len(heads) - 1)
                at += (length & 0x7F | data[at + 1] << 7) + 2
    # Before each is its length, in a byte or two.
    starts = np.frombuffer(heads, np.uint32) + np.uint32(1)
    ends = np.append(starts[1:] - np.uint32(1), np.uint32(min(at, len(data))))
    _hold_against_markers(prog, address, starts - np.uint32(1), int(ends[-1]))
    starts[np.frombuffer(long, np.uint32)] += np.uint32(1)
    if np.any(ends <= starts) or np.any(ends - starts > KSYM_NAME_LEN):
        raise _damaged("names are empty, or too long")
    return bytes(data[: ends[-1]]), starts, ends


def _hold_against_markers(
    prog: Program, address: int, heads: NDArray[np.uint32], length: int
) -> None:
    """
    Compare where names begin with what ``kallsyms_markers`` says, which follows them.

    It begins at a multiple of 4 since "kallsyms: Get rid of kallsyms relative base" (a081b5789255,
    in v7.0), before of 8 (``output_label()``, scripts/kallsyms.c).

    :raises NoDebugInfoError: a length is damaged, from which on all names are others.
    """
    wanted = heads[::NAMES_A_MARKER].astype("<u4").tobytes()
    places = {address + length + each - 1 & -each for each in (4, 8)}
    if all(read_bytes(prog, place, len(wanted)) != wanted for place in places):
        raise _damaged("names are not where kallsyms_markers has them")


def _read_some(prog: Program, address: int) -> bytes:
    """A chunk of memory, or what there is of it up to the end of its page."""
    for size in (CHUNK, 4096 - address % 4096):
        with contextlib.suppress(FaultError):
            return bytes(read_bytes(prog, address, size))
    return b""


def symbols_of_text(text: bytes) -> KernelSymbols:
    """
    The symbols of a /proc/kallsyms, modules left out.

    :raises SymbolsHidden: its addresses are hidden.
    :raises NoDebugInfoError: it is something else.
    """
    found = re.findall(rb"^([0-9a-f]{8,16}) (\w) ([^\s\[]+)$", text, re.MULTILINE)
    if not found:
        raise NoDebugInfoError("/proc/kallsyms has no symbols (CONFIG_KALLSYMS)")
    addresses = np.array([int(address, 16) for address, _, _ in found], dtype=np.uint64)
    if not addresses.any():
        raise SymbolsHidden(
            "/proc/kallsyms hides its addresses: only root may see them, or none may where "
            "kernel.kptr_restrict is 2"
        )
    names = [code + name for _, code, name in found]
    ends = np.cumsum([len(name) for name in names], dtype=np.uint32)
    starts = np.append(np.uint32(0), ends[:-1])
    symbols = KernelSymbols(addresses, b"".join(names), starts, ends)
    if MARK in text:
        symbols.take_in_statics_of_lto()
    return _checked(symbols, {})


def _checked(found: KernelSymbols, vmcoreinfo: Mapping[str, str]) -> KernelSymbols:
    """
    The table, held against the symbols that VMCOREINFO has by itself.

    :raises NoDebugInfoError: they contradict each other.
    """
    if np.any(found.addresses[1:] < found.addresses[:-1]):
        # scripts/kallsyms.c sorts them (5.10 to 7.3).
        raise _damaged("its addresses do not ascend")
    # Not all: VMCOREINFO has the value of mem_section, where that is a pointer, for its address.
    for name in ("_stext", "init_uts_ns"):
        said, here = vmcoreinfo.get(f"SYMBOL({name})"), found.address(name)
        if name == "init_uts_ns" and not found.indexes(name):
            continue  # a variable: without CONFIG_KALLSYMS_ALL there are functions only
        if said is not None and said.lstrip("0") != f"{here or 0:x}":
            raise _damaged(f"{name} is at {here or 0:#x}, and at 0x{said} by VMCOREINFO")
    return found
