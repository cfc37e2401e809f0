# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines and inline sites of kernels that are not released: blobs made as the series say."""

import itertools
import struct
from collections.abc import Mapping, Sequence

import pytest
from btf_blobs import BtfBlob
from drgn import Architecture, Platform, Program, Symbol, SymbolBinding, SymbolKind

from mmscope.drgn.machine.kernel_features import reserves_from_buddy_only
from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import FUNC, FUNC_PROTO, LOCSEC
from mmscope.drgn.opening.source_places import inline_sites, inlined_into, source_line

TEXT, TABLES = 0xFFFFFFFF81000000, 0xFFFFFFFF82000000
FUNCTIONS = {"_text": 0, "_stext": 0, "first": 0x1000, "second": 0x1800, "last": 0x9000}
LOC_PARAM, LOC_PROTO = 20, 21
LAYOUT = {LOC_PARAM: (4, 4), LOC_PROTO: (0, 4), LOCSEC: (0, 12)}
FILES = ["mm/page_alloc.c", "include/linux/mm.h"]


def program(parts: Mapping[str, bytes]) -> Program:
    """A kernel with functions, and with memory that symbols begin."""
    prog = Program(Platform(Architecture.X86_64))
    symbols, at = [], TABLES
    for name, data in parts.items():
        symbols.append((name, at, len(data)))
        if data:
            prog.add_memory_segment(at, len(data), lambda a, n, o, p, data=data: data[o : o + n])
        at += (len(data) + 4095) // 4096 * 4096 if not name.startswith("__start") else len(data)
    symbols += [(name, TEXT + offset, 0x800) for name, offset in FUNCTIONS.items()]
    symbols.append(("_sinittext", TEXT + 0x10000, 0x800))
    made = [
        Symbol(name, address, size, SymbolBinding.GLOBAL, SymbolKind.OBJECT)
        for name, address, size in reversed(symbols)
    ]

    def find(prog: Program, name: str | None, address: int | None, one: bool) -> list[Symbol]:
        found = [
            symbol
            for symbol in made
            if (name is None or symbol.name == name)
            and (address is None or symbol.address <= address < symbol.address + symbol.size)
        ]
        return found[:1] if one else found

    prog.register_symbol_finder("made", find, enable_index=0)
    return prog


def number(value: int) -> bytes:
    """In LEB128."""
    out = b""
    while True:
        value, byte = value >> 7, value & 0x7F
        out += bytes([byte | (0x80 if value else 0)])
        if not value:
            return out


def signed(value: int) -> bytes:
    return number(-value * 2 - 1 if value < 0 else value * 2)


def tables(entries: Sequence[tuple[int, int, int]]) -> dict[str, bytes]:
    """What scripts/gen_lineinfo writes of (offset, file, line)."""
    data, begins, first = b"", [], []
    for at in range(0, len(entries), 64):
        block = entries[at : at + 64]
        begins.append(len(data))
        first.append(block[0][0])
        data += number(block[0][1]) + number(block[0][2])
        for before, entry in itertools.pairwise(block):
            data += number(entry[0] - before[0])
            data += signed(entry[1] - before[1]) + signed(entry[2] - before[2])
    names = b"".join(name.encode() + b"\0" for name in FILES)
    offsets = [names.index(name.encode() + b"\0") for name in FILES]

    def words(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}I", *values)

    return {
        "lineinfo_num_entries": words(len(entries)),
        "lineinfo_num_files": words(len(FILES)),
        "lineinfo_num_blocks": words(len(begins)),
        "lineinfo_block_addrs": words(*first),
        "lineinfo_block_offsets": words(*begins),
        "lineinfo_data_size": words(len(data)),
        "lineinfo_data": data,
        "lineinfo_file_offsets": words(*offsets),
        "lineinfo_filenames_size": words(len(names)),
        "lineinfo_filenames": names,
    }


# Three blocks; a line before the last, a file before the last.
ENTRIES = [(0x1000 + 16 * at, at % 2, 5000 - 7 * at) for at in range(150)]


class TestLines:
    @pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 127])
    @pytest.mark.parametrize("within", [0, 15])
    def test_each_is_that_of_the_last_entry_before(self, at: int, within: int) -> None:
        prog = program(tables(ENTRIES))
        offset, file, line = ENTRIES[at]
        assert source_line(prog, TEXT + offset + within) == (FILES[file], line)

    def test_another_functions_line_is_none_of_this_one(self) -> None:
        prog = program(tables(ENTRIES))
        assert ENTRIES[-1][0] < FUNCTIONS["last"]
        assert source_line(prog, TEXT + FUNCTIONS["last"] + 4) is None

    def test_what_is_no_code_has_none(self) -> None:
        prog = program(tables(ENTRIES))
        for address in (0, TEXT + 8, TEXT + 0x20000):
            assert source_line(prog, address) is None

    def test_a_kernel_without_has_none(self) -> None:
        assert source_line(program({}), TEXT + 0x1000) is None

    @pytest.mark.parametrize(
        ("table", "data", "words"),
        [
            ("num_entries", b"\0\1\0\0", "not as many entries"),
            ("num_blocks", b"\2\0\0\0", "not as many entries"),
            ("block_offsets", b"\xff\xff\0\0" * 3, "lies beyond its end"),
            ("data", b"\xff" * 1000, "a number has no end"),
            ("data_size", b"\1\0\0\0", "lies beyond its end"),
            ("num_files", b"\0\0\0\0", "there is no file"),
            ("filenames_size", b"\0\0\0\0", "lies beyond its end"),
            ("filenames", b"x" * 64, "has no end"),
        ],
    )
    def test_damage_is_said(self, table: str, data: bytes, words: str) -> None:
        prog = program(tables(ENTRIES) | {f"lineinfo_{table}": data})
        with pytest.raises(NoDebugInfoError, match=f"table of lines is damaged: .*{words}"):
            source_line(prog, TEXT + ENTRIES[2][0])


def inline(
    sites: Sequence[tuple[str, int]], section: str = ".text", layout: object = LAYOUT
) -> dict[str, bytes]:
    """The kernel's BTF, and that of functions that were inlined in it."""
    base = BtfBlob()
    integer = base.integer("int", 4)
    proto = base.add(FUNC_PROTO, size_or_type=integer)
    base.add(FUNC, "not_inlined", 0, proto)
    both = BtfBlob()
    both.types, both.names, both.count = base.types, base.names, base.count
    parameter = both.add(LOC_PARAM, "", 2, 4, [8, 5, 0])
    locations = both.add(LOC_PROTO, "", 1, 0, [parameter])
    functions = {name: both.add(FUNC, name, 0, proto) for name, _ in sites}
    tail = [word for name, at in sites for word in (functions[name], locations, at)]
    both.add(LOCSEC, section, len(sites), 0, tail)
    split = BtfBlob()
    split.types, split.names = both.types[len(base.types) :], both.names[len(base.names) :]
    kinds = layout if isinstance(layout, dict) else None
    return {
        "__start_BTF": base.blob(),
        "__stop_BTF": b"",
        "__start_BTF_inline": split.blob(kinds),
        "__stop_BTF_inline": b"",
    }


class TestInlineSites:
    def test_each_has_its_function_and_its_address(self) -> None:
        prog = program(inline([("small", 0x1810), ("other", 0x1004)]))
        found = inline_sites(prog)
        assert found is not None
        assert [(site.function, site.address - TEXT) for site in found] == [
            ("other", 0x1004),
            ("small", 0x1810),
        ]
        assert inlined_into(prog, "small", ["first", "second", "absent"]) == ["second"]

    @pytest.mark.parametrize(
        ("section", "begin"), [("inline.text", 0), (".init.text", 0x10000), (".mystery", None)]
    )
    def test_of_other_sections(self, section: str, begin: int | None) -> None:
        found = inline_sites(program(inline([("small", 16)], section)))
        assert found is not None
        assert [site.address - TEXT for site in found] == ([] if begin is None else [begin + 16])

    def test_a_kernel_without_has_none(self) -> None:
        assert inline_sites(program({})) is None
        assert inlined_into(program({}), "small", ["first"]) is None

    def test_another_form_of_them_is_not_guessed(self) -> None:
        """As the series had it a year before."""
        layout = LAYOUT | {LOCSEC: (0, 16)}
        with pytest.raises(NoDebugInfoError):
            inline_sites(program(inline([("small", 16)] * 4, layout=layout)))

    def test_without_a_layout_they_are_refused(self) -> None:
        with pytest.raises(NoDebugInfoError, match="kind 20, which is not known here"):
            inline_sites(program(inline([("small", 16)], layout=None)))

    def test_a_feature_is_told_by_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """highatomic_buddy_only, which no BTF of today tells."""
        monkeypatch.setitem(FUNCTIONS, "rmqueue_buddy", 0x3000)
        monkeypatch.setitem(FUNCTIONS, "get_page_from_freelist", 0x4000)
        name = "reserve_highatomic_pageblock"
        for at, expected in ((0x3010, True), (0x4010, False), (0x9010, None)):
            assert reserves_from_buddy_only(program(inline([(name, at)]))) is expected
