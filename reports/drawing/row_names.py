# SPDX-License-Identifier: LGPL-2.1-or-later
"""The name of a row, in a few words: in comparisons, and where it stands for its table."""

import re
from typing import Any

from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import Column
from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.reports.drawing.cells import cell, heading, minus_one

NO_STACK = "(no stack)"
MAX_NAME = 90
ADDRESS = re.compile("0x[0-9a-f]{9,16}")  # of the kernel's: names nothing to a reader
# What says more of a row than its key does.
DESCRIBES = ("comm", "owner", "module", "stack", "kind", "path", "mount")


def name_of(columns: list[Column], values: tuple[Any, ...]) -> str:
    """Name a row in a few words; of a stack it is the owner."""
    row = {c.name: (c, v) for c, v in zip(columns, values, strict=True)}
    if "stack" in row:
        stack = row["stack"][1]
        owner = owner_pair(stack)[0]
        cache = str(row["cache"][1]) if "cache" in row else ""
        return cut(" ".join(filter(None, (cache, owner))), MAX_NAME)
    words = []
    for name, (column, value) in row.items():
        if value is None or value == "":
            continue
        if ADDRESS.fullmatch(str(value)) and len(row) > 1:
            continue
        if column.type == "string" and not name.endswith(("pfn", "start", "end")):
            # "no" and "1" say nothing by themselves.
            bare = name == "zone" or str(value).isdigit() or value in ("yes", "no")
            words.append(f"{name} {value}" if bare else str(value))
        elif value == -1 and minus_one(column) not in ("", "unknown"):
            words.append(minus_one(column))
        else:
            words.append(f"{heading(column)} {cell(value, column, None).text}")
    return cut(", ".join(words), MAX_NAME) or "unnamed"


def owner_pair(stack: str | None) -> tuple[str, str]:
    """Owner frame and module of a stack that may be missing."""
    if not stack:
        return NO_STACK, ""
    owner, module = owner_frame(stack)
    return owner, module or ""
