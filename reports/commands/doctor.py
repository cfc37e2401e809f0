# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope doctor``: what can be read on this machine, what cannot, and what would change that.

Looks, and changes nothing. Each source is one row: usable or not, what for, and the command,
boot parameter or package that would make it usable. What its reading costs this host is a table of
its own (``prices``); what is dear is not read here either. Files are opened, not read, as far as
that tells; /proc/PID/maps is opened by a process that may outlive it.
"""

import argparse
import dataclasses
import errno
import functools
import importlib.util
import json
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mmscope.drgn.opening.no_debug_info import why_not_here
from mmscope.drgn.opening.target import TargetError, open_target
from mmscope.drgn.owners.alloc_tags import NEVER, NOT_COMPILED_IN
from mmscope.drgn.owners.slab_owner import NO_TRACKS
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.terminal import print_dataclasses
from mmscope.perf import perf_events, recipe
from mmscope.reports.bundle.options import Command
from mmscope.reports.bundle.outcome import DONE, FULL_INSTALL
from mmscope.reports.collect.debug_symbols import where_to_get_symbols
from mmscope.reports.watch.samples import WHAT_HELPS, Sampler, thp_order


@table_row
class Check:
    """One source of readings."""

    source: str = column(holds="words", key=True, help="file, facility or program")
    usable: str = column(holds="words", help="yes, no, in part, or if asked: with --all")
    gives: str = column(holds="words", help="what it is for")
    reason: str | None = column(holds="words", help="why it is not usable")
    change: str | None = column(holds="words", help="what would make it usable")


@table_row
class PriceHere:
    """Price of reading a file on this host."""

    files: str = column(holds="words", key=True, help="patterns of paths")
    locks: str = column(holds="words", help="what the kernel holds meanwhile")
    interrupts_off: str | None = column(
        holds="words", help="what is done with interrupts off; empty: nothing"
    )
    here: str = column(holds="words", help="whether it is read here without --all, and how")


VMLINUX_PLACES = (
    "/usr/lib/debug/boot/vmlinux-{release}",
    "/usr/lib/debug/lib/modules/{release}/vmlinux",
    "/usr/lib/debug/boot/vmlinux-{release}.debug",
    "/boot/vmlinux-{release}",
    "/lib/modules/{release}/build/vmlinux",
    "/lib/modules/{release}/vmlinux",
)

# file, what it gives
TEXT_SOURCES = (
    ("/proc/zoneinfo", "zones, watermarks, pages on per-CPU lists"),
    ("/proc/buddyinfo", "free blocks by order, without migratetypes"),
    ("/proc/pagetypeinfo", "free blocks and pageblocks by migratetype, HighAtomic reserve"),
    ("/proc/vmstat", "counters"),
    ("/proc/meminfo", "levels over time: 'mmscope watch'"),
    ("/proc/pressure/memory", "time lost waiting for memory: 'mmscope watch'"),
    ("/proc/slabinfo", "slab caches"),
    ("/proc/1/maps", "VMAs of every process"),
    ("/dev/kmsg", "the kernel's log, OOM kills"),
    ("/sys/kernel/mm/ksm/run", "KSM's counters"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "settings of THP"),
)
# What a kernel needs to have a file.
NEEDS = {
    "/proc/pressure/memory": "a kernel with CONFIG_PSI=y; boot with psi=1 where it is off",
    "/proc/slabinfo": "a kernel with CONFIG_SLUB_DEBUG=y",
    "/dev/kmsg": "the host itself: a container has none",
    "/sys/kernel/mm/ksm/run": "a kernel with CONFIG_KSM=y",
    "/sys/kernel/mm/transparent_hugepage/enabled": "a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y",
}
CONFIGS = ("/boot/config-{release}", "/lib/modules/{release}/config")
DEBUGFS = Path("/sys/kernel/debug")
MOUNT_DEBUGFS = "mount -t debugfs none /sys/kernel/debug"
# What findings and reports are made with; they may be made on another machine.
LIBRARIES = ("duckdb", "jinja2")
# Wider lines are hard to read.
WIDTH = 100


def add_command(command: Command) -> None:
    """Declare ``doctor``."""
    sub = command(
        "doctor",
        run,
        "what can be read on this machine, what not, and how to change that",
        "Say what can be read on this machine, what not, and how to change that.",
    )
    sub.add_argument(
        "-a", "--all", action="store_true", help="what each source gives, and what it costs to read"
    )
    sub.add_argument("--json", action="store_true", help="all of it as JSON")


def run(args: argparse.Namespace) -> int:
    rows, costs = checks(), prices_here()
    if args.json:
        found = {"sources": rows, "prices": costs}
        echo(*json.dumps(found, indent=1, default=dataclasses.asdict).split("\n"), sep="\n")
    elif args.all:
        print_dataclasses(Check, said_once(rows))
        echo()
        print_dataclasses(PriceHere, costs, title="What it costs this host to be read")
    else:
        echo(*summary(rows, costs).splitlines(), sep="\n")
    return DONE


def checks() -> list[Check]:
    """Look at every source."""
    release = os.uname().release
    rows = [_memory(), *_symbols(release)]
    rows += [_text(path, gives) for path, gives in TEXT_SOURCES]
    rows += [_hugetlb(), _page_owner(release), _slab_owner(), _alloc_tags(release)]
    return [*rows, watched(), *_recipes(), *_programs()]


def said_once(rows: list[Check]) -> list[Check]:
    """The same, where several have the same remedy with that at the first of them alone."""
    first: dict[str, str] = {}
    return [
        dataclasses.replace(row, change=f"as for {said}")
        if row.change and (said := first.setdefault(row.change, row.source)) != row.source
        else row
        for row in rows
    ]


def prices_here(root: str = "/") -> list[PriceHere]:
    """
    List what reading costs this host: of its memory, of what turns interrupts off, and for what
    is read otherwise or not at all.
    """
    rows = []
    for price in prices.PRICES.values():
        cheap = price.interrupts_off is None and price.careful == prices.READ
        if price.locks is None or (cheap and price.files != prices.KCORE):
            continue
        # Dear files have one pattern.
        why = prices.why_left_out(root, price.files[1:]) if price.files in prices.DEAR else None
        here = why or (prices.READ if price.files in prices.DEAR else price.careful)
        rows.append(PriceHere(price.files, price.locks, price.interrupts_off, here))
    return rows


def watched(root: str = "/") -> Check:
    """
    Check what `mmscope watch` can sample here, and what a sample costs.

    :param root: the folder that has proc/ and sys/ in it.
    """
    sample = Sampler(root, thp_order(root, os.sysconf("SC_PAGE_SIZE"))).take()
    gives = (
        "rates, levels, pressure and free blocks of THP size over time; a sample takes "
        f"{1000 * sample['cpu']:.1f} ms of CPU here"
    )
    unread = sample["unread"]
    if not unread:
        return _check("watch", gives)
    change = [WHAT_HELPS[name] for name in unread if name in WHAT_HELPS]
    if any(why.endswith(prices.TO_READ_IT) for why in unread.values()):
        change.append("watch --all")
    if any("only root" in why for why in unread.values()):
        change.append("run as root")
    any_read = sample.keys() & {"vmstat", "psi", "meminfo", "zones"}
    return Check(
        "watch",
        "in part" if any_read else "no",
        gives,
        "; ".join(_reason(why).partition(" (")[0] for why in unread.values()),
        "; ".join(change) or "mount proc and sysfs",
    )


def _reason(why: str) -> str:
    """The reason why a file is left out, without how to read it nonetheless."""
    return why.removesuffix(f"; {prices.TO_READ_IT}")


def _check(source: str, gives: str, reason: str | None = None, change: str | None = None) -> Check:
    return Check(source, "no" if reason else "yes", gives, reason, change if reason else None)


def _memory() -> Check:
    path = "/proc/kcore"
    check = functools.partial(_check, path, "the running kernel's memory: every section")
    if not Path(path).exists():
        return check(
            "this kernel has none (CONFIG_PROC_KCORE, or a container hides it)",
            "boot a kernel with CONFIG_PROC_KCORE=y; or take a vmcore (kdump, virsh dump "
            "--memory-only) and give it as --core; text sources work without",
        )
    if os.geteuid():
        return check("only root may read it", "sudo mmscope collect …")
    try:
        open_target()
    except TargetError as error:
        # Without symbols the memory itself is readable; the next row is about them.
        if "symbols" not in str(error):
            return check(str(error), "give --core VMCORE")
    return check()


def _symbols(release: str) -> Iterator[Check]:
    """Layouts of the kernel's memory: its own BTF, or else debug symbols."""
    gives = "layouts and addresses of this kernel's structures: needed to read memory"
    own = _check("BTF and kallsyms", gives, why_not_here())
    if own.usable == "yes":
        yield own
        return
    # They do instead.
    symbols = _debug_symbols(release)
    instead = f"use {symbols.source}" if symbols.usable == "yes" else symbols.change
    yield dataclasses.replace(own, change="run as root" if os.geteuid() else instead)
    yield symbols


def _debug_symbols(release: str) -> Check:
    gives = "the same, where the kernel does not say so itself"
    places = [Path(place.format(release=release)) for place in VMLINUX_PLACES]
    found = next((place for place in places if place.exists()), None)
    if found is not None:
        return _check(f"debug symbols: {found}", gives)
    change = where_to_get_symbols(release, os.uname().machine, perf_events.os_release())
    if os.environ.get("DEBUGINFOD_URLS"):
        return Check(
            "debug symbols: debuginfod",
            "in part",
            gives,
            "the servers of DEBUGINFOD_URLS are asked when memory is read: they may not have this "
            "kernel, and its symbols are hundreds of megabytes",
            change,
        )
    return _check(
        f"debug symbols of {release}",
        gives,
        "no vmlinux in the usual places, and DEBUGINFOD_URLS is not set",
        change,
    )


def _hugetlb() -> Check:
    path = Path("/sys/kernel/mm/hugepages")
    reason = None if path.is_dir() else "this kernel has no hugetlb pools"
    return _check(str(path), "hugetlb pools", reason, "a kernel with CONFIG_HUGETLBFS=y")


def _page_owner(release: str) -> Check:
    """page_owner's files are there only if it was switched on at boot."""
    path = DEBUGFS / "page_owner"
    compiled = _configured(release, "CONFIG_PAGE_OWNER")
    off = "it is off", "boot with page_owner=on"
    if compiled is False:
        kernel = "a kernel with CONFIG_PAGE_OWNER=y, booted with page_owner=on"
        off = "this kernel is built without it", kernel
    elif compiled is None:
        off = "it is off", "boot with page_owner=on (on a kernel with CONFIG_PAGE_OWNER=y)"
    trouble = _debugfs() or (() if path.exists() else off)
    return _check(str(path), "who owns pages: 'mmscope page-owner', 'mmscope watch'", *trouble)


def _slab_owner() -> Check:
    source, gives = f"{DEBUGFS}/slab/*/alloc_traces", "who owns slab objects"
    if trouble := _debugfs():
        return _check(source, gives, *trouble)
    if next((DEBUGFS / "slab").glob("*/alloc_traces"), None) is not None:
        reason = _reason(str(prices.why_left_out("/", prices.ALLOC_TRACES[1:])))
        return Check(source, "if asked", gives, reason, "collect --all")
    reason, _, change = NO_TRACKS.partition("; ")
    return _check(source, gives, reason, change)


def _alloc_tags(release: str) -> Check:
    """/proc/allocinfo is there unless profiling was shut down, or never on since boot."""
    gives = "what each line of the kernel's source holds"
    if Path(prices.ALLOCINFO).exists():
        return _text(prices.ALLOCINFO, gives)
    compiled = _configured(release, "CONFIG_MEM_ALLOC_PROFILING")
    words = NEVER if compiled else NOT_COMPILED_IN
    if compiled is None:
        words = "it is off, or not compiled in; boot with sysctl.vm.mem_profiling=1"
        words += " (on a kernel with CONFIG_MEM_ALLOC_PROFILING=y)"
    reason, _, change = words.partition("; ")
    return _check(prices.ALLOCINFO, gives, reason, change)


def _debugfs() -> tuple[str, str] | None:
    """The reason why debugfs cannot be read, and what to do; None if it can."""
    try:
        entries = os.listdir(DEBUGFS)
    except PermissionError:
        return "only root may read debugfs", "run as root"
    except OSError:
        return "there is no debugfs", f"a kernel with CONFIG_DEBUG_FS=y; {MOUNT_DEBUGFS}"
    return None if entries else ("debugfs is not mounted", MOUNT_DEBUGFS)


def _configured(release: str, option: str) -> bool | None:
    """True if the running kernel is built with an option; None if nothing says so."""
    for place in CONFIGS:
        try:
            text = Path(place.format(release=release)).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        return re.search(rf"^{option}=y$", text, re.MULTILINE) is not None
    return None


def _programs() -> Iterator[Check]:
    """Libraries that reports are made with."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    yield _check(
        "findings and reports",
        "to be made here",
        f"this Python has no {', '.join(missing)}" if missing else None,
        f"{FULL_INSTALL}; or carry the bundle to where that is installed",
    )


def _recipes() -> list[Check]:
    """Recipes of `mmscope record` that can run here."""
    machine = perf_events.look()
    rows = []
    for name in recipe.names():
        wanted = recipe.load(name)
        try:
            plan = perf_events.plan(wanted, machine)
        except perf_events.RecordError as reason:
            usable, less = "no", [str(reason)]
        else:
            less = [*dict.fromkeys(reason for _, reason in plan.missing), *plan.notes]
            usable = "in part" if less else "yes"
        why, change = _remedy(less, wanted.needs) if less else (None, None)
        rows.append(Check(f"record {name}", usable, wanted.title, why, change))
    return rows


def _remedy(reasons: list[str], needs: str) -> tuple[str, str]:
    """
    Split the reasons why a recipe is not usable from the commands that change that.

    :param reasons: of perf_events; some end with a command.
    :param needs: what the recipe says that it needs, where none does.
    """
    why, commands = [], []
    to_get_perf = perf_events.where_to_get_perf(os.uname().release, perf_events.os_release())
    for reason in reasons:
        words, _, command = reason.rpartition(": ")
        is_command = command.startswith("mount ") or command == to_get_perf
        why.append(words if is_command else reason)
        commands += [command] if is_command else []
    return "; ".join(why), "; ".join(dict.fromkeys(commands)) or needs


def _text(path: str, gives: str) -> Check:
    try:
        _try(path)
    except FileNotFoundError:
        return _check(path, gives, "not there", NEEDS.get(path, "mount -t proc proc /proc"))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP and path in NEEDS:  # PSI that is off
            return _check(path, gives, "it is off", NEEDS[path])
        # ptrace_may_access() (kernel/ptrace.c), check_syslog_permissions() (kernel/printk/printk.c)
        more = {"/proc/1/maps": "CAP_SYS_PTRACE", "/dev/kmsg": "CAP_SYSLOG"}.get(path)
        if os.geteuid():
            change = f"run as root, with {more}" if more else "run as root"
        else:
            change = f"root needs {more or 'all its capabilities'} for it: run on the host"
        return _check(path, gives, error.strerror or "cannot be read", change)
    if why := prices.why_left_out("/", path[1:]):
        return Check(path, "if asked", gives, _reason(why), "collect --all, watch --all")
    return _check(path, gives)


def _try(path: str) -> None:
    """
    See whether a file can be read, as cheaply as that can be seen.

    :raises OSError: it cannot.
    """
    if path.endswith("/maps"):
        with ReaderApart() as reader:
            reader.read(path)
        return
    with open(path, "rb") as file:
        if path == prices.PRESSURE:  # that it is off shows when it is read
            file.read(1)


def summary(checks: Sequence[Check], costs: Iterable[PriceHere], width: int = 0) -> str:
    """
    The rows of ``doctor`` as paragraphs.

    :param width: of a line; by default the terminal's, at most :data:`WIDTH`.
    """
    width = width or min(shutil.get_terminal_size().columns, WIDTH)
    lines: list[str] = []

    def say(text: str, first: str = "") -> None:
        lines.extend(
            textwrap.wrap(
                visible(text),
                width,
                initial_indent=first,
                subsequent_indent=" " * max(len(first), 2) + "  " * first.isspace(),
                break_on_hyphens=False,
            )
        )

    say(f"Usable: {', '.join(check.source for check in checks if check.usable == 'yes')}")
    for title, those in (
        ("Usable in part", [check for check in checks if check.usable == "in part"]),
        ("Not usable", [check for check in checks if check.usable not in ("yes", "in part")]),
    ):
        if those:
            lines += ["", f"{title}:"]
        groups: dict[str, list[Check]] = {}
        for check in those:
            groups.setdefault(check.change or check.source, []).append(check)
        for group in groups.values():
            say(f"{', '.join(check.source for check in group)}: {_reasons(group)}", "  ")
            if change := group[0].change:
                say(change, "    -> ")
    spared = [cost for cost in costs if cost.here.startswith("left out")]
    if spared:
        lines += ["", "Left out, as reading it could hurt this host:"]
        for cost in spared:
            say(f"{cost.files}: {cost.here.removeprefix('left out, ')}", "  ")
    lines.append("")
    say("'mmscope doctor --all': what each of them gives, and what reading it costs.")
    return "\n".join(lines)


def _reasons(group: Iterable[Check]) -> str:
    """Reasons why they are not usable; what each alone misses, an event, is left out."""
    said = [check.reason or "" for check in group]
    if len(said) > 1:
        said = [reason.rpartition(": ")[2] for reason in said]
    return "; ".join(dict.fromkeys(filter(None, said)))
