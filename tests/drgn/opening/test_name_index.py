# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names are found where they are: each, all of the same, and none that is not there."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.opening.kernel_symbols import symbols_of_text
from mmscope.drgn.opening.name_index import ITSELF, NameIndex

# So few letters that many names are alike, or have the same characters.
NAME = st.text("ab_", max_size=20).map(str.encode)
NAMES = st.lists(NAME, min_size=1, max_size=60)
# Two more bytes, which stand for several characters.
TOKENS = [*ITSELF[:254], b"a_b", b"bb"]


def index_of(names: list[bytes], between: bytes = b"\n", packed: bool = False) -> NameIndex:
    """Names behind a letter, with something between them, packed by the tokens in their order."""
    texts = [b"t" + name for name in names]
    if packed:
        texts = [text.replace(b"a_b", b"\xfe").replace(b"bb", b"\xff") for text in texts]
    ends = np.cumsum([len(text) + len(between) for text in texts], dtype=np.uint32)
    ends -= np.uint32(len(between))
    starts = ends - np.array([len(text) for text in texts], np.uint32)
    return NameIndex(between.join(texts), starts, ends, TOKENS if packed else ITSELF)


@given(NAMES, NAME, st.sampled_from([b"", b"\n", b"abc"]), st.booleans())
def test_every_name_is_found_and_no_other(
    names: list[bytes], other: bytes, between: bytes, packed: bool
) -> None:
    index = index_of(names, between, packed)
    assert [index.whole(number) for number in range(len(names))] == [b"t" + n for n in names]
    for wanted in [*names, other]:
        expected = [number for number, name in enumerate(names) if name == wanted]
        assert index.numbers(wanted) == expected


def test_names_with_one_hash_are_told_apart() -> None:
    """The same characters in another order."""
    names = [b"slab_free", b"free_slab"]
    assert [index_of(names).numbers(name) for name in names] == [[0], [1]]


def test_a_name_is_not_found_in_a_longer_one() -> None:
    assert index_of([b"schedule_timeout"]).numbers(b"schedule") == []


@given(NAMES, NAME, st.booleans())
def test_names_are_found_by_their_characters(
    names: list[bytes], letters: bytes, packed: bool
) -> None:
    expected = [
        number
        for number, name in enumerate(names)
        if all(name.count(letter) >= letters.count(letter) for letter in letters)
    ]
    assert index_of(names, packed=packed).having(letters) == expected


def test_statics_of_lto_have_the_name_of_the_source() -> None:
    """Unless another file has a static of that name."""
    names = "a", "b.llvm.12", "c.llvm.5", "c", "d.llvm.x", "e.isra.0", ".llvm.3", "f.llvm.4.cold"
    lines = [f"ffff80000000{at:02x}00 d {name}" for at, name in enumerate(names)]
    found = symbols_of_text("\n".join(lines).encode())
    assert [found.address(name) for name in ("a", "b", "b.llvm.12")] == [
        0xFFFF800000000000,
        0xFFFF800000000100,
        0xFFFF800000000100,
    ]
    assert sorted(found.indexes("c")) == [2, 3] and found.address("c") is None
    assert not any(map(found.indexes, ("d", "e", "f", "", "llvm")))
    assert found.symbol(1).name == "b.llvm.12"  # as the kernel prints it


@given(NAMES, NAME, st.booleans())
def test_names_that_are_another_in_one_letter_are_found(
    names: list[bytes], wanted: bytes, packed: bool
) -> None:
    expected = [
        number
        for number, name in enumerate(names)
        if len(name) == len(wanted) and sum(a != b for a, b in zip(name, wanted, strict=True)) == 1
    ]
    assert index_of(names, packed=packed).one_letter_from(wanted) == expected
