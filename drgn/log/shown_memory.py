# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory as the kernel printed it for its own sake: by SysRq-m, or in a panic (``panic_print=``);
not for a kill or a failed allocation, whose memory is in the tables of these.

Lines of ``show_mem()`` of 3.10 to 7.3 (:mod:`mem_info`). Costs a look at each record of the log,
which section ``kernel_log`` reads, too.

Cannot know: of a log whose beginning and end are lost, whether the memory in it was shown for a
kill.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mmscope.drgn.log.kernel_log import NOT_COMPARED
from mmscope.drgn.log.mem_info import MemInfo
from mmscope.drgn.log.records import same_caller, seconds_of, whole_records
from mmscope.drgn.tables.rows import MOST, MOST_ORDER, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.kernel_log import LogRecord

MOST_SHOWN = 100
MOST_LINES = 400  # of one
BEGINS = "Mem-Info:"
# show_mem() follows a kill's header, and what warn_alloc() says.
OF_OTHERS = re.compile(
    r" invoked oom-killer: |: page allocation (?:failure|stalls)|: vmalloc |\bdump_header\b"
    r"|\bwarn_alloc(?:_failed)?\b"
)
# What a kill prints behind its memory.
OF_KILL = re.compile(r"Tasks state \(memory values|\[ +pid +\] +uid +tgid|oom-kill:constraint=")
SHOWN_ID = "in the log, from 1"


@table(
    "shown_memory",
    "Memory that the log shows",
    empty="the log shows no memory but that of kills and failures",
    not_compared=NOT_COMPARED,
)
class ShownMemory:
    """A number about memory, printed without a kill or a failure."""

    shown: int = column(key=True, low=1, help=SHOWN_ID)
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="zone; empty: the whole node or machine")
    counter: str = column(holds="kernel", key=True, help="as printed")
    bytes: int | None = column(
        unit="bytes", high=MOST, help="as in oom_memory; empty: page size unknown"
    )
    seconds: float | None = column(unit="s", help="since boot, by the record's time")
    date: str | None = column(holds="words", help="wall clock, as the log has it")


@table("shown_free_blocks", "Free blocks that the log shows", not_compared=NOT_COMPARED)
class ShownBlocks:
    """Free blocks of one order in one zone, printed without a kill or a failure."""

    shown: int = column(key=True, low=1, help=SHOWN_ID)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, high=MOST_ORDER, help="order of the blocks")
    blocks: int = column(high=MOST, help="free blocks")
    migratetypes: str = column(holds="kernel", help="lists that have some, as in oom_free_blocks")


@dataclass
class _Shown:
    """One whose lines are being read."""

    record: LogRecord
    lines: int = 0
    memory: MemInfo = field(default_factory=MemInfo)


class Shown(NamedTuple):
    """
    All of a log.

    :ivar damaged: lines that could not be read.
    :ivar left_out: later ones.
    """

    memory: list[ShownMemory]
    blocks: list[ShownBlocks]
    damaged: int
    left_out: int


def read_shown_memory(records: Iterable[LogRecord], page_bytes: int | None = None) -> Shown:
    """
    Find the memory in a log that is neither a kill's nor a failed allocation's.

    :param page_bytes: of the machine; else it is taken from what each of them prints.
    """
    found = list[_Shown]()
    current: _Shown | None = None
    of_other: LogRecord | None = None  # whose memory is still to come
    for record in whole_records(records):
        for line in record.text.split("\n"):
            if OF_OTHERS.search(line):
                current, of_other = None, record
            elif line.strip() == BEGINS:
                current = None
                if of_other is None or not same_caller(of_other.caller, record.caller):
                    current = _Shown(record)
                    found.append(current)
                of_other = None
            elif current is None or not same_caller(current.record.caller, record.caller):
                continue
            elif OF_KILL.match(line):
                found.remove(current)
                current = None
            else:
                current.memory.take(line)
                current.lines += 1
        if current is not None and current.lines > MOST_LINES:
            current = None
    whole = [each for each in found if each.memory.memory or each.memory.machine]
    result = Shown([], [], 0, max(len(whole) - MOST_SHOWN, 0))
    for number, each in enumerate(whole[:MOST_SHOWN], 1):
        when = seconds_of(each.record), each.record.date
        page = page_bytes or each.memory.page_bytes()
        result.memory.extend(ShownMemory(number, *row, *when) for row in each.memory.rows(page))
        result.blocks.extend(
            ShownBlocks(number, *place, *blocks) for place, blocks in each.memory.blocks.items()
        )
    return result._replace(
        damaged=sum(sum(each.memory.damaged.values()) for each in whole[:MOST_SHOWN])
    )


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("kernel_complaints")
