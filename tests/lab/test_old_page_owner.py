# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner of Linux 5.10 and 6.1, which the lab builds: out of memory, against what that kernel
printed right before it was frozen, and that text by its reader, against a plain count of it.

Costs a boot, of which no vmcore is kept.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kernels
import machine
import pytest
from archive import run
from capture import one_at_a_time
from conftest import KERNELS

from mmscope.drgn.opening.target import open_target
from mmscope.drgn.owners.page_owner import page_owner_orders, page_owner_stacks, page_owner_tasks
from mmscope.drgn.owners.page_owner_scan import PageOwner, scan_page_owner
from mmscope.drgn.reading.stack_depot import stack_depot
from mmscope.drgn.text.page_owner_text import MEMBERS, read_page_owner
from mmscope.drgn.text.stack_text import folded
from mmscope.drgn.text.text_source import Source

pytestmark = [pytest.mark.any_config, pytest.mark.brief]

OLD = [name for name in KERNELS if name.startswith("owner-")]
# Kernels before v5.11 keep no more.
BARE = {"owner-5.10"}
PROGRAM = Path(__file__).parent / "programs/page_owner_text.c"
# Has a buffer for each record, whose slab its own text may show, or not.
PRINTER = "read_page_owner"


@dataclass(frozen=True)
class Old:
    """Its text, and what memory had."""

    bare: bool
    text: Path
    found: PageOwner
    stacks: Counter[str | None]  # pages


def build_init(folder: Path) -> Path:
    """The guest's /init, with what records page_owner."""
    init = folder / "init"
    options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={kernels.PAGE_BYTES}UL")
    wrapped = "-Wl,--wrap=truth_prepare,--wrap=pread"
    sources = [*map(str, sorted(machine.GUEST.glob("*.c"))), str(PROGRAM)]
    run("gcc", *options, wrapped, "-o", str(init), *sources)
    return init


Task = tuple[int | None, int | None, str | None]


def plainly(text: str) -> tuple[Counter[str], Counter[int], Counter[Task]]:
    """Pages by stack as printed, by order, and by task, but for what prints it."""
    stacks: Counter[str] = Counter()
    orders: Counter[int] = Counter()
    tasks: Counter[Task] = Counter()
    for record in text.removesuffix("\n\n").split("\n\n"):
        match = re.match(
            r"Page allocated via order (\d+), mask 0x[0-9a-f]+\([^)]*\)"
            r"(?:, pid (\d+), tgid (\d+) \((.*)\), ts \d+ ns, free_ts \d+ ns)?\nPFN \d+ type",
            record,
        )
        assert match, record
        if f" {PRINTER}+" in record:
            continue
        lines = [line for line in record.split("\n") if line.startswith(" ")]
        stacks["".join(f"{line}\n" for line in lines)] += 1 << int(match[1])
        orders[int(match[1])] += 1 << int(match[1])
        pid, tgid = (None if match[n] is None else int(match[n]) for n in (2, 3))
        tasks[pid, tgid, match[4]] += 1 << int(match[1])
    return stacks, orders, tasks


# Where no kernel of the run is that there is nothing to test, and nothing to skip.
if OLD:

    @pytest.fixture(scope="module", params=OLD)
    def old(
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
        say: Callable[[str], None],
    ) -> Old:
        kernel = kernels.get(request.param, say)
        folder = tmp_path_factory.mktemp("old")
        with one_at_a_time():
            say(f"booting {kernel.release}, for what page_owner prints")
            machine.run(kernel, "sizes", folder, say, init=build_init(folder))
        core = folder / "vmcore"
        prog = open_target(core, [kernel.vmlinux])
        found = scan_page_owner(prog)
        rows, checks = page_owner_stacks(prog, stack_depot(prog), found)
        assert checks == []
        stacks: Counter[str | None] = Counter()
        for row in rows:
            stacks[row.stack] += row.pages
        core.unlink()
        text = folder / "truth/B/sys/kernel/debug/page_owner"
        return Old(request.param in BARE, text, found, stacks)

    def test_its_text_is_counted(old: Old) -> None:
        stacks, orders, tasks = plainly(old.text.read_text())
        with Source(str(old.text)) as source:
            tally = read_page_owner(source)
        assert tally["skipped"] == tally["truncated"] == tally["unknown_lines"] == 0
        read = {s.decode(): row[0] for (_, s), row in tally["stacks"].items()}
        assert {stack: n for stack, n in read.items() if f" {PRINTER}+" not in stack} == stacks
        assert sum(stacks.values()) == sum(orders.values()) > 5_000
        assert (tally["tasks"].keys() == {(None, None, None)}) == old.bare
        counted: Counter[Task] = Counter()
        for (pid, tgid, comm), (pages, _) in tally["tasks"].items():
            counted[pid, tgid, comm if comm is None else comm.decode()] = pages
        # The task that prints has the printer's pages, too.
        assert {task for task in counted if counted[task] != tasks[task]} <= {
            task for task in counted if task[2] in (None, "init")
        }

    def test_memory_has_what_it_printed(old: Old) -> None:
        stacks, orders, _ = plainly(old.text.read_text())
        printed: Counter[str | None] = Counter()
        # Where a fault interrupted a function's first instruction, frame_names() takes its address
        # for one to return to, behind the end of another function.
        at_start = 0
        for stack, pages in stacks.items():
            if "+0x0/" in stack:
                at_start += pages
            else:
                printed[folded(stack.encode())] += pages
        held: Counter[str | None] = Counter()
        for name, pages in old.stacks.items():
            if name is None or PRINTER not in name.split(";"):
                held[name] += pages
        assert printed - held == Counter()
        assert (held - printed).total() == at_start
        # The printer's stacks apart, which have orders 0 and 3.
        by_order = {row.order: row.pages for row in page_owner_orders(old.found)}
        assert by_order.keys() == orders.keys()
        assert {n for n in orders if by_order[n] != orders[n]} <= {0, 3}
        assert sum(by_order.values()) == sum(old.stacks.values())
        assert (old.found.damaged, old.found.gaps.bytes) == (0, 0)

    def test_it_keeps_the_tasks_that_it_printed(old: Old) -> None:
        rows = page_owner_tasks(old.found)
        if old.bare:  # neither tasks nor times
            assert rows == []
            assert old.found.has == frozenset()
            return
        assert old.found.has == MEMBERS
        _, _, tasks = plainly(old.text.read_text())
        held = Counter({(row.pid, row.tgid, row.comm): row.pages for row in rows})
        assert {task for task in held | tasks if held[task] != tasks[task]} <= {(1, 1, "init")}
        assert len(tasks) > 5
