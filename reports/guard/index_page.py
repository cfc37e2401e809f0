# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page of a folder of captures: one line each, with what there is to open.

Made with the standard library, so that it is there where reports are not. Whatever a capture says
is escaped: titles have words of processes and cgroups in them.
"""

import html
from collections.abc import Iterable
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
SHA256 = "JmkF26SiEJZGcn8KkBENoOROjVbLJ26QfQimEt9Pvgs="
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
    marked = f' class="{severity}"' if severity in SEVERITIES else ""
    cells = (
        f"<td>{_text(str(incident.get('at') or '').replace('T', ' ').removesuffix('+00:00'))}",
        f"<td{marked}>{_text(severity)}",
        f"<td>{_text(incident.get('title'))}",
        f"<td>{_text(captured or incident.get('state'))}",
        f"<td>{links}",
    )
    return f"<tr>{''.join(cells)}</tr>"


def page(host: str, those: Iterable[tuple[Path, Incident]]) -> str:
    """The page as text."""
    rows = [_row(path, incident) for path, incident in those]
    about = "Nothing has happened yet."
    if rows:
        about = "1 capture." if len(rows) == 1 else f"{len(rows):,} captures, the newest first."
    title = f"Incidents of {_text(host)}"
    return PAGE.format(title=title, about=about, rows="\n".join(rows), style=STYLE, digest=SHA256)


def renew(folder: Path, host: str) -> None:
    """
    Write the page again.

    :raises OSError: it cannot be written.
    """
    write(folder / "index.html", page(host, captures(folder)))
