# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The OOM killer's work, as the kernel's log tells it: who asked, for what, who was killed and what
it held, who else was there, and which memory was free.

Costs reading the log, which section ``kernel_log`` needs, too.

Cannot know: kills that the log does not have any more. ``oom_kill`` of /proc/vmstat counts all.
"""

from mmscope.drgn.log.kernel_log import beginning, log_of_files, log_of_memory, missing
from mmscope.drgn.log.oom_rows import (
    OOM_CGROUP_MEMORY,
    OOM_FREE_BLOCKS,
    OOM_KILLS,
    OOM_MEMORY,
    OOM_TASKS,
)
from mmscope.drgn.log.oom_text import read_oom_records
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.text.kernel_log import Log


def _found(log: Log, page_bytes: int | None) -> Found:
    oom = read_oom_records(log.records, page_bytes)
    found = Found(notes=missing(log), remarks=beginning(log))
    if damaged := sum("damaged" in (row.lacks or "") for row in oom.kills):
        found.notes.append(f"records of {damaged:,} kills are damaged: column lacks has which")
    found.add(OOM_KILLS, oom.kills)
    found.add(OOM_TASKS, oom.tasks)
    found.add(OOM_MEMORY, oom.memory)
    found.add(OOM_FREE_BLOCKS, oom.free_blocks)
    return found.add(OOM_CGROUP_MEMORY, oom.cgroup_memory)


def oom_kills_from_memory(memory: Memory) -> Found:
    return _found(log_of_memory(memory), memory.prog["PAGE_SIZE"].value_())


def oom_kills_from_files(files: Files) -> Found:
    return _found(log_of_files(files), None)


OOM_KILLS_SECTION = Section(
    name="oom_kills",
    title="OOM kills",
    since="0.2.0",
    tables=(OOM_KILLS, OOM_TASKS, OOM_MEMORY, OOM_FREE_BLOCKS, OOM_CGROUP_MEMORY),
    intro="""
What the OOM killer wrote to the kernel's log. It chooses the task with the most memory (resident,
swapped out, page tables), to which each point of
[oom_score_adj](https://docs.kernel.org/filesystems/proc.html) adds a thousandth of what may be
used: of the memory and swap of the machine or of the nodes that were allowed, or of the limit of
the [memory cgroup](https://docs.kernel.org/admin-guide/cgroup-v2.html#memory) that ran out.

The log is a ring, and the kernel leaves the details out where kills are frequent: what it does not
have of a kill is said in its row. `oom_kill` of /proc/vmstat counts all kills since boot.
""",
    command=Command("what the OOM killer did, out of the kernel's log", top=TOP),
    from_memory=oom_kills_from_memory,
    from_files=oom_kills_from_files,
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("oom_kills")
