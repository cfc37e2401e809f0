# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a notebook gets: relations, findings and pictures as HTML that runs nothing of a bundle."""

import gc
import importlib.util
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_bundle as made
from command_line import run

import mmscope
from mmscope.drgn.opening import TargetError
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.commands.notebook import Opened, open_bundle, why

LOG = Path(__file__).resolve().parents[2] / "data/7.3/oom.dmesg"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = tmp_path_factory.mktemp("notebook") / "case"
    made.write_bundle(path, made.tables())
    return open_bundle(path)


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_table_is_a_relation(opened: Opened) -> None:
    zones = opened["zones"]
    listed = list(opened.bundle.rows("zones"))
    assert zones.columns == [column.name for column in opened.bundle.tables["zones"].columns]
    assert zones.fetchall() == [tuple(row.values()) for row in listed]
    (total,) = opened.sql("select sum(managed_pages) from zones").fetchall()[0]
    assert total == sum(row["managed_pages"] for row in listed)
    assert "free_blocks" in opened.tables
    with pytest.raises(UsageError, match="no table 'zonse': it is not in this bundle; did you mea"):
        opened["zonse"]


def test_a_query_reaches_no_file(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "file.csv").write_text("a\n1\n")
    with pytest.raises(Exception, match="disabled"):
        opened.sql(f"from '{tmp_path}/file.csv'").fetchall()


def test_frames_where_their_libraries_are(opened: Opened) -> None:
    for library, make in (("pandas", "df"), ("polars", "pl")):
        if importlib.util.find_spec(library):
            assert len(getattr(opened["zones"], make)()) == opened.bundle.count("zones")


def test_findings_are_those_of_the_command(opened: Opened) -> None:
    printed = " ".join(run("findings", opened.bundle.path).stdout.split())
    assert len(opened.findings) and all(
        " ".join(finding.title.split()) in printed for finding in opened.findings
    )
    assert opened.findings[0].title in opened._repr_html_()
    ten = run("why", opened.bundle.path).stdout
    assert str(why(opened.bundle.path)).splitlines() == ten.splitlines()


def test_pictures_are_in_frames_that_run_nothing(opened: Opened) -> None:
    assert {"memory_bar", "pageblock_map", "free_lists", "profiles"} <= opened.pictures.keys()
    flames = opened.pictures["profiles"]
    assert "<svg" in flames.html and "\0" not in flames.html
    for shown in (flames, opened.pictures["pageblock_map"], opened.report):
        ((tag, attributes),) = Tags(shown._repr_html_()).tags
        assert tag == "iframe" and attributes["sandbox"] is None
        assert attributes["srcdoc"] == shown.html


def test_a_hostile_bundle_shows_nothing_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "hostile"
    made.write_bundle(
        path, made.hostile_tables(), target=made.hostile_target(), sections=made.hostile_sections()
    )
    opened = open_bundle(path)
    for html in (opened._repr_html_(), why(opened)._repr_html_()):
        known = {"div", "p", "b", "details", "summary", "ol", "li", "br", "small", "code", "pre"}
        assert {tag for tag, _ in Tags(html).tags} <= known
        assert all(
            not attributes or attributes.keys() == {"open"} for _, attributes in Tags(html).tags
        )
    assert len(repr(opened.pictures)) < 5_000  # names, and no pages
    for shown in opened.pictures.values():
        assert not {"script", "iframe", "object", "embed", "link"} & {
            tag for tag, _ in Tags(shown.html).tags
        }


def test_a_log_is_read_and_what_is_nothing_is_refused(tmp_path: Path) -> None:
    opened = open_bundle(LOG)
    path = opened.bundle.path
    kills, said = opened["oom_kills"].fetchall(), str(why(opened))
    assert kills and "oom.dmesg" in said and path.exists()
    del opened
    gc.collect()
    assert not path.exists()
    nothing = tmp_path / "nothing"
    nothing.write_bytes(b"\x7f\x00" * 40)
    with pytest.raises(TargetError, match="nothing that was given can be read"):
        open_bundle(nothing)


def test_the_package_has_these_names_and_no_others() -> None:
    assert mmscope.why is why and mmscope.open_bundle is open_bundle
    other = "nothing"
    with pytest.raises(AttributeError, match="module 'mmscope' has no attribute 'nothing'"):
        getattr(mmscope, other)


def test_the_name_costs_nothing_until_it_is_used() -> None:
    code = "import mmscope, sys; print({'duckdb', 'drgn', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
