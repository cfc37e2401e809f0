# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The rows of page_owner, from either source: the debugfs text, or the kernel's memory.

Stacks are folded, ``root;…;leaf``, a frame is ``symbol`` or ``symbol [module]``: the offsets that
the kernel prints (``+0x43/0x100``) are dropped, so that the same path compares equal across builds
and in a flame graph. Two call sites in one function have therefore the same folded stack, but stay
rows of their own, by handle.
"""

from mmscope.drgn.tables.rows import MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import SERIES, Table


@table_row
class PageOwnerStack:
    """The pages that one allocation stack holds."""

    handle: int = column(
        key=True,
        help="stackdepot handle (below 2^32); else an id made from the stack's text, offsets "
        "included (2^48 and above)",
    )
    pages: int = column(unit="pages", help="base pages allocated by this stack and not freed")
    allocations: int | None = column(help="allocations (of any order) behind the pages")
    owner: str | None = column(
        holds="kernel", help="first frame from the leaf that is not an allocator function"
    )
    module: str | None = column(
        holds="kernel", help="module of the owner frame; empty for the kernel itself"
    )
    stack: str | None = column(
        holds="kernel", help="root;…;leaf without offsets; empty where no resolver has it"
    )
    note: str | None = column(
        holds="words", help="missing in the resolver, or a handle that was reused"
    )


PAGE_OWNER_STACKS = Table(
    "page_owner_stacks", "Pages by allocation stack", PageOwnerStack, lasting=("stack",)
)


@table_row
class PageOwnerTask:
    """The pages that one task allocated. The kernel keeps pid and comm of that moment."""

    pid: int | None = column(key=True, high=MOST_PIDS, help="thread; empty in the row for the rest")
    tgid: int | None = column(key=True, high=MOST_PIDS, help="process")
    comm: str | None = column(
        holds="comm",
        key=True,
        help="name at the time, chosen by the task itself; empty with tgid before v5.18",
    )
    pages: int = column(unit="pages", help="allocated by it and not freed, by whomever")
    allocations: int = column(help="allocations behind the pages")


PAGE_OWNER_TASKS = Table(
    "page_owner_tasks", "Pages by task", PageOwnerTask, lasting=("comm",), memory="again"
)


@table_row
class PageOwnerOrder:
    """The pages of allocations of one order."""

    order: int = column(key=True, help="an allocation has 1 << order pages")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="allocations")


PAGE_OWNER_ORDERS = Table("page_owner_orders", "Pages by order", PageOwnerOrder, memory="again")


@table_row
class PageOwnerGfp:
    """The pages of allocations with one gfp mask."""

    gfp_mask: str = column(
        holds="kernel", key=True, help="as given by the caller; its bits differ by kernel"
    )
    gfp_names: str = column(holds="kernel", help="the mask in names, by this kernel")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="allocations")


PAGE_OWNER_GFP = Table("page_owner_gfp", "Pages by gfp mask", PageOwnerGfp, memory="again")


@table_row
class PageOwnerMigratetype:
    """
    The pages by what was asked for and where they lie.

    Where they differ, an Unmovable page in a Movable pageblock say, the owner pollutes the block.
    """

    page_migratetype: str = column(
        holds="kernel", key=True, help="of the allocation, by its gfp mask"
    )
    pageblock_migratetype: str = column(holds="kernel", key=True, help="of the pageblock now")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="allocations")


PAGE_OWNER_MIGRATETYPES = Table(
    "page_owner_migratetypes",
    "Pages by migratetype, and their pageblock's",
    PageOwnerMigratetype,
    memory="again",
)


@table_row
class PageOwnerMemcg:
    """The pages charged to one memory cgroup."""

    memcg: str | None = column(
        holds="cgroup", key=True, help="name, not path, at most 79 bytes; empty for none"
    )
    offline: bool = column(key=True, help="the cgroup is removed, and lives on by its charges")
    objcg: bool = column(key=True, help="kernel memory, charged via an object cgroup")
    slab: bool = column(key=True, help="a slab page, whose objects are charged one by one")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="allocations")


PAGE_OWNER_MEMCGS = Table(
    "page_owner_memcgs", "Pages by memory cgroup", PageOwnerMemcg, memory="again"
)


@table_row
class PageOwnerMigration:
    """The pages that were migrated since they were allocated."""

    reason: str = column(
        holds="kernel", key=True, help="last migrate reason, as enum migrate_reason"
    )
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="allocations")


PAGE_OWNER_MIGRATIONS = Table(
    "page_owner_migrations", "Pages migrated since", PageOwnerMigration, memory="again"
)


@table_row
class PageOwnerSnapshot:
    """One reading of page_owner in a series."""

    time: float = column(
        key=True, unit="s", help="since the first snapshot; its number where times are unknown"
    )
    at: str | None = column(holds="words", help="absolute time (UTC), where known")
    source: str = column(holds="file", help="file")
    kind: str = column(holds="words", help="page_owner, show_stacks or show_handles")
    stacks: int = column(help="stacks that hold pages")
    pages: int = column(unit="pages", help="base pages of all of them")
    skipped: int = column(help="records that were not understood, and are not counted")
    truncated: bool = column(help="the last record was cut short, and is not counted")
    ordered_by: str | None = column(
        holds="words",
        help="what the order of the snapshots goes by: times in names, change times, numbers in "
        "names, or interval; empty where it is unknown",
        since="0.3.0",
    )


PAGE_OWNER_SNAPSHOTS = Table(
    "page_owner_snapshots", "Snapshots", PageOwnerSnapshot, not_compared=SERIES
)


@table_row
class PageOwnerPoint:
    """
    The pages of one stack at one moment.

    A point is left out where it equals those before and after it: between two points of a stack
    that are equal, nothing changed in any snapshot.
    """

    time: float = column(key=True, unit="s", help="as in page_owner_snapshots")
    handle: int = column(key=True, help="as in page_owner_stacks")
    pages: int | None = column(
        unit="pages", help="empty where not listed: none, or fewer than count_threshold"
    )


PAGE_OWNER_SERIES = Table(
    "page_owner_series", "Pages by allocation stack over time", PageOwnerPoint, not_compared=SERIES
)


@table_row
class PageOwnerGrowth:
    """How the pages of one stack developed over the snapshots; not listed counts as no pages."""

    handle: int = column(key=True, help="as in page_owner_stacks")
    first_seen: float = column(unit="s", help="time of the first snapshot that lists it")
    listed: int = column(help="snapshots that list it")
    gaps: int = column(help="times it came back after it was not listed")
    pages_first: int = column(unit="pages", help="in the first snapshot")
    pages_last: int = column(unit="pages", help="in the last snapshot")
    pages_min: int = column(unit="pages", help="least in any snapshot")
    pages_max: int = column(unit="pages", help="most in any snapshot")
    gained: int = column(unit="pages", low=None, help="last minus first")
    slope: float | None = column(
        unit="pages/s",
        low=None,
        help="least squares over all snapshots; empty where times are unknown",
    )
    steadiness: float = column(help="share of the steps between snapshots that do not fall")
    rises: int = column(help="steps between snapshots that rise")


PAGE_OWNER_GROWTH = Table(
    "page_owner_growth", "Growth by allocation stack", PageOwnerGrowth, not_compared=SERIES
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_owner")
