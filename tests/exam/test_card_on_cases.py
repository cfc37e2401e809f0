# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The card's answers on the kept cases, held against what was planted there: who has the memory, what
grew, why huge pages fail, why exit takes long.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from exam_kept import score, unpack

from mmscope.drgn.tables.display import UNITS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page import card_answers
from mmscope.reports.page.views import FindingView

EVERY = bool(os.environ.get("MMSCOPE_ALL"))
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


ALL_CASES = sorted({f"{one.kind}-{one.seed}" for one in score()})
# Of others meminfo was read before or after what they did.
QUIET = """
backup-reads-everything batch-grows-and-shrinks boot-time-compaction cache-warming
database-starts idle java-heap-at-its-size locked-with-room many-mappings-with-room
memory-high-at-a-peak routine-pod-kill segments-in-use tmpfs-in-use
"""


QUIET_CASES = [each for each in ALL_CASES if each.rpartition("-")[0] in QUIET.split()]


# From seed 9 to 12 meminfo was read while the watch and the collector of the text still ran, which
# had ended when the dump was taken. Of tmpfs-in-use-9 AnonPages was 94.3 MB then, 88.2 MB when the
# watch had ended, and 78.7 MB in the dump, by the guest's own nr_anon_pages there.
READ_EARLIER = {"tmpfs-in-use-9"}


@pytest.mark.parametrize("case", QUIET_CASES[:: None if EVERY else 3])
def test_what_an_innocent_machine_holds_is_that_of_its_meminfo(cases: Path, case: str) -> None:
    """The truth is what the guest read of itself shortly before its dump was taken."""
    bundle = Bundle(cases / case / "vmcore")
    said = card_answers.holders(bundle)
    facts = truth(cases / case)["facts"]["meminfo"]
    if case in READ_EARLIER:
        (pages,) = (row["value"] for row in bundle.rows("vm_counters", ("name", {"nr_anon_pages"})))
        assert pages << 12 < facts["AnonPages"]
        facts["AnonPages"] = pages << 12
    share = {"anonymous": facts["AnonPages"], "page cache": facts["Cached"]}
    for name, size in share.items():
        if found := re.search(rf"{name} ([0-9.]+) %", said):
            # Of all memory, of which MemTotal is less.
            assert float(found[1]) == pytest.approx(100 * size / facts["MemTotal"], rel=0.12)


# What was planted that answers a question; of others no such trouble may be told.
ANSWERED = {card_answers.HUGE: "fragmented", card_answers.EXIT: "page-tables"}


def answered(bundle: Bundle) -> dict[str, str]:
    verdict = evaluate(bundle)
    views = [FindingView("at", finding, [], [], "", "", [], None) for finding in verdict.found]
    made = card_answers.answers(bundle, verdict, views, set(), [])
    return {each.question: each.sentence for each in made}


@pytest.mark.parametrize("way", ["vmcore", "watch"])
@pytest.mark.parametrize("case", ALL_CASES[:: None if EVERY else 14])
def test_trouble_is_answered_where_it_was_planted_and_nowhere_else(
    cases: Path, case: str, way: str
) -> None:
    said, planted = answered(Bundle(cases / case / way)), truth(cases / case)["cause"]
    for question, cause in ANSWERED.items():
        if question == card_answers.EXIT and way == "watch":
            assert said[question].startswith("unknown: a vmcore, or")
        else:
            clear = said[question].startswith("no trouble found by")
            assert clear == (planted != cause), said[question]
    if way == "vmcore":
        assert said[card_answers.GREW].startswith("unknown from one reading")
        assert said[card_answers.FREE] == "unknown: section would_free was not read"


@pytest.mark.parametrize(
    ("case", "question", "words"),
    [
        ("unmovable-scatter-7/vmcore", card_answers.HUGE, "unusable for a huge page"),
        ("unmovable-scatter-7/watch", card_answers.HUGE, "THP page faults got no huge page"),
        ("page-table-bloat-7/vmcore", card_answers.EXIT, "reporter (pid 158) has 36"),
        ("page-leak-of-module-7/watch", card_answers.GREW, "Memory in no counter grew steadily"),
        ("slab-leak-of-module-7/watch", card_answers.GREW, "Most of it: slab cache exam_request"),
        ("vmalloc-leak-of-module-7/watch", card_answers.WHO, "8 s before the end of the watch"),
    ],
)
def test_how_an_answer_is_worded(cases: Path, case: str, question: str, words: str) -> None:
    assert words in answered(Bundle(cases / case))[question]
