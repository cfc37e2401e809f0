# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a symbol ends: at the next one, at the end of its section, at what nothing names."""

import numpy as np
import pytest
from drgn import Architecture, Platform, Program, Symbol, SymbolBinding, SymbolKind

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.kernel_symbols import (
    KernelSymbols,
    packed,
    symbols_of_core,
    symbols_of_text,
)
from mmscope.drgn.reading.symbols import SymbolTable, symbol_table

# As x86 before 6.15: per-CPU variables are a section of their own, at 0.
TEXT = """\
0000000000000000 A fixed_percpu_data
0000000000001000 A runqueues
0000000000002000 A __per_cpu_end
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000100 T schedule
ffffffff81000200 T __entry_text_end
ffffffff81000f00 T srso_alias_safe_ret
ffffffff81001000 T __stop_tty
ffffffff81001100 T _etext
ffffffff82000000 D __start_rodata
ffffffff82000000 d linux_banner
ffffffff82008000 d IV
ffffffff82009000 R __start___ksymtab
ffffffff82009000 R __stop_notes
ffffffff82009100 R __stop___ksymtab
ffffffff82009100 D __end_rodata
ffffffff82100000 D init_stack
ffffffff82104000 D _edata
ffffffff82105000 B __bss_stop
ffffffff82106000 B _end
ffffffff82800000 D __init_scratch_begin
ffffffff82c00000 D __init_scratch_end
"""
PROG = Program(Platform(Architecture.X86_64))


@pytest.fixture(scope="module")
def symbols() -> KernelSymbols:
    found = symbols_of_text(TEXT.encode())
    found.nameless = [0xFFFFFFFF82001000, 0xFFFFFFFF82003000]
    return found


def at(symbols: KernelSymbols, address: int) -> list[str]:
    return [symbol.name for symbol in symbols.find(PROG, None, address, False)]


@pytest.mark.parametrize(
    "address", [0, 8, 0x1000, 0x1FFF, 0x2000, 0x402050, 0x7F0000001000, 0xFFFF888000000000]
)
def test_what_is_not_in_the_image_has_no_symbol(symbols: KernelSymbols, address: int) -> None:
    assert at(symbols, address) == []


@pytest.mark.parametrize("address", [0xFFFFFFFF82106000, 0xFFFFFFFF82800008, 0xFFFFFFFF82C00000])
def test_nor_has_what_is_behind_it(symbols: KernelSymbols, address: int) -> None:
    assert at(symbols, address) == []


@pytest.mark.parametrize(
    "address",
    [0xFFFFFFFF81000201, 0xFFFFFFFF81001200, 0xFFFFFFFF82009101, 0xFFFFFFFF820FFFFF,
     0xFFFFFFFF82104100],
)  # fmt: skip
def test_the_end_of_a_section_reaches_nowhere(symbols: KernelSymbols, address: int) -> None:
    assert at(symbols, address) == []


def test_it_is_found_where_it_is(symbols: KernelSymbols) -> None:
    assert at(symbols, 0xFFFFFFFF81001100) == ["_etext"]
    assert at(symbols, 0xFFFFFFFF82009100) == ["__stop___ksymtab", "__end_rodata"]


def test_what_begins_where_another_ends_has_its_room(symbols: KernelSymbols) -> None:
    assert at(symbols, 0xFFFFFFFF82009080) == ["__start___ksymtab"]


def test_a_function_of_such_a_name_is_one(symbols: KernelSymbols) -> None:
    assert at(symbols, 0xFFFFFFFF81001080) == ["__stop_tty"]


def test_a_symbol_ends_at_what_nothing_names(symbols: KernelSymbols) -> None:
    assert at(symbols, 0xFFFFFFFF82000FFF) == ["__start_rodata", "linux_banner"]
    for nameless in (0xFFFFFFFF82001000, 0xFFFFFFFF82003000, 0xFFFFFFFF82007FFF):
        assert at(symbols, nameless) == []
    assert at(symbols, 0xFFFFFFFF82008000) == ["IV"]


def test_by_name_a_per_cpu_variable_has_its_offset_and_its_room(symbols: KernelSymbols) -> None:
    (runqueues,) = symbols.find(PROG, "runqueues", None, True)
    assert (runqueues.address, runqueues.size) == (0x1000, 0x1000)
    (end,) = symbols.find(PROG, "__per_cpu_end", None, True)
    assert (end.address, end.size) == (0x2000, 0)


def test_no_frame_is_named_after_the_end_of_a_section(symbols: KernelSymbols) -> None:
    table = SymbolTable(symbols.in_order, symbols.room, symbols.symbol)
    assert table.function(0xFFFFFFFF81000180) == "schedule"
    assert table.function(0xFFFFFFFF81000280) is None


def test_a_label_of_a_file_with_debug_info_reaches_to_the_next() -> None:
    label, after = (
        Symbol(name, address, size, SymbolBinding.GLOBAL, SymbolKind.FUNC)
        for name, address, size in (("label", 0x1000, 0), ("after", 0x1040, 16))
    )
    table = symbol_table([after, label])
    assert [table.function(address) for address in (0x103F, 0x104F, 0x1050)] == [
        *("label", "after", None),
    ]


@pytest.mark.parametrize("name", ["$x", "$d.12", ".Ltmp3"])
def test_a_label_of_the_assembler_names_nothing(name: str) -> None:
    function, label = (
        Symbol(name, address, size, SymbolBinding.LOCAL, SymbolKind.FUNC)
        for name, address, size in (("function", 0x1000, 0x80), (name, 0x1040, 0))
    )
    assert symbol_table([label, function]).function(0x1044) == "function"


def by_name(text: str, order: list[str]) -> KernelSymbols:
    """The symbols of a text, in the order that their names had when the kernel was built."""
    found = symbols_of_text(text.encode())
    names = [line.split()[2] for line in text.splitlines()]
    found.by_name = np.array([names.index(name) for name in order], np.uint32)
    return found


def test_a_name_that_none_has_is_not_there() -> None:
    order = sorted(line.split()[2] for line in TEXT.splitlines())
    found = by_name(TEXT, order)
    for name in ("A", "_aaa", "schedule_", "zzz", "linux_bannes", "no_such_name"):
        assert found.indexes(name) == ()
    assert all(len(found.indexes(name)) == 1 for name in order)


@pytest.mark.parametrize("damaged", ["Lchedule", "\x7fchedule", "zchedule", "rchedule"])
def test_one_whose_name_may_be_damaged_is_not_said_to_be_missing(damaged: str) -> None:
    names = sorted(line.split()[2] for line in TEXT.splitlines())
    order = [damaged if name == "schedule" else name for name in names]
    found = by_name(TEXT.replace("schedule", damaged), order)
    with pytest.raises(NoDebugInfoError, match="whether it has schedule is unknown"):
        found.indexes("schedule")
    assert found.indexes("init_stack")


# Two codes of each, the last first, as scripts/kallsyms.c makes them.
PAIRS = {0xFF: b"he", 0xFE: b"sc", 0xFD: b"\xfe\xff", 0xFC: b"le"}
TOKENS = [*(bytes([code]) for code in range(0xFC)), b"le", b"sche", b"sc", b"he"]


def packed_table(*names: bytes) -> KernelSymbols:
    """A table of packed names, as no kernel before 6.2 orders them."""
    ends = np.cumsum([len(name) for name in names], dtype=np.uint32)
    starts = np.append(np.uint32(0), ends[:-1])
    addresses = np.arange(len(names), dtype=np.uint64)
    return KernelSymbols(addresses, b"".join(names), starts, ends, TOKENS, pairs=PAIRS)


def test_names_are_packed_as_the_kernel_packs_them() -> None:
    assert packed(b"Tschedule", PAIRS) == b"T\xfddu\xfc"
    assert packed_table(b"T\xfddu\xfc").indexes("schedule") == (0,)


@pytest.mark.parametrize(
    ("wanted", "damaged"),
    [
        ("schedule", b"Tschedulf"),  # a token is damaged, so that it is not packed
        ("hsc", b"The"),  # a byte is: it was T, h and the token of sc
    ],
)
def test_a_name_is_not_missing_if_one_may_be_it_with_a_damaged_byte(
    wanted: str, damaged: bytes
) -> None:
    found = packed_table(b"T\xff", damaged)
    with pytest.raises(NoDebugInfoError, match=f"whether it has {wanted} is unknown, as"):
        found.indexes(wanted)
    assert found.indexes("no_such_name") == ()


@pytest.mark.parametrize("other", [b"T\xfddu\xfd", b"T\xfddx\xfc"])
def test_a_name_that_is_packed_as_it_should_be_is_another(other: bytes) -> None:
    """text_poke_bp is not text_poke_mm with a damaged byte."""
    assert packed_table(b"T\xff", other).indexes("schedule") == ()


def kallsyms(names: list[str], align: int) -> tuple[Program, dict[str, str]]:
    """
    A dump that has a symbol table as scripts/kallsyms.c writes it since v7.0, names not packed.

    :param align: where its parts begin.
    """
    begin = 0xFFFFFFFF82000000
    texts = [f"T{name}".encode() for name in names]
    tokens = [b"??", *(b"%c" % code for code in range(1, 256))]
    starts = np.cumsum([0, *(len(token) + 1 for token in tokens[:-1])])
    heads = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1][::256]
    memory, where = b"", {}

    def put(name: str, data: bytes) -> None:
        nonlocal memory
        memory += bytes(-len(memory) % align)
        where[name] = f"{begin + len(memory):016x}"
        memory += data

    put("kallsyms_num_syms", np.uint32(len(names)).tobytes())
    put("kallsyms_names", b"".join(b"%c" % len(text) + text for text in texts))
    put("markers", heads.astype("<u4").tobytes())
    put("kallsyms_token_table", b"".join(token + b"\0" for token in tokens))
    put("kallsyms_token_index", starts.astype("<u2").tobytes())
    at = np.arange(len(names))
    put("kallsyms_offsets", (-0x1000000 + 256 * at - 4 * at - len(memory)).astype("<i4").tobytes())
    prog = Program(Platform(Architecture.X86_64))
    memory += bytes(1 << 16)
    prog.add_memory_segment(
        begin, len(memory), lambda address, size, offset, physical: memory[offset : offset + size]
    )
    del where["markers"]
    return prog, {f"SYMBOL({name})": address for name, address in where.items()}


@pytest.mark.parametrize("align", [4, 8])
@pytest.mark.parametrize("longer", range(8))
def test_the_parts_of_the_table_may_begin_at_a_multiple_of_4(align: int, longer: int) -> None:
    """Since v7.0 (a081b5789255), where they happened to be at one of 8 before."""
    names = ["_stext", *(f"function_{number}" for number in range(600)), "x" * (1 + longer)]
    prog, said = kallsyms(names, align)
    said["SYMBOL(_stext)"] = f"{0xFFFFFFFF81000000:016x}"
    found = symbols_of_core(prog, said)
    assert found.count == 602 and found.address("function_1") == 0xFFFFFFFF81000200
