# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cases of all findings but those about profiles and about series over time, by name."""

import importlib
import pkgutil

import finding_cases
from finding_cases.case import Case

# One file an area; the others have what several need.
FILES = [
    importlib.import_module(f"finding_cases.{found.name}")
    for found in pkgutil.iter_modules(finding_cases.__path__)
    if found.name != "every"
]
AREAS = [file for file in FILES if hasattr(file, "FOUND")]
FOUND: dict[str, Case] = {name: case for area in AREAS for name, case in area.FOUND.items()}
CLEAR: dict[str, Case] = {name: case for area in AREAS for name, case in area.CLEAR.items()}
NOT_CHECKED: dict[str, Case] = {
    name: case for area in AREAS for name, case in area.NOT_CHECKED.items()
}
