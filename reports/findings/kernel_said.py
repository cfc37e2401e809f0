# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel that was read, as findings speak of it: which steps are for it, and words that differ.
Among these are sizes: what a page table has and maps depends on the size of a page.
"""

from collections.abc import Mapping
from typing import Any, Self

import duckdb

from mmscope.drgn.machine.kernel_features import FEATURES
from mmscope.drgn.tables.amounts import size_name
from mmscope.reports.bundle.database import Database


class Kernel:
    """
    What the kernel that was read does where kernels differ: ``kernel.NAME`` in a finding's words.

    True, False, or None where nothing shows, as in all of a bundle without ``kernel_features``.

    ``kernel.page``, ``kernel.pmd``, ``kernel.pud`` and ``kernel.slots`` are the sizes of its page
    tables.
    """

    def __init__(self, database: Database) -> None:
        try:
            rows = database.rows("select feature, present from kernel_features")
        except duckdb.Error:
            rows = []  # an older bundle, or a stranger's
        try:
            (size,) = (row["page_size"] for row in database.rows("select page_size from target"))
        except (duckdb.Error, ValueError):
            size = None
        self._set({row["feature"]: row["present"] for row in rows}, size)

    @classmethod
    def of(cls, features: Mapping[str, Any], page_size: Any) -> Self:
        """The same, of what was read before."""
        kernel = cls.__new__(cls)
        kernel._set(features, page_size)
        return kernel

    def _set(self, features: Mapping[str, Any], size: Any) -> None:
        self._present = {
            feature: present for feature, present in features.items() if isinstance(present, bool)
        }
        # Those of arm64; where nothing says, it is a page of most machines.
        size = size if size in (4 << 10, 16 << 10, 64 << 10) else 4 << 10
        slots = size // 8
        self.slots = f"{slots:,}"  # entries of a page table
        self.page = size_name(size)
        self.pmd = size_name(size * slots)  # what a PTE table maps, or a transparent huge page
        self.pud = size_name(size * slots * slots)

    def __getattr__(self, feature: str) -> bool | None:
        if feature not in FEATURES:
            raise AttributeError(feature)
        return self._present.get(feature)

    def condition(self, only: tuple[str, ...]) -> str | None:
        """
        What a step must say of the kernels it is for: nothing if this is one, None if it is not.
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
