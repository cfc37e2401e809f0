# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pressure of memory, as the kernel prints it and from a tree."""

from pathlib import Path

import pytest

from mmscope.drgn.cgroups.pressure import Pressure, from_files, read_pressure, totals_apart
from mmscope.drgn.sections.files import Absent, Files

TEXT = """some avg10=1.50 avg60=0.42 avg300=0.09 total=78013
full avg10=0.75 avg60=0.21 avg300=0.04 total=67974
"""


def tree(path: Path, **files: str) -> Files:
    for name, text in files.items():
        file = path / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Files(path)


def test_both_lines_are_read() -> None:
    assert read_pressure(TEXT, None) == [
        Pressure(None, "some", 1.5, 0.42, 0.09, 78013),
        Pressure(None, "full", 0.75, 0.21, 0.04, 67974),
    ]


@pytest.mark.parametrize("text", ["", "some avg10=x\n", "MemTotal: 5 kB\n"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no line of pressure"):
        read_pressure(text, None)


def test_cgroups_stand_after_the_machine_the_worst_first(tmp_path: Path) -> None:
    worse = TEXT.replace("avg60=0", "avg60=40")
    files = tree(
        tmp_path, proc__pressure__memory=TEXT, sys__fs__cgroup__a__memory_dot_current="1\n",
        sys__fs__cgroup__a__memory_dot_pressure=TEXT, sys__fs__cgroup__b__memory_dot_current="1\n",
        sys__fs__cgroup__b__memory_dot_pressure=worse, sys__fs__cgroup__c__memory_dot_current="1\n",
    )  # fmt: skip
    found = from_files(files)
    rows = found.by_name["memory_pressure"]
    assert [row.cgroup for row in rows] == [None, None, "/b", "/b", "/a", "/a"]
    assert rows[2].avg60 == 40.42
    assert found.remarks == ["memory.pressure of 1 cgroup is not there"]


def test_a_kernel_without_it(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no such file"):
        from_files(tree(tmp_path, proc__meminfo=""))


@pytest.mark.parametrize(
    ("some", "full", "groups"), [(50, 40, 0), (50, 50, 0), (500, 40, 1), (50, 500, 1), (50, 61, 1)]
)
def test_no_stall_is_longer_than_the_machine_runs_nor_whole_longer_than_in_part(
    some: int, full: int, groups: int
) -> None:
    rows = [
        Pressure("/a", kind, 0.0, 0.0, 0.0, seconds * 10**6)
        for kind, seconds in (("some", some), ("full", full))
    ]
    assert totals_apart(rows, boot_us=100 * 10**6) == groups
