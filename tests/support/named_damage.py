# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Damage by name: fields of a kernel that say what cannot be.

Each is a function that tells drgn of other bytes in a field's place; the vmcore itself is not
touched. ``make soak`` tries them all beside its random seeds, and the lab's tests hold what is said
of each against what was done.
"""

from collections.abc import Callable, Iterator

from drgn import FaultError, Object, Program, sizeof
from drgn.helpers.linux.hugetlb import for_each_hstate
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import compound_head, follow_phys, virt_to_page, vma_find
from drgn.helpers.linux.mmzone import for_each_online_pgdat
from drgn.helpers.linux.pid import find_task, for_each_task

from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.struct_pages import compound_info_is_mask

HUGE, ONES = 1 << 60, -1
# A hole in x86-64's map (Documentation/arch/x86/x86_64/mm.rst). In arm64's it is behind the struct
# pages; or, where these end 1 GiB below the top (VMEMMAP_END, arch/arm64/include/asm/memory.h), it
# is those of frames that only a machine of more than 100 TiB has.
NOWHERE = 0xFFFF_FFFF_0000_0000


def put(prog: Program, address: int, data: bytes) -> None:
    """Other bytes at an address."""

    def read(at: int, count: int, offset: int, physical: bool) -> bytes:
        return data[offset : offset + count]

    prog.add_memory_segment(address, len(data), read, False)
    # Some reads go by physical addresses.
    physical = follow_phys(prog["init_mm"].address_of_(), address).value_()
    prog.add_memory_segment(physical, len(data), read, True)


def say(field: Object, value: int) -> None:
    """Another number in a field."""
    assert field.address_ is not None
    size = sizeof(field.type_)
    data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    put(field.prog_, field.address_, data)


def largest_zone(prog: Program) -> Object:
    zones = [zone for pgdat in for_each_online_pgdat(prog) for zone in pgdat.node_zones]
    return max(zones, key=lambda zone: zone.present_pages.value_())


def caches(prog: Program) -> Iterator[Object]:
    head = prog["slab_caches"].address_of_()
    return iter(list_for_each_entry("struct kmem_cache", head, "list"))


def cache(prog: Program, name: bytes) -> Object:
    return next(each for each in caches(prog) if each.name.string_() == name)


def processes(prog: Program) -> list[Object]:
    """Processes with an address space, the first ones last."""
    return [task for task in for_each_task(prog) if task.mm and task.pid == task.tgid][::-1]


def first_zone(prog: Program) -> Object:
    pgdat = next(iter(for_each_online_pgdat(prog)))
    return next(zone for zone in pgdat.node_zones if zone.spanned_pages)


def _zone(member: str, value: int) -> Callable[[Program], None]:
    def damage(prog: Program) -> None:
        field = largest_zone(prog)
        for name in member.split("."):
            field = field.member_(name)
        say(field, value)

    return damage


def _watermark(value: int) -> Callable[[Program], None]:
    return lambda prog: say(largest_zone(prog)._watermark[0], value)


def _start_moved(pages: int) -> Callable[[Program], None]:
    def damage(prog: Program) -> None:
        field = largest_zone(prog).zone_start_pfn
        say(field, field.value_() + pages)

    return damage


def _first_zone_moved(prog: Program) -> None:
    field = first_zone(prog).zone_start_pfn
    say(field, field.value_() + (1 << 11))


def _line_of_no_letter(prog: Program) -> None:
    ring = prog["prb"].desc_ring
    number = ring.tail_id.counter.value_() + 9 & (1 << ring.count_bits.value_()) - 1
    say(ring.infos[number].text_len, 0)


def _zone_counters(prog: Program) -> None:
    array = prog["vm_zone_stat"]
    assert array.address_ is not None
    put(prog, array.address_, b"\xff" * sizeof(array))


def _huge_pages(member: str, value: int) -> Callable[[Program], None]:
    return lambda prog: say(next(iter(for_each_hstate(prog))).member_(member), value)


def _slot(value: int) -> Callable[[Program], None]:
    return lambda prog: say(cache(prog, b"dentry").size, value)


def _one_name(prog: Program) -> None:
    name = cache(prog, b"dentry").name.value_()
    for each in list(caches(prog)):
        say(each.name, name)


def _endless_name(prog: Program) -> None:
    # As many letters as anybody asks for.
    prog.add_memory_segment(
        NOWHERE, 1 << 30, lambda at, count, offset, physical: b"A" * count, False
    )
    say(cache(prog, b"dentry").name, NOWHERE)


def _pid(value: Callable[[Program], int]) -> Callable[[Program], None]:
    def damage(prog: Program) -> None:
        task = processes(prog)[0]
        number = value(prog)
        say(task.pid, number)
        say(task.tgid, number)

    return damage


def _counter(name: str, value: int) -> Callable[[Program], None]:
    return lambda prog: say(prog["vm_zone_stat"][prog.constant(name)].counter, value)


def _one_more(name: str) -> Callable[[Program], None]:
    def damage(prog: Program) -> None:
        field = processes(prog)[0].mm.member_(name)
        field = getattr(field, "counter", field)
        say(field, field.value_() + 1)

    return damage


def _of_root_cgroup(member: str, value: int) -> Callable[[Program], None]:
    def damage(prog: Program) -> None:
        field = prog["root_mem_cgroup"]
        for name in member.split("."):
            field = field[prog.constant(name)] if name.isupper() else field.member_(name)
        say(field, value)

    return damage


def _kswapd_failures(prog: Program) -> None:
    failures = largest_zone(prog).zone_pgdat.kswapd_failures
    say(getattr(failures, "counter", failures), 1000)


def _no_state(prog: Program) -> None:
    task = find_task(prog, 1)
    say(task.member_("__state" if hasattr(task, "__state") else "state"), 1 << 25)


def _ring_of_ftrace(prog: Program) -> Object:
    head = prog["ftrace_trace_arrays"].address_of_()
    first = next(iter(list_for_each_entry("struct trace_array", head, "list")))
    return first.array_buffer.buffer.buffers[0]


def _no_head(prog: Program) -> None:
    """The second page of the slab of init's task leads to the third, which is none's head."""
    head = compound_head(virt_to_page(find_task(prog, 1)))
    page = prog.type("struct page")
    link = next(name for name in ("compound_head", "compound_info") if page.has_member(name))
    # A mask of all bits leads to itself.
    say((head + 1).member_(link), ONES if compound_info_is_mask(prog) else (head + 2).value_() | 1)


def _no_cpu(prog: Program) -> None:
    mask = prog["__cpu_online_mask"]
    assert mask.address_ is not None
    put(prog, mask.address_, bytes(sizeof(mask)))


def first_cpu_alone(prog: Program) -> None:
    """No damage: the others went offline, and keep their idle tasks."""
    mask = prog["__cpu_online_mask"]
    assert mask.address_ is not None
    put(prog, mask.address_, (1).to_bytes(sizeof(mask), "little"))


def lack_struct_pages(prog: Program, missing: int, of: int) -> None:
    """
    Have *missing* KiB of *of* KiB of the struct pages not be there, as in a dump that was filtered.
    """

    def lacks(at: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("not in the dump", at)

    size = sizeof(prog.type("struct page"))
    for first, last, address in valid_page_ranges(prog):
        end = address + (last - first) * size
        for at in range(address & -4096, end, of << 10):
            prog.add_memory_segment(at, missing << 10, lacks, False)


def _zone_of_another_node(prog: Program) -> None:
    zone = largest_zone(prog)
    others = (each for each in for_each_online_pgdat(prog) if each != zone.zone_pgdat)
    say(zone.zone_pgdat, next(others).value_())


def vm_flags(vma: Object) -> Object:
    """Flags of a VMA, as code may change them."""
    # "mm: introduce vma->vm_flags wrapper functions" (bc292ab00f6c, in v6.3)
    return vma.member_("__vm_flags" if hasattr(vma, "__vm_flags") else "vm_flags")


def _code_that_is_data(prog: Program) -> None:
    mm = processes(prog)[0].mm
    vma = vma_find(mm, mm.start_code)
    say(vm_flags(vma), vma.vm_flags.value_() ^ 4)


def _stall(prog: Program) -> None:
    # BTF has an array of arrays as one; the first has PSI_AVGS.
    first = prog["psi_system"].total.address_
    assert first is not None
    put(prog, first + 8 * prog.constant("PSI_MEM_FULL").value_(), b"\xff" * 7)


def _code_of_init(prog: Program) -> Object:
    mm = find_task(prog, 1).mm
    return vma_find(mm, mm.start_code)


def _ksm_items(prog: Program) -> Object:
    """An ``unsigned long``, or an ``atomic_long_t``."""
    items = find_task(prog, 1).mm.ksm_rmap_items
    return getattr(items, "counter", items)


DAMAGE: dict[str, Callable[[Program], None]] = {
    f"{name.rpartition('.')[0] or name} {words}": _zone(name, value)
    for name in ("present_pages", "spanned_pages", "managed_pages.counter")
    for words, value in (("2^60", HUGE), ("-1", ONES))
} | {
    "nr_reserved_highatomic 2^60": _zone("nr_reserved_highatomic", HUGE),
    "nr_reserved_highatomic -1": _zone("nr_reserved_highatomic", ONES),
    "_watermark 2^60": _watermark(HUGE),
    "_watermark -1": _watermark(ONES),
    "zone_start_pfn a section up": _start_moved(1 << 15),
    "zone_start_pfn a section down": _start_moved(-(1 << 15)),
    "vm_zone_stat ones": _zone_counters,
    "nr_huge_pages 2^60": _huge_pages("nr_huge_pages", HUGE),
    "free_huge_pages -1": _huge_pages("free_huge_pages", ONES),
    "kmem_cache.size 0": _slot(0),
    "kmem_cache.size 1": _slot(1),
    "kmem_cache.size 2^28": _slot(1 << 28),
    "kmem_cache.size 2^31": _slot(1 << 31),
    "kmem_cache.object_size 2^20": lambda prog: say(cache(prog, b"dentry").object_size, 1 << 20),
    "ksm_max_page_sharing -1": lambda prog: say(prog["ksm_max_page_sharing"], ONES),
    "oom_mm 8": lambda prog: say(find_task(prog, 1).signal.oom_mm, 8),
    "nr_zspages 2^17": _counter("NR_ZSPAGES", 1 << 17),
    "map_count + 1": _one_more("map_count"),
    "total_vm + 1": _one_more("total_vm"),
    "vm_dirty_bytes beside vm_dirty_ratio": lambda prog: say(prog["vm_dirty_bytes"], 1 << 30),
    "totalreserve_pages 1": lambda prog: say(prog["totalreserve_pages"], 1),
    "contig_hint 2^20": lambda prog: say(prog["pcpu_first_chunk"].chunk_md.contig_hint, 1 << 20),
    "a zone's lock 0x80": lambda prog: put(prog, largest_zone(prog).lock.address_, b"\x80"),
    "a zone's lock with a queue of no CPU": lambda prog: put(
        prog, largest_zone(prog).lock.address_, (1000 << 18).to_bytes(4, "little")
    ),
    "memory.max of the root 1": _of_root_cgroup("memory.max", 1),
    "a stack nowhere": lambda prog: say(find_task(prog, 1).stack, NOWHERE),
    "a tail without a head": _no_head,
    "nr_node_ids 2^31": lambda prog: say(prog["nr_node_ids"], 1 << 31),
    "memory.low of the root -1": _of_root_cgroup("memory.low", ONES),
    "oom_kill of the root 7": _of_root_cgroup("memory_events.MEMCG_OOM_KILL.counter", 7),
    "low events of the root 7": _of_root_cgroup("memory_events.MEMCG_LOW.counter", 7),
    "nr_threads + 1": lambda prog: say(prog["nr_threads"], prog["nr_threads"].value_() + 1),
    "a node without its kswapd": lambda prog: say(largest_zone(prog).zone_pgdat.kswapd, 0),
    "nr_empty_pop_pages 2^20": lambda prog: say(
        prog["pcpu_first_chunk"].nr_empty_pop_pages, 1 << 20
    ),
    "a ring of no page": lambda prog: say(_ring_of_ftrace(prog).nr_pages, 0),
    "map_count -1": lambda prog: say(processes(prog)[0].mm.map_count, ONES),
    "pid -1": _pid(lambda prog: ONES),
    "pid twice": _pid(lambda prog: find_task(prog, 1).pid.value_()),
    "all caches of one name": _one_name,
    "a name without end": _endless_name,
    "no CPU online": _no_cpu,
    "init in no namespace": lambda prog: say(prog["init_task"].nsproxy, 0),
    "nrpages of a program 0": lambda prog: say(find_task(prog, 1).mm.exe_file.f_mapping.nrpages, 0),
    "a CPU without its ring": lambda prog: say(_ring_of_ftrace(prog), 0),
    "kcompactd that ended": lambda prog: say(
        next(iter(for_each_online_pgdat(prog))).kcompactd.exit_state, 0x20
    ),
    "kswapd_failures 1000": _kswapd_failures,
    "pgtables_bytes + 1": _one_more("pgtables_bytes"),
    "anon of a process -2^40": lambda prog: say(
        processes(prog)[0].mm.rss_stat[prog.constant("MM_ANONPAGES").value_()].count, -(1 << 40)
    ),
    "pinned_vm 2^40": lambda prog: say(processes(prog)[0].mm.pinned_vm.counter, 1 << 40),
    "a task in no state": _no_state,
    "nr_threads of init 65": lambda prog: say(find_task(prog, 1).signal.nr_threads, 65),
    "huge_zero_pfn + 128": lambda prog: say(
        prog["huge_zero_pfn"], prog["huge_zero_pfn"].value_() + 128
    ),
    "anon_vma_cachep 0": lambda prog: say(prog["anon_vma_cachep"], 0),
    "no reserved chunk": lambda prog: say(prog["pcpu_reserved_chunk"], 0),
    "the first zone 2048 pages up": _first_zone_moved,
    "a log line of no letter": _line_of_no_letter,
    "transparent_hugepage_flags ones": lambda prog: say(prog["transparent_hugepage_flags"], ONES),
    "a dentry held 2^20 times": lambda prog: say(
        find_task(prog, 1).mm.exe_file.f_path.dentry.d_lockref.count, 1 << 20
    ),
    "a counter with a bracket": lambda prog: put(prog, prog["vmstat_text"][0].value_(), b"["),
    "a zone of another node": _zone_of_another_node,
    "a stall since before boot": _stall,
    "kcompactd asked for order 259": lambda prog: say(
        next(iter(for_each_online_pgdat(prog))).kcompactd_max_order, 259
    ),
    "code that is data": _code_that_is_data,
    "shared memory of another device": lambda prog: say(prog["shm_mnt"].mnt_sb.s_dev, 0x40D),
    "a thread group that there is not": lambda prog: say(processes(prog)[0].tgid, 30_000),
    "a VMA of a file without operations": lambda prog: say(_code_of_init(prog).vm_ops, 0),
    "a VMA with a flag of no name": lambda prog: say(
        vm_flags(_code_of_init(prog)), _code_of_init(prog).vm_flags.value_() | 1 << 60
    ),
    "a file of no mapping": lambda prog: say(find_task(prog, 1).mm.exe_file.f_mapping, ONES),
    "a file of mapping 0": lambda prog: say(find_task(prog, 1).mm.exe_file.f_mapping, 0),
    "a mapped file with an empty tree": lambda prog: say(
        find_task(prog, 1).mm.exe_file.f_mapping.i_mmap.rb_root.rb_node, 0
    ),
    "ksm_rmap_items 2^28": lambda prog: say(_ksm_items(prog), 1 << 28),
    "min_free_kbytes -1": lambda prog: say(prog["min_free_kbytes"], ONES),
}
