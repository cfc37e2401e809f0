# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Public logs of OOM kills and failed allocations, of the kernel's mailing lists: what their threads
found, and what ``mmscope why`` said of the mail's text. The mails themselves are not here.
"""

import textwrap

YES, PART, NO = "yes", "in part", "no"
# Subject and year, the cause there, what is said, and whether that is it.
LOGS = (
    ("mm/page_alloc: detect allocation forbidden by cpuset, 2021",
     "a cpuset allows one node alone, which has movable memory",
     "of 124 GiB that were free the request could have 0 B", YES),
    ("mkfs.ext4 invoked oom-killer on i386, 2020",
     "zone Normal full of cache that protection of cgroups, miscounted, kept; HighMem free",
     "of 1.008 GiB that were free the request could have 3.91 MiB", PART),
    ("memcg supports freeing the specified zone's memory, 2025",
     "no 8 pages in a row in zone Normal, many in Movable", "memory ran out", NO),
    ("false global OOM triggered by memcg-limited task, 2021",
     "a page fault at a cgroup's limit, taken for the machine's",
     "a page fault failed with 9.065 GiB free, perhaps at a cgroup's limit", YES),
    ("page allocation failure reading procfs ipv6 configuration files, 2021",
     "a buffer of 32 pages in a row for each read of a sysctl",
     "32 contiguous pages, in proc_sys_call_handler", YES),
    ("kswapd0: page allocation failure (bisected to slab: add sheaves), 2026",
     "sheaves of slab caches are filled with pages of reserves", "a page, in refill_objects", YES),
    ("Page allocation failures when running md5sum, 2022", "btrfs wants 16 pages for checksums",
     "16 contiguous pages, in btrfs_lookup_bio_sums", YES),
    ("btrfs + KASAN + SLAB + lvmcache + rsync = page allocation failure, 2019",
     "not found: dm-cache and btrfs with KASAN", "a page, in btracker_queue [dm_cache]", PART),
    ("fstests: new helper to skip xfs_check, 2019", "xfs_db takes all memory",
     "memory ran out; the log does not say how it ended", NO),
    ("xfs: garbage file data inclusion bug under memory pressure, 2019",
     "many processes of a test", "3.082 GiB of 3.429 GiB were anonymous memory", YES),
    ("xfs: possible circular locking dependency, 2024", "a lock; compilers fill memory",
     "held 10.11 GiB of 20.88 GiB", YES),
    ("xfstests generic/133: KASAN: slab-out-of-bounds, 2024", "a use beyond an object's end",
     "damage: KASAN report in xfs_read_iomap_begin", YES),
    ("MIPS: Ingenic: Add missing nodes, 2020", "32 pages in a row for a sysctl",
     "32 contiguous pages, in proc_sys_call_handler", YES),
    ("Convert Ingenic to a generic board v2, 2020", "16 pages in a row for a sysctl",
     "16 contiguous pages, in proc_sys_call_handler", YES),
    ("ARM: PXA multiplatform support, 2022", "a kernel too large for 32 MiB, with slub_debug",
     "6.605 MiB of 11.95 MiB were unreclaimable slab", PART),
    ("next-20220412: BUG: Bad page map in process oom_reaper, 2022", "a damaged page table",
     "damage: bad page table, oom_reaper", YES),
    ("mm, oom: make the calculation of oom badness more accurate, 2020",
     "a test's memory; daemons are killed for it",
     "104.6 GiB of 109.6 GiB were anonymous memory, swap full", YES),
    ("next: armv7: kernel BUG at mm/slub.c, 2023", "a slab cache made wrongly",
     "damage: kernel BUG in mm, mm/slub.c:4240", YES),
    ("nfsd: memory leak when client does many file operations, 2024", "nfsd loses pages",
     "873.7 MiB of 988.3 MiB were in no counter", YES),
    ("MM changes to improve swap-over-NFS support, 2022", "swap over NFS allocates to write",
     "a page, in nfs_swap_rw", YES),
    ("FS6712X: page allocation failure, then a drive drops out, 2024", "not found",
     "a page, in skb_clone; no more can be told", PART),
    ("usb: chipidea: udc: add sg list support, 2020", "a buffer in a row as large as a transfer",
     "16 contiguous pages, in ffs_epfile_io", YES),
    ("ath11k allocation failure on resume, 2024", "16 pages in a row when a laptop resumes",
     "16 contiguous pages, in mhi_prepare_channel", YES),
    ("bus: mhi: host: keep bhi buffer through suspend cycle, 2025",
     "firmware is loaded to 128 pages in a row", "128 contiguous pages, in process_one_work", PART),
    ("kswapd0: page allocation failure: order:0 (32 bit ppc), 2024",
     "zswap on a machine whose low zone is small", "a page, in setup_rx_descbuffer [b43legacy]",
     PART),
    ("thp04: page allocation failure, 2021", "not found; an Oops interrupts the report",
     "a page, in next_online_pgdat (of the Oops)", NO),
    ("fallocate05: increase the fallocate size, 2021", "a tmpfs of the test fills the machine",
     "164.3 MiB of 200.2 MiB were shmem and tmpfs", YES),
    ("lib: memutils: don't pollute entire system memory, 2021", "a test takes all but too little",
     "memory ran out; killed was ioctl_sg01, which held 186.9 GiB", YES),
    ("futex: BUG: sleeping function called from invalid context, 2025",
     "a wrong count of references; OOM is the test", "memory ran out", NO),
    ("pty04: Avoid receiving packets from all interfaces, 2020", "atomic requests in a test",
     "2 contiguous pages, in __tty_buffer_request_room", YES),
    ("virtio-balloon: fix managed page counts, 2019", "pages of zones miscounted: marks of 10^17",
     "2.749 GiB of 2.828 GiB free, and why they were refused is not known", PART),
    ("Stacktrace from 5.4.26 kernel, 2020", "no page for a packet, atomic; memory is short",
     "a page, in skb_page_frag_refill", YES),
    ("block: model freeze & enter queue as lock for lockdep, 2024", "a lock; a kexec image",
     "2 contiguous pages, in kimage_alloc_pages", YES),
)  # fmt: skip


def log_lines() -> list[str]:
    """The logs as a section of the page."""
    right = [row[-1] for row in LOGS]
    said = (
        f"{len(LOGS)} logs of the kernel's mailing lists, as they stand in the mails: wrapped, "
        "cut, quoted. Right: what `mmscope why` says first is the cause that the thread found, "
        f"as far as the log has it. {right.count(YES)} are right, {right.count(PART)} in part "
        f"(`tests/support/exam_logs.py`), {right.count(NO)} not; 12 were right before mmscope was "
        "changed by them. None was said to have no trouble."
    )
    return [
        "",
        "## Public logs",
        "",
        *textwrap.wrap(said, 100),
    ]
