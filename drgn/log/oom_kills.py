# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The OOM killer's work, as its records in the kernel's log tell it: who asked, for what, who was
killed and what it held, who else was there, and which memory was free.

Its records are those of mm/oom_kill.c and of mem_cgroup_print_oom_*() in mm/memcontrol.c, of 5.10,
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
kernel of 5.10 to 7.3 prints so, as those of unreclaimable slab and of allocation profiling, are in
the log alone.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mmscope.drgn.log.kernel_log import beginning, log_of_files, log_of_memory, missing
from mmscope.drgn.log.oom_rows import (
    EXITING,
    KILLED,
    NO_ONE,
    OOM_CGROUP_MEMORY,
    OOM_FREE_BLOCKS,
    OOM_KILLS,
    OOM_MEMORY,
    OOM_TASKS,
    OPEN,
    PANIC,
    OomCgroupMemory,
    OomFreeBlocks,
    OomKill,
    OomMemory,
    OomTask,
)
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.rows import MOST_ORDER, MOST_PIDS
from mmscope.drgn.text.kernel_log import Log, LogRecord

KIB = 1024
RECENT = 64  # calls
LONGEST = 8 << 10  # characters; a record of the kernel has 1 KiB at most (PRINTKRB_RECORD_MAX)
CUT = 975  # characters of a record that may be cut: LOG_LINE_MAX of 6.1 has a NUL at its end
# PAGE_COUNTER_MAX in KiB, with pages of 4 KiB; of larger pages it is no less than this.
NO_LIMIT_KIB = 9_007_199_254_740_000

N, S = r"([0-9]{1,15})", r"(-?[0-9]{1,10})"
HEADER = re.compile(
    r"(.*) invoked oom-killer: gfp_mask=(0x[0-9a-f]{1,8}|0)\(([A-Za-z0-9_|]*)\), "
    rf"order=(-1|[0-9]{{1,2}}), oom_score_adj={S}",
    re.DOTALL,
)
# dump_stack_print_info() (lib/dump_stack.c); 6.1 does not print the UID.
CPU_LINE = re.compile(
    rf"CPU: [0-9]+ (?:UID: [0-9]+ )?PID: {N} Comm: (.*?) (?:Not tainted|Tainted: ).*", re.DOTALL
)
# dump_task() of 6.12 and later has three columns more than that of 6.1.
TASK = re.compile(
    rf"\[ *{N}\] +{S} +{N} +{N} +{N}(?: +{N} +{N} +{N})? +(-?[0-9]{{1,15}}) +{N} {{9,13}}{S} (.*)",
    re.DOTALL,
)
TASK_COLUMNS = (
    *("pid", "uid", "tgid", "total_vm_pages", "rss_pages", "anon_pages", "file_pages"),
    *("shmem_pages", "pgtables_bytes", "swap_pages", "oom_score_adj"),
)
LIKE_TASK = re.compile(r"\[ *[0-9]{1,15}\] +-?[0-9]")
TASKS = "Tasks state (memory values in pages):"
SUMMARY = "oom-kill:constraint="
KILL = re.compile(
    r"(Out of memory|Memory cgroup out of memory|Out of memory \(oom_kill_allocating_task\)): "
    rf"Killed process {N} \((.*)\) total-vm:{N}kB, anon-rss:{N}kB, file-rss:{N}kB, "
    rf"shmem-rss:{N}kB, UID:{N} pgtables:{N}kB oom_score_adj:{S}",
    re.DOTALL,
)
LIKE_KILL = re.compile(r"(?:Memory cgroup out|Out) of memory[^:]{0,40}: Killed process ")
SKIPPED = re.compile(
    r"(Out of memory|Memory cgroup out of memory|Out of memory \(oom_kill_allocating_task\)): "
    rf"OOM victim {N} \((.*)\) is already exiting\. Skip killing the task",
    re.DOTALL,
)
NO_VICTIM = "Out of memory and no killable processes..."
PANICKED = re.compile(
    r"Kernel panic - not syncing: (?:Out of memory: .* panic_on_oom is enabled"
    r"|System is deadlocked on memory)"
)
GROUP = re.compile(r"Tasks in (.*) are going to be killed due to memory\.oom\.group set")
REAPED = re.compile(rf"oom_reaper: reaped process {N} \(.*\), now anon-rss:.*", re.DOTALL)
NOT_REAPED = re.compile(rf"oom_reaper: unable to reap pid:{N} \(.*\)", re.DOTALL)
CGROUP_USAGE = re.compile(rf"memory: usage {N}kB, limit {N}kB, failcnt [0-9]+")
CGROUP_STATS = re.compile(r"Memory cgroup stats for (.*):", re.DOTALL)
NODES = re.compile(r"\(null\)|[0-9,-]*")
CONSTRAINT = re.compile(r"CONSTRAINT_[A-Z_]{1,30}")


# show_mem(), and memory.stat of a cgroup.
CGROUP_STAT = re.compile(r"([a-z][a-z0-9_]{2,40}) ([0-9]{1,18})")
MACHINE = re.compile(r" ?[a-z_]+:[0-9]{1,15}(?: [a-z_]+:[0-9]{1,15}){1,3}")
MACHINE_COUNTERS = {
    *("active_anon", "inactive_anon", "isolated_anon", "active_file", "inactive_file"),
    *("isolated_file", "unevictable", "dirty", "writeback", "slab_reclaimable"),
    *("slab_unreclaimable", "mapped", "shmem", "pagetables", "sec_pagetables", "bounce"),
    *("kernel_misc_reclaimable", "free", "free_pcp", "free_cma"),
}
PAGES = re.compile(
    rf"{N} (total pagecache pages|pages (?:in swap cache|RAM|HighMem/MovableOnly|reserved"
    r"|cma reserved|hwpoisoned))"
)
SWAP = re.compile(rf"(Free swap|Total swap) += {N}kB")
NODE = re.compile(
    r"Node ([0-9]{1,4})((?: [A-Za-z_()]{3,30}: ?[0-9]{1,15}kB| all_unreclaimable\? (?:yes|no)){5,})"
)
HUGEPAGES = re.compile(
    rf"Node ([0-9]{{1,4}}) hugepages_total={N} hugepages_free={N} hugepages_surp={N} "
    rf"hugepages_size={N}kB"
)
# reserved_highatomic has a "KB" of its own up to 7.2.
ZONE = re.compile(
    r"(?:Node ([0-9]{1,4}) )?([A-Za-z0-9]{1,12})((?: [a-z_]{3,30}:[0-9]{1,15}[kK]B){5,})"
)
COUNTER = re.compile(r"([A-Za-z_()]{3,30}): ?([0-9]{1,15})[kK]B")
BLOCKS = re.compile(
    r"(?:Node ([0-9]{1,4}) )?([A-Za-z0-9]{1,12}): "
    rf"((?:[0-9]{{1,15}}\*[0-9]{{1,12}}kB (?:\([UMEHCI]+\) )?){{5,{MOST_ORDER}}})= {N}kB"
)
BLOCK = re.compile(rf"{N}\*{N}kB (?:\(([UMEHCI]+)\) )?")
MIGRATETYPES = {
    **{"U": "Unmovable", "M": "Movable", "E": "Reclaimable", "H": "HighAtomic", "C": "CMA"},
    "I": "Isolate",
}


@dataclass
class _Call:
    """A call of the OOM killer, as far as it was read; its rows as the values of their columns."""

    number: int
    base: dict[str, Any]  # what all its victims have in common
    caller: str | None
    header: bool
    victims: dict[int, dict[str, Any]] = field(default_factory=dict)  # by pid
    tasks: dict[int, OomTask] = field(default_factory=dict)
    ended: bool = False  # without a victim
    table: bool = False
    summary: bool = False
    lost: int = 0
    memory: dict[tuple[int, str, str], int] = field(default_factory=dict)  # bytes
    machine: dict[str, int] = field(default_factory=dict)  # pages
    page_kib: int | None = None
    blocks: dict[tuple[int, str, int], tuple[int, str]] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    in_stats: bool = False  # what follows is memory.stat
    damaged: Counter[str] = field(default_factory=Counter)


class OomRecords(NamedTuple):
    """All calls of a log."""

    kills: list[OomKill]
    tasks: list[OomTask]
    memory: list[OomMemory]
    free_blocks: list[OomFreeBlocks]
    cgroup_memory: list[OomCgroupMemory]


def read_oom_records(records: Iterable[LogRecord], page_bytes: int | None = None) -> OomRecords:
    """
    Find the calls of the OOM killer in a log.

    :param page_bytes: of the machine; else it is taken from the blocks that a call prints.
    """
    records = list(records)
    reader = _Reader(_gaps(records))
    for record in whole_records(records):
        if record.facility in (None, 0) and len(record.text) <= LONGEST:
            reader.take(record)
    result = OomRecords([], [], [], [], [])
    for call in reader.calls:
        _add(call, page_bytes, result)
    return result


def _gaps(records: Sequence[LogRecord]) -> dict[int, int]:
    """By the number of a record: how many are missing before it."""
    numbers = [record.sequence for record in records if record.sequence is not None]
    return {
        here: here - before - 1 for before, here in itertools.pairwise(numbers) if here > before + 1
    }


def whole_records(records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """
    Records with what continues them: another CPU's record may lie between (``LOG_CONT``,
    ``vprintk_store()``).
    """
    waiting: list[LogRecord] = []
    for record in records:
        for number, earlier in enumerate(waiting):
            joined = len(earlier.text) + len(record.text) <= LONGEST
            if record.continues and record.caller == earlier.caller and joined:
                waiting[number] = replace(earlier, text=earlier.text + record.text)
                break
        else:
            waiting.append(record)
            if len(waiting) > 8:  # what would continue it follows soon
                yield waiting.pop(0)
    yield from waiting


class _Reader:
    def __init__(self, gaps: Mapping[int, int]) -> None:
        self.calls: list[_Call] = []
        self.call: _Call | None = None  # whose records are being read
        self.gaps = gaps

    def take(self, record: LogRecord) -> None:
        """Read a record, as a whole where a name in it has a line's end, else line by line."""
        if self.call is not None and not self.call.victims and record.sequence is not None:
            self.call.lost += self.gaps.get(record.sequence, 0)
        whole = self.line(record, record.text)
        if not whole and "\n" in record.text:
            lines = record.text.split("\n")
            # Up to 6.1 memory.stat is one record, and a longer one is cut, in a number perhaps.
            if len(record.text) >= CUT:
                lines.pop()
            for line in lines:
                self.line(record, line)

    def line(self, record: LogRecord, text: str) -> bool:
        """True if a line is one of the OOM killer's."""
        for pattern, read in ANYWHERE if any(map(text.__contains__, MARKS)) else ():
            if match := pattern.fullmatch(text):
                read(self, record, match)
                return True
        call = self.call
        if (
            call is None
            or not _same(call.caller, record.caller)
            or call.ended
            or (call.victims and not text.startswith("Tasks in "))
        ):
            # The beginning of the table may be gone with the log's.
            if not (_is_task(text) or text.startswith(SUMMARY)):
                return False
            call = self.open(record, header=False)
        return _inside(call, text)

    def open(self, record: LogRecord, *, header: bool) -> _Call:
        number = len(self.calls) + 1
        base: dict[str, Any] = dict.fromkeys(OomKill.__dataclass_fields__) | {
            **{"oom": number, "victim": 0, "seconds": _seconds(record), "outcome": OPEN},
            **{"group_kill": False, "allocating_task": False},
        }
        self.call = _Call(number, base, record.caller, header)
        self.calls.append(self.call)
        return self.call

    def header(self, record: LogRecord, match: re.Match[str]) -> None:
        comm, mask, flags, order, adj = match.groups()
        call = self.open(record, header=True)
        task = (record.caller or "").removeprefix("T")
        pid = int(task) if task.isdecimal() else None
        call.base |= {
            "invoker": comm,
            "invoker_pid": pid if pid is None or pid <= MOST_PIDS else None,
            "invoker_oom_score_adj": int(adj),
            **{"gfp_mask": mask, "gfp_flags": flags, "order": int(order)},
        }

    def ended(self, record: LogRecord, message: str) -> _Call:
        """The call that kills now; a line without its header is a call of its own."""
        call = self.call
        if (
            call is None
            or not _same(call.caller, record.caller)
            or call.ended
            or (call.victims and not call.base["group_kill"])
            or not _fits(call.base["constraint"], message)
        ):
            call = self.open(record, header=False)
        call.base["cgroup_limit"] = message.startswith("Memory cgroup")
        call.base["allocating_task"] = message.endswith("task)")
        return call

    def kill(self, record: LogRecord, match: re.Match[str]) -> None:
        message, pid, comm, *sizes, uid, tables, adj = match.groups()
        call = self.ended(record, message)
        if int(pid) in call.victims:
            return  # of a group, the chosen one is killed twice (oom_kill_memcg_member())
        names = ("total_vm_bytes", "anon_bytes", "file_bytes", "shmem_bytes", "pgtables_bytes")
        call.victims[int(pid)] = call.base | {
            "seconds": _seconds(record),
            **{"outcome": KILLED, "pid": int(pid), "comm": comm, "uid": int(uid)},
            **{n: int(size) * KIB for n, size in zip(names, (*sizes, tables), strict=True)},
            "oom_score_adj": int(adj),
        }

    def skipped(self, record: LogRecord, match: re.Match[str]) -> None:
        message, pid, comm = match.groups()
        call = self.ended(record, message)
        row = call.base | {"outcome": EXITING, "pid": int(pid), "comm": comm}
        call.victims.setdefault(int(pid), row)

    def damaged_kill(self, record: LogRecord, match: re.Match[str]) -> None:
        message = match.string.partition(": Killed")[0]
        self.ended(record, message).damaged["the line of a kill"] += 1

    def no_victim(self, record: LogRecord, match: re.Match[str]) -> None:
        call = self.call
        if call is not None and not call.victims and _same(call.caller, record.caller):
            call.base["outcome"] = NO_ONE if match[0] == NO_VICTIM else PANIC
            call.ended = True

    def reaper(self, record: LogRecord, match: re.Match[str]) -> None:
        # Within 3 s or so of the kill (OOM_REAPER_DELAY, MAX_OOM_REAP_RETRIES).
        for call in reversed(self.calls[-RECENT:]):
            if victim := call.victims.get(int(match[1])):
                victim["reaped"] = match.re is REAPED
                return


# One of these is in each of the following.
MARKS = ("oom", "of memory", "on memory")
ANYWHERE: tuple[
    tuple[re.Pattern[str], Callable[[_Reader, LogRecord, re.Match[str]], None]], ...
] = (
    (HEADER, _Reader.header),
    (KILL, _Reader.kill),
    (SKIPPED, _Reader.skipped),
    (re.compile(LIKE_KILL.pattern + ".*", re.DOTALL), _Reader.damaged_kill),
    (re.compile(re.escape(NO_VICTIM)), _Reader.no_victim),
    (PANICKED, _Reader.no_victim),
    (REAPED, _Reader.reaper),
    (NOT_REAPED, _Reader.reaper),
)


def _same(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


def _fits(constraint: str | None, message: str) -> bool:
    """True if a kill may be of a call with this constraint (out_of_memory())."""
    of_cgroup = message.startswith("Memory cgroup")
    return constraint is None or of_cgroup == (constraint == "CONSTRAINT_MEMCG")


def _seconds(record: LogRecord) -> float | None:
    return None if record.nanoseconds is None else record.nanoseconds // 1000 / 1e6


def _is_task(text: str) -> bool:
    return LIKE_TASK.match(text) is not None and TASK.fullmatch(text) is not None


def _inside(call: _Call, text: str) -> bool:
    """True if a line belongs to the call whose records are being read."""
    if LIKE_TASK.match(text):
        call.in_stats = False
        _task(call, text)
    elif text == TASKS:
        call.table, call.in_stats = True, False
    elif text.startswith(SUMMARY):
        call.in_stats = False
        _summary(call, text)
    elif match := CPU_LINE.fullmatch(text):
        ours = match[2] == call.base["invoker"] and call.base["invoker_pid"] is None
        if ours and int(match[1]) <= MOST_PIDS:
            call.base["invoker_pid"] = int(match[1])
    elif match := CGROUP_USAGE.fullmatch(text):
        limit = int(match[2])
        call.base |= {
            "cgroup_limit": True,
            "usage_bytes": int(match[1]) * KIB,
            "limit_bytes": limit * KIB if limit < NO_LIMIT_KIB else None,
        }
    elif match := CGROUP_STATS.fullmatch(text):
        call.in_stats, call.base["oom_cgroup"] = True, match[1]
    elif GROUP.fullmatch(text):
        for row in (call.base, *call.victims.values()):
            row["group_kill"] = True
    else:
        return _memory(call, text)
    return True


def _task(call: _Call, text: str) -> None:
    """Add a row of the table of tasks."""
    match = TASK.fullmatch(text)
    if match is None or max(int(match[1]), int(match[3])) > MOST_PIDS or int(match[9]) < 0:
        call.damaged["rows of the table of tasks"] += 1
        return
    numbers = {
        name: None if number is None else int(number)
        for name, number in zip(TASK_COLUMNS, match.groups()[:-1], strict=True)
    }
    pid, uid = int(match[1]), int(match[2]) & 0xFFFFFFFF  # printed with a sign
    row: dict[str, Any] = {**numbers, "oom": call.number, "uid": uid, "comm": match[12]}
    call.tasks[pid] = OomTask(**row, killed=False)


# What stands before a value in the summary, in order: dump_oom_victim(), dump_oom_summary() of 6.1.
# A kernel without CONFIG_CPUSETS or CONFIG_MEMCG leaves its part out.
SEPARATORS = (",nodemask=", ",cpuset=", ",mems_allowed=", ",task_memcg=", ",task=", ",pid=")
ALLOWED = re.compile(r"([0-9,-]*?)(?:,global_oom|,oom_memcg=(.*))?", re.DOTALL)


def _summary(call: _Call, text: str) -> None:
    """
    The line that has it all. Where a cgroup's or a task's name looks like what follows it, which is
    which cannot be told.
    """
    call.summary = True
    constraint = text.removeprefix(SUMMARY).partition(",")[0]
    if CONSTRAINT.fullmatch(constraint):
        of_cgroup = constraint == "CONSTRAINT_MEMCG"
        call.base |= {"constraint": constraint, "cgroup_limit": of_cgroup}
    rest, values = text, dict[str, str]()
    for separator in reversed(SEPARATORS):
        rest, found, value = rest.partition(separator)
        if found:
            values[separator] = value
    nodemask = values.get(",nodemask=", "")
    allowed = ALLOWED.fullmatch(values.get(",mems_allowed=", ""))
    plain = all(text.count(separator) <= 1 for separator in SEPARATORS)
    if not (plain and NODES.fullmatch(nodemask) and allowed):
        call.damaged["the summary"] += 1
        return
    call.base |= {
        "nodemask": nodemask,
        "cpuset": values.get(",cpuset="),
        "mems_allowed": allowed[1] or None,
        "oom_cgroup": allowed[2],
        "victim_cgroup": values.get(",task_memcg="),
    }


def _memory(call: _Call, text: str) -> bool:
    """True if a line is one of show_mem(), or of memory.stat."""
    if call.in_stats and (match := CGROUP_STAT.fullmatch(text)):
        call.stats[match[1]] = int(match[2])
    elif match := ZONE.fullmatch(text):
        for name, value in COUNTER.findall(match[3]):
            _keep(call, int(match[1] or 0), match[2], name, int(value))
    elif match := NODE.fullmatch(text):
        for name, value in COUNTER.findall(match[2]):
            _keep(call, int(match[1]), "", name, int(value))
    elif match := BLOCKS.fullmatch(text):
        _blocks(call, int(match[1] or 0), match[2], match[3], int(match[4]))
    elif match := HUGEPAGES.fullmatch(text):
        size = int(match[5])
        for name, number in zip(("total", "free", "surp"), match.groups()[1:4], strict=True):
            _keep(call, int(match[1]), "", f"hugepages_{name} {size}kB", int(number) * size)
    elif match := SWAP.fullmatch(text):
        _keep(call, -1, "", match[1], int(match[2]))
    elif match := PAGES.fullmatch(text):
        call.machine[match[2]] = int(match[1])
    elif MACHINE.fullmatch(text):
        found = re.findall(r"([a-z_]+):([0-9]+)", text)
        if not {name for name, _ in found} <= MACHINE_COUNTERS:
            return False
        call.machine |= {name: int(value) for name, value in found}
    else:
        return False
    return True


def _keep(call: _Call, node: int, zone: str, name: str, kib: int) -> None:
    if call.memory.setdefault((node, zone, name), kib * KIB) != kib * KIB:
        call.damaged["memory that is there twice"] += 1


def _blocks(call: _Call, node: int, zone: str, text: str, total: int) -> None:
    printed = BLOCK.findall(text)
    sizes = [int(size) for _, size, _ in printed]
    whole = sum(int(blocks) * int(size) for blocks, size, _ in printed)
    if whole != total or sizes != [sizes[0] << order for order in range(len(sizes))]:
        call.damaged["free blocks of a zone"] += 1
        return
    call.page_kib = sizes[0] or None
    for order, (blocks, _, types) in enumerate(printed):
        names = ", ".join(MIGRATETYPES[letter] for letter in types)
        call.blocks[node, zone, order] = int(blocks), names


def _add(call: _Call, page_bytes: int | None, result: OomRecords) -> None:
    """Add the rows of a call."""
    killed = {pid for pid, victim in call.victims.items() if victim["outcome"] == KILLED}
    lacks = []
    if not call.header:
        lacks.append("its header")
    if call.header and not call.table:
        lacks.append("the table of tasks")
    elif call.tasks and not killed <= call.tasks.keys() and not call.base["group_kill"]:
        lacks.append("the victim's row of the table of tasks")
    if call.victims and call.header and not call.summary:
        lacks.append("the summary")
    if call.lost:
        lacks.append(f"{call.lost:,} records that are lost")
    lacks += [f"{what}, damaged ({number:,})" for what, number in call.damaged.items()]
    rows = list(enumerate(call.victims.values(), 1)) or [(0, call.base)]
    for number, row in rows:
        result.kills.append(OomKill(**row | {"victim": number, "lacks": "; ".join(lacks) or None}))
    result.tasks.extend(replace(task, killed=pid in killed) for pid, task in call.tasks.items())
    oom, page = call.number, page_bytes or (call.page_kib or 0) * KIB
    result.memory.extend(
        OomMemory(oom, -1, "", name, pages * page if page else None)
        for name, pages in call.machine.items()
    )
    result.memory.extend(OomMemory(oom, *place, size) for place, size in call.memory.items())
    result.free_blocks.extend(
        OomFreeBlocks(oom, *place, *blocks) for place, blocks in call.blocks.items()
    )
    result.cgroup_memory.extend(OomCgroupMemory(oom, *stat) for stat in call.stats.items())


def _found(log: Log, page_bytes: int | None) -> Found:
    oom = read_oom_records(log.records, page_bytes)
    found = Found(notes=missing(log), remarks=beginning(log))
    if damaged := sum("damaged" in (row.lacks or "") for row in oom.kills):
        found.notes.append(f"records of {damaged:,} kills are damaged: column lacks has which")
    found.add(OOM_KILLS, oom.kills)
    found.add(OOM_TASKS, oom.tasks)
    found.add(OOM_MEMORY, oom.memory)
    found.add(OOM_FREE_BLOCKS, oom.free_blocks)
    return found.add(OOM_CGROUP_MEMORY, oom.cgroup_memory)


def oom_kills_from_memory(memory: Memory) -> Found:
    return _found(log_of_memory(memory), memory.prog["PAGE_SIZE"].value_())


def oom_kills_from_files(files: Files) -> Found:
    return _found(log_of_files(files), None)


OOM_KILLS_SECTION = Section(
    name="oom_kills",
    title="OOM kills",
    since="0.2.0",
    tables=(OOM_KILLS, OOM_TASKS, OOM_MEMORY, OOM_FREE_BLOCKS, OOM_CGROUP_MEMORY),
    intro="""
What the OOM killer wrote to the kernel's log. It chooses the task with the most memory (resident,
swapped out, page tables), to which each point of
[oom_score_adj](https://docs.kernel.org/filesystems/proc.html) adds a thousandth of what may be
used: of the memory and swap of the machine or of the nodes that were allowed, or of the limit of
the [memory cgroup](https://docs.kernel.org/admin-guide/cgroup-v2.html#memory) that ran out.

The log is a ring, and the kernel leaves the details out where kills are frequent: what it does not
have of a kill is said in its row. `oom_kill` of /proc/vmstat counts all kills since boot.
""",
    command=Command("what the OOM killer did, out of the kernel's log", top=TOP),
    from_memory=oom_kills_from_memory,
    from_files=oom_kills_from_files,
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("oom_kills")
