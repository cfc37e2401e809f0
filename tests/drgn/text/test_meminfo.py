# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory in no counter: of healthy machines hardly any, whatever has the memory; of a leak all."""

from typing import Any

import pytest

from mmscope.drgn.text.meminfo import (
    arc_bytes,
    beside_meminfo,
    by_class,
    counters_of_meminfo,
    in_no_counter,
    read_sizes,
)

MIB, GIB = 1 << 20, 1 << 30
# A machine of 8 GiB; what is not here is free, but for 100 MiB of drivers.
HEALTHY = {
    "MemTotal": 8 * GIB, "Buffers": 64 * MIB, "Cached": 3 * GIB, "SwapCached": 0,
    "Active(anon)": 1 * GIB, "Inactive(anon)": 1 * GIB, "Unevictable": 0, "AnonPages": 1536 * MIB,
    "Shmem": 512 * MIB, "KReclaimable": 200 * MIB, "SReclaimable": 200 * MIB,
    "SUnreclaim": 100 * MIB, "KernelStack": 16 * MIB, "PageTables": 20 * MIB,
    "SecPageTables": 0, "VmallocUsed": 40 * MIB, "Percpu": 8 * MIB, "Hugetlb": 0,
}  # fmt: skip
COUNTED = sum(HEALTHY[name] for name in (
    "Buffers", "Cached", "AnonPages", "KReclaimable", "SUnreclaim", "PageTables", "VmallocUsed",
    "Percpu"))  # fmt: skip
DRIVERS = 100 * MIB


def machine(taken: int = 0, **changes: int) -> dict[str, int]:
    """The healthy machine, with some of its free memory taken, and lines that are different."""
    said = HEALTHY | {"MemFree": 8 * GIB - COUNTED - DRIVERS - taken}
    return said | {name: said.get(name, 0) + more for name, more in changes.items()}


def test_what_drivers_have_is_left() -> None:
    assert in_no_counter(machine()) == DRIVERS
    assert in_no_counter(machine(2 * GIB)) == DRIVERS + 2 * GIB


TAKEN: dict[str, tuple[int, dict[str, int]]] = {
    "zram": (GIB, {"nr_zspages": GIB}),
    "zswap": (GIB, {"Zswap": GIB, "nr_zspages": GIB}),
    "zswap of an older allocator": (GIB, {"Zswap": GIB}),
    "a TDX guest that has not accepted its memory": (0, {"Unaccepted": 3 * GIB}),
    "a balloon whose pages are still in MemTotal": (GIB, {"Balloon": GIB, "present": 8 * GIB}),
    "a GPU": (GIB, {"GPUActive": GIB // 2, "GPUReclaim": GIB // 2}),
    "a driver's shrinkable pages": (GIB, {"KReclaimable": GIB}),
    "hugetlb": (GIB, {"Hugetlb": GIB}),
    "hugetlb of an old kernel": (GIB, {"HugePages_Total": 512, "Hugepagesize": 2 * MIB}),
    "large kmalloc": (GIB, {"SUnreclaim": GIB}),
    "percpu": (GIB, {"Percpu": GIB}),
    "KVM's page tables": (GIB, {"SecPageTables": GIB}),
    "kernel stacks": (GIB, {"KernelStack": GIB, "VmallocUsed": GIB}),
    "kernel stacks without vmalloc": (GIB - 24 * MIB, {"KernelStack": GIB}),
    "ZFS's ARC": (GIB, {"arc": GIB}),
    "per-CPU lists": (GIB, {"pcp_count": GIB}),
    "swap cache that processes map": (0, {"SwapCached": GIB}),
    "swap cache of no process": (GIB, {"SwapCached": GIB, "Inactive(anon)": GIB}),
    "FUSE's writeback": (GIB, {"WritebackTmp": GIB}),
    "poisoned pages": (GIB, {"HardwareCorrupted": GIB}),
}  # fmt: skip


@pytest.mark.parametrize(("taken", "more"), TAKEN.values(), ids=TAKEN.keys())
def test_what_a_counter_has_is_not_left(taken: int, more: dict[str, int]) -> None:
    said = machine(taken)
    if "Hugetlb" not in more and "HugePages_Total" in more:
        del said["Hugetlb"]
    said |= {name: said.get(name, 0) + size for name, size in more.items()}
    assert in_no_counter(said) == DRIVERS
    assert sum(size for _, _, size, _ in by_class(said)) == 8 * GIB - DRIVERS


def test_addresses_of_an_old_kernel_are_no_memory() -> None:
    """VmallocUsed before 4.4 has what drivers mapped of devices, and vmalloc memory, unknown."""
    said = machine(VmallocUsed=34 * GIB, VmallocChunk=1 << 44)
    assert in_no_counter(said) == DRIVERS + 24 * MIB  # vmalloc memory beside kernel stacks
    found = {(owner, lines): size for owner, _, size, lines in by_class(said)}
    assert found["kernel stacks", "KernelStack"] == 16 * MIB
    assert not any(owner == "vmalloc" for owner, _ in found)


def test_a_balloon_that_took_its_pages_off_memtotal_hides_no_leak() -> None:
    said = machine(GIB, Balloon=2 * GIB, present=10 * GIB + 128 * MIB)
    assert in_no_counter(said) == DRIVERS + GIB


def test_what_other_files_say() -> None:
    vmstat = {"nr_zspages": 3, "balloon_inflate": 9, "balloon_deflate": 4}
    said = beside_meminfo(vmstat, 7, 1000, None, 1 << 16)
    assert said == {
        "nr_zspages": 3 << 16, "Balloon": 5 << 16, "pcp_count": 7 << 16, "present": 1000 << 16
    }  # fmt: skip
    newer = beside_meminfo(vmstat | {"nr_balloon_pages": 6}, 0, 0, 4096, 4096)
    assert newer["Balloon"] == 6 << 12 and newer["arc"] == 4096


ABDSTATS = """\
9 1 0x01 21 5712 8592000000 9387491000000
name                            type data
struct_size                     4    7
scatter_data_size               4    1000
scatter_chunk_waste             4    24
"""
ARCSTATS = "name  type data\nc_max 4 9\nsize                            4    2048\n"


@pytest.mark.parametrize(
    ("texts", "size"),
    [((ABDSTATS, ARCSTATS), 1024), (("", ARCSTATS), 2048), (("", ""), None), (("x", "y"), None)],
)
def test_pages_of_the_arc(texts: tuple[str, str], size: Any) -> None:
    assert arc_bytes(*texts) == size


def test_lines_that_are_not_sizes_stay_numbers() -> None:
    text = "MemTotal:  8 kB\nMemFree: 4 kB\nHugePages_Total:    5\nHugepagesize:  2048 kB\n"
    assert read_sizes(text)["HugePages_Total"] == 5
    with pytest.raises(ValueError, match="has no lines MemTotal and MemFree"):
        read_sizes("MemTotal: 5 kB\n")


MEMINFO = """MemTotal: 2017520 kB
MemFree: 213812 kB
Buffers: 6128 kB
Cached: 306624 kB
SwapCached: 4 kB
Active(file): 74444 kB
Inactive(file): 34088 kB
AnonPages: 156660 kB
KReclaimable: 178680 kB
SReclaimable: 178672 kB
SUnreclaim: 577952 kB
KernelStack: 4748 kB
VmallocUsed: 40960 kB
"""


def test_states_that_meminfo_has_are_those_of_vmstat() -> None:
    found = {name: value for name, _, value in counters_of_meminfo(MEMINFO, 4096)}
    assert found == {
        "nr_free_pages": 53453, "nr_active_file": 18611, "nr_inactive_file": 8522,
        "nr_anon_pages": 39165, "nr_slab_reclaimable": 44668, "nr_slab_unreclaimable": 144488,
        "nr_file_pages": (6128 + 306624 + 4) // 4,
        "nr_kernel_misc_reclaimable": 2, "nr_kernel_stack": 4748,
    }  # fmt: skip


def test_some_lines_of_meminfo_are_no_counters() -> None:
    assert counters_of_meminfo(MEMINFO.replace("SUnreclaim", "Else"), 4096) == []
