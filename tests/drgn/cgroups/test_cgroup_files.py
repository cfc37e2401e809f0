# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory cgroups out of trees of text: cgroup v1, trees that are cut off, hostile ones. What a kernel
printed of cgroup v2 is in tests/lab/test_cgroups.py.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from mmscope.drgn.cgroups import cgroup_files
from mmscope.drgn.cgroups.cgroup_files import memory_cgroups_from_files
from mmscope.drgn.cgroups.cgroup_rows import V1 as OF_V1
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.section import Found

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
MIB = 1 << 20


def put(root: Path, folder: str, **files: str) -> None:
    """Files ``memory.*`` of a cgroup; an underscore is a dot."""
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / f"memory.{name.replace('__', '.')}").write_text(text)


def read(root: Path) -> Found:
    return memory_cgroups_from_files(Files(root))


def rows(root: Path) -> list[Any]:
    return read(root).by_name["memory_cgroups"]


def test_the_root_of_v2_has_no_memory_current_and_those_below_it_do(tmp_path: Path) -> None:
    put(tmp_path, V2, stat="anon 4096\n")
    put(tmp_path, f"{V2}/a.slice", current="8192\n", max="max\n", stat="anon 4096\nfile 0\n")
    put(tmp_path, f"{V2}/a.slice/b.service", current="4096\n", max="65536\n")
    found = read(tmp_path)
    assert OF_V1 not in found.remarks
    cgroups = found.by_name["memory_cgroups"]
    assert [(row.cgroup, row.depth, row.usage_bytes) for row in cgroups] == [
        ("/a.slice", 1, 8192), ("/a.slice/b.service", 2, 4096),
    ]  # fmt: skip
    assert [row.max_bytes for row in cgroups] == [None, 65536]
    assert [row.anon_bytes for row in cgroups] == [4096, None]
    counters = found.by_name["memory_cgroup_counters"]
    assert [(row.counter, row.value) for row in counters] == [("anon", 4096)]


def test_v1_has_names_of_its_own(tmp_path: Path) -> None:
    put(
        tmp_path, f"{V1}/pod",
        usage_in_bytes=f"{8 * MIB}\n", limit_in_bytes=f"{16 * MIB}\n", failcnt="3\n",
        max_usage_in_bytes=f"{9 * MIB}\n", memsw__usage_in_bytes=f"{10 * MIB}\n",
        kmem__usage_in_bytes="4096\n", kmem__tcp__usage_in_bytes="0\n",
        oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        stat=f"cache 1\nrss 2\ntotal_cache {3 * MIB}\ntotal_rss {4 * MIB}\ntotal_shmem {MIB}\n",
    )  # fmt: skip
    put(tmp_path, f"{V1}/free", usage_in_bytes="1\n", limit_in_bytes="9223372036854771712\n")
    found = read(tmp_path)
    assert OF_V1 in found.remarks
    pod, free = found.by_name["memory_cgroups"]
    assert (pod.usage_bytes, pod.max_bytes, pod.failures) == (8 * MIB, 16 * MIB, 3)
    assert (pod.peak_bytes, pod.memsw_bytes, pod.kmem_bytes) == (9 * MIB, 10 * MIB, 4096)
    assert (pod.tcpmem_bytes, pod.oom_kill_own_events) == (0, 2)
    assert (pod.anon_bytes, pod.file_bytes, pod.shmem_bytes) == (4 * MIB, 3 * MIB, MIB)
    assert (pod.high_bytes, pod.max_events, pod.swap_bytes) == (None, None, None)
    assert (free.cgroup, free.max_bytes) == ("/free", None)


def test_that_v1_has_no_limit_is_no_counter(tmp_path: Path) -> None:
    limits = "hierarchical_memory_limit 4096\nhierarchical_memsw_limit 9223372036854771712\n"
    put(tmp_path, f"{V1}/pod", usage_in_bytes="8192\n", stat=f"total_rss 4096\n{limits}")
    counters = read(tmp_path).by_name["memory_cgroup_counters"]
    assert [(row.counter, row.value) for row in counters] == [
        ("total_rss", 4096), ("hierarchical_memory_limit", 4096),
    ]  # fmt: skip


def test_what_is_no_number_is_unknown(tmp_path: Path) -> None:
    put(
        tmp_path, f"{V2}/a", current="4096\n", max="many\n", high="", low="-1\n",
        swap__current="1e9\n", events="max\noom x\noom_kill 7\n",
        stat="anon 99999999999999999999999\nfile 4096\n\0\n",
    )  # fmt: skip
    put(tmp_path, f"{V2}/b", current="none\n")
    found = read(tmp_path)
    (row,) = found.by_name["memory_cgroups"]
    assert (row.max_bytes, row.high_bytes, row.low_bytes, row.swap_bytes) == (None,) * 4
    assert (row.max_events, row.oom_events, row.oom_kill_events) == (None, None, 7)
    assert (row.anon_bytes, row.file_bytes) == (None, 4096)
    assert "1 cgroups went, or cannot be read" in found.remarks


def test_no_more_are_read_than_a_box_can_bear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_files, "MAX_CGROUPS", 3)
    for name in ("a/x/y", "a", "b", "c", "a/x"):
        put(tmp_path, f"{V2}/{name}", current="4096\n")
    found = read(tmp_path)
    assert found.notes == ["there are more than 3 cgroups: the others were not read"]
    assert {row.cgroup for row in found.by_name["memory_cgroups"]} == {"/a", "/b", "/c"}


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/secret", current="4096\n")
    put(tmp_path, f"{V2}/a", current="4096\n")
    os.symlink(tmp_path / "elsewhere", tmp_path / V2 / "link")
    os.symlink(tmp_path / V2, tmp_path / V2 / "a/loop")
    os.mkfifo(tmp_path / V2 / "a/memory.stat")
    (tmp_path / V2 / "pipe").mkdir()
    os.mkfifo(tmp_path / V2 / "pipe/memory.current")
    found = read(tmp_path)
    assert [row.cgroup for row in found.by_name["memory_cgroups"]] == ["/a"]
    assert "1 cgroups went, or cannot be read" in found.remarks


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / V2) + b"/\xff\x1b[31m"
    os.makedirs(folder)
    with open(folder + b"/memory.current", "w") as file:
        file.write("4096\n")
    (row,) = rows(tmp_path)
    assert row.cgroup == "/\\xff\x1b[31m"


def test_no_cgroups_are_no_error(tmp_path: Path) -> None:
    with pytest.raises(Absent, match=r"memory\.usage_in_bytes \(v1\)"):
        read(tmp_path)
