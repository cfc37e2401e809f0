# SPDX-License-Identifier: LGPL-2.1-or-later
"""The readers of page_owner's text: every form a kernel prints, and every way it can be broken."""

import gzip
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest
from checkout import TESTS
from hypothesis import given, settings
from hypothesis import strategies as st
from page_owner_inputs import (
    BEFORE_5_18,
    FLAGS,
    GFP,
    make_stacks,
    page_owner_record,
    page_owner_records,
    series,
    show_handles,
    show_stacks,
    show_stacks_handles,
)

from mmscope.drgn.text import page_owner_text as po
from mmscope.drgn.text import text_source
from mmscope.drgn.text.page_owner_text import EVERYTHING, Selection
from mmscope.drgn.text.stack_text import allocator, folded, stack_id
from mmscope.drgn.text.text_source import Source, TextError, recognise, recognise_source

DATA = TESTS / "data"
STACKS = make_stacks(40)
LEAF_FIRST = " get_page_from_freelist+0x1/0x2\n alloc_pages_mpol+0x3/0x4\n xfs_buf+0x5/0x6 [xfs]\n"
FORMS = ("5.10", "5.11", "5.15", "6.1", "6.6", "7.2")
Task = tuple[int | None, int | None, bytes | None]


def read(tmp_path: Path, data: bytes, selection: Selection = EVERYTHING) -> dict[str, Any]:
    path = tmp_path / "page_owner"
    # Hundreds in a test: one that is written over another waits for the disk.
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    with Source(str(path)) as source:
        return po.read_page_owner(source, selection)


def pages(tally: dict[str, Any], table: str) -> int:
    return sum(row[0] for row in tally[table].values())


def record(comm: bytes = b"bash", **fields: Any) -> bytes:
    return page_owner_record(fields.pop("stack", LEAF_FIRST), comm=comm, **fields)


def slowly(data: bytes) -> tuple[dict[Task, int], dict[bytes, int]]:
    """Pages by task and by stack, read as plainly as can be; for text without surprises."""
    tasks: dict[Task, int] = {}
    stacks: dict[bytes, int] = {}
    for part in re.split(rb"(?:\n\n)(?=Page allocated)|\n\n\Z", data):
        if not part:
            continue
        first, _, *rest = part.split(b"\n")
        order, pid, tgid, comm = re.search(
            rb"order (\d+), mask [^)]*\)(?:, pid (\d+)(?:, tgid (\d+) \((.*)\))?, ts \d+ ns.*)?$",
            first,
        ).groups()
        stack = b"".join(line + b"\n" for line in rest if line.startswith(b" "))
        key = pid and int(pid), tgid and int(tgid), comm
        tasks[key] = tasks.get(key, 0) + (1 << int(order))
        stacks[stack] = stacks.get(stack, 0) + (1 << int(order))
    return tasks, stacks


@pytest.mark.parametrize("form", FORMS)
def test_page_owner_is_counted(tmp_path: Path, form: str) -> None:
    data = b"".join(page_owner_records(STACKS, 3000, form=form))
    tally = read(tmp_path, data)
    tasks, stacks = slowly(data)
    assert {key: row[0] for key, row in tally["tasks"].items()} == tasks
    assert {stack: row[0] for (_, stack), row in tally["stacks"].items()} == stacks
    assert tally["records"] == 3000
    assert (tally["skipped"], tally["truncated"], tally["unknown_lines"]) == (0, 0, 0)
    total = sum(tasks.values())
    for table in ("orders", "gfp", "migratetypes", "memcgs"):
        assert pages(tally, table) == total, table
    orders = {int(o) for o in re.findall(rb"order (\d+)", data)}
    assert tally["orders"].keys() == orders


def test_every_field_is_read(tmp_path: Path) -> None:
    tally = read(
        tmp_path,
        record(
            order=3, gfp=(0xCC0, "GFP_KERNEL", "Unmovable"), pid=7, tgid=5, comm=b"C2 Compiler (1)",
            block_type="Movable",
            tail=b"Page has been migrated, last migrate reason: compaction\n"
            b"Charged (via objcg) to offline memcg a b.slice\n",
        ),
    )  # fmt: skip
    row = [8, 1]
    assert tally["stacks"] == {(None, LEAF_FIRST.encode()): row}
    assert tally["tasks"] == {(7, 5, b"C2 Compiler (1)"): row}
    assert tally["orders"] == {3: row}
    assert tally["gfp"] == {(b"0xcc0", b"GFP_KERNEL"): row}
    assert tally["migratetypes"] == {(b"Unmovable", b"Movable"): row}
    assert tally["memcgs"] == {(b"a b.slice", True, True, False): row}
    assert tally["migrated"] == {b"compaction": row}


def test_what_a_5_10_printed_is_counted(tmp_path: Path) -> None:
    """The lab's kernel owner-5.10, of a guest of 160 MiB that touched 48, some of it as THP."""
    data = gzip.decompress((DATA / "5.10/page_owner.gz").read_bytes())
    whole = read(tmp_path, data)
    tasks, stacks = slowly(data)
    assert tasks == {(None, None, None): 17_001}
    assert {key: row[0] for key, row in whole["tasks"].items()} == tasks
    assert {stack: row[0] for (_, stack), row in whole["stacks"].items()} == stacks
    assert len(stacks) == 233
    assert whole["records"] == data.count(b"Page allocated via order ") == 4_402
    assert (whole["skipped"], whole["truncated"], whole["unknown_lines"]) == (0, 0, 0)
    for table in ("orders", "gfp", "migratetypes", "memcgs"):
        assert pages(whole, table) == 17_001, table
    assert whole["orders"][9] == [11_264, 22]


def test_what_a_kernel_does_not_print_is_unknown(tmp_path: Path) -> None:
    """5.10 has neither threads nor times, 5.11 to 5.17 no process."""
    bare, thread = (read(tmp_path, record(form=form, order=2, pid=7)) for form in ("5.10", "5.15"))
    assert bare["tasks"] == {(None, None, None): [4, 1]} and bare["members"] == frozenset()
    assert thread["tasks"] == {(7, None, None): [4, 1]}
    assert thread["members"] == {"pid", "ts_nsec"}
    for tally in (bare, thread):
        assert tally["stacks"] == {(None, LEAF_FIRST.encode()): [4, 1]}
        assert tally["orders"] == {2: [4, 1]}
        assert (tally["skipped"], tally["truncated"]) == (0, 0)


@pytest.mark.parametrize(
    "form, selection, what",
    [
        ("5.10", {"since": 1}, "ts"), ("5.10", {"pid": [1], "until": 9}, "pid and no ts"),
        ("5.10", {"cull": ["comm"]}, "comm"), ("5.15", {"tgid": [1]}, "tgid"),
        ("5.15", {"comm": [b"bash"]}, "comm"),
    ],
)  # fmt: skip
def test_nothing_is_selected_by_what_is_not_printed(
    tmp_path: Path, form: str, selection: dict[str, Any], what: str
) -> None:
    with pytest.raises(TextError, match=f"its kernel prints no {what} of an allocation"):
        read(tmp_path, record(form=form), Selection(**selection))


def test_what_is_printed_selects_without_times(tmp_path: Path) -> None:
    data = record(form="5.10") + record(form="5.10", order=3, gfp=GFP[2]) * 2
    assert read(tmp_path, data, Selection(order=[3]))["orders"] == {3: [16, 2]}
    by_gfp = Selection(cull=["gfp", "allocator"])
    assert read(tmp_path, data, by_gfp)["culled"] == {
        (GFP[0][1].encode(), b"pages"): [1, 1, None, None],
        (b"GFP_KERNEL", b"pages"): [16, 2, None, None],
    }


@pytest.mark.parametrize(
    "tail, memcg",
    [
        (b"", (None, False, False, False)),
        (b"Slab cache page\n", (None, False, False, True)),
        (b"Charged to memcg x\n", (b"x", False, False, False)),
        (b"Slab cache page\nCharged (via objcg) to memcg x\n", (b"x", False, True, True)),  # 6.1
        (b"Charged to offline memcg \n", (b"", True, False, False)),
        (b"Charged to memcg a\n b+0x1/0x2\nhandle: 1\n", (b"a\n b+0x1/0x2\nhandle: 1", False, False,
                                                         False)),
    ],
)  # fmt: skip
def test_memcg_lines(tmp_path: Path, tail: bytes, memcg: tuple[Any, ...]) -> None:
    tally = read(tmp_path, record(tail=tail) * 2)
    assert tally["memcgs"] == {memcg: [2, 2]}
    assert tally["stacks"] == {(None, LEAF_FIRST.encode()): [2, 2]}


def test_handles_of_7_3(tmp_path: Path) -> None:
    both = record(handle=4026531999) + record(handle=17, tail=b"Charged to memcg x\n")
    only = record(stack="", handle=17, order=2) * 3
    tally = read(tmp_path, both + only)
    assert tally["stacks"] == {
        (4026531999, LEAF_FIRST.encode()): [1, 1],
        (17, LEAF_FIRST.encode()): [1, 1],
        (17, b""): [12, 3],
    }
    assert tally["skipped"] == 0


def test_a_record_without_a_stack(tmp_path: Path) -> None:
    tally = read(tmp_path, record(stack="") * 3 + record())
    assert tally["stacks"] == {(None, b""): [3, 3], (None, LEAF_FIRST.encode()): [1, 1]}


def test_early_pages(tmp_path: Path) -> None:
    data = record(gfp=(0, "", "Unmovable")).replace(b"mask 0x0()", b"mask 0x0()")
    assert read(tmp_path, data)["gfp"] == {(b"0x0", b""): [1, 1]}


def test_unknown_lines_are_counted_and_the_record_kept(tmp_path: Path) -> None:
    tally = read(tmp_path, record(tail=b"Page is special\nCharged to memcg x\n") * 5)
    assert (tally["records"], tally["unknown_lines"], tally["skipped"]) == (5, 5, 0)
    assert tally["memcgs"] == {(b"x", False, False, False): [5, 5]}


# Older kernels, and what page_owner_sort makes of a file


def of_4_14(data: bytes) -> bytes:
    """A 5.10's text as 4.6 to 5.1 print it: addresses, and one that ends a stack."""
    data = re.sub(rb"^ (?=\S)", b" [<ffffffff81100010>] ", data, flags=re.MULTILINE)
    return re.sub(
        rb"((?:^ \[<.*\n)+)", rb"\1 [<ffffffffffffffff>] 0xffffffffffffffff\n", data, flags=re.M
    )


def of_3_19(data: bytes) -> bytes:
    """The same as 3.19 to 4.5 print it."""
    data = re.sub(rb"(, mask 0x[0-9a-f]+)\([^)\n]*\)", rb"\1", of_4_14(data))
    place = rb"\nPFN (\d+) type \w+ Block (\d+) type \w+ [^\n]*"
    return re.sub(place, rb"\nPFN \1 Block \2 type 2 Fallback Flags    U  LA    ", data)


@pytest.mark.parametrize("form", [of_4_14, of_3_19])
def test_what_kernels_before_5_2_print_is_counted(
    tmp_path: Path, form: Callable[[bytes], bytes]
) -> None:
    plain = b"".join(record(form="5.10", order=order) for order in (0, 1, 2, 0))
    moved = b"Page has been migrated, last migrate reason: compaction\n"
    plain += record(form="5.10", order=3, stack=LEAF_FIRST + " root+0x1/0x2\n", tail=moved)
    tally, expected = read(tmp_path, form(plain)), read(tmp_path, plain)
    for table in ("stacks", "tasks", "orders", "migrated", "records", "skipped", "truncated"):
        assert tally[table] == expected[table], table
    assert tally["members"] == frozenset() and not tally["unknown_lines"]


@pytest.mark.parametrize("form", [of_4_14, of_3_19])
def test_before_5_11_the_last_record_is_whole_where_nothing_can_follow(
    tmp_path: Path, form: Callable[[bytes], bytes]
) -> None:
    """What is pasted lacks the blank line at its end."""
    moved = b"Page has been migrated, last migrate reason: compaction\n"
    for tail in (b"", moved):
        data = form(record(form="5.10") + record(form="5.10", order=1, tail=tail))
        assert read(tmp_path, data[:-1])["orders"] == {0: [1, 1], 1: [2, 1]}
        assert read(tmp_path, data[:-1])["truncated"] == 0
        tally = read(tmp_path, data[:-2])
        assert (tally["orders"], tally["truncated"]) == ({0: [1, 1]}, 1)


@pytest.mark.parametrize("form", FORMS)
def test_records_without_their_second_line_are_counted(tmp_path: Path, form: str) -> None:
    data = b"".join(page_owner_records(STACKS, 500, form=form))
    tally, expected = read(tmp_path, re.sub(rb"\nPFN [^\n]*", b"", data)), read(tmp_path, data)
    for table, counts in expected.items():
        assert tally[table] == ({} if table == "migratetypes" else counts), table


def sorted_text(data: bytes, culled: set[str], *, pages: bool = True) -> bytes:
    """What page_owner_sort prints (its main()), in the order of the text."""
    found: dict[Any, list[int]] = {}
    for printed in data.split(b"\n\n")[:-1]:
        text = re.sub(rb"ts \d+ ns", b"ts  ns", re.sub(rb"\nPFN [^\n]*", b"", printed))
        first, _, stack = text.partition(b"\n")
        pid, tgid, comm = re.search(rb", pid (\d+), tgid (\d+) \((.*)\), ts", first).groups()
        fields = {"pid": b", PID " + pid, "tgid": b", TGID " + tgid}
        fields |= {"name": b", task_comm_name: " + comm, "allocator": b", allocated by OTHERS "}
        key = b"".join(text for name, text in fields.items() if name in culled)
        key += b":\n" + stack + b"\n" if "stacktrace" in culled else b""
        key = (
            key
            if culled
            else b", allocated by OTHERS :\n" * pages + b":\n" * (not pages) + text + b"\n"
        )
        row = found.setdefault(key, [0, 0])
        row[0] += 1
        row[1] += 1 << int(re.search(rb"order (\d+)", first)[1])
    return b"".join(
        b"%d times%b%b\n" % (times, b", %d pages" % number * pages, key)
        for key, (times, number) in found.items()
    )


@pytest.mark.parametrize("pages_too", [True, False])
def test_what_page_owner_sort_prints_is_counted(tmp_path: Path, pages_too: bool) -> None:
    data = b"".join(page_owner_records(STACKS, 500))
    text = sorted_text(data, set(), pages=pages_too)
    tally, expected = read(tmp_path, text), read(tmp_path, data)
    assert recognise(text) == "page_owner"
    for table, counts in expected.items():
        if table not in ("migratetypes", "members", "sorted"):
            assert tally[table] == counts, table
    assert tally["members"] == {"pid", "tgid", "comm"}


CULLS = ("pid", "tgid", "name", "stacktrace", "allocator")


@pytest.mark.parametrize("number", range(1, 1 << len(CULLS)))
def test_what_page_owner_sort_culled_is_counted(tmp_path: Path, number: int) -> None:
    culled = {name for n, name in enumerate(CULLS) if number >> n & 1}
    data = b"".join(page_owner_records(STACKS, 300))
    text = sorted_text(data, culled)
    tally, expected = read(tmp_path, text), read(tmp_path, data)
    assert recognise(text) == "page_owner"
    total = [sum(row[n] for row in expected["stacks"].values()) for n in (0, 1)]
    assert [sum(row[n] for row in tally["stacks"].values()) for n in (0, 1)] == total
    if "stacktrace" in culled:
        assert tally["stacks"] == expected["stacks"]
    if {"pid", "tgid", "name"} <= culled:
        assert tally["tasks"] == expected["tasks"]
    assert (tally["skipped"], tally["truncated"], tally["unknown_lines"]) == (0, 0, 0)
    assert tally["members"] == {"comm" if n == "name" else n for n in culled} & po.MEMBERS


@pytest.mark.parametrize("comm", [b"\n1 times, 1 page", b", TGID 5", b":\n a+0x1/0x2", b"\n\n"])
def test_a_tasks_name_forges_nothing_in_what_was_culled(tmp_path: Path, comm: bytes) -> None:
    text = b"".join(
        b"%d times, %d pages, PID 7, task_comm_name: %b, allocated by OTHERS \n"
        % (n, 2 * n, comm[:15])
        for n in (3, 2)
    )
    tally = read(tmp_path, text)
    assert tally["tasks"] == {(7, None, comm[:15]): [10, 5]} and tally["skipped"] == 0


def test_what_was_culled_is_selected_by_what_it_has(tmp_path: Path) -> None:
    text = b"3 times, 12 pages, PID 5\n2 times, 2 pages, PID 6\n"
    assert read(tmp_path, text, Selection(pid=[5]))["tasks"] == {(5, None, None): [12, 3]}
    with pytest.raises(TextError, match="it has no ts of an allocation"):
        read(tmp_path, text, Selection(since=1))


# Task and cgroup names

HOSTILE = [
    b"", b")", b"(", b"\n", b"\n\n", b"\n\n\n", b"a\n\nb", b"), ts 1 ns", b"), ts 1 ns\nPFN",
    b" PFN 0x1 type M", b"\n PFN", b"\nPFN 0x1 type", b"\n\nPage allocat", b"x), ts y",
    b" a+0x1/0x2", b"\n a+0x1/0x2\n", b"\xff\xfe\x80", b"\x1b[31m", b"handle: 5", b"\nhandle: 5\n",
    b"\r\n\r\n",
    b"x), ts  type ", b"ts 1 ns\n\n\n\n", b", tgid 0 (x)",
]  # fmt: skip
comms = st.one_of(
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from([b")", b"(", b"\n", b" ", b", ts ", b"ns", b"PFN", b"1", b"x"]),
             max_size=15).map(lambda parts: b"".join(parts)[:15]),
    st.binary(max_size=15).map(lambda name: name.replace(b"\0", b"?")),
)  # fmt: skip


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(comms, st.integers(0, 9), st.sampled_from(STACKS[:3]), st.integers(1, 2)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([form for form in FORMS if form not in BEFORE_5_18]),
)
def test_a_tasks_name_neither_forges_nor_breaks_a_record(
    tmp_path: Path, tasks: list[tuple[bytes, int, Any, int]], form: str
) -> None:
    data, expected, total = b"", {}, 0
    for comm, order, stack, pid in tasks:
        data += record(
            comm, order=order, stack=stack.text, pid=pid, form=form, ts=len(data) + 1, pfn=len(data)
        )
        row = expected.setdefault((pid, 1, comm), [0, 0])
        row[0] += 1 << order
        row[1] += 1
        total += 1 << order
    tally = read(tmp_path, data)
    assert tally["tasks"] == expected
    assert pages(tally, "stacks") == total
    assert (tally["skipped"], tally["truncated"]) == (0, 0)
    assert {stack for _, stack in tally["stacks"]} <= {s.text.encode() for s in STACKS[:3]}
    timed = read(tmp_path, data, Selection(since=0))
    assert {k: v for k, v in timed.items() if v} == {k: v for k, v in tally.items() if v}


@pytest.mark.parametrize("before", HOSTILE)
def test_a_name_that_begins_as_the_one_before(tmp_path: Path, before: bytes) -> None:
    """Records alike are compared as printed: a longer name must not pass for a shorter one."""
    for after in HOSTILE:
        tally = read(tmp_path, record(before) * 3 + record(after) * 2 + record(before))
        expected = {(1, 1, before): [6, 6]} if before == after else {
            (1, 1, before): [4, 4], (1, 1, after): [2, 2],
        }  # fmt: skip
        assert tally["tasks"] == expected


@pytest.mark.parametrize("form", FORMS)
def test_parts_that_begin_alike_are_told_apart(tmp_path: Path, form: str) -> None:
    """What follows the second line is known by some bytes of it, which more may have in common."""
    common = "".join(f" common_{n:02}+0x1a4/0x1c0\n" for n in range(12))
    ends = [f" leaf_{n}+0x1/0x2\n" for n in range(40)]
    parts = [record(stack=common + end, form=form, order=n % 3) for n, end in enumerate(ends)]
    short = [record(stack=f" s{n}+0x1/0x2\n", form=form) for n in range(40)]
    chance = random.Random(3)
    drawn = chance.choices([*parts, *short], k=1500)
    data = b"".join(drawn)
    _, stacks = slowly(data)
    tally = read(tmp_path, data)
    assert {stack: row[0] for (_, stack), row in tally["stacks"].items()} == stacks
    assert len(stacks) == 80
    assert (tally["records"], tally["skipped"]) == (1500, 0)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_any_width(tmp_path: Path, form: str) -> None:
    """Times and PFNs are not looked at, but how wide they are."""
    data = b"".join(
        record(form=form, ts=10**width, pfn=16**place, order=width % 2)
        for width in (0, 9, 10, 9, 19, 3)
        for place in (0, 4, 3, 5, 4)
    )
    tally = read(tmp_path, data)
    assert tally["orders"] == {0: [10, 10], 1: [40, 20]}
    assert (tally["records"], tally["skipped"]) == (30, 0)


@pytest.mark.parametrize("form", FORMS)
def test_cut_anywhere_in_each_form(tmp_path: Path, form: str) -> None:
    data = record(form=form, order=1) * 2 + record(form=form, order=2)
    whole = len(record(form=form, order=1))
    for cut in range(len(data) + 1):
        tally = read(tmp_path, data[:cut])
        assert pages(tally, "stacks") == 2 * min(cut // whole, 2) + 4 * (cut == len(data)), cut


def test_a_cgroups_name_cannot_forge_a_record(tmp_path: Path) -> None:
    """The kernel forbids newlines there (cgroup_mkdir()); 79 bytes would not be enough anyway."""
    head = b"x\n\nPage allocated via order 9, mask 0x0(), pid 1, tgid 1 ("
    for name in (
        head,
        head + b"a), ts 1 ns",
        b"\n\n" * 30,
        b"a\n\n b+0x1/0x2\n",
        b"x\n\nPage alloc",
        b"x\n\nPage allocated via order 9, mask 0()\nPFN 0 type A Block 0 type B Flags ",
    ):
        data = record(tail=b"Charged to memcg " + name[:79] + b"\n") + record(order=1)
        tally = read(tmp_path, data)
        assert pages(tally, "tasks") == 3
        assert pages(tally, "stacks") == 3
        assert tally["orders"] == {0: [1, 1], 1: [2, 1]}


def test_a_name_longer_than_any_is_skipped(tmp_path: Path) -> None:
    tally = read(tmp_path, record(b"x" * 16) + record())
    assert (tally["records"], tally["skipped"]) == (1, 1)


# Damage


def test_cut_anywhere(tmp_path: Path) -> None:
    """At every byte: no exception, no forged record, never more than the whole."""
    parts = [
        record(), record(order=2, tail=b"Charged to memcg x\n"), record(b"\n\nPage", pid=3),
        record(stack="", handle=5), record(order=1, form="6.1"),
    ]  # fmt: skip
    data, ends = b"".join(parts), []
    for part in parts:
        ends.append((ends[-1] if ends else 0) + len(part))
    sizes = [1, 4, 1, 1, 2]
    for cut in range(len(data) + 1):
        tally = read(tmp_path, data[:cut])
        whole = sum(1 for end in ends if end <= cut)
        assert pages(tally, "tasks") == sum(sizes[:whole]), cut
        # A name that ends in a blank line makes a cut behind it look like damage.
        assert (tally["truncated"] + tally["skipped"] > 0) == (cut not in (0, *ends)), cut


def test_without_its_beginning(tmp_path: Path) -> None:
    data = record() + record(order=1) + record(order=2)
    for cut in range(1, len(record()) - 2):
        tally = read(tmp_path, data[cut:])
        assert (pages(tally, "tasks"), tally["skipped"]) == (6, 1), cut


@pytest.mark.parametrize("kind", ["one lost", "joined"])
def test_with_a_piece_missing(tmp_path: Path, kind: str) -> None:
    data = record(pid=1) + record(pid=2) + record(pid=3)
    begin = len(record())
    for size in range(1, begin):
        damaged = data[: begin - size] + data[begin:] if kind == "one lost" else (
            data[: begin + size] + data[2 * begin :]
        )  # fmt: skip
        tally = read(tmp_path, damaged)
        assert pages(tally, "tasks") <= 3
        assert tally["skipped"] + tally["truncated"] + tally["records"] >= 1
        frames = {f for _, stack in tally["stacks"] for f in stack.split(b"\n") if f}
        assert frames <= set(LEAF_FIRST.encode().split(b"\n")) | {
            LEAF_FIRST.encode().split(b"\n")[n][:cut] for n in range(3) for cut in range(100)
        }


@settings(max_examples=100)
@given(st.binary(max_size=300), st.integers(0, 900), st.integers(0, 300))
def test_random_bytes_in_the_middle(tmp_path: Path, noise: bytes, at: int, lost: int) -> None:
    data = b"".join(record(pid=n) for n in range(5))
    tally = read(tmp_path, data[:at] + noise + data[at + lost :])
    assert 0 <= tally["records"] <= 5


@settings(max_examples=40)
@given(st.binary(max_size=2000))
def test_random_bytes_alone(tmp_path: Path, noise: bytes) -> None:
    noise = b"x" + noise  # or else it might be gzip's
    assert read(tmp_path, noise)["records"] == 0


def test_text_without_records_does_not_fill_memory(tmp_path: Path) -> None:
    tally = read(tmp_path, record() + b"x" * (5 << 20) + b"\n\n" + record())
    assert tally["records"] == 1
    assert tally["skipped"] + tally["truncated"] >= 1


def test_an_order_that_no_kernel_has(tmp_path: Path) -> None:
    tally = read(tmp_path, record(order=31) * 2 + record(order=99) + record())
    assert (tally["records"], tally["skipped"], pages(tally, "stacks")) == (1, 3, 1)


def test_limits_leave_a_row_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(po, "MAX_STACKS", 10)
    monkeypatch.setattr(po, "MAX_TASKS", 5)
    data = b"".join(page_owner_records(STACKS, 2000))
    whole = sum(slowly(data)[0].values())
    tally = read(tmp_path, data)
    assert len(tally["stacks"]) == 11 and len(tally["tasks"]) == 6
    assert None in tally["stacks"] and None in tally["tasks"]
    assert pages(tally, "stacks") == pages(tally, "tasks") == whole


def test_folding_often_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(page_owner_records(STACKS, 3000))
    expected = read(tmp_path, data)
    monkeypatch.setattr(po, "MAX_COUNTED_BYTES", 100)
    assert read(tmp_path, data) == expected


# Reading through pipes


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_chunks_of_any_size(size: int) -> None:
    data = record(b"\n\n") + record(order=1) + record(tail=b"Slab cache page\n")
    tally = po.new_tally()
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    records = po.page_owner_records(chunks, tally)
    po.tally_page_owner(records, tally, EVERYTHING, form=po.form_of(record()))
    assert (tally["records"], pages(tally, "stacks"), tally["truncated"]) == (3, 4, 0)


def compressed(data: bytes, program: str) -> bytes:
    if program == "gzip":
        return gzip.compress(data)
    return children.run([program, "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.parametrize("program", [p for p in ("gzip", "zstd", "xz", "bzip2") if shutil.which(p)])
def test_compressed(tmp_path: Path, program: str) -> None:
    data = b"".join(page_owner_records(STACKS, 500))
    assert read(tmp_path, compressed(data, program)) == read(tmp_path, data)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_mark_of_utf_8_is_no_part_of_a_record(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    data = b"".join(page_owner_records(STACKS, 5))
    assert read(tmp_path, pack(b"\xef\xbb\xbf" + data)) == read(tmp_path, data)


def test_compressed_and_cut_short(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(page_owner_records(STACKS, 5000)))
    with pytest.raises(TextError, match=r"page_owner: damaged: .* ended before the end"):
        read(tmp_path, data[: len(data) // 2])


def test_text_without_end_is_read_as_far_as_its_bound(tmp_path: Path) -> None:
    records = b"".join(page_owner_records(STACKS, 50))
    with pytest.raises(TextError, match=r"page_owner: has 64 MiB without a record in them"):
        read(tmp_path, compressed(records + bytes(200 << 20), "gzip"))


def test_what_is_unpacked_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = b"".join(page_owner_records(STACKS, 5000))
    monkeypatch.setattr(text_source, "MAX_UNPACKED_BYTES", len(records))
    assert read(tmp_path, compressed(records, "gzip"))["records"] == 5000
    monkeypatch.setattr(text_source, "MAX_UNPACKED_BYTES", len(records) - 1)
    with pytest.raises(TextError, match=r"unpacked it has more than .*; unpack it before: gzip"):
        read(tmp_path, compressed(records, "gzip"))
    assert read(tmp_path, records)["records"] == 5000


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_plain_file_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError, match="is not a plain file"):
        Source(str(tmp_path / "x"))


def test_what_a_shell_puts_in_the_place_of_a_file() -> None:
    """As of <(zcat page_owner.gz)."""
    data = b"".join(page_owner_records(STACKS, 500))
    for name in ("/dev/stdin", "/dev/fd/0"):
        assert counted(name, input=data)[0] == 500


def test_compressed_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TextError, match=r"compressed with zstd, which is not installed: install"):
        read(tmp_path, b"\x28\xb5\x2f\xfd" + b"x" * 100)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Source(str(tmp_path / "none"))


SCRIPT = """
import sys
from mmscope.drgn.text import page_owner_text as po
from mmscope.drgn.text import text_source
from mmscope.drgn.text.text_source import Source, recognise_source
with Source(sys.argv[1]) as source:
    assert recognise_source(source) == "page_owner"
    tally = po.read_page_owner(source)
# Not ru_maxrss for itself: that is handed down by whoever started this.
rss = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
print(tally["records"], sum(row[0] for row in tally["stacks"].values()), tally["skipped"], rss)
"""


def counted(path: object, **options: Any) -> list[int]:
    """[records, pages, skipped, peak KiB] as counted by a process of its own."""
    words = [sys.executable, "-c", SCRIPT, str(path)]
    result = children.run(words, capture_output=True, check=True, **options)
    return [int(word) for word in result.stdout.split()]


def test_standard_input() -> None:
    data = b"".join(page_owner_records(STACKS, 500))
    assert counted("-", input=data)[:3] == [500, sum(slowly(data)[0].values()), 0]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """150 MB of records with 3000 stacks, in less than 64 MiB, interpreter included."""
    part = b"".join(page_owner_records(make_stacks(3000), 25_000))
    path = tmp_path / "large"
    with path.open("wb") as file:
        copies = 150_000_000 // len(part) + 1
        for _ in range(copies):
            file.write(part)
    records, _, skipped, peak = counted(path)
    path.unlink()
    assert (records, skipped) == (25_000 * copies, 0)
    assert peak < 64 << 10


def test_memory_is_bounded_for_text_made_to_fill_it(tmp_path: Path) -> None:
    """Every record with a stack and a task of its own."""
    path = tmp_path / "hostile"
    chance = random.Random(1)
    with path.open("wb") as file:
        for n in range(60_000):
            frames = "".join(f" f{chance.randrange(1 << 60):x}+0x1/0x2\n" for _ in range(12))
            file.write(record(b"%d" % n, pid=n, stack=frames))
    records, total, skipped, peak = counted(path)
    assert (records, total, skipped) == (60_000, 60_000, 0)
    assert peak < 64 << 10


# Selections


def selected(tmp_path: Path, **selection: Any) -> dict[Any, Any]:
    data = b"".join(
        (
            record(b"a", pid=1, tgid=1, ts=10, order=0),
            record(b"b", pid=2, tgid=1, ts=20, order=1, gfp=GFP[2], tail=b"Slab cache page\n"),
            record(b"a b", pid=3, tgid=3, ts=30, order=2, stack=" x+0x1/0x2\n y+0x1/0x2 [nvme]\n"),
        )
    )
    return read(tmp_path, data, Selection(**selection))


@pytest.mark.parametrize(
    "selection, pids",
    [
        ({}, {1, 2, 3}), ({"pid": [2]}, {2}), ({"tgid": [1]}, {1, 2}), ({"comm": [b"a b"]}, {3}),
        ({"comm": [b"a", b"b"]}, {1, 2}), ({"order": [0, 2]}, {1, 3}),
        ({"gfp": [b"GFP_KERNEL"]}, {2}), ({"gfp": [b"0xcc0"]}, {2}),
        ({"gfp": [b"__GFP_COMP", b"__GFP_ZERO"]}, {1, 3}), ({"gfp": [b"__GFP_COM"]}, set()),
        ({"module": [b"xfs"]}, {1, 2}), ({"module": [b"nvme"]}, {3}), ({"module": [b"nvm"]}, set()),
        ({"since": 20}, {2, 3}), ({"until": 20}, {1, 2}), ({"since": 11, "until": 29}, {2}),
        ({"since": 20, "module": [b"xfs"]}, {2}), ({"pid": [1], "order": [1]}, set()),
    ],
)  # fmt: skip
def test_selections(tmp_path: Path, selection: dict[str, Any], pids: set[int]) -> None:
    tally = selected(tmp_path, **selection)
    assert {key[0] for key in tally["tasks"]} == pids
    total = sum(1 << (pid - 1) for pid in pids)
    assert pages(tally, "stacks") == pages(tally, "migratetypes") == total
    assert tally["skipped"] == 0


def test_culling(tmp_path: Path) -> None:
    assert selected(tmp_path, cull=["tgid"])["culled"] == {
        (1,): [3, 2, 10, 20],
        (3,): [4, 1, 30, 30],
    }
    both = selected(tmp_path, cull=["comm", "allocator"], until=20)["culled"]
    assert both == {(b"a", b"pages"): [1, 1, 10, 10], (b"b", b"slab"): [2, 1, 20, 20]}
    stacks = selected(tmp_path, cull=["stack"])["culled"]
    assert stacks[LEAF_FIRST.encode(),] == [3, 2, 10, 20]


@pytest.mark.parametrize(
    "stack, name",
    [
        (" post_alloc_hook+0x1/0x2\n allocate_slab+0x1/0x2\n", b"slab"),
        (" allocate_slab+0x1/0x2\n", b"slab"),
        (" a+0x1/0x2\n __vmalloc_node_range_noprof+0x1/0x2\n", b"vmalloc"),
        (" pcpu_alloc_noprof+0x1/0x2\n", b"percpu"),
        (LEAF_FIRST, b"pages"),
    ],
)
def test_allocators(stack: str, name: bytes) -> None:
    assert allocator(stack.encode()) == name


# What they are


SNAPSHOT = next(series(STACKS, 1))


def test_each_file_is_recognised() -> None:
    assert recognise(record()) == "page_owner"
    assert recognise(b"# taken at noon\n\n" + record()) == "page_owner"
    assert recognise(show_stacks(SNAPSHOT).encode()) == "show_stacks"
    assert recognise(show_handles(SNAPSHOT).encode()) == "show_handles"
    assert recognise(show_stacks_handles(STACKS).encode()) == "show_stacks_handles"
    assert recognise(b"MemTotal: 5 kB\n") is None


@pytest.mark.parametrize(
    "data, words", [(b"", "it is empty"), (b"MemTotal: 1 kB\n", "not a page_owner")]
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with Source(str(path)) as source, pytest.raises(TextError, match=words):
        recognise_source(source)


def test_folded() -> None:
    printed = " leaf+0x1/0x2\n mid+0x3/0x4 [mod]\n 0xffffffffc0001234\n root+0x5/0x6\n"
    assert folded(printed.encode()) == "root;0xffffffffc0001234;mid [mod];leaf"


def test_ids_are_stable_and_no_handles() -> None:
    one, two = stack_id(b" a+0x1/0x9\n"), stack_id(b" a+0x2/0x9\n")
    assert one != two and one == stack_id(b" a+0x1/0x9\n")
    assert all(1 << 48 <= number < 1 << 49 for number in (one, two))


def test_inputs_are_as_the_kernel_prints_them() -> None:
    """The made-up text against lines written down from print_page_owner()."""
    assert page_owner_record(
        " a+0x1/0x2\n", order=2, gfp=(0xCC0, "GFP_KERNEL", "Unmovable"), pid=3, tgid=4, comm=b"c",
        ts=5, pfn=0x600, block_type="Movable", flags=FLAGS[1], form="6.1",
    ) == (
        b"Page allocated via order 2, mask 0xcc0(GFP_KERNEL), pid 3, tgid 4 (c), ts 5 ns, "
        b"free_ts 0 ns\nPFN 1536 type Unmovable Block 3 type Movable Flags "
        b"0x17ffffc0000000(node=0|zone=2|lastcpupid=0x1fffff)\n a+0x1/0x2\n\n"
    )  # fmt: skip
