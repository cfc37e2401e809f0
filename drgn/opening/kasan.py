# SPDX-License-Identifier: LGPL-2.1-or-later
"""
KASAN's shadow, a byte for eight: how long a global really is.

Behind each global the compiler leaves a red zone, which belongs to no symbol: the distance to the
next one is too long then. A byte of the shadow is 0 where all eight may be used, 1 to 7 where so
many may, and 0xF9 in the red zone of a global (mm/kasan/kasan.h). Costs a read, nothing without
KASAN. Cannot know: where the shadow is on other architectures than x86-64.
"""

from drgn import Architecture, Program

# CONFIG_KASAN_SHADOW_OFFSET, which cannot be chosen: "x86_64: add KASan support" (ef7f0d6a6ca8, in
# v4.0).
OFFSET, SCALE_SHIFT = 0xDFFF_FC00_0000_0000, 3
EARLY_PAGE = "kasan_early_shadow_page"  # which only kernels have that have a shadow
GLOBAL_REDZONE = 0xF9


def shadow_address(address: int) -> int:
    """Address of the shadow of a kernel address, on x86-64."""
    return (OFFSET + (address >> SCALE_SHIFT)) % 2**64


def has_known_place(prog: Program) -> bool:
    """True if it is known where this architecture has the shadow."""
    return prog.platform is not None and prog.platform.arch == Architecture.X86_64


def without_redzone(shadow: bytes, room: int) -> int:
    """Number of the *room* bytes from an address on that are not red zone, by their shadow."""
    end = shadow.find(GLOBAL_REDZONE)
    if end < 0:
        return room
    if end and 0 < shadow[end - 1] < 8:
        return (end - 1 << SCALE_SHIFT) + shadow[end - 1]
    return end << SCALE_SHIFT
