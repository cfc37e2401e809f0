# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope: what Linux memory management was doing, and why it hurt.

The one import name of everything: ``mmscope.drgn`` has the probes, ``mmscope.perf`` the recipes and
what reads their recordings, ``mmscope.reports`` the bundles, findings and reports. In a checkout
the folders are links to those at its top, in an installation they are the folders themselves. There
is no package ``drgn`` of ours: ``import drgn`` is always the debugger.
"""

import pkgutil
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

# What is not Python (templates, recipes, findings) lies here, too.
FOLDER = Path(__file__).resolve().parent

IN_A_NOTEBOOK = ("open_bundle", "why", "live")


def __getattr__(name: str) -> Any:
    """What is for a notebook: imported with all that it needs when it is asked for."""
    if name not in IN_A_NOTEBOOK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(f"mmscope.reports.commands.notebook:{name}")
