# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mock's page faults, and the VMA whose readers a task waits for. Kernels: tests/lab."""

import struct

import pytest
from drgn import Object, Program, Type, TypeMember
from made_programs import empty, fill

from mmscope.drgn.reading.rwsem_counts import READER_SHIFT, WRITER_LOCKED
from mmscope.drgn.waits.faults import ALLOW_RETRY, ASKING, TRIED, VMA_LOCK, fault_of, vma_lock
from mmscope.drgn.waits.stacks import Shared, Stack, stack_from
from mmscope.drgn.waits.waiters import EXCLUDES_READERS, Awaited, awaited

BASE = 0xFFFF_8880_0000_0000
TASK, STACK, VMA, MM = BASE + 0x1000, BASE + 0x10000, BASE + 0x2000, BASE + 0x3000
AT = STACK + 0x3800
START, END, PAGE_OFFSET, FAULT_AT = 0x7F00_0000_0000, 0x7F00_0001_0000, 16, 0x7F00_0000_3000
FRAMES = ["do_page_mkwrite", "__handle_mm_fault", "handle_mm_fault", "exc_page_fault"]


def made(words: dict[int, int]) -> Program:
    """A program with these words at these addresses; VMAs have their lock inside."""
    memory = bytearray(0x20000)
    for address, word in words.items():
        struct.pack_into("<Q", memory, address - BASE, word)
    prog = empty()
    number = prog.int_type("unsigned long", 8, False)
    flags = prog.int_type("unsigned int", 4, False)

    def struct_of(name: str | None, size: int, **members: tuple[Type, int]) -> Type:
        made = [TypeMember(type_, each, 8 * at) for each, (type_, at) in members.items()]
        return prog.struct_type(name, size, made)

    counter = struct_of(None, 4, counter=(flags, 0))
    task_of = prog.pointer_type(number)
    word = struct_of(None, 8, counter=(number, 0))
    rwsem = struct_of("rw_semaphore", 16, count=(word, 0), owner=(word, 8))
    mm = struct_of(
        "mm_struct",
        64,
        mmap_lock=(rwsem, 16),
        vma_writer_wait=(struct_of(None, 8, task=(task_of, 0)), 32),
    )
    members = {"vm_start": 0, "vm_end": 8, "vm_pgoff": 16}
    vma = struct_of(
        "vm_area_struct",
        64,
        **{name: (number, at) for name, at in members.items()},
        vm_mm=(prog.pointer_type(mm), 24),
        vm_refcnt=(struct_of(None, 4, refs=(counter, 0)), 32),
    )
    types = {
        "mm_struct": mm,
        "vm_area_struct": vma,
        "vm_fault": struct_of(
            "vm_fault",
            64,
            vma=(prog.pointer_type(vma), 0),
            pgoff=(number, 16),
            address=(number, 24),
            flags=(flags, 40),
        ),
        "vm_struct": struct_of("vm_struct", 8, nr_pages=(number, 0)),
    }
    area = prog.pointer_type(types["vm_struct"])
    types["task_struct"] = struct_of("task_struct", 64, stack=(number, 0), stack_vm_area=(area, 8))
    prog.add_memory_segment(
        *(BASE, len(memory)),
        lambda address, count, offset, physical: bytes(memory[offset : offset + count]),
        False,
    )
    sizes = {"PAGE_SIZE": Object(prog, number, 4096), "PAGE_SHIFT": Object(prog, number, 12)}
    return fill(prog, types, sizes, {})


def fault(flags: int, address: int = FAULT_AT, offset: int = PAGE_OFFSET + 3) -> dict[int, int]:
    """A task with a fault on its stack."""
    words = {TASK: STACK, AT: VMA, AT + 16: offset, AT + 24: address, AT + 40: flags}
    words |= {VMA: START, VMA + 8: END, VMA + 16: PAGE_OFFSET, VMA + 24: MM, VMA + 32: 2}
    return words


def stack_of(words: dict[int, int]) -> Stack:
    task = Object(made(words), "struct task_struct", address=TASK).address_of_()
    stack = stack_from(task, STACK + 0x3000, Shared())
    assert stack
    return stack


@pytest.mark.parametrize(("flags", "lock"), [(VMA_LOCK, VMA), (0, MM + 16)])
def test_a_fault_holds_the_lock_that_it_came_with(flags: int, lock: int) -> None:
    found = fault_of(stack_of(fault(flags)), FRAMES)
    assert found and (found.address, found.holds, found.lock) == (FAULT_AT, True, lock)


@pytest.mark.parametrize(
    ("references", "count", "lock"),
    [
        (3, 0, VMA),
        (3, WRITER_LOCKED, VMA),
        (2 | EXCLUDES_READERS, WRITER_LOCKED, VMA),
        (1, 1 << READER_SHIFT, MM + 16),
        (3, 1 << READER_SHIFT, None),
        (1, 0, None),
    ],
)
def test_a_fault_that_asks_the_file_system_holds_the_lock_that_is_read(
    references: int, count: int, lock: int | None
) -> None:
    """do_page_mkwrite() puts its own flags in place of those that say which it came with."""
    words = fault(ASKING) | {VMA + 32: references, MM + 16: count}
    found = fault_of(stack_of(words), FRAMES)
    assert found and found.holds is (lock is not None)
    assert lock is None or found.lock == lock


@pytest.mark.parametrize(
    ("flags", "function", "holds"),
    [
        (ALLOW_RETRY, "filemap_fault", False),
        (ALLOW_RETRY | TRIED, "filemap_fault", True),
        (0, "filemap_fault", True),
        (ALLOW_RETRY, "__folio_lock_or_retry", False),
        (ALLOW_RETRY | TRIED, "handle_userfault", False),
        (ALLOW_RETRY, "do_page_mkwrite", True),
    ],
)
def test_what_may_have_let_its_lock_go_does_not_hold_it(
    flags: int, function: str, holds: bool
) -> None:
    found = fault_of(stack_of(fault(flags)), [function, *FRAMES])
    assert found and found.holds is holds


@pytest.mark.parametrize(
    "words",
    [fault(0, address=END), fault(0, offset=PAGE_OFFSET), fault(0) | {AT: BASE + (1 << 30)}],
)
def test_what_does_not_fit_its_vma_is_no_fault(words: dict[int, int]) -> None:
    assert fault_of(stack_of(words), FRAMES) is None


@pytest.mark.parametrize(
    ("end", "mm"), [(4096, 0x1234), (9, MM)], ids=["of no mm", "ends on no page"]
)
def test_what_is_no_vma_is_passed_over_for_the_fault_behind_it(end: int, mm: int) -> None:
    """Small numbers fit each other: address 4 is in what begins at 0, in its page 0."""
    no_vma = VMA + 0x100
    words = fault(0) | {no_vma + 8: end, no_vma + 24: mm}
    words |= {AT - 0x100: no_vma, AT - 0xE8: 4}
    found = fault_of(stack_of(words), FRAMES)
    assert found and found.address == FAULT_AT


def test_only_a_task_in_a_fault_is_looked_at() -> None:
    assert fault_of(stack_of(fault(0)), ["do_syscall_64"]) is None


def waits_for_readers(refcnt: int, writer: int) -> Awaited | None:
    words = fault(0) | {VMA + 32: refcnt, MM + 32: writer}
    return awaited(
        stack_of(words), ["schedule", "__vma_start_exclude_readers", "__vma_start_write"]
    )


def test_a_task_that_waits_for_a_vmas_readers_is_noted_in_its_mm() -> None:
    found = waits_for_readers(EXCLUDES_READERS + 1 + 3, TASK)
    assert found and (found.kind, found.address, found.readers) == ("VMA lock, to write", VMA, 3)
    assert (
        vma_lock(Object(made(fault(0)), "struct vm_area_struct", address=VMA).address_of_()) == VMA
    )


@pytest.mark.parametrize(("refcnt", "writer"), [(4, TASK), (EXCLUDES_READERS + 4, BASE)])
def test_another_vma_on_its_stack_is_not_it(refcnt: int, writer: int) -> None:
    assert waits_for_readers(refcnt, writer) is None
