# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One set of samples as ``perf script`` prints it with any fields, and as others pass it on.

Widths and order are perf's: ``perf_sample__fprintf_start()`` and ``process_event()`` of
tools/perf/builtin-script.c and ``sample__fprintf_callchain()`` of evsel_fprintf.c, 3.10 to 7.2.
"""

import io
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from perf_text import KNOWN

from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.stack_parts import load_split

KERNEL, USER = "[kernel.kallsyms]", "/usr/bin/a program (deleted)"
COMMS = ("worker", "dd", "cafe", "Chrome IO", "kworker/0:1-events", "pool 12", "a.b/c:d", "x" * 15)
EVENTS = ("cycles", "cpu_core/cycles/", "cpu_atom/cycles/", "cycles:P", "kmem:mm_page_alloc")
# Function, address (of its begin), DSO.
FUNCTIONS = (
    ("main", 0x55D0C0001000, USER),
    ("ns::f(int, (anonymous namespace)::T) const", 0x7F3400010, USER),
    ("[unknown]", 0x7FFE12, "[unknown]"),
    ("do_exit", 0xFFFFFFFF81400030, KERNEL),
    ("exit_mmap", 0xFFFFFFFF81400520, KERNEL),
    ("unmap_page_range", 0xFFFFFFFF81400A10, KERNEL),
    ("clear_page_erms", 0xFFFFFFFF81401000, KERNEL),
    ("ext4_iget", 0xFFFFFFFFC0120000, "[ext4]"),
)
HEADER = ("comm", "pid", "tid", "cpu", "time", "period", "event", "misc", "tod")
FRAME = ("symoff", "dso", "dsoff", "srcline", "inline")
FOREIGN = (
    "Warning: 3 out of order events recorded.",
    "[ perf record: Woken up 1 times to write data ]",
    " instruction trace error type 1 time 100.000006 cpu 3 pid 4242 tid 4242 ip 0x1000 code 5: x",
)


class Taken(NamedTuple):
    """A sample, its stack leaf first."""

    comm: str
    pid: int
    tid: int
    cpu: int
    time: float
    period: int
    event: str
    stack: tuple[tuple[str, int, str], ...]


@dataclass
class Form:
    """
    What is printed, and what became of it.

    :ivar fields: of :data:`HEADER` and :data:`FRAME`; addresses and symbols are always there.
    :ivar old: as perf of 3.x pads numbers of tasks.
    :ivar chains: with call chains; else each sample is a line.
    """

    fields: set[str]
    old: bool = False
    chains: bool = True
    tabs: str = "\t"
    ends: str = "\n"
    stripped: bool = False
    foreign: list[int] = field(default_factory=list)  # lines before which samples


def samples(chance: random.Random, count: int) -> list[Taken]:
    taken = []
    for number in range(count):
        depth = chance.randint(1, 6)
        stack = tuple(
            (name, start + chance.randrange(0x100), dso)
            for name, start, dso in sorted(chance.sample(FUNCTIONS, depth), key=lambda f: -f[1])
        )
        # Most names are plain words.
        comm = chance.choice(COMMS) if number % 12 == 0 else "worker"
        pid = chance.randint(1, 4194303)
        taken.append(
            Taken(
                comm,
                pid,
                pid + chance.randint(0, 1),
                chance.choice((0, 3, 127, -1)),
                100 + number / 250,
                chance.choice((1, 250000, 10101010, 123456789012)),
                chance.choice(EVENTS),
                stack,
            )
        )
    return taken


def random_form(chance: random.Random, count: int) -> Form:
    fields = {name for name in HEADER[:-2] if chance.random() < 0.6}
    fields |= {name for name in (*FRAME, *HEADER[-2:]) if chance.random() < 0.2}
    return Form(
        fields,
        old=chance.random() < 0.5,
        chains=chance.random() < 0.8,
        tabs=chance.choice(("\t", "\t", "        ", "    ", "")),
        ends=chance.choice(("\n", "\n", "\r\n")),
        stripped=chance.random() < 0.3,
        foreign=chance.sample(range(1, count), 3)
        if chance.random() < 0.5 and fields & {"time", "cpu"}
        else [],
    )


def render(taken: list[Taken], form: Form) -> bytes:
    lines = []
    for number, sample in enumerate(taken):
        if number in form.foreign:
            lines.append(FOREIGN[number % len(FOREIGN)])
        if form.chains:
            lines.append(_header(sample, form))
            for name, address, dso in sample.stack:
                lines += _frame(name, address, dso, form)
            lines.append("")
        else:
            leaf, *source = _frame(*sample.stack[0], form)[-1 - ("srcline" in form.fields) :]
            lines += [f"{_header(sample, form)} {leaf.removeprefix(form.tabs)}", *source]
    if form.stripped:
        lines = [line.rstrip() for line in lines]
    return form.ends.join([*lines, ""]).encode()


def _header(sample: Taken, form: Form) -> str:
    fields, width = form.fields, 5 if form.old else 7
    text = ""
    if "comm" in fields:
        text += f"{sample.comm if form.chains else sample.comm.rjust(16)} "
    if {"pid", "tid"} <= fields:
        text += f"{sample.pid:{width}d}/{sample.tid:<{width}d} "
    elif {"pid", "tid"} & fields:
        text += f"{sample.pid if 'pid' in fields else sample.tid:{width}d} "
    if "cpu" in fields:
        text += f"[{sample.cpu:03d}] "
    if "misc" in fields and {"cpu", "time"} <= fields:
        text += "K     "
    if "tod" in fields and "time" in fields:
        text += "2026-11-28 01:02:03.123456 "
    if "time" in fields:
        text += f"{sample.time:12.6f}: "
    if "period" in fields:
        text += f"{sample.period:10d} "
    if "event" in fields:
        text += f"{sample.event:>{max(map(len, EVENTS))}}: "
    if sample.event == "kmem:mm_page_alloc" and "event" in fields:
        text += "page=0xffffea0004a8c000 pfn=0x12aec0 order=3 gfp_flags=GFP_ATOMIC|__GFP_COMP"
    return text


def _frame(name: str, address: int, dso: str, form: Form) -> list[str]:
    fields = form.fields
    offset = f"+{address & 0xFF:#x}" if "symoff" in fields and name != "[unknown]" else ""
    where = ""
    if fields & {"dso", "dsoff"} or not dso.startswith("[kernel"):
        inside = "+0x1234" if "dsoff" in fields and dso.startswith("/") else ""
        where = f" ({dso}{inside})"
    source = ["  file.c:12"] if "srcline" in fields and name != "[unknown]" else []
    lines = []
    if "inline" in fields and name == "unmap_page_range":
        inlined = f"{form.tabs}{address:16x} zap_pte_range{offset}"
        lines += [inlined, "  file.c:3 (inlined)"] if source else [f"{inlined} (inlined)"]
    return [*lines, f"{form.tabs}{address:16x} {name}{offset}{where}", *source]


def expected(taken: list[Taken], form: Form) -> dict[str, Counter[str]]:
    """Folded stacks to samples, by event."""
    found: dict[str, Counter[str]] = {}
    for sample in taken:
        names = []
        for name, address, dso in reversed(sample.stack if form.chains else sample.stack[:1]):
            of_kernel = address >> 63
            name = "[unknown]" if name == "[unknown]" else name + "_[k]" * of_kernel
            names.append(name.replace("_[k]", " [ext4]_[k]") if dso == "[ext4]" else name)
            if "inline" in form.fields and form.chains and name == "unmap_page_range_[k]":
                names.append("zap_pte_range_[k]")
        number = sample.tid if "tid" in form.fields else sample.pid
        task = f":{number}" if {"pid", "tid"} & form.fields else "(no name)"
        comm = sample.comm if "comm" in form.fields else task
        event = sample.event if "event" in form.fields else "(event not printed)"
        found.setdefault(event, Counter())[";".join((comm, *names))] += 1
    return found


def folded(text: bytes, **options: bool) -> tuple[Fold, Reading]:
    fold = Fold(recipes.load("exit-path"), load_split("exit-path"), KNOWN, **options)
    reading = Reading()
    for sample in read_samples(io.BytesIO(text), reading):
        fold.add(sample)
    return fold, reading


def stacks(text: bytes) -> dict[str, dict[str, int]]:
    fold, _ = folded(text, idle=True, profiler=True)
    return {
        name: {stack: values[0] for stack, values in event.stacks.items()}
        for name, event in fold.events.items()
    }
