# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about reverse maps: a lab vmcore with 220,000 anon_vma_chains, against
drgn's red-black tree and list helpers in a loop.

As ``bench.py``: medians in one process, and the ratio is what to look at. The loops are measured on
a sample.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from bench import median_seconds  # noqa: E402
from capture import capture  # noqa: E402
from conftest import _rmap_lab  # noqa: E402
from drgn import Object, Program  # noqa: E402
from drgn.helpers.linux.list import hlist_for_each_entry, list_for_each_entry  # noqa: E402
from drgn.helpers.linux.mm import for_each_vma  # noqa: E402
from drgn.helpers.linux.pid import find_task  # noqa: E402
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from rmap_truth import VMAS, timed_walks  # noqa: E402

from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.reading.struct_pages import scan_struct_pages  # noqa: E402
from mmscope.drgn.rmap.anon_vmas import anon_vma_rows, fanout, process_vmas  # noqa: E402
from mmscope.drgn.rmap.file_maps import read_file_maps  # noqa: E402
from mmscope.drgn.rmap.ksm import NodeCost, ksm_pages, ksm_visits, read_ksm  # noqa: E402
from mmscope.drgn.rmap.reverse_maps import check_sample, read_reverse_maps  # noqa: E402
from mmscope.drgn.rmap.rmap_cost import FolioPlaces, scan_folios  # noqa: E402
from mmscope.drgn.rmap.vma_splits import vma_splits  # noqa: E402

SAMPLE_NODES = 20_000


def chain_loop(prog: Program, pid: int) -> int:
    """Which anon_vmas there are, with drgn's helpers: the list of each VMA of a process."""
    chains = 0
    seen = set()
    for vma in for_each_vma(find_task(prog, pid).mm):
        head = vma.anon_vma_chain.address_of_()
        for chain in list_for_each_entry("struct anon_vma_chain", head, "same_vma"):
            seen.add(chain.anon_vma.value_())
            chains += 1
        if chains >= SAMPLE_NODES:
            break
    return chains


def tree_loop(anon_vma: Object, most: int) -> int:
    """The VMAs of an interval tree with drgn's helper."""
    nodes = 0
    root = anon_vma.rb_root.rb_root.address_of_()
    for chain in rbtree_inorder_for_each_entry("struct anon_vma_chain", root, "rb"):
        vma = chain.vma
        vma.vm_pgoff.value_(), vma.vm_start.value_(), vma.vm_end.value_(), vma.vm_mm.value_()
        nodes += 1
        if nodes >= most:
            break
    return nodes


def item_loop(prog: Program, nodes: list[int]) -> int:
    """The mappings of KSM pages with drgn's helper."""
    items = 0
    for address in nodes:
        node = Object(prog, "struct ksm_stable_node", address=address)
        for item in hlist_for_each_entry("struct ksm_rmap_item", node.hlist.address_of_(), "hlist"):
            item.anon_vma.value_(), item.mm.value_(), item.address.value_()
            items += 1
    return items


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


# What of the ``rmap`` workload is migrated, and what it is here.
KINDS = (
    ("ksm-vmas", "KSM page, 256 mappings"),
    ("ksm-vmas, the last page", "KSM page, 32 mappings"),
    ("ksm-few, three mappings", "KSM page, 3 mappings, 22,169 VMAs"),
    ("ksm-few, one mapping", "KSM page, 1 mapping, 22,169 VMAs"),
    ("anon-vmas", "anonymous, one VMA over it"),
    ("file-vmas", "file, one VMA over it"),
    ("file-same", "file, 20,000 VMAs over it"),
)


def walks(kernel: str, table: Table, say: Callable[[str], None]) -> None:
    """
    The walks of a migration that a guest has timed (``workload_rmap.c``), beside what is counted
    in its memory.
    """
    lab = _rmap_lab(capture(kernel, "rmap", say=say))
    prog, cost = lab.prog, NodeCost()
    timed = timed_walks(lab)
    files = read_file_maps(prog, lab.maps.slots["vma"], lab.maps.tasks)
    anon, of_files, _ = scan_folios(prog, lab.maps, files)
    assert of_files is not None
    pages = {row.pfn: row for row in ksm_pages(prog, lab.ksm, lab.visits, cost)}
    for name, what in KINDS:
        walk = timed[name]
        if (row := pages.get(walk.pfn)) is not None:
            indexed, unmap, again = row.visits_indexed, row.pass_ms, row.walk_ms
            counted = indexed if lab.visits.uses_index else row.visits_per_pass
        else:
            of_file = name.startswith("file")
            folios = of_files if of_file else anon
            (counted,) = (
                visits
                for index, visits in enumerate(folios.worst["visits"].tolist())
                if folios.trees.owner(index)[1] == name and VMAS in (visits, folios.folios[index])
            )
            indexed, unmap = counted, cost.ms(counted, counted)
            again = unmap
        table.add_row(
            kernel,
            what,
            f"{counted:,}",
            f"{indexed:,}",
            f"{unmap:,.3g} ms",
            f"{walk.unmap_ms:,.3g} ms",
            f"{again:,.3g} ms",
            f"{walk.map_ms:,.3g} ms",
        )


def visit_ns(vmas: int) -> str:
    """What visits take on this machine itself (``bench_visits.c``)."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        program = f"{folder}/bench_visits"
        subprocess.run(
            ["gcc", "-O2", "-o", program, str(ROOT / "tests/bench/bench_visits.c")], check=True
        )
        done = subprocess.run(
            [program, f"{folder}/file", str(vmas)], check=True, capture_output=True, text=True
        )
    node, one = done.stdout.split()
    return f"{node} ns a VMA passed by, {one} ns one whose page table is changed"


def main() -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    lab = capture("stable", "rmap_stall", say=say)
    prog = open_target(lab.vmcore, [lab.vmlinux])
    table = Table("what", "here", "beside it", "ratio", title="reverse maps")
    for column in table.columns[1:]:
        column.justify = "right"

    def row(what: str, here: float, beside: float, unit: str, naive: str) -> None:
        table.add_row(
            what,
            f"{here:,.0f} {unit}/s",
            f"{beside:,.0f} {unit}/s {naive}",
            f"{here / beside:,.0f}x",
        )

    maps = read_reverse_maps(prog)
    chains, largest = len(maps.first), int(maps.tree_size.argmax())
    whole = median_seconds(lambda: read_reverse_maps(prog))
    # The loop goes over the lists, to find the anon_vmas, and over their trees.
    splitter = next(row for row in process_vmas(prog, maps) if row.comm == "splitter")
    listed, found = seconds(lambda: chain_loop(prog, splitter.pid))
    anon_vma = Object(prog, "struct anon_vma", address=int(maps.anon_vmas.address[largest]))
    loop, nodes = seconds(lambda: tree_loop(anon_vma, SAMPLE_NODES))
    both = 1 / (listed / found + loop / nodes)
    row(f"{chains:,} anon_vma_chains", chains / whole, both, "chains", "list, then rbtree loop")
    row("the same", chains / whole, nodes / loop, "nodes", "rbtree loop alone")
    made = median_seconds(lambda: (anon_vma_rows(maps), fanout(maps)))
    checked, _ = seconds(lambda: check_sample(prog, maps))
    table.add_row(
        f"{len(maps.anon_vmas):,} anon_vmas: read, and rows",
        f"{whole * 1000:,.0f} + {made * 1000:,.0f} ms",
        f"{checked * 1000:,.0f} ms checking a sample",
        "",
    )
    slots = maps.slots["stable_node"], maps.slots["rmap_item"]
    ksm = read_ksm(prog, *slots)
    items = len(ksm.item_node)
    merged = median_seconds(lambda: read_ksm(prog, *slots))
    looped, walked = seconds(lambda: item_loop(prog, ksm.node.tolist()))
    row(f"{items:,} KSM mappings", items / merged, walked / looped, "items", "hlist loop")
    shift = prog["PAGE_SHIFT"].value_()
    visits = ksm_visits(maps, ksm, shift)
    counted = median_seconds(lambda: ksm_visits(maps, ksm, shift))
    number = int(visits.whole.sum())
    row(
        f"their {number:,} visits, counted", number / counted, nodes / loop, "visits", "rbtree loop"
    )
    folios = median_seconds(lambda: scan_folios(prog, maps))
    places = FolioPlaces()
    scan_struct_pages(prog, [places])
    again = median_seconds(lambda: scan_folios(prog, maps, places=places))
    table.add_row(
        "struct pages again, where folios may be",
        f"{again * 1000:,.0f} ms",
        f"{folios * 1000:,.0f} ms all of them",
        f"{folios / again:,.1f}x",
    )
    why = median_seconds(lambda: vma_splits(prog, maps), 1)
    table.add_row("what keeps 20,000 VMAs apart", f"{why * 1000:,.0f} ms", "", "")
    Console(width=150).print(table)

    table = Table(
        *("kernel", "page", "visits a pass", "with its offset", "unmap: estimate", "measured"),
        *("map again: estimate", "measured"),
        title="walks of a migration, among 20,000 VMAs (measured under emulation)",
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for kernel in ("7.2", "7.3"):
        walks(kernel, table, say)
    Console(width=150).print(table)
    for vmas in (20_000, 60_000):
        print(f"on this machine, of {vmas:,} VMAs: {visit_ns(vmas)}")


if __name__ == "__main__":
    main()
