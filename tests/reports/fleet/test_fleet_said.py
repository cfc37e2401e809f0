# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is said of a fleet first: how much could be asked at all, what is worst, what is odd."""

import csv
import io
import json
import re
from pathlib import Path

import made_hosts as made
import pytest
from command_line import run
from made_lake import host, lake_of, small

from mmscope.reports.findings.question import OURS
from mmscope.reports.fleet.fleet import Fleet, FleetFinding, Share
from mmscope.reports.fleet.fleet_text import _regressed

FIRST = re.compile(
    r"(?:Trouble on \d of|Nothing above a notice found on) 5 hosts; "
    r"worst: (.+?) \((\w+), on 2 of 5 hosts\)"
)
RESTS_ON = re.compile(
    r"(\d+) findings? in 5 bundles; (\d+) checks? found nothing on all hosts, (\d+) on those that "
    r"have the data; (\d+) have no data on any host"
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hosts: of four hardly anything can be asked, nor do they say when; two are ill."""
    folder = tmp_path_factory.mktemp("said")
    bundles = [small(folder / f"b{n}", f"h{n}", kills=max(0, n - 2)) for n in range(1, 5)]
    for path in bundles:
        description = json.loads((path / "datapackage.json").read_text())
        del description["target"]["captured_at"]
        (path / "datapackage.json").write_text(json.dumps(description))
    whole = made.healthy(2)
    whole.target |= host("h0")
    whole.write(folder / "whole")
    bundles.append(folder / "whole")
    lake_of(folder, *bundles)
    return folder / "lake"


def test_the_headline_says_how_much_could_be_asked_and_what_is_worst(lake: Path) -> None:
    done = run("lake", "findings", lake)
    first = FIRST.search(done.stdout)
    assert first, done.stdout[:500]
    about, severity = first.groups()
    rests_on = RESTS_ON.search(" ".join(done.stdout.split()))
    assert rests_on, done.stdout
    found, on_all, on_some, unasked = rests_on.groups()
    rows = list(
        csv.DictReader(io.StringIO(run("lake", "findings", lake, "--format", "csv").stdout))
    )
    assert int(found) == len(rows)
    assert (rows[0]["severity"], rows[0]["hosts"]) == (severity, "2")
    assert about == "Processes that the OOM killer took since boot"
    assert int(found) + int(on_all) + int(on_some) + int(unasked) == len(OURS())
    page = lake.parent / "page.html"
    run("lake", "report", lake, "-o", page)
    text = page.read_text()
    assert FIRST.search(text) and RESTS_ON.search(text)
    assert f"Checked, and no host has it ({int(on_all) + int(on_some)})" in text
    assert f"Could be checked on no host ({unasked})" in text


def test_bundles_of_one_reason_are_a_line_below_the_findings(lake: Path) -> None:
    done = run("lake", "findings", lake)
    (said,) = done.stderr.splitlines()
    assert re.fullmatch(
        r"mmscope: 4 bundles of 4 hosts, each: does not say when it was taken; it is filed under "
        r"the day when it was added \(h\d, bundle [0-9a-f]{32}, is the first; column note of "
        r"'mmscope lake show LAKE bundles' marks them\)",
        said,
    )
    page = lake.parent / "page.html"
    run("lake", "report", lake, "-o", page)
    text = page.read_text()
    assert text.count('class="trouble"') == 1
    assert text.index('<section id="findings"') < text.index('class="trouble"')


def test_which_bundles_these_are_can_be_listed(lake: Path) -> None:
    done = run("lake", "show", lake, "bundles", "--format", "csv")
    rows = csv.DictReader(io.StringIO(done.stdout))
    assert {row["host"]: row["note"][:17] for row in rows} == {"h0": ""} | {
        f"h{n}": "does not say when" for n in range(1, 5)
    }


def test_a_kernel_that_calls_itself_a_command_is_written_out() -> None:
    shares = {"\x1b[31m7.3\u202e": Share(12, 12), "7.2": Share(0, 12)}
    told = FleetFinding(OURS()[0], by_kernel=shares)
    (line,) = _regressed(Fleet({}, 24, [], [told]))
    assert r"12 of 12 hosts with \x1b[31m7.3\u202e have it" in line
