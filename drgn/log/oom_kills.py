# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The OOM killer's work, as its records in the kernel's log tell it: who asked, for what, who was
killed and what it held, who else was there, and which memory was free.

Its records are those of mm/oom_kill.c and of mem_cgroup_print_oom_*() in mm/memcontrol.c, of 3.10,
6.1, 6.12, 7.2 and 7.3; the memory that there was is printed by ``show_mem()`` (mm/show_mem.c; 6.1:
mm/page_alloc.c and lib/show_mem.c).

One call writes a header, the memory that there was, a table of tasks, a summary, and a line for
each process that it kills. It holds ``oom_lock`` meanwhile, so no two calls are mixed; lines of
others may lie between, and their caller distinguishes them where the log has it. Only records of
the kernel's own count (facility 0): what a program writes to /dev/kmsg never has that
(devkmsg_write()).

Costs a look at each record of the log, which section ``kernel_log`` reads, too.

Cannot know: kills that the log does not have any more; ``oom_kill`` of /proc/vmstat counts all. Nor
why a header is missing: the kernel leaves it out where calls are frequent (oom_rs in
oom_kill_process()), and a log loses its oldest records. Text of ``dmesg`` without levels has lines
that programs wrote as well, and a task's name that has a line's end in it ends there. Lines that no
kernel of 3.10 to 7.3 prints so, as those of unreclaimable slab and of allocation profiling, are in
the log alone.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmscope.drgn.log.kernel_log import (
    NOT_COMPARED,
    beginning,
    log_of_files,
    log_of_memory,
    missing,
)
from mmscope.drgn.log.mem_info import COUNTER, LONG_LINES, PAGE_KIB, MemInfo, Request
from mmscope.drgn.log.records import (
    CPU_LINE,
    LONGEST,
    STACK,
    same_caller,
    seconds_of,
    whole_records,
)
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import MOST, MOST_BYTES, MOST_ORDER, MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_log import Log, LogRecord
from mmscope.drgn.text.log_lines import UNSEEN
from mmscope.drgn.text.log_prefix import is_comm

KILLED, EXITING, NO_ONE, NO_KILL, PANIC, OPEN = (
    "killed",
    "was exiting already",
    "nobody could be killed",
    "no process was killed",
    "the kernel panicked",
    "the log does not say",
)
MOST_UID = (1 << 32) - 1
# Two logs number theirs apart.
OOM_ID = "number of the OOM killer's call in the log, from 1"

KIB = 1024
RECENT = 64  # calls
MOST_PROGRAM_KILLS = 2_000
# Characters of a record that may be cut: LOG_LINE_MAX of 6.1 has a NUL at its end.
CUT, LONGEST_OF_6_1 = 975, 1100
# PAGE_COUNTER_MAX in KiB, with pages of 4 KiB; of larger pages it is no less than this.
NO_LIMIT_KIB = 9_007_199_254_740_000
# The log goes on after a call where so much of it follows.
SECONDS_AFTER, RECORDS_AFTER = 1.0, 8

N, S = r"([0-9]{1,15})", r"(-?[0-9]{1,10})"
NODE_LIST = r"\(null\)|[0-9,-]*"
# 3.10 has no names of flags; 4.9 to 4.18 has the nodes here; oom_score_adj came in 2.6.36.
HEADER = re.compile(
    r"(.*) invoked oom-killer: gfp_mask=(0x[0-9a-f]{1,8}|0)(?:\(([A-Za-z0-9_|]*)\))?,"
    rf"(?: nodemask=({NODE_LIST}),)? +order=(-1|[0-9]{{1,2}}),"
    rf"(?:(?: oom_adj=-?[0-9]{{1,2}},)? oom_score_adj={S}| (?:oom_adj|oomkilladj)=-?[0-9]{{1,2}})",
    re.DOTALL,
)
CPUSET = re.compile(r"(.*) cpuset=(.*) mems_allowed=([0-9,-]*)")
# The first of these in a stack: the memory of the kernel's own pages is charged in __alloc_pages().
OF_CGROUP = {"mem_cgroup_out_of_memory", "mem_cgroup_oom_synchronize"}
OF_CGROUP |= {"try_charge", "try_charge_memcg", "__mem_cgroup_try_charge"}
OF_MACHINE = {"__alloc_pages_may_oom", "__alloc_pages_slowpath", "moom_callback", "__alloc_pages"}
OF_MACHINE |= {"__alloc_pages_nodemask", "__alloc_pages_noprof", "__alloc_frozen_pages_noprof"}
# dump_header() prints which columns a row has: they came and went.
TASK_HEADER = re.compile(r"\[ +pid +\] +(uid +tgid +[a-z_ ]+?) +name")
TASK_COLUMNS = {
    **{"total_vm": "total_vm_pages", "rss": "rss_pages", "rss_anon": "anon_pages"},
    **{"rss_file": "file_pages", "rss_shmem": "shmem_pages", "pgtables_bytes": "pgtables_bytes"},
    **{"swapents": "swap_pages", "oom_score_adj": "oom_score_adj", "tgid": "tgid", "uid": "uid"},
}
PAGE_TABLES = ("nr_ptes", "nr_pmds", "nr_puds")
_NOW = "uid tgid total_vm rss {} swapents oom_score_adj"
# Where the header of the table is gone: 6.12, 4.14, 4.1, 4.15, each more than the next.
WITHOUT_HEADER = (
    "uid tgid total_vm rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj",
    _NOW.format("nr_ptes nr_pmds nr_puds"),
    _NOW.format("nr_ptes nr_pmds"),
    _NOW.format("pgtables_bytes"),
)
LIKE_TASK = re.compile(r"\[ *[0-9]{1,15}\] +-?[0-9]")
TASKS = "Tasks state (memory values in pages):"
SUMMARY = "oom-kill:constraint="
MESSAGE = (
    r"(Out of [Mm]emory|Memory cgroup out of memory|Out of memory \(oom_kill_allocating_task\))"
)
# Until 5.2 the one with the highest score is said first; a child of it may be killed.
CHOSEN = re.compile(rf"{MESSAGE}: Kill process {N} \((.*)\) score [0-9]+ or sacrifice child")
# From 3.10 on, as RHEL 7 has it (RHEL 6 has the UID before the name; before 2.6.33 there are no
# sizes), with the message of 5.3, and with what 5.4 has behind it. A terminal or a pager may have
# cut it: what is behind the last whole number is the rest.
KILL = re.compile(
    rf"(?:{MESSAGE}: )?Killed process {N}(?:, UID [0-9]{{1,10}},)? \((.*)\)"
    r'(?: in VE "[^"]{0,64}")?'
    r"((?:,? (?:(?:total-vm|anon-rss|file-rss|shmem-rss|pgtables):[0-9]{1,15}kB"
    r"|UID[: ][0-9]{1,10}(?=[ ,])|oom_score_adj:-?[0-9]{1,4}$))*)"
    rf"([ ,]{{0,2}}[A-Za-z_-]{{0,14}}[: ]?-?[0-9]{{0,15}}k?)(?:{UNSEEN}|\.)?",
    re.DOTALL,
)
# In a sentence, a list or a program's message. All kernels have no less than these three sizes.
IN_PROSE = re.compile(
    KILL.pattern.partition(r"((?:,? (")[0].replace("(.*)", "(.{1,60}?)")
    + r"(,? total-vm:[0-9]+kB, anon-rss:[0-9]+kB, file-rss:[0-9]+kB"
    r"(?:,? (?:(?:shmem-rss|pgtables):[0-9]+kB|UID[: ][0-9]+|oom_score_adj:-?[0-9]+)\b)*+)[^\w:].*",
    re.DOTALL,
)
# OpenVZ of RHEL 6, of a container that is a set of user beancounters.
OF_UB = re.compile(
    rf"Out of memory in UB(?: {N})?: OOM killed process {N} \((.*)\) score -?[0-9]+ vm:{N}kB, "
    r"rss:[0-9]+kB, swap:[0-9]+kB"
)
SIZES = {
    **{"total-vm": "total_vm_bytes", "anon-rss": "anon_bytes", "file-rss": "file_bytes"},
    **{"shmem-rss": "shmem_bytes", "pgtables": "pgtables_bytes"},
}
LABELS = (*SIZES, "UID", "oom_score_adj")
LIKE_KILL = re.compile(
    r"(?:(?:Memory cgroup out|Out) of [Mm]emory[^:]{0,40}: )?Killed process [0-9]"
)
SKIPPED = re.compile(
    rf"{MESSAGE}: OOM victim {N} \((.*)\) is already exiting\. Skip killing the task",
    re.DOTALL,
)
NO_VICTIM = "Out of memory and no killable processes..."
PANICKED = re.compile(
    r"Kernel panic - not syncing: (?:Out of memory(?:: .* panic_on_oom is enabled"
    r"| and no killable processes\.\.\.)|System is deadlocked on memory)"
)
GROUP = re.compile(r"Tasks in (.*) are going to be killed due to memory\.oom\.group set")
REAPED = re.compile(rf"oom_reaper: reaped process {N} \(.*\), now anon-rss:.*", re.DOTALL)
NOT_REAPED = re.compile(rf"oom_reaper: unable to reap pid:{N} \(.*\)", re.DOTALL)
AT_LIMIT = re.compile(r"Task in (.*) killed as a result of limit of (.*)")
CGROUP_USAGE = re.compile(rf"memory: usage {N}kB, limit {N}kB, failcnt [0-9]+")
# Behind the colon cgroup v1 has all of it, up to 5.2.
CGROUP_STATS = re.compile(r"Memory cgroup stats for (.*?):((?: [a-z_]+:[0-9]{1,15}KB)*)", re.DOTALL)
# Nothing but a call of the OOM killer prints these.
OF_DUMP = (TASK_HEADER, AT_LIMIT, CGROUP_USAGE, CGROUP_STATS)
CGROUP_STAT = re.compile(r"([a-z][a-z0-9_]{2,40}) ([0-9]{1,18})")
CONSTRAINT = r"CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY|MEMCG)"
# dump_oom_victim(), dump_oom_summary() of 6.1. A kernel without CONFIG_CPUSETS or CONFIG_MEMCG
# leaves its part out.
SUMMARY_LINE = re.compile(
    rf"oom-kill:constraint=({CONSTRAINT}),nodemask=({NODE_LIST})"
    r"(?:,cpuset=(.*?),mems_allowed=([0-9,-]*))?(?:,global_oom|,oom_memcg=(.*?))?"
    r"(?:,task_memcg=(.*?))?,task=(.*),pid=([0-9]{1,10}),uid=-?[0-9]+",
    re.DOTALL,
)
# What follows the constraint in it.
NAMES = ("nodemask", "cpuset", "mems_allowed", "oom_memcg", "task_memcg", "task", "pid")
KEYS = tuple(f",{name}=" for name in NAMES)


# high=MOST: a log may be another machine's, and a process may map a page more than once.
@table(
    "oom_kills",
    "Kills of the OOM killer",
    empty="the log has no call of the OOM killer",
    not_compared=NOT_COMPARED,
)
class OomKill:
    """A process that the OOM killer took, or a call that took none."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    victim: int = column(key=True, help="1: the first that this call killed; 0: none")
    seconds: float | None = column(unit="s", help="since boot, by the record's time")
    outcome: str = column(
        holds="words",
        help=f"{KILLED}; {EXITING}; {NO_ONE}; {NO_KILL}: the log continues without a "
        f"kill; {PANIC}; {OPEN}: it ends before",
    )
    invoker: str | None = column(holds="comm", help="task whose allocation failed")
    invoker_pid: int | None = column(high=MOST_PIDS, help="its pid")
    invoker_oom_score_adj: int | None = column(low=-1000, high=1000, help="of that task")
    gfp_mask: str | None = column(holds="kernel", help="hexadecimal")
    gfp_flags: str | None = column(holds="kernel", help="names of the mask, as printed")
    order: int | None = column(low=-1, high=MOST_ORDER, help="of the allocation; -1: SysRq-f")
    constraint: str | None = column(
        holds="kernel",
        help="CONSTRAINT_NONE: whole machine; _MEMCG: a cgroup's limit; _CPUSET, _MEMORY_POLICY: "
        "some nodes",
    )
    cgroup_limit: bool | None = column(
        help="a memory cgroup was at its limit; else the machine or the allowed nodes ran out"
    )
    nodemask: str | None = column(holds="kernel", help="nodes of the memory policy")
    cpuset: str | None = column(holds="cgroup", help="last component of the invoker's cpuset")
    mems_allowed: str | None = column(holds="kernel", help="nodes of that cpuset")
    oom_cgroup: str | None = column(holds="cgroup", help="memory cgroup at its limit")
    victim_cgroup: str | None = column(holds="cgroup", help="memory cgroup of the victim")
    group_kill: bool = column(help="memory.oom.group: the whole cgroup was killed")
    allocating_task: bool = column(
        help="vm.oom_kill_allocating_task: the invoker was killed, whatever it held"
    )
    pid: int | None = column(high=MOST_PIDS, help="of the victim, or else of the one chosen")
    comm: str | None = column(holds="comm", help="of the same")
    uid: int | None = column(high=MOST_UID, help="of the victim")
    total_vm_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="total-vm")
    anon_bytes: int | None = column(unit="bytes", high=MOST, help="anon-rss when it was killed")
    file_bytes: int | None = column(unit="bytes", high=MOST, help="file-rss")
    shmem_bytes: int | None = column(unit="bytes", high=MOST, help="shmem-rss")
    pgtables_bytes: int | None = column(unit="bytes", high=MOST, help="page tables")
    oom_score_adj: int | None = column(low=-1000, high=1000, help="of the victim")
    reaped: bool | None = column(
        help="the OOM reaper took its memory; empty: not in the log, as where the victim exited "
        "within 2 s"
    )
    usage_bytes: int | None = column(unit="bytes", high=MOST, help="of the cgroup at its limit")
    limit_bytes: int | None = column(
        unit="bytes", high=MOST, help="its memory.max; empty: none, or not printed"
    )
    lacks: str | None = column(holds="words", help="what is missing or damaged in its log records")
    date: str | None = column(
        since="0.3.0",
        default=None,
        holds="words",
        help="wall clock, as the log has it, at times without a year",
    )
    usable_free_bytes: int | None = column(
        since="0.3.0",
        default=None,
        unit="bytes",
        high=MOST,
        help="free in zones and nodes open to it, less lowmem_reserve and, unless movable, CMA",
    )


@table("oom_tasks", "Tasks when memory ran out", not_compared=NOT_COMPARED)
class OomTask:
    """A row of the OOM killer's table of candidates."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    pid: int = column(key=True, high=MOST_PIDS, help="of a thread with that memory")
    tgid: int = column(high=MOST_PIDS, help="process")
    uid: int = column(high=MOST_UID, help="user")
    comm: str = column(holds="comm", help="task's name")
    killed: bool = column(help="killed by this call")
    total_vm_pages: int = column(unit="pages", high=MOST, help="total_vm")
    rss_pages: int = column(unit="pages", high=MOST, help="rss")
    anon_pages: int | None = column(unit="pages", high=MOST, help="rss_anon; not printed by 6.1")
    file_pages: int | None = column(unit="pages", high=MOST, help="rss_file")
    shmem_pages: int | None = column(unit="pages", high=MOST, help="rss_shmem")
    pgtables_bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="page tables; empty: kernels before 4.15 print pages, of unknown size",
    )
    swap_pages: int = column(unit="pages", high=MOST, help="swapents")
    oom_score_adj: int = column(low=-1000, high=1000, help="-1000: never killed")


@table("oom_memory", "Memory when it ran out", not_compared=NOT_COMPARED)
class OomMemory:
    """A number about memory that ``show_mem()`` printed at an OOM."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="empty: the node, or the machine")
    counter: str = column(holds="kernel", key=True, help="as printed")
    bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="empty: page size unknown",
    )


@table("oom_free_blocks", "Free blocks when memory ran out", not_compared=NOT_COMPARED)
class OomFreeBlocks:
    """Free blocks of one order in one zone at an OOM, as ``show_mem()`` printed them."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, high=MOST_ORDER, help="order of the blocks")
    blocks: int = column(high=MOST, help="free blocks")
    migratetypes: str = column(
        holds="kernel",
        help="lists that have some: Unmovable, Movable, Reclaimable (E), HighAtomic, CMA, Isolate",
    )


@table("oom_cgroup_memory", "Memory of cgroups that ran out", not_compared=NOT_COMPARED)
class OomCgroupMemory:
    """A line of memory.stat, as printed, of a memory cgroup at its limit."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    counter: str = column(
        holds="kernel", key=True, help="as in memory.stat; cgroup v1: rss is anonymous memory"
    )
    value: int = column(help="in memory.stat's unit: bytes, or events since creation")


@table(
    "program_kills",
    "What programs ended to have memory",
    since="0.3.0",
    empty="no program says in the log that it ended a process to have memory",
    not_compared=NOT_COMPARED,
)
class ProgramKillRow:
    """A process or cgroup that a program killed for memory, by its log."""

    number: int = column(key=True, low=1, help="in the log, from 1")
    date: str | None = column(holds="words", help="wall clock, as the log has it")
    program: str = column(holds="words", help="systemd-oomd, earlyoom, kubelet or another")
    cgroup: str | None = column(holds="cgroup", help="cgroup, unit or pod it ended")
    comm: str | None = column(holds="comm", help="process it ended")
    pid: int | None = column(high=MOST_PIDS, help="of that process")
    held_bytes: int | None = column(unit="bytes", high=MOST, help="resident memory it reports")
    why: str | None = column(holds="log", help="its reason, in its own words")


@dataclass
class _Call:
    """A call of the OOM killer, as far as it was read; its rows as the values of their columns."""

    number: int
    base: dict[str, Any]  # what all its victims have in common
    caller: str | None
    header: bool
    victims: dict[int, dict[str, Any]] = field(default_factory=dict)  # by pid
    tasks: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: bool = False  # without a victim
    table: bool = False
    columns: tuple[str, ...] = ()  # of the table
    summary: bool = False
    victim: int | None = None  # by the summary
    victim_comm: str | None = None
    chosen: bool = False  # who it is to be, or a child of it, was printed
    after: int = 0  # records that follow the summary
    since: int | None = None  # nanoseconds, of the summary
    until: int | None = None  # of the last record that follows
    lost: int = 0
    memory: MemInfo = field(default_factory=MemInfo)
    stats: dict[str, int] = field(default_factory=dict)
    in_stats: bool = False  # what follows is memory.stat
    damaged: Counter[str] = field(default_factory=Counter)

    def no_kill(self) -> bool:
        """
        True if all is there that a call prints, and no kill follows.

        A summary stands behind a header and memory (dump_header()); a log without these was
        filtered, as by grep, and may lack the kill, too.
        """
        memory = self.memory.machine or self.memory.memory or self.base["usage_bytes"] is not None
        damaged = self.damaged or self.memory.damaged
        broken = damaged or self.lost or self.ended or self.chosen or self.victims
        return bool(self.summary and self.header and memory) and not broken and self.goes_on()

    def goes_on(self) -> bool:
        """True if so much of the log follows the summary that a kill would be there."""
        if self.since is None or self.until is None:
            return self.after >= RECORDS_AFTER
        return (self.until - self.since) / 1e9 >= SECONDS_AFTER


class OomRecords(NamedTuple):
    """All calls of a log."""

    kills: list[OomKill]
    tasks: list[OomTask]
    memory: list[OomMemory]
    free_blocks: list[OomFreeBlocks]
    cgroup_memory: list[OomCgroupMemory]


def read_oom_records(
    records: Iterable[LogRecord], page_bytes: int | None = None, *, whole: bool = True
) -> OomRecords:
    """
    Find the calls of the OOM killer in a log.

    :param page_bytes: of the machine; else it is taken from the blocks that a call prints.
    :param whole: all lines of the log were understood: else a kill may be among the others.
    """
    records = list(records)
    reader = _Reader(_gaps(records))
    for record in whole_records(records):
        if len(record.text) <= LONGEST:
            reader.take(record)
    result = OomRecords([], [], [], [], [])
    for call in reader.calls:
        if whole and call.no_kill():
            call.base["outcome"] = NO_KILL
        _add(call, page_bytes, result)
    return result


def _gaps(records: Sequence[LogRecord]) -> dict[int, int]:
    """By the number of a record: how many are missing before it."""
    numbers = [record.sequence for record in records if record.sequence is not None]
    return {
        here: here - before - 1 for before, here in itertools.pairwise(numbers) if here > before + 1
    }


class _Reader:
    def __init__(self, gaps: Mapping[int, int]) -> None:
        self.calls: list[_Call] = []
        self.call: _Call | None = None  # whose records are being read
        self.gaps = gaps
        # Of a call whose beginning is not in the log; None: what is printed is another's.
        self.before: MemInfo | None = MemInfo()

    def take(self, record: LogRecord) -> None:
        """
        Read a record, as a whole where a name in it has a line's end, else line by line: text has
        each line of a record by itself.
        """
        call = self.call
        if call is not None and not call.victims and record.sequence is not None:
            call.lost += self.gaps.get(record.sequence, 0)
        if call is not None and call.summary:
            call.after, call.until = call.after + 1, record.nanoseconds
        first, *more = record.text.split("\n")
        if more:
            joined = " ".join([first, *(line.strip() for line in more)])
            # A mail's lines, wrapped at blanks, and no name that has a line's end.
            if any(
                line.fullmatch(joined) and not line.fullmatch(record.text) for line in OF_ONE_LINE
            ):
                self.line(record, joined)
                return
        if not more or (LIKE_TASK.match(first) and not any(map(LIKE_TASK.match, more))):
            self.line(record, record.text)
        elif record.continues is None or not self.known(record, record.text, DAMAGED):
            lines = [first, *more]
            # Up to 6.1 memory.stat is one record, and a longer one is cut, in a number perhaps.
            if record.date is None and len(record.text) in range(CUT, LONGEST_OF_6_1):
                lines.pop()
            for line in lines:
                self.line(record, line)

    def known(self, record: LogRecord, text: str, but: re.Pattern[str] | None = None) -> bool:
        """True if a line is one of those that end a call or begin one."""
        for pattern, read in ANYWHERE if any(map(text.__contains__, MARKS)) else ():
            if pattern is not but and (match := pattern.fullmatch(text)):
                return read(self, record, match) is not False
        return False

    def line(self, record: LogRecord, text: str) -> None:
        if self.known(record, text):
            return
        call = self.call
        if (
            call is None
            or not same_caller(call.caller, record.caller)
            or call.ended
            or (call.victims and not text.startswith("Tasks in "))
        ):
            # Its beginning may be gone with the log's.
            if OF_OTHERS.match(text):
                self.before = None
            if not (
                _is_task(text)
                or text.startswith((SUMMARY, TASKS))
                or _of_dump(text)
                or any(each.fullmatch(text) for each in OF_DUMP)
            ):
                if self.before is not None:
                    self.before.take(text)
                return
            memory = self.before
            call = self.open(record, header=False)
            call.memory = memory or call.memory
        if _begins_again(call, text):  # the header of another is lost
            call = self.open(record, header=False)
        if _inside(call, text) and text.startswith(SUMMARY):
            call.since = record.nanoseconds

    def open(self, record: LogRecord, *, header: bool) -> _Call:
        if (before := self.call) and before.summary:
            before.after = RECORDS_AFTER  # oom_lock: the kill comes before the next call
            before.until = before.since = None
        self.before = None
        number = len(self.calls) + 1
        base: dict[str, Any] = dict.fromkeys(OomKill.__dataclass_fields__) | {
            **{"oom": number, "victim": 0, "seconds": seconds_of(record), "date": record.date},
            **{"outcome": OPEN, "group_kill": False, "allocating_task": False},
        }
        self.call = _Call(number, base, record.caller, header)
        self.calls.append(self.call)
        return self.call

    def header(self, record: LogRecord, match: re.Match[str]) -> bool:
        comm, mask, flags, nodemask, order, adj = match.groups()
        if not is_comm(comm):
            return False
        call = self.open(record, header=True)
        task = (record.caller or "").removeprefix("T")
        pid = int(task) if task.isdecimal() else None
        call.base |= {
            "invoker": comm,
            "invoker_pid": pid if pid is None or pid <= MOST_PIDS else None,
            "invoker_oom_score_adj": None if adj is None else int(adj),
            **{"gfp_mask": mask, "gfp_flags": flags, "order": int(order), "nodemask": nodemask},
        }
        return True

    def damaged_header(self, record: LogRecord, match: re.Match[str]) -> None:
        """End the call before: what follows is another's."""
        call = self.open(record, header=True)
        call.damaged["the header"] += 1
        call.base["invoker"] = match[1] if is_comm(match[1]) else None

    def failed_allocation(self, record: LogRecord, match: re.Match[str]) -> bool:
        """The memory that is printed next is not the call's (warn_alloc())."""
        self.before = None
        if self.call is not None and not self.call.victims:
            self.call.ended = True
        return False

    def ended(self, record: LogRecord, message: str | None) -> _Call:
        """The call that kills now; a line without its header is a call of its own."""
        call = self.call
        if (
            call is None
            or not same_caller(call.caller, record.caller)
            or call.ended
            or (call.victims and not call.base["group_kill"])
            or not _fits(call.base["constraint"], message)
        ):
            call = self.open(record, header=False)
        if message is not None:
            call.base["cgroup_limit"] = message.startswith("Memory cgroup")
            call.base["allocating_task"] = message.endswith("task)")
        return call

    def chosen(self, record: LogRecord, match: re.Match[str]) -> bool:
        if not is_comm(match[3]):
            return False
        self.ended(record, match[1]).chosen = True
        return True

    def kill(self, record: LogRecord, match: re.Match[str]) -> bool:
        message, pid, comm, sizes, rest = match.groups()
        label = re.split("[: ]", rest.strip(" ,"))[0]
        of_line = any(each.startswith(label) for each in LABELS) and (sizes or not rest)
        if not is_comm(comm) and (prose := IN_PROSE.fullmatch(match.string)):
            return self.killed_in_prose(record, prose)
        if not is_comm(comm) or not of_line:
            return False
        self.killed(record, message, int(pid), comm, sizes)
        if rest.strip() and self.call is not None:
            self.call.damaged["the line of a kill"] += 1
        return True

    def killed_in_prose(self, record: LogRecord, match: re.Match[str]) -> bool:
        message, pid, comm, sizes = match.groups()
        if not is_comm(comm):
            return False
        self.killed(record, message, int(pid), comm, sizes)
        return True

    def killed_of_ub(self, record: LogRecord, match: re.Match[str]) -> bool:
        beancounter, pid, comm, size = match.groups()
        if not is_comm(comm):
            return False
        call = self.open(record, header=False)
        if beancounter and int(beancounter):  # the others are of the machine
            call.base |= {"cgroup_limit": True, "oom_cgroup": f"UB {beancounter}"}
        self.killed(record, None, int(pid), comm, f" total-vm:{size}kB")
        return True

    def killed(
        self, record: LogRecord, message: str | None, pid: int, comm: str, sizes: str
    ) -> None:
        """Add a victim to the call that kills now."""
        call = self.ended(record, message)
        # Whom the kernel chose is in the summary; before 5.3 a child of it may be killed, and of a
        # process whose first thread has ended another thread is named, which the table has.
        told = call.victim is not None and not call.chosen and not call.base["group_kill"]
        if told and pid not in {call.victim, *call.tasks}:
            call.ended = True
            call = self.ended(record, message)
        if pid in call.victims:
            return  # of a group, the chosen one is killed twice (oom_kill_memcg_member())
        uid = re.search(r"UID[: ]([0-9]+)", sizes)
        adj = re.search(r"oom_score_adj:(-?[0-9]+)", sizes)
        call.victims[pid] = call.base | {
            **{"seconds": seconds_of(record), "date": record.date},
            **{"outcome": KILLED, "pid": pid, "comm": comm},
            **{SIZES[name]: int(size) * KIB for name, size in re.findall(SIZE, sizes)},
            "uid": int(uid[1]) if uid else None,
            "oom_score_adj": int(adj[1]) if adj else None,
        }

    def skipped(self, record: LogRecord, match: re.Match[str]) -> None:
        message, pid, comm = match.groups()
        call = self.ended(record, message)
        row = call.base | {"outcome": EXITING, "pid": int(pid), "comm": comm}
        call.victims.setdefault(int(pid), row)

    def damaged_kill(self, record: LogRecord, match: re.Match[str]) -> None:
        message = match.string.partition("Killed process")[0].removesuffix(": ")
        call = self.ended(record, message or None)
        call.damaged["the line of a kill"] += 1
        call.ended = not call.base["group_kill"]

    def no_victim(self, record: LogRecord, match: re.Match[str]) -> None:
        panic = match.string.startswith("Kernel panic")
        call = self.call
        # out_of_memory() says that there is no task to kill, and then panics.
        if not (panic and call is not None and call.base["outcome"] == NO_ONE):
            call = self.ended(record, None)
        call.ended = True
        call.base["outcome"] = PANIC if panic else NO_ONE

    def reaper(self, record: LogRecord, match: re.Match[str]) -> None:
        # Within 3 s or so of the kill (OOM_REAPER_DELAY, MAX_OOM_REAP_RETRIES).
        for call in reversed(self.calls[-RECENT:]):
            if victim := call.victims.get(int(match[1])):
                victim["reaped"] = match.re is REAPED
                return
        for call in reversed(self.calls[-RECENT:]):
            if call.victim == int(match[1]) and not call.victims:
                call.lost += 1  # the kill
                return

    def dropped(self, record: LogRecord, match: re.Match[str]) -> None:
        """Count what a console could not print of the log."""
        if self.call is not None and not self.call.victims:
            self.call.lost += int(match[1])


OF_ONE_LINE = (*LONG_LINES, HEADER, KILL, SUMMARY_LINE, TASK_HEADER)
# One of these is in each of the following.
MARKS = ("oom", "of memory", "on memory", "Killed process", "allocation failure", "dropped **")
SIZE = re.compile(r"([a-z-]+):([0-9]+)kB")
DAMAGED = re.compile(LIKE_KILL.pattern + ".*", re.DOTALL)
# SysRq prints memory, too (__handle_sysrq(), drivers/tty/sysrq.c).
OF_OTHERS = re.compile(r"[Ss]ys[Rr]q ?: ")
FAILED = re.compile(r".*: page allocation failure[:.] order:.*", re.DOTALL)
# console_prepend_dropped() (kernel/printk/printk.c)
DROPPED = re.compile(r"\*\* ([0-9]{1,10}) printk messages dropped \*\* ?")
ANYWHERE: tuple[
    tuple[re.Pattern[str], Callable[[_Reader, LogRecord, re.Match[str]], bool | None]], ...
] = (
    (HEADER, _Reader.header),
    (re.compile(r"(.*) invoked oom-killer: .*", re.DOTALL), _Reader.damaged_header),
    (KILL, _Reader.kill),
    (CHOSEN, _Reader.chosen),
    (IN_PROSE, _Reader.killed_in_prose),
    (OF_UB, _Reader.killed_of_ub),
    (SKIPPED, _Reader.skipped),
    (DAMAGED, _Reader.damaged_kill),
    (re.compile(re.escape(NO_VICTIM)), _Reader.no_victim),
    (PANICKED, _Reader.no_victim),
    (REAPED, _Reader.reaper),
    (NOT_REAPED, _Reader.reaper),
    (FAILED, _Reader.failed_allocation),
    (DROPPED, _Reader.dropped),
)


def _fits(constraint: str | None, message: str | None) -> bool:
    """True if a kill may be of a call with this constraint (out_of_memory())."""
    if message is None:
        return True
    of_cgroup = message.startswith("Memory cgroup")
    return constraint is None or of_cgroup == (constraint == "CONSTRAINT_MEMCG")


def _of_dump(text: str) -> bool:
    """True if a line is of the stack that a call prints, and that nothing else has."""
    match = STACK.fullmatch(text) if "dump_header" in text else None
    return match is not None and match[2].partition(".")[0] == "dump_header"


def _is_task(text: str) -> bool:
    return LIKE_TASK.match(text) is not None and _row(text, ()) is not None


def _inside(call: _Call, text: str) -> bool:
    """True if a line belongs to the call whose records are being read."""
    if LIKE_TASK.match(text):
        call.in_stats = False
        _task(call, text)
    elif text == TASKS or (match := TASK_HEADER.fullmatch(text)):
        call.table, call.in_stats = True, False
        if text != TASKS:
            assert match is not None
            columns = tuple(match[1].split())
            call.columns = columns if {*columns} <= {*TASK_COLUMNS, *PAGE_TABLES} else ()
    elif text.startswith(SUMMARY):
        call.in_stats = False
        _summary(call, text)
    elif match := CPU_LINE.fullmatch(text):
        ours = match[2] == call.base["invoker"] and call.base["invoker_pid"] is None
        if ours and int(match[1]) <= MOST_PIDS:
            call.base["invoker_pid"] = int(match[1])
    elif match := CPUSET.fullmatch(text):
        if match[1] == call.base["invoker"]:
            call.base |= {"cpuset": match[2], "mems_allowed": match[3] or None}
    elif GROUP.fullmatch(text):
        for row in (call.base, *call.victims.values()):
            row["group_kill"] = True
    else:
        return _of_cgroup(call, text) or call.memory.take(text)
    return True


def _begins_again(call: _Call, text: str) -> bool:
    """True if a line is one of which a call has one only, and had it."""
    if text == TASKS or TASK_HEADER.fullmatch(text):
        return bool(call.tasks) or call.summary
    if text.startswith(SUMMARY):
        return call.summary
    return call.base["usage_bytes"] is not None and CGROUP_USAGE.fullmatch(text) is not None


def _of_cgroup(call: _Call, text: str) -> bool:
    """True if a line says of which cgroup memory ran out, or what it has."""
    if call.in_stats and (match := CGROUP_STAT.fullmatch(text)):
        call.stats[match[1]] = int(match[2])
    elif match := CGROUP_USAGE.fullmatch(text):
        limit = int(match[2])
        call.base |= {
            "cgroup_limit": True,
            "usage_bytes": int(match[1]) * KIB,
            "limit_bytes": limit * KIB if limit < NO_LIMIT_KIB else None,
        }
    elif match := CGROUP_STATS.fullmatch(text):
        call.in_stats, call.base["cgroup_limit"] = not match[2], True
        # cgroup v1 has a line of each cgroup below, too, and what is its own in each.
        for name, kib in COUNTER.findall(match[2]):
            call.stats[name] = call.stats.get(name, 0) + int(kib) * KIB
        if call.base["oom_cgroup"] is None:
            call.base["oom_cgroup"] = match[1]
    elif match := AT_LIMIT.fullmatch(text):
        of_host = match[2] == "host"  # a distribution's kernel, where it is no cgroup's limit
        call.base |= {"cgroup_limit": not of_host, "victim_cgroup": match[1]}
        call.base["oom_cgroup"] = None if of_host else match[2]
    elif (match := STACK.fullmatch(text)) and call.base["cgroup_limit"] is None:
        function = match[2].partition(".")[0]
        if function in OF_CGROUP | OF_MACHINE:
            call.base["cgroup_limit"] = function in OF_CGROUP
        if function == "moom_callback":
            call.base["order"] = -1  # SysRq-f; until 4.1 the header has 0
    else:
        return False
    return True


@functools.cache
def _row_pattern(numbers: int) -> re.Pattern[str]:
    """A row with so many numbers behind the pid; between them is no less than a blank."""
    return re.compile(
        rf"\[ *{N}\]" + r" +(-?[0-9]{1,15})" * numbers + " (.*)",
        re.DOTALL,
    )


def _row(text: str, names: tuple[str, ...]) -> dict[str, Any] | None:
    """A row of the table of tasks by the names of its columns; None: it is damaged, or is none."""
    for columns in [names] if names else [each.split() for each in WITHOUT_HEADER]:
        match = _row_pattern(len(columns)).fullmatch(text)
        if match is None or not is_comm((comm := match[match.re.groups]).removesuffix(UNSEEN)):
            continue
        if not names and (
            not comm.strip() or comm.startswith(" ") or comm.strip(f" -{UNSEEN}").isdecimal()
        ):
            continue  # there are more columns, or the line is cut
        numbers = dict(zip(columns, map(int, match.groups()[1:-1]), strict=True))
        pid, uid = int(match[1]), numbers.pop("uid")
        adj = numbers.get("oom_score_adj", 0)
        swapped = numbers.get("swapents", 0)
        if min(numbers.values()) < min(adj, 0) or abs(adj) > 1000 or swapped < 0:
            continue
        if max(pid, numbers["tgid"]) > MOST_PIDS:
            continue
        row: dict[str, Any] = dict.fromkeys(TASK_COLUMNS.values())
        row |= {TASK_COLUMNS[name]: n for name, n in numbers.items() if name in TASK_COLUMNS}
        tables = [numbers[name] for name in PAGE_TABLES if name in numbers]
        # Before 4.15 a number of tables, each a page; it is not known yet how large one is.
        row["tables"] = sum(tables) if tables else None
        row["without_header"] = not names
        return row | {"pid": pid, "uid": uid & 0xFFFFFFFF, "comm": comm}
    return None


def _task(call: _Call, text: str) -> None:
    """Add a row of the table of tasks."""
    row = _row(text, call.columns)
    if row is None:
        call.damaged["rows of the table of tasks"] += 1
    else:
        call.tasks[row["pid"]] = row


def _summary(call: _Call, text: str) -> None:
    """
    The line that has it all. Where a cgroup's or a task's name looks like what follows it, which is
    which cannot be told.
    """
    call.summary = True
    constraint = text.removeprefix(SUMMARY).partition(",")[0]
    if re.fullmatch(CONSTRAINT, constraint):
        of_cgroup = constraint == "CONSTRAINT_MEMCG"
        call.base |= {"constraint": constraint, "cgroup_limit": of_cgroup}
    once = all(text.count(key) <= 1 for key in KEYS)  # else a match could take for ever, too
    match = SUMMARY_LINE.fullmatch(text) if once else None
    if match is None or not is_comm(match[7]):
        call.damaged["the summary"] += 1
        return
    names = ("nodemask", "cpuset", "mems_allowed", "oom_cgroup", "victim_cgroup")
    found = dict(zip(names, match.groups()[1:6], strict=True))
    call.victim, call.victim_comm = int(match[8]), match[7]
    call.base |= found | {"mems_allowed": found["mems_allowed"] or None}
    # Before "mm/oom_kill.c: fix uninitialized oc->constraint" (432b1de0de02, in v5.3) all calls say
    # CONSTRAINT_NONE; a cgroup is named where its limit was the reason.
    if found["oom_cgroup"]:
        call.base |= {"constraint": "CONSTRAINT_MEMCG", "cgroup_limit": True}


def _tell_tables(tasks: Iterable[dict[str, Any]]) -> None:
    """Tell numbers of page tables from bytes, which are whole pages, in rows without a header."""
    unknown = [task for task in tasks if task.pop("without_header") and task["tables"] is None]
    if any((task["pgtables_bytes"] or 0) % (4 * KIB) for task in unknown):
        for task in unknown:
            task["tables"] = task["pgtables_bytes"]


def _page(call: _Call) -> int | None:
    """The size of a page: of the memory that was printed, else what a victim had in both units."""
    if (page := call.memory.page_bytes()) is not None:
        return page
    for pid, victim in call.victims.items():
        held = [victim[name] or 0 for name in ("anon_bytes", "file_bytes", "shmem_bytes")]
        pages = call.tasks.get(pid, {}).get("rss_pages") or 0
        for kib in PAGE_KIB:
            # It went on between the two.
            if pages > 256 and abs(sum(held) / (pages * kib * KIB) - 1) < 0.1:
                return kib * KIB
    return None


def _lacks(call: _Call, killed: set[int]) -> str | None:
    lacks = []
    if not call.header:
        lacks.append("its header")
    if call.header and not call.table:
        lacks.append("the table of tasks")
    elif call.tasks and not killed <= call.tasks.keys() and not call.base["group_kill"]:
        lacks.append("the victim's row of the table of tasks")
    # 4.19 has the first summary.
    if call.victims and call.header and not (call.summary or call.chosen):
        lacks.append("the summary")
    if call.lost:
        lacks.append(f"{plural(call.lost, 'record')} that {'is' if call.lost == 1 else 'are'} lost")
    damaged = call.damaged + call.memory.damaged
    lacks += [f"{what}, damaged ({number:,})" for what, number in damaged.items()]
    return "; ".join(lacks) or None


def _add(call: _Call, page_bytes: int | None, result: OomRecords) -> None:
    """Add the rows of a call."""
    killed = {pid for pid, victim in call.victims.items() if victim["outcome"] == KILLED}
    page = page_bytes or _page(call)
    base = call.base
    request = Request(
        *(base[name] for name in ("gfp_mask", "gfp_flags", "nodemask", "mems_allowed"))
    )
    common = {
        "lacks": _lacks(call, killed),
        "usable_free_bytes": call.memory.usable_bytes(request, page),
    }
    if not call.victims and base["outcome"] == OPEN:
        base |= {"pid": call.victim, "comm": call.victim_comm}  # chosen, as far as the log goes
    for number, row in list(enumerate(call.victims.values(), 1)) or [(0, base)]:
        # 5.4 and 5.5 printed the bytes of page tables as KiB.
        tables, task = row["pgtables_bytes"], call.tasks.get(row["pid"] or 0)
        if task and tables and task["pgtables_bytes"] == tables // KIB:
            row["pgtables_bytes"] = tables // KIB
        result.kills.append(OomKill(**row | common | {"victim": number}))
    oom = call.number
    _tell_tables(call.tasks.values())
    for pid, task in call.tasks.items():
        if (tables := task.pop("tables")) is not None:
            task["pgtables_bytes"] = tables * page if page else None
        result.tasks.append(OomTask(**task, oom=oom, killed=pid in killed))
    result.memory.extend(OomMemory(oom, *row) for row in call.memory.rows(page))
    result.free_blocks.extend(
        OomFreeBlocks(oom, *place, *blocks) for place, blocks in call.memory.blocks.items()
    )
    result.cgroup_memory.extend(OomCgroupMemory(oom, *stat) for stat in call.stats.items())


def _found(log: Log, page_bytes: int | None) -> Found:
    oom = read_oom_records(log.records, page_bytes, whole=not log.unread)
    found = Found(notes=missing(log), remarks=beginning(log))
    damaged = sum("damaged" in (row.lacks or "") for row in oom.kills)
    found.notes += if_any(damaged, "records of {} are damaged: see what it lacks", "kill")
    found.add(OomKill, oom.kills)
    found.add(OomTask, oom.tasks)
    found.add(OomMemory, oom.memory)
    found.add(OomFreeBlocks, oom.free_blocks)
    return found.add(OomCgroupMemory, oom.cgroup_memory)


def oom_kills_from_files(files: Files) -> Found:
    log = log_of_files(files)
    found = _found(log, None)
    if files.live:  # /dev/kmsg has none of it
        return found
    kills = [
        ProgramKillRow(number, date, **kill._asdict())
        for number, (kill, date) in enumerate(log.killed[:MOST_PROGRAM_KILLS], 1)
    ]
    left_out = len(log.killed) - len(kills)
    found.unlisted += if_any(left_out, "{} of programs", "later kill")
    return found.add(ProgramKillRow, kills)


OOM_KILLS_SECTION = Section(
    name="oom_kills",
    title="OOM kills",
    since="0.2.0",
    tables=tables_of(OomKill, OomTask, OomMemory, OomFreeBlocks, OomCgroupMemory, ProgramKillRow),
    intro="""
What the OOM killer wrote to the kernel's log. It chooses the task with the most memory (resident,
swapped out, page tables), to which each point of
[oom_score_adj](https://docs.kernel.org/filesystems/proc.html) adds a thousandth of what may be
used: of the memory and swap of the machine or of the nodes that were allowed, or of the limit of
the [memory cgroup](https://docs.kernel.org/admin-guide/cgroup-v2.html#memory) that ran out.

The log is a ring, and the kernel leaves the details out where kills are frequent: what it does not
have of a kill is said in its row. `oom_kill` of /proc/vmstat counts all kills since boot. What
systemd-oomd, earlyoom and others end before it comes to that is in the logs of programs alone.
""",
    command=Command("what the OOM killer did, out of the kernel's log", top=TOP),
    from_memory=lambda memory: _found(log_of_memory(memory), memory.prog["PAGE_SIZE"].value_()),
    from_files=oom_kills_from_files,
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("oom_kills")
