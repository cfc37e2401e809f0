# SPDX-License-Identifier: LGPL-2.1-or-later
"""
dma-bufs (``struct dma_buf``, drivers/dma-buf/dma-buf.c): memory that is shared between devices.

Of the system heap a buffer has pages of its own, which a scatter-gather table lists
(``system_heap_buffer.sg_table``); of udmabuf those of a memfd, which it pins, and keeps when the
memfd is gone. Costs a read for each buffer, and one for each 128 blocks of it.

All are on one list of the kernel's, whether or not a process has them open.

Cannot know: buffers of other exporters, as graphics drivers; on kernels without that list those
that are mapped, but no longer open.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from drgn import Object, Program, cast, sizeof
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.holdings import Holder, Holdings, pointers
from mmscope.drgn.processes.open_files import NO_PROCESS, OpenFiles
from mmscope.drgn.reading.kernel_arrays import Gaps, S64s, U64s, read_array, struct_dtype
from mmscope.drgn.reading.kernel_names import name_in

MOST_BUFFERS = 1 << 16
MOST_PAGES = 1 << 24  # of a buffer
# "dma-buf: Rename debugfs symbols" (89f9dba365e1, in v6.16)
LISTS = ("dmabuf_list", "db_list")
CHAIN = 1  # SG_CHAIN, in scatterlist.page_link
FLAGS = np.uint64(3)
NAME_BYTES = 32  # DMA_BUF_NAME_LEN (include/uapi/linux/dma-buf.h)


def add_dma_buffers(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """Buffers by exporter, name and process."""
    buffers, who = files.of_kind(prog, "dma_buf_fops")
    openers = dict(zip(buffers.tolist(), who, strict=True))
    every = dict.fromkeys((*openers, *_listed(prog)))
    for address in itertools.islice(every, MOST_BUFFERS):
        buffer = Object(prog, "struct dma_buf", address=address)
        names = [_text(buffer.exp_name), _text(buffer.name)]
        holder = Holder("dma-buf", " ".join(names).strip(), openers.get(address, NO_PROCESS))
        operations = buffer.ops.value_()
        if _is(prog, "system_heap_buf_ops", operations):
            heap = cast("struct system_heap_buffer *", buffer.priv)
            pages, counts = scattered(heap.sg_table, found.gaps)
            found.pages(holder, kind, pages, counts=counts)
        elif _is(prog, "udmabuf_ops", operations):
            udmabuf = cast("struct udmabuf *", buffer.priv)
            # "udmabuf: Convert udmabuf driver to use folios" (5e72b2b41a21, in v6.11), and back
            array = udmabuf.pages if hasattr(udmabuf, "pages") else udmabuf.folios
            number = min(int(udmabuf.pagecount.value_()), MOST_PAGES)
            found.pages(holder, kind, pointers(prog, array.value_(), number, found.gaps))


def _is(prog: Program, name: str, address: int) -> bool:
    try:
        return bool(prog.symbol(name).address == address)
    except LookupError:
        return False


def _text(name: Object) -> str:
    """A name of the kernel's, cut at the most that it may have."""
    return name_in(name.prog_.read_c_string(name.value_(), max_size=NAME_BYTES)) if name else ""


def _listed(prog: Program) -> Iterator[int]:
    for name in LISTS:
        if name in prog:
            head = getattr(prog[name], "head", prog[name])
            for each in list_for_each_entry("struct dma_buf", head.address_of_(), "list_node"):
                yield each.value_()


def scattered(table: Object, gaps: Gaps) -> tuple[U64s, S64s]:
    """Addresses of the first struct pages of a ``struct sg_table``'s runs, and their pages."""
    prog = table.prog_
    type_, page = prog.type("struct scatterlist"), int(prog["PAGE_SIZE"].value_())
    dtype = struct_dtype(type_, {"link": "page_link", "length": "length"})
    at, left = int(table.sgl.value_()), min(int(table.orig_nents.value_()), MOST_PAGES)
    pages, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    while left > 0 and at:
        # A part of the table is a page, or less; what leads to the next one is its last entry.
        number, at_next = min(left, page // sizeof(type_)), 0
        for _, part in read_array(prog, at, number, dtype, gaps):
            link, runs = part["link"], -(-part["length"].astype(np.int64) // page)
            if len(chain := np.flatnonzero(link & np.uint64(CHAIN))):
                at_next = int(link[chain[0]] & ~FLAGS)
                link, runs = link[: chain[0]], runs[: chain[0]]
            link, runs = link[:left], runs[:left]
            pages.append(link & ~FLAGS)
            counts.append(runs)
            left -= max(len(link), 1)
        at = at_next
    return np.concatenate(pages), np.concatenate(counts)
