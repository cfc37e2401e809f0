# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle's sections, tables, pictures and findings, as the page shows them.

A picture belongs to a table and appears wherever that table is. One damaged table, or a picture
that cannot be drawn, costs itself only, and the page says so.

Cannot know: the rows of a table beyond those that are shown; they are counted.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from mmscope.drgn.tables import display
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import Column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, SectionResult, Table
from mmscope.reports.compare.comparison import Comparison
from mmscope.reports.compare.difference_pictures import DIFFERENCES
from mmscope.reports.drawing import downloads
from mmscope.reports.drawing.cells import Cell, cell, is_name
from mmscope.reports.drawing.downloads import Download
from mmscope.reports.findings.findings import Finding
from mmscope.reports.findings.incidents import Alike, Incident
from mmscope.reports.findings.proof import Proof
from mmscope.reports.page.drawn import PictureView
from mmscope.reports.page.environment import MAX_ROWS, text_classes
from mmscope.reports.page.lights import lights
from mmscope.reports.page.missing import why_missing
from mmscope.reports.page.picture_rows import blame
from mmscope.reports.page.sentences import host_of, intro, target_text

MAX_CELLS = 1200
# A stack is as long as ten other rows.
MAX_STACK_ROWS = 40
# A series is looked at in its chart, or taken from the bundle.
MAX_SERIES_ROWS = 60
# Of a finding, beyond the first ones.
MAX_PROVEN = 20


@dataclass(frozen=True, slots=True)
class TableView:
    """One table as it is shown: its first rows."""

    name: str
    title: str
    columns: list[Column]
    text: str  # the classes that say which columns are text
    rows: list[list[Cell]]
    total: int
    error: str
    download: Download | None  # all of it, if these are not
    # Of rows that findings stand on, their number here to the anchors that the first ones have.
    proven: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    of: dict[int, str] = dataclasses.field(default_factory=dict)  # the findings' numbers
    further: int = 0  # rows behind the first ones, shown since findings stand on them
    zeros: int = 0  # rows at the end that are all zero, where findings stand on others


@dataclass(frozen=True, slots=True)
class SectionView:
    """One section of the page."""

    anchor: str
    name: str
    intro: Markup  # empty if the section is not known here
    status: str
    section: SectionResult | None  # None: the bundle has its tables, but not how it fared
    tables: list[TableView]
    pictures: dict[str, list[PictureView]]  # by the table they belong to
    findings: list["FindingView"]

    @property
    def drawn(self) -> set[str]:
        """Tables that a picture here shows."""
        return {name for views in self.pictures.values() for view in views for name in view.tables}


@dataclass
class FindingView:
    """A finding with its place in the page."""

    anchor: str
    finding: Finding
    links: list[tuple[str, str]]  # (title, address or empty)
    text: list[str]  # lines to paste into a ticket
    lights: str  # what it is about, elsewhere in the page
    evidence: str  # anchor of its section, empty if the bundle has no such section
    tables: list[tuple[str, str]]  # (table, anchor) of what it was found in, as the page has it
    like: "FindingView | None"  # the one before it whose every word but what was seen is the same
    open: bool = False  # why it hurts and what to do are shown unasked


@dataclass(frozen=True, slots=True)
class IncidentView:
    """Findings that belong together."""

    causes: list[FindingView]
    effects: list[FindingView]
    of_recording: bool

    @property
    def findings(self) -> list[FindingView]:
        return [*self.causes, *self.effects]


def _anchor(prefix: str, name: str, taken: set[str]) -> str:
    """An id for something whose name may be anything, that no other has."""
    slug = re.sub(r"[^a-z0-9_]+", "-", name.lower())[:60].strip("-") or "unnamed"
    anchor = f"{prefix}-{slug}"
    for number in itertools.count(2):
        if anchor not in taken:
            break
        anchor = f"{prefix}-{slug}-{number}"
    taken.add(anchor)
    return anchor


def section_views(
    bundle: Bundle,
    pictures: Callable[[str], list[PictureView]],
    page_size: int | None,
    found: Sequence[Finding] = (),
) -> list[SectionView]:
    """
    The bundle's sections in its order; then tables whose section is not listed there.

    :param pictures: of the table of that name.
    :param found: whose rows are marked.
    """
    stood_on: dict[str, list[tuple[str, Proof]]] = {}
    for finding in found:
        for proof in finding.proofs:
            anchor = proof_anchor(found, finding, proof)
            stood_on.setdefault(proof.table, []).append((anchor, proof))
    tables: dict[str, list[Table]] = {}
    for table in bundle.tables.values():
        if table.name not in ("sections", IMPOSSIBLE):  # shown with the reading itself
            tables.setdefault(table.section, []).append(table)
    listed = {section.section or "unnamed": section for section in bundle.sections}
    # First, since pictures may be drawn meanwhile.
    shown = {
        name: [table_view(bundle, table, page_size, _rows_of(table, stood_on)) for table in here]
        for name, here in tables.items()
    }
    taken: set[str] = set()
    views = []
    for name in [*listed, *(name for name in tables if name not in listed)]:
        section = listed.get(name)
        views.append(
            SectionView(
                anchor=_anchor("section", name, taken),
                name=name or "unnamed",
                intro=intro(name),
                status=section.status or "unknown" if section else "unknown",
                section=section,
                tables=shown.get(name, []),
                pictures={table.name: pictures(table.name) for table in tables.get(name, ())},
                findings=[],
            )
        )
    return views


def differences(comparison: Comparison, environment: Environment) -> Iterator[PictureView]:
    """What differs, drawn: of tables that both bundles have whole; or why it is not."""
    before, after = comparison.bundles
    page_size = display.plain_int(after.target.get("page_size"))
    one_size = before.target.get("total_pages") == after.target.get("total_pages")
    for name, table, columns, compare, same_size in DIFFERENCES:
        if same_size and not one_size:
            continue
        rows = [_whole(bundle, table, columns) for bundle in comparison.bundles]
        if not rows[0] or not rows[1]:
            continue
        # As of a section's picture: whatever comes of it costs it alone.
        html, why, fault = "", "", None
        try:
            html = environment.get_template(f"difference_{name}.html").render(
                data=compare(rows[0], rows[1], page_size), sides=comparison.relation.dates
            )
        except Exception as error:
            looked_at = ((b, table, r) for b, r in zip(comparison.bundles, rows, strict=True))
            why, fault = why_missing(f"difference_{name}", error, table, looked_at)
        if why or html.strip():
            yield PictureView(name, Markup(html), why, fault=fault)


def _whole(bundle: Bundle, name: str, needed: set[str]) -> list[dict[str, Any]]:
    """A table's rows; none of one that is damaged, too long, or lacks a column."""
    table = bundle.tables.get(name)
    if table is None or not needed <= {column.name for column in table.columns}:
        return []
    found, _ = bundle.held([name])
    return list(found.get(name, ()))


def table_view(
    bundle: Bundle,
    table: Table,
    page_size: int | None,
    stood_on: Sequence[tuple[str, Proof]] = (),
) -> TableView:
    """
    The first rows of a table, and how many there are.

    :param stood_on: rows that findings stand on, and an anchor for the first of each.
    """
    rows: list[list[Cell]] = []
    proven: dict[int, list[str]] = {}
    of: dict[int, str] = {}
    taken: set[str] = set()
    read: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        anchors = [anchor for anchor, proof in stood_on if proof.holds(row)]
        if anchors:
            of[len(rows)] = " ".join(anchor.split("-")[1] for anchor in anchors)
            proven[len(rows)] = [each for each in anchors if each not in taken]
            taken.update(anchors)
        read.append(row)
        rows.append([cell(row[c.name], c, page_size) for c in table.columns])

    total, further, error = 0, 0, ""
    try:
        # The first rows first: of a damaged table, what stands before the damage is shown.
        for row in itertools.islice(bundle.rows(table.name), _most(table)):
            add(row)
        _mark_impossible(bundle, table, rows)
        total = bundle.count(table.name)
        # What proves something is not left out for being far down.
        if total > len(rows):
            for row in _further(bundle, table.name, stood_on, taken):
                add(row)
                further += 1
    except BundleError as caught:
        error = blame(bundle, caught)
        with contextlib.suppress(BundleError):
            for _ in bundle.rows(table.name):
                total += 1
    cut = not error and total > len(rows) - further
    seen = TableView(
        name=table.name,
        title=table.title,
        columns=table.columns,
        text=text_classes(c.type not in ("integer", "number") for c in table.columns),
        rows=rows,
        total=total,
        error=error,
        download=downloads.table(bundle, table) if cut else None,
        proven=proven,
        of=of,
        further=further,
    )
    return _proven_first(seen, read) if of else seen


def _mark_impossible(bundle: Bundle, table: Table, rows: list[list[Cell]]) -> None:
    """Say of what cannot be that it cannot."""
    at = {column.name: number for number, column in enumerate(table.columns)}
    for mark in bundle.impossible(table.name):
        if mark.row_number <= len(rows):
            cells, number = rows[mark.row_number - 1], at[mark.column_name]
            cells[number] = dataclasses.replace(cells[number], impossible=mark.bound)


def _proven_first(table: TableView, read: list[dict[str, Any]]) -> TableView:
    """What findings stand on below the headings, the worst first; rows of zeros at the end."""
    amounts = [c.name for c in table.columns if c.type in ("integer", "number") and not is_name(c)]
    zero = [bool(amounts) and all(row[name] == 0 for name in amounts) for row in read]
    zeros = {number for number in range(len(read)) if zero[number] and number not in table.of}
    of = {number: min(map(int, names.split())) for number, names in table.of.items()}
    order = sorted(range(len(read)), key=lambda n: (n not in of, of.get(n, n in zeros), n))
    place = {number: at for at, number in enumerate(order)}
    return dataclasses.replace(
        table,
        rows=[table.rows[number] for number in order],
        proven={place[number]: anchors for number, anchors in table.proven.items()},
        of={place[number]: numbers for number, numbers in table.of.items()},
        zeros=len(zeros),
    )


def _most(table: Table) -> int:
    """How many rows of a table the page has."""
    most = MAX_STACK_ROWS if any(c.name == "stack" for c in table.columns) else MAX_ROWS
    if any(c.name == "time" and c.key for c in table.columns):
        most = MAX_SERIES_ROWS
    return min(most, max(MAX_CELLS // len(table.columns), 1))


def _rows_of(table: Table, stood_on: dict[str, list[tuple[str, Proof]]]) -> list[tuple[str, Proof]]:
    """The proofs for which a table has the columns."""
    names = {column.name for column in table.columns}
    return [each for each in stood_on.get(table.name, ()) if each[1].columns <= names]


def _further(
    bundle: Bundle, table: str, stood_on: Sequence[tuple[str, Proof]], taken: set[str]
) -> Iterator[dict[str, Any]]:
    """The first rows that findings stand on of which no row is shown yet."""
    for anchor, proof in stood_on:
        if anchor not in taken and proof.equal:
            column, values = proof.equal[0]
            rows = bundle.rows(table, where=(column, set(values)))
            yield from itertools.islice(filter(proof.holds, rows), MAX_PROVEN)


def proof_anchor(found: Sequence[Finding], finding: Finding, proof: Proof) -> str:
    """The id of the first row that a finding stands on in a table."""
    return f"proof-{number_of(found, finding)}-{proof.table}"


def number_of(found: Sequence[Finding], finding: Finding) -> int:
    """Of a finding among all."""
    return next(n for n, other in enumerate(found, 1) if other is finding)


def incident_views(
    bundle: Bundle,
    told: list[Incident],
    anchors: dict[str, str],
    found: Sequence[Finding],
    sections: Sequence[SectionView],
) -> Iterator[IncidentView]:
    """
    The incidents; the first one's worst cause is open.

    :param found: as they were given to :func:`section_views`, whose *sections* have their rows.
    """
    taken: set[str] = set()
    rows = {
        anchor
        for section in sections
        for table in section.tables
        for proven in table.proven.values()
        for anchor in proven
    }

    def evidence(finding: Finding) -> list[tuple[str, str]]:
        goals = {name: f"table-{name}" for name in finding.tables if name in bundle.tables}
        for proof in finding.proofs:
            if (anchor := proof_anchor(found, finding, proof)) in rows:
                goals[proof.table] = anchor
        return list(goals.items())

    for number, incident in enumerate(told):
        causes, effects = (
            list(_finding_views(bundle, part, anchors, evidence, taken, found))
            for part in (incident.causes, incident.effects)
        )
        causes[0].open = number == 0
        yield IncidentView(causes, effects, incident.of_recording)


def _finding_views(
    bundle: Bundle,
    told: tuple[Alike, ...],
    anchors: dict[str, str],
    evidence: Callable[[Finding], list[tuple[str, str]]],
    taken: set[str],
    found: Sequence[Finding],
) -> Iterator[FindingView]:
    numbers: dict[str, int] = {}
    first: FindingView | None = None
    for finding in (finding for each in told for finding in each):
        numbers[finding.id] = numbers.get(finding.id, 0) + 1
        view = FindingView(
            anchor=_anchor("finding", f"{finding.id}-{numbers[finding.id]}", taken),
            finding=finding,
            links=[(title, _address(url)) for title, url in finding.links],
            text=finding_text(bundle, finding),
            lights=lights(finding, number_of(found, finding)),
            evidence=anchors.get(finding.section, ""),
            tables=evidence(finding),
            like=first if first and _advice(first.finding) == _advice(finding) else None,
        )
        if view.like is None:
            first = view
        yield view


def _advice(finding: Finding) -> tuple[Any, ...]:
    """What may be the same of several: a zone or a process each."""
    return finding.id, finding.severity, finding.why, finding.next, finding.links, finding.sources


def _address(url: str) -> str:
    """An address that may be a link: plain https or http, nothing that a browser would run."""
    return url if re.fullmatch(r"https?://[!-~]+", url) else ""


def finding_text(bundle: Bundle, finding: Finding) -> list[str]:
    """A finding as lines of plain text that stand by themselves in a ticket or a chat."""

    def plain(text: object) -> str:
        return visible(display.prose(target_text(text)))

    target = bundle.target
    where = [
        host_of(bundle),
        target_text(target.get("release")),
        target_text(target.get("captured_at")),
    ]
    lines = [
        f"{plain(finding.severity).upper()}{finding.aside}: {plain(finding.title)}",
        f"({plain(', '.join(filter(None, where)))}; mmscope {plain(bundle.version)})",
        f"Seen: {plain(finding.saw)}",
        f"Why it hurts: {plain(finding.why)}",
    ]
    if finding.next:
        lines.append("Next:")
        lines += [f"{number}. {plain(step.text)}" for number, step in enumerate(finding.next, 1)]
    lines += [f"Source: {plain(source)}" for source in finding.sources]
    lines += [f"{plain(title)}: {plain(url)}" for title, url in finding.links]
    return lines
