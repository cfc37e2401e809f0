# SPDX-License-Identifier: LGPL-2.1-or-later
"""Interval counts, trees and lists in arrays, against the same by hand."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from drgn import FaultError
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.owners.slab_objects import Objects, tree_links
from mmscope.drgn.processes.processes import (
    FilesMapped,
    Processes,
    process_maps,
    take_maps,
)
from mmscope.drgn.reading.linked_lists import LOST, follow_lists
from mmscope.drgn.rmap.anon_vmas import AnonVmaMap, fanout, tree_map
from mmscope.drgn.rmap.file_maps import _moved, mapped_files
from mmscope.drgn.rmap.ksm import NodeCost, counts_that_cannot_be, hlist_links, read_ksm_totals
from mmscope.drgn.rmap.reverse_maps import ReverseMaps, _count_checks, _possible
from mmscope.drgn.rmap.vma_splits import _compare, protection
from mmscope.drgn.sections.files import Files

U64 = np.uint64
# (first page, pages) of each VMA, tree by tree
Trees = list[list[tuple[int, int]]]
OFFSETS = st.integers(0, 60) | st.integers((1 << 45) - 60, 1 << 45)
TREES = st.lists(
    st.lists(st.tuples(OFFSETS, st.integers(1, 9)), max_size=12), min_size=1, max_size=6
)


def array(*values: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(values, U64)


def reverse_maps(trees: Trees) -> ReverseMaps:
    """These trees; every VMA is process 0's if it is writable, else process 1's."""
    chains = sorted(
        (tree, first, first + pages - 1) for tree, vmas in enumerate(trees) for first, pages in vmas
    )
    number = len(trees)
    numbers = np.arange(number)
    flags = np.array([2 * (first % 2) for _, first, _ in chains], U64)
    return ReverseMaps(
        anon_vmas=Objects(
            array(*range(4096, 4096 + number)),
            {"parent": array(*range(4096, 4096 + number)), "lock": np.zeros(number, np.int64)},
        ),
        root=numbers,
        parent=numbers,
        depth=np.zeros(number, np.int64),
        vmas=Objects(
            array(*range(len(chains))),
            {
                "flags": flags,
                "anon_vma": array(*(4096 + tree for tree, *_ in chains)),
            },
        ),
        vma_mm=np.array([1 - first % 2 for _, first, _ in chains], np.int64),
        chain_vma=np.arange(len(chains)),
        first=array(*(first for _, first, _ in chains)),
        last=array(*(last for *_, last in chains)),
        start=np.searchsorted([tree for tree, *_ in chains], np.arange(number + 1)),
        tasks=Processes(array(1, 2), np.array([10, 20]), ["ten", "twenty"]),
    )  # fmt: skip


def test_a_process_has_no_more_merged_pages_than_ksm_looks_at() -> None:
    counts = {"ksm_merging_pages": [3, 4, 0, 1 << 40], "ksm_rmap_items": [3, 3, 1 << 62, 1 << 41]}
    arrays = {name: np.array(values) for name, values in counts.items()}
    assert counts_that_cannot_be(arrays) == 2
    assert counts_that_cannot_be(arrays, most_items=2) == 4
    del arrays["ksm_rmap_items"]  # before 6.1
    assert counts_that_cannot_be(arrays) == 0
    assert counts_that_cannot_be({}) == 0


@given(TREES, st.lists(st.tuples(st.integers(-1, 5), OFFSETS, st.integers(1, 70)), max_size=20))
def test_overlaps_are_those_that_one_would_visit(
    trees: Trees, asked: list[tuple[int, int, int]]
) -> None:
    asked = [(tree, first, pages) for tree, first, pages in asked if tree < len(trees)]
    counted = reverse_maps(trees).overlaps(
        np.array([tree for tree, *_ in asked], np.int64),
        array(*(first for _, first, _ in asked)),
        array(*(first + pages - 1 for _, first, pages in asked)),
    )
    assert counted.tolist() == [
        0
        if tree < 0
        else sum(first < low + size and low < first + pages for low, size in trees[tree])
        for tree, first, pages in asked
    ]


@given(TREES)
def test_depths_are_those_of_every_page_offset(trees: Trees) -> None:
    most, mean = reverse_maps(trees).depths
    for index, vmas in enumerate(trees):
        over = Counter(offset for first, pages in vmas for offset in range(first, first + pages))
        assert most[index] == max(over.values(), default=0)
        expected = sum(over.values()) / len(over) if over else 0
        assert mean[index] == pytest.approx(expected)


@given(TREES)
def test_the_fanout_has_every_anon_vma_once(trees: Trees) -> None:
    rows = fanout(reverse_maps(trees))
    assert sum(row.anon_vmas for row in rows) == len(trees)
    assert sum(row.vmas for row in rows) == sum(map(len, trees))
    for vmas in trees:
        assert sum(row.vmas_from <= len(vmas) <= row.vmas_to for row in rows) == 1


@given(TREES, st.integers(1, 40))
def test_the_map_of_a_tree_has_every_page_once(trees: Trees, bins: int) -> None:
    maps = reverse_maps(trees)
    for index, vmas in enumerate(trees):
        items = array(*(first for first, _ in vmas))
        rows: list[AnonVmaMap] = tree_map(maps, index, items, bins)
        assert len(rows) <= bins and bool(rows) == bool(vmas)
        at = min((first for first, _ in vmas), default=0)
        for row in rows:
            assert row.index == hex(at)
            end = at + row.pages
            inside = [first for first, _ in vmas if at <= first < end]
            over = [f for f, size in vmas if f < end and at < f + size]
            assert (row.starts, row.ksm_items) == (len(inside), len(inside))
            assert (row.vmas, row.writable_vmas) == (len(over), sum(f % 2 for f in over))
            at = end
        assert at == max((first + size for first, size in vmas), default=0)


def test_whose_it_is() -> None:
    maps = reverse_maps([[(1, 1), (3, 1), (4, 1)], [], [(2, 1)]])
    assert [values.tolist() for values in maps.users_of(0)] == [[1, 0], [1, 2]]  # most are last
    assert [values.tolist() for values in maps.users_of(1)] == [[], []]
    assert [values.tolist() for values in maps.users_of(2)] == [[1], [1]]


def test_a_node_that_was_taken_out_of_its_tree_is_in_none() -> None:
    # 8 is the root with children 16 and 24; 32 still points at 16, which has another child now.
    node, root = array(8, 16, 24, 32, 40), array(1000)
    links = tree_links(
        node,
        parent=array(0 | 1, 8, 8 | 1, 16, 16 | 1),
        left=array(16, 40, 0, 0, 0),
        right=array(24, 0, 0, 0, 0),
        root_node=array(8),
        root=root,
    )
    assert follow_lists(node, links, root).head.tolist() == [0, 0, 0, LOST, 0]
    # A node without a parent is in the tree only if the root has it.
    links = tree_links(node[:1], array(0), array(0), array(0), array(24), root)
    assert follow_lists(node[:1], links, root).head.tolist() == [LOST]


@given(st.data())
def test_nodes_of_random_trees_are_found_in_theirs(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 30))
    node = 8 * np.arange(1, number + 1, dtype=U64)
    parent, left, right = (np.zeros(number, U64) for _ in range(3))
    tree = np.zeros(number, np.int64)
    roots: list[int] = []
    for at in range(number):
        above = [n for n in range(at) if not (left[n] and right[n])]
        if not above or data.draw(st.booleans()):
            tree[at] = len(roots)
            roots.append(int(node[at]))
            continue
        up = data.draw(st.sampled_from(above))
        side = left if (not left[up] and data.draw(st.booleans())) or right[up] else right
        side[up], parent[at], tree[at] = (
            node[at],
            node[up] | U64(data.draw(st.integers(0, 1))),
            tree[up],
        )
    heads = 10_000 + 8 * np.arange(len(roots), dtype=U64)
    links = tree_links(node, parent, left, right, array(*roots), heads)
    assert follow_lists(node, links, heads).head.tolist() == tree.tolist()


def test_an_hlist_backwards() -> None:
    # Heads at 100 and 200; 8 → 16 on the first, 24 on the second; 32 was taken off behind 16.
    entry, head = array(8, 16, 24, 32), array(100, 200)
    links = hlist_links(entry, array(100, 8, 200, 16), array(16, 0, 0, 0), head, array(8, 24))
    assert follow_lists(entry, links, head).head.tolist() == [0, 0, 1, LOST]
    nothing = array()
    assert hlist_links(nothing, nothing, nothing, nothing, nothing).tolist() == []


class NoMemory:
    """A program of which only the page size can be asked."""

    def __getitem__(self, name: str) -> Any:
        assert name == "PAGE_SHIFT"
        return self

    def value_(self) -> int:
        return 12

    def constant(self, name: str) -> Any:
        raise LookupError(name)

    def read(self, *given: Any) -> bytes:
        raise FaultError("nothing is there", 0)


def compared(*vmas: tuple[int, int, int, int], **pointers: list[int]) -> Any:
    """VMAs given as (first page, pages, flags, page offset)."""
    columns = {
        "start": array(*(first << 12 for first, *_ in vmas)),
        "end": array(*((first + pages) << 12 for first, pages, *_ in vmas)),
        "flags": array(*(flags for *_, flags, _ in vmas)),
        "pgoff": array(*(offset for *_, offset in vmas)),
    } | {name: array(*values) for name, values in pointers.items()}
    patterns, alternating = _compare(
        NoMemory(),  # type: ignore[arg-type]
        Objects(array(*range(len(vmas))), columns),
        np.ones(len(vmas), np.bool_),
    )
    return [(*pattern, pairs) for pattern, pairs in patterns.items()], alternating


READ, WRITE, ACCOUNT, SOFTDIRTY, SEQ = 1, 3, 1 << 20, 1 << 27, 1 << 15


def test_what_keeps_neighbours_apart() -> None:
    patterns, alternating = compared(
        (0, 1, WRITE, 0), (1, 1, READ, 1), (2, 1, WRITE, 2), (3, 1, WRITE | SEQ, 3),
    )  # fmt: skip
    assert alternating == 1
    assert sorted(patterns) == [
        ("r--p", "rw-p", "protection", "mprotect", 1),
        ("rw-p", "r--p", "protection", "mprotect", 1),
        ("rw-p", "rw-p", "VM_SEQ_READ", "madvise", 1),
    ]


@pytest.mark.parametrize(
    ("right", "pointers", "difference", "call"),
    [
        ((1, 1, WRITE | SOFTDIRTY, 1), {}, "nothing", ""),
        ((1, 1, WRITE, 9), {}, "page offset", "mremap"),
        ((1, 1, READ | ACCOUNT, 1), {}, "protection", "mprotect"),
        ((1, 1, WRITE | 1 << 13, 1), {}, "VM_LOCKED", "mlock"),
        ((1, 1, WRITE | 1 << 40, 1), {}, "flag 40", "mmap"),
        ((1, 1, WRITE, 1), {"policy": [0, 4096]}, "policy", "mbind"),
        ((1, 1, WRITE, 1), {"file": [8, 16]}, "file", "mmap"),
        ((1, 1, WRITE, 1), {"name": [16, 16]}, "nothing", ""),
        ((1, 1, READ | SEQ, 9), {}, "protection, VM_SEQ_READ, page offset",
         "mprotect, madvise, mremap"),
    ],
)  # fmt: skip
def test_a_difference_and_the_call_that_makes_it(
    right: tuple[int, int, int, int], pointers: dict[str, list[int]], difference: str, call: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # What the pointers lead to cannot be read: then they are compared themselves.
    for name in ("_policy", "_name"):
        there = f"mmscope.drgn.rmap.vma_splits.{name}"
        monkeypatch.setattr(there, lambda prog, address: address.to_bytes(8, "little"))
    patterns, _ = compared((0, 1, WRITE, 0), right, **pointers)
    assert [pattern[2:] for pattern in patterns] == [(difference, call, 1)]


def test_vmas_with_a_hole_between_are_no_neighbours() -> None:
    assert compared((0, 1, WRITE, 0), (2, 1, WRITE, 2)) == ([], 0)
    assert compared((0, 1, WRITE, 0)) == ([], 0)


def test_protection_is_written_as_in_maps() -> None:
    assert [protection(flags) for flags in (0, 1, 3, 7, 0x83)] == [
        "---p", "r--p", "rw-p", "rwxp", "rw-s",
    ]  # fmt: skip


def test_maps_of_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in {
        "proc/sys/vm/max_map_count": "65530\n",
        "proc/7/maps": "1-2 rw-p 0 0 0\n2-3 r--p 0 0 0\nff-fff --xp 0 0 0 [vsyscall]\n",
        "proc/7/comm": "a\nb\n",
        "proc/8/maps": "",  # a kernel thread
        "proc/9/maps": "1-2 rw-p 0 0 0\n",
        "proc/10/comm": "gone",
        "proc/11/maps": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    read = Files.open

    def denied(files: Files, path: str) -> str:
        if path == "proc/11/maps":
            raise PermissionError(13, "Permission denied")
        return read(files, path)

    monkeypatch.setattr(Files, "open", denied)
    rows, missing, mapped = process_maps(Files(tmp_path))
    assert [(row.pid, row.comm, row.vmas, row.max_map_count) for row in rows] == [
        (7, "a\nb", 2, 65530),
        (9, None, 1, 65530),
    ]
    assert missing == {"Permission denied": [11]}
    assert mapped == {}


def test_a_tree_that_begins_elsewhere_by_now_is_the_largest_of_its_file() -> None:
    # Tops 0 and 1 are of file 100, with two and three VMAs below them; 200's begins with none.
    own_top = np.array([-1, -1, -1, 2])
    top = np.array([0, 0, 1, 1, 1, LOST, 2])
    has_tree = np.array([True, True, False, True])
    _moved(own_top, array(100, 200, 300, 400), has_tree, array(100, 100, 400), top)
    assert own_top.tolist() == [1, -1, -1, 2]


def test_a_slot_that_no_longer_holds_an_anon_vma_is_not_taken_for_one() -> None:
    free_pointer = (1 << 63) + 37
    slots = Objects(
        array(1, 2, 3, 4),
        {
            "num_children": array(1, free_pointer, 2, 0),
            "num_active_vmas": array(0, 1, free_pointer, 500_000),
        },
    )
    assert _possible(slots).tolist() == [True, False, False, True]
    older = Objects(array(1, 2), {"degree": array(2, free_pointer)})
    assert _possible(older).tolist() == [True, False]


def test_the_one_count_of_older_kernels_is_that_of_children_and_vmas() -> None:
    """An anon_vma that is its own parent has two VMAs and a child, which has none."""
    maps = SimpleNamespace(
        addresses=array(100, 200),
        parent=np.array([0, 0]),
        root=np.array([0, 0]),
        active_vmas=np.array([2, 0]),
        anon_vmas=Objects(array(100, 200), {"degree": array(4, 1)}),
    )
    (check,) = _count_checks(cast(ReverseMaps, maps))
    assert (check.anon_vma, check.expected, check.found) == (hex(200), 1, 0)
    assert check.problem.endswith("(degree)")


MAPS = """\
1000-3000 r-xp 00000000 fe:01 12                         /usr/lib/libc.so.6
3000-5000 rw-s 00001000 fe:01 12                         /usr/lib/libc.so.6
5000-6000 rw-p 00000000 00:00 0                          [heap]
6000-7000 rw-s 00000000 00:01 0                          /SYSV00000000 (deleted)
7000-8000 rw-p 00000000 fe:01 13                         /tmp/a \x1b[31m \\012 name
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
8000-8000 r--p 00000000 fe:01 14                         /empty
8000-9000 r--p 00000000 fe:01 999999999999999999999      /too/many
nonsense
"""


def test_files_of_maps_are_counted_by_device_and_inode() -> None:
    found: FilesMapped = {}
    take_maps(found, 7, MAPS)
    take_maps(found, 9, "1000-3000 r-xp 00000000 fe:01 12 /mnt/libc.so.6\n")
    rows, classes = mapped_files(found, {7: "seven"}, 4096)
    libc, sysv, odd = rows
    assert (libc.device, libc.inode, libc.file) == ("fe:01", "12", "/usr/lib/libc.so.6")
    assert (libc.vmas, libc.processes, libc.pid, libc.comm, libc.vmas_of_pid) == (
        3, 2, 7, "seven", 2,
    )  # fmt: skip
    assert (libc.shared_vmas, libc.first_index, libc.pages) == (1, "0x0", 3)
    # Its first page lies under two VMAs, the second under three, the third under one.
    assert (libc.visits_most, libc.visits_mean) == (3, 2.0)
    assert (sysv.inode, sysv.file) == ("0", "/SYSV00000000 (deleted)")
    assert odd.file == "/tmp/a \x1b[31m \\012 name"
    assert [(row.vmas_from, row.files, row.vmas) for row in classes] == [(1, 2, 2), (2, 1, 3)]


def test_pages_of_a_machine_of_unknown_page_size_are_not_counted() -> None:
    found: FilesMapped = {}
    take_maps(found, 7, MAPS)
    rows, _ = mapped_files(found, {}, None)
    assert {(row.first_index, row.pages) for row in rows} == {(None, None)}
    assert rows[0].visits_most == 2
    assert mapped_files({}, {}, 4096) == ([], [])


def test_files_of_ksm_that_hold_no_number_are_left_out() -> None:
    files = {"run": "1\n", "advisor_mode": "[none] scan-time\n", "pages_shared": "x"}
    rows = read_ksm_totals(
        [*files, "gone"], lambda name: files[name] if name in files else no_file()
    )
    assert [(row.name, row.value, row.counted) for row in rows] == [("run", 1, None)]


def no_file() -> str:
    raise FileNotFoundError


def test_the_cost_of_a_visit_has_a_range() -> None:
    cost = NodeCost()
    assert 0 < cost.low < cost.ns < cost.high and not cost.measured
    assert 0 < cost.one_low < cost.one < cost.one_high


def test_a_vma_that_may_map_the_page_costs_more_than_one_that_is_passed_by() -> None:
    cost = NodeCost(ns=60, one=500)
    assert cost.ms(20_000, 0) == pytest.approx(1.2)
    assert cost.ms(20_000, 20_000) == pytest.approx(10)
    # One hold of rmap_walk_ksm(): of 20,000 VMAs one is the mapping's own.
    assert cost.ms(20_000, 1) == pytest.approx(1.20044)
    low, taken, high = cost.range_ms(20_000, 1)
    assert low < taken < high
