# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pressure stall information of memory: ``psi_system`` and the ``psi_group`` of each cgroup that has a
memory controller (kernel/sched/psi.c), or /proc/pressure/memory and ``memory.pressure``.

``struct cgroup`` has its ``psi_group`` inside (5.10), or behind a pointer (6.1 and later).

Averages are brought up to date every two seconds while a task of the group runs or waits
(``psi_avgs_work()``), and when the file is read. Those of a group that fell asleep stand still:
they are brought to the time of the machine's own group as the kernel does when the next period
comes (``calc_load_n()``), that is with no stall since.

Costs a read of some 300 bytes for each cgroup. Cannot know: stalls of the last two seconds.
"""

import re
from collections.abc import Iterator

import numpy as np
from drgn import FaultError, Object, ObjectNotFoundError, Program, TypeKind

from mmscope.drgn.cgroups.cgroup_files import MAX_CGROUPS, THE_FIRST, cgroup_folders
from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST, column
from mmscope.drgn.tables.table import table, tables_of

OVER = 101  # %: beyond what rounding makes
FIXED = 1 << 11  # FIXED_1 of include/linux/sched/loadavg.h: 1 is so much
# EXP_10s, EXP_60s and EXP_300s of kernel/sched/psi.c: what a period leaves of an average.
LEFT = (1677, 1981, 2034)
PERIOD_NS = 2 * 10**9 + 10**6  # PSI_FREQ, 2 * HZ + 1 jiffies; one of 1 ms
CLOCKS_US = 10 * 10**6  # by which the clocks of CPUs, and what is counted since, may differ
KINDS = {"some": "PSI_MEM_SOME", "full": "PSI_MEM_FULL"}
LINE = re.compile(
    r"(some|full) avg10=(\d{1,3}\.\d\d) avg60=(\d{1,3}\.\d\d) avg300=(\d{1,3}\.\d\d) "
    r"total=(\d{1,20})"
)


@table("memory_pressure", "Tasks that wait for memory")
class Pressure:
    """How long tasks waited for memory."""

    cgroup: str | None = column(holds="cgroup", key=True, help="path; empty: the whole machine")
    kind: str = column(
        holds="words",
        key=True,
        help="some: at least one task waited; full: all non-idle tasks, by CPU",
    )
    avg10: float = column(unit="%", high=100, help="average of the last 10 s, as the file shows it")
    avg60: float = column(unit="%", high=100, help="of the last 60 s")
    avg300: float = column(unit="%", high=100, help="of the last 300 s")
    total_us: int = column(unit="us", high=MOST, help="since boot, or since the cgroup's creation")


def psi_group(prog: Program) -> Object:
    """
    The machine's ``struct psi_group``.

    :raises Absent: the kernel has none, or does not count.
    """
    try:
        group = prog["psi_system"]
    except ObjectNotFoundError:
        raise Absent("the kernel is built without CONFIG_PSI") from None
    if prog["psi_disabled"].key.enabled.counter.value_() > 0:
        raise Absent("pressure is not counted: boot with psi=1 (CONFIG_PSI_DEFAULT_DISABLED)")
    return group


def rows_of(group: Object, cgroup: str | None, now: int) -> Iterator[Pressure]:
    """
    Rows of a ``struct psi_group``, as ``psi_show()`` prints them.

    :param now: to which its averages are brought, ns.
    """
    # BTF has an array of arrays as one (Documentation/bpf/btf.rst).
    averages = np.ravel(group.avg.value_()).reshape(-1, len(LEFT))
    totals = np.ravel(group.total.value_())  # those of PSI_AVGS first
    missed = max(0, now - int(group.avg_last_update)) // PERIOD_NS
    for kind, name in KINDS.items():
        state = int(group.prog_.constant(name))
        shares = []
        for average, left in zip(averages[state].tolist(), LEFT, strict=True):
            value = average * (left / FIXED) ** missed
            share = round(value / FIXED, 2)
            shares.append(share if share > OVER else min(100.0, share))
        total = int(totals[state]) // 1000
        ten, sixty, three_hundred = shares
        yield Pressure(cgroup, kind, ten, sixty, three_hundred, total)


def totals_apart(rows: list[Pressure], boot_us: int) -> int:
    """
    Groups that were stalled for longer than the machine runs, or wholly for longer than in part:
    ``collect_percpu_times()`` adds up both at once.

    :param boot_us: since boot, when averages were last brought up to date.
    """
    total = {(row.cgroup, row.kind): row.total_us for row in rows}
    some = ((row, total[row.cgroup, "some"]) for row in rows)
    most = boot_us + boot_us // 100 + CLOCKS_US
    return len(
        {row.cgroup for row, in_part in some if row.total_us > min(in_part + CLOCKS_US, most)}
    )


def from_memory(memory: Memory) -> Found:
    prog = memory.prog
    machine = psi_group(prog)
    now = int(machine.avg_last_update)
    found, rows = Found(memory.live), list(rows_of(machine, None, now))
    boot_us = now // 1000
    memcgs = memcgs_once(memory)
    gaps = Gaps()
    pointers = memcgs.columns["cgroup"]
    live = np.flatnonzero(~memcgs.dying & (memcgs.depth > 0))[:MAX_CGROUPS]
    paths = cgroup_paths(prog, pointers[live], gaps)
    member = prog.type("struct cgroup").member("psi")
    is_pointer = member.type.kind is TypeKind.POINTER
    lost = 0
    for at, (path, _) in zip(live, paths, strict=True):
        cgroup = Object(prog, "struct cgroup *", int(pointers[at]))
        try:
            group = cgroup.psi if is_pointer else cgroup.psi.address_of_()
            if path is not None and group and getattr(group, "enabled", True):
                rows += rows_of(group[0].read_(), path, now)
        except FaultError:
            lost += 1
    found.differ(
        *if_any(totals_apart(rows, boot_us), "stalls of {} took longer than can be", "group")
    )
    found.notes += if_any(lost, "the pressure of {} could not be read", "cgroup")
    found.unreadable_bytes = gaps.bytes
    if int((~memcgs.dying).sum()) - 1 > MAX_CGROUPS:
        found.unlisted.append(THE_FIRST)
    return found.add(Pressure, _worst_first(rows))


def read_pressure(text: str, cgroup: str | None) -> list[Pressure]:
    """
    The same rows from /proc/pressure/memory or ``memory.pressure``, ``psi_show()``.

    :raises ValueError: the text is not that of such a file.
    """
    rows = []
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if not match:
            raise ValueError(f"{line[:40]!r} is no line of pressure")
        kind, ten, sixty, three_hundred, total = match.groups()
        shares = float(ten), float(sixty), float(three_hundred)
        rows.append(Pressure(cgroup, kind, *shares, int(total)))
    if not rows:
        raise ValueError("it has no line of pressure")
    return rows


def from_files(files: Files) -> Found:
    found = Found()
    rows, lacks, unread = list[Pressure](), None, 0
    try:
        rows += read_pressure(files.read("proc/pressure/memory"), None)
    except Absent as reason:
        lacks = reason
    for path, here in cgroup_folders(files, found):
        if path == "/":  # the machine
            continue
        try:
            rows += read_pressure(files.open(f"{here}/memory.pressure"), path)
        except (OSError, ValueError):
            unread += 1
    if lacks is not None:
        if not rows:
            raise lacks
        found.remarks.append(f"the machine's own was not read: {lacks}")
    found.remarks += if_any(unread, "memory.pressure of {} is not there", "cgroup")
    return found.add(Pressure, _worst_first(rows))


def _worst_first(rows: list[Pressure]) -> list[Pressure]:
    """The machine, then cgroups by what they wait."""
    return sorted(rows, key=lambda row: (row.cgroup is not None, -row.avg60, -row.total_us))


PRESSURE_SECTION = Section(
    name="memory_pressure",
    title="Pressure",
    since="0.3.0",
    tables=tables_of(
        Pressure,
    ),
    intro="""
For what share of the last seconds tasks waited for memory, of the machine and of each memory cgroup
([pressure stall information](https://docs.kernel.org/accounting/psi.html)): in reclaim, for pages
that were reclaimed and are read again, throttled at a limit. It is harm that was measured.
""",
    command=Command("how long tasks wait for memory", top=TOP),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.PRESSURE, prices.CGROUPS),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_pressure")
