# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The report: a bundle and its findings as one HTML file that needs nothing else.

``render`` is a pure function: the same bundle gives the same bytes (where the same program draws
the flame graphs). Everything that is in a bundle
is hostile until shown otherwise (a process may call itself ``<script>``): every value goes through
one environment that makes control characters visible and escapes, no value becomes markup, style,
script or an address, and a policy in the page forbids whatever might slip through.

A section's title and intro, and what an empty table means, are declared with them; a picture
belongs to a table and appears wherever that table is. So a section that is new to this file shows
with all its tables. One damaged table, or a picture that cannot be drawn, costs itself only, and
the page says so.

Cannot know: what is not in the bundle. A report of a bundle is as complete as the reading was.
"""

import base64
import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from mmscope import FOLDER, __version__
from mmscope.drgn.tables import display
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import Column
from mmscope.reports.bundle import bundle_format
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, SectionResult, Table, version_number
from mmscope.reports.bundle.leftovers import replaced
from mmscope.reports.bundle.modes import mode_of_file
from mmscope.reports.compare import comparison_view
from mmscope.reports.compare.comparison import Comparison
from mmscope.reports.compare.declared import HEADINGS, TABLES
from mmscope.reports.drawing import charts, downloads
from mmscope.reports.drawing.cells import Cell, cell, is_name
from mmscope.reports.drawing.downloads import Download, Downloads
from mmscope.reports.findings.findings import (
    SEVERITIES,
    Finding,
    Verdict,
    all_clear,
    how_many,
    lacking,
    severity_rank,
)
from mmscope.reports.page.glossary import Glossary
from mmscope.reports.pictures import free_heatmap, pageblock_map, profile_pictures
from mmscope.reports.pictures.picture import Picture, Tables
from mmscope.reports.pictures.registry import CHOSEN, LOOKED_AT, PARTS, PICTURES

TEMPLATES = FOLDER / "templates"
# A browser lays so much out at once; nobody reads more in a report.
MAX_ROWS = 500
MAX_CELLS = 1200
# What report.css tells apart; a wider table has text set like numbers from there on.
MAX_TEXT_COLUMNS = 24
# Sections that a sentence names.
MAX_NAMED = 5
# So many findings leave room for the sections beside them.
MAX_CONTENTS = 8
# A stack is as long as ten other rows.
MAX_STACK_ROWS = 40
# A series is looked at in its chart, or taken from the bundle.
MAX_SERIES_ROWS = 60
# Of the tables that are held in part.
MAX_PART_ROWS = 300_000
SOURCES = {
    "live": "live kernel",
    "vmcore": "vmcore",
    "qemu": "QEMU guest",
    "files": "text files (/proc, /sys)",
}
FACTS = {
    *("hostname", "release", "architecture", "kind", "source", "captured_at", "uptime_seconds"),
    *("page_size", "total_pages", "online_cpus"),
}
# What the reader must know of the reading before any number: `collect` notes it in the target.
CAVEATS = {
    "redacted": "Names are replaced",
    "truncated": "The dump is not whole",
    "left_out": "makedumpfile left memory out of the dump",
    "fallback": "The kernel's memory was not read, only /proc and /sys",
}
NOUNS = {
    "critical": ("critical finding",),
    "warning": ("warning",),
    "notice": ("notice",),
}
# What a picture of a stranger's table may fail with.
EXPECTED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TemplateError)
STATUSES = ("ok", "partial", "absent", "failed")


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class PictureView:
    """A picture, or why there is none."""

    name: str
    html: Markup
    error: str


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class FindingView:
    """A finding with its place in the page."""

    anchor: str
    finding: Finding
    links: list[tuple[str, str]]  # (title, address or empty)
    text: list[str]  # lines to paste into a ticket
    evidence: str  # anchor of its section, empty if the bundle has no such section
    tables: list[str]  # that it was found in, and that the page has
    like: "FindingView | None"  # the one before it whose every word but what was seen is the same


def render(bundle: Bundle, verdict: Verdict, comparison: Comparison | None = None) -> str:
    """
    The report of one bundle, as the text of one HTML file.

    :param comparison: with a baseline; of this bundle and this verdict.
    """
    page_size = display.plain_int(bundle.target.get("page_size"))
    if page_size is not None and not 0 < page_size < 1 << 40:
        page_size = None
    environment = _environment(page_size, _uptime(bundle))
    offers = Downloads()
    words = Glossary()
    # Of this page, which has both their places.
    environment.filters["terms"] = words.mark
    environment.globals.update(offer=offers.offer, glossary=words)
    sections = _sections(bundle, environment, page_size)
    anchors = {view.name: view.anchor for view in reversed(sections)}
    host = _host(bundle)
    findings = list(_finding_views(bundle, verdict, anchors))
    for view in sections:
        view.findings.extend(f for f in findings if f.finding.section == view.name)
    style, script = (
        _squeeze(environment.get_template(name).render()) for name in ("report.css", "report.js")
    )
    html = environment.get_template("report.html").render(
        host=host,
        sentence=sentence(verdict, host),
        unknown=unknown(verdict),
        reading=reading(bundle.sections),
        facts=_facts(bundle, page_size),
        caveats=[
            (words, _text(bundle.target[key]))
            for key, words in CAVEATS.items()
            if key in bundle.target
        ]
        + _written_by(bundle),
        unwritten=bundle_format.lacking(bundle).listed,
        other_facts=sorted((k, _text(v)) for k, v in bundle.target.items() if k not in FACTS),
        marks=_table(bundle, bundle.tables[IMPOSSIBLE], page_size, {})
        if IMPOSSIBLE in bundle.tables
        else None,
        findings=findings,
        verdict=verdict,
        sections=sections,
        severities=SEVERITIES,
        most_in_contents=MAX_CONTENTS,
        versus=comparison_view.view(comparison) if comparison else None,
        beside=_beside(comparison) if comparison else [],
        anchor_of=lambda finding: next(
            (view.anchor for view in findings if view.finding is finding), ""
        ),
        style=Markup(style),  # our own files, not the bundle's
        script=Markup(script),
        policy=_policy(style, script),
        bundle_version=bundle.version,
        version=__version__,
    )
    return offers.fill(_squeeze(html) + "\n")


def page(template: str, **values: Any) -> str:
    """A page of another kind, of one of our templates: with the same style, script and policy."""
    environment = _environment(None, "")
    style, script = (
        _squeeze(environment.get_template(name).render()) for name in ("report.css", "report.js")
    )
    html = environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        version=__version__,
        **values,
    )
    return _squeeze(html) + "\n"


def _squeeze(text: str) -> str:
    """Without the empty lines that template statements leave, so that hashes fit what is sent."""
    return re.sub(r"\n\s*\n+", "\n", text).strip()


def write(html: str, path: Path, mode: int | None = None) -> None:
    """
    Write a report so that its name holds all of it, or what was there before.

    :param mode: as asked for (``modes``).
    :raises OSError: it cannot be written; nothing is left behind.
    """
    # Through a symbolic link; and a device or a pipe (/dev/null, /dev/stdout) is written to, never
    # put away for a file of its name.
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(html.encode())
        return
    with replaced(path, mode_of_file(mode, path)) as file:
        file.write(html.encode())


def sentence(verdict: Verdict, host: str) -> str:
    """What is wrong, in one sentence."""
    parts = [
        display.plural(number, *NOUNS[severity])
        for severity in SEVERITIES
        if (number := sum(finding.severity == severity for finding in verdict.found))
    ]
    others = sum(finding.severity not in SEVERITIES for finding in verdict.found)
    if others:
        parts.append(display.plural(others, "other"))
    if parts:
        listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
        worst = min(verdict.found, key=lambda finding: severity_rank(finding.severity))
        return f"{listed} on {host}; worst: {display.prose(worst.title).rstrip('.')}."
    return f"{host}: {all_clear(verdict)}."


def unknown(verdict: Verdict) -> str:
    """How many checks could be made, and what data the others lack; empty where none do."""
    if not verdict.not_checked:
        return ""
    said = f"{how_many(verdict)}. " if verdict.found else ""
    no_data = lacking(verdict, lambda section: section_title(section))
    return f"{said}Not checked: {no_data}."


def reading(sections: list[SectionResult]) -> str:
    """How much of what was to be read was read."""
    if not sections:
        return "no section was read"
    fared = Counter(section.status for section in sections)
    said = [
        f"{fared['ok'] + fared['partial']:,} of {display.plural(len(sections), 'section')} read"
    ]
    for status, words in (
        ("partial", "of these in part"),
        ("failed", "failed"),
        ("absent", "unavailable here"),
    ):
        names = [section.section for section in sections if section.status == status]
        if names:
            more = ", …" if len(names) > MAX_NAMED else ""
            listed = "" if status == "absent" else f" ({', '.join(names[:MAX_NAMED])}{more})"
            said.append(f"{len(names):,} {words}{listed}")
    other = len(sections) - sum(fared[status] for status in STATUSES)
    if other:
        said.append(f"{other:,} of unknown status")
    unreadable = sum(section.unreadable_bytes or 0 for section in sections)
    said.append(f"{display.size(unreadable)} of memory" if unreadable else "no memory")
    said[-1] += " unreadable"
    return "; ".join(said)


def _written_by(bundle: Bundle) -> list[tuple[str, str]]:
    """What the reader must know of a bundle that another version wrote."""
    written, this = version_number(bundle.version), version_number(__version__)
    if written and this and written > this:
        why = "what this version does not know is shown as the bundle describes it, unchecked."
        return [("The bundle is of a newer mmscope", why)]
    if words := bundle_format.not_written(bundle):
        return [("The bundle is of an older mmscope", f"{words}. These are unknown here.")]
    return []


def _host(bundle: Bundle) -> str:
    return _text(bundle.target.get("hostname")) or "a host without a name"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _facts(bundle: Bundle, page_size: int | None) -> list[tuple[str, str, str]]:
    """What was analysed: (label, value, exact value)."""
    target = bundle.target
    total = display.plain_int(target.get("total_pages"))
    memory, exact = "not recorded", ""
    if total is not None and page_size is not None:
        memory, exact = display.size(total * page_size), f"{total * page_size:,} bytes"
    elif total is not None:
        memory = f"{total:,} pages of unknown size"
    kind = _text(target.get("kind"))
    source = SOURCES.get(kind, kind)
    file = _text(target.get("source"))
    cpus = display.plain_int(target.get("online_cpus"))
    kernel = " ".join(filter(None, (_text(target.get(k)) for k in ("release", "architecture"))))
    if page_size is not None:
        memory += f", {display.short_size(page_size)} pages"
    return [
        ("Host", _host(bundle) + (f", {display.plural(cpus, 'CPU')} online" if cpus else ""), ""),
        ("Kernel", kernel or "not recorded", ""),
        ("Read from", f"{source} {file}" if file not in ("", kind) else source, ""),
        ("Captured", _text(target.get("captured_at")) or "not recorded", ""),
        ("Uptime then", _uptime(bundle) or "not recorded", ""),
        ("Memory", memory, exact),
    ]


def _uptime(bundle: Bundle) -> str:
    seconds = bundle.target.get("uptime_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return ""
    return display.duration(seconds)


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


def _sections(bundle: Bundle, environment: Environment, page_size: int | None) -> list[SectionView]:
    """The bundle's sections in its order; then tables whose section is not listed there."""
    tables: dict[str, list[Table]] = {}
    for table in bundle.tables.values():
        if table.name not in ("sections", IMPOSSIBLE):  # shown with the reading itself
            tables.setdefault(table.section, []).append(table)
    listed = {section.section or "unnamed": section for section in bundle.sections}
    known, errors = _known_tables(bundle)
    drawn = known | _parts(bundle, known) | profile_pictures.stacks(bundle)
    taken: set[str] = set()
    views = []
    for name in [*listed, *(name for name in tables if name not in listed)]:
        section = listed.get(name)
        here = tables.get(name, [])
        views.append(
            SectionView(
                anchor=_anchor("section", name, taken),
                name=name or "unnamed",
                intro=intro(name),
                status=section.status or "unknown" if section else "unknown",
                section=section,
                tables=[_table(bundle, table, page_size, known) for table in here],
                pictures={
                    table.name: list(_pictures(table, drawn, errors, environment, page_size))
                    for table in here
                },
                findings=[],
            )
        )
    return views


def section_title(name: str) -> str:
    """What a section is called in the page; one that is not known here goes by its name."""
    return HEADINGS[name].title if name in HEADINGS else name.replace("_", " ")


# Longest first: what is in backticks is nothing else.
MARKED = re.compile(
    r"`(?P<code>[^`]+)`|\*(?P<em>[^*]+)\*|\[(?P<text>[^]]+)\]\((?P<link>https:[^)]+)\)"
)


def intro(name: str) -> Markup:
    """What to know of a section first, as paragraphs; the text is our own."""
    paragraphs = HEADINGS[name].intro.strip().split("\n\n") if name in HEADINGS else []
    return Markup("\n").join(Markup("<p>{}</p>").format(marked_up(p)) for p in paragraphs)


def marked_up(text: str) -> Markup:
    """Text with ``*words*``, code in backticks, and ``[links](https://…)``."""

    def element(match: re.Match[str]) -> Markup:
        if match["code"]:
            return Markup("<code>{}</code>").format(match["code"])
        if match["em"]:
            return Markup("<em>{}</em>").format(match["em"])
        link = '<a href="{}" rel="noopener noreferrer">{}</a>'
        return Markup(link).format(match["link"], marked_up(match["text"]))

    result, end = Markup(), 0
    for match in MARKED.finditer(text):
        result += text[end : match.start()]
        result += element(match)
        end = match.end()
    return result + text[end:]


def _known_tables(bundle: Bundle) -> tuple[Tables, dict[str, str]]:
    """The tables that pictures are drawn from, whole; and why one could not be read."""
    known: Tables = {}
    errors = bundle.hold(LOOKED_AT & bundle.tables.keys())
    for name in sorted(LOOKED_AT & bundle.tables.keys() - errors.keys()):
        known[name] = list(bundle.rows(name))
    return known, {name: _blame(bundle, why) for name, why in errors.items()}


def _parts(bundle: Bundle, known: Tables) -> Tables:
    """The rows that pictures of other tables want of these; none of a table that is damaged."""
    found: Tables = {}
    for name in PARTS.keys() & bundle.tables.keys():
        with contextlib.suppress(BundleError, LookupError, TypeError, ValueError):
            column, wanted = PARTS[name]
            rows = bundle.rows(name, where=(column, wanted(known)))
            found[name] = list(itertools.islice(rows, MAX_PART_ROWS))
    for name in CHOSEN.keys() & bundle.tables.keys():
        with contextlib.suppress(BundleError, LookupError, TypeError):
            chosen = filter(CHOSEN[name](known), bundle.rows(name))
            found[name] = list(itertools.islice(chosen, MAX_PART_ROWS))
    return found


def _blame(bundle: Bundle, error: BundleError | str) -> str:
    """An error without the folder's path, which is nobody's business on another machine."""
    return str(error).replace(f"{bundle.path}{os.sep}", "").replace(f"{bundle.path}: ", "")


def _pictures(
    table: Table,
    known: Tables,
    errors: dict[str, str],
    environment: Environment,
    page_size: int | None,
) -> Iterator[PictureView]:
    for picture in PICTURES:
        if picture.table != table.name:
            continue
        missing = picture.columns - {column.name for column in table.columns}
        if missing:
            why = f"table {table.name} has no column {', '.join(sorted(missing))}"
            yield PictureView(picture.name, Markup(), why)
        elif table.name in errors:
            yield PictureView(picture.name, Markup(), errors[table.name])
        elif known[table.name]:
            # Any value of a stranger's table may be missing or absurd, where a drawing does not
            # expect it. Whatever comes of that must cost this picture alone.
            try:
                html = environment.get_template(f"picture_{picture.name}.html").render(
                    data=picture.draw(known, page_size)
                )
                yield PictureView(picture.name, Markup(html), "")
            except EXPECTED as error:
                why = f"table {table.name} is damaged: {error}"
                yield PictureView(picture.name, Markup(), why)


def _beside(comparison: Comparison) -> list[list[Markup]]:
    """Pictures of both bundles, before and after, where both can have them."""
    sizes = {bundle.target.get("total_pages") for bundle in comparison.bundles}
    found: list[list[Markup]] = []
    for picture in PICTURES:
        if not picture.beside or (picture.beside == "same size" and len(sizes) > 1):
            continue
        drawn = [_alone(bundle, picture) for bundle in comparison.bundles]
        pair = [Markup(html) for html in drawn if html]
        if len(pair) == len(drawn):
            found.append(pair)
    return found


def _alone(bundle: Bundle, picture: Picture) -> str:
    """A picture of a bundle's one table; empty if there is none."""
    table = bundle.tables.get(picture.table)
    if table is None:
        return ""
    page_size = display.plain_int(bundle.target.get("page_size"))
    if bundle.hold([table.name]):
        return ""  # its section says so
    rows = list(bundle.rows(table.name))
    environment = _environment(page_size, _uptime(bundle))
    views = _pictures(table, {table.name: rows}, {}, environment, page_size)
    return next((str(view.html) for view in views if view.name == picture.name), "")


def _table(bundle: Bundle, table: Table, page_size: int | None, known: Tables) -> TableView:
    """The first rows of a table, and how many there are."""
    rows: list[list[Cell]] = []
    total, error = 0, ""
    most = MAX_STACK_ROWS if any(c.name == "stack" for c in table.columns) else MAX_ROWS
    if any(c.name == "time" and c.key for c in table.columns):
        most = MAX_SERIES_ROWS
    most = min(most, max(MAX_CELLS // len(table.columns), 1))
    try:
        # The first rows first: of a damaged table, what stands before the damage is shown.
        for row in itertools.islice(known.get(table.name) or bundle.rows(table.name), most):
            rows.append([cell(row[c.name], c, page_size) for c in table.columns])
        at = {column.name: number for number, column in enumerate(table.columns)}
        for mark in bundle.impossible(table.name):
            if mark.row_number <= len(rows):
                cells, number = rows[mark.row_number - 1], at[mark.column_name]
                cells[number] = dataclasses.replace(cells[number], impossible=mark.bound)
        total = bundle.count(table.name)
    except BundleError as caught:
        error = _blame(bundle, caught)
        with contextlib.suppress(BundleError):
            for _ in bundle.rows(table.name):
                total += 1
    whole = error or total <= len(rows)
    return TableView(
        table.name,
        table.title,
        table.columns,
        text_classes(c.type not in ("integer", "number") for c in table.columns),
        rows,
        total,
        error,
        None if whole else downloads.table(bundle, table),
    )


def text_classes(texts: Iterable[bool]) -> str:
    """The classes of a table that say which of its columns are text; the others are numbers."""
    numbers = (number for number, is_text in enumerate(texts, 1) if is_text)
    return " ".join(f"t{number}" for number in numbers if number <= MAX_TEXT_COLUMNS)


def _finding_views(
    bundle: Bundle, verdict: Verdict, anchors: dict[str, str]
) -> Iterator[FindingView]:
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    first: FindingView | None = None
    for finding in sorted(verdict.found, key=lambda finding: severity_rank(finding.severity)):
        numbers[finding.id] = numbers.get(finding.id, 0) + 1
        view = FindingView(
            anchor=_anchor("finding", f"{finding.id}-{numbers[finding.id]}", taken),
            finding=finding,
            links=[(link.title, _address(link.url)) for link in finding.links],
            text=finding_text(bundle, finding),
            evidence=anchors.get(finding.section, ""),
            tables=[name for name in finding.tables if name in bundle.tables],
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
        return visible(display.prose(_text(text)))

    target = bundle.target
    where = [_host(bundle), _text(target.get("release")), _text(target.get("captured_at"))]
    lines = [
        f"{plain(finding.severity).upper()}{' (estimate)' if finding.estimate else ''}: "
        f"{plain(finding.title)}",
        f"({plain(', '.join(filter(None, where)))}; mmscope {plain(bundle.version)})",
        f"Seen: {plain(finding.saw)}",
        f"Why it hurts: {plain(finding.why)}",
    ]
    if finding.next:
        lines.append("Next:")
        lines += [f"{number}. {plain(step.text)}" for number, step in enumerate(finding.next, 1)]
    lines += [f"Source: {plain(source)}" for source in finding.sources]
    lines += [f"{plain(link.title)}: {plain(link.url)}" for link in finding.links]
    return lines


def _policy(style: str, script: str) -> str:
    """
    The Content-Security-Policy: this style, this script, no request, no form, no frame.
    """

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _environment(page_size: int | None, uptime: str) -> Environment:
    """The one place where values become HTML."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=display.count,
        size=display.size,
        percent=display.percent,
        prose=display.prose,
        pages=lambda value: display.pages(value, page_size),
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        terms=lambda text: text,
        compact=lambda value: display.compact(value, page_size),
    )
    environment.globals.update(
        page_size=page_size,
        uptime=uptime,
        glossary=Glossary(),
        section_title=section_title,
        plural=display.plural,
        share=display.share,
        short_size=display.short_size,
        is_name=is_name,
        when_empty={name: table.empty for name, table in TABLES.items() if table.empty},
        max_rows=MAX_ROWS,
        columns=pageblock_map.COLUMNS,
        look=pageblock_map.look,
        level_starts=free_heatmap.level_starts(),
        thp_order=free_heatmap.thp_order(page_size),
        max_lines=charts.MAX_LINES,
        styles=Markup("\n".join(picture.style for picture in PICTURES if picture.style)),
        max_text_columns=MAX_TEXT_COLUMNS,
        text_classes=text_classes,
    )
    return environment


def _shown(value: Any) -> Any:
    """What every expression of every template goes through before it is escaped."""
    return visible(value) if type(value) is str else value
