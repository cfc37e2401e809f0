# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle without the names that people chose, to be passed on.

Each column says whose words it holds (``rows.HOLDS``). What the kernel says of itself stays: zones,
settings, its symbols, addresses, its release. The names of processes, functions of programs and
their binaries, commands, cgroups, hosts, files, labels, and of modules and slab caches that are not
known to be Linux's own (``kernel_own.txt``), become ``comm-17``: numbered by their first
appearance, so that no dictionary leads back, and the same everywhere, in all bundles that are
redacted together. These have the same ``redaction`` in their target; in others ``comm-17`` is
another. Words of mmscope's own (messages, notes) may hold anything that an error said: of these a
word stays if it is in mmscope's own sources. Text of columns that do not say what they hold, of
another's tables or of an older mmscope, is replaced whole.

Values of the kernel's command line are running text, too: anybody may have written them.

Names stay where they are public: the kernel's threads for memory (``kswapd0``), ``[unknown]``.

Cannot know: which symbols without a module are from elsewhere, as of a kernel that was
changed; they stay. Nor what numbers give away, which running text keeps, too. A pid, an amount of
memory, a point in time and the kernel's release may be familiar to those who know the machine.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mmscope import FOLDER
from mmscope.drgn.tables.rows import HOLDS, Column, columns
from mmscope.drgn.text.plain_file import check_output
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import IDENTIFIER, BundleError, Cell, SectionResult
from mmscope.reports.bundle.leftovers import scratch
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.bundle.writer import Writer

WORDS = (
    "processes, functions of programs, commands, cgroups, hosts, files, labels, and modules and "
    "slab caches that are not Linux's own are numbered"
)
# What each text of a bundle's target is; others are treated as words.
TARGET = {
    "hostname": "host",
    "source": "file",
    "release": "kernel",
    "architecture": "kernel",
}
# What is added to it: what was done, and which bundles it was done to together.
REDACTED = ("redacted", "redaction")
# Where a reading comes from, if not from a file.
PUBLIC_SOURCES = ("/", "/proc/kcore")
# Threads that every kernel has, by names that are its own; a workqueue's name is a driver's.
KERNEL_THREAD = re.compile(
    r"(?:kswapd|kcompactd)[0-9]+|khugepaged|ksmd|oom_reaper|kthreadd|swapper(?:/[0-9]+)?"
    r"|(?:migration|ksoftirqd|cpuhp)/[0-9]+|(kworker/u?[0-9]+:[0-9]+H?)(?:[-+].*)?"
)
# What stands where there is no name: perf's, and ours.
NAMELESS = re.compile(r"\((?:others|no name)\)|:[0-9]+|\[unknown\]")
# BPF programs have symbols, too, with the names that their loaders gave them; and caches of a
# cgroup (before 5.9) the cgroup's.
BPF = re.compile(r"(?<=bpf_prog_)([0-9a-f]{16})_(\w+)")
MEMCG_CACHE = re.compile(r"(?<=\()([0-9]+):(.*)(?=\)\Z)", re.DOTALL)
# What a recipe groups samples by is a frame of its own: "order 3".
GROUP = re.compile(r"(\w+) -?[0-9]+")
# A task in what a tracepoint says.
TRACED = re.compile(r"(?<=\bcomm=)(.*?)(?=\s[\w-]+[=:]|\Z)", re.DOTALL)
# Of running text: what may be a name, and what is a number, an address or a time.
RUN = re.compile(r"[^\s\"'`(),;=<>\[\]{}|\u2013\u2026]+")
NUMBER = re.compile(
    r"[-+~]?(?:0x[0-9a-fA-F]+|[0-9][0-9,]*(?:\.[0-9]+)?)(?:%|[kKMGT]?i?B|[munµ]?s|x|th)?"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9:.]+(?:Z|[-+][0-9:]+)?)?"
)
# A size and an address of the command line: 64M$0x108000000. What was taken is not given back, by
# which a long row of digits would be tried in all its parts.
SIZES = re.compile(r"(?:[-+@$!%#]?(?:0x[0-9a-fA-F]++|[0-9]++)[kKMGTPE]?)++")
# A device of PCI's, a range of buses, an ACPI device.
HARDWARE = re.compile(
    r"[0-9]{4}:[0-9a-f]{2}(?::[0-9a-f]{2}\.[0-7])?|[0-9][0-9a-f]-[0-9a-f]{2}|PNP[0-9A-F]{4}:[0-9a-f]{2}"
)
# What the kernel says in tracepoints that recipes keep as text (oom.h, mmap.h and sched.h in
# include/trace/events).
TRACEPOINT_WORDS = {
    *("pid", "comm", "total-vm", "anon-rss", "file-rss", "shmem-rss", "uid", "pgtables"),
    *("oom_score_adj", "mt_mod", "DESTROY", "prio", "group_dead", "true", "false"),
}
# A frame of the kernel's: a symbol, and its module.
KERNEL_FRAME = re.compile(r"(?:\[unknown\]|[\w.$]+)(?: \[[\w-]+\])?_\[k\]")
# A frame of a module's.
MODULE_FRAME = re.compile(r"(\[unknown\]|[\w.$]+) \[([\w-]+)\]")
# Slab caches of sizes and devices (mm/slab_common.c: kmalloc_info; create_unique_id() of mm/slub.c;
# zs_create_pool() of mm/zsmalloc.c), and what tells those of one name apart.
SIZED_CACHE = re.compile(
    r"(?:dma-)?kmalloc(?:-rcl|-cg|-no-objext|-(?:rnd|part)-[0-9]+)*-[0-9]+[kM]?|:[\w-]*[0-9]{7}"
    r"|zs(?:page|_handle)-zram[0-9]+"
    r"|(?:memdup_user|msg_msg|bio|biovec|bip|sgpool|erofs_pcluster|dmaengine-unmap)-[0-9]+[kM]?"
)
SUFFIX = re.compile(r"(?:@?(?:0x)?[0-9a-f]{8,16}| ?\([0-9a-fx]+\)|\([0-9]+:.*\))\Z", re.DOTALL)
# Of what the kernel says, columns that have modules' names in them, by the name that they have in
# every table, also of older bundles; and columns about the module of their row.
MODULES = {"cache": "cache", "module": "module", "filesystem": "module", "resource": "words"}
OF_MODULE = {"function": "symbol", "owner": "symbol", "file": "file"}
# Columns that older bundles declare as the kernel's own.
HELD = {
    **{("memory_options", "value"): "words", ("physical_memory_parts", "options"): "words"},
    ("allocation_failures", "work"): "words",  # a driver's workqueue, and its function
}
# Kinds of text that Names has a method for; others are names that are replaced whole.
METHODS = {
    *("kernel", "words", "comm", "frame", "command", "profile", "label", "source"),
    *("module", "symbol", "cache"),
}


class Names:
    """
    Names and their stand-ins.

    :ivar given: (kind, name) to what stands for it.
    :ivar redaction: tells these numbers from another redaction's; chance, and made of no name.
    """

    def __init__(self) -> None:
        self.redaction = secrets.token_hex(8)
        self.given: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}
        self._standing: set[str] = set()

    def of(self, kind: str, name: str, form: str = "{kind}-{number}") -> str:
        """The stand-in of a name of a kind, which is numbered when it is met first."""
        if (kind, name) not in self.given:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            self.given[kind, name] = stands = form.format(kind=kind, number=number)
            self._standing.add(stands)
        return self.given[kind, name]

    def text(self, holds: str, text: str) -> str:
        """
        The text of a column.

        :param holds: of ``rows.HOLDS``; anything else is a name that is replaced whole.
        """
        if not text:
            return text
        if holds in METHODS:
            replaced: str = getattr(self, holds)(text)
            return replaced
        return self.of(holds or "text", text)

    def kernel(self, text: str) -> str:
        """Symbols, stacks and names of the kernel's own."""
        if "bpf_prog_" in text:
            text = BPF.sub(lambda found: self.of("bpf", found.group(), "{kind}_{number}"), text)
        if " [" in text:
            text = MODULE_FRAME.sub(self._module_frame, text)
        if text.endswith(")"):
            text = MEMCG_CACHE.sub(
                lambda found: f"{found[1]}:{self.of('cgroup', found[2])}", text, count=1
            )
        return text

    def _module_frame(self, found: re.Match[str]) -> str:
        function, module = found.groups()
        if is_own(module):
            return found[0]
        if function != "[unknown]":
            function = self.symbol(function)
        return f"{function} [{self.module(module)}]"

    def module(self, name: str) -> str:
        """A module, or a type of file system, which one has made."""
        return name if is_own(name) else self.of("module", name, "{kind}_{number}")

    def symbol(self, name: str) -> str:
        """A function of a module that is not Linux's."""
        return self.of("symbol", name, "{kind}_{number}")

    def cache(self, name: str) -> str:
        """A slab cache."""
        plain = SUFFIX.sub("", name)
        own = is_own(plain) or SIZED_CACHE.fullmatch(plain)
        return self.kernel(name) if own else self.of("cache", name)

    def source(self, path: str) -> str:
        """A file of the kernel's source: the folder where a module was built is replaced."""
        folder, slash, name = path.rpartition("/")
        return f"{self.of('file', folder)}{slash}{name}" if path.startswith("/") else path

    def comm(self, name: str) -> str:
        """The name of a task."""
        if found := KERNEL_THREAD.fullmatch(name):
            return found[1] or name
        return name if NAMELESS.fullmatch(name) else self.of("comm", name)

    def frame(self, name: str) -> str:
        """A frame of a profile, where the kernel's are marked."""
        if KERNEL_FRAME.fullmatch(name):
            return self.kernel(name)
        if NAMELESS.fullmatch(name):
            return name
        if (found := GROUP.fullmatch(name)) and found[1] in vocabulary():
            return name
        # A sample without a stack has nothing but its task.
        if ("function", name) not in self.given and ("comm", name) in self.given:
            return self.given["comm", name]
        return self.of("function", name)

    def stack(self, stack: str) -> str:
        """A stack of a profile: ``comm;root;…;leaf``."""
        comm, *frames = stack.split(";")
        return ";".join([self.comm(comm), *map(self.frame, frames)])

    def command(self, text: str) -> str:
        """A command that was run; or the processes that were watched."""
        return text if re.fullmatch(r"pid \d+( pid \d+)*", text) else self.of("command", text)

    def label(self, text: str) -> str:
        """The user's label of a recording. Its profile's name is made of it."""
        return self.of("label", re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or text)

    def profile(self, name: str) -> str:
        """The name of a recording: its recipe's stays, its label's does not."""
        from mmscope.perf import recipe as recipes  # which few bundles need

        for recipe in sorted(recipes.names(), key=len, reverse=True):
            slug = recipe.replace("-", "_")
            rest = name.removeprefix(f"{slug}_")
            if name == slug or (rest != name and self._is_count(rest)):
                return name
            if rest != name:
                return f"{slug}_{self.label(rest).replace('-', '_')}"
        return self.of("profile", name, "profile_{number}")

    def _is_count(self, rest: str) -> bool:
        """True if the end of a recording's name numbers it; a label may be a number, too."""
        labels = (name for kind, name in self.given if kind == "label")
        return len(rest) < 4 and rest.isdecimal() and not any(x.startswith(rest) for x in labels)

    def own(self, name: str, kind: str) -> str:
        """An identifier: a table's name, a column's, a section's."""
        known = not name or (IDENTIFIER.match(name) and name in vocabulary())
        return name if known else self.of(kind, name, "{kind}_{number}")

    def words(self, text: str) -> str:
        """Running text, word by word."""
        text = TRACED.sub(lambda found: self.comm(found[1]) if found[1] else "", text)
        return RUN.sub(lambda found: self._word(found.group()), text)

    def _word(self, run: str) -> str:
        word = run.rstrip(".:!?")
        tail = run[len(word) :]
        if word in self._standing or _plain(word) or all(map(_plain, word.split(":", 1))):
            return run
        for kind in ("host", "comm", "function", "cgroup", "file", "module", "symbol", "cache"):
            if (kind, word) in self.given:
                return self.given[kind, word] + tail
        return self.of("file" if "/" in word else "name", word) + tail


def _plain(word: str) -> bool:
    """True if a word is one of mmscope's own, or a number."""
    numbers = NUMBER.fullmatch(word) or SIZES.fullmatch(word) or HARDWARE.fullmatch(word)
    return not word or word in vocabulary() or numbers is not None


def is_own(name: str) -> bool:
    """True if a module's or a slab cache's name is one of Linux's own."""
    return name in vocabulary()


@cache
def vocabulary() -> frozenset[str]:
    """The words of mmscope's own: all that its sources have."""
    found = set(TRACEPOINT_WORDS)
    for folder in ("drgn", "perf", "reports"):
        for path in (FOLDER / folder).rglob("*"):
            if path.suffix in (".py", ".toml", ".sql", ".txt"):
                text = path.read_text(encoding="utf-8")
                found.update(run.rstrip(".:!?") for run in RUN.findall(text))
    return frozenset(found)


def undeclared(bundle: Bundle) -> list[str]:
    """Columns of text that do not say what they hold: ``table.column``."""
    return [
        f"{table.name}.{c.name}"
        for table in bundle.tables.values()
        for c in table.columns
        if c.type == "string" and c.holds not in HOLDS
    ]


class RedactingWriter:
    """
    Writes a bundle as :class:`Writer` does, with its names replaced before anything is on disk.

    :param target: of the bundle: its names come first, so that words that have them are known.
    :param files: names of folded stacks to what stands for them.
    """

    def __init__(
        self,
        writer: Writer,
        names: Names,
        target: Mapping[str, Cell],
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._writer, self._names, self._files = writer, names, files or {}
        self._text = lru_cache(maxsize=1 << 16)(names.text)
        _facts(target, names)

    def table(
        self,
        name: str,
        title: str,
        row_type: type | list[Column],
        rows: Iterable[Any],
        *,
        section: str,
    ) -> int:
        """As :meth:`Writer.table`."""
        names = self._names
        described = [
            dataclasses.replace(c, holds=HELD.get((name, c.name), c.holds))
            for c in (row_type if isinstance(row_type, list) else columns(row_type))
        ]
        names_in = [c.name for c in described]
        kinds = [
            MODULES.get(c.name, "kernel") if c.holds == "kernel" else c.holds for c in described
        ]
        # Of a row about a module that is not Linux's.
        others = [OF_MODULE.get(c.name, kind) for c, kind in zip(described, kinds, strict=True)]
        module = names_in.index("module") if "module" in names_in else None

        def cells(row: Any) -> tuple[Any, ...]:
            values = row if isinstance(row, tuple) else [getattr(row, name) for name in names_in]
            foreign = module is not None and values[module] and not is_own(str(values[module]))
            return tuple(map(self._cell, others if foreign else kinds, values))

        return self._writer.table(
            names.own(name, "table"),
            names.words(title),
            [_column(c, names) for c in described],
            map(cells, rows),
            section=names.own(section, "section"),
        )

    def _cell(self, kind: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return self._files.get(value, "") if kind == "stacks" else self._text(kind, value)

    def folded(
        self, name: str, title: str, stacks: Iterable[tuple[str, int]], *, unit: str, section: str
    ) -> int:
        """As :meth:`Writer.folded`."""
        from mmscope.reports.bundle.declared import HEADINGS  # which imports every probe

        names = self._names
        heading = HEADINGS.get(section)
        replaced = names.kernel if heading and heading.kernel_stacks else names.stack
        return self._writer.folded(
            self._files.get(name) or names.own(name, "stacks"),
            names.words(title),
            ((replaced(stack), value) for stack, value in stacks),
            unit=names.words(unit),
            section=names.own(section, "section"),
        )

    def finish(self, target: Mapping[str, Cell], sections: Iterable[SectionResult]) -> None:
        """As :meth:`Writer.finish`."""
        names, redaction = self._names, self._names.redaction
        if "redacted" in target:
            import hashlib

            # What was replaced before, and not together, stays apart.
            earlier = f"{target.get('redaction')} {redaction}"
            redaction = hashlib.sha256(earlier.encode(errors="replace")).hexdigest()[:16]
        self._writer.finish(
            _facts(target, names) | dict(zip(REDACTED, (WORDS, redaction), strict=True)),
            [
                dataclasses.replace(
                    section,
                    section=names.own(section.section, "section"),
                    status=names.words(section.status),
                    message=None if section.message is None else names.words(section.message),
                )
                for section in sections
            ],
        )


def redact(
    bundle: Bundle, path: Path, names: Names, *, replace: bool = False, mode: int | None = None
) -> Bundle:
    """
    Write a bundle with its names replaced. A table that cannot be read is left out, and its section
    says so.

    :param names: of all bundles that are to be compared afterwards.
    :param replace: a bundle that is there already.
    :param mode: of its files, as asked for.
    :raises BundleError: it cannot be written there.
    """
    lost: dict[str, list[str]] = {}
    with contextlib.suppress(BundleError):
        # Labels first: names of recordings and files are made of them.
        for row in bundle.rows_if_any("profile_recordings"):
            if isinstance(label := row.get("label"), str):
                names.label(label)
    with Writer(path, replace=replace, mode=mode) as plain:
        plain.made_of(bundle)
        writer = RedactingWriter(plain, names, bundle.target, _files(bundle, names))
        for folded in bundle.folded.values():
            try:
                for _ in bundle.stacks(folded.name):
                    pass
            except BundleError:
                lost.setdefault(folded.section, []).append(folded.name)
                continue
            stacks = bundle.stacks(folded.name)
            writer.folded(
                folded.name, folded.title, stacks, unit=folded.unit, section=folded.section
            )
        for table in bundle.tables.values():
            if table.name != "sections":
                try:
                    bundle.count(table.name)
                except BundleError:
                    lost.setdefault(table.section, []).append(table.name)
                    continue
                rows = (tuple(row.values()) for row in bundle.rows(table.name))
                writer.table(table.name, table.title, table.columns, rows, section=table.section)
        writer.finish(bundle.target, [_without(section, lost) for section in bundle.sections])
    return Bundle(path)


def _without(section: SectionResult, lost: Mapping[str, list[str]]) -> SectionResult:
    """The result of a section whose tables could not all be read."""
    if section.section not in lost:
        return section
    words = f"left out when names were replaced, as damaged: {', '.join(lost[section.section])}"
    return section.with_words(words, "partial")


@contextlib.contextmanager
def redacted(bundles: Iterable[Bundle], names: Names | None) -> Iterator[list[Bundle]]:
    """The same bundles with their names replaced, if they are to be, as long as the block lasts."""
    if names is None:
        yield list(bundles)
        return
    with scratch() as folder:
        yield [redact(bundle, folder / f"{n}", names) for n, bundle in enumerate(bundles)]


def wanted_names(args: argparse.Namespace) -> Names | None:
    """Names to replace by, if that is asked for."""
    if args.redact_map is not None and not args.redact:
        raise UsageError("--redact-map goes with --redact")
    refuse_old_map(args.redact_map)
    return Names() if args.redact else None


def refuse_old_map(path: Path | None) -> None:
    """
    Before the work: a map that is there is that of another redaction.

    :raises UsageError: there is one, or other users could misdirect it (``plain_file``).
    """
    if path is None:
        return
    if os.path.lexists(path):
        raise UsageError(f"{path}: already exists; choose another name for the map")
    try:
        check_output(path)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def write_map(names: Names | None, path: Path | None) -> None:
    """
    Write what stands for what, for the owner's eyes alone, if that is asked for.

    :raises BundleError: there is such a file already, which may be the map of another redaction.
    :raises OSError: it cannot be written.
    """
    if names is None or path is None:
        return
    kinds: dict[str, dict[str, str]] = {}
    for (kind, name), stands in names.given.items():
        kinds.setdefault(kind, {})[stands] = name
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BundleError(f"{path}: already exists; choose another name for the map") from None
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(kinds, file, indent=1)
        file.write("\n")


def _facts(target: Mapping[str, Cell], names: Names) -> dict[str, Cell]:
    """Facts about the machine, without those of an earlier redaction."""
    found: dict[str, Cell] = {}
    for key, value in target.items():
        if key in REDACTED:
            continue
        if isinstance(value, str) and not (key == "source" and value in PUBLIC_SOURCES):
            value = names.text(TARGET.get(key, "words"), value)
        found[names.own(key, "fact")] = value
    return found


def _files(bundle: Bundle, names: Names) -> dict[str, str]:
    """Folded stacks of recordings to their names as redacted, which are made of the recordings'."""
    found: dict[str, str] = {}
    with contextlib.suppress(BundleError):  # which is left out; its stacks are then given numbers
        for row in bundle.rows_if_any("profiles"):
            profile, event, file = (row.get(name) or "" for name in ("profile", "event", "file"))
            if isinstance(file, str) and file in bundle.folded:
                words = f"{names.profile(str(profile))}_{names.words(str(event))}"
                found[file] = re.sub(r"[^a-z0-9]+", "_", words.lower())
    return found


def _column(column: Column, names: Names) -> Column:
    return dataclasses.replace(
        column,
        name=names.own(column.name, "column"),
        unit=names.words(column.unit),
        help=names.words(column.help),
        holds=column.holds if column.holds in HOLDS else "",
    )
