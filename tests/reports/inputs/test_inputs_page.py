# SPDX-License-Identifier: LGPL-2.1-or-later
"""``docs/inputs.md`` says how it is: its examples are run, and give what it shows of each."""

import gzip
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from given_inputs import LOG, OWNER, PERF, TREE, put

from mmscope.reports.commands.command import main

PAGE = (Path(__file__).parents[3] / "docs/inputs.md").read_text()
EXAMPLE = re.compile(r"^\$ mmscope why ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# How many checks there are, and what they would take, changes with each that is new.
CHECKS = re.compile(
    r"\b(?:\d+|none)(?= (?:of \d+ checks|checks?\b|needs? root|a watch|a recording|what this))"
    r"|(?<=of )\d+(?= checks)"
)
OF_A_LAB = {"vmcore kern.log"}  # which is not run: it takes a dump
SMAPS = """\
7f0000000000-7f0010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Rss:              204800 kB
Pss:              204800 kB
Pss_Anon:         204800 kB
Pss_File:              0 kB
Pss_Shmem:             0 kB
Private_Dirty:    204800 kB
SwapPss:               0 kB
"""
MEMORY_STAT = "anon 209715200\nfile 4096\nkernel 1048576\nslab 524288\npgfault 70000\n"
MAIL = "From: a@example.org\nMessage-ID: <7@example.org>\nSubject: it was killed\n\n"
SLABS = "".join((TREE / "proc/slabinfo").read_text().splitlines(keepends=True)[2:9])


def sosreport(folder: Path) -> None:
    with tarfile.open(folder / "sosreport.tar.gz", "w:gz") as archive:
        archive.add(TREE, "sosreport-host")


def pasted(folder: Path) -> None:
    for name in ("meminfo", "vmstat", "zoneinfo"):
        put(folder, name, (TREE / "proc" / name).read_bytes())


MADE: dict[str, Callable[[Path], object]] = {
    "dmesg.txt": lambda folder: put(folder, "dmesg.txt", LOG),
    "sosreport.tar.gz": sosreport,
    "meminfo vmstat zoneinfo": pasted,
    "script.txt": lambda folder: put(folder, "script.txt", PERF),
    "page_owner.gz": lambda folder: put(folder, "page_owner.gz", gzip.compress(OWNER.encode())),
    "4711/smaps": lambda folder: put(folder, "4711/smaps", SMAPS),
    "memory.stat": lambda folder: put(folder, "memory.stat", MEMORY_STAT),
    "ticket.txt": lambda folder: put(folder, "ticket.txt", f"so:\n```\n{SLABS}```\nThanks\n"),
    "thread.eml": lambda folder: put(folder, "thread.eml", MAIL + LOG),
}
EXAMPLES = {given: shown.splitlines() for given, shown in EXAMPLE.findall(PAGE)}


def test_each_kind_has_an_example_of_five_lines() -> None:
    assert EXAMPLES.keys() == MADE.keys() | OF_A_LAB
    assert {given: len(lines) for given, lines in EXAMPLES.items() if len(lines) != 5} == {}


@pytest.mark.parametrize("given", MADE)
def test_an_example_is_what_one_gets(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    MADE[given](tmp_path)
    monkeypatch.chdir(tmp_path)
    main(["why", *given.split(), "-o", "case"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert words(lines[:5]) == words(EXAMPLES[given])


def words(lines: list[str]) -> str:
    """Lines as one, with any number of checks."""
    return CHECKS.sub("N", " ".join(" ".join(lines).split()))
