# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The questions with which a reader comes, each with its answer in a sentence and the place in the
page that proves it.

An answer is what a finding says, or what the tables hold. Cannot know: what grows, of one reading;
why something is slow, where no check could be made of it. Then it says what would show it.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.text.meminfo import CALLED, NO_COUNTER
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.drawing.class_looks import label
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.finding import Verdict
from mmscope.reports.findings.verdict import said
from mmscope.reports.page.missing import fault_in
from mmscope.reports.page.views import FindingView
from mmscope.reports.pictures.memory_bar import AS_MUCH, NOT_IN_USE, OWNERS, memory_bar
from mmscope.reports.pictures.picture import Row
from mmscope.reports.pictures.watermarks import min_free

WHO, GREW, HUGE, EXIT, FREE, RESERVE = (
    "Who has the memory?",
    "What grew?",
    "Why do huge pages fail?",
    "Why does exit take long?",
    "What would free memory?",
    "May vm.min_free_kbytes be raised?",
)
# Findings that answer a question: of those in the page the first, which is the worst cause.
ANSWERED_BY = {
    GREW: "page-owner-took-growth page-owner-stack-grows watch-kernel-memory-grows",
    HUGE: "highatomic-starves-thp external-fragmentation compaction-fails watch-thp-blocks-ran-out "
    "watch-thp-falls-back thp-falls-back thp-sizes-fall-back",
    EXIT: "page-table-bloat sparse-page-tables huge-zero-deposits slow-exit profile-unmapped-twice "
    "profile-exit-share",
}
# Where no such finding was made: ids of pictures and tables that answer it, the best first.
PLACES = {
    WHO: "picture-memory_bar table-process_memory table-watch_holders table-page_owner_stacks "
    "picture-watch",
    GREW: "picture-page_owner_growth table-watch_holders picture-watch",
    HUGE: "picture-fragmentation",
    EXIT: "table-exit_costs",
    FREE: "table-would_free",
    RESERVE: "picture-min_free",
}
# What would answer a question that this bundle leaves open.
LACKS = {
    WHO: "unknown: nothing was read that shows it",
    GREW: "unknown from one reading: 'mmscope watch' shows it, or 'mmscope compare' with another",
    HUGE: "unknown: nothing was read that shows it",
    EXIT: "unknown: a vmcore, or 'mmscope record exit-path', shows it",
    FREE: "unknown: a vmcore, or root on the host, shows it",
}
UNEXPLAINED = "unexplained"
# Levels of /proc/meminfo without overlap.
CLASSES = (
    *("AnonPages", "Cached", "Shmem", "SUnreclaim", "SReclaimable", "PageTables", "KernelStack"),
    *("Percpu", "VmallocUsed", "Hugetlb", NO_COUNTER),
)
MOST_NAMED = 60  # characters of a name
NO_TAG = "(no tag)"  # as table ledger_tags calls what no line of source has


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; place is an id in the page, empty where nothing proves it."""

    question: str
    sentence: str
    place: str


def answers(
    bundle: Bundle,
    verdict: Verdict,
    findings: Sequence[FindingView],
    places: Container[str],
    compared: Sequence[str],
    grew: str = "",
    faults: list[Fault] | None = None,
) -> Iterator[Answer]:
    """
    Answer each question. A recording of another boot answers last, and is called that.

    :param places: ids of tables and pictures that the page has.
    :param compared: ids that a comparison in the page has, the best answer to what grew first.
    :param grew: what that says.
    :param faults: gets what mmscope failed to say.
    """
    asked = {id for id, _ in verdict.silent} | {finding.id for finding in verdict.found}
    for question, listed in PLACES.items():
        ids = ANSWERED_BY.get(question, "").split()
        told = [view for view in findings if view.finding.id in ids]
        here = [view for view in told if not view.finding.other_boot]
        goals = [place for place in listed.split() if place in places]
        if question == GREW and compared:
            yield Answer(question, grew, compared[0])
        elif here:
            # The worst that was measured; an estimate only where there is nothing else.
            first = next((view for view in here if not view.finding.estimate), here[0])
            words, owner = said(first.finding), first.finding.owner
            if question == GREW and owner and owner not in words:
                words = f"{words}. Most of it: {owner}"
            yield Answer(question, words, first.anchor)
        elif goals:
            yield Answer(question, _measured(bundle, question, asked, ids, faults), goals[0])
        elif told:
            yield Answer(
                f"{question}{told[0].finding.aside}", said(told[0].finding), told[0].anchor
            )
        elif question in LACKS:
            found = _measured(bundle, question, asked, ids, faults)
            of_dump = question == FREE and bundle.target.get("kind") == "vmcore"
            lacks = "unknown: section would_free was not read" if of_dump else LACKS[question]
            yield Answer(question, found or lacks, "")


def answered(bundle: Bundle, question: str, faults: list[Fault] | None = None) -> str | None:
    """
    An answer that tables hold, without any finding; empty if they say nothing, None if they cannot
    be read.

    :param faults: gets what mmscope failed to say.
    """
    words, tables = IN_TABLES[question]
    try:
        return words(bundle)
    except BundleError:  # damaged: which its section says
        return None
    except Exception as error:
        if faults is not None:
            faults += fault_in(bundle, f"of '{question}'", error, *tables)
        return None


def _measured(
    bundle: Bundle,
    question: str,
    asked: Container[str],
    ids: Sequence[str],
    faults: list[Fault] | None,
) -> str:
    """Words of the tables where no finding has any; empty if they say nothing."""
    if question in IN_TABLES:
        said = answered(bundle, question, faults)
        if said or said is None:
            return said or ""
    made = sum(id in asked for id in ids)
    return f"no trouble found by {display.plural(made, 'check')}" if made else ""


def holders(bundle: Bundle) -> str:
    """
    The largest owner that is named, and the largest classes; the class first where no one has
    half of it. Without a ledger that of a watch, page_owner, slab caches, lines of source, or the
    log, else what is free, or what a lone file of a cgroup or process has; empty without any.
    """
    if "memory_ledger" not in bundle.tables:
        of_parts = (
            _held_in_watch,
            _held_by_functions,
            _held_by_caches,
            _held_by_lines,
            _held_in_log,
            _free_by_zone,
            _of_one_cgroup,
            _of_one_process,
        )
        return next((said for part in of_parts if (said := part(bundle))), "")
    drawn = memory_bar.draw(_rows(bundle, *OF_HOLDERS), bundle.page_size)
    total = drawn["total"]
    used = [each for each in drawn["segments"] if each["name"] not in NOT_IN_USE]
    owned = [
        (size, name, each["name"])
        for each in used
        if each["name"] != UNEXPLAINED
        for name, size in _owner_in(each)
    ]
    largest = heapq.nlargest(3, drawn["segments"], key=lambda each: each["bytes"])
    shares = [
        (each["name"], f"{label(each['name'])} {display.share(each['bytes'], total)}")
        for each in largest
    ]
    classes = ", ".join(words for _, words in shares)
    if not used:
        return classes
    size, name, kind = max(owned, default=(0, "", ""))
    first = max(used, key=lambda each: int(each["bytes"]))
    if 2 * size >= first["bytes"]:
        who, _, what = name.partition(", ")
        what, _, _ = what.partition(", ")  # what comes behind is of what kind that is
        of = f"{label(kind)}: {cut(what, MOST_NAMED)}" if what else label(kind)
        held = f"{display.size(size)}, {display.share(size, total)} of memory ({of})"
        return f"{cut(who, MOST_NAMED)} holds {held}. Largest classes: {classes}"
    held = f"{display.size(first['bytes'])}, {display.share(first['bytes'], total)} of memory"
    if first["name"] == UNEXPLAINED:
        return f"no known owner: {held}. Largest classes: {classes}"
    most = next(iter(_owner_in(first)), None)
    of_it = (
        f"its largest owner is {cut(most[0], MOST_NAMED)}, {display.size(most[1])}"
        if most
        else "owner unknown"
    )
    (part, in_part, _), *more = first["parts"]
    if most is None and more:
        of_it = f"{display.size(in_part)} of it {part}; {of_it}"
    others = ", ".join(words for name, words in shares if name != first["name"])
    besides = f". Other large classes: {others}" if others else ""
    return f"the largest class in use is {label(first['name'])}: {held}; {of_it}{besides}"


def _owner_in(segment: Row) -> list[tuple[str, int]]:
    """
    The largest owner in a class, if any, by the first table whose owners are together no more than
    the class has: pages that are shared, by fork or KSM, count with each process.
    """
    whole = AS_MUCH * segment["bytes"]
    fitting = [kind for kind in segment["kinds"] if kind["bytes"] <= whole]
    kinds: list[Row] = (fitting or segment["kinds"])[:1]
    owners = [each for kind in kinds for each in kind["owners"] if NO_TAG not in each[0]]
    return [owner for owner in owners[:1] if owner[1] <= whole]


def grown(bundle: Bundle) -> str:
    """The holder and the class of memory that grew most in a watch; empty without one."""
    classes = {name: last - first for name, (first, last) in _levels(bundle).items()}
    return _watched(bundle, "grown", "grew by {size}", classes, "{name} +{size}", " in the watch")


def _held_in_watch(bundle: Bundle) -> str:
    """The holder and the class of memory that have most at the end of a watch."""
    classes = {name: last for name, (_, last) in _levels(bundle).items()}
    end = " at the end of the watch"
    return _watched(bundle, "last_bytes", "holds {size}", classes, "{name} {size}", end)


def _held_by_functions(bundle: Bundle) -> str:
    """The functions that allocated most of what page_owner lists."""
    held = Counter[str]()
    for row in bundle.rows_if_any("page_owner_stacks"):
        owner = row["owner"] or "a stack that is not known"
        held[f"{owner} [{row['module']}]" if row["module"] else owner] += row["pages"]
    if not (total := held.total()):
        return ""
    # Of a text that does not say how large a page is, that is assumed.
    page_size = None if bundle.target.get("assumed") else bundle.page_size
    said = [
        f"{cut(name, MOST_NAMED)} {display.pages(pages, page_size)}"
        for name, pages in held.most_common(3)
    ]
    share = display.share(held.most_common(1)[0][1], total)
    said[0] += f" ({share} of what page_owner lists)"
    return f"allocated most: {', '.join(said)}"


def _held_by_caches(bundle: Bundle) -> str:
    """The largest slab caches, by the size of their objects."""
    rows = bundle.rows_if_any("slab_caches")
    sizes = (((row["slots"] or 0) * (row["slot_bytes"] or 0), row["cache"]) for row in rows)
    return _largest("largest slab caches", sizes)


def _held_by_lines(bundle: Bundle) -> str:
    """The lines of source that allocated most."""
    held = (
        (row["bytes"] or 0, f"{row['function']} ({row['file']}:{row['line']})")
        for row in bundle.rows_if_any("alloc_tags")
    )
    return _largest("allocated most", held)


def _largest(what: str, sizes: Iterable[tuple[int, str]]) -> str:
    """The largest of some, by name; empty if there is none."""
    said = [
        f"{cut(name, MOST_NAMED)} {display.size(size)}"
        for size, name in heapq.nlargest(3, sizes)
        if size
    ]
    return f"{what}: {', '.join(said)}" if said else ""


# As the kernel prints them of the machine.
OF_LISTS = {
    "anonymous": ("active_anon", "inactive_anon"),
    "files": ("active_file", "inactive_file"),
    "unevictable": ("unevictable",),
    "free": ("free",),
}


def _held_in_log(bundle: Bundle) -> str:
    """The machine's lists, and what is free, in the last view of memory in a log."""
    rows = list(bundle.rows_if_any("shown_memory"))
    last = max((row["shown"] for row in rows), default=0)
    sizes = {
        row["counter"]: row["bytes"] or 0
        for row in rows
        if row["shown"] == last and row["node"] < 0
    }
    said = [
        f"{name} {display.size(size)}"
        for name, counters in OF_LISTS.items()
        if (size := sum(sizes.get(counter, 0) for counter in counters))
    ]
    return f"in the log: {', '.join(said)}" if said else ""


def _free_by_zone(bundle: Bundle) -> str:
    """Free memory of the zones that have most of it, and the largest free block of each."""
    free, orders = Counter[tuple[int, str]](), dict[tuple[int, str], int]()
    for row in bundle.rows_if_any("free_blocks"):
        if row["blocks"]:
            zone = row["node"], row["zone"]
            free[zone] += row["pages"]
            orders[zone] = max(orders.get(zone, 0), row["order"])
    many = len({node for node, _ in free}) > 1
    page_size = None if bundle.target.get("assumed") else bundle.page_size
    said = []
    for zone, pages in free.most_common(3):
        node, name = zone
        block = display.size(page_size << orders[zone]) if page_size else f"order {orders[zone]}"
        called = f"node {node} {name}" if many else name
        said.append(f"{called} {display.pages(pages, page_size)}, {block}")
    return f"free, and the largest free block: {'; '.join(said)}" if said else ""


# Of a cgroup's own files: what it has, and what happened to it.
OF_CGROUP = {"anon_bytes": "anonymous", "file_bytes": "files", "kernel_bytes": "kernel memory"}
EVENTS = {
    "oom_kill_events": ("OOM kill",),
    "max_events": ("time at memory.max", "times at memory.max"),
    "high_events": ("time above memory.high", "times above memory.high"),
}


def _of_one_cgroup(bundle: Bundle) -> str:
    """Memory and events of a lone cgroup's file."""
    rows = list(bundle.rows_if_any("memory_cgroups"))
    if len(rows) != 1:
        return ""
    has = {key: int(value) for key, value in rows[0].items() if key in OF_CGROUP | EVENTS and value}
    said = [f"{name} {display.size(has[key])}" for key, name in OF_CGROUP.items() if key in has]
    said += [display.plural(has[key], *words) for key, words in EVENTS.items() if key in has]
    return f"in the cgroup: {', '.join(said)}" if said else ""


# Of a process's own files, its smaps_rollup before its status.
OF_PROCESS = {
    "process_shares": {"resident_bytes": "RSS", "pss_bytes": "PSS", "unique_bytes": "USS"},
    "process_memory": {
        "resident_bytes": "RSS",
        "anon_bytes": "anonymous",
        "swap_bytes": "in swap",
        "pgtables_bytes": "page tables",
    },
}


def _of_one_process(bundle: Bundle) -> str:
    """Memory of a lone process's file."""
    for table, columns in OF_PROCESS.items():
        rows = list(itertools.islice(bundle.rows_if_any(table), 2))
        if len(rows) == 1:
            has = ((name, rows[0][key]) for key, name in columns.items())
            said = ", ".join(f"{name} {display.size(size)}" for name, size in has if size)
            return f"in the process: {said}" if said else ""
    return ""


def _watched(
    bundle: Bundle, what: str, words: str, classes: dict[str, int], of_class: str, when: str
) -> str:
    """
    The largest of ``watch_holders``, and of classes. A cgroup holds what its processes do, and a
    line of source what others hold.
    """
    rows = [
        row | {"grown": row["last_bytes"] - row["first_bytes"]}
        for row in bundle.rows_if_any("watch_holders")
    ]
    first = max(
        (row for row in rows if row["kind"] not in ("cgroup", "line of source")),
        key=lambda row: int(row[what]),
        default=None,
    )
    largest = max(classes, key=lambda name: classes[name], default="")
    said = ""
    if first is not None and first[what] > 0:
        called = f" (pid {first['pid']})" if first["pid"] else f" ({first['kind']})"
        name, size = cut(first["name"], MOST_NAMED) + called, display.size(first[what])
        # What became dear to read was not read again.
        late = max(row["last_time"] for row in rows) - first["last_time"]
        until = " until" if what == "grown" else ""
        end = f"{until} {late:.0f} s before the end of the watch" if late >= 1 else when
        said = f"{name} {words.format(size=size)}{end}"
    if not largest or classes[largest] <= 0:
        return said
    listed = of_class.format(name=largest, size=display.size(classes[largest]))
    if said and first is not None and 2 * first[what] >= classes[largest]:
        return f"{said}. Largest class: {listed}"
    most = "Grew most" if what == "grown" else "Largest holder"
    return f"{listed}{when}" + (f". {most}: {name}, {size}" if said else "")


def _levels(bundle: Bundle) -> dict[str, tuple[int, int]]:
    """Classes of memory, as /proc/meminfo has them: at the first and the last moment of a watch."""
    levels: dict[str, list[tuple[float, int]]] = {}
    for row in bundle.rows_if_any("gauge_series"):
        if row["source"] in ("meminfo", "computed"):
            levels.setdefault(row["name"], []).append((row["time"], row["value"]))
    ends = {name: (min(points)[1], max(points)[1]) for name, points in levels.items()}
    if "Cached" in ends:  # which has shared memory in it
        shared = ends.get("Shmem", (0, 0))
        ends["Cached"] = ends["Cached"][0] - shared[0], ends["Cached"][1] - shared[1]
    return {CALLED[name]: ends[name] for name in CLASSES if name in ends}


def freed(bundle: Bundle) -> str:
    """Deeds that give back most, by the least that is certain; empty where nothing is known."""
    if "would_free" not in bundle.tables:
        return ""
    # drop_caches 3 is 1 and 2, of which 2 has no least. The kernel panics where init ends.
    rows = [
        row
        for row in bundle.rows("would_free")
        if row["least_bytes"] > 0
        and row["deed"] != "drop_caches 3"
        and (row["pid"] != 1 or row["name"])
    ]
    best = heapq.nlargest(2, rows, key=lambda row: row["least_bytes"])
    said = (f"{_deed(row)}: at least {display.size(row['least_bytes'])}" for row in best)
    return "; ".join(said) or "nothing for certain"


def raisable(bundle: Bundle) -> str:
    """Bounds of raising vm.min_free_kbytes; empty without a table of zones."""
    rows = _rows(bundle, min_free.table, *min_free.others)
    if not rows.get(min_free.table):
        return ""
    found = min_free.draw(rows, bundle.page_size)
    now, most = (display.size(each.kbytes << 10) if each else "" for each in (found, found.at_most))
    above = f"above {display.size(found.quiet << 10)} kswapd is woken"
    if found.bound <= found.quiet:
        above = "more than a hundredth of memory is not advised"
    return {
        "unknown": f"unknown: {found.unknown}",
        "no": "no: a main zone is below its min watermark already",
        "not now": "not now: a main zone is below its low watermark",
        "hardly": f"hardly: it is {now}, and {above}",
        "a little": f"a little, from {now} to {most} at most",
    }[found.answer]


def _rows(bundle: Bundle, *names: str) -> dict[str, Sequence[Any]]:
    """The rows of those of some tables that a bundle has."""
    here = [name for name in names if name in bundle.tables]
    held, _ = bundle.held(here)
    return {name: held[name] if name in held else list(bundle.rows(name)) for name in here}


# Questions that tables answer: what says it, of which tables.
OF_HOLDERS = tuple(
    dict.fromkeys(["memory_ledger", *(t.name for each in OWNERS.values() for t, _ in each)])
)
IN_TABLES: dict[str, tuple[Callable[[Bundle], str], tuple[str, ...]]] = {
    WHO: (holders, OF_HOLDERS),
    GREW: (grown, ("watch_holders", "gauge_series")),
    FREE: (freed, ("would_free",)),
    RESERVE: (raisable, (min_free.table, *min_free.others)),
}


def _deed(row: Row) -> str:
    """A deed of table ``would_free`` with what it is done to."""
    if row["pid"] is not None:
        process = f"{cut(row['comm'], MOST_NAMED)} (pid {row['pid']})"
        what = cut(row["name"] or "", MOST_NAMED)
        return f"{what} of {process} {row['deed']}" if what else f"the end of {process}"
    what = row["path"] or row["cgroup"] or row["name"]
    return f"{row['deed']} ({cut(what, MOST_NAMED)})" if what else str(row["deed"])
