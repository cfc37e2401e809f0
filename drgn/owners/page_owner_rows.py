# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of the page_owner section: one class a table."""

from mmscope.drgn.tables.rows import MOST_PIDS, column
from mmscope.drgn.tables.table import SERIES, table

OTHER_TASKS = "(other tasks, beyond the limit of what is kept)"


@table("page_owner_stacks", "Pages by allocation stack", lasting=("stack",))
class PageOwnerStack:
    """The pages that one allocation stack holds."""

    handle: int = column(
        key=True,
        help="stack depot handle (below 2^32), or an id of the stack's text",
    )
    pages: int = column(unit="pages", help="allocated by this stack, not freed")
    allocations: int | None = column(help="of any order, behind the pages")
    owner: str | None = column(
        holds="kernel", help="first frame from the leaf outside the allocator"
    )
    module: str | None = column(holds="kernel", help="of the owner frame; empty: the kernel itself")
    stack: str | None = column(
        holds="kernel", help="root;…;leaf without offsets; empty: no resolver has it"
    )
    note: str | None = column(holds="words", help="missing in the resolver, or a reused handle")


@table("page_owner_tasks", "Pages by task", lasting=("comm",), memory="again")
class PageOwnerTask:
    """Pages allocated by one task, under its pid and comm of that moment."""

    pid: int | None = column(key=True, high=MOST_PIDS, help="thread; empty: all others")
    tgid: int | None = column(key=True, high=MOST_PIDS, help="process")
    comm: str | None = column(
        holds="comm",
        key=True,
        help="name at the time; empty with tgid before v5.18",
    )
    pages: int = column(unit="pages", help="allocated by it, not freed by anything since")
    allocations: int = column(help="allocations behind the pages")


@table("page_owner_orders", "Pages by order", memory="again")
class PageOwnerOrder:
    """The pages of allocations of one order."""

    order: int = column(key=True, help="an allocation has 1 << order pages")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_gfp", "Pages by gfp mask", memory="again")
class PageOwnerGfp:
    """The pages of allocations with one gfp mask."""

    gfp_mask: str = column(holds="kernel", key=True, help="the caller's; bits differ by kernel")
    gfp_names: str = column(holds="kernel", help="names of the bits on this kernel")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_migratetypes", "Pages by migratetype, and their pageblock's", memory="again")
class PageOwnerMigratetype:
    """
    The pages by what was asked for and where they lie.

    Where they differ, an Unmovable page in a Movable pageblock say, the owner pollutes the block.
    """

    page_migratetype: str = column(
        holds="kernel", key=True, help="of the allocation, from its gfp mask"
    )
    pageblock_migratetype: str = column(holds="kernel", key=True, help="the pageblock's now")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_memcgs", "Pages by memory cgroup", memory="again")
class PageOwnerMemcg:
    """The pages charged to one memory cgroup."""

    memcg: str | None = column(
        holds="cgroup", key=True, help="name, not path, 79 bytes at most; empty: none"
    )
    offline: bool = column(key=True, help="removed; only its charges remain")
    objcg: bool = column(key=True, help="kernel memory, charged by an object cgroup")
    slab: bool = column(key=True, help="slab page: its objects are charged one by one")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_migrations", "Pages migrated since", memory="again")
class PageOwnerMigration:
    """The pages that were migrated since they were allocated."""

    reason: str = column(holds="kernel", key=True, help="latest, from enum migrate_reason")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_snapshots", "Snapshots", not_compared=SERIES)
class PageOwnerSnapshot:
    """One reading of page_owner in a series."""

    time: float = column(
        key=True, unit="s", help="since the first snapshot; its number where times are unknown"
    )
    at: str | None = column(holds="words", help="UTC, where known")
    source: str = column(holds="file", help="file")
    kind: str = column(holds="words", help="page_owner, show_stacks or show_handles")
    stacks: int = column(help="stacks holding pages")
    pages: int = column(unit="pages", help="base pages of all of them")
    skipped: int = column(help="records not understood, not counted")
    truncated: bool = column(help="the last record was cut short, and is not counted")
    ordered_by: str | None = column(
        holds="words",
        help="times in names, change times, numbers in names, or interval; empty: unknown",
        since="0.3.0",
    )


@table("page_owner_series", "Pages by allocation stack over time", not_compared=SERIES)
class PageOwnerPoint:
    """
    The pages of one stack at one moment.

    A point is left out where it equals those before and after it: between two points of a stack
    that are equal, nothing changed in any snapshot.
    """

    time: float = column(key=True, unit="s", help="as in page_owner_snapshots")
    handle: int = column(key=True, help="as in page_owner_stacks")
    pages: int | None = column(
        unit="pages", help="empty: not listed: none, or below count_threshold"
    )


@table("page_owner_growth", "Growth by allocation stack", not_compared=SERIES)
class PageOwnerGrowth:
    """The pages of one stack over the snapshots; not listed counts as none."""

    handle: int = column(key=True, help="as in page_owner_stacks")
    first_seen: float = column(unit="s", help="time of the first snapshot listing it")
    listed: int = column(help="snapshots listing it")
    gaps: int = column(help="times it returned after not being listed")
    pages_first: int = column(unit="pages", help="in the first snapshot")
    pages_last: int = column(unit="pages", help="in the last snapshot")
    pages_min: int = column(unit="pages", help="least in any snapshot")
    pages_max: int = column(unit="pages", help="most in any snapshot")
    gained: int = column(unit="pages", low=None, help="last minus first")
    slope: float | None = column(
        unit="pages/s",
        low=None,
        help="least squares over all snapshots; empty: times unknown",
    )
    steadiness: float = column(help="share of steps between snapshots without a fall")
    rises: int = column(help="steps between snapshots with a rise")


@table("page_owner_ages", "Pages by age", memory="again")
class PageOwnerAge:
    """The pages by the time since they were allocated."""

    min_seconds: int = column(key=True, unit="s", help="at least this old")
    max_seconds: int | None = column(unit="s", help="younger than this; empty: the oldest")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_freed", "Free pages, by who freed them", memory="free")
class PageOwnerFreed:
    """Free pages whose last owner's stack is still known, by who freed them."""

    handle: int = column(key=True, help="stack depot handle of the free")
    pages: int = column(unit="pages", help="base pages")
    stack: str | None = column(holds="kernel", help="of the free: root;…;leaf")


@table(
    "page_owner_polluters",
    "Pages in pageblocks of another migratetype, by allocation stack",
    memory="again",
)
class PageOwnerPolluter:
    """Pages of one stack in pageblocks of another migratetype than their own."""

    handle: int = column(key=True, help="stack depot handle")
    page_migratetype: str = column(
        holds="kernel", key=True, help="of the allocation, from its gfp mask"
    )
    pageblock_migratetype: str = column(holds="kernel", key=True, help="the pageblock's now")
    pages: int = column(unit="pages", help="base pages")
    stack: str | None = column(holds="kernel", help="root;…;leaf")


@table("page_owner_mixed_blocks", "Pageblocks with a page of another migratetype")
class PageOwnerMixedBlocks:
    """Pageblocks with a page of another migratetype than theirs (as /proc/pagetypeinfo)."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    migratetype: str = column(holds="kernel", key=True, help="of the pageblock; CMA as Movable")
    blocks: int = column(unit="blocks", help="pageblocks")


@table("page_owner_checks", "Stacks that the kernel counts otherwise")
class PageOwnerCheck:
    """A stack whose count in the kernel differs from its page_exts."""

    handle: int = column(key=True, help="stack depot handle")
    counted_pages: int | None = column(unit="pages", low=None, help="stack_record.count - 1")
    page_ext_pages: int = column(unit="pages", help="base pages whose page_ext has the handle")
    head_pages: int = column(unit="pages", help="1 << order of each allocation printed")
    stack: str | None = column(holds="kernel", help="root;…;leaf")


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_owner")
