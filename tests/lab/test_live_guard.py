# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard`` on a running stock kernel, inside the guest, which runs out of memory.

``make guard-incidents`` takes a guest through the other troubles, which last minutes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIVES_ON
from guard_program import BEGIN, END, OOM
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.guard import captures

PROGRAM = BEGIN + OOM + END

# Before the one that locks the kernel down.
IN_GUEST = InGuest("guard", LIVES_ON, 8, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def said(out: Path) -> Any:
    """What the guest saw."""
    found = json.loads((out / "said.json").read_text())
    print(found, (out / "guard.log").read_text())
    assert found["code"] == 0 and found["killed"] == -9
    return found


def captured(out: Path, trigger: str) -> tuple[Path, captures.Incident]:
    """The capture of a trigger."""
    those = [one for one in captures.captures(out / "captures") if one[1]["trigger"] == trigger]
    assert those, [incident for _, incident in captures.captures(out / "captures")]
    return those[-1]


def test_what_names_the_cause_is_there(out: Path, said: Any) -> None:
    """How soon is printed: an emulated CPU that others use is no measure."""
    print(f"a bundle {said['seconds']['oom-kill']:.1f} s after the kill")
    assert captured(out, "oom-kill")[1]["trigger"] == "oom-kill"


def test_an_oom_kill_is_captured_with_who_was_killed(out: Path, said: Any) -> None:
    path, incident = captured(out, "oom-kill")
    assert incident["state"] == "done" and incident["source"] == "live"
    assert "The OOM killer took 1 process: Out of memory: Killed process" in incident["title"]
    bundle = Bundle(path / "bundle")
    found = {finding.id for finding in evaluate(bundle).found}
    assert {"watch-oom-kill", "oom-kills-told"} <= found
    # Both what was before and what the kernel's memory said.
    assert {"counter_rates", "zones", "free_blocks"} <= bundle.tables.keys()
    assert bundle.target["kind"] == "live"


def test_the_resident_stays_in_memory_and_small(said: Any) -> None:
    before, after = said["before"], said["after"]
    assert before["locked"] > 0 and after["swap"] == 0
    assert after["rss"] < 48 << 20
    seconds = after["seconds"] - before["seconds"]
    print(f"{(after['cpu'] - before['cpu']) / seconds:.0%} of this CPU")
