# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters of /proc/vmstat, and how far a dump's may be from their parts."""

import pytest

from mmscope.drgn.machine.vm_counters import VmCounter, normal_threshold, numa_sums_apart


# 2 * fls(CPUs) * (1 + fls(memory of the zone in pieces of 128 MiB)), at most 125.
@pytest.mark.parametrize(
    ("threshold", "cpus", "mebibytes"),
    [
        *((8, 1, 900), (16, 2, 900), (20, 2, 1800), (24, 2, 3500), (28, 2, 7200), (36, 2, 28000)),
        *((30, 4, 1800), (80, 8, 60000), (88, 8, 128000), (125, 1024, 512000)),
    ],
)
def test_a_cpu_holds_back_as_much_as_the_kernel_says(
    threshold: int, cpus: int, mebibytes: int
) -> None:
    assert normal_threshold(cpus, mebibytes << 8, 12) == threshold


@pytest.mark.parametrize(
    ("local", "said"),
    [
        (900, []),
        (901, ["numa_hit and numa_miss are 1,000, numa_local and numa_other 1,001: a CPU was"]),
        (9000, ["numa_hit and numa_miss are 1,000, numa_local and numa_other 9,100"]),
    ],
)
def test_counts_of_allocations_by_node_fit_each_other(local: int, said: list[str]) -> None:
    values = {"hit": 990, "miss": 10, "foreign": 10, "local": local, "other": 100}
    rows = [VmCounter(f"numa_{name}", "numa", value, None) for name, value in values.items()]
    found = numa_sums_apart(rows, 2)
    assert [words[: len(start)] for words, start in zip(found, said, strict=True)] == said
    assert ("damage" in "".join(found)) == (local == 901)
