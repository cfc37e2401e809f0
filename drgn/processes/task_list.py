# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``init_task.tasks``: the list of processes (of the first task of each thread group), followed link
by link, with a few members of each ``struct task_struct`` as numpy columns.

Costs one ``Program.read()`` a task, about 200,000 a second: what is needed lies within 3 KiB.

A list that runs in a circle without its head ends where a task comes again, and counts as broken
off.

Cannot know: threads, and tasks that hang on no list.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import laid_out, struct_dtype

TOGETHER = 4096  # tasks of which what was read is kept at a time: 12 MiB
ADDRESSES = (1 << 64) - 1

MEMBERS = {
    "flags": "flags",
    "next": "tasks.next",
    "mm": "mm",
    "pid": "pid",
    "tgid": "tgid",
    "signal": "signal",
    "comm": "comm",
}


class Circle(Exception):
    """A list leads back into itself, and not to its head."""


def until_again(tasks: Iterable[Object]) -> Iterator[Object]:
    """
    The tasks of a list.

    :raises Circle: one comes again; with the same PID, as a live kernel may put another in its
        place.
    """
    seen = set()
    for task in tasks:
        key = task.value_(), task.pid.value_()
        if key in seen:
            raise Circle
        seen.add(key)
        yield task


@dataclass(frozen=True, slots=True)
class Tasks:
    """Some tasks, in the order of the list."""

    addresses: NDArray[np.uint64]
    whole: NDArray[np.bool_]  # which could be read at once: of the others, columns mean nothing
    columns: NDArray[Any]  # by MEMBERS


@dataclass
class TaskList:
    """
    The list, to be followed once.

    :ivar broken_off: it could not be followed to its end.
    """

    prog: Program
    broken_off: bool = False

    def parts(self) -> Iterator[Tasks]:
        """All tasks, some thousands at a time."""
        type_ = self.prog.type("struct task_struct")
        dtype = struct_dtype(type_, MEMBERS)
        fields: dict[str, tuple[Any, int]] = {
            name: (field[0], field[1]) for name, field in (dtype.fields or {}).items()
        }
        begin = min(offset for _, offset in fields.values())
        span = laid_out({name: (kind, offset - begin) for name, (kind, offset) in fields.items()})
        packed = np.dtype([(name, kind) for name, (kind, _) in fields.items()])
        nothing = bytes(span.itemsize)
        addresses: list[int] = []
        pieces: list[bytes] = []

        def part() -> Tasks:
            columns = np.zeros(len(pieces), packed)
            raw = np.frombuffer(b"".join(piece or nothing for piece in pieces), span)
            for name in fields:
                columns[name] = raw[name]
            whole = np.array([bool(piece) for piece in pieces], np.bool_)
            return Tasks(np.array(addresses, np.uint64), whole, columns)

        try:
            for address, piece in self._follow(begin, span):
                addresses.append(address)
                pieces.append(piece)
                if len(pieces) == TOGETHER:
                    yield part()
                    addresses, pieces = [], []
        except (FaultError, Circle):
            self.broken_off = True
        if pieces:
            yield part()

    def _follow(self, begin: int, span: np.dtype[Any]) -> Iterator[tuple[int, bytes]]:
        """
        The address of each task, and what was read of it: nothing, where that was not to be had
        at once.

        :raises FaultError: the list breaks off.
        :raises Circle: it leads back into itself.
        """
        prog, size = self.prog, span.itemsize
        fields: Any = span.fields
        pid_of, next_of = (Struct(f"<{code}").unpack_from for code in ("i", "Q"))
        pid_at, next_at = fields["pid"][1], fields["next"][1]
        link = begin + next_at
        head = prog["init_task"].tasks.address_of_().value_()
        seen = set()
        at = prog.read_u64(head)
        while at != head:
            address = (at - link) & ADDRESSES
            try:
                piece = prog.read(address + begin & ADDRESSES, size)
                (pid,) = pid_of(piece, pid_at)
            except FaultError:
                piece = b""
                pid = Object(prog, "struct task_struct", address=address).pid.value_()
            if (address, pid) in seen:
                raise Circle
            seen.add((address, pid))
            yield address, piece
            at = next_of(piece, next_at)[0] if piece else prog.read_u64(at)
