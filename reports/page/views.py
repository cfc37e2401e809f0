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
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mmscope.drgn.tables import display
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, SectionResult, Table
from mmscope.reports.compare.comparison import Comparison
from mmscope.reports.compare.difference_pictures import DIFFERENCES
from mmscope.reports.drawing import downloads
from mmscope.reports.drawing.cells import Cell, cell, is_name
from mmscope.reports.findings.finding import Finding
from mmscope.reports.findings.incidents import Alike, Incident
from mmscope.reports.findings.proof import Proof
from mmscope.reports.page.drawn import PictureView, blame
from mmscope.reports.page.environment import MAX_ROWS, environment, text_classes
from mmscope.reports.page.missing import why_missing
from mmscope.reports.page.sentences import host_of, intro, target_text
from mmscope.reports.pictures.pageblock_map import look

MAX_CELLS = 1200
# A stack is as long as ten other rows.
MAX_STACK_ROWS = 40
# A series is looked at in its chart, or taken from the bundle.
MAX_SERIES_ROWS = 60
# Of a finding, beyond the first ones.
MAX_PROVEN = 20
NUMBERS = ("integer", "number")

# Tables whose rows are cells of the heat map, and kinds of cells of the pageblock map.
FREE_BLOCKS = "free_blocks"
OF_A_TYPE = (FREE_BLOCKS, "pageblocks", "pageblock_map")
OF_A_ZONE = (FREE_BLOCKS, "zones")
PLACE = ("node", "zone", "migratetype")

Row = dict[str, Any]

# An anchor for the first row that a finding stands on in a table, and which rows these are.
Stood = Sequence[tuple[str, Proof]]


@dataclass(frozen=True, slots=True)
class SectionView:
    """One section of the page."""

    anchor: str
    name: str
    intro: Markup  # empty if the section is not known here
    status: str
    section: SectionResult | None  # None: the bundle has its tables, but not how it fared
    tables: list[Row]
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
    pictures: dict[str, list[PictureView]],
    page_size: int | None,
    found: Sequence[Finding] = (),
) -> list[SectionView]:
    """
    The bundle's sections in its order; then tables whose section is not listed there.

    :param pictures: by their table.
    :param found: whose rows are marked.
    """
    tables: dict[str, list[Row]] = {}
    for table in bundle.tables.values():
        if table.name in ("sections", IMPOSSIBLE):  # shown with the reading itself
            continue
        names = table.column_names
        stood_on = [
            (proof_anchor(found, finding, proof), proof)
            for finding in found
            for proof in finding.proofs
            if proof.table == table.name and proof.columns <= names
        ]
        view = table_view(bundle, table, page_size, stood_on)
        tables.setdefault(table.section, []).append(view)
    listed = {section.section or "unnamed": section for section in bundle.sections}
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
                tables=tables.get(name, []),
                pictures={t["name"]: pictures.get(t["name"], []) for t in tables.get(name, ())},
                findings=[],
            )
        )
    return views


def differences(comparison: Comparison, context: dict[str, Any]) -> Iterator[PictureView]:
    """Pictures of differences, of tables that both bundles have whole; or why one is missing."""
    before, after = comparison.bundles
    page_size = after.page_size
    one_size = before.target.get("total_pages") == after.target.get("total_pages")
    for name, table, columns, compare, same_size in DIFFERENCES:
        if same_size and not one_size:
            continue
        rows = [_whole(bundle, table, set(columns.split())) for bundle in comparison.bundles]
        if not rows[0] or not rows[1]:
            continue
        # As of a section's picture: whatever comes of it costs it alone.
        html, why, fault = "", "", None
        try:
            template = environment().get_template(f"difference_{name}.html")
            data = compare(rows[0], rows[1], page_size)
            html = template.render(context, data=data, sides=comparison.relation.dates)
        except Exception as error:
            looked_at = ((b, table, r) for b, r in zip(comparison.bundles, rows, strict=True))
            why, fault = why_missing(f"difference_{name}", error, table, looked_at)
        if why or html.strip():
            yield PictureView(name, Markup(html), why, fault=fault)


def _whole(bundle: Bundle, name: str, needed: set[str]) -> list[Row]:
    """A table's rows; none of one that is damaged, too long, or lacks a column."""
    table = bundle.tables.get(name)
    if table is None or not needed <= table.column_names:
        return []
    found, _ = bundle.held([name])
    return list(found.get(name, ()))


def table_view(bundle: Bundle, table: Table, page_size: int | None, stood_on: Stood = ()) -> Row:
    """
    The first rows of a table, and how many there are. A row is (cells, numbers of the findings that
    stand on it, those anchors that it has).
    """
    rows: list[tuple[list[Cell], list[int], list[str]]] = []
    read: list[Row] = []
    taken: set[str] = set()

    def add(row: Row) -> None:
        anchors = [anchor for anchor, proof in stood_on if proof.holds(row)]
        numbers = [int(anchor.split("-")[1]) for anchor in anchors]
        cells = [cell(row[c.name], c, page_size) for c in table.columns]
        rows.append((cells, numbers, [each for each in anchors if each not in taken]))
        read.append(row)
        taken.update(anchors)

    total, further, error = 0, 0, ""
    try:
        # The first rows first: of a damaged table, what stands before the damage is shown.
        for row in itertools.islice(bundle.rows(table.name), _most(table)):
            add(row)
        at = {column.name: number for number, column in enumerate(table.columns)}
        for mark in bundle.impossible(table.name):
            if mark.row_number <= len(rows):
                cells, number = rows[mark.row_number - 1][0], at[mark.column_name]
                cells[number] = dataclasses.replace(cells[number], impossible=mark.bound)
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
    zeros = 0
    if taken:
        # What findings stand on below the headings, the worst first; rows of zeros at the end.
        amounts = [c.name for c in table.columns if c.type in NUMBERS and not is_name(c)]
        zero = [
            bool(amounts) and not of and all(row[name] == 0 for name in amounts)
            for row, (_, of, _) in zip(read, rows, strict=True)
        ]
        zeros = sum(zero)
        order = sorted(range(len(rows)), key=lambda n: (not rows[n][1], *rows[n][1][:1], zero[n]))
        rows = [rows[n] for n in order]
    cut = not error and total > len(rows) - further
    return {
        "name": table.name,
        "title": table.title,
        "columns": table.columns,
        "text": text_classes(c.type not in NUMBERS for c in table.columns),
        "stack": next((at for at, c in enumerate(table.columns) if c.name == "stack"), None),
        "rows": rows,
        "total": total,
        "error": error,
        "download": downloads.table(bundle, table) if cut else None,
        "proven": bool(taken),
        "further": further,  # after the first ones: findings stand on them
        "zeros": zeros,  # at the end, where findings stand on others
    }


def _most(table: Table) -> int:
    """Number of rows of a table that the page has."""
    most = MAX_STACK_ROWS if any(c.name == "stack" for c in table.columns) else MAX_ROWS
    if any(c.name == "time" and c.key for c in table.columns):
        most = MAX_SERIES_ROWS
    return min(most, max(MAX_CELLS // len(table.columns), 1))


def _further(bundle: Bundle, table: str, stood_on: Stood, taken: set[str]) -> Iterator[Row]:
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
    """Number of a finding among all."""
    return next(n for n, other in enumerate(found, 1) if other is finding)


def incident_views(
    bundle: Bundle,
    grouped: list[Incident],
    found: Sequence[Finding],
    sections: Sequence[SectionView],
) -> list[Row]:
    """
    The incidents with their causes and effects; the first one's worst cause is open.

    :param found: as they were given to :func:`section_views`, whose *sections* have their rows.
    """
    anchors = {section.name: section.anchor for section in reversed(sections)}
    proven = {
        anchor
        for section in sections
        for table in section.tables
        for *_, of_row in table["rows"]
        for anchor in of_row
    }
    numbers: Counter[str] = Counter()
    taken: set[str] = set()

    def views(part: Sequence[Alike]) -> Iterator[FindingView]:
        first: FindingView | None = None
        numbers.clear()
        for finding in (finding for each in part for finding in each):
            goals = {name: f"table-{name}" for name in finding.tables if name in bundle.tables}
            for proof in finding.proofs:
                if (anchor := proof_anchor(found, finding, proof)) in proven:
                    goals[proof.table] = anchor
            numbers[finding.id] += 1
            view = FindingView(
                anchor=_anchor("finding", f"{finding.id}-{numbers[finding.id]}", taken),
                finding=finding,
                links=[(title, _address(url)) for title, url in finding.links],
                text=finding_text(bundle, finding),
                lights=lights(finding, number_of(found, finding)),
                evidence=anchors.get(finding.section, ""),
                tables=list(goals.items()),
                like=first if first and _advice(first.finding) == _advice(finding) else None,
            )
            if view.like is None:
                first = view
            yield view

    incidents: list[Row] = []
    for incident in grouped:
        causes, effects = list(views(incident.causes)), list(views(incident.effects))
        causes[0].open = not incidents
        view = {"causes": causes, "effects": effects, "findings": causes + effects}
        incidents.append(view | {"of_recording": incident.of_recording})
    return incidents


def lights(finding: Finding, number: int) -> str:
    """
    Marks of a finding in the page's tables and pictures, for ``lights.js``, as JSON:
    ``number``, that rows of tables have; ``classes`` of the memory ledger; ``free`` and ``zones``,
    the values that a cell or a zone must have; ``looks`` of cells of the pageblock map.
    """
    places: list[tuple[str, Row]] = []
    for proof in finding.proofs:
        place: Row = {name: list(v) for name, v in proof.equal if name in PLACE}
        least = dict(proof.least).get("order")
        places.append((proof.table, place | ({"least": least} if least is not None else {})))
    types = {
        str(value)
        for table, place in places
        if table in OF_A_TYPE
        for value in place.get("migratetype", ())
    }
    lit = {
        "number": number,
        "classes": list(finding.classes),
        "free": [place for table, place in places if table == FREE_BLOCKS],
        "zones": [place for table, place in places if table in OF_A_ZONE and "node" in place],
        "looks": sorted({look(name) for name in types}),
    }
    return json.dumps(lit, separators=(",", ":"))


def _advice(finding: Finding) -> tuple[Any, ...]:
    """Parts that may be the same of several findings: about a zone or a process each."""
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
