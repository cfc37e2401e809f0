# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The card's answers on the kept cases, held against what was planted there: who has the memory, what
grew, why huge pages fail, why exit takes long.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from exam_kept import unpack

from mmscope.drgn.tables.display import UNITS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page import card_answers
from mmscope.reports.page.views import FindingView

SIZE = re.compile(r"([0-9.]+) ([KMGT]iB)")
# A case, and what the answers name of it: of a dump, and of a watch, which has no class for
# sockets, and for which /proc/vmallocinfo became too dear to read.
PLANTED = [
    ("deleted-tmpfs-file-7", "journal.tmp", "/dev/shm/journal.tmp (deleted), open by billing-1"),
    ("memfd-held-3", "memfd:buffer", "memfd:buffer, open by billing-7"),
    ("memory-locked-7", "postgres-1", "postgres-1"),
    ("page-leak-of-module-7", "no known owner", "memory in no counter"),
    ("page-table-bloat-7", "reporter", "reporter"),
    ("percpu-leak-of-module-7", "pcpu_create_chunk", "pcpu_create_chunk"),
    ("process-leak-7", "reporter", "reporter"),
    ("segments-left-behind-3", "SYSV", "shared memory"),
    ("slab-leak-of-module-3", "exam_request", "exam_request"),
    ("swap-storm-7", "postgres", "postgres"),
    ("tmpfs-left-behind-7", "/dev/shm/frame_", "shared memory"),
    ("tmpfs-left-behind-3", "/dev/shm/frame_", "shared memory"),
    ("unread-sockets-3", "indexer-7", ""),
    ("vmalloc-leak-of-module-7", "exam_leak_vmalloc", ""),
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exam")
    unpack(folder)
    return folder


def truth(case: Path) -> Any:
    return json.loads((case / "truth.json").read_text())


def size_in(words: str) -> float:
    """The first size of a sentence, in bytes."""
    number, unit = SIZE.findall(words)[0]
    return float(number) * 1024.0 ** UNITS.index(unit)


# Counters lag, a class has more in it than what was planted, and of a swap storm a part is in swap.
def near(planted: int) -> Any:
    return pytest.approx(planted, rel=0.17)


@pytest.mark.parametrize(("case", "named", "_"), PLANTED)
def test_a_dump_says_who_has_the_memory_and_how_much(
    cases: Path, case: str, named: str, _: str
) -> None:
    said = card_answers.holders(Bundle(cases / case / "vmcore"))
    assert named in said.split(". Largest classes: ")[0]
    assert size_in(said) == near(truth(cases / case)["bytes"])


@pytest.mark.parametrize(("case", "_", "named"), [each for each in PLANTED if each[2]])
def test_a_watch_says_who_has_it_and_what_grew(cases: Path, case: str, _: str, named: str) -> None:
    bundle, planted = Bundle(cases / case / "watch"), truth(cases / case)["bytes"]
    for said in (card_answers.holders(bundle), card_answers.grown(bundle)):
        assert said.startswith(named)
        assert size_in(said) == near(planted)


@pytest.mark.parametrize("case", ["idle-7", "cache-warming-7", "java-heap-at-its-size-7"])
def test_what_an_innocent_machine_holds_is_that_of_its_meminfo(cases: Path, case: str) -> None:
    """The truth is what the guest read of itself when its dump was taken."""
    said = card_answers.holders(Bundle(cases / case / "vmcore"))
    facts = truth(cases / case)["facts"]["meminfo"]
    share = {"anonymous": facts["AnonPages"], "page cache": facts["Cached"]}
    for name, size in share.items():
        if found := re.search(rf"{name} ([0-9.]+) %", said):
            # Of all memory, of which MemTotal is less.
            assert float(found[1]) == pytest.approx(100 * size / facts["MemTotal"], rel=0.12)


@pytest.mark.parametrize(
    ("case", "question", "words"),
    [
        ("unmovable-scatter-7/vmcore", card_answers.HUGE, "unusable for a huge page"),
        ("unmovable-scatter-7/watch", card_answers.HUGE, "THP page faults got no huge page"),
        ("boot-time-compaction-7/vmcore", card_answers.HUGE, "no such trouble found by"),
        ("boot-time-compaction-7/watch", card_answers.HUGE, "no such trouble found by"),
        ("page-table-bloat-7/vmcore", card_answers.EXIT, "Process 158 (reporter) has 36"),
        ("idle-7/vmcore", card_answers.EXIT, "no such trouble found by"),
        ("idle-7/watch", card_answers.EXIT, "unknown: a vmcore, or"),
        ("idle-7/vmcore", card_answers.GREW, "unknown from one reading"),
        ("page-leak-of-module-7/watch", card_answers.GREW, "Memory in no counter grew steadily"),
        ("vmalloc-leak-of-module-7/watch", card_answers.WHO, "8 s before the end of the watch"),
    ],
)
def test_why_huge_pages_fail_and_exit_takes_long(
    cases: Path, case: str, question: str, words: str
) -> None:
    bundle = Bundle(cases / case)
    verdict = evaluate(bundle)
    views = [FindingView("at", finding, [], [], "", "", [], None) for finding in verdict.found]
    asked = card_answers.answers(bundle, verdict, views, set(), [])
    assert words in next(each.sentence for each in asked if each.question == question)
