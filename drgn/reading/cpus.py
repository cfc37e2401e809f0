# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Which CPUs are online or possible: their masks, and no further.

drgn's ``for_each_online_cpu()`` goes as far as ``nr_cpu_ids`` says, which in a damaged vmcore may
be billions; a mask has room for NR_CPUS bits and no more.
"""

from drgn import Object, Program
from drgn.helpers.linux.cpumask import cpu_online_mask, cpu_possible_mask


def online_cpus(prog: Program) -> list[int]:
    """
    The numbers of the online CPUs.

    :raises drgn.FaultError: the mask cannot be read.
    :raises ValueError: ``nr_cpu_ids`` cannot be a number of CPUs, or no CPU is online.
    """
    online = _cpus(prog, cpu_online_mask(prog))
    if not online:  # what is counted by CPU would be zero
        raise ValueError("no CPU is online: __cpu_online_mask is damaged")
    return online


def possible_cpus(prog: Program) -> list[int]:
    """
    The numbers of the CPUs that may ever be there: ``for_each_possible_cpu()``.

    :raises drgn.FaultError: the mask cannot be read.
    :raises ValueError: ``nr_cpu_ids`` cannot be a number of CPUs, or no CPU is possible.
    """
    possible = _cpus(prog, cpu_possible_mask(prog))
    if not possible:
        raise ValueError("no CPU is possible: __cpu_possible_mask is damaged")
    return possible


def _cpus(prog: Program, mask: Object) -> list[int]:
    try:
        limit = prog["nr_cpu_ids"].value_()
    except KeyError:
        limit = 1  # !CONFIG_SMP
    words = mask.bits.type_.length or 1
    if limit > 64 * words:
        raise ValueError(f"nr_cpu_ids is {limit}, but the mask has {64 * words} bits: damaged")
    return [cpu for cpu in range(limit) if mask.bits[cpu // 64].value_() >> cpu % 64 & 1]
