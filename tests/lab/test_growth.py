# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two readings of a guest between which one of two processes took more memory: it is named."""

import csv
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kernels
import pytest
from command_line import run
from conftest import STANDS_ON
from drgn import Program
from healthy import guest
from made_lake import lake_of

from mmscope.drgn.ledger.page_holders import PageHolder, page_holders_from_memory
from mmscope.drgn.opening.target import describe
from mmscope.drgn.sections.memory import Memory
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

MIB = 1 << 20
GROWS, STEADY = "g-grows", "g-steady"  # programs/grow.c
ENOUGH, BEGIN_SECONDS = 48 * MIB, 300


def pipes(prog: Program) -> int:
    """Bytes that the process that grows has in pipes, which are pages and rings of buffers."""
    found: list[PageHolder] = page_holders_from_memory(Memory(prog)).by_name["page_holders"]
    return sum(row.bytes for row in found if (row.kind, row.comm) == ("pipe", GROWS))


def wait_for(prog: Program, bytes_: int) -> None:
    """Wait until the process that grows has so many, however slow the machine is."""
    end = time.monotonic() + BEGIN_SECONDS
    while pipes(prog) < bytes_:
        assert time.monotonic() < end
        time.sleep(1)


@pytest.fixture(scope="module")
def taken(
    tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]
) -> Iterator[tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("growth")
    before, after = folder / "before", folder / "after"
    with guest(kernels.get(STANDS_ON, say), "grow", seconds=1) as prog:
        wait_for(prog, MIB)
        for bundle in (before, after):
            with Writer(bundle) as writer:
                target = describe(prog, "live")
                collect(Memory(prog), target, writer, ["memory_ledger", "page_holders"])
            if bundle == before:
                wait_for(prog, pipes(prog) + ENOUGH)
    yield before, after


def test_a_lake_names_the_holder_that_grew_and_no_other(
    taken: tuple[Path, Path], tmp_path: Path
) -> None:
    assert not lake_of(tmp_path, *taken)
    said = run("lake", "findings", tmp_path / "lake", "--by", "owner", "--format", "csv").stdout
    grew = [row for row in csv.DictReader(io.StringIO(said)) if row["grew"] == "true"]
    (row,) = (row for row in grew if row["what"] == "holder")
    assert row["owner"] == f"pipe of {GROWS}" and int(row["bytes"]) >= ENOUGH
    assert STEADY not in said


def test_a_comparison_has_it_too(taken: tuple[Path, Path]) -> None:
    done = run("compare", taken[0], "--", taken[1])
    assert GROWS in done.stdout and STEADY not in done.stdout
