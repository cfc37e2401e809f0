# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel that was read, as findings speak of it: which steps are for it, and words that differ;
and the containers on it.
Among these are sizes: what a page table has and maps depends on the size of a page, and so does
what part of memory goes to what the kernel keeps for each page.
"""

import contextlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import duckdb

from mmscope.drgn.cgroups.container_paths import Container, called, container_of
from mmscope.drgn.machine.kernel_features import FEATURES
from mmscope.drgn.tables.display import short_size, size_name
from mmscope.reports.bundle.database import Database

STRUCT_PAGE = 64  # bytes on most kernels with 64 bits
# What goes by the size of a page, in the words of a finding.
BY_PAGE = re.compile(r"\bkernel\.(?:page|pmd|pmd_option|pud|slots|share|struct_pages)\b")


class Kernel:
    """
    Features in which kernels differ, of the one that was read: ``kernel.NAME`` in findings.

    True, False, or None where nothing shows, as in all of a bundle without ``kernel_features``.

    ``kernel.page``, ``kernel.pmd``, ``kernel.pud`` and ``kernel.slots`` are the sizes of its page
    tables, ``kernel.pmd_option`` is the second as an option of a command has it (``2M``).

    :param features: of table ``kernel_features``, and whether they are present.
    :param size: of a page, in bytes.
    :param containers: on it, by the path of their cgroup.
    :ivar assumed: where the bundle does not say how large a page is, what these sizes are then of.
    """

    def __init__(
        self,
        features: Mapping[str, Any],
        size: Any,
        containers: Mapping[str, Container] = MappingProxyType({}),
    ) -> None:
        self._containers = dict(containers)  # the default cannot be pickled
        # Of a container that is gone its pod is known by those that are left.
        self._pods = {
            each.pod_uid: f"{each.namespace}/{each.pod}"
            for each in containers.values()
            if each.pod and each.pod_uid
        }
        self._present = {
            feature: present for feature, present in features.items() if isinstance(present, bool)
        }
        # Those of arm64; where nothing says, it is a page of most machines.
        known = size in (4 << 10, 16 << 10, 64 << 10)
        self._size = size = size if known else 4 << 10
        self.assumed = "" if known else f"pages of {size_name(size)}"
        slots = size // 8
        self.slots = f"{slots:,}"  # entries of a page table
        self.page = size_name(size)
        self.pmd = size_name(size * slots)  # what a PTE table maps, or a transparent huge page
        self.pmd_option = short_size(size * slots)
        self.pud = size_name(size * slots * slots)
        self.struct_pages = self.share(STRUCT_PAGE)

    def share(self, least: int, most: int | None = None) -> str:
        """Share of memory that so many bytes for each page are: ``1.6 %``, ``0.15 to 0.49 %``."""
        said = (f"{100 * each / self._size:.2g}" for each in (least, most) if each is not None)
        return f"{' to '.join(said)} %"

    def cgroup(self, path: str) -> str:
        """A cgroup as a sentence has it: a container and a pod by their names."""
        found = container_of(path)
        return called(path, found and self._containers.get(found.cgroup), self._pods)

    def __getattr__(self, feature: str) -> bool | None:
        if feature not in FEATURES:
            raise AttributeError(feature)
        return self._present.get(feature)

    def condition(self, only: tuple[str, ...]) -> str | None:
        """
        Words of a step about the kernels that it is for: nothing if this is one, None if it is not.
        """
        unknown = []
        for name in only:
            wanted = not name.startswith("!")
            feature = name.removeprefix("!")
            present = self._present.get(feature)
            if present is None:
                what = FEATURES[feature].what
                unknown.append(f"where {what}" if wanted else f"unless {what}")
            elif present is not wanted:
                return None
        said = ", and ".join(unknown)
        return f"{said[:1].upper()}{said[1:]}: " if said else ""


def read_kernel(database: Database) -> Kernel:
    """The kernel of an open bundle."""
    try:
        rows = database.rows("select feature, present from kernel_features")
    except duckdb.Error:
        rows = []  # an older bundle, or a stranger's
    try:
        (size,) = (row["page_size"] for row in database.rows("select page_size from target"))
    except (duckdb.Error, ValueError):
        size = None
    containers = {}
    with contextlib.suppress(duckdb.Error):
        for row in database.rows("select * from containers"):
            known: dict[str, Any] = {n: row.get(n) for n in Container.__dataclass_fields__}
            containers[str(row["cgroup"])] = Container(**known)
    return Kernel({row["feature"]: row["present"] for row in rows}, size, containers)
