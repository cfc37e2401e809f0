# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait in a frozen guest: what is read of them, and what /proc said of each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from capture import Capture
from holders_lab import SCHEDULER

from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found
from mmscope.drgn.waits.task_waits import from_memory
from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot


@dataclass(frozen=True)
class WaitsLab:
    """A frozen guest, and what is read of it; ``numbers`` are the pids that its program noted."""

    capture: Capture
    found: Found
    numbers: dict[str, int]

    @classmethod
    def of(cls, taken: Capture, stage: str) -> Self:
        """Read without debug info: as a box does, and /proc/PID/stack has no inlined functions."""
        lines = (taken.truth_a / "stages" / stage).read_text().splitlines()
        numbers = {line.split()[0]: int(line.split()[1]) for line in lines}
        return cls(taken, from_memory(Memory(open_target(taken.vmcore, []))), numbers)

    @property
    def rows(self) -> dict[str, TaskWait]:
        """By comm."""
        return {row.comm: row for row in self.found.by_name["task_waits"]}

    @property
    def roots(self) -> dict[str, WaitRoot]:
        return {row.root: row for row in self.found.by_name["wait_roots"]}

    @property
    def rt(self) -> bool:
        """With PREEMPT_RT, which notes no reader of a lock."""
        return self.capture.kernel.startswith("rt-")

    def said(self, comm: str, name: str) -> str:
        (path,) = self.capture.truth_b.glob(f"proc/*/task/{self.numbers[comm]}/{name}")
        return path.read_text()

    def assert_stacks_as_printed(self, comms: Iterable[str]) -> None:
        """Stacks are those of /proc/PID/stack, function by function, without the scheduler's."""
        for comm in comms:
            printed = re.findall(r"\] ([\w.]+)\+0x", self.said(comm, "stack"))
            names = (self.rows[comm].stack or "").split(";")[::-1]
            own, told = ([n for n in each if not SCHEDULER.match(n)] for each in (names, printed))
            assert own == told, comm
