# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the guest of the ``rmap`` workload says of its own memory and migrations."""

import dataclasses
import re
from collections import Counter

from capture import Capture
from conftest import RmapLab
from drgn import Program
from drgn.helpers.linux.pid import for_each_task

# guest/workload_rmap.c
VMAS, SHARING, ZERO_PAGES = 20_000, 4 * 200, 300
# As on the machine of the series that brought page offsets: KSM pages of so many mappings.
FEW_VMAS, FEW_MAPPINGS = 22_169, (3, 2, 1)


@dataclasses.dataclass(frozen=True)
class Part:
    """Memory that a process of the guest says it has."""

    name: str
    pid: int
    address: int
    bytes: int


def page_bytes(lab: RmapLab) -> int:
    return int(lab.prog["PAGE_SIZE"].value_())


def huge_pages(lab: RmapLab) -> int:
    """Base pages of a huge page: entries of a page table."""
    return page_bytes(lab) // 8


def parts(taken: Capture) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for line in (taken.truth_a / "rmap").read_text().splitlines():
        name, pid, address, size = line.split()
        found.setdefault(name, []).append(Part(name, int(pid), int(address, 0), int(size)))
    return found


@dataclasses.dataclass(frozen=True)
class Timed:
    """A migration that the guest's init has made: of a page, from one frame to another."""

    pfn: int  # where it is now
    unmap_ms: float  # try_to_migrate()
    map_ms: float  # remove_migration_ptes()


# What the guest has migrated (workload_rmap.c).
COUNTED = ("ksm-vmas", "ksm-fork", "anon-vmas", "file-same")
TIMED = (
    *("ksm-vmas", "ksm-share", "ksm-fork", "ksm-vmas, the last page"),
    *("anon-vmas", "file-vmas", "file-same", "ksm-few, three mappings", "ksm-few, one mapping"),
)
# While a page is unmapped, rmap_walk() is called, or is inline.
PHASES = {"unmap": "unmapped", "walk": "walked"}
Phase = tuple[float, int, Counter[str]]  # seconds, struct folio, events inside


def migrations(lab: RmapLab) -> list[tuple[Phase, Phase]]:
    """
    What the guest's init has timed: of each migration the unmapping and the mapping again.

    7.2's own DAMON (kdamond) walks as well, and is not init.
    """
    text = (lab.capture.truth_a / "trace").read_text()
    found: list[tuple[str, Phase]] = []
    until = ""
    for time, what, folio in re.findall(
        r"^ *init-1 .*? (\d+\.\d+): (\w+): .*?(?:folio=(0x[0-9a-f]+))?$", text, re.MULTILINE
    ):
        if not until and what in PHASES:
            until, begin, of, inside = PHASES[what], float(time), int(folio, 16), Counter[str]()
        elif what == until:
            found.append((what, (float(time) - begin, of, inside)))
            until = ""
        elif until:
            inside[what] += 1
    assert [what for what, _ in found] == list(PHASES.values()) * (len(COUNTED) + len(TIMED))
    return [(unmap, again) for (_, unmap), (_, again) in zip(found[::2], found[1::2], strict=True)]


def timed_walks(lab: RmapLab) -> dict[str, Timed]:
    """The two walks of each migration."""
    base, size = lab.prog["vmemmap"].value_(), lab.prog.type("struct page").size or 0
    walks = [
        Timed((folio - base) // size, unmap * 1e3, again * 1e3)
        for (unmap, *_), (again, folio, _) in migrations(lab)[len(COUNTED) :]
    ]
    return dict(zip(TIMED, walks, strict=True))


def walkers(prog: Program) -> int:
    """
    The kernel's threads that walk a reverse map just then, each with one lock: kdamond, which some
    kernels of Debian start at boot (CONFIG_DAMON_STAT_ENABLED_DEFAULT).
    """
    return sum(
        task.mm.value_() == 0 and "rmap_walk" in str(prog.stack_trace(task))
        for task in for_each_task(prog)
        if task.comm.string_().startswith(b"kdamond")
    )
