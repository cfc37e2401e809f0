# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The incident card: what the first screen says. What is wrong and what it likely comes from, how bad
it is, since when, what to do first, and all memory in one bar with what it is about marked. Beside
it a small picture: what the likely cause is about, marked among its like.

Cannot know: more than the findings, and the rows on which they stand (``proof``). Where they
found nothing it says what was checked.
"""

import contextlib
import heapq
import itertools
import shlex
from collections import Counter
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.display import bar_percent
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.drawing.row_names import DESCRIBES, name_of
from mmscope.reports.findings.finding import CANNOT_TELL, TROUBLE, Finding, Verdict
from mmscope.reports.findings.incidents import COMMAND, Incident
from mmscope.reports.findings.proof import Proof
from mmscope.reports.findings.question import SEVERITIES
from mmscope.reports.findings.verdict import HARM_WORDS, first_incident, sentence
from mmscope.reports.page.missing import fault_in
from mmscope.reports.pictures.memory_bar import memory_bar, segments
from mmscope.reports.pictures.picture import Row

NOUNS = {"critical": ("critical finding",), "warning": ("warning",), "notice": ("notice",)}
MAX_HARM = 3  # effects that it names
FREE_BLOCKS = "free_blocks"
MAX_BARS = 5
MAX_ORDERS = 16  # what there is room for; no kernel has more
# Memory without an owner, that is there anyway, or all of it: a bar of these blames no one.
BLAMELESS = {"free", "mapped", "all"}


def card(
    bundle: Bundle,
    verdict: Verdict,
    grouped: list[Incident],
    host: str,
    faults: list[Fault] | None = None,
) -> dict[str, Any]:
    """
    First words of a report; texts are plain, with values from the bundle in them.

    :param grouped: the incidents of *verdict*, the worst first.
    :param host: its name, if it has one.
    :param faults: gets what mmscope failed to draw.
    """
    memory: list[Row] = []
    whose = f"{host}: " if host else ""
    table = bundle.tables.get(memory_bar.table)
    if table and memory_bar.columns <= table.column_names:
        # Its section has the same picture, or says why not.
        with contextlib.suppress(Exception):
            memory = segments(list(bundle.rows(table.name)))
    if not grouped:
        said = {
            "sentence": whose + sentence(verdict, wants=False),
            "counted": "",
            "severity": "",
            "unclear": verdict.word == CANNOT_TELL,
        }
        return said | {"seen": None, "memory": memory, "marked": set()}
    first = first_incident(verdict)
    cause, *_ = first.causes[0]
    step, _ = first.first_step or (None, "")
    live = bundle.target.get("kind") == "live"
    trouble = verdict.word == TROUBLE
    words = f"Trouble: {first.seen}" if trouble else sentence(verdict, wants=False)
    return {
        "sentence": words if trouble else whose + words,
        "counted": counted(verdict, grouped),
        "severity": first.severity,
        "trouble": trouble,
        "seen": cause,  # the likely one
        "cause": first.cause,
        "worst": first.effects[0][0] if first.effects else cause,
        "harm": [worst for worst, *_ in first.effects[:MAX_HARM]],
        "harm_words": HARM_WORDS[first.effects[0][0].harm if first.effects else cause.harm],
        "owner": first.owner,
        "since": first.since,
        "step": step,
        "do": _with_its_command(step.do) if step else "",
        "path": path_of(bundle),
        "live": live,
        "elsewhere": not live and bool(step and not step.looks),
        "memory": memory,
        "marked": {name for each in first.causes for finding in each for name in finding.classes},
        "culprit": culprit(bundle, cause, bundle.page_size, faults),
    }


def _with_its_command(do: str) -> str:
    """A step up to the sentence with its command: what follows stands with its finding."""
    words = display.prose(do)
    command = COMMAND.search(words)
    end = words.find(". ", command.end()) if command else -1
    return words if end < 0 else words[: end + 1]


def path_of(bundle: Bundle) -> str:
    """The path of the bundle, as it was given, for a shell."""
    return shlex.quote(
        visible(bundle.path.name if "redacted" in bundle.target else str(bundle.path))
    )


def counted(verdict: Verdict, grouped: list[Incident]) -> str:
    """Number of findings by severity, and of incidents."""
    parts = [
        display.plural(number, *NOUNS[severity])
        for severity in SEVERITIES
        if (number := sum(finding.severity == severity for finding in verdict.found))
    ]
    others = sum(finding.severity not in SEVERITIES for finding in verdict.found)
    if others:
        parts.append(display.plural(others, "other"))
    listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    things = sum(len(each.all) for each in grouped)
    if len(grouped) == things:
        return listed
    return f"{listed}, in {display.plural(len(grouped), 'incident')}"


def culprit(
    bundle: Bundle, finding: Finding, page_size: int | None, faults: list[Fault] | None = None
) -> Row | None:
    """
    Subject of a finding, marked among its like; None where it would say no more than its words.

    Of free memory it is the orders of one zone, side by side (``upright``); of memory with an owner
    the largest rows of the table that the finding stands on. A bar is (name, amount, width, width
    of what is marked, whether it is what the finding is about, though nothing may be there); widths
    are per cent of the longest.

    :param faults: gets what mmscope failed to draw.
    """
    for proof in finding.proofs:
        table = bundle.tables.get(proof.table)
        if table is None or not proof.columns <= table.column_names:
            continue
        draw = _orders if proof.table == FREE_BLOCKS else _owners
        try:
            if found := draw(bundle, proof, page_size):
                return found
        except BundleError:  # damaged: which its section says
            continue
        except Exception as error:
            if faults is not None:
                faults += fault_in(bundle, f"of {finding.id}", error, proof.table)
    return None


def _orders(bundle: Bundle, proof: Proof, page_size: int | None) -> Row | None:
    """Free memory of the proof's zones by order, with that of the proof marked."""
    zones = [each for each in proof.equal if each[0] in ("node", "zone")]
    pages: Counter[int] = Counter()
    marked: Counter[int] = Counter()
    for row in bundle.rows(FREE_BLOCKS):
        if all(row[name] in values for name, values in zones):
            pages[row["order"]] += row["pages"]
            if proof.holds(row):
                marked[row["order"]] += row["pages"]
    least = dict(proof.least).get("order")
    most = max(pages.values(), default=0)
    if not most or len(pages) > MAX_ORDERS or (least is None and not marked):
        return None
    bars = [
        (
            str(order),
            display.pages(pages[order], page_size),
            bar_percent(pages[order], most),
            bar_percent(marked[order], most),
            order in marked or (least is not None and order >= least),
        )
        for order in sorted(pages)
    ]
    where = ", ".join(f"{name} {values[0]}" for name, values in zones)
    types = dict(proof.equal).get("migratetype")
    whose = f" of type {types[0]}" if types else ""
    held = display.pages(marked.total(), page_size) if marked else "nothing"
    of = f" of order {least} and above" if least is not None else ""
    words = f"Free memory by order, {where or 'all zones'}; marked: {held}{whose}{of}"
    return {"words": words, "table": FREE_BLOCKS, "upright": True, "bars": bars}


def _owners(bundle: Bundle, proof: Proof, page_size: int | None) -> Row | None:
    """The rows of a table that have most, with those of the proof marked."""
    declared, table = TABLES.get(proof.table), bundle.tables[proof.table]
    if declared is None or declared.memory in BLAMELESS:
        return None
    sizes = [c for c in table.columns if c.unit in ("pages", "bytes")]
    measure = next((c for c in sizes if declared.measure in ("", c.name)), None)
    if measure is None:
        return None

    def sized(row: Row) -> int:
        return int(row[measure.name] or 0)

    named = [c for c in table.columns if c.key or c.name in DESCRIBES]
    rows = heapq.nlargest(MAX_BARS, bundle.rows(proof.table), key=sized)
    if not any(proof.holds(row) for row in rows):
        proven = filter(proof.holds, bundle.rows(proof.table))
        rows = [*rows[:-1], *itertools.islice(proven, 1)]
    if len(rows) < 2 or not sized(rows[0]):
        return None
    bars = []
    for row in rows:
        amount, guilty = sized(row), proof.holds(row)
        said = display.pages(amount, page_size) if measure.unit == "pages" else display.size(amount)
        width = bar_percent(amount, sized(rows[0]))
        name = name_of(named, tuple(row[c.name] for c in named))
        bars.append((name, said, width, width if guilty else 0.0, guilty))
    words = f"{declared.title}, the largest; marked: what it is about"
    return {"words": words, "table": proof.table, "upright": False, "bars": bars}
