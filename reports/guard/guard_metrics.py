# SPDX-License-Identifier: LGPL-2.1-or-later
"""What guard did, as metrics beside those of its last sample."""

import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmscope.reports.guard.resident import resident_bytes
from mmscope.reports.watch import openmetrics
from mmscope.reports.watch.openmetrics import Family, Points, Value


@dataclass
class Told:
    """What guard counts and remembers of itself; by the trigger's name."""

    fired: dict[str, int] = field(default_factory=dict)
    captured: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    last_words: str = ""

    @staticmethod
    def add(counts: dict[str, int], name: str) -> None:
        counts[name] = counts.get(name, 0) + 1


def expose(path: Path, sample: dict[str, Any], page_size: int, told: Told) -> None:
    """
    Write them so that the name always holds a whole file.

    :raises OSError: it cannot be written.
    """
    openmetrics.expose(path, sample, page_size, families(told))


def families(told: Told) -> Iterator[Family]:
    """The metrics."""

    def by_trigger(counts: dict[str, int] | dict[str, float]) -> Points:
        points: list[tuple[dict[str, object], Value]] = [
            ({"trigger": name}, value) for name, value in counts.items()
        ]
        return [*points]

    yield Family(
        *("mmscope_guard_fired", "counter", ""),
        "Samples in which a trigger's time had come, captured or not.",
        by_trigger(told.fired),
    )
    yield Family(
        *("mmscope_guard_captures", "counter", ""),
        "Captures that were begun and have ended.",
        by_trigger(told.captured),
    )
    yield Family(
        *("mmscope_guard_captures_cut_short", "counter", ""),
        "Captures that ended before they were whole.",
        by_trigger(told.cut),
    )
    yield Family(
        *("mmscope_guard_last_capture_timestamp_seconds", "gauge", "seconds"),
        "When the last capture ended.",
        by_trigger(told.last),
    )
    yield Family(
        *("mmscope_guard_failed_triggers", "gauge", ""),
        "Triggers whose query fails.",
        [({}, len(told.failed))],
    )
    if (size := resident_bytes()) is not None:
        yield Family(
            *("mmscope_guard_resident_bytes", "gauge", "bytes"),
            "Memory of the resident.",
            [({}, size)],
        )
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield Family(
        *("mmscope_guard_capture_cpu_seconds", "counter", "seconds"),
        "CPU time of captures that have ended.",
        [({}, round(children.ru_utime + children.ru_stime, 3))],
    )
