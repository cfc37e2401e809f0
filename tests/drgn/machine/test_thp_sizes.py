# SPDX-License-Identifier: LGPL-2.1-or-later
"""Huge pages by size, from a tree."""

from pathlib import Path

import pytest

from mmscope.drgn.machine.thp_sizes import FOLDER, ThpSize, thp_sizes_from_files
from mmscope.drgn.sections.files import Absent, Files


def tree(path: Path, **files: str) -> Files:
    for name, text in files.items():
        size, _, counter = name.partition("_")
        file = path / FOLDER / f"hugepages-{size[1:]}kB" / "stats" / counter
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Files(path)


def test_sizes_stand_in_their_order_without_what_is_zero(tmp_path: Path) -> None:
    files = tree(
        tmp_path, k2048_anon_fault_alloc="7\n", k64_swpout="5\n", k64_anon_fault_alloc="0\n",
        k64_a_new_one="9\n",
    )  # fmt: skip
    found = thp_sizes_from_files(files)
    assert found.by_name["thp_sizes"] == [
        ThpSize(64 << 10, "a_new_one", 9), ThpSize(64 << 10, "swpout", 5),
        ThpSize(2 << 20, "anon_fault_alloc", 7),
    ]  # fmt: skip
    assert not found.notes


def test_what_is_no_number_is_said(tmp_path: Path) -> None:
    found = thp_sizes_from_files(tree(tmp_path, k64_swpout="many\n", k64_split="3\n"))
    assert found.by_name["thp_sizes"] == [ThpSize(64 << 10, "split", 3)]
    assert found.notes == ["1 counter could not be read"]


def test_a_kernel_without_it(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "hugepages-64kB").mkdir(parents=True)
    with pytest.raises(Absent, match="does not count huge pages by size"):
        thp_sizes_from_files(Files(tmp_path))
