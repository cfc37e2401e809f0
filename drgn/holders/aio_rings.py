# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rings of AIO (``io_setup()``, fs/aio.c): ``mm_struct.ioctx_table`` has a ``struct kioctx`` for each.

A ring is pages of a file without a name (``aio_private_file()``), which the process maps; so they
are page cache, which drop_caches leaves alone, as the ring keeps them. Costs a read for each
process and ring.
"""

import numpy as np
from drgn import Object, Program

from mmscope.drgn.holders.holdings import Holder, Holdings, pointers
from mmscope.drgn.processes.open_files import OpenFiles
from mmscope.drgn.reading.scattered_reads import read_members

MOST_RINGS = 1 << 16  # of a process; aio-max-nr is 65536 requests of all
MOST_PAGES = 1 << 20


def add_aio_rings(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """Rings by process."""
    space = prog.type("struct mm_struct")
    if not space.has_member("ioctx_table"):  # CONFIG_AIO
        return
    task = prog.type("struct task_struct")
    spaces, read = read_members(prog, files.tasks, task, {"mm": "mm"}, found.gaps)
    at = np.flatnonzero(read & (spaces["mm"] != 0))
    _, first = np.unique(spaces["mm"][at], return_index=True)  # others may share it
    at = at[np.sort(first)]
    columns = {"table": "ioctx_table"}
    tables, read = read_members(prog, spaces["mm"][at], space, columns, found.gaps)
    for number, address in zip(at[read].tolist(), tables["table"][read].tolist(), strict=True):
        if not address:
            continue
        table = Object(prog, "struct kioctx_table", address=address)
        entries = table.table.address_
        rings = pointers(prog, entries, min(int(table.nr.value_()), MOST_RINGS), found.gaps)
        holder = Holder("AIO ring", "", files.processes[number])
        for ring in rings[rings != 0].tolist():
            context = Object(prog, "struct kioctx", address=ring)
            # Folios, of one page each, in 6.12 and 7.2; pages in 6.1.
            pages = context.ring_folios if hasattr(context, "ring_folios") else context.ring_pages
            count = min(max(int(context.nr_pages.value_()), 0), MOST_PAGES)
            found.pages(holder, 0, pointers(prog, pages.value_(), count, found.gaps))
