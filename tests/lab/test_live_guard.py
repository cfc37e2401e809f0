# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard`` on a running stock kernel, inside the guest, which is a node of Kubernetes by its
cgroups: a container runs out of memory.

``make guard-incidents`` takes a guest through the other troubles, which last minutes.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIVES_ON
from guard_program import BEGIN, CONTAINERS, END, NODE, POD, UID
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.guard import captures

PROGRAM = NODE + BEGIN + POD + END

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
    print(f"a bundle {said['seconds']['cgroup-out-of-memory']:.1f} s after the kill")
    path, incident = captured(out, "cgroup-out-of-memory")
    assert incident["state"] == "done" and incident["source"] == "live"
    title = f"Memory cgroup {next(iter(CONTAINERS))} was out of memory"
    assert re.match(rf"{title}( \d+ times)?, 1 killed in it: Memory cgroup out", incident["title"])
    bundle = Bundle(path / "bundle")
    found = {finding.id for finding in evaluate(bundle).found}
    assert {"watch-oom-kill", "oom-cgroup-limit"} <= found
    # Both what was before and what the kernel's memory said.
    assert {"counter_rates", "zones", "free_blocks"} <= bundle.tables.keys()
    assert bundle.target["kind"] == "live"


def test_containers_of_each_runtime_have_their_pods_names(out: Path, said: Any) -> None:
    path, _ = captured(out, "cgroup-out-of-memory")
    rows = {row["cgroup"]: row for row in Bundle(path / "bundle").rows("containers")}
    names = ("runtime", "pod_uid", "namespace", "pod", "container")
    assert {cgroup: tuple(row[name] for name in names) for cgroup, row in rows.items()} == {
        cgroup: (runtime, UID % number, "shop", f"web-{number}", "nginx")
        for number, (cgroup, runtime) in enumerate(CONTAINERS.items())
    }


def test_whose_pod_it_is_findings_say_and_the_event(
    out: Path, said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = captured(out, "cgroup-out-of-memory")
    # Not why alone: other programs of this guest ran out of memory before.
    assert main(["findings", str(path / "bundle")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    print(words)
    assert "container nginx of pod shop/web-0" in words
    event = json.loads((path / "event.json").read_text())
    assert event["reason"] == "CgroupOutOfMemory" and event["type"] == "Warning"
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "web-0", "namespace": "shop", "uid": UID % 0,
        "fieldPath": "spec.containers{nginx}",
    }  # fmt: skip


def test_the_resident_stays_in_memory_and_small(said: Any) -> None:
    before, after = said["before"], said["after"]
    assert before["locked"] > 0 and after["swap"] == 0
    assert after["rss"] < 48 << 20
    seconds = after["seconds"] - before["seconds"]
    print(f"{(after['cpu'] - before['cpu']) / seconds:.0%} of this CPU")
