# SPDX-License-Identifier: LGPL-2.1-or-later
"""The readers of page_owner_stacks/show_*: each file alone, and after any other one."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_owner_inputs import (
    make_stacks,
    series,
    show_handles,
    show_stacks,
    show_stacks_handles,
)

from mmscope.drgn.text import page_owner_text
from mmscope.drgn.text.page_owner_text import read_counts, read_show_stacks_handles
from mmscope.drgn.text.stack_text import is_stack, stack_id
from mmscope.drgn.text.text_source import Source, TextError

STACKS = make_stacks(40)
SNAPSHOT = next(series(STACKS, 1))
STACK = " get_page_from_freelist+0x1/0x2\n alloc_pages_mpol+0x3/0x4\n xfs_buf+0x5/0x6 [xfs]\n"


class Counts:
    """The counts of a file, and then of the next one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.stacks: dict[bytes, int] = {}

    def read(self, source: Source) -> None:
        self.pages, lost = read_counts(source, self.kind, self.stacks)
        self.skipped, self.truncated = lost["skipped"], bool(lost["truncated"])


def read(
    tmp_path: Path, text: str | bytes, kind: str = "show_handles", counts: Counts | None = None
) -> Counts:
    path = tmp_path / "counts"
    # Thousands in a test: one that is written over another waits for the disk.
    path.unlink(missing_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    counts = counts or Counts(kind)
    with Source(str(path)) as source:
        counts.read(source)
    return counts


def handles(pages: Sequence[tuple[int, int]]) -> str:
    return "".join(f"handle: {key}\nnr_base_pages: {number}\n\n" for key, number in pages)


def meanings(tmp_path: Path, text: str) -> tuple[dict[int, bytes], int, bool]:
    path = tmp_path / "stacks"
    path.unlink(missing_ok=True)
    path.write_text(text)
    with Source(str(path)) as source:
        stacks, lost = read_show_stacks_handles(source)
    return stacks, lost["skipped"], bool(lost["truncated"])


# What handles mean


LINES = [
    "handle: 5\n",
    "handle: -6\n",
    "handle: x\n",
    "xhandle: 5\n",
    " b+0x1/0x2\n",
    "junk\n",
    "\n",
]


@given(st.lists(st.sampled_from([*LINES, STACK, f"{STACK}handle: 7\n\n", " a b\n", " [m]\n"])))
def test_a_resolver_is_read_record_by_record(tmp_path: Path, lines: list[str]) -> None:
    """All at once where all are sound, and with the same outcome."""
    text = "".join(lines)
    whole = text[: text.rfind("\n\n") + 2] if "\n\n" in text else ""
    stacks, skipped = {}, 0
    for record in whole[:-2].split("\n\n") if whole else []:
        stack, _, handle = record.rpartition("handle: ")
        if is_stack(stack.encode()) and handle.removeprefix("-").isdigit():
            stacks[int(handle) & 0xFFFFFFFF] = stack.encode()
        else:
            skipped += 1
    assert meanings(tmp_path, text) == (stacks, skipped, len(text) > len(whole))


# One file


def test_show_stacks(tmp_path: Path) -> None:
    counts = read(tmp_path, show_stacks(SNAPSHOT), "show_stacks")
    assert counts.stacks.keys() == {stack.text.encode() for stack, _ in SNAPSHOT}
    expected = {stack_id(stack.text.encode()): number for stack, number in SNAPSHOT}
    assert counts.pages == expected
    assert (counts.skipped, counts.truncated) == (0, False)


def test_stacks_that_are_printed_twice_add_up(tmp_path: Path) -> None:
    """Two handles of the same text: inlined functions, say."""
    text = f"{STACK}nr_base_pages: 2\n\n b+0x1/0x2\nnr_base_pages: 9\n\n"
    text += f"{STACK}nr_base_pages: 3\n\n"
    counts = read(tmp_path, text, "show_stacks")
    assert counts.pages == {stack_id(STACK.encode()): 5, stack_id(b" b+0x1/0x2\n"): 9}
    counts = read(tmp_path, f"{STACK}nr_base_pages: 4\n\n", counts=counts)
    assert counts.pages == {stack_id(STACK.encode()): 4}


def test_show_handles(tmp_path: Path) -> None:
    counts = read(tmp_path, show_handles(SNAPSHOT))
    assert counts.pages == {stack.handle: number for stack, number in SNAPSHOT}
    assert (counts.skipped, counts.truncated) == (0, False)


def test_a_handle_printed_as_negative(tmp_path: Path) -> None:
    """``%d`` of an unsigned handle, in 6.19 to 7.3."""
    assert read(tmp_path, handles([(-2147483647, 3), (5, 1)])).pages == {0x80000001: 3, 5: 1}
    stacks, _, _ = meanings(tmp_path, f"{STACK}handle: -2147483647\n\n")
    assert stacks == {0x80000001: STACK.encode()}


def test_show_stacks_handles(tmp_path: Path) -> None:
    expected = {stack.handle: stack.text.encode() for stack in STACKS}
    assert meanings(tmp_path, show_stacks_handles(STACKS)) == (expected, 0, False)


@pytest.mark.parametrize("form", [show_stacks, show_handles])
def test_files_cut_anywhere(tmp_path: Path, form: object) -> None:
    three = sorted(SNAPSHOT, key=lambda item: len(item[0].text))[:3]
    text, kind = form(three), form.__name__  # type: ignore[attr-defined, operator]
    whole = read(tmp_path, text, kind)
    for cut in range(len(text)):
        part = read(tmp_path, text[:cut], kind)
        complete = text[:cut].count("\n\n")
        assert list(part.pages.items()) == list(whole.pages.items())[:complete]
        assert part.skipped == 0
        assert part.truncated == (cut != 0 and not text[:cut].endswith("\n\n"))


def test_a_resolver_cut_anywhere(tmp_path: Path) -> None:
    text = show_stacks_handles(STACKS[:3])
    whole, _, _ = meanings(tmp_path, text)
    for cut in range(len(text)):
        part, skipped, truncated = meanings(tmp_path, text[:cut])
        assert list(part.items()) == list(whole.items())[: text[:cut].count("\n\n")]
        assert (skipped, truncated) == (0, cut != 0 and not text[:cut].endswith("\n\n"))


@pytest.mark.parametrize(
    "damage",
    ["handle: 5\nnr_base_pages: x\n\n", "handle: 5\n\n", "nr_base_pages: 1\n\n", "hello\n\n",
     "handle: 1 2\nnr_base_pages: 3\n\n", "handle:\n5\nnr_base_pages: 1\n\n",
     "handle: 99999999999999999999\nnr_base_pages: 1\n\n", "handle: 1_0\nnr_base_pages: 1\n\n",
     "handle: 5 nr_base_pages: 1\n\n\n\n"],
)  # fmt: skip
def test_a_damaged_record_of_show_handles_is_skipped(tmp_path: Path, damage: str) -> None:
    good = show_handles(SNAPSHOT[:2])
    counts = read(tmp_path, good + damage + show_handles(SNAPSHOT[2:3]))
    assert counts.pages == {stack.handle: number for stack, number in SNAPSHOT[:3]}
    assert counts.skipped >= 1


@pytest.mark.parametrize(
    "damage",
    [" a+0x1/0x2\nnr_base_pages: x\n\n", " a+0x1/0x2\n\n", "nr_base_pages: 1\n\n",
     " a b c\nnr_base_pages: 1\n\n", " a;b+0x1/0x2\nnr_base_pages: 1\n\n",
     "a+0x1/0x2\nnr_base_pages: 1\n\n", " a+0x1/0x2nr_base_pages: 1\n\n",
     " a+0x1/0x2\nhandle: 3\nnr_base_pages: 1\n\n"],
)  # fmt: skip
def test_a_damaged_record_of_show_stacks_is_skipped(tmp_path: Path, damage: str) -> None:
    counts = read(tmp_path, show_stacks(SNAPSHOT[:2]) + damage, "show_stacks")
    assert counts.stacks.keys() == {stack.text.encode() for stack, _ in SNAPSHOT[:2]}
    assert counts.skipped == 1


@settings(max_examples=40)
@given(st.binary(max_size=2000))
def test_random_bytes(tmp_path: Path, noise: bytes) -> None:
    for kind in ("show_stacks", "show_handles"):
        assert not read(tmp_path, b"x" + noise, kind).pages  # or else it might be gzip's


def test_text_without_records_does_not_fill_memory(tmp_path: Path) -> None:
    good = handles([(1, 2)])
    counts = read(tmp_path, good + "x" * (5 << 20) + "\n\n" + handles([(3, 4)]))
    assert counts.pages == {1: 2, 3: 4} and counts.skipped >= 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_larger_than_any_kernels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """By its size, or where that is not that of its text, once so much of it is read."""
    monkeypatch.setattr(page_owner_text, "MAX_BYTES", 1000)
    text = handles([(number, number) for number in range(100)]).encode()
    with pytest.raises(TextError, match="has more than 0 MiB: no kernel keeps so many"):
        read(tmp_path, gzip.compress(text) if packed else text)


# A series


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 60), unique=True, max_size=60), min_size=1, max_size=5),
    st.integers(0, 3),
    st.sampled_from((40, 300, 1 << 20)),
)
def test_any_file_after_any_other(
    tmp_path: Path, snapshots: list[list[int]], step: int, chunk: int
) -> None:
    """As it is alone, wherever the chunks end."""
    # Some begin as others do, or end as others begin.
    lines = [f" {name}+0x1/0x2\n" for name in "fghijkl"]
    stacks = [one + two for one in lines for two in ("", *lines)] + [lines[0] * n for n in (3, 4)]
    stacks += [line + lines[0] + lines[1] for line in lines]
    by_stack, by_handle = Counts("show_stacks"), Counts("show_handles")
    with patch.object(page_owner_text, "CHUNK_BYTES", chunk):
        for position, numbers in enumerate(snapshots):
            counted = [(n, n % 5 + 1 + position * step) for n in numbers]
            text = "".join(f"{stacks[n]}nr_base_pages: {pages}\n\n" for n, pages in counted)
            read(tmp_path, text, counts=by_stack)
            read(tmp_path, handles(counted), counts=by_handle)
            expected: dict[int, int] = {}
            for n, pages in counted:  # two of them are the same stack
                key = stack_id(stacks[n].encode())
                expected[key] = expected.get(key, 0) + pages
            assert by_stack.pages == expected and by_handle.pages == dict(counted)
            assert by_stack.skipped == by_handle.skipped == 0


def test_damage_stays_counted_in_the_files_after(tmp_path: Path) -> None:
    text = handles([(1, 2)]) + "hello\n\n" + handles([(3, 4)])
    counts = read(tmp_path, text)
    read(tmp_path, text, counts=counts)
    assert counts.skipped == 1 and counts.pages == {1: 2, 3: 4}
    read(tmp_path, handles([(1, 2)]), counts=counts)
    assert counts.skipped == 0 and counts.pages == {1: 2}


@pytest.mark.parametrize(
    "record",
    [
        "1handle: 5\nnr_base_pages: 3\n\n",
        "handle: 5\n1nr_base_pages: 3\n\n",
        "handle:5 \nnr_base_pages: 3\n\n",
        "handle: \nnr_base_pages: 3\n\n",
        "handle: 5\nnr_base_pages: 3\n7\n",
        "handle: 5 \nnr_base_pages: 3\n\n",
    ],
)
def test_a_digit_out_of_its_place_is_damage(tmp_path: Path, record: str) -> None:
    counts = read(tmp_path, handles([(1, 2)]) + record + "\n" + handles([(3, 4)]))
    assert counts.pages == {1: 2, 3: 4} and counts.skipped == 1
