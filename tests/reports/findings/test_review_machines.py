# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The word of the verdict on made machines, and what is said first: the sick are called so, the
innocent are not.

``pytest -s`` prints what is said, machine by machine. Without ``MMSCOPE_ALL`` it is each seventh
one.
"""

import os
from pathlib import Path

import more_machines
import pytest
from review_machines import EVERY, Machine

from mmscope.reports.findings.finding import TROUBLE
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.verdict import judge

MACHINES = EVERY | more_machines.EVERY
SHARE = 1 if os.environ.get("MMSCOPE_ALL") else 7


@pytest.mark.parametrize("name", list(MACHINES)[::SHARE])
def test_the_word_and_what_is_said_first(tmp_path: Path, name: str) -> None:
    machine: Machine = MACHINES[name]
    verdict = evaluate(machine.make().write(tmp_path / "b"))
    judged = judge(verdict)
    print(f"\n{name}: {judged.sentence}")
    for finding in verdict.found:
        print(f"  {finding.severity} {finding.id}: {finding.title}")
    assert not [item.reason for item in verdict.not_checked if "query failed" in item.reason]
    assert not [item.reason for item in verdict.not_checked if "do not fit" in item.reason]
    assert judged.word == machine.word
    if machine.word == TROUBLE:
        (first,) = [
            each for each in verdict.found if judged.cause.startswith(each.plain or each.title[:30])
        ][:1]
        assert first.id == machine.first


def test_there_are_100_of_them() -> None:
    assert len(EVERY) >= 65
    assert len(MACHINES) == len(EVERY) + len(more_machines.EVERY) >= 100
