# SPDX-License-Identifier: LGPL-2.1-or-later
"""The figures of ``systemd-analyze security`` that docs/guard.md gives."""

import re

from checkout import ROOT

UNITS = ("mmscope-guard.service", "mmscope-crash.service")
ROW = re.compile(r"^\| ([0-9]+), [^|]*\| ([0-9.]+) \| ([0-9.]+) \|$", re.MULTILINE)


def documented(version: str) -> dict[str, str]:
    """
    The figure of each unit.

    :param version: as ``systemd-analyze --version`` says it; of others than those, none.
    """
    number = (re.search("[0-9]+", version) or [""])[0]
    rows = ROW.findall((ROOT / "docs/guard.md").read_text())
    return next((dict(zip(UNITS, row, strict=True)) for its, *row in rows if its == number), {})


def exposure(printed: str) -> str:
    """The figure in what ``systemd-analyze security`` printed of a unit."""
    (figure,) = re.findall(r"exposure level for \S+: ([0-9.]+)", printed)
    return str(figure)
