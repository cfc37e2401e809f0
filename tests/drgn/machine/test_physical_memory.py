# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory by physical address: the command line, /proc/iomem, and how the maps are laid over each
other, on texts and maps made here. What a kernel printed is in ``lab/test_kept.py``.
"""

import struct
from types import SimpleNamespace
from typing import Any

import made_programs
import numpy as np
import pytest
from drgn import Object, Program, TypeMember

from mmscope.drgn.machine.boot_options import memory_options, memparse
from mmscope.drgn.machine.direct_map import read_direct_map
from mmscope.drgn.machine.physical_memory import (
    MappedRange,
    PhysicalMemory,
    kho_scratch,
    lay_out,
    read_firmware_map,
)
from mmscope.drgn.machine.poisoned_pages import PoisonFinder, read_poison_counters
from mmscope.drgn.reading.io_resources import Resource, names_at, read_iomem
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.struct_pages.memmap import estimate_ms, logged_times
from mmscope.drgn.text.kernel_log import parse_dmesg

KIB, MIB, GIB, PAGE = 1 << 10, 1 << 20, 1 << 30, 4096


def zone(present: int, managed: int, name: str = "Normal") -> Any:
    return SimpleNamespace(zone=name, present_pages=present, managed_pages=managed)


def laid(
    iomem: str, firmware: list[tuple[int, int, str]] | None, options: str = "", *zones: Any,
    kernel: tuple[tuple[int, int, str], ...] = (),
) -> PhysicalMemory:  # fmt: skip
    maps = None if firmware is None else [MappedRange(*each) for each in firmware]
    own = [MappedRange(*each) for each in kernel]
    return lay_out(read_iomem(iomem), maps, own, memory_options(options), zones, PAGE)


def parts(found: PhysicalMemory) -> dict[str, int]:
    return {row.part: row.bytes for row in found.parts}


def handed_over(enabled: bool, *areas: tuple[int, int]) -> Program:
    """A kernel with areas of Kexec Handover's."""
    prog = made_programs.empty()
    number, size = prog.int_type("unsigned long", 8, False), prog.int_type("int", 4, True)
    members = [TypeMember(number, name, at) for name, at in (("addr", 0), ("size", 64))]
    area = prog.struct_type("kho_scratch", 16, members)
    content = b"".join(struct.pack("<2Q", *each) for each in areas)
    prog.add_memory_segment(AREAS, len(content) or 1, lambda at, n, by, _: content[by : by + n])
    pointer = prog.pointer_type(area)
    objects = {
        "kho_enable": Object(prog, prog.bool_type("_Bool", 1), enabled),
        "kho_scratch": Object(prog, pointer, AREAS if areas else 0),
        "kho_scratch_cnt": Object(prog, size, len(areas)),
    }
    return made_programs.fill(prog, {"kho_scratch": area}, objects, {})


AREAS = 0xFFFF_8880_0000_0000
RAM = "00000000-3fffffff : System RAM\n"
WHOLE = [(0, 1 << 30, "System RAM")]


class TestKexecHandover:
    """Made as kho_reserve_scratch() does; tests/lab/test_handover.py has a real one."""

    def test_scratch_areas_are_in_the_ram_that_they_are_part_of(self) -> None:
        iomem = read_iomem(RAM + "  01000000-01ffffff : Kernel code\n")
        areas = ((256 * MIB, 16 * MIB), (512 * MIB, 64 * MIB), (2 * GIB, MIB), (576 * MIB, MIB))
        prog = handed_over(True, *areas)
        found = lay_out([*iomem, *kho_scratch(prog, iomem)], None, [], [], [], PAGE)
        rows = {row.resource: (int(row.start, 16), row.bytes, row.use) for row in found.ranges
                if "KHO scratch" in row.resource}  # fmt: skip
        assert rows == {
            "System RAM / KHO scratch (lowmem)": (256 * MIB, 16 * MIB, "kernel"),
            "System RAM / KHO scratch (global)": (512 * MIB, 64 * MIB, "kernel"),
            "System RAM / KHO scratch (pernode)": (576 * MIB, MIB, "kernel"),
        }
        assert sum(row.bytes for row in found.ranges) == GIB

    def test_there_are_none_where_it_is_off_or_not_built_in(self) -> None:
        iomem = read_iomem(RAM)
        for prog in (handed_over(False, (MIB, MIB)), handed_over(True), made_programs.empty()):
            assert kho_scratch(prog, iomem) == []


class TestCommandLine:
    def test_what_the_kernel_takes_for_a_number(self) -> None:
        """lib/cmdline.c, memparse(); simple_strtoull() with base 0."""
        assert memparse("64M$0x10") == (64 * MIB, "$0x10")
        assert memparse("0x10k") == (16 * KIB, "")
        assert memparse("010") == (8, "")
        assert memparse("1Tx") == (1 << 40, "x")
        assert memparse("nopentium") == (None, "nopentium")
        assert memparse("99999999999999999999E")[0] is None

    @pytest.mark.parametrize(
        ("line", "wanted"),
        [
            ("mem=4G", ("mem", 4 * GIB, None, "cut off")),
            ("memmap=64M$0x10000000", ("memmap", 64 * MIB, "0x10000000", "reserved")),
            ("memmap=64M!4G", ("memmap", 64 * MIB, "0x100000000", "persistent")),
            ("memmap=1M@16M", ("memmap", MIB, "0x1000000", "RAM")),
            ("memmap=2G%4G-1+0xefffffff", ("memmap", 2 * GIB, "0x100000000", "soft-reserved")),
            ("memmap=2G%4G-1+2", ("memmap", 2 * GIB, "0x100000000", "another type")),
            ("memmap=4G", ("memmap", 4 * GIB, None, "cut off")),
            ("memmap=exactmap", ("memmap", None, None, "exactmap")),
            ("crashkernel=256M,high", ("crashkernel", 256 * MIB, None, "vmcore")),
            ("crashkernel=64M@16M", ("crashkernel", 64 * MIB, "0x1000000", "vmcore")),
            ("crashkernel=1G-4G:192M,4G-:256M", ("crashkernel", None, None, "vmcore")),
            ("hugepages=64", ("hugepages", None, None, "pool")),
            ("hugepagesz=1G", ("hugepagesz", GIB, None, "size")),
            ("movablecore=10%", ("movablecore", None, None, "Movable")),
            ("debug-pagealloc=on", ("debug_pagealloc", None, None, "not mapped")),
            ('mem="4G"', ("mem", 4 * GIB, None, "cut off")),
        ],
    )
    def test_options(self, line: str, wanted: tuple[str, int | None, str | None, str]) -> None:
        (row,) = memory_options(f"ro quiet {line} root=/dev/sda1 -- mem=1G")
        name, size, start, means = wanted
        assert (row.name, row.bytes, row.start) == (name, size, start)
        assert means in row.means

    def test_parts_of_memmap_are_options_each(self) -> None:
        rows = memory_options("memmap=1M$16M,2M!32M hugepages=1")
        assert [(row.position, row.value) for row in rows] == [
            (0, "1M$16M"), (1, "2M!32M"), (2, "1"),
        ]  # fmt: skip

    def test_others_words_are_not_shown(self) -> None:
        line = 'root=UUID=abc memory=1G password=mem=4G dyndbg="mem=1G +p" rd.mem=1G'
        assert memory_options(line) == []

    def test_a_line_without_end(self) -> None:
        assert len(memory_options("mem=1G " * 100_000)) == 512


class TestIomem:
    def test_a_tree(self) -> None:
        text = (
            "00000000-0000ffff : a\n  00000000-00000fff : b\n    00000000-000000ff : c\n"
            "00010000-00010fff : d\n"
        )
        assert [(r.name, r.depth, r.parent) for r in read_iomem(text)] == [
            ("a", 0, -1), ("b", 1, 0), ("c", 2, 1), ("d", 0, -1),
        ]  # fmt: skip

    def test_one_that_hides_its_addresses_has_no_resources(self) -> None:
        assert (
            read_iomem("00000000-00000000 : System RAM\n  00000000-00000000 : Kernel code\n") == []
        )

    @pytest.mark.parametrize(
        "text",
        ["", "x", RAM[:-5], RAM + "garbage\n", "    00000000-00000fff : too deep\n", "0-f : a\n"],
    )
    def test_what_is_no_iomem_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="/proc/iomem"):
            read_iomem(text)

    def test_the_innermost_names_an_address(self) -> None:
        tree = [Resource(0, 100, "a", 0, -1), Resource(10, 50, "b", 1, 0)]
        assert names_at(tree, [5, 20, 50, 100]) == ["a", "b", "a", ""]


class TestMaps:
    def test_ram_that_nobody_was_given_is_cut_off(self) -> None:
        found = laid(RAM, [(0, 2 * GIB, "System RAM")], "mem=1G", zone(GIB // PAGE, 200_000))
        assert [(row.start, row.use, row.option) for row in found.ranges] == [
            ("0x0", "kernel", ""), ("0x40000000", "cut off", "mem=1G"),
        ]  # fmt: skip
        assert parts(found) == {
            "machine": 2 * GIB, "page allocator": 200_000 * PAGE,
            "early allocations": GIB - 200_000 * PAGE, "cut off": GIB,
        }  # fmt: skip

    def test_a_resource_in_the_hole_is_not_its_owner(self) -> None:
        """A PCI window may be laid over RAM that mem= cut off (kernel-parameters.txt, mem=)."""
        iomem = RAM + "40000000-7fffffff : PCI Bus 0000:00\n"
        found = laid(iomem, [(0, 2 * GIB, "System RAM")], "mem=1G")
        assert [row.use for row in found.ranges] == ["kernel", "cut off"]

    def test_what_the_kernel_took_out_of_the_firmwares_ram_is_marked(self) -> None:
        iomem = "00000000-00000fff : Reserved\n00001000-3fffffff : System RAM\n"
        found = laid(iomem, WHOLE, "", zone(GIB // PAGE - 1, 1))
        assert parts(found)["marked as reserved"] == PAGE
        # The kernel's own map says so as well, where a resource does not.
        found = laid(RAM, [(0, 2 * GIB, "System RAM")], kernel=((GIB, 2 * GIB, "Reserved"),))
        assert parts(found)["marked as reserved"] == GIB

    def test_soft_reserved_memory_that_no_resource_shows(self) -> None:
        """In 7.2 the kernel's map alone has it; text has the option, or the firmware's word."""
        line = "memmap=1G%1G-1+0xefffffff"
        both = [(0, 2 * GIB, "System RAM")]
        for found in (
            laid(RAM, both, line),
            laid(RAM, both, kernel=((GIB, 2 * GIB, "Soft Reserved"),)),
            laid(RAM, [*WHOLE, (GIB, 2 * GIB, "Soft Reserved")]),
        ):
            assert parts(found)["soft reserved"] == GIB

    def test_what_a_driver_gave_to_the_kernel_is_the_kernels(self) -> None:
        """dax/kmem, of memory that the firmware had set aside."""
        text = (
            "40000000-7fffffff : Soft Reserved\n  40000000-7fffffff : dax0.0\n"
            "    40000000-7fffffff : System RAM (kmem)\n"
        )
        found = laid(RAM + text, [*WHOLE, (GIB, 2 * GIB, "Soft Reserved")])
        assert found.ranges[-1].use == "kernel"
        assert found.ranges[-1].resource == "Soft Reserved / dax0.0 / System RAM (kmem)"
        assert "soft reserved" not in parts(found)

    def test_what_was_added_later_is_in_no_map_of_the_firmware(self) -> None:
        found = laid(RAM + "100000000-10fffffff : System RAM\n", WHOLE)
        assert [(row.firmware, row.use) for row in found.ranges] == [
            ("System RAM", "kernel"), ("none", "kernel"),
        ]  # fmt: skip
        assert parts(found)["machine"] == GIB + 256 * MIB

    def test_without_the_firmwares_map_only_the_kernels_memory_is_known(self) -> None:
        """arm64, or text from who may not read /sys/firmware/memmap."""
        found = laid(RAM + "40000000-7fffffff : PCI\n", None)
        assert [(row.firmware, row.use) for row in found.ranges] == [(None, "kernel")]

    def test_reserved_by_the_firmware_is_not_counted_as_memory(self) -> None:
        iomem = RAM + "b0000000-bfffffff : PCI ECAM\n  b0000000-bfffffff : Reserved\n"
        found = laid(iomem, [*WHOLE, (0xB000_0000, 0xC000_0000, "Reserved")], "mem=1G")
        assert [(row.resource, row.use, row.option) for row in found.ranges[1:]] == [
            ("PCI ECAM", "firmware", "")
        ]
        assert parts(found)["machine"] == GIB

    def test_blocks_that_are_offline_and_ends_that_are_no_page(self) -> None:
        found = laid("00000400-3fffffff : System RAM\n", WHOLE, "", zone(GIB // PAGE - 1 - 100, 5))
        sums = parts(found)
        assert (sums["offline"], sums["edges"]) == (100 * PAGE, PAGE - 0x400)
        assert sum(row.bytes for row in found.parts[1:]) == sums["machine"]

    def test_zones_with_more_than_there_is(self) -> None:
        found = laid(RAM, WHOLE, "", zone(GIB // PAGE + 7, 5), zone(99, 99, "Device"))
        assert found.pages_beyond == 7
        assert sum(row.bytes for row in found.parts[1:]) == GIB
        with pytest.raises(ValueError, match="zones are damaged"):
            laid(RAM, WHOLE, "", zone(1 << 60, 5))

    def test_maps_of_garbage_have_an_end(self) -> None:
        rng = np.random.default_rng(14)
        ends = rng.integers(0, 1 << 63, (2000, 2)).astype(np.uint64) * np.uint64(2)
        trees = [
            Resource(int(a), int(b), "System RAM", 0, at - 1) for at, (a, b) in enumerate(ends)
        ]
        given = [MappedRange(int(a), int(b), "System RAM") for a, b in ends]
        found = lay_out(trees, given, [], memory_options("mem=1G"), [], PAGE)
        assert sum(row.bytes for row in found.parts[1:]) == found.parts[0].bytes <= 1 << 56

    @pytest.mark.parametrize("start", ["", "0x", "12", "0x" + "f" * 17, "garbage"])
    def test_a_damaged_file_of_the_firmwares_map(self, start: str) -> None:
        files = {"start": start, "end": "0xfff", "type": "System RAM"}
        with pytest.raises(ValueError, match="sys/firmware/memmap/3 is damaged"):
            read_firmware_map(lambda path: files[path.split("/")[-1]], [3])


class TestCounters:
    def test_lines_of_meminfo(self) -> None:
        text = "MemTotal: 1 kB\nDirectMap4k:       32640 kB\nDirectMap2M:     1015808 kB\n"
        assert [(row.level, row.kernel_bytes, row.bytes) for row in read_direct_map(text)] == [
            ("pmd", 1015808 << 10, None), ("pte", 32640 << 10, None),
        ]  # fmt: skip
        assert read_direct_map("MemTotal: 1 kB\n") == []

    @pytest.mark.parametrize(
        "value", ["-1 kB", "x kB", "", "9" * 30 + " kB", "99999999999999999 kB"]
    )
    def test_a_line_without_a_number(self, value: str) -> None:
        with pytest.raises(ValueError, match="/proc/meminfo"):
            read_direct_map(f"DirectMap4k: {value}\n")

    def test_bad_memory_without_the_nodes_files(self) -> None:
        """Before 6.3."""

        def read(path: str) -> str:
            raise FileNotFoundError

        (row,) = read_poison_counters("HardwareCorrupted:    12 kB\n", read, [0, 1])
        assert (row.counter, row.node, row.bytes) == ("HardwareCorrupted", -1, 12 << 10)
        assert read_poison_counters("MemTotal: 1 kB\n", read, [0]) == []


class TestMarks:
    def finder(self) -> PoisonFinder:
        constant = SimpleNamespace(value_=lambda: 22)
        return PoisonFinder(SimpleNamespace(constant=lambda name: constant))  # type: ignore[arg-type]

    def chunk(self, *flags: int) -> PageChunk:
        return PageChunk(512, 0, np.array([(each,) for each in flags], [("flags", "<u8")]))

    def test_pages_with_the_flag(self) -> None:
        finder = self.finder()
        finder.take(self.chunk(0, 1 << 22, 0, 1 << 22 | 1 << 63))
        finder.take(self.chunk(0, 0))
        assert finder.pfns == [513, 515]

    def test_struct_pages_that_nobody_initialised_have_every_flag(self) -> None:
        """CONFIG_DEBUG_VM, page_init_poison()."""
        finder = self.finder()
        finder.take(self.chunk((1 << 64) - 1, 1 << 22))
        assert finder.pfns == [513]


class TestTimes:
    def test_the_estimate_gives_what_it_was_made_of(self) -> None:
        """Minimizing struct page overhead: 128 GiB in pages of 4 KiB, 2 MiB and 1 GiB."""
        low, high = estimate_ms(128 * GIB // PAGE)
        assert low <= 268.5 and 358 <= high <= 400
        low, high = estimate_ms(128 * GIB // (2 * MIB) * 128)
        assert 67 <= low <= 78 and 99.5 <= high <= 100.5
        assert estimate_ms(128 * 128)[1] < 1

    def test_lines_of_the_log(self) -> None:
        log = """\
[    0.100000] memmap_init_zone_device initialised 32768 pages in 20ms
[    0.200000] node 1 deferred pages initialised in 8ms
[    0.300000] node 0 deferred pages initialised in 12ms
[    0.400000] memmap_init_zone_device initialised 32768 pages in 12ms
[    0.500000] node x deferred pages initialised in 12ms
"""
        devices, nodes = logged_times(parse_dmesg(log).records)
        assert devices == {32768: [20, 12]}
        assert nodes == {0: 12, 1: 8}
