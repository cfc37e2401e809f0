# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Logs of the shapes that people ask about, with the cause that was found in the end: what is said
first of them. The texts are made; their shapes are those of public threads.
"""

from pathlib import Path

import pytest
from checkout import TESTS

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.verdict import judge

LOGS = TESTS / "data" / "logs"
# What the thread found: words that are said first of it.
SAID = {
    # Free memory was CMA and HighMem, which an unmovable page of the kernel may not be of.
    "cma-is-free": "Memory ran out: of 2.672 GiB free the request could use",
    # cp of large files at a small limit of cgroup v1.
    "cgroup-full-of-dirty": "492.4 MiB of it wait to be written",
    # The process needs more than its limit.
    "cgroup-anonymous": "/kubepods.slice/p1.slice/app-1.scope was at its limit of 1 GiB",
    "cgroup-and-swap": "/kubepods/pod95 was at its limit of 512 MiB: java was killed",
    # A driver that asks in an interrupt, and asks again.
    "atomic": "An allocation of a page failed, in rx_fill [nic]",
}


@pytest.mark.parametrize("name", SAID)
def test_the_cause_is_said_first(name: str, tmp_path: Path) -> None:
    log, out = LOGS / f"{name}.log", tmp_path / "b"
    main(["collect", str(log), "--only", "oom_kills,allocation_failures", "-o", str(out)])
    bundle = Bundle(out)
    verdict = evaluate(bundle)
    assert SAID[name] in judge(verdict).sentence
    if name == "cma-is-free":  # the size of a page is known by the victim alone
        assert bundle.target["page_size"] is None
        assert "It held the most of all tasks." in verdict.found[0].saw


def test_every_log_is_asked_of() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == SAID.keys()
