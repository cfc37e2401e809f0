# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The sections of files and file systems: whose pages are in the page cache, and who has the dentries
and inodes.
"""

from drgn import FaultError

from mmscope.drgn.filesystems.cached_files import (
    CACHED_FILE_CHECKS,
    CACHED_FILES,
    CACHED_FILESYSTEMS,
    CachedFileCheck,
    CachedFiles,
    checks,
    file_rows,
    filesystem_rows,
    nameless,
    read_cached_files,
)
from mmscope.drgn.filesystems.dentry_cache import (
    DENTRY_COUNTS,
    FILESYSTEM_DENTRIES,
    STATISTICS,
    dentry_count_rows,
    filesystem_dentry_rows,
    kernel_counts,
    read_dentry_cache,
    read_dentry_state,
    read_inode_nr,
)
from mmscope.drgn.filesystems.super_blocks import SuperBlocks, read_super_blocks
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.machine.vm_counters import drift, vm_counters_once
from mmscope.drgn.owners.slab_caches import SlabFinder
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    TOP,
    Against,
    Command,
    Found,
    Section,
    disagreement,
    hold_against,
)
from mmscope.drgn.tables.display import plural


def super_blocks_once(memory: Memory) -> SuperBlocks:
    """All super blocks, once for all sections."""
    return memory.once("super_blocks", lambda: read_super_blocks(memory.prog))


def cached_files_from_memory(memory: Memory) -> Found:
    pages, gaps = ledger_pages(memory)
    supers = super_blocks_once(memory)
    files = read_cached_files(memory.prog, pages.files, supers)
    found = Found(unreadable_bytes=gaps.bytes + supers.gaps.bytes)
    if supers.broken_off:
        disagreement(memory, found, supers.broken_off)
    _say_unknown(memory, files, found)
    present = int(pages.pages.sum())
    rows = file_rows(files, present)
    if "shm_mnt" in memory.prog and not supers.shm:
        disagreement(memory, found, "shm_mnt leads nowhere: kinds of shared memory are not told")
    if lost := nameless(files, rows):
        disagreement(memory, found, f"the names of {plural(lost, 'file')} cannot be read")
    if more := len(files.mapping) + files.other_rows - len(rows):
        found.unlisted.append(f"{more:,} files with fewer pages, which cached_filesystems counts")
    vmstat: dict[str, int] = {}
    try:
        vmstat = {row.name: row.value for row in vm_counters_once(memory)}
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"counters of /proc/vmstat are missing: {error}")
    found.add(CACHED_FILESYSTEMS, filesystem_rows(files, present))
    found.add(CACHED_FILES, rows)
    _say_mounts(memory, supers, found)
    counted = checks(files, vmstat)
    if not memory.live and not gaps.bytes:
        _hold_against_counters(memory, counted, present, found)
    return found.add(CACHED_FILE_CHECKS, counted)


def _say_mounts(memory: Memory, supers: SuperBlocks, found: Found) -> None:
    if supers.mounts_lost:
        words = plural(supers.mounts_lost, "file system")
        disagreement(memory, found, f"mounts of {words} cannot be followed to their root")


def _hold_against_counters(
    memory: Memory, counted: list[CachedFileCheck], present: int, found: Found
) -> None:
    """Mark what a dump's counters cannot say: fewer pages than there are, or more than all."""

    def pages_of(row: CachedFileCheck) -> Against:
        return min(max(row.kernel_pages, row.pages), present), drift(memory.prog)

    hold_against(
        *(found, CACHED_FILE_CHECKS, counted, "kernel_pages"), pages_of, "the pages of that kind"
    )


def _say_unknown(memory: Memory, files: CachedFiles, found: Found) -> None:
    """Say whose pages' file could not be found, and which files have an unknown holder."""
    if lost := int((~files.known).sum()):
        pages = int(files.pages[~files.known].sum())
        disagreement(
            memory,
            found,
            f"{pages:,} pages are of {lost:,} address_spaces whose inode or file system cannot be "
            "read",
        )
    if files.dentries_lost:
        disagreement(
            memory,
            found,
            f"{files.dentries_lost:,} dentries of files of shared memory cannot be read: "
            "whether these are open or mapped is unknown, and they are in no count of "
            "unused files",
        )
    if files.other_rows:
        found.notes.append(
            f"files with few pages were too many to keep: they are in {files.other_rows:,} parts, "
            "and a file may be in several"
        )


def cached_files_from_files(files: Files) -> Found:
    raise Absent(
        "files are read from the kernel's memory (as root); /proc/meminfo has the sums Buffers, "
        "Cached, Shmem, Dirty"
    )


CACHED_FILES_SECTION = Section(
    name="cached_files",
    title="Files in memory",
    intro="""
Whose pages the page cache has: files, block devices, and shared memory, which is in the page cache
too: tmpfs, memfd, SysV. All files are in the table by file system, which adds up to the ledger's
*page cache* and to the huge pages that files have; those with the most pages are named. A file that
no directory has any more keeps its memory until the last process closes it. What is in tmpfs keeps
it until it is removed, and a SysV segment until
[`shmctl(IPC_RMID)`](https://man7.org/linux/man-pages/man2/shmctl.2.html): no process need have it.
""",
    command=Command("the files with the most pages in memory", top=TOP),
    since="0.2.0",
    tables=(CACHED_FILESYSTEMS, CACHED_FILES, CACHED_FILE_CHECKS),
    from_memory=cached_files_from_memory,
    from_files=cached_files_from_files,
    deadline=PASS_SECONDS,
)


def dentries_from_memory(memory: Memory) -> Found:
    prog, supers = memory.prog, super_blocks_once(memory)
    try:
        sums, unknown_types, odd_slabs, gaps = read_dentry_cache(
            prog, supers, found=memory.kept_consumer(SlabFinder), progress=memory.progress
        )
    except (FaultError, LookupError) as error:
        if isinstance(error, LookupError) and not supers.broken_off:
            raise
        found = Found(unreadable_bytes=supers.gaps.bytes)
        why = supers.broken_off or error
        found.notes.append(f"of all file systems together, as dentries cannot be read: {why}")
        return found.add(DENTRY_COUNTS, dentry_count_rows(kernel_counts(prog)))
    found = Found(unreadable_bytes=gaps.bytes + supers.gaps.bytes)
    if supers.broken_off:
        disagreement(memory, found, supers.broken_off)
    if unknown_types:
        names = ", ".join(sorted(set(unknown_types)))
        found.remarks.append(f"inodes of {names} are not counted: none of them could be read")
    if odd_slabs:
        found.remarks.append(
            f"{odd_slabs:,} slabs with another number of objects than their cache's are left "
            "out: KFENCE's, or damaged"
        )
    counts = dentry_count_rows(kernel_counts(prog), sums)
    if missing := set(STATISTICS) - {row.counter for row in counts}:
        found.notes.append(f"counts of the kernel are missing: {', '.join(sorted(missing))}")
    different = [row for row in counts if row.difference]
    # What was left out for a reason is what differs.
    if different and not unknown_types and not odd_slabs:
        disagreement(
            memory,
            found,
            "; ".join(
                f"{r.counter} is {r.kernel_says:,}, {r.found:,} were found" for r in different
            ),
        )
    found.add(FILESYSTEM_DENTRIES, filesystem_dentry_rows(supers, sums))
    _say_mounts(memory, supers, found)
    return found.add(DENTRY_COUNTS, counts)


def dentries_from_files(files: Files) -> Found:
    says = read_dentry_state(files.read("proc/sys/fs/dentry-state"))
    found = Found()
    try:
        says |= read_inode_nr(files.read("proc/sys/fs/inode-nr"))
    except (Absent, ValueError) as error:
        found.notes.append(str(error))
    found.remarks.append(
        "of all file systems together: read the kernel's memory (as root) to know which has them"
    )
    return found.add(DENTRY_COUNTS, dentry_count_rows(says))


DENTRIES_SECTION = Section(
    name="dentries",
    title="Dentries and inodes",
    intro="""
The names and the inodes of files that the kernel keeps in memory, by file system: all objects in
the slab caches of dentries and inodes. A *negative* dentry remembers that a name is not there; each
new name that is looked up and not found makes one, and nothing but reclaim limits them.

The kernel's own counts, in
[/proc/sys/fs/dentry-state](https://docs.kernel.org/admin-guide/sysctl/fs.html#dentry-state), are
beside what was found.
""",
    command=Command("dentries and inodes by file system", top=TOP),
    since="0.2.0",
    tables=(FILESYSTEM_DENTRIES, DENTRY_COUNTS),
    from_memory=dentries_from_memory,
    from_files=dentries_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.DENTRY_STATE,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("cached_files", "dentries")
