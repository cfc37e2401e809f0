# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What the kernel's lines of source hold, out of the memory of a kernel that counts it, against
/proc/allocinfo right before the freeze and against what the lab's module says it holds; and the
pages of the ledger by line.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from capture import Capture
from command_line import run
from drgn import Object, Program
from drgn.helpers.linux.idr import idr_for_each_entry
from named_damage import say as put
from plain_walks import alloc_tag_loop
from tagged import PAGES_A_ROUND, PERCPU, PERCPU_BYTES, ROUNDS, lines_of_module, tagged

from mmscope.drgn.ledger.memory_ledger import NO_TAG, LedgerTag
from mmscope.drgn.ledger.percpu_chunks import percpu
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.owners.alloc_tags import AllocTag, read_allocinfo
from mmscope.drgn.reading.cpus import percpu_offsets
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate

pytestmark = pytest.mark.owner_kernel

PAGE = 4096
MODULE = "mmscope_lab"
# Lines whose counters moved between the reading and the freeze.
STRAY = 10
Place = tuple[str, str, int, str]


@dataclass(frozen=True)
class TagLab:
    """The frozen guest and its tables."""

    capture: Capture
    prog: Program
    tags: list[AllocTag]
    ledger: list[LedgerTag]
    classes: Counter[tuple[str, str]]  # pages by class and part

    def said(self) -> tuple[list[AllocTag], list[AllocTag]]:
        """/proc/allocinfo, earlier and later."""
        earlier, later = (
            read_allocinfo((folder / "proc/allocinfo").read_text())
            for folder in (self.capture.truth_a, self.capture.truth_b)
        )
        return earlier, later

    def held(self) -> dict[str, tuple[int, int, int]]:
        """What the module says: function to allocations, pages, objects."""
        text = (self.capture.truth_b / "sys/kernel/debug/mmscope_lab").read_text()
        line = r"^(\w+) allocations (\d+) pages (\d+) objects (\d+) bytes \d+$"
        return {
            match[1]: (int(match[2]), int(match[3]), int(match[4]))
            for match in re.finditer(line, text, re.MULTILINE)
        }


def read(capture: Capture) -> TagLab:
    prog = open_target(capture.vmcore, [capture.vmlinux])
    memory = Memory(prog)
    found = {}
    for name in ("alloc_tags", "memory_ledger"):
        section, tables = run_section(SECTIONS[name], memory)
        assert section.status == "ok", section.message
        found |= tables.by_name
    classes: Counter[tuple[str, str]] = Counter()
    for row in found["memory_ledger"]:
        classes[row.owner, row.part] += row.pages
    return TagLab(capture, prog, found["alloc_tags"], found["ledger_tags"], classes)


@pytest.fixture(scope="module")
def lab(say: Callable[[str], None]) -> TagLab:
    return read(tagged(say))


def place(row: AllocTag | LedgerTag) -> Place:
    return row.module, row.file, row.line, row.function


def by_place(rows: list[AllocTag]) -> dict[Place, AllocTag]:
    found = {place(row): row for row in rows}
    assert len(found) == len(rows)
    return found


def of_module(rows: list[AllocTag]) -> dict[str, AllocTag]:
    """The rows of the module, by function."""
    mine = [row for row in rows if row.module == MODULE]
    assert all(row.file.endswith("mmscope_lab.c") for row in mine)
    return {row.function: row for row in mine}


def test_every_line_of_the_text_is_there_and_no_other(lab: TagLab) -> None:
    _, later = lab.said()
    ours, theirs = by_place(lab.tags), by_place(later)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 1000
    assert {key: row.tags for key, row in ours.items()} == {
        key: row.tags for key, row in theirs.items()
    }
    assert {key for key, row in ours.items() if not row.accurate} == {
        key for key, row in theirs.items() if not row.accurate
    }


def test_what_stands_still_is_exactly_what_was_printed(lab: TagLab) -> None:
    earlier, later = map(by_place, lab.said())
    ours = by_place(lab.tags)
    moved = {key for key in later if earlier[key] != later[key]}
    differs = {key for key in ours if ours[key] != later[key]}
    print(f"{len(ours)} lines, moved between two prints: {moved}, since the last: {differs}")
    assert differs <= moved and len(differs) <= len(moved) <= STRAY
    assert sum(row.bytes or 0 for row in lab.tags) > 300 << 20


def test_a_walk_from_tag_to_tag_finds_the_same(lab: TagLab) -> None:
    calls: Counter[Place] = Counter()
    sizes: Counter[Place] = Counter()
    for module, file, line, function, number, size in alloc_tag_loop(lab.prog):
        calls[module, file, line, function] += number
        sizes[module, file, line, function] += size
    assert calls == {place(row): row.calls for row in lab.tags}
    assert sizes == {place(row): row.bytes for row in lab.tags}


def test_the_modules_lines_are_those_of_its_source(lab: TagLab) -> None:
    lines = lines_of_module()
    mine = of_module(lab.tags)
    functions = {name: row.line for name, row in mine.items() if name in lines}
    assert functions == {name: lines[name] for name in functions}
    assert functions.keys() == lines.keys()


def test_what_the_module_holds_is_exact(lab: TagLab) -> None:
    mine, compared = of_module(lab.tags), 0
    for function, (allocations, pages, objects) in lab.held().items():
        if function not in mine or function == f"{MODULE}_hold_tree":
            continue  # the tree's pages are those of its two branches
        row = mine[function]
        if function.endswith(("vmalloc", "percpu")):
            continue
        if pages:
            assert (row.calls, row.bytes) == (allocations, pages * PAGE), function
            compared += 1
        elif objects:
            assert row.calls == objects, function
            compared += 1
    assert compared >= 8
    pages = ROUNDS * PAGES_A_ROUND * PAGE
    for function in ("compound", "plain"):
        row = mine[f"{MODULE}_hold_{function}"]
        assert (row.calls, row.bytes) == (ROUNDS * 9, pages)
    assert 2 * pages > 199 << 20


def test_vmalloc_is_counted_by_its_pages_and_its_array_of_them(lab: TagLab) -> None:
    allocations, pages, _ = lab.held()[f"{MODULE}_hold_vmalloc"]
    row = of_module(lab.tags)[f"{MODULE}_hold_vmalloc"]
    assert pages == 16 * allocations > 0
    # __vmalloc_area_node(): 16 pointers of 8 bytes to pages that came one by one.
    assert (row.calls, row.bytes) == (pages + allocations, pages * PAGE + allocations * 16 * 8)


def test_percpu_memory_is_counted_for_one_cpu_but_in_the_first_chunk(lab: TagLab) -> None:
    row = of_module(lab.tags)[f"{MODULE}_hold_percpu"]
    first = next(chunk for chunk in percpu(lab.prog)[0] if chunk.kind == "first")
    # 7.3 counts that of each CPU, and 8 bytes for each 4 of one CPU's that say whose they are
    # (pcpu_obj_full_size()).
    cpus = len(percpu_offsets(lab.prog))
    full = PERCPU_BYTES * cpus + PERCPU_BYTES // 4 * 8
    each = full if lab.capture.release.startswith("7.3") else PERCPU_BYTES
    assert row.calls is not None and row.bytes == row.calls * each
    assert 0 <= PERCPU - row.calls <= first.unit_bytes // PERCPU_BYTES


def of_function(lab: TagLab, function: str) -> Counter[tuple[str, str]]:
    """Pages by class and part that a function of the module allocated."""
    pages: Counter[tuple[str, str]] = Counter()
    for row in lab.ledger:
        if row.module == MODULE and row.function == f"{MODULE}_{function}":
            pages[row.owner, row.part] += row.pages
    return pages


def check_ledger(lab: TagLab) -> None:
    """The module's pages are found at their lines, to the page, in the classes that they are in."""
    each = ROUNDS * PAGES_A_ROUND
    assert of_function(lab, "hold_compound") == {
        ("unexplained", "compound pages"): each - ROUNDS,
        ("unexplained", "single pages"): ROUNDS,
    }
    plain = of_function(lab, "hold_plain")
    assert plain == {
        ("unexplained", "single pages"): ROUNDS * 9,
        ("unexplained", "tail of a block that is no compound page"): each - ROUNDS * 9,
    }
    for function in ("hold_order0", "hold_order3", "hold_movable"):
        assert of_function(lab, function).total() == lab.held()[f"{MODULE}_{function}"][1] > 0
    pages = lab.held()[f"{MODULE}_hold_vmalloc"][1]
    assert of_function(lab, "hold_vmalloc") == {("vmalloc", "areas"): pages}


def test_the_leak_is_at_its_line_in_the_ledger(lab: TagLab) -> None:
    check_ledger(lab)


def test_lines_add_up_to_the_classes(lab: TagLab) -> None:
    tagged: Counter[tuple[str, str]] = Counter()
    for row in lab.ledger:
        assert row.bytes == row.pages * PAGE
        tagged[row.owner, row.part] += row.pages
    assert all(lab.classes[key] == pages for key, pages in tagged.items()), tagged
    unexplained = sum(n for (owner, _), n in lab.classes.items() if owner == "unexplained")
    nameless = sum(
        row.pages for row in lab.ledger if row.owner == "unexplained" and row.file == NO_TAG
    )
    print(f"{unexplained} pages unexplained, {nameless} of them without a tag")
    assert nameless < 0.02 * unexplained


def test_no_line_has_more_pages_than_it_holds(lab: TagLab) -> None:
    held = by_place(lab.tags)
    pages: Counter[Place] = Counter()
    for row in lab.ledger:
        if row.line:
            pages[place(row)] += row.pages
    moved = {key for key in pages if earlier_differs(lab, key)}
    over = {key for key, n in pages.items() if n * PAGE > (held[key].bytes or 0)}
    assert over <= moved and len(pages) > 20


def earlier_differs(lab: TagLab, key: Place) -> bool:
    earlier, later = map(by_place, lab.said())
    return earlier[key] != later[key]


def test_the_finding_names_the_line(lab: TagLab, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("tags") / "bundle"
    result = run(
        "collect", "--core", lab.capture.vmcore, "--symbols", lab.capture.vmlinux,
        "--only", "memory_ledger,alloc_tags", "--no-findings", "-o", path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = [item for item in evaluate(Bundle(path)).found if item.id == "alloc-tag-large"]
    lines = lines_of_module()
    named = {f"mmscope_lab.c:{lines[f'{MODULE}_hold_{name}']}" for name in ("compound", "plain")}
    assert {line for line in named if any(line in item.title for item in found)} == named


def range_of_module(prog: Program) -> Object:
    """Where the module's tags are."""
    tags = prog["alloc_tag_cttype"].mod_idr.address_of_()
    entries = idr_for_each_entry(tags, "struct codetag_module")
    return next(
        entry.range
        for _, entry in entries
        if entry.mod and entry.mod.name.string_() == MODULE.encode()
    )


def first_tag(prog: Program) -> Object:
    address = range_of_module(prog).start.value_()
    return Object(prog, "struct alloc_tag", address=address)


DAMAGE: dict[str, tuple[Callable[[Program], None], str, str]] = {
    "a range that ends within a tag": (
        lambda prog: put(range_of_module(prog).stop, range_of_module(prog).stop.value_() + 1),
        "partial",
        "a range of tags is damaged: 0x",
    ),
    "a range of all addresses": (
        lambda prog: put(range_of_module(prog).stop, (1 << 64) - 8),
        "partial",
        "a range of tags is damaged: 0x",
    ),
    "a range in no memory": (
        lambda prog: (
            put(range_of_module(prog).start, 0xDEAD << 48),
            put(range_of_module(prog).stop, (0xDEAD << 48) + 40 * 4000),
        ),
        "partial",
        "tags were found, the kernel has 1,",
    ),
    "a name in no memory": (
        lambda prog: put(first_tag(prog).ct.function, 0xDEAD << 48),
        "partial",
        "1 name of tags could not be read: shown by address",
    ),
    "a tag without counters": (
        lambda prog: put(first_tag(prog).counters, 0),
        "partial",
        "the counters of 1 tag could not be read",
    ),
    "a tree that is none": (
        lambda prog: put(prog["alloc_tag_cttype"].mod_idr.idr_rt.xa_head, 0x1002),
        "partial",
        "0 tags were found, the kernel has 1",
    ),
    "switched off": (
        lambda prog: put(prog["mem_alloc_profiling_key"].key.enabled.counter, 0),
        "partial",
        "the counters are as they were then",
    ),
    "shut down": (
        lambda prog: put(prog["alloc_tag_cttype"], 0),
        "absent",
        "was not on at boot or has shut itself down",
    ),
    "not registered": (
        lambda prog: put(prog["alloc_tag_cttype"], -12),
        "absent",
        "was not on at boot or has shut itself down",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_cannot_be_is_said_and_the_rest_is_there(lab: TagLab, name: str) -> None:
    damage, status, words = DAMAGE[name]
    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])
    damage(prog)
    memory = Memory(prog)
    section, found = run_section(SECTIONS["alloc_tags"], memory)
    assert section.status == status and words in str(section.message), section.message
    ledger, _ = run_section(SECTIONS["memory_ledger"], memory)
    assert ledger.status == "ok" or words in str(ledger.message), ledger.message
    if status == "partial" and "tree" not in name:
        kernel = {place(row): row for row in lab.tags if not row.module}
        rows = {place(row): row for row in found.by_name["alloc_tags"]}
        assert {key: rows[key] for key in kernel} == kernel


def test_references_in_page_flags_are_followed(say: Callable[[str], None]) -> None:
    capture = tagged(say, "sysctl.vm.mem_profiling=1,compressed")
    log = (capture.truth_b / "dmesg").read_text()
    assert "enabled with compression and is turned on" in log
    lab = read(capture)
    assert lab.prog["mem_profiling_compressed"].key.enabled.counter.value_() > 0
    assert by_place(lab.tags) == by_place(lab.said()[1])
    check_ledger(lab)
