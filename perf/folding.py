# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Samples folded to stacks, ``comm;root;…;leaf``, and what else a recipe wants of them: parts, sites
where interrupts come back on, durations, times, faults by task.

Frames of the kernel end in ``_[k]``, as FlameGraph's own tools write them, and name their module,
``ext4_iget [ext4]_[k]``. What has no symbol is its binary in brackets.

One pass, and memory that does not grow with the recording: everything that is kept has a limit;
beyond it, samples are still counted, under a name that says so.

What a tracepoint meets in an interrupt stands under ``(interrupt)``, and not under the task that
happened to be interrupted; a sampler's time is that task's.

Every sample is accounted for: folded, or removed for a reason that is counted.

Cannot know: what perf did not record.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from mmscope.perf import perf_probes, perf_script
from mmscope.perf.perf_script import KERNEL, UNKNOWN, Sample
from mmscope.perf.recipe import (
    Event,
    Pair,
    Recipe,
    counted_event,
    event_name,
    is_tracepoint,
    printed_event,
)
from mmscope.perf.stack_parts import KnownFrames, Split, plain

# Distinct stacks of an event; a stack is a few hundred bytes.
MAX_STACKS = 200_000
TOO_MANY = "(stacks beyond the limit of what is kept)"
# Texts of stacks, and lines of them, whose meaning is remembered: a stack's text is a KiB.
_MAX_KNOWN = 20_000
_MAX_LINES = 100_000
MAX_TIMELINE = 5_000
MAX_TASKS = 2_000
MAX_DURATIONS = 1 << 20
MAX_ABOUT = 10_000  # that durations are kept by
MAX_FOUND = 1_000
MAX_REGIONS = 1 << 20
MAX_NAME = 256
MAX_NESTED = 8  # reservations of a task whose allocation is still to come
NO_STACK = "(no stack)"
NO_EVENT = "(event not printed)"
MARK = "_[k]"  # of the kernel's frames
INTERRUPT = "(interrupt)"  # in the place of a comm
# The name of a pair whose waiting is known, beside its whole time.
WAITING, NOT_WAITING = ", waiting", ", not waiting"
FAILED = ", failed"
# Of a return probe: where it returns to, which is the sample's address, and the function there.
_RETURNS = re.compile(rb" <- ([0-9a-f]+)\) +\1 ([\w]+)")
_ORDER = re.compile(rb"\border=(\d{1,2})\b")

# Why a sample is not among the folded ones.
IDLE, PROFILER, OTHERS, NOT_KEPT = "idle", "profiler", "other tasks", "not asked for"
# Where libtraceevent does not understand what a tracepoint prints it prints the fields, and flags
# without names. On arm64 these are all that print a struct page: its address needs memstart_addr.
UNNAMED = "flags as numbers"
# DSOs as perf names them (tools/perf/util/dso.c, thread-stack and map, 3.10 to 7.2): of user code,
# though in brackets; and of the kernel, though its addresses are those of the file.
_USERS = (
    *("[unknown", "[vdso", "[vvar", "[vsyscall", "[vectors", "[sigpage", "[heap", "[stack"),
    *("[anon", "[uprobes"),
)
_OF_KERNEL = re.compile(
    r"(?:\A|/)(?:vmlinux(?:[-.][^/]*)?|kcore|kallsyms|[^/]+\.ko(?:\.[a-z]\w*)*)\Z|/\[kernel\."
)
_NO_MODULE = ("vmlinux", "bpf_prog", "bpf_trampoline", "bpf_dispatcher", "kcore", "kallsyms")
_UNNAMED = re.compile(r"flags=0x[0-9a-f]+(?!\S)")


@dataclass
class Folded:
    """
    One event of a recording.

    :ivar stacks: folded stack to [samples, period].
    :ivar removed: reason to samples.
    :ivar parts: (who, part) to samples.
    :ivar sites: (leaf where interrupts come on, its caller) to samples.
    :ivar found: what the recipe's ``group`` found in a tracepoint's text to samples.
    """

    event: str
    declared: Event | None
    samples: int = 0
    period: int = 0
    kernel_samples: int = 0  # whose leaf is in the kernel
    stacks: dict[str, list[int]] = field(default_factory=dict)
    removed: Counter[str] = field(default_factory=Counter)
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    sites: Counter[tuple[str, str]] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    overflow: int = 0

    @property
    def recorded(self) -> int:
        """All samples that were read."""
        return self.samples + sum(self.removed.values())


class Known(NamedTuple):
    """
    The meaning of a stack.

    :ivar traced: of a tracepoint: without what calls its users, where arm64's stacks of it end.
    :ivar within: the same of one in an interrupt, without the task that this interrupts.
    :ivar key: (who, part) of the split.
    :ivar leaf, caller: where interrupts come back on; else empty.
    """

    folded: str
    traced: str
    within: str
    kernel: bool
    interrupt: bool
    idle: bool
    key: tuple[str, str] | None
    leaf: str
    caller: str


@dataclass
class Task:
    """Faults of a process, by the addresses that it touched."""

    faults: int = 0
    first: int = KERNEL << 1
    last: int = 0
    regions: set[int] = field(default_factory=set)  # of what a PTE table maps


class NeededTables:
    """
    The page tables that a process needs for the addresses of its faults: a table of entries for
    each region that one maps, a PMD table for each region of those, a PUD table for each of these.

    Cannot know: tables that were there without a fault (of the parent, after fork(); of the stack
    before the program began; of MAP_POPULATE) or were given back meanwhile; and that a mapping of
    hugetlb needs no table of entries.

    :ivar points: at 16, 32, 64, … faults, and at the last one: (ns since the first fault, faults,
        tables of entries, PMD tables, PUD tables).
    """

    def __init__(self, bits: int) -> None:
        """:param bits: of an address, those that choose an entry of a table."""
        self.faults, self.first, self.last = 0, b"", b""
        self.regions: tuple[set[int], set[int], set[int]] = set(), set(), set()
        self.points: list[tuple[int, int, int, int, int]] = []
        self._bits, self._due, self._more = bits, 16, True

    def fault(self, region: int, printed: bytes) -> None:
        """
        Count one.

        :param region: number of the region that a PTE table maps. :param printed: when.
        """
        pte, pmd, pud = self.regions
        self._more &= len(pte) < MAX_REGIONS or region in pte
        if not self._more:
            return
        pte.add(region)
        pmd.add(region >> self._bits)
        pud.add(region >> 2 * self._bits)
        self.faults += 1
        self.first = self.first or printed
        self.last = printed
        if self.faults >= self._due:
            self.point()
            self._due *= 2

    def point(self) -> None:
        """Keep the number of tables at the last fault."""
        pte, pmd, pud = map(len, self.regions)
        taken = nanoseconds(self.last) - nanoseconds(self.first)
        if self.faults and (taken, self.faults, pte, pmd, pud) not in self.points[-1:]:
            self.points.append((taken, self.faults, pte, pmd, pud))


def nanoseconds(printed: bytes) -> int:
    """A time as perf prints it, with six or nine decimals."""
    seconds, _, fraction = printed.partition(b".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, b"0"))


def plain_name(name: str) -> str:
    r"""
    A name that is safe between semicolons on one line: what would break it is written out, as
    ``\\x3b``, and so is what would command a terminal.

    Names are anybody's: comms, symbols of binaries, file names.
    """
    if len(name) > MAX_NAME:
        name = name[:MAX_NAME] + "…"
    if name.isprintable() and ";" not in name:
        return name
    escaped = (c if c.isprintable() else ascii(c)[1:-1] for c in name)
    return "".join(escaped).replace(";", "\\x3b")


class Fold:
    """
    Folds the samples of one recording; feed it with :meth:`add`.

    :param wanted: pids whose descendants, and who reaps them, are all that is kept; empty: all.
    :param idle: keep samples of CPUs with nothing to do.
    :param profiler: keep those of perf itself.

    :ivar about: of pairs that were all done: (name, what it was about) to (times, ns in all, least,
        most), waits left out.
    :ivar again: samples of the part that the split's ``again`` is about: by the ``reaper`` that
        does it in a task's stead, by the task ``beside`` it, and ``after`` that was done.
    :ivar allocations: order to samples by the recipe's ``tally``; None: of a reservation whose
        allocation was not met.
    :ivar timeline: (ns, event, pid, comm, text) of what happened and is rare.
    :ivar without_address: faults in whose text is none.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        split: Split | None,
        known: KnownFrames,
        *,
        wanted: Iterable[int] = (),
        idle: bool = False,
        profiler: bool = False,
    ) -> None:
        self.recipe, self.split, self.known = recipe, split, known
        self.tree = set(wanted)
        self.keep_idle, self.keep_profiler = idle, profiler
        self.filtered: frozenset[str] = frozenset()
        self.events: dict[str, Folded] = {}
        self.timeline: list[tuple[int, str, int, str, str]] = []
        self.more_moments = 0
        self.without_address = 0
        self.tasks: dict[tuple[str, int, str], Task] = {}
        self.growths: dict[tuple[int, str], NeededTables] = {}
        self.durations: dict[str, array[int]] = {}
        self.more_durations = 0
        self.about: dict[tuple[str, int], tuple[int, int, int, int]] = {}
        self.more_about = 0
        self.again: Counter[str] = Counter()
        self.allocations: dict[int | None, Counter[str]] = {}
        self._reserving: dict[int, list[str]] = {}  # by task: stacks whose allocation is to come
        self._begin = b""
        self._names: dict[bytes, Folded] = {}
        self._called: dict[str, str] = {}
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        # Of pairs that have begun: when, waits in it, what it is about, who calls.
        self._open: dict[tuple[str, int], list[Any]] = {}
        # Most samples have a stack, and most stacks a meaning, that were met before.
        self._understand = lru_cache(_MAX_KNOWN)(self._meaning_of_text)
        self._meaning = lru_cache(_MAX_KNOWN)(self._meaning_of_frames)
        self._comm = lru_cache(_MAX_KNOWN)(self._task_name)
        self._set_page_size(4096)
        self._set_pairs(recipe.pairs if recipe else ())

    def _set_pairs(self, pairs: Sequence[Pair]) -> None:
        self._begins = {pair.begin: pair for pair in pairs}
        self._ends = {pair.end: pair for pair in pairs}

    def _set_page_size(self, page_bytes: int) -> None:
        """A table is a page, with an entry of 8 bytes for each page or table below it."""
        self._index_bits = page_bytes.bit_length() - 4
        self._region_shift = page_bytes.bit_length() - 1 + self._index_bits

    def set_recording(
        self,
        left_out: Iterable[str],
        filtered: Iterable[str],
        page_bytes: int = 4096,
        command: str = "",
    ) -> None:
        """
        Set what is known of the recording.

        :param left_out: events that it does not have: what only they would show is left out.
        :param filtered: events of which it has only what is asked for.
        :param page_bytes: of that machine.
        :param command: comm of the command, if the recording is of it alone. perf begins such a one
            when the command is executed (``enable_on_exec``), so that samples under the name that a
            command has before are its own: the record of its name was lost.
        """
        self._set_page_size(page_bytes)
        if command:
            self._called[perf_script.WAITING.decode()] = plain_name(command)
        left = set(left_out)
        self.filtered = frozenset(filtered)
        if self.recipe is None or not left:
            return
        whole = [p for p in self.recipe.pairs if not left & {p.begin, p.end}]
        names = {pair.name for pair in whole}
        self._set_pairs([replace(p, waits=p.waits if p.waits in names else "") for p in whole])

    def fork(self, pid: int, parent: int) -> None:
        """A process has a child."""
        if parent in self.tree:
            self.tree.add(pid)

    def add(self, sample: Sample) -> None:
        """Take one sample."""
        event = self._names.get(sample.event) or self._event(sample.event)
        declared = event.declared
        if declared is not None and not declared.fold:
            self._count(event, declared, sample)
            return
        found = self._understand(sample.stack)
        group = reason = ""
        if found.idle and not self.keep_idle:
            reason = IDLE
        elif self._is_profiler(sample) and not found.interrupt:
            reason = PROFILER
        elif self.tree and not self._wanted(sample, found):
            reason = OTHERS
        elif declared is not None and (declared.keep or declared.group):
            filtered = event.event in self.filtered
            group, reason = _selected(declared, sample.rest, filtered=filtered)
        if self._begins:
            self._pair(event.event, sample, reason, found.folded)
        if reason:
            event.removed[reason] += 1
            return
        self._begin = self._begin or sample.time
        if group and (group in event.found or len(event.found) < MAX_FOUND):
            event.found[group] += 1
        if declared is not None and declared.tally:
            self._tally(declared.tally, sample, found.traced, failed=group.endswith(FAILED))
        period = 1 if sample.period is None else sample.period
        values = self._values(event, sample.comm, group, found)
        values[0] += 1
        values[1] += period
        event.samples += 1
        event.period += period
        event.kernel_samples += found.kernel
        if found.key is not None:
            event.parts[found.key] += 1
            self._count_again(*found.key, sample)
        if found.leaf:
            event.sites[found.leaf, found.caller] += 1

    def _values(self, event: Folded, comm: bytes, group: str, found: Known) -> list[int]:
        """Counts of a stack of a comm: [samples, period]."""
        name, folded = self._comm(comm), found.folded
        if is_tracepoint(event.event):
            folded = found.traced
            if found.interrupt:
                # The task in whose time it happens has no part in it.
                name, folded = INTERRUPT, found.within
        stack = f"{name};{group};{folded}" if group else f"{name};{folded}"
        values = event.stacks.get(stack)
        if values is None:
            if len(event.stacks) >= MAX_STACKS:
                event.overflow += 1
                stack = TOO_MANY
            values = event.stacks.setdefault(stack, [0, 0])
        return values

    @property
    def begin_ns(self) -> int:
        """Time of the first sample."""
        return nanoseconds(self._begin) if self._begin else 0

    def _event(self, printed: bytes) -> Folded:
        """The event of that name; perf may print the terms that it was asked for with."""
        name = plain_name(printed.decode("utf-8", "backslashreplace"))
        name = perf_probes.plain(printed_event(name)) or NO_EVENT
        if name not in self.events:
            declared = None
            for event in self.recipe.events if self.recipe else ():
                if {name, counted_event(name)} & {*map(event_name, event.first_of)}:
                    declared = event
            self.events[name] = Folded(name, declared)
        self._names[printed] = self.events[name]
        return self.events[name]

    def _meaning_of_text(self, stack: bytes) -> Known:
        """The meaning of a stack as it is printed."""
        names: list[str] = []
        symbols: list[str] = []
        around = 0, ""
        for line in reversed(stack.split(b"\n\t")):
            name, symbol, at = _line(line)
            if not at[1] and around[1] and at[0] == around[0]:
                # What is inlined is in the DSO of the function around it.
                name, symbol, at = _line(line, around[1])
            around = at
            # Without frame pointers a user's stack is noise; once says it.
            if name and not (name == "[unknown]" and names and names[-1] == name):
                names.append(name)
                symbols.append(symbol)
        return self._meaning(tuple(names), tuple(symbols))

    def _meaning_of_frames(self, names: tuple[str, ...], symbols: tuple[str, ...]) -> Known:
        """
        The meaning of a stack, root first.

        :param symbols: empty strings for what is not the kernel's.
        """
        known = self.known
        begin = next((n for n, symbol in enumerate(symbols) if symbol in known.interrupt), None)
        end = next((n for n, s in enumerate(symbols) if s.startswith("__traceiter_")), None)
        idle = begin is None and any(symbol in known.idle for symbol in symbols)
        leaf = caller = ""
        if symbols and not idle and known.stands_for(symbols[-1]):
            caller, leaf = ("", *symbols)[-2:]
        return Known(
            folded=";".join(names) or NO_STACK,
            traced=";".join(names[:end]) or NO_STACK,
            within=";".join(names[begin:end]),
            kernel=bool(symbols and symbols[-1]),
            interrupt=begin is not None,
            idle=idle,
            key=self.split.classify(symbols) if self.split is not None else None,
            leaf=leaf,
            caller=caller,
        )

    def _task_name(self, printed: bytes) -> str:
        name = plain_name(printed.decode("utf-8", "backslashreplace").strip()) or "(no name)"
        # perf does not know the name of a task that was gone when it asked.
        return self._called.get(name, name)

    def _is_profiler(self, sample: Sample) -> bool:
        if self.keep_profiler or sample.comm not in self.known.profiler:
            return False
        return sample.comm != perf_script.WAITING or sample.comm.decode() not in self._called

    def _wanted(self, sample: Sample, found: Known) -> bool:
        if sample.pid in self.tree or sample.tid in self.tree:
            return True
        others = self.split.for_others if self.split else ()
        return found.key is not None and found.key[0] in others

    def _count(self, event: Folded, declared: Event, sample: Sample) -> None:
        """A sample without a stack to draw: a fault with its address, or a moment."""
        if self._is_profiler(sample):
            event.removed[PROFILER] += 1
            return
        if self.tree and not declared.of_all and not {sample.pid, sample.tid} & self.tree:
            event.removed[OTHERS] += 1
            return
        event.samples += 1
        event.period += 1
        if self._begins:
            self._pair(event.event, sample, "", "")
        if declared.timeline:
            self._moment(event.event, declared, sample)
        elif self.recipe and self.recipe.addresses:
            self._fault(event.event, sample)

    def _moment(self, event: str, declared: Event, sample: Sample) -> None:
        text = plain_name(sample.rest.decode("utf-8", "backslashreplace").strip())
        if declared.called and (called := re.match(declared.called, text)):
            self._called[f":{called[1]}"] = called[2]
        again = self.split.again if self.split else {}
        if again and (about := re.match(r"pid=([0-9]{1,10})(?![0-9])", text)):
            pid = int(about[1])
            if event == again["begin"]:
                self._begun.add(pid)
            if event == again["end"]:
                self._begun.discard(pid)
                self._ended.add(pid)
        if len(self.timeline) >= MAX_TIMELINE or not sample.time:
            self.more_moments += 1
            return
        self._begin = self._begin or sample.time
        comm = self._comm(sample.comm)
        self.timeline.append((nanoseconds(sample.time), event, sample.pid, comm, text))

    def _fault(self, event: str, sample: Sample) -> None:
        # Without the address of data, that of the instruction stands alone.
        words = sample.rest.split(None, 1) if sample.rest != sample.stack else []
        try:
            address = int(words[0], 16)
        except (IndexError, ValueError):
            self.without_address += 1
            return
        key = event, sample.pid, self._comm(sample.comm)
        if key not in self.tasks and len(self.tasks) >= MAX_TASKS:
            key = event, -1, "(others)"
        task = self.tasks.setdefault(key, Task())
        task.faults += 1
        task.first = min(task.first, address)
        task.last = max(task.last, address)
        region = address >> self._region_shift
        if len(task.regions) < MAX_REGIONS:
            task.regions.add(region)
        growth = self.growths.get(key[1:])
        if growth is None:
            growth = self.growths[key[1:]] = NeededTables(self._index_bits)
        if sample.time:
            growth.fault(region, sample.time)

    def _pair(self, event: str, sample: Sample, removed: str, stack: str) -> None:
        if sample.tid == UNKNOWN or not sample.time:
            return  # whose it is, or when it was, is not printed
        if (pair := self._begins.get(event)) is not None and not removed:
            about, caller = None, ""
            if pair.about and (found := re.search(pair.about.encode(), sample.rest)):
                about, caller = int(found[1], 16), _outside(pair, stack)
            self._open[pair.name, sample.tid] = [nanoseconds(sample.time), 0, about, caller]
        elif (pair := self._ends.get(event)) is not None:
            opened = self._open.pop((pair.name, sample.tid), None)
            if opened is None:
                return
            begin, waited, about, caller = opened
            taken = nanoseconds(sample.time) - begin
            for outer in self._begins.values():
                if outer.waits == pair.name and (outer.name, sample.tid) in self._open:
                    self._open[outer.name, sample.tid][1] += taken
            self._add_duration(pair.name, taken)
            if pair.waits:
                self._add_duration(f"{pair.name}{WAITING}", waited)
                self._add_duration(f"{pair.name}{NOT_WAITING}", taken - waited)
                if about is not None and _returns_to(pair, sample.rest, caller) in pair.whole:
                    self._add_whole(pair.name, about, taken - waited)

    def _add_duration(self, name: str, taken: int) -> None:
        found = self.durations.setdefault(name, array("q"))
        if len(found) < MAX_DURATIONS:
            found.append(taken)
        else:
            self.more_durations += 1

    def _add_whole(self, name: str, about: int, taken: int) -> None:
        if (name, about) in self.about or len(self.about) < MAX_ABOUT:
            times, total, least, most = self.about.get((name, about), (0, 0, taken, taken))
            least, most = min(least, taken), max(most, taken)
            self.about[name, about] = times + 1, total + taken, least, most
        else:
            self.more_about += 1

    def _tally(self, column: str, sample: Sample, folded: str, *, failed: bool) -> None:
        """Count an allocation, or what happened inside of one."""
        if column == "reservations":
            # Its own text has no order. The allocation that it is part of comes next, by the same
            # task, and has the first frames of this stack; unless an interrupt comes in between.
            waiting = self._reserving.setdefault(sample.tid, [])
            waiting.append(folded)
            if len(waiting) > MAX_NESTED or len(self._reserving) > MAX_TASKS:
                self._reserving.pop(sample.tid)
                self._order_counts(None)[column] += len(waiting)
            return
        match = _ORDER.search(sample.rest)
        if match is None:
            return
        counts = self._order_counts(int(match[1]))
        counts[column] += 1
        if column == "attempts":
            counts["failures"] += failed
            waiting = self._reserving.get(sample.tid, [])
            if mine := [stack for stack in waiting if stack.startswith(f"{folded};")]:
                counts["reservations"] += len(mine)
                self._reserving[sample.tid] = [stack for stack in waiting if stack not in mine]

    def _order_counts(self, order: int | None) -> Counter[str]:
        return self.allocations.setdefault(order, Counter())

    def finish(self) -> None:
        """All samples were added."""
        self.growths = {task: growth for task, growth in self.growths.items() if task[0] >= 0}
        for growth in self.growths.values():
            growth.point()
        left = sum(map(len, self._reserving.values()))
        self._reserving.clear()
        if left:
            self._order_counts(None)["reservations"] += left

    def _count_again(self, who: str, part: str, sample: Sample) -> None:
        again = self.split.again if self.split else {}
        if part != again.get("part"):
            return
        if who == again["by"]:
            self.again["reaper"] += 1
        elif {sample.pid, sample.tid} & self._ended:
            self.again["after"] += 1
        elif {sample.pid, sample.tid} & self._begun:
            self.again["beside"] += 1


@lru_cache(_MAX_LINES)
def _line(line: bytes, inlined_in: str = "") -> tuple[str, str, tuple[int, str]]:
    """
    (name in a folded stack, plain symbol of the kernel, (address, DSO)) of a frame; empty if it has
    none.
    """
    frame = perf_script.frame(line)
    if frame is None:
        return "", "", (0, "")
    address, symbol, dso = frame
    dso = dso or inlined_in
    symbol_of_kernel = plain(symbol) if is_kernel(address, dso) else ""
    return frame_name(address, symbol, dso), symbol_of_kernel, (address, dso)


def _selected(event: Event, text: bytes, *, filtered: bool) -> tuple[str, str]:
    """(root frame, reason to remove) that a tracepoint's text gives."""
    said = text.decode("utf-8", "backslashreplace")
    if event.keep and not filtered and not re.search(event.keep, said):
        return "", UNNAMED if _UNNAMED.search(said) else NOT_KEPT
    if event.group and (found := re.search(event.group, said)):
        failed = FAILED if event.failed and re.search(event.failed, said) else ""
        return plain_name(f"{event.group_name} {found[1]}{failed}"), ""
    return "", ""


def _outside(pair: Pair, stack: str) -> str:
    """The function that a stack comes from, before those of the pair."""
    frames = (frame.removesuffix("_[k]") for frame in reversed(stack.split(";")))
    return next((frame for frame in frames if not frame.startswith(pair.inner)), "")


def _returns_to(pair: Pair, text: bytes, caller: str) -> str:
    """
    The function that called for what ends, by its return address, which every architecture has: at
    the first instruction of a function, arm64's stacks lack the one that called.

    :param caller: by the stack at its begin, if it is called by a function of the pair.
    """
    found = _RETURNS.search(text)
    name = found[2].decode() if found else ""
    return caller if name.startswith(pair.inner) else name


def is_kernel(address: int, dso: str) -> bool:
    """True if a frame is the kernel's: by where perf found the symbol, or by its address."""
    if dso.startswith("["):
        # Others in brackets are modules.
        return not dso.startswith(_USERS) or (address >= KERNEL and dso == "[unknown]")
    return address >= KERNEL or _OF_KERNEL.search(dso) is not None


def frame_name(address: int, symbol: str, dso: str) -> str:
    """A frame as it stands in a folded stack."""
    base = dso.rpartition("/")[2].strip("[]")
    if not is_kernel(address, dso):
        name = plain_name(symbol or f"[{base or 'unknown'}]")
        # A program may call a function as the kernel's are marked.
        return name[: -len(MARK)] + "_\\x5bk]" if name.endswith(MARK) else name
    module = ""
    if dso and not dso.startswith(("[kernel", "[guest.kernel", "[unknown")):
        base = re.sub(r"\.ko(\.\w+)*\Z", "", base).replace("-", "_")
        module = "" if base.startswith(_NO_MODULE) else f" [{base}]"
    return plain_name((symbol or "[unknown]") + module) + MARK
