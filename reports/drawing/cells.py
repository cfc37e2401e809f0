# SPDX-License-Identifier: LGPL-2.1-or-later
"""A value of a table as it is shown: its text, the exact value, and what it sorts by."""

import re
from dataclasses import dataclass

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import Column

# Units that a value is shown with, and its column need not say.
OWN_UNITS = {"bytes", "ns"}
# What a name has for its column's unit, so that the unit need not follow it.
UNIT_WORDS = {
    "s": ("seconds",),
    "%": ("percent",),
    "1/min": ("per", "minute"),
    "1/s": ("per", "second"),
    "VMAs": ("vmas",),
}
# Abbreviations: they follow the words.
UNIT_SIGNS = {"ns", "ms"}
# Words for what is short in a name; of a whole name first.
NAME_WORDS = {
    "nr_free_pages": "NR_FREE_PAGES",
    "altmap_bytes": "altmap size",
    "dups": "duplicates",
    "frame_pfn": "mapped page frame",
    "node_ns": "node passed by",
    "node_ns_low": "node passed by, low",
    "node_ns_high": "node passed by, high",
    "one_ns": "VMA walked",
    "one_ns_low": "VMA walked, low",
    "one_ns_high": "VMA walked, high",
    "nid": "node",
    "avg10": "average of 10 s",
    "multi_gen": "multi-gen LRU",
    "p50_ns": "median",
    "p99_ns": "99th percentile",
}
PART_WORDS = {
    "comm": "process",
    "process": "thread group",
    "highatomic": "HighAtomic",
    "id": "ID",
    "kmem": "kernel memory",
    "memcg": "memory cgroup",
    "memsw": "memory and swap",
    "objcg": "object cgroup",
    "p4d": "P4D",
    "pcp": "per-CPU",
    "pfn": "page frame",
    "pfns": "page frames",
    "pgtables": "page tables",
    "pmds": "PMDs",
    "ptes": "PTEs",
    "vmas": "VMAs",
    "wmark": "watermark",
    **{
        word: word.upper()
        for word in (
            *("cpu", "dax", "gfp", "hvo", "ksm", "lru", "nmi", "oom", "pid", "pmd", "pss", "pte"),
            *("pud", "ram", "rss", "tgid", "thp", "vma"),
        )
    },
}
KERNEL_NAMES = ("anon_vmas", "anon_vma", "page_ext")  # which have no better words
# What a column's help says of -1, which names no node and no order.
MINUS_ONE = re.compile(r"(?:^|; )-1: ([^;]{1,40})")
# Names of things, though they are numbers: no thousands separators.
NAMES = {"node", "cpu", "order", "pid", "tgid", "handle"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table as it is shown."""

    text: str
    title: str = ""
    sort: int | float | None = None  # where the text does not have the number
    impossible: str = ""  # why the value cannot be


def cell(value: object, column: Column, page_size: int | None) -> Cell:
    """A value of a table as it is shown."""
    if value is None:
        return Cell("", "not known")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if value == -1 and (words := minus_one(column)):
        return Cell(words, "-1", -1)
    if isinstance(value, int):
        return _integer(value, column, page_size)
    if isinstance(value, float):
        return _number(value, column)
    text = str(value)
    return Cell(cut(leaf_first(text) if column.name == "stack" else text))


def _integer(value: int, column: Column, page_size: int | None) -> Cell:
    if is_name(column):
        return Cell(f"{value:#x}" if column.name.endswith("pfn") else str(value), sort=value)
    if column.unit == "bytes":
        return Cell(display.size(value), f"{value:,} bytes", value)
    if column.unit == "pages" and page_size is not None:
        return Cell(f"{value:,}", display.size(value * page_size))
    if column.unit == "ns":
        return Cell(display.time_text(value / 1e9), f"{value:,} ns", value)
    return _number(value, column)


def _number(value: float, column: Column) -> Cell:
    if column.type == "number" and "share" in column.name.split("_"):
        return Cell(display.percent(value), display.count(value), value)
    return Cell(display.count(value))


def minus_one(column: Column) -> str:
    """The meaning of -1 in a column of names; empty if it is a number like others."""
    found = MINUS_ONE.search(column.help) if column.type == "integer" else None
    return found[1] if found else ""


def heading(column: Column) -> str:
    """A column's name as words, without the unit that follows them or is in its values."""
    if column.name in NAME_WORDS:
        return NAME_WORDS[column.name]
    parts = column.name.split("_")
    own = column.unit in OWN_UNITS and column.type == "integer"
    if (own or column.unit in UNIT_SIGNS) and column.unit in parts and len(parts) > 1:
        parts.remove(column.unit)
    name = "_".join(parts)
    kernels = next((each for each in KERNEL_NAMES if f"_{each}_" in f"_{name}_"), "")
    before, _, after = name.partition(kernels) if kernels else (name, "", "")
    words = [
        *(PART_WORDS.get(part, part) for part in before.split("_")),
        kernels,
        *(PART_WORDS.get(part, part) for part in after.split("_")),
    ]
    return " ".join(filter(None, words))


def unit_shown(column: Column) -> str:
    """The unit that follows a heading: neither its words nor its values have it."""
    unit, parts = column.unit, column.name.split("_")
    if not unit or (unit in OWN_UNITS and column.type == "integer"):
        return ""
    if unit in UNIT_SIGNS:
        return unit
    said = UNIT_WORDS.get(unit, (unit,))
    return "" if all(word in parts for word in said) else unit


def is_name(column: Column) -> bool:
    """True if a number is something's name (a CPU, a page frame) and not an amount."""
    if column.unit or column.type != "integer":
        return False
    return column.key or column.name in NAMES or column.name.endswith("pfn")


def leaf_first(stack: str) -> str:
    """
    A folded stack as it is read from the leaf, ``leaf ← caller``: who took the memory stands first,
    a line that is cut loses the system call's end, and lines break between frames.
    """
    return " ← ".join(reversed(stack.split(";")))
