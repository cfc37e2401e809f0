# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages that are known by who holds them, each kind of holder with its class of the ledger."""

from collections.abc import Callable

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

# By what they are called where one fails.
OF_FILES: dict[str, Callable[[Program, OpenFiles, Holdings], None]] = {
    "pipes": lambda prog, files, found: add_pipes(
        prog, files, found, Kind.PIPE, Kind.LARGE_KMALLOC
    ),
    "sockets": lambda prog, files, found: add_sockets(
        prog, files, found, Kind.SOCKET, Kind.LARGE_KMALLOC
    ),
    "fragments": lambda prog, files, found: add_fragments(prog, files, found, Kind.SOCKET),
    "rings of perf": lambda prog, files, found: add_perf(prog, files, found, Kind.PERF_RING),
    "rings of BPF": lambda prog, files, found: add_bpf_rings(prog, files, found, Kind.BPF_RING),
    "maps of BPF": add_bpf_maps,
    "programs of BPF": add_bpf_programs,
    "kernel stacks": lambda prog, files, found: add_kernel_stacks(
        prog, files, found, Kind.STACK_BLOCK
    ),
    "dma-bufs": lambda prog, files, found: add_dma_buffers(prog, files, found, Kind.DMA_BUF),
    "buffers of graphics cards": lambda prog, files, found: add_graphics_buffers(
        prog, files, found, Kind.GRAPHICS
    ),
    "virtual machines": lambda prog, files, found: add_virtual_machines(
        prog, files, found, Kind.MACHINE_TABLE, Kind.MACHINE_CPU
    ),
    "rings of AIO": add_aio_rings,
    "rings of io_uring": lambda prog, files, found: add_io_uring(prog, files, found, Kind.IO_URING),
    "buffers of io_uring": add_io_uring_buffers,
    "memory of devices": add_device_memory,
    "memory regions of RDMA": add_registered_memory,
}
OF_KERNEL: dict[str, Callable[[Program, Holdings], None]] = {
    "rings of ftrace": lambda prog, found: add_trace_rings(prog, found, Kind.TRACE_RING),
    "records of ftrace": lambda prog, found: add_ftrace_records(prog, found, Kind.FTRACE),
    "names of tasks": lambda prog, found: add_saved_commands(prog, found, Kind.FTRACE),
    "requests of block devices": lambda prog, found: add_block_requests(
        prog, found, Kind.BLOCK_REQUEST
    ),
    "IOMMUs of Intel": lambda prog, found: add_intel_iommus(prog, found, Kind.IOMMU_TABLE),
    "IOMMUs of AMD": lambda prog, found: add_amd_iommus(prog, found, Kind.IOMMU_TABLE),
    "IOMMUs of Arm": lambda prog, found: add_arm_iommus(prog, found, Kind.IOMMU_TABLE),
    "swiotlb": add_bounce_buffers,
    "the stack depot": lambda prog, found: add_stack_depot(prog, found, Kind.STACK_DEPOT),
    "lists of modules": lambda prog, found: add_module_lists(prog, found, Kind.MODULE_CACHE),
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
        for what, add in OF_FILES.items():
            try:
                add(memory.prog, files, found)
            except TORN as error:
                found.fail(what, why=f"{what}: {error}")
    for what, add_kernel in OF_KERNEL.items():
        try:
            add_kernel(memory.prog, found)
        except TORN as error:
            found.fail(what, why=f"{what}: {error}")
    found.settle()
    return found
