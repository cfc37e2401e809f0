# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages that are known by who holds them, each kind of holder with its class of the ledger."""

from collections.abc import Callable, Mapping

from drgn import Program

from mmscope.drgn.holders.aio_rings import add_aio_rings
from mmscope.drgn.holders.amd_iommus import add_amd_iommus
from mmscope.drgn.holders.arm_iommus import add_arm_iommus
from mmscope.drgn.holders.block_requests import add_block_requests
from mmscope.drgn.holders.bounce_buffers import add_bounce_buffers
from mmscope.drgn.holders.bpf_memory import add_bpf_maps, add_bpf_programs, add_bpf_rings
from mmscope.drgn.holders.device_memory import add_device_memory
from mmscope.drgn.holders.dma_buffers import add_dma_buffers
from mmscope.drgn.holders.file_buffers import (
    add_io_uring,
    add_io_uring_buffers,
    add_perf,
    add_pipes,
)
from mmscope.drgn.holders.graphics_buffers import add_graphics_buffers
from mmscope.drgn.holders.holdings import Holdings
from mmscope.drgn.holders.intel_iommus import add_intel_iommus
from mmscope.drgn.holders.kernel_buffers import (
    add_ftrace_records,
    add_saved_commands,
    add_stack_depot,
    add_trace_rings,
)
from mmscope.drgn.holders.kernel_stacks import add_kernel_stacks
from mmscope.drgn.holders.module_lists import add_module_lists
from mmscope.drgn.holders.registered_memory import add_registered_memory
from mmscope.drgn.holders.socket_buffers import add_fragments, add_sockets
from mmscope.drgn.holders.virtual_machines import add_virtual_machines
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.page_tables.vmalloc_areas import vmalloc_once
from mmscope.drgn.processes.address_spaces import BROKEN_OFF
from mmscope.drgn.processes.open_files import OpenFiles, open_files
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.sections.memory import Memory

# What finds a kind of holder, and the classes of what it holds.
Finder = tuple[Callable[..., None], *tuple[Kind, ...]]

# By what they are called where one fails.
OF_FILES: dict[str, Finder] = {
    "pipes": (add_pipes, Kind.PIPE, Kind.LARGE_KMALLOC),
    "sockets": (add_sockets, Kind.SOCKET, Kind.LARGE_KMALLOC),
    "fragments": (add_fragments, Kind.SOCKET),
    "rings of perf": (add_perf, Kind.PERF_RING),
    "rings of BPF": (add_bpf_rings, Kind.BPF_RING),
    "maps of BPF": (add_bpf_maps,),
    "programs of BPF": (add_bpf_programs,),
    "kernel stacks": (add_kernel_stacks, Kind.STACK_BLOCK),
    "dma-bufs": (add_dma_buffers, Kind.DMA_BUF),
    "buffers of graphics cards": (add_graphics_buffers, Kind.GRAPHICS),
    "virtual machines": (add_virtual_machines, Kind.MACHINE_TABLE, Kind.MACHINE_CPU),
    "rings of AIO": (add_aio_rings,),
    "rings of io_uring": (add_io_uring, Kind.IO_URING),
    "buffers of io_uring": (add_io_uring_buffers,),
    "memory of devices": (add_device_memory,),
    "memory regions of RDMA": (add_registered_memory,),
}
OF_KERNEL: dict[str, Finder] = {
    "rings of ftrace": (add_trace_rings, Kind.TRACE_RING),
    "records of ftrace": (add_ftrace_records, Kind.FTRACE),
    "names of tasks": (add_saved_commands, Kind.FTRACE),
    "requests of block devices": (add_block_requests, Kind.BLOCK_REQUEST),
    "IOMMUs of Intel": (add_intel_iommus, Kind.IOMMU_TABLE),
    "IOMMUs of AMD": (add_amd_iommus, Kind.IOMMU_TABLE),
    "IOMMUs of Arm": (add_arm_iommus, Kind.IOMMU_TABLE),
    "swiotlb": (add_bounce_buffers,),
    "the stack depot": (add_stack_depot, Kind.STACK_DEPOT),
    "lists of modules": (add_module_lists, Kind.MODULE_CACHE),
}


def holdings(memory: Memory) -> Holdings:
    """Everything that is known to hold pages, found once for all sections."""
    return memory.once("holdings", lambda: _holdings(memory))


def _holdings(memory: Memory) -> Holdings:
    vmalloc, missing = None, list[str]()
    try:
        vmalloc = vmalloc_once(memory)
    except (NotImplementedError, *TORN) as error:
        missing.append(f"vmalloc memory: {error}")
    found = Holdings(memory.prog, vmalloc)
    found.missing += missing
    try:
        files = open_files(memory)
        if files.broken_off:
            found.missing.append(f"what further processes have open: {BROKEN_OFF}")
        found.gaps.bytes += files.gaps.bytes
    except TORN as error:
        found.fail(*OF_FILES, why=f"what is in open files: {error}")
    else:
        _find(found, OF_FILES, memory.prog, files)
    _find(found, OF_KERNEL, memory.prog)
    found.settle()
    return found


def _find(found: Holdings, finders: Mapping[str, Finder], *where: Program | OpenFiles) -> None:
    for what, (add, *kinds) in finders.items():
        try:
            add(*where, found, *kinds)
        except TORN as error:
            found.fail(what, why=f"{what}: {error}")
