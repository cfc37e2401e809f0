# SPDX-License-Identifier: LGPL-2.1-or-later
"""Enumerators that not every kernel has, and the numbers of VMCOREINFO."""

import re

from drgn import Architecture, Object, Program

from mmscope.drgn.opening.no_debug_info import vmcoreinfo
from mmscope.drgn.tables.hostile_text import cut


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


def yes_or_no(field: Object) -> bool:
    """
    A ``bool``, of which drgn takes any byte that is not 0 for yes.

    :raises ValueError: it is neither 0 nor 1, as no compiler leaves it.
    """
    if field.address_ is None:  # a value, which is either
        return bool(field.value_())
    if (byte := field.prog_.read_u8(field.address_)) > 1:
        raise ValueError(f"a bool at {field.address_:#x} is {byte}: damaged")
    return bool(byte)


def kernel_byte(prog: Program) -> int:
    """
    The upper byte of the kernel's addresses: all ones, with five levels of page tables too, but on
    ppc64 (PAGE_OFFSET, arch/powerpc/Kconfig and include/asm/page.h, 5.10 to 7.3).
    """
    return 0xC0 if is_powerpc(prog) else 0xFF


def is_powerpc(prog: Program) -> bool:
    """True of a kernel of 64-bit powerpc."""
    return prog.platform is not None and prog.platform.arch == Architecture.PPC64


def pmd_order(prog: Program) -> int:
    """
    HPAGE_PMD_ORDER: a PMD maps one page of page table entries of eight bytes; on powerpc 2 MiB,
    whatever a page is (arch/powerpc/include/asm/book3s/64/radix-4k.h, radix-64k.h).
    """
    shift = int(prog["PAGE_SHIFT"].value_())
    return 21 - shift if is_powerpc(prog) else shift - 3


def vmcoreinfo_number(prog: Program, key: str, *, base: int = 10) -> int | None:
    """
    A number of VMCOREINFO, such as ``NUMBER(phys_base)``; None if this kernel does not write it.

    :param base: 16 for what is written with ``%lx`` or ``0x%lx``, as KERNELOFFSET is.
    :raises ValueError: the line is damaged.
    """
    said = vmcoreinfo(prog).get(key)
    if said is None:
        return None
    if not re.fullmatch("(0x)?[0-9a-f]{1,16}" if base == 16 else "-?[0-9]{1,20}", said):
        raise ValueError(
            f"VMCOREINFO is damaged: {key} is {cut(said, 40)!r}, which is not a number"
        )
    return int(said, base)
