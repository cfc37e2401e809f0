# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a host, as guard takes them: one that is healthy, and what can become of it."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from mmscope.reports.guard.history import History
from mmscope.reports.guard.trigger import Trigger

PERIOD, MIB = 5.0, 1 << 20
EVENTS = (
    *("oom_kill", "allocstall_normal", "allocstall_movable", "compact_stall", "compact_fail"),
    *("compact_success", "thp_fault_fallback", "thp_file_fallback", "pgfault"),
    *("thp_fault_alloc", "thp_file_alloc", "thp_fault_fallback_charge", "pswpin", "pswpout"),
    *("workingset_refault_file", "workingset_activate_file", "pgmajfault"),
)
Change = Callable[[int, dict[str, Any]], None]


def sample(number: int) -> dict[str, Any]:
    """The n-th sample of a host that has work, and enough memory for it."""
    mono = 1000.0 + number * PERIOD
    counters = dict.fromkeys(EVENTS, 1000)
    counters |= {"oom_kill": 3, "allocstall_normal": 1000 + number, "pgfault": 10_000 * number}
    counters["compact_success"] += 5 * number
    return {
        "wall": 1.79e9 + number * PERIOD, "mono": mono, "boot": mono, "late": 0.0, "unread": {},
        "read": 0.003, "cpu": 0.003, "number": number + 1, "cpu_total": 0.01 * number,
        "vmstat": counters, "vmstat_at": mono, "psi_at": mono,
        # A tenth of the time some task waits, a hundredth all do.
        "psi": {"some": [9.0, 9.0, 9.0, int(mono * 1e5)], "full": [1.0, 1.0, 1.0, int(mono * 1e4)]},
        "meminfo": {
            "MemTotal": 8192 * MIB, "MemFree": 2048 * MIB - number % 7 * MIB,
            "MemAvailable": 5000 * MIB, "Buffers": 64 * MIB, "Cached": 3000 * MIB, "SwapCached": 0,
            "AnonPages": 2500 * MIB + number % 7 * MIB, "SReclaimable": 200 * MIB,
            "SUnreclaim": 100 * MIB, "KernelStack": 10 * MIB, "PageTables": 20 * MIB,
            "VmallocUsed": 30 * MIB, "Percpu": 5 * MIB, "Hugetlb": 0,
        },
        "zones": [[0, "Normal", 2 << 20, 500_000, 1000, 1250, 1500, 0, 512, 100]],
        "thp_any": [(0, "DMA", 3), (0, "Normal", 41 + number % 7)],
        "thp_free": [[0, "DMA", None, 3, False], [0, "Normal", "Movable", 40 + number % 7, False],
                     [0, "Normal", "HighAtomic", 1, False]],
    }  # fmt: skip


def counted(**rates: float) -> Change:
    """Counters that move by so much more a second, from the 20th sample on."""

    def change(number: int, made: dict[str, Any]) -> None:
        for name, rate in rates.items():
            made["vmstat"][name] += int(max(number - 20, 0) * PERIOD * rate)

    return change


def leaked(name: str, rate: float) -> Change:
    """A level of /proc/meminfo, or None of them, that takes so many MiB a second of the free."""

    def change(number: int, made: dict[str, Any]) -> None:
        grown = int(number * PERIOD * rate * MIB)
        made["meminfo"]["MemFree"] -= grown
        if name:
            made["meminfo"][name] += grown

    return change


def stalled(share: float, first: int = 20, last: int = 10_000) -> Change:
    """All tasks wait for a share of the time."""

    def change(number: int, made: dict[str, Any]) -> None:
        periods = max(min(number, last) - first, 0)
        for kind in ("some", "full"):
            made["psi"][kind][3] += int(periods * PERIOD * share * 1e6)

    return change


def taken(rate: float, **parts: float) -> Change:
    """
    So many MiB a second of free memory go to lines of /proc/meminfo, or of what is beside it.

    :param parts: shares of that; of a name that /proc/meminfo does not have, beside it.
    """

    def change(number: int, made: dict[str, Any]) -> None:
        grown = int(number * PERIOD * rate * MIB)
        made["meminfo"]["MemFree"] -= int(grown * sum(parts.values()))
        for name, share in parts.items():
            place = made["meminfo"] if name[0].isupper() else made.setdefault("beside", {})
            place[name] = place.get(name, 0) + int(grown * share)

    return change


def no_huge_blocks(number: int, made: dict[str, Any]) -> None:
    """Only the reserve has any, from the 20th sample on."""
    if number >= 20:
        made["thp_any"][1] = (0, "Normal", 1)
        # What is dear to read is not there each time.
        del made["thp_free"]


def played(
    triggers: Iterable[Trigger],
    *changes: Change,
    samples: int = 60,
    events: dict[int, list[tuple[str, str, int]]] | None = None,
    messages: dict[int, list[tuple[str, str]]] | None = None,
    pressure: dict[int, list[tuple[str, float, float]]] | None = None,
) -> list[tuple[int, str]]:
    """The number of each sample at which a trigger fires, and the title."""
    history, fresh = History(900.0), [dataclasses.replace(trigger) for trigger in triggers]
    fired = []
    for number in range(samples):
        made = sample(number)
        for change in changes:
            change(number, made)
        said: list[Any] = [(of or {}).get(number, ()) for of in (events, messages, pressure)]
        history.add(made, *said)
        for trigger in fresh:
            if title := trigger.fires(history):
                fired.append((number, title))
            assert not trigger.failed, trigger.failed
    return fired
