# SPDX-License-Identifier: LGPL-2.1-or-later
"""/proc/PID/smaps_rollup as rows, of a tree of files."""

from pathlib import Path

import pytest
from checkout import TESTS

from mmscope.drgn.page_tables.process_shares import (
    ProcessShare,
    from_files,
    read_smaps_rollup,
)
from mmscope.drgn.sections.files import Absent, Files

HERE = TESTS
ROLLUP = (HERE / "corpus/smaps_rollup/7.2").read_text()
STATUS = HERE / "data/7.2/proc"


def test_what_a_kernel_prints(tmp_path: Path) -> None:
    kib = 1024
    assert read_smaps_rollup(ROLLUP, 7, "a") == ProcessShare(
        pid=7,
        comm="a",
        resident_bytes=11860 * kib,
        unique_bytes=3920 * kib,
        shared_bytes=(11860 - 3920) * kib,
        pss_bytes=6077 * kib,
        pss_anon_bytes=2067 * kib,
        pss_file_bytes=0,
        pss_shmem_bytes=4009 * kib,
        pss_locked_bytes=516 * kib,
        pss_swap_bytes=0 * kib,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "smaps_rollup is empty"),
        (ROLLUP[:-1], "cut short"),
        (ROLLUP.replace("[rollup]", "[heap]"), "damaged"),
        (ROLLUP.replace("Locked:", "Blocked:"), "has no Locked"),
        (ROLLUP.replace("Rss:            ", "Rss: x"), "damaged"),
        (ROLLUP.replace("6077", "9" * 19), "damaged"),
    ],
)
def test_damaged_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_smaps_rollup(text, 1, "a")


def tree(folder: Path, rollups: dict[int, str]) -> Files:
    """Of processes 2, a kernel thread, and others that are one process as often as wanted."""
    for pid in (2, *rollups):
        (folder / f"proc/{pid}").mkdir(parents=True)
        status = (STATUS / ("2/status" if pid == 2 else "115/status")).read_text()
        (folder / f"proc/{pid}/status").write_text(status.replace("115", str(pid)))
    for pid, text in rollups.items():
        if text:
            (folder / f"proc/{pid}/smaps_rollup").write_text(text)
    return Files(folder)


def test_a_tree_has_all_its_processes(tmp_path: Path) -> None:
    less = ROLLUP.replace("6077", "77")
    found = from_files(tree(tmp_path, {10: less, 11: ROLLUP, 12: ROLLUP[:-1], 13: ""}))
    rows = found.by_name["process_shares"]
    assert [(row.pid, row.comm, row.pss_bytes >> 10) for row in rows] == [
        (11, "breadth", 6077),
        (10, "breadth", 77),
    ]
    cut_short, none = found.notes
    assert "1 process not counted: smaps_rollup of 12" in cut_short and "cut short" in cut_short
    assert none == "1 process not counted: smaps_rollup of 13: no such file"


def test_a_tree_without_any_says_so(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="smaps_rollup of processes cannot be read"):
        from_files(tree(tmp_path, {}))
