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

import errno
import os
import re
import tempfile
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mmscope import __version__
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.text.plain_file import check_output
from mmscope.reports.bundle import bundle_format
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import FACTS
from mmscope.reports.bundle.leftovers import DEVICES, is_special, replaced
from mmscope.reports.bundle.modes import mode_of_file
from mmscope.reports.compare import comparison_view
from mmscope.reports.compare.comparison import Comparison
from mmscope.reports.drawing.downloads import Downloads
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.finding import Verdict
from mmscope.reports.findings.incidents import incidents
from mmscope.reports.findings.question import SEVERITIES
from mmscope.reports.page.card import card
from mmscope.reports.page.card_answers import answers
from mmscope.reports.page.drawn import draw
from mmscope.reports.page.environment import context_of, environment, policy_of, squeeze
from mmscope.reports.page.sentences import (
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
TIPS = "tip.js"  # of pictures
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
    page_size, offers = bundle.page_size, Downloads()
    context = context_of(page_size, uptime_of(bundle), bundle.thp_order) | {"offer": offers.offer}
    sections = section_views(bundle, draw(bundle, context), page_size, verdict.found)
    # Of a log, say, most were not: what was read comes before them.
    if 2 * sum(view.status == "absent" for view in sections) > len(sections):
        sections.sort(key=lambda view: view.status == "absent")
    host = host_of(bundle)
    grouped = incidents(verdict.found)
    incident_list = incident_views(bundle, grouped, verdict.found, sections)
    findings = [view for each in incident_list for view in each["findings"]]
    for view in sections:
        view.findings.extend(f for f in findings if f.finding.section == view.name)
    versus = comparison_view.view(comparison) if comparison else None
    different = list(differences(comparison, context)) if comparison else []
    drawn = [p for view in sections for pictures in view.pictures.values() for p in pictures]
    if faults is not None:
        faults += [picture.fault for picture in (*drawn, *different) if picture.fault]
        faults += comparison.faults if comparison else []
    template = environment().get_template("report.html")
    html = template.render(
        context,
        host=host,
        card=card(bundle, verdict, grouped, bundle.hostname or "", faults),
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
        questions=list(
            answers(
                bundle,
                verdict,
                findings,
                places_of(sections),
                _compared(versus),
                versus.ledger if versus else "",
                faults,
            )
        ),
        differences=different,
        anchor_of=lambda finding: next(
            (view.anchor for view in findings if view.finding is finding), ""
        ),
        bundle_version=bundle.version,
        **_looks({picture.name for picture in drawn}, tips=bool(drawn or different)),
    )
    return offers.fill(squeeze(html) + "\n")


def places_of(sections: Sequence[SectionView]) -> set[str]:
    """Ids of the tables that have rows and the pictures that could be drawn."""
    return {
        place
        for section in sections
        for table in section.tables
        for place in (
            *([f"table-{table['name']}"] if table["total"] else []),
            *(f"picture-{p.name}" for p in section.pictures[table["name"]] if not p.error),
        )
    }


def _caveats(bundle: Bundle) -> list[tuple[str, str]]:
    """Notes on the reading that come before any number."""
    said = (key for key in CAVEATS if key in bundle.target)
    words = [(CAVEATS[key], target_text(bundle.target[key])) for key in said]
    return words + written_by(bundle)


def _compared(versus: comparison_view.View | None) -> list[str]:
    """Ids of the places where a comparison in the page says what grew."""
    if versus is None:
        return []
    places = ((versus.ledger, "compared-ledger"), (versus.tops, "compared-most"))
    return [place for said, place in places if said]


def page(template: str, **values: Any) -> str:
    """A page of another kind, of one of our templates: with the same style, script and policy."""
    html = environment().get_template(template).render(context_of(None), **_looks(), **values)
    return squeeze(html) + "\n"


def _looks(pictures: Container[str] = (), tips: bool = True) -> dict[str, str]:
    """
    Style, script and policy of a page, and who made it.

    :param pictures: in it that have a script of their own. :param tips: it may have pictures.
    """
    wanted = (script for picture, script in SCRIPTS_OF.items() if picture in pictures)
    names = [*SCRIPTS, *([TIPS] if tips else ()), *dict.fromkeys(wanted)]
    style = squeeze(environment().get_template("report.css").render())
    script = "\n".join(environment().get_template(name).render() for name in names)
    # Comments are for those who read the sources.
    script = squeeze(re.sub(r"^ *//.*$", "", script, flags=re.MULTILINE))
    return {
        "style": Markup(style),  # our own files, not the bundle's
        "script": Markup(script),
        "policy": policy_of(style, script),
        "version": __version__,
    }


def check_name(path: Path) -> None:
    """
    Refuse a name that no report can be written to, before there is one.

    :raises OSError: it is a folder or a symbolic link, no file can be made beside it, or others
        could misdirect it (``plain_file``).
    """
    if path.parent in DEVICES:
        return
    check_output(path)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a symbolic link; name what it leads to", str(path))
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not is_special(path):
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None


def write(html: str, path: Path, mode: int | None = None) -> None:
    """
    Write a report so that its name holds all of it, or what was there before.

    :param mode: as asked for (``modes``).
    :raises OSError: it cannot be written (:func:`check_name`); nothing is left of it.
    """
    check_name(path)
    if is_special(path):
        # A device or a pipe is written to, and never replaced by a file of its name.
        with path.open("wb") as file:
            file.write(html.encode())
        return
    with replaced(path, mode_of_file(mode, path)) as file:
        file.write(html.encode())
