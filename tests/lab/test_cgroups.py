# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory cgroups out of a vmcore, against what the same kernel printed of each of them before it was
frozen, and against what guest/workload_cgroups.c made.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from capture import capture
from cgroups_lab import CgroupsLab, read_cgroups
from conftest import KERNELS
from drgn import FaultError, Object, TypeKind, sizeof
from forked import in_a_fork, opened
from named_damage import say

from mmscope.drgn.cgroups.cgroup_files import numbers
from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths, misplaced
from mmscope.drgn.cgroups.cgroup_rows import (
    DYING,
    ONLINE,
    MemoryCgroup,
    MemoryCgroupCounter,
)
from mmscope.drgn.cgroups.charged_pages import ChargedPages, charges
from mmscope.drgn.cgroups.dying_pins import ANONYMOUS, FILE, NOTHING
from mmscope.drgn.cgroups.memcgs import memcgs_once, read_memcgs
from mmscope.drgn.cgroups.percpu_owners import PercpuCgroup
from mmscope.drgn.cgroups.pressure import from_memory as pressure_from_memory
from mmscope.drgn.ledger.ledger_pages import OF_OBJECTS, LedgerPages
from mmscope.drgn.ledger.memory_cgroups import (
    memory_cgroups_from_files,
    memory_cgroups_from_memory,
)
from mmscope.drgn.ledger.page_places import find_places
from mmscope.drgn.ledger.percpu_chunks import from_memory as percpu_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES, Gaps
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory

PAGE, MIB, HUGE = 4096, 1 << 20, 2 << 20
# guest/workload_cgroups.c
OWN_FILE, ONE_FILE, SOCKETS = 200, 1000, 3
REMOVED = OWN_FILE + ONE_FILE + SOCKETS
HOSTILE = '/shop/evil\x1b[31m"<b>&amp;,\\xff'
MADE = {
    *(
        "/shop",
        "/shop/web",
        "/shop/huge",
        "/shop/files",
        "/shop/shared",
        "/shop/kernel",
        "/shop/objects",
    ),
    *("/shop/deep", "/shop/deep/empty", HOSTILE, "/limit", "/killed", "/gone"),
}
# What a file of a cgroup prints is in a column.
FILES = {
    "memory.current": "usage_bytes",
    "memory.min": "min_bytes",
    "memory.low": "low_bytes",
    "memory.high": "high_bytes",
    "memory.max": "max_bytes",
    "memory.peak": "peak_bytes",
    "memory.swap.current": "swap_bytes",
    "memory.swap.max": "swap_max_bytes",
}
EVENTS = ("low", "high", "max", "oom", "oom_kill")


@pytest.fixture(scope="module", params=KERNELS)
def cgroups_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> CgroupsLab:
    """The ``cgroups`` workload on a kernel."""
    return read_cgroups(capture(request.param, "cgroups", say=say))


def test_every_cgroup_is_there_with_its_path(cgroups_lab: CgroupsLab) -> None:
    assert not cgroups_lab.found.notes
    assert set(cgroups_lab.online) == MADE | {"/"}
    assert set(cgroups_lab.said()) == MADE
    assert all(row.depth == str(row.cgroup).rstrip("/").count("/") for row in cgroups_lab.rows)


@pytest.mark.any_kernel
def test_a_cgroup_with_the_directory_of_another_is_told_of(cgroups_lab: CgroupsLab) -> None:
    prog = opened(cgroups_lab.capture)
    cgroups = memcgs_once(Memory(prog)).columns["cgroup"]
    first, second = (
        Object(prog, "struct cgroup", address=each) for each in np.unique(cgroups)[-2:].tolist()
    )

    def odd(kn: int, number: int) -> int:
        say(first.kn.id, number)
        say(first.kn, kn)
        return misplaced(prog, cgroups)

    kn, number = first.kn.value_(), first.kn.id.value_()
    assert in_a_fork(lambda: odd(kn, number)) == 0
    for damaged in (0, number + 1, number | 1 << 40):
        assert in_a_fork(functools.partial(odd, kn, damaged)) == 1
    assert in_a_fork(lambda: odd(second.kn.value_(), number)) == 1


@pytest.mark.any_kernel
@pytest.mark.parametrize(
    ("name", "value"), [("workingset_nodereclaim", 1 << 30), ("anon", 1 << 40), ("sock", 1 << 40)]
)
def test_a_line_of_memory_stat_that_cannot_be_is_told_of(
    cgroups_lab: CgroupsLab, name: str, value: int
) -> None:
    memory = Memory(cgroups_lab.prog)
    memcgs = memcgs_once(memory)
    largest = int(np.argmax(memcgs.depth == 0))
    assert not memory_cgroups_from_memory(memory).impossible
    memcgs.stats = {**memcgs.stats, name: memcgs.stats[name].copy()}
    memcgs.stats[name][largest] = value
    marks = memory_cgroups_from_memory(memory).impossible
    assert ("memory_cgroup_counters", str(value)) in {(m.table_name, m.value) for m in marks}


def test_it_uses_and_may_use_what_its_files_say(cgroups_lab: CgroupsLab) -> None:
    compared = 0
    for path, said in cgroups_lab.said().items():
        row = cgroups_lab.online[path]
        for file, column in FILES.items():
            if file in said:  # memory.peak: in 5.19
                expected = None if said[file] == "max\n" else int(said[file])
                assert getattr(row, column) == expected, (path, file)
                compared += 1
    assert compared >= len(MADE) * (len(FILES) - 1)
    web = cgroups_lab.online["/shop/web"]
    assert (web.min_bytes, web.low_bytes, web.high_bytes) == (4 * MIB, 16 * MIB, 192 * MIB)
    assert (web.max_bytes, web.swap_max_bytes) == (None, MIB)


def test_its_events_are_those_of_its_files(cgroups_lab: CgroupsLab) -> None:
    for path, said in cgroups_lab.said().items():
        row = cgroups_lab.online[path]
        for event in EVENTS:
            assert getattr(row, f"{event}_events") == numbers(said["memory.events"])[event]
        for event in ("max", "oom", "oom_kill"):
            local = numbers(said["memory.events.local"])[event]
            assert getattr(row, f"{event}_own_events") == local
    assert cgroups_lab.online["/limit"].max_own_events
    assert not cgroups_lab.online["/limit"].oom_events
    assert cgroups_lab.online["/killed"].oom_kill_own_events == 1


def test_its_counters_are_those_of_memory_stat(cgroups_lab: CgroupsLab) -> None:
    """Both are of the last flush."""
    counters: list[MemoryCgroupCounter] = cgroups_lab.found.by_name["memory_cgroup_counters"]
    for path, said in cgroups_lab.said().items():
        theirs = numbers(said["memory.stat"])
        ours = {row.counter: row.value for row in counters if row.cgroup == path}
        assert ours.items() <= theirs.items(), path
        # What has no item of its own: sums, and events of the virtual memory.
        rest = {name for name, value in theirs.items() if value} - set(ours)
        assert all(name == "slab" or name.startswith(("pg", "thp_")) for name in rest), rest
        row = cgroups_lab.online[path]
        for name in ("anon", "file", "shmem", "kernel", "slab"):
            assert getattr(row, f"{name}_bytes") == theirs.get(name)
        assert ("kernel" in theirs) is (cgroups_lab.capture.series != "5.10")  # v5.18


def test_percpu_memory_is_charged_as_memory_stat_says(cgroups_lab: CgroupsLab) -> None:
    prog, memory = cgroups_lab.prog, Memory(cgroups_lab.prog)
    found = percpu_from_memory(memory)
    assert not found.notes
    rows: list[PercpuCgroup] = found.by_name["percpu_cgroups"]
    own = {row.cgroup_id: row for row in rows}
    memcgs = memcgs_once(memory)
    paths = cgroup_paths(prog, memcgs.columns["cgroup"], Gaps())
    taken = memcgs.up(np.array([own[id_].bytes if id_ in own else 0 for _, id_ in paths]))
    assert {"/shop", "/gone"} <= {row.cgroup for row in rows}
    # pcpu_obj_full_size(), mm/percpu-internal.h: 8 bytes for every 4 that one CPU has.
    cpus = int(prog["pcpu_nr_units"])
    said = cgroups_lab.said()
    if cgroups_lab.capture.kernel == "5.10":
        return  # whose counters lack up to 32 pages of each CPU (see drgn/cgroups/memcgs.py)
    compared = 0
    for (path, _), dying, total in zip(paths, memcgs.dying.tolist(), taken.tolist(), strict=True):
        if path in said and not dying:
            theirs = numbers(said[path]["memory.stat"])["percpu"]
            assert total // cpus * (cpus + 2) == theirs, path
            compared += theirs > 0
    assert compared >= 3


def test_pages_are_counted_as_the_kernel_counts_them(cgroups_lab: CgroupsLab) -> None:
    # 5.10 has no flush: each CPU keeps up to so many pages of each cgroup to itself.
    batch = 32 if cgroups_lab.capture.series == "5.10" else 0
    for path, said in cgroups_lab.said().items():
        theirs = numbers(said["memory.stat"])
        below = sum(f"{row.cgroup}/".startswith(f"{path}/") for row in cgroups_lab.rows)
        for owner, part, counter in (
            ("anonymous", "", "anon"),
            ("page cache", "", "file"),
            ("page cache", "shmem", "shmem"),
            ("page tables", "", "pagetables"),
        ):
            ours = sum(
                row.pages_below
                for row in cgroups_lab.pages
                if row.cgroup == path and row.owner == owner and part in ("", row.part)
            )
            if counter == "pagetables" and batch:  # which cgroups do not count before v5.11
                assert counter not in theirs
                continue
            difference = abs(ours - theirs[counter] // PAGE)
            assert difference <= 2 * below * batch, (path, counter)


@pytest.mark.parametrize(
    ("path", "owner", "part", "charged_as", "expected"),
    [
        ("/shop/web", "anonymous", "base pages", "page", 24 * MIB),
        (HOSTILE, "anonymous", "base pages", "page", 24 * MIB),
        ("/shop/huge", "anonymous", "large folios", "page", 4 * HUGE),
        ("/shop/files", "page cache", "files", "page", 12 * MIB),
        ("/shop/shared", "page cache", "shmem", "page", 10 * MIB),
        ("/shop/kernel", "pipes", "data that waits", "kernel memory", 4 * MIB),
    ],
)
def test_what_was_planted_is_charged_to_whom_it_belongs(
    cgroups_lab: CgroupsLab, path: str, owner: str, part: str, charged_as: str, expected: int
) -> None:
    (row,) = [
        row
        for row in cgroups_lab.pages
        if (row.cgroup, row.owner, row.part) == (path, owner, part) and row.charged_as == charged_as
    ]
    assert row.bytes == expected
    assert row.pages == row.pages_below == expected // PAGE


def test_pages_of_a_cgroup_are_no_more_than_it_uses(cgroups_lab: CgroupsLab) -> None:
    """The rest are objects in slabs, percpu memory, and what CPUs hold in stock for it."""
    for row in cgroups_lab.rows:
        if row.cgroup != "/":  # whose own pages are not in its usage
            assert row.own_bytes is not None and row.usage_bytes is not None
            assert row.own_bytes <= row.usage_bytes


@pytest.mark.parametrize("pages", [192, 1536])
@pytest.mark.any_kernel
def test_pages_that_belong_together_may_be_read_apart(cgroups_lab: CgroupsLab, pages: int) -> None:
    prog = cgroups_lab.prog
    memory = Memory(prog)
    places, memcgs = find_places(memory), read_memcgs(prog)
    sums = []
    for chunk_bytes in (CHUNK_BYTES, pages * sizeof(prog.type("struct page"))):
        counted = ChargedPages(prog, memcgs.address[memcgs.dying], OF_OBJECTS)
        ledger = LedgerPages(prog, places.ram, places.owned, counted)
        assert not scan_struct_pages(prog, [ledger], chunk_bytes=chunk_bytes).failures
        found, unknown_pages = charges(prog, counted, memcgs, Gaps())
        assert not unknown_pages
        total = np.bincount(found["memcg"], found["pages"], len(memcgs.address))
        sums.append((total.tolist(), counted.mappings))
    assert sums[0] == sums[1]


def test_dying_cgroups_are_as_many_as_the_kernel_says(cgroups_lab: CgroupsLab) -> None:
    dying = [row for row in cgroups_lab.rows if row.state == DYING]
    assert len(dying) == cgroups_lab.dying("") == cgroups_lab.dying("gone")
    # In 7.2 pages are given to the parent when their cgroup is removed.
    assert len(dying) in (REMOVED, SOCKETS)
    assert all(str(row.cgroup).startswith("/gone/") for row in dying)
    assert cgroups_lab.online["/gone"].dying_below == len(dying)
    assert cgroups_lab.online["/"].dying_below == len(dying)
    assert cgroups_lab.online["/shop"].dying_below == 0


@pytest.mark.btf
@pytest.mark.parametrize("state", [DYING, ONLINE])
def test_a_dying_cgroup_may_say_more_than_its_parent_uses(
    cgroups_lab: CgroupsLab, state: str
) -> None:
    """Its kernel memory passes to the parent, and is freed there alone; its own counter stays."""
    prog = open_target(cgroups_lab.capture.vmcore, [])
    memcgs = read_memcgs(prog)
    at = np.flatnonzero((memcgs.dying == (state == DYING)) & (memcgs.depth > 1))[0]
    memcg = Object(prog, "struct mem_cgroup *", int(memcgs.address[at]))
    parent = int(memcgs.columns["memory.usage.counter"][memcgs.parent[at]])
    usage = (parent + 1000).to_bytes(8, "little")

    def planted(address: int, count: int, offset: int, physical: bool) -> bytes:
        return usage[offset : offset + count]

    prog.add_memory_segment(memcg.memory.usage.counter.address_, 8, planted, False)
    found = memory_cgroups_from_memory(Memory(prog))
    said = [one for one in found.impossible if one.bound.endswith("what those below use")]
    assert bool(said) == (state == ONLINE), said


def test_what_keeps_dying_cgroups_has_its_name(cgroups_lab: CgroupsLab) -> None:
    (nothing,) = [row for row in cgroups_lab.pins if row.pin == NOTHING]
    assert (nothing.cgroups, nothing.alone, nothing.pages) == (SOCKETS, SOCKETS, 0)
    files = {row.file: row for row in cgroups_lab.pins if row.pin == FILE}
    shmem = [row for row in cgroups_lab.pages if (row.cgroup, row.part) == ("/gone", "shmem")]
    assert [row.pages_below for row in shmem] == [OWN_FILE + ONE_FILE]
    if cgroups_lab.dying("gone") == SOCKETS:
        assert len(cgroups_lab.pins) == 1
        assert [row.pages for row in shmem] == [OWN_FILE + ONE_FILE]
        return
    assert [row.pages for row in shmem] == [0]
    assert {row.pin for row in cgroups_lab.pins} <= {FILE, NOTHING, ANONYMOUS}
    assert set(files) == {"/journal", *(f"/pin-{number}" for number in range(OWN_FILE))}
    journal = files.pop("/journal")
    assert cgroups_lab.pins[0] == journal
    assert (journal.filesystem, journal.deleted) == ("tmpfs", False)
    assert (journal.cgroups, journal.pages) == (ONE_FILE, ONE_FILE)
    assert {(row.cgroups, row.pages, row.bytes) for row in files.values()} == {(1, 1, PAGE)}


def test_the_files_alone_say_the_same(cgroups_lab: CgroupsLab) -> None:
    found = memory_cgroups_from_files(Files(cgroups_lab.capture.truth_b))
    rows: list[MemoryCgroup] = found.by_name["memory_cgroups"]
    assert {row.cgroup for row in rows} == MADE
    for row in rows:
        ours = cgroups_lab.online[str(row.cgroup)]
        unknown = {"cgroup_id": None, "own_bytes": None}
        # The first is a file of newer kernels; the second's was kept of some cgroups.
        for name in ("peak_bytes", "dying_below"):
            if getattr(row, name) is None:
                unknown[name] = None
        assert row == replace(ours, **unknown)
    counters = found.by_name["memory_cgroup_counters"]
    said = {(row.cgroup, row.counter): row.value for row in counters}
    for row in cgroups_lab.found.by_name["memory_cgroup_counters"]:
        if row.cgroup in MADE:
            assert said[row.cgroup, row.counter] == row.value


@pytest.mark.btf
def test_no_debug_info_is_needed(cgroups_lab: CgroupsLab) -> None:
    prog = open_target(cgroups_lab.capture.vmcore, [])
    found = memory_cgroups_from_memory(Memory(prog))
    assert found.by_name == cgroups_lab.found.by_name
    assert found.notes == cgroups_lab.found.notes


@pytest.mark.btf
def test_a_cgroup_whose_pressure_is_missing_costs_its_rows_alone(cgroups_lab: CgroupsLab) -> None:
    def refuse(address: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("missing", address)

    prog = open_target(cgroups_lab.capture.vmcore, [])
    whole = pressure_from_memory(Memory(prog))
    memcgs = read_memcgs(prog)
    paths = [path for path, _ in cgroup_paths(prog, memcgs.columns["cgroup"], Gaps())]
    address = int(memcgs.columns["cgroup"][paths.index("/limit")])
    group = Object(prog, "struct cgroup *", address).psi
    if group.type_.kind is TypeKind.POINTER:
        group = group[0]
    prog.add_memory_segment(group.address_, sizeof(group), refuse, False)
    found = pressure_from_memory(Memory(prog))
    rows = whole.by_name["memory_pressure"]
    assert found.by_name["memory_pressure"] == [row for row in rows if row.cgroup != "/limit"]
    assert found.notes == ["the pressure of 1 cgroup could not be read"] and not whole.notes


def test_a_tree_without_cgroups_says_so(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    with pytest.raises(Absent, match=r"no directory has memory\.current"):
        memory_cgroups_from_files(Files(tmp_path))
