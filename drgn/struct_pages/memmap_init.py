# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How long struct pages take to be initialised: an estimate, and what the kernel's log says of it.

The estimate is struct pages times what one costs. "Minimizing struct page overhead" (Joao Martins,
2021) measured 268 to 358 ms for 128 GiB of persistent memory in pages of 4 KiB, 33,554,432 struct
pages, and 78 to 100 ms in pages of 2 MiB, of whose 512 struct pages 128 are initialised: 8.0 to
11.9 ns each, by one CPU. The same gives 0.1 to 0.2 ms for pages of 1 GiB, as it does (less than
1 ms).

The log has what a kernel measured itself, in its ticks of 1 to 10 ms: a line for each range of a
device (``memmap_init_zone_device()``; 6.1 shows it, 6.12 and later only with ``dyndbg``), and one
for each node whose struct pages were left for later while it booted (``deferred_init_memmap()``).

Cannot know: what the log had when its end met its beginning.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mmscope.drgn.text.kernel_log import LogRecord

NS_PER_STRUCT_PAGE = (8.0, 11.9)
DEVICE = re.compile(r"memmap_init_zone_device initialised ([0-9]{1,18}) pages in ([0-9]{1,9})ms")
NODE = re.compile(r"node ([0-9]{1,6}) deferred pages initialised in ([0-9]{1,9})ms")


@dataclass
class LoggedTimes:
    """What the log says of struct pages, in ms."""

    # By the number of pages of a device's range, in the order of the log.
    devices: dict[int, list[int]] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)  # deferred, by all CPUs of the node


def estimate_ms(struct_pages: int) -> tuple[float, float]:
    """At least and at most, by :data:`NS_PER_STRUCT_PAGE`."""
    low, high = NS_PER_STRUCT_PAGE
    return struct_pages * low / 1e6, struct_pages * high / 1e6


def logged_times(records: Iterable[LogRecord]) -> LoggedTimes:
    """Find the lines in the log."""
    found = LoggedTimes()
    for record in records:
        if line := DEVICE.search(record.text):
            found.devices.setdefault(int(line[1]), []).append(int(line[2]))
        elif line := NODE.search(record.text):
            found.nodes[int(line[1])] = int(line[2])
    return found
