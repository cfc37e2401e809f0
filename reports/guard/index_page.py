# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page of a folder of captures: what came last, when all came, and one line each with what there
is to open.

Made with the standard library, so that it is there where reports are not. Whatever a capture says
is escaped: titles have words of processes and cgroups in them.
"""

import contextlib
import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.guard.captures import Incident, captures, write
from mmscope.reports.guard.trigger import SEVERITIES

TEMPLATES = Path(__file__).resolve().parent.parent.parent / "templates"
LICENSE = "{# SPDX-License-Identifier: LGPL-2.1-or-later #}\n"
# Not Jinja's, but Python's format.
STYLE, PAGE = (
    (TEMPLATES / f"incidents.{kind}").read_text("utf-8").removeprefix(LICENSE)
    for kind in ("css", "html")
)
# Of STYLE, base64; a test holds it. hashlib would take 4 MiB of the resident, for OpenSSL.
SHA256 = "G7QUYT2JxAi3H9omQSOfHD81SSHMskTfWrEIJf/XB6E="
LINKS = (
    ("report.html", "report"),
    ("findings.txt", "findings"),
    ("incident.json", "incident"),
    ("bundle/", "bundle"),
    ("log.txt", "log"),
)


def _text(value: Any) -> str:
    return html.escape(cut(visible("" if value is None else str(value)), 400))


def _row(path: Path, incident: Incident) -> str:
    links = " ".join(
        f'<a href="{html.escape(quote(f"{path.name}/{name}"))}">{words}</a>'
        for name, words in LINKS
        if (path / name).exists()
    )
    captured = f"{incident.get('state')}, {incident['source']}" if incident.get("source") else None
    severity = incident.get("severity")
    marked = f' class="{_severity(incident)}"'
    cells = (
        f"<td>{_text(_when(incident))}",
        f"<td{marked}>{_text(severity)}",
        f"<td>{_text(incident.get('title'))}",
        f"<td>{_text(captured or incident.get('state'))}",
        f"<td>{links}",
    )
    return f"<tr>{''.join(cells)}</tr>"


def _when(incident: Incident) -> str:
    return str(incident.get("at") or "").replace("T", " ").removesuffix("+00:00")


def _timeline(those: Sequence[tuple[Path, Incident]]) -> str:
    """A dot for each capture between the first and the last; empty where that is no time."""
    moments = []
    for path, incident in those:
        with contextlib.suppress(ValueError):
            moments.append(
                (datetime.fromisoformat(str(incident.get("at"))).timestamp(), path, incident)
            )
    moments.sort(key=itemgetter(0), reverse=True)
    if not moments:
        return ""
    (last, _, newest), (first, _, oldest) = moments[0], moments[-1]
    if first == last:
        return ""
    dots = "".join(
        f'<a href="{html.escape(quote(path.name))}/"><circle class="{_severity(incident)}" '
        f'cx="{1 + 98 * (at - first) / (last - first):.2f}%" cy="14" r="7"><title>'
        f"{_text(_when(incident))}: {_text(incident.get('title'))}</title></circle></a>"
        for at, path, incident in moments
    )
    ends = "".join(f"<span>{_text(_when(end))}</span>" for end in (oldest, newest))
    return (
        '<svg role="group" aria-label="Captures over time"><line x1="0" x2="100%" y1="14" y2="14"/>'
        f'{dots}</svg><p class="ends">{ends}</p>'
    )


def _severity(incident: Incident) -> str:
    """One that the stylesheet knows, or nothing."""
    severity = incident.get("severity")
    return str(severity) if severity in SEVERITIES else ""


def page(host: str, those: Iterable[tuple[Path, Incident]]) -> str:
    """The page as text."""
    those = list(those)
    rows = [_row(path, incident) for path, incident in those]
    about, newest = "Nothing has happened yet.", ""
    if rows:
        about = "1 capture." if len(rows) == 1 else f"{len(rows):,} captures, the newest first."
        last = those[0][1]
        said = f"{_text(last.get('title'))} <small>{_text(_when(last))}</small>"
        newest = f'<p class="last {_severity(last)}">Last: {said}</p>'
    return PAGE.format(
        title=f"Incidents of {_text(host)}",
        newest=newest,
        about=about,
        timeline=_timeline(those),
        rows="\n".join(rows),
        style=STYLE,
        digest=SHA256,
    )


def renew(folder: Path, host: str) -> None:
    """
    Write the page again.

    :raises OSError: it cannot be written.
    """
    write(folder / "index.html", page(host, captures(folder)))
