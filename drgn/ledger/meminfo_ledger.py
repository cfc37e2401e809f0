# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The ledger by the counters of /proc/meminfo, for a machine whose memory is not read.

Counters are no pages: what they leave of MemTotal is a remainder, found by subtraction, and where
the kernel counts a page twice or not at all the remainder is off by it. Percpu has the first chunk,
which is reserved memory of boot: that is not in MemTotal, and in no other row.
"""

import re

from mmscope.drgn.ledger.memory_ledger import LedgerRow, largest_first
from mmscope.drgn.text.kernel_text import printed_number

# Lines of /proc/meminfo (fs/proc/meminfo.c) by class: those that are added, those that are taken
# off, since another line has them too.
LINES = {
    ("free", "free lists"): (("MemFree",), ()),
    ("anonymous", "mapped pages"): (("AnonPages",), ()),
    # Cached is NR_FILE_PAGES without the swap cache and block devices (Buffers).
    ("page cache", "files"): (("Cached", "Buffers"), ("Shmem",)),
    ("page cache", "shmem"): (("Shmem",), ()),
    ("hugetlb", "in use or free in the pool"): (("Hugetlb",), ()),
    ("slab", "reclaimable"): (("SReclaimable",), ()),
    ("slab", "unreclaimable"): (("SUnreclaim",), ()),
    # Stacks are vmalloc memory (CONFIG_VMAP_STACK), and not counted twice here.
    ("vmalloc", "areas, kernel stacks among them"): (("VmallocUsed",), ()),
    ("percpu", "chunks"): (("Percpu",), ()),
    ("page tables", "of processes, KVM and IOMMUs"): (("PageTables", "SecPageTables"), ()),
    ("compressed", "zswap"): (("Zswap",), ()),
    ("bad", "hwpoison"): (("HardwareCorrupted",), ()),
}
REMAINDER = "remainder of MemTotal, by subtraction"
MAX_MEMINFO = 1 << 16


def read_meminfo_ledger(text: str, page: int) -> list[LedgerRow]:
    """
    Rows of the whole machine from /proc/meminfo; node -1, no zone.

    :param page: bytes of a page.
    :raises ValueError: the text is not /proc/meminfo's.
    """
    found = re.findall(r"^(\S{1,40}): +([0-9]{1,18})(?: kB)?$", text[:MAX_MEMINFO], re.MULTILINE)
    said = {name: printed_number(number, "/proc/meminfo") << 10 for name, number in found}
    if not said.get("MemTotal") or "MemFree" not in said:
        raise ValueError("/proc/meminfo has no lines MemTotal and MemFree")
    total = said["MemTotal"]
    rows = []

    def add(owner: str, part: str, size: int, lines: str) -> None:
        pages = size // page
        rows.append(LedgerRow(owner, part, -1, "", pages, size, 100 * size / total, lines))

    known = 0
    for (owner, part), (plus, minus) in LINES.items():
        there = [line for line in plus if line in said]
        size = sum(said[line] for line in there) - sum(said.get(line, 0) for line in minus)
        if there and size > 0:
            add(owner, part, size, " ".join(there))
            known += size
    add("unexplained", REMAINDER, max(total - known, 0), "MemTotal")
    return largest_first(rows)
