# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Everything else that the kernel's log says about memory: what failed, what is damaged, who hung in
it, and where memory went at boot; each kind with how often, the first and the last, and what it
means.

Costs a look at each record of the log, which section ``kernel_log`` reads, too: the words of a kind
are looked for first.

Cannot know: what the log does not have any more, nor what the kernel printed less of because it was
frequent (``printk_ratelimited()``). That there is no complaint does not mean that all is well.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from mmscope.drgn.log.kernel_log import (
    NOT_COMPARED,
    beginning,
    log_of_files,
    log_of_memory,
    missing,
)
from mmscope.drgn.log.records import STACK, same_caller, seconds_of, whole_records
from mmscope.drgn.log.shown_memory import ShownBlocks, ShownMemory, read_shown_memory
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_log import Log, LogRecord
from mmscope.drgn.text.owner_frames import is_allocator

MOST_ROWS = 1_000
LONGEST_WHAT, LONGEST_RECORD = 100, 400  # characters
STACK_LINES = 80  # behind a task that hung

DAMAGE, HARDWARE, FAILURE, STALL, LEAK = "damage", "hardware", "failure", "stall", "leak"
TAKEN, CHANGED, STOPPED = "taken at boot", "changed", "stopped"
WHERE_IT_IS, WHERE_IT_WAS, WHOSE, OF_WHICH = "where it is", "where it was", "whose", "of which"


# Files of memory management, with its headers.
OF_SOURCE = (
    r"(?:.*/)?(?:mm/"
    r"|include/linux/(?:mm|page|swap|huge|memcontrol|memory|rmap|gfp|slab|highmem)[\w-]*\.h:)"
)


@dataclass(frozen=True)
class Kind:
    """A kind of complaint: ``kernel_complaints.toml`` has all of them, and says what this means."""

    name: str
    group: str
    words: list[str]
    pattern: re.Pattern[str]
    means: str
    behind: str = ""
    elsewhere: str = ""
    unknown: str = ""


def read_kinds() -> list[Kind]:
    """Read the kinds of complaints, in the order in which they are looked for."""
    kinds = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for kind in kinds.values():
        kind["pattern"] = re.compile(kind["pattern"].replace("{OF_SOURCE}", OF_SOURCE))
    return [Kind(name, **kind) for name, kind in kinds.items()]


KINDS = read_kinds()
WORDS = re.compile("|".join(sorted({re.escape(word) for kind in KINDS for word in kind.words})))
OF_MM = re.compile(
    r"shrink_|do_try_to_free|try_to_free_|reclaim_throttle|throttle_direct_reclaim|congestion_wait"
    r"|balance_dirty_pages|__?alloc_pages|alloc_pages|get_page_from_freelist|compact_zone|isolate_mig"
    r"|migrate_pages|folio_wait|wait_on_page|folio_lock|lock_page|filemap_fault|do_swap_page"
    r"|swap_read|handle_mm_fault|mmap_read_lock|mmap_write_lock|khugepaged|ksm_|try_to_unmap|rmap_walk"
    r"|mem_cgroup|try_charge|lru_add_drain|drain_all_pages|offline_pages|hugetlb_|exit_mmap|unmap_"
    r"|zap_|oom_|vm_munmap|vm_mmap|do_mmap|do_madvise|vmalloc|alloc_vmap|pcpu_alloc|kswapd|balance_pgdat"
)

# The second line of slab_out_of_memory(); a cache of a cgroup has its ID and name in parentheses.
CACHE = re.compile(r" *cache: (.+?), object size: \d+")
TASK = re.compile(r"task:(\S.{0,15}?) +state:")
# What is above the function that waits, in the stack of a task that hung.
HOW_ONE_WAITS = re.compile(
    r"schedul|io_schedule|context_switch|wait_on_bit|out_of_line_wait|bit_wait|wait_for_common"
    r"|wait_for_completion|(?:mutex|rwsem|rtmutex|down)_|down\b|native_|asm_|exc_|sysvec_|dump_stack"
)
# Tasks that do nothing else, wherever they wait.
MM_TASK = re.compile(r"(?:kswapd|kcompactd)\d+\Z|khugepaged\Z|oom_reaper\Z")
# Where a fault was: show_ip(), __show_regs() of the architectures.
WHERE = re.compile(
    r"(?:(?:RIP: [0-9a-f]{4}|EIP|IP): ?|pc : |epc : |PC is at |NIP )(?:\[<?[0-9a-fx]+>?\] *)*"
    r"([A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+(?: (\[[\w-]{1,64}))?"
)


@table(
    "kernel_complaints",
    "What the log says about memory",
    empty="the log has no complaint about memory that is known here",
    not_compared=NOT_COMPARED,
)
class KernelComplaint:
    """A complaint of the kernel about memory, by kind and subject."""

    kind: str = column(holds="words", key=True, help="what happened")
    what: str = column(holds="log", key=True, help="about whom or what, in the kernel's words")
    group: str = column(
        holds="words",
        help=f"{DAMAGE}: of memory or kernel data; {HARDWARE}; {FAILURE}; {STALL}; {LEAK}; "
        f"{TAKEN}: where memory is; {CHANGED}: memory came, went, or was printed; "
        f"{STOPPED}: the kernel panicked",
    )
    times: int = column(help="log records; the kernel omits what is too frequent")
    first_seconds: float | None = column(unit="s", help="since boot, of the first")
    last_seconds: float | None = column(unit="s", help="since boot, of the last")
    first_date: str | None = column(holds="words", help="wall clock, as the log has it")
    last_date: str | None = column(holds="words", help="of the last")
    means: str = column(holds="words", help="what that means")
    record: str = column(holds="log", help="beginning of the first record")


@dataclass
class _Waiting:
    """A record whose stack follows."""

    kind: Kind
    what: str
    record: LogRecord
    lines: int = 0
    has_stack: bool = False  # a frame that the unwinder is sure of
    where: str = ""  # the first function that is not how one waits


def read_kernel_complaints(records: Iterable[LogRecord]) -> list[KernelComplaint]:
    """Gather what a log says about memory, the first of its kind and subject first."""
    found: dict[tuple[str, str], KernelComplaint] = {}
    waiting: _Waiting | None = None
    for record in whole_records(records):
        if waiting is not None and same_caller(waiting.record.caller, record.caller):
            waiting = _look(waiting, record, found)
        if not WORDS.search(record.text):
            continue
        for line in record.text.split("\n"):
            if (match := _match(line)) is None:
                continue
            kind, what = match
            if kind.name == "blocked task" and waiting is not None and _is_its(waiting, what):
                continue
            if kind.behind and not MM_TASK.match(what):
                _end(waiting, found)
                waiting = _Waiting(kind, what, record)
            else:
                _count(found, kind, what, record)
    _end(waiting, found)
    return list(found.values())


def _match(line: str) -> tuple[Kind, str] | None:
    for kind in KINDS:
        if any(word in line for word in kind.words) and (match := kind.pattern.match(line)):
            return kind, match["what"].strip()[:LONGEST_WHAT]
    return None


def _look(
    waiting: _Waiting, record: LogRecord, found: dict[tuple[str, str], KernelComplaint]
) -> _Waiting | None:
    """Look for what the stack behind a record tells, and count that; None: it is over."""
    for line in record.text.split("\n"):
        waiting.lines += 1
        if waiting.kind.behind == WHERE_IT_WAS:
            if match := WHERE.match(line):
                if not _of_nothing(waiting) or OF_MM.match(match[1]):
                    _count_in(found, waiting, match[1], match[2] and f"{match[2]}]")
                return None
        elif waiting.kind.behind == OF_WHICH:
            if match := CACHE.match(line):
                _count(found, waiting.kind, match[1][:LONGEST_WHAT], waiting.record)
            else:
                _end(waiting, found)
            return None
        elif (match := STACK.fullmatch(line)) and not match[1]:
            waiting.has_stack = True
            if waiting.kind.behind == WHOSE and not is_allocator(match[2]):
                _count_in(found, waiting, match[2], match[3] and f"[{match[3]}]")
                return None
            if waiting.kind.behind == WHERE_IT_IS and OF_MM.match(match[2].lstrip("_")):
                _count_in(found, waiting, match[2])
                return None
            if not waiting.where and not HOW_ONE_WAITS.match(match[2].lstrip("_")):
                waiting.where = match[2]
        other = TASK.match(line)
        others = line.startswith("INFO: task ") or (other and not _is_its(waiting, other[1]))
        if others or waiting.lines > STACK_LINES:
            _end(waiting, found)
            return None
    return waiting


def _is_its(waiting: _Waiting, comm: str) -> bool:
    """True if a task's line is the second of one that hung, before its stack."""
    return waiting.kind.name == "hung task" and waiting.what == comm and not waiting.where


def _count_in(
    found: dict[tuple[str, str], KernelComplaint],
    waiting: _Waiting,
    function: str,
    module: str | None = None,
) -> None:
    """Count a record with the function that its stack tells."""
    what = f"{waiting.what}, in {function}{f' {module}' if module else ''}"
    _count(found, waiting.kind, what[:LONGEST_WHAT], waiting.record)


def _of_nothing(waiting: _Waiting) -> bool:
    return "NULL" in waiting.what


def _end(waiting: _Waiting | None, found: dict[tuple[str, str], KernelComplaint]) -> None:
    """Count a record whose stack did not tell what it was looked through for."""
    if waiting is None:
        return
    kind, what = waiting.kind, waiting.what
    if kind.behind == WHERE_IT_IS:
        if waiting.has_stack:
            kind = replace(kind, name=f"{kind.name} elsewhere", means=kind.elsewhere)
        else:
            kind = replace(kind, name=f"{kind.name}, stack unknown", means=kind.unknown)
        what += f", in {waiting.where}" if waiting.where else ""
    if not _of_nothing(waiting):
        _count(found, kind, what[:LONGEST_WHAT], waiting.record)


def _count(
    found: dict[tuple[str, str], KernelComplaint], kind: Kind, what: str, record: LogRecord
) -> None:
    seconds = seconds_of(record)
    if (before := found.get((kind.name, what))) is not None:
        found[kind.name, what] = replace(
            before,
            times=before.times + 1,
            last_seconds=before.last_seconds if seconds is None else seconds,
            last_date=record.date or before.last_date,
        )
        return
    found[kind.name, what] = KernelComplaint(
        kind.name, what, kind.group, 1, seconds, seconds, record.date, record.date, kind.means,
        record.text[:LONGEST_RECORD],
    )  # fmt: skip


def _found(log: Log, page_bytes: int | None) -> Found:
    rows = read_kernel_complaints(log.records)
    shown = read_shown_memory(log.records, page_bytes)
    found = Found(notes=missing(log), remarks=beginning(log))
    found.unlisted += if_any(len(rows[MOST_ROWS:]), "{}", "later one")
    found.unlisted += if_any(shown.left_out, "{} of memory", "later view")
    found.notes += if_any(shown.damaged, "{} of memory that is shown, damaged", "line")
    found.add(KernelComplaint, rows[:MOST_ROWS])
    found.add(ShownMemory, shown.memory)
    return found.add(ShownBlocks, shown.blocks)


KERNEL_COMPLAINTS_SECTION = Section(
    name="kernel_complaints",
    title="What the log says about memory",
    since="0.3.0",
    tables=tables_of(KernelComplaint, ShownMemory, ShownBlocks),
    intro="""
What the kernel complained about, as far as it is of memory, each kind with its meaning: allocations
that failed, damage that its own checks or [hardware](https://docs.kernel.org/mm/hwpoison.html)
found, tasks that hung,
[leaks](https://docs.kernel.org/dev-tools/kmemleak.html), balloons and memory hotplug, and where
memory went at boot. The kernel prints less of what is frequent, and a ring loses its oldest
records: that there is nothing here does not mean that nothing happened.
""",
    command=Command("what the kernel's log says about memory", top=TOP),
    from_memory=lambda memory: _found(log_of_memory(memory), memory.prog["PAGE_SIZE"].value_()),
    from_files=lambda files: _found(log_of_files(files), None),
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("kernel_complaints")
