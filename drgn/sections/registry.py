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


def modules() -> Iterator[ModuleType]:
    """Every module of ``mmscope.drgn`` that may declare something."""
    for folder in sorted(path.name for path in FOLDER.iterdir() if path.is_dir()):
        if folder not in STANDS_ON:
            for found in pkgutil.iter_modules([str(FOLDER / folder)]):
                yield importlib.import_module(f"mmscope.drgn.{folder}.{found.name}")


# By name, in the order of the report.
SECTIONS = {
    section.name: section
    for section in sorted(declared(modules(), Section), key=lambda section: section.place)
}


def consumers() -> Iterator[MakeConsumer]:
    """The consumers of struct pages of all sections."""
    return (section.consumer for section in SECTIONS.values() if section.consumer is not None)
