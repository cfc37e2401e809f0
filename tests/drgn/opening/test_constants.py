# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is a ``bool`` and what is none."""

import pytest
from drgn import Architecture, Object, Platform, Program

from mmscope.drgn.opening.constants import yes_or_no

AT = 0x1000


@pytest.mark.parametrize(("byte", "value"), [(0, False), (1, True)])
def test_a_bool_is_zero_or_one(byte: int, value: bool) -> None:
    assert yes_or_no(bool_of(byte)) is value


@pytest.mark.parametrize("byte", [2, 32, 255])
def test_anything_else_is_damage(byte: int) -> None:
    with pytest.raises(ValueError, match=f"a bool at 0x1000 is {byte}: damaged"):
        yes_or_no(bool_of(byte))


def bool_of(byte: int) -> Object:
    prog = Program(Platform(Architecture.X86_64))
    prog.add_memory_segment(AT, 1, lambda *_: bytes([byte]))
    return Object(prog, prog.bool_type("_Bool", 1, "little"), address=AT)
