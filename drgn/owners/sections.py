# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sections of slab caches, and of the owners of their objects."""

from drgn import Program
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.owners.page_owner import depot_notes
from mmscope.drgn.owners.slab_caches import (
    SLAB_CACHES,
    SLAB_CHECKS,
    SLAB_OWNER_CHECKS,
    SlabScan,
    misnamed,
    pages_in_no_cache,
    read_slabinfo,
    slab_caches,
    slab_consumer,
)
from mmscope.drgn.owners.slab_cgroups import MAX_ROWS, SLAB_CGROUPS
from mmscope.drgn.owners.slab_owner import (
    SLAB_OWNER_STACKS,
    SlabOwnerStack,
    cgroups_once,
    read_alloc_traces,
    slab_owner_stacks,
    slabs_once,
    tracks_depot,
)
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section, disagreement
from mmscope.drgn.tables.display import plural
from mmscope.drgn.text.kernel_text import printed_number


def slab_caches_from_memory(memory: Memory) -> Found:
    scan, _ = slabs_once(memory)
    rows, checks = slab_caches(scan)
    found = Found(notes=misnamed(memory.prog), unreadable_bytes=scan.gaps.bytes)
    if scan.broken_off:
        found.notes.append(f"{scan.broken_off}; slabs of others are not counted")
    if scan.gaps.bytes:
        found.notes.append(
            f"{scan.gaps.bytes:,} bytes of struct pages could not be read{scan.gaps.why}: slabs "
            "among them are not counted"
        )
    if nameless := sum(cache.name == f"({cache.address:#x})" for cache in scan.caches):
        found.notes.append(f"the names of {nameless} caches could not be read; they go by address")
    if checks:
        disagreement(
            memory,
            found,
            f"the slabs of {plural(len(checks), 'cache')} do not add up (slab_checks)",
        )
    if (rest := pages_in_no_cache(memory.prog, scan)) > 0:
        found.remarks.append(
            f"{rest:,} more pages that the kernel counts as slab are in no cache: kmalloc beyond "
            "the largest cache"
        )
    _note_quarantine(memory, found)
    found.add(SLAB_CACHES, rows)
    found.add(SLAB_CHECKS, checks)
    _add_cgroups(memory, scan, found)
    return found


def quarantined_bytes(prog: Program) -> int:
    """
    Bytes of freed objects that KASAN keeps for a while; 0 where the kernel keeps none.

    The slab allocator has not got them back, so for it they are in use: in /proc/slabinfo, and
    here. KASAN counts them itself, whole slots of their caches: on a list for each CPU, and
    together (mm/kasan/quarantine.c, 5.10 to 7.3). Not known is which caches they are of, and those
    of a cache that is being shrunk, which are on a list of their own for that time.

    :raises FaultError: they cannot be read.
    """
    try:
        together, by_cpu = prog["quarantine_size"], prog["cpu_quarantine"]
    except LookupError:
        return 0  # no CONFIG_KASAN_GENERIC
    kept = sum(int(per_cpu(by_cpu, cpu).bytes.value_()) for cpu in online_cpus(prog))
    return int(together.value_()) + kept


def _note_quarantine(memory: Memory, found: Found) -> None:
    try:
        kept = quarantined_bytes(memory.prog)
    except TORN as error:
        found.notes.append(f"how many objects KASAN keeps in its quarantine is not known: {error}")
        return
    if kept:
        found.remarks.append(
            f"{kept:,} bytes of objects in use were freed: KASAN keeps them in its quarantine"
        )


def _add_cgroups(memory: Memory, scan: SlabScan, found: Found) -> None:
    """Whose the objects are, where the kernel has memory cgroups."""
    try:
        counted = cgroups_once(memory)
    except LookupError:
        return  # CONFIG_MEMCG is not set
    try:
        if counted.failure is not None:
            raise counted.failure
        rows = counted.rows(scan.caches, memcgs := memcgs_once(memory))
        _, strange = counted.own_bytes(scan.caches, memcgs)
    except TORN as error:
        found.notes.append(f"memory cgroups of slab objects are not told: {error}")
        return
    found.unreadable_bytes += counted.gaps.bytes
    if counted.gaps.bytes:
        found.notes.append(
            f"{counted.gaps.bytes:,} bytes of what says whose objects are could not be read"
        )
    if strange:
        words = f"{plural(strange, 'slab object')} are charged to no memory cgroup that is known"
        disagreement(memory, found, words)
    if len(rows) > MAX_ROWS:
        found.unlisted.append(
            f"slab_cgroups has the {MAX_ROWS:,} largest of {len(rows):,} pairs of cgroup and cache"
        )
    found.add(SLAB_CGROUPS, rows[:MAX_ROWS])


def slab_caches_from_files(files: Files) -> Found:
    rows = read_slabinfo(files.read("proc/slabinfo"))
    return Found().add(SLAB_CACHES, rows)


NO_TRACKS = (
    "no slab cache remembers who allocated its objects; boot with slab_debug=U (older "
    "kernels: slub_debug=U, which newer ones take, too), or slab_debug=U,CACHE for one cache"
)


def slab_owner_from_memory(memory: Memory) -> Found:
    scan, owners = slabs_once(memory)
    tracked = [cache for cache in scan.caches if cache.store_user]
    if not tracked and scan.broken_off:
        raise ValueError(scan.broken_off)
    if not tracked:
        raise Absent(NO_TRACKS)
    try:
        depot = tracks_depot(memory)
        if owners is None:
            raise LookupError("their tracks have no stacks")
    except LookupError as reason:
        raise ValueError(
            f"{len(tracked)} of {len(scan.caches)} caches say that they keep tracks, but "
            f"{reason}: their flags or the depot are damaged"
        ) from None
    rows, checks = slab_owner_stacks(memory.prog, depot, owners)
    found = Found(notes=misnamed(memory.prog), unreadable_bytes=owners.gaps.bytes)
    if depot is not None:
        found.unreadable_bytes += depot.gaps.bytes
        found.notes += depot_notes(depot)
    if scan.broken_off:
        found.notes.append(scan.broken_off)
    if owners.gaps.bytes:
        found.notes.append(f"{owners.gaps.bytes:,} bytes of slabs could not be read")
    if len(tracked) < len(scan.caches):
        found.unlisted.append(
            f"{len(tracked)} of {len(scan.caches)} caches have tracks: what the others hold "
            "is in slab_caches"
        )
    if checks:
        disagreement(memory, found, f"tracks of {plural(len(checks), 'cache')} do not add up")
    found.add(SLAB_OWNER_STACKS, rows)
    # The cache is what the allocation leads to: the leaf.
    stacks = [(f"{row.stack};{row.cache}", row.bytes) for row in rows if row.bytes]
    found.folded.append(
        ("slab_owner", f"{SLAB_OWNER_STACKS.title}, width in bytes", "bytes", stacks)
    )
    return found.add(SLAB_OWNER_CHECKS, checks)


def slab_owner_from_files(files: Files) -> Found:
    folder = files.root / "sys/kernel/debug/slab"
    try:
        caches = sorted(path.parent.name for path in folder.glob("*/alloc_traces"))
    except OSError:
        caches = []
    if not caches:
        raise Absent(f"{folder} has no alloc_traces (root only): {NO_TRACKS}")
    if why := files.left_out(f"sys/kernel/debug/slab/{caches[0]}/alloc_traces"):
        raise Absent(f"{folder}/*/alloc_traces ({plural(len(caches), 'cache')}): {why}")
    rows: list[SlabOwnerStack] = []
    found = Found()
    for cache in caches:
        try:
            size = printed_number(
                files.open(f"sys/kernel/slab/{cache}/object_size").strip(), "object_size"
            )
        except (OSError, ValueError):
            size = None
        try:
            text = files.read(f"sys/kernel/debug/slab/{cache}/alloc_traces")
            rows += read_alloc_traces(text, cache, size)
        except (Absent, ValueError) as reason:
            found.notes.append(str(reason))
    if not rows:
        raise Absent(f"{folder} has no alloc_traces (root only): {NO_TRACKS}")
    return found.add(SLAB_OWNER_STACKS, rows)


SLAB_CACHES_SECTION = Section(
    name="slab_caches",
    title="Slab caches",
    tables=(
        SLAB_CACHES,
        SLAB_CHECKS,
        SLAB_CGROUPS,
    ),
    intro="""
The kernel's own objects, by the slab cache that they are allocated from: how many are in use,
for how many its slabs have room, and the pages that this takes. Look for a cache that holds
more pages than its work explains, and for one whose `slots` are many times its `objects`: its
slabs are nearly empty, but each goes back only whole ([kernel documentation: slab
allocator](https://docs.kernel.org/admin-guide/mm/slab.html)).
""",
    command=Command("slab caches by size", top=TOP, picks="cache"),
    from_memory=slab_caches_from_memory,
    from_files=slab_caches_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.SLABINFO,),
    consumer=slab_consumer,
)


SLAB_OWNER_SECTION = Section(
    name="slab_owner",
    title="Owners of slab objects",
    tables=(
        SLAB_OWNER_STACKS,
        SLAB_OWNER_CHECKS,
    ),
    kernel_stacks=True,
    intro="""
With `slab_debug=U` every object of a slab cache remembers the stack that allocated it: this is
who holds kernel objects now ([kernel documentation: slab
debugging](https://docs.kernel.org/admin-guide/mm/slab.html)). In these tables stacks are
written leaf first, `leaf ← caller`; in the bundle's files they are folded, `root;…;leaf`.
""",
    command=Command("slab objects by who allocated them", top=TOP, picks="cache"),
    from_memory=slab_owner_from_memory,
    from_files=slab_owner_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.ALLOC_TRACES, prices.SLAB_SETTINGS),
    optional=True,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("slab_caches", "slab_owner")
