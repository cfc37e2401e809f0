# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pages of the site: all of them are in its contents, and a tutorial prints what it says."""

import re
from pathlib import Path

from checkout import ROOT
from tutorial_pages import follow, pattern, plain

# Made by `make site`.
MADE = {"commands.md", "probes.md"}
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


def test_how_a_page_is_compared() -> None:
    assert re.search(pattern("one 1,024 …\ntwo"), plain("one   7\n and 0xffff\ntwo"))
    assert not re.search(pattern("one two"), plain("one and two"))
