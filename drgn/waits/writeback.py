# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Writeback by device or server: ``struct bdi_writeback``, one for each ``struct backing_dev_info`` of
``bdi_list`` and, with cgroup writeback, one for each memory cgroup that writes to it.

Costs some reads and a sum over CPUs for each that has written anything. The text of a whole device
is /sys/kernel/debug/bdi/*/stats (bdi_debug_stats_show(), mm/backing-dev.c), in KiB; of kernels that
have no wb_stats beside it without what cgroups write.

The dirty limit of a cgroup that has its own is ``wb_domain.dirty_limit``, which the kernel renews
while it holds writers back.

A device's share of the limit is not kept, but made of its part in what was written lately whenever
it is asked for: ``__wb_calc_thresh()``. It is known where that part is of the current period, and
where kernels agree: since "mm/page-writeback: raise wb_thresh to prevent write blocking with
strictlimit" (39ac99852fca, in v6.13) they lift a low share, where the limit is strict to a
hundredth of what may be dirtied yet, and later ones elsewhere to an eighth.

Cannot know: dirty memory of tmpfs and the like, which is written nowhere; what of a device that is
shared a server has in hand; the share of a device that was not asked for one in the last seconds,
or that such a lift may have raised.
"""

import contextlib
import errno
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from drgn import Object, Program, ProgramFlags, container_of, offsetof
from drgn.helpers.linux.list import list_empty, list_for_each_entry
from drgn.helpers.linux.percpu import percpu_counter_sum

from mmscope.drgn.cgroups.cgroup_paths import cgroup_path
from mmscope.drgn.free.zones import node_page_state
from mmscope.drgn.machine.vm_counters import drift
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.reading.symbols import has_symbol
from mmscope.drgn.reclaim.lru_lists import first_jiffy, jiffies_a_second
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.tables.rows import MOST, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.waits.reclaim_threads import MOST_SECONDS

MAX_WRITEBACKS = 1 << 14
BDIS = "sys/kernel/debug/bdi"
STATS = re.compile(r"^(\w{1,40}): +([0-9]{1,15}) kB(?:ps)?$", re.M)
# In the order of the columns.
NAMES = ("BdiReclaimable", "BdiWriteback", "BdiDirtied", "BdiWritten", "BdiWriteBandwidth")
# struct bdi_writeback: inodes, the oldest last
QUEUES = ("b_dirty", "b_io", "b_more_io")
WRAPS = (1 << 64) - 1
# include/linux/backing-dev.h, since "mm: use part per 1000000 for bdi ratios" (not in 6.1); the
# function that is looked for came with it.
BDI_RATIO_SCALE = 10000

MOST_A_SECOND = 1 << 30  # pages that a device takes: 4 TiB, where they have 4 KiB


@table(
    "writeback_devices",
    "Devices and servers that are written to",
    measure="dirty_pages",
    empty="Nothing has been written to any.",
)
class WritebackDevice:
    """Dirty memory of one device or server, by memory cgroup."""

    device: str = column(holds="kernel", key=True, help="of its bdi: major:minor, or a name")
    cgroup: str | None = column(holds="cgroup", key=True, help="memory cgroup; empty: all others")
    file_systems: str = column(holds="file", help="written to it: type, source, mount")
    dirty_pages: int = column(unit="pages", low=None, help="dirty: WB_RECLAIMABLE")
    writeback_pages: int = column(unit="pages", low=None, help="under writeback: WB_WRITEBACK")
    dirtied_pages: int = column(unit="pages", low=None, help="dirtied in all")
    written_pages: int = column(unit="pages", low=None, help="written in all")
    bandwidth: int = column(unit="pages", high=MOST, help="a second, the kernel's estimate")
    exceeded: bool | None = column(
        help="over its share of the dirty limit: writers are throttled; empty: by text"
    )
    oldest_seconds: float | None = column(
        unit="seconds",
        high=MOST_SECONDS,
        help="since the longest-dirty inode became dirty; empty: none, or unknown",
    )
    waiting: int | None = column(unit="tasks", help="throttled by its dirty pages; empty: by text")
    limit_pages: int | None = column(
        default=None,
        unit="pages",
        high=MOST,
        help="dirty limit: nr_dirty_threshold, or the cgroup's own as last renewed",
    )
    share_pages: int | None = column(
        default=None,
        unit="pages",
        high=MOST,
        help="of this limit, by how much of all that was written lately is its own; empty: a "
        "cgroup's, or unknown",
    )
    rate: int | None = column(
        default=None,
        unit="pages",
        high=MOST,
        help="a second, base for each throttled writer (dirty_ratelimit); last estimate",
    )


class Limits(NamedTuple):
    """``nr_dirty_threshold`` of the machine, and the pages that are dirty or under writeback."""

    threshold: int
    dirty: int


def writeback_devices(
    prog: Program,
    names: Callable[[int], str],
    waiting: Callable[[str], int],
    lost: list[str],
    limits: Limits | None,
) -> list[WritebackDevice]:
    """
    All that have written, those with most that is dirty or on its way first.

    :param names: the file systems of a bdi, by its address; *waiting*: tasks held back, by that.
    :param lost: why some could not be read; appended to.
    :param limits: the machine's, where they are known.
    :raises LookupError: the kernel's layout is unknown.
    """
    rows = []
    live = bool(prog.flags & ProgramFlags.IS_LIVE)
    counted = sum(node_page_state(pgdat, "NR_WRITTEN") for pgdat in online_nodes(prog))
    most = drift(prog)
    for bdi, wb in _writebacks(prog):
        try:
            dirty, under_way, dirtied, written = (
                percpu_counter_sum(wb.stat[prog.constant(name)].address_of_())
                for name in ("WB_RECLAIMABLE", "WB_WRITEBACK", "WB_DIRTIED", "WB_WRITTEN")
            )
            if not (dirtied or dirty or under_way):
                continue
            if (exceeded := wb.dirty_exceeded.value_()) not in (0, 1):
                lost.append(f"bdi_writeback.dirty_exceeded is {exceeded}")
            if not live and (least := min(dirty, under_way, dirtied, written)) < 0:
                lost.append(f"{least:,} pages are counted of a device")
            if not live and written > counted + most:
                lost.append(f"{written:,} pages were written back, by all nodes {counted:,}")
            rates = wb.avg_write_bandwidth.value_(), wb.dirty_ratelimit.value_()
            if max(rates) > MOST_A_SECOND:
                lost.append(f"{max(rates):,} pages a second are written")
            own = wb.value_() == bdi.wb.address_of_().value_()
            name = names(bdi.value_())
            device = bdi.dev_name.string_().decode("utf-8", "backslashreplace")
            # bdi_register_va() gives its device the same (mm/backing-dev.c).
            if bdi.dev and name_at(bdi.dev.kobj.name) != device:
                lost.append(f"the device of {device} has another name")
            rows.append(
                WritebackDevice(
                    device,
                    None if own else _cgroup(wb),
                    name,
                    *(dirty, under_way, dirtied, written),
                    wb.avg_write_bandwidth.value_(),
                    bool(exceeded),
                    _oldest(wb, lost),
                    waiting(name) if own else 0,
                    _limit(wb, limits),
                    share_of_limit(wb, limits) if own and limits else None,
                    wb.dirty_ratelimit.value_(),
                )
            )
        except TORN as error:
            lost.append(str(error))
    return sorted(rows, key=lambda row: (-row.dirty_pages - row.writeback_pages, row.device))


def devices_by_text(files: Files, found: Found) -> list[WritebackDevice] | None:
    """
    The same of /sys/kernel/debug/bdi/*/stats; None: debugfs is not there, or not for this user.

    :param found: gets a remark where they are left out of a running host.
    """
    page, rows = files.page_size(), []
    names = files.names(BDIS) if page else []
    mounted = _mounted_from(files) if names else {}
    for device in names:
        try:
            text = files.open(f"{BDIS}/{device}/stats")
        except OSError as error:
            if error.errno == errno.ECANCELED:
                found.remarks.append(f"devices that are written to: {error.strerror}")
                return None
            continue
        said = {name: int(kib) for name, kib in STATS.findall(text)}
        if not said.keys() >= {*NAMES}:
            found.notes.append(f"{BDIS}/{device}/stats is damaged")
            continue
        assert page is not None
        dirty, under_way, dirtied, written, rate = ((said[name] << 10) // page for name in NAMES)
        if dirty or under_way or dirtied:
            of = ", ".join(mounted.get(device, ())) or f"device {device}"
            limit = (said["DirtyThresh"] << 10) // page if "DirtyThresh" in said else None
            counts = (dirty, under_way, dirtied, written, rate)
            rows.append(WritebackDevice(device, None, of, *counts, None, None, None, limit))
    if not names:
        return None
    return sorted(rows, key=lambda row: (-row.dirty_pages - row.writeback_pages, row.device))


def _mounted_from(files: Files) -> dict[str, list[str]]:
    """File systems by device: type, source and mount, as memory has them; three at most."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for line in files.open("proc/self/mountinfo").splitlines():
            # 25 30 8:1 / /data rw,nosuid shared:4 - ext4 /dev/sda1 rw
            own, _, of = line.partition(" - ")
            _, _, device, _, mount, *_ = (*own.split(), *[""] * 5)
            kind, source, *_ = (*of.split(), "", "")
            if source and len(found.setdefault(device, [])) < 3:
                found[device].append(f"{kind} of {source} at {mount}")
    return found


def _writebacks(prog: Program) -> Iterator[tuple[Object, Object]]:
    """Each ``struct backing_dev_info *`` with each of its ``struct bdi_writeback *``."""
    head = prog["bdi_list"].address_of_()
    devices = list_for_each_entry("struct backing_dev_info", head, "bdi_list")
    every = (
        (bdi, wb)
        for bdi in devices
        for wb in list_for_each_entry("struct bdi_writeback", bdi.wb_list.address_of_(), "bdi_node")
    )
    return itertools.islice(every, MAX_WRITEBACKS)


def _cgroup(wb: Object) -> str | None:
    """Path of the memory cgroup of a ``struct bdi_writeback *`` (CONFIG_CGROUP_WRITEBACK)."""
    return cgroup_path(wb.prog_, wb.memcg_css.cgroup.value_())


def _limit(wb: Object, limits: Limits | None) -> int | None:
    """Dirty limit of the domain of a ``struct bdi_writeback *``: mem_cgroup_wb_domain()."""
    css = getattr(wb, "memcg_css", None)
    if not css or not css.parent:
        return limits.threshold if limits else None
    group = container_of(css, "struct mem_cgroup", "css")
    return group.cgwb_domain.dirty_limit.value_() or None


def share_of_limit(wb: Object, limits: Limits) -> int | None:
    """Share of a ``struct bdi_writeback *`` in the limit: __wb_calc_thresh()."""
    prog, threshold = wb.prog_, limits.threshold
    domain = prog["global_wb_domain"]
    every, own = domain.completions, wb.completions
    # fprop_fraction_percpu() (lib/flex_proportions.c) first ages what is of a period before.
    if own.period.value_() != every.period.value_():
        return None
    part, whole = (max(each.events.count.value_(), 0) for each in (own, every))
    whole = max(part, whole, 1)
    scale = 100 * (BDI_RATIO_SCALE if has_symbol(prog, "bdi_set_min_ratio_no_scale") else 1)
    share = threshold * (scale - prog["bdi_min_ratio"].value_()) // scale * part // whole
    least, most = wb.bdi.min_ratio.value_(), wb.bdi.max_ratio.value_()
    # wb_min_max_ratio(), with CONFIG_CGROUP_WRITEBACK
    if hasattr(wb, "memcg_css"):
        rate, rates = wb.avg_write_bandwidth.value_(), wb.bdi.tot_write_bandwidth.counter.value_()
        if rate < rates:
            least = least * rate // rates
            most = most * rate // rates if most < scale else most
    most = threshold * most // scale
    share = min(share + threshold * least // scale, most)
    strict = max(threshold, domain.dirty_limit.value_()) - limits.dirty
    lift = max((threshold - limits.dirty) // 8, strict // 100)
    return share if share >= min(lift, most) else None


def _oldest(wb: Object, lost: list[str]) -> float | None:
    """Seconds since ``inode.dirtied_when`` of the last of its lists of inodes; None: of none."""
    prog = wb.prog_
    if (hertz := jiffies_a_second(prog)) is None:
        return None
    link = offsetof(prog.type("struct inode"), "i_io_list")
    now, ages = int(prog["jiffies_64"].value_()), []
    for name in QUEUES:
        head = wb.member_(name)
        if not list_empty(head.address_of_()):
            inode = Object(prog, "struct inode", address=head.prev.value_() - link)
            ages.append((now - inode.dirtied_when.value_()) & WRAPS)
    seconds = max(ages, default=None)
    if seconds is not None and seconds > now - first_jiffy(hertz):
        lost.append("an inode was dirtied before the kernel booted")
        return None
    if seconds is None or seconds / hertz > MOST_SECONDS:
        return None
    return round(int(seconds) / hertz, 1)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
