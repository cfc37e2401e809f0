# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records: dataclasses whose methods are shared."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Span:
    begin: int
    end: int = 8

    @cached_property
    def length(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Other:
    begin: int
    end: int = 8


def test_a_record_is_compared_by_its_fields_and_its_type() -> None:
    assert Span(1) == Span(1, 8) != Span(2)
    assert Span(1) != Other(1)
    assert len({Span(1), Span(1, 8), Span(2)}) == 2


def test_what_a_record_has_worked_out_is_no_part_of_it() -> None:
    asked = Span(1)
    assert asked.length == 7
    assert asked == Span(1) and hash(asked) == hash(Span(1))
    assert repr(asked) == "Span(begin=1, end=8)"


def test_a_record_is_a_dataclass() -> None:
    assert [field.name for field in dataclasses.fields(Span)] == ["begin", "end"]
