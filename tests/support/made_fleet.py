# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A fleet: as many bundles as are wanted, no two alike, of a few dozen kinds.

A kind is a real bundle, or a made host with one trouble or several. A made one that was read as a
real one is, and has fewer tables, has the real one's beside its own. A host is a kind whose memory,
and whatever is made of it, is twice, three times … as large: shares of memory, which findings look
at, stay what they are. So each finding is found in the first hosts, and in most of the others of
their kind.

Costs a few milliseconds a host: a table is text with numbers in between, and only these are written
anew. Files in which nothing changes are links to one.
"""

import csv
import dataclasses
import datetime
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import made_hosts
import numpy as np
import report_bundle
from checkout import TESTS
from finding_cases.case import Case, bundle
from finding_cases.every import FOUND, NOT_CHECKED
from made_lake import host
from profile_cases import PROFILES
from rows_of_tables import TABLE_OF

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import DESCRIPTION, Table, older
from mmscope.reports.findings.question import OURS

REAL = TESTS / "bundles"
# What a machine with more memory has more of.
SIZES = {"pages", "bytes", "blocks", "slabs", "frames"}
ALSO = {("vm_counters", "value"), ("levels", "value"), ("slab_caches", "objects"),
        ("slab_caches", "slots")}  # fmt: skip
# Sizes of one thing, which is as large everywhere.
NOT = {("slab_caches", "object_bytes"), ("slab_caches", "slot_bytes")}
# What is larger is an address, or damage.
MOST = 1 << 40
RELEASES = ("6.1.158", "6.12.117", "7.2.12", "7.3.1")
BEGIN = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
DAYS = 1


@dataclasses.dataclass(frozen=True)
class Text:
    """
    A file with numbers that a larger machine has larger.

    :ivar words: what stands before, between and behind them.
    """

    name: str
    words: list[str]
    numbers: Any

    def times(self, factor: int) -> str:
        """The same of a machine so many times as large."""
        out = self.words + self.words[:-1]
        out[::2] = self.words
        out[1::2] = map(str, (self.numbers * factor).tolist())
        return "".join(out)


@dataclasses.dataclass(frozen=True)
class Kind:
    """
    What hosts are made of.

    :ivar linked: files that all of them have.
    """

    description: dict[str, Any]
    linked: list[Path]
    texts: list[Text]

    def write(self, path: Path, name: str, factor: int, taken: datetime.datetime) -> None:
        """The bundle of a host so many times as large."""
        path.mkdir()
        for file in self.linked:
            os.link(file, path / file.name)
        for text in self.texts:
            (path / text.name).write_text(text.times(factor), encoding="utf-8", newline="")
        target = self.description["target"]
        # The kind's own stays as it is.
        target = dict(target) | {
            "hostname": name,
            "release": RELEASES[factor % len(RELEASES)],
            "captured_at": taken.isoformat(),
            "uptime_seconds": (target.get("uptime_seconds") or 7200.0) + 60 * factor,
            "total_pages": (target.get("total_pages") or 1 << 20) * factor,
        }
        text = json.dumps(self.description | {"target": target})
        (path / DESCRIPTION).write_text(text, encoding="utf-8")


class Fleet:
    """
    Bundles of many hosts, by number.

    :param folder: for what they are made of; on the file system that they are to be on.
    :param real: bundles beside those of the tests.
    """

    def __init__(self, folder: Path, real: Sequence[Path] = ()) -> None:
        folder.mkdir(parents=True)
        reals = [*sorted(path.parent for path in REAL.glob(f"*/{DESCRIPTION}")), *real]
        # Those that have tables enough to stand for a host.
        whole = [path for path in reals if len(Bundle(path).tables) > 20]
        self.kinds = [_kind(Bundle(path)) for path in reals]
        for number, path in enumerate(troubles(folder)):
            one = Bundle(path)
            if one.target.get("source") != "watch" and not one.folded:
                _beside(one, Bundle(whole[number % len(whole)]))
            self.kinds.append(_kind(Bundle(path)))

    def write(self, folder: Path, numbers: Sequence[int]) -> list[Path]:
        """The bundles of these hosts."""
        made = []
        for number in numbers:
            turn, of = divmod(number, len(self.kinds))
            path = folder / f"host-{number:05}"
            taken = BEGIN + datetime.timedelta(seconds=number * 7919 % (DAYS * 86400))
            self.kinds[of].write(path, path.name, turn + 1, taken)
            made.append(path)
        return made


def _kind(one: Bundle) -> Kind:
    description = json.loads((one.path / DESCRIPTION).read_text())
    texts = [text for table in one.tables.values() if (text := _text(table))]
    changed = {text.name for text in texts} | {DESCRIPTION}
    linked = [file for file in sorted(one.path.iterdir()) if file.name not in changed]
    return Kind(description, linked, texts)


def _text(table: Table) -> Text | None:
    """A table as text, if it has anything that a larger machine has more of."""
    grows = [
        c.type == "integer"
        and ((c.unit in SIZES and not c.key) or (table.name, c.name) in ALSO)
        and (table.name, c.name) not in NOT
        for c in table.columns
    ]
    words, numbers, line = [], [], io.StringIO()
    write = csv.writer(line, lineterminator="")
    with open(table.path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        text = ",".join(next(rows)) + "\n"
        for row in rows:
            for at, (cell, more) in enumerate(zip(row, grows, strict=True)):
                text += "," if at else ""
                if more and cell and 0 < int(cell) < MOST:
                    words.append(text)
                    numbers.append(int(cell))
                    text = ""
                elif cell:
                    line.seek(0)
                    line.truncate()
                    write.writerow([cell])
                    text += line.getvalue()
            text += "\n"
    return Text(table.path.name, [*words, text], np.array(numbers, np.int64)) if numbers else None


def _beside(made: Bundle, real: Bundle) -> None:
    """Give a made host the tables of a real one that it has not; it is no smaller than that."""
    description = json.loads((made.path / DESCRIPTION).read_text())
    theirs = json.loads((real.path / DESCRIPTION).read_text())
    pages = int(real.target.get("total_pages") or 0)
    # A case that is not about memory's size has none.
    of_made = int(made.target.get("total_pages") or pages)
    factor = -(-pages // of_made)
    for table in made.tables.values():
        if text := _text(table):
            (made.path / text.name).write_text(text.times(factor), encoding="utf-8", newline="")
    description["target"]["total_pages"] = max(pages, of_made * factor)
    # Marks are of rows of the one or the other.
    known = {*made.tables, "impossible_values"}
    for resource in theirs["resources"]:
        if resource["name"] not in known and resource["format"] == "csv":
            shutil.copyfile(real.path / resource["path"], made.path / resource["path"])
            description["resources"].append(resource)
    description["format"] = min(made.format, real.format)
    description["version"] = older(made.version, real.version)
    (made.path / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def troubles(folder: Path) -> Iterator[Path]:
    """Made bundles in which every finding is found."""
    for name, make in made_hosts.EVERY.items():
        yield make().write(folder / name.replace(" ", "-")).path
    for case in packed(list({case.id: case for case in FOUND.values()}.values())):
        yield bundle(
            folder / f"found-{case.id}", case.rows, case.empty, case.target, case.sections
        ).path
    yield from of_profiles(folder / "profiles")


def packed(cases: list[Case]) -> list[Case]:
    """
    The same on fewer hosts: each takes along whatever needs other tables than it has, and none that
    it must not have.
    """
    rows_of = {table.name: row for row, table in TABLE_OF.items()}
    absent = {
        question.id: set(re.findall(r"not exists \(select 1 from (\w+)\)", question.sql))
        for question in OURS()
    }
    hosts: list[tuple[Case, set[type]]] = []
    for case in cases:
        needed = {*map(type, case.rows), *case.empty}
        needed |= {rows_of[name] for name in absent.get(case.id, ()) if name in rows_of}
        for one, taken in hosts:
            if not taken & needed and one.target == case.target:
                one.rows += case.rows
                one.empty += case.empty
                one.sections += case.sections
                taken |= needed
                break
        else:
            hosts.append((dataclasses.replace(case, rows=[*case.rows]), needed))
    return [one for one, _ in hosts]


def of_profiles(folder: Path) -> Iterator[Path]:
    """The bundles of the cases of findings about profiles."""
    folder.mkdir(parents=True)
    for name, contents in PROFILES.items():
        yield report_bundle.write_bundle(folder / name.replace(" ", "-"), contents).path


def of_each_finding(folder: Path) -> list[Path]:
    """
    Bundles of hosts in which every finding is found, in which it is not, and in which it cannot be;
    but of profiles.
    """
    found = {case.id: case for case in FOUND.values()}
    none = {case.id: case for case in NOT_CHECKED.values()}
    # Of what could not be checked a few are enough: each takes as long as one that was.
    for kind, cases in (("found", [*found.values()]), ("not", [*none.values()][::8])):
        for case in packed(cases):
            path = folder / f"{kind}-{case.id}"
            bundle(path, case.rows, case.empty, case.target | host(path.name), case.sections)
    for name, make in made_hosts.EVERY.items():
        if "watched" in name or "64 GiB, page" in name or "owner" in name:
            one = make()
            one.target |= host(name)
            one.write(folder / name.replace(" ", "-"))
    return sorted(folder.iterdir())
