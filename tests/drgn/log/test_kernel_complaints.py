# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel's log says about memory, each kind by lines as kernels print them."""

from dataclasses import replace
from pathlib import Path

import pytest
from log_made import FAILURE, GLOBAL_3_10, raw

from mmscope.drgn.log.kernel_complaints import (
    KINDS,
    MOST_ROWS,
    KernelComplaint,
    read_kernel_complaints,
)
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.kernel_log import Log, parse_dmesg
from mmscope.reports.collect.run_section import run_section

HUNG = """INFO: task java:4321 blocked for more than 120 seconds.
      Not tainted 6.1.0-18-amd64 #1 Debian 6.1.76-1
task:java            state:D stack:    0 pid: 4321 ppid:     1 flags:0x00000002
Call Trace:
 <TASK>
 __schedule+0x34d/0x9e0
 ? folio_wait_bit+0x1/0x2
 schedule+0x5a/0xd0
"""
LINES = {
    "x: page allocation failure: order:3, mode:0x20":
        ("page allocation failure", "x: page allocation failure: order:3"),
    "SLUB: Unable to allocate memory on node -1, gfp=0x820(GFP_ATOMIC)":
        ("slab allocation failure", "gfp=0x820(GFP_ATOMIC)"),
    "vmap allocation for size 20480 failed: use vmalloc=<size> to increase size":
        ("kernel addresses used up", "vmap allocation for size 20480 failed"),
    "vmalloc_node_range for size 8192 failed: Address range restricted to 0xf0 - 0xff":
        ("kernel addresses used up", "vmalloc_node_range for size 8192 failed"),
    "percpu: allocation failed, size=2048 align=8 atomic=0, alloc from reserved chunk failed":
        ("percpu allocation failure", "size=2048"),
    "ahci 0000:00:1f.2: swiotlb buffer is full (sz: 65536 bytes), total 32768 (slots), used 7":
        ("swiotlb full", "ahci 0000:00:1f.2"),
    "swiotlb buffer is full (sz: 4096 bytes), total 0 (slots), used 0 (slots)":
        ("swiotlb full", "swiotlb buffer is full (sz: 4096 bytes)"),
    "HugeTLB: allocating 512 of page size 2.00 MiB failed.  Only allocated 98 hugepages.":
        ("huge pages failed", "512 of page size 2.00 MiB"),
    "Write-error on swap-device (8:16:2048)": ("swap failure", "Write-error on swap-device"),
    "BUG: Bad page state in process kworker/0:1  pfn:12345":
        ("bad page state", "kworker/0:1"),
    "BUG: Bad page map in process java  pte:800000012345 pmd:1234": ("bad page table", "java"),
    "BUG: Bad rss-counter state mm:00000000abcd type:MM_ANONPAGES val:5":
        ("bad counter", "Bad rss-counter state"),
    "get_swap_device: Bad swap file entry 3ffffffffffff":
        ("swap entry damaged", "Bad swap file entry"),
    "BUG kmalloc-64 (Tainted: G    B): Poison overwritten":
        ("slab damaged", "kmalloc-64 (Tainted: G    B): Poison overwritten"),
    "BUG task (Tainted: G    B): Objects remaining in task on __kmem_cache_shutdown()":
        ("slab cache destroyed in use", "task"),
    "kmem_cache_destroy task: Slab cache still has objects when called from f+0x1/0x2":
        ("slab cache destroyed in use", "task"),
    "list_del corruption. prev->next should be ffff, but was 0":
        ("list damaged", "list_del corruption"),
    "BUG: KASAN: use-after-free in f+0x1/0x2":
        ("KASAN report", "KASAN: use-after-free in f+0x1/0x2"),
    "unreferenced object 0xffff88007658a9e0 (size 944):": ("leaked object", "size 944"),
    "lowmemorykiller: Killing 'd.play.games.ui' (2613), adj 1000,":
        ("low memory killer", "d.play.games.ui"),
    "lowmemorykiller: Kill 'com.example' (3946), uid 10144, oom_score_adj 900 to free 2kB rss":
        ("low memory killer", "com.example"),
    "kernel BUG at mm/slub.c:4023!": ("kernel BUG in mm", "mm/slub.c:4023"),
    "kernel BUG at include/linux/page-flags.h:356!":
        ("kernel BUG in mm", "include/linux/page-flags.h:356"),
    "WARNING: CPU: 3 PID: 77 at mm/page_counter.c:62 f+0x1/0x2":
        ("warning in mm", "mm/page_counter.c:62"),
    "Kernel panic - not syncing: Fatal exception in interrupt":
        ("kernel panic", "Fatal exception in interrupt"),
    "Memory failure: 0x3710b3: recovery action for dirty LRU page: Recovered":
        ("memory failure", "dirty LRU page: Recovered"),
    "Memory failure: 0x3710b3: Sending SIGBUS to app:361438 due to hardware memory corruption":
        ("killed for memory failure", "app"),
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0 (channel:1 slot:0)":
        ("memory error", "1 CE memory read error on CPU_SrcID#0 (channel:1 slot:0)"),
    "kmemleak: 7 new suspected memory leaks (see /sys/kernel/debug/kmemleak)":
        ("memory leaks", "7 new suspected memory leaks"),
    "hv_balloon: Max. dynamic memory size: 12288 MB":
        ("balloon", "hv_balloon: Max. dynamic memory size: 12288 MB"),
    "virtio_balloon virtio3: Out of puffs! Can't get 256 pages":
        ("balloon failed", "virtio_balloon virtio3"),
    "memory offlining [mem 0x100000000-0x107ffffff] failed due to failure to isolate range":
        ("memory not offlined",
         "memory offlining [mem 0x100000000-0x107ffffff] failed due to failure to isolate range"),
    "Memory: 1435856K/1572344K available (14336K kernel code, 136488K reserved, 0K cma-reserved)":
        ("memory at boot",
         "1435856K/1572344K available (14336K kernel code, 136488K reserved, 0K cma-reserved)"),
    "Reserving 786MB of memory at 654158MB for crashkernel (System RAM: 130816MB)":
        ("crash kernel",
         "Reserving 786MB of memory at 654158MB for crashkernel (System RAM: 130816MB)"),
    "crashkernel reserved: 0x000000005f000000 - 0x000000006f000000 (256 MB)":
        ("crash kernel", "crashkernel reserved: 0x000000005f000000 - 0x000000006f000000 (256 MB)"),
    "cma: Reserved 64 MiB at 0x00000000fc000000":
        ("CMA area", "Reserved 64 MiB at 0x00000000fc000000"),
    "WARNING: BIOS bug: CPU MTRRs don't cover all of memory, losing 2048MB of RAM.":
        ("firmware hides memory",
         "WARNING: BIOS bug: CPU MTRRs don't cover all of memory, losing 2048MB of RAM"),
}  # fmt: skip


def read(text: str) -> list[KernelComplaint]:
    return read_kernel_complaints(parse_dmesg(text).records)


@pytest.mark.parametrize("line", LINES)
def test_kinds(line: str) -> None:
    (row,) = read(raw(line))
    assert (row.kind, row.what) == LINES[line]
    assert (row.times, row.first_seconds, row.last_seconds, row.record) == (1, 100.0, 100.0, line)


def test_how_often_the_first_and_the_last() -> None:
    line = "swiotlb buffer is full (sz: 65536 bytes), total 32768 (slots), used 7 (slots)"
    text = "".join(raw(f"nvme: {line}", since) for since in (1.0, 2.0, 9.0))
    nvme, ahci = read(text + raw(f"ahci: {line}"))
    assert (nvme.what, nvme.times, nvme.first_seconds, nvme.last_seconds) == ("nvme", 3, 1.0, 9.0)
    assert (ahci.what, ahci.times) == ("ahci", 1)


def test_a_date_where_there_is_no_time() -> None:
    line = "[Thu May  9 14:52:3{} 2024] kmemleak: 7 new suspected memory leaks\n"
    (row,) = read(line.format(1) + line.format(8))
    assert (row.first_date, row.last_date) == ("2024-05-09 14:52:31", "2024-05-09 14:52:38")


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (" shrink_lruvec+0x1/0x2", "java, in shrink_lruvec"),
        (" [<ffffffff811b>] __alloc_pages_nodemask+0x1/0x2", "java, in __alloc_pages_nodemask"),
    ],
)
def test_a_hung_task_counts_where_its_stack_is_in_memory_management(frame: str, what: str) -> None:
    (row,) = read(raw(HUNG + frame))
    assert (row.kind, row.what) == ("hung task", what)


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (
            " ? wbt_cleanup_cb+0x1/0x2\n rq_qos_wait+0x1/0x2\n wbt_wait+0x1/0x2",
            "java, in rq_qos_wait",
        ),
        (" nfs_wait_bit_killable+0x1/0x2 [nfs]", "java, in nfs_wait_bit_killable"),
        ("", "java"),
    ],
)
def test_a_hung_task_elsewhere_has_the_function_that_waits(frames: str, what: str) -> None:
    (row,) = read(raw(HUNG + frames))
    assert (row.kind, row.what) == ("hung task elsewhere", what)
    first, second = read(raw(f"{HUNG}{frames}\n{HUNG.replace('java', 'perl')} shrink_node+0x1/0x2"))
    assert (first.what, second.kind) == (what, "hung task")


@pytest.mark.parametrize("frames", ["", " ? mutex_lock+0x1/0x2\n ? do_shrink_slab+0x1/0x2"])
def test_where_a_task_hangs_without_a_sure_frame_is_unknown(frames: str) -> None:
    hung = "INFO: task java:4321 blocked for more than 120 seconds.\nCall Trace:\n"
    (row,) = read(raw(hung + frames))
    assert (row.kind, row.what) == ("hung task, stack unknown", "java")


BLOCKED = """sysrq: Show Blocked State
task:java            state:D stack:    0 pid: 4321 ppid:     1 flags:0x00000002
Call Trace:
 __schedule+0x34d/0x9e0
 rwsem_down_write_slowpath+0x2b4/0x6b0
 vm_mmap_pgoff+0xb0/0x170
task:cat             state:S stack:    0 pid: 4322 ppid:     1 flags:0x00000002
Call Trace:
 shrink_node+0x1/0x2
nfsd            D 0000000000000000     0   404      2 0x00000000
 [<ffffffff8152a173>] io_schedule+0x73/0xc0
 [<ffffffff811c4f10>] sync_buffer+0x40/0x50
"""


def test_blocked_tasks_have_where_they_wait() -> None:
    assert [(row.kind, row.what) for row in read(raw(BLOCKED))] == [
        ("blocked task", "java, in vm_mmap_pgoff"),
        ("blocked task elsewhere", "nfsd, in sync_buffer"),
    ]


def test_each_of_several_threads_of_one_name_is_counted() -> None:
    line = "task:java            state:D stack:    0 pid: {} ppid:     1 flags:0x00000002\n"
    text = "".join(line.format(pid) + " nfs_wait+0x1/0x2\n" for pid in (1, 2))
    text += line.format(3) + " shrink_node+0x1/0x2\n"
    assert [(row.what, row.times) for row in read(raw(text))] == [
        ("java, in nfs_wait", 2), ("java, in shrink_node", 1),
    ]  # fmt: skip


def test_a_leaked_object_has_who_allocated_it() -> None:
    text = """unreferenced object 0xffff8881039b0b00 (size 192):
  comm "insmod", pid 1234, jiffies 4294901234 (age 120.000s)
  backtrace:
    [<ffffffff812a1b2c>] kmem_cache_alloc_trace+0x10c/0x210
    [<ffffffffc0005034>] leak_init+0x34/0x1000 [leak]
"""
    (row,) = read(text * 3)
    assert (row.what, row.times) == ("size 192, in leak_init [leak]", 3)


@pytest.mark.parametrize("before", ["> ", "  "])
def test_a_leaked_object_that_is_quoted_has_who_allocated_it(before: str) -> None:
    text = f"""so:
{before}unreferenced object 0xffff8881039b0b00 (size 192):
{before}  comm "insmod", pid 1234, jiffies 4294901234
{before}  backtrace:
{before}    [<ffffffff810f8f36>] create_object+0x126/0x2b0
{before}    [<ffffffff810f91d5>] kmemleak_alloc+0x25/0x60
{before}    [<ffffffffc0005034>] leak_init+0x34/0x1000 leak/leak.c:12 \n"""
    (row,) = read(text)
    assert row.what == "size 192, in leak_init"


def test_a_device_of_a_quoted_line_is_without_its_time() -> None:
    line = "ahci 0000:00:1f.2: swiotlb buffer is full (sz: 65536 bytes), total 9 (slots), used 7"
    (row,) = read(f"No, I see:\n>> [    2.202000] {line}\nis all.\n")
    assert (row.what, row.first_seconds) == ("ahci 0000:00:1f.2", 2.202)


def test_nothing_goes_on_with_a_rule() -> None:
    """A line of "=" is as wide as others, and no part of what follows."""
    rule = "=" * 77
    line = "BUG kmalloc-64 (Not tainted): Poison overwritten"
    (row,) = read(f"{rule}\n{line}\n{'-' * 77}\n\nINFO: {'x ' * 36}\n f+0x1/0x2\n")
    assert row.what == "kmalloc-64 (Not tainted): Poison overwritten"


def test_a_slab_allocation_that_failed_has_its_cache() -> None:
    line = "SLUB: Unable to allocate memory on node -1 (gfp=0x20)"
    cache = "  cache: {}, object size: 192, buffer size: 192, default order: 0, min order: 0"
    names = ("kmalloc-192", "kmalloc-1024(1793:c8ed)", "kmalloc-192")
    text = "\n".join(f"{line}\n{cache.format(name)}\n  node 0: slabs: 1" for name in names)
    assert [(row.kind, row.what, row.times) for row in read(raw(f"{text}\n{line}\nx"))] == [
        ("slab allocation failure", "kmalloc-192", 2),
        ("slab allocation failure", "kmalloc-1024(1793:c8ed)", 1),
        ("slab allocation failure", "(gfp=0x20)", 1),
    ]


def test_a_hung_task_of_7_1_says_that_it_waits_for_io() -> None:
    hung = HUNG.replace("blocked for", "blocked in I/O wait for")
    assert [row.what for row in read(raw(f"{hung} shrink_node+0x1/0x2"))] == [
        "java, in shrink_node"
    ]


def test_the_stack_of_who_has_the_lock_is_not_its() -> None:
    owner = "INFO: task java:4321 is blocked on a mutex likely owned by task x:1.\n"
    (row,) = read(raw(f"{HUNG}{owner} shrink_node+0x1/0x2"))
    assert (row.kind, row.what) == ("hung task elsewhere", "java")


OOPS_ARM64 = """Unable to handle kernel paging request at virtual address dead000000000108
Mem abort info:
  ESR = 0x0000000096000044
Internal error: Oops: 0000000096000044 [#1] SMP
Modules linked in: nvme
CPU: 2 UID: 0 PID: 77 Comm: kswapd0 Not tainted 6.12.0 #1
pstate: 60400005 (nZCv daif +PAN -UAO -TCO -DIT -SSBS BTYPE=--)
pc : {where}
lr : shrink_node+0x1/0x2
"""
OOPS_X86 = """BUG: unable to handle page fault for address: ffffa8c000000010
#PF: supervisor read access in kernel mode
Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI
RIP: 0010:{where}
"""


@pytest.mark.parametrize(
    ("oops", "what"),
    [
        (OOPS_ARM64, "Unable to handle kernel paging request"),
        (OOPS_X86, "unable to handle page fault"),
    ],
)
def test_an_oops_is_told_with_where_it_was(oops: str, what: str) -> None:
    (row,) = read(raw(oops.format(where="nvme_poll+0x18/0x40 [nvme]")))
    assert (row.kind, row.group) == ("kernel Oops", "damage")
    assert row.what == f"{what}, in nvme_poll [nvme]"
    (row,) = read(raw(oops.splitlines()[0]))
    assert row.what == what


@pytest.mark.parametrize(
    ("where", "rows"),
    [("shrink_lruvec+0x1/0x2", 1), ("uart_write+0x1/0x2", 0), ("sysrq_handle_crash+0x1/0x2", 0)],
)
def test_an_oops_of_address_0_counts_in_memory_management(where: str, rows: int) -> None:
    line = "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008"
    assert len(read(raw(f"{line}\npc : {where}"))) == rows


def test_a_fault_of_a_program_is_no_oops() -> None:
    assert (
        read(raw("traps: java[77] general protection fault ip:7f sp:7f error:0 in libc.so")) == []
    )


def test_a_balloons_module_is_no_balloons_message() -> None:
    assert read(raw("Modules linked in: tcp_diag vmw_balloon virtio_balloon")) == []


def test_a_stack_of_another_task_is_not_its() -> None:
    hung = [replace(each, caller="T1") for each in parse_dmesg(raw(HUNG)).records]
    other = [
        replace(each, caller="T2") for each in parse_dmesg(raw(" shrink_node+0x1/0x2")).records
    ]
    assert [row.kind for row in read_kernel_complaints([*hung, *other])] == ["hung task elsewhere"]


def test_what_programs_wrote_does_not_count() -> None:
    records = [replace(each, facility=3) for each in parse_dmesg(FAILURE + GLOBAL_3_10).records]
    assert read_kernel_complaints(records) == []


def test_oom_kills_and_failures_are_led_to() -> None:
    rows = {row.kind: row for row in read(FAILURE + GLOBAL_3_10)}
    assert "oom_kills" in rows["out of memory"].means
    assert "allocation_failures" in rows["page allocation failure"].means


def test_each_kind_is_once_and_means_something() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert all(kind.means for kind in KINDS)


def test_so_many_are_listed() -> None:
    files = Files(Path("/nowhere"))
    text = "".join(raw(f"d{n}: swiotlb buffer is full (sz: 1 bytes)") for n in range(MOST_ROWS + 2))
    files.kept["kernel_log"] = Log(parse_dmesg(text).records)
    section, found = run_section(SECTIONS["kernel_complaints"], files)
    assert len(found.by_name["kernel_complaints"]) == MOST_ROWS
    assert "2 later ones" in (section.message or "")


@pytest.mark.parametrize("name", ["kswapd1", "kcompactd0", "khugepaged", "oom_reaper"])
def test_a_task_of_memory_management_hangs_in_it_wherever_it_waits(name: str) -> None:
    text = f"""
INFO: task {name}:84 blocked for more than 120 seconds.
Call Trace:
 schedule+0x3f/0x60
 mutex_lock+0x2a/0x50
"""
    (row,) = read_kernel_complaints(parse_dmesg(raw(text)).records)
    assert (row.kind, row.what) == ("hung task", name)
    (row,) = read_kernel_complaints(parse_dmesg(raw(text.replace(name, "kswapd-x"))).records)
    assert row.kind == "hung task elsewhere"
