# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which page frames a kdump-compressed file has where, and copies that end within one of them."""

import os
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.dumps.core_file import PAGE_DESCRIPTOR, read_kdump

PAGE = 4096


def frames_in(dump: Path) -> list[int]:
    """The page frames that are in a dump."""
    kdump = read_kdump(dump)
    assert kdump is not None
    begin, size = kdump.bitmaps + kdump.bitmap_bytes, kdump.bitmap_bytes
    bits = np.unpackbits(np.fromfile(dump, np.uint8, size, offset=begin), bitorder="little")
    frames: list[int] = np.flatnonzero(bits).tolist()
    return frames


def numbers_of(dump: Path, frames: list[int]) -> NDArray[np.int64]:
    """Which of the dump's pages these page frames are; they are all there."""
    kdump = read_kdump(dump)
    assert kdump is not None
    size = kdump.bitmap_bytes
    bits = np.unpackbits(
        np.fromfile(dump, np.uint8, size, offset=kdump.bitmaps + size), bitorder="little"
    )
    assert bits[frames].all()
    numbers: NDArray[np.int64] = np.cumsum(bits, dtype=np.int64)[frames] - 1
    return numbers


def descriptors(dump: Path, frames: list[int]) -> NDArray[np.void]:
    kdump = read_kdump(dump)
    assert kdump is not None
    numbers = numbers_of(dump, frames)
    begin = kdump.descriptors
    every = np.fromfile(dump, PAGE_DESCRIPTOR, int(numbers.max()) + 1, offset=begin)
    return every[numbers]


def cut_across(
    dump: Path, folder: Path, frames: list[int], which: int
) -> tuple[Path, NDArray[np.bool_]]:
    """
    A copy that ends within the data of one of these page frames, where a page of the file begins if
    there one does; and of each of the frames whether it is there.
    """
    cut, described = folder / "cut", descriptors(dump, frames)
    begins = described["offset"].astype(np.int64)
    ends = begins + described["size"]
    crossing = np.flatnonzero(begins // PAGE < (ends - 1) // PAGE)
    across = int(crossing[np.searchsorted(crossing, which)])
    end = (int(ends[across]) - 1) // PAGE * PAGE
    assert begins[across] < end < ends[across]
    shutil.copy(dump, cut)
    os.truncate(cut, end)
    return cut, ends <= end


def about(which: int, of: int) -> list[int]:
    """Of so many pages of a cut dump those about the end, and of the others each 16th."""
    return sorted({*range(max(0, which - 512), min(of, which + 512)), *range(0, of, 16)})
