# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Blind spots of a bundle: memory without an owner, harm that was seen and not gone into, sections
not read whole. Where there is any of it, "nothing found" does not mean that nothing is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from mmscope.drgn.tables import display
from mmscope.reports.bundle.database import Database, failed
from mmscope.reports.bundle.views import with_stand_ins
from mmscope.reports.findings.finding_words import template
from mmscope.reports.findings.question import RECORDINGS, Question, parts_of

# Sections that a log is enough for: what it does not have may still be so.
OF_A_LOG = {"oom_kills", "allocation_failures", "kernel_complaints", "kernel_log", "hypervisor"}
# A twentieth of memory, or a GiB if that is less.
HOLE = """
select pages, share, page_size from memory_in_no_counter as m, target
where bytes > least(0.05 * m.total_pages * page_size, 1 << 30)
"""
# Of a dump that lacks a part of the array of struct pages.
MISSING = """
select sum(pages)::bigint as pages, any_value(page_size) as page_size
from memory_ledger, target
where part = 'struct page not readable' and pages > 0
having count(*) > 0
"""


@dataclass(frozen=True, slots=True)
class Blind:
    """
    Something that was seen, and of which it was not read whether it is harm: rows of a query.

    :ivar optional: its tables, as of a :class:`Question`.
    """

    words: str
    optional: dict[str, list[str]]
    sql: str


_OF_ZONES = ("node", "managed_pages", "free_pages", "wmark_high", "wmark_boost",
             "file_pages")  # fmt: skip
# Shared memory as large as shmem-left-behind calls trouble where no process has it; a hole as HOLE.
# A file may be open and mapped: not both are taken off.
BLIND = (
    Blind(
        "no check looks at why the kernel panicked ({{ what }})",
        {"kernel_complaints": ["kind", "what"]},
        # A dump that was asked for by SysRq-c, and what findings tell of the OOM killer.
        """
        select what from kernel_complaints
        where kind = 'kernel panic' and not regexp_matches(
            what, '^([Ss]ys[Rr]q triggered crash|Out of memory|System is deadlocked on memory)')
        limit 1
        """,
    ),
    Blind(
        "for whose limit the OOM killer took {{ kills | thousands }} "
        "process{{ 'es' if kills > 1 }} was not read",
        {
            "vm_counters": ["name", "value"],
            "oom_kills": ["outcome"],
            "memory_cgroups": ["state", "depth", "oom_events"],
            "counter_rates": ["source"],
        },
        """
        select (kills - told)::bigint as kills
        from (select max(value::bigint) as kills from vm_counters where name = 'oom_kill'),
            (select count(*) as told from oom_kills where outcome = 'killed'),
            (select sum(value::bigint) as stalls from vm_counters
                where starts_with(name, 'allocstall')),
            (select count(*) as cgroups from memory_cgroups
                where state = 'online' and depth::bigint = 1 and oom_events is not null),
            (select count(*) as rates from counter_rates where source = 'vmstat')
        where kills > told and coalesce(stalls, 1) > 0 and cgroups = 0 and rates = 0
        """,
    ),
    Blind(
        "what {{ processes | thousands }} process{{ 'es' if processes > 1 }} in D state waited "
        "for, and how long, was not read",
        {
            "task_waits": ["state", "pid", "process", "seconds", "stack"],
            "process_memory": ["pid"],
            "wait_roots": ["root"],
        },
        # Threads of the kernel's own, which wait so for disks all the time, map no memory. For long
        # as tasks-stuck has it, which says what it knows.
        """
        select count(distinct m.pid) as processes
        from task_waits as w join process_memory as m
            on m.pid::bigint = coalesce(w.process::bigint, w.pid::bigint)
        where state = 'D' and (seconds is null or seconds::double >= 10 and stack is null)
            and not exists (select 1 from wait_roots)
        having count(*) > 0
        """,
    ),
    Blind(
        "{{ tasks | thousands }} task{{ 's' if tasks > 1 }} had slept in D state for "
        "{{ seconds | duration }} when the watch ended: for what, and how long, was not read",
        {
            "watch_sleepers": ["time", "seconds", "wchan"],
            "watch_samples": ["time"],
        },
        # Less than watch-tasks-stuck tells of, and not over.
        """
        select count(*) as tasks, max(seconds::double) as seconds
        from watch_sleepers
        where seconds::double < 10
            and time::double + seconds::double >= (select max(time::double) from watch_samples)
            and coalesce(wchan, '') not in ('__refrigerator', 'do_freezer_trap', 'get_signal',
                'wait_for_vfork_done', 'kernel_clone', '_do_fork')
        having count(*) > 0
        """,
    ),
    Blind(
        "whether a process has {{ bytes | size(1) }} of shared memory, {{ share | percent }} of "
        "memory, was not read",
        {
            "vm_counters": ["name", "value"],
            "process_memory": ["shmem_bytes"],
            "gauge_series": ["source", "name", "time", "value"],
            "watch_holders": ["kind", "gone", "held", "shmem_bytes", "last_bytes"],
            "shared_files": ["bytes", "held"],
            "shm_segments": ["rss_bytes", "attached"],
            "cached_filesystems": ["pages"],
        },
        # shmem-unmapped tells of segments that no process has attached.
        """
        select bytes::bigint as bytes, bytes / total as share
        from (
            select total_pages::bigint * page_size as total,
                value::bigint * page_size - greatest(
                    coalesce((select sum(shmem_bytes::bigint) from process_memory), 0),
                    coalesce((select sum(bytes::bigint) filter (held is not null)
                        from shared_files), 0))
                    - coalesce((select sum(rss_bytes::bigint) filter (attached::bigint = 0)
                        from shm_segments), 0) as bytes
            from vm_counters, target
            where name = 'nr_shmem'
            union all
            select max(value::double) filter (name = 'MemTotal'),
                arg_max(value::double, time::double) filter (name = 'Shmem')
                    - coalesce((
                        select greatest(
                            sum(shmem_bytes::bigint),
                            sum(last_bytes::bigint) filter (held is not null)
                        )
                        from watch_holders where gone::varchar = 'false'), 0)
            from gauge_series
            where source = 'meminfo' and not exists (select 1 from process_memory)
        )
        where bytes >= 0.25 * total and not exists (select 1 from cached_filesystems)
        """,
    ),
    Blind(
        "whether a process is bound to node {{ node }}, which is short of memory while node "
        "{{ other }} has {{ free | size(page_size) }} free, was not read",
        {
            "zones": [*_OF_ZONES],
            "zone_series": ["time", *_OF_ZONES],
            "cached_filesystems": ["pages"],
            "process_memory": ["only_node"],
            "watch_holders": ["only_node", "gone"],
        },
        # By a memory policy, which memory alone has; by a cpuset it was read. Nearly gone as
        # memory-nearly-gone has it; of a watch in its last three readings; with no count of page
        # cache, where kswapd is at work.
        f"""
        with readings as (
            select 0 as time, {", ".join(_OF_ZONES)} from zones
            union all
            select time, {", ".join(_OF_ZONES)} from zone_series
            where time in (select distinct time from zone_series order by time desc limit 3)
        ), totals as (
            select time, node, sum(managed_pages::bigint) as managed,
                sum(free_pages::bigint) as free, sum(file_pages::bigint) as file,
                sum(wmark_high::bigint - coalesce(wmark_boost::bigint, 0)) as high
            from readings group by time, node
        ), nodes as (
            select node, arg_max(free, time) as free, max(managed) as managed,
                bool_and(coalesce(free + file // 2 - high < 0.05 * managed, free < 1.25 * high))
                    as short
            from totals where managed > 0 group by node
        )
        select n.node, o.node as other, o.free::bigint as free, page_size
        from nodes as n join nodes as o on o.node <> n.node and o.free >= 0.25 * o.managed, target
        where n.short and not exists (select 1 from cached_filesystems)
            and not exists (select 1 from process_memory where only_node::bigint = n.node)
            and not exists (select 1 from watch_holders
                where only_node::bigint = n.node and gone::varchar = 'false')
        order by n.node, o.free desc
        limit 1
        """,
    ),
    Blind(
        "tasks waited {{ share | percent }} of the time, by PSI: for what was not read",
        {"watch_psi": ["share", "stuck"]},
        "select share from watch_psi where stuck::varchar = 'true'",
    ),
    Blind(
        "MemAvailable says {{ available | size(1) }}, and all that it is made of is "
        "{{ parts | size(1) }}: how much could be had was not read",
        {"gauge_series": ["source", "name", "time", "value"]},
        # As file-lists-miscounted; anonymous pages that may be dropped are on these lists.
        """
        with last as (
            select name, arg_max(value::double, time::double) as size
            from gauge_series where source = 'meminfo' group by name
        )
        select available::bigint as available, parts::bigint as parts
        from (
            select sum(size) filter (name = 'MemAvailable') as available,
                sum(size) filter (name = 'MemTotal') as total,
                sum(size) filter (name in ('MemFree', 'Cached', 'Buffers', 'AnonPages'))
                    + coalesce(sum(size) filter (name = 'KReclaimable'),
                        sum(size) filter (name = 'SReclaimable'), 0) as parts
            from last
        )
        where available - parts >= greatest(0.01 * total, 64 << 20)
        """,
    ),
    Blind(
        "{{ bytes | size(1) }}, {{ share | percent }} of memory, is in no line of /proc/meminfo, "
        "and its owner was not read",
        {"gauge_series": ["source", "name", "time", "value"], "memory_ledger": ["pages"]},
        """
        select bytes::bigint as bytes, bytes / total as share
        from (
            select arg_max(value::double, time::double) filter (source = 'computed') as bytes,
                max(value::double) filter (name = 'MemTotal') as total
            from gauge_series
        )
        where bytes > least(0.05 * total, 1 << 30) and not exists (select 1 from memory_ledger)
        """,
    ),
)
BESIDE = "give a vmcore or the host's files beside it"


def holes(database: Database) -> Iterator[str]:
    """Memory that no class, counter or owner explains: too much of it to say that all was seen."""
    if "memory_in_no_counter" not in database.columns:
        return
    known_owners = {"page_owner_stacks", "ledger_tags"} & database.columns.keys()
    try:
        for row in database.rows(MISSING):
            size = display.pages(row["pages"], row["page_size"])
            yield f"the struct pages of {size} cannot be read"
        if any(database.rows(f"select 1 from {table} limit 1") for table in known_owners):
            return
        for row in database.rows(HOLE):
            size = display.pages(row["pages"], row["page_size"])
            share = display.percent(row["share"])
            yield f"{size}, {share} of memory, has no known owner"
    except (duckdb.Error, ArithmeticError, TypeError, ValueError) as error:
        tables = ["memory_ledger", "ledger_checks"]
        why = failed(database, error, tables) if isinstance(error, duckdb.Error) else str(error)
        yield f"whether all memory is explained cannot be computed: {why}"


def unread(database: Database) -> Iterator[str]:
    """Tell what was not read of things that were seen (:data:`BLIND`)."""
    for blind in BLIND:
        if not blind.optional.keys() & database.columns.keys():
            continue  # of nothing there is nothing to tell
        try:
            for row in database.rows(with_stand_ins(database.columns, blind.optional, blind.sql)):
                yield template(blind.words).render(row)
        except duckdb.Error as error:
            yield f"what was not read cannot be told: {failed(database, error, blind.optional)}"


def unseen(questions: list[Question], database: Database, *, some: bool) -> Iterator[str]:
    """
    Sections that questions stand on, and that were not read, or in part alone; by the reason.

    :param some: some of them could be asked.
    """
    needed = {question.section for question in questions}
    tables = {parts_of(need)[0] for question in questions for need in question.needs}
    needed |= {database.section_of[table] for table in tables & database.section_of.keys()}
    fared = {name: section for name, section in database.fared.items() if name in needed}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, section in fared.items():
        if section.status in ("failed", "partial"):
            alike.setdefault((section.status, section.message or ""), []).append(name)
    for (status, message), names in alike.items():
        *others, last = names
        which = f"sections {', '.join(others)} and {last}" if others else f"section {last}"
        in_part = "were read in part" if others else "was read in part"
        said = f"{which} {'could not be read' if status == 'failed' else in_part}"
        yield f"{said}: {message}" if message else said
    yield from _not_sampled(questions, database)
    here = {name for name, section in fared.items() if section.status != "absent"}
    if here == {RECORDINGS}:
        yield f"only a recording was read: {BESIDE}"
    elif here and here <= OF_A_LOG:
        yield f"only a log was read: {BESIDE}"
    elif some and (ledger := fared.get("memory_ledger")) and ledger.status == "absent":
        yield "where memory went was not read: give /proc/meminfo, too"


def _not_sampled(questions: list[Question], database: Database) -> Iterator[str]:
    """
    Name what checks of a watch stand on and an earlier mmscope did not sample: what is over cannot
    be read again.
    """
    if "watch" not in database.fared:
        return
    lacking = dict.fromkeys(
        f"{table}.{column}" if table in database.columns else table
        for question in questions
        if question.section == "watch"
        for table, column, _ in map(parts_of, question.needs)
        if table not in database.missing and column not in database.columns.get(table, ())
    )
    if lacking:
        first, *others = lacking
        more = f" and {len(others):,} more" if others else ""
        yield f"an earlier mmscope took this watch: {first}{more}, which checks need, are missing"


def damaged(database: Database) -> Iterator[str]:
    """Tables that the bundle has, and that cannot be used."""
    for name, why in database.missing.items():
        if name in database.section_of:
            yield f"table {name} cannot be used: {why}"
