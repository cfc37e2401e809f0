# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The oldest drgn that mmscope reads kernels with.

A distribution's drgn may be older than what pip would install, and read some cells differently.
"""

import importlib
import re

# Its tables are those of the newest, cell by cell (`make drgn-versions`); 0.0.33 opens a core as
# well, and one cell differs. The same as in pyproject.toml.
OLDEST_DRGN = "0.1.0"


def too_old() -> str | None:
    """The reason why the installed drgn is not used; None if it is recent enough, or missing."""
    try:
        here = importlib.import_module("drgn").__version__
    except ModuleNotFoundError:  # said by the module that imports it
        return None
    if _numbers(here) >= _numbers(OLDEST_DRGN):
        return None
    return f"this is drgn {here}, and {OLDEST_DRGN} is needed: pip install 'drgn>={OLDEST_DRGN}'"


def _numbers(version: str) -> list[int]:
    """The numbers of a release: 0.3.0 of 0.3.0+unknown and of 0.3.0.dev5."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]
