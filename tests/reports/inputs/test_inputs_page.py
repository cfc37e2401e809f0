# SPDX-License-Identifier: LGPL-2.1-or-later
"""``docs/inputs.md`` says how it is: its examples are run, and give what it shows of each."""

import gzip
import io
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from given_inputs import LOG, OWNER, PERF, TREE, put

from mmscope.reports.commands.command import main

PAGE = (Path(__file__).parents[3] / "docs/inputs.md").read_text()
EVERY = bool(os.environ.get("MMSCOPE_ALL"))
EXAMPLE = re.compile(r"^\$ mmscope why ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# How many checks there are, and what they would take, changes with each that is new.
CHECKS = re.compile(
    r"\b(?:\d+|none)(?= (?:of \d+ checks|checks?\b|needs? root|a watch|a recording|a fuller copy))"
    r"|(?<=of )\d+(?= checks)|\d+(?= an?…)"
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
ALLOCATED = """\
   335544320    81920 mm/slub.c:3092 func:alloc_slab_page
    73400320    17920 drivers/net/example.c:71 [example] func:example_refill
     4194304     1024 fs/dcache.c:1700 func:__d_alloc
"""
PRESSURE = "some avg10=61.50 avg60=40.00 avg300=20.00 total=912345678\n"
PRESSURE += "full avg10=33.00 avg60=20.00 avg300=10.00 total=512345678\n"
SLABS = "".join((TREE / "proc/slabinfo").read_text().splitlines(keepends=True)[2:9])


def sosreport(folder: Path) -> None:
    with tarfile.open(folder / "sosreport.tar.gz", "w:gz") as archive:
        archive.add(TREE, "sosreport-host")


def recorded(folder: Path) -> None:
    """A recording, and a perf that has read it."""
    put(folder, "perf.data", "PERFILE2")
    put(folder, "text", PERF.replace("java 7/7 [001] 1.000000:", "java 7/7 [001] 1.000000000:"))
    perf = put(folder, "perf", f"#!/bin/sh\n[ $1 = report ] && exit 0\ncat {folder}/text\n")
    Path(perf).chmod(0o755)


def in_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "logs.zip", "w") as archive:
        archive.writestr("logs/dmesg.txt", LOG)


def in_tar(folder: Path) -> None:
    with tarfile.open(folder / "logs.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("a/dmesg.txt")
        member.size = len(LOG)
        archive.addfile(member, io.BytesIO(LOG.encode()))


def each_line(form: Callable[[int, str, str], str]) -> str:
    """The log with each line in another form, of its microseconds, stamp and text."""
    parts = (line.partition("] ") for line in LOG.splitlines())
    return "".join(form(round(float(at[1:]) * 1e6), f"{at}] ", text) for at, _, text in parts)


def exported(microseconds: int, stamp: str, text: str) -> str:
    return (
        f"__REALTIME_TIMESTAMP=17643{microseconds:011}\n_TRANSPORT=kernel\n"
        f"SYSLOG_IDENTIFIER=kernel\n_SOURCE_MONOTONIC_TIMESTAMP={microseconds}\n"
        f"MESSAGE={text}\n\n"
    )


def as_json(microseconds: int, stamp: str, text: str) -> str:
    entry = {"_TRANSPORT": "kernel", "_SOURCE_MONOTONIC_TIMESTAMP": str(microseconds)}
    return json.dumps(entry | {"SYSLOG_IDENTIFIER": "kernel", "MESSAGE": text}) + "\n"


def of_pod(microseconds: int, stamp: str, text: str) -> str:
    return json.dumps({"log": f"{stamp}{text}\n", "time": "2026-11-28T00:01:40Z"}) + "\n"


def of_proc(*names: str) -> dict[str, Callable[[Path], object]]:
    return {
        name: lambda folder, name=name: put(folder, name, (TREE / "proc" / name).read_bytes())
        for name in names
    }


def pasted(folder: Path) -> None:
    for name in ("meminfo", "vmstat", "zoneinfo"):
        put(folder, name, (TREE / "proc" / name).read_bytes())


MADE: dict[str, Callable[[Path], object]] = {
    "dmesg.txt": lambda folder: put(folder, "dmesg.txt", LOG),
    "sosreport.tar.gz": sosreport,
    "meminfo vmstat zoneinfo": pasted,
    "memory.stat": lambda folder: put(folder, "memory.stat", MEMORY_STAT),
    "ticket.txt": lambda folder: put(folder, "ticket.txt", f"so:\n```\n{SLABS}```\nThanks\n"),
    "perf.data": recorded,
    **of_proc("meminfo", "vmstat", "zoneinfo"),
    "pressure": lambda folder: put(folder, "pressure", PRESSURE),
}
WRAPPED: dict[str, Callable[[Path], object]] = {
    "- < dmesg.txt": MADE["dmesg.txt"],
    "var/log": lambda folder: put(folder, "var/log/messages", LOG),
    "logs.zip": in_zip,
    "logs.tar.xz": in_tar,
    "messages.gz": lambda folder: put(folder, "messages.gz", gzip.compress(LOG.encode())),
    "journal.export": lambda folder: put(folder, "journal.export", each_line(exported)),
    "journal.json": lambda folder: put(folder, "journal.json", each_line(as_json)),
    "short-iso.txt": lambda folder: put(
        folder,
        "short-iso.txt",
        each_line(lambda _, at, text: f"2026-11-28T00:01:40+0100 host kernel: {at}{text}\n"),
    ),
    "pod.log": lambda folder: put(folder, "pod.log", each_line(of_pod)),
    "utf16.txt": lambda folder: put(folder, "utf16.txt", LOG.encode("utf-16")),
    "issue.md": lambda folder: put(
        folder,
        "issue.md",
        "It was killed:\n\n> " + LOG.strip().replace("\n", "\n> ") + "\n\nWhy?\n",
    ),
    "thread.eml": lambda folder: put(folder, "thread.eml", MAIL + LOG),
    "notes.mbox": lambda folder: put(
        folder, "notes.mbox", f"From a@example.org Sat Nov 28 00:00:00 2026\n{MAIL}{LOG}"
    ),
}
# No check stands on one of these alone.
UNCHECKED: dict[str, Callable[[Path], object]] = {
    **of_proc("buddyinfo", "pagetypeinfo"),
    "allocinfo.txt": lambda folder: put(folder, "allocinfo.txt", ALLOCATED),
    "page_owner.gz": lambda folder: put(folder, "page_owner.gz", gzip.compress(OWNER.encode())),
    "4711/smaps": lambda folder: put(folder, "4711/smaps", SMAPS),
    "memory.events": lambda folder: put(
        folder, "memory.events", "low 0\nhigh 12\nmax 900\noom 3\noom_kill 3\n"
    ),
}
EXAMPLES = {given: shown.splitlines() for given, shown in EXAMPLE.findall(PAGE)}
UNLIKE = {
    given: (read, run)
    for given, read, run in re.findall(
        r"^\| `([^`\n]+)` \| ([^|\n]+) \| `([^`\n]+)` \|$", PAGE, re.MULTILINE
    )
}
ROWS = dict(re.findall(r"^\| `([^`\n]+)` \| ([^|\n]+) \|$", PAGE, re.MULTILINE))


def why(
    given: str, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The lines that one gets in a folder; perf is the one that is there, if any."""
    patch.chdir(folder)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    words, _, redirected = given.partition(" < ")
    before = os.dup(0)
    try:
        if redirected:
            with open(redirected, "rb") as file:
                os.dup2(file.fileno(), 0)
        main(["why", *words.split(), "-o", "case"])
    finally:
        os.dup2(before, 0)
        os.close(before)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    return lines


def test_each_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == MADE.keys() | OF_A_LAB
    assert ROWS.keys() == WRAPPED.keys()
    assert UNLIKE.keys() == UNCHECKED.keys()


@pytest.mark.parametrize("given", MADE)
def test_an_example_is_what_one_gets(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    MADE[given](tmp_path)
    lines = why(given, tmp_path, monkeypatch, capsys)
    assert words(lines) == words(EXAMPLES[given])


@pytest.mark.parametrize("given", list(WRAPPED)[:: None if EVERY else 5])
def test_a_log_is_the_same_in_whatever_it_comes(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    WRAPPED[given](tmp_path)
    lines = why(given, tmp_path, monkeypatch, capsys)
    assert lines[0].removeprefix("read").strip() == ROWS[given]
    assert words(lines[1:]) == words(EXAMPLES["dmesg.txt"][1:])


@pytest.mark.parametrize("given", list(UNCHECKED)[:: None if EVERY else 5])
def test_no_check_stands_on_a_file_alone(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    UNCHECKED[given](tmp_path)
    lines = why(given, tmp_path, monkeypatch, capsys)
    alike = EXAMPLES["memory.stat"]
    # What they would take: memory, a watch and others, as of any.
    assert words(lines[1:2]) == words(alike[1:2]) and "root or a vmcore" in words(lines)
    assert words(lines[-3:-2]) == words(alike[-3:-2]) and lines[-1] == alike[-1]
    assert (lines[0][9:], lines[-2][9:]) == UNLIKE[given]


def words(lines: list[str]) -> str:
    """Lines as one, with any number of checks."""
    return CHECKS.sub("N", " ".join(" ".join(lines).split()))
