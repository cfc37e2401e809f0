# SPDX-License-Identifier: LGPL-2.1-or-later
"""
CPUs that are online or possible: ``__cpu_online_mask``, ``__cpu_possible_mask``, and no further.

drgn's ``for_each_online_cpu()`` goes as far as ``nr_cpu_ids`` says, which in a damaged vmcore may
be billions; a mask has room for NR_CPUS bits and no more.
"""

import numpy as np
from drgn import FaultError, Object, Program, alignof
from drgn.helpers.linux.cpumask import cpu_online_mask, cpu_possible_mask
from drgn.helpers.linux.percpu import per_cpu_ptr

from mmscope.drgn.reading.kernel_arrays import U64s


def online_cpus(prog: Program) -> list[int]:
    """
    The numbers of the online CPUs.

    :raises drgn.FaultError: the mask cannot be read.
    :raises ValueError: ``nr_cpu_ids`` cannot be a number of CPUs, or no CPU is online.
    """
    return _cpus(prog, cpu_online_mask(prog), "online")


def possible_cpus(prog: Program) -> list[int]:
    """
    The numbers of the CPUs that may ever be there: ``for_each_possible_cpu()``.

    :raises drgn.FaultError, ValueError: as :func:`online_cpus`.
    """
    return _cpus(prog, cpu_possible_mask(prog), "possible")


def copy_of(pointer: Object, cpu: int) -> Object:
    """
    A CPU's copy of what a percpu pointer is of: ``per_cpu_ptr()``.

    :raises drgn.FaultError: no such structure can begin where it points.
    """
    if (value := pointer.value_()) % alignof(pointer.type_.type):
        raise FaultError("a percpu pointer that is not aligned", value)
    return per_cpu_ptr(pointer, cpu)


def percpu_offsets(prog: Program) -> U64s:
    """
    Offset of each possible CPU's copy from a percpu address (``per_cpu_ptr()``).

    :raises drgn.FaultError, ValueError: as :func:`online_cpus`.
    """
    cpus = possible_cpus(prog)
    try:
        offsets = prog["__per_cpu_offset"]
    except KeyError:
        return np.zeros(1, np.uint64)  # !CONFIG_SMP
    return np.array([offsets[cpu].value_() for cpu in cpus], np.uint64)


def _cpus(prog: Program, mask: Object, what: str) -> list[int]:
    try:
        limit = prog["nr_cpu_ids"].value_()
    except KeyError:
        limit = 1  # !CONFIG_SMP
    words = mask.bits.type_.length or 1
    if limit > 64 * words:
        raise ValueError(f"nr_cpu_ids is {limit}, but the mask has {64 * words} bits: damaged")
    cpus = [cpu for cpu in range(limit) if mask.bits[cpu // 64].value_() >> cpu % 64 & 1]
    if not cpus:  # what is counted by CPU would be zero
        raise ValueError(f"no CPU is {what}: __cpu_{what}_mask is damaged")
    return cpus
