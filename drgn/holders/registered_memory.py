# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of processes that is registered with RDMA devices (``struct ib_umem``,
drivers/infiniband/core/umem.c), by device and process.

Every file of /dev/infiniband/uverbs* has a list of its objects; a memory region's ``struct ib_mr``
is a part of its driver's own structure, which has the ``ib_umem``. That has a scatter-gather table
of the pages, which are pinned until the region goes, also where the process has unmapped them. The
types are those of the modules' BTF. Costs some reads for each object, and a read of the struct
pages.

Shown on rdma_rxe; of the other drivers in ``DRIVERS`` the types are those of Debian's 6.12.

Cannot know: queues that drivers of hardware have in memory of the process; regions of other
drivers, or of one that is built in; kernels before 5.15. What is mapped on demand is not pinned.
"""

from collections.abc import Iterator
from itertools import islice

from drgn import Object, Program, offsetof
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.dma_buffers import scattered
from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.opening.btf import struct_of
from mmscope.drgn.processes.open_files import OpenFiles
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.symbols import variable_of

MOST_FILES, MOST_OBJECTS = 1 << 16, 1 << 20  # of each file
FILES = ("uverbs_fops", "uverbs_mmap_fops")  # of ib_uverbs
REGION = 7  # UVERBS_OBJECT_MR (include/uapi/rdma/ib_user_ioctl_cmds.h)
# By module: the structure that a region is a part of, its member for that, and for the pages.
DRIVERS = {
    "bnxt_re": ("bnxt_re_mr", "ib_mr", "ib_umem"),
    "irdma": ("irdma_mr", "ibmr", "region"),
    "iw_cxgb4": ("c4iw_mr", "ibmr", "umem"),
    "mana_ib": ("mana_ib_mr", "ibmr", "umem"),
    "mlx4_ib": ("mlx4_ib_mr", "ibmr", "umem"),
    "mlx5_ib": ("mlx5_ib_mr", "ibmr", "umem"),
    "qedr": ("qedr_mr", "ibmr", "umem"),
    "rdma_rxe": ("rxe_mr", "ibmr", "umem"),
}


def add_registered_memory(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """Pages of memory regions by device and process."""
    kinds = (variable_of(prog, "ib_uverbs", name) for name in FILES)
    addresses, who = files.of_kind(prog, *kinds)
    unknown = set[str]()
    for address, process in islice(zip(addresses.tolist(), who, strict=True), MOST_FILES):
        for region in _regions(prog, address):
            module = region.device.ops.owner
            driver = name_in(module.name.string_()) if module else "a driver that is built in"
            if driver not in DRIVERS:
                unknown.add(driver)
                continue
            name, member, pages = DRIVERS[driver]
            type_ = struct_of(prog, name, driver)
            start = region.value_() - offsetof(type_, member)
            memory = Object(prog, type_, address=start).member_(pages)
            # ib_umem_release(): those have no pages of their own
            if not memory or memory.is_odp or getattr(memory, "is_dmabuf", 0):
                continue
            holder = Holder("RDMA", name_in(region.device.name.string_()), process)
            # "RDMA: Use the sg_table directly and remove the opencoded version from umem"
            # (79fbd3e1241c, in v5.15)
            found.runs(holder, *scattered(memory.member_("sgt_append").sgt, found.gaps))
    found.missing += [f"memory regions of {name}" for name in sorted(unknown)]


def _regions(prog: Program, address: int) -> Iterator[Object]:
    """``struct ib_mr *`` of each memory region of a file."""
    file, object_, its_kind, region = (
        struct_of(prog, name, "ib_uverbs")
        for name in ("ib_uverbs_file", "ib_uobject", "uverbs_api_object", "ib_mr")
    )
    opened = Object(prog, file, address=address)
    objects = list_for_each_entry(object_, opened.uobjects.address_of_(), "list")
    for each in islice(objects, MOST_OBJECTS):
        # Modules know some of these structures by name alone.
        kind = Object(prog, its_kind, address=each.uapi_object.value_())
        if kind.id.value_() == REGION and each.object:
            yield Object(prog, prog.pointer_type(region), each.object.value_())
