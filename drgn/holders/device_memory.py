# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of processes that devices reach by VFIO (type 1, drivers/vfio/vfio_iommu_type1.c): the memory
of a virtual machine that has a device passed through, the buffers of DPDK and SPDK.

Of each mapping of a container (``struct vfio_dma``) all of its pages are pinned; they are those
that the process maps there, by its page tables. Costs a walk of these. The types are those of the
modules' BTF.

Cannot know: pages that the process has discarded since (a balloon, MADV_DONTNEED), which stay
pinned; mappings of mediated devices, which pin as they need it; iommufd; other IOMMU drivers.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from drgn import Object, Program
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry

from mmscope.drgn.holders.holdings import MAX_HELD, Holder, Holdings
from mmscope.drgn.opening.btf import struct_of
from mmscope.drgn.page_tables.page_table_entries import new_walk, process_roots, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.processes.open_files import OpenFiles
from mmscope.drgn.reading.kernel_arrays import S64s
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.symbols import variable_of

MOST_CONTAINERS, MOST_DEVICES = 1 << 12, 1 << 10
MOST_MAPPINGS = 1 << 16  # dma_entry_limit is 65,535
DRIVER = "vfio-iommu-type1"


def add_device_memory(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """Pages by container; the number of objects is that of its mappings."""
    containers, who = files.of_kind(prog, variable_of(prog, "vfio", "vfio_fops"))
    left = MAX_HELD
    for address, process in islice(zip(containers.tolist(), who, strict=True), MOST_CONTAINERS):
        container = Object(prog, struct_of(prog, "vfio_container", "vfio"), address=address)
        driver = container.iommu_driver
        if not driver or name_at(driver.ops.name) != DRIVER:
            continue
        holder = Holder("VFIO", ", ".join(_devices(container)), process)
        for mapping in islice(_mappings(container), MOST_MAPPINGS):
            found.count(holder, 1)
            for pfns, counts in _pages(mapping, found):
                found.frames(holder, 0, pfns, counts, objects=0)
                left -= len(pfns)
                if left <= 0:
                    found.missing.append(f"VFIO: more than {MAX_HELD:,} blocks")
                    return


def _devices(container: Object) -> Iterator[str]:
    """Names of the devices of a container, as their buses have them."""
    prog = container.prog_
    group_type, device_type = (
        struct_of(prog, name, "vfio") for name in ("vfio_group", "vfio_device")
    )
    groups = list_for_each_entry(group_type, container.group_list.address_of_(), "container_next")
    for group in islice(groups, MOST_DEVICES):
        devices = list_for_each_entry(device_type, group.device_list.address_of_(), "group_next")
        for device in islice(devices, MOST_DEVICES):
            yield name_at(device.dev.kobj.name)


def _mappings(container: Object) -> Iterator[Object]:
    """The mappings of a container that the IOMMU has."""
    prog = container.prog_
    iommu_type, type_ = (
        struct_of(prog, name, "vfio_iommu_type1") for name in ("vfio_iommu", "vfio_dma")
    )
    iommu = Object(prog, iommu_type, address=container.iommu_data.value_())
    for mapping in rbtree_inorder_for_each_entry(type_, iommu.dma_list.address_of_(), "node"):
        if mapping.iommu_mapped:
            yield mapping


def _pages(mapping: Object, found: Holdings) -> Iterator[tuple[S64s, S64s]]:
    """Page frames of what the process maps at a mapping, and how many pages each block has."""
    prog = mapping.prog_
    # "vfio/type1: prevent underflow of locked_vm via exec()" (046eca5018f8, in v6.3)
    space = mapping.mm if hasattr(mapping, "mm") else mapping.task.mm
    form = page_table_format(prog)
    start, size = int(mapping.vaddr.value_()), int(mapping.size.value_())
    end = min(start + size, form.user_end)
    if not space or start >= end:
        return
    walk = new_walk(form, 1)
    root = process_roots(prog, np.array([space.pgd.value_()], np.uint64))
    for chunk in walk_page_tables(prog, form, root, walk, start=start, end=end):
        entries = chunk.entries.ravel()[chunk.places]
        leaves = entries[form.is_leaf(entries, chunk.level) & ~form.is_special(entries)]
        pfns = form.physical(leaves, chunk.level) >> np.uint64(form.page_shift)
        pages = np.int64(1 << form.levels[chunk.level].shift - form.page_shift)
        yield pfns.astype(np.int64), np.full(len(pfns), pages)
    found.gaps.bytes += walk.gaps.bytes
