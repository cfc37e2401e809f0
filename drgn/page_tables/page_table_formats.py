# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bits of page-table entries, by architecture: data, and what is computed with it.

Which format a kernel has is read off VMCOREINFO and off what the kernel keeps of its own entries;
costs some lookups.

Cannot know: an architecture that is not here, and a kernel whose entries are none of those that
there have been.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from drgn import Architecture, FaultError, Program

from mmscope.drgn.opening.constants import constant, vmcoreinfo_number
from mmscope.drgn.reading.kernel_arrays import Bools, U8s, U64s

Entries = U64s


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tree: what its tables are called, and how much an entry maps."""

    name: str  # pgd, p4d, pud, pmd, pte
    shift: int  # an entry maps 1 << shift bytes of addresses
    leaf: bool  # its entries may map memory; in all but the last level they may lead to tables too


@dataclass(frozen=True, slots=True)
class PageTableFormat:
    """
    The bits of an architecture's entries, which are 64 bits each.

    A bit test is (mask, value): true where ``entry & mask == value``.
    """

    levels: tuple[Level, ...]  # from the root down
    page_shift: int
    user_end: int  # first address after those of a process
    ignored: int  # bits that a none entry may have
    present: int  # any of these in a last-level entry: it maps a page, if only for the kernel
    present_leaf: int  # the same in the entries of upper levels
    table: tuple[int, int]  # in upper levels: leads to a table
    large: tuple[int, int]  # in upper levels: maps memory, if present
    address: int  # physical address, the encryption bit left out
    address_high: tuple[int, int]  # where its bits from 48 or 50 on are, and by how much they move
    read_only: tuple[int, int]
    special: int  # pte_special(): no struct page counts this mapping
    contiguous: int  # this entry and its neighbours map one stretch of memory; 0: there is no such
    # Entries without this bit hold their address inverted (L1TF); 0: never.
    inverted_without: int
    swap_type: tuple[int, int]  # of non-present entries: first bit, number of bits
    swap_offset: tuple[int, int]
    swap_offset_inverted: bool
    root_slots: int  # entries in the root table
    reserved: int = 0  # bits of the address that this CPU does not have
    valid: int = 1  # the CPU takes the entry for one that maps memory: _PAGE_PRESENT, PTE_VALID
    # Entries are big-endian, whatever the kernel is. Roots and PUD tables are objects of slab
    # caches. Deposited tables are linked by their own first words, as pgtable_t is the table, and
    # PMD tables of one page have one list (radix__pgtable_trans_huge_deposit()).
    powerpc: bool = False
    kernel_top: int = 1 << 64  # behind the kernel's addresses, all of which are under one root

    @property
    def last(self) -> int:
        """Index of the last level."""
        return len(self.levels) - 1

    @property
    def above_ptes(self) -> Level:
        """The level whose entries each lead to a table of PTEs, or map as much memory."""
        *_, above, _ = self.levels
        return above

    def slots(self, level: int) -> int:
        """Entries in a table of a level."""
        if level == 0:
            return self.root_slots
        return 1 << (self.levels[level - 1].shift - self.levels[level].shift)

    def table_bytes(self, level: int) -> int:
        """Bytes of a table of a level: a page, but for roots, and on powerpc."""
        return 8 * self.slots(level)

    @property
    def span(self) -> int:
        """Bytes of addresses under one root."""
        return self.root_slots << self.levels[0].shift

    @property
    def kernel(self) -> tuple[int, int]:
        """The addresses under the kernel's root: the first, and behind the last."""
        return self.kernel_top - self.span, self.kernel_top

    def is_none(self, entries: Entries) -> Bools:
        """``pte_none()``, ``pmd_none()`` and those of the levels above."""
        return _matches(entries, (~self.ignored & MAX, 0))

    def is_table(self, entries: Entries, level: int) -> Bools:
        """The entry leads to a table of the next level."""
        if level == self.last:
            return np.zeros(entries.shape, np.bool_)
        return _matches(entries, self.table)

    def is_leaf(self, entries: Entries, level: int) -> Bools:
        """
        The entry maps memory: ``pte_present()``, ``pmd_leaf()`` or ``pud_leaf()``.

        PROT_NONE and NUMA-hinting entries, which fault for user space, are among them.
        """
        if not self.levels[level].leaf:
            return np.zeros(entries.shape, np.bool_)
        if level == self.last:
            return ~_matches(entries, (self.present, 0))
        return _matches(entries, self.large) & ~_matches(entries, (self.present_leaf, 0))

    def is_writable(self, entries: Entries) -> Bools:
        """True of entries that map memory which may be written to."""
        return ~_matches(entries, self.read_only)

    def is_special(self, entries: Entries) -> Bools:
        """``pte_special()`` of entries that map memory."""
        return ~_matches(entries, (self.special, 0))

    def physical(self, entries: Entries, level: int | None = None) -> Entries:
        """
        Physical addresses.

        :param level: of entries that map memory; none of entries that lead to tables.
        """
        if self.inverted_without:
            inverted = (entries & np.uint64(self.inverted_without)) == 0
            entries = np.where(inverted, ~entries, entries)
        mask = self.address
        if level is not None:
            # Large leaves have flags (x86: PAT) where smaller ones have address bits.
            mask &= ~((1 << self.levels[level].shift) - 1)
        result: Entries = entries & np.uint64(mask)
        high, shift = self.address_high
        if high:
            result |= (entries & np.uint64(high)) << np.uint64(shift)
        return result

    def swap(self, entries: Entries) -> tuple[U8s, Entries]:
        """(type, offset) of non-present entries: ``__pte_to_swp_entry()``."""
        start, bits = self.swap_type
        types = (entries >> np.uint64(start)) & np.uint64((1 << bits) - 1)
        start, bits = self.swap_offset
        offsets = ~entries if self.swap_offset_inverted else entries
        return types.astype(np.uint8), (offsets >> np.uint64(start)) & np.uint64((1 << bits) - 1)


MAX = (1 << 64) - 1


def _matches(entries: Entries, test: tuple[int, int]) -> Bools:
    mask, value = test
    result: Bools = (entries & np.uint64(mask)) == np.uint64(value)
    return result


# arch/x86/include/asm/pgtable_types.h, pgtable_64.h (the swap entry), pgtable-invert.h.
X86_64 = PageTableFormat(
    levels=(
        Level("pgd", 39, False),
        Level("pud", 30, True),
        Level("pmd", 21, True),
        Level("pte", 12, True),
    ),
    page_shift=12,
    user_end=1 << 47,
    ignored=0x60,  # _PAGE_ACCESSED, _PAGE_DIRTY: a processor erratum sets them
    present=0x101,  # _PAGE_PRESENT, _PAGE_PROTNONE
    present_leaf=0x181,  # and _PAGE_PSE: pmd_present() while a huge page is being split
    table=(0x81, 0x01),
    large=(0x80, 0x80),  # _PAGE_PSE
    address=0x000F_FFFF_FFFF_F000,
    address_high=(0, 0),
    read_only=(0x02, 0),  # _PAGE_RW
    special=0x200,  # _PAGE_SOFTW1
    contiguous=0,
    inverted_without=0x01,
    swap_type=(59, 5),
    swap_offset=(9, 50),
    swap_offset_inverted=True,
    root_slots=512,
)

X86_64_5_LEVELS = replace(
    X86_64,
    levels=(Level("pgd", 48, False), Level("p4d", 39, False), *X86_64.levels[1:]),
    user_end=1 << 56,
)

# Below the PGD, from five levels on.
ARM64_LEVELS = ("p4d", "pud", "pmd", "pte")

# What has differed among arm64's entries (arch/arm64/include/asm/pgtable{,-prot}.h), the newest
# first. PTE_PRESENT_INVALID is the bit PTE_NG of entries that are not valid (6.12, 7.2).
ARM64_ENTRIES: dict[str, Any] = {
    "present": 0x801,
    "present_leaf": 0x801,
    "swap_type": (6, 5),
    "swap_offset": (12, 50),
}
# PTE_PROT_NONE, and PMD_PRESENT_INVALID for PMDs (6.1).
ARM64_ENTRIES_BEFORE: dict[str, Any] = {
    "present": 1 | 1 << 58,
    "present_leaf": 1 | 1 << 58 | 1 << 59,
    "swap_type": (3, 5),
    "swap_offset": (8, 50),
}
# The same without PTE_SWP_EXCLUSIVE, whose bit was the type's (5.10).
ARM64_ENTRIES_FIRST = ARM64_ENTRIES_BEFORE | {"swap_type": (2, 6)}
# The bits that PAGE_NONE has, and a valid entry need not have.
ARM64_NONE, ARM64_NONE_BEFORE = 1 << 11, 1 << 58


def arm64_format(
    page_shift: int, bits: int, user_bits: int, entries: Mapping[str, Any]
) -> PageTableFormat:
    """
    The format of an arm64 kernel.

    :param page_shift: 12, 14 or 16.
    :param bits: of addresses, those that its tables are made for.
    :param user_bits: of a process's addresses.
    """
    per_level = page_shift - 3
    count = -(-(bits - page_shift) // per_level)
    shifts = [page_shift + per_level * up for up in reversed(range(count))]
    names = ("pgd", *ARM64_LEVELS[5 - count :])
    # A PGD of four or five levels has no entries that map memory; of fewer, it is a PUD or a PMD
    # too.
    leaves = [name not in ("pgd", "p4d") or count < 4 for name in names]
    # LPA2 comes with addresses of 52 bits, never alone.
    lpa2 = page_shift < 16 and bits > 48
    high = (0xF << 12, 36) if page_shift == 16 else (0x3 << 8, 42) if lpa2 else (0, 0)
    return PageTableFormat(
        levels=tuple(map(Level, names, shifts, leaves)),
        page_shift=page_shift,
        user_end=1 << user_bits,
        ignored=0,
        table=(0x3, 0x3),
        large=(0x2, 0),  # bit 1 tells a block from a table, whether the entry is valid or not
        address=(1 << (50 if lpa2 else 48)) - (1 << page_shift),
        address_high=high,
        # PTE_RDONLY, without PTE_WRITE, with which the CPU clears it. 6.1 maps blocks of its own
        # with neither (PROT_SECT_NORMAL).
        read_only=(1 << 7 | 1 << 51, 1 << 7),
        special=1 << 56,  # PTE_SPECIAL
        contiguous=1 << 52,  # PTE_CONT
        inverted_without=0,
        swap_offset_inverted=False,
        root_slots=1 << (bits - shifts[0]),
        **entries,
    )


# Radix tables of 64-bit powerpc (arch/powerpc/include/asm/book3s/64/{pgtable,radix,radix-4k,
# radix-64k}.h, 5.10 to 7.3): those of PTEs and PMDs share pages, where pages are 64 KiB.
PPC64_RADIX = PageTableFormat(
    levels=(
        Level("pgd", 39, False),
        Level("pud", 30, True),
        Level("pmd", 21, True),
        Level("pte", 12, True),
    ),
    page_shift=12,
    user_end=1 << 52,
    ignored=0,
    present=1 << 63 | 1 << 61,  # _PAGE_PRESENT, _PAGE_INVALID: while it is changed
    present_leaf=1 << 63 | 1 << 61,
    table=(1 << 63 | 1 << 62, 1 << 63),  # without _PAGE_PTE
    large=(1 << 62, 1 << 62),
    address=0x000F_FFFF_FFFF_FF00,  # of PTE_RPN_MASK what a physical address can have
    address_high=(0, 0),
    read_only=(0x2, 0),  # _PAGE_WRITE
    special=0x400,  # _PAGE_SPECIAL
    contiguous=0,
    inverted_without=0,
    swap_type=(0, 5),
    swap_offset=(12, 45),
    swap_offset_inverted=False,
    root_slots=1 << 13,
    valid=1 << 63,
    powerpc=True,
    kernel_top=0xC010 << 48,
)
PPC64_RADIX_64K = replace(
    PPC64_RADIX,
    levels=(*PPC64_RADIX.levels[:-1], Level("pte", 16, True)),
    page_shift=16,
    swap_offset=(16, 41),
)
# MMU_FTR_TYPE_RADIX (arch/powerpc/include/asm/mmu.h).
RADIX_FEATURE = 0x40


def page_table_format(prog: Program) -> PageTableFormat:
    """
    The format of this kernel's page tables.

    :raises NotImplementedError: they are of an architecture that is not known here.
    :raises LookupError: the kernel does not show which of several formats it has.
    :raises ValueError: what VMCOREINFO says of them is damaged.
    """
    platform = prog.platform
    arch = platform.arch if platform is not None else None
    if arch is Architecture.X86_64:
        return _x86_format(prog)
    if arch is Architecture.AARCH64:
        return _arm64_format(prog)
    if arch is Architecture.PPC64:
        return _ppc64_format(prog)
    name = arch.name if arch is not None else "unknown"
    raise NotImplementedError(
        f"page tables of {name} are not known here, only x86-64's, arm64's and powerpc's radix"
    )


def _ppc64_format(prog: Program) -> PageTableFormat:
    if not int(prog["cur_cpu_spec"].mmu_features.value_()) & RADIX_FEATURE:
        raise NotImplementedError(
            "page tables of this machine are powerpc's hashed ones, which are not known here"
        )
    return PPC64_RADIX_64K if int(prog["PAGE_SHIFT"].value_()) == 16 else PPC64_RADIX


def _x86_format(prog: Program) -> PageTableFormat:
    five = vmcoreinfo_number(prog, "NUMBER(pgtable_l5_enabled)")
    # AMD's memory encryption marks encrypted pages with one of the address bits.
    encrypted = (vmcoreinfo_number(prog, "NUMBER(sme_mask)") or 0) & MAX
    chosen = X86_64_5_LEVELS if five else X86_64
    address = chosen.address & ~encrypted
    with contextlib.suppress(FaultError, LookupError, AttributeError):
        # Where a part of the bits encrypts memory, the kernel has taken them off
        # (early_detect_mem_encrypt(), arch/x86/kernel/cpu/amd.c).
        bits = int(prog["boot_cpu_data"].x86_phys_bits.value_())
        if 32 <= bits <= 52:
            return replace(chosen, address=address, reserved=address & ~((1 << bits) - 1))
    return replace(chosen, address=address)


def _arm64_format(prog: Program) -> PageTableFormat:
    """
    ``VA_BITS`` is what the kernel was built for; what the CPU let it have follows from
    ``TCR_EL1.T1SZ``. With pages of 4 and 16 KiB it then has a level less (``pgtable_l5_enabled()``,
    ``pgtable_l4_enabled()``); with 64 KiB its tables stay as they are, and processes have a part.
    """
    page_shift = int(prog["PAGE_SHIFT"].value_())
    built = vmcoreinfo_number(prog, "NUMBER(VA_BITS)")
    size = vmcoreinfo_number(prog, "NUMBER(TCR_EL1_T1SZ)", base=16)
    if built is None:
        raise LookupError("VMCOREINFO has no VA_BITS: how many levels there are is not known")
    bits = built if size is None else 64 - size
    if page_shift not in (12, 14, 16) or not 36 <= bits <= built <= 52:
        raise ValueError(
            f"VMCOREINFO is damaged: addresses of {bits} bits, of {built} at most, "
            f"with pages of {1 << page_shift:,} bytes"
        )
    return arm64_format(page_shift, built if page_shift == 16 else bits, bits, _arm64_entries(prog))


def _arm64_entries(prog: Program) -> Mapping[str, Any]:
    """
    The entries of this kernel, by its PAGE_NONE: ``protection_map[VM_NONE]``, neither valid nor
    none. The older ones have a bit of their own, and PTE_NG too; which of them it is, the flag of
    pages shows that came with the newer one (6c287605fd56, in v5.19).
    """
    exclusive = constant(prog, "PG_anon_exclusive", -1) >= 0
    before = ARM64_ENTRIES_BEFORE if exclusive else ARM64_ENTRIES_FIRST
    none = int(prog["protection_map"][0].pgprot.value_())
    for bit, entries in ((ARM64_NONE_BEFORE, before), (ARM64_NONE, ARM64_ENTRIES)):
        if none & bit and not none & 1:
            return entries
    raise LookupError(f"PAGE_NONE is {none:#x}: neither of the ways of arm64 that are known here")
