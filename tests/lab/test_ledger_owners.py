# SPDX-License-Identifier: LGPL-2.1-or-later
"""Owners inside classes of the ledger, out of memory, against what the kernel counts and prints."""

import re
from collections.abc import Callable

import pytest
from capture import Capture, capture
from conftest import KERNELS
from drgn import Program

from mmscope.drgn.ledger import percpu_chunks, swap_areas
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found


def meminfo(taken: Capture, names: str) -> dict[str, int]:
    """Bytes by name, of the names that a pattern fits."""
    text = (taken.truth_b / "proc/meminfo").read_text()
    lines = re.findall(rf"^({names}): +(\d+) kB$", text, re.MULTILINE)
    return {name: int(kib) << 10 for name, kib in lines}


@pytest.mark.parametrize("kernel", KERNELS)
def test_swap_areas_are_as_full_as_meminfo_says(kernel: str, say: Callable[[str], None]) -> None:
    taken = capture(kernel, "tables", say=say)
    found = swap_areas.from_memory(Memory(open_target(taken.vmcore, [taken.vmlinux])))
    rows: list[swap_areas.SwapArea] = found.by_name["swap_areas"]
    assert not found.notes
    said = meminfo(taken, r"Swap\w+")
    assert sum(row.bytes for row in rows) == said["SwapTotal"]
    assert sum(row.bytes - row.used_bytes for row in rows) == said["SwapFree"]
    (row,) = rows
    assert (row.path, row.kind, row.leaving) == ("/dev/vda", "partition", False)
    assert row.used_bytes >= 2900 << 12  # the workload has 3072 pages swapped out


@pytest.fixture(scope="module", params=KERNELS)
def percpu_lab(
    request: pytest.FixtureRequest, say: Callable[[str], None]
) -> tuple[Capture, Program, Found]:
    taken = capture(request.param, "ledger", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return taken, prog, percpu_chunks.from_memory(Memory(prog))


def test_percpu_chunks_add_up_to_meminfo(percpu_lab: tuple[Capture, Program, Found]) -> None:
    taken, _, found = percpu_lab
    assert not found.notes
    rows: list[percpu_chunks.PercpuChunk] = found.by_name["percpu_chunks"]
    assert {row.kind for row in rows} == {"variables", "modules", "first", "further"}
    assert sum(row.bytes for row in rows) == meminfo(taken, "Percpu")["Percpu"]


def test_sizes_of_percpu_allocations_add_up_to_what_is_used(
    percpu_lab: tuple[Capture, Program, Found],
) -> None:
    _, _, found = percpu_lab
    rows: list[percpu_chunks.PercpuChunk] = found.by_name["percpu_chunks"]
    sizes: list[percpu_chunks.PercpuSize] = found.by_name["percpu_sizes"]
    given = [row for row in rows if row.kind != "variables"]
    assert sum(row.bytes for row in sizes) == sum(row.used_bytes for row in given) > 0
    assert sum(row.allocations for row in sizes) == sum(row.allocations or 0 for row in given)


def test_a_damaged_chunk_costs_itself(
    percpu_lab: tuple[Capture, Program, Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, prog, found = percpu_lab
    further = [row for row in found.by_name["percpu_chunks"] if row.kind == "further"]
    largest = min(row.unit_bytes for row in further) - 1  # that of the others is less
    monkeypatch.setattr(percpu_chunks, "MAX_UNIT", largest)
    rows, _, notes = percpu_chunks.percpu(prog)
    assert len(rows) == len(found.by_name["percpu_chunks"]) - len(further)
    # 5.10 has chunks of their own for memory cgroups.
    assert len(notes) == len(further) == (2 if taken.kernel == "5.10" else 1)
    assert all("is damaged" in words for words in notes)
