# SPDX-License-Identifier: LGPL-2.1-or-later
"""Enumerators of the kernel that not every kernel has, and numbers that VMCOREINFO says."""

from drgn import Program

from mmscope.drgn.opening.no_debug_info import vmcoreinfo


def constant(prog: Program, name: str, otherwise: int) -> int:
    """The value of an enumerator, or what stands for it in a kernel that has none of that name."""
    try:
        return int(prog.constant(name).value_())
    except LookupError:
        return otherwise


def flag(prog: Program, name: str, otherwise: int = 0) -> int:
    """The bit whose number an enumerator is, or what stands for it; 0 is in no flags."""
    bit = constant(prog, name, -1)
    return otherwise if bit < 0 else 1 << bit


def vmcoreinfo_number(prog: Program, name: str) -> int | None:
    """``NUMBER(name)`` of VMCOREINFO; None if this kernel's does not say it."""
    said = vmcoreinfo(prog).get(f"NUMBER({name})")
    return None if said is None else int(said)
