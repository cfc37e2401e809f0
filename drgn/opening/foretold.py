# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Foretelling what will be read of a kernel, by its types alone.

``asked.toml`` has what each section asked of the kernels of the lab while it read them, noted by
``tests/lab/asks.py``: types, members, constants, functions and variables, what each kernel had of
them, and what came of the section. A kernel that answers all that a known one was asked as that one
did has a section go the same way. One that answers as several of them, type by type, or of a type
member by member, probably has it read. Of one that answers as none it is unknown what comes of it.

Costs a tenth of a second. Cannot know: variables, but for those that are per CPU, since BTF has no
others; what is built as a module; members that are still there and mean something else; what the
machine has, or was booted with.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drgn import Architecture, Platform, Program, Type, TypeKind, TypeKindSet

from mmscope.drgn.dumps.core_file import elf_section
from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import LIMITS, Btf
from mmscope.drgn.opening.no_debug_info import BTF_MAGICS
from mmscope.drgn.text.plain_file import open_plain, read_plain

KNOWN = Path(__file__).with_name("asked.toml")
HEADER = b"__VMLINUX_H__"
HEAD_BYTES = 4096
# In place of a type, of a member, of the kernels.
CONSTANT, SYMBOL, ITSELF, EVERY = "constant", "symbol", ".", "all"
KINDS = {"struct": TypeKind.STRUCT, "union": TypeKind.UNION, "enum": TypeKind.ENUM}
YES, NO, UNKNOWN = "+", "-", "?"
# Lines of a vmlinux.h.
OPENS = re.compile(r"(?:typedef )?((?:struct|union|enum)( \w+)?) \{")
ALIAS = re.compile(r"^typedef ((?:struct |union )?\w+) (\w+);$", re.MULTILINE)
CALLED = re.compile(r"\(\*+(?:const )?(\w+)(?:\[\d*\])*\)")
BEHIND = re.compile(r" ?__attribute__\(\(.*\)\)|(?:\[\d*\])+|(?: ?: ?\d+)?;| = .*")
LAST = re.compile(r"[ *](\w+)$")

# Whether a kernel has something: ``struct page``, ``struct page.lru``, ``atomic_t.counter``,
# ``constant NR_FREE_PAGES``, ``symbol vmap_area_root``; None: that cannot be told.
Has = Callable[[str], bool | None]


@dataclass(frozen=True, slots=True)
class Foretold:
    """
    One section, and what is to be expected of it.

    :ivar status: as of a reading, with *likely* before it where no one kernel is like this one;
        several with *or* between them; or *unknown*.
    :ivar like: the kernels that answered the same.
    :ivar why: the reason that such a kernel gave; or what is otherwise on this one.
    """

    section: str
    status: str
    like: list[str]
    why: list[str]


@dataclass(frozen=True)
class Asked:
    """
    All that sections asked of the kernels that were read.

    :ivar kernels: the names.
    :ivar answers: of everything that was asked for, a letter for each kernel: its types have it,
        or have not, or cannot tell.
    :ivar asked: by section and kernel.
    :ivar statuses: by section and kernel, (status, reason) of each core of it.
    """

    kernels: list[str]
    answers: dict[str, str]
    asked: dict[str, dict[str, set[str]]]
    statuses: dict[str, dict[str, list[tuple[str, str]]]]

    def foretell(self, has: Has, without: Collection[str] = ()) -> list[Foretold]:
        """
        Each section of a kernel.

        :param without: kernels that count as if they had never been read.
        """
        columns = [at for at, name in enumerate(self.kernels) if name not in without]
        here = {ask: self._answer(ask, has(ask), columns) for ask in self.answers}
        return [self._section(section, here, columns) for section in self.asked]

    def _answer(self, ask: str, has: bool | None, columns: Sequence[int]) -> str:
        """The letter that a kernel answers."""
        if has or has is None:
            return YES if has else UNKNOWN
        known = {self.answers[ask][at] for at in columns}
        # In no kernel's types: a module's, or a variable.
        blind = YES not in known if ask.startswith(f"{SYMBOL} ") else UNKNOWN in known
        return UNKNOWN if blind else NO

    def _section(self, section: str, here: dict[str, str], columns: Sequence[int]) -> Foretold:
        asked = self.asked[section]
        known = [at for at in columns if self.kernels[at] in asked]
        alike = [at for at in known if self._same(at, here, asked[self.kernels[at]])]
        if not known:
            return Foretold(section, "unknown", [], ["no kernel was read"])
        if not alike:
            like, otherwise = self._by_parts(asked, here, known)
            if otherwise:
                return Foretold(section, "unknown", [], otherwise)
            return self._as(section, like, "likely ")
        found = self._as(section, alike)
        blind = {
            ask
            for at in alike
            for ask in asked[self.kernels[at]]
            if here[ask] == UNKNOWN and self.answers[ask][at] == NO
        }
        if "ok" in found.status or not blind:
            return found
        others = [at for at in known if "ok" in self._as(section, [at]).status]
        wanted = set[str]().union(*(asked[self.kernels[at]] for at in others))
        telling = {here[ask] for ask in wanted if self._tells(ask, alike, others)}
        if telling == {NO}:
            return found  # it has nothing of what only kernels have that have these
        like, otherwise = self._by_parts(asked, here, others)
        if others and not otherwise:
            return self._as(section, sorted({*alike, *like}), "likely ")
        why = f"as these if it has no {', '.join(sorted(blind))}, which its types do not show"
        return Foretold(section, "unknown", found.like, [why, *otherwise])

    def _tells(self, ask: str, these: Sequence[int], others: Sequence[int]) -> bool:
        """True if all of some kernels lack it, and all of others have it."""
        letters = self.answers[ask]
        return {letters[at] for at in these} == {NO} and {letters[at] for at in others} == {YES}

    def _same(self, at: int, here: dict[str, str], asks: Iterable[str]) -> bool:
        """True if a kernel answered the same, as far as both can tell."""
        pairs = ((here[ask], self.answers[ask][at]) for ask in asks)
        return all(a == b or UNKNOWN in (a, b) for a, b in pairs)

    def _by_parts(
        self, asked: dict[str, set[str]], here: dict[str, str], known: Sequence[int]
    ) -> tuple[list[int], list[str]]:
        """Kernels that together answered the same, each of some types; and what none did."""
        parts: dict[str, set[str]] = {}
        for at in known:
            for ask in asked[self.kernels[at]]:
                part, _ = part_of(ask)
                # Constants and symbols are each for itself.
                parts.setdefault(ask if part in (CONSTANT, SYMBOL) else part, set()).add(ask)
        like, otherwise = set[int](), list[str]()
        for asks in parts.values():
            own = {at: asks & asked[self.kernels[at]] for at in known}
            fitting = [
                at
                for at in known
                if self._same(at, here, own[at] or asks) or self._same(at, here, asks)
            ]
            each, unlike = ([fitting], set()) if fitting else self._by_members(own, here)
            otherwise += [f"has {'' if here[ask] == YES else 'no '}{ask}" for ask in unlike]
            for some in each:
                if not like & {*some}:
                    like.add(max(some))
        return sorted(like), sorted(otherwise)

    def _by_members(
        self, own: dict[int, set[str]], here: dict[str, str]
    ) -> tuple[list[list[int]], set[str]]:
        """
        Kernels that answered the same, for each member of a type; and members of which none did.

        Members come and go each by itself. Whether one may be lacking depends on what is read
        instead, which is here, too, or may be lacking itself: of two of which one is needed, not
        both.

        :param own: what was asked of each kernel.
        """
        asks = set[str]().union(*own.values())
        like = {ask: [at for at in own if self._same(at, here, [ask])] for ask in asks}
        if never := {ask for ask in asks if not like[ask]}:
            return [], never
        right: set[str] = set()
        while found := {
            ask
            for ask in asks - right
            if here[ask] != NO or any(self._instead(ask, at, own) <= right for at in like[ask])
        }:
            right |= found
        return [like[ask] for ask in right], asks - right

    def _instead(self, ask: str, at: int, own: dict[int, set[str]]) -> set[str]:
        """Members that a kernel has and was asked for instead, or that made it needless."""
        if ask in own[at]:
            others = [other for other in own if self.answers[ask][other] == YES]
            only = own[at].difference(*(own[other] for other in others))
        else:
            others = [other for other in own if ask in own[other]]
            only = {
                each for each in own[at] if all(self.answers[each][other] == NO for other in others)
            }
        return {each for each in only if self.answers[each][at] == YES}

    def _as(self, section: str, like: Sequence[int], sure: str = "") -> Foretold:
        """Expect what came of these."""
        names, statuses = [self.kernels[at] for at in like], self.statuses[section]
        said = dict.fromkeys(each for name in names for each in statuses[name])
        status = " or ".join(sorted({status for status, _ in said}, key="ok".__ne__))
        return Foretold(section, sure + status, names, [why for _, why in said if why])


def known() -> Asked:
    """All that the lab's kernels were asked."""
    return loaded(tomllib.loads(KNOWN.read_text()))


def loaded(said: dict[str, Any]) -> Asked:
    """The content of ``asked.toml``."""
    kernels: list[str] = said["kernels"]
    answers = {ask: letters for letters, named in said["answers"].items() for ask in asks_of(named)}
    asked: dict[str, dict[str, set[str]]] = {}
    statuses: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for section, of in said["sections"].items():
        asked[section], statuses[section] = {}, {}
        for which, status, why in of["statuses"]:
            for kernel in which.split():
                statuses[section].setdefault(kernel, []).append((status, why))
                asked[section].setdefault(kernel, set())
        for which, named in of["asked"].items():
            for kernel in asked[section] if which == EVERY else which.split():
                asked[section][kernel] |= set(asks_of(named))
    return Asked(kernels, answers, asked, statuses)


def asks_of(named: str) -> Iterator[str]:
    """Asks that are written as ``struct page: . lru; struct zone: name``."""
    for of in named.split("; "):
        part, _, names = of.partition(": ")
        yield from (_ask(part, name) for name in names.split())


def named(asks: Iterable[str]) -> str:
    """Asks as :func:`asks_of` reads them."""
    parts: dict[str, list[str]] = {}
    for ask in sorted(asks):
        part, name = part_of(ask)
        parts.setdefault(part, []).append(name)
    return "; ".join(f"{part}: {' '.join(names)}" for part, names in parts.items())


def _ask(part: str, name: str) -> str:
    if name == ITSELF:
        return part
    return f"{part} {name}" if part in (CONSTANT, SYMBOL) else f"{part}.{name}"


def part_of(ask: str) -> tuple[str, str]:
    """A type, or :data:`CONSTANT` or :data:`SYMBOL`; and the name in it, or :data:`ITSELF`."""
    for word in (CONSTANT, SYMBOL):
        if ask.startswith(f"{word} "):
            return word, ask.removeprefix(f"{word} ")
    part, _, name = ask.partition(".")
    return part, name or ITSELF


def what_it_has(file: Path) -> Has:
    """Tell what a kernel has by the types in a file, as :func:`types_in` reads it."""
    return has_of(types_in(file))


def has_of(types: Btf | str) -> Has:
    """Tell what a kernel has by its BTF, or by its vmlinux.h."""
    return of_header(types) if isinstance(types, str) else of_btf(types)


def types_in(file: Path) -> Btf | str:
    """
    Read a kernel's types: its BTF, alone or in a vmlinux; or the text of the vmlinux.h that is made
    of that.

    :raises NoDebugInfoError: it is something else, or damaged.
    :raises OSError: it cannot be read.
    """
    with open(open_plain(file), "rb") as opened:
        head = opened.read(HEAD_BYTES)
    if head[:2] in BTF_MAGICS:
        return _btf(read_plain(file, LIMITS["bytes"]))
    if HEADER in head:
        return read_plain(file, LIMITS["bytes"]).decode("ascii", "replace")
    if head.startswith(b"\x7fELF"):
        if blob := elf_section(file, ".BTF", LIMITS["bytes"]):
            return _btf(blob)
        raise NoDebugInfoError("an ELF file without a section .BTF (CONFIG_DEBUG_INFO_BTF)")
    raise NoDebugInfoError(
        "neither BTF, nor a vmlinux with it, nor a vmlinux.h: give that kernel's "
        "/sys/kernel/btf/vmlinux"
    )


def _btf(blob: bytes) -> Btf:
    # Of which architecture is not said; no name depends on it.
    return Btf(Program(Platform(Architecture.X86_64)), blob)


def of_btf(types: Btf) -> Has:
    """Tell what a kernel has by its BTF."""

    def has(ask: str) -> bool:
        part, name = part_of(ask)
        if part == CONSTANT:
            return types.enumerator(name) is not None
        if part == SYMBOL:
            return types.function(name) is not None or types.variable(name) is not None
        word, _, tag = part.rpartition(" ")
        kind = KINDS.get(word, TypeKind.TYPEDEF)
        found = types.find_type(types.prog, TypeKindSet([kind]), tag, None)
        return found is not None and (name == ITSELF or has_path(found, name.split(".")))

    return has


def has_path(type_: Type, path: Sequence[str]) -> bool:
    """True if members lead to members, through pointers and arrays."""
    for name in path:
        while type_.kind in (TypeKind.TYPEDEF, TypeKind.POINTER, TypeKind.ARRAY):
            type_ = type_.type
        if type_.kind not in (TypeKind.STRUCT, TypeKind.UNION) or not type_.has_member(name):
            return False
        type_ = type_.member(name).type
    return True


def of_header(text: str) -> Has:
    """Tell it by a vmlinux.h as bpftool writes it (``bpftool btf dump file FILE format c``)."""
    there = set(_declared(text))
    others = {name: of for of, name in ALIAS.findall(text)}

    def has(ask: str) -> bool | None:
        part, name = part_of(ask)
        if part == SYMBOL:
            return None
        for _ in range(LIMITS["chain"]):
            if name == ITSELF or part not in others:
                break
            part = others[part]
        return _ask(part, name) in there

    return has


def _declared(text: str) -> Iterator[str]:
    """The names of a vmlinux.h, by its lines."""
    # What is open: what it is called, if that is said, and the paths in it.
    opened: list[tuple[str, list[str]]] = []
    for line in map(str.strip, text.splitlines()):
        if found := OPENS.fullmatch(line):
            opened.append((found[1], []))
            if len(opened) > LIMITS["chain"]:
                raise NoDebugInfoError("no vmlinux.h: its braces lead too deep")
        elif line.startswith("}") and opened:
            (called, inside), name = opened.pop(), _name(line[1:])
            if opened:
                above = opened[-1][1]
                above += [name, *(f"{name}.{path}" for path in inside)] if name else inside
                continue
            word, _, tag = called.partition(" ")
            called = called if tag else name
            if word == "enum":
                yield from (f"{CONSTANT} {constant}" for constant in inside)
                inside = []
            yield from (called, *(f"{called}.{path}" for path in inside))
        elif opened:
            called, inside = opened[-1]
            name = line.partition(" ")[0] if called.startswith("enum") else _name(line)
            inside += [name] if name else []
        elif line.startswith("typedef ") and (name := _name(line)):
            yield name


def _name(line: str) -> str:
    """The name that a line declares; empty: none."""
    if found := CALLED.search(line):  # a pointer to a function
        return found[1]
    line = BEHIND.sub("", line)
    found = LAST.search(line)
    return found[1] if found else ""
