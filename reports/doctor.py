# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What can be read on this machine, what cannot, and what would change that.

Looks, and changes nothing. Each source is one row: usable or not, what for, and the command,
boot parameter or package that would make it usable.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import perf_events
import recipe
from rows import column
from target import TargetError, open_target, where_symbols_are

from reports.samples import WHAT_HELPS, Sampler, thp_order


@dataclass(frozen=True)
class Check:
    """One source of readings."""

    source: str = column(key=True, help="file, facility or program")
    usable: str = column(help="yes, no, or in part")
    gives: str = column(help="what it is for")
    reason: str | None = column(help="why it is not usable")
    change: str | None = column(help="what would make it usable")


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
)


def checks() -> list[Check]:
    """Look at every source."""
    release = os.uname().release
    rows = [_memory(), _symbols(release)]
    rows += [_text(path, gives) for path, gives in TEXT_SOURCES]
    return [*rows, watched(), *_recipes()]


def watched(root: str = "/") -> Check:
    """
    What `mmscope watch` can sample here, and what a sample costs.

    :param root: the folder that has proc/ and sys/ in it.
    """
    sample = Sampler(root, thp_order(root, os.sysconf("SC_PAGE_SIZE"))).take()
    gives = (
        "rates, levels, pressure and free blocks of THP size over time; a sample takes "
        f"{1000 * sample['cpu']:.1f} ms of CPU here"
    )
    unread = sample["unread"]
    if not unread:
        return _check("watch", gives, None, None)
    change = [WHAT_HELPS[name] for name in unread if name in WHAT_HELPS]
    if any("only root" in why for why in unread.values()):
        change.append("run as root")
    any_read = sample.keys() & {"vmstat", "psi", "meminfo", "zones"}
    return Check(
        "watch",
        "in part" if any_read else "no",
        gives,
        "; ".join(why.partition(" (")[0] for why in unread.values()),
        "; ".join(change) or "mount proc and sysfs",
    )


def _check(source: str, gives: str, reason: str | None, change: str | None) -> Check:
    return Check(source, "no" if reason else "yes", gives, reason, change if reason else None)


def _memory() -> Check:
    gives = "the running kernel's memory: every section"
    path = Path("/proc/kcore")
    if not path.exists():
        return _check(
            str(path),
            gives,
            "this kernel has none (CONFIG_PROC_KCORE, or a container hides it)",
            "boot a kernel with CONFIG_PROC_KCORE=y; or take a vmcore (kdump, virsh dump "
            "--memory-only) and give it as --core; text sources work without",
        )
    if os.geteuid():
        return _check(str(path), gives, "only root may read it", "sudo mmscope collect …")
    try:
        open_target()
    except TargetError as error:
        # Without symbols the memory itself is readable; the next row is about them.
        if "symbols" not in str(error):
            return _check(str(path), gives, str(error), "give --core VMCORE")
    return _check(str(path), gives, None, None)


def _symbols(release: str) -> Check:
    places = [Path(place.format(release=release)) for place in VMLINUX_PLACES]
    found = next((place for place in places if place.exists()), None)
    if found is not None:
        return _check(f"debug symbols: {found}", "layouts of this kernel's structures", None, None)
    if os.environ.get("DEBUGINFOD_URLS"):
        return _check(
            "debug symbols: debuginfod", "layouts of this kernel's structures", None, None
        )
    return _check(
        f"debug symbols of {release}",
        "layouts of this kernel's structures: needed to read memory",
        "no vmlinux in the usual places, and DEBUGINFOD_URLS is not set",
        where_symbols_are(release),
    )


def _recipes() -> list[Check]:
    """What `mmscope record` can do here."""
    machine = perf_events.look()
    rows = []
    for name in recipe.names():
        wanted = recipe.load(name)
        less: list[str] = []
        try:
            plan = perf_events.plan(wanted, machine)
        except perf_events.Unavailable as reason:
            rows.append(_check(f"record {name}", wanted.title, str(reason), wanted.needs))
            continue
        less += dict.fromkeys(reason for _, reason in plan.missing)
        less += plan.notes
        if less:
            words = "; ".join(less)
            rows.append(Check(f"record {name}", "in part", wanted.title, words, wanted.needs))
        else:
            rows.append(_check(f"record {name}", wanted.title, None, None))
    return rows


def _text(path: str, gives: str) -> Check:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except FileNotFoundError:
        return _check(path, gives, "not there", "mount -t proc proc /proc")
    except OSError as error:
        return _check(path, gives, error.strerror or "cannot be read", "run as root")
    return _check(path, gives, None, None)
