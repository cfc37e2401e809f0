# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks for other tools, of recordings and of tables that have stacks."""

import gzip
import subprocess
from pathlib import Path

import pytest
import report_bundle as made
from command_line import ROOT, RUN
from finding_cases.case import bundle as empty_bundle
from rows_of_tables import TABLE_OF

from mmscope.drgn.log.allocation_failures import AllocationFailure
from mmscope.drgn.rmap.file_maps import FileMappingLock
from mmscope.drgn.waits.wait_tables import TaskWait
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.commands.command import main
from mmscope.reports.profiles.exported_stacks import stack_sets


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return made.write_bundle(tmp_path_factory.mktemp("stacks") / "b", made.tables())


def test_a_table_has_a_set_for_each_amount_and_pages_are_bytes(bundle: Bundle) -> None:
    sets = {
        name: (unit, list(stacks)) for name, unit, stacks in stack_sets(bundle, "page_owner_stacks")
    }
    unit, pages = sets["page_owner_stacks_pages"]
    assert unit == "bytes"
    rows = [row for row in bundle.rows("page_owner_stacks") if row["stack"] and row["pages"]]
    assert pages == [(row["stack"], row["pages"] * 4096) for row in rows]
    assert sets["page_owner_stacks_allocations"][0] == "allocations"


def test_what_else_names_a_row_is_the_root(bundle: Bundle) -> None:
    ((_, _, stacks), *_) = stack_sets(bundle, "slab_owner_stacks")
    caches = {row["cache"] for row in bundle.rows("slab_owner_stacks")}
    assert {stack.partition(";")[0] for stack, _ in stacks} <= caches


def test_what_has_no_stacks_is_said_with_what_has(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"zones: the bundle has no .* has .*page_owner"):
        stack_sets(bundle, "zones")


@pytest.mark.parametrize("row", [TaskWait, AllocationFailure, FileMappingLock])
def test_a_stack_beside_a_pid_or_an_order_is_no_amount(tmp_path: Path, row: type) -> None:
    bundle = empty_bundle(tmp_path / "b", [], empty=(row,))
    table = TABLE_OF[row].name
    assert "stack" in {column.name for column in bundle.tables[table].columns}
    with pytest.raises(UsageError, match=f"{table}: the bundle has no such stacks; it has none"):
        stack_sets(bundle, table)


def test_formats_on_the_command_line(
    bundle: Bundle, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["show", "page_owner_stacks", str(bundle.path), "--format", "folded"]) == 0
    folded = capsysbinary.readouterr().out.decode().splitlines()
    ((_, _, pages), *_) = stack_sets(bundle, "page_owner_stacks")
    assert [int(line.rpartition(" ")[2]) for line in folded] == [value for _, value in pages]
    assert main(["show", "profiles", str(bundle.path), "--format", "pprof"]) == 0
    file = gzip.decompress(capsysbinary.readouterr().out)
    assert all(name.encode() in file for name in bundle.folded)


def test_no_binary_file_on_a_terminal(bundle: Bundle) -> None:
    import pty

    _ours, theirs = pty.openpty()
    show = [*RUN, "show", "profiles", str(bundle.path), "--format", "pprof"]
    done = subprocess.run(show, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "> FILE" in done.stderr
