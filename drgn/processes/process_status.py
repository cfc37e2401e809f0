# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/proc/PID/status (fs/proc/array.c; its Vm lines by ``task_mem()``, fs/proc/task_mmu.c), of one
process and of all.

Costs opening a file a process. Cannot know: which processes share an address space.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Status:
    """The lines of a process's file, by name."""

    pid: int  # its thread group's
    comm: str
    lines: dict[str, str]

    def bytes(self, line: str) -> int:
        """
        The bytes of a line in kB.

        :raises ValueError: it is not there, or not a number.
        """
        if line not in self.lines:
            raise ValueError(f"status has no {line}")
        kilobytes = printed_number(self.lines[line].strip().removesuffix(" kB"), "status")
        return row_number(kilobytes << 10, "status")


def parse_status(text: str) -> Status:
    """
    Parse a file.

    :raises ValueError: the text is not that of such a file, or it is cut short.
    """
    lines = whole_lines(text, "status")
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if "Pid" not in fields or "Name" not in fields:
        raise ValueError("status is damaged: it has no Name or no Pid")
    pid = printed_number(fields.get("Tgid", fields["Pid"]), "status")
    return Status(pid, fields["Name"].replace("\\n", "\n").replace("\\\\", "\\"), fields)


def rows_of_processes(
    files: Files, read: Callable[[str], Row | None]
) -> tuple[list[Row], list[str]]:
    """
    Rows that *read* makes of each process's file, and what is wrong with some of them.

    :raises Absent: there is no such file.
    """
    rows, notes = [], []
    for pid in files.numbers("proc", r"(\d+)"):
        try:
            row = read(files.open(f"proc/{pid}/status"))
        except OSError:
            continue  # it has exited
        except ValueError as reason:
            notes.append(f"process {pid}: {reason}")
            continue
        if row is not None:
            rows.append(row)
    if not rows:
        raise Absent(f"{files.root / 'proc'} has no PID/status: this tree has no processes")
    return rows, notes
