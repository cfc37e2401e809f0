# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records: dataclasses that are cheap to declare, and that mypy lets nobody change.

For ``dataclass(frozen=True)`` six methods are compiled for each class, which takes a millisecond,
and most commands import all probes. Here that is ``__init__`` alone, which takes a quarter of it;
the others are the same functions for all of them.
"""

import dataclasses
import typing
from typing import Any

Made = typing.TypeVar("Made")


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(declared: type[Made]) -> type[Made]:
    """Declare a value of several parts: a dataclass that is compared by its fields."""
    made = dataclasses.dataclass(eq=False, repr=False)(declared)
    for name in ("__eq__", "__hash__", "__repr__"):
        setattr(made, name, vars(_AnyRecord)[name])
    return made


class _AnyRecord:
    """What a dataclass has, of any record."""

    __dataclass_fields__: dict[str, dataclasses.Field[Any]]

    def __eq__(self, other: object) -> bool:
        return _parts(self) == _parts(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(_parts(self))

    def __repr__(self) -> str:
        cells = zip(self.__dataclass_fields__, _parts(self), strict=True)
        words = ", ".join(f"{name}={cell!r}" for name, cell in cells)
        return f"{type(self).__qualname__}({words})"


def _parts(value: Any) -> tuple[Any, ...]:
    """Its fields, without what it has worked out of them and kept (``cached_property``)."""
    return tuple(vars(value)[name] for name in value.__dataclass_fields__)
