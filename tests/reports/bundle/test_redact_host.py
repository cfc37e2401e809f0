# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What this very machine says, under names that nobody else has (its own, a process's, a folder's, a
label): nothing of them is left once it is redacted, in bundles, reports and comparisons alike, and
the numbers are the same. What adds to a bundle does not add names to one that has none.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import children
import pytest
from checkout import ROOT
from perf_text import TEXT
from report_bundle import tables, tables_of, write_bundle
from watched_host import debugfs

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.redact import Names, redact, redacted
from mmscope.reports.commands.command import main
from mmscope.reports.compare.comparison import Comparison, compare
from mmscope.reports.findings.findings import evaluate

SECRET = "zqsecret"
JOB, LABEL = f"{SECRET}-job", f"{SECRET} label"
# To give the machine another name for one process; where that is not allowed it keeps its own.
WAYS = (["unshare", "--uts"], ["unshare", "--uts", "--map-root-user"])
UNSHARE = next(
    (way for way in WAYS if not children.run([*way, "true"], capture_output=True).returncode), []
)
HOST = f"{SECRET}-host" if UNSHARE else os.uname().nodename
START = f"""
import socket, sys
sys.path.insert(0, {str(ROOT)!r})
if {bool(UNSHARE)}:
    socket.sethostname({HOST!r})
opened = []
def seen(event, args):
    # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC; a number is a file that was opened before.
    if event == "open" and args[2] & 0o1103 and not isinstance(args[0], int):
        opened.append(str(args[0]))
sys.addaudithook(seen)
from mmscope.reports.commands.command import main
code = main(sys.argv[2:])
said = "\\n".join(opened)
open(sys.argv[1], "w").write(said)
sys.exit(code)
"""
SPINS = "x = 0\nfor i in range(3_000_000): x += i"
# What a frame of a program may be once it has no name.
FRAME = re.compile(r"function-[0-9]+|\[unknown\]|\([a-z ]+\)|:[0-9]+")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program in it."""
    folder = tmp_path_factory.mktemp(f"{SECRET}-place")
    (folder / JOB).symlink_to(os.path.realpath(sys.executable))
    return folder


def mmscope(place: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, on a machine with that name; which files it wrote is in ``opened``."""
    command = [*UNSHARE, sys.executable, "-c", START, place / "opened", *words]
    done = children.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done


@contextmanager
def job(place: Path) -> Iterator[int]:
    """A process of that name."""
    process = children.start(
        [place / JOB, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.fixture(scope="module")
def watched(place: Path) -> Bundle:
    """A watch with page_owner, and a profile in it."""
    path = place / "watched"
    words = ("--interval", "0.05", "--count", "4", "--debugfs", debugfs(place))
    mmscope(place, "watch", *words, "-o", path)
    words = ("--label", LABEL, "-o", path, "--", place / JOB, "-c", SPINS)
    assert main(["record", "page-fault", *map(str, words)]) in (0, 1)
    return Bundle(path)


@pytest.fixture(scope="module")
def bare(place: Path) -> Bundle:
    """A watch on a host without page_owner and pressure, which is said with the paths."""
    path, host = place / "bare", place / "sosreport"
    (host / "proc").mkdir(parents=True)
    for name in ("vmstat", "meminfo", "zoneinfo", "buddyinfo"):
        (host / "proc" / name).write_text(Path("/proc", name).read_text())
    words = ("--interval", "0.05", "--count", "4", "--debugfs", place / "none")
    mmscope(place, "watch", *words, "--proc-root", host, "-o", path)
    return Bundle(path)


@pytest.fixture(scope="module")
def readings(place: Path) -> tuple[Bundle, Bundle]:
    """The machine before and after a process of that name came, beside another one."""
    with job(place):
        words = ("collect", "--no-findings", "--proc-root", "/", "-o")
        mmscope(place, *words, place / "before")
        time.sleep(1)
        with job(place):
            mmscope(place, *words, place / "after")
    return Bundle(place / "before"), Bundle(place / "after")


@pytest.fixture(scope="module")
def few(place: Path, readings: tuple[Bundle, Bundle]) -> tuple[Bundle, Bundle]:
    """The same, of three tables: rows of one are named by somebody, those of the others are not."""
    made = []
    for bundle in readings:
        path = place / f"few-{bundle.path.name}"
        shutil.copytree(bundle.path, path)
        description = json.loads((path / "datapackage.json").read_text())
        kept = ("zones", "free_blocks", "page_tables", "sections")
        description["resources"] = [r for r in description["resources"] if r["name"] in kept]
        (path / "datapackage.json").write_text(json.dumps(description))
        made.append(Bundle(path))
    return made[0], made[1]


def bytes_of(bundle: Bundle) -> str:
    files = sorted(bundle.path.iterdir())
    return "".join(path.name + path.read_text() for path in files).lower()


def numbers(bundle: Bundle) -> dict[str, Any]:
    """All that is no name."""
    return {
        name: [
            {c.name: row[c.name] for c in table.columns if c.holds in ("", "kernel")}
            for row in bundle.rows(name)
        ]
        for name, table in bundle.tables.items()
    }


def found_in(bundle: Bundle) -> list[Any]:
    return [(finding.id, finding.severity, finding.badness) for finding in evaluate(bundle).found]


@pytest.mark.parametrize("which", ["watched", "bare"])
def test_nothing_of_a_watch_names_anybody(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bundle = request.getfixturevalue(which)
    names = {
        "watched": (HOST, JOB, LABEL, f"{SECRET}_label", f"{SECRET}-place"),
        "bare": (HOST, f"{SECRET}-place"),
    }[which]
    before = bytes_of(bundle)
    assert [name for name in names if name.lower() not in before] == []
    made, report = tmp_path / "made", tmp_path / "report.html"
    assert main(["redact", str(bundle.path), "-o", str(made)]) == 0
    assert main(["report", str(bundle.path), "--redact", "-o", str(report)]) == 0
    assert SECRET not in bytes_of(Bundle(made))
    html = report.read_text()
    assert SECRET not in html.lower() and "host-1" in html and "Names are replaced" in html
    assert main(["report", str(made), "-o", str(report)]) == 0
    assert SECRET not in report.read_text().lower()
    assert numbers(Bundle(made)) == numbers(bundle)
    assert found_in(Bundle(made)) == found_in(bundle)


def test_functions_of_programs_are_no_names_of_anybody_either(
    watched: Bundle, tmp_path: Path
) -> None:
    made = redact(watched, tmp_path / "made", Names())

    def of_programs(bundle: Bundle) -> list[str]:
        names = [folded.name for folded in bundle.folded.values() if folded.section == "profiles"]
        stacks = (stack for name in names for stack, _ in bundle.stacks(name))
        frames = {frame for stack in stacks for frame in stack.split(";")[1:]}
        return [f for f in frames if not f.endswith("_[k]") and not FRAME.fullmatch(f)]

    assert len(of_programs(watched)) > 3
    # A recipe's own: what samples are grouped by.
    assert [f for f in of_programs(made) if not re.fullmatch(r"order -?[0-9]+", f)] == []
    assert [folded.unit for folded in made.folded.values()] == [
        folded.unit for folded in watched.folded.values()
    ]


# What adds to a bundle


def test_a_recording_is_not_put_beside_replaced_names(
    watched: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, text = redact(watched, tmp_path / "made", Names()), tmp_path / "perf.txt"
    text.write_bytes(TEXT)
    before = bytes_of(made)
    for words in (
        ["--input", str(text)],
        ["--", "/bin/sh", "-c", f"touch {tmp_path}/ran"],
    ):
        assert main(["record", "page-fault", "-o", str(made.path), *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"mmscope( record)?: .*made: its names are replaced.*", line), line
    assert bytes_of(made) == before
    assert sorted(os.listdir(tmp_path)) == ["made", "perf.txt"], "refused before it is recorded"
    # The one that it was made of takes it, as ever.
    assert main(["record", "page-fault", "-o", str(tmp_path / "new"), "--input", str(text)]) == 0
    assert main(["record", "page-fault", "-o", str(tmp_path / "new"), "--input", str(text)]) == 0


def test_nothing_else_adds_to_a_bundle(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = redact(write_bundle(tmp_path / "plain", tables()), tmp_path / "made", Names())
    before, out = bytes_of(made), ["-o", str(made.path)]
    handles = str(debugfs(tmp_path) / "page_owner_stacks" / "show_stacks")
    (tmp_path / "made.samples").mkdir()
    (tmp_path / "made.samples" / "watch.jsonl").touch()
    for words in (
        ["collect", "--proc-root", "/"],
        ["watch", "--count", "1"],
        ["watch", "--recover"],
        ["page-owner", handles],
        ["redact", str(tmp_path / "plain")],
    ):
        assert main([*words, *out]) == 2, words
        assert "already exists" in capsys.readouterr().err
        assert bytes_of(made) == before
    # With --force a bundle takes its place, of which nothing is left then.
    assert main(["page-owner", handles, *out, "--force"]) == 0
    assert "redacted" not in Bundle(made.path).target
    assert "zones" not in Bundle(made.path).tables


# Collected without names


def test_collected_without_names(place: Path) -> None:
    with job(place) as pid:
        words = ("--redact", "--redact-map", place / "map.json", "-o", place / "collected")
        said = mmscope(place, "collect", "--proc-root", "/", *words).stdout
    bundle = Bundle(place / "collected")
    assert SECRET not in bytes_of(bundle) and SECRET not in said
    assert bundle.target["hostname"] == "host-1" and "redacted" in bundle.target
    given = json.loads((place / "map.json").read_text())
    (row,) = (row for row in bundle.rows("page_tables") if row["pid"] == pid)
    assert given["comm"][row["comm"]] == JOB and given["host"]["host-1"] == HOST
    # Who has page tables is no thread of the kernel's.
    assert {row["comm"] for row in bundle.rows("page_tables")} <= given["comm"].keys()
    # And never were on disk: each file of it was opened once, at its place or for its rename.
    opened = (place / "opened").read_text().splitlines()
    wrote = [path for path in opened if SECRET in path and Path(path).name != "map.json"]
    assert sorted(Path(path).name for path in wrote) == sorted(os.listdir(bundle.path))
    assert {Path(path).parent.parent for path in wrote} == {place}
    assert set(opened) - set(wrote) <= {str(place / "map.json"), "/dev/null"}


# Two of them


FINDINGS = functools.cache(evaluate)


def held(before: Bundle, after: Bundle, *, draw: bool = False) -> Comparison:
    return compare(before, after, (FINDINGS(before), FINDINGS(after)), draw=draw)


def test_a_comparison_joins_what_was_replaced_together(
    readings: tuple[Bundle, Bundle], few: tuple[Bundle, Bundle]
) -> None:
    plain = held(*readings)
    with redacted(readings, Names()) as made:
        other = held(*made)
    with redacted(few, Names()) as made, redacted(made, Names()) as twice:
        assert held(*twice).relation.one_boot
    assert other.relation.one_boot and other.relation.same_names
    for one, two in zip(plain.tables, other.tables, strict=True):
        assert (one.name, one.counts, one.totals) == (two.name, two.counts, two.totals)
        assert sorted(str((c.change, c.before, c.after)) for c in one.changes) == sorted(
            str((c.change, c.before, c.after)) for c in two.changes
        )
    assert plain.not_compared == other.not_compared
    assert [(f.change, f.finding.id) for f in plain.findings] == [
        (f.change, f.finding.id) for f in other.findings
    ]
    (processes,) = (table for table in other.tables if table.name == "page_tables")
    assert processes.counts["same"] > 3 and processes.counts["new"] >= 1


def test_reports_and_comparisons_of_two_without_names(
    readings: tuple[Bundle, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = (str(bundle.path) for bundle in readings)
    report, drawn = tmp_path / "report.html", tmp_path / "map.json"
    assert main(["report", after, "--baseline", before, "--redact", "-o", str(report)]) == 0
    html = report.read_text()
    assert SECRET not in html.lower() and "One boot of host-1" in html
    capsys.readouterr()
    words = ["compare", before, "--", after, "--redact", "-o", str(report)]
    # argparse takes what follows -- for bundles, so that options may stand anywhere.
    assert main([*words, "--redact-map", str(drawn), "--format", "json"]) == 0
    said = capsys.readouterr()
    assert SECRET not in said.out.lower() and "One boot of host-1" in said.err
    assert "One boot of host-1" in report.read_text() and SECRET not in report.read_text().lower()
    found = json.loads(said.out)
    assert [row["host"] for row in found["hosts"]] == ["host-1", "host-1"]
    given = json.loads(drawn.read_text())
    assert given["host"] == {"host-1": HOST} and JOB in given["comm"].values()
    # The map is not to be lost, which is known before the work.
    assert main([*words, "--redact-map", str(drawn)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["compare", before, "--", after, "--redact-map", str(tmp_path / "m")]) == 2
    assert "--redact-map goes with --redact" in capsys.readouterr().err


def test_groups_without_names(
    readings: tuple[Bundle, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (before, after), page = (str(b.path) for b in readings), tmp_path / "groups.html"
    words = ["compare", before, after, "--", after, "--redact", "-o", str(page)]
    assert main([*words, "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert SECRET not in (said.out + page.read_text()).lower()
    assert "on both sides: host-1" in said.err and "host-1" in page.read_text()
    assert main([word for word in words if word != "--redact"]) == 0
    assert f"on both sides: {HOST}" in capsys.readouterr().out and HOST in page.read_text()


def test_what_was_not_replaced_together_is_not_joined(
    few: tuple[Bundle, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (redact(bundle, tmp_path / f"{n}", Names()) for n, bundle in enumerate(few))
    again = redact(one, tmp_path / "again", Names())
    # Redacted once more, and now together, they stay apart; so with one that never was.
    with redacted((one, two, few[1]), Names()) as more:
        pairs = (
            *((one, two), (one, few[1]), (few[0], two), (one, again)),
            *((more[0], more[1]), (more[0], more[2])),
        )
        for pair in pairs:
            comparison = held(*pair)
            assert not comparison.relation.same_names
            assert comparison.relation.same_host is comparison.relation.same_boot is None
            assert comparison.relation.words[0].startswith("Names were not replaced in both")
            left_out = dict(comparison.not_compared)
            assert left_out["page_tables"] == (
                "its rows are named by comm, which was not replaced in both together"
            )
            assert {"zones", "free_blocks"} <= {table.name for table in comparison.tables}
    assert main(["compare", str(one.path), "--", str(two.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Names were not replaced in both bundles together" in said
    assert "host-1 may be several hosts" in said and "on both sides" not in said


def test_findings_that_go_by_a_name_are_not_joined_either(tmp_path: Path) -> None:
    plain = write_bundle(tmp_path / "plain", tables_of("page_tables", "profiles", "zones"))
    one, two = (redact(plain, tmp_path / f"{n}", Names()) for n in range(2))
    with redacted((plain, plain), Names()) as both:
        together = held(*both, draw=True)
    assert {change.change for change in together.findings} == {"same"}
    assert together.not_checked == (0, 0)
    apart = held(one, two, draw=True)
    named = {"comm", "profile"}
    by_name = [f for f in evaluate(one).found if named & {name for name, _ in f.subject}]
    assert by_name and apart.not_checked == (len(by_name), len(by_name))
    assert len(apart.findings) == len(together.findings) - len(by_name)
    assert [g.title for g in together.graphs if g.title.startswith("Profile")]
    assert not [g.title for g in apart.graphs if g.title.startswith("Profile")]
