# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory that this process can still have: what the limits of its memory cgroups leave, which a crash
kernel's unit sets, and what the machine has.

Page cache goes where it is needed; it counts as left.
"""

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

# By version: the folder of the hierarchy, the limit, and what processes have in memory.stat.
VERSIONS = (
    ("sys/fs/cgroup", "memory.max", "anon"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss"),
)
UNKNOWN = 1 << 62
# What the kernel takes for a process beside its data, and what a process cannot do without.
BESIDE, LEAST = 10 << 20, 4 << 20


def memory_left(root: Path = Path("/")) -> int:
    """
    Bytes that can be taken before something is killed.

    :param root: of the file system, for tests.
    """
    left = []
    for place, limit, used in VERSIONS:
        for group in _groups(root / "proc/self/cgroup", root / place):
            # It is of the other version, or has no limit ("max").
            with contextlib.suppress(OSError, ValueError):
                most = int((group / limit).read_text())
                left.append(most - _number(group / "memory.stat", used))
    with contextlib.suppress(OSError, ValueError):
        left.append(_number(root / "proc/meminfo", "MemAvailable:") << 10)
    return max(min(left, default=UNKNOWN), 0)


@contextlib.contextmanager
def bounded_by_it() -> Iterator[None]:
    """In the block, who wants more than is left gets a MemoryError, and is not killed for it."""
    before, left = resource.getrlimit(resource.RLIMIT_DATA), memory_left()
    if left != UNKNOWN:
        data = _number(Path("/proc/self/status"), "VmData:") << 10
        bounds = [each for each in before if each != resource.RLIM_INFINITY]
        most = min([data + max(left - BESIDE, LEAST), *bounds])
        resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _groups(listed: Path, top: Path) -> list[Path]:
    """The cgroups that a process is in, of the memory controller, up to the root."""
    try:
        found = re.findall(r"^\d+:(?:|(?:.*,)?memory(?:,.*)?):/(.*)$", listed.read_text(), re.M)
    except OSError:
        return []
    groups = []
    for path in found:
        group = top / path
        groups += [group, *(each for each in group.parents if each.is_relative_to(top))]
    return groups


def _number(path: Path, name: str) -> int:
    """
    The number behind a name in a file of such lines.

    :raises ValueError: the name is not there.
    """
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", path.read_text(), re.M)
    if found is None:
        raise ValueError(f"{path} has no {name}")
    return int(found[1])
