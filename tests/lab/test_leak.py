# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory that is gone on a stock kernel: 200 MiB that a module leaked, 32 MiB that a balloon gave back
to the host, page pools of the network stack; and version 1 of memory cgroups, where the kernel has
that.

Modules are built here for the running release, with the headers of Debian's archive.
"""

import re
from collections import Counter
from collections.abc import Callable

import pytest
from capture import capture
from command_line import run
from conftest import KERNELS
from ledger_lab import LedgerLab, assert_adds_up, read_ledger

from mmscope.drgn.cgroups.cgroup_files import memory_cgroups_from_files
from mmscope.drgn.cgroups.cgroup_rows import AMOUNTS, ONLINE, V1
from mmscope.drgn.ledger.memory_cgroups import memory_cgroups_from_memory
from mmscope.drgn.ledger.memory_ledger import UnexplainedRow
from mmscope.drgn.ledger.page_holders import page_holders_from_memory
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate

PAGE, MIB = 4096, 1 << 20
# guest/stock/mmscope_leak.c; of each round half is in compound pages.
ROUNDS, ORDERS, MORE = 50, range(9), 100
BLOCKS = ROUNDS * len(ORDERS)
LEAKED = 2 * ROUNDS * sum(1 << order for order in ORDERS) + MORE
BALLOON = 32 * MIB // PAGE
# guest/stock/mmscope_pool.c
POOL = r"mmscope_pool: (\d+) of order (\d+)"
# The kernel's own tails of blocks that are no compound pages, of a machine of 1.5 GiB.
OTHER_TAILS = 400


@pytest.fixture(scope="module", params=[name for name in KERNELS if name != "owner"])
def leak_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> LedgerLab:
    """The ``leak`` workload on a kernel."""
    return read_ledger(capture(request.param, "leak", say=say))


def test_a_leak_is_in_the_unexplained_to_the_page(leak_lab: LedgerLab) -> None:
    assert LEAKED * PAGE == 200 * MIB
    assert_adds_up(leak_lab.found)
    listed: list[UnexplainedRow] = leak_lab.found.by_name["ledger_unexplained"]
    marked = [row for row in listed if "private" in row.flags.split()]
    pages = Counter[tuple[str, int | None]]()
    for row in marked:
        assert (row.references, row.charged) == ("1", "no")
        pages[row.part, row.order] += row.pages
    # __GFP_COMP makes no difference to a single page.
    expected = {("single pages", None): BLOCKS + ROUNDS + MORE}
    expected |= {("compound pages", order): ROUNDS << order for order in ORDERS[1:]}
    assert pages == expected
    tails = LEAKED - pages.total()
    assert tails == ROUNDS * sum((1 << order) - 1 for order in ORDERS)
    found = leak_lab.pages("unexplained", "tail of a block that is no compound page")
    print(f"{found} tails, {tails} of them leaked")
    assert tails <= found < tails + OTHER_TAILS


def test_without_it_there_is_little(leak_lab: LedgerLab) -> None:
    unexplained = leak_lab.pages("unexplained")
    total = sum(row.pages for row in leak_lab.rows)
    print(f"{unexplained - LEAKED} pages of {total} beside the leak")
    assert 0 <= unexplained - LEAKED < 0.005 * total


def test_the_finding_says_it(leak_lab: LedgerLab, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("leak") / "bundle"
    taken = leak_lab.capture
    result = run(
        "collect", "--core", taken.vmcore, "--symbols", taken.vmlinux,
        "--only", "memory_ledger", "--no-findings", "-o", path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (found,) = [item for item in evaluate(Bundle(path)).found if item.id == "unexplained-pages"]
    pages = leak_lab.pages("unexplained")
    assert f"{pages:,} pages are in use without a page type" in found.saw
    listed: list[UnexplainedRow] = leak_lab.found.by_name["ledger_unexplained"]
    # Of all zones; the kernel itself may have one more such block.
    large = sum(row.pages for row in listed if (row.part, row.order) == ("compound pages", 8))
    assert large >= ROUNDS << 8
    assert f"compound pages of order 8: {large}" in found.saw


def test_a_balloon_has_the_pages_that_were_given_away(leak_lab: LedgerLab) -> None:
    text = (leak_lab.capture.truth_b / "proc/vmstat").read_text()
    said = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
    assert said["balloon_inflate"] - said["balloon_deflate"] == BALLOON
    assert leak_lab.pages("given away", "balloon or offline") == BALLOON
    rows = page_holders_from_memory(Memory(leak_lab.prog)).by_name["page_holders"]
    by_driver = {row.holder: row.pages for row in rows if row.kind == "balloon"}
    assert by_driver == {"virtio_balloon": BALLOON}
    # "meminfo: add a per node counter for balloon drivers" (835de37603ef, in v6.16)
    if "nr_balloon_pages" in said:
        assert said["nr_balloon_pages"] == BALLOON
        assert leak_lab.checks["nr_balloon_pages"].kernel_pages == BALLOON
        assert leak_lab.checks["nr_balloon_pages"].difference_pages == 0


def test_page_pools_have_what_they_count(leak_lab: LedgerLab) -> None:
    said = " ".join(record.text for record in log_records(leak_lab.prog).records)
    pools = {int(order): int(held) for held, order in re.findall(POOL, said)}
    assert set(pools) == (set() if leak_lab.capture.series == "5.10" else {0, 2})
    print(pools)
    # In use, in the ring, and of single pages, which are taken many at once, in the cache.
    assert all(pools[order] >= in_use for order, in_use in ((0, 990), (2, 40)) if pools)
    pages = sum(held << order for order, held in pools.items())
    assert leak_lab.pages("network", "page pools") == pages
    rows = page_holders_from_memory(Memory(leak_lab.prog)).by_name["page_holders"]
    by_pool = {row.holder: row.pages for row in rows if row.kind == "page pool"}
    each = sorted(held << order for order, held in pools.items())
    # They have no device; and no number in 6.1.
    assert sorted(by_pool.values()) == ([pages] if "" in by_pool else each)


def test_version_1_of_memory_cgroups_is_what_its_files_say(leak_lab: LedgerLab) -> None:
    files = Files(leak_lab.capture.truth_b)
    if "no version 1 of memory cgroups" in leak_lab.capture.console.read_text():
        assert leak_lab.capture.series != "6.1"
        with pytest.raises(Absent):
            memory_cgroups_from_files(files)
        return
    found = memory_cgroups_from_memory(Memory(leak_lab.prog)).by_name["memory_cgroups"]
    ours = {row.cgroup: row for row in found if row.state == ONLINE}
    theirs = memory_cgroups_from_files(files)
    rows = theirs.by_name["memory_cgroups"]
    assert V1 in theirs.remarks and len(rows) == 2
    for said in rows:
        row = ours[said.cgroup]
        columns = [*(name for name, (_, _, file) in AMOUNTS.items() if file), "failures"]
        print(said.cgroup, {name: getattr(said, name) for name in columns})
        assert {name: getattr(row, name) for name in columns} == {
            name: getattr(said, name) for name in columns
        }
    shop, till = ours["/shop"], ours["/shop/till"]
    assert shop.max_bytes == 64 * MIB and till.max_bytes is None
    assert till.usage_bytes is not None and shop.usage_bytes is not None
    assert till.usage_bytes >= 5 * MIB and till.usage_bytes + 15 * MIB <= shop.usage_bytes
