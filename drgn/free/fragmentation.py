# SPDX-License-Identifier: LGPL-2.1-or-later
"""
External fragmentation of a zone, of its free blocks by order.

Cannot know: what a request may take, as all migratetypes count.
"""


def thp_order(page_size: int | None) -> int | None:
    """HPAGE_PMD_ORDER: a PMD maps one page of page table entries of eight bytes."""
    if page_size is None or page_size < 4096 or page_size & (page_size - 1):
        return None
    return page_size.bit_length() - 1 - 3


def unusable_free_index(blocks: dict[int, int], order: int) -> float:
    """
    ``unusable_free_index()`` (mm/vmstat.c), with the kernel's own rounding to thousandths.

    The share of free memory that lies in blocks too small for a request of this order. No free
    memory at all counts as all unusable, as it does there.

    :param blocks: free blocks of all migratetypes by order.
    """
    free = sum(number << size for size, number in blocks.items())
    if not free:
        return 1.0
    suitable = sum(number << size - order for size, number in blocks.items() if size >= order)
    return ((free - (suitable << order)) * 1000 // free) / 1000
