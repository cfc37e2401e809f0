# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The report: a bundle and its findings as one HTML file that needs nothing else.

``render`` is a pure function: the same bundle gives the same bytes. Everything in a bundle is
hostile: a process may call itself ``<script>``. Every value goes through one environment, which
makes control characters visible and escapes. No value becomes markup, style, script or an address,
and a policy in the page forbids what might slip through.

A section's title and intro, and what an empty table means, are declared with them; a picture
belongs to a table and appears wherever that table is. So a section that is new to this file shows
with all its tables. One damaged table, or a picture that cannot be drawn, costs itself only, and
the page says so.

Cannot know: what is not in the bundle. A report of a bundle is as complete as the reading was.
"""

import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from mmscope import __version__
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.reports.bundle import bundle_format
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.leftovers import replaced
from mmscope.reports.bundle.modes import mode_of_file
from mmscope.reports.compare import comparison_view
from mmscope.reports.compare.comparison import Comparison
from mmscope.reports.drawing.downloads import Downloads
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.findings import SEVERITIES, Verdict
from mmscope.reports.findings.incidents import incidents
from mmscope.reports.page.card import card
from mmscope.reports.page.drawn import PictureView, draw, page_size_of
from mmscope.reports.page.environment import environment_of, policy_of, squeeze
from mmscope.reports.page.glossary import Glossary
from mmscope.reports.page.questions import questions
from mmscope.reports.page.sentences import (
    FACTS,
    facts_of,
    host_of,
    reading,
    target_text,
    unknown,
    uptime_of,
    written_by,
)
from mmscope.reports.page.views import (
    SectionView,
    differences,
    incident_views,
    section_views,
    table_view,
)

SCRIPTS = (
    "address.js",
    "report.js",
    "search.js",
    "lights.js",
    "flame_graphs.js",
    "flame_viewer.js",
)
# Of pictures that few pages have.
SCRIPTS_OF = dict.fromkeys(("page_owner_growth", "watch"), "time_panel.js")
# So many findings leave room for the sections beside them.
MAX_CONTENTS = 8
# Of more sections, those without findings are folded.
MAX_OPEN = 3
# What the reader must know of the reading before any number: `collect` notes it in the target.
CAVEATS = {
    "redacted": "Names are replaced",
    "truncated": "The dump is not whole",
    "left_out": "makedumpfile left memory out of the dump",
    "fallback": "The kernel's memory was not read, only /proc and /sys",
}


def render(
    bundle: Bundle,
    verdict: Verdict,
    comparison: Comparison | None = None,
    faults: list[Fault] | None = None,
) -> str:
    """
    The report of one bundle, as the text of one HTML file.

    :param comparison: with a baseline; of this bundle and this verdict.
    :param faults: gets what mmscope failed to draw, which the page says in its place.
    """
    page_size = page_size_of(bundle)
    pictures = draw(bundle)
    environment, offers = _of_this_page(bundle, page_size)
    sections = section_views(
        bundle, lambda table: pictures.of(table, offers), page_size, verdict.found
    )
    anchors = {view.name: view.anchor for view in reversed(sections)}
    host = host_of(bundle)
    told = incidents(verdict.found)
    incident_list = list(incident_views(bundle, told, anchors, verdict.found, sections))
    findings = [view for each in incident_list for view in each.findings]
    for view in sections:
        view.findings.extend(f for f in findings if f.finding.section == view.name)
    versus = comparison_view.view(comparison) if comparison else None
    different = list(differences(comparison, environment)) if comparison else []
    if faults is not None:
        faults += _failed(sections, different, comparison)
    html = environment.get_template("report.html").render(
        host=host,
        card=card(bundle, verdict, told, host, faults),
        unknown=unknown(verdict),
        reading=reading(bundle.sections),
        facts=facts_of(bundle, page_size),
        caveats=_caveats(bundle),
        unwritten=bundle_format.listed(bundle_format.lacking(bundle)),
        other_facts=sorted((k, target_text(v)) for k, v in bundle.target.items() if k not in FACTS),
        marks=table_view(bundle, bundle.tables[IMPOSSIBLE], page_size)
        if IMPOSSIBLE in bundle.tables
        else None,
        findings=findings,
        incidents=incident_list,
        folded=len(sections) > MAX_OPEN,
        verdict=verdict,
        sections=sections,
        severities=SEVERITIES,
        most_in_contents=MAX_CONTENTS,
        versus=versus,
        questions=list(questions(sections, findings, _compared(versus))),
        differences=different,
        anchor_of=lambda finding: next(
            (view.anchor for view in findings if view.finding is finding), ""
        ),
        bundle_version=bundle.version,
        **_looks(environment, {p.name for v in sections for ps in v.pictures.values() for p in ps}),
    )
    return offers.fill(squeeze(html) + "\n")


def _caveats(bundle: Bundle) -> list[tuple[str, str]]:
    """What to know of the reading before any number."""
    said = (key for key in CAVEATS if key in bundle.target)
    words = [(CAVEATS[key], target_text(bundle.target[key])) for key in said]
    return words + written_by(bundle)


def _failed(
    sections: Iterable[SectionView],
    different: Iterable[PictureView],
    comparison: Comparison | None,
) -> Iterator[Fault]:
    """What mmscope failed to draw."""
    drawn = (p for view in sections for pictures in view.pictures.values() for p in pictures)
    for picture in (*drawn, *different):
        if picture.fault:
            yield picture.fault
    yield from comparison.faults if comparison else ()


def _of_this_page(bundle: Bundle, page_size: int | None) -> tuple[Environment, Downloads]:
    """Where its values become HTML, and its downloads; it has the places of terms, too."""
    environment, offers, words = (
        environment_of(page_size, uptime_of(bundle)),
        Downloads(),
        Glossary(),
    )
    environment.filters["terms"] = words.mark
    environment.globals.update(offer=offers.offer, glossary=words)
    return environment, offers


def _compared(versus: comparison_view.View | None) -> list[str]:
    """Where a comparison in the page says what grew."""
    if versus is None:
        return []
    places = ((versus.ledger, "compared-ledger"), (versus.tops, "compared-most"))
    return [place for said, place in places if said]


def page(template: str, **values: Any) -> str:
    """A page of another kind, of one of our templates: with the same style, script and policy."""
    environment = environment_of(None, "")
    html = environment.get_template(template).render(**_looks(environment), **values)
    return squeeze(html) + "\n"


def _looks(environment: Environment, pictures: Container[str] = ()) -> dict[str, str]:
    """Style, script and policy of every page, and who made it."""
    wanted = (script for picture, script in SCRIPTS_OF.items() if picture in pictures)
    names = [*SCRIPTS, *dict.fromkeys(wanted)]
    style = squeeze(environment.get_template("report.css").render())
    script = "\n".join(environment.get_template(name).render() for name in names)
    # Comments are for those who read the sources.
    script = squeeze(re.sub(r"^ *//.*$", "", script, flags=re.MULTILINE))
    return {
        "style": Markup(style),  # our own files, not the bundle's
        "script": Markup(script),
        "policy": policy_of(style, script),
        "version": __version__,
    }


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
