# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine whose memory is a file, and the file its vmcore: `collect` reads it as any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import STANDS_ON
from sparse_machine import GIB, PAGE, sparse_machine

from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

SIZE = 3  # GiB: two below 4 GiB, one above
# programs/crowd.c, for each GiB.
PROCESSES, PIECES, PIECE_PAGES = 4, 8, 4096


def test_the_sections_of_a_sparse_machine(say: Callable[[str], None], tmp_path: Path) -> None:
    machine = sparse_machine(SIZE, say, STANDS_ON)
    assert machine.vmcore.stat().st_size > SIZE * GIB > 5 * machine.disk_bytes
    prog = open_target(machine.vmcore, [machine.vmlinux])
    # The ELF header lies where the first page was, and is no part of the memory.
    assert not prog.read(0, PAGE, True).startswith(b"\x7fELF")
    with Writer(tmp_path / "bundle") as writer:
        target = describe(prog, "vmcore")
        sections = collect(Memory(prog), target, writer)
    assert {section.status for section in sections} == {"ok", "absent"}
    assert target.total_pages is not None
    assert 0.99 < target.total_pages * PAGE / (SIZE * GIB) <= 1

    def rows(table: str) -> list[dict[str, Any]]:
        return list(Bundle(tmp_path / "bundle").rows(table))

    assert all(row["remainder_pages"] == 0 for row in rows("free_accounting"))
    crowd = [row for row in rows("page_tables") if row["comm"] == "crowd"]
    assert len(crowd) == SIZE * PROCESSES
    # Half of every piece is free again, and of most of them in runs of less than 32 pages.
    small = sum(row["pages"] for row in rows("free_blocks") if row["order"] < 5)
    assert small > SIZE * PIECES * PIECE_PAGES // 2 // 4
