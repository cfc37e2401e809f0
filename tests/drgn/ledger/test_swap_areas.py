# SPDX-License-Identifier: LGPL-2.1-or-later
"""/proc/swaps and what a zram device says, as rows. Areas out of memory: lab/test_swap.py."""

from pathlib import Path

import pytest

from mmscope.drgn.ledger.swap_areas import SwapArea, Zswap, from_files, read_swaps, used_slots
from mmscope.drgn.sections.files import Files

# As 6.1 and 7.2 print it.
SWAPS = """\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/vda5                               partition\t998396\t\t262144\t\t-2
/var/my\\040swap                         file\t\t1048572\t\t0\t\t-3
/dev/zram0                              partition\t16777212\t4096\t\t100
"""
MM_STAT = " 4194304  1048576  1310720        0  1310720       12        0        0        0\n"


def test_areas_are_those_that_are_printed() -> None:
    kib = 1 << 10
    assert read_swaps(SWAPS) == [
        SwapArea("/dev/vda5", "partition", 998396 * kib, 262144 * kib, -2, None, None, None),
        SwapArea("/var/my\\040swap", "file", 1048572 * kib, 0, -3, None, None, None),
        SwapArea("/dev/zram0", "partition", 16777212 * kib, 4096 * kib, 100, None, None, None),
    ]


def test_no_area_is_no_row() -> None:
    assert read_swaps(SWAPS.splitlines(keepends=True)[0]) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "/proc/swaps is empty"),
        (SWAPS[:-1], "cut short"),
        ("Node 0\n", "damaged: 'Node 0'"),
        (SWAPS.replace("262144", "2x"), "damaged: '/dev/vda5"),
        (SWAPS.replace("partition\t998396", "partition\t" + "9" * 30), "is not a count"),
    ],
)
def test_what_is_damaged_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("/", "/")):
        read_swaps(text)


@pytest.mark.parametrize(
    ("in_use", "pages", "used"),
    [
        (0, 1000, 0),
        (999, 1000, 999),
        (1000 | 1 << 62, 1000, 1000),  # 7.2: full, and on no list
        (1000 | 1 << 30, 1000, 1000),  # 6.14
        (7 | 1 << 30, 1000, 7),  # swapoff has taken it off the list
        (1 << 30, 1 << 31, 1 << 30),  # 4 TiB of 8
    ],
)
def test_what_marks_a_full_area_is_no_slot(in_use: int, pages: int, used: int) -> None:
    assert used_slots(in_use, pages) == used


def tree(root: Path, mm_stat: str | None) -> Files:
    (root / "proc").mkdir()
    (root / "proc/swaps").write_text(SWAPS)
    if mm_stat is not None:
        device = root / "sys/block/zram0"
        device.mkdir(parents=True)
        (device / "mm_stat").write_text(mm_stat)
    return Files(root)


MEMINFO = "MemTotal: 4096 kB\nZswap: {} kB\nZswapped:{} kB\nDirty: 0 kB\n"


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        (MEMINFO.format(2600, "  6144"), Zswap(True, "lzo", None, 6144 << 10, 2600 << 10)),
        ("MemTotal: 4096 kB\n", None),
        (MEMINFO.format("-1", "  6144"), None),
    ],
)
def test_what_zswap_stores_is_what_meminfo_says(
    tmp_path: Path, lines: str, row: Zswap | None
) -> None:
    files = tree(tmp_path, None)
    (tmp_path / "proc/meminfo").write_text(lines)
    for name, word in (("enabled", "Y\n"), ("compressor", "lzo\n")):
        parameters = tmp_path / "sys/module/zswap/parameters"
        parameters.mkdir(parents=True, exist_ok=True)
        (parameters / name).write_text(word)
    assert from_files(files).by_name["zswap"] == ([row] if row else [])


def test_numbers_of_zswap_that_cannot_be_are_said(tmp_path: Path) -> None:
    files = tree(tmp_path, None)
    (tmp_path / "proc/meminfo").write_text(MEMINFO.format(2600, " " + "9" * 20))
    found = from_files(files)
    assert "zswap" not in found.by_name and "zswap" in found.notes[0]


def zram(files: Files) -> tuple[int | None, int | None]:
    rows: list[SwapArea] = from_files(files).by_name["swap_areas"]
    return next((r.stored_bytes, r.memory_bytes) for r in rows if r.path == "/dev/zram0")


def test_a_zram_device_says_what_memory_it_takes(tmp_path: Path) -> None:
    assert zram(tree(tmp_path, MM_STAT)) == (4194304, 1310720)


@pytest.mark.parametrize("mm_stat", [None, "", "1 2\n", "a b c d\n"])
def test_of_one_that_does_not_it_is_unknown(tmp_path: Path, mm_stat: str | None) -> None:
    assert zram(tree(tmp_path, mm_stat)) == (None, None)
