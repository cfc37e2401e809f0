# SPDX-License-Identifier: LGPL-2.1-or-later
"""
KASAN's quarantine: slab objects that were freed, and that it keeps for a while.

The slab allocator has not got them back, so for it they are in use: in /proc/slabinfo, and here.
How many bytes they are it counts itself, whole slots of their caches: on a list for each CPU, and
together (mm/kasan/quarantine.c, 5.10 to 7.3). Costs a read for each CPU.

Cannot know: which caches they are of; those of a cache that is being shrunk, which are on a list of
their own for that time.
"""

from drgn import Program
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.reading.cpus import online_cpus


def quarantined_bytes(prog: Program) -> int:
    """
    The bytes of freed objects that are kept; 0 where the kernel keeps none.

    :raises FaultError: they cannot be read.
    """
    try:
        together, by_cpu = prog["quarantine_size"], prog["cpu_quarantine"]
    except LookupError:
        return 0  # no CONFIG_KASAN_GENERIC
    kept = sum(int(per_cpu(by_cpu, cpu).bytes.value_()) for cpu in online_cpus(prog))
    return int(together.value_()) + kept
