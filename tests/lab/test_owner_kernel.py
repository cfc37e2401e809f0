# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The lab's own kernel: its captures hold what their workload says they hold, by the kernel's word.

What is read here is text that the kernel printed; what mmscope reads from memory is held against
the same files elsewhere.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import own_kernel
import pytest
from archive import LabError
from capture import Capture, capture
from drgn import Program
from drgn.helpers.linux.pid import for_each_task
from owner_inputs import OwnerInputs, owner_inputs

from mmscope.drgn.opening.target import open_target

pytestmark = pytest.mark.owner_kernel

STACKS = "sys/kernel/debug/page_owner_stacks"
LEAK_PAGES = 250  # guest/workload_owner.c

# Functions of the module whose stacks have their pages and no others.
EXACT = {
    "mmscope_lab_hold_order0": 1000,
    "mmscope_lab_hold_order3": 64 * 8,
    "mmscope_lab_hold_movable": 512,
    "mmscope_lab_leak": 8 * LEAK_PAGES,
    "mmscope_lab_hold_level": 2 * 300,
    "mmscope_lab_hold_tree": 1 << 8,
}
OBJECTS = {
    ("mmscope_lab", "mmscope_lab_slab_cache"): 7500,
    ("kmalloc-96", "mmscope_lab_slab_small"): 8000,
    ("kmalloc-1k", "mmscope_lab_slab_large"): 500,
}


@pytest.fixture(scope="module")
def owner(say: Callable[[str], None]) -> Capture:
    """The ``owner`` workload on the kernel of the same name."""
    return capture("owner", "owner", say)


@pytest.fixture(scope="module")
def prog(owner: Capture) -> Program:
    """Its memory."""
    return open_target(owner.vmcore, [owner.vmlinux])


@pytest.fixture(scope="module")
def inputs(say: Callable[[str], None]) -> OwnerInputs:
    """page_owner's files."""
    return owner_inputs(say)


def stacks(text: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Each stack, or what stands for it, with the numbers that follow."""
    for block in text.split("\n\n"):
        numbers = re.findall(r"^(\w+): (-?\d+)$", block, re.MULTILINE)
        if block.strip():
            yield (
                re.sub(r"^\w+: .*\n?", "", block, flags=re.MULTILINE),
                {name: int(number) for name, number in numbers},
            )


def held(text: str) -> dict[str, dict[str, int]]:
    """What the module says that it holds, by function."""
    return {
        name: dict(zip(words[::2], map(int, words[1::2]), strict=True))
        for name, *words in map(str.split, text.splitlines())
    }


def by_function(show_stacks: str) -> Counter[str]:
    """Pages of the module's stacks; of functions that call each other, the outermost counts."""
    pages: Counter[str] = Counter()
    for stack, numbers in stacks(show_stacks):
        functions = re.findall(r"mmscope_lab_\w+", stack)
        if functions:
            pages[functions[-1]] += numbers["nr_base_pages"]
    return pages


@pytest.mark.parametrize("reading", ["truth_a", "truth_b"])
def test_the_modules_pages_are_in_show_stacks(owner: Capture, reading: str) -> None:
    truth: Path = getattr(owner, reading)
    module = held((truth / "sys/kernel/debug/mmscope_lab").read_text())
    pages = by_function((truth / STACKS / "show_stacks").read_text())
    for function, expected in EXACT.items():
        assert module[function]["pages"] == expected
        assert pages[function] == expected, function
    # As many as it took; or none at all, where memory was so short at a stack's first allocation
    # that the kernel had no room to put it on its list (add_stack_record_to_list()).
    for function in ("mmscope_lab_hold_atomic", "mmscope_lab_hold_fallback"):
        assert module[function]["pages"] > 0
        assert pages[function] in (module[function]["pages"], 0), function
    assert pages["mmscope_lab_churn"] == 0
    # Beside its pages vmalloc has bookkeeping.
    assert module["mmscope_lab_hold_vmalloc"]["pages"] == 1600
    assert 1600 <= pages["mmscope_lab_hold_vmalloc"] < 1700


def has_handles(owner: Capture) -> bool:
    """show_handles and show_stacks_handles came with v6.19."""
    there = (owner.truth_b / STACKS / "show_handles").exists()
    assert there == (tuple(map(int, owner.release.split(".")[:2])) >= (6, 19))
    return there


def test_handles_join_stacks(owner: Capture) -> None:
    folder = owner.truth_b / STACKS
    if not has_handles(owner):
        assert not (folder / "show_stacks_handles").exists()
        return
    stack_of = {
        numbers["handle"]: stack
        for stack, numbers in stacks((folder / "show_stacks_handles").read_text())
    }
    by_handle = list(stacks((folder / "show_handles").read_text()))
    by_stack = list(stacks((folder / "show_stacks").read_text()))
    assert len(by_handle) == len(by_stack) > 400
    assert Counter((stack_of[n["handle"]], n["nr_base_pages"]) for _, n in by_handle) == Counter(
        (stack, n["nr_base_pages"]) for stack, n in by_stack
    )


def test_nothing_moved_between_the_readings(owner: Capture) -> None:
    handles = ("show_handles", "show_stacks_handles") if has_handles(owner) else ()
    for name in ("show_stacks", *handles):
        a, b = ((truth / STACKS / name).read_text() for truth in (owner.truth_a, owner.truth_b))
        assert a == b, name


def test_leak_grows_step_by_step(owner: Capture) -> None:
    series = sorted((owner.truth_a / "series").iterdir())
    assert len(series) == 8
    pages = [by_function((step / "show_stacks").read_text()) for step in series]
    leaked = [each["mmscope_lab_leak"] for each in pages]
    assert leaked == [LEAK_PAGES * (step + 1) for step in range(8)]
    levels = [each["mmscope_lab_hold_level"] for each in pages]
    module = [held((step / "mmscope_lab").read_text()) for step in series]
    assert levels == [each["mmscope_lab_hold_level"]["pages"] for each in module]
    assert sorted(levels) != levels != sorted(levels, reverse=True)
    if not has_handles(owner):
        return
    # The same stack keeps its handle.
    growing = [
        {n["handle"] for _, n in stacks((step / "show_handles").read_text())} for step in series
    ]
    handle = next(
        n["handle"]
        for stack, n in stacks((owner.truth_b / STACKS / "show_stacks_handles").read_text())
        if "mmscope_lab_leak+" in stack
    )
    assert all(handle in handles for handles in growing)


@pytest.mark.parametrize("workload", ["owner", "owner_slab"])
def test_objects_are_in_alloc_traces(workload: str, say: Callable[[str], None]) -> None:
    taken = capture("owner", workload, say)
    for (cache, function), expected in OBJECTS.items():
        text = (taken.truth_b / f"sys/kernel/debug/slab/{cache}/alloc_traces").read_text()
        lines = re.findall(rf"^ +(\d+) {function}\+", text, re.MULTILINE)
        assert sum(map(int, lines)) == expected, cache
    folders = list((taken.truth_b / "sys/kernel/debug/slab").iterdir())
    assert len(folders) == 3 if workload == "owner" else len(folders) > 50


def test_reserves_and_mixed_blocks(owner: Capture) -> None:
    text = (owner.truth_b / "proc/pagetypeinfo").read_text()

    def blocks(kind: str) -> dict[str, Counter[str]]:
        # A table a node: its heading has the migratetypes, and a line follows for each zone.
        found: dict[str, Counter[str]] = {}
        for table in re.findall(rf"^Number of {kind} +(.*(?:\nNode.*)+)", text, re.MULTILINE):
            heading, *lines = table.splitlines()
            for line in lines:
                zone, *numbers = re.sub(r"Node *\d+, zone *", "", line).split()
                found[zone] = Counter(dict(zip(heading.split(), map(int, numbers), strict=True)))
        return found

    for zone in ("DMA32", "Normal"):
        assert blocks("blocks type")[zone]["HighAtomic"] >= 2
    assert sum(zone["Movable"] for zone in blocks("mixed blocks").values()) >= 10


def test_processes_have_the_names_they_should(prog: Program) -> None:
    comms = {task.comm.string_() for task in for_each_task(prog)}
    assert {
        b"plain_holder",
        b"nl\nPFN 0x0 type",
        b"\n\nPage allocat",
        b"\nhandle: 4\nnr_",
        b"a), ts 1 ns\nx(",
        b"Page allocated ",
        b"\xff\xfe\x80 bytes",
        b'<img src=x>;"',
        b"",
        b"a_thread",
        b"migrated",
    } <= comms
    assert not comms & {b"writer_gone", b"spare"}


def test_page_owner_is_on(prog: Program) -> None:
    assert prog["page_ext_size"].value_() > 8
    assert prog["page_owner_ops"].offset.value_() > 0


def test_whole_file_agrees_with_the_module(inputs: OwnerInputs) -> None:
    text = inputs.page_owner.read_bytes()
    assert len(text) > 60_000_000 and text.endswith(b"\n\n")
    module = held(inputs.mmscope_lab[-1].read_text())
    pages: Counter[str] = Counter()
    for order, function in re.findall(
        # Task names may have newlines in them, stacks not.
        rb"Page allocated via order (\d+), (?:[^\n]*\n){1,4}PFN [^\n]*\n"
        rb"(?: [^\n]*\n)*? (mmscope_lab_hold_order[03]|mmscope_lab_leak)\+",
        text,
    ):
        pages[function.decode()] += 1 << int(order)
    for function in ("mmscope_lab_hold_order0", "mmscope_lab_hold_order3", "mmscope_lab_leak"):
        assert pages[function] == module[function]["pages"] > 0
    for line in (
        rb"\(nl\nPFN 0x0 type\), ts \d+ ns\n",
        rb"\(a_thread\), ts \d+ ns\n",
        rb"\nPage has been migrated, last migrate reason: syscall_or_cpuset\n",
        rb"\nCharged to memcg Charged to memcg x\), ts 1 ns <b>\n",
        rb"\nCharged to memcg lab\n",
    ):
        assert re.search(line, text), line


def resolved(inputs: OwnerInputs, number: int) -> Counter[str]:
    """Pages by function of the module, by handles and their stacks."""
    stack_of = {
        numbers["handle"]: stack
        for stack, numbers in stacks(inputs.show_stacks_handles.read_text())
    }
    pages: Counter[str] = Counter()
    for _, numbers in stacks(inputs.show_handles[number].read_text()):
        functions = re.findall(r"mmscope_lab_\w+", stack_of[numbers["handle"]])
        if functions:
            pages[functions[-1]] += numbers["nr_base_pages"]
    return pages


def test_series_agrees_with_the_module(owner: Capture, inputs: OwnerInputs) -> None:
    handles = has_handles(owner)
    assert len(inputs.times) == len(inputs.show_stacks) == 100
    assert len(inputs.show_handles) == (100 if handles else 0)
    assert sorted(set(inputs.times)) == list(inputs.times)
    for number in range(0, 100, 9):
        module = held(inputs.mmscope_lab[number].read_text())
        assert module["mmscope_lab_leak"]["pages"] == 37 * (number + 1)
        series = [by_function(inputs.show_stacks[number].read_text())]
        if handles:
            series.append(resolved(inputs, number))
        for pages in series:
            assert {name: pages[name] for name in EXACT} == {
                name: module[name]["pages"] for name in EXACT
            }
    seconds, length = inputs.cat["page_owner"]
    assert seconds > 0 and length > 60_000_000


def test_lost_options_are_named() -> None:
    config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\nCONFIG_D=y\n"
    assert own_kernel.not_kept("# a comment\nCONFIG_A=y\n# CONFIG_B is not set\n", config) == []
    assert own_kernel.not_kept("# CONFIG_GONE is not set\n", config) == []
    assert own_kernel.not_kept("CONFIG_B=y\nCONFIG_C=y\n# CONFIG_D is not set\n", config) == [
        "CONFIG_B=y",
        "CONFIG_C=y",
        "# CONFIG_D is not set",
    ]


def test_failed_build_shows_its_error_and_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(
        "all:\n\t@echo 'a.c:1: error: of the lab'; seq 100; echo 'the last line'; false\n"
    )
    with pytest.raises(LabError) as caught:
        own_kernel._make(["make"], tmp_path, tmp_path / "log", "the kernel", lambda line: None)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the kernel does not build:"
    assert "    a.c:1: error: of the lab" in lines and "    the last line" in lines
    assert len(lines) < 25


def test_broken_module_is_not_kept(tmp_path: Path, say: Callable[[str], None]) -> None:
    kernel = tmp_path / "kernel"
    (kernel / "tree").mkdir(parents=True)
    (kernel / "tree" / "Makefile").write_text("modules:\n\tfalse\n")
    source = tmp_path / "module"
    source.mkdir()
    (source / "Kbuild").write_text("obj-m := a.o\n")
    with pytest.raises(LabError, match="the module does not build"):
        own_kernel.build_modules(kernel, source, say)
    assert not list((kernel / "modules").iterdir())
