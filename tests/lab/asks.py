# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What each section asks of a kernel's types, recorded while it reads a vmcore:
``drgn/opening/asked.toml``, by which ``mmscope kernel`` says what will be read of a kernel that
nobody has booted; and what the members that they ask for are, ``drgn/opening/known_types.txt``.

The program that is read has no types of its own: it gets copies of another's, whose members are
made when they are looked at, which is noted. What a kernel does not have is noted from
``has_member()``, and from the exceptions.

Costs a minute a vmcore that is in the cache, a boot for one that is not.

    python tests/lab/asks.py         # all of CORES
    python tests/lab/asks.py 7.2 6.12=VMCORE,VMCORE   # these; the others stay as they are
    python tests/lab/asks.py --add 7.2                # these, too, beside what is written
    python tests/lab/asks.py --check # what is written, held against one vmcore of each kernel
    make docs                        # what it foretells, in docs/kernels.md

Cannot see: members that drgn's C code looks for and does not find.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import kernels
from archive import LabError, cache_folder
from capture import Capture, capture
from drgn import (
    FindObjectFlags,
    Object,
    ObjectAbsentError,
    Program,
    Symbol,
    Type,
    TypeEnumerator,
    TypeKind,
    TypeKindSet,
    TypeMember,
    TypeParameter,
)
from foretell import in_cache
from holders_lab import device_modules, holders_capture
from tagged import tagged

from mmscope.drgn.dumps.core_file import elf_section
from mmscope.drgn.opening import NoDebugInfoError, foretold, known_types
from mmscope.drgn.opening.btf import LIMITS, Btf
from mmscope.drgn.opening.foretold import (
    CONSTANT,
    EVERY,
    ITSELF,
    KNOWN,
    NO,
    SYMBOL,
    UNKNOWN,
    YES,
    Has,
    part_of,
)
from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.collect import run_section

# What has something that most machines have not, on one kernel at least: what is asked of that.
CORES = {
    "5.10": ("sizes", "slab"),
    "6.1": ("sizes",),
    "6.12": ("sizes", "slab", "holders", "owners"),
    "7.2": ("sizes", "slab", "holders", "dax", "cgroups"),
    "7.3": ("sizes", "slab", "rmap", "vmemmap"),
    "arm64-6.12": ("sizes", "slab"),
    "owner": ("owner", "tags"),
}
PROGRAMS = {"holders", "owners"}  # workloads that are the lab's own programs
PATIENCE = 3600.0  # nobody waits, and the machine may be busy
NO_MEMBER = re.compile(r"'((?:(?:struct|union) )?\w+)' has no member '(\w+)'")
COMPOUND = {TypeKind.STRUCT: "struct", TypeKind.UNION: "union", TypeKind.CLASS: "class"}


class Asks:
    """
    Finders for a program, which answer from another and note what was asked.

    :ivar asked: what was asked for, and whether it was there: ``struct page``, ``struct page.lru``,
        ``atomic_t.counter`` of a typedef, ``symbol swap_info``, which a constant may be too.
    """

    def __init__(self, prog: Program, source: Program) -> None:
        self.prog, self.source, self.asked = prog, source, dict[str, bool]()
        self._made: dict[tuple[int, Any, str], Type] = {}
        prog.register_type_finder("asks", self._find_type, enable_index=0)
        prog.register_object_finder("asks", self._find_object, enable_index=0)
        prog.register_symbol_finder("asks", self._find_symbol, enable_index=0)

    def _find_type(
        self, prog: Program, kinds: TypeKindSet, name: str, filename: str | None
    ) -> Type | None:
        for kind in kinds:
            word = {TypeKind.ENUM: "enum", **COMPOUND}.get(kind)
            whole = f"{word} {name}" if word else name
            try:
                found = self.source.type(whole, filename)
            except LookupError:
                self.asked.setdefault(whole, False)
                continue
            if found.kind == kind:
                if word or kind == TypeKind.TYPEDEF:
                    self.asked[whole] = True
                return self.copy(found, whole)
        return None

    def _find_object(
        self, prog: Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> Object | None:
        ask = f"{SYMBOL} {name}"
        self.asked.setdefault(ask, False)
        try:
            found = self.source.object(name, flags, filename)
        except LookupError:
            return None
        self.asked[ask] = True
        if found.address_ is None:
            return None  # a number: the program's own has no members
        return Object(prog, self.copy(found.type_, name), address=found.address_)

    def _find_symbol(
        self, prog: Program, name: str | None, address: int | None, one: bool
    ) -> list[Symbol]:
        if name is not None:
            ask = f"{SYMBOL} {name}"
            self.asked[ask] = self.asked.get(ask, False) or bool(self.source.symbols(name))
        return []

    def copy(self, of: Type, path: str) -> Type:
        """
        A type of the other program as one of this.

        :param path: how it was come by, for one without a name.
        """
        if (word := COMPOUND.get(of.kind)) and of.tag:
            path = f"{word} {of.tag}"
        elif of.kind == TypeKind.TYPEDEF:
            path = of.name
        key = of._ptr, of.qualifiers, path
        if key not in self._made:
            self._made[key] = self._copy(of, path).qualified(of.qualifiers)
        return self._made[key]

    def _copy(self, of: Type, path: str) -> Type:
        prog, kind = self.prog, of.kind
        if kind == TypeKind.VOID:
            return prog.void_type()
        if kind == TypeKind.INT:
            return prog.int_type(of.name, of.size, of.is_signed, of.byteorder)
        if kind == TypeKind.BOOL:
            return prog.bool_type(of.name, of.size, of.byteorder)
        if kind == TypeKind.FLOAT:
            return prog.float_type(of.name, of.size, of.byteorder)
        if kind == TypeKind.TYPEDEF:
            return prog.typedef_type(of.name, self.copy(of.type, path))
        if kind == TypeKind.POINTER:
            return prog.pointer_type(self.copy(of.type, path), of.size, of.byteorder)
        if kind == TypeKind.ARRAY:
            return prog.array_type(self.copy(of.type, path), of.length)
        if kind == TypeKind.ENUM:
            if of.enumerators is None:
                return prog.enum_type(of.tag)
            constants = [TypeEnumerator(each.name, each.value) for each in of.enumerators]
            return prog.enum_type(of.tag, self.copy(of.type, path), constants)
        if kind == TypeKind.FUNCTION:
            parameters = [
                TypeParameter(self._later(each, path), each.name) for each in of.parameters
            ]
            return prog.function_type(self.copy(of.type, path), parameters, of.is_variadic)
        make = {"struct": prog.struct_type, "union": prog.union_type, "class": prog.class_type}
        if of.members is None:
            return make[COMPOUND[kind]](of.tag)
        members = [
            TypeMember(self._later(each, path), each.name, each.bit_offset) for each in of.members
        ]
        return make[COMPOUND[kind]](of.tag, of.size, members)

    def _later(self, of: TypeMember | TypeParameter, path: str) -> Callable[[], Any]:
        def made() -> Any:
            here = path
            if isinstance(of, TypeMember) and of.name:
                here = f"{path}.{of.name}"
                self.asked[here] = True
            type_ = self.copy(of.type, here)
            bits = of.bit_field_size if isinstance(of, TypeMember) else None
            return Object(self.prog, type_, bit_field_size=bits) if bits else type_

        return made

    @contextmanager
    def noting_what_is_not_there(self) -> Iterator[None]:
        """Note the members that are asked for and not there, too. Not for two at a time."""
        methods = gc.get_referents(Type.__dict__)[0]
        has_member = methods["has_member"]

        def noted(type_: Type, name: str) -> bool:
            there, word = bool(has_member(type_, name)), COMPOUND.get(type_.kind)
            if word and type_.tag:
                self.asked[f"{word} {type_.tag}.{name}"] = there
            return there

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            frame.f_trace_lines = False
            if event == "exception" and isinstance(arg[1], AttributeError | LookupError):
                for type_, name in NO_MEMBER.findall(str(arg[1])):
                    self.asked[f"{type_}.{name}"] = False
            return trace

        before = sys.gettrace()
        methods["has_member"] = noted
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(Type))
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)
            methods["has_member"] = has_member
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(Type))


# By section: (status, reason), and what was asked with whether it was there.
Recorded = dict[str, tuple[tuple[str, str], dict[str, bool]]]


class Core(NamedTuple):
    """A vmcore that was given, with its kernel's debug info."""

    vmcore: Path
    vmlinux: Path


def main() -> int:
    """Record all that is to be known, and write it, or say what is not so any more."""
    check = "--check" in sys.argv
    add = "--add" in sys.argv
    words = (word.partition("=") for word in sys.argv[1:] if not word.startswith("-"))
    given = {name: [Path(core) for core in cores.split(",") if core] for name, _, cores in words}
    recorded: dict[str, list[Recorded]] = {}
    answering: dict[str, Has] = {}
    try:
        for name, workloads in CORES.items():
            if given and name not in given:
                recorded[name], answering[name] = kept(name)
                continue
            taken: list[Core | Capture]
            if cores := given.get(name):
                vmlinux = kernels.get(name, print).vmlinux
                taken = [Core(core, vmlinux) for core in cores]
            else:
                wanted = workloads[:1] if check else workloads
                taken = [taken_of(name, workload) for workload in wanted]
            recorded[name] = [of_core(core) for core in taken]
            if add:
                recorded[name] += kept(name)[0]
            if not check:
                answering[name] = answers_of(taken[0])
    except LabError as error:
        print(f"asks.py: {error}", file=sys.stderr)
        return 1
    if check:
        wrong = [words for name, (core,) in recorded.items() for words in not_so(name, core)]
        print(*wrong, "run `make asked`" if wrong else "asked.toml is as it is", sep="\n")
        return bool(wrong)
    KNOWN.write_text(written(recorded, answering))
    known_types.KNOWN.write_text(types_written())
    return 0


def types_written() -> str:
    """
    ``known_types.txt``: what each member that is asked for is, by the BTF that the cache has, and
    as it was written of kernels that it has not.
    """
    asked = sorted(foretold.known().answers)
    found = {ask: {*forms} for ask, forms in known_types.known_types().items() if ask in asked}
    # Of some architectures the image is an ELF file, with its BTF.
    for file in sorted((cache_folder() / "kernels").glob("*/vmlinu[xz]")):
        with contextlib.suppress(NoDebugInfoError):
            if isinstance(types := foretold.types_in(file), Btf):
                for ask, form in known_types.forms_of(types, asked).items():
                    found.setdefault(ask, set()).add(form)
    lines = [f"{ask}: {known_types.FORMS.join(sorted(found[ask]))}" for ask in sorted(found)]
    head = "# SPDX-License-Identifier: LGPL-2.1-or-later\n# Made by tests/lab/asks.py."
    return "\n".join([head, *lines, ""])


def taken_of(name: str, workload: str) -> Capture:
    """A vmcore out of the cache, or of a guest that boots now."""
    if workload == "tags":
        return tagged(print)
    if workload in PROGRAMS:
        modules = device_modules(name) if workload == "owners" else ()
        return holders_capture(name, print, workload, modules)
    return capture(name, workload, say=print)


def kept(name: str) -> tuple[list[Recorded], Has]:
    """A kernel as ``asked.toml`` has it; whether it has what is asked of others is by its types."""
    known = foretold.known()
    column = known.kernels.index(name)
    vmlinux = in_cache().get(name)
    types = foretold.what_it_has(vmlinux) if vmlinux else None
    cores: list[Recorded] = []
    for section in known.asked.keys() & SECTIONS.keys():
        asks = known.asked[section].get(name, set())
        asked = {ask: known.answers[ask][column] != NO for ask in asks}
        for number, status in enumerate(known.statuses[section].get(name, ())):
            cores += [{}] if number == len(cores) else []
            cores[number][section] = status, asked

    def has(ask: str) -> bool | None:
        if ask not in known.answers:
            return types(ask) if types else None
        return {YES: True, NO: False}.get(known.answers[ask][column])

    return cores, has


def not_so(name: str, core: Recorded) -> Iterator[str]:
    """What ``asked.toml`` says otherwise of a kernel than one core of it shows."""
    has = foretold.known()
    column = has.kernels.index(name)
    for section, (status, asked) in core.items():
        if section not in has.asked or name not in has.asked[section]:
            yield f"{section} on {name}: is not written"
            continue
        kept = {of for of, _ in has.statuses[section][name]}
        if status[0].replace("partial", "ok") not in kept:
            yield f"{section} on {name}: {status[0]}"
        wanted = has.asked[section][name]
        for ask, found in asked.items():
            called = ask.replace(f"{SYMBOL} ", f"{CONSTANT} ", 1)
            called = called if called in has.answers else ask
            if called not in wanted:
                yield f"{section} on {name}: asks for {ask}"
            elif (has.answers[called][column] == NO) == found:
                yield f"{section} on {name}: {ask} is {'' if found else 'not '}there"
            wanted = wanted - {called}
        if len(CORES[name]) == 1:
            yield from (f"{section} on {name}: asks no more for {ask}" for ask in sorted(wanted))


def has_btf(taken: Core | Capture) -> bool:
    return bool(elf_section(taken.vmlinux, ".BTF", LIMITS["bytes"]))


def opened(taken: Core | Capture) -> Program:
    """A vmcore with what says most of its types: BTF, where there is some."""
    if not has_btf(taken):
        return open_target(taken.vmcore, [taken.vmlinux])
    prog = Program()
    prog.set_core_dump(taken.vmcore)
    attach(prog)
    return prog


def of_core(taken: Core | Capture) -> Recorded:
    """What each section asks, read by itself."""
    source, recorded = opened(taken), Recorded()
    for name, spec in SECTIONS.items():
        prog = opened(taken)
        asks = Asks(prog, source)
        with asks.noting_what_is_not_there():
            section, _ = run_section(dataclasses.replace(spec, deadline=PATIENCE), Memory(prog))
        recorded[name] = (section.status, section.message or ""), asks.asked
    return recorded


def at_all(taken: Core | Capture) -> dict[str, bool]:
    """All that sections ask of one vmcore, read by one program: a fifth of the time."""
    prog = opened(taken)
    asks, memory = Asks(prog, opened(taken)), Memory(prog)
    with asks.noting_what_is_not_there():
        for spec in SECTIONS.values():
            run_section(dataclasses.replace(spec, deadline=PATIENCE), memory)
    return asks.asked


def not_written(asked: Mapping[str, bool]) -> Iterator[str]:
    """Asks that no section of any kernel put when ``asked.toml`` was made."""
    known = foretold.known().answers
    for ask in asked:
        name = ask.removeprefix(f"{SYMBOL} ")
        if ask not in known and f"{CONSTANT} {name}" not in known:
            yield ask


def answers_of(taken: Core | Capture) -> Has:
    """What the types of a kernel have; by its debug info, where it has no BTF."""
    if has_btf(taken):
        return foretold.what_it_has(taken.vmlinux)
    prog = open_target(taken.vmcore, [taken.vmlinux])

    def has(ask: str) -> bool:
        part, name = part_of(ask)
        try:
            if part == CONSTANT:
                return prog.constant(name).type_.kind == TypeKind.ENUM
            if part == SYMBOL:
                return bool(prog.function(name))
            found = prog.type(part)
        except (LookupError, ObjectAbsentError):  # the latter: it was inlined everywhere
            return False
        return name == ITSELF or foretold.has_path(found, name.split("."))

    return has


def written(recorded: Mapping[str, list[Recorded]], answering: Mapping[str, Has]) -> str:
    """``asked.toml``."""
    kernels = list(recorded)
    there: dict[str, dict[str, bool]] = {name: {} for name in kernels}
    for name, cores in recorded.items():
        for core in cores:
            for _, asked in core.values():
                for ask, found in asked.items():
                    there[name][ask] = found or there[name].get(ask, False)
    every = sorted({ask for of in there.values() for ask in of})
    # What some kernel has as an enumerator is one.
    called = {ask: ask for ask in every}
    for ask in every:
        part, name = part_of(ask)
        if part == SYMBOL and any(has(f"{CONSTANT} {name}") for has in answering.values()):
            called[ask] = f"{CONSTANT} {name}"

    def answer(kernel: str, ask: str) -> str:
        has = answering[kernel](called[ask])
        if has or has is None:
            return YES if has else UNKNOWN
        return UNKNOWN if there[kernel].get(ask) else NO

    letters = {called[ask]: "".join(answer(name, ask) for name in kernels) for ask in every}
    lines = ["# SPDX-License-Identifier: LGPL-2.1-or-later"]
    lines += ["# Made by tests/lab/asks.py: not to be edited.", f"kernels = {json.dumps(kernels)}"]
    lines += ["[answers]", *by_word(letters), "[sections]"]
    for section in sorted({name for cores in recorded.values() for core in cores for name in core}):
        asked: dict[str, list[str]] = {}
        statuses: dict[tuple[str, str], dict[str, None]] = {}
        for kernel, cores in recorded.items():
            for core in cores:
                if section in core:
                    status, asks = core[section]
                    # What is said of a section that was read is about the machine.
                    status = status if status[0] not in ("ok", "partial") else ("ok", "")
                    statuses.setdefault(status, {})[kernel] = None
                    for ask in asks:
                        asked.setdefault(called[ask], []).append(kernel)
        read = [name for name in kernels if any(name in of for of in statuses.values())]
        by_ask = {
            ask: EVERY if set(names) == set(read) else " ".join(n for n in read if n in names)
            for ask, names in asked.items()
        }
        rows = [[" ".join(of), *status] for status, of in statuses.items()]
        asks = ", ".join(by_word(by_ask))
        lines.append(f"{section} = {{ statuses = {json.dumps(rows)}, asked = {{ {asks} }} }}")
    return "\n".join(lines) + "\n"


def by_word(said: Mapping[str, str]) -> list[str]:
    """TOML of what is said of which asks."""
    asks: dict[str, list[str]] = {}
    for ask, word in said.items():
        asks.setdefault(word, []).append(ask)
    rows = ((json.dumps(word), foretold.named(of)) for word, of in sorted(asks.items()))
    return [f'{word} = "{names}"' for word, names in rows]


if __name__ == "__main__":
    sys.exit(main())
