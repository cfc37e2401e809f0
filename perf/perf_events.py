# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Events that perf may record on this machine, and the choice of a recipe's among them.

Looks, and changes nothing: no sysctl, no mount. ``kernel.perf_event_paranoid`` and capabilities say
what is allowed, sysfs which counters there are, tracefs which tracepoints.
"""

import ast
import contextlib
import functools
import operator
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmscope.perf.recipe import Event, Recipe, event_name

CAP_SYS_ADMIN, CAP_PERFMON = 21, 38
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
PMUS = Path("/sys/bus/event_source/devices")
# Where the CPU's own counters are: x86, hybrid x86, arm64, s390, power, RISC-V.
CORE_PMU = re.compile(r"cpu|cpu_core|armv8.*|cpum_cf|power.*_pmu|riscv.*")
SOFTWARE = ("cpu-clock", "task-clock", "page-faults", "minor-faults", "major-faults")
# ID of os-release(5) to how perf is installed. Ubuntu's is of one release of the kernel.
PERF_PACKAGES = {
    "debian": "apt-get install linux-perf",
    "ubuntu": "apt-get install linux-tools-{release}",
    **dict.fromkeys(("fedora", "rhel", "centos", "rocky", "almalinux", "ol"), "dnf install perf"),
    "amzn": "yum install perf",
    "suse": "zypper install perf",
    "arch": "pacman -S perf",
    "alpine": "apk add perf",
}
NO_TRACEFS = "tracefs is not mounted: mount -t tracefs nodev /sys/kernel/tracing"


@dataclass(frozen=True)
class Machine:
    """Abilities of perf on this machine, for this user."""

    perf: str | None  # the program
    privileged: bool  # CAP_PERFMON or CAP_SYS_ADMIN
    paranoid: int
    tracefs: Path | None  # None: not mounted
    readable: bool  # its events
    kprobes: bool  # and this user may make them
    counters: bool  # the CPU has some
    symbols: bool  # /proc/kallsyms has addresses
    architecture: str
    most_samples: int | None = None  # a second, of each CPU; unknown: it is not limited


@dataclass(frozen=True)
class Plan:
    """
    Events and counts to ask perf for.

    :ivar events: each with the string for perf.
    :ivar missing: what is left out, and why.
    :ivar notes: what else is less than the recipe wants.
    :ivar remarks: what is otherwise than the recipe wants, and no less to be relied on.
    :ivar counts: what perf stat is to count; *uncounted*: what it cannot, and why.
    """

    events: tuple[tuple[Event, str], ...]
    missing: tuple[tuple[Event, str], ...]
    notes: tuple[str, ...]
    system: bool
    privileged: bool
    remarks: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    uncounted: tuple[tuple[Event, str], ...] = ()


class RecordError(Exception):
    """The recipe cannot run here, or perf failed. One line, for the user, that says what to do."""


def look() -> Machine:
    """The machine that this runs on, as it is now."""
    perf = shutil.which("perf")
    mounted = next((path for path in TRACEFS if (path / "events").is_dir()), None)
    hidden = next((p for p in TRACEFS if p.is_dir() and not os.access(p, os.X_OK)), None)
    tracefs = mounted or hidden
    readable = mounted is not None and os.access(mounted / "events/header_page", os.R_OK)
    makes = mounted is not None and os.access(mounted / "kprobe_events", os.W_OK)
    paranoid = _number("/proc/sys/kernel/perf_event_paranoid")
    try:
        pmus = os.listdir(PMUS)
    except OSError:
        pmus = []
    return Machine(
        perf=perf,
        privileged=bool(_capabilities() & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN)),
        # No such file: no perf events, or not for us.
        paranoid=4 if paranoid is None else paranoid,
        tracefs=tracefs,
        readable=readable,
        kprobes=makes,
        counters=any(CORE_PMU.fullmatch(name) for name in pmus),
        symbols=_symbols(),
        architecture=platform.machine(),
        # perf_event_open() takes no more (EINVAL, kernel/events/core.c). The kernel lowers it by
        # itself where samples take too long, most of all in guests.
        most_samples=_number("/proc/sys/kernel/perf_event_max_sample_rate"),
    )


def _capabilities() -> int:
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE):
            return int(match[1], 16)
    return 0


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None


def _symbols() -> bool:
    with contextlib.suppress(OSError), open("/proc/kallsyms", "rb") as file:
        return any(line[:16].strip(b"0 ") for line in file.readlines(4096))
    return False


def plan(recipe: Recipe, machine: Machine, *, system: bool | None = None) -> Plan:
    """
    Choose events.

    :param system: every CPU, or not; None: as the recipe says, as far as allowed.
    :raises RecordError: what the recipe is about cannot be recorded.
    """
    if machine.perf is None:
        to_get_it = where_to_get_perf(platform.release(), os_release())
        raise RecordError(f"perf is not installed: {to_get_it}")
    if not (PMUS / "software").exists():
        raise RecordError("this kernel has no perf events (CONFIG_PERF_EVENTS)")
    allowed = machine.privileged or machine.paranoid <= 0
    paranoid = f"kernel.perf_event_paranoid is {machine.paranoid}"
    root = f"CAP_PERFMON or root ({paranoid})"
    notes = []
    if machine.paranoid > 2 and not machine.privileged:
        raise RecordError(f"{paranoid}: perf is for CAP_PERFMON or root only")
    if system and not allowed:
        raise RecordError(f"all CPUs need {root}")
    everywhere = recipe.scope == "system" if system is None else system
    if everywhere and not allowed:
        notes.append(f"only the task itself is recorded: all CPUs need {root}")
    kernel = machine.privileged or machine.paranoid <= 1
    if not kernel:
        notes.append(f"only user code is seen: the kernel's part needs {root}")
    elif not machine.symbols:
        notes.append("kernel symbols are hidden (kernel.kptr_restrict): functions have no names")
    if recipe.trigger and not machine.privileged:
        raise RecordError("a flight recorder over all CPUs needs CAP_PERFMON or root")
    most, remarks = machine.most_samples, []
    if most is not None and recipe.frequency > most:
        why = "kernel.perf_event_max_sample_rate, which the kernel lowers where a sample takes long"
        words = f"{most:,} samples a second instead of {recipe.frequency:,}: {why}"
        recipe, remarks = replace(recipe, frequency=most), [words]
    chosen, missing = _chosen(recipe, recipe.events, machine, kernel=kernel)
    for event, reason in missing:
        if event.required:
            raise RecordError(f"{' or '.join(event.first_of)}: {reason}")
    counts, uncounted = _chosen(recipe, recipe.counts, machine, kernel=kernel)
    return Plan(
        tuple(chosen),
        tuple(missing),
        tuple(notes),
        everywhere and allowed,
        machine.privileged,
        tuple(remarks),
        tuple(text for _, text in counts),
        tuple(uncounted),
    )


def _chosen(
    recipe: Recipe, events: Sequence[Event], machine: Machine, *, kernel: bool
) -> tuple[list[tuple[Event, str]], list[tuple[Event, str]]]:
    """Events with the first string for perf that this machine has; and those without, and why."""
    chosen, missing = [], []
    for event in events:
        choice = next((each for each in event.first_of if not unusable(each, machine)), None)
        if choice is None:
            missing.append((event, unusable(event.first_of[0], machine)))
            continue
        text = choice.replace("{frequency}", str(recipe.frequency))
        if not kernel:
            text += "u" if text.endswith("/") else ":u"
        chosen.append((event, text))
    return chosen, missing


def os_release() -> dict[str, str]:
    """``os-release(5)`` of this machine; empty if it has no such file."""
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release()
    return {}


def distributions(system: dict[str, str]) -> list[str]:
    """
    The distribution's name, and those that it is like, the nearest first; all of SUSE's are
    ``suse``. A container has the kernel of another host.

    :param system: of :func:`os_release`.
    """
    said = [system.get("ID", ""), *system.get("ID_LIKE", "").split()]
    return ["suse" if "suse" in name or name.startswith("sle") else name for name in said]


def where_to_get_perf(release: str, system: dict[str, str]) -> str:
    """
    Advice how perf is installed here.

    :param release: of the kernel, as ``uname -r`` says it.
    :param system: of ``os_release()``.
    """
    known = next((name for name in distributions(system) if name in PERF_PACKAGES), None)
    if known is None:
        return "install the program perf, which is made of the kernel's source (tools/perf)"
    return PERF_PACKAGES[known].format(release=release)


def unusable(choice: str, machine: Machine) -> str:
    """Why an event cannot be had here; empty if it can."""
    name = choice.partition("/")[0]
    if name in SOFTWARE:
        return ""
    if ":" in name and machine.tracefs is None:
        return NO_TRACEFS
    if name.startswith("mmscope:"):
        if not machine.privileged:
            return "kprobes are root's"
        no_kprobes = "this kernel has no kprobes (CONFIG_KPROBE_EVENTS), or not for this user"
        return "" if machine.kprobes else no_kprobes
    if ":" in name and machine.tracefs is not None:
        if not machine.readable or not (machine.privileged or machine.paranoid < 0):
            return "tracepoints are root's (CAP_PERFMON and a readable tracefs)"
        there = (machine.tracefs / "events" / name.replace(":", "/")).is_dir()
        return "" if there else f"this kernel has no tracepoint {name}"
    if not machine.counters:
        return "no hardware counters here (a guest without a virtual PMU?)"
    if CORE_PMU.fullmatch(name) and not _countable(machine.perf, choice):
        return f"this CPU has no {event_name(choice)}, or this perf does not know it"
    return ""


def run(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """A perf that ends by itself, and what it said."""
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )


@functools.cache
def _countable(perf: str | None, choice: str) -> bool:
    """True if perf knows an event of this model of CPU: its tables differ by model and release."""
    assert perf is not None
    # What is about sampling is nothing for perf stat.
    event = choice.replace("freq={frequency},", "")
    done = run([perf, "stat", "-x,", "-e", event, "--", "true"])
    return done.returncode == 0 and "<not supported>" not in done.stderr


def flag_bits(text: str) -> dict[str, int]:
    """
    The flags that a tracepoint prints by name, out of its ``format`` file: name to number.

    Their numbers are internal to the kernel. What is not a sum of constants is left out.
    """
    found = {}
    for expression, name in re.findall(r'\{([^"{}]*),\s*"(\w+)"\s*\}', text):
        # ( unsigned long)(( gfp_t)((((1UL))) << (5)))
        plain = re.sub(r"\(\s*(?:unsigned long|gfp_t)\s*\)", "", expression)
        plain = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", plain)
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            found[name] = _constant(ast.parse(plain.strip(), mode="eval").body)
    return found


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.LShift: lambda value, by: value << (by & 63),
}


def _constant(node: ast.expr) -> int:
    """:raises ValueError: it is something else."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_constant(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_constant(left), _constant(right))
    raise ValueError("no constant")


def kernel_filter(event: Event, choice: str, tracefs: Path | None) -> str:
    """
    The filter of an event, for the kernel.

    A part whose flags this kernel does not name is left out: ``keep`` does the same, later.
    """
    if "{" not in event.filter:
        return event.filter
    bits: dict[str, int] = {}
    if tracefs is not None:
        path = tracefs / "events" / choice.replace(":", "/") / "format"
        with contextlib.suppress(OSError):
            bits = flag_bits(path.read_text(encoding="utf-8", errors="replace"))

    def number(match: re.Match[str]) -> str:
        return hex(functools.reduce(operator.or_, (bits[name] for name in match[1].split("|"))))

    parts = []
    for part in event.filter.split(" && "):
        with contextlib.suppress(KeyError):
            parts.append(re.sub(r"\{([\w|]+)\}", number, part))
    return " && ".join(parts)


def chooses_alone(event: Event, choice: str, tracefs: Path | None) -> bool:
    """True if :func:`kernel_filter` leaves no part out, so that ``keep`` has nothing to do."""
    given = kernel_filter(event, choice, tracefs)
    return bool(given) and given.count(" && ") == event.filter.count(" && ")
