# SPDX-License-Identifier: LGPL-2.1-or-later
"""What people give: a log, a profile, owners of pages, a tree."""

from pathlib import Path

TREE = Path(__file__).parents[1] / "data/7.2"
LOG = """\
[  100.000001] java invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), \
order=0, oom_score_adj=0
[  100.000002] CPU: 1 PID: 7 Comm: java Not tainted 6.1.0 #1
[  100.000003] Mem-Info:
[  100.000004] Tasks state (memory values in pages):
[  100.000005] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[  100.000006] [      7]     0     7   100000    50000   800000        0             0 java
[  100.000007] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
global_oom,task_memcg=/,task=java,pid=7,uid=0
[  100.000008] Out of memory: Killed process 7 (java) total-vm:400000kB, anon-rss:200000kB, \
file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:782kB oom_score_adj:0
[  101.000009] usb 1-1: new device
"""
PERF = "java 7/7 [001] 1.000000: 1 cycles: \n\tffffffff81000001 clear_page ([kernel.kallsyms])\n\n"
OWNER = """\
Page allocated via order 0, mask 0x0(), pid 7, tgid 7 (java), ts 1 ns
PFN 0x1 type Movable Block 0 type Movable Flags 0x0()
 alloc_pages+0x1/0x2
 some_driver+0x1/0x2

"""


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)
