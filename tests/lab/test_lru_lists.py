# SPDX-License-Identifier: LGPL-2.1-or-later
"""
LRU lists and generations out of a vmcore, against /proc/zoneinfo and debugfs' lru_gen of the same
kernel, with memory cgroups (guest/workload_cgroups.c).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from capture import Capture, capture
from conftest import KERNELS, Lab
from drgn import Program

from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reclaim.lru_lists import (
    LISTS,
    LruGeneration,
    LruList,
    jiffies_a_second,
    lru_lists_from_memory,
)
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found
from mmscope.drgn.text.proc_text import parse_zoneinfo


@dataclass(frozen=True)
class LruLab:
    """A frozen guest with pages of many cgroups on its lists."""

    capture: Capture
    prog: Program
    found: Found


@pytest.fixture(scope="module", params=KERNELS)
def lru_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> LruLab:
    """The ``cgroups`` workload on a kernel."""
    taken = capture(request.param, "cgroups", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return LruLab(taken, prog, lru_lists_from_memory(Memory(prog)))


def counted(taken: Capture) -> dict[tuple[int, str, str], int]:
    """Pages by node, zone and list as /proc/zoneinfo had them last."""
    zones = parse_zoneinfo((taken.truth_b / "proc/zoneinfo").read_text())
    return {
        (zone.node, zone.zone, name): zone.fields[f"nr_zone_{name}"]
        for zone in zones
        for name in LISTS
        if f"nr_zone_{name}" in zone.fields
    }


def assert_as_counted(found: Found, taken: Capture) -> None:
    assert not found.notes
    rows: list[LruList] = found.by_name["lru_lists"]
    said = counted(taken)
    ours = {(row.node, row.zone, row.list): row.pages for row in rows}
    assert ours.keys() <= said.keys()
    assert ours == {key: said[key] for key in ours}
    assert {key for key, pages in said.items() if pages} <= ours.keys()
    assert all(row.kernel_pages == row.pages for row in rows)


def test_the_lists_of_all_cgroups_are_what_the_zones_count(lru_lab: LruLab) -> None:
    assert_as_counted(lru_lab.found, lru_lab.capture)
    rows: list[LruList] = lru_lab.found.by_name["lru_lists"]
    # guest/workload_cgroups.c: 12 MiB of ramfs, which cannot be evicted.
    assert sum(row.pages for row in rows if row.list == "unevictable") >= 3072
    assert max(row.cgroups for row in rows) > 3


def test_so_they_are_without_cgroups(lab: Lab) -> None:
    assert_as_counted(lru_lists_from_memory(Memory(lab.prog)), lab.capture)


def read_lru_gen(text: str) -> dict[tuple[str, int, int], tuple[float, int, int]]:
    """Age in seconds, anonymous and file pages by (cgroup, node, generation)."""
    found, path, node = {}, "", -1
    for line in text.splitlines():
        words = line.split()
        if match := re.match(r"memcg +[0-9]+ (.*)", line):
            path = match[1]
        elif words[0] == "node":
            node = int(words[1])
        else:
            sequence, age, anon, file = map(int, words)
            found[path, node, sequence] = age / 1000, anon, file
    return found


def test_generations_are_those_of_debugfs(lru_lab: LruLab) -> None:
    rows: list[LruGeneration] = lru_lab.found.by_name["lru_generations"]
    if lru_lab.capture.series == "5.10":  # before the multi-gen LRU (v6.1)
        assert not rows
        assert {row.multi_gen for row in lru_lab.found.by_name["reclaim_nodes"]} == {None}
        return
    path = lru_lab.capture.truth_b / "sys/kernel/debug/lru_gen"
    text = path.read_bytes().decode("utf-8", "backslashreplace")
    said = read_lru_gen(text)
    nodes = lru_lab.found.by_name["reclaim_nodes"]
    (enabled,) = {row.multi_gen for row in nodes}
    assert enabled == any(anon or file for _, anon, file in said.values())
    assert bool(rows) == enabled
    for row in rows:
        age, anon, file = said[str(row.cgroup), row.node, row.generation]
        assert (row.anon_pages, row.file_pages) == (anon, file)
        assert row.age_seconds is not None
        assert age <= row.age_seconds < age + 10
    online = {"/shop/web", "/shop/huge", "/shop/shared"} if enabled else set()
    assert online <= {row.cgroup for row in rows if row.anon_pages}


def test_a_second_has_as_many_jiffies_as_debian_builds_in(lru_lab: LruLab) -> None:
    assert jiffies_a_second(lru_lab.prog) == 250


@pytest.mark.btf
def test_no_debug_info_is_needed(lru_lab: LruLab) -> None:
    prog = open_target(lru_lab.capture.vmcore, [])
    assert lru_lists_from_memory(Memory(prog)).by_name == lru_lab.found.by_name
