# SPDX-License-Identifier: LGPL-2.1-or-later
"""kernel_arrays: a dtype is what the types say, and unreadable memory is counted, never zero."""

import numpy as np
import pytest
from drgn import (
    Architecture,
    FaultError,
    Platform,
    PlatformFlags,
    Program,
    Type,
    TypeEnumerator,
    TypeMember,
)
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.reading.kernel_arrays import (
    Gaps,
    member_path,
    read_array,
    read_whole,
    struct_dtype,
)

LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
PAGE = 4096
BASE = 0xFFFF_EA00_0000_0000


def program(flags: PlatformFlags = LITTLE) -> Program:
    return Program(Platform(Architecture.UNKNOWN, flags))


def page_type(prog: Program) -> Type:
    """A struct with the shapes of struct page: a wrapped word, a union, an enum, a pointer."""
    long = prog.int_type("unsigned long", 8, False)
    int_ = prog.int_type("int", 4, True)
    flags = prog.struct_type("memdesc_flags_t", 8, (TypeMember(long, "f"),))
    union = prog.union_type(
        None, 8, (TypeMember(long, "private"), TypeMember(prog.pointer_type(long), "zone"))
    )
    kind = prog.enum_type(
        "kind", prog.int_type("unsigned char", 1, False), [TypeEnumerator("A", 0)]
    )
    atomic = prog.struct_type("atomic_t", 4, (TypeMember(int_, "counter"),))
    return prog.struct_type(
        "page",
        64,
        (
            TypeMember(flags, "flags", 0),
            TypeMember(union, None, 8 * 8),
            TypeMember(prog.typedef_type("atomic_t", atomic), "_mapcount", 16 * 8),
            TypeMember(prog.bool_type("_Bool", 1), "pinned", 20 * 8),
            TypeMember(kind, "kind", 21 * 8),
            TypeMember(prog.array_type(long, 2), "words", 24 * 8),
            TypeMember(prog.array_type(atomic, 3), "counts", 40 * 8),
            TypeMember(prog.array_type(prog.int_type("char", 1, True), 8), "name", 52 * 8),
        ),
    )


def test_dtype_has_the_offsets_sizes_and_signs_of_the_type() -> None:
    dtype = struct_dtype(
        page_type(program()),
        {
            "flags": ("flags.f", "flags"),
            "mapcount": "_mapcount.counter",
            "private": "private",
            "zone": "zone",
            "pinned": "pinned",
            "kind": "kind",
        },
    )
    assert dtype.itemsize == 64
    assert {name: (dtype[name].str, dtype.fields[name][1]) for name in dtype.names} == {
        "flags": ("<u8", 0),
        "mapcount": ("<i4", 16),
        "private": ("<u8", 8),
        "zone": ("<u8", 8),
        "pinned": ("|u1", 20),
        "kind": ("|u1", 21),
    }


def test_an_element_of_an_array_is_a_member_like_others_and_an_array_of_char_a_text() -> None:
    columns = {"second": "words[1]", "third": "counts[2].counter", "name": "name"}
    dtype = struct_dtype(page_type(program()), columns)
    assert {name: (dtype[name].str, dtype.fields[name][1]) for name in dtype.names} == {
        "second": ("<u8", 32),
        "third": ("<i4", 48),
        "name": ("|S8", 52),
    }


def test_dtype_has_the_byte_order_of_the_target() -> None:
    big = program(PlatformFlags.IS_64_BIT)
    dtype = struct_dtype(
        page_type(big), {"mapcount": "_mapcount.counter", "zone": "zone", "flags": "flags.f"}
    )
    assert [dtype[name].str for name in dtype.names] == [">i4", ">u8", ">u8"]


def test_the_first_layout_that_the_kernel_has_is_taken() -> None:
    page = page_type(program())
    assert member_path(page, ("flags.f", "flags")) == "flags.f"
    assert member_path(page, ("lru.next", "private")) == "private"


def test_a_member_that_is_nowhere_is_named() -> None:
    with pytest.raises(LookupError, match=r"struct page has no member lru\.next or buddy_list"):
        struct_dtype(page_type(program()), {"next": ("lru.next", "buddy_list")})


@pytest.mark.parametrize("path", ["flags", "words", "_mapcount"])
def test_what_is_no_number_is_refused(path: str) -> None:
    with pytest.raises(TypeError, match=rf"struct page\.{path} is .*, not a number"):
        struct_dtype(page_type(program()), {"x": path})


def patterned(start: int, size: int) -> bytes:
    """Memory in which every byte depends on its address."""
    addresses = np.arange(start, start + size, dtype=np.uint64)
    return ((addresses * np.uint64(2654435761)) >> np.uint64(13)).astype(np.uint8).tobytes()


def holed(pages: int, holes: set[int]) -> Program:
    """A target with so many pages from BASE on, of which some cannot be read."""
    prog = program()

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        for page in range((address - BASE) // PAGE, (address + count - 1 - BASE) // PAGE + 1):
            if page in holes:
                raise FaultError("not in the dump", BASE + page * PAGE)
        return patterned(address, count)

    prog.add_memory_segment(BASE, pages * PAGE, read)
    return prog


@given(
    holes=st.sets(st.integers(0, 11)),
    size=st.sampled_from([1, 8, 56, 64, 80, 4096, 5000]),
    offset=st.integers(0, PAGE - 1),
    chunk=st.sampled_from([1, 64, 4096, 10_000, 1 << 20]),
)
def test_exactly_the_readable_elements_come_out(
    holes: set[int], size: int, offset: int, chunk: int
) -> None:
    pages = 12
    count = (pages * PAGE - offset) // size
    if size == 1:
        count = min(count, 9000)
    prog, gaps, begin = holed(pages, holes), Gaps(), BASE + offset
    dtype = np.dtype(f"V{size}")
    got: dict[int, bytes] = {}
    last = -1
    for first, array in read_array(prog, begin, count, dtype, gaps, chunk_bytes=chunk):
        assert first > last, "chunks come in order"
        for position, element in enumerate(array):
            got[first + position] = element.tobytes()
        last = first + len(array) - 1
    expected = {}
    for number in range(count):
        start = begin + number * size
        touched = range((start - BASE) // PAGE, (start + size - 1 - BASE) // PAGE + 1)
        if not holes.intersection(touched):
            expected[number] = patterned(start, size)
    assert got == expected
    assert gaps.bytes == (count - len(expected)) * size


def test_an_element_that_straddles_an_unreadable_page_is_not_read() -> None:
    prog, gaps = holed(2, {1}), Gaps()
    chunks = list(read_array(prog, BASE + PAGE - 96, 3, np.dtype("V64"), gaps))
    assert [(first, len(array)) for first, array in chunks] == [(0, 1)]
    assert gaps.bytes == 128


def test_a_whole_array_is_read_with_one_read() -> None:
    prog, reads = program(), []

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        reads.append((address, count))
        return bytes(count)

    prog.add_memory_segment(BASE, 1 << 20, read)
    gaps = Gaps()
    assert [n for n, _ in read_array(prog, BASE, 1 << 14, np.dtype("V64"), gaps)] == [0]
    assert reads == [(BASE, 1 << 20)]
    assert gaps.bytes == 0


def test_read_whole_gives_all_or_raises() -> None:
    prog = holed(2, {1})
    assert len(read_whole(prog, BASE, 64, np.dtype("V64"))) == 64
    with pytest.raises(FaultError):
        read_whole(prog, BASE, 65, np.dtype("V64"))


def test_an_array_across_the_end_of_all_addresses_ends_there() -> None:
    """As a damaged pointer has it."""
    prog = program()
    end = 1 << 64
    dtype = np.dtype("<u8")
    prog.add_memory_segment(end - 2 * PAGE, PAGE, lambda a, n, o, p: bytes(n))
    gaps = Gaps()
    found = [array for _, array in read_array(prog, end - 2 * PAGE, 1 << 20, dtype, gaps)]
    assert sum(map(len, found)) * 8 == PAGE
    assert gaps.bytes == (8 << 20) - PAGE
    gaps = Gaps()
    assert list(read_array(prog, end + 64, 2, dtype, gaps)) == [] and gaps.bytes == 16
