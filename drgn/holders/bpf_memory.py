# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of BPF: its ring buffers, maps and programs, by their numbers.

- A ring buffer (``struct bpf_ringbuf``, kernel/bpf/ringbuf.c) has pages that are mapped by vmap(),
  so that no vmalloc area owns them.
- A large map is vmalloc memory (``bpf_map_area_alloc()``, kernel/bpf/syscall.c): an array all of
  it, a hash table its buckets and the elements that are there from the start.
- A program's instructions are (``bpf_prog_alloc()``, kernel/bpf/core.c); as ``bpf_prog.pages`` and
  memlock of /proc/PID/fdinfo say.

All are looked at (``map_idr``, ``prog_idr``), as one may be held by a program, a link or a file of
bpffs alone. Costs a few reads each.

Cannot know: who loaded what no process has open, a program's link neither. Maps up to 32 KiB, and
elements that are added one by one, are objects of slabs; values of each CPU are percpu memory;
machine code of programs lies together in areas that they share; arenas are not looked at.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from drgn import Object, Program, cast, container_of
from drgn.helpers.linux.idr import idr_for_each

from mmscope.drgn.holders.holdings import Holder, Holdings, pointers
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.processes.open_files import NO_PROCESS, Opener, OpenFiles
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members

MOST_MAPS = MOST_PROGRAMS = 1 << 16
MOST_PAGES = 1 << 20  # of a ring: 4 GiB
# enum bpf_map_type (include/uapi/linux/bpf.h): RINGBUF since v5.8, USER_RINGBUF since v6.1
RINGS = {"BPF_MAP_TYPE_RINGBUF": 27, "BPF_MAP_TYPE_USER_RINGBUF": 31}
HASHES = {
    "BPF_MAP_TYPE_HASH": 1,
    "BPF_MAP_TYPE_PERCPU_HASH": 5,
    "BPF_MAP_TYPE_LRU_HASH": 9,
    "BPF_MAP_TYPE_LRU_PERCPU_HASH": 10,
    "BPF_MAP_TYPE_HASH_OF_MAPS": 13,
}
STACKS = {"BPF_MAP_TYPE_STACK_TRACE": 7}


def _types(prog: Program, types: dict[str, int]) -> set[int]:
    return {constant(prog, name, number) for name, number in types.items()}


def _maps(prog: Program, files: OpenFiles) -> Iterator[tuple[Object, str, Opener]]:
    """Every map, its number and name, and who has it open."""
    if "map_idr" not in prog:
        return
    maps, who = files.of_kind(prog, "bpf_map_fops")
    openers = dict(zip(maps.tolist(), who, strict=True))
    for number, entry in itertools.islice(idr_for_each(prog["map_idr"].address_of_()), MOST_MAPS):
        map_ = cast("struct bpf_map *", entry)
        name = name_in(bytes(map_.name.value_()))
        yield map_, f"{number} {name}".strip(), openers.get(map_.value_(), NO_PROCESS)


def add_bpf_rings(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """Ring buffers by map."""
    types = _types(prog, RINGS)
    for map_, name, who in _maps(prog, files):
        if map_.map_type.value_() in types:
            ring = container_of(map_, "struct bpf_ringbuf_map", "map").rb
            pages = min(max(int(ring.nr_pages.value_()), 0), MOST_PAGES)
            holder = Holder("BPF ring", name, who)
            found.pages(holder, kind, pointers(prog, ring.pages.value_(), pages, found.gaps))


def add_bpf_maps(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """vmalloc memory of maps."""
    hashes, stacks = _types(prog, HASHES), _types(prog, STACKS)
    for map_, name, who in _maps(prog, files):
        memory, type_ = [map_], map_.map_type.value_()
        if type_ in hashes:
            table = container_of(map_, "struct bpf_htab", "map")
            memory += [table.buckets, table.elems]
        elif type_ in stacks:
            memory.append(container_of(map_, "struct bpf_stack_map", "map").elems)
        addresses = np.array([each.value_() for each in memory], np.uint64)
        found.areas(Holder("BPF map", name, who), addresses)


def add_bpf_programs(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """Programs, by who has them open, or a link of theirs."""
    if "prog_idr" not in prog:
        return
    programs, who = files.of_kind(prog, "bpf_prog_fops")
    links, of_links = files.of_kind(prog, "bpf_link_fops", "bpf_link_fops_poll")
    of, _ = read_members(prog, links, prog.type("struct bpf_link"), {"prog": "prog"}, found.gaps)
    openers = dict(zip(of["prog"].tolist(), of_links, strict=True))
    openers |= dict(zip(programs.tolist(), who, strict=True))
    every = idr_for_each(prog["prog_idr"].address_of_())
    for number, entry in itertools.islice(every, MOST_PROGRAMS):
        program = cast("struct bpf_prog *", entry)
        name = f"{number} {name_in(bytes(program.aux.name.value_()))}".strip()
        holder = Holder("BPF program", name, openers.get(program.value_(), NO_PROCESS))
        found.areas(holder, np.array([program.value_()], np.uint64))
