# SPDX-License-Identifier: LGPL-2.1-or-later
"""All reverse maps, read once for all sections about them: anon_vmas, KSM, mapped files."""

from dataclasses import dataclass

from mmscope.drgn.owners.slab_caches import SlabFinder
from mmscope.drgn.owners.slab_objects import Objects
from mmscope.drgn.rmap.anon_vma_trees import ReverseMaps, read_reverse_maps
from mmscope.drgn.rmap.file_trees import FileMaps, read_file_maps
from mmscope.drgn.rmap.ksm import Ksm, read_ksm, wanted
from mmscope.drgn.rmap.ksm_visits import KsmVisits, ksm_visits
from mmscope.drgn.sections.memory import Memory


@dataclass(frozen=True, slots=True)
class Rmap:
    """The reverse maps, and KSM where the kernel has it."""

    maps: ReverseMaps
    vma_slots: Objects
    ksm: Ksm | None
    visits: KsmVisits | None


def reverse_maps(memory: Memory) -> Rmap:
    """The reverse maps of anonymous memory and KSM: one pass."""

    def read() -> Rmap:
        try:
            more = wanted(memory.prog)
        except LookupError:
            more = {}
        maps, slabs = read_reverse_maps(
            memory.prog, more, found=memory.kept_consumer(SlabFinder), progress=memory.progress
        )
        ksm = read_ksm(memory.prog, slabs) if more else None
        shift = memory.prog["PAGE_SHIFT"].value_()
        visits = ksm_visits(maps, ksm, shift) if ksm else None
        return Rmap(maps, slabs.objects["vma"], ksm, visits)

    return memory.once("rmap", read)


def mapped_file_trees(memory: Memory) -> FileMaps:
    """The trees of mapped files: no pass of their own."""
    rmap = reverse_maps(memory)
    return memory.once(
        "file_maps", lambda: read_file_maps(memory.prog, rmap.vma_slots, rmap.maps.tasks)
    )
