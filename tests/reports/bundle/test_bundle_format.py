# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles of other versions of mmscope: what a user sees of them.

``bundles/v0.1.0`` and ``bundles/v0.1.0-early`` were written by earlier versions from a vmcore of
the lab; bundles/README.md says how.
"""

import csv
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from checkout import TESTS
from command_line import run
from rows_of_tables import SECTION_OF

from mmscope import __version__
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import lacking
from mmscope.reports.bundle.declared import HEADINGS, TABLES
from mmscope.reports.bundle.description import FORMAT, BundleError
from mmscope.reports.bundle.redact import Names, redact
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.compare.comparison import compare
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.question import OURS, parts_of

BUNDLES = TESTS / "bundles"
OLD, EARLY = BUNDLES / "v0.1.0", BUNDLES / "v0.1.0-early"


def unwritten() -> str:
    """What is said of a bundle of 0.1.0: what a reading has today and is not in it."""
    old = Bundle(OLD)
    status = {section.section: section.status for section in old.sections}
    declared = [table for section in SECTIONS.values() for table in section.tables]
    both = [table for table in declared if table.name in old.tables]
    whole = [section for section in SECTIONS.values() if status.get(section.name) == "ok"]
    said = {
        "sections": [name for name in SECTIONS if name not in status],
        "tables": [t.name for s in whole for t in s.tables if t.name not in old.tables],
        "columns of": [table.name for table in both if columns_of(table) - columns_in(old, table)],
        "rows of": [table.name for table in both if table.rows_since],
    }
    assert all(said.values())
    return "mmscope 0.1.0 did not write " + "; ".join(
        f"{kind} {', '.join(names)}" for kind, names in said.items()
    )


def columns_of(table: Table) -> set[str]:
    """The columns that a table has today."""
    return {column.name for column in columns(table.row)}


def columns_in(bundle: Bundle, table: Table) -> set[str]:
    """Those that it has in a bundle."""
    return {column.name for column in bundle.tables[table.name].columns}


UNWRITTEN = unwritten()


def copy(path: Path, *, without: str = "", **changes: Any) -> Path:
    """The old bundle with a description that says something else."""
    shutil.copytree(OLD, path)
    description = path / "datapackage.json"
    data = json.loads(description.read_text()) | changes
    data.pop(without, None)
    description.write_text(json.dumps(data))
    return path


def today(path: Path) -> Bundle:
    return made.write_bundle(path, made.tables())


def page_text(path: Path) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", path.read_text())).split())


def test_a_bundle_says_its_format_and_who_wrote_it(tmp_path: Path) -> None:
    today(tmp_path / "b")
    description = json.loads((tmp_path / "b" / "datapackage.json").read_text())
    assert (description["format"], description["version"]) == (FORMAT, __version__)
    bundle = Bundle(tmp_path / "b")
    assert (bundle.format, bundle.version, lacking(bundle)) == (FORMAT, __version__, [])


@pytest.mark.parametrize("path", [OLD, EARLY])
def test_a_bundle_without_a_format_has_format_0(path: Path) -> None:
    bundle = Bundle(path)
    assert (bundle.format, bundle.version) == (0, "0.1.0")
    assert {section.status for section in bundle.sections} <= {"ok", "absent"}
    for section in bundle.sections:
        tables = [
            table.name for table in bundle.tables.values() if table.section == section.section
        ]
        assert sum(map(bundle.count, tables)) == section.rows
        assert not any(bundle.impossible(table) for table in tables)


def test_the_findings_of_an_old_bundle() -> None:
    result = run("findings", OLD, "--all")
    assert result.returncode == 0
    assert result.stderr == f"mmscope: {OLD}: {UNWRITTEN}\n"
    said = " ".join(result.stdout.split())
    assert re.search(r"2 critical, 2 warnings, \d notices\. \d\d of \d{2,3} checks ran", said)
    assert (
        "Node 1 zone Normal: 5 of 5 free blocks of THP size lie in the HighAtomic reserve" in said
    )
    for reason in (
        "no column zones.node_unreclaimable in this bundle (mmscope 0.1.0 did not write it): Nodes "
        "on which kswapd gave up",
        "no table poison_counters in this bundle (section poisoned_pages: mmscope 0.1.0 did not "
        "write it): Pages that hardware reported as bad",
        "no column rmap_walks.walk_ms_low in this bundle (mmscope 0.1.0 did not write it): Reverse "
        "map walks that hold an anon_vma's lock, or a page's, for long",
    ):
        assert f"Not checked, since {reason}" in said


def came_later(need: str) -> bool:
    """Whether a finding's need, ``table.column``, is of what readings have since 0.1.0."""
    table, name, _ = parts_of(need)
    if SECTION_OF.get(table) not in SECTIONS:
        return False
    section = SECTIONS[SECTION_OF[table]]
    named = [column.since for column in columns(TABLES[table].row) if column.name == name]
    return any((section.since, TABLES[table].since, *named))


def test_what_cannot_be_checked_in_an_old_bundle_is_not_called_clear() -> None:
    verdict = evaluate(Bundle(OLD))
    unchecked = {item.id: item.reason for item in verdict.not_checked}
    later = {q.id for q in OURS() if any(map(came_later, q.needs))}
    assert {"kswapd-gave-up", "memory-kept", "oom-kills-told", "vmalloc-large"} <= later
    assert {
        finding for finding, why in unchecked.items() if "mmscope 0.1.0 did not write it" in why
    } == later
    assert not unchecked.keys() & {id for id, _ in verdict.silent}


def test_tables_of_an_old_bundle_are_shown() -> None:
    shown = run("show", "zones", OLD, "--format", "csv")
    assert shown.returncode == 0
    assert shown.stdout == (OLD / "zones.csv").read_text()
    result = run("show", "direct_map", OLD)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"mmscope: {OLD}: has no table direct_map: mmscope 0.1.0, which wrote the bundle, does not "
        "know it\n"
    )


def test_the_report_of_an_old_bundle(tmp_path: Path) -> None:
    result = run("report", OLD, "-o", tmp_path / "r.html")
    assert result.returncode == 0, result.stderr
    page = page_text(tmp_path / "r.html")
    assert f"The bundle is of an older mmscope: {UNWRITTEN}. These are unknown here." in page
    assert f"0.1.0, report by {__version__}" in page
    whole = page[page.index("What mmscope 0.1.0 did not write") :]
    for name in ("zones.node_unreclaimable", "rmap_walks.pass_ms", "settings: vm.defrag_mode"):
        assert name in whole
    assert 'class="trouble"' not in (tmp_path / "r.html").read_text()


def drop_new_columns(path: Path) -> set[str]:
    """Take off what came since 0.1.0 from every table of a bundle; the tables that had any."""
    description = path / "datapackage.json"
    data, had = json.loads(description.read_text()), set()
    data["version"] = "0.1.0"
    for resource in data["resources"]:
        declared = TABLES.get(resource["name"])
        new = {c.name for c in columns(declared.row) if c.since} if declared else set()
        if not new:
            continue
        had.add(resource["name"])
        fields = resource["schema"]["fields"]
        resource["schema"]["fields"] = [f for f in fields if f["name"] not in new]
        table = path / resource["path"]
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        with table.open("w", newline="") as file:
            names = [f["name"] for f in resource["schema"]["fields"]]
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    description.write_text(json.dumps(data))
    return had


def test_pictures_of_an_old_bundle_need_no_new_column(tmp_path: Path) -> None:
    """Of sections, too, that the vmcores of the old bundles did not have: recordings, a watch."""
    made.write_bundle(tmp_path / "b", made.tables() | made.profile_rows())
    assert {"profile_faults", "zones"} <= drop_new_columns(tmp_path / "b")
    assert run("report", tmp_path / "b", "-o", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert "Faults counted: 9 minor-faults of faults" in page
    assert "No picture" not in page


def test_page_offsets_that_were_numbers_are_drawn_as_those_that_are_text(tmp_path: Path) -> None:
    offsets = [[row["index"] for row in Bundle(path).rows("anon_vma_map")] for path in (EARLY, OLD)]
    assert offsets[0][0] == 0x101 and offsets[1][0] == "0x101"
    assert offsets[0] == [int(text, 16) for text in offsets[1]]
    for path in (EARLY, OLD):
        result = run("report", path, "-o", tmp_path / path.name)
        assert result.returncode == 0, result.stderr
        assert "8 pages from page offset 0x101, in 8 stretches of 1 page" in page_text(
            tmp_path / path.name
        )


def test_an_old_bundle_and_one_of_today_are_compared(tmp_path: Path) -> None:
    new = today(tmp_path / "new").path
    result = run("compare", OLD, "--", new)
    assert result.returncode == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert f"The baseline is older: {UNWRITTEN}. These are not compared." in said
    # A row that 0.1.0 did not write did not come about since.
    assert "vm.defrag_mode" not in said and "folios of mapped files" not in said
    page = tmp_path / "r.html"
    assert run("report", new, "--baseline", OLD, "-o", page).returncode == 0
    assert "the baseline does not have it (mmscope 0.1.0 did not write it)" in page_text(page)
    back = run("compare", new, "--", OLD)
    assert f"This is older: {UNWRITTEN}" in " ".join(back.stdout.split())


def test_columns_that_only_one_of_two_bundles_has_are_no_change() -> None:
    old = Bundle(OLD)
    verdicts = evaluate(Bundle(EARLY)), evaluate(old)
    comparison = compare(Bundle(EARLY), old, verdicts, draw=False)
    # Of one vmcore; both lack the same, which is not worth a word.
    assert not any("did not write" in words for words in comparison.relation.words)
    assert not comparison.changed and len(comparison.tables) > 5


def test_a_newer_format_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    newer = copy(tmp_path / "b", format=FORMAT + 1, version="9.0.0", resources="of another shape")
    words = (
        f"mmscope: {newer}: is of bundle format {FORMAT + 1}, by mmscope 9.0.0; mmscope "
        f"{__version__} reads formats 0 to {FORMAT}: use a newer mmscope; any tool opens the "
        "bundle's CSV files\n"
    )
    for command in (["findings", newer], ["show", "zones", newer], ["report", newer]):
        result = run(*command)
        assert (result.returncode, result.stdout, result.stderr) == (2, "", words)


@pytest.mark.parametrize("number", [-1, True, "1", 1.0, None, [], 10**30])
def test_a_format_that_is_none_is_refused(tmp_path: Path, number: Any) -> None:
    with pytest.raises(
        BundleError, match=r"damaged: ValueError: format is|is of bundle format 1000"
    ):
        Bundle(copy(tmp_path / "b", format=number))


def test_a_newer_version_of_the_same_format_is_read(tmp_path: Path) -> None:
    newer = copy(tmp_path / "b", format=FORMAT, version="9.0.0")
    assert lacking(Bundle(newer)) == []
    assert run("report", newer, "-o", tmp_path / "r.html").returncode == 0
    assert "what this version does not know is shown as the bundle describes it" in page_text(
        tmp_path / "r.html"
    )


@pytest.mark.parametrize("version", ["", "my host", "0.1"])
def test_of_a_version_that_is_none_nothing_is_said(tmp_path: Path, version: str) -> None:
    assert lacking(Bundle(copy(tmp_path / "b", version=version))) == []


def test_what_is_made_of_an_old_bundle_is_as_old(tmp_path: Path) -> None:
    with Writer(tmp_path / "kept") as writer:
        writer.keep(Bundle(OLD), without={"sections"})
        writer.finish(made.TARGET, Bundle(OLD).sections)
    redact(Bundle(copy(tmp_path / "b", version="0.1.0 of my-host")), tmp_path / "red", Names())
    for name in ("kept", "red"):
        bundle = Bundle(tmp_path / name)
        assert (bundle.format, bundle.version) == (0, "0.1.0")
        assert lacking(bundle) == lacking(Bundle(OLD))


def test_tables_have_what_they_had_and_what_came_since_says_so(tmp_path: Path) -> None:
    """Whoever renames, retypes or drops a column raises FORMAT; one that is new says ``since``."""
    old, new = Bundle(OLD), today(tmp_path / "b")
    added = {(t.name, c.name) for t in TABLES.values() for c in columns(t.row) if c.since}
    tables = {t.name for h in HEADINGS.values() for t in h.tables if t.since or h.since}
    both = (old.tables.keys() & new.tables.keys()) - {"sections"}
    assert len(both) > 30 and not tables & old.tables.keys()
    for name in both:
        was = {c.name: (c.type, c.unit) for c in old.tables[name].columns}
        now = {c.name: (c.type, c.unit) for c in new.tables[name].columns}
        assert {c: now.get(c) for c in was} == was, name
        assert {(name, c) for c in now.keys() - was.keys()} == {a for a in added if a[0] == name}
    # Of a section that 0.1.0 had, with all its tables.
    sections = {section.section for section in old.sections if section.status == "ok"}
    came = {t.name for t in new.tables.values() if t.section in sections} - old.tables.keys()
    assert came <= tables
