# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Which CPUs are online: ``__cpu_online_mask``, and no further.

drgn's ``for_each_online_cpu()`` goes as far as ``nr_cpu_ids`` says, which in a damaged vmcore may
be billions; a mask has room for NR_CPUS bits and no more.
"""

from drgn import Program
from drgn.helpers.linux.cpumask import cpu_online_mask


def online_cpus(prog: Program) -> list[int]:
    """
    The numbers of the online CPUs.

    :raises drgn.FaultError: the mask cannot be read.
    :raises ValueError: ``nr_cpu_ids`` cannot be a number of CPUs, or no CPU is online.
    """
    try:
        limit = prog["nr_cpu_ids"].value_()
    except KeyError:
        limit = 1  # !CONFIG_SMP
    mask = cpu_online_mask(prog)
    words = mask.bits.type_.length or 1
    if limit > 64 * words:
        raise ValueError(f"nr_cpu_ids is {limit}, but the mask has {64 * words} bits: damaged")
    online = [cpu for cpu in range(limit) if mask.bits[cpu // 64].value_() >> cpu % 64 & 1]
    if not online:  # what is counted by CPU would be zero
        raise ValueError("no CPU is online: __cpu_online_mask is damaged")
    return online
