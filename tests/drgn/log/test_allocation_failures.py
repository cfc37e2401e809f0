# SPDX-License-Identifier: LGPL-2.1-or-later
"""Allocations that failed, as kernels from 3.10 on say so (``support/log_made.py``)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_made import FAILURE, GLOBAL_3_10, raw
from log_truth import TEXTS

from mmscope.drgn.log import allocation_failures
from mmscope.drgn.log.allocation_failures import (
    PAGES,
    STALL,
    VMALLOC,
    Failures,
    read_allocation_failures,
)
from mmscope.drgn.tables.bounds import Machine, rows_that_cannot_be
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.text.kernel_log import parse_dmesg


def read(text: str) -> Failures:
    return read_allocation_failures(parse_dmesg(text).records)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", mode:", ",\nmode:"),
        (", mode:", ", \x7f\nmode:"),
        ("nodemask=(null),cpuset=/,mems", "nodemas"),
    ],
)
def test_a_line_that_was_wrapped_or_cut(old: str, new: str) -> None:
    head, *rest = FAILURE.split("\n")
    assert old in head
    (row,) = read("\n".join([head.replace(old, new), *rest])).failures
    assert (row.comm, row.order, row.gfp_mask) == ("kworker/u32:45", 4, "0x40c00")
    assert row.work == "events_unbound async_run_entry_fn"


def test_who_asked_for_what_and_where() -> None:
    (row,) = read(FAILURE).failures
    assert (row.what, row.comm, row.pid, row.order) == (PAGES, "kworker/u32:45", 19_318, 4)
    assert (row.gfp_mask, row.gfp_flags) == ("0x40c00", "GFP_NOIO|__GFP_COMP")
    assert (row.nodemask, row.cpuset, row.mems_allowed) == ("(null)", "/", "0")
    assert (row.work, row.caller) == (
        "events_unbound async_run_entry_fn", "sd_revalidate_disk.isra.0 [sd_mod]",
    )  # fmt: skip
    assert row.stack and row.stack.startswith("ret_from_fork_asm;process_one_work;")
    assert "srso_return_thunk" not in row.stack  # left from another call
    assert (row.seconds, row.lacks) == (100.0, None)


def test_the_memory_that_there_was() -> None:
    found = read(FAILURE)
    (row,) = found.failures
    assert (row.usable_free_bytes, row.suitable_blocks) == (59_200 << 10, 0)
    values = {(each.node, each.zone, each.counter): each.bytes for each in found.memory}
    assert values[0, "Normal", "min"] == 44_088 << 10
    assert values[-1, "", "slab_unreclaimable"] == 22_110 * 4096
    assert sum(each.blocks << each.order for each in found.blocks) * 4096 == 59_200 << 10


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("swapper/0: page allocation failure: order:1, mode:0x20",
         (PAGES, "swapper/0", 1, None, "0x20", None, None)),
        ("swapper: page allocation failure. order:1, mode:0x20",  # RHEL 6
         (PAGES, "swapper", 1, None, "0x20", None, None)),
        ("vmalloc: allocation failure: 37798136 bytes\ninsmod: page allocation failure: order:0, "
         "mode:0xd2", (VMALLOC, "insmod", None, 37798136, "0xd2", None, None)),
        ("a b: page allocation failure: order:0, mode:0x2080020(GFP_ATOMIC)",
         (PAGES, "a b", 0, None, "0x2080020", None, None)),
        ("x: page allocation stalls for 10040ms, order:1, mode:0x14000c0(GFP_KERNEL), "
         "nodemask=(null)", (STALL, "x", 1, None, "0x14000c0", 10_040, "(null)")),
        ("x: vmalloc error: size 4096, failed to allocate pages, mode:0xcc0(GFP_KERNEL), "
         "nodemask=(null),cpuset=/,mems_allowed=0-1",
         (VMALLOC, "x", None, 4096, "0xcc0", None, "(null)")),
        ("x: vmalloc: allocation failure: 8192 bytes, mode:0x14000c0(GFP_KERNEL), nodemask=0",
         (VMALLOC, "x", None, 8192, "0x14000c0", None, "0")),
    ],
)  # fmt: skip
def test_lines_of_other_kernels(line: str, expected: tuple[object, ...]) -> None:
    (row,) = read(raw(line)).failures
    assert expected == (
        row.what, row.comm, row.order, row.size_bytes, row.gfp_mask, row.stalled_ms, row.nodemask,
    )  # fmt: skip
    assert row.lacks == "the memory that there was"


MIXED = [
    # A call of pr_cont() each, as 4.9 has it.
    "swapper/8: \nswapper/6: \npage allocation failure: order:0page allocation failure: order:0, "
    "mode:0x2080020(GFP_ATOMIC)\n, mode:0x2080020(GFP_ATOMIC)",
    "page allocation failure: order:0, mode:0x20(GFP_ATOMIC)\npage allocation failure: order:0 "
    "0000000000000000\n, mode:0x20(GFP_ATOMIC)",
]


@pytest.mark.parametrize("lines", MIXED)
def test_failures_of_several_cpus_in_one_line_are_told(lines: str) -> None:
    rest = FAILURE.partition("\n")[2]
    text = raw(lines) + rest
    log = parse_dmesg(text)
    found = read_allocation_failures(log.records)
    assert [(row.order, row.comm, row.caller) for row in found.failures] == [(0, None, None)] * 2
    assert all("several CPUs" in (row.lacks or "") for row in found.failures)
    assert not found.memory
    assert "messages of several CPUs are mixed" in " ".join(log.unread)


def test_the_stack_of_another_task_is_nobodys() -> None:
    head, *rest = FAILURE.splitlines(keepends=True)
    other = head.replace("kworker/u32:45", "swapper/1")
    assert other != head
    first, second = read("".join([head, other, *rest])).failures
    assert (first.comm, second.comm) == ("kworker/u32:45", "swapper/1")
    assert first.stack is second.stack is None
    assert "whose stack" in (second.lacks or "")


def test_a_name_that_was_replaced_leaves_the_rest() -> None:
    head, rest = FAILURE.split("\n", 1)
    (row,) = read(head.replace("kworker/u32:45", "xxxx") + "\n" + rest).failures
    (whole,) = read(FAILURE).failures
    assert (row.stack, row.usable_free_bytes) == (whole.stack, whole.usable_free_bytes)


def test_a_failure_whose_head_is_cut_off() -> None:
    found = read(FAILURE.partition("\n")[2])
    (row,) = found.failures
    (whole,) = read(FAILURE).failures
    assert (row.what, row.comm, row.pid) == (PAGES, whole.comm, whole.pid)
    assert row.order is row.gfp_mask is row.usable_free_bytes is None
    assert row.caller == whole.caller
    assert row.lacks == "the line that says what failed"
    assert found.memory == read(FAILURE).memory


def test_a_stack_that_waits_while_it_is_printed_is_no_failure() -> None:
    stuck = raw("""
CPU: 1 PID: 7 Comm: kworker/1:0 Not tainted 6.1.0 #1
Call Trace:
 console_unlock+0x1/0x2
 dump_stack+0x1/0x2
 warn_alloc+0x1/0x2
 __alloc_pages+0x1/0x2
""")
    assert not read(stuck).failures
    assert len(read(stuck.replace("console_unlock", "dump_stack_lvl")).failures) == 1


def test_a_name_that_cannot_be_one_is_not_shown() -> None:
    (row,) = read("alpha beta gamma x: page allocation failure: order:1, mode:0x20\n").failures
    assert row.comm is None


def test_the_memory_of_the_oom_killer_is_not_the_failures() -> None:
    short = raw(FAILURE.splitlines()[0].partition("] ")[2])
    found = read(short + GLOBAL_3_10)
    assert (len(found.failures), found.memory) == (1, [])


def test_two_failures_have_each_their_own_memory() -> None:
    twice = read(FAILURE + FAILURE.replace("free:59200kB", "free:59196kB"))
    assert [row.failure for row in twice.failures] == [1, 2]
    free = [row.bytes for row in twice.memory if (row.zone, row.counter) == ("Normal", "free")]
    assert free == [59_200 << 10, 59_196 << 10]


def test_lines_of_other_tasks_are_not_its() -> None:
    records = [replace(each, caller="T7") for each in parse_dmesg(FAILURE).records]
    other = [replace(each, caller="T8") for each in parse_dmesg(GLOBAL_3_10).records]
    mixed = [each for pair in zip(records, other, strict=False) for each in pair]
    mixed += records[len(other) :]
    # Another CPU's call of the OOM killer ends nothing of this task's.
    same = [each for each in mixed if "invoked oom-killer" not in each.text]
    assert read_allocation_failures(same) == read_allocation_failures(records)


def test_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_failures, "MOST_FAILURES", 2)
    found = read(FAILURE * 5)
    assert (len(found.failures), found.left_out) == (2, 3)


@given(st.lists(st.sampled_from([line for text in TEXTS.values() for line in text.split("\n")])))
def test_any_log_gives_rows_that_can_be(lines: list[str]) -> None:
    text = "\n".join(lines)
    if not text.strip():
        return
    for rows in read(text)[:3]:
        if rows:
            assert not rows_that_cannot_be("x", columns(type(rows[0])), rows, Machine())


def test_memory_that_sysrq_printed_later_is_not_its() -> None:
    head, _, memory = FAILURE.partition("Mem-Info:")
    for words in ("sysrq: Show Memory", "SysRq : Show Memory"):
        (row,) = read_allocation_failures(
            parse_dmesg(f"{head}\n<6>[  900.000000] {words}\n<4>[  900.000001] {memory}").records
        ).failures
        assert (row.usable_free_bytes, row.lacks) == (None, "the memory that there was")


def test_the_caller_is_not_in_a_stack_that_another_task_printed_in_between() -> None:
    """A log without callers: the stack of an allocation that failed begins with warn_alloc()."""
    text = FAILURE.replace(" <TASK>", " kasan_report+0x1/0x2", 1)
    (other,), (failure,) = (read_allocation_failures(parse_dmesg(each).records).failures
                            for each in (text, FAILURE))  # fmt: skip
    assert "kasan_report" in (other.stack or "")
    assert other.caller == failure.caller


def test_the_caller_on_arm_is_no_function_that_prints_the_stack() -> None:
    text = """
systemd: page allocation failure: order:0, mode:0x20
[<c000f780>] (unwind_backtrace) from [<c000d20c>] (show_stack+0x10/0x14)
[<c000d20c>] (show_stack) from [<c009bf44>] (warn_alloc_failed+0xdc/0x124)
[<c009bf44>] (warn_alloc_failed) from [<c009e194>] (__alloc_pages_nodemask+0x178/0x860)
[<c009e194>] (__alloc_pages_nodemask) from [<c009ea7c>] (__alloc_page_frag+0x160/0x194)
[<c009ea7c>] (__alloc_page_frag) from [<c051aa84>] (__netdev_alloc_skb+0x84/0xec)
[<c051aa84>] (__netdev_alloc_skb) from [<bf17c574>] (rx_done+0xac/0x1bc [usb_x])
[<bf17c574>] (rx_done [usb_x]) from [<c03f08c8>] (giveback+0x70/0x108)
"""
    (failure,) = read_allocation_failures(parse_dmesg(raw(text)).records).failures
    assert failure.caller == "rx_done [usb_x]"
