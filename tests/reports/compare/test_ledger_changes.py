# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the memory went between two readings: steps that add up, each with who took most of it."""

from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from page_tree import by_id, parse, texts
from rows_of_tables import Contents

from mmscope.drgn.ledger.memory_ledger import LedgerCheck, LedgerRow, UnexplainedRow
from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller
from mmscope.drgn.processes.process_memory import ProcessMemory
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.compare.comparison import Comparison, compare
from mmscope.reports.compare.comparison_view import ledger_sentence, view
from mmscope.reports.compare.ledger_changes import ClassStep, LedgerChanges
from mmscope.reports.drawing.row_names import name_of
from mmscope.reports.findings.finding import Verdict
from mmscope.reports.page.report import render
from mmscope.reports.pictures import memory_bar

MIB = 1 << 20
NOTHING = Verdict([], [], [])
LATER = {"captured_at": "2026-11-20T03:05:05+00:00", "uptime_seconds": 273_905.5}
COUNTED = [LedgerCheck("nr_free_pages", -1, "", 1, 1, 0, "")]


def test_a_row_is_called_by_words_that_say_something() -> None:
    described = columns(UnexplainedRow)[:7]
    row = ("single pages", 1, "Normal", "", "1", None, "no")
    said = "single pages, node 1, zone Normal, references 1, charged no"
    assert name_of(described, row) == said


def classes(**mebibytes: int) -> list[LedgerRow]:
    return [
        LedgerRow(owner.replace("_", " "), "all", 0, "Normal", mib << 8, mib << 20, 0.0, "")
        for owner, mib in mebibytes.items()
    ]


def process(pid: int, comm: str, anonymous: int) -> ProcessMemory:
    size = anonymous * MIB
    return ProcessMemory(pid, comm, size, size, 0, 0, 0, 0, 0, 0, size, 1, 1)


def bundle(
    path: Path, ledger: list[LedgerRow], checks: list[LedgerCheck] | None = None, **more: Any
) -> Bundle:
    target = made.TARGET | more.pop("target", {})
    contents: dict[str, Contents] = {
        "memory_ledger": ("Ledger", LedgerRow, ledger, "memory_ledger"),
        **{name: (name, type(rows[0]), rows, name) for name, rows in more.items()},
    }
    if checks is not None:
        contents["ledger_checks"] = ("Counters", LedgerCheck, checks, "memory_ledger")
    return made.write_bundle(path, contents, target=target)


@pytest.fixture
def grown(tmp_path: Path) -> Comparison:
    """A process took 200 MiB, a BPF map 64; the page cache gave 50."""
    before = bundle(
        tmp_path / "a",
        classes(free=600, anonymous=100, page_cache=200, vmalloc=10, boot=90),
        COUNTED,
        process_memory=[process(1, "init", 10), process(80, "database", 90)],
        vmalloc_callers=[
            VmallocCaller("bpf_map_alloc", "vmalloc", 1, 2 << 8, MIB),
            VmallocCaller("__vmalloc_ioremap", "ioremap", 1, 0, MIB),
        ],
    )
    after = bundle(
        tmp_path / "b",
        classes(free=386, anonymous=300, page_cache=150, vmalloc=74, boot=90),
        COUNTED,
        process_memory=[process(1, "init", 12), process(80, "database", 288)],
        vmalloc_callers=[
            VmallocCaller("bpf_map_alloc", "vmalloc", 9, 66 << 8, 9 * MIB),
            VmallocCaller("__vmalloc_ioremap", "ioremap", 1, 99 << 8, MIB),
        ],
        target=LATER,
    )
    return compare(before, after, (NOTHING, NOTHING), draw=False)


def ledger_of(comparison: Comparison) -> LedgerChanges:
    assert comparison.ledger is not None
    return comparison.ledger


def test_steps_lead_from_what_was_free_to_what_is(grown: Comparison) -> None:
    ledger = ledger_of(grown)
    assert [step.name for step in ledger.steps] == ["anonymous", "vmalloc", "page cache"]
    assert ledger.before + sum(step.freed for step in ledger.steps) == ledger.after


def test_each_step_names_who_took_most(grown: Comparison) -> None:
    owners = {
        step.name: (step.owner, step.owner_bytes, step.table) for step in ledger_of(grown).steps
    }
    assert owners == {
        "anonymous": ("PID 80, database", 198 * MIB, "process_memory"),
        "vmalloc": ("bpf_map_alloc", 64 * MIB, "vmalloc_callers"),
        "page cache": ("", 0, ""),
    }


def test_it_is_said_in_a_sentence(grown: Comparison) -> None:
    assert ledger_sentence(grown.ledger) == (
        "Free memory: 600 MiB → 386 MiB (-214 MiB): anonymous +200 MiB (PID 80, database: "
        "+198 MiB), vmalloc +64 MiB (bpf_map_alloc: +64 MiB), page cache -50 MiB."
    )


def test_the_headline_says_who_has_the_memory_and_not_where_it_lies(grown: Comparison) -> None:
    ledger = grown.ledger
    assert ledger is not None
    first = max(ledger.steps[:3], key=lambda step: step.difference)
    assert f"; most changed: {first.name} +" in view(grown).sentence


def test_bars_begin_where_the_one_before_ends(grown: Comparison) -> None:
    ledger = ledger_of(grown)
    assert (ledger.low, ledger.high) == (336 * MIB, 600 * MIB)
    assert [(step.at, step.width) for step in ledger.steps] == [
        (24.24, 75.76), (0.0, 24.24), (0.0, 18.94),
    ]  # fmt: skip


def test_memory_that_came_is_a_step(tmp_path: Path) -> None:
    before = bundle(tmp_path / "a", classes(free=10, boot=90))
    after = bundle(tmp_path / "b", classes(free=74, boot=90), target=LATER)
    ledger = ledger_of(compare(before, after, (NOTHING, NOTHING), draw=False))
    assert ledger.steps == [ClassStep("all memory", 100 * MIB, 164 * MIB, at=0.0, width=100.0)]
    assert ledger.steps[0].freed == 64 * MIB


def test_counters_and_counted_pages_are_not_held_against_each_other(tmp_path: Path) -> None:
    text = bundle(tmp_path / "a", classes(free=10, remainder=90))
    pages = bundle(tmp_path / "b", classes(free=10, anonymous=90), COUNTED, target=LATER)
    assert compare(text, pages, (NOTHING, NOTHING), draw=False).ledger is None
    assert ledger_sentence(None) == ""


def test_nothing_moved(tmp_path: Path) -> None:
    same = [bundle(tmp_path / name, classes(free=10, boot=90)) for name in "ab"]
    comparison = compare(same[0], same[1], (NOTHING, NOTHING), draw=False)
    assert ledger_of(comparison).steps == []
    html = render(same[1], NOTHING, comparison)
    assert "No class of memory differs." in html


def test_the_page_has_the_steps(grown: Comparison) -> None:
    html = render(grown.bundles[1], NOTHING, grown)
    said = texts(by_id(parse(html), "comparison"))
    assert "Where the memory went" in said
    assert "PID 80, database +198 MiB" in said


def test_the_bar_names_the_largest_owners_of_each_class(grown: Comparison) -> None:
    tables = {
        name: list(grown.bundles[1].rows(name))
        for name in ("memory_ledger", "process_memory", "vmalloc_callers")
    }
    drawn = memory_bar.memory_bar.draw(tables, 4096)["segments"]
    owners = {s["name"]: [(name, size // MIB) for name, size in s["owners"]] for s in drawn}
    assert owners["anonymous"] == [("database (pid 80)", 288), ("init (pid 1)", 12)]
    assert owners["vmalloc"] == [("bpf_map_alloc", 66)]
    assert owners["page cache"] == []


def test_the_map_has_the_owners_inside_their_class_and_what_is_left(grown: Comparison) -> None:
    tables = {
        name: list(grown.bundles[1].rows(name)) for name in ("memory_ledger", "process_memory")
    }
    cells = {c["name"]: c for c in memory_bar.memory_bar.draw(tables, 4096)["cells"]}
    assert "free" not in cells
    inside = {c["name"]: c["bytes"] // MIB for c in cells["anonymous"]["inside"]}
    assert inside["database (pid 80)"] == 288
    assert sum(c["bytes"] for c in cells["anonymous"]["inside"]) == cells["anonymous"]["bytes"]
    # Pages that processes share would count with each: no area is wrong.
    for row in tables["process_memory"]:
        row["anon_bytes"] *= 2
    cells = {c["name"]: c for c in memory_bar.memory_bar.draw(tables, 4096)["cells"]}
    assert cells["anonymous"]["inside"] == []


def test_cgroups_are_added_up_inside_a_class() -> None:
    charged = [
        {"cgroup": name, "owner": owner, "bytes": size * MIB}
        for name, owner, size in (
            *(("/web", "anonymous", 3), ("/web", "anonymous", 4), ("/db", "anonymous", 5)),
            ("/web", "page cache", 9),
        )
    ]
    rows = [{"owner": "anonymous", "part": "p", "node": 0, "zone": "", "bytes": 20 * MIB}]
    tables = {"memory_ledger": rows, "memory_cgroup_pages": charged}
    ((segment,), *_) = memory_bar.memory_bar.draw(tables, 4096).values()
    (kind,) = segment["kinds"]
    assert kind["owners"] == [("/web", 7 * MIB), ("/db", 5 * MIB)]
