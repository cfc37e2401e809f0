# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The card's answers on dumps of 17 workloads, against what each guest's own kernel printed before it
stood still: who has the memory, what would give it back, whether min_free_kbytes may be raised;
and that huge pages and exits are in trouble where a workload made it so, and nowhere else.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import Capture, capture
from command_line import run

from mmscope.drgn.tables.display import UNITS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page import card_answers
from mmscope.reports.page.views import FindingView

pytestmark = [pytest.mark.any_kernel, pytest.mark.x86]

WORKLOADS = (
    *("fragment", "sizes", "slab", "tables", "rmap", "rmap_stall", "ledger", "ledger_poison"),
    *("cgroups", "oom", "storage", "vmemmap", "vmemmap_boot", "dax", "leak", "kept", "demo"),
)
# What was made of a question: the process, or the state of free memory, that the answer names.
TROUBLE = {
    ("fragment", card_answers.HUGE): "in the HighAtomic reserve",
    ("demo", card_answers.HUGE): "in the HighAtomic reserve",
    ("tables", card_answers.EXIT): "breadth (pid ",
}
SIZE = re.compile(r"([0-9.]+) ([KMGT]?i?B)")
CLEAR = r"no trouble found by \d+ checks"
# Those that a dump has, with all rows.
PLACES = {place for listed in card_answers.PLACES.values() for place in listed.split()} - {
    *card_answers.PLACES[card_answers.GREW].split()
}
PAGE = 4096
# Of what a process has beside what it maps: the root of its page tables, of which there are two.
BESIDE = 3 * PAGE


def bytes_in(words: str) -> float:
    """The first size of a text."""
    number, unit = SIZE.findall(words)[0]
    return float(number) * 1024.0 ** UNITS.index(unit)


def answers_of(bundle: Bundle) -> dict[str, str]:
    verdict = evaluate(bundle)
    views = [FindingView("at", each, [], [], "", "", [], None) for each in verdict.found]
    made = card_answers.answers(bundle, verdict, views, PLACES, [])
    return {each.question: each.sentence for each in made}


def counted(taken: Capture) -> dict[str, int]:
    """/proc/meminfo of the guest, in bytes where it has kB."""
    lines = (taken.truth_b / "proc/meminfo").read_text().splitlines()
    found = (re.fullmatch(r"([^:]+): +(\d+)( kB)?", line) for line in lines)
    return {match[1]: int(match[2]) << (10 if match[3] else 0) for match in found if match}


def on_lists(taken: Capture) -> int:
    """Bytes on the per-CPU lists, which MemFree leaves out."""
    text = (taken.truth_b / "proc/zoneinfo").read_text()
    return PAGE * sum(map(int, re.findall(r"^ +count: +(\d+)$", text, re.M)))


def of_process(taken: Capture, pid: str) -> dict[str, int]:
    """What smaps_rollup and status of a process have, in bytes; empty where the guest read none."""
    folder = taken.truth_b / "proc" / pid
    files = [folder / name for name in ("smaps_rollup", "status")]
    if not all(file.exists() for file in files):
        return {}
    text = "".join(file.read_text() for file in files)
    return {name: int(size) << 10 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}


@pytest.mark.parametrize("workload", WORKLOADS[:: None if os.environ.get("MMSCOPE_ALL") else 5])
def test_what_it_answers_is_what_the_guest_said(
    workload: str, tmp_path: Path, say: Callable[[str], None]
) -> None:
    taken = capture("stable", workload, say=say)
    done = run("collect", taken.vmcore, "--no-findings", "-o", tmp_path / "case")
    assert done.returncode in (0, 1), done.stderr
    bundle = Bundle(tmp_path / "case")
    said, meminfo = answers_of(bundle), counted(taken)

    total = sum(row["bytes"] for row in bundle.rows("memory_ledger"))
    shares = {
        "anonymous": meminfo["AnonPages"],
        "page cache": meminfo["Cached"] + meminfo["Buffers"],
        "free": meminfo["MemFree"] + on_lists(taken),
        "slab": meminfo["Slab"],
        "page tables": meminfo["PageTables"],
    }
    named = re.findall(r"([a-z ]+?) ([0-9.]+) %(?=,|$)", said[card_answers.WHO])
    assert named, said[card_answers.WHO]
    for name, percent in named:
        if (size := shares.get(name.strip())) is not None:
            assert float(percent) == pytest.approx(100 * size / total, abs=1.5), name
    if holds := re.match(r"(.+) \(pid (\d+)\) holds (.+?), .*\((.+)\)\. ", said[card_answers.WHO]):
        held, has = bytes_in(holds[3]), of_process(taken, holds[2])
        assert held <= shares[holds[4]]
        if has:
            size = {"anonymous": has["Anonymous"], "page tables": has["VmPTE"]}[holds[4]]
            assert held == pytest.approx(size, rel=0.01, abs=BESIDE)

    assert said[card_answers.GREW].startswith("unknown from one reading")

    compared = 0
    for name, pid, size in re.findall(
        r"the end of (.+?) \(pid (\d+)\): at least ([0-9.]+ [KMG]iB)", said[card_answers.FREE]
    ):
        if not (has := of_process(taken, pid)):
            continue
        compared += 1
        # What it alone maps, and the tables; what is in the swap cache is not in the first.
        least = has["Private_Dirty"] + has["VmPTE"]
        assert least - BESIDE <= bytes_in(size) <= least + has["Swap"] + BESIDE + least / 1000, name

    assert compared == 2 or workload != "tables"

    if tells := re.match(
        r"(?:hardly: it is|a little, from) ([0-9.]+ \w+)", said[card_answers.RESERVE]
    ):
        set_to = int((taken.truth_b / "proc/sys/vm/min_free_kbytes").read_text()) << 10
        assert bytes_in(tells[1]) == pytest.approx(set_to, rel=0.001)

    for question in (card_answers.HUGE, card_answers.EXIT):
        if words := TROUBLE.get((workload, question)):
            assert words in said[question]
        else:
            assert re.fullmatch(CLEAR, said[question]), said[question]
