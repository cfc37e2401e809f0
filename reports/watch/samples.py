# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One sample of a running kernel: the small files of /proc and /sys that say what its memory does.

A sample is a plain dictionary, so that it is a line of JSON in the log of ``mmscope watch``. What
could not be read is in its ``unread``, with the reason; what a kernel does not have is as well.

Nearly all of it is cheap. /proc/pagetypeinfo is not: for each zone and list the kernel counts up to
100,000 blocks with the zone's lock held and interrupts off, then all pageblocks of the zone; with
page_owner on it also drains the per-CPU lists and walks every page (pagetypeinfo_show(),
mm/vmstat.c). It is therefore not read where ``prices`` calls it dear, unless that is asked for, and
less often than the rest where it takes more than :data:`PAGETYPEINFO_SHARE` of a CPU.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable
from typing import Any

from mmscope.drgn.sections.prices import is_live, why_left_out
from mmscope.drgn.text.kernel_text import MAX_COUNT, whole_lines
from mmscope.drgn.text.meminfo import KSTATS, MEMINFO_LINES, arc_bytes, beside_meminfo
from mmscope.drgn.text.plain_file import read_plain, read_text
from mmscope.drgn.text.proc_text import (
    parse_buddyinfo,
    parse_pagetypeinfo,
    parse_vmstat,
    parse_zoneinfo,
    since_boot,
    zone_file_pages,
)
from mmscope.reports.bundle.description import FACTS
from mmscope.reports.watch.holders import LINE, Holders, Lines
from mmscope.reports.watch.kills import Kills
from mmscope.reports.watch.sleepers import Sleepers

Sample = dict[str, Any]

PAGETYPEINFO_SHARE = 0.01
# Of /proc/meminfo: levels that show who holds the memory.
MEMINFO = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapCached", "AnonPages"),
    *("Shmem", "SReclaimable", "SUnreclaim", "KernelStack", "PageTables", "SecPageTables"),
    *("VmallocUsed", "Percpu", "Dirty", "Writeback", "AnonHugePages", "ShmemHugePages"),
    *("FileHugePages", "Hugetlb", "SwapTotal", "SwapFree", "Zswap", "Zswapped", "Unaccepted"),
    *MEMINFO_LINES,
)
# Of each zone in /proc/zoneinfo, in pages, as table zone_series has them; and of newer kernels.
ZONE = ("managed", "free", "min", "low", "high")
# Of each node there; "workingset_refault" up to 5.8.
REFAULTS = ("workingset_refault_file", "workingset_refault_anon", "workingset_refault")
NEWER = ("boost", "reserved_highatomic", "free_highatomic")
# /sys/kernel/mm/ksm: what is counted since boot, and what is a level, with its unit.
KSM_EVENTS = ("full_scans", "pages_scanned", "pages_skipped")
KSM_LEVELS = {
    "pages_shared": "pages",
    "pages_sharing": "pages",
    "pages_unshared": "pages",
    "pages_volatile": "pages",
    "ksm_zero_pages": "pages",
    "stable_node_chains": "",
    "stable_node_dups": "",
    "general_profit": "bytes",
}
AVERAGE = r"(\d{1,3}\.\d\d)"
PRESSURE = re.compile(
    rf"(some|full) avg10={AVERAGE} avg60={AVERAGE} avg300={AVERAGE} total=(\d{{1,19}})", re.ASCII
)
WHAT_HELPS = {
    "pressure": "CONFIG_PSI; boot with psi=1 where it is off by default",
    "ksm": "CONFIG_KSM",
}


class Sampler:
    """
    Takes samples.

    :param root: the folder that has ``proc/`` and ``sys/`` in it.
    :param thp_order: order of a transparent huge page of PMD size.
    :param everything: also what is dear to read on a running host.
    :param share: of a CPU, that /proc/pagetypeinfo may take.
    :param holders: also read who holds memory, and which tasks sleep in D state.
    :param lines: of a CPU, that lines of source may take of those who hold memory; 0: not read.
    :ivar total: memory of the host in bytes, as last read.
    """

    def __init__(
        self,
        root: str,
        thp_order: int,
        *,
        everything: bool = False,
        share: float = PAGETYPEINFO_SHARE,
        holders: bool = False,
        lines: float = 0.0,
    ) -> None:
        self.root, self.thp_order, self.share = root, thp_order, share
        self._pagetypeinfo_due = 0.0
        self._holders = Holders(root, everything=everything) if holders else None
        self._lines = Lines(root, lines) if lines else None
        self._sleepers = Sleepers(root) if holders else None
        self._kills = Kills(root) if holders else None
        self.total = 0
        # Asked once: page_owner is switched on at boot, and zones seldom grow.
        self._left_out = (
            None if everything or not is_live(root) else why_left_out(root, "proc/pagetypeinfo")
        )

    def take(self, late: float = 0.0, *, trial: bool = False) -> Sample:
        """
        Read everything once.

        :param late: seconds after it was due, to be kept with it.
        :param trial: only to see what there is: without /proc/pagetypeinfo.
        """
        begin, cpu = time.monotonic(), time.process_time()
        sample: Sample = {
            "wall": time.time(),
            "mono": begin,
            "boot": time.clock_gettime(time.CLOCK_BOOTTIME),
            "late": round(late, 6),
            "unread": {},
        }
        sources: dict[str, Callable[[Sample], None]] = {
            "vmstat": self._vmstat,
            "pressure": self._pressure,
            "meminfo": self._meminfo,
            "zoneinfo": self._zoneinfo,
            "ksm": self._ksm,
        }
        if not trial:
            sources["pagetypeinfo"] = self._free_blocks
        for name, read in sources.items():
            try:
                read(sample)
            except (OSError, ValueError) as error:
                sample["unread"][name] = self._reason(name, error)
        if "meminfo" in sample:
            sample["beside"] = self._beside(sample)
            self.total = sample["meminfo"]["MemTotal"]
            available = sample["meminfo"].get("MemAvailable", 0)
            if not trial and self._holders and self._holders.due(available, self.total):
                sample |= self.holders()
            if not trial and self._lines and self._lines.due:
                sample |= self._lines_of_source(self._lines)
        if self._kills and not trial and "oom_kill" in sample.get("vmstat", {}):
            sample["kills"] = self._kills.read(sample["vmstat"]["oom_kill"])
        if self._sleepers and not trial and self._sleepers.due:
            sample |= self.sleepers()
        sample["read"] = round(time.monotonic() - begin, 6)
        sample["cpu"] = round(time.process_time() - cpu, 6)
        return sample

    def _reason(self, name: str, error: OSError | ValueError) -> str:
        if isinstance(error, PermissionError):
            return f"{error.filename}: only root may read it"
        if isinstance(error, OSError):
            helps = f" ({WHAT_HELPS[name]})" if name in WHAT_HELPS else ""
            return f"{error.filename}: {error.strerror}{helps}"
        return str(error)

    def _text(self, path: str) -> str:
        full = os.path.join(self.root, path)
        try:
            return read_text(full)
        except OSError as error:
            # Reading may fail where opening did not (PSI that is off), and then has no name.
            raise OSError(error.errno, error.strerror, full) from None

    def _vmstat(self, sample: Sample) -> None:
        at = time.monotonic()
        rows = parse_vmstat(self._text("proc/vmstat"))
        sample["vmstat"] = {name: value for name, kind, value in rows if since_boot(name, kind)}
        sample["zspages"] = sum(value for name, _, value in rows if name == "nr_zspages")
        sample["vmstat_at"] = at

    def _pressure(self, sample: Sample) -> None:
        at = time.monotonic()
        sample["psi"] = parse_pressure(self._text("proc/pressure/memory"))
        sample["psi_at"] = at

    def _meminfo(self, sample: Sample) -> None:
        sample["meminfo"] = parse_meminfo(self._text("proc/meminfo"))

    def _zoneinfo(self, sample: Sample) -> None:
        at, whole = time.monotonic(), self._text("proc/zoneinfo")
        # The per-CPU part, most of the file on a large machine, is of no further use here.
        sample["listed"] = sum(map(int, re.findall(r"^ +count: +(\d{1,15})$", whole, re.MULTILINE)))
        pagesets = r"\n  pagesets\n.*?\n(?=  node_unreclaimable:)"
        zones = parse_zoneinfo(re.sub(pagesets, "\n", whole, flags=re.DOTALL))
        sample["present"] = sum(zone.fields["present"] for zone in zones)
        # Printed with the first zone of each node that has memory; without nodes vmstat has them.
        if len({zone.node for zone in zones if zone.fields["present"]}) > 1:
            for zone in zones:
                if found := {name: zone.fields[name] for name in REFAULTS if name in zone.fields}:
                    sample[f"node {zone.node}"], sample[f"node {zone.node}_at"] = found, at
        sample["zones"] = [
            [
                zone.node,
                zone.zone,
                *map(zone.fields.__getitem__, ZONE),
                *map(zone.fields.get, NEWER),
                zone_file_pages(zone.fields),
            ]
            for zone in zones
            if zone.fields["present"]
        ]

    def _beside(self, sample: Sample) -> dict[str, int]:
        """Memory that has no line in /proc/meminfo, in bytes."""
        kstats = []
        for path in KSTATS:
            try:
                kstats.append(self._text(path))
            except OSError:
                kstats.append("")  # no ZFS
        vmstat = sample.get("vmstat", {}) | {"nr_zspages": sample.pop("zspages", 0)}
        pages = sample.pop("listed", 0), sample.pop("present", 0)
        return beside_meminfo(vmstat, *pages, arc_bytes(*kstats), os.sysconf("SC_PAGE_SIZE"))

    def holders(self) -> Sample:
        """Read who holds memory, whether it is time or not; empty where that is not asked for."""
        if not self._holders or not self.total:
            return {}
        at = time.monotonic()
        rows, unread = self._holders.read(self.total), dict(self._holders.unread)
        if self._kills and self._kills.unread:
            unread["OOM kills"] = self._kills.unread
        return {"holders": rows, "holders_at": at, "holders_unread": unread}

    def _lines_of_source(self, lines: Lines) -> Sample:
        at, rows, unread = time.monotonic(), [], {}
        try:
            rows = lines.read(self.total)
        except (OSError, ValueError) as error:
            unread[LINE] = self._reason(LINE, error)
        return {"holders": rows, "holders_at": at, "holders_unread": unread}

    def sleepers(self) -> Sample:
        """Read which tasks sleep in D state, whether it is time or not; empty as above."""
        if not self._sleepers:
            return {}
        rows, at = self._sleepers.read(), time.monotonic()
        return {"sleepers": rows, "sleepers_at": at, "sleepers_unread": self._sleepers.unread}

    def _ksm(self, sample: Sample) -> None:
        at = time.monotonic()
        found = {"full_scans": _number(self._text("sys/kernel/mm/ksm/full_scans"))}
        for name in (*KSM_EVENTS[1:], *KSM_LEVELS):
            try:
                found[name] = _number(self._text(f"sys/kernel/mm/ksm/{name}"))
            except FileNotFoundError:
                continue  # newer than this kernel
        sample["ksm"], sample["ksm_at"] = found, at

    def _free_blocks(self, sample: Sample) -> None:
        begin, cpu = time.monotonic(), time.process_time()
        if begin < self._pagetypeinfo_due:
            sample["put_off"] = True
            return
        path = os.path.join(self.root, "proc/pagetypeinfo")
        try:
            # What this user may not read is not left out for its price.
            if self._left_out and os.access(path, os.R_OK):
                raise OSError(errno.ECANCELED, self._left_out, path)
            text = self._text("proc/pagetypeinfo")
        except OSError:
            sample["thp_free"] = [
                [node, zone, None, blocks, False] for node, zone, blocks in self.thp_blocks()
            ]
            raise
        info = parse_pagetypeinfo(text)
        sample["thp_free"] = [
            [node, zone, migratetype, *self._capped_thp_blocks(counts)]
            for (node, zone, migratetype), counts in info.free.items()
        ]
        if "HighAtomic" in info.names:
            at = info.names.index("HighAtomic")
            sample["reserve"] = [
                [*zone, blocks[at] << info.block_order] for zone, blocks in info.blocks.items()
            ]
        spent = time.process_time() - cpu
        sample["pagetypeinfo_cpu"] = round(spent, 6)
        sample["walks_pages"] = "\nNumber of mixed blocks " in text
        self._pagetypeinfo_due = begin + spent / self.share

    def thp_blocks(self) -> list[tuple[int, str, int]]:
        """
        (node, zone, free memory in blocks of THP size and larger), of any migratetype: a number for
        each order, which the kernel has at hand.

        :raises OSError, ValueError: /proc/buddyinfo cannot be read.
        """
        return [
            (node, zone, self._thp_blocks(counts))
            for (node, zone), counts in parse_buddyinfo(self._text("proc/buddyinfo")).items()
        ]

    def _thp_blocks(self, counts: list[int]) -> int:
        return sum(
            blocks << order - self.thp_order
            for order, blocks in enumerate(counts)
            if order >= self.thp_order
        )

    def _capped_thp_blocks(self, counts: list[int | None]) -> tuple[int, bool]:
        """Blocks of THP size, and whether the kernel stopped counting some of them."""
        whole = [100_000 if blocks is None else blocks for blocks in counts]
        return self._thp_blocks(whole), None in counts[self.thp_order :]


def parse_pressure(text: str) -> dict[str, list[float]]:
    """
    Read /proc/pressure/memory: ``some`` and ``full`` to [avg10, avg60, avg300 (per cent), total
    (microseconds since boot)].

    :raises ValueError: the text is not /proc/pressure/memory's.
    """
    found: dict[str, list[float]] = {}
    for line in whole_lines(text, "/proc/pressure/memory"):
        match = PRESSURE.fullmatch(line)
        if not match or match[1] in found:
            raise ValueError(f"not /proc/pressure/memory: {line[:60]!r}")
        *averages, total = match.groups()[1:]
        found[match[1]] = [*map(float, averages), int(total)]
    if "some" not in found:
        raise ValueError("not /proc/pressure/memory: it has no line 'some'")
    return found


def parse_meminfo(text: str) -> dict[str, int]:
    """
    Read the levels of :data:`MEMINFO` that this kernel has, in bytes.

    :raises ValueError: the text is not /proc/meminfo's.
    """
    found: dict[str, int] = {}
    for line in whole_lines(text, "/proc/meminfo"):
        match = re.fullmatch(r"([\w()]+): +(\d{1,18})( kB)?", line, re.ASCII)
        if not match or match[1] in found:
            raise ValueError(f"not /proc/meminfo: {line[:60]!r} is not a level, or is there twice")
        if match[1] in MEMINFO:
            found[match[1]] = int(match[2]) << 10
    if "MemTotal" not in found or "MemFree" not in found:
        raise ValueError("not /proc/meminfo: it has no MemTotal and MemFree")
    return found


def _number(text: str) -> int:
    """
    The number in a file of KSM; general_profit may be below zero.

    :raises ValueError: it is not a number.
    """
    if not re.fullmatch(r"-?\d{1,19}\n?", text, re.ASCII) or abs(int(text)) > MAX_COUNT:
        raise ValueError(f"/sys/kernel/mm/ksm is damaged: {text[:40]!r} is not a number")
    return int(text)


def thp_order(root: str, page_size: int) -> int:
    """
    HPAGE_PMD_ORDER: as THP says itself, or as it follows from the page size (a PMD maps one page
    of page table entries of 8 bytes).
    """
    try:
        file = os.path.join(root, "sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        pages = int(read_plain(file)) // page_size
    except (OSError, ValueError):
        pages = page_size // 8
    return max(pages.bit_length() - 1, 0)


def host_target(root: str, page_size: int, total_pages: int | None = None) -> dict[str, Any]:
    """The watched machine, for the bundle."""
    kernel = os.uname()
    if total_pages is None:
        with contextlib.suppress(OSError, ValueError):
            zones = parse_zoneinfo(read_text(f"{root}/proc/zoneinfo"))
            total_pages = sum(zone.fields["present"] for zone in zones) or None
    return {
        **dict.fromkeys(FACTS),
        "kind": "live",
        "release": kernel.release,
        "architecture": kernel.machine,
        "page_size": page_size,
        "hostname": kernel.nodename,
        "total_pages": total_pages,
        "online_cpus": os.cpu_count(),
        "source": "watch",
    }
