# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of the demo's workload, in a browser; the rest of its kinds are in ``test_pages.py``."""

import functools
from pathlib import Path

import pytest
from browser_page import SCREEN, Opened, a4_pages, screens
from conftest import Lab
from printed_memory import bundle_of

from mmscope.reports.bundle.database import open_database
from mmscope.reports.findings.findings import ask, load_questions
from mmscope.reports.page.report import render, write


@pytest.mark.any_kernel
def test_it_is_no_longer_than_somebody_reads(
    lab: Lab, tmp_path: Path, opening: functools.partial[Opened]
) -> None:
    """``make demo`` adds profiles, which take two screens more, of twelve."""
    bundle = bundle_of(lab, tmp_path / "bundle")
    write(render(bundle, ask(open_database(bundle), load_questions())), tmp_path / "r.html")
    page = opening(tmp_path / "r.html", SCREEN).page
    assert screens(page) <= 10
    assert a4_pages(page) <= 7
