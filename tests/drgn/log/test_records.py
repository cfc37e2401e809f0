# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of a stack as the kernels of each architecture print them."""

import pytest

from mmscope.drgn.log.records import STACK


@pytest.mark.parametrize(
    "line",
    [
        " oom_kill_process+0x3c8/0x3d0",
        " [<ffffffffa03c254d>] oom_kill_process+0x2cd/0x490",  # 3.10
        "[c000000002a3f7c0] [c0000000003f1a78] oom_kill_process+0x3c8/0x3d0",  # powerpc
        "[c000000002a3f7c0] [c0000000003f1a78] oom_kill_process+0x3c8/0x3d0 (unreliable)",
        " ([<0000000000112cdc>] oom_kill_process+0xe4/0x138)",  # s390
        " [<00000000a1b2c3d4>] oom_kill_process+0x8e/0xd0",
        "[<c034a094>] (oom_kill_process) from [<c034af24>]  (out_of_memory+0x140/0x368)",  # arm
        " oom_kill_process from out_of_memory+0x140/0x368",
        " oom_kill_process+0x7f/0xc0 mm/oom_kill.c:437",  # syzkaller
        " oom_kill_process (mm/oom_kill.c:437 (discriminator 3))",  # decode_stacktrace.sh
        " oom_kill_process (mm/oom_kill.c:437 ./include/linux/mm.h:5) vmw_x ",  # inlined, a module
    ],
)
def test_a_frame_is_its_function(line: str) -> None:
    match = STACK.fullmatch(line)
    assert match is not None
    assert match.groups() == (None, "oom_kill_process", None, None)


def test_a_guess_and_a_module_are_marked() -> None:
    match = STACK.fullmatch(" ? xfs_fault+0x37/0x40 [xfs 0123abcd]")
    assert match is not None
    assert match.groups() == ("? ", "xfs_fault", "xfs", None)


@pytest.mark.parametrize(
    ("line", "name", "module"),
    [
        ("[<bf17c574>] (rx_done [usb_x]) from [<c03f08c8>] (back+0x70/0x108)", "rx_done", "usb_x"),
        ("[<c051aa84>] (skb) from [<bf17c574>] (rx_done+0xac/0x1bc [usb_x])", "skb", None),
        (" rx_done [usb_x] from giveback+0x70/0x108", "rx_done", "usb_x"),
        (" alloc_skb from rx_done+0xac/0x1bc [usb_x]", "alloc_skb", None),
    ],
)  # fmt: skip
def test_of_arm_the_module_is_that_of_the_frame_and_not_of_its_caller(
    line: str, name: str, module: str | None
) -> None:
    match = STACK.fullmatch(line)
    assert match is not None
    assert (match[2], match[3] or match[4]) == (name, module)


@pytest.mark.parametrize("line", ["Mem-Info:", " total_vm", "eth0: up", "x (y:1)", "a from b"])
def test_other_lines_are_no_frames(line: str) -> None:
    assert STACK.fullmatch(line) is None
