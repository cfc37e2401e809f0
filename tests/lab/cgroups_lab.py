# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory cgroups of a frozen guest, and what the kernel printed of each."""

import os
from dataclasses import dataclass

from capture import Capture
from drgn import Program

from mmscope.drgn.cgroups.cgroup_files import numbers
from mmscope.drgn.cgroups.cgroup_rows import ONLINE, MemoryCgroup, MemoryCgroupPages
from mmscope.drgn.cgroups.dying_pins import DyingPin
from mmscope.drgn.ledger.memory_cgroups import memory_cgroups_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found


@dataclass(frozen=True)
class CgroupsLab:
    """A frozen guest with memory cgroups, online and dying."""

    capture: Capture
    prog: Program
    found: Found

    @property
    def rows(self) -> list[MemoryCgroup]:
        return self.found.by_name["memory_cgroups"]

    @property
    def online(self) -> dict[str, MemoryCgroup]:
        return {str(row.cgroup): row for row in self.rows if row.state == ONLINE}

    @property
    def pages(self) -> list[MemoryCgroupPages]:
        return self.found.by_name["memory_cgroup_pages"]

    @property
    def pins(self) -> list[DyingPin]:
        return self.found.by_name["dying_cgroup_pins"]

    def said(self) -> dict[str, dict[str, str]]:
        """What each cgroup's files printed last."""
        root = self.capture.truth_b / "sys/fs/cgroup"
        found = {}
        for current in root.rglob("memory.current"):
            name = os.fsencode(current.parent.relative_to(root)).decode("utf-8", "backslashreplace")
            found[f"/{name}"] = {
                file.name: file.read_text() for file in current.parent.glob("memory.*")
            }
        return found

    def dying(self, folder: str) -> int:
        """How many are dying below a cgroup, as the kernel printed it."""
        text = (self.capture.truth_b / "sys/fs/cgroup" / folder / "cgroup.stat").read_text()
        return numbers(text)["nr_dying_descendants"]


def read_cgroups(taken: Capture) -> CgroupsLab:
    """The memory cgroups of a vmcore."""
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return CgroupsLab(taken, prog, memory_cgroups_from_memory(Memory(prog)))
