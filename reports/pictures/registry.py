# SPDX-License-Identifier: LGPL-2.1-or-later
"""
All pictures there are: what the modules of this folder declare. A new one needs no entry anywhere.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from mmscope import FOLDER
from mmscope.drgn.tables.table import declared
from mmscope.reports.pictures.picture import Picture

HERE = __name__.rpartition(".")[0]


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules([str(FOLDER / "reports" / "pictures")]):
        if f"{HERE}.{found.name}" != __name__:
            yield importlib.import_module(f"{HERE}.{found.name}")


# In the order of the files' names, and of each file.
PICTURES = tuple(declared(_modules(), Picture))
# Held in part, by what the others say.
PARTS = {name: part for p in PICTURES for name, part in p.parts.items()}
# Held whole.
LOOKED_AT = {p.table for p in PICTURES} - PARTS.keys() | {n for p in PICTURES for n in p.others}
