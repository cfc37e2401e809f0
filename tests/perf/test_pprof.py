# SPDX-License-Identifier: LGPL-2.1-or-later
"""``profile.proto``, read back field by field as protocol buffers say."""

import gzip
from collections import defaultdict
from collections.abc import Iterator

import pytest

from mmscope.perf.pprof import pprof, varint

Message = dict[int, list[int | bytes]]


def number_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def message(data: bytes) -> Message:
    """Fields of a message by number."""
    fields: Message = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = number_at(data, at)
        value: int | bytes
        value, at = number_at(data, at)
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
        fields[tag >> 3].append(value)
    return fields


def packed(data: int | bytes) -> Iterator[int]:
    assert isinstance(data, bytes)
    at = 0
    while at < len(data):
        value, at = number_at(data, at)
        yield value


def opened(file: bytes) -> tuple[list[tuple[str, str]], list[tuple[list[str], list[int]]]]:
    """Types, and frames from the leaf with values, of each sample; as a reader puts it together."""
    profile = message(gzip.decompress(file))
    strings = [text.decode() for text in profile[6] if isinstance(text, bytes)]
    assert strings[0] == ""

    def inner(number: int) -> list[Message]:
        return [message(part) for part in profile[number] if isinstance(part, bytes)]

    functions = {one[1][0]: strings[int(one[2][0])] for one in inner(5)}
    lines = {one[1][0]: next(iter(message(part)[1])) for one in inner(4) for part in one[4]}
    types = [(strings[int(one[1][0])], strings[int(one[2][0])]) for one in inner(1)]
    samples = [
        ([functions[lines[at]] for at in packed(one[1][0])], list(packed(one[2][0])))
        for one in inner(2)
    ]
    return types, samples


def test_each_set_is_a_type_and_stacks_that_several_have_are_one_sample() -> None:
    file = pprof(
        [("cpu", "ns", [("main;work", 5), ("main", 2)]), ("held", "bytes", [("main;work", 300)])],
        "mmscope: both",
        1.5,
    )
    types, samples = opened(file)
    assert types == [("cpu", "nanoseconds"), ("held", "bytes")]
    assert samples == [(["work", "main"], [5, 300]), (["main"], [2, 0])]
    profile = message(gzip.decompress(file))
    assert profile[9] == [1_500_000_000]


def test_no_stacks_are_a_profile_without_samples() -> None:
    types, samples = opened(pprof([("cpu", "samples", [])], "empty"))
    assert (types, samples) == ([("cpu", "count")], [])


def test_values_that_no_reader_could_take_are_its_largest() -> None:
    _, [(_, [value])] = opened(pprof([("cpu", "ns", [("x", 1 << 70)])], "large"))
    assert value == (1 << 63) - 1


@pytest.mark.parametrize(
    ("number", "said"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_numbers_as_protocol_buffers_have_them(number: int, said: bytes) -> None:
    assert varint(number) == said
