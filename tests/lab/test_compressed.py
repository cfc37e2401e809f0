# SPDX-License-Identifier: LGPL-2.1-or-later
"""What memory cgroups have in zram and zswap, against their own counters and mm_stat."""

from collections.abc import Callable

import pytest
from capture import Capture
from conftest import KERNELS
from drgn import Program
from holders_lab import holders_capture
from ledger_lab import meminfo

from mmscope.drgn.ledger import swap_areas
from mmscope.drgn.ledger.page_holders import PageHolder, page_holders_from_memory
from mmscope.drgn.ledger.swap_cgroups import SwapCgroup
from mmscope.drgn.opening.btf import NO_MODULE_TYPES
from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory

pytestmark = pytest.mark.odd_machine

PAGE, MIB = 4096, 1 << 20
# programs/compressed.c
SWAPPED = {"third": 6 * MIB, "noise": 2 * MIB, "same": 4 * MIB, "removed": 3 * MIB}
IN_ZSWAP = 5 * MIB


@pytest.fixture(scope="module", params=KERNELS)
def taken(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Capture:
    return holders_capture(request.param, say, "compressed", ("zram",))


def said(taken: Capture, file: str) -> dict[str, int]:
    """What a file of each cgroup says."""
    paths = (taken.truth_b / "sys/fs/cgroup/packed").glob(f"*/{file}")
    return {path.parent.name: int(path.read_text()) for path in paths}


def mm_stat(taken: Capture) -> list[int]:
    return [*map(int, (taken.truth_b / "sys/block/zram0/mm_stat").read_text().split())]


@pytest.mark.parametrize("known_by", ["vmlinux", pytest.param("BTF", marks=pytest.mark.btf)])
def test_cgroups_have_swapped_out_what_they_say_themselves(taken: Capture, known_by: str) -> None:
    prog = open_target(taken.vmcore, [taken.vmlinux])
    if known_by == "BTF":
        prog = Program()
        prog.set_core_dump(taken.vmcore)
        attach(prog)
    memory = Memory(prog)
    found = swap_areas.from_memory(memory)
    rows: list[SwapCgroup] = found.by_name["swap_cgroups"]
    of = {str(row.cgroup).removeprefix("/packed/"): row for row in rows}
    zswap = said(taken, "memory.zswap.current")
    planted = {**SWAPPED, **({"zswap": IN_ZSWAP} if "zswap" in zswap else {})}
    # The kernel may put a page of the process's own aside as well: as its counter says.
    swapped = {name: size for name, size in said(taken, "memory.swap.current").items() if size}
    assert {name: row.swapped_bytes for name, row in of.items() if name != "removed"} == swapped
    assert swapped.keys() | {"removed"} == planted.keys()
    assert all(planted[name] - 32 * PAGE <= row.swapped_bytes for name, row in of.items())
    assert sum(row.swapped_bytes for row in rows) == int(
        (taken.truth_b / "sys/fs/cgroup/packed/memory.swap.current").read_text()
    )
    for name, row in of.items():
        assert row.zswap_bytes == zswap.get(name, 0)
        assert row.zswapped_bytes == (row.swapped_bytes if name == "zswap" else 0)
    if taken.kernel == "5.10":
        words = f"/dev/zram0: the memory that it takes is unknown: {NO_MODULE_TYPES}"
        assert (found.notes, {row.zram_bytes for row in rows}) == ([words], {None})
        return
    assert not found.notes
    assert (of["noise"].zram_bytes, of["same"].zram_bytes) == (SWAPPED["noise"], 0)
    header = mm_stat(taken)[1] - sum(row.zram_bytes or 0 for row in rows)
    assert 0 < header < PAGE


def test_pages_of_zsmalloc_are_by_device_and_zswaps(taken: Capture) -> None:
    memory = Memory(open_target(taken.vmcore, [taken.vmlinux]))
    found = page_holders_from_memory(memory)
    rows: list[PageHolder] = found.by_name["page_holders"]
    of = {row.kind: row for row in rows if row.kind in ("zram", "zswap")}
    if taken.kernel == "5.10":
        assert not of and any("zram" in words for words in found.remarks)
        return
    stored, _, memory_used = mm_stat(taken)[:3]
    assert (of["zram"].holder, of["zram"].objects) == ("zram0", stored // PAGE)
    assert of["zram"].bytes == memory_used
    zswap = meminfo(taken).get("Zswap", 0)
    assert (of["zswap"].pages if zswap else 0) == zswap
    assert {(row.owner, row.part) for row in of.values()} == {("compressed", "zsmalloc")}
