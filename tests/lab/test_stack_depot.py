# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The stack depot of a kernel that fills it (slab_debug=U), read in three ways that must agree: by the
handles in its pools, along its hash table, and record by record from the start of each pool.
"""

import pytest
from conftest import Lab, SlabLab
from drgn import Object, Program
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.stackdepot import stack_depot_fetch

from mmscope.drgn.reading.stack_depot import StackDepot, folded_stacks, stack_depot


def has_depot(prog: Program) -> bool:
    """Debian's 5.10 has not."""
    return "stack_table" in prog


def by_hash(prog: Program) -> dict[int, tuple[int, ...]]:
    """Every record that a lookup in the depot's hash table can find."""
    table, mask = prog["stack_table"], prog["stack_hash_mask"].value_()
    found = {}
    for bucket in range(mask + 1):
        if table.type_.unaliased().type.type_name() == "struct list_head":
            records = list(list_for_each_entry("struct stack_record", table + bucket, "hash_list"))
        else:
            records, record = [], table[bucket].read_()
            while record:
                records.append(record)
                record = record.next.read_()
        for record in records:
            size = record.size.value_()
            found[record.handle.handle.value_()] = tuple(
                record.entries[at].value_() for at in range(size)
            )
    return found


def by_stride(prog: Program, depot: StackDepot) -> list[int]:
    """The addresses of all records, each beginning where the one before it ends."""
    try:
        pools, used = prog["stack_pools"], prog["pools_num"].value_()
        last = prog["pool_offset"].value_()
    except KeyError:
        pools, used = prog["stack_slabs"], prog["depot_index"].value_() + 1
        last = prog["depot_offset"].value_()
    header = prog.type("struct stack_record").member("entries").bit_offset // 8
    size = 4 << prog["PAGE_SHIFT"].value_()
    addresses = []
    for number in range(used):
        address = pools[number].value_()
        end = address + (last if number == used - 1 else size)
        while address + header <= end:
            record = Object(prog, "struct stack_record", address=address)
            frames = record.size.value_()
            # What is left at the end of a pool was never written.
            if not record.handle.handle or not 1 <= frames <= 64:
                break
            addresses.append(address)
            address += -(-(header + 8 * frames) // 16) * 16
    return addresses


def test_three_ways_to_find_the_records_agree(slab_lab: SlabLab) -> None:
    if (depot := slab_lab.depot) is None:  # 5.10, whose objects have the stacks themselves
        assert not has_depot(slab_lab.prog)
        return
    hashed = by_hash(slab_lab.prog)
    assert depot.damaged == 0 and depot.gaps.bytes == 0
    assert len(depot.handles) > 5000
    ours = {
        handle: tuple(depot.frames[first : first + size].tolist())
        for handle, first, size in zip(
            depot.handles.tolist(), depot.first.tolist(), depot.sizes.tolist(), strict=True
        )
    }
    assert ours == hashed
    assert sorted(depot.addresses.tolist()) == sorted(by_stride(slab_lab.prog, depot))


def test_frames_are_those_of_drgns_own_lookup(slab_lab: SlabLab) -> None:
    if (depot := slab_lab.depot) is None:
        assert not has_depot(slab_lab.prog)
        return
    prog = slab_lab.prog
    for at in range(0, len(depot.handles), 997):
        handle = Object(prog, "depot_stack_handle_t", value=int(depot.handles[at]))
        trace = stack_depot_fetch(handle)
        assert trace is not None
        first = int(depot.first[at])
        ours = depot.frames[first : first + int(depot.sizes[at])].tolist()
        assert [frame.pc for frame in trace if not frame.is_inline] == ours


def test_unknown_handles_have_no_stack(slab_lab: SlabLab) -> None:
    if (depot := slab_lab.depot) is None:
        assert not has_depot(slab_lab.prog)
        return
    extra = depot.handles[:1] | (depot.extra_mask & -depot.extra_mask)
    gone = depot.handles.max() + 1
    asked = depot.handles[[0, 0, 0]]
    asked[1], asked[2] = extra[0], gone
    stacks = folded_stacks(slab_lab.prog, depot, asked)
    # The extra bits belong to whoever keeps the handle.
    assert stacks[0] == stacks[1] and ";" in (stacks[0] or "")
    assert stacks[2] is None


def test_a_kernel_that_saves_no_stacks_says_so(lab: Lab) -> None:
    empty = "empty: nothing that saves stacks is switched on"
    without = "this kernel is built without a stack depot"
    with pytest.raises(LookupError, match=empty if has_depot(lab.prog) else without):
        stack_depot(lab.prog)
