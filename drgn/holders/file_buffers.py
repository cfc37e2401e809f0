# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory behind open files: what waits in pipes, the rings of perf and of io_uring, and the buffers
that are registered with io_uring.

- A pipe has a page or a part of one in each ``pipe_buffer`` that has operations
  (``pipe_buf_release()`` takes them away), and keeps a page or a few for the next
  (``pipe_inode_info.tmp_page``; ``prealloc`` in v7.3).
- perf's ring is ``perf_event.rb``: the page that user space reads, ``data_pages``, and
  ``aux_pages`` of a hardware tracer (kernel/events/ring_buffer.c). Events may share one.
- io_uring's rings are ``io_ring_ctx.ring_region`` and ``sq_region`` (7.2), arrays of pages before
  (6.12), and one allocation each before that (6.1).
- A registered buffer (``struct io_mapped_ubuf``, io_uring/rsrc.c) is user memory that is pinned as
  long as it is registered; its pages stay in their class.

Costs a read for each pipe, ring and registered buffer.

Cannot know: pipes that no process has open (``splice()`` keeps one for itself); buffers that a
process provides to io_uring by a ring of the kernel's; rings with CONFIG_PERF_USE_VMALLOC.
"""

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, TypeKind, offsetof, sizeof

from mmscope.drgn.holders.holdings import Holder, Holdings, by_holder, pointers
from mmscope.drgn.processes.open_files import PIPES, OpenFiles
from mmscope.drgn.reading.kernel_arrays import (
    Bools,
    Columns,
    Gaps,
    U64s,
    distinct,
    read_array,
    struct_dtype,
)
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.tables.display import plural

MOST_BUFFERS = 1 << 20  # of a pipe: 4 GiB
MOST_PAGES = 1 << 20  # of a ring: 4 GiB


def add_pipes(prog: Program, files: OpenFiles, found: Holdings, kind: int, large: int) -> None:
    """
    Pipes and FIFOs: data that waits, and pages for the next.

    :param large: the kind of an array of buffers that is a large allocation of kmalloc().
    """
    pipes, who = files.of_kind(prog, *PIPES)
    pipe = prog.type("struct pipe_inode_info")
    # One page in 6.12, two in 7.2.
    spare = "prealloc.pages" if pipe.has_member("prealloc") else "tmp_page"
    first, *more = spare.split(".")
    type_ = pipe.member(first).type
    for name in more:
        type_ = type_.member(name).type
    spares = [f"{spare}[{at}]" for at in range(getattr(type_, "length", 0))] or [spare]
    columns: Columns = {
        **{"bufs": "bufs", "size": "ring_size", "head": "head", "tail": "tail"},
        "owner": ("mutex.owner.counter", "mutex.rtmutex.owner"),
        **{name: name for name in spares},
    }
    rings, read = read_members(prog, pipes, pipe, columns, found.gaps)
    buffer = struct_dtype(prog.type("struct pipe_buffer"), {"page": "page", "ops": "ops"})
    largest = 2 * int(prog["PAGE_SIZE"].value_())  # KMALLOC_MAX_CACHE_SIZE of SLUB
    is_large = rings["size"].astype(np.int64) * buffer.itemsize > largest
    odd = no_page = 0
    for holder, here in by_holder([Holder("pipe", "", each) for each in who]):
        here = here[read[here]]
        found.memory(holder, large, rings["bufs"][here[is_large[here]]], objects=0)
        pages = [rings[name][here] for name in spares]
        for at in here.tolist():
            size, used = min(int(rings["size"][at]), MOST_BUFFERS), np.zeros(0, np.bool_)
            for _, chunk in read_array(prog, int(rings["bufs"][at]), size, buffer, found.gaps):
                used = np.append(used, chunk["ops"] != 0)
                pages.append(chunk["page"][chunk["ops"] != 0])
                no_page += int(np.count_nonzero(pages[-1] == 0))
            head, tail, owner = (int(rings[name][at]) for name in ("head", "tail", "owner"))
            odd += len(used) == size and _unlike(used, head, tail, owner != 0)
        found.pages(holder, kind, np.concatenate(pages), len(here))
    if not prog.flags & ProgramFlags.IS_LIVE and (apart := files.misled(prog)):
        found.missing.append(f"{plural(apart, 'pipe or socket', 'pipes or sockets')} of no file")
    if no_page and not prog.flags & ProgramFlags.IS_LIVE:
        found.missing.append(f"pipes: {plural(no_page, 'buffer')} without a page")
    if odd and not prog.flags & ProgramFlags.IS_LIVE:
        found.missing.append(f"pipes: the buffers of {odd:,} are not those between head and tail")


def _unlike(used: Bools, head: int, tail: int, locked: bool) -> bool:
    """
    True if the buffers in use are not those from the tail to the head of a pipe
    (``pipe_occupancy()``).
    """
    size, between = len(used), head - tail & 0xFFFFFFFF
    if not 0 <= between <= size:
        return True
    unlike = np.roll(used, -tail) != (np.arange(size) < between)
    # A buffer and its index change one after the other.
    unlike[between : between + 1] = False
    if locked and between:
        unlike[[0, between - 1]] = False
    return bool(unlike.any())


def add_perf(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """perf's rings, each once."""
    events, who = files.of_kind(prog, "perf_fops")
    if not len(events):
        return
    rings, read = read_members(
        prog, events, prog.type("struct perf_event"), {"rb": "rb"}, found.gaps
    )
    buffer = prog.type("struct perf_buffer")
    columns = {name: name for name in ("nr_pages", "user_page", "aux_nr_pages", "aux_pages")}
    unique, first = np.unique(rings["rb"], return_index=True)
    here = read[first] & (unique != 0)
    unique, first = unique[here], first[here]
    members, read = read_members(prog, unique, buffer, columns, found.gaps)
    at_data = offsetof(buffer, "data_pages")
    for address, at, row, known in zip(
        unique.tolist(), first.tolist(), members, read.tolist(), strict=True
    ):
        pages, aux = int(row["nr_pages"]), int(row["aux_nr_pages"])
        if not known or not 0 <= pages <= MOST_PAGES or not 0 <= aux <= MOST_PAGES:
            continue
        memory = [
            np.array([row["user_page"]], np.uint64),
            pointers(prog, address + at_data, pages, found.gaps),
            pointers(prog, int(row["aux_pages"]), aux, found.gaps),
        ]
        found.memory(Holder("perf ring", "", who[at]), kind, np.concatenate(memory))


def add_io_uring(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """io_uring's rings."""
    contexts, who = files.of_kind(prog, "io_uring_fops")
    for address, whose in zip(contexts.tolist(), who, strict=True):
        holder = Holder("io_uring", "", whose)
        context = Object(prog, "struct io_ring_ctx", address=address)
        try:
            for is_first, pages in enumerate(_ring_pages(context, found.gaps)):
                found.pages(holder, kind, pages, objects=not is_first)
            if not hasattr(context, "ring_pages") and not hasattr(context, "ring_region"):
                memory = [context.rings.value_(), context.sq_sqes.value_()]
                found.memory(holder, kind, np.array(memory, np.uint64))
        except FaultError:
            found.strange += 1


def _ring_pages(context: Object, gaps: Gaps) -> list[U64s]:
    """Addresses of the struct pages of both rings, where the kernel keeps them so."""
    prog = context.prog_
    if hasattr(context, "ring_region"):
        regions = [context.ring_region, context.sq_region]
        arrays = [(each.pages, each.nr_pages) for each in regions]
    elif hasattr(context, "ring_pages"):
        arrays = [
            (context.ring_pages, context.n_ring_pages),
            (context.sqe_pages, context.n_sqe_pages),
        ]
    else:
        arrays = []
    return [
        pointers(prog, pages.value_(), min(count.value_(), MOST_PAGES), gaps)
        for pages, count in arrays
    ]


def add_io_uring_buffers(prog: Program, files: OpenFiles, found: Holdings) -> None:
    """Buffers that are registered with io_uring."""
    contexts, who = files.of_kind(prog, "io_uring_fops")
    if not len(contexts):
        return
    vector = prog.type("struct bio_vec")
    columns = {"page": "bv_page", "length": "bv_len", "offset": "bv_offset"}
    page = int(prog["PAGE_SIZE"].value_())
    for address, whose in zip(contexts.tolist(), who, strict=True):
        buffers = _registered(Object(prog, "struct io_ring_ctx", address=address), found.gaps)
        pages, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for each in buffers.tolist():
            buffer = Object(prog, "struct io_mapped_ubuf", address=each)
            try:
                number = min(int(buffer.nr_bvecs.value_()), MOST_PAGES)
                # "io_uring: keep table of pointers to ubufs" (41edf1a5ec96, in v5.13)
                own = buffer.bvec.type_.kind == TypeKind.ARRAY
                vectors = buffer.bvec.address_ if own else buffer.bvec.value_()
            except FaultError:
                found.strange += 1
                continue
            dtype = struct_dtype(vector, columns)
            for _, part in read_array(prog, vectors, number, dtype, found.gaps):
                ends = part["offset"].astype(np.int64) + part["length"]
                pages.append(part["page"].copy())
                counts.append(np.minimum(-(-ends // page), MOST_PAGES))
        holder = Holder("io_uring buffers", "", whose)
        found.pages(holder, 0, np.concatenate(pages), len(buffers), np.concatenate(counts))


def _registered(context: Object, gaps: Gaps) -> U64s:
    """Addresses of the ``struct io_mapped_ubuf`` of a ring."""
    prog = context.prog_
    # "io_uring/rsrc: get rid of per-ring io_rsrc_node list" (7029acd8a950, in v6.13)
    table = getattr(context, "buf_table", None)
    if table is None:
        number = min(int(context.nr_user_bufs.value_()), MOST_BUFFERS)
        buffers = context.user_bufs
        if buffers.type_.type.kind != TypeKind.POINTER:  # before 41edf1a5ec96 they lie there
            size = np.uint64(sizeof(buffers.type_.type))
            return np.uint64(buffers.value_()) + np.arange(number, dtype=np.uint64) * size
        return distinct(pointers(prog, buffers.value_(), number, gaps))
    number = min(int(table.nr.value_()), MOST_BUFFERS)
    nodes = pointers(prog, table.nodes.value_(), number, gaps)
    type_ = prog.type("struct io_rsrc_node")
    found, read = read_members(prog, nodes[nodes != 0], type_, {"buffer": "buf"}, gaps)
    return distinct(found["buffer"][read])
