# SPDX-License-Identifier: LGPL-2.1-or-later
"""A task's own frames in a picture of the kernel: each run of them is one."""

import itertools

import pytest

from mmscope.reports.drawing.flame_graph import USER_CODE
from mmscope.reports.pictures.profile_pictures import HIDDEN, comparable

FRAMES = ("main", "read", "", "_[k]x", "vfs_read_[k]", "ext4_map [ext4]_[k]", "_[k]", HIDDEN)


def expected(frames: tuple[str, ...]) -> str:
    """Frame by frame."""
    kept: list[str] = []
    for frame in frames:
        shown = frame if frame.endswith("_[k]") or frame == HIDDEN else USER_CODE
        if [shown] != kept[-1:] or shown != USER_CODE:
            kept.append(shown)
    return ";".join(kept)


@pytest.mark.parametrize("length", range(1, 5))
def test_each_run_is_one_frame_wherever_it_lies(length: int) -> None:
    stacks = [(";".join(("task", *each)), 1) for each in itertools.product(FRAMES, repeat=length)]
    expect = [(expected(each), 1) for each in itertools.product(FRAMES, repeat=length)]
    assert list(comparable(stacks)) == expect


def test_a_stack_of_a_task_alone_is_left_as_it_is() -> None:
    assert list(comparable([("task", 3)])) == [("task", 3)]
