# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What struct pages cost: the arithmetic of the what-if table, which frames are shared, the pictures.
"""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmscope.drgn.free.device_ranges import PagemapRange
from mmscope.drgn.page_tables.page_table_formats import X86_64
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.struct_pages.device_pagemaps import memmap_amounts
from mmscope.drgn.struct_pages.hugetlb import HUGE_PAGE, read_default_size, read_pools, read_sizes
from mmscope.drgn.struct_pages.memmap import LEAF, Leaves, Memmap
from mmscope.drgn.struct_pages.memory_metadata import what_if
from mmscope.drgn.struct_pages.vmemmap import VmemmapScan
from mmscope.drgn.struct_pages.vmemmap_examples import vmemmap_examples, wanted_examples
from mmscope.reports.pictures import vmemmap_pictures
from mmscope.reports.pictures.vmemmap_pictures import COLUMNS, MAX_CELLS, MAX_DRAWN, MAX_SECTIONS

GIB, TIB, MIB = 1 << 30, 1 << 40, 1 << 20
BASE = 0xFFFF_EA00_0000_0000
SECTION_PAGES = 1 << 15


def schemes(total: int, **given: Any) -> dict[str, Any]:
    return {row.scheme: row for row in what_if(total, 12, 64, given.get("now"))}


class TestWhatIf:
    def test_a_terabyte_as_the_write_up_has_it(self) -> None:
        """Minimizing struct page overhead: 16 GB a TB; 12 GB, 1.17 %, with pages of 2 MiB."""
        rows = schemes(TIB)
        assert rows["no struct page at all"].saved_bytes == 16 * GIB
        assert rows["2 MiB pages, device-dax"].saved_bytes == 12 * GIB
        assert round(rows["2 MiB pages, device-dax"].saved_percent, 2) == 1.17
        assert rows["no struct page at all"].saved_percent == 1.5625

    def test_a_terabyte_in_pages_of_1_gib(self) -> None:
        """
        Two of 4,096 pages remain: 16,376 MiB a TiB. The write-up's 16,368 MiB and 1.4986 % are
        those of four, and of 1.5 % instead of 1.5625 %.
        """
        row = schemes(TIB)["1 GiB pages, device-dax"]
        assert (row.vmemmap_pages, row.kept_pages) == (4096, 2)
        assert row.saved_bytes == 16_376 * MIB
        assert (TIB >> 30) * (4096 - 4) * 4096 == 16_368 * MIB
        assert abs(1.5 * (4096 - 4) / 4096 - 1.4986) < 1e-4

    def test_hvo_of_today_keeps_one_page(self) -> None:
        rows = schemes(TIB)
        assert rows["2 MiB pages, hugetlb with HVO"].saved_bytes == 14 * GIB
        assert rows["1 GiB pages, hugetlb with HVO"].saved_bytes == 16_380 * MIB

    def test_initialisation_as_the_write_up_has_it(self) -> None:
        """128 GiB: 268 to 358 ms; 78 to 100 ms with pages of 2 MiB; less than 1 ms with 1 GiB."""
        rows = schemes(128 * GIB)
        plain = rows["a struct page for every page"]
        assert plain.initialised_struct_pages == 1 << 25
        assert plain.init_ms_low < 268.5 and plain.init_ms_high > 358
        shared = rows["2 MiB pages, device-dax"]
        assert shared.initialised_struct_pages == 128 * 512 * 128
        assert shared.init_ms_low < 78 and shared.init_ms_high > 99
        assert rows["1 GiB pages, device-dax"].init_ms_high < 1
        # HVO frees struct pages that were initialised before.
        assert rows["2 MiB pages, hugetlb with HVO"].initialised_struct_pages == 1 << 25
        assert rows["1 GiB pages, hugetlb with HVO"].initialised_struct_pages == 1 << 25
        later = {row.scheme: row for row in what_if(128 * GIB, 12, 64, None, skips_tails=True)}
        assert later["1 GiB pages, hugetlb with HVO"].initialised_struct_pages == 128 * 64
        assert later["2 MiB pages, hugetlb with HVO"].initialised_struct_pages == 1 << 25

    @pytest.mark.parametrize("total", [0, 4096, 1536 * MIB, 64 * GIB, 1 << 52])
    def test_parts_add_up_on_any_machine(self, total: int) -> None:
        for row in what_if(total, 12, 64, 4096):
            assert row.metadata_bytes + row.saved_bytes == total // 4096 * 64
            assert 0 <= row.saved_percent <= 1.5625 or row.scheme == "as it is now"
            assert row.formula

    def test_where_struct_pages_share_no_frames_only_that_is_listed(self) -> None:
        rows = [row.scheme for row in what_if(TIB, 14, 64, 0, shares=False)]
        assert rows == ["a struct page for every page", "no struct page at all", "as it is now"]

    def test_a_struct_page_of_72_bytes_and_pages_of_64_kib(self) -> None:
        rows = {row.scheme: row for row in what_if(TIB, 16, 72, None)}
        assert rows["no struct page at all"].saved_bytes == (TIB >> 16) * 72
        assert "512 MiB pages, device-dax" in rows and "as it is now" not in rows


def leaves(frames: list[int], first: int = 0, writable: bool = True) -> Leaves:
    """PTEs, from the *first* 4 KiB of struct pages on."""
    found = np.zeros(len(frames), LEAF)
    found["offset"] = np.arange(first, first + len(frames)) * 4096
    found["frame"], found["size"], found["writable"] = frames, 4096, writable
    return found


def where(sections: list[int]) -> Memmap:
    numbers = np.array(sections, np.int64)
    plain = SimpleNamespace(numbers=numbers, pages=SECTION_PAGES)
    return Memmap(BASE, 64, 12, plain)  # type: ignore[arg-type]


def totals(sections: list[int]) -> VmemmapScan:
    zones = np.zeros(len(sections), np.int64)
    return VmemmapScan(where(sections), X86_64, ({}, zones, {}), Gaps())


class TestFrames:
    def test_an_entry_reuses_a_frame_if_an_earlier_one_has_it(self) -> None:
        total = totals([0])
        shown = leaves([7, 5, 5, 9, 5])
        total.take(shown)
        assert shown["reused"].tolist() == [False, False, True, False, True]

    def test_frames_are_remembered_from_window_to_window(self) -> None:
        total = totals([0])
        for first, frames in ((0, [7, 5, 5]), (100, [5, 7, 8]), (200, [8, 1, 5])):
            total.take(leaves(frames, first))
        (pte,) = (row for row in total.level_rows() if row.level == "pte")
        assert (pte.entries, pte.distinct_frames) == (9, 4)
        # 5 has four, 7 two, 8 two; 1 is alone.
        assert pte.shared_entries == 8
        assert total.reused.tolist() == [5 * 4096]

    def test_any_order_of_windows_counts_the_same(self) -> None:
        windows = [(0, [1, 2, 2]), (9, [2, 3, 4]), (20, [1, 1, 5])]
        for order in itertools.permutations(windows):
            total = totals([0])
            for first, frames in order:
                total.take(leaves(frames, first))
            (pte,) = (row for row in total.level_rows() if row.level == "pte")
            assert (pte.entries, pte.distinct_frames, pte.shared_entries) == (9, 5, 6)

    def test_struct_pages_of_no_section_are_told_apart(self) -> None:
        total = totals([1])
        total.take(leaves([1, 2, 3], 511))
        assert total.stray == 1
        assert total.mapped.tolist() == [2 * 4096]

    def test_no_sections_no_rows(self) -> None:
        total = totals([])
        assert [row.entries for row in total.level_rows()] == [0, 0, 0]


class TestPagemaps:
    def test_an_entry_that_a_range_has_in_part_counts_in_part(self) -> None:
        """A PMD maps the struct pages of 128 MiB; the device has the second half of them."""
        each = PagemapRange(1 << 14, 1 << 15, "GENERIC", 9, False)
        pmd = leaves([512])
        pmd["size"] = 2 * MIB
        assert memmap_amounts(where([0]), [each], pmd).tolist() == [[MIB, MIB, 0, 0]]

    def test_frames_in_the_range_are_the_devices_own(self) -> None:
        each = PagemapRange(0, 1 << 15, "GENERIC", 9, True)
        ptes = leaves([5, 6, 1 << 20, (1 << 15) - 1])
        amounts = memmap_amounts(where([0]), [each], ptes)
        assert amounts.tolist() == [[4 * 4096, 4096, 3 * 4096, 0]]


def run(frames: list[int], writable: list[bool] | None = None) -> list[tuple[int, int, int, bool]]:
    """The rows of an example whose 4 KiB lie on these frames."""
    shown = leaves(frames)
    if writable:
        shown["writable"] = writable
    rows = vmemmap_examples(where([0]), [("x", 0, len(frames) * 64)], shown)
    assert sum(row.entries for row in rows) == len(frames)
    return [(row.first, row.entries, row.frame_pfn, row.same_frame) for row in rows]


class TestExamples:
    def test_frames_one_behind_the_other_are_a_run(self) -> None:
        assert run([4, 5, 6, 7]) == [(0, 4, 4, False)]

    def test_what_lies_on_one_frame_stays_together(self) -> None:
        """Also where the shared frame happens to be the one behind the head's."""
        assert run([4, 5, 5, 5]) == [(0, 1, 4, False), (1, 3, 5, True)]
        assert run([4, 9, 9, 9]) == [(0, 1, 4, False), (1, 3, 9, True)]

    def test_the_heads_frame_for_all_with_other_rights(self) -> None:
        rows = run([4, 4, 4, 4], [True, False, False, False])
        assert rows == [(0, 1, 4, False), (1, 3, 4, True)]

    def test_frames_without_order_are_runs_of_one(self) -> None:
        assert [row[:2] for row in run([9, 3, 7])] == [(0, 1), (1, 1), (2, 1)]

    def test_one_of_each_kind_and_no_more(self) -> None:
        pages = np.zeros(4, HUGE_PAGE)
        pages["pfn"], pages["order"] = [0, 512, 1024, 1 << 18], [9, 9, 9, 18]
        pages["flagged"] = [True, False, True, True]
        maps = [PagemapRange(100, 1 << 20, "GENERIC", 9, False)] * 3
        maps += [PagemapRange(0, 100, "FS_DAX", 0, False)]  # too small for a page of 2 MiB
        maps += [PagemapRange(0, 1 << 62, "GENERIC", 63, False)]  # damage
        wanted = wanted_examples(pages, maps, 12)
        assert [(pfn, count) for _, pfn, count in wanted] == [
            (0, 512), (512, 512), (1 << 18, 1 << 18), (512, 512), (0, 1 << 18),
        ]  # fmt: skip

    def test_struct_pages_that_are_not_mapped_have_no_rows(self) -> None:
        wanted = [("x", 0, 512), ("y", 1 << 30, 512)]
        assert vmemmap_examples(where([0]), wanted, leaves([1, 2, 3])) == []


def read(**files: str) -> Any:
    def of(path: str) -> str:
        name = path.rpartition("/")[2]
        if name not in files:
            raise FileNotFoundError(path)
        return files[name]

    return of


class TestPoolsOfText:
    def test_what_sysfs_does_not_tell_is_unknown(self) -> None:
        text = read(nr_hugepages="24\n", free_hugepages="17\n", surplus_hugepages="0\n")
        (row,) = read_pools(text, [0], [2 * MIB])
        assert (row.pages, row.free_pages, row.optimized_pages) == (24, 17, None)
        assert row.vmemmap_saved_bytes is None

    def test_a_node_without_pages_and_one_without_files(self) -> None:
        text = read(nr_hugepages="0\n", free_hugepages="0\n", surplus_hugepages="0\n")
        assert read_pools(text, [0], [2 * MIB]) == []
        assert read_pools(read(), [0, 1], [2 * MIB]) == []

    @pytest.mark.parametrize("text", ["", "-1", "x", "1 2", "9" * 30])
    def test_what_is_no_count_is_damage(self, text: str) -> None:
        broken = read(nr_hugepages=text, free_hugepages="0", surplus_hugepages="0")
        with pytest.raises(ValueError, match="damaged"):
            read_pools(broken, [0], [2 * MIB])

    @pytest.mark.parametrize(
        ("said", "hvo"), [("1\n", "on"), ("0\n", "off"), ("2\n", None), (None, None)]
    )
    def test_the_switch(self, said: str | None, hvo: str | None) -> None:
        files = dict.fromkeys(("nr", "free", "resv", "surplus"), "3\n")
        files = {f"{name}_hugepages": text for name, text in files.items()}
        if said is not None:
            files["hugetlb_optimize_vmemmap"] = said
        (row,) = read_sizes(read(**files), [2 * MIB])
        assert (row.hvo, row.reserved_pages, row.overcommit_pages) == (hvo, 3, None)

    def test_promises_may_have_fallen_below_zero(self) -> None:
        """Linux before 6.15 takes back more than it gave (a833a693a490)."""
        below = str((1 << 64) - 2)
        files = dict.fromkeys(("nr_hugepages", "free_hugepages", "surplus_hugepages"), "3\n")
        (row,) = read_sizes(read(**files, resv_hugepages=f"{below}\n"), [2 * MIB])
        assert (row.pages, row.free_pages, row.reserved_pages) == (3, 3, -2)
        meminfo = (
            f"HugePages_Total:       3\nHugePages_Free:        3\nHugePages_Rsvd:    {below}\n"
            "HugePages_Surp:        0\nHugepagesize:       2048 kB\nHugetlb:            6144 kB\n"
        )
        (row,), every = read_default_size(meminfo)
        assert (row.reserved_pages, every) == (-2, 6 * MIB)


def sections(count: int, **changes: Any) -> dict[str, Any]:
    row = {
        "start_pfn": 0, "sections": count, "node": 0, "zone": "Normal", "origin": "boot",
        "mapping": "pte", "reused_eighths": 7, "reused_bytes": count * 1_835_008,
    }  # fmt: skip
    return row | changes


def strokes(path: str) -> list[tuple[int, int, int]]:
    """(column, row, length) of each stroke of a path."""
    parts = [part.replace("h", " ").split() for part in path.split("M")[1:]]
    return [(int(column), int(row), int(length)) for column, row, length in parts]


class TestSectionMap:
    def test_a_cell_a_section(self) -> None:
        drawn = vmemmap_pictures.vmemmap_sections.draw({"vmemmap_sections": [sections(100)]}, 4096)
        assert (drawn["sections"], drawn["per_cell"], drawn["rows"]) == (100, 1, 2)
        (whole, _, all_of_it), (own, path, height) = drawn["strokes"]
        assert (whole, all_of_it, own, height) == ("pte whole", 1, "pte", 1 / 8)
        assert strokes(path) == [(0, 0, COLUMNS), (0, 1, 100 - COLUMNS)]

    def test_a_machine_of_any_size_fits(self) -> None:
        for count in (1, MAX_CELLS, MAX_CELLS + 1, 65_536, MAX_SECTIONS):
            drawn = vmemmap_pictures.vmemmap_sections.draw(
                {"vmemmap_sections": [sections(count)]}, 4096
            )
            cells = sum(length for *_, length in strokes(drawn["strokes"][0][1]))
            assert cells == -(-count // drawn["per_cell"]) <= MAX_CELLS
            assert drawn["rows"] * COLUMNS >= cells

    def test_runs_are_drawn_in_physical_order(self) -> None:
        runs = [
            sections(1, start_pfn=1 << 20, mapping="pmd", reused_eighths=0, zone="Device",
                     origin="device"),
            sections(2, zone="DMA32*", origin="self-hosted", reused_eighths=8),
        ]  # fmt: skip
        drawn = vmemmap_pictures.vmemmap_sections.draw({"vmemmap_sections": runs}, 4096)
        assert drawn["borders"] == [
            (0, 0, "node 0 DMA32"), (0, 2, "node 0 Device"),
        ]  # fmt: skip
        looks = {look: strokes(path) for look, path, _ in drawn["strokes"]}
        assert looks == {
            "pte whole": [(0, 0, 2)], "pmd whole": [(2, 0, 1)], "pmd": [(2, 0, 1)],
            "hosted": [(0, 0, 2)], "device": [(2, 0, 1)],
        }  # fmt: skip

    @pytest.mark.parametrize("count", [0, -1, MAX_SECTIONS + 1])
    def test_damage_is_no_picture(self, count: int) -> None:
        with pytest.raises(ValueError, match="cannot be"):
            vmemmap_pictures.vmemmap_sections.draw({"vmemmap_sections": [sections(count)]}, 4096)


class TestExamplePictures:
    def drawn(self, *runs: tuple[int, int, int, bool, bool]) -> Any:
        rows = [
            {"example": "x", "pfn": 0, "page_bytes": 2 * MIB, "first": first, "entries": entries,
             "frame_pfn": frame, "same_frame": same, "writable": writable, "level": "pte"}
            for first, entries, frame, same, writable in runs
        ]  # fmt: skip
        (example,) = vmemmap_pictures.vmemmap_examples.draw({"vmemmap_examples": rows}, 4096)
        return example

    def test_the_heads_frame_for_all(self) -> None:
        example = self.drawn((0, 1, 4, False, True), (1, 7, 4, True, False))
        assert (example["total"], example["distinct"]) == (8, 1)
        assert [shared for *_, shared in example["frames"]] == [True]
        assert [look for *_, look, _ in example["entries"]] == ["rw"] + ["ro"] * 7

    def test_the_zones_frame_for_the_tails(self) -> None:
        example = self.drawn((0, 1, 4, False, True), (1, 7, 9, True, False))
        assert (example["total"], example["distinct"]) == (8, 2)
        assert [shared for *_, shared in example["frames"]] == [False, True]

    def test_of_a_page_of_1_gib_the_first_are_drawn(self) -> None:
        example = self.drawn((0, 1, 4, False, True), (1, 4095, 9, True, False))
        assert (example["total"], example["distinct"]) == (4096, 2)
        assert len(example["entries"]) == MAX_DRAWN
        assert example["entries"][-1][0] == "7 … 4095"

    def test_nothing_shared_in_a_page_of_1_gib(self) -> None:
        example = self.drawn((0, 4096, 16, False, True))
        assert (example["total"], example["distinct"]) == (4096, 4096)
        assert example["frames"][-1][1] == "0x17 … 0x100f"
        assert not any(shared for *_, shared in example["frames"])

    def test_a_run_of_nothing_is_damage(self) -> None:
        with pytest.raises(ValueError, match="no entries"):
            self.drawn((0, 0, 4, False, True))


class TestMemoryAboutMemory:
    def test_a_counters_parts_and_its_remainder_are_the_counter(self) -> None:
        rows = [
            {"part": part, "bytes": size, "percent": 0.1, "counted_in": name, "on_device": device}
            for part, size, name, device in (
                ("a", 100, "nr_memmap_pages", False), ("b", 50, "nr_memmap_pages", True),
                ("c", 7, None, False), ("remainder of nr_memmap_pages", -2, "nr_memmap_pages",
                                        False),
            )
        ]  # fmt: skip
        shown = vmemmap_pictures.memory_about_memory.draw({"memory_about_memory": rows}, 4096)
        counted, others = shown["sums"]
        assert (counted[0], *counted[2:]) == ("nr_memmap_pages", 148, -2)
        assert (others[0], *others[2:]) == ("", 7, 0)
        assert (shown["ram"], shown["widest"]) == (107, 100)
