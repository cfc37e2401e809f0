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
from given_inputs import LOG, put
from why_inputs import EXAMPLE, INPUTS, PAGE, printed

EVERY = bool(os.environ.get("MMSCOPE_ALL"))
# How many checks there are, and what they would take, changes with each that is new.
CHECKS = re.compile(
    r"\b(?:\d+|none)(?= (?:of \d+ checks|checks?\b|needs? root|a watch|a recording|a fuller copy))"
    r"|(?<=of )\d+(?= checks)|\d+(?= an?…)"
)
MAIL = "From: a@example.org\nMessage-ID: <7@example.org>\nSubject: it was killed\n\n"


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


WRAPPED: dict[str, Callable[[Path], object]] = {
    "- < dmesg.txt": lambda folder: put(folder, "dmesg.txt", LOG),
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
EVERY_INPUT = {one.given: one for inputs in INPUTS.values() for one in inputs}
EXAMPLES = {given: shown.splitlines() for given, shown in EXAMPLE.findall(PAGE.read_text())}
ROWS = dict(re.findall(r"^\| `([^`\n]+)` \| ([^|\n]+) \|$", PAGE.read_text(), re.MULTILINE))


def why(given: str, folder: Path) -> list[str]:
    """The lines that one gets in a folder, of standard input, too."""
    typed, _, redirected = given.partition(" < ")
    if not redirected:
        return printed(given, folder)
    before = os.dup(0)
    try:
        with (folder / redirected).open("rb") as file:
            os.dup2(file.fileno(), 0)
        return printed(typed, folder)
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_there_are_more_than_thirty_of_all_kinds() -> None:
    assert len(EXAMPLES) >= 40 and EXAMPLES.keys() > EVERY_INPUT.keys()
    assert ROWS.keys() == WRAPPED.keys()


# All of them nightly.
@pytest.mark.parametrize("given", list(EVERY_INPUT)[:: None if EVERY else 3])
def test_an_example_is_what_one_gets(given: str, tmp_path: Path) -> None:
    EVERY_INPUT[given].make(tmp_path)
    assert words(printed(given, tmp_path)) == words(EXAMPLES[given])


@pytest.mark.parametrize("given", list(WRAPPED)[:: None if EVERY else 5])
def test_a_log_is_the_same_in_whatever_it_comes(given: str, tmp_path: Path) -> None:
    WRAPPED[given](tmp_path)
    lines = why(given, tmp_path)
    assert lines[0].removeprefix("read").strip() == ROWS[given]
    assert words(lines[1:]) == words(EXAMPLES["dmesg.txt"][1:])


def words(lines: list[str]) -> str:
    """Lines as one, with any number of checks."""
    return CHECKS.sub("N", " ".join(" ".join(lines).split()))
