# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The bundle of a busy machine: 100,000 processes, 50,000 allocation stacks, 1,000,000 pageblocks.

Made of the probes' own row types, for the size, the structure and the speed of the report of such a
machine; ``python tests/support/busy_bundle.py FOLDER`` writes it. The numbers are invented and fit
each other where a reader would hold them against each other (a process in several tables, pages of
a stack over a series, the census of the pageblock map). Seeded: the same call gives the same
bundle.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT)]

import report_bundle as made  # noqa: E402
import rmap_rows  # noqa: E402
from rows_of_tables import Contents, tables_of_rows  # noqa: E402

from mmscope.drgn.free.pageblocks import PageblockRun, Pageblocks  # noqa: E402
from mmscope.drgn.free.pcp_lists import PcpPages  # noqa: E402
from mmscope.drgn.free.zones import Zone  # noqa: E402
from mmscope.drgn.ledger.memory_ledger import LedgerRow  # noqa: E402
from mmscope.drgn.machine.boot_options import memory_options  # noqa: E402
from mmscope.drgn.machine.physical_memory import MappedRange, lay_out  # noqa: E402
from mmscope.drgn.owners.page_owner_rows import (  # noqa: E402
    PageOwnerGrowth,
    PageOwnerMemcg,
    PageOwnerPoint,
    PageOwnerSnapshot,
    PageOwnerStack,
    PageOwnerTask,
)
from mmscope.drgn.owners.slab_owner import SlabOwnerStack  # noqa: E402
from mmscope.drgn.page_tables.page_tables import (  # noqa: E402
    PageTableDetails,
    PageTables,
    exit_costs,
)
from mmscope.drgn.processes.processes import ProcessVmas  # noqa: E402
from mmscope.drgn.reading.io_resources import Resource  # noqa: E402
from mmscope.drgn.rmap.ksm import KsmProcess  # noqa: E402
from mmscope.drgn.text.owner_frames import owner_frame  # noqa: E402
from mmscope.reports.bundle.bundle import Bundle  # noqa: E402
from mmscope.reports.bundle.description import SectionResult  # noqa: E402
from mmscope.reports.bundle.writer import Writer  # noqa: E402

PROCESSES = 100_000
STACKS = 50_000
SLAB_STACKS = 20_000
PROFILE_STACKS = 20_000
PAGEBLOCKS = 1_000_000
SNAPSHOTS = 8
FIRST = datetime(2026, 11, 20, 2, 57, 5, tzinfo=UTC)  # a minute each, the last as it is read
CPUS = 256
PAGE, BLOCK = 4096, 512
NODES = 2
TARGET: dict[str, Any] = made.TARGET | {
    "hostname": "db-prod-0417.fra2",
    "total_pages": PAGEBLOCKS * BLOCK,
    "online_cpus": CPUS,
    "kind": "live",
    "source": "live",
}

# From the root: who entered the kernel, what was asked for, who served it, and how memory was got.
ENTRIES = (
    "asm_exc_page_fault;exc_page_fault;do_user_addr_fault",
    *(
        f"entry_SYSCALL_64_after_hwframe;do_syscall_64;__x64_sys_{call}"
        for call in (
            "read", "write", "pread64", "pwrite64", "readv", "writev", "openat", "openat2", "mmap",
            "munmap", "mprotect", "madvise", "brk", "clone", "clone3", "execve", "exit_group",
            "sendmsg", "recvmsg", "sendto", "epoll_wait", "io_uring_enter", "io_submit", "fsync",
            "ftruncate", "getdents64", "newfstatat", "rename", "unlink", "poll", "futex", "bpf",
            "perf_event_open", "mount", "connect", "accept4", "sendfile64", "splice", "statx",
        )
    ),
    "ret_from_fork_asm;ret_from_fork;kthread;worker_thread;process_one_work",
    "ret_from_fork_asm;ret_from_fork;kthread;kswapd;balance_pgdat;shrink_node",
    "ret_from_fork_asm;ret_from_fork;kthread;kcompactd;kcompactd_do_work;compact_zone",
    "ret_from_fork_asm;ret_from_fork;kthread;khugepaged;khugepaged_scan_mm_slot",
    "asm_common_interrupt;common_interrupt;irq_exit_rcu;handle_softirqs;net_rx_action;__napi_poll",
    "start_kernel;rest_init;kernel_init;kernel_init_freeable;do_initcalls;do_one_initcall",
)  # fmt: skip
MIDDLES = (
    "ksys_read;vfs_read;new_sync_read", "ksys_write;vfs_write;new_sync_write",
    "vfs_writev;do_iter_readv_writev", "do_sys_openat2;do_filp_open;path_openat;lookup_open",
    "handle_mm_fault;__handle_mm_fault;do_fault;__do_fault", "vm_mmap_pgoff;do_mmap;mmap_region",
    "handle_mm_fault;__handle_mm_fault;do_anonymous_page", "kernel_clone;copy_process;copy_mm",
    "handle_mm_fault;hugetlb_fault;hugetlb_no_page", "__sock_sendmsg;sock_sendmsg_nosec",
    "____sys_recvmsg;sock_recvmsg;sock_recvmsg_nosec", "do_epoll_wait;ep_poll;ep_send_events",
    "io_submit_sqes;io_issue_sqe;io_rw", "do_fsync;vfs_fsync_range", "iterate_dir;call_getdents",
    "do_renameat2;vfs_rename", "do_unlinkat;vfs_unlink", "vfs_statx;filename_lookup;path_lookupat",
    "bprm_execve;exec_binprm;load_elf_binary;elf_load", "do_group_exit;do_exit;mmput;exit_mmap",
    "do_splice_direct;splice_direct_to_actor;splice_file_to_pipe",
    "do_mprotect_pkey;mprotect_fixup",
    "shrink_node_memcgs;shrink_lruvec;shrink_inactive_list;shrink_folio_list",
    "migrate_pages;migrate_pages_batch;migrate_folio_move",
    "wb_workfn;wb_do_writeback;wb_writeback", "do_madvise;madvise_walk_vmas;madvise_vma_behavior",
    "path_mount;do_new_mount;vfs_get_tree", "bpf_prog_load;bpf_check;do_check",
    "__sys_connect;inet_stream_connect", "ksys_mmap_pgoff",
)  # fmt: skip
SERVERS = (
    "ext4_file_read_iter [ext4];generic_file_read_iter;filemap_read;filemap_get_pages",
    "ext4_buffered_write_iter [ext4];generic_perform_write;ext4_da_write_begin [ext4]",
    "ext4_mb_new_blocks [ext4];ext4_mb_regular_allocator [ext4];ext4_mb_load_buddy_gfp [ext4]",
    "ext4_map_blocks [ext4];ext4_ext_map_blocks [ext4];ext4_ext_insert_extent [ext4]",
    "ext4_lookup [ext4];__ext4_iget [ext4];iget_locked;alloc_inode;ext4_alloc_inode [ext4]",
    "xfs_file_buffered_read [xfs];generic_file_read_iter;filemap_read;page_cache_ra_order",
    "xfs_file_buffered_write [xfs];iomap_file_buffered_write;iomap_write_begin;__iomap_get_folio",
    "xfs_trans_commit [xfs];xlog_cil_commit [xfs];xlog_cil_alloc_shadow_bufs [xfs]",
    "xfs_buf_read_map [xfs];xfs_buf_get_map [xfs];"
    "xfs_buf_alloc [xfs];xfs_buf_alloc_backing_mem [xfs]",
    "btrfs_file_read_iter [btrfs];filemap_read;filemap_create_folio",
    "btrfs_buffered_write [btrfs];prepare_one_folio [btrfs];alloc_extent_state [btrfs]",
    "nfs_file_read [nfs];nfs_readahead [nfs];"
    "nfs_pageio_add_request [nfs];nfs_create_request [nfs]",
    "ceph_read_iter [ceph];netfs_buffered_read [netfs];netfs_alloc_request [netfs]",
    "fuse_file_read_iter [fuse];fuse_readahead [fuse];fuse_io_alloc [fuse]",
    "ovl_read_iter [overlay];backing_file_read_iter;ext4_file_read_iter [ext4];filemap_read",
    "shmem_file_read_iter;shmem_get_folio_gfp;shmem_alloc_and_add_folio;shmem_alloc_folio",
    "tcp_sendmsg;tcp_sendmsg_locked;sk_page_frag_refill;skb_page_frag_refill",
    "tcp_sendmsg;tcp_sendmsg_locked;tcp_stream_alloc_skb;__alloc_skb;kmalloc_reserve",
    "unix_stream_sendmsg;sock_alloc_send_pskb;alloc_skb_with_frags;__alloc_skb",
    "udp_sendmsg;ip_make_skb;__ip_append_data;sock_alloc_send_skb;alloc_skb_with_frags",
    "mlx5e_napi_poll [mlx5_core];mlx5e_poll_rx_cq [mlx5_core];mlx5e_post_rx_mpwqes [mlx5_core];"
    "mlx5e_alloc_rx_mpwqe [mlx5_core];page_pool_alloc_pages;page_pool_alloc_netmem",
    "ice_napi_poll [ice];ice_clean_rx_irq [ice];ice_alloc_rx_bufs [ice]",
    "nvme_queue_rq [nvme];nvme_prep_rq [nvme];nvme_map_data [nvme];dma_pool_alloc",
    "blk_mq_submit_bio;blk_mq_alloc_request;blk_mq_init_sched;bio_alloc_bioset;mempool_alloc",
    "dm_submit_bio [dm_mod];dm_split_and_process_bio [dm_mod];alloc_io [dm_mod];bio_alloc_clone",
    "raid5_make_request [raid456];raid5_get_active_stripe [raid456];grow_one_stripe [raid456]",
    "kvm_arch_vcpu_ioctl_run [kvm];kvm_mmu_page_fault [kvm];"
    "kvm_tdp_page_fault [kvm];kvm_tdp_mmu_map [kvm];tdp_mmu_alloc_sp [kvm]",
    "kvm_vm_ioctl [kvm];kvm_set_memory_region [kvm];kvm_arch_prepare_memory_region [kvm]",
    "amdgpu_gem_create_ioctl [amdgpu];amdgpu_bo_create [amdgpu];"
    "ttm_bo_init_reserved [ttm];ttm_tt_populate [ttm];ttm_pool_alloc [ttm]",
    "nvidia_unlocked_ioctl [nvidia];rm_ioctl [nvidia];os_alloc_pages_node [nvidia]",
    "bpf_map_update_elem;htab_map_update_elem;alloc_htab_elem", "copy_page_range;copy_pte_range",
    "__pte_alloc;pte_alloc_one", "__pmd_alloc;pmd_alloc_one_noprof", "wp_page_copy;folio_prealloc",
    "alloc_charge_folio;charge_memcg;try_charge_memcg", "dup_task_struct;alloc_thread_stack_node",
    "security_file_alloc;selinux_file_alloc_security;avc_compute_av",
    "anon_vma_fork;anon_vma_clone", "do_huge_pmd_anonymous_page;vma_alloc_anon_folio_pmd",
    "swapin_readahead;swap_cluster_readahead", "hugetlb_alloc_folio;alloc_buddy_hugetlb_folio",
    "zs_malloc [zsmalloc];alloc_zspage [zsmalloc]",
    "fscache_acquire_cookie [netfs];fscache_alloc_cookie [netfs]", "pipe_write;anon_pipe_get_page",
    "iommu_map;intel_iommu_map_pages;__domain_mapping;pfn_to_dma_pte;iommu_alloc_pages_node_sz",
    "perf_mmap;rb_alloc;perf_mmap_alloc_page", "d_alloc_parallel;d_alloc;__d_alloc",
)  # fmt: skip
ALLOCATORS = (
    "folio_alloc_noprof;alloc_pages_noprof;alloc_pages_mpol",
    "vma_alloc_folio_noprof;folio_alloc_mpol_noprof;alloc_pages_mpol",
    "alloc_pages_noprof;alloc_frozen_pages_noprof;alloc_pages_mpol",
    "__kmalloc_noprof;___slab_alloc;allocate_slab;alloc_slab_page",
    "kmem_cache_alloc_noprof;___slab_alloc;allocate_slab",
)
GOT = "__alloc_frozen_pages_noprof;get_page_from_freelist;post_alloc_hook"
COMMS = (
    "java", "postgres", "mysqld", "mongod", "redis-server", "nginx", "envoy", "python3.11", "node",
    "ruby", "php-fpm8.2", "containerd-shim", "runc:[2:INIT]", "pause", "kubelet", "dockerd",
    "sshd", "bash", "cron", "systemd", "systemd-journal", "rsyslogd", "chronyd", "qemu-system-x86",
    "vhost-12345", "ceph-osd", "etcd", "kube-proxy", "coredns", "prometheus", "node_exporter",
    "fluent-bit", "filebeat", "gunicorn: work", "uwsgi", "celeryd", "beam.smp", "erl_child_setup",
    "clickhouse-serv", "kafka-run-class", "zookeeper", "elasticsearch", "memcached", "haproxy",
    "varnishd", "dovecot/imap", "(sd-pam)", "ThreadPoolForeg", "Web Content", "git-upload-pack",
    "pg_dump", "backup=nightly", "-bash", "@agent", "tail", "sleep", "make -j64", "cc1plus",
    "ld.lld",
)  # fmt: skip
CACHES = ("kmalloc-64", "kmalloc-96", "kmalloc-256", "kmalloc-1k", "kmalloc-cg-512", "dentry",
          "ext4_inode_cache", "xfs_inode", "vm_area_struct", "anon_vma_chain", "radix_tree_node",
          "skbuff_head_cache", "task_struct", "filp", "proc_inode_cache", "maple_node")  # fmt: skip


def stacks(random: Random, count: int, ends: Callable[[Random], str]) -> list[str]:
    """So many stacks, of 10 to 25 frames most of them, none twice."""
    found: dict[str, None] = {}
    while len(found) < count:
        middles = random.sample(MIDDLES, 1 + (random.random() < 0.25))
        servers = random.sample(SERVERS, 1 + (random.random() < 0.6))
        found[";".join((random.choice(ENTRIES), *middles, *servers, ends(random)))] = None
    return list(found)


def amounts(random: Random, count: int, most: int) -> list[int]:
    """A few hold nearly all, most hold next to nothing: largest first."""
    found = [max(1, int(most / (n + 1) ** 1.15 * random.uniform(0.6, 1))) for n in range(count)]
    return sorted(found, reverse=True)


def owners(random: Random) -> list[PageOwnerStack]:
    names = stacks(random, STACKS, lambda r: f"{r.choice(ALLOCATORS)};{GOT}")
    # In the order in which stacks were first seen, which says nothing of what they hold.
    handles = random.sample(range(1000, 1000 + STACKS * 12), STACKS)
    return [
        PageOwnerStack(handle, pages, max(1, pages >> n % 4), *owner_frame(stack), stack, None)
        for n, (handle, pages, stack) in enumerate(
            zip(handles, amounts(random, STACKS, 60 << 20), names, strict=True)
        )
    ]


def growth(
    random: Random, rows: list[PageOwnerStack]
) -> tuple[list[PageOwnerGrowth], list[PageOwnerPoint]]:
    grown, points = [], []
    for number, row in enumerate(rows):
        rises = number % 10 == 3
        held = [
            row.pages * (n + 1) // SNAPSHOTS if rises else row.pages + random.randrange(-1, 2)
            for n in range(SNAPSHOTS - 1)
        ] + [row.pages]
        held = [max(pages, 0) for pages in held]
        steps = list(pairwise(held))
        up = sum(b > a for a, b in steps)
        grown.append(
            PageOwnerGrowth(
                row.handle, 0.0, SNAPSHOTS, 0, held[0], held[-1], min(held), max(held),
                held[-1] - held[0], (held[-1] - held[0]) / (60 * len(steps)),
                sum(b >= a for a, b in steps) / len(steps), up,
            )
        )  # fmt: skip
        points += [
            PageOwnerPoint(60.0 * n, row.handle, pages)
            for n, pages in enumerate(held)
            if not 0 < n < SNAPSHOTS - 1 or pages != held[n - 1]
        ]
    return sorted(grown, key=lambda row: -row.gained), points


def processes(random: Random) -> tuple[list[PageTables], list[PageTableDetails]]:
    """Processes by the size of their page tables, the largest first."""
    nothing = dict.fromkeys((field.name for field in fields(PageTableDetails)), 0)
    rows, details = [], []
    for number, tables in enumerate(amounts(random, PROCESSES, 6 << 20)):
        pte = 9 + tables
        pid = 4_194_303 - number * 41 % 4_194_301
        comm = COMMS[number * number % len(COMMS)] + (str(number % 100) if number % 5 == 0 else "")
        pmd, huge = 3 + pte // 300, pte // 7 if number % 3 == 0 else 0
        used = pte * random.randrange(90, 500)
        zero = used // 2 if number % 997 == 0 else used // 300
        swap = used // 50
        present = used - swap
        rows.append(
            PageTables(
                pid, comm[:15], PAGE * (pte + pmd + 2 + huge + 1),
                PAGE * (present - zero + huge * BLOCK), 0, pte, pmd, 2, huge, pte // 200, used,
                present, zero, swap, huge, huge // 900, pte * 512, 0,
            )
        )  # fmt: skip
        details.append(
            PageTableDetails(
                **nothing
                | {"pid": pid, "comm": comm[:15], "processes": 1, "threads": 1 + number % 40}
                | {"vmas": 11 + pte % 9000, "mapped_bytes": pte << 21}
                | {"reaped_pte_slots": pte * 500}
            )
        )
    return sorted(rows, key=lambda row: (-row.pgtables_bytes, row.pid)), details


def pageblock_map(random: Random) -> list[PageblockRun]:
    """Two nodes, in runs of four pageblocks in the mean: years of mixed work."""
    types = ("Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate")
    weights = (14, 70, 12, 2, 1, 1)
    rows: list[PageblockRun] = []
    for node in range(NODES):
        at, left = node * PAGEBLOCKS // NODES, PAGEBLOCKS // NODES
        last: tuple[str, int] | None = None
        while left:
            kind = random.choices(types, weights)[0], min(8, int(random.expovariate(0.6)))
            if kind == last:
                continue
            last = kind
            blocks = min(left, 1 + int(random.expovariate(0.31)))
            zone = "DMA" if at < 8 else "DMA32" if at < 2048 else "Normal"
            border = 8 if at < 8 else 2048 if at < 2048 else PAGEBLOCKS
            blocks = min(blocks, border - at)
            rows.append(PageblockRun(at * BLOCK, blocks, node, zone, *kind))
            at, left = at + blocks, left - blocks
    return rows


def census(runs: list[PageblockRun]) -> list[Pageblocks]:
    counts: dict[tuple[int, str, str], int] = {}
    for run in runs:
        key = run.node, run.zone, run.migratetype
        counts[key] = counts.get(key, 0) + run.blocks
    return [Pageblocks(*key, blocks) for key, blocks in counts.items()]


def zones(rows: list[Zone]) -> list[Zone]:
    """The zones of the smaller machine, the last as large as this one: as short of free memory."""
    rest = PAGEBLOCKS * BLOCK - sum(row.present_pages for row in rows[:-1])
    grown = {"present_pages": rest, "spanned_pages": rest, "managed_pages": rest - 64}
    return [*rows[:-1], replace(rows[-1], **grown)]


def ledger(zones: list[Zone], spaces: list[PageTables]) -> list[LedgerRow]:
    """All pages: free ones are the zones', page tables the processes'; the rest is made up."""
    free = sum(row.free_pages for row in zones)
    tables = sum(row.pgtables_bytes for row in spaces) // PAGE
    rest = PAGEBLOCKS * BLOCK - free - tables
    shares = {
        ("anonymous", "base pages"): 0.55, ("page cache", "files"): 0.2, ("slab", "unreclaimable"):
        0.1, ("hugetlb", "in use"): 0.1, ("vmalloc", "pages"): 0.03, ("unexplained", "compound "
        "pages"): 0.02,
    }  # fmt: skip
    pages = {part: int(share * rest) for part, share in shares.items()}
    pages |= {("page tables", "of processes"): tables, ("free", "free lists"): free}
    return [
        LedgerRow(*part, 1, "Normal", held, held * PAGE, 100 * held / sum(pages.values()), "")
        for part, held in pages.items()
    ]


def tables() -> dict[str, Contents]:
    """Every table that a report knows, those large that are large on such a machine."""
    random = Random(417)
    contents = made.tables()
    held = owners(random)
    grown, points = growth(random, held)
    spaces, details = processes(random)
    costs = exit_costs(spaces, details, dontneed_frees_tables=True)
    runs = pageblock_map(random)
    large = zones(contents["zones"][2])
    ram, crash = PAGEBLOCKS * BLOCK * PAGE, Resource(1 << 28, 3 << 28, "Crash kernel", 1, 0)
    laid = lay_out(
        [Resource(0, ram, "System RAM", 0, -1), crash], [MappedRange(0, ram, "System RAM")], [],
        memory_options("crashkernel=512M"), large, PAGE,
    )  # fmt: skip
    heap = rmap_rows.HEAP
    slabs = stacks(random, SLAB_STACKS, lambda r: "kmem_cache_alloc_noprof")
    slab = [
        SlabOwnerStack(CACHES[n % len(CACHES)], n, stack, objects, objects * 192, None)
        for n, (objects, stack) in enumerate(
            zip(amounts(random, SLAB_STACKS, 8 << 20), slabs, strict=True)
        )
    ]
    rows: list[Any] = [
        *(*held, *grown, *points, *slab, *spaces, *details, *costs, *large),
        *(*ledger(large, spaces), *laid.parts, *laid.ranges, *laid.options, *runs, *census(runs)),
        *(
            ProcessVmas(d.pid, d.comm, d.vmas, 65_530, d.vmas // 3, heap[:-4] + f"{n % 65536:04x}",
                        d.vmas // 2)
            for n, d in enumerate(details)
        ),
        *(
            KsmProcess(d.pid, d.comm, d.vmas % 500, d.vmas % 500, d.vmas, 0, d.vmas * 900)
            for d in details
        ),
        *(
            rmap_rows.ksm_page(0x100000 + 3 * n, mappings=256 - n % 200, visits=5_000_000 - 900 * n)
            for n in range(5000)
        ),
        *(
            rmap_rows.anon_vma(f"{int(heap, 16) + 208 * n:#x}", vmas=20_000 - 9 * n, pid=d.pid,
                               comm=d.comm)
            for n, d in enumerate(details[:2000])
        ),
        *(
            PcpPages(cpu * NODES // CPUS, "Normal", cpu, order, migratetype,
                     random.randrange(0, 400))
            for cpu in range(CPUS)
            for order in range(4)
            for migratetype in ("Unmovable", "Movable", "Reclaimable")
        ),
        *(
            PageOwnerTask(d.pid, d.pid, d.comm, 20_000_000 // (n + 1), 9)
            for n, d in enumerate(details[:20_000])
        ),
        *(
            PageOwnerSnapshot(60.0 * n,
                              (FIRST + timedelta(minutes=n)).isoformat(timespec="milliseconds"),
                              f"show_stacks.{n}", "show_stacks", STACKS,
                              sum(row.pages for row in held), 0, False, "times in names")
            for n in range(SNAPSHOTS)
        ),
        *(
            PageOwnerMemcg(f"pod{n * 2654435761 % 2**32:08x}-{n:04x}.slice", n % 11 == 0,
                           n % 2 == 0, n % 3 == 0, 90_000 // (n + 1), 3)
            for n in range(6000)
        ),
    ]  # fmt: skip
    return contents | tables_of_rows(rows)


def profiled(random: Random) -> dict[str, list[tuple[str, int]]]:
    """Stacks of the two recordings, as perf folds them."""
    result = {}
    for name in made.PROFILED:
        found = stacks(random, PROFILE_STACKS, lambda r: "clear_page_erms")
        result[name] = [
            (
                ";".join((COMMS[n % len(COMMS)], "main", *(f"{f}_[k]" for f in stack.split(";")))),
                value,
            )
            for n, (stack, value) in enumerate(
                zip(found, amounts(random, PROFILE_STACKS, 40_000), strict=True)
            )
        ]
    return result


def write(path: Path) -> Bundle:
    """Write the bundle, in some ten seconds, and open it."""
    counts: dict[str, int] = {}
    with Writer(path) as writer:
        for name, (title, row_type, rows, section) in tables().items():
            number = writer.table(name, title, row_type, rows, section=section)
            counts[section] = counts.get(section, 0) + number
        for name, found in profiled(Random(7)).items():
            writer.folded(name, f"Stacks of {name}", found, unit="samples", section="profiles")
        sections = [SectionResult(name, "ok", 1.5, rows, 0, None) for name, rows in counts.items()]
        writer.finish(TARGET, sections)
    return Bundle(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    print(write(parser.parse_args().folder).path)
