# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reading a kernel by what it says of itself: BTF for its types, kallsyms for its symbols.

A kernel with CONFIG_DEBUG_INFO_BTF and CONFIG_KALLSYMS_ALL, as distributions build it, needs no
debug package: :func:`attach` makes a :class:`drgn.Program` with a vmcore, or with the running
kernel, usable as if its vmlinux had been loaded. In a session of drgn's own::

    $ drgn -c vmcore --no-default-symbols
    >>> from mmscope.drgn.opening.no_debug_info import attach
    >>> attach(prog)
    >>> prog["init_task"].comm
    (char [16])"swapper/0"

Costs 0.1 to 0.2 s of CPU and 30 MiB, a quarter of the time and a tenth of the memory of a vmlinux.

Types and symbols come out of the dump, so they are compared with its VMCOREINFO before they are
used.

Cannot know: globals that are not declared (``kernel_globals``), macros,
line numbers, inlined functions.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drgn import FaultError, Program, ProgramFlags, RelocatableModule, Symbol, offsetof, sizeof

from mmscope.drgn.dumps.bulk_reads import read_bytes
from mmscope.drgn.opening import NoDebugInfoError as NoDebugInfoError
from mmscope.drgn.opening.btf import LIMITS, Btf, ModuleTypes
from mmscope.drgn.opening.kernel_globals import KernelGlobals
from mmscope.drgn.opening.kernel_symbols import (
    KernelSymbols,
    SymbolsHidden,
    bounded,
    symbols_of_core,
    symbols_of_text,
)
from mmscope.drgn.reading.symbols import KERNEL_TABLE, SymbolTable, module_symbols
from mmscope.drgn.text.plain_file import read_plain

LIVE_BTF = Path("/sys/kernel/btf/vmlinux")
LIVE_SYMBOLS = Path("/proc/kallsyms")
MAX_BTF_BYTES = 64 << 20
BTF_MAGICS = (b"\x9f\xeb", b"\xeb\x9f")
NO_BTF = "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
# Variables of BTF without a symbol: none on the kernels of the lab.
MOST_LOST, MOST_LOST_SHARE = 3, 0.01
OWN = "btf"  # the name of the finders
TYPES = "mmscope types"  # of a program's cache: the kernel's own BTF, where that is in use


def attach(
    prog: Program, btf: Path | None = None, *, modules: bool = True
) -> tuple[Btf, KernelSymbols, int]:
    """
    Give a program with a kernel's memory the types and symbols that the kernel itself has.

    :param btf: a file with the BTF of this very kernel, instead of the kernel's own.
    :param modules: whether drgn is to know the modules now, 1 to 2 ms of CPU each.
    :return: the types, the symbols, and how many sizes and offsets were checked.
    :raises NoDebugInfoError: the kernel has no BTF or no symbol table, they are damaged, or
        contradict VMCOREINFO. Nothing is attached then.
    """
    if OWN in prog.registered_type_finders():
        raise NoDebugInfoError("this kernel's own types and symbols are in use already")
    info = vmcoreinfo(prog)
    try:
        symbols = _symbols(prog, info)
        blob = read_plain(btf, MAX_BTF_BYTES) if btf else _blob(prog, symbols)
        types = Btf(prog, blob)
        checked = _hold_against(types, info)
        _hold_names_against(types, symbols)
    except OSError as error:
        raise NoDebugInfoError(f"{error.filename}: {error.strerror}") from error
    # First: the debug info of a module has the kernel's types as declarations.
    prog.register_type_finder(OWN, types.find_type, enable_index=0)
    prog.register_type_finder(f"{OWN} modules", ModuleTypes(blob).find_type, enable_index=-1)
    prog.cache[TYPES] = types
    globals_ = KernelGlobals(types, symbols)
    # Behind drgn's own, of VMCOREINFO; before the statics of modules.
    before = len([name for name in prog.enabled_object_finders() if name == "linux"])
    prog.register_object_finder(OWN, globals_.find, enable_index=before)
    prog.register_object_finder(f"{OWN} undeclared", globals_.complain, enable_index=-1)
    prog.register_symbol_finder(OWN, symbols.find, enable_index=-1)
    prog.register_symbol_finder(f"{OWN} modules", _module_finder(), enable_index=-1)
    prog.cache[KERNEL_TABLE] = SymbolTable(symbols.in_order, symbols.room, symbols.symbol)
    begin, end = symbols.address("_stext"), symbols.address("_end")
    if begin and end:
        # Without a file drgn does not know where the kernel's own code is.
        prog.main_module("kernel", create=True).address_range = begin, end
    if modules:
        know_modules(prog)
    return types, symbols, checked


def know_modules(prog: Program) -> None:
    """
    Let drgn know the modules that are loaded, once.

    It takes their ORC from memory, but does not look for them in the middle of a stack, which would
    end at the first function of one.
    """
    if prog.cache.setdefault("mmscope modules", False):
        return
    prog.cache["mmscope modules"] = True
    with contextlib.suppress(FaultError, LookupError, ValueError, RuntimeError):
        for _ in itertools.islice(prog.loaded_modules(), LIMITS["modules"]):
            pass


def why_not_here() -> str | None:
    """Why the running kernel cannot be read by what it says of itself; None where it can."""
    try:
        with LIVE_BTF.open("rb") as file:
            known = file.read(2) in BTF_MAGICS
        _live_symbols()
    except SymbolsHidden as error:
        # Who may read the kernel's memory finds them there.
        return str(error) if os.geteuid() else None
    except NoDebugInfoError as error:
        return str(error)
    except OSError:
        known = False
    return None if known else NO_BTF


def vmcoreinfo(prog: Program) -> dict[str, str]:
    """The ``KEY=value`` lines of the target's VMCOREINFO."""
    try:
        text = prog["VMCOREINFO"].string_().decode("ascii", "backslashreplace")
    except (LookupError, FaultError):
        return {}
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _is_this_kernel(prog: Program) -> bool:
    """True if it is the kernel that this program runs on, and not a dump or a guest."""
    flags = ProgramFlags.IS_LIVE | ProgramFlags.IS_LOCAL
    return bool(prog.flags & flags == flags)


def _symbols(prog: Program, info: Mapping[str, str]) -> KernelSymbols:
    if _is_this_kernel(prog):
        with contextlib.suppress(SymbolsHidden):
            return bounded(_live_symbols(), prog, info)
    return _with_data(symbols_of_core(prog, info))


def _live_symbols() -> KernelSymbols:
    with LIVE_SYMBOLS.open("rb") as file:
        return _with_data(symbols_of_text(file.read()))


def _with_data(symbols: KernelSymbols) -> KernelSymbols:
    if symbols.address("init_uts_ns") is None:
        raise NoDebugInfoError(
            "this kernel's symbol table has functions only, no variables (CONFIG_KALLSYMS_ALL)"
        )
    return symbols


def _module_finder() -> Callable[[Program, str | None, int | None, bool], Sequence[Symbol]]:
    """
    A symbol finder for addresses in modules, by the tables that the kernel keeps of them.

    By name it finds nothing: a name that the kernel does not have would cost the tables of all
    modules.
    """
    ranges: list[tuple[int, int, RelocatableModule]] | None = None
    tables: dict[str, list[Symbol]] = {}
    known: dict[int, list[Symbol]] = {}  # tasks that wait for one server have the same stack

    def find(prog: Program, name: str | None, address: int | None, one: bool) -> Sequence[Symbol]:
        nonlocal ranges
        if address is None or name is not None:
            return []
        if ranges is None:
            ranges = [
                (start, end, module)
                for module, _ in prog.loaded_modules()
                if isinstance(module, RelocatableModule)
                for start, end in module.address_ranges or ()
            ]
        for start, end, module in ranges:
            if start <= address < end:
                if module.name not in tables:
                    tables[module.name] = _symbols_of(module)
                if address not in known:
                    table = tables[module.name]
                    known[address] = [s for s in table if 0 <= address - s.address < (s.size or 1)]
                return known[address][:1] if one else known[address]
        return []

    return find


def _symbols_of(module: RelocatableModule) -> list[Symbol]:
    """The symbols of a module; none where they cannot be read."""
    try:
        return module_symbols(module)
    except (FaultError, LookupError, ValueError):
        return []


def _blob(prog: Program, symbols: KernelSymbols) -> bytes:
    """The kernel's own BTF."""
    if _is_this_kernel(prog) and os.access(LIVE_BTF, os.R_OK):
        return read_plain(LIVE_BTF, MAX_BTF_BYTES)
    begin, end = symbols.address("__start_BTF"), symbols.address("__stop_BTF")
    if begin is None or end is None or not 24 <= end - begin <= MAX_BTF_BYTES:
        raise NoDebugInfoError(NO_BTF)
    try:
        return bytes(read_bytes(prog, begin, end - begin))
    except FaultError as error:
        raise NoDebugInfoError(f"the kernel's BTF cannot be read: {error}") from error


def _hold_against(types: Btf, info: Mapping[str, str]) -> int:
    """
    Compare sizes, offsets and enumerators with those that VMCOREINFO has of the same kernel.

    :return: how many could be compared.
    :raises NoDebugInfoError: one differs, so that the BTF is damaged or another kernel's.
    """
    checked = 0
    for key, value in info.items():
        if not (match := re.fullmatch(r"(SIZE|OFFSET|NUMBER)\((\w+)(?:\.([A-Za-z_]\w*))?\)", key)):
            continue
        kind, name, member = match.groups()
        try:
            here = _value(types, kind, name, member)
        except (LookupError, NoDebugInfoError):
            continue
        if here is None:
            continue
        checked += 1
        if str(here) != value.strip():
            raise NoDebugInfoError(
                f"the BTF is damaged or another kernel's: {key} is {here} there, and "
                f"{value.strip()[:20]} by VMCOREINFO"
            )
    if not checked and info:
        raise NoDebugInfoError(
            "the BTF is damaged or another kernel's: it knows nothing of VMCOREINFO's"
        )
    return checked


def _hold_names_against(types: Btf, symbols: KernelSymbols) -> None:
    """
    Look for the symbols of all variables that BTF has, and where each is in the per-CPU section.
    Where the table of tokens is damaged, names are others in many places, and what a kernel has
    would not be found.

    :raises NoDebugInfoError: some are not there, or elsewhere.
    """
    names = types.variables()
    lost = [name for name in names if not symbols.indexes(name)]
    if len(lost) > max(MOST_LOST, len(names) * MOST_LOST_SHARE):
        raise NoDebugInfoError(
            f"the kernel's symbol table is damaged: {len(lost)} of the {len(names)} variables that "
            f"BTF has are not in it, {lost[0]} is one"
        )
    begin = symbols.address("__per_cpu_start")
    if begin is None:
        return
    for name, place in types.per_cpu_places().items():
        found = symbols.indexes(name)
        if len(found) == 1 and symbols.in_order[found[0]] != begin + place:
            raise NoDebugInfoError(
                f"the kernel's symbol table or BTF is damaged: {name} is {place:#x} bytes within "
                f"the per-CPU section by BTF, and at {symbols.in_order[found[0]]:#x} as a symbol"
            )


def _value(types: Btf, kind: str, name: str, member: str | None) -> int | None:
    if kind == "NUMBER":
        constant = types.enumerator(name)
        return None if constant is None else int(constant.value_())
    # "SIZE(list_head)" is of a struct, "SIZE(nodemask_t)" of a typedef.
    type_ = types.struct(name)
    if type_ is None:
        return None
    return int(sizeof(type_) if member is None else offsetof(type_, member))
