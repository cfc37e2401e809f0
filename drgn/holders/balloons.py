# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Balloons: pages that a driver has given back to the host, by driver.

A page that ``balloon_page_enqueue()`` took in (mm/balloon_compaction.c, of virtio_balloon,
vmw_balloon and pseries' cmm) has its ``struct balloon_dev_info`` in ``page.private``, so that they
are counted in the pass over all struct pages. The driver is the module of its ``migratepage``.

Cannot know: balloons of Hyper-V and Xen, whose pages lead to nothing; what virtio-mem has
unplugged.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from drgn import FaultError, Object, Program

from mmscope.drgn.holders.holdings import Holder
from mmscope.drgn.reading.symbols import frame_names

MOST_BALLOONS = 1 << 10
SUFFIX = "_migratepage"


def balloon_names(prog: Program, balloons: Sequence[int]) -> Mapping[int, Holder]:
    """The balloons at some addresses; of those that are any."""
    functions = dict[int, int]()
    for address in balloons[:MOST_BALLOONS]:
        try:
            balloon = Object(prog, "struct balloon_dev_info", address=address)
            functions[address] = balloon.migratepage.value_()
        except (FaultError, LookupError):  # it is none; the kernel has no such struct
            continue
    found = frame_names(prog, np.array([*functions.values()], np.uint64))
    names = dict[int, Holder]()
    for address, name in zip(functions, found, strict=True):
        function, _, module = name.partition(" [")
        if function.endswith(SUFFIX) or module:
            driver = module.removesuffix("]") or function.removesuffix(SUFFIX)
            names[address] = Holder("balloon", driver)
    return names
