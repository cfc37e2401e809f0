# SPDX-License-Identifier: LGPL-2.1-or-later
"""What memory is left is the least that any limit leaves, of cgroups of either version."""

import resource
from pathlib import Path

import pytest

from mmscope.drgn.reading import memory_left as memory_left_module
from mmscope.drgn.reading.memory_left import BESIDE, UNKNOWN, bounded_by_it, memory_left

MIB = 1 << 20
MEMINFO = "MemTotal:  1000000 kB\nMemAvailable:  409600 kB\n"


def root_with(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("cgroup", "files", "left"),
    [
        ("0::/", {}, 400 * MIB),
        (
            "0::/system.slice/crash.service\n",
            {
                "system.slice/crash.service/memory.max": f"{150 * MIB}\n",
                "system.slice/crash.service/memory.stat": f"anon {60 * MIB}\nfile {80 * MIB}\n",
                "system.slice/memory.max": "max\n",
            },
            90 * MIB,
        ),
        (
            "5:cpu,memory:/a/b\n0::/\n",
            {
                "memory/a/b/memory.limit_in_bytes": f"{1 << 62}\n",
                "memory/a/b/memory.stat": "cache 1\nrss 2\ntotal_rss 4096\n",
                "memory/a/memory.limit_in_bytes": f"{MIB}\n",
                "memory/a/memory.stat": f"total_rss {3 * MIB}\n",
            },
            0,
        ),
    ],
)
def test_the_tightest_limit_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str], left: int
) -> None:
    files = {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    files |= {"proc/self/cgroup": cgroup, "proc/meminfo": MEMINFO}
    assert memory_left(root_with(tmp_path, files)) == left


def test_where_nothing_says_there_is_no_limit(tmp_path: Path) -> None:
    assert memory_left(tmp_path) == UNKNOWN


def test_who_wants_more_than_is_left_is_refused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(memory_left_module, "memory_left", lambda: BESIDE + 64 * MIB)
    with bounded_by_it():
        assert len(bytearray(32 * MIB))
        with pytest.raises(MemoryError):
            bytearray(128 * MIB)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
