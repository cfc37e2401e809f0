# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Samples folded to stacks, ``comm;root;…;leaf``, and what else a recipe wants of them: parts, sites
where interrupts come back on, durations, times, faults by task.

Frames of the kernel end in ``_[k]``, as FlameGraph's own tools write them, and name their module,
``ext4_iget [ext4]_[k]``. What has no symbol is its binary in brackets.

One pass, and memory that does not grow with the recording: what is alike in samples is worked out
once a stack, and everything that is kept has a limit; beyond it, samples are still counted, under a
name that says so.

What a tracepoint meets in an interrupt stands under ``(interrupt)``, and not under the task that
happened to be interrupted; a sampler's time is that task's.

Every sample is accounted for: folded, or removed for a reason that is counted.
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mmscope.perf import perf_probes, perf_script
from mmscope.perf.folded import (
    KERNEL,
    MAX_REGIONS,
    Again,
    Allocations,
    Folded,
    Growth,
    Known,
    Moment,
    Task,
    Took,
    nanoseconds,
)
from mmscope.perf.hostile_names import plain_name
from mmscope.perf.perf_script import Frame, Sample
from mmscope.perf.recipe import Event, Pair, Recipe, event_name
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
INTERRUPT = "(interrupt)"  # in the place of a comm
# The name of a pair whose waiting is known, beside its whole time.
WAITING, NOT_WAITING = ", waiting", ", not waiting"
MAX_NESTED = 8  # reservations of a task whose allocation is still to come
FAILED = ", failed"
# Of a return probe: where it returns to, which is the sample's address, and the function there.
_RETURNS = re.compile(rb" <- ([0-9a-f]+)\) +\1 ([\w]+)")
_ORDER = re.compile(rb"\border=(\d{1,2})\b")
# The address that a frame's line begins with. All that matters of it is its half: each becomes one
# of its half, so that the text stays one that perf script may print, with the same meaning.
_ADDRESS = re.compile(rb"\n\t *(?:[0-7]?[0-9a-f]{1,15} |[89a-f][0-9a-f]{15}( ))")
_HALVES = {None: b"\n\t0 ", b" ": b"\n\t%x " % KERNEL}

# Why a sample is not among the folded ones.
IDLE, PROFILER, OTHERS, NOT_KEPT = "idle", "profiler", "other tasks", "not asked for"
# Where libtraceevent does not understand what a tracepoint prints it prints the fields, and flags
# without names. On arm64 these are all that print a struct page: its address needs memstart_addr.
UNNAMED = "flags as numbers"
_UNNAMED = re.compile(r"flags=0x[0-9a-f]+(?!\S)")


class Fold:
    """
    Folds the samples of one recording; feed it with :meth:`add`.

    :param wanted: pids whose descendants, and who reaps them, are all that is kept; empty: all.
    :param idle: keep samples of CPUs with nothing to do.
    :param profiler: keep those of perf itself.
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
        self._profilers = {name.encode() for name in known.profiler}
        self.events: dict[str, Folded] = {}
        self.timeline: list[Moment] = []
        self.more_moments = 0
        self.tasks: dict[tuple[str, int, str], Task] = {}
        self.growths: dict[tuple[int, str], Growth] = {}
        self._shape(4096)
        self.durations: dict[str, array[int]] = {}
        self.more_durations = 0
        # Of pairs that were all done: by name, and by what it was about.
        self.about: dict[tuple[str, int], Took] = {}
        self.more_about = 0
        self.again = Again()
        # By order; None: of a reservation whose allocation was not met.
        self.allocations: dict[int | None, Allocations] = {}
        self._reserving: dict[int, list[str]] = {}  # by task: stacks whose allocation is to come
        self._begin = b""
        self._known: dict[bytes, Known] = {}
        self._alike: dict[bytes, Known] = {}  # by stack's text without its addresses
        self._meant: dict[str, Known] = {}  # by folded stack: binaries differ, names do not
        self._lines: dict[bytes, tuple[str, str]] = {}
        self._comms: dict[bytes, str] = {}
        self._names: dict[bytes, Folded] = {}
        self._open: dict[tuple[str, int], int] = {}
        self._called: dict[str, str] = {}
        self._again = split.again if split else None
        self._for_others = split.for_others if split else frozenset()
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._addresses = bool(recipe and recipe.addresses)
        self._pairs(recipe.pairs if recipe else ())

    def _pairs(self, pairs: Sequence[Pair]) -> None:
        self._begins = {pair.begin: pair for pair in pairs}
        self._ends = {pair.end: pair for pair in pairs}
        # Of those begun: what they are about, and who calls, by the stack.
        self._about: dict[tuple[str, int], tuple[int, str]] = {}
        # Of a pair that is waiting: those inside of which it is.
        self._inside: dict[str, list[str]] = {}
        self._has_waits: set[str] = set()
        self._waited: dict[tuple[str, int], int] = {}
        for pair in pairs:
            if pair.waits:
                self._inside.setdefault(pair.waits, []).append(pair.name)
                self._has_waits.add(pair.name)

    def _shape(self, page_bytes: int) -> None:
        """A table is a page, with an entry of 8 bytes for each page or table below it."""
        self._index_bits = page_bytes.bit_length() - 4
        self._region_shift = page_bytes.bit_length() - 1 + self._index_bits

    def hear(
        self, left_out: Iterable[str], filtered: Iterable[str], page_bytes: int = 4096
    ) -> None:
        """
        What is known of the recording.

        :param left_out: events that it does not have: what only they would show is left out.
        :param filtered: events of which it has only what is asked for.
        :param page_bytes: of that machine.
        """
        self._shape(page_bytes)
        left = set(left_out)
        self.filtered = frozenset(filtered)
        if self.recipe is None or not left:
            return
        whole = [p for p in self.recipe.pairs if not left & {p.begin, p.end}]
        names = {pair.name for pair in whole}
        self._pairs([replace(p, waits=p.waits if p.waits in names else "") for p in whole])

    def fork(self, pid: int, parent: int) -> None:
        """A process has a child."""
        if parent in self.tree:
            self.tree.add(pid)

    def add(self, sample: Sample) -> None:
        """Take one sample."""
        event = self._names.get(sample.event) or self._event(sample.event)
        declared = event.declared
        if declared is not None and not declared.fold:
            self._count(event, sample)
            return
        found = self._known.get(sample.stack) or self._understand(sample.stack)
        group = reason = ""
        if found.idle and not self.keep_idle:
            reason = IDLE
        elif sample.comm in self._profilers and not (self.keep_profiler or found.interrupt):
            reason = PROFILER
        elif self.tree and not self._wanted(sample, found):
            reason = OTHERS
        elif declared is not None and (declared.keep or declared.group):
            filtered = event.event in self.filtered
            group, reason = _selected(declared, sample.rest, filtered=filtered)
        if self._begins:
            self._pair(event.event, sample, reason, found.folded)
        if reason:
            event.removed[reason] = event.removed.get(reason, 0) + 1
            return
        self._begin = self._begin or sample.time
        if group and (group in event.found or len(event.found) < MAX_FOUND):
            event.found[group] = event.found.get(group, 0) + 1
        if declared is not None and declared.tally:
            self._tally(declared.tally, sample, found.traced, failed=group.endswith(FAILED))
        values = event.known.get((sample.comm, group, found))
        if values is None:
            values = self._values(event, sample.comm, group, found)
        period = 1 if sample.period is None else sample.period
        values[0] += 1
        values[1] += period
        event.samples += 1
        event.period += period
        event.kernel_samples += found.kernel
        if found.key is not None:
            event.parts[found.key] = event.parts.get(found.key, 0) + 1
            self._done_again(*found.key, sample)
        if found.leaf:
            site = found.leaf, found.caller
            event.sites[site] = event.sites.get(site, 0) + 1

    def _values(self, event: Folded, comm: bytes, group: str, found: "Known") -> list[int]:
        """Where a stack of a comm is counted."""
        name, folded = self._comms.get(comm) or self._comm(comm), found.folded
        if ":" in event.event:
            folded = found.traced
            if found.interrupt:
                # The task in whose time it happens has no part in it.
                name, folded = INTERRUPT, found.within
        stack = f"{name};{group};{folded}" if group else f"{name};{folded}"
        values = event.stacks.get(stack)
        if values is None:
            if len(event.stacks) >= MAX_STACKS:
                event.overflow += 1
                return event.stacks.setdefault(TOO_MANY, [0, 0])
            values = event.stacks[stack] = [0, 0]
        if len(event.known) >= _MAX_KNOWN:
            event.known.clear()
        event.known[comm, group, found] = values
        return values

    @property
    def begin_ns(self) -> int:
        """When the first sample was taken."""
        return nanoseconds(self._begin) if self._begin else 0

    def _event(self, printed: bytes) -> Folded:
        """The event of that name; perf may print the terms that it was asked for with."""
        name = plain_name(printed.decode("utf-8", "backslashreplace"))
        name = perf_probes.plain(name.partition("/")[0])
        if name not in self.events:
            declared = None
            for event in self.recipe.events if self.recipe else ():
                if name in map(event_name, event.first_of):
                    declared = event
            self.events[name] = Folded(name, declared)
        self._names[printed] = self.events[name]
        return self.events[name]

    def _understand(self, stack: bytes) -> Known:
        # Three times as fast as to substitute them.
        pieces = _ADDRESS.split(b"\n\t" + stack)
        pieces[1::2] = [_HALVES[piece] for piece in pieces[1::2]]
        alike = b"".join(pieces)[2:]
        found = self._alike.get(alike)
        if found is None:
            found = self._meaning(alike)
            if len(self._alike) >= _MAX_KNOWN:
                self._alike.clear()
            self._alike[alike] = found
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[stack] = found
        return found

    def _meaning(self, stack: bytes) -> Known:
        names: list[str] = []
        symbols: list[str] = []
        lines = self._lines
        for line in reversed(stack.split(b"\n\t")):
            name, symbol = lines.get(line) or self._line(line)
            # Without frame pointers a user's stack is noise; once says it.
            if name and not (name == "[unknown]" and names and names[-1] == name):
                names.append(name)
                symbols.append(symbol)
        folded = ";".join(names)
        found = self._meant.get(folded)
        if found is None:
            if len(self._meant) >= _MAX_KNOWN:
                self._meant.clear()
            found = self._meant[folded] = Known(names, symbols, self.split, self.known)
        return found

    def _line(self, line: bytes) -> tuple[str, str]:
        """(name in a folded stack, plain symbol of the kernel) of a frame; empty if it has none."""
        if len(self._lines) >= _MAX_LINES:
            self._lines.clear()
        frame = perf_script.frame(line)
        found = ("", "")
        if frame is not None:
            found = frame_name(frame), plain(frame.symbol) if is_kernel(frame) else ""
        self._lines[line] = found
        return found

    def _comm(self, printed: bytes) -> str:
        if len(self._comms) >= _MAX_KNOWN:
            self._comms.clear()
        name = plain_name(printed.decode("utf-8", "backslashreplace").strip()) or "(no name)"
        # perf does not know the name of a task that was gone when it asked.
        name = self._called.get(name, name)
        self._comms[printed] = name
        return name

    def _wanted(self, sample: Sample, found: Known) -> bool:
        if sample.pid in self.tree or sample.tid in self.tree:
            return True
        return found.key is not None and found.key[0] in self._for_others

    def _count(self, event: Folded, sample: Sample) -> None:
        """A sample without a stack to draw: a fault with its address, or a moment."""
        assert event.declared is not None
        if sample.comm in self._profilers and not self.keep_profiler:
            event.removed[PROFILER] = event.removed.get(PROFILER, 0) + 1
            return
        if self.tree and not event.declared.of_all and not {sample.pid, sample.tid} & self.tree:
            event.removed[OTHERS] = event.removed.get(OTHERS, 0) + 1
            return
        event.samples += 1
        event.period += 1
        if self._begins:
            self._pair(event.event, sample, "", "")
        if event.declared.timeline:
            self._moment(event, sample)
        elif self._addresses:
            self._fault(event, sample)

    def _moment(self, event: Folded, sample: Sample) -> None:
        text = plain_name(sample.rest.decode("utf-8", "backslashreplace").strip())
        assert event.declared is not None
        if event.declared.called and (called := re.match(event.declared.called, text)):
            self._called[f":{called[1]}"] = called[2]
        about = re.match(r"pid=([0-9]{1,10})(?![0-9])", text)
        if self._again is not None and about:
            pid = int(about[1])
            if event.event == self._again.begin:
                self._begun.add(pid)
            if event.event == self._again.end:
                self._begun.discard(pid)
                self._ended.add(pid)
        if len(self.timeline) >= MAX_TIMELINE:
            self.more_moments += 1
            return
        self._begin = self._begin or sample.time
        comm = self._comms.get(sample.comm) or self._comm(sample.comm)
        self.timeline.append(Moment(nanoseconds(sample.time), event.event, sample.pid, comm, text))

    def _fault(self, event: Folded, sample: Sample) -> None:
        word = sample.rest.split(None, 1)
        try:
            address = int(word[0], 16) if word else 0
        except ValueError:
            return
        comm = self._comms.get(sample.comm) or self._comm(sample.comm)
        key = event.event, sample.pid, comm
        if key not in self.tasks and len(self.tasks) >= MAX_TASKS:
            key = event.event, -1, "(others)"
        task = self.tasks.setdefault(key, Task())
        task.faults += 1
        task.first = min(task.first, address)
        task.last = max(task.last, address)
        region = address >> self._region_shift
        if len(task.regions) < MAX_REGIONS:
            task.regions.add(region)
        growth = self.growths.get(key[1:])
        if growth is None:
            growth = self.growths[key[1:]] = Growth(self._index_bits)
        growth.fault(region, sample.time)

    def _pair(self, event: str, sample: Sample, removed: str, stack: str) -> None:
        if (pair := self._begins.get(event)) is not None and not removed:
            key = pair.name, sample.tid
            self._open[key] = nanoseconds(sample.time)
            self._about.pop(key, None)
            if pair.about and (found := re.search(pair.about.encode(), sample.rest)):
                self._about[key] = int(found[1], 16), _outside(pair, stack)
        elif (pair := self._ends.get(event)) is not None:
            key = pair.name, sample.tid
            begin = self._open.pop(key, None)
            about, caller = self._about.pop(key, (None, ""))
            if begin is None:
                return
            taken = nanoseconds(sample.time) - begin
            for outer in self._inside.get(pair.name, ()):
                if (outer, sample.tid) in self._open:
                    self._waited[outer, sample.tid] = (
                        self._waited.get((outer, sample.tid), 0) + taken
                    )
            self._took(pair.name, taken)
            if pair.name in self._has_waits:
                waited = self._waited.pop(key, 0)
                self._took(f"{pair.name}{WAITING}", waited)
                self._took(f"{pair.name}{NOT_WAITING}", taken - waited)
                if about is not None and _returns_to(pair, sample.rest, caller) in pair.whole:
                    self._took_whole(pair.name, about, taken - waited)

    def _took(self, name: str, taken: int) -> None:
        found = self.durations.setdefault(name, array("q"))
        if len(found) < MAX_DURATIONS:
            found.append(taken)
        else:
            self.more_durations += 1

    def _took_whole(self, name: str, about: int, taken: int) -> None:
        if (name, about) in self.about or len(self.about) < MAX_ABOUT:
            self.about.setdefault((name, about), Took()).add(taken)
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
                self._of_order(None).reservations += len(waiting)
            return
        match = _ORDER.search(sample.rest)
        if match is None:
            return
        counts = self._of_order(int(match[1]))
        if column == "from_reserve":
            counts.from_reserve += 1
            return
        counts.attempts += 1
        counts.failures += failed
        waiting = self._reserving.get(sample.tid, [])
        if mine := [stack for stack in waiting if stack.startswith(f"{folded};")]:
            counts.reservations += len(mine)
            self._reserving[sample.tid] = [stack for stack in waiting if stack not in mine]

    def _of_order(self, order: int | None) -> Allocations:
        return self.allocations.setdefault(order, Allocations())

    def finish(self) -> None:
        """All samples were added."""
        self.growths = {task: growth for task, growth in self.growths.items() if task[0] >= 0}
        for growth in self.growths.values():
            growth.finish()
        left = sum(map(len, self._reserving.values()))
        self._reserving.clear()
        if left:
            self._of_order(None).reservations += left

    def _done_again(self, who: str, part: str, sample: Sample) -> None:
        if self._again is None or part != self._again.part:
            return
        if who == self._again.by:
            self.again.reaper += 1
        elif {sample.pid, sample.tid} & self._ended:
            self.again.after += 1
        elif {sample.pid, sample.tid} & self._begun:
            self.again.beside += 1


def _selected(event: Event, text: bytes, *, filtered: bool) -> tuple[str, str]:
    """(root frame, reason to remove) that a tracepoint's text gives."""
    if not event.keep and not event.group:
        return "", ""
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


def is_kernel(frame: Frame) -> bool:
    """True if a frame is the kernel's: by its address, or by where perf found the symbol."""
    return frame.address >= KERNEL or frame.dso.startswith(("[kernel", "[guest.kernel"))


def frame_name(frame: Frame) -> str:
    """A frame as it stands in a folded stack."""
    if is_kernel(frame):
        module = ""
        if not frame.dso.startswith(("[kernel", "[guest.kernel", "[unknown")) and frame.dso:
            base = frame.dso.rpartition("/")[2].strip("[]")
            base = re.sub(r"\.ko(\.\w+)?\Z", "", base).replace("-", "_")
            module = "" if base.startswith(("vmlinux", "bpf_prog")) else f" [{base}]"
        return plain_name((frame.symbol or "[unknown]") + module) + "_[k]"
    if frame.symbol:
        return plain_name(frame.symbol)
    base = frame.dso.rpartition("/")[2].strip("[]")
    return plain_name(f"[{base or 'unknown'}]")
