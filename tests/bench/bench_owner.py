# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about owners: page_owner, the stack depot and SLUB's tracks out of a lab
vmcore, with drgn's own helpers in a loop beside them.

As ``bench.py``: medians in one process, and the ratio is what to look at. The loops are measured on
a sample.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from bench import median_seconds  # noqa: E402
from capture import capture  # noqa: E402
from drgn import Object, Program, cast  # noqa: E402
from drgn.helpers.linux.list import list_for_each_entry  # noqa: E402
from drgn.helpers.linux.slab import (  # noqa: E402
    find_slab_cache,
    slab_cache_for_each_allocated_object,
)
from drgn.helpers.linux.stackdepot import stack_depot_fetch  # noqa: E402
from plain_walks import alloc_tag_loop, page_owner_loop  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.owners.alloc_tags import alloc_tag_rows, read_tags  # noqa: E402
from mmscope.drgn.owners.page_owner import page_owner_stacks, scan_page_owner  # noqa: E402
from mmscope.drgn.owners.slab_owner import slab_owner_stacks, slab_owners  # noqa: E402
from mmscope.drgn.reading.page_ext import page_ext_ranges  # noqa: E402
from mmscope.drgn.reading.stack_depot import folded_stacks, stack_depot  # noqa: E402

SAMPLE_PFNS = 4096
SAMPLE_STACKS = 400


def hash_walk(prog: Program) -> int:
    """Every record along the depot's hash table, with drgn's list helper."""
    records = 0
    table, mask = prog["stack_table"], prog["stack_hash_mask"].value_()
    for bucket in range(mask + 1):
        for record in list_for_each_entry("struct stack_record", table + bucket, "hash_list"):
            record.size.value_()
            records += 1
    return records


def track_loop(prog: Program, name: str) -> int:
    """Allocated objects of a cache with drgn's helper, and the handle of each one's track."""
    cache = find_slab_cache(prog, name)
    assert cache is not None
    end = cache.inuse.value_() + (8 if cache.offset.value_() >= cache.inuse.value_() else 0)
    objects = 0
    for pointer in slab_cache_for_each_allocated_object(cache, "char"):
        track = cast("struct track *", cast("unsigned long", pointer) + end)
        track.handle.value_()
        objects += 1
    return objects


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def main() -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    table = Table("what", "here", "beside it", "ratio", title="owners")
    for column in table.columns[1:]:
        column.justify = "right"

    def row(what: str, here: float, beside: float, unit: str, naive: str) -> None:
        table.add_row(
            what,
            f"{here:,.0f} {unit}/s",
            f"{beside:,.0f} {unit}/s {naive}",
            f"{here / beside:,.0f}x",
        )

    lab = capture("owner", "owner", say=say)
    prog = open_target(lab.vmcore, [lab.vmlinux])
    pages = sum(span.end_pfn - span.start_pfn for span in page_ext_ranges(prog))
    scan = median_seconds(lambda: scan_page_owner(prog))
    start = page_ext_ranges(prog)[-1].start_pfn
    loop, _ = seconds(lambda: page_owner_loop(prog, start, start + SAMPLE_PFNS))
    row(
        f"page_owner: {pages:,} page_exts, all breakdowns",
        pages / scan,
        SAMPLE_PFNS / loop,
        "pages",
        "loop over pages",
    )
    depot = stack_depot(prog)
    found = scan_page_owner(prog)
    stacks = median_seconds(lambda: page_owner_stacks(prog, depot, found))
    table.add_row(
        f"its {len(found.by('handle')):,} stacks, with symbols", f"{stacks * 1000:,.0f} ms", "", ""
    )

    tags = median_seconds(lambda: alloc_tag_rows(read_tags(prog), live=False))
    looped, every = seconds(lambda: len(list(alloc_tag_loop(prog))))
    row(f"alloc tags: {every:,}", every / tags, every / looped, "tags", "an object for each")

    lab = capture("stable", "slab", say=say)
    prog = open_target(lab.vmcore, [lab.vmlinux])
    depot = stack_depot(prog)
    read = median_seconds(lambda: stack_depot(prog))
    walk, records = seconds(lambda: hash_walk(prog))
    row("stack depot", len(depot.handles) / read, records / walk, "records", "hash table walk")
    names = median_seconds(lambda: folded_stacks(prog, depot, depot.handles))
    sample = depot.handles[:: len(depot.handles) // SAMPLE_STACKS]

    def fetch_all() -> int:
        frames = 0
        for handle in sample.tolist():
            trace = stack_depot_fetch(Object(prog, "depot_stack_handle_t", value=handle))
            frames += len([frame.name for frame in trace or ()])
        return frames

    fetched, _ = seconds(fetch_all)
    row(
        "stacks with symbols",
        len(depot.handles) / names,
        len(sample) / fetched,
        "stacks",
        "stack_depot_fetch",
    )
    owners = slab_owners(prog, depot)
    objects = sum(count for count, _ in owners.counts.values())
    tracks = median_seconds(lambda: slab_owners(prog, depot))
    looped, sampled = seconds(lambda: track_loop(prog, "kernfs_node_cache"))
    row(
        f"slab owners: {objects:,} objects of all caches",
        objects / tracks,
        sampled / looped,
        "objects",
        "drgn's helper, its largest cache",
    )
    resolved = median_seconds(lambda: slab_owner_stacks(prog, depot, owners))
    table.add_row("their stacks, with symbols", f"{resolved * 1000:,.0f} ms", "", "")
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
