# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mock's mutex and rwsem, in states that last for some instructions. Kernels: tests/lab."""

import struct

import pytest
from drgn import Object, Program, TypeMember
from made_programs import empty, fill

from mmscope.drgn.rmap.rwsem_waiters import LAST_READER, holder
from mmscope.drgn.waits.stacks import Shared, stack_from
from mmscope.drgn.waits.waiters import PICKUP, Awaited, awaited

BASE = 0xFFFF_8880_0000_0000
TASKS, STACKS, MUTEX = BASE + 0x1000, BASE + 0x10000, BASE + 0x40000
STACK_SIZE, DEEP = 0x8000, 0x3E00  # THREAD_SIZE with KASAN; where waiters are on it


def made(words: dict[int, int]) -> Program:
    """A program with these words at these addresses."""
    memory = bytearray(0x50000)
    for address, word in words.items():
        struct.pack_into("<Q", memory, address - BASE, word)
    prog = empty()
    number = prog.int_type("unsigned long", 8, False)

    def struct_of(name: str, *members: tuple[str, int]) -> None:
        types[name] = prog.struct_type(
            name, 64, [TypeMember(number, each, 8 * offset) for each, offset in members]
        )

    types = {}
    struct_of("vm_struct", ("nr_pages", 0))
    area = TypeMember(prog.pointer_type(types["vm_struct"]), "stack_vm_area", 64)
    task = [TypeMember(number, "stack", 0), area]
    types["task_struct"] = prog.struct_type("task_struct", 64, task)
    struct_of("mutex_waiter", ("list", 0), ("task", 16))
    counter = prog.struct_type(None, 8, [TypeMember(number, "counter", 0)])
    members = [TypeMember(counter, "owner", 0), TypeMember(number, "wait_list", 64)]
    types["mutex"] = prog.struct_type("mutex", 24, members)
    prog.add_memory_segment(
        *(BASE, len(memory)),
        lambda address, count, offset, physical: bytes(memory[offset : offset + count]),
        False,
    )
    return fill(prog, types, {"PAGE_SIZE": Object(prog, number, 4096)}, {})


def queue(owner: int, *, deep: int = DEEP) -> dict[int, int]:
    """Two tasks that wait for a mutex, as its list has them."""
    tasks = [TASKS, TASKS + 0x100]
    stacks = [STACKS, STACKS + STACK_SIZE]
    nodes = [MUTEX + 8, *(stack + deep for stack in stacks)]
    words = {MUTEX: owner, **dict(zip(tasks, stacks, strict=True))}
    for at, node in enumerate(nodes):
        after, before = nodes[(at + 1) % 3], nodes[at - 1]
        words |= {node: after, node + 8: before}
    return words | {nodes[1] + 16: tasks[0], nodes[2] + 16: tasks[1]}


def found(words: dict[int, int], task: int) -> Awaited | None:
    """What a task waits for, by its stack."""
    prog = made(words)
    of = Object(prog, "struct task_struct", address=task).address_of_()
    stack = stack_from(of, of.stack.value_() + 0x3000, Shared())
    assert stack
    return awaited(stack, ["__mutex_lock"])


@pytest.mark.parametrize("task", [TASKS, TASKS + 0x100])
def test_a_waiter_on_a_stack_leads_to_the_lock_and_its_owner(task: int) -> None:
    waits = found(queue(TASKS + 0x200 | 3), task)
    assert waits and (waits.kind, waits.address, waits.holder_is) == ("mutex", MUTEX, "owner")
    assert waits.holder and waits.holder.value_() == TASKS + 0x200


@pytest.mark.parametrize("pages", [STACK_SIZE // 4096, 1 << 40])
def test_of_a_stack_no_more_is_read_than_the_largest_has(pages: int) -> None:
    waits = found(queue(TASKS + 0x200) | {TASKS + 8: BASE, BASE: pages}, TASKS)
    assert waits and waits.address == MUTEX


def test_a_mutex_that_is_handed_over_has_no_holder_yet() -> None:
    """Else the first in its queue, which it is handed to, would wait for itself."""
    waits = found(queue(TASKS | PICKUP | 1), TASKS)
    assert waits and (waits.address, waits.holder) == (MUTEX, None)


def test_what_lies_deeper_than_is_known_of_a_stack_is_no_answer() -> None:
    assert found(queue(TASKS + 0x200, deep=0x7E00), TASKS) is None


def test_a_writer_that_has_not_noted_itself_yet_is_not_the_last_reader() -> None:
    prog = made({})
    assert holder(prog, TASKS | 3, 1) == (None, None)
    (task, kind) = holder(prog, TASKS | 3, 256)
    assert task and (task.value_(), kind) == (TASKS, LAST_READER)
    (task, kind) = holder(prog, TASKS, 1)
    assert task and (task.value_(), kind) == (TASKS, "writer")
