# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory that the kernel printed for its own sake, beside that of kills and failures."""

import pytest
from log_made import FAILURE, GLOBAL_3_10, raw

from mmscope.drgn.log.oom_kills import read_oom_records
from mmscope.drgn.log.shown_memory import Shown, read_shown_memory
from mmscope.drgn.text.kernel_log import parse_dmesg

SHOWN = raw("""
sysrq: Show Memory
Mem-Info:
active_anon:10164 inactive_anon:90214 isolated_anon:0
 slab_reclaimable:15002 slab_unreclaimable:22110
 free:14800 free_pcp:12 free_cma:0
Node 0 Normal free:59200kB boost:0kB min:44088kB low:55108kB high:66128kB active_anon:40656kB
lowmem_reserve[]: 0 0 0 0
Node 0 Normal: 14800*4kB (UM) 0*8kB 0*16kB 0*32kB 0*64kB 0*128kB 0*256kB 0*512kB 0*1024kB \
0*2048kB 0*4096kB = 59200kB
4471 total pagecache pages
Free swap  = 8kB
Total swap = 2097148kB
1048446 pages RAM
""")


def read(text: str) -> Shown:
    return read_shown_memory(parse_dmesg(text).records)


def test_all_that_is_printed_is_in_bytes() -> None:
    shown = read(SHOWN)
    found = {(row.node, row.zone, row.counter): row.bytes for row in shown.memory}
    assert found[-1, "", "slab_unreclaimable"] == 22110 << 12
    assert found[0, "Normal", "free"] == 59200 << 10
    assert found[-1, "", "Free swap"] == 8 << 10 and found[-1, "", "pages RAM"] == 1048446 << 12
    assert {row.seconds for row in shown.memory} == {100.001}
    blocks = {(row.order, row.blocks, row.migratetypes) for row in shown.blocks}
    assert (0, 14800, "Unmovable, Movable") in blocks
    assert (shown.damaged, shown.left_out) == (0, 0)


@pytest.mark.parametrize("other", [GLOBAL_3_10, FAILURE])
def test_that_of_a_kill_or_a_failure_is_theirs(other: str) -> None:
    assert read(other).memory == []
    assert read(other + SHOWN).memory == read(SHOWN).memory == read(SHOWN + other).memory


def test_as_old_kernels_begin_it_or_none() -> None:
    lines = SHOWN.splitlines(keepends=True)
    old = lines[0].replace("sysrq: ", "SysRq : ")
    assert read("".join([old, *lines[1:]])).memory == read(SHOWN).memory
    assert read("".join(lines[1:])).memory == read(SHOWN).memory


# Of 4.9, which counts scanned pages of a node; of one list the nodes' share changed meanwhile.
NODES = """
Mem-Info:
active_anon:1859030 inactive_anon:329765 isolated_anon:0
 active_file:5146966 inactive_file:563690 isolated_file:32
Node 0 active_anon:2393412kB inactive_anon:598520kB active_file:11417140kB inactive_file:1167040kB \
unevictable:0kB pages_scanned:512913 all_unreclaimable? no
Node 1 active_anon:5042708kB inactive_anon:720540kB active_file:9170720kB inactive_file:1087720kB \
unevictable:0kB pages_scanned:0 all_unreclaimable? no
Node 0 DMA free:13312kB min:64kB low:80kB high:96kB present:15992kB managed:15360kB
"""


def test_the_size_of_a_page_is_that_of_the_lists() -> None:
    found = {(row.node, row.counter): row.bytes for row in read(raw(NODES)).memory}
    assert found[-1, "active_anon"] == 1859030 << 12
    assert found[1, "active_anon"] == 5042708 << 10
    # All amounts of one zone are multiples of 8 KiB by chance.
    zone = "".join(line for line in raw(NODES).splitlines(keepends=True) if "Node 1" not in line)
    assert {row.bytes for row in read(zone).memory if row.node < 0} == {None}


def test_that_behind_the_stack_of_a_failure_is_its() -> None:
    assert read(FAILURE.partition("\n")[2]).memory == []


def test_each_is_numbered() -> None:
    shown = read(SHOWN * 3)
    assert {row.shown for row in shown.memory} == {1, 2, 3}


def test_lines_that_are_damaged_are_counted() -> None:
    assert read(SHOWN.replace("= 59200kB", "= 59201kB")).damaged == 1


def test_so_many_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmscope.drgn.log.shown_memory.MOST_SHOWN", 2)
    assert read(SHOWN * 3).left_out == 1


@pytest.mark.parametrize("cut", ["Call Trace:", "Mem-Info:", "active_anon:"])
def test_that_of_a_kill_whose_beginning_is_cut_is_the_kills(cut: str) -> None:
    lines = GLOBAL_3_10.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if cut in line)
    text = "".join(lines[first:])
    assert read(text).memory == []
    found, whole = (read_oom_records(parse_dmesg(each).records) for each in (text, GLOBAL_3_10))
    assert (found.memory, found.free_blocks) == (whole.memory, whole.free_blocks)
    assert (found.kills[0].comm, found.kills[0].lacks) == ("java", "its header")


def test_what_was_shown_before_is_no_kills() -> None:
    table = GLOBAL_3_10[GLOBAL_3_10.index("\n", GLOBAL_3_10.index("pages reserved")) + 1 :]
    found = read_oom_records(parse_dmesg(SHOWN + table).records)
    assert found.kills[0].comm == "java" and found.memory == []
