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
Costs reading the log's text, some hundred KiB to some MiB.

Cannot know: what the log had when its end met its beginning.
"""

import re
from dataclasses import dataclass, field

from drgn import Program

NS_PER_STRUCT_PAGE = (8.0, 11.9)
MAX_LOG_BITS = 28  # log_buf_len= of 256 MiB


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


def log_text(prog: Program) -> bytes:
    """
    The text of the kernel's log, oldest first, with the binary headers between.

    :raises LookupError: the kernel's log is of another form (before 5.10).
    :raises FaultError: it cannot be read.
    :raises ValueError: it is damaged.
    """
    ring = prog["prb"].text_data_ring
    bits = ring.size_bits.value_()
    if not 0 < bits <= MAX_LOG_BITS:
        raise ValueError("the kernel's log is damaged")
    data = bytes(prog.read(ring.data.value_(), 1 << bits))
    head = ring.head_lpos.counter.value_() & ((1 << bits) - 1)
    return data[head:] + data[:head]


def logged_times(text: bytes) -> LoggedTimes:
    """Find the lines in the log's text."""
    found = LoggedTimes()
    for line in re.finditer(
        rb"memmap_init_zone_device initialised (\d{1,18}) pages in (\d{1,9})ms", text
    ):
        found.devices.setdefault(int(line[1]), []).append(int(line[2]))
    for line in re.finditer(rb"node (\d{1,6}) deferred pages initialised in (\d{1,9})ms", text):
        found.nodes[int(line[1])] = int(line[2])
    return found
