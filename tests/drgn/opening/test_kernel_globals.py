# SPDX-License-Identifier: LGPL-2.1-or-later
"""Globals of a kernel without debug info: declared, not declared, several of a name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from btf_blobs import BtfBlob
from drgn import Architecture, Platform, Program

from mmscope.drgn.opening import NoDebugInfoError, UndeclaredError
from mmscope.drgn.opening import kernel_globals as module
from mmscope.drgn.opening.btf import FUNC, FUNC_PROTO, VAR, Btf
from mmscope.drgn.opening.kernel_globals import KernelGlobals, declare, declare_from
from mmscope.drgn.opening.kernel_symbols import symbols_of_text

TEXT = b"""\
ffffffff81000000 T _stext
ffffffff81000100 T schedule
ffffffff81000200 t show
ffffffff81000300 t show
ffffffff81001000 T _etext
ffffffff82000000 D panic_timeout
ffffffff82000004 d table
ffffffff82000104 d debug
ffffffff82000108 d debug
ffffffff8200010c d shared
ffffffff82000110 D shared
ffffffff82000114 D pcpu
ffffffff82000118 D jiffies
ffffffff82000120 B pointers
ffffffff82000220 B _end
"""


@pytest.fixture
def prog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setattr(module, "ADDED", {})
    made = Program(Platform(Architecture.X86_64))
    blob = BtfBlob()
    integer = blob.integer("int", 4)
    blob.integer("char", 1)
    blob.integer("unsigned long", 8, signed=False)
    blob.add(FUNC, "schedule", 0, blob.add(FUNC_PROTO, size_or_type=0))
    blob.add(VAR, "pcpu", 0, integer, [1])
    types = Btf(made, blob.blob())
    made.register_type_finder("btf", types.find_type, enable_index=0)
    found = KernelGlobals(types, symbols_of_text(TEXT))
    made.register_object_finder("known", found.find, enable_index=0)
    made.register_object_finder("unknown", found.complain, enable_index=-1)
    yield made


def test_what_is_not_declared_is_loud_and_gives_the_line_that_helps(prog: Program) -> None:
    assert not issubclass(UndeclaredError, LookupError)
    with pytest.raises(UndeclaredError) as caught:
        prog["panic_timeout"]
    line = str(caught.value)
    assert "\n" not in line
    assert "declare('panic_timeout', 'TYPE')" in line
    assert "Object(prog, 'TYPE', address=0xffffffff82000000)" in line


def test_who_catches_a_lookup_error_does_not_swallow_it(prog: Program) -> None:
    with pytest.raises(UndeclaredError):
        try:
            prog.variable("panic_timeout")
        except LookupError:
            pytest.fail("it would be taken for an older kernel")


def test_what_the_kernel_does_not_have_stays_a_lookup_error(prog: Program) -> None:
    with pytest.raises(LookupError, match="could not find"):
        prog["no_such_variable"]
    with pytest.raises(LookupError, match="could not find"):
        prog.constant("panic_timeout")
    with pytest.raises(LookupError, match="could not find"):
        prog.variable("schedule")


def test_declared_it_is_there_at_once_also_where_it_was_asked_for_before(prog: Program) -> None:
    with pytest.raises(UndeclaredError):
        prog["panic_timeout"]
    declare("panic_timeout", "int")
    assert str(prog["panic_timeout"].type_) == "int"
    assert prog["panic_timeout"].address_ == 0xFFFFFFFF82000000
    declare("panic_timeout", "char [4]")
    assert prog["panic_timeout"].type_.length == 4


@pytest.mark.parametrize("name", ["panic_timeout", "debug", "shared", "pcpu", "jiffies", "show"])
def test_in_says_what_the_kernel_has(prog: Program, name: str) -> None:
    assert name in prog
    assert "no_such_variable" not in prog


def test_dimensions_are_in_the_order_of_c(prog: Program) -> None:
    for declared in ("int [8][4]", "int[8][4]", "int [8] [4]"):
        declare("table", declared)
        assert (prog["table"].type_.length, prog["table"][0].type_.length) == (8, 4)
    declare("pointers", "char *[4][8]")
    assert (prog["pointers"].type_.length, prog["pointers"][0].type_.length) == (4, 8)
    assert prog["pointers"].type_.type_name() == prog.type("char *[4][8]").type_name()


def test_what_cannot_begin_where_its_symbol_is_is_said(prog: Program) -> None:
    declare("table", "char *[4]")
    with pytest.raises(UndeclaredError, match=r"char \*\[4\], which cannot begin at 0x\w+004:"):
        prog["table"]


def test_room_is_a_length_of_what_is_outermost(prog: Program) -> None:
    declare("table", "int [room][4]")
    assert (prog["table"].type_.length, prog["table"][0].type_.length) == (16, 4)


@pytest.mark.parametrize(
    "type_", ["unsigned lnog", "struct nothing", "int [NO_SUCH]", "int *(", "1"]
)
def test_what_is_no_type_is_said_with_what_was_declared(prog: Program, type_: str) -> None:
    declare("panic_timeout", type_)
    with pytest.raises(UndeclaredError, match=r"panic_timeout is declared .*, which is no type of"):
        prog["panic_timeout"]


def test_what_is_larger_than_its_room_is_said(prog: Program) -> None:
    declare("panic_timeout", "unsigned long")
    with pytest.raises(UndeclaredError, match="has room for 4 bytes only"):
        prog["panic_timeout"]


def test_statics_of_several_files_are_said_to_be(prog: Program) -> None:
    declare("debug", "int")
    for name, places in (
        ("debug", "0xffffffff82000104, 0xffffffff82000108"),
        ("show", "0xffffffff81000200, 0xffffffff81000300"),
    ):
        with pytest.raises(UndeclaredError, match=rf"2 files .* at {places}"):
            prog[name]


def test_the_one_that_is_no_static_is_meant(prog: Program) -> None:
    declare("shared", "int")
    assert prog["shared"].address_ == 0xFFFFFFFF82000110


def test_what_btf_has_needs_no_declaration(prog: Program) -> None:
    assert str(prog["pcpu"].type_) == "int"
    assert prog["schedule"].address_ == 0xFFFFFFFF81000100


def test_declarations_may_be_in_a_file(prog: Program, tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text('[globals]\npanic_timeout = "int"\ntable = "char [256]"\n')
    assert declare_from(file) == 2
    assert str(prog["panic_timeout"].type_) == "int"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no table .globals. of lines name"),
        ("globals = 5", "no table"),
        ("[globals]\nx = 5", "the type of x must be text"),
        ('[globals]\n"a b" = "int"', "'a b' is no name of a global"),
        ("[globals", "more.toml: "),
        ("\0", "more.toml: "),
        ("x = " + "[" * 9999, "more.toml: maximum recursion"),
    ],
)
def test_a_file_of_something_else_is_said_in_a_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "more.toml"
    file.write_text(text)
    with pytest.raises(NoDebugInfoError, match=why) as caught:
        declare_from(file)
    assert "\n" not in str(caught.value)
