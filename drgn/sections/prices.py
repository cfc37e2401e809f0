# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The price for a running host when mmscope reads a file of it: what the kernel goes through, which
locks it holds meanwhile, what it does with interrupts off.

Each file that is read has its row in :data:`PRICES`; ``collect``, ``watch``, ``doctor`` and
``docs/prices.md``, which has measurements, take it from here. Most are cheap. What is dear
(:data:`DEAR`) is left out on a running host unless ``--all`` asks for it. Dear is

- what goes through more than :data:`LONGEST_WALK` entries under a spinlock with interrupts off.
  The kernel sets itself the same limit for the free lists in /proc/pagetypeinfo
  (``pagetypeinfo_showfree_print()``, mm/vmstat.c). If each entry misses the caches, that takes
  about 10 ms, in which that CPU takes no interrupt and others spin on the lock.
- what disturbs the allocator or walks all memory: /proc/pagetypeinfo with page_owner on.
- /proc/vmallocinfo, where it looks at more than that many pages under a spinlock.
- ``alloc_traces``, which walks every object of a cache with interrupts off and allocates memory
  meanwhile, under the lock that an allocation from that cache would take.

Checked against the source of 6.1, 6.12, 7.2 and 7.3. Imports neither drgn nor numpy.
"""

import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.text.proc_text import parse_zoneinfo

LONGEST_WALK = 100_000
TO_READ_IT, READ = "--all reads it", "read"


@table_row
class Price:
    """The price that a running host pays when one of its files is read."""

    files: str = column(holds="words", key=True, help="patterns of paths")
    work: str = column(holds="words", help="what the kernel does for a reading")
    locks: str | None = column(holds="words", help="what it holds meanwhile; empty: nothing")
    interrupts_off: str | None = column(
        holds="words", help="what of it is done with interrupts off; empty: nothing"
    )
    grows_with: str = column(holds="words", help="what makes it long")
    careful: str = column(holds="words", help="what is done without --all", default=READ)


KCORE = "/proc/kcore"
ZONEINFO = "/proc/zoneinfo"
BUDDYINFO = "/proc/buddyinfo"
PAGETYPEINFO = "/proc/pagetypeinfo"
VMSTAT = "/proc/vmstat"
MEMINFO = "/proc/meminfo"
PRESSURE = "/proc/pressure/memory"
SLABINFO = "/proc/slabinfo"
MAPS = "/proc/[0-9]*/maps"
SMAPS_ROLLUP = "/proc/[0-9]*/smaps_rollup"
STATUS = "/proc/[0-9]*/status /proc/[0-9]*/comm"
LINKS = "/proc/[0-9]*/fd/* /proc/[0-9]*/fdinfo/* /proc/[0-9]*/mountinfo"
SOCKETS = "/proc/net/sockstat /lib/modules/*/modules.builtin"
TASKS = "/proc/[0-9]*/task/*/stat /proc/[0-9]*/task/*/wchan"
SCHED = "/proc/[0-9]*/task/*/sched /proc/self/sched"
BDI = "/sys/kernel/debug/bdi/*/stats"
SHM = "/proc/sysvipc/shm"
ALLOC_TRACES = "/sys/kernel/debug/slab/*/alloc_traces"
SLAB_SETTINGS = "/sys/kernel/slab/*"
OWNER_COUNTS = "/sys/kernel/debug/page_owner_stacks/*"
ALLOCINFO = "/proc/allocinfo"
VMALLOCINFO = "/proc/vmallocinfo"
IOMEM = "/proc/iomem"
CGROUPS = "/sys/fs/cgroup/*/memory.* /sys/fs/cgroup/*/cgroup.stat"
CONTAINER_NAMES = "/var/lib/docker/containers/* /var/lib/containers/storage/*"
SWAPS = "/proc/swaps"
ZRAM = "/sys/block/zram*/mm_stat"
ZSWAP = "/sys/module/zswap/parameters/*"
ZFS = "/proc/spl/kstat/zfs/abdstats /proc/spl/kstat/zfs/arcstats"
KMSG = "/dev/kmsg /dmesg /*/dmesg* /vmcore-dmesg.txt"
DENTRY_STATE = "/proc/sys/fs/dentry-state /proc/sys/fs/inode-nr"
SETTINGS = (
    "/proc/sys/* /sys/kernel/mm/* /sys/devices/system/node/*/hugepages/* "
    "/sys/devices/system/node/*/memory_failure/* /sys/devices/system/node/has_memory "
    "/sys/firmware/memmap/*"
)
NAMES = (
    "/proc/version /proc/uptime /proc/cmdline /proc/kallsyms /proc/mounts /proc/self/mount* "
    "/proc/modules /sys/class/dmi/id/* /hostname"
)

PRICES = {
    price.files: price
    for price in (
        # read_kcore_iter(), fs/proc/kcore.c; vread() of 6.1 and vread_iter(), mm/vmalloc.c
        Price(
            KCORE,
            "copies memory, page by page",
            "kclist_lock and page_offline_rwsem, shared: memory hotplug waits; a spinlock of "
            "vmalloc's for a page of that",
            None,
            "bytes read",
        ),
        # zoneinfo_show_print(), by walk_zones_in_node(), mm/vmstat.c
        Price(
            ZONEINFO,
            "prints every zone, with a paragraph for each CPU",
            "zone->lock, a zone at a time",
            "a zone's text",
            "CPUs",
        ),
        # frag_show_print(), mm/vmstat.c: nolock in 7.3
        Price(
            BUDDYINFO,
            "prints a number for each order of every zone",
            "zone->lock, a zone at a time; 7.3: none",
            "a zone's line; 7.3: nothing",
            "zones",
        ),
        # pagetypeinfo_showfree_print(), pagetypeinfo_showblockcount_print() and
        # pagetypeinfo_showmixedcount(), mm/vmstat.c; the latter's walk is without a lock and
        # without cond_resched(), mm/page_owner.c
        Price(
            PAGETYPEINFO,
            "counts free blocks list by list, then each zone's pageblocks; with page_owner on also "
            "drains every per-CPU list and looks at every page",
            "zone->lock, a list or a zone's pageblocks at a time; with page_owner on, "
            "pcpu_drain_mutex",
            f"{LONGEST_WALK:,} blocks of a list at most; all pageblocks of a zone",
            "free blocks of a list, pageblocks of a zone; with page_owner on, pages",
            f"left out with page_owner on, or where a zone has over {LONGEST_WALK:,} pageblocks",
        ),
        # vmstat_start(), all_vm_events(), mm/vmstat.c
        Price(
            VMSTAT, "adds up the counters of every CPU", "cpu_hotplug_lock, shared", None, "CPUs"
        ),
        # meminfo_proc_show(), fs/proc/meminfo.c; si_swapinfo(), mm/swapfile.c
        Price(
            MEMINFO, "adds up counters", "swap_lock, for those of swap", None, "CPUs, swap areas"
        ),
        # psi_show(), kernel/sched/psi.c
        Price(
            PRESSURE,
            "adds up the times of every CPU",
            "psi_system.avgs_lock, a mutex",
            None,
            "CPUs",
        ),
        # slab_start(), mm/slab_common.c; get_slabinfo(), mm/slub.c: count_partial() in 6.1,
        # count_partial_free_approx() with MAX_PARTIAL_TO_SCAN in 6.12
        Price(
            SLABINFO,
            "counts the free objects of every cache's partial slabs",
            "slab_mutex, for 4 KiB of text; list_lock, a node of a cache at a time",
            "partial slabs of a node of a cache: 10,000 at most; 6.1: all",
            "partial slabs of a cache",
            f"left out where a cache has over {LONGEST_WALK:,} partial slabs and the kernel counts "
            "all",
        ),
        # m_start(), fs/proc/task_mmu.c, and, with CONFIG_PER_VMA_LOCK, lock_next_vma(),
        # mm/mmap_lock.c, in 7.2; mm_access(), kernel/fork.c
        Price(
            MAPS,
            "prints every VMA of a process",
            "exec_update_lock to open it; mmap_lock, shared, for 4 KiB of text; 7.2: a VMA's own "
            "lock, mmap_lock where that is taken",
            None,
            "VMAs; waits as long as the process holds its lock",
            "read by a process of its own, which is left behind if it gets no answer",
        ),
        # show_smaps_rollup(), smaps_pte_range(), fs/proc/task_mmu.c: it lets go of mmap_lock
        # between VMAs where a task waits
        Price(
            SMAPS_ROLLUP,
            "looks at every page that a process maps",
            "exec_update_lock to open it; mmap_lock, shared, let go between two mappings where "
            "a task waits to write; a page table's lock, a table at a time",
            None,
            "mapped pages; waits as long as the process holds its lock",
            "read by a process of its own, which is left behind if it gets no answer",
        ),
        # proc_pid_status(), fs/proc/array.c: counters of the mm, no mmap_lock
        Price(
            STATUS,
            "prints a process's counters",
            "alloc_lock and siglock, for some words",
            "the state of its signals",
            "processes",
        ),
        # proc_readfd_common(), seq_show(), fs/proc/fd.c; mountinfo_open(), fs/proc_namespace.c
        Price(
            LINKS,
            "resolves a link for each open file, where a tenth of memory is shared, or a thousand "
            "removed cgroups are not freed",
            "file_lock of a process's table of files, for a word; namespace_sem, shared, for 4 KiB "
            "of mountinfo",
            None,
            "open files; 50,000 at most",
        ),
        # sockstat_seq_show(), net/ipv4/proc.c; unix_diag_dump(), net/unix/diag.c;
        # inet_diag_dump_icsk(), net/ipv4/inet_diag.c
        Price(
            SOCKETS,
            "adds up counters; sock_diag then lists the sockets of each protocol whose module is "
            "there",
            "a lock of some sockets at a time",
            None,
            "sockets; 50,000 at most",
        ),
        # do_task_stat(), fs/proc/array.c; get_wchan(), kernel/sched/core.c
        Price(
            TASKS,
            "prints a thread's counters; of one in D state walks its stack",
            "siglock, for some words; for wchan pi_lock of the task",
            "some words of stat; the walk of a stack, 16 frames at most",
            "threads; 10,000 at most",
        ),
        # proc_sched_show_task(), kernel/sched/debug.c
        Price(
            SCHED,
            "prints what the scheduler counts of a thread in D state",
            "alloc_lock of the task, for a word",
            None,
            "threads in D state",
        ),
        # bdi_debug_stats_show(), mm/backing-dev.c
        Price(
            BDI,
            "adds up counters, and counts dirty inodes",
            "list_lock of the device's inodes, a spinlock; mutexes of debugfs",
            None,
            "devices, dirty inodes",
            f"left out where over {LONGEST_WALK:,} inodes are there",
        ),
        # sysvipc_proc_start(), ipc/util.c; shm_add_rss_swap(), ipc/shm.c
        Price(
            SHM,
            "prints every SysV segment of the IPC namespace",
            "shm_ids().rwsem, shared, for 4 KiB of text; a segment's lock",
            None,
            "segments",
        ),
        # slab_debug_trace_open(), process_slab(), add_location(), mm/slub.c: by open() alone
        Price(
            ALLOC_TRACES,
            "sorts every object of a cache by the stack that allocated it; may allocate memory "
            "meanwhile",
            "list_lock, a node of a cache at a time",
            "all objects of a node of a cache",
            "objects of a cache, stacks",
            "left out",
        ),
        # abd_kstats_update(), module/os/linux/zfs/abd_os.c; arc_kstat_update(), module/zfs/arc.c
        Price(ZFS, "adds up counters of ZFS", "ks_lock of that file, a mutex", None, "CPUs"),
        # show_slab_objects(), mm/slub.c: SO_PARTIAL is nr_partial
        Price(SLAB_SETTINGS, "prints a number", None, None, "caches"),
        # stack_start(), stack_print(), mm/page_owner.c: a list that only grows
        Price(
            OWNER_COUNTS, "prints a count for each stack that allocated pages", None, None, "stacks"
        ),
        # allocinfo_start(), alloc_tag_read(), lib/alloc_tag.c; mm/alloc_tag.c in 7.3, with
        # allocinfo_ioctl_get_at() and allocinfo_ioctl_get_next()
        Price(
            ALLOCINFO,
            "adds up the counters of every CPU for each line of source that allocates",
            "mod_lock of the tags, shared, for 4 KiB of text, or by ioctl (7.3) up to the next "
            "line that holds enough: modules wait to be loaded",
            None,
            "tags, CPUs",
        ),
        # vmalloc_info_show(), show_numa_info(), mm/vmalloc.c: in one piece, again for each
        # doubling of the text's buffer; s_start() and s_show() in 6.1
        Price(
            VMALLOCINFO,
            "prints every area of vmalloc; on a machine with nodes looks at each of its pages",
            "a spinlock for each list of areas, which vmalloc() and vfree() take; 6.1: one for "
            "all, for 4 KiB of text",
            None,
            "areas, and their pages",
            f"left out where vmalloc has over {LONGEST_WALK:,} pages",
        ),
        # r_start(), kernel/resource.c
        Price(
            IOMEM,
            "prints the ranges of physical addresses",
            "resource_lock, shared, for 4 KiB of text",
            None,
            "ranges",
        ),
        # swap_start(), swap_show(), mm/swapfile.c
        Price(SWAPS, "prints a line for each swap area", "swapon_mutex", None, "swap areas"),
        # mm_stat_show(), drivers/block/zram/zram_drv.c
        Price(
            ZRAM,
            "prints counters of the device",
            "init_lock of the device, shared",
            None,
            "devices",
        ),
        # param_attr_show(), kernel/params.c
        Price(ZSWAP, "prints a word", "a lock for setting it", None, "files"),
        # devkmsg_read(), printk_get_next_message(), kernel/printk/printk.c
        Price(KMSG, "copies the records of the kernel's log, one a read", None, None, "records"),
        # memory_stat_show(), mem_cgroup_flush_stats(), mm/memcontrol.c;
        # cgroup_rstat_flush_locked(), and css_rstat_flush() in 7.2, kernel/cgroup/rstat.c
        Price(
            CGROUPS,
            "prints a number; for memory.stat first adds up what CPUs have counted in the cgroups "
            "below, if that is much",
            "for memory.stat cgroup_rstat_lock (7.2: a lock of the memory controller), a CPU at a "
            "time",
            "for memory.stat the cgroups in which a CPU has counted",
            "cgroups, CPUs",
            "1,000 cgroups at most",
        ),
        # Files of a disk, and no more than their names of /var/log.
        Price(CONTAINER_NAMES, "reads a small file, from the disk", None, None, "containers"),
        # proc_nr_dentry(), fs/dcache.c; proc_nr_inodes(), fs/inode.c
        Price(DENTRY_STATE, "adds up the counters of every CPU", None, None, "CPUs"),
        Price(SETTINGS, "prints a number or a word", None, None, "files"),
        Price(NAMES, "prints what is known", None, None, "symbols"),
    )
}


def price_of(path: str) -> Price | None:
    """The price of a file, ``/proc/1/maps``; None if it has none declared."""
    for files, price in PRICES.items():
        if any(fnmatchcase(path, pattern) for pattern in files.split()):
            return price
    return None


def is_live(root: str) -> bool:
    """True if a folder's ``proc/`` is a running kernel's, mounted there, and no copy."""
    try:
        device = os.stat(os.path.join(root, "proc")).st_dev
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    # 22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
    return any(
        line.split()[2] == number and line.partition(" - ")[2].startswith("proc ")
        for line in _text("/", "proc/self/mountinfo").splitlines()
    )


def why_left_out(root: str, path: str) -> str | None:
    """
    Why a file of a running host is left out without ``--all``; None if it is read.

    Looks at other, cheap files to know.

    :param root: the folder that has ``proc/`` and ``sys/`` in it.
    :param path: of the file below it, ``proc/pagetypeinfo``.
    """
    for files, why in DEAR.items():
        if fnmatchcase("/" + path, files):
            reason = why(root)
            return f"left out, as {reason}; {TO_READ_IT}" if reason else None
    return None


def page_owner_on(root: str) -> str | None:
    """
    The evidence that page_owner is on: its file, or, where debugfs is not mounted or not for this
    user, the kernel's command line. None if it is off.
    """
    debugfs = os.path.join(root, "sys/kernel/debug")
    try:
        if os.listdir(debugfs):
            there = os.path.exists(os.path.join(debugfs, "page_owner"))
            return "page_owner is on" if there else None
    except OSError:
        pass
    given = [word for word in _text(root, "proc/cmdline").split() if word.startswith("page_owner=")]
    # kstrtobool(), lib/kstrtox.c; the last one counts.
    said = given[-1].partition("=")[2].lower() if given else ""
    on = said.startswith(("e", "y", "t", "1", "on"))
    return f"the kernel was booted with {given[-1]}" if on else None


def _pagetypeinfo(root: str) -> str | None:
    if on := page_owner_on(root):
        return f"{on}: it would drain the per-CPU lists and look at every page"
    try:
        zones = parse_zoneinfo(_text(root, "proc/zoneinfo"))
    except ValueError:
        return "the number of pageblocks cannot be read from /proc/zoneinfo"
    block = _pageblock_pages(root)
    blocks, zone = max((zone.fields["spanned"] // block, zone.zone) for zone in zones)
    if blocks > LONGEST_WALK:
        return f"the kernel would count {blocks:,} pageblocks of zone {zone} with interrupts off"
    return None


def _pageblock_pages(root: str) -> int:
    """
    ``pageblock_nr_pages``: a huge page of PMD size, as most kernels have it; never fewer blocks
    than there are unless the kernel is built with a smaller CONFIG_PAGE_BLOCK_MAX_ORDER.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    size = _text(root, "sys/kernel/mm/transparent_hugepage/hpage_pmd_size").strip()
    return int(size) // page if size.isascii() and size.isdigit() and int(size) >= page else 512


def _slabinfo(root: str) -> str | None:
    folder = os.path.join(root, "sys/kernel/slab")
    partial, cache = -1, ""
    try:
        # Caches that were merged are links to the one that they became.
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        names = []
    for name in names:
        # "11 N0=4 N1=7"
        number = _text(root, f"sys/kernel/slab/{name}/partial").split()[:1]
        if number and number[0].isascii() and number[0].isdigit():
            partial, cache = max((partial, cache), (int(number[0][:18]), name))
    if 0 <= partial <= LONGEST_WALK:
        return None
    # Long lists are counted in part since "slub: introduce count_partial_free_approx()"
    # (046f4c69090c, in v6.10).
    if " count_partial_free_approx\n" in _text(root, "proc/kallsyms"):
        return None
    if partial < 0:
        return "how many partial slabs the kernel would count cannot be read from /sys/kernel/slab"
    return f"the kernel would count {partial:,} partial slabs of {cache} with interrupts off"


def _vmallocinfo(root: str) -> str | None:
    used = re.search(r"^VmallocUsed: +([0-9]{1,18}) kB$", _text(root, "proc/meminfo"), re.M | re.A)
    if not used:
        return "the size of vmalloc memory cannot be read from /proc/meminfo"
    pages = (int(used[1]) << 10) // os.sysconf("SC_PAGE_SIZE")
    if pages > LONGEST_WALK:
        return f"the kernel would look at {pages:,} pages of vmalloc under a spinlock"
    return None


def _bdi(root: str) -> str | None:
    """The spinlock over all dirty inodes keeps interrupts on, and writers of that device out."""
    inodes = _text(root, "proc/sys/fs/inode-nr").split()
    many = int(inodes[0]) if inodes and inodes[0].isdecimal() else LONGEST_WALK + 1
    if many <= LONGEST_WALK:
        return None
    return f"there are {many:,} inodes, of which all dirty ones are walked under a spinlock"


DEAR: dict[str, Callable[[str], str | None]] = {
    PAGETYPEINFO: _pagetypeinfo,
    SLABINFO: _slabinfo,
    VMALLOCINFO: _vmallocinfo,
    BDI: _bdi,
    ALLOC_TRACES: lambda _: (
        "opening it walks every object of the cache with interrupts off, and "
        "may allocate memory meanwhile"
    ),
}


def _text(root: str, path: str) -> str:
    """A file's text; nothing if it cannot be read."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""
