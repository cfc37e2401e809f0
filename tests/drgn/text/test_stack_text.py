# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks as the kernel prints them."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmscope.drgn.text.stack_text import folded, is_stack
from mmscope.drgn.text.text_source import recognise

PIECES = [
    b"+0x",
    b"/0x",
    b"1f",
    b"a",
    b" ",
    b"\n",
    b"g",
    b"+",
    b"x",
    b"[m]",
    b"0",
    b"\xff",
    b"\x1b",
]


@given(st.lists(st.sampled_from(PIECES)).map(b"".join))
@example(b" a+0x1f/0x20 [m]\n b+0x0/0x1\n")
@example(b" a+0x/0x20\n b+0x1/0x\n c+0x1f/20\n")
def test_offsets_and_nothing_else_go(stack: bytes) -> None:
    left = re.sub(rb"\+0x[0-9a-f]+/0x[0-9a-f]+", b"", stack).decode("utf-8", "backslashreplace")
    frames = [frame[1:] for frame in left.split("\n") if frame]
    assert folded(stack) == ";".join(reversed(frames))


FRAME = re.compile(rb" [^ \n\[\];]+(?: \[[^ \n\[\];]+\])?")


@given(st.lists(st.sampled_from([*PIECES, b" f+0x1/0x2", b" f+0x1/0x2 [m]\n"])).map(b"".join))
@example(b" f+0x1/0x2 [m]\n f+0x1/0x2\n")
def test_what_is_a_stack_is_lines_of_frames(text: bytes) -> None:
    if is_stack(text):
        assert text.endswith(b"\n")
        assert all(FRAME.fullmatch(line) for line in text[:-1].split(b"\n"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"Page allocated via order 0, mask 0x0()\n", "page_owner"),
        (b" f+0x1/0x2\nnr_base_pages: 5\n\n", "show_stacks"),
        (b" f+0x1/0x2\nnr_base_pages: 5", "show_stacks"),
        (b"handle: 5\nnr_base_pages: 5\n\n", "show_handles"),
        (b"handle: -5\nn", "show_handles"),
        (b" f+0x1/0x2\nhandle: 5\n\n", "show_stacks_handles"),
        (b"cut short\n\nhandle: 5\nnr_base_pages: 5\n\n", "show_handles"),
        (b"f\n" * 9000 + b"nr_base_pages: 5\n\n", "show_stacks"),
        (b"handle: 5", None),
        (b"handle: x\n\n", None),
        (b"", None),
        (b"\n\n\n", None),
    ],
)
def test_which_file_it_is(text: bytes, kind: str | None) -> None:
    assert recognise(text) == kind
