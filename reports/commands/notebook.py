# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles, dumps and this host in a notebook, or at any prompt of Python's: ``from mmscope import
open_bundle, why, live``. The same in a session of drgn, of its ``prog``.

Tables are relations of DuckDB, which make frames of pandas and polars where these are installed.
What is shown as HTML is as hostile as a bundle may be: values are escaped, and a page is in a frame
that runs no script.
"""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
from drgn import Program
from markupsafe import Markup, escape

from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, open_database
from mmscope.reports.bundle.outcome import UsageError, did_you_mean, say
from mmscope.reports.commands.collect_command import write_case
from mmscope.reports.commands.command import build_parser
from mmscope.reports.commands.target_options import section_names
from mmscope.reports.commands.why_command import answer_of, lines_of
from mmscope.reports.drawing.downloads import Downloads
from mmscope.reports.findings import findings_text
from mmscope.reports.findings.finding import Finding, Verdict
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.verdict import judge, sentence
from mmscope.reports.inputs.given import Given, gather
from mmscope.reports.page.drawn import draw
from mmscope.reports.page.environment import context_of, environment, squeeze
from mmscope.reports.page.report import render
from mmscope.reports.page.sentences import uptime_of

Where = str | Path
FRAME = (
    '<iframe sandbox srcdoc="{}" style="width:100%;height:{}em;border:0;resize:vertical"></iframe>'
)


@dataclass(frozen=True)
class Shown:
    """A page or a picture, in a frame of its own."""

    html: str = field(repr=False)
    height: int = 40

    def _repr_html_(self) -> str:
        return FRAME.format(escape(self.html), self.height)


class Why:
    """The ten lines of ``mmscope why``; :attr:`answer` has the words."""

    def __init__(self, opened: "Opened") -> None:
        self._opened = opened  # the answer names its folder
        bundle, given = opened.bundle, opened.given
        judged = judge(opened.findings.verdict)
        self.answer = answer_of(given, bundle.path, judged, bundle.target.get("kind"))

    def __str__(self) -> str:
        return "\n".join(lines_of(self.answer))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(Markup("<pre>{}</pre>").format(str(self)))


class Findings(Sequence[Finding]):
    """Findings, the worst first; :attr:`verdict` has what was checked besides."""

    def __init__(self, verdict: Verdict, page_size: int | None) -> None:
        self.verdict, self._page_size = verdict, page_size

    def __len__(self) -> int:
        return len(self.verdict.found)

    def __getitem__(self, at: Any) -> Any:
        return self.verdict.found[at]

    def __repr__(self) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            findings_text.print_findings(self.verdict, everything=False)
        return said.getvalue().rstrip()

    def _repr_html_(self) -> str:
        template = environment().get_template("notebook_findings.html")
        return squeeze(
            template.render(
                context_of(self._page_size),
                sentence=sentence(self.verdict),
                verdict=self.verdict,
            )
        )


class Opened:
    """A bundle, opened: ``opened["zones"]``, ``opened.sql("…")``, ``opened.findings``."""

    def __init__(
        self,
        path: Path,
        given: Given,
        folder: "tempfile.TemporaryDirectory[str] | None" = None,
    ) -> None:
        self.bundle, self.given = Bundle(path), given
        self._folder = folder  # goes with this

    def __repr__(self) -> str:
        return f"{visible(str(self.bundle.path))}: {len(self.tables)} tables; {self.findings!r}"

    def _repr_html_(self) -> str:
        return self.findings._repr_html_()

    @cached_property
    def _database(self) -> Database:
        return open_database(self.bundle)

    @property
    def tables(self) -> list[str]:
        """Names of tables and views."""
        return sorted(self._database.columns)

    def __getitem__(self, table: str) -> duckdb.DuckDBPyRelation:
        """
        A table or view as a relation: ``.df()`` is a frame of pandas, ``.pl()`` of polars.

        :raises UsageError: there is none of that name, or it could not be read.
        """
        if table not in self._database.columns:
            near = did_you_mean(table, self.tables)
            why = self._database.missing.get(table) or f"it is not in this bundle{near}"
            raise UsageError(f"no table {cut(table, 80)!r}: {why}")
        return self._database.connection.table(table)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """A query over tables and views as a relation; no file and no network can be reached."""
        return self._database.connection.sql(query)

    @cached_property
    def findings(self) -> Findings:
        """Everything that is wrong, the worst first."""
        return Findings(evaluate(self.bundle), self.bundle.page_size)

    @cached_property
    def pictures(self) -> dict[str, Shown]:
        """
        Pictures by name: ``memory_bar``, ``pageblock_map``, ``profiles`` and other flame graphs.
        """
        offers = Downloads()
        context = context_of(self.bundle.page_size, uptime_of(self.bundle))
        drawn = draw(self.bundle, context | {"offer": offers.offer})
        style = squeeze(environment().get_template("report.css").render())
        page = Markup(f"<!doctype html><meta charset=utf-8><style>{style}</style>")
        return {
            view.name: Shown(offers.fill(page + (view.html or visible(view.error)), most=0))
            for views in drawn.values()
            for view in views
        }

    @property
    def report(self) -> Shown:
        """The report, without its script."""
        return Shown(render(self.bundle, self.findings.verdict), 60)


def open_bundle(what: Where | Program) -> Opened:
    """
    Open a bundle, or whatever else ``mmscope collect`` reads: a dump, a log, a sosreport, or the
    program of a session of drgn. What is read is a bundle in a folder of its own, which goes with
    the object.

    :raises TargetError: it is nothing that can be read.
    """
    if not isinstance(what, Program):
        return _read([str(what)])
    from mmscope.reports.commands.drgn_plugin import collect_program

    given = gather([], everything=False)
    given.kinds.append("the program of this session")
    given.core = Path(what.core_dump_path or "/proc/kcore")
    folder = tempfile.TemporaryDirectory(prefix="mmscope-")
    path = Path(folder.name, "bundle")
    collect_program(what, path)
    return Opened(path, given, folder)


def live(*only: str) -> Opened:
    """Read this host, as far as this user may: all sections, or those that are named."""
    return _read([], only)


def why(what: Where | Program | Opened | None = None) -> Why:
    """Say in ten lines what is wrong with this host, or with whatever is given."""
    if what is None:
        what = live()
    return Why(what if isinstance(what, Opened) else open_bundle(what))


def _read(paths: list[str], only: Sequence[str] = ()) -> Opened:
    """Whatever there is, as ``mmscope why`` reads it."""
    given = gather(paths, everything=False)
    with given.open_files:
        for words in given.refused:
            say(words)
        if given.bundles:
            return Opened(Path(given.bundles[0]), given)
        folder = tempfile.TemporaryDirectory(prefix="mmscope-")
        path = Path(folder.name, "bundle")
        args = build_parser(["why"]).parse_args(["why", "-o", str(path), "--", *paths])
        args.only = section_names(",".join(only)) if only else ()
        write_case(args, given)
    return Opened(path, given, folder)
