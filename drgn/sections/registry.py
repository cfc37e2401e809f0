# SPDX-License-Identifier: LGPL-2.1-or-later
"""
All sections and tables there are: what the modules of ``mmscope.drgn`` declare.

A new one needs no entry anywhere. Finding them imports every probe.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import mmscope
from mmscope.drgn.sections.memory import MakeConsumer
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.table import declared

FOLDER = mmscope.FOLDER / "drgn"

# What probes stand on, which declares none of its own.
STANDS_ON = {"opening", "reading", "sections", "tables", "text"}

# In which order sections are read and shown. A folder stands for those of its sections that have no
# entry of their own, by the name of their file.
ORDER = (
    "memory_ledger",
    "process_memory",
    "memory_cgroups",
    "memory_pressure",
    "containers",
    "process_shares",
    "free/",
    "page_owner",
    "reclaim/",
    "cached_files",
    "freeing/",
    "alloc_tags",
    "slab_caches",
    "filesystems/",
    "swap",
    "ledger/",
    "owners/",
    "processes/",
    "waits/",
    "page_tables/",
    "physical_memory",
    "poisoned_pages",
    "struct_pages/",
    "rmap/",
    "oom_kills",
    "allocation_failures",
    "kernel_complaints",
    "vm_counters",
    "machine/",
    "log/",
)


def folders() -> list[str]:
    """The folders of ``mmscope.drgn`` that may declare something."""
    return sorted({path.name for path in FOLDER.iterdir() if path.is_dir()} - STANDS_ON)


def modules_of(folder: str) -> Iterator[ModuleType]:
    """Every module of a folder."""
    for found in pkgutil.iter_modules([str(FOLDER / folder)]):
        yield importlib.import_module(f"mmscope.drgn.{folder}.{found.name}")


def modules() -> Iterator[ModuleType]:
    """Every module of ``mmscope.drgn`` that may declare something."""
    for folder in folders():
        yield from modules_of(folder)


def sections_of(folder: str) -> list[Section]:
    """The sections of a folder, in their order."""
    return declared(modules_of(folder), Section)


def in_order() -> list[Section]:
    """
    All sections, as :data:`ORDER` has them.

    :raises ValueError: a folder has sections, and no entry there.
    """
    found = []
    for folder in folders():
        for section in sections_of(folder):
            entry = section.name if section.name in ORDER else f"{folder}/"
            if entry not in ORDER:
                raise ValueError(
                    f"section {section.name} of drgn/{folder} has no place in the report: give "
                    f'"{entry}" one in ORDER of drgn/sections/registry.py'
                )
            found.append((ORDER.index(entry), section))
    return [section for _, section in sorted(found, key=lambda each: each[0])]


# By name.
SECTIONS = {section.name: section for section in in_order()}


def consumers() -> Iterator[MakeConsumer]:
    """The consumers of struct pages of all sections."""
    return (section.consumer for section in SECTIONS.values() if section.consumer is not None)
