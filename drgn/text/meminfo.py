# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/proc/meminfo by class, and the memory in no counter: what all counters leave of MemTotal.

The one formula for that: the ledger of text, ``watch`` and the triggers of ``guard`` take it from
here, as level :data:`NO_COUNTER`; view ``memory_in_no_counter`` has it of a bundle, and of kernel
memory by what the pages show.

What has no line in /proc/meminfo comes from other files (:func:`beside_meminfo`): zsmalloc's pages,
per-CPU lists, balloons of older kernels, ZFS's ARC. Cannot know: what a kernel counts nowhere, as
the page tables of KVM before 6.1 and Hyper-V's balloon before 6.16.

Imports neither drgn nor numpy: a sample of ``watch`` costs little.
"""

import re
from collections.abc import Mapping

from mmscope.drgn.text.kernel_text import printed_number

NO_COUNTER = "Memory in no counter"
# Lines of /proc/meminfo as one says them.
CALLED = {
    "AnonPages": "anonymous memory",
    "Cached": "page cache of files",
    "Shmem": "shared memory",
    "SUnreclaim": "unreclaimable slab",
    "SReclaimable": "reclaimable slab",
    "PageTables": "page tables",
    "SecPageTables": "secondary page tables",
    "KernelStack": "kernel stacks",
    "Percpu": "percpu memory",
    "VmallocUsed": "vmalloc memory",
    "Unevictable": "unevictable memory",
    "Hugetlb": "hugetlb memory",
    NO_COUNTER: "memory in no counter",
}
MAX_MEMINFO = 1 << 16
# Of ZFS, for :func:`arc_bytes`.
KSTATS = ("proc/spl/kstat/zfs/abdstats", "proc/spl/kstat/zfs/arcstats")
Sizes = Mapping[str, int]  # bytes by line

# Lines that are a class of their own, as fs/proc/meminfo.c has them. Unaccepted is none: it is in
# MemFree (__free_unaccepted(), mm/page_alloc.c).
LINES: dict[tuple[str, str], tuple[str, ...]] = {
    ("free", "free lists"): ("MemFree",),
    ("free", "per-CPU lists"): ("pcp_count",),
    ("anonymous", "mapped pages"): ("AnonPages",),
    ("page cache", "shmem"): ("Shmem",),
    ("page cache", "ZFS's ARC, which reclaim shrinks"): ("arc",),
    ("slab", "reclaimable"): ("SReclaimable",),
    # Large allocations of kmalloc() are in it, on all kernels from 5.10 on (mm/slub.c).
    ("slab", "unreclaimable"): ("SUnreclaim",),
    # It has the first chunk, which is of boot and not in MemTotal.
    ("percpu", "chunks"): ("Percpu",),
    ("page tables", "of processes, KVM and IOMMUs"): ("PageTables", "SecPageTables"),
    # "Account GPU memory" of TTM, in 7.2
    ("driver", "of GPUs"): ("GPUActive", "GPUReclaim"),
    # Temporary pages of FUSE's writeback, and bounce buffers of block devices (up to 6.15).
    ("driver", "copies for writeback"): ("WritebackTmp", "Bounce"),
    ("bad", "hwpoison"): ("HardwareCorrupted",),
}
# All that :func:`by_class` goes by, of a kernel that is not too old for ``watch``.
MEMINFO_LINES = frozenset(
    ("MemTotal", "Buffers", "Cached", "SwapCached", "Active(anon)", "Inactive(anon)", "Hugetlb")
).union(
    ("Unevictable", "KReclaimable", "VmallocUsed", "KernelStack", "Zswap", "Balloon"),
    *LINES.values(),
)
# Without these lines, what is left over says nothing.
ENOUGH = frozenset(("MemTotal", "MemFree", "AnonPages", "Cached", "SUnreclaim"))


def read_sizes(text: str) -> dict[str, int]:
    """
    The lines of /proc/meminfo in bytes; numbers of things (HugePages_Total) as they are.

    :raises ValueError: the text is not /proc/meminfo's.
    """
    pattern = r"^(\S{1,40}): +([0-9]{1,18})( kB)?$"
    found = re.findall(pattern, text[:MAX_MEMINFO], re.MULTILINE)
    said = {
        name: printed_number(number, "/proc/meminfo") << (10 if unit else 0)
        for name, number, unit in found
    }
    if not said.get("MemTotal") or "MemFree" not in said:
        raise ValueError("/proc/meminfo has no lines MemTotal and MemFree")
    return said


# Of the last lines that any kernel prints, the first (meminfo_proc_show(), fs/proc/meminfo.c, 3.10
# to 7.3): what is pasted, or cut, often lacks them.
NEAR_THE_END = "VmallocUsed:"
_LINE = re.compile(r"\S{1,40}: +[0-9]{1,18}(?: kB)?\n|\S{1,40}: +[0-9]{1,18} kB\Z")


def not_whole(text: str) -> str:
    """The way in which a text is not all of /proc/meminfo, in words; empty if it is."""
    *_, last = text.splitlines(keepends=True) or [""]
    if NEAR_THE_END in text and _LINE.fullmatch(last):
        return ""
    return f"/proc/meminfo is not whole: it ends with {last.strip()[:60]!r}"


# The lines that are a counter of /proc/vmstat each, in pages there, by its kind since v5.11
# (meminfo_proc_show(), fs/proc/meminfo.c).
COUNTED = {
    "zone": {"MemFree": "nr_free_pages", "Mlocked": "nr_mlock", "CmaFree": "nr_free_cma"},
    "node": {
        **{"Active(anon)": "nr_active_anon", "Inactive(anon)": "nr_inactive_anon"},
        **{"Active(file)": "nr_active_file", "Inactive(file)": "nr_inactive_file"},
        **{"Unevictable": "nr_unevictable", "AnonPages": "nr_anon_pages", "Mapped": "nr_mapped"},
        **{"Shmem": "nr_shmem", "Dirty": "nr_dirty", "Writeback": "nr_writeback"},
        **{"SReclaimable": "nr_slab_reclaimable", "SUnreclaim": "nr_slab_unreclaimable"},
        **{"PageTables": "nr_page_table_pages", "SecPageTables": "nr_sec_page_table_pages"},
        "Balloon": "nr_balloon_pages",
    },
}
COUNTER_OF = {line: name for lines in COUNTED.values() for line, name in lines.items()}
_OF_CLASSES = ("MemFree", "AnonPages", "Shmem", "SReclaimable", "SUnreclaim", "PageTables")
# Those of a class, for :func:`meminfo_of_vmstat`. The pages of files have those of block devices,
# which are Buffers; VmallocUsed has been a counter since v7.2.
OF_VMSTAT = {
    **{line: COUNTER_OF[line] for line in (*_OF_CLASSES, "SecPageTables")},
    **{"Cached": "nr_file_pages", "VmallocUsed": "nr_vmalloc"},
}
# Without these the others say little of how short memory is.
ENOUGH_COUNTED = frozenset(
    ("MemFree", "AnonPages", "Active(file)", "Inactive(file)", "SReclaimable", "SUnreclaim")
)
FILE_PAGES = frozenset(("Cached", "SwapCached", "Buffers"))


def counters_of_meminfo(text: str, page: int) -> list[tuple[str, str, int]]:
    """
    The states of /proc/vmstat that /proc/meminfo has as well: name, kind and value (pages; KiB of
    kernel stacks). Empty where it lacks a line that matters.

    ``nr_file_pages`` has the swap cache and block devices' pages, which are lines of their own, and
    KReclaimable has reclaimable slab (meminfo_proc_show(), fs/proc/meminfo.c, 5.10 to 7.3).

    :param page: bytes of a page.
    :raises ValueError: the text is not /proc/meminfo's.
    """
    said = read_sizes(text)
    if not said.keys() >= ENOUGH_COUNTED:
        return []
    rows = [
        (name, kind, said[line] // page)
        for kind, lines in COUNTED.items()
        for line, name in lines.items()
        if line in said
    ]
    if said.keys() >= FILE_PAGES:
        rows.append(("nr_file_pages", "node", sum(said[line] for line in FILE_PAGES) // page))
    if "KReclaimable" in said:
        more = max(said["KReclaimable"] - said["SReclaimable"], 0) // page
        rows.append(("nr_kernel_misc_reclaimable", "node", more))
    if "KernelStack" in said:
        rows.append(("nr_kernel_stack", "node", said["KernelStack"] >> 10))
    return rows


def meminfo_of_vmstat(vmstat: Mapping[str, int], managed: int, page: int) -> str:
    """
    The lines of /proc/meminfo that /proc/vmstat and /proc/zoneinfo have as well, where the file
    itself is not there, or is another machine's.

    :param managed: bytes of all zones.
    :param page: bytes of a page.
    """
    lines = [
        f"{line}: {vmstat[name] * page >> 10} kB\n"
        for line, name in OF_VMSTAT.items()
        if name in vmstat
    ]
    return "".join([f"MemTotal: {managed >> 10} kB\n", *lines])


def beside_meminfo(
    vmstat: Mapping[str, int], pcp_pages: int, present_pages: int, arc: int | None, page: int
) -> dict[str, int]:
    """
    Gather what other files say of memory that has no line in /proc/meminfo, in bytes.

    :param vmstat: lines of /proc/vmstat.
    :param pcp_pages: on all per-CPU lists, of /proc/zoneinfo.
    :param present_pages: of all zones.
    :param arc: bytes that ZFS's ARC took with alloc_pages(), if it says so.
    :param page: bytes of a page.
    """
    # mm/balloon_compaction.c counts pages, as does VMware's driver, which has its own lists.
    events = vmstat.get("balloon_inflate", 0) - vmstat.get("balloon_deflate", 0)
    balloon = vmstat.get("nr_balloon_pages", max(events, 0))
    said = {
        "nr_zspages": vmstat.get("nr_zspages", 0) * page,
        "Balloon": balloon * page,
        "pcp_count": pcp_pages * page,
        "present": present_pages * page,
        "arc": arc or 0,
    }
    return {name: size for name, size in said.items() if size}


def arc_bytes(abdstats: str, arcstats: str) -> int | None:
    """
    Memory that ZFS's ARC took with alloc_pages(), as its kstats say (module/os/linux/zfs/abd_os.c).

    :param abdstats, arcstats: of /proc/spl/kstat/zfs; empty where they are not there. The second
        counts slab and vmalloc memory as well, and is asked only where the first is missing.
    """
    for text, names in ((abdstats, "scatter_data_size|scatter_chunk_waste"), (arcstats, "size")):
        if found := re.findall(rf"^(?:{names}) +4 +(\d{{1,18}})$", text, re.MULTILINE | re.ASCII):
            return sum(map(int, found))
    return None


def by_class(said: Sizes) -> list[tuple[str, str, int, str]]:
    """
    (class, part, bytes, lines) of what has a counter.

    :param said: of :func:`read_sizes` and :func:`beside_meminfo`; a kernel may lack any.
    """

    def line(name: str) -> int:
        return said.get(name, 0)

    found = {what: (sum(map(line, lines)), lines) for what, lines in LINES.items()}
    # Cached is NR_FILE_PAGES without the swap cache and block devices (Buffers).
    files = line("Cached") + line("Buffers") - line("Shmem")
    found["page cache", "files"] = files, ("Cached", "Buffers")
    # A page of the swap cache that a process maps is in AnonPages as well: only what the lists of
    # anonymous memory have beyond that is of no process.
    unmapped = line("SwapCached")
    if "Active(anon)" in said and "Inactive(anon)" in said:
        listed = line("Active(anon)") + line("Inactive(anon)") + line("Unevictable")
        unmapped = min(max(listed - line("Shmem") - line("AnonPages"), 0), unmapped)
    found["page cache", "swap cache, of no process"] = unmapped, ("SwapCached",)
    # Of all sizes since 4.15; of the default size before.
    huge = said.get("Hugetlb", line("HugePages_Total") * line("Hugepagesize"))
    found["hugetlb", "in use or free in the pool"] = huge, ("Hugetlb", "HugePages_Total")
    misc = line("KReclaimable") - line("SReclaimable")
    found["driver", "reclaimable"] = misc, ("KReclaimable",)
    # Stacks are vmalloc memory (CONFIG_VMAP_STACK), and not counted twice; where they are not, they
    # are single blocks. Before "mm: get rid of 'vmalloc_info' from /proc/meminfo" (a5ad88ce8c7f,
    # in v4.4), of which VmallocChunk tells, VmallocUsed is addresses, those of devices among them.
    if line("VmallocChunk"):
        found["kernel stacks", "stacks"] = line("KernelStack"), ("KernelStack",)
    else:
        stacks = max(line("VmallocUsed"), line("KernelStack"))
        found["vmalloc", "areas, kernel stacks among them"] = stacks, ("VmallocUsed",)
    # zswap's pool is zsmalloc's, as zram's is, or of an older allocator, which has no counter.
    packed = max(line("Zswap"), line("nr_zspages"))
    found["compressed", "zswap and zram"] = packed, ("Zswap", "nr_zspages")
    # Drivers that give pages to the host take them off MemTotal (adjust_managed_page_count()), not
    # so virtio with "deflate on OOM", VMware's and Hyper-V's: there, no such number is missing.
    given = line("Balloon") if line("present") - line("MemTotal") < line("Balloon") else 0
    found["given away", "balloon"] = given, ("Balloon",)
    return [
        (*what, size, " ".join(name for name in lines if name in said))
        for what, (size, lines) in found.items()
        if size > 0
    ]


def in_no_counter(said: Sizes) -> int:
    """
    Memory in no counter, in bytes: MemTotal without what :func:`by_class` has.

    Below zero where the kernel counts a page twice, or where memory moved while it was read.
    """
    return said.get("MemTotal", 0) - sum(size for _, _, size, _ in by_class(said))
