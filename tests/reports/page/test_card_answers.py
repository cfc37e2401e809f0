# SPDX-License-Identifier: LGPL-2.1-or-later
"""The questions of a page: each has an answer in a sentence, and what is not known is said."""

from pathlib import Path

import made_hosts
import pytest
from checkout import TESTS

from mmscope.drgn.free.free_lists import FreeBlocks
from mmscope.drgn.freeing.would_free import WouldFree
from mmscope.drgn.ledger.memory_ledger import LedgerRow
from mmscope.drgn.owners.page_owner_rows import PageOwnerStack
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.finding import Verdict
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.question import OURS
from mmscope.reports.findings.verdict import first_incident
from mmscope.reports.page import card_answers as answers
from mmscope.reports.page.report import render
from mmscope.reports.page.sentences import host_of


def test_every_finding_that_answers_is_one() -> None:
    named = {id for ids in answers.ANSWERED_BY.values() for id in ids.split()}
    assert named <= {question.id for question in OURS()}


def test_who_holds_the_memory_and_the_largest_classes(tmp_path: Path) -> None:
    host, _ = made_hosts.SICK["slab leak"]
    made = host()
    counted = made if LedgerRow in made.rows else made_hosts.counted(made)
    said = answers.holders(counted.write(tmp_path / "made"))
    assert said.startswith("kmalloc-512 holds ") and " of memory (slab). Largest classes: " in said


def test_page_owner_alone_says_who_allocated_most(tmp_path: Path) -> None:
    stacks = [
        ("leak_init", "leak", 900),
        ("leak_init", "leak", 60),
        ("f", None, 30),
        (None, None, 10),
    ]
    host = made_hosts.healthy(64)
    host.rows = {
        PageOwnerStack: [
            PageOwnerStack(number, pages, None, owner, module, owner, None)
            for number, (owner, module, pages) in enumerate(stacks)
        ]
    }
    assert answers.holders(host.write(tmp_path / "made")) == (
        "allocated most: leak_init [leak] 3.75 MiB (96.0 % of what page_owner lists), f 120 KiB, "
        "a stack that is not known 40 KiB"
    )


@pytest.mark.parametrize(
    ("assumed", "normal", "dma"),
    [
        ("", "1 MiB, 256 KiB", "64 KiB, 64 KiB"),
        ("page size", "256 pages, order 6", "16 pages, order 4"),
    ],
)
def test_free_blocks_alone_say_how_large_they_are(
    tmp_path: Path, assumed: str, normal: str, dma: str
) -> None:
    host = made_hosts.healthy(64)
    host.target["assumed"] = assumed
    blocks = [(0, "DMA", 4, 1), (1, "Normal", 0, 128), (1, "Normal", 6, 2), (1, "Normal", 9, 0)]
    host.rows = {
        FreeBlocks: [
            FreeBlocks(node, zone, order, None, number, number << order)
            for node, zone, order, number in blocks
        ]
    }
    assert answers.holders(host.write(tmp_path / "made")) == (
        f"free, and the largest free block: node 1 Normal {normal}; node 0 DMA {dma}"
    )


def test_what_would_free_memory_is_the_least_that_is_certain(tmp_path: Path) -> None:
    rows = [
        WouldFree("the process ends", 7, "db", None, None, 3 << 20, 9 << 20, None, None, "", ""),
        WouldFree("the process ends", 1, "init", None, None, 9 << 20, 9 << 20, None, None, "", ""),
        WouldFree("drop_caches 1", None, None, None, None, 1 << 20, 8 << 20, None, None, "", ""),
        WouldFree("swapoff", None, None, "/swap", None, -(1 << 20), 0, None, None, "", ""),
    ]
    host = made_hosts.healthy(64)
    host.rows[WouldFree] = rows
    assert answers.freed(host.write(tmp_path / "made")) == (
        "the end of db (pid 7): at least 3 MiB; drop_caches 1: at least 1 MiB"
    )


def test_what_is_closed_is_named_with_its_process(tmp_path: Path) -> None:
    closed = WouldFree("closed", 7, "db", None, "pipe", 5 << 20, 5 << 20, None, 0, "", "")
    cgroup = WouldFree(
        "cgroup reclaimed", None, None, None, None, 3 << 20, 9 << 20, None, None, "", "", "/batch"
    )
    both = WouldFree("drop_caches 3", None, None, None, None, 4 << 20, 8 << 20, None, 0, "", "")
    host = made_hosts.healthy(64)
    host.rows[WouldFree] = [closed, both, cgroup]
    assert answers.freed(host.write(tmp_path / "made")) == (
        "pipe of db (pid 7) closed: at least 5 MiB; cgroup reclaimed (/batch): at least 3 MiB"
    )


@pytest.mark.parametrize("question", [answers.GREW, answers.HUGE, answers.EXIT, answers.FREE])
def test_what_is_not_known_is_said(question: str, tmp_path: Path) -> None:
    host = made_hosts.healthy(64)
    host.target["kind"] = "files"
    bundle = host.write(tmp_path / "made")
    asked = answers.answers(bundle, Verdict([], [], []), [], set(), [])
    (told,) = (each for each in asked if each.question == question)
    assert (told.sentence, told.place) == (answers.LACKS[question], "")


def test_the_page_answers_with_links_to_what_proves_it() -> None:
    bundle = Bundle(TESTS / "bundles" / "v0.1.0")
    page = render(bundle, evaluate(bundle))
    words = "Why do huge pages fail?</a> <span>"
    at = page.index(words) + len(words)
    assert "HighAtomic" in page[at : at + 200]
    for question in (answers.WHO, answers.GREW, answers.HUGE, answers.EXIT, answers.FREE):
        assert page.count(f">{question}<") == 1


@pytest.mark.parametrize("name", ["", "(none)"])
def test_a_host_without_a_name_is_called_by_what_it_is(name: str, tmp_path: Path) -> None:
    host = made_hosts.healthy(64)
    host.target |= {"hostname": name, "kind": "vmcore", "release": "6.12.1"}
    assert host_of(host.write(tmp_path / "made")) == "vmcore of 6.12.1"


def test_an_answer_that_mmscope_cannot_say_is_its_own_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = made_hosts.counted(made_hosts.healthy(64)).write(tmp_path / "made")
    monkeypatch.setitem(answers.IN_TABLES, answers.WHO, (lambda _: 1 / 0, answers.OF_HOLDERS))
    faults: list[Fault] = []
    page = render(bundle, Verdict([], [], []), faults=faults)
    assert answers.WHO in page
    assert [fault.picture for fault in faults] == [f"of '{answers.WHO}'"]


def test_how_far_min_free_kbytes_may_be_raised(tmp_path: Path) -> None:
    said = answers.raisable(Bundle(TESTS / "bundles" / "v0.1.0"))
    assert said == "hardly: it is 66 MiB, and more than a hundredth of memory is not advised"
    said = answers.raisable(made_hosts.healthy(64).write(tmp_path / "made"))
    assert said.startswith("unknown: vm.min_free_kbytes and ")


def segment(size: int, *kinds: list[tuple[str, int]]) -> dict[str, object]:
    tables = [{"bytes": sum(size for _, size in owners), "owners": owners} for owners in kinds]
    return {"bytes": size, "kinds": tables}


def test_an_owner_has_no_more_than_its_class() -> None:
    shared = [("ksm-vmas (pid 7)", 900), ("db (pid 8)", 90)]
    assert answers._owner_in(segment(100, shared)) == []
    assert answers._owner_in(segment(100, shared, [("db (pid 8)", 60)])) == [("db (pid 8)", 60)]
    # Forked processes count with more than there is, each with less.
    assert answers._owner_in(segment(100, [("web (pid 7)", 80), ("web (pid 8)", 80)])) == [
        ("web (pid 7)", 80)
    ]
    untagged = [("DMA pools, (no tag)", 60), ("DMA pools, mm/a.c:7", 40)]
    assert answers._owner_in(segment(100, untagged)) == [("DMA pools, mm/a.c:7", 40)]


def test_the_first_finding_does_not_say_the_headline_again(tmp_path: Path) -> None:
    host, _ = made_hosts.SICK["slab leak"]
    bundle = host().write(tmp_path / "made")
    verdict = evaluate(bundle)
    page = render(bundle, verdict)
    title = first_incident(verdict).causes[0][0].title
    first = page.index("<article ")
    heading = page[page.index("<h3>", first) : page.index("</h3>", first)]
    assert "The headline in detail" in heading and page.count("The headline in detail") == 1
    # Search, the contents and who jumps there have it.
    kept = page[first : page.index("<h3>", first)].replace("\N{NO-BREAK SPACE}", " ")
    assert f'data-title="{title}"' in kept
