# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a section reads and what it finds: a kernel's memory or a tree of text files, and tables.

Sections that need the same pass over the memory share it: whoever asks first, pays.
"""

import contextlib
import errno
import functools
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from drgn import FaultError, Program, ProgramFlags

from mmscope.drgn.free.free_memory import FreeMemory, scan_free_memory
from mmscope.drgn.machine.poisoned_pages import Marked, PoisonFinder
from mmscope.drgn.owners.slab_caches import (
    SlabFinder,
    read_caches,
    scan_slabs,
)
from mmscope.drgn.owners.slab_objects import Objects
from mmscope.drgn.owners.slab_owner import (
    SlabOwners,
    slab_owners,
)
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.stack_depot import StackDepot, stack_depot
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.rmap.anon_vmas import (
    ReverseMaps,
    read_reverse_maps,
)
from mmscope.drgn.rmap.file_maps import FileMaps, read_file_maps
from mmscope.drgn.rmap.ksm import (
    Ksm,
    read_ksm,
)
from mmscope.drgn.rmap.ksm import wanted as ksm_wanted
from mmscope.drgn.rmap.rmap_cost import (
    KsmVisits,
    ksm_visits,
)
from mmscope.drgn.struct_pages.struct_page_cost import StructPageCost, scan_struct_page_cost
from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.text.plain_file import read_plain
from mmscope.reports.collect import prices
from mmscope.reports.collect.apart import ReaderApart


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
    impossible: list[Impossible] = field(default_factory=list)  # values that cannot be
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
    _marked: tuple[Marked, Gaps] | None = None

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
        finder, poison = None, None
        # Whoever needs what these look for will say what is wrong.
        with contextlib.suppress(Exception):
            poison = PoisonFinder(self.prog)
        # On a live kernel slabs are looked at when they are found: later they are others'.
        if not self.prog.flags & ProgramFlags.IS_LIVE:
            with contextlib.suppress(Exception):
                finder = SlabFinder(self.prog)
        more = [each for each in (finder, poison) if each is not None]
        free = scan_free_memory(self.prog, self.progress, more)
        if finder is not None and free.scan.failure_of(finder) is None:
            self._slab_finder = finder, free.scan.gaps
        if poison is not None and free.scan.failure_of(poison) is None:
            self._marked = poison.found, free.scan.gaps
        return free

    @property
    def marked_pages(self) -> tuple[Marked, Gaps]:
        """
        Pages that are marked as bad, by the pass that is shared or one of its own, and what that
        could not read.
        """
        if self._marked is None:
            with contextlib.suppress(Exception):
                _ = self.free
        if self._marked is None:
            poison = PoisonFinder(self.prog)
            scan = scan_struct_pages(self.prog, [poison], progress=self.progress)
            self._marked = poison.found, scan.gaps
        return self._marked

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

    @property
    def file_maps(self) -> FileMaps:
        """The trees of mapped files: no pass of their own."""
        rmap = self.rmap
        return self._once(
            "file_maps", lambda: read_file_maps(self.prog, rmap.vma_slots, rmap.maps.tasks)
        )

    def _slabs(self) -> SlabOwners:
        if any(cache.store_user for cache in read_caches(self.prog)[0]):
            # Or so a damaged cache says. Without its stacks, what is in the slabs is still known.
            with contextlib.suppress(LookupError, FaultError):
                return slab_owners(
                    self.prog, self.depot, found=self._slab_finder, progress=self.progress
                )
        return SlabOwners(scan_slabs(self.prog, found=self._slab_finder, progress=self.progress))


# Files that several sections read, and that are dear: read once, so that all tell of one moment.
KEPT = ("proc/pagetypeinfo",)


@dataclass
class Files:
    """
    A tree with /proc and /sys: a live host's root, or an unpacked sosreport.

    :param root: the folder that has ``proc/`` in it.
    :param everything: on a running host, also what is dear to read there (``prices``).
    """

    root: Path
    everything: bool = False
    kept: dict[str, Any] = field(default_factory=dict)  # what several sections need
    _left_out: dict[str, str | None] = field(default_factory=dict)

    @functools.cached_property
    def live(self) -> bool:
        """Whether this is a running host's."""
        return prices.is_live(str(self.root))

    def left_out(self, path: str) -> str | None:
        """Why a file is not read; None if it is, as all files of a copied tree are."""
        if self.everything or not self.live:
            return None
        if path not in self._left_out:
            self._left_out[path] = prices.why_left_out(str(self.root), path)
        return self._left_out[path]

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

    def numbers(self, folder: str, pattern: str) -> list[int]:
        """The numbers in the names of a folder's entries, ascending; none if it is not there."""
        try:
            names = [path.name for path in (self.root / folder).iterdir()]
        except OSError:
            return []
        matches = [re.fullmatch(pattern, name, re.ASCII) for name in names]
        return sorted(int(match[1][:12]) for match in matches if match)

    def open(self, path: str) -> str:
        """
        The text of a file of the tree.

        A link that leads out of it would tell of another machine, a pipe would never end.

        :raises OSError: it is not there, no plain file of the tree, or left out.
        """
        if path in self.kept:
            return str(self.kept[path])
        text = read_plain(self._plain(path)).decode("utf-8", "backslashreplace")
        if path in KEPT:
            self.kept[path] = text
        return text

    def open_apart(self, path: str, reader: ReaderApart) -> str:
        """
        The same by a process that may be left behind: for files that wait for another process.

        :raises OSError: as :meth:`open`, or there was no answer.
        """
        if not self.live:
            return self.open(path)
        return reader.read(self._plain(path)).decode("utf-8", "backslashreplace")

    def _plain(self, path: str) -> Path:
        file = Path(os.path.realpath(self.root / path, strict=True))
        if not file.is_relative_to(self.root.resolve()) or not file.is_file():
            raise OSError(errno.EINVAL, "is no plain file of this tree", str(self.root / path))
        # What this user may not read is not left out for its price.
        if (why := self.left_out(path)) and os.access(file, os.R_OK):
            raise OSError(errno.ECANCELED, why, str(self.root / path))
        return file


def page_size(meminfo: str, managed_pages: int) -> int | None:
    """
    The page size of a machine that left only text: MemTotal is its managed pages, in KiB.

    The two readings may lie apart, so that the power of two that is nearest is taken, and none if
    it is not near.
    """
    match = re.search(r"^MemTotal: +([0-9]{1,15}) kB$", meminfo, re.MULTILINE)
    if not match or not managed_pages:
        return None
    size = int(match.group(1)) * 1024 / managed_pages
    nearest = 1 << round(math.log2(size)) if size >= 1 else 0
    return nearest if 4096 <= nearest <= 65536 and abs(size / nearest - 1) < 0.02 else None


@dataclass(frozen=True)
class SectionSpec:
    """A section: its name on the command line, its title, and where its tables come from."""

    name: str
    title: str
    from_memory: Callable[[Memory], Found]
    from_files: Callable[[Files], Found]
    deadline: float = 120.0  # seconds
    # What from_files reads: keys of prices.PRICES. Of a live kernel from_memory reads prices.KCORE.
    reads: tuple[str, ...] = ()
    # About what few kernels have switched on: that it is absent is worth a word only if asked for.
    optional: bool = False
