# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Parts of the kernel's work, and the one that a stack is: tables of function names, ``parts/*.toml``.

A split says two things of a stack: who does the work (the exiting process, the reaper, …) and which
part of the work it is (clearing entries, freeing tables, …). Both are looked up by function name in
one walk over the stack; compiler suffixes (``.isra.0``, ``.constprop.0``) do not count.

Cannot know: functions that are inlined into others (their time is their caller's), nor names that a
later kernel gives. What no table names is *unclassified*, and shown as that.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from mmscope.perf.recipe import counted_event

HERE = Path(__file__).resolve().parent
UNCLASSIFIED = "unclassified"
_MAX_PLACES = 20_000
_SUFFIX = re.compile(r"\.(isra|constprop|part|cold|llvm|lto_priv)\b.*\Z")


class Names:
    """A set of function names, of which some end in a ``*``."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = list(names)
        self.exact = frozenset(name for name in listed if not name.endswith("*"))
        self.begins = tuple(name[:-1] for name in listed if name.endswith("*"))

    def __contains__(self, name: str) -> bool:
        return name in self.exact or (bool(self.begins) and name.startswith(self.begins))


def plain(symbol: str) -> str:
    """A function's name without what the compiler adds to its clones."""
    return _SUFFIX.sub("", symbol) if "." in symbol else symbol


class Part(NamedTuple):
    """One part of a split, or one of those who do the work."""

    name: str
    why: str
    functions: Names
    outer: bool = False
    for_others: bool = False  # of who: in the stead of tasks that are followed, so kept with them


class Split:
    """
    A file of ``parts/``.

    :raises KeyError: a table lacks a key.
    :raises TypeError: it has one that is not known.
    """

    def __init__(self, name: str, data: dict[str, Any]) -> None:
        self.name, self.title = name, str(data["title"])
        self.who, self.parts = (
            [Part(**{**part, "functions": Names(part["functions"])}) for part in data[key]]
            for key in ("who", "part")
        )
        # A part that another (``by``) does in a task's stead, and the task perhaps once more;
        # between tracepoints ``begin`` and ``end``, with the pid of the task.
        self.again: dict[str, str] = data.get("again", {})
        # Those who do the work in the stead of others.
        self.for_others = frozenset(who.name for who in self.who if who.for_others)
        self._place = lru_cache(_MAX_PLACES)(self._find)

    def classify(self, symbols: Sequence[str]) -> tuple[str, str] | None:
        """
        (who, part) of a stack, root first; None if it is outside this split.

        :param symbols: as :func:`plain` gives them.
        """
        none = len(self.parts)
        places = [self._place(symbol) for symbol in symbols]
        who = min((who for who, _, _ in places), default=len(self.who))
        if who == len(self.who):
            return None
        # The last frame's, where no part is an outer one.
        part = min(outer for _, outer, _ in places)
        if part == none:
            part = next((inner for _, _, inner in reversed(places) if inner < none), none)
        return self.who[who].name, self.parts[part].name if part < none else UNCLASSIFIED

    def _find(self, symbol: str) -> tuple[int, int, int]:
        """Indices of the first that has a function: of who, of outer parts, of all parts."""
        parts = [n for n, part in enumerate(self.parts) if symbol in part.functions]
        return (
            next((n for n, who in enumerate(self.who) if symbol in who.functions), len(self.who)),
            next((n for n in parts if self.parts[n].outer), len(self.parts)),
            next(iter(parts), len(self.parts)),
        )

    def why(self, part: str) -> str:
        """Meaning of a part, in words."""
        return next((p.why for p in self.parts if p.name == part), "no table names its functions")


def load_split(name: str) -> Split:
    """
    The split of that name.

    :raises ValueError: there is no such table, or its file is not valid.
    """
    data = _load(HERE / "parts" / f"{name}.toml")
    try:
        return Split(name, data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"parts/{name}.toml: {error}") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True)
class KnownFrames:
    """``frames.toml``."""

    idle: Names
    interrupt: Names
    profiler: frozenset[bytes]  # comms
    irq_enable: tuple[tuple[Names, str], ...]  # functions, what a sample on one stands for
    no_nmi: tuple[str, ...]
    counters: tuple[str, ...]
    nmi_architectures: tuple[str, ...]

    def stands_for(self, leaf: str) -> str:
        """Meaning of a sample on that leaf; empty if interrupts do not come on there."""
        return next((words for names, words in self.irq_enable if leaf in names), "")

    def nmi(self, event: str, architecture: str) -> str:
        """
        Tell if a sampler reaches code that runs with interrupts off: ``yes``, ``no``, or
        ``unknown``; empty for what is not a sampler.
        """
        name = counted_event(event)
        if name in self.no_nmi:
            return "no"
        if name in self.counters:
            return "yes" if architecture in self.nmi_architectures else "unknown"
        return ""


def load_known_frames() -> KnownFrames:
    """
    Load what is known of functions.

    :raises ValueError: the file is not as it should be.
    """
    data = _load(HERE / "frames.toml")
    return KnownFrames(
        idle=Names(data["idle"]),
        interrupt=Names(data["interrupt"]),
        profiler=frozenset(map(str.encode, data["profiler"])),
        irq_enable=tuple((Names(i["functions"]), i["stands_for"]) for i in data["irq_enable"]),
        no_nmi=tuple(data["samplers"]["no_nmi"]),
        counters=tuple(data["samplers"]["counters"]),
        nmi_architectures=tuple(data["samplers"]["nmi_architectures"]),
    )
