# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of a bundle."""

from pathlib import Path


def contents(bundle: Path) -> dict[str, bytes]:
    """Every table but the one with the seconds that it took."""
    return {
        path.name: path.read_bytes()
        for path in bundle.iterdir()
        if path.name not in ("sections.csv", "datapackage.json")
    }
