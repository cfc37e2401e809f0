# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope: what Linux memory management was doing, and why it hurt.

The one import name of everything: ``mmscope.drgn`` has the probes, ``mmscope.perf`` the recipes and
what reads their recordings, ``mmscope.reports`` the bundles, findings and reports. In a checkout
the folders are links to those at its top, in an installation they are the folders themselves. There
is no package ``drgn`` of ours: ``import drgn`` is always the debugger.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    FOLDER: Path

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """``FOLDER``: what is not Python (templates, recipes, findings) lies there, too."""
    if name != "FOLDER":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pathlib import Path  # a tenth of the start of a command that reads text alone

    folder = globals()["FOLDER"] = Path(__file__).resolve().parent
    return folder
