# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page of the demo's workload, in a browser, and ``make pictures`` of it; the rest of its kinds
are in ``test_pages.py``.

The browser is closed again at once: as long as there is one, nothing else here can speak to QEMU
(asyncio has one loop), and it is a child of this process, which other tests wait for.
"""

import struct
from pathlib import Path

import pytest
from browser_page import SCREEN, a4_pages, screens
from conftest import Lab
from pictures import MAX_BYTES, OF_DEMO, WIDTH, opened, take
from printed_memory import bundle_of

from mmscope.reports.bundle.database import open_database
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.question import OURS
from mmscope.reports.page.report import render, write

MORE_THAN_NOTHING = 10_000  # bytes; a picture of an empty page has 229


@pytest.mark.any_kernel
def test_it_is_no_longer_than_somebody_reads_and_has_its_pictures_taken(
    lab: Lab, tmp_path: Path
) -> None:
    """``make demo`` adds profiles, which take two screens more, of twelve."""
    bundle = bundle_of(lab, tmp_path / "bundle")
    report = tmp_path / "r.html"
    write(render(bundle, ask(open_database(bundle), OURS())), report)
    with opened() as browser:
        page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]})
        page.goto(report.as_uri())
        assert screens(page) <= 10
        assert a4_pages(page) <= 7
        page.close()
        # The last is of profiles, which this report does not have.
        taken = [take(browser, report, picture, tmp_path).read_bytes() for picture in OF_DEMO[:-1]]
    assert len(set(taken)) == len(taken)  # light is not dark
    for picture, data in zip(OF_DEMO, taken, strict=False):
        assert struct.unpack(">8x4x4sII", data[:24]) == (b"IHDR", WIDTH, picture.height)
        assert MORE_THAN_NOTHING < len(data) < MAX_BYTES, picture.name
