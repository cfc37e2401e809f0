# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A kernel read by its own BTF and kallsyms, held against the same kernel read by its debug info:
every section's status and every cell, every declared type, every symbol's address.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import itertools
import pkgutil
import random
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import children
import drgn.helpers.linux
import kernels
import pytest
from btf_flips import HARMLESS, NOTICED, SILENT, flips, of_a_later_kernel
from capture import Capture, capture
from conftest import FUNCTIONS_ONLY, KERNELS, STANDS_ON, WITHOUT_BTF, Lab, fragment_lab
from drgn import (
    Architecture,
    FindObjectFlags,
    Object,
    Platform,
    Program,
    ProgramFlags,
    SymbolKind,
    Type,
    TypeKind,
    TypeKindSet,
    sizeof,
)
from drgn.commands import CommandArgumentError, run_command
from dump_formats import makedumpfile, plain_elf
from symbol_flips import symbol_flips

from mmscope.drgn.opening import UndeclaredError, kernel_globals, no_debug_info
from mmscope.drgn.opening.btf import INT, PTR, STRUCT, TYPEDEF, Btf
from mmscope.drgn.opening.declared_globals import ANONYMOUS, DECLARED, DIFFER, FUNCTIONS
from mmscope.drgn.opening.kernel_globals import KernelGlobals
from mmscope.drgn.opening.kernel_symbols import (
    KernelSymbols,
    symbols_of_core,
    tables_of,
)
from mmscope.drgn.opening.known_types import unlike_known
from mmscope.drgn.opening.no_debug_info import NoDebugInfoError, attach, vmcoreinfo
from mmscope.drgn.opening.target import TargetError, open_target
from mmscope.drgn.reading.symbols import module_symbols
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

ROOT = Path(__file__).resolve().parents[2]
BRIEF = pytest.param(
    "sizes", marks=[pytest.mark.brief, pytest.mark.any_config, pytest.mark.any_kernel]
)
WORKLOADS = ("fragment", "slab", "rmap", "tables", BRIEF, "vmemmap", "kept")
READABLE = [name for name in KERNELS if name not in FUNCTIONS_ONLY | WITHOUT_BTF]
# Features told by functions that may be inlined, of which only DWARF knows.
IN_CODE = {"highatomic_buddy_only", "highatomic_fast_path"}
Reading = dict[str, tuple[str, str | None, dict[str, list[Any]]]]


def bare(core: Path) -> Program:
    """A vmcore without any symbols."""
    prog = Program()
    prog.set_core_dump(core)
    return prog


def changed(core: Path, address: int, byte: int) -> Program:
    """A vmcore in which a byte is another."""
    prog = bare(core)
    prog.add_memory_segment(address, 1, lambda *_: bytes([byte]))
    return prog


def empty() -> Program:
    """A program without memory, to build types in."""
    return Program(Platform(Architecture.X86_64))


def own(core: Path) -> Program:
    """A vmcore with what the kernel says of itself."""
    prog = bare(core)
    attach(prog)
    return prog


def read(prog: Program) -> Reading:
    """Status, message and tables of every section."""
    memory, found = Memory(prog), {}
    for spec in SECTIONS.values():
        section, tables = run_section(spec, memory)
        rows = tables.by_name
        assert rows.keys() <= {table.name for table in spec.tables}
        for name in rows.keys() & {"kernel_features"}:
            rows[name] = [row for row in rows[name] if row.feature not in IN_CODE]
        for name in rows.keys() & {"reclaim_threads"}:
            # Only DWARF knows what is inlined; without it no task of arm64 unwinds.
            rows[name] = [dataclasses.replace(row, stack=None) for row in rows[name]]
        found[spec.name] = section.status, section.message, rows
    return found


def cells(reading: Reading) -> int:
    return sum(
        len(dataclasses.fields(row))
        for _, _, tables in reading.values()
        for rows in tables.values()
        for row in rows
    )


@pytest.fixture(scope="module", params=READABLE)
def kernel(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=READABLE)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Lab:
    """The ``fragment`` workload on a kernel."""
    return fragment_lab(request.param, say)


# Where no kernel of the run is of this kind there is nothing to test, and nothing to skip.
if FUNCTIONS_ONLY.intersection(KERNELS):

    @pytest.mark.parametrize("functions_only", sorted(FUNCTIONS_ONLY.intersection(KERNELS)))
    def test_names_of_functions_alone_are_said_in_a_line(
        functions_only: str, say: Callable[[str], None]
    ) -> None:
        core = capture(functions_only, "fragment", say=say).vmcore
        with pytest.raises(NoDebugInfoError, match=r"no variables \(CONFIG_KALLSYMS_ALL\)"):
            attach(bare(core))
        with pytest.raises(TargetError, match=r"give --symbols VMLINUX; .*CONFIG_KALLSYMS_ALL"):
            open_target(core)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_cell_is_as_with_debug_info(
    kernel: str, workload: str, say: Callable[[str], None]
) -> None:
    taken = capture(kernel, workload, say=say)
    ours = read(own(taken.vmcore))
    with_dwarf = read(open_target(taken.vmcore, [taken.vmlinux]))
    if "LTO" in kernels.about(kernel):
        # ksm_scan, a static, is taken apart there: its parts have no names.
        totals = with_dwarf["ksm"][2]["ksm_totals"]
        totals[:] = [row for row in totals if row.name != "full_scans"]
    for name, section in with_dwarf.items():
        assert ours[name][:2] == section[:2], name
        for table, rows in section[2].items():
            assert ours[name][2][table] == rows, table
        assert section[0] in ("ok", "absent"), (name, section[1])  # with no value that cannot be
    say(f"{kernel} {workload}: {cells(ours):,} cells compared")
    assert cells(ours) == cells(with_dwarf) > 4000


@pytest.mark.x86  # makedumpfile 1.7.2 knows no addresses of 52 bits
@pytest.mark.any_kernel
def test_so_is_a_dump_that_makedumpfile_filtered(lab: Lab, tmp_path: Path) -> None:
    elf = plain_elf(lab.capture.vmcore, tmp_path / "elf")
    makedumpfile("-c", "-d", "31", elf, tmp_path / "kdump")
    elf.unlink()
    if not re.match(r"\d+\.\d+\.\d+", lab.capture.release):
        with pytest.raises(TargetError, match="does not understand the kernel's"):
            open_target(tmp_path / "kdump")
        return
    ours = read(open_target(tmp_path / "kdump"))
    with_dwarf = read(open_target(tmp_path / "kdump", [lab.capture.vmlinux]))
    assert ours == with_dwarf
    assert cells(ours) > 3000


class TestTypes:
    def test_every_declared_type_is_as_in_debug_info(self, lab: Lab) -> None:
        ours, dwarf = own(lab.capture.vmcore), lab.prog
        held = []
        for name in [*DECLARED, *DIFFER]:
            try:
                theirs = dwarf.variable(name)
            except LookupError:
                continue
            # On arm64 KVM's hypervisor has variables of its own under names of the kernel's.
            if lab.capture.architecture.name == "arm64" and not ours.symbols(name):
                continue
            if name == "pageblock_order" and not ours.symbols(name):
                continue  # pageblock_order() told the other of a constant
            if len(ours.symbols(name)) > 1:  # debug info has the first of them, whichever that is
                with contextlib.suppress(UndeclaredError):
                    assert spelled(ours.variable(name).type_) == spelled(theirs.type_)
                continue
            held.append(name)
            assert same(ours.variable(name), theirs), name
        assert len(held) > 220

    def test_structs_without_a_name_are_found_by_their_members(self, lab: Lab) -> None:
        for name in ANONYMOUS:
            try:
                theirs = lab.prog.variable(name)
            except LookupError:
                continue
            here = own(lab.capture.vmcore).variable(name)
            assert sizeof(here) == sizeof(theirs)
            assert [m.name for m in here.type_.members] == [m.name for m in theirs.type_.members]

    @pytest.mark.parametrize(
        "name",
        ["page", "zone", "mm_struct", "task_struct", "kmem_cache", "vm_area_struct", "hstate"],
    )
    def test_members_lie_where_debug_info_has_them(self, lab: Lab, name: str) -> None:
        ours, theirs = (
            own(lab.capture.vmcore).type(f"struct {name}"),
            lab.prog.type(f"struct {name}"),
        )
        assert ours.size == theirs.size
        assert [(m.name, m.bit_offset, m.bit_field_size) for m in ours.members] == [
            (m.name, m.bit_offset, m.bit_field_size) for m in theirs.members
        ]

    def test_a_declaration_in_the_debug_info_of_a_module_does_not_hide_one(self, lab: Lab) -> None:
        """A mock of such debug info, of which the lab's archives have none without the kernel's."""
        prog = bare(lab.capture.vmcore)

        def of_module(
            prog: Program, kinds: TypeKindSet, name: str, file: str | None
        ) -> Type | None:
            if TypeKind.STRUCT not in kinds or name not in ("files_struct", "only_here"):
                return None
            return prog.struct_type(name)

        prog.register_type_finder("module", of_module, enable_index=0)
        attach(prog)
        assert prog.type("struct files_struct").has_member("fdt")
        assert prog.type("struct only_here").size is None

    def test_a_global_that_is_not_declared_is_named(self, lab: Lab) -> None:
        with pytest.raises(UndeclaredError, match=r"declare\('panic_timeout', 'TYPE'\)"):
            own(lab.capture.vmcore)["panic_timeout"]
        with pytest.raises(LookupError, match="could not find"):
            own(lab.capture.vmcore)["no_such_variable"]


def frames(prog: Program, task: Object) -> dict[int, str | None]:
    """
    The functions of a task's stack by address, without those that were inlined. What an unwinder
    finds above a user's frame is no code: it has no name, and is left out.
    """
    found: dict[int, str | None] = {}
    try:
        trace = prog.stack_trace(task)
    except ValueError:  # it ran, and the dump has no registers of it
        return found
    for frame in trace:
        if not frame.is_inline:
            symbols = prog.symbols(frame.pc)
            if frame.pc >> 56 != 0xFF:
                assert not symbols, hex(frame.pc)
                continue
            found[frame.pc] = symbols[0].name if symbols else None
    return found


def test_a_session_declares_what_a_file_has(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drgn.commands import run_command

    monkeypatch.setattr(kernel_globals, "ADDED", {})
    more = tmp_path / "more.toml"
    more.write_text('[globals]\npanic_timeout = "int"\n')
    prog = bare(lab.capture.vmcore)
    run_command(prog, "no_debug_info")
    with pytest.raises(UndeclaredError):
        prog["panic_timeout"]
    run_command(prog, f"no_debug_info {more}")
    assert prog["panic_timeout"].value_() == lab.prog["panic_timeout"].value_()


def same(ours: Object, theirs: Object) -> bool:
    """The same place and the same type; of an array, the same elements and no fewer of them."""
    if ours.address_ != theirs.address_:
        return False
    if theirs.type_.kind == TypeKind.ARRAY:
        mine, other = ours.type_, theirs.type_
        # Room is up to the next symbol, which alignment may move away. Where other files declare it
        # without a length, debug info has none.
        short = mine.length - (other.length or mine.length)
        return spelled(mine.type) == spelled(other.type) and (
            0 <= short <= 8 or 0 <= short * sizeof(mine.type) < 64
        )
    return spelled(ours.type_) == spelled(theirs.type_)


def spelled(type_: Type) -> str:
    """
    The name of a type; one of two where kernels differ (arch/x86/include/asm/mmzone_64.h), and
    without what is constant in some.
    """
    name = str(type_.unqualified().type_name())
    return re.sub(r"\bpg_data_t\b", "struct pglist_data", name)


class TestSymbols:
    def test_each_is_where_the_file_has_it(self, lab: Lab) -> None:
        prog = own(lab.capture.vmcore)
        symbols = {symbol.name: symbol for symbol in prog.symbols()}
        assert len(symbols) > 50_000
        # drgn does not move what the file has as an absolute address, as arm64's __pi_ names.
        begin = lab.prog.symbol("_text").address
        checked, theirs = 0, [each for each in lab.prog.symbols() if each.address >= begin]
        # Of a file with debug info, drgn takes milliseconds to look up a name.
        times = Counter(symbol.name for symbol in theirs)
        for symbol in theirs[::50]:
            alone = symbol.name in symbols and len(prog.symbols(symbol.name)) == 1
            if alone and times[symbol.name] == 1:
                assert symbols[symbol.name].address == symbol.address, symbol.name
                checked += 1
        assert checked > 800

    def test_code_is_told_from_data(self, lab: Lab) -> None:
        prog = own(lab.capture.vmcore)
        assert prog.symbol("schedule").kind == SymbolKind.FUNC
        assert prog.symbol("init_task").kind == SymbolKind.OBJECT

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_a_function_that_btf_may_leave_out_has_its_type(self, lab: Lab, name: str) -> None:
        there, declared = lab.prog.function(name), own(lab.capture.vmcore).function(name)
        assert there.address_ in (declared.address_, None)
        mine, theirs = (
            [each.type_.type, *(taken.type for taken in each.type_.parameters)]
            for each in (declared, there)
        )
        assert [type_.type_name() for type_ in mine] == [type_.type_name() for type_ in theirs]

    def test_a_stack_has_the_names_of_its_functions(self, lab: Lab) -> None:
        frames = [frame.name for frame in own(lab.capture.vmcore).stack_trace(2)]
        assert "schedule" in frames and "kthreadd" in frames

    def test_no_frame_of_any_stack_has_a_name_that_debug_info_does_not_give(self, lab: Lab) -> None:
        from drgn.helpers.linux.pid import for_each_task

        prog, held = own(lab.capture.vmcore), 0
        for mine, theirs in zip(for_each_task(prog), for_each_task(lab.prog), strict=True):
            ours, dwarf = frames(prog, mine), frames(lab.prog, theirs)
            assert ours.keys() == dwarf.keys(), mine.comm
            for pc, name in ours.items():
                assert (name is None) is (dwarf[pc] is None), hex(pc)
                if name is not None:
                    # An alias, or a label within a function of assembly.
                    begin = lab.prog.symbol(pc).address
                    places = [symbol.address for symbol in lab.prog.symbols(name)]
                    assert any(begin <= place <= pc for place in places), hex(pc)
            held += len(ours)
        assert held > 200

    def test_what_is_no_address_of_the_kernel_has_none(self, lab: Lab) -> None:
        prog = own(lab.capture.vmcore)
        begin, end = prog.symbol("_text").address, prog.symbol("_end").address
        for address in (0, 8, 0x1000, 0x402050, 0x7F0000001000, begin - 1, end, end + 0x1000):
            assert prog.symbols(address) == [], hex(address)
        assert prog.symbol("__per_cpu_end").size == 0
        for section in ("__end_rodata", "__per_cpu_end", "_einittext"):
            address = prog.symbol(section).address + 8
            assert section not in {symbol.name for symbol in prog.symbols(address)}

    def test_a_string_literal_is_not_said_to_be_in_what_is_before_it(self, lab: Lab) -> None:
        prog = own(lab.capture.vmcore)
        strings = [*prog["vmstat_text"], *prog["migratetype_names"]]
        for string in strings:
            # Up to 6.0 kallsyms has the compiler's own labels of them.
            found = [symbol.name for symbol in prog.symbols(string.value_())]
            assert all(name.startswith(".LC") for name in found), found
        assert len(strings) > 100

    def test_an_address_in_a_module_has_a_name(self, lab: Lab) -> None:
        prog = own(lab.capture.vmcore)
        (module,) = (m for m, _ in prog.loaded_modules() if m.name == "qemu_fw_cfg")
        expected = [s for s in module_symbols(module) if s.kind == SymbolKind.FUNC and s.size > 8]
        assert len(expected) > 5
        for symbol in expected:
            assert symbol in prog.symbols(symbol.address + 8)
            assert prog.symbol(symbol.address + 8).address == symbol.address
        _, end = module.address_ranges[0]
        assert prog.symbols(end + (1 << 28)) == []

    def test_are_found_where_vmcoreinfo_does_not_say_where(self, lab: Lab) -> None:
        """As before 6.0. The tables of 6.1 still lie as they did then, later ones do not."""
        prog = bare(lab.capture.vmcore)
        info = vmcoreinfo(prog)
        silent = {key: value for key, value in info.items() if "kallsyms" not in key}
        assert (len(silent) < len(info)) is (lab.capture.series != "5.10")
        if lab.capture.series not in ("5.10", "6.1"):
            with pytest.raises(NoDebugInfoError, match="symbol table is not found"):
                symbols_of_core(prog, silent)
            return
        found, said = symbols_of_core(prog, silent), symbols_of_core(prog, info)
        assert found.address("init_task") == lab.prog.symbol("init_task").address
        assert found.packed == said.packed and found.tokens == said.tokens
        assert found.addresses.tolist() == said.addresses.tolist()

    def test_the_order_of_names_is_the_kernels(self, lab: Lab) -> None:
        """From 6.2 on it is in memory: what is not found is then known to be missing."""
        prog = bare(lab.capture.vmcore)
        found = symbols_of_core(prog, vmcoreinfo(prog))
        assert (found.by_name is None) is (lab.capture.series in ("5.10", "6.1"))
        if found.by_name is not None:
            names = [found.symbol(int(at)).name for at in found.by_name]
            assert names == sorted(names)
        assert found.indexes("no_such_name") == ()

    def test_drgns_helpers_say_the_same(self, lab: Lab) -> None:
        prog, helpers = own(lab.capture.vmcore), drgn_helpers()
        assert len(helpers) > 60
        other = {
            name: (mine, with_dwarf)
            for name, helper in helpers.items()
            if (mine := told(helper, prog)) != (with_dwarf := told(helper, lab.prog))
        }
        assert not other


CRASH = [
    *("bpf", "dev", "dev -d", "dev -i", "dev -p", "foreach files", "foreach set", "foreach sig"),
    *("foreach task -R pid", "foreach vm", "foreach vtop 0", "files 1", "irq", "irq -a", "irq -s"),
    *("kmem -f", "kmem -g", "kmem -h", "kmem -i", "kmem -n", "kmem -o", "kmem -s", "kmem -v"),
    *("kmem -V", "kmem -z", "log", "log -t", "mod", "mount -n 1"),
    *("net", "net -a", "p init_task.comm", "p jiffies", "ps", "ps -a", "ps -g", "ps -G", "ps -k"),
    *("ps -l", "ps -m", "ps -p", "ps -r", "ps -s", "ps -S", "ps -t", "ps -u", "rd jiffies", "runq"),
    *("runq -g", "runq -m", "runq -t", "sig -l", "sig 1", "struct task_struct", "swap"),
    *("struct task_struct.mm", "sym init_task", "task 1", "timer", "timer -r", "vm 1"),
    *("whatis init_task", "whatis jiffies"),
]


@pytest.mark.any_kernel
def test_commands_of_crash_in_drgn_print_what_they_print_with_debug_info(lab: Lab) -> None:
    """
    Not ``bt``, which has inlined functions, ``sys``, which names the file, nor ``sym -l``. BTF has
    an array of no elements as one without a length.
    """
    prog = open_target(lab.capture.vmcore, [])
    other = {}
    for command in CRASH:
        (mine, failed), (theirs, also) = crash(prog, command), crash(lab.prog, command)
        assert failed == also, command
        if mine != theirs.replace("[0]){}", "[]){}"):
            lines = zip(mine.splitlines(), theirs.splitlines(), strict=False)
            other[command] = next((each for each in lines if each[0] != each[1]), None)
    assert not other


def crash(prog: Program, command: str) -> tuple[str, str]:
    """What a command prints, and how it fails."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            run_command(prog, f"crash {command}")
        except CommandArgumentError:
            raise
        except Exception as error:
            return printed.getvalue(), repr(error)
    return printed.getvalue(), ""


def drgn_helpers() -> dict[str, Callable[[Program], Any]]:
    """All of drgn's for Linux that need no more than a program."""
    found = {}
    for module in pkgutil.iter_modules(drgn.helpers.linux.__path__, "drgn.helpers.linux."):
        home = importlib.import_module(module.name)
        for name in home.__all__:
            helper = getattr(home, name)
            if inspect.isfunction(helper):
                first, *others = inspect.signature(helper).parameters.values()
                if first.name == "prog" and all(each.default != each.empty for each in others):
                    found[f"{module.name}.{name}"] = helper
    return found


def told(helper: Callable[[Program], Any], prog: Program) -> Any:
    """What a helper returns and prints, without what is each program's own."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            found = plain(helper(prog))
        except Exception as error:
            found = repr(error)
    return found, printed.getvalue()


def plain(found: Any) -> Any:
    if isinstance(found, Object):
        where = found.address_ if found.address_ is not None else repr(found.value_())
        return spelled(found.type_), where
    if isinstance(found, Mapping):
        return [(plain(key), plain(value)) for key, value in found.items()]
    if isinstance(found, tuple | list | Iterator):
        return [plain(each) for each in itertools.islice(found, 2000)]
    return re.sub(r" object at 0x\w+", "", repr(found))


@pytest.mark.any_kernel
class TestOpening:
    def test_the_command_needs_nothing_but_the_vmcore(self, lab: Lab, tmp_path: Path) -> None:
        done = collect(tmp_path / "b", "--core", lab.capture.vmcore)
        assert done.returncode == 0, done.stderr
        assert '"types": "BTF and kallsyms"' in (tmp_path / "b" / "datapackage.json").read_text()

    def test_symbols_that_are_given_win(self, lab: Lab, tmp_path: Path) -> None:
        done = collect(
            tmp_path / "b", "--core", lab.capture.vmcore, "--symbols", lab.capture.vmlinux
        )
        assert done.returncode == 0, done.stderr
        assert '"types": "debug info"' in (tmp_path / "b" / "datapackage.json").read_text()

    def test_vmcoreinfo_may_be_a_file_where_a_dump_has_none(self, lab: Lab, tmp_path: Path) -> None:
        core, said = lab.capture.vmcore, bare(lab.capture.vmcore)["VMCOREINFO"].string_()
        without = tmp_path / "without"
        subprocess.run(["cp", "--sparse=always", str(core), str(without)], check=True)
        without.chmod(0o600)
        with without.open("r+b") as file:
            head = file.read(1 << 20)
            at = head.index(b"VMCOREINFO\0")
            file.seek(at)
            file.write(b"X")
        with pytest.raises(TargetError, match="--vmcoreinfo FILE gives it"):
            open_target(without)
        text, as_note = tmp_path / "text", tmp_path / "note"
        text.write_bytes(said)
        as_note.write_bytes(head[at - 12 : at + 12 + len(said)])
        for file_ in (text, as_note):
            prog = open_target(without, vmcoreinfo_file=file_)
            assert prog["init_task"].comm.string_().startswith(b"swapper")
        without.unlink()

    def test_btf_may_be_a_file(self, lab: Lab, tmp_path: Path) -> None:
        file = tmp_path / "this.btf"
        file.write_bytes(blob(lab.capture))
        prog = open_target(lab.capture.vmcore, [file])
        assert prog.type("struct page").size == 64

    def test_btf_of_another_kernel_is_refused(
        self, say: Callable[[str], None], tmp_path: Path
    ) -> None:
        file = tmp_path / "other.btf"
        file.write_bytes(blob(capture("6.1", "fragment", say=say)))
        core = capture(STANDS_ON, "fragment", say=say).vmcore
        with pytest.raises(
            TargetError, match=r"other\.btf: cannot be used for this kernel: .*VMCOREINFO"
        ):
            open_target(core, [file])

    @pytest.mark.owner_kernel
    def test_a_kernel_without_btf_is_said_in_a_line(self, say: Callable[[str], None]) -> None:
        core = capture("owner", "owner", say=say).vmcore
        with pytest.raises(NoDebugInfoError, match=r"this kernel has no BTF \(CONFIG_DEBUG_INFO"):
            attach(bare(core))
        with pytest.raises(TargetError) as caught:
            open_target(core)
        assert "give --symbols VMLINUX; without debug symbols: " in str(caught.value)

    def test_a_kernel_without_names_of_variables_is_said_in_a_line(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A mock: of the real table, the functions alone."""

        def functions(prog: Program, info: dict[str, str]) -> KernelSymbols:
            found = symbols_of_core(prog, info)
            kept = [at for at in range(found.count) if found.is_text(int(found.addresses[at]))]
            return KernelSymbols(
                found.addresses[kept],
                found.packed,
                found.starts[kept],
                found.ends[kept],
                found.tokens,
            )

        monkeypatch.setattr(no_debug_info, "symbols_of_core", functions)
        with pytest.raises(NoDebugInfoError, match=r"no variables \(CONFIG_KALLSYMS_ALL\)"):
            attach(bare(lab.capture.vmcore))


@pytest.mark.any_kernel
class TestDamage:
    """What a hostile or broken dump may hold: an error in our words, or types; never a hang."""

    def test_of_the_types(self, lab: Lab) -> None:
        whole = blob(lab.capture)
        chance, refused = random.Random(1), 0
        names = ("page", "zone", "task_struct", "mm_struct", "kmem_cache", "inode", "sk_buff")
        for _ in range(40):  # make soak tries more
            damaged = bytearray(whole)
            for _ in range(chance.choice((1, 10, 1000))):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            if chance.random() < 0.1:
                del damaged[chance.randrange(len(damaged)) :]
            try:
                types = Btf(empty(), bytes(damaged))
                for name in names:
                    if (found := types.struct(name)) is not None:
                        for member in found.members or ():
                            str(member.type)
                types.enumerator("NR_FREE_PAGES")
            except NoDebugInfoError:
                refused += 1
        assert 0 < refused < 40

    def test_of_one_bit_of_a_type_that_sections_ask_for(
        self, lab: Lab, say: Callable[[str], None]
    ) -> None:
        """More of them, and of other kernels: docs/btf.md."""
        info = vmcoreinfo(bare(lab.capture.vmcore))
        found = list(flips(blob(lab.capture), info, 120, seed=49))
        say(f"{lab.capture.kernel}: {dict(Counter(each.outcome for each in found))}")
        silent = [each for each in found if each.outcome == SILENT]
        assert not silent
        assert sum(each.outcome == NOTICED for each in found) > 40

    def test_members_are_of_known_types(self, lab: Lab) -> None:
        assert not unlike_known(Btf(empty(), blob(lab.capture)))

    @pytest.mark.parametrize(
        ("section", "members", "becomes", "form", "status"),
        [
            ("zones", {"spanned_pages"}, "*", "void *", "partial"),
            (
                "pcp_lists",
                {"per_cpu_pageset", "pageset"},
                "long unsigned int",
                "int64",
                "failed",
            ),
        ],
    )
    def test_a_member_of_no_known_type_is_said_by_what_asks_for_it(
        self,
        lab: Lab,
        tmp_path: Path,
        section: str,
        members: set[str],
        becomes: str,
        form: str,
        status: str,
    ) -> None:
        whole = blob(lab.capture)
        types = Btf(empty(), whole)
        number = types._numbers("zone", (STRUCT,))[0]
        names = [name for name, *_ in types._members(number)]
        (member,) = members & {*names}
        word = int(types._starts[number]) + 3 + 3 * names.index(member) + 1
        at = int.from_bytes(whole[4:8], "little") + 4 * word
        void = (types._kinds == PTR) & (types._size_or_type == 0)
        other = void.argmax() if becomes == "*" else types._numbers(becomes, (INT,))[0]
        file = tmp_path / "btf"
        file.write_bytes(whole[:at] + int(other).to_bytes(4, "little") + whole[at + 4 :])
        prog = bare(lab.capture.vmcore)
        attach(prog, file)
        found, _ = run_section(SECTIONS[section], memory := Memory(prog))
        swap, _ = run_section(SECTIONS["swap"], memory)
        said = f"struct zone.{member} is {form} by this kernel's BTF"
        assert found.status == status and said in (found.message or ""), found
        assert said not in (swap.message or "")

    def test_of_one_bit_of_what_a_later_kernel_may_write(
        self, lab: Lab, say: Callable[[str], None]
    ) -> None:
        """More of them, and of other kernels: docs/btf.md."""
        info = vmcoreinfo(bare(lab.capture.vmcore))
        later, there = of_a_later_kernel(blob(lab.capture))
        found = list(flips(later, info, 60, 49, there))
        say(f"{lab.capture.kernel}: {dict(Counter(each.outcome for each in found))}")
        assert not [each for each in found if each.outcome not in (HARMLESS, NOTICED)]
        assert sum(each.outcome == NOTICED for each in found) > 4

    def test_of_one_bit_of_a_symbol_that_sections_ask_for(
        self, lab: Lab, say: Callable[[str], None]
    ) -> None:
        """More of them, and of other kernels: docs/btf.md."""
        core = lab.capture.vmcore
        types = Btf(empty(), blob(lab.capture))
        found = list(symbol_flips(core, types, vmcoreinfo(bare(core)), 40, seed=49))
        say(f"{lab.capture.kernel}: {dict(Counter(each.outcome for each in found))}")
        silent = [each for each in found if each.outcome == SILENT]
        assert len(silent) <= 3 and {each.place for each in silent} <= {"address"}, silent
        assert sum(each.outcome == NOTICED for each in found) > 18

    def test_a_variable_that_cannot_begin_where_its_symbol_is_is_refused(self, lab: Lab) -> None:
        core = lab.capture.vmcore
        info, whole = vmcoreinfo(bare(core)), own(core)
        at = whole.symbol("nr_swap_pages").address
        symbols = symbols_of_core(bare(core), info)
        symbols.addresses[symbols.indexes("nr_swap_pages")[0]] = at - 4
        found = KernelGlobals(Btf(whole, blob(lab.capture)), symbols)
        with pytest.raises(UndeclaredError, match="atomic_long_t, which cannot begin at"):
            found.find(whole, "nr_swap_pages", FindObjectFlags.VARIABLE, None)

    def test_a_struct_whose_members_multiply_is_refused(self) -> None:
        with pytest.raises(NoDebugInfoError, match="too many members"):
            Btf(empty(), bomb(40)).struct("s0")

    def test_a_type_that_leads_to_itself_is_refused(self) -> None:
        name = b"\0loop\0"
        typedef = struct.pack("<3I", 1, TYPEDEF << 24, 1)
        with pytest.raises(NoDebugInfoError, match="leads to itself"):
            Btf(empty(), header(typedef, name)).struct("loop")

    def test_of_the_symbols(self, lab: Lab) -> None:
        info = vmcoreinfo(bare(lab.capture.vmcore))
        names = ("kallsyms_names", "kallsyms_token_table", "kallsyms_offsets")
        if lab.capture.series == "5.10":  # whose VMCOREINFO does not say where they are
            names = ()
        for name in names:
            key = f"SYMBOL({name})"
            with pytest.raises(NoDebugInfoError):
                symbols_of_core(
                    bare(lab.capture.vmcore), info | {key: f"{int(info[key], 16) + 4096:x}"}
                )
        with pytest.raises(NoDebugInfoError, match="nothing is no address of _stext"):
            symbols_of_core(bare(lab.capture.vmcore), {})

    def test_of_a_bit_of_the_tokens_that_names_are_packed_with(self, lab: Lab) -> None:
        """Names would be others in many places; a feature would not be found."""
        prog = bare(lab.capture.vmcore)
        where = tables_of(prog, vmcoreinfo(prog))
        begin, end = where["kallsyms_token_table"], where["kallsyms_token_index"]
        whole, chance, refused = prog.read(begin, end - begin).rstrip(b"\0"), random.Random(1), 0
        for _ in range(40):
            at = chance.randrange(len(whole))
            with contextlib.suppress(NoDebugInfoError):
                attach(
                    changed(lab.capture.vmcore, begin + at, whole[at] ^ 1 << chance.randrange(8))
                )
                continue
            refused += 1
        assert refused >= 30  # a token of two characters may become another

    def test_of_the_length_of_a_name(self, lab: Lab) -> None:
        prog = bare(lab.capture.vmcore)
        begin = tables_of(prog, vmcoreinfo(prog))["kallsyms_names"]
        length = prog.read(begin, 1)[0]
        for wrong in (length - 1, length + 1, 0x80 | length):
            # Of 5.10 it is found by what its parts say of each other.
            with pytest.raises(NoDebugInfoError, match=r"symbol table is (damaged|not found)"):
                attach(changed(lab.capture.vmcore, begin, wrong))

    @pytest.mark.parametrize("said", ["0", "1", "f" * 16, "7fffffffffff0000", "f" * 30, "-5", "zz"])
    def test_of_what_vmcoreinfo_says(self, lab: Lab, said: str) -> None:
        info = vmcoreinfo(bare(lab.capture.vmcore))
        names = [key for key in info if key.startswith("SYMBOL(kallsyms_")]
        assert len(names) >= 5 or lab.capture.series == "5.10"
        silent = {key: value for key, value in info.items() if key not in names}
        for words in ({**silent, "SYMBOL(_stext)": said}, *({**info, key: said} for key in names)):
            with pytest.raises(NoDebugInfoError, match="VMCOREINFO is damaged"):
                symbols_of_core(bare(lab.capture.vmcore), words)


def header(types: bytes, names: bytes) -> bytes:
    """A BTF blob of these parts."""
    return struct.pack("<HBB5I", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names)) + (
        types + names
    )


def bomb(depth: int) -> bytes:
    """Structs that have the next one twice, without a name: two to that power of members."""
    types = b""
    for level in range(depth):
        name = 1 if level == 0 else 0
        types += struct.pack("<3I", name, STRUCT << 24 | 2, 8)
        types += struct.pack("<3I", 0, min(level + 2, depth), 0) * 2
    return header(types, b"\0s0\0")


def collect(bundle: Path, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    return children.run(
        [
            *(sys.executable, "-m", "mmscope", "collect", "--no-findings"),
            *(*map(str, words), "-o", str(bundle)),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def blob(taken: Capture) -> bytes:
    """The BTF in a vmcore's memory."""
    prog = own(taken.vmcore)
    assert not prog.flags & ProgramFlags.IS_LIVE
    begin, end = (prog.symbol(name).address for name in ("__start_BTF", "__stop_BTF"))
    return bytes(prog.read(begin, end - begin))
