# SPDX-License-Identifier: LGPL-2.1-or-later
"""What sharing would save of device memory's struct pages, where the architecture shares them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drgn import Architecture, Platform, PlatformFlags, Program

from mmscope.drgn.free.device_ranges import PagemapRange
from mmscope.drgn.struct_pages import device_pagemaps as probe
from mmscope.drgn.struct_pages.device_pagemaps import device_pagemaps

LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
GIB = 1 << 30


@pytest.mark.parametrize(
    ("pagemap", "struct_page", "says"),
    [
        (("FS_DAX", 0, False), 64, "a pmem disk (fsdax) is used in base pages"),
        (("GENERIC", 0, False), 64, "this device-dax is used in base pages"),
        (("PRIVATE", 0, False), 64, "the device is used in base pages"),
        (("GENERIC", 9, True), 64, "they lie on the device (an altmap)"),
        (("GENERIC", 9, False), 72, "struct page has 72 bytes, no power of two"),
        (("GENERIC", 7, False), 64, "those of a page fill 2 frames or less"),
        # Nothing says so: a section that had struct pages before.
        (("GENERIC", 9, False), 64, "they were there before the device came, or the kernel cannot"),
    ],
)
def test_why_struct_pages_share_nothing(
    monkeypatch: pytest.MonkeyPatch, pagemap: tuple[str, int, bool], struct_page: int, says: str
) -> None:
    monkeypatch.setattr(probe, "io_resources", lambda prog: [[]])
    monkeypatch.setattr(probe, "names_at", lambda resources, lasts: ["dax0.0"])
    monkeypatch.setattr(probe, "has_compound_pages", lambda prog: True)
    prog = Program(Platform(Architecture.X86_64, LITTLE))
    ranges = [PagemapRange(0, GIB >> 12, *pagemap)]
    where: Any = SimpleNamespace(page_shift=12, page_bytes=struct_page)
    (row,) = device_pagemaps(prog, where, ranges, np.zeros((1, 4), np.int64), {})
    assert row.not_shared.startswith(says)


@pytest.mark.parametrize(
    ("architecture", "page_shift", "shared", "saves"),
    [
        # Two of the eight pages of a PMD's struct pages remain.
        (Architecture.X86_64, 12, 0, 12 << 20),
        (Architecture.X86_64, 12, 4 << 20, 8 << 20),
        (Architecture.AARCH64, 12, 0, 0),
        (Architecture.AARCH64, 14, 0, 0),
        # One of before v6.4, which shares some already.
        (Architecture.AARCH64, 14, 1 << 20, 2 << 20),
    ],
)
def test_what_would_be_saved_is_of_an_architecture_that_shares(
    monkeypatch: pytest.MonkeyPatch,
    architecture: Architecture,
    page_shift: int,
    shared: int,
    saves: int,
) -> None:
    monkeypatch.setattr(probe, "io_resources", lambda prog: [[]])
    monkeypatch.setattr(probe, "names_at", lambda resources, lasts: ["namespace0.0"])
    monkeypatch.setattr(probe, "has_compound_pages", lambda prog: True)
    prog = Program(Platform(architecture, LITTLE))
    ranges = [PagemapRange(0, GIB >> page_shift, "FS_DAX", 0, False)]
    memmap = 64 * (GIB >> page_shift)
    amounts = np.array([[memmap, memmap - shared, 0, shared]])
    where: Any = SimpleNamespace(page_shift=page_shift, page_bytes=64)
    (row,) = device_pagemaps(prog, where, ranges, amounts, {})
    assert (row.memmap_bytes, row.vmemmap_saved_bytes) == (memmap, shared)
    assert row.vmemmap_reclaimable_bytes == saves
