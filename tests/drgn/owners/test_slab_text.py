# SPDX-License-Identifier: LGPL-2.1-or-later
"""The text of the slab allocator: /proc/slabinfo and alloc_traces, whole and damaged."""

import pytest
from checkout import TESTS
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.owners.slab_caches import read_slabinfo
from mmscope.drgn.owners.slab_owner import NO_TRACK, SlabOwnerStack, read_alloc_traces

SLABINFO = (TESTS / "data/7.2/proc/slabinfo").read_text()

# As 7.2 prints it; the second has no stack, the third no track.
TRACES = """\
    700 do_eventfd+0x30/0x120 waste=11200/16 age=1480/1487/1493 pid=114 cpus=1 nodes=0-1
        do_eventfd+0x30/0x120
        __x64_sys_eventfd2+0x14/0x20
        do_syscall_64+0xea/0x610

      3 setup [virtio_blk] age=5 pid=1-7 cpus=0-1 nodes=0
      2 <not-available> age=4294896 pid=0

      9 do_eventfd+0x44/0x120 age=1 pid=114 cpus=1
        do_eventfd+0x44/0x120
        __x64_sys_eventfd2+0x14/0x20
        do_syscall_64+0xea/0x610

"""


def test_slabinfo_is_read() -> None:
    rows = {row.cache: row for row in read_slabinfo(SLABINFO)}
    assert len(rows) == SLABINFO.count("\n") - 2
    dentry = rows["dentry"]
    fields = next(line.split() for line in SLABINFO.splitlines() if line.startswith("dentry "))
    assert (dentry.objects, dentry.slots, dentry.slot_bytes) == tuple(map(int, fields[1:4]))
    assert (dentry.slabs, dentry.pages) == (int(fields[14]), int(fields[14]) * int(fields[5]))
    assert dentry.object_bytes is None and dentry.store_user is None


def test_a_cache_may_be_called_anything() -> None:
    line = next(line for line in SLABINFO.splitlines() if line.startswith("dentry "))
    text = "".join(f"{part}\n" for part in (*SLABINFO.splitlines()[:2], f"a b : 5 {line[7:]}"))
    assert [row.cache for row in read_slabinfo(text)] == ["a b : 5"]


SLABTOP = """ Active / Total Objects (% used)    : 1694908 / 2269541 (74.7%)

  OBJS ACTIVE  USE OBJ SIZE  SLABS OBJ/SLAB CACHE SIZE NAME
1158495 1152108  99%    0.10K  29705       39    118820K buffer_head
229166 228585  99%    1.10K  16369       14    261904K ext4_inode_cache
 42784  26988  63%    0.12K   1337       32      5348K kmalloc-128
    42     42 100%    0,55K      3       14        24K taskstats
     0      0   0%    1.00K      0       16         0K xfs_inode
"""


@pytest.mark.parametrize("page_size", [4096, 16384])
def test_slabtop_is_read_as_the_slabinfo_of_its_machine(page_size: int) -> None:
    rows = {}
    for line in SLABTOP.splitlines(keepends=True)[3:]:
        (row,) = read_slabinfo(line, page_size)
        rows[row.cache] = (row.objects, row.slots, row.slot_bytes, row.slabs, row.pages)
    fourth = page_size // 4096
    assert rows == {
        "buffer_head": (1152108, 1158495, 104, 29705, 29705 // fourth),
        "ext4_inode_cache": (228585, 229166, 1128, 16369, 65476 // fourth),
        "kmalloc-128": (26988, 42784, 128, 1337, 1337 // fourth),
        "taskstats": (42, 42, 568, 3, 6 // fourth),  # 560 in its slabinfo: 0.55K is 558 to 568
        "xfs_inode": (0, 0, 1024, 0, 0),
    }


@pytest.mark.parametrize("text", ["", "\n", SLABINFO[:-1], SLABINFO[:-40] + "\n", SLABINFO[20:]])
def test_a_damaged_slabinfo_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="slabinfo"):
        read_slabinfo(text)


def test_alloc_traces_are_read() -> None:
    eventfd = "do_syscall_64;__x64_sys_eventfd2;do_eventfd"
    assert read_alloc_traces(TRACES, "kmalloc-64", 64) == [
        SlabOwnerStack("kmalloc-64", None, eventfd, 709, 709 * 64, 709 * 64 - 11200),
        SlabOwnerStack("kmalloc-64", None, "setup [virtio_blk]", 3, 192, 192),
        SlabOwnerStack("kmalloc-64", None, NO_TRACK, 2, 128, 128),
    ]
    rows = read_alloc_traces(TRACES, "dentry", None)
    assert [(row.objects, row.bytes, row.requested_bytes) for row in rows] == [
        (709, None, None), (3, None, None), (2, None, None),
    ]  # fmt: skip
    assert read_alloc_traces("No data\n", "dentry", 192) == []


@pytest.mark.parametrize("text", ["", TRACES[:-90], TRACES.replace("age=", "ago="), "x" + TRACES])
def test_damaged_alloc_traces_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="alloc_traces"):
        read_alloc_traces(text, "kmalloc-64", 64)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_slabinfo, lambda text: read_alloc_traces(text, "dentry", 192)):
        try:
            read(text)
        except ValueError:
            continue
