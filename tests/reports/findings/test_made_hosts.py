# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What is said of made hosts: of healthy ones nothing above a notice, of sick ones what ails them
first.

``pytest -s`` prints what is said, host by host. Without ``MMSCOPE_ALL`` it is each third one.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from made_hosts import HEALTHY, SICK, Host

from mmscope.reports.findings.finding import Verdict
from mmscope.reports.findings.findings import evaluate

SHARE = 1 if os.environ.get("MMSCOPE_ALL") else 3


def said(path: Path, name: str, make: Callable[[], Host]) -> Verdict:
    verdict = evaluate(make().write(path / "b"))
    assert not [item for item in verdict.not_checked if "query failed" in item.reason]
    assert not [item for item in verdict.not_checked if "words do not fit" in item.reason]
    print(f"\n{name}: {verdict.made} of {verdict.checks} checks")
    for finding in verdict.found:
        print(
            f"  {finding.severity}{' (estimate)' * finding.estimate} {finding.id}: {finding.title}"
        )
    return verdict


@pytest.mark.parametrize("name", list(HEALTHY)[::SHARE])
def test_of_a_healthy_host_nothing_above_a_notice(tmp_path: Path, name: str) -> None:
    verdict = said(tmp_path, name, HEALTHY[name])
    assert {finding.severity for finding in verdict.found} <= {"notice"}
    assert verdict.made >= (9 if "watched" in name else 28)


@pytest.mark.parametrize("name", list(SICK)[::SHARE])
def test_of_a_sick_host_what_ails_it_first(tmp_path: Path, name: str) -> None:
    make, first = SICK[name]
    assert said(tmp_path, name, make).found[0].id == first
