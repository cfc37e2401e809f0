# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Slab caches and the owners of their objects, against what the kernel itself printed: /proc/slabinfo
and /sys/kernel/debug/slab/CACHE/alloc_traces of every cache, read twice before the freeze.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Lab, SlabLab, slab_owners
from drgn import FaultError, Program
from drgn.helpers.linux.slab import (
    find_slab_cache,
    for_each_slab_cache,
    slab_cache_for_each_allocated_object,
    slab_cache_usage,
)

from mmscope.drgn.opening.target import describe
from mmscope.drgn.owners import slab_caches as slab_caches_module
from mmscope.drgn.owners import slab_objects, slab_owner
from mmscope.drgn.owners.slab_caches import (
    SlabCache,
    SlabFinder,
    SlabScan,
    has_sheaves,
    pages_in_no_cache,
    read_slabinfo,
    slab_caches,
)
from mmscope.drgn.owners.slab_owner import (
    NO_TRACK,
    SlabOwnerStack,
    read_alloc_traces,
    slab_owner_stacks,
)
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.collect.run_section import run_section

pytestmark = pytest.mark.any_page

EVENTFDS = 700  # guest/workload_slab.c, KEPT
EVENTFD_CALLERS = tuple(
    f"{entry}_sys_eventfd2;do_eventfd{leaf}"
    for entry in ("__x64", "__arm64")
    for leaf in (
        *("", ";kmalloc_trace", ";kmem_cache_alloc_trace;__slab_alloc"),
        ";__kmalloc_cache_noprof",  # arm64's unwinder leaves it in
    )
)
# Without alloc_traces, which came with v5.14, and the size that was asked for, with v6.1.
WITHOUT_TEXT = "5.10"


def printed(lab: SlabLab, truth: Path) -> Iterator[SlabOwnerStack]:
    """The rows of every cache that has a file."""
    sizes = {cache.name: cache.object_size for cache in lab.owners.scan.caches}
    for path in sorted((truth / "sys/kernel/debug/slab").glob("*/alloc_traces")):
        cache = path.parent.name
        yield from read_alloc_traces(_callers(lab, path.read_text()), cache, sizes[cache])


def _callers(lab: SlabLab, text: str) -> str:
    """
    The text with our name of a caller whose call never returns and is its last: the address behind
    it is the next function's first, of which the kernel prints the name.
    """

    def before(match: re.Match[str]) -> str:
        try:
            return lab.prog.symbol(lab.prog.symbol(match[1]).address - 1).name
        except LookupError:
            return match[0]

    return re.sub(r"(?m)(?<= )([\w.]+)\+0x0/0x[0-9a-f]+$", before, text)


def counted(rows: Iterator[SlabOwnerStack] | list[SlabOwnerStack]) -> Counter[tuple[str, str]]:
    objects: Counter[tuple[str, str]] = Counter()
    for row in rows:
        objects[row.cache, row.stack] += row.objects
    return objects


def requested(rows: Iterator[SlabOwnerStack] | list[SlabOwnerStack]) -> Counter[tuple[str, str]]:
    size: Counter[tuple[str, str]] = Counter()
    for row in rows:
        size[row.cache, row.stack] += row.requested_bytes or 0
    return size


GONE = re.compile(r"0x[0-9a-f]+( \[\w+\])?")


def as_named_here(
    printed: Counter[tuple[str, str]], ours: Counter[tuple[str, str]]
) -> Counter[tuple[str, str]]:
    """
    What the kernel printed, with our names of code that is gone.

    Init code of a module is freed, and another module may be loaded there. The kernel then prints
    its symbol before that address, however far it reaches; here the address stays one where no
    function has it.
    """
    unnamed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for cache, stack in ours:
        if GONE.search(stack):
            unnamed.setdefault((cache, GONE.sub("?", stack)), []).append((cache, stack))
    named: Counter[tuple[str, str]] = Counter()
    for (cache, stack), count in printed.items():
        frames = stack.split(";")
        tried = (
            (cache, ";".join([*frames[:at], "?", *frames[at + 1 :]]))
            for at, frame in enumerate(frames)
            if frame.endswith("]")
        )
        same = next((unnamed[each] for each in tried if each in unnamed), [(cache, stack)])
        named[same[0] if (cache, stack) not in ours else (cache, stack)] += count
    return named


def may_move(stack: str, mine: int, other: int) -> bool:
    """
    While the kernel printed, the file that it printed into was open; at the freeze it is not. And
    between its print and the freeze a kernel thread may have worked (DAMON's splits regions), or
    what kfree_rcu() puts off for seconds been freed: what rtnl_register_internal() replaced at boot
    (net/core/rtnetlink.c, v6.12).
    """
    freed = mine < other and ";rtnl_register_internal" in stack
    return "do_sys_openat2" in stack or ";kthread;" in stack or freed


def test_objects_by_stack_are_those_of_alloc_traces(slab_lab: SlabLab) -> None:
    rows, checks = slab_owner_stacks(slab_lab.prog, slab_lab.depot, slab_lab.owners)
    assert checks == []
    if slab_lab.capture.series == WITHOUT_TEXT:
        assert not list(printed(slab_lab, slab_lab.capture.truth_b))
        return
    ours = counted(rows)
    theirs = as_named_here(counted(printed(slab_lab, slab_lab.capture.truth_b)), ours)
    with_file = {cache for cache, _ in theirs}
    # Some kernels make no file for a cache that was created early; what is in it has an owner here.
    without = {cache for cache, _ in ours} - with_file
    print(f"{len(ours)} stacks, {sum(ours.values())} objects; caches without a file: {without}")
    assert len(without) < len(with_file) / 10
    assert sum(theirs.values()) > 30_000 and len(theirs) > 3000
    different = {
        (cache, stack): (ours[cache, stack], theirs[cache, stack])
        for cache, stack in ours | theirs
        if ours[cache, stack] != theirs[cache, stack] and cache not in without
    }
    print(f"differ: {different}")
    assert all(may_move(stack, *counts) for (_, stack), counts in different.items())
    assert len(different) < 12
    # Files that the guest opened to print this are freed after RCU's grace period, which a busy
    # machine puts off.
    assert all(abs(mine - other) <= 100 for mine, other in different.values())


def test_requested_bytes_are_those_of_alloc_traces(slab_lab: SlabLab) -> None:
    rows, _ = slab_owner_stacks(slab_lab.prog, slab_lab.depot, slab_lab.owners)
    if slab_lab.capture.series == WITHOUT_TEXT:
        assert {row.requested_bytes for row in rows} == {None}
        return
    ours = requested(rows)
    theirs = as_named_here(requested(printed(slab_lab, slab_lab.capture.truth_b)), ours)
    assert sum(ours.values()) > 500_000
    wrong = {key for key in ours | theirs if ours[key] != theirs[key]}
    with_file = {cache for cache, _ in theirs}
    assert all(may_move(key[1], ours[key], theirs[key]) or key[0] not in with_file for key in wrong)
    kmalloc = [row for row in rows if row.requested_bytes is not None]
    assert all(0 < (row.requested_bytes or 0) <= (row.bytes or 0) for row in kmalloc)
    # kmalloc always has some left over; it would equal the allocated size if it were not read.
    assert sum(row.requested_bytes or 0 for row in kmalloc) < sum(row.bytes or 0 for row in kmalloc)


def test_the_workloads_objects_are_exactly_right(slab_lab: SlabLab) -> None:
    rows, _ = slab_owner_stacks(slab_lab.prog, slab_lab.depot, slab_lab.owners)
    found = [row for row in rows if row.stack.endswith(EVENTFD_CALLERS)]
    assert [(row.objects, row.cache.startswith("kmalloc")) for row in found] == [(EVENTFDS, True)]
    size = slab_lab.prog.type("struct eventfd_ctx").size or 0
    known = slab_lab.capture.series != WITHOUT_TEXT
    assert found[0].requested_bytes == (EVENTFDS * size if known else None)
    # As many were closed again. Their tracks are still there, and must not count.
    files = [row for row in rows if row.cache == "filp" and "sys_eventfd2" in row.stack]
    assert sum(row.objects for row in files) == EVENTFDS


@pytest.mark.parametrize("most", [slab_caches_module.MAX_SLABS, 100])
def test_a_shared_pass_finds_the_slabs_that_a_pass_of_their_own_finds(
    slab_lab: SlabLab, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    # With more slabs than it keeps it has none, and the pass is made.
    monkeypatch.setattr(slab_caches_module, "MAX_SLABS", most)
    finder = SlabFinder(slab_lab.prog)
    gaps = scan_struct_pages(slab_lab.prog, [finder]).gaps
    assert finder.whole == (most > 100)
    shared = slab_owners(slab_lab.prog, slab_lab.depot, (finder, gaps))
    assert (shared.scan.totals == slab_lab.owners.scan.totals).all()
    rows, _ = slab_owner_stacks(slab_lab.prog, slab_lab.depot, shared)
    assert rows == slab_owner_stacks(slab_lab.prog, slab_lab.depot, slab_lab.owners)[0]
    assert shared.scan.totals["slabs"].sum() > 100


def test_every_object_in_use_has_an_owner(slab_lab: SlabLab) -> None:
    rows, _ = slab_owner_stacks(slab_lab.prog, slab_lab.depot, slab_lab.owners)
    by_cache: Counter[str] = Counter()
    for row in rows:
        by_cache[row.cache] += row.objects
    caches, checks = slab_caches(slab_lab.owners.scan)
    assert checks == []
    assert all(row.store_user for row in caches)
    assert by_cache == Counter({row.cache: row.objects for row in caches if row.objects})
    # Objects older than the depot.
    early = [row for row in rows if row.stack == NO_TRACK]
    assert {row.cache for row in early} <= {"kmem_cache_node", "kmem_cache"}
    assert sum(row.objects for row in early) <= 8


def test_allocated_objects_are_those_of_drgns_helper(slab_lab: SlabLab) -> None:
    cache = find_slab_cache(slab_lab.prog, "task_struct")
    assert cache is not None
    theirs = list(slab_cache_for_each_allocated_object(cache, "struct task_struct"))
    rows, _ = slab_owner_stacks(slab_lab.prog, slab_lab.depot, slab_lab.owners)
    assert sum(row.objects for row in rows if row.cache == "task_struct") == len(theirs) > 30


CPUS = 2
CLOSED_FILES = 64


def assert_slabinfo(ours: list[SlabCache], text: str, slack: int, held: int = 0) -> None:
    """:param held: slabs a CPU may hold, whose free objects the kernel counts as in use."""
    theirs = {row.cache: row for row in read_slabinfo(text)}
    assert {row.cache for row in ours} == set(theirs)
    moved = 0
    for row in ours:
        other = theirs[row.cache]
        assert row.slot_bytes == other.slot_bytes
        for name in ("objects", "slots", "slabs", "pages"):
            # The kernel's count has free objects of sheaves among those in use.
            free = (row.sheaf_objects or 0) if name == "objects" else 0
            difference = abs(getattr(row, name) + free - getattr(other, name))
            if difference:
                print(f"{row.cache}: {name} {getattr(row, name)}, printed {getattr(other, name)}")
            of_cpus = 0
            if name == "objects" and getattr(other, name) > getattr(row, name) and row.slabs:
                of_cpus = held * CPUS * row.slots // row.slabs
            moved += difference > of_cpus
            # The files that were recorded right before were opened for that, and a closed file's
            # struct waits for RCU: the kernel still counts it, and frees it before the freeze.
            closed = CLOSED_FILES if row.cache == "filp" else 0
            assert difference <= max(getattr(other, name) // 50, 16, of_cpus, closed)
    assert moved <= slack


def test_caches_are_those_of_slabinfo(slab_lab: SlabLab) -> None:
    rows, _ = slab_caches(slab_lab.owners.scan)
    text = (slab_lab.capture.truth_b / "proc/slabinfo").read_text()
    assert_slabinfo(rows, text, 12)


def test_caches_of_a_kernel_without_tracks(lab: Lab) -> None:
    scan = SlabScan(lab.prog)
    assert sum(map(len, scan)) > 100
    rows, checks = slab_caches(scan)
    assert checks == []
    assert len(rows) > 80 and not any(row.store_user for row in rows)
    # Reading allocates. Where CPUs have slabs of their own (before sheaves), they keep one and some
    # partial ones (set_cpu_partial(), mm/slub.c), and /proc/slabinfo counts those as full.
    held = 8 if lab.prog.type("struct kmem_cache").has_member("cpu_slab") else 0
    assert_slabinfo(rows, lab.said("proc/slabinfo")[1], 40, held)
    section, _ = run_section(SECTIONS["slab_owner"], Memory(lab.prog))
    assert section.status == "absent" and "slab_debug=U" in (section.message or "")


def test_an_empty_slab_may_be_off_the_count(lab: Lab) -> None:
    """As ``discard_slab()`` leaves it, until RCU frees it; what else differs is a disagreement."""
    scan = SlabScan(lab.prog)
    assert sum(map(len, scan)) > 100
    at = int(np.argmax(scan.totals["empty"]))
    cache, slabs, empty = scan.caches[at], *(int(scan.totals[at][n]) for n in ("slabs", "empty"))

    def disagrees(nr_slabs: int) -> list[str]:
        scan.caches[at] = dataclasses.replace(cache, nr_slabs=nr_slabs)
        return [check.cache for check in slab_caches(scan)[1]]

    assert empty and not disagrees(slabs - empty)
    assert disagrees(slabs - empty - 1) == disagrees(slabs + 1) == [cache.name]


def test_objects_in_sheaves_are_free(lab: Lab) -> None:
    """As drgn's own helper counts them; before 7.0, objects of CPUs' own slabs count as used."""
    scan = SlabScan(lab.prog)
    assert sum(map(len, scan)) > 100
    rows = {row.cache: row for row in slab_caches(scan)[0]}
    if not has_sheaves(lab.prog):
        assert all(row.sheaf_objects is None for row in rows.values())
        return
    theirs = {c.name.string_().decode(): slab_cache_usage(c) for c in for_each_slab_cache(lab.prog)}
    used = {name: usage.num_objs - usage.free_objs for name, usage in theirs.items()}
    assert used == {name: row.objects for name, row in rows.items()}
    assert sum(row.sheaf_objects or 0 for row in rows.values()) > 1000


def test_large_kmalloc_explains_what_is_in_no_cache(slab_lab: SlabLab) -> None:
    rest = pages_in_no_cache(slab_lab.prog, slab_lab.owners.scan)
    assert 0 < rest < 1000


def test_sections_and_their_files(slab_lab: SlabLab, tmp_path: Path) -> None:
    memory = Memory(slab_lab.prog)
    writer = Writer(tmp_path / "bundle")
    sections = collect(
        memory, describe(slab_lab.prog, "vmcore"), writer, ["slab_caches", "slab_owner"]
    )
    assert [(section.section, section.status) for section in sections] == [
        ("slab_caches", "ok"),
        ("slab_owner", "ok"),
    ]
    bundle = Bundle(tmp_path / "bundle")
    assert {"slab_caches", "slab_owner_stacks"} <= set(bundle.tables)
    # The same from the text that the guest left.
    files = Files(slab_lab.capture.truth_b)
    section, found = run_section(SECTIONS["slab_owner"], files)
    if slab_lab.capture.series == WITHOUT_TEXT:
        assert section.status == "absent"
        return
    assert section.status == "ok"
    rows = found.by_name["slab_owner_stacks"]
    assert sum(row.objects for row in rows) == sum(
        row.objects for row in printed(slab_lab, slab_lab.capture.truth_b)
    )


class Holes:
    """Memory that a dump lacks in places."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog

    def read(self, address: int, size: int, physical: bool) -> bytes:
        if address % (1 << 20) == 0:
            raise FaultError("not in the dump", address)
        return self.prog.read(address, size, physical)


def test_slabs_that_the_dump_lacks_are_counted(
    slab_lab: SlabLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = slab_objects._read_slabs
    monkeypatch.setattr(slab_objects, "_read_slabs", lambda prog, *rest: read(Holes(prog), *rest))
    owners = slab_owners(slab_lab.prog, slab_lab.depot)
    rows, checks = slab_owner_stacks(slab_lab.prog, slab_lab.depot, owners)
    assert owners.gaps.bytes > 0
    assert {check.problem for check in checks} == {"could not be read"}
    lost = sum(check.objects or 0 for check in checks)
    whole = sum(count for count, _ in slab_lab.owners.counts.values())
    assert lost > 0 and sum(row.objects for row in rows) + lost == whole


def test_a_list_of_caches_that_breaks_off_is_said(
    slab_lab: SlabLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = slab_caches_module.list_for_each_entry

    def torn(*given: Any) -> Iterator[Any]:
        for number, cache in enumerate(walk(*given)):
            if number == 40:
                raise FaultError("not in the dump", 0)
            yield cache

    monkeypatch.setattr(slab_caches_module, "list_for_each_entry", torn)
    for name in ("slab_caches", "slab_owner"):
        section, found = run_section(SECTIONS[name], Memory(slab_lab.prog))
        assert section.status == "partial" and "breaks off after 40" in (section.message or "")
        assert 0 < len({row.cache for row in found.tables[0].rows}) <= 40


def test_damaged_freelists_are_counted(slab_lab: SlabLab, monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = slab_owner._allocated
    flip = np.uint64(8)

    def damaged(cache: Any, objects: int, freelists: Any, *rest: Any) -> Any:
        return allocated(cache, objects, np.where(freelists != 0, freelists ^ flip, 0), *rest)

    monkeypatch.setattr(slab_owner, "_allocated", damaged)
    owners = slab_owners(slab_lab.prog, slab_lab.depot)
    _, checks = slab_owner_stacks(slab_lab.prog, slab_lab.depot, owners)
    slabs: Counter[str] = Counter()
    for check in checks:
        slabs[check.problem] += check.slabs
    assert set(slabs) == {
        "freelist leads out of the slab or in a circle",
        "objects off the freelist are not inuse",
    }
    assert len(set(slabs.values())) == 1 and min(slabs.values()) > 50
