# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page of the demo's workload, in a browser; the rest of its kinds are in ``test_pages.py``.

The browser is closed again at once: as long as there is one, nothing else here can speak to QEMU
(asyncio has one loop), and it is a child of this process, which other tests wait for.
"""

from pathlib import Path

import pytest
from browser_page import SCREEN, a4_pages, screens
from conftest import Lab
from pictures import opened
from printed_memory import bundle_of

from mmscope.reports.bundle.database import open_database
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.question import load_questions
from mmscope.reports.page.report import render, write


@pytest.mark.any_kernel
def test_it_is_no_longer_than_somebody_reads(lab: Lab, tmp_path: Path) -> None:
    """``make demo`` adds profiles, which take two screens more, of twelve."""
    bundle = bundle_of(lab, tmp_path / "bundle")
    report = tmp_path / "r.html"
    write(render(bundle, ask(open_database(bundle), load_questions())), report)
    with opened() as browser:
        page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]})
        page.goto(report.as_uri())
        assert screens(page) <= 10
        assert a4_pages(page) <= 7
