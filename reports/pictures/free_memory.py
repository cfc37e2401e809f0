# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Free memory beside the free lists: what NR_FREE_PAGES is made of, and pages on per-CPU lists.
"""

from collections.abc import Sequence
from typing import Any

from mmscope.reports.pictures.picture import Picture, Tables


def free_accounting(tables: Tables, page_size: int | None) -> Sequence[dict[str, Any]]:
    """The table as it is."""
    return tables["free_accounting"]


def pcp_lists(tables: Tables, page_size: int | None) -> list[dict[str, Any]]:
    """The zones with pages on per-CPU lists: how many, and on how many CPUs."""
    cpus: dict[tuple[int, str], dict[int, int]] = {}
    for row in tables["pcp_pages"]:
        on = cpus.setdefault((row["node"], row["zone"]), {})
        on[row["cpu"]] = on.get(row["cpu"], 0) + row["pages"]
    return [
        {
            "zone": f"node {node} {zone}",
            "pages": sum(on.values()),
            "cpus": sum(pages > 0 for pages in on.values()),
            "most": max(on.values()),
        }
        for (node, zone), on in cpus.items()
    ]


FREE_ACCOUNTING = Picture(
    "free_accounting",
    "free_accounting",
    frozenset({"node", "zone", "nr_free_pages", "free_list_pages", "unaccepted_pages"})
    | {"remainder_pages", "isolate_pages", "pcp_pages"},
    free_accounting,
)
PCP_LISTS = Picture(
    "pcp_lists", "pcp_pages", frozenset({"node", "zone", "cpu", "pages"}), pcp_lists
)
