# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings: what a bundle's tables mean, asked in SQL.

A finding is one file, ``findings/<id>.toml``: the columns it needs, a query over the bundle's
tables that returns a row for each thing found, and the words, filled in from that row. A finding
whose query returns nothing says nothing. One whose tables or columns the bundle does not have, or
has only empty, is *not checked*, and the reason is kept: silence must never mean "not looked".
"""

import contextlib
import dataclasses
import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import jinja2
from jinja2.environment import TemplateExpression

from mmscope.drgn.machine.kernel_features import FEATURES
from mmscope.drgn.owners.owner_frames import owner_frame
from mmscope.drgn.tables import display
from mmscope.drgn.tables.bounds import Impossible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, failed, open_database
from mmscope.reports.bundle.views import views
from mmscope.reports.findings.kernel_said import BY_PAGE, Kernel, read_kernel
from mmscope.reports.findings.proof import Declared, Proof, proofs

FINDINGS = Path(__file__).resolve().parent
SEVERITIES = ("critical", "warning", "notice")
# What a finding does to the machine, the worst first: the order of those of one severity.
# The last one is nothing that the machine suffers: a recording or a counter is not what it seems to
# be.
HIDES = "hides"
HARMS = ("ends work", "stalls", "takes memory", "costs", HIDES)
OTHER_BOOT = " Recorded during another boot than the rest of this bundle."
# The section that says nothing of the machine by itself.
RECORDINGS = "profiles"
# Those that a log is enough for: what it does not have may still be so.
# What a query, and words about its rows, may raise.
UNANSWERED = (duckdb.Error, jinja2.TemplateError, ArithmeticError, TypeError, ValueError)
OF_A_LOG = {"oom_kills", "allocation_failures", "kernel_complaints", "kernel_log", "hypervisor"}
# Of a stack, in a sentence.
MAX_FRAMES = 8
# Columns of a subject that name an owner, and what goes before the name.
OWNERS = {"cgroup": "memory cgroup ", "cache": "slab cache ", "caller": "", "owner": ""}
# The one word that a verdict begins with.
TROUBLE, NO_TROUBLE, CANNOT_TELL = "trouble", "no trouble found", "cannot tell"
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
        {"task_waits": ["state", "pid"], "process_memory": ["pid"], "wait_roots": ["root"]},
        # Threads of the kernel's own, which wait so for disks all the time, map no memory.
        """
        select count(*) as processes
        from task_waits join process_memory using (pid)
        where state = 'D' and not exists (select 1 from wait_roots)
        having count(*) > 0
        """,
    ),
    Blind(
        "of {{ bytes | size(1) }} of shared memory, {{ share | percent }} of memory, it was not "
        "read whether a process has them",
        {
            "vm_counters": ["name", "value"],
            "process_memory": ["shmem_bytes"],
            "gauge_series": ["source", "name", "time", "value"],
            "watch_holders": ["kind", "gone", "held", "shmem_bytes", "last_bytes"],
            "cached_filesystems": ["pages"],
        },
        """
        select bytes::bigint as bytes, bytes / total as share
        from (
            select total_pages::bigint * page_size as total,
                value::bigint * page_size
                    - coalesce((select sum(shmem_bytes::bigint) from process_memory), 0) as bytes
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
        },
        # By a memory policy, which memory alone has. Nearly gone as memory-nearly-gone has it; of a
        # watch in its last three readings; with no count of page cache, where kswapd is at work.
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
        order by n.node, o.free desc
        limit 1
        """,
    ),
    Blind(
        "for what tasks waited {{ share | percent }} of the time, by PSI, nothing that was read "
        "tells",
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
        "who has {{ bytes | size(1) }}, {{ share | percent }} of memory, that are in no line of "
        "/proc/meminfo, was not read",
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
# What a check that could not be made would need.
RECORDING, WATCH, MEMORY = "a recording ('mmscope record')", "a watch over time", "root or a vmcore"
NOT_READ, WHOLE = "sections not read", "sections read whole"
MORE, OTHERWISE = "a fuller copy of /proc and /sys", "what this host lacks"
# Of a section that is absent: of a dump it is the kernel that has none.
KERNEL, RIGHTS = "another kernel or other boot options", "root, or a kernel that has it"


@dataclass(frozen=True, slots=True)
class Step:
    """
    Something to do, with its price.

    A step either only looks at what this bundle has (``looks``), or says what it costs; one that
    changes something also says when not to do it and how to undo it.

    :ivar only: features of table ``kernel_features`` that the kernel must have, or, after a ``!``,
        must not have. A step that is not for the kernel that was read is not shown.
    """

    do: str
    cost: str = ""
    avoid: str = ""  # when not to do it
    undo: str = ""
    looks: bool = False
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.only:
            if name.removeprefix("!") not in FEATURES:
                raise ValueError(f"no feature is called {name}")

    @property
    def price(self) -> tuple[tuple[str, str], ...]:
        """(label, words) of what there is to say about it."""
        said = (("costs", self.cost), ("not", self.avoid), ("undo", self.undo))
        return tuple((label, words) for label, words in said if words)

    @property
    def text(self) -> str:
        """All of it in a line."""
        return " ".join(
            (self.do, *(f"{label.capitalize()}: {words}" for label, words in self.price))
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. All words are plain text, with values from the bundle in them."""

    id: str  # the file's name; several findings may share it, one for each row found
    severity: str
    title: str  # what is wrong, with its number
    saw: str  # what was seen: the figures
    why: str  # why it hurts
    next: tuple[Step, ...]  # what to do, in order
    links: tuple[tuple[str, str], ...]  # title and address of where it is written up
    section: str  # where the evidence is
    # What it is about and how bad it is, so that the same finding of two bundles can be compared.
    subject: tuple[tuple[str, Any], ...] = ()
    badness: float | None = None
    tables: tuple[str, ...] = ()  # and views, that it was found in
    sources: tuple[str, ...] = ()  # kernel files that its words were held against
    estimate: bool = False  # how bad it is was computed, not measured
    harm: str = "costs"
    symptom: str = ""  # that it is, in words that others explain (see incidents)
    explains: tuple[str, ...] = ()  # symptoms that may come of it
    since: str = ""  # when it began, if that is known
    classes: tuple[str, ...] = ()  # of the memory ledger, that it is about
    proofs: tuple[Proof, ...] = ()  # the rows that it stands on
    plain: str = ""  # the title as one says it aloud, if that is other words
    owner: str = ""  # whose it is: a process, a cgroup, a cache, a function
    other_boot: bool = False  # of a recording of another boot than the rest of the bundle

    @property
    def aside(self) -> str:
        """Words after its title: in brackets, with a space before; empty as a rule."""
        said = ["estimate"] * self.estimate + ["another boot"] * self.other_boot
        return f" ({', '.join(said)})" if said else ""


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A finding that could not be asked of this bundle."""

    id: str
    title: str
    reason: str
    section: str = ""  # where its evidence would be
    wants: str = OTHERWISE  # what it would take


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Everything that the findings say of one bundle.

    :ivar found: by severity; of one severity, what was measured before what was estimated, then
        what does most harm first.
    :ivar silent: (id, title) of what was checked and not found.
    :ivar under: what was measured of things that are under their finding's threshold, in its
        words: what a comparison says of a finding that is gone.
    :ivar blind: what could not be seen of what was looked at. Where there is such, that nothing was
        found does not mean that nothing is wrong.
    """

    found: list[Finding]
    silent: list[tuple[str, str]]
    not_checked: list[NotChecked]
    under: list[Finding] = field(default_factory=list)
    blind: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """The verdict in one word: of the machine, not of a recording that hides something."""
        worst = {finding.severity for finding in self.found if finding.harm != HIDES}
        if worst - {"notice"}:
            return TROUBLE
        return CANNOT_TELL if self.blind or not self.made else NO_TROUBLE

    @property
    def made(self) -> int:
        """Checks that could be made."""
        return len({finding.id for finding in self.found} | {id for id, _ in self.silent})

    @property
    def checks(self) -> int:
        """All checks."""
        return self.made + len(self.not_checked)


@dataclass(frozen=True, slots=True)
class Question:
    """A finding's file."""

    id: str
    about: str  # what it looks for, where there is no row
    section: str
    # table.column, or table.column where …; without rows of the first table nothing is found.
    needs: tuple[str, ...]
    sql: str
    severity: str  # unless the row has a column of that name
    title: str
    saw: str
    why: str
    next: tuple[Step, ...]
    sources: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    worse: str  # an expression over the row: the higher, the worse
    estimate: bool = False  # how bad it is is computed; unless the row has a column `estimated`
    harm: str = "costs"
    symptom: str = ""  # words, as are those it explains
    explains: tuple[str, ...] = ()
    since: str = ""  # words; empty where the row does not say
    classes: tuple[str, ...] = ()  # words
    subject: tuple[str, ...] = ()  # columns of the row that distinguish what was found
    proof: Declared = field(default_factory=dict)
    plain: str = ""  # words; for the sentence of an incident
    owner: str = ""  # words; by default what its subject names
    # Tables that only add to the words, with the columns used: empty where a bundle lacks them.
    optional: dict[str, list[str]] = field(default_factory=dict)


def load_questions(folder: Path = FINDINGS) -> list[Question]:
    """
    All findings that can be made.

    :raises ValueError: a file is not as it should be; these are the project's own, so a fault here
        is one of the project.
    """
    questions = []
    for path in sorted(folder.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            links = tuple((link["title"], link["url"]) for link in data.pop("links", []))
            data["next"] = tuple(
                Step(**step | {"only": tuple(step.get("only", ()))}) for step in data["next"]
            )
            data |= {"needs": tuple(data["needs"]), "sources": tuple(data["sources"])}
            data |= {name: tuple(data.get(name, ())) for name in ("subject", "explains", "classes")}
            question = Question(id=path.stem, links=links, **data)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {error}") from error
        if question.severity not in SEVERITIES:
            raise ValueError(
                f"{path.name}: severity {question.severity!r} is not one of {SEVERITIES}"
            )
        if question.harm not in HARMS:
            raise ValueError(f"{path.name}: harm {question.harm!r} is not one of {HARMS}")
        questions.append(question)
    return questions


def severity_rank(severity: str) -> int:
    """The worst first; an unknown severity last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def known(words: Callable[..., str]) -> Callable[..., str]:
    """A filter that says ``unknown`` for a value that there is not."""
    return lambda value, *rest: "unknown" if None in (value, *rest) else words(value, *rest)


# Of two counters that were not read at once, a part may be that much more than the whole.
ABOVE = 0.01


def part_of_a_whole(share: float) -> str:
    """
    A share in per cent.

    :raises ValueError: it is more than the whole: one of the two numbers is damaged.
    """
    if share > 1 + ABOVE:
        raise ValueError(f"a part is {display.percent(share)} of its whole")
    return display.percent(min(share, 1))


def period(seconds: Any) -> str:
    """Uptime of the machine: the period of every counter since boot."""
    if not seconds:
        return "since boot, uptime unknown"
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"in {seconds / size:.1f} {unit} since boot"
    return f"in {seconds:.0f} s since boot"


def from_leaf(stack: str) -> str:
    """
    A folded stack in words: who took the memory, who called that, how many called them. The row
    that is evidence has all of it.
    """
    frames = stack.split(";")[::-1]
    owner, _ = owner_frame(stack)
    frames = frames[next(n for n, frame in enumerate(frames) if frame.split(" [")[0] == owner) :]
    further = len(frames) - MAX_FRAMES
    said = " <- ".join(frames[:MAX_FRAMES] if further > 1 else frames)
    return f"{said} <- {further} further" if further > 1 else said


@functools.cache
def _environment() -> jinja2.Environment:
    # Words are plain text here and are escaped where they are shown: in HTML by its templates, on
    # a terminal by `visible`.
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "thousands": known(display.count),
        "percent": known(part_of_a_whole),
        "size": known(display.pages),
        "period": period,
        "duration": known(display.duration),
        "stack": from_leaf,
        "time": known(display.time_text),
    }
    return environment


@functools.cache
def _words(text: str) -> jinja2.Template:
    """A question's words, compiled."""
    return _environment().from_string(text)


@functools.cache
def _expression(text: str) -> TemplateExpression:
    """An expression over a row, compiled."""
    return _environment().compile_expression(text, undefined_to_none=False)


def _texts(question: Question) -> Iterator[str]:
    """All words of a question that depend on the row."""
    said = (question.title, question.plain, question.saw, question.why)
    ties = (question.symptom, *question.explains, question.since)
    steps = (text for step in question.next for text in (step.do, *dict(step.price).values()))
    for text in (*said, *ties, *question.classes, *steps):
        if "{" in text:
            yield text


OURS = functools.cache(load_questions)


def evaluate(bundle: Bundle, questions: list[Question] | None = None) -> Verdict:
    """Ask a bundle every question."""
    questions = OURS() if questions is None else questions
    # Most rows of a large bundle are in tables that no question names.
    return ask(open_database(bundle, only=named(questions)), questions)


def ask(database: Database, questions: list[Question]) -> Verdict:
    """Ask an open bundle the given questions."""
    kernel = read_kernel(database)
    counts = _counts(database, questions)
    found: list[Finding] = []
    under: list[Finding] = []
    silent, not_checked, faults = [], [], dict[str, None]()
    for question in questions:
        reason = unanswerable(database.missing, database.columns, question, counts)
        if not reason and (mark := doubtful(database.impossible, question)):
            reason = str(mark)
            faults[reason] = None
        said = []
        # Without rows of the first table nothing is found.
        if not reason and counts[question.needs[0]][0]:
            try:
                rows = database.rows(query_of(database.columns, question))
                # A row of a thing under the threshold says so, and only what was measured.
                said = [(row.get("over", True), finding_of(question, row, kernel)) for row in rows]
            except UNANSWERED as error:
                reason = _fault(error, database, question)
                faults[f"check {question.id} could not be made: {reason}"] = None
        if reason:
            left = NotChecked(question.id, question.about, reason, question.section)
            not_checked.append(dataclasses.replace(left, wants=wanting(question, database)))
            continue
        findings = [finding for over, finding in said if over]
        under += [finding for over, finding in said if not over]
        if not findings:
            silent.append((question.id, question.about))
        found += findings
    found.sort(key=_place)
    blind = [
        *holes(database),
        *unread(database),
        *unseen(questions, database, some=bool(silent or found)),
    ]
    blind += [*damaged(database), *faults]
    return Verdict(found, silent, not_checked, under, blind)


def _fault(error: Exception, database: Database, question: Question) -> str:
    """Why a question's query, or its words, failed."""
    if isinstance(error, duckdb.Error):
        tables = [need.partition(".")[0] for need in question.needs]
        return failed(database, error, tables)
    return f"its words do not fit what was found: {error}"


def damaged(database: Database) -> Iterator[str]:
    """Tables that the bundle has, and that cannot be used."""
    for name, why in database.missing.items():
        if name in database.section_of:
            yield f"table {name} cannot be used: {why}"


def wanting(question: Question, database: Database) -> str:
    """Name what a check that could not be made would take."""
    if question.section == RECORDINGS:
        return RECORDING
    fared = database.fared.get(question.section)
    if question.section == "watch" and fared is None:
        return WATCH
    if fared is None:
        return NOT_READ if database.kind in ("vmcore", "qemu") else MEMORY
    if database.kind == "files":
        return MEMORY if fared.status == "absent" else MORE
    if fared.status == "absent":
        return RIGHTS if database.kind == "live" else KERNEL
    return WHOLE if fared.status in ("failed", "partial") else OTHERWISE


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
            yield f"{size}, {share} of memory, has no owner that can be seen"
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
                yield _words(blind.words).render(row)
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
        yield f"an earlier mmscope took this watch, without {first}{more}, which checks stand on"


def _place(finding: Finding) -> tuple[int, bool, int]:
    """Place of a finding: by severity, what was measured first, what does most harm first."""
    return SEVERITIES.index(finding.severity), finding.estimate, HARMS.index(finding.harm)


def _counts(database: Database, questions: list[Question]) -> dict[str, list[int]]:
    """
    Count rows, and rows with a value, of what questions need: one query for all tables. What is
    not there cannot be counted.
    """
    needs = []
    for need in dict.fromkeys(need for question in questions for need in question.needs):
        table, column, _ = parts_of(need)
        if column in database.columns.get(table, ()):
            needs.append(need)
    with contextlib.suppress(duckdb.Error):
        return _count(database, needs)
    counts: dict[str, list[int]] = {}
    for need in needs:  # one of which is at fault
        with contextlib.suppress(duckdb.Error):
            counts |= _count(database, [need])
    return counts


def _count(database: Database, needs: Iterable[str]) -> dict[str, list[int]]:
    """The same of some needs, each table read once; :raises duckdb.Error: one is at fault."""
    by_table: dict[str, list[str]] = {}
    for need in needs:
        by_table.setdefault(parts_of(need)[0], []).append(need)
    queries = []
    for table, here in by_table.items():
        numbers = []
        for _, column, condition in map(parts_of, here):
            where = f" filter (where {condition})" if condition else ""
            numbers.append(f'[count(*){where}, count("{column}"){where}]')
        queries.append(f"select '{table}', [{', '.join(numbers)}] from \"{table}\"")
    counted = database.connection.execute(" union all ".join(queries)).fetchall() if queries else []
    return {
        need: numbers
        for table, each in counted
        for need, numbers in zip(by_table[table], each, strict=True)
    }


def parts_of(need: str) -> tuple[str, str, str]:
    """Table, column and condition, empty if there is none, of ``table.column where condition``."""
    table, _, rest = need.partition(".")
    column, _, condition = rest.partition(" where ")
    return table, column, condition


def unanswerable(
    missing: Mapping[str, str],
    columns: Mapping[str, set[str]],
    question: Question,
    counts: Mapping[str, list[int]],
) -> str | None:
    """
    The reason why a question cannot be asked: something it needs is missing, or all unknown.

    :param missing, columns: as of ``database.Database``.
    :param counts: of each need that is there, how many rows and how many with a value.
    """
    for need in question.needs:
        table, column, condition = parts_of(need)
        if need not in counts:
            if why := missing.get(table):
                return f"table {table} cannot be used: {why}"
            if (there := columns.get(table)) and column not in there:
                why = missing.get(f"{table}.{column}")
                return f"no column {table}.{column} in this bundle" + (f" ({why})" if why else "")
            section = f"section {question.section}"
            why = missing.get(f"table {table}")
            if why is None and (fared := missing.get(section)):
                why = f"{section}: {fared}"
            return f"no table {table} in this bundle" + (f" ({why})" if why else "")
        rows, filled = counts[need]
        if condition and not rows:
            return f"{table} has no row where {condition}"
        if rows and not filled:
            return f"{need} is unknown in this bundle"
    return None


def named(questions: Iterable[Question]) -> set[str]:
    """
    The words of their queries, and of the views that these name: all tables are among them, and
    those of :data:`BLIND`.
    """
    words = (words_of("\n".join((question.sql, *question.needs))) for question in questions)
    blind = (set(each.optional) for each in BLIND)
    return {"kernel_features", "containers"}.union(*(found for found, _ in words), *blind)


@functools.cache
def words_of(text: str) -> tuple[set[str], list[str]]:
    """The words of a query and of the views that it names, and what is quoted there."""
    for name, _, statement in reversed(views()):  # a view is made of those before it
        if re.search(rf"\b{name}\b", text):
            text += statement
    return set(re.findall(r"\w+", text)), re.findall(r"'([^']{3,})'", text)


def doubtful(marks: Iterable[Impossible], question: Question) -> Impossible | None:
    """The first value that cannot be of which a question would be answered."""
    words, quoted = words_of("\n".join((question.sql, *question.needs)))
    for mark in marks:
        if mark.table_name in words and mark.column_name in words:
            name = mark.row_name
            # Where each row is a number of its own, it is asked for by its name, or a part of that.
            if name is None or any(part.strip("%") in name for part in quoted):
                return mark
    return None


def query_of(columns: Mapping[str, set[str]], question: Question) -> str:
    """A question's SQL, with stand-ins for what a bundle lacks of its optional tables."""
    return with_stand_ins(columns, question.optional, question.sql)


def with_stand_ins(
    columns: Mapping[str, set[str]], optional: Mapping[str, list[str]], sql: str
) -> str:
    """
    A query with an empty table in place of each optional one that is not there, and unknown values
    in place of columns that an older bundle lacks.

    :param columns: as of ``database.Database``.
    """
    stand_ins = []
    for table, wanted in optional.items():
        there = columns.get(table, set())
        nothing = ", ".join(f"null::varchar as {c}" for c in wanted if c not in there)
        if not there:
            stand_ins.append(f"{table} as (select {nothing} limit 0)")
        elif nothing:
            stand_ins.append(f"{table} as (select *, {nothing} from main.{table})")
    if not stand_ins:
        return sql
    # A query may begin with such a list of its own.
    rest = re.sub(r"^\s*with\s", ", ", sql)
    return f"with {', '.join(stand_ins)} {rest}"


def finding_of(question: Question, row: dict[str, Any], kernel: Kernel) -> Finding:
    # Where a person reads of it, a cgroup is a container, if that is known.
    cgroups = {n: v for n, v in row.items() if n.endswith("cgroup") and isinstance(v, str)}
    names = {name: kernel.cgroup(path) for name, path in cgroups.items()}
    paths = {cgroups[name] for name, called in names.items() if called != cgroups[name]}

    def words(text: str, row: Mapping[str, Any] = row) -> str:
        said = _words(text).render(row, kernel=kernel) if "{" in text else text
        return " ".join(said.split())

    def said(text: str) -> str:
        return words(text, row | names)

    def saw() -> str:
        return " ".join((said(question.saw), *(f"Its cgroup is {path}." for path in sorted(paths))))

    def why() -> str:
        said = words(question.why)
        if kernel.assumed and any(map(BY_PAGE.search, _texts(question))):
            said += f" How large a page is this bundle does not say: {kernel.assumed} are assumed."
        return said

    def steps() -> Iterator[Step]:
        for step in question.next:
            condition = kernel.condition(step.only)
            said = words(step.do)
            # Words may depend on the row, so that for some rows nothing is left of a step.
            if condition is not None and said:
                yield dataclasses.replace(
                    step,
                    do=condition + said,
                    cost=words(step.cost),
                    avoid=words(step.avoid),
                    undo=words(step.undo),
                )

    other_boot = row.get("same_boot") is False  # of view profile_boots
    return Finding(
        id=question.id,
        severity=severity_of(question, row),
        title=said(question.title),
        saw=saw() + OTHER_BOOT * other_boot,
        why=why(),
        next=tuple(steps()),
        links=question.links,
        section=question.section,
        subject=tuple((name, row[name]) for name in question.subject),
        badness=badness_of(question, row),
        tables=tuple(dict.fromkeys(need.partition(".")[0] for need in question.needs)),
        sources=question.sources,
        estimate=_estimated(question, row),
        harm=question.harm,
        symptom=words(question.symptom),
        explains=tuple(filter(None, map(words, question.explains))),
        since=words(question.since),
        classes=tuple(words(name) for name in question.classes),
        proofs=tuple(proofs(question.proof, question.needs, question.subject, row)),
        plain=said(question.plain),
        owner=said(question.owner) or owner_of({n: (row | names)[n] for n in question.subject}),
        other_boot=other_boot,
    )


def owner_of(subject: Mapping[str, Any]) -> str:
    """Name of the owner that a subject has; empty where it has a place, or no owner."""
    for pid, comm in (("pid", "comm"), ("root_pid", "root_comm")):
        if subject.get(comm) is not None:
            return f"{subject[comm]} (pid {subject[pid]})"
    for column, called in OWNERS.items():
        if subject.get(column) is not None:
            return f"{called}{subject[column]}"
    return ""


def severity_of(question: Question, row: dict[str, Any]) -> str:
    severity = row.get("severity", question.severity)
    severity = severity if severity in SEVERITIES else question.severity
    if severity == "critical" and _estimated(question, row):
        return "warning"  # no estimate stands above a measurement
    return str(severity)


def _estimated(question: Question, row: dict[str, Any]) -> bool:
    return bool(row.get("estimated", question.estimate))


def badness_of(question: Question, row: dict[str, Any]) -> float | None:
    """A row's badness, None where a part of that is unknown."""
    try:
        worse: Any = _expression(question.worse)(row)
        return float(worse)
    except (ArithmeticError, TypeError):
        return None
