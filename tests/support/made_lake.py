# SPDX-License-Identifier: LGPL-2.1-or-later
"""Small bundles of hosts that have names, and lakes of bundles."""

import dataclasses
from pathlib import Path
from typing import Any

from finding_cases.case import bundle
from finding_cases.oom import FOUND

from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.reports.lake.adding import add

TAKEN = "2026-11-22T10:00:00+00:00"


def host(name: str, at: str = TAKEN, **target: Any) -> dict[str, Any]:
    """A target of that name."""
    return {"hostname": name, "captured_at": at} | target


def small(path: Path, name: str, at: str = TAKEN, kills: int = 0, **target: Any) -> Path:
    """The bundle of a host in which the OOM killer took so many processes."""
    case = next(case for case in FOUND.values() if case.id == "oom-kills-since-boot")
    rows = [dataclasses.replace(row, value=kills) if isinstance(row, VmCounter) else row
            for row in case.rows]  # fmt: skip
    bundle(path, rows, target=case.target | host(name, at) | target)
    return path


def lake_of(folder: Path, *bundles: Path, **given: Any) -> list[str]:
    """Add bundles to the lake in a folder; returns what was said."""
    said: list[str] = []
    add(folder / "lake", bundles, said.append, jobs=1, **given)
    return said
