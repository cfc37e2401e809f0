# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about memory cgroups: all of a lab vmcore with 1,200 dying ones, with
drgn's own helpers in a loop beside them; and what the ledger's pass pays for pages by cgroup.

As ``bench.py``: medians in one process, and the ratio is what to look at.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from bench import median_seconds  # noqa: E402
from capture import capture  # noqa: E402
from drgn import Program, container_of  # noqa: E402
from drgn.helpers.linux.cgroup import cgroup_path, css_for_each_descendant_pre  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths  # noqa: E402
from mmscope.drgn.cgroups.charged_pages import ChargedPages  # noqa: E402
from mmscope.drgn.cgroups.memcgs import Memcgs, read_memcgs  # noqa: E402
from mmscope.drgn.ledger.ledger_pages import OF_OBJECTS, LedgerPages  # noqa: E402
from mmscope.drgn.ledger.page_places import PagePlaces, page_places  # noqa: E402
from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.reading.kernel_arrays import Gaps  # noqa: E402
from mmscope.drgn.reading.struct_pages import scan_struct_pages  # noqa: E402
from mmscope.drgn.sections.memory import Memory  # noqa: E402

STATES = 30  # of memcg_vmstats


def walk(prog: Program) -> int:
    """The tree of memory cgroups, each one's path, counters, events and statistics."""
    count = 0
    for css in css_for_each_descendant_pre(prog["root_mem_cgroup"].css.address_of_()):
        memcg = container_of(css, "struct mem_cgroup", "css")
        cgroup_path(css.cgroup)
        for counter in (memcg.memory, memcg.swap):
            for name in ("min", "low", "high", "max", "watermark"):
                counter.member_(name).value_()
            counter.usage.counter.value_()
        for event in (*memcg.memory_events, *memcg.memory_events_local):
            event.counter.value_()
        for number in range(STATES):
            memcg.vmstats.state[number].value_()
        count += 1
    return count


def read(prog: Program) -> Memcgs:
    memcgs = read_memcgs(prog)
    cgroup_paths(prog, memcgs.columns["cgroup"], Gaps())
    return memcgs


def ledger(prog: Program, places: PagePlaces, memcgs: Memcgs | None) -> int:
    """The ledger's pass, with pages by cgroup or without; returns the pages."""
    charged = None
    if memcgs is not None:
        charged = ChargedPages(prog, memcgs.address[memcgs.dying], OF_OBJECTS)
    counted = LedgerPages(prog, places.ram, places.owned, charged)
    return scan_struct_pages(prog, [counted]).pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="6.1")
    parser.add_argument("--core", type=Path, help="another vmcore of this kernel")
    args = parser.parse_args()
    lab = capture(args.kernel, "cgroups", say=lambda text: print(text, file=sys.stderr))
    prog = open_target(args.core or lab.vmcore, [lab.vmlinux])
    memcgs, places = read(prog), page_places(Memory(prog))
    pages = ledger(prog, places, memcgs)
    here, beside = median_seconds(lambda: read(prog)), median_seconds(lambda: walk(prog), 1)
    table = Table("what", "here", "beside it", "ratio", title=f"{lab.release}: memory cgroups")
    count = len(memcgs.address)
    table.add_row(
        f"{count:,} cgroups, {int(memcgs.dying.sum()):,} dying: counters, events, paths",
        f"{here * 1000:,.1f} ms",
        f"{beside * 1000:,.1f} ms drgn's helpers, one at a time",
        f"{beside / here:,.1f}x",
    )
    more = median_seconds(lambda: ledger(prog, places, memcgs), 9)
    less = median_seconds(lambda: ledger(prog, places, None), 9)
    table.add_row(
        f"ledger of {pages:,} pages, with pages by cgroup",
        f"{more * 1000:,.1f} ms",
        f"{less * 1000:,.1f} ms without: {(more - less) / pages * 1e9:,.1f} ns a page",
        f"{less / more:,.2f}x",
    )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
