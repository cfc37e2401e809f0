# SPDX-License-Identifier: LGPL-2.1-or-later
"""
BPF's ring buffers (``struct bpf_ringbuf``, kernel/bpf/ringbuf.c): pages that are mapped by vmap(),
so that no vmalloc area owns them.

All maps are looked at (``map_idr``), as a map may be held by a program or a file of bpffs alone.
Costs a few reads a map.

Cannot know: who loaded a map that no process has open. Other maps are slab, percpu or vmalloc
memory, which have owners; arenas are not looked at.
"""

import itertools

from drgn import Program, cast, container_of
from drgn.helpers.linux.idr import idr_for_each

from mmscope.drgn.holders.holdings import Holder, Holdings, pointers
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.processes.open_files import NO_PROCESS, OpenFiles
from mmscope.drgn.reading.kernel_names import name_in

MOST_MAPS = 1 << 16
MOST_PAGES = 1 << 20  # of a ring: 4 GiB
# enum bpf_map_type (include/uapi/linux/bpf.h): RINGBUF since v5.8, USER_RINGBUF since v6.1
TYPES = {"BPF_MAP_TYPE_RINGBUF": 27, "BPF_MAP_TYPE_USER_RINGBUF": 31}


def add_bpf_rings(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """Ring buffers by map."""
    if "map_idr" not in prog:
        return
    maps, who = files.of_kind(prog, "bpf_map_fops")
    openers = dict(zip(maps.tolist(), who, strict=True))
    types = {constant(prog, name, number) for name, number in TYPES.items()}
    for number, entry in itertools.islice(idr_for_each(prog["map_idr"].address_of_()), MOST_MAPS):
        map_ = cast("struct bpf_map *", entry)
        if map_.map_type.value_() not in types:
            continue
        ring = container_of(map_, "struct bpf_ringbuf_map", "map").rb
        pages = min(max(int(ring.nr_pages.value_()), 0), MOST_PAGES)
        name = name_in(bytes(map_.name.value_()))
        holder = Holder(
            "BPF ring", f"{number} {name}".strip(), openers.get(map_.value_(), NO_PROCESS)
        )
        found.pages(holder, kind, pointers(prog, ring.pages.value_(), pages, found.gaps))
