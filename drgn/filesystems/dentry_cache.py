# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every ``struct dentry`` and ``struct inode`` by its super block, out of their slab caches.

A slot of the cache ``dentry`` is in use while its ``d_lockref.count`` is not negative:
``__dentry_kill()`` marks it dead (fs/dcache.c, 5.10 to 7.3) just before ``nr_dentry`` goes down,
and ``__d_alloc()`` makes it 1 again; what an allocator keeps for the next one is dead too. A dentry
is negative by the type in its ``d_flags``, and unused while DCACHE_LRU_LIST is there.

Inodes are in a cache of each file system type. In which, and where in an object, is learnt from
some inodes of each type, so that no module's types are needed. Their caches have constructors,
which no other cache is merged with: a slot that was never in use has no super block, one that was
freed has I_CLEAR (``clear_inode()``, fs/inode.c).

Costs the memory of these slabs, read once; memory for the sums only.

Names are held against their hashes (dentry_names.py).

Cannot know: objects of KFENCE; names longer than what fits into a dentry, which are kmalloc memory
of their own; inodes of a type that has no inode to learn it from.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, cast, container_of, offsetof, sizeof
from drgn.helpers.linux.mm import page_to_virt, virt_to_page
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.filesystems.dentry_names import NameHashes, new_name_hashes, with_names
from mmscope.drgn.filesystems.super_blocks import SuperBlocks, note_mounts, super_blocks_once
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.owners.slab_caches import Cache, SlabFinder, SlabScan
from mmscope.drgn.owners.slab_objects import slot_columns, slots_of
from mmscope.drgn.reading.cpus import possible_cpus
from mmscope.drgn.reading.kernel_arrays import (
    TORN,
    Columns,
    Gaps,
    S64s,
    U8s,
    U64s,
    distinct,
    struct_dtype,
)
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.struct_pages import head_page, slab_type
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_text import printed_number, whole_lines

# Counts the objects at some addresses, of a cache, with the memory of their slots.
Count = Callable[[Cache, U64s, U8s], None]
DENTRY: Columns = {"flags": "d_flags", "count": "d_lockref.count", "sb": "d_sb"}
INODE: Columns = {
    "sb": "i_sb",
    "lru": "i_lru.next",
    # struct inode_state_flags in 7.2
    "state": ("i_state.__state", "i_state"),
}
# include/linux/dcache.h: enumerators in 7.2; macros of these values up to 6.12.
DCACHE_LRU_LIST = 1 << 19
DCACHE_ENTRY_TYPE = 7 << 20
# include/linux/fs.h. An enumerator in 7.2; before, by the size of i_state: "inode: make i_state a
# u32" (2b111edbe0a9, in v6.12) came with "fs: reorder i_state bits".
I_CLEAR = {8: 1 << 6, 4: 1 << 8}
# By the name of a sum of the kernel's: its per-CPU counter, and which of COUNTED is the same.
STATISTICS = {
    "dentry_stat.nr_dentry": ("nr_dentry", "dentries"),
    "dentry_stat.nr_unused": ("nr_dentry_unused", "unused"),
    "dentry_stat.nr_negative": ("nr_dentry_negative", "unused_negative"),
    "inodes_stat.nr_inodes": ("nr_inodes", "inodes"),
    "inodes_stat.nr_unused": ("nr_unused", "unused_inodes"),
}
ROOTS = 32  # root dentries that the cache of dentries is learnt from
SAMPLES = 3  # file systems of a type that its cache is learnt from
COUNTED = (
    *("dentries", "negative", "unused", "unused_negative", "inodes", "unused_inodes"),
    *("dentry_bytes", "inode_bytes"),
)

MAX_FILE_SYSTEMS = 1000
OTHERS = "others"


@table(
    "filesystem_dentries",
    "Dentries and inodes by file system",
    memory="again",
    measure="bytes",
    lasting=("filesystem", "mount"),
)
class FilesystemDentries:
    """The dentries and inodes of one file system."""

    filesystem: str | None = column(holds="kernel", help="type of the file system")
    mount: str | None = column(
        holds="file", help="mount point; empty: not mounted, the kernel's own"
    )
    dentries: int = column(help="positive and negative")
    negative: int = column(high="dentries", help="names looked up that do not exist")
    unused: int = column(high="dentries", help="on the LRU list: reclaimable")
    unused_negative: int = column(high="unused", help="negative ones of these")
    inodes: int = column(help="inodes in memory")
    unused_inodes: int = column(high="inodes", help="on the LRU list: reclaimable")
    bytes: int = column(unit="bytes", help="slab slots of these dentries and inodes")
    dentry_bytes: int = column(
        unit="bytes",
        high="bytes",
        help="of dentries, without the kmalloc memory of long names",
    )
    inode_bytes: int = column(unit="bytes", high="bytes", help="of the inodes")
    mounted_by_init: bool | None = column(help="mounted in init's namespace, not in another")
    id: str | None = column(holds="kernel", help="s_id: its block device, if any")
    device: str | None = column(holds="kernel", help="major:minor, as in /proc/PID/maps")
    superblock: str = column(
        holds="kernel",
        key=True,
        help="address of the struct super_block; others: the smallest, summed",
    )


@table("dentry_counts", "Dentries and inodes by the kernel's counts", measure="kernel_says")
class DentryCount:
    """What the kernel counts of all dentries or inodes."""

    counter: str = column(
        holds="kernel",
        key=True,
        help="member of dentry_stat (/proc/sys/fs/dentry-state) or inodes_stat (inode-nr)",
    )
    kernel_says: int = column(help="the kernel's count")
    found: int | None = column(help="counted in the slab caches; empty: not counted")
    difference: int | None = column(low=None, help="found, less kernel_says")


# Of each of COUNTED, a number for each super block.
Sums = dict[str, S64s]


def read_dentry_cache(
    prog: Program,
    supers: SuperBlocks,
    *,
    found: tuple[SlabFinder, Gaps] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Sums, list[str], int, int, Gaps]:
    """
    Count the dentries and inodes of every super block.

    :param found: the slabs, by a pass that went before.
    :return: (the counts; types of file systems whose inodes' cache was not found; slabs that were
        left out, with another number of objects than their cache's; dentries whose name does not
        fit its hash; what could not be read).
    :raises LookupError: the kernel's layout is unknown, or the allocator is not SLUB.
    """
    sums = {name: np.zeros(len(supers.address), np.int64) for name in COUNTED}
    inode_caches, unknown_types = learn_inode_caches(prog, supers)
    counters = dict.fromkeys(inode_caches, _inode_counter(prog, supers, sums, inode_caches))
    names = new_name_hashes(prog, len(supers.address))
    counters[dentry_cache_address(prog, supers)] = _dentry_counter(prog, supers, sums, names)
    scan, gaps = SlabScan(prog, found, progress), Gaps()
    for slabs in scan:
        for index in distinct(slabs["cache"]).tolist():
            cache = scan.caches[index]
            if (count := counters.get(cache.address)) is not None:
                for _, address, memory in slots_of(prog, scan, slabs, index, gaps):
                    count(cache, address, memory)
    counted = [cache.address in counters for cache in scan.caches]
    odd_slabs = int(scan.totals["odd"][counted].sum())
    gaps.bytes += scan.gaps.bytes
    return sums, unknown_types, odd_slabs, names.apart, gaps


def dentry_cache_address(prog: Program, supers: SuperBlocks) -> int:
    """
    The ``struct kmem_cache`` of dentries: the one that root dentries are in. The variable that has
    it is a runtime constant in 7.2, of which debug info has no place.

    :raises LookupError: no root dentry is in a sound cache.
    :raises FaultError: none can be read.
    """
    found: Counter[int] = Counter()
    unread: FaultError | None = None
    for root in supers.columns["root"][:ROOTS].tolist():
        try:
            found[_object_of(prog, root)[0]] += 1
        except FaultError as error:  # a dump without slabs
            unread = error
        except TORN:
            continue
    if not found and unread is not None:
        raise unread
    if not found:
        raise LookupError(
            "the slab cache of dentries is not found: no root dentry is in a sound one"
        )
    return found.most_common(1)[0][0]


def learn_inode_caches(prog: Program, supers: SuperBlocks) -> tuple[dict[int, int], list[str]]:
    """
    The caches of inodes, by the address of their ``struct kmem_cache``: where in an object the
    inode begins; and the types of file systems that have no inode to learn it from.

    A file system's inodes are made by its ``s_op`` (``alloc_inode()``, fs/inode.c).
    """
    operations = supers.columns["op"]
    found: dict[int, Counter[int]] = {}
    unknown = []
    for operation in distinct(operations).tolist():
        at = np.flatnonzero(operations == operation).tolist()
        inodes = {inode for sb in at[:SAMPLES] for inode in _some_inodes(prog, supers, sb)}
        learnt = 0
        for inode in inodes:
            with contextlib.suppress(*TORN):
                address, offset = _object_of(prog, inode)
                found.setdefault(address, Counter())[offset] += 1
                learnt += 1
        if not learnt:
            unknown.append(supers.types[at[0]])
    return {address: offsets.most_common(1)[0][0] for address, offsets in found.items()}, unknown


def _some_inodes(prog: Program, supers: SuperBlocks, sb: int) -> Iterator[int]:
    """
    Addresses of its root inode, and of the newest and the oldest on its list: the root may have
    been made before the file system had an ``s_op`` of its own (debugfs in 7.2), and what is made
    for a socket is on no list.
    """
    with contextlib.suppress(*TORN):
        root = Object(prog, "struct dentry", address=int(supers.columns["root"][sb]))
        yield root.d_inode.value_()
    with contextlib.suppress(*TORN):
        head = Object(prog, "struct super_block", address=int(supers.address[sb])).s_inodes
        for entry in (head.next, head.prev):
            if entry != head.address_of_():
                yield container_of(entry, "struct inode", "i_sb_list").value_()


def _object_of(prog: Program, address: int) -> tuple[int, int]:
    """
    The slab cache that an address is in, and how far it is from the begin of its object.

    :raises FaultError, LookupError: it is in none.
    """
    page = head_page(prog, virt_to_page(prog, address))
    slab = cast(prog.pointer_type(slab_type(prog)), page)
    cache = slab.slab_cache.read_()
    size = int(cache.size.value_())
    pad = cache.red_left_pad.value_() if hasattr(cache, "red_left_pad") else 0
    distance = address - page_to_virt(page).value_()
    if not 0 < size < 1 << 30:
        raise LookupError(f"{address:#x} is in no slab")
    return int(cache.value_()), distance % size - int(pad)


def _dentry_counter(prog: Program, supers: SuperBlocks, sums: Sums, names: NameHashes) -> Count:
    dtype = with_names(prog.type("struct dentry"), DENTRY)
    lru = np.uint32(constant(prog, "DCACHE_LRU_LIST", DCACHE_LRU_LIST))
    type_ = np.uint32(constant(prog, "DCACHE_ENTRY_TYPE", DCACHE_ENTRY_TYPE))
    miss = np.uint32(constant(prog, "DCACHE_MISS_TYPE", 0))

    def count(cache: Cache, address: U64s, memory: U8s) -> None:
        dentry = slot_columns(cache, memory, dtype)
        sb = find(supers.address, dentry["sb"])
        used = (sb >= 0) & (dentry["count"] >= 0)
        sb, flags = sb[used], dentry["flags"][used]
        names.take(address[used], {name: each[used] for name, each in dentry.items()}, sb)
        negative, unused = (flags & type_) == miss, (flags & lru) != 0
        _add(sums, "dentries", sb)
        _add(sums, "negative", sb[negative])
        _add(sums, "unused", sb[unused])
        _add(sums, "unused_negative", sb[negative & unused])
        _add(sums, "dentry_bytes", sb, cache.size)

    return count


def _inode_counter(
    prog: Program, supers: SuperBlocks, sums: Sums, offsets: dict[int, int]
) -> Count:
    type_ = prog.type("struct inode")
    dtype = struct_dtype(type_, INODE)
    state = np.zeros(0, dtype)["state"].dtype
    clear = state.type(constant(prog, "I_CLEAR", I_CLEAR[state.itemsize]))
    node = np.uint64(offsetof(type_, "i_lru"))

    def count(cache: Cache, address: U64s, memory: U8s) -> None:
        offset = offsets[cache.address]
        inode = slot_columns(cache, memory, dtype, offset)
        sb = find(supers.address, inode["sb"])
        used = (sb >= 0) & ((inode["state"] & clear) == 0)
        # Linked into the LRU list, not to itself.
        own = address + np.uint64(offset) + node
        unused = used & (inode["lru"] != own) & (inode["lru"] != 0)
        _add(sums, "inodes", sb[used])
        _add(sums, "unused_inodes", sb[unused])
        _add(sums, "inode_bytes", sb[used], cache.size)

    return count


def _add(sums: Sums, name: str, sb: S64s, each: int = 1) -> None:
    sums[name] += each * np.bincount(sb, minlength=len(sums[name]))


def kernel_counts(prog: Program) -> dict[str, int]:
    """
    Sums of the kernel's counters of each CPU: dentry_stat and inodes_stat of /proc/sys/fs
    (``proc_nr_dentry()``, fs/dcache.c, and ``proc_nr_inodes()``, fs/inode.c); what cannot be read
    is left out.
    """
    found = {}
    for name, (variable, _) in STATISTICS.items():
        with contextlib.suppress(FaultError, LookupError, ValueError):
            cpus = possible_cpus(prog)
            counter = prog[variable]
            bits = 8 * sizeof(counter)
            total = sum(int(per_cpu(counter, cpu).value_()) for cpu in cpus)
            # Of unsigned ones the sum wraps as the kernel's does.
            total = (total + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            found[name] = max(total, 0)
    return found


def filesystem_dentry_rows(supers: SuperBlocks, sums: Sums) -> list[FilesystemDentries]:
    """All file systems that have any, those with the most bytes first."""
    sums = sums | {"bytes": sums["dentry_bytes"] + sums["inode_bytes"]}
    order = np.argsort(-sums["bytes"], kind="stable")
    order = order[sums["bytes"][order] > 0]
    rows = []
    for at in order[:MAX_FILE_SYSTEMS].tolist():
        mount, by_init = supers.mounted(at)
        rows.append(
            FilesystemDentries(
                filesystem=supers.types[at],
                mount=mount,
                mounted_by_init=by_init,
                id=supers.ids[at],
                device=supers.device(at),
                superblock=hex(int(supers.address[at])),
                **{name: int(values[at]) for name, values in sums.items()},
            )
        )
    if len(rest := order[MAX_FILE_SYSTEMS:]):
        row: dict[str, Any] = {name: int(values[rest].sum()) for name, values in sums.items()}
        row |= dict.fromkeys(("filesystem", "mount", "mounted_by_init", "id", "device"))
        rows.append(FilesystemDentries(superblock=OTHERS, **row))
    return rows


def dentry_count_rows(says: Mapping[str, int], sums: Sums | None = None) -> list[DentryCount]:
    """
    The kernel's counts, and what was found.

    :param says: by keys of :data:`STATISTICS`.
    """
    rows = []
    for name, count in says.items():
        _, ours = STATISTICS[name]
        found = None if sums is None else int(sums[ours].sum())
        rows.append(DentryCount(name, count, found, None if found is None else found - count))
    return rows


def read_dentry_state(text: str) -> dict[str, int]:
    """
    /proc/sys/fs/dentry-state, ``struct dentry_stat_t`` (fs/dcache.c): dentries, unused ones, two
    that are constants or 0, negative unused ones, and one that is 0.

    :raises ValueError: the text is something else.
    """
    dentries, unused, _, _, negative, _ = _numbers(text, 6, "/proc/sys/fs/dentry-state")
    return {
        "dentry_stat.nr_dentry": dentries,
        "dentry_stat.nr_unused": unused,
        "dentry_stat.nr_negative": negative,
    }


def read_inode_nr(text: str) -> dict[str, int]:
    """
    /proc/sys/fs/inode-nr: inodes, and unused ones (``struct inodes_stat_t``, fs/inode.c).

    :raises ValueError: the text is something else.
    """
    inodes, unused = _numbers(text, 2, "/proc/sys/fs/inode-nr")
    return {"inodes_stat.nr_inodes": inodes, "inodes_stat.nr_unused": unused}


def _numbers(text: str, count: int, name: str) -> list[int]:
    words = text.split()
    sound = [word for word in words if re.fullmatch("[0-9]{1,20}", word)]
    if len(whole_lines(text, name)) != 1 or len(words) != count or sound != words:
        raise ValueError(f"{name} is damaged: {text[:60]!r}")
    return [printed_number(word, name) for word in words]


def dentries_from_memory(memory: Memory) -> Found:
    prog, supers = memory.prog, super_blocks_once(memory)
    try:
        sums, unknown_types, odd_slabs, odd_names, gaps = read_dentry_cache(
            prog, supers, found=memory.kept_consumer(SlabFinder), progress=memory.progress
        )
    except (FaultError, LookupError) as error:
        if isinstance(error, LookupError) and not supers.broken_off:
            raise
        found = Found(memory.live, unreadable_bytes=supers.gaps.bytes)
        why = supers.broken_off or error
        found.notes.append(f"of all file systems together, as dentries cannot be read: {why}")
        return found.add(DentryCount, dentry_count_rows(kernel_counts(prog)))
    found = Found(memory.live, unreadable_bytes=gaps.bytes + supers.gaps.bytes)
    found.differ(supers.broken_off)
    found.differ(
        *if_any(odd_names, "the name of {} does not fit its hash or length", "dentry", "dentries")
    )
    if unknown_types:
        names = ", ".join(sorted(set(unknown_types)))
        found.remarks.append(f"inodes of {names} are not counted: none of them could be read")
    found.remarks += if_any(
        odd_slabs,
        "{} slabs with another number of objects than their cache's are left out: KFENCE's, or "
        "damaged",
    )
    counts = dentry_count_rows(kernel_counts(prog), sums)
    if missing := set(STATISTICS) - {row.counter for row in counts}:
        found.notes.append(f"counts of the kernel are missing: {', '.join(sorted(missing))}")
    different = [row for row in counts if row.difference]
    # What was left out for a reason is what differs.
    if different and not unknown_types and not odd_slabs:
        found.differ(
            "; ".join(
                f"{r.counter} is {r.kernel_says:,}, {r.found:,} were found" for r in different
            )
        )
    found.add(FilesystemDentries, filesystem_dentry_rows(supers, sums))
    note_mounts(memory, supers, found)
    return found.add(DentryCount, counts)


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
    return found.add(DentryCount, dentry_count_rows(says))


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
    tables=tables_of(FilesystemDentries, DentryCount),
    from_memory=dentries_from_memory,
    from_files=dentries_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.DENTRY_STATE,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("dentries")
