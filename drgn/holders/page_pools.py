# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page pools of the network stack (``struct page_pool``, net/core/page_pool.c): pages that a driver's
receive queue takes and gets back, by pool and device.

Each page names its pool (``page.pp``, which lies where ``page.lru.prev`` does), so that they are
counted in the pass over all struct pages. A pool that was destroyed waits for those that are still
in use, in sockets say, however long. Costs a read for each pool.

Cannot know: the device, where a driver does not say it (of 6.1 that for DMA alone is known); who
has what a pool waits for.
"""

from collections.abc import Mapping, Sequence

from drgn import FaultError, Object, Program

from mmscope.drgn.holders.holdings import Holder
from mmscope.drgn.reading.kernel_names import name_in

MOST_POOLS = 1 << 16


def pool_names(prog: Program, pools: Sequence[int]) -> Mapping[int, Holder]:
    """The pools at some addresses; of those that can be read."""
    names = dict[int, Holder]()
    for address in pools[:MOST_POOLS]:
        pool = Object(prog, "struct page_pool", address=address)
        try:
            names[address] = Holder(KINDS[_is_destroyed(pool)], _name(pool))
        except FaultError:
            continue
    return names


KINDS = {False: "page pool", True: "page pool that waits"}


def _is_destroyed(pool: Object) -> bool:
    """True if ``page_pool_destroy()`` was called, and pages are not back."""
    user = getattr(pool, "user", None)
    if user is not None and hasattr(user, "detach_time"):
        return bool(user.detach_time)
    return bool(pool.defer_start)  # of 6.1


def _name(pool: Object) -> str:
    """The network device, or that of DMA, and the pool's number."""
    words = []
    slow = getattr(pool, "slow", None)
    if slow is not None and hasattr(slow, "netdev") and slow.netdev:
        words.append(name_in(bytes(slow.netdev.name.value_())))
    elif pool.p.dev:
        kobject = pool.p.dev.kobj.name
        if kobject:
            words.append(name_in(pool.prog_.read_c_string(kobject.value_(), max_size=64)))
    user = getattr(pool, "user", None)
    if user is not None and hasattr(user, "id"):
        words.append(str(user.id.value_()))
    return " ".join(words)
