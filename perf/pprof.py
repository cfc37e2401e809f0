# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Folded stacks as a file that pprof opens (``go tool pprof``, Parca, Pyroscope, Grafana).

The format is ``profile.proto`` (github.com/google/pprof, proto/profile.proto): protocol buffers,
packed by gzip. Each set of stacks is a sample type; a stack that several have is one sample.
"""

import gzip
from collections.abc import Iterable, Sequence

# What pprof and speedscope show as time or size; anything else is a plain count.
UNITS = {"ns": "nanoseconds", "bytes": "bytes"}
VARINT, BYTES = 0, 2  # wire types
MOST = (1 << 63) - 1  # what a value may be
# Numbers of fields.
SAMPLE_TYPE, SAMPLE, LOCATION, FUNCTION, STRINGS, TIME, COMMENT = 1, 2, 4, 5, 6, 9, 13


def pprof(
    profiles: Iterable[tuple[str, str, Iterable[tuple[str, int]]]],
    comment: str,
    taken: float | None = None,
) -> bytes:
    """
    The file's content.

    :param profiles: (name, unit, folded stacks) of each.
    :param taken: when, in seconds since 1970.
    """
    # Texts by number; number 0 is the empty text, as pprof wants it.
    strings, functions = {"": 0}, {"": 0}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    types: list[bytes] = []
    samples: dict[str, list[int]] = {}
    for number, (name, unit, stacks) in enumerate(profiles):
        kind = string(name), string(UNITS.get(unit, "count"))
        types.append(numbers(*enumerate(kind, 1)))
        for stack, value in stacks:
            values = samples.setdefault(stack, [])
            values += [0] * (number + 1 - len(values))
            values[number] += value
    parts = [field(SAMPLE_TYPE, each) for each in types]
    for stack, values in samples.items():
        values = [min(value, MOST) for value in values] + [0] * (len(types) - len(values))
        # From the leaf.
        names = filter(None, reversed(stack.split(";")))
        frames = [functions.setdefault(name, len(functions)) for name in names]
        parts.append(field(SAMPLE, field(1, packed(frames)) + field(2, packed(values))))
    for name, number in functions.items():
        if number:
            line = numbers((1, number))
            parts.append(field(LOCATION, numbers((1, number)) + field(4, line)))
            named = string(name)
            parts.append(field(FUNCTION, numbers((1, number), (2, named), (3, named))))
    parts.append(numbers((COMMENT, string(comment))))
    if taken is not None:
        parts.append(numbers((TIME, int(taken * 1e9))))
    parts += [field(STRINGS, text.encode("utf-8", "replace")) for text in strings]
    # No time in the header: the same stacks are the same bytes.
    return gzip.compress(b"".join(parts), mtime=0)


def varint(number: int) -> bytes:
    """A whole number, seven bits a byte; a negative one as its two's complement of 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def packed(values: Sequence[int]) -> bytes:
    """Whole numbers one after the other."""
    return b"".join(map(varint, values))


def field(number: int, content: bytes) -> bytes:
    """A field that is a text, a message or packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def numbers(*fields: tuple[int, int]) -> bytes:
    """Fields that are whole numbers."""
    return b"".join(varint(number << 3 | VARINT) + varint(value) for number, value in fields)
