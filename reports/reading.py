# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a section reads and what it finds: a kernel's memory or a tree of text files, and tables.

Sections that need the same pass over the memory share it: whoever asks first, pays.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from anon_vmas import (
    ReverseMaps,
    read_reverse_maps,
)
from drgn import FaultError, Program, ProgramFlags
from free_memory import OWN, FreeMemory, scan_free_memory
from kernel_arrays import Gaps
from ksm import (
    Ksm,
    read_ksm,
)
from ksm import wanted as ksm_wanted
from plain_file import read_plain
from rmap_cost import (
    KsmVisits,
    ksm_visits,
)
from slab_caches import (
    SlabFinder,
    read_caches,
    scan_slabs,
)
from slab_objects import Objects
from slab_owner import (
    SlabOwners,
    slab_owners,
)
from stack_depot import StackDepot, stack_depot
from struct_page_cost import StructPageCost, scan_struct_page_cost


class DeadlineExceeded(BaseException):
    """
    A section took longer than it may.

    Not an Exception, so that nothing on the way up takes it for a failure of its own and goes on.
    """


Kept = TypeVar("Kept")


class Absent(Exception):
    """The target has no such thing. The words say why, and what would change that."""


@dataclass
class Found:
    """The tables of a section, and what keeps them from being whole."""

    tables: list[tuple[str, str, type, list[Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # each makes the section partial
    unlisted: list[str] = field(default_factory=list)  # what its tables are not meant to have
    remarks: list[str] = field(default_factory=list)  # what to know of a section that is whole
    unreadable_bytes: int = 0
    # Name, title, unit and (stack, value) of what a flame graph is drawn from.
    folded: list[tuple[str, str, str, list[tuple[str, int]]]] = field(default_factory=list)

    def add(self, name: str, title: str, row_type: type, rows: list[Any]) -> "Found":
        self.tables.append((name, title, row_type, rows))
        return self


@dataclass(frozen=True)
class Rmap:
    """The reverse maps, and KSM where the kernel has it."""

    maps: ReverseMaps
    vma_slots: Objects
    ksm: Ksm | None
    visits: KsmVisits | None


@dataclass
class Memory:
    """A kernel's memory, and the pass over its struct pages once somebody needs it."""

    prog: Program
    progress: Callable[[int, int], None] | None = None
    _kept: dict[str, Any] = field(default_factory=dict)
    # The slabs, if a pass has been there, and what it could not read.
    _slab_finder: tuple[SlabFinder, Gaps] | None = None

    def disagreement(self, found: Found, what: str) -> None:
        """Two readings that differ: damage in a dump, to be expected of a kernel that runs."""
        if self.prog.flags & ProgramFlags.IS_LIVE:
            found.remarks.append(f"{what}: the kernel was running while it was read")
        else:
            found.notes.append(what)

    def _once(self, name: str, work: Callable[[], Kept]) -> Kept:
        """What several sections need, worked out once; if it failed, it failed for all of them."""
        if name not in self._kept:
            try:
                self._kept[name] = work()
            except (Exception, DeadlineExceeded) as error:
                self._kept[name] = error
        kept = self._kept[name]
        if isinstance(kept, BaseException):
            raise kept
        return cast(Kept, kept)

    @property
    def free(self) -> FreeMemory:
        """The pass over the struct pages for what is free."""
        return self._once("free", self._free)

    def _free(self) -> FreeMemory:
        finder = None
        # On a live kernel slabs are looked at when they are found: later they are others'.
        if not self.prog.flags & ProgramFlags.IS_LIVE:
            # Whoever needs the slabs will say what is wrong.
            with contextlib.suppress(Exception):
                finder = SlabFinder(self.prog)
        free = scan_free_memory(self.prog, self.progress, [finder] if finder else [])
        if finder is not None and OWN not in free.scan.failures:
            self._slab_finder = finder, free.scan.gaps
        return free

    @property
    def depot(self) -> StackDepot:
        """The stack depot."""
        return self._once("depot", lambda: stack_depot(self.prog))

    @property
    def slabs(self) -> SlabOwners:
        """The slabs and, where they have tracks, the owners of their objects: one pass."""
        return self._once("slabs", self._slabs)

    @property
    def struct_pages(self) -> StructPageCost:
        """The walk over the struct pages' own page tables."""
        return self._once("struct_pages", self._struct_pages)

    def _struct_pages(self) -> StructPageCost:
        try:
            return scan_struct_page_cost(self.prog, self.progress)
        except NotImplementedError as reason:
            raise Absent(str(reason)) from None

    @property
    def rmap(self) -> Rmap:
        """The reverse maps and KSM: one pass."""
        return self._once("rmap", self._rmap)

    def _rmap(self) -> Rmap:
        try:
            more = ksm_wanted(self.prog)
        except LookupError:
            more = {}
        maps, read = read_reverse_maps(
            self.prog, more, found=self._slab_finder, progress=self.progress
        )
        ksm = read_ksm(self.prog, read) if more else None
        shift = self.prog["PAGE_SHIFT"].value_()
        visits = ksm_visits(maps, ksm, shift) if ksm else None
        return Rmap(maps, read.objects["vma"], ksm, visits)

    def _slabs(self) -> SlabOwners:
        if any(cache.store_user for cache in read_caches(self.prog)[0]):
            # Or so a damaged cache says. Without its stacks, what is in the slabs is still known.
            with contextlib.suppress(LookupError, FaultError):
                return slab_owners(
                    self.prog, self.depot, found=self._slab_finder, progress=self.progress
                )
        return SlabOwners(scan_slabs(self.prog, found=self._slab_finder, progress=self.progress))


@dataclass
class Files:
    """
    A tree with /proc and /sys: a live host's root, or an unpacked sosreport.

    :param root: the folder that has ``proc/`` in it.
    """

    root: Path

    def read(self, path: str) -> str:
        """
        The text of a file of the tree.

        :raises Absent: it is not there, or not for this user; the words say what to do.
        """
        try:
            return self.open(path)
        except FileNotFoundError:
            raise Absent(f"{self.root / path}: no such file") from None
        except PermissionError:
            raise Absent(f"{self.root / path}: only root may read it; run as root") from None
        except OSError as error:
            raise Absent(f"{self.root / path}: {error.strerror}") from None

    def open(self, path: str) -> str:
        """
        The text of a file of the tree.

        A link that leads out of it would tell of another machine, a pipe would never end.

        :raises OSError: it is not there, or no plain file of the tree.
        """
        file = Path(os.path.realpath(self.root / path, strict=True))
        if not file.is_relative_to(self.root.resolve()) or not file.is_file():
            raise OSError(errno.EINVAL, "is no plain file of this tree", str(self.root / path))
        return read_plain(file).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class SectionSpec:
    """A section: its name on the command line, its title, and where its tables come from."""

    name: str
    title: str
    from_memory: Callable[[Memory], Found]
    from_files: Callable[[Files], Found]
    deadline: float = 120.0  # seconds
    # About what few kernels have switched on: that it is absent is worth a word only if asked for.
    optional: bool = False
