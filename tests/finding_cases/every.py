# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cases of all findings but those about profiles and about series over time, by name."""

from finding_cases import (
    cgroups,
    filesystems,
    free_memory,
    ledger,
    oom,
    owners,
    page_tables,
    reverse_maps,
    struct_pages,
)
from finding_cases.case import Case

AREAS = (
    struct_pages,
    free_memory,
    page_tables,
    owners,
    reverse_maps,
    ledger,
    filesystems,
    oom,
    cgroups,
)
FOUND: dict[str, Case] = {name: case for area in AREAS for name, case in area.FOUND.items()}
CLEAR: dict[str, Case] = {name: case for area in AREAS for name, case in area.CLEAR.items()}
NOT_CHECKED: dict[str, Case] = {
    name: case for area in AREAS for name, case in area.NOT_CHECKED.items()
}
