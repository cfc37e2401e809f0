# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Recipes: what to record and how to read it, ``recipes/<name>.toml``.

A recipe is data. Each event names its choices in order (``cycles``, or else ``cpu-clock``);
``perf_events`` picks the first that this machine has. A new recipe is a new file.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "recipes"


def event_name(choice: str) -> str:
    """Name by which perf prints an event that it is asked for with these words: without terms."""
    name, _, terms = choice.partition("/")
    given = re.search(r"\bname=([\w-]+)", terms)
    return given[1] if given else name


# Terms that say how an event is sampled (parse_events__term_type_str() in
# tools/perf/util/parse-events.c, 6.12); others choose one of a PMU's events.
_SAMPLING = {
    *("aux-action", "aux-output", "aux-sample-size", "branch_type", "call-graph", "freq"),
    *("inherit", "max-stack", "metric-id", "name", "no-inherit", "no-overwrite", "nr"),
    *("overwrite", "percore", "period", "stack-size", "time"),
}
# Modes of an event: modifier_event in tools/perf/util/parse-events.l, 6.17; later ones have X.
_MODIFIERS = re.compile(r":[ukhpPGHSDIWebRX]{1,17}\Z")


def printed_event(printed: str) -> str:
    """
    An event as perf prints it, without the terms that it was sampled with; the PMU stays, which is
    part of the event: ``cpu_core/cycles/`` and ``cpu_atom/cycles/`` are two.
    """
    name, slash, rest = printed.partition("/")
    terms = {term.partition("=")[0] for term in rest.rpartition("/")[0].split(",")}
    return name if not slash or ":" in name or terms <= _SAMPLING else printed


def counted_event(event: str) -> str:
    """The event that is counted, on any PMU and in any mode: ``cycles`` of ``cycles:u``."""
    name, slash, rest = event.partition("/")
    if slash and ":" not in name:
        return re.split("[,/]", rest)[0]
    return _MODIFIERS.sub("", event)


def is_tracepoint(event: str) -> bool:
    """True for ``group:name``; what follows the colon of ``cycles:u`` are modes."""
    return ":" in event and "/" not in event and _MODIFIERS.search(event) is None


@dataclass(frozen=True)
class Event:
    """
    Something to record.

    :ivar first_of: perf's event strings, the best first; ``{frequency}`` is filled in.
    :ivar fold: its samples are stacks to draw; else they are only counted or listed.
    :ivar filter: for the kernel, so that other events cost nothing. ``{__GFP_A|__GFP_B}`` is the
        number of these flags, as the tracepoint's own format says it.
    :ivar keep: a regular expression that a tracepoint's text must have.
    :ivar group: a regular expression; what it finds becomes root frame ``<group_name> <found>``.
    :ivar failed: a regular expression; where it matches, that frame ends in ``, failed``.
    :ivar timeline: it is rare, and when it happened is kept.
    :ivar of_all: of tasks that are not followed, too.
    :ivar called: a regular expression of a text that says what a task is called: its pid, its name.
    :ivar tally: column of table profile_allocations that its samples are counted in, by order.
    """

    why: str
    first_of: tuple[str, ...]
    required: bool = True
    fold: bool = True
    filter: str = ""
    keep: str = ""
    group: str = ""
    group_name: str = ""
    failed: str = ""
    timeline: bool = False
    of_all: bool = False
    called: str = ""
    tally: str = ""


@dataclass(frozen=True)
class Pair:
    """
    Two events of one task that begin and end something.

    :ivar waits: name of another pair, whose time inside of this one is waiting, and not work.
    :ivar about: a regular expression; what it finds in the text of *begin* is what the pair is
        about, as a hexadecimal address.
    :ivar whole: functions; where *end* returns to one of these, all was done, and its time is kept
        by what it is about.
    :ivar inner: what the names of functions between that one and *begin* start with.
    """

    name: str
    begin: str
    end: str
    waits: str = ""
    about: str = ""
    whole: tuple[str, ...] = ()
    inner: str = ""


@dataclass(frozen=True)
class Probe:
    """
    A kernel function that becomes ``mmscope:<name>``, its return ``mmscope:<name>_return``.

    :ivar function: the first that the kernel takes a probe on, newest first.
    :ivar fetch: what is taken along, as of Documentation/trace/kprobetrace.rst; the first that the
        kernel takes. ``… if SYMBOL``: only where the kernel has that function.
    """

    name: str
    function: tuple[str, ...]
    entry: bool = True
    returns: bool = False
    fetch: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Recipe:
    """A file of ``recipes/``."""

    name: str
    title: str
    answers: str  # which question
    read: str  # how to read what comes out
    needs: str  # privileges
    overhead: str  # measured
    events: tuple[Event, ...]
    scope: str = "task"  # or system: every CPU, also for a command or a process
    follow: bool = False  # of all CPUs, keep the command or process, and who reaps it
    seconds: float = 10  # where nothing else ends it; 0: until Ctrl-C
    frequency: int = 997
    megabytes: int = 512  # of perf.data; perf checks now and then, and overshoots
    buffer: str = "4M"  # a CPU
    addresses: bool = False
    split: str = ""  # of parts/
    trigger: str = ""  # flight recorder: this event dumps what the buffers hold
    counters: tuple[str, ...] = ()  # of /proc/vmstat, before and after
    counts: tuple[Event, ...] = ()  # by perf stat, beside the recording
    pairs: tuple[Pair, ...] = ()
    probes: tuple[Probe, ...] = ()
    # Flame graphs of their own: (title, functions that their stacks begin from).
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()


_LISTS = {"events": Event, "counts": Event, "pairs": Pair, "probes": Probe}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Recipe:
    """
    The recipe of that name.

    :raises ValueError: there is no such recipe, or its file is not valid.
    """
    if name not in names():
        raise ValueError(f"no recipe {name!r}; there are {', '.join(names())}")
    try:
        data = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        for key, kind in _LISTS.items():
            data[key] = tuple(kind(**_tuples(item)) for item in data.get(key, ()))
        views = data.get("views", ())
        data["views"] = tuple((view["title"], tuple(view["roots"])) for view in views)
        words = {k: " ".join(data[k].split()) for k in ("answers", "needs", "overhead")}
        return Recipe(name=name, **_tuples({**data, **words, "read": data["read"].strip()}))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"recipes/{name}.toml: {error}") from error


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
