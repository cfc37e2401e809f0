# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Slab objects by memory cgroup, against memory.stat of each cgroup of a real kernel, and against what
guest/workload_cgroups.c made.
"""

from collections.abc import Callable

import pytest
from capture import capture
from cgroups_lab import CgroupsLab, read_cgroups
from conftest import KERNELS
from drgn import FaultError

from mmscope.drgn.cgroups.cgroup_files import numbers
from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.owners.slab_cgroups import SlabCgroup
from mmscope.drgn.owners.slab_owner import cgroups_once, slab_caches_from_memory, slabs_once
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.mem_sections import page_addresses
from mmscope.drgn.sections.memory import Memory

PAGE = 4096
# guest/workload_cgroups.c; a pipe of a MiB has 256 struct pipe_buffers, 10 KiB: kmalloc beyond the
# largest cache takes 4 pages.
SMALL_FILES, PIPES, PIPE_RING = 5000, 4, 4 * PAGE


@pytest.fixture(scope="module", params=KERNELS)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> CgroupsLab:
    """The ``cgroups`` workload on a kernel."""
    return read_cgroups(capture(request.param, "cgroups", say=say))


def test_objects_of_each_cgroup_are_what_memory_stat_says(lab: CgroupsLab) -> None:
    memory = Memory(lab.prog)
    assert not slab_caches_from_memory(memory).notes
    caches, memcgs = slabs_once(memory)[0].caches, memcgs_once(memory)
    own, strange = cgroups_once(memory).own_bytes(caches, memcgs)
    assert not strange
    paths = cgroup_paths(lab.prog, memcgs.columns["cgroup"], Gaps())
    counted = {
        path: total
        for (path, _), total, dying in zip(
            paths, memcgs.up(own).tolist(), memcgs.dying.tolist(), strict=True
        )
        if not dying
    }
    # What a CPU has not passed on, of each of two kinds: up to a page, or one object
    # (__account_obj_stock(), mod_objcg_state() before, mm/memcontrol.c).
    largest = max(PAGE, *(cache.size + 8 for cache in caches))
    drift = len(list(online_cpus(lab.prog))) * 2 * largest
    if lab.capture.series == "5.10":  # whose counters lack up to 32 pages of each CPU, too
        drift += len(list(online_cpus(lab.prog))) * 2 * 32 * PAGE * len(paths)
    for path, said in lab.said().items():
        theirs = numbers(said["memory.stat"])["slab"]
        by_page = PIPES * PIPE_RING if f"{path}/" in ("/shop/", "/shop/kernel/") else 0
        assert abs(counted[path] + by_page - theirs) <= drift, path
    assert counted["/shop/objects"] > SMALL_FILES * 900


def test_files_that_were_made_are_their_cgroups_objects(lab: CgroupsLab) -> None:
    rows: list[SlabCgroup] = slab_caches_from_memory(Memory(lab.prog)).by_name["slab_cgroups"]
    ours = {row.cache: row for row in rows if row.cgroup == "/shop/objects"}
    for cache in ("shmem_inode_cache", "dentry"):
        assert SMALL_FILES <= ours[cache].objects <= SMALL_FILES + 4
        assert ours[cache].bytes > ours[cache].objects * 100
    # Names that are too long to be in a dentry.
    assert any(row.objects == SMALL_FILES for row in ours.values())
    keys = [(row.cgroup_id, row.cache) for row in rows]
    assert len(keys) == len(set(keys))


def test_vectors_that_cannot_be_read_are_said(lab: CgroupsLab) -> None:
    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])
    whole = slab_caches_from_memory(Memory(lab.prog)).by_name["slab_cgroups"]
    memory = Memory(prog)
    counted = cgroups_once(memory)
    places: list[int] = []

    def missing(address: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("no memory here", address)

    def take(scan, chunk, of=counted._take):  # type: ignore[no-untyped-def]
        # Of slabs of inodes: the first are the initramfs's, which is nobody's.
        at = next(n for n, c in enumerate(scan.caches) if c.name == "shmem_inode_cache")
        pfns = chunk["pfn"][chunk["cache"] == at][:64]
        pages, valid = page_addresses(counted._ranges, pfns, counted._size)
        assert valid.all()
        for page in pages.tolist():
            places.append(page)
            prog.add_memory_segment(page, counted._size, missing)
        of(scan, chunk)

    counted._take = take  # type: ignore[method-assign]
    found = slab_caches_from_memory(memory)
    assert any("bytes of what says whose objects are" in note for note in found.notes)
    assert found.unreadable_bytes
    before, after = (
        sum(row.objects for row in rows) for rows in (whole, found.by_name["slab_cgroups"])
    )
    assert 0 < before - after <= len(places) * 64
    assert found.by_name["slab_caches"]
