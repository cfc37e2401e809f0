# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pages of the site: all of them are in its contents, and a tutorial prints what it says."""

import os
import re
from pathlib import Path

from checkout import ROOT
from make_gallery import INCIDENTS, gallery
from tutorial_pages import follow, pattern, plain

# Made by `make site`.
MADE = {"commands.md", "probes.md", "gallery.md"}
# For who releases; linked from the README.
LEFT_OUT = {"RELEASING.md"}


def test_every_page_is_in_the_contents() -> None:
    named = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert named - MADE == pages - LEFT_OUT


def test_what_killed_my_pod(tmp_path: Path) -> None:
    log = ROOT / "tests/data/7.3/oom.dmesg"
    files = {"oom.dmesg": log, "case": tmp_path / "case"}
    assert follow("tutorial-oom.md", tmp_path, files) == 3


def test_the_gallery_has_a_report_of_each_incident(tmp_path: Path) -> None:
    shown = INCIDENTS if os.environ.get("MMSCOPE_ALL") else INCIDENTS[:1]
    page = gallery(tmp_path / "gallery", shown)
    reports = sorted((tmp_path / "gallery").iterdir())
    assert sorted(re.findall(r"\(gallery/([^)]+)\)", page)) == [path.name for path in reports]
    assert len(reports) == len(shown)
    assert "Memory has nearly run out" in page
    assert all("Trouble: " in path.read_text() for path in reports)
    assert sum(path.stat().st_size for path in reports) < 1 << 20 if len(shown) == 1 else 6 << 20
    assert str(tmp_path) not in reports[0].read_text()


def test_how_a_page_is_compared() -> None:
    assert re.search(pattern("one 1,024 …\ntwo"), plain("one   7\n and 0xffff\ntwo"))
    assert not re.search(pattern("one two"), plain("one and two"))
