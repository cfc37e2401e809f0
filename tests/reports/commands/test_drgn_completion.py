# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tab completion of %commands: what a line may become, by what commands say of themselves."""

import pytest

from mmscope.reports.commands.drgn_completion import completions

USAGES = {
    "free_lists": "free_lists [-h] [--top N] [--format {table,csv,json}]",
    "free_accounting": "free_accounting [-h]",
    "rmap_cost": "rmap_cost [-h] [--top N] [--rmap-node-ns NS] [ADDRESS]",
    "help": "help [-h] [command]",
}


@pytest.mark.parametrize(
    ("before", "offered"),
    [
        ("%fr", ["%free_accounting ", "%free_lists "]),
        ("%free_l", ["%free_lists "]),
        ("%nothing", []),
        ("%free_lists -", ["--format", "--top", "-h"]),
        ("%free_lists --fo", ["--format"]),
        ("%free_lists --top 3 --fo", ["--format"]),
        ("%free_lists --format ", ["table", "csv", "json"]),
        ("%free_lists --format c", ["csv"]),
        ("%rmap_cost --rmap-n", ["--rmap-node-ns"]),
        ("%rmap_cost 0xff", []),
        ("%nothing --to", []),
        ("%help free_a", ["free_accounting"]),
        ("%help %free_a", ["%free_accounting"]),
        ("zones", None),
        ("x % fr", None),
        ("", None),
    ],
)
def test_what_a_line_may_become(before: str, offered: list[str] | None) -> None:
    assert completions(before, {name: lambda u=u: u for name, u in USAGES.items()}) == offered
