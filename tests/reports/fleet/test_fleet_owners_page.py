# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a browser shows whose memory it is on several hosts, and what is odd with a lake."""

import functools
from pathlib import Path

from browser_page import HUGE, NARROW, SCHEMES, WIDE, Opened, barriers
from command_line import run
from made_lake import lake_of
from made_owners import EVIL, host, leak, ledger


def test_fits_every_screen_and_keeps_nobody_out(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    of = tmp_path / "of"
    of.mkdir()
    bundles = [host(of, f"h{n}", leak(1000, EVIL), captured_at=None) for n in range(2)]
    for n in range(2):
        bundles += [host(of, f"l{n}", ledger(slab=size), at) for at, size in ((0, 100), (3, 900))]
    lake_of(tmp_path, *bundles)
    page = tmp_path / "page.html"
    run("lake", "report", tmp_path / "lake", "-o", page)
    opened = opening(page)
    for name, rows in (("#owners tbody tr", 2), ("#wrong .trouble", 1)):
        assert opened.page.locator(name).count() == rows
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    for scheme in SCHEMES:
        opened.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width, height in (NARROW, WIDE, HUGE):
            opened.page.set_viewport_size({"width": width, "height": height})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert (opened.requests, opened.complaints) == ([page.as_uri()], [])
    assert barriers(opened.page) == []
