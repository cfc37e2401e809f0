# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Whatever a stranger sends: every command ends by itself, with one of its exit codes, in bounded
memory, and says what is wrong in a line of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import children
import hostile
import pytest
from lake_truth import QUESTIONS, said_of
from made_lake import small

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate, named
from mmscope.reports.lake.batch import load
from mmscope.reports.lake.catalog import read_catalog
from mmscope.reports.lake.staging import identity

ROOT = Path(__file__).resolve().parent.parent
MOST_KIB = 600 << 10
MOST_WORDS = 2000  # of a line on stderr


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    words: list[str]
    code: int
    stderr: str
    stdout: int
    kib: int
    head: str = field(repr=False)


@pytest.fixture(scope="module", autouse=True)
def each_alone() -> Iterator[None]:
    """The process that begins each command: to import everything takes longer than most take."""
    command = [*children.DIES_WITH_US, sys.executable, str(ROOT / "tests/support/each_alone.py")]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=-1, stdout=-1) as process:
        STARTER.append(process)
        yield
        STARTER.clear()
        process.kill()


STARTER: list[subprocess.Popen[str]] = []


def run(folder: Path, *commands: list[Any]) -> list[Ran]:
    """Run commands, and hold each against what all of them promise."""
    (starter,) = STARTER
    assert starter.stdin is not None and starter.stdout is not None
    found = []
    for command in commands:
        words = list(map(str, command))
        starter.stdin.write(json.dumps([str(folder), words]) + "\n")
        starter.stdin.flush()
        found.append(Ran(words, **json.loads(starter.stdout.readline())))
    for ran in found:
        assert ran.code in (0, 1, 2, 3), ran
        assert "Traceback" not in ran.stderr, ran
        lines = ran.stderr.splitlines()
        assert all(line.startswith("mmscope: ") and len(line) < MOST_WORDS for line in lines), ran
        assert "-v shows where" not in ran.stderr, ran
        assert lines or not ran.code, ran
        assert ran.kib < MOST_KIB, ran
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "base"
    hostile.base(path)
    return path


# A comparison reads both bundles as findings and report do, and joins their tables: of a few it is
# enough to see that.
COMPARED = (
    "surrogates in the description",
    "texts that are no UTF-8, or have NUL",
    "numbers of 2^63",
)


def spoiled(base: Path, bundle: Path) -> set[str]:
    """The kinds of files that are not as they were."""
    pairs = ((path, bundle / path.name) for path in base.iterdir())
    return {
        "stacks" if one.suffix == ".folded" else one.stem
        for one, other in pairs
        if one.stat().st_size != other.stat().st_size or one.read_bytes() != other.read_bytes()
    }


def over(bundle: Path, kinds: set[str]) -> list[list[Any]]:
    """
    Every command that reads a bundle, without those that come upon nothing new: of tables that are
    as they were one is shown, and a report asks all that findings ask of tables; with
    ``MMSCOPE_ALL`` both are made of all.
    """
    every = bool(os.environ.get("MMSCOPE_ALL"))
    shown = [
        *([["show", "page_tables", bundle]] if "page_tables" in kinds else []),
        *([["show", "profiles", bundle, "--format", "folded"]] if "stacks" in kinds else []),
    ]
    return [
        ["show", "tables", bundle],
        *(shown or [["show", "zones", bundle, "--format", "csv"]]),
        *([["findings", bundle, "-a"]] if every or kinds & {"datapackage", "sections"} else []),
        ["report", bundle, "-o", "report.html"],
        ["redact", bundle, "-o", "redacted"],
    ]


@pytest.mark.parametrize("name", hostile.BUNDLES)
def test_a_bundle(base: Path, tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(base, bundle)
    hostile.BUNDLES[name](bundle)
    compared = [["compare", base, "--", bundle]] if name in COMPARED else []
    ran = run(tmp_path, *over(bundle, spoiled(base, bundle)), *compared)
    if "UTF-8" in name or "surrogates" in name:
        assert {one.code for one in ran} == {0}, "odd encodings are written out for every command"
    # One rule for all commands: what cannot be opened is refused by each, with the same words.
    refused = {one.stderr for one in ran if one.words[0] in ("findings", "redact") and one.code > 1}
    assert len(refused) <= 1 and {one.code for one in ran if one.stderr in refused} <= {2}
    if (tmp_path / "redacted").exists():
        for table in (again := Bundle(tmp_path / "redacted")).tables:
            assert again.count(table) >= 0


def test_in_a_lake_none_costs_another_host_anything(base: Path, tmp_path: Path) -> None:
    """All of them at once: each is in it or is a line, and a host that is in order is told all."""
    good = small(tmp_path / "good", "good", kills=3)
    bundles = [tmp_path / f"bundle-{number}" for number in range(len(hostile.BUNDLES))]
    for bundle, attack in zip(bundles, hostile.BUNDLES.values(), strict=True):
        shutil.copytree(base, bundle)
        attack(bundle)
    lake = tmp_path / "lake"
    asked = ["lake", "findings", lake, "--by", "host"]
    added, *_ = run(tmp_path, ["lake", "add", *bundles, good, lake], asked, ["lake", "show", lake])
    catalog = read_catalog(lake)
    there = {taken.id for taken in catalog.bundles}
    lines = added.stderr.splitlines()
    for bundle in bundles:
        said = [
            line
            for line in lines
            if line.startswith((f"mmscope: {bundle}: ", f"mmscope: {bundle}/"))
        ]
        left_out = [line for line in said if ": table " in line and "is left out: " in line]
        assert (identity(bundle) in there) == (said == left_out), (bundle, said)
    assert added.code == 1 and identity(good) in there
    batch = load(catalog, catalog.bundles, named(QUESTIONS))
    alone = evaluate(Bundle(good))
    reasons = {item.id: item.reason for item in alone.not_checked}
    for id, number, told, refused in said_of(batch):
        if catalog.bundles[number].id == identity(good):
            expected = sorted(repr(one) for one in (*alone.found, *alone.under) if one.id == id)
            assert (id, told, refused) == (id, expected, reasons.get(id))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A bundle in a folder of a plain name with a report beside it, and how much is shown of it."""
    folder = tmp_path_factory.mktemp("plain")
    hostile.base(folder / "plain", ("zones", "free_lists"))
    shown, _ = run(
        folder,
        ["show", "fragmentation", "plain"],
        ["report", "plain", "-o", "plain.html"],
    )
    return folder, shown.stdout


# A report asks the same database, and reads folders and files of that name besides: of these it is
# enough to see that.
REPORTED = ("**", "q'\"$x", "x=1")


@pytest.mark.parametrize("name", hostile.FOLDERS)
def test_the_name_of_a_folder_is_taken_as_it_is(
    plain: tuple[Path, int], tmp_path: Path, name: str
) -> None:
    """Beside it lies what it would match as a pattern, with other numbers."""
    folder, shown = plain
    places = [tmp_path / name / "b", *(tmp_path / decoy / "b" for decoy in ("case7", "ab", "c"))]
    for place in places:
        shutil.copytree(folder / "plain", place)
    for decoy in places[1:]:
        hostile.numbers(77, "zones", "free_blocks")(decoy)
    bundle = Path(name, "b")
    (ran,) = run(tmp_path, ["show", "fragmentation", bundle])
    assert (ran.code, ran.stdout) == (0, shown)
    if name in REPORTED:
        run(tmp_path, ["report", bundle, "-o", "b.html"])
        assert (tmp_path / "b.html").read_bytes() == (folder / "plain.html").read_bytes()


@pytest.mark.parametrize("name", hostile.LOGS)
def test_a_log_of_a_watch(tmp_path: Path, name: str) -> None:
    make, kept = hostile.LOGS[name]
    make(tmp_path / "b.samples")
    (ran,) = run(tmp_path, ["watch", "--recover", "-o", "b"])
    assert (ran.code < 2) == kept == (tmp_path / "b").exists()
    if kept:
        bundle = Bundle(tmp_path / "b")
        assert bundle.count("watch_samples") >= 3 - ("MiB" in name)
        assert len(list(bundle.rows("counter_rates"))) >= 1
    else:
        assert "tries again" in ran.stderr and (tmp_path / "b.samples").exists()


@pytest.mark.parametrize("name", hostile.TEXTS)
def test_a_text_of_page_owner(tmp_path: Path, name: str) -> None:
    hostile.TEXTS[name](tmp_path / "text")
    run(tmp_path, ["page-owner", "text", "-o", "b"])
    # By the same reader.
    (tmp_path / "short").write_bytes((tmp_path / "text").open("rb").read(1 << 20))
    run(tmp_path, ["show", "page_owner", "short"])


@pytest.mark.parametrize("name", ["show_handles and 640 MiB", "show_stacks and 640 MiB", "a pipe"])
def test_counts_that_a_watch_copies(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "debugfs" / "page_owner_stacks"
    folder.mkdir(parents=True)
    make = hostile.TEXTS.get(name, os.mkfifo)
    make(folder / name.split()[0].replace("a", "show_stacks"))
    run(
        tmp_path,
        ["watch", "--count", "1", "--interval", "0.01", "--debugfs", "debugfs", "-o", "b"],
    )


# Without the first there is no tree, and nobody looks for the others.
FILES = {
    "zoneinfo": ("proc/zoneinfo",),
    "the others": (
        "proc/vmstat", "proc/pagetypeinfo", "proc/pressure/memory",
        "sys/kernel/mm/ksm/full_scans", "sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("kind", ["a pipe", "640 MiB"])
def test_a_tree_of_proc(tmp_path: Path, names: tuple[str, ...], kind: str) -> None:
    make = os.mkfifo if kind == "a pipe" else hostile.TEXTS["640 MiB of nothing"]
    hostile.tree(tmp_path / "tree", names, make)
    run(
        tmp_path,
        ["watch", "--count", "1", "--interval", "0.01", "--proc-root", "tree", "-o", "w"],
        ["collect", "--proc-root", "tree", "-o", "c"],
    )
