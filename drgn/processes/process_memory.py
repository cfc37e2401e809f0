# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mm_struct.rss_stat`` and its neighbours: how much memory each process has.

Exact: what each CPU has not folded in yet is added, where the kernel keeps it in per-CPU counters
(since "mm: convert mm's rss stats into percpu_counter", f1a7941243c1, in v6.2). Costs a read for
each run of neighbours among the address spaces, and of each CPU's counters.

A page that processes share counts in each: the sum over all processes is more than their memory.
Before v6.2 a thread may have up to 64 page faults that are not in its process's counters yet.

The text that says the same is /proc/PID/status.
"""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
from drgn import FaultError, Program, TypeKind
from drgn.helpers.linux.nodemask import for_each_node_mask, for_each_node_state
from drgn.helpers.linux.pid import find_task

from mmscope.drgn.processes.address_spaces import BROKEN_OFF, AddressSpaces, kept_address_spaces
from mmscope.drgn.processes.held_open import SharedFile, SocketBuffers, add_held_open
from mmscope.drgn.processes.process_status import parse_status, rows_of_processes
from mmscope.drgn.processes.shm_segments import ShmSegment, read_segments
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Array, Columns, Gaps, S64s
from mmscope.drgn.reading.mem_sections import memory_pages
from mmscope.drgn.reading.nodes import check_node_ids
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Against, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column
from mmscope.drgn.tables.table import Inside, table, tables_of
from mmscope.drgn.text.kernel_text import printed_number


@table(
    "process_memory",
    "Memory of processes",
    memory="again",
    measure="resident_bytes",
    lasting=("comm",),
    inside=(Inside("anonymous", "anon_bytes"),),
)
class ProcessMemory:
    """The memory of an address space."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread group; the first seen")
    comm: str = column(holds="comm", help="name of its first thread")
    # A page counts as often as it is mapped (KSM, a file mapped twice), and a device's may count.
    resident_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="RSS: mapped anonymous, file and shmem pages"
    )
    anon_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped anonymous pages")
    file_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped file pages")
    shmem_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped shared memory and tmpfs")
    swap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="anonymous pages in swap")
    pgtables_bytes: int = column(unit="bytes", help="page tables")
    locked_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="mlock()ed, or given to a device by VFIO"
    )
    pinned_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="long-term pins for devices (pinned_vm)"
    )
    mapped_bytes: int = column(unit="bytes", high=MOST_BYTES, help="all of its mappings")
    processes: int | None = column(help="thread groups sharing the address space")
    threads: int | None = column(low=1, help="of all of them")
    only_node: int | None = column(
        since="0.3.0",
        default=None,
        help="only NUMA node it may use, of several: by its cpuset (Mems_allowed), in a "
        "dump also by MPOL_BIND",
    )


# A page that is given to devices again counts again; more often than this none is.
MOST_TIMES = 1000
MOST_BOUND = 100  # the largest, whose nodes are asked for

# enum of MM_FILEPAGES (include/linux/mm_types_task.h); all but swap are resident.
KINDS = {
    "anon": "MM_ANONPAGES",
    "file": "MM_FILEPAGES",
    "shmem": "MM_SHMEMPAGES",
    "swap": "MM_SWAPENTS",
}
# Pages that a counter may be below zero: TASK_RSS_EVENTS_THRESH (mm/memory.c, before v6.2) of each
# of 32,768 threads.
MOST_LAG = 64 << 15
COLUMNS: Columns = {
    "pgtables": "pgtables_bytes.counter",
    "locked": "locked_vm",
    "pinned": "pinned_vm.counter",
    "mapped": "total_vm",
}


def counted_by_cpus(prog: Program) -> bool:
    """True if each CPU has a part of the counters: not before v6.2, nor with !CONFIG_SMP."""
    counter = prog.type("struct mm_struct").member("rss_stat").type.unaliased()
    return counter.kind is TypeKind.ARRAY and counter.type.has_member("counters")


def process_memory(prog: Program, spaces: AddressSpaces, gaps: Gaps) -> list[ProcessMemory]:
    """
    All address spaces, the largest first.

    :raises LookupError: the kernel's layout is unknown.
    """
    page = int(prog["PAGE_SIZE"].value_())
    mm = prog.type("struct mm_struct")
    percpu = counted_by_cpus(prog)
    members = dict(COLUMNS)
    for name, constant in KINDS.items():
        number = int(prog.constant(constant).value_())
        # An array of percpu_counters, or one of atomic_long_ts in a structure of its own.
        members[name] = f"rss_stat[{number}].count", f"rss_stat.count[{number}].counter"
        if percpu:
            members[f"{name} of CPUs"] = f"rss_stat[{number}].counters"
    found, read = read_members(prog, spaces.addresses, mm, members, gaps)
    sums = {name: found[name].astype(np.int64) for name in KINDS}
    if percpu:
        _add_cpus(prog, sums, found, gaps)
    # As percpu_counter_sum_positive(): below zero while it is updated, but not far. Python's
    # numbers, which hold whatever a damaged mm says.
    amounts = {
        f"{name}_bytes": [
            (pages if pages < -MOST_LAG else max(pages, 0)) * page
            for pages in values[read].tolist()
        ]
        for name, values in sums.items()
    }
    resident = (amounts[f"{name}_bytes"] for name in ("anon", "file", "shmem"))
    amounts["resident_bytes"] = [sum(kinds) for kinds in zip(*resident, strict=True)]
    for name in ("locked", "pinned", "mapped"):
        amounts[f"{name}_bytes"] = [pages * page for pages in found[name][read].tolist()]
    amounts["pgtables_bytes"] = found["pgtables"][read].tolist()
    processes = itertools.compress(spaces.processes, read.tolist())
    rows = [
        ProcessMemory(**vars(process), **dict(zip(amounts, values, strict=True)))
        for process, *values in zip(processes, *amounts.values(), strict=True)
    ]
    rows.sort(key=_by_memory)
    nodes = _nodes_with_memory(prog)
    bound = MOST_BOUND if len(nodes) > 1 else 0
    return [replace(row, only_node=_only_node(prog, row.pid, nodes)) for row in rows[:bound]] + (
        rows[bound:]
    )


def _nodes_with_memory(prog: Program) -> set[int]:
    # Without CONFIG_NUMA, or with a damaged nr_node_ids, which the sections of nodes tell of.
    with contextlib.suppress(LookupError, FaultError, ValueError):
        check_node_ids(prog, "nr_node_ids")
        return set(for_each_node_state(prog["N_MEMORY"]))
    return set()


def _only_node(prog: Program, pid: int, nodes: set[int]) -> int | None:
    """The one node that a process's first task may use; None if it may use several."""
    allowed = nodes
    with contextlib.suppress(FaultError, LookupError):
        if pid < 0 or not (task := find_task(prog, pid)):  # below 0 it is damaged
            return None
        with contextlib.suppress(AttributeError):  # without CONFIG_CPUSETS
            allowed = nodes & set(for_each_node_mask(task.mems_allowed))
        if (policy := task.mempolicy) and policy.mode == prog["MPOL_BIND"]:
            try:
                of_policy = policy.nodes
            except AttributeError:
                # Before "mm/mempolicy: use unified 'nodes' for bind/interleave/prefer policies"
                # (269fbe72cded, in v5.14)
                of_policy = policy.v.nodes
            allowed = allowed & set(for_each_node_mask(of_policy))
    return min(allowed) if len(allowed) == 1 else None


def process_memory_once(
    memory: Memory,
) -> tuple[list[ProcessMemory], AddressSpaces, Gaps]:
    """
    Rows of all address spaces, these, and what could not be read: of a dump once for all sections.
    """

    def read() -> tuple[list[ProcessMemory], AddressSpaces, Gaps]:
        gaps = Gaps()
        spaces = kept_address_spaces(memory, gaps)
        return process_memory(memory.prog, spaces, gaps), spaces, gaps

    return read() if memory.live else memory.once("process_memory", read)


def _by_memory(row: ProcessMemory) -> tuple[int, int]:
    return -row.resident_bytes - row.swap_bytes, row.pid


def _add_cpus(prog: Program, sums: dict[str, S64s], found: Array, gaps: Gaps) -> None:
    """Add what each CPU has not folded in yet to the pages of each kind, by address space."""
    offsets = prog["__per_cpu_offset"]
    for cpu in online_cpus(prog):
        offset = np.uint64(offsets[cpu].value_())
        for name, pages in sums.items():
            counters = found[f"{name} of CPUs"]
            here = np.flatnonzero(counters)
            delta, known = read_scattered(prog, counters[here] + offset, np.dtype("<i4"), gaps)
            pages[here[known]] += delta[known]


# Lines of /proc/PID/status (task_mem(), fs/proc/task_mmu.c).
STATUS = {
    "resident_bytes": "VmRSS",
    "anon_bytes": "RssAnon",
    "file_bytes": "RssFile",
    "shmem_bytes": "RssShmem",
    "swap_bytes": "VmSwap",
    "pgtables_bytes": "VmPTE",
    "locked_bytes": "VmLck",
    "pinned_bytes": "VmPin",
    "mapped_bytes": "VmSize",
}


def read_status_memory(text: str, several_nodes: bool = False) -> ProcessMemory | None:
    """
    The same of a process from /proc/PID/status.

    From 6.2 to where the kernel adds up all CPUs for it, the text lags by what they have not folded
    in: up to 32 pages each, more with over 16 CPUs.

    :param several_nodes: the machine has memory on several nodes.
    :return: None for a kernel thread, and for a process that has exited.
    :raises ValueError: the text is not that of such a file, or it is cut short.
    """
    status = parse_status(text)
    if "VmRSS" not in status.lines:
        return None
    threads = status.lines.get("Threads", "")
    nodes = status.lines.get("Mems_allowed_list", "") if several_nodes else ""
    return ProcessMemory(
        pid=status.pid,
        comm=status.comm,
        processes=None,
        threads=printed_number(threads, "status") if threads else None,
        only_node=printed_number(nodes, "status") if nodes.isdecimal() else None,
        **{name: status.bytes(line) for name, line in STATUS.items()},
    )


def from_memory(memory: Memory) -> Found:
    rows, spaces, gaps = process_memory_once(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    found.notes += if_any(gaps.bytes, "{} bytes of address spaces could not be read")
    if spaces.broken_off:
        found.notes.append(BROKEN_OFF)
    found.differ(*if_any(spaces.damaged, "{} could not be read", "process", "processes"))
    if not memory.live:
        most = MOST_TIMES * memory_pages(memory.prog) * int(memory.prog["PAGE_SIZE"])

        def room(row: ProcessMemory) -> Against:
            return min(row.pinned_bytes, most), 0

        def locked(row: ProcessMemory) -> Against:
            return min(row.locked_bytes, row.mapped_bytes + most), 0

        found.hold_against(rows, "pinned_bytes", room, "a thousand times all memory")
        words = "its mappings and a thousand times all memory"
        found.hold_against(rows, "locked_bytes", locked, words)
    return found.add(ProcessMemory, rows)


def _several_nodes(files: Files) -> bool:
    """True if several nodes have memory; a node may have CPUs alone."""
    try:
        return not files.open("sys/devices/system/node/has_memory").strip().isdecimal()
    except OSError:
        return len(files.numbers("sys/devices/system/node", r"node(\d+)")) > 1


def from_files(files: Files) -> Found:
    several = _several_nodes(files)
    rows, notes = rows_of_processes(files, lambda text: read_status_memory(text, several))
    found = Found(notes=notes)
    found.remarks.append("processes that share their memory (vfork) count each")
    try:
        segments = read_segments(files)
    except ValueError as error:
        found.notes.append(str(error))
    else:
        if segments is not None:
            found.add(ShmSegment, segments)
    add_held_open(files, found, sum(row.shmem_bytes for row in rows))
    return found.add(ProcessMemory, sorted(rows, key=_by_memory))


PROCESS_MEMORY_SECTION = Section(
    name="process_memory",
    title="Memory of processes",
    intro="""
How much memory each process maps, by kind
([proc(5)](https://docs.kernel.org/filesystems/proc.html)). Pages that several processes map count
in each of them, so that the sum is more than what they have together; hugetlb pages are in none.
By text also SysV segments, which may have no process; of a running host files of shared memory and
buffers of sockets, by who has them open.
""",
    command=Command("the memory of processes", top=TOP, picks="pid"),
    since="0.2.0",
    tables=tables_of(ProcessMemory, ShmSegment, SharedFile, SocketBuffers),
    from_memory=from_memory,
    from_files=from_files,
    reads=(
        *(prices.STATUS, prices.SHM, prices.SETTINGS, prices.MEMINFO, prices.NAMES),
        *(prices.LINKS, prices.SOCKETS, prices.CGROUPS),
    ),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("process_memory")
