# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Requests of block devices (``blk_mq_alloc_rqs()``, block/blk-mq.c): for each queue of the hardware,
and of the scheduler, as many as it is deep, in blocks of up to 64 KiB that are no compound pages.

``blk_mq_tags.page_list`` has the first page of each block, and ``page.private`` its order. Disks of
one controller share their tags: these are the first one's. Costs a read for each block.

Cannot know: tags of queues that have no disk, as those for the commands of a controller.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from drgn import Object, Program, cast, sizeof
from drgn.helpers.linux.block import disk_name, for_each_disk
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.xarray import xa_for_each

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.tables.display import plural

MOST_DISKS, MOST_QUEUES, MOST_BLOCKS = 1 << 16, 1 << 13, 1 << 16
MOST_ORDER = 4  # that blk_mq_alloc_rqs() asks for


def add_block_requests(prog: Program, found: Holdings, kind: int) -> None:
    """Requests by the disk."""
    seen = set[int]()
    for disk in itertools.islice(for_each_disk(prog), MOST_DISKS):
        pages, orders = list[int](), list[int]()
        if (tag_set := disk.queue.tag_set) and int(tag_set.nr_hw_queues) != (
            number := int(disk.queue.nr_hw_queues)
        ):
            words = f"{int(tag_set.nr_hw_queues):,} queues of {number:,}"
            found.missing.append(f"requests of block devices: {words} have tags")
        if tag_set and (odd := _other_tags(disk.queue)):
            words = f"tags of {plural(odd, 'queue')} are others than the device's"
            found.missing.append(f"requests of block devices: {words}")
        if disk.queue.mq_ops and not tag_set:  # blk_mq_alloc_queue() sets both
            found.missing.append("requests of block devices: a queue has no tags")
        for tags in _tags(disk.queue):
            if not tags or tags.value_() in seen:
                continue
            seen.add(tags.value_())
            first = len(orders)
            blocks = list_for_each_entry("struct page", tags.page_list.address_of_(), "lru")
            for page in itertools.islice(blocks, MOST_BLOCKS):
                pages.append(page.value_())
                orders.append(min(int(page.private.value_()), MOST_ORDER))
            if (room := _room(disk.queue.tag_set, orders[first:])) < (number := int(tags.nr_tags)):
                words = f"of {number:,} requests {room:,} fit into their blocks"
                found.missing.append(f"requests of block devices: {words}")
        if pages:
            name = disk_name(disk).decode(errors="backslashreplace")
            holder = Holder("block requests", name)
            counts = np.int64(1) << np.array(orders, np.int64)
            found.pages(holder, kind, np.array(pages, np.uint64), counts=counts)


def _room(tag_set: Object, orders: list[int]) -> int:
    """Requests that blocks have room for (``blk_mq_alloc_rqs()``, block/blk-mq.c)."""
    prog = tag_set.prog_
    size = sizeof(prog.type("struct request")) + int(tag_set.cmd_size)
    return sum((int(prog["PAGE_SIZE"]) << order) // size for order in orders)


def _tags(queue: Object) -> Iterator[Object]:
    """``struct blk_mq_tags *`` of the device, and of its scheduler."""
    if tag_set := queue.tag_set:
        for at in range(min(int(tag_set.nr_hw_queues.value_()), MOST_QUEUES)):
            yield tag_set.tags[at]
    for context in _contexts(queue):
        yield context.sched_tags


def _contexts(queue: Object) -> Iterator[Object]:
    """``struct blk_mq_hw_ctx *`` of each queue of the hardware."""
    # "blk-mq: prepare for implementing hctx table via xarray" (4e5cc99e1e48, in v5.19)
    if hasattr(queue, "hctx_table"):
        contexts = (entry for _, entry in xa_for_each(queue.hctx_table.address_of_()))
    else:
        queues = min(int(queue.nr_hw_queues.value_()), MOST_QUEUES)
        contexts = (queue.queue_hw_ctx[at] for at in range(queues))
    for context in itertools.islice(contexts, MOST_QUEUES):
        if context:
            yield cast("struct blk_mq_hw_ctx *", context)


def _other_tags(queue: Object) -> int:
    """
    Queues of the hardware whose tags are not those of the device (``blk_mq_map_swqueue()``), or
    that have a scheduler's without a scheduler, or none with one (``blk_mq_init_sched()``).
    """
    scheduled, odd = bool(queue.elevator), 0
    for context in _contexts(queue):
        # Of a queue that no CPU uses they may be gone.
        tags = context.tags
        odd += bool(tags and tags != queue.tag_set.tags[context.queue_num])
        odd += bool(context.sched_tags) != scheduled
    return odd
