# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of a fleet: what it says, whom it links to, and how a browser shows it."""

import functools
import re
from pathlib import Path

import pytest
from browser_page import HUGE, NARROW, SCHEMES, WIDE, Opened, barriers, out_of_reach
from command_line import run
from made_lake import lake_of, small
from page_tree import faults_of_policy

EVIL = "<img src=x onerror=alert(1)>\"'{{7*7}}../\x1b[31m"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of twenty hosts, half of them ill, with the reports of two."""
    folder = tmp_path_factory.mktemp("fleet")
    bundles = [
        small(folder / f"{r}-{n}", f"web-{r}-{n}", kills=int(r == "7.3") * (n + 1), release=r)
        for r in ("7.2", "7.3")
        for n in range(9)
    ]
    bundles.append(small(folder / "evil", EVIL, kills=99, release="<b>6.1</b>"))
    bundles.append(small(folder / "script", "javascript:alert(1)", kills=1))
    lake_of(folder, *bundles, labels=(("role", "<i>db"),))
    reports = folder / "of hosts"
    reports.mkdir()
    for host in ("web-7.3-8", "javascript:alert(1)", "somebody else"):
        (reports / f"{host}.html").touch()
    done = run("lake", "report", folder / "lake", "-o", folder / "page.html", "--reports", reports)
    assert (done.returncode, "11 of 20 hosts" in done.stdout) == (0, True)
    return folder / "page.html"


def test_says_how_many_hosts_and_links_to_the_reports_that_are_there(fleet: Path) -> None:
    text = fleet.read_text()
    assert "11 hosts of 20" in text
    assert "9 of 9" in text  # hosts with 7.3, which have it more often
    assert {link for link in re.findall(r'href="([^"]*)"', text) if link[0] != "#"} == {
        "of%20hosts/web-7.3-8.html",
        "of%20hosts/javascript%3Aalert%281%29.html",
    }


def test_of_many_kernels_it_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    bundles = [small(tmp_path / f"b{n}", f"h{n}", kills=1, release=f"6.{n}") for n in range(32)]
    lake_of(tmp_path, *bundles)
    assert run("lake", "report", tmp_path / "lake", "-o", tmp_path / "page.html").returncode == 0
    assert "The 30 of most hosts; 2 more:" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("kills", [(0,), (1,), (0, 0), (1, 0), (1, 1)])
def test_few_hosts_have_a_page_too(kills: tuple[int, ...], tmp_path: Path) -> None:
    bundles = [small(tmp_path / f"b{n}", f"h{n}", kills=number) for n, number in enumerate(kills)]
    lake_of(tmp_path, *bundles)
    assert run("lake", "report", tmp_path / "lake", "-o", tmp_path / "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert all(f"h{n}" in page for n in range(len(kills)))


def test_what_a_host_is_called_is_no_html(fleet: Path) -> None:
    text = fleet.read_text()
    assert "\x1b" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert not re.search("<img|<b>6|<i>", text)


def test_asks_for_nothing_fits_every_screen_and_keeps_nobody_out(
    opening: functools.partial[Opened], fleet: Path
) -> None:
    opened = opening(fleet)
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    for scheme in SCHEMES:
        opened.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width, height in (NARROW, WIDE, HUGE):
            opened.page.set_viewport_size({"width": width, "height": height})
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert (opened.requests, opened.complaints) == ([fleet.as_uri()], [])
    assert barriers(opened.page) == []


def test_a_keyboard_comes_to_everything_in_order_and_sees_where_it_is(
    opening: functools.partial[Opened], fleet: Path
) -> None:
    assert out_of_reach(opening(fleet).page) == []


def test_its_policy_allows_its_own_style_and_script_alone(fleet: Path) -> None:
    assert faults_of_policy(fleet.read_text()) == []
