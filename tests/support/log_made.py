# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records that no kernel of the lab prints, made after the format strings of those that do: 3.10 and
4.18 (mm/oom_kill.c, mm/memcontrol.c, mm/page_alloc.c, lib/show_mem.c), and allocations that failed
(``warn_alloc()``). As ``dmesg -r`` has them.
"""

import itertools


def raw(text: str, since: float = 100.0) -> str:
    """Lines as ``dmesg -r`` has them, a thousandth of a second apart."""
    lines = text.strip("\n").split("\n")
    return "".join(f"<4>[{since + at / 1000:12.6f}] {line}\n" for at, line in enumerate(lines))


# A limit of cgroup v1: names of the columns, the line of statistics and both lines of a kill.
CGROUP_V1 = raw("""
node invoked oom-killer: gfp_mask=0x6000c0(GFP_KERNEL), nodemask=(null), order=0, oom_score_adj=999
node cpuset=pod1 mems_allowed=0-1
CPU: 3 PID: 19388 Comm: node Kdump: loaded Not tainted 4.18.0-147.el8.x86_64 #1
Call Trace:
 dump_stack+0x5c/0x80
 dump_header+0x6e/0x27a
 oom_kill_process.cold.29+0xb/0x10
 out_of_memory+0x1ba/0x490
 mem_cgroup_out_of_memory+0x49/0x80
 try_charge+0x6fa/0x780
Task in /kubepods/pod1/c1 killed as a result of limit of /kubepods/pod1
memory: usage 614400kB, limit 614400kB, failcnt 21
memory+swap: usage 614400kB, limit 9007199254740988kB, failcnt 0
kmem: usage 4184kB, limit 9007199254740988kB, failcnt 0
Memory cgroup stats for /kubepods/pod1: cache:0KB rss:0KB rss_huge:0KB shmem:0KB swap:0KB
Memory cgroup stats for /kubepods/pod1/c1: cache:8KB rss:613460KB rss_huge:256000KB swap:0KB
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[  19380]     0 19380      256        1    32768        0          -998 pause
[  19388]  1000 19388  5588434   138005  8069120        0           999 node
Memory cgroup out of memory: Kill process 19388 (node) score 1924 or sacrifice child
Killed process 19388 (node) total-vm:22353736kB, anon-rss:552020kB, file-rss:0kB, shmem-rss:0kB
""")

GLOBAL_3_10 = raw("""
java invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0
java cpuset=/ mems_allowed=0
CPU: 1 PID: 4321 Comm: java Tainted: G           OE  ------------   3.10.0-693.el7.x86_64 #1
Call Trace:
 [<ffffffff816a3d91>] dump_stack+0x19/0x1b
 [<ffffffff8169f186>] dump_header+0x90/0x229
 [<ffffffff81188bc4>] __alloc_pages_slowpath+0x5d6/0x724
Mem-Info:
Node 0 DMA per-cpu:
CPU    0: hi:    0, btch:   1 usd:   0
active_anon:914033 inactive_anon:4119 isolated_anon:0
 active_file:214 inactive_file:301 isolated_file:0
 unevictable:0 dirty:3 writeback:0 unstable:0
 slab_reclaimable:5417 slab_unreclaimable:9711
 mapped:1303 shmem:4471 pagetables:3109 bounce:0
 free:21214 free_pcp:0 free_cma:0
Node 0 DMA free:15892kB min:264kB low:328kB high:396kB active_anon:0kB inactive_anon:0kB \
isolated(anon):0kB isolated(file):0kB present:15992kB managed:15908kB mlocked:0kB unstable:0kB \
pages_scanned:0 all_unreclaimable? yes
lowmem_reserve[]: 0 2811 3773 3773
Node 0 DMA32 free:54308kB min:50100kB low:62624kB high:75148kB active_anon:2712296kB \
present:3129216kB managed:2881088kB pages_scanned:88 all_unreclaimable? yes
lowmem_reserve[]: 0 0 962 962
Node 0 Normal free:16900kB min:17148kB low:21432kB high:25720kB active_anon:943836kB \
present:1048576kB managed:985328kB pages_scanned:3 all_unreclaimable? yes
lowmem_reserve[]: 0 0 0 0
Node 0 DMA: 1*4kB (U) 0*8kB 1*16kB (U) 0*32kB 2*64kB (U) 1*128kB (U) 1*256kB (U) 0*512kB 1*1024kB \
(U) 1*2048kB (R) 3*4096kB (M) = 15892kB
Node 0 DMA32: 13577*4kB (UEM) 0*8kB 0*16kB 0*32kB 0*64kB 0*128kB 0*256kB 0*512kB 0*1024kB \
0*2048kB 0*4096kB = 54308kB
Node 0 Normal: 4225*4kB (UEM) 0*8kB 0*16kB 0*32kB 0*64kB 0*128kB 0*256kB 0*512kB 0*1024kB \
0*2048kB 0*4096kB = 16900kB
4471 total pagecache pages
0 pages in swap cache
Free swap  = 0kB
Total swap = 2097148kB
1048446 pages RAM
0 pages HighMem/MovableOnly
77865 pages reserved
[ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name
[ 4300]     0  4300    28877      119      13       13             0 bash
[ 4321]  1000  4321  1640402   899310    1902   501123             0 java
Out of memory: Kill process 4321 (java) score 937 or sacrifice child
Killed process 4321 (java) total-vm:6561608kB, anon-rss:3597240kB, file-rss:0kB, shmem-rss:0kB
""")

FAILURE = raw("""
kworker/u32:45: page allocation failure: order:4, mode:0x40c00(GFP_NOIO|__GFP_COMP), \
nodemask=(null),cpuset=/,mems_allowed=0
CPU: 0 PID: 19318 Comm: kworker/u32:45 Not tainted 6.8.0-1-default #1
Hardware name: QEMU Standard PC (Q35 + ICH9, 2009)
Workqueue: events_unbound async_run_entry_fn
Call Trace:
 <TASK>
 dump_stack_lvl+0x47/0x60
 warn_alloc+0x165/0x1e0
 __alloc_pages_slowpath.constprop.0+0xd69/0xde0
 __alloc_pages+0x32d/0x350
 ___kmalloc_large_node+0x71/0xe0
 __kmalloc_large_node+0x1c/0xa0
 ? srso_return_thunk+0x5/0x5f
 __kmalloc_node+0xb6/0x140
 sd_revalidate_disk.isra.0+0x1ab/0x2ed0 [sd_mod]
 sd_probe+0x2ed/0x4a0 [sd_mod]
 async_run_entry_fn+0x34/0x140
 process_one_work+0x171/0x340
 ret_from_fork_asm+0x1b/0x30
 </TASK>
Mem-Info:
active_anon:10164 inactive_anon:90214 isolated_anon:0
 active_file:120103 inactive_file:40417 isolated_file:0
 unevictable:16 dirty:12 writeback:0
 slab_reclaimable:15002 slab_unreclaimable:22110
 mapped:30111 shmem:9110 pagetables:1871
 free:14800 free_pcp:12 free_cma:0
Node 0 Normal free:59200kB boost:0kB min:44088kB low:55108kB high:66128kB active_anon:40656kB \
inactive_anon:360856kB active_file:480412kB inactive_file:161668kB present:2097152kB \
managed:2031616kB free_cma:0kB
lowmem_reserve[]: 0 0 0 0 0
Node 0 Normal: 6676*4kB (UME) 2120*8kB (UE) 595*16kB (UME) 188*32kB (UME) 0*64kB 0*128kB 0*256kB \
0*512kB 0*1024kB 0*2048kB 0*4096kB = 59200kB
169630 total pagecache pages
0 pages in swap cache
Free swap  = 0kB
Total swap = 0kB
524288 pages RAM
16384 pages reserved
""")


def mixed(*parts: str) -> str:
    """Parts line by line, as of two CPUs."""
    lines = [part.splitlines(keepends=True) for part in parts]
    return "".join(line for row in itertools.zip_longest(*lines, fillvalue="") for line in row)
