# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Shares of memory: what each process that maps it has for itself, and its part of the rest: the
numbers of /proc/PID/smaps_rollup (``show_smaps_rollup()``, fs/proc/task_mmu.c).

Exact, of a kernel that counts the mappings of each page. Costs a walk over all page tables, which
section ``page_tables`` then needs no more, and the struct page of each mapped page
(``mapped_pages``).

As for the kernel, hugetlb pages are in none of it, nor the zero pages. A page that is being moved,
in a device's own memory, or lost to a hardware error is in smaps_rollup, and not here. Since
"mm/gup: replace FOLL_NUMA by gup_can_follow_protnone()" (474098edac26, in v6.1) and until "smaps:
use vm_normal_page_pmd() instead of follow_trans_huge_pmd()" (8b9c1cc0418a, in v6.6) huge pages of
PROT_NONE are here, and not there.

Cannot know: who has the pages of shmem that are swapped out, which are in no SwapPss.
"""

import re

from mmscope.drgn.page_tables.mapped_pages import KINDS, PSS_SHIFT
from mmscope.drgn.page_tables.page_table_scan import PageTableScan, scan_of, words_of_lost
from mmscope.drgn.processes.address_spaces import BROKEN_OFF
from mmscope.drgn.processes.process_status import Status, parse_status
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines


@table(
    "process_shares",
    "Unique and shared memory of processes",
    memory="again",
    measure="pss_bytes",
    lasting=("comm",),
)
class ProcessShare:
    """The memory that an address space maps, and its own part of it."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread group; the first seen")
    comm: str = column(holds="comm", help="name of its first thread")
    resident_bytes: int = column(unit="bytes", high=MOST_BYTES, help="Rss: mapped pages")
    unique_bytes: int = column(
        unit="bytes",
        high="resident_bytes",
        help="USS: mapped once; freed at exit, unless a file keeps them",
    )
    # More than there is memory, where a process maps the same pages again and again.
    shared_bytes: int = column(
        unit="bytes", high=(MOST_BYTES, "resident_bytes"), help="mapped more than once"
    )
    pss_bytes: int = column(
        unit="bytes",
        high="resident_bytes",
        help="PSS: each page's size over its number of mappings",
    )
    pss_anon_bytes: int = column(unit="bytes", high="pss_bytes", help="anonymous part of PSS")
    pss_file_bytes: int = column(unit="bytes", high="pss_bytes", help="file part of PSS")
    pss_shmem_bytes: int = column(
        unit="bytes", high="pss_bytes", help="shared memory and tmpfs in PSS"
    )
    pss_locked_bytes: int = column(
        unit="bytes", high="pss_bytes", help="PSS in mlock()ed mappings (Locked)"
    )
    pss_swap_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="SwapPss: swapped out, not in PSS; without shmem",
    )


def process_shares(scan: PageTableScan) -> list[ProcessShare]:
    """
    All address spaces, the largest PSS first.

    :raises ValueError: the scan did not look at mapped pages.
    """
    mapped = scan.mapped
    if mapped is None:
        raise ValueError("the scan of page tables did not look at mapped pages")
    sums, pages, unique = mapped.sums, mapped.total("pages"), mapped.total("unique")
    parts = (*(sums[f"pss_{kind}"] for kind in KINDS), sums["pss_locked"])
    columns = (
        pages * mapped.page,
        unique * mapped.page,
        (pages - unique) * mapped.page,
        # Of the whole, as the kernel rounds it: up to 2 bytes more than of the three.
        mapped.total("pss") >> PSS_SHIFT,
        *(part >> PSS_SHIFT for part in parts),
    )
    swapped: list[int | None] = [None] * len(scan.spaces)
    if not isinstance(mapped.swap, str):
        swapped = (sums["pss_swap"] >> PSS_SHIFT).tolist()
    rows = [
        ProcessShare(process.pid, process.comm, *numbers)
        for process, lost, *numbers in zip(
            scan.spaces.processes,
            scan.lost.tolist(),
            *(column.tolist() for column in columns),
            swapped,
            strict=True,
        )
        if not lost
    ]
    return sorted(rows, key=lambda row: (-row.pss_bytes, row.pid))


def shares_once(memory: Memory) -> PageTableScan:
    """
    The scan that looked at mapped pages, which section ``page_tables`` then need not make.

    :raises FaultError, LookupError, NotImplementedError: as :func:`scan_page_tables`.
    """
    kept: PageTableScan | None = memory.kept("page_table_scan")
    if kept is not None and kept.mapped is not None:
        return kept
    scan = memory.once("shares_scan", lambda: scan_of(memory, shares=True))
    memory.once("page_table_scan", lambda: scan)
    return scan


def say_unread(scan: PageTableScan, found: Found) -> None:
    """Say of which processes and pages it is not known who has them."""
    mapped = scan.mapped
    assert mapped is not None
    unread, unread_swap = (int(mapped.sums[name].sum()) for name in ("unread", "unread_swap"))
    lost = "could not be read: not counted"
    found.notes += if_any(unread, f"struct pages of {{}} {lost}", "mapped page")
    found.notes += if_any(unread_swap, f"counts of {{}} {lost}", "swapped page")
    if isinstance(mapped.swap, str):
        found.notes.append(f"who shares what is swapped out is unknown: {mapped.swap}")
    words = "{} bytes of page tables and VMAs could not be read: what they map is not counted"
    found.notes += if_any(scan.gaps.bytes, words)
    found.notes += words_of_lost(scan)
    if scan.spaces.broken_off:
        found.notes.append(BROKEN_OFF)
    tables = scan.numbers["repeated_tables"] + scan.numbers["dropped_tables"]
    absurd, headless = mapped.numbers["absurd"], mapped.numbers["headless"]
    not_counted = "{} damaged: not counted here"
    found.differ(
        *if_any(scan.spaces.damaged, not_counted, "process is", "processes are"),
        *if_any(tables, not_counted, "page table is", "page tables are"),
        *if_any(scan.damaged_vmas, not_counted, "VMA is", "VMAs are"),
        *if_any(absurd, "mappings of {} are more than there are entries, or no number", "page"),
        *if_any(headless, "{} of no folio, or of a folio without an owner", "mapped page"),
    )


def from_memory(memory: Memory) -> Found:
    scan = shares_once(memory)
    rows, mapped = process_shares(scan), scan.mapped
    assert mapped is not None
    found = Found(memory.live, unreadable_bytes=scan.gaps.bytes + mapped.gaps.bytes)
    say_unread(scan, found)
    whole = not (found.notes or found.unreadable_bytes or mapped.numbers["uncounted"])
    if whole and not memory.live:
        memory.once("process_shares", lambda: rows)  # for section vm_counters
    found.notes += if_any(
        mapped.numbers["uncounted"],
        "{} of large folios have no count of their mappings (CONFIG_NO_PAGE_MAPCOUNT): taken for "
        "their process's own, shared or not",
        "mapped page",
    )
    return found.add(ProcessShare, rows)


# Lines of smaps_rollup, __show_smap().
LINES = {
    "resident_bytes": ("Rss",),
    "unique_bytes": ("Private_Clean", "Private_Dirty"),
    "shared_bytes": ("Shared_Clean", "Shared_Dirty"),
    "pss_bytes": ("Pss",),
    "pss_anon_bytes": ("Pss_Anon",),
    "pss_file_bytes": ("Pss_File",),
    "pss_shmem_bytes": ("Pss_Shmem",),
    "pss_locked_bytes": ("Locked",),
    "pss_swap_bytes": ("SwapPss",),
}


def read_smaps_rollup(text: str, pid: int, comm: str) -> ProcessShare:
    """
    The same of a process by its smaps_rollup, in whole KiB.

    :raises ValueError: the text is not that of such a file, or it is cut short.
    """
    head, *lines = whole_lines(text, "smaps_rollup")
    if not head.endswith("[rollup]"):
        raise ValueError(f"smaps_rollup is damaged: {head[:60]!r}")
    said = {}
    for line in lines:
        match = re.fullmatch(r"(\w{1,20}): +(\d{1,20}) kB", line, re.ASCII)
        if not match:
            raise ValueError(f"smaps_rollup is damaged: {line[:60]!r}")
        said[match[1]] = printed_number(match[2], "smaps_rollup") << 10
    if missing := [name for names in LINES.values() for name in names if name not in said]:
        raise ValueError(f"smaps_rollup has no {missing[0]}")
    sums = {
        column: row_number(sum(said[name] for name in names), "smaps_rollup")
        for column, names in LINES.items()
    }
    return ProcessShare(pid=pid, comm=comm, **sums)


NAMED = 5  # of the processes that something is wrong with


def _status(files: Files, pid: int) -> Status | None:
    """Status of a process; None of one whose smaps alone was copied."""
    try:
        return parse_status(files.open(f"proc/{pid}/status"))
    except FileNotFoundError:
        if "smaps_rollup" not in files.names(f"proc/{pid}"):
            raise
        return None


def from_files(files: Files) -> Found:
    rows, missing = [], dict[str, list[int]]()
    with ReaderApart() as reader:
        for pid in files.numbers("proc", r"(\d+)"):
            try:
                status = _status(files, pid)
                if status and "VmRSS" not in status.lines:
                    continue  # a kernel thread
                text = files.open_apart(f"proc/{pid}/smaps_rollup", reader)
                its = (status.pid, status.comm) if status else (pid, "")
                rows.append(read_smaps_rollup(text, *its))
            except ProcessLookupError:
                continue  # it has ended
            except FileNotFoundError:
                if files.live:
                    continue
                missing.setdefault("no such file", []).append(pid)
            except OSError as error:
                missing.setdefault(error.strerror or "cannot be read", []).append(pid)
            except ValueError as error:
                missing.setdefault(str(error), []).append(pid)
    if not rows:
        why = next(iter(missing), "no process")
        raise Absent(f"smaps_rollup of processes cannot be read ({why})")
    found = Found()
    for why, these in missing.items():
        named = ", ".join(map(str, these[:NAMED])) + (", …" if len(these) > NAMED else "")
        processes = plural(len(these), "process", "processes")
        found.notes.append(f"{processes} not counted: smaps_rollup of {named}: {why}")
    rows.sort(key=lambda row: (-row.pss_bytes, row.pid))
    found.remarks.append("processes that share their memory (vfork) count each")
    return found.add(ProcessShare, rows)


PROCESS_SHARES_SECTION = Section(
    name="process_shares",
    title="Unique and shared memory of processes",
    intro="""
What of a process's memory is its own (USS), and its part of what it shares with others (PSS), as
[smaps_rollup](https://docs.kernel.org/filesystems/proc.html) counts them. The PSS of all processes
adds up to the pages that they map together; hugetlb pages are in none. So does the PSS of what is
swapped out, which is beside it. What has been mapped
once is not always free when the process ends: a file's pages stay in the page cache.
""",
    command=Command("unique and shared memory of processes", top=TOP, picks="pid"),
    since="0.2.0",
    tables=tables_of(
        ProcessShare,
    ),
    from_memory=from_memory,
    from_files=from_files,
    deadline=PASS_SECONDS,
    reads=(prices.STATUS, prices.SMAPS_ROLLUP),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("process_shares")
