# SPDX-License-Identifier: LGPL-2.1-or-later
"""
mmscope: what Linux memory management was doing, and why it hurt.

The one import name of everything: ``mmscope.drgn`` has the probes, ``mmscope.perf`` the recipes and
what reads their recordings, ``mmscope.reports`` the bundles, findings and reports. In a checkout
the folders are links to those at its top, in an installation they are the folders themselves. There
is no package ``drgn`` of ours: ``import drgn`` is always the debugger.
"""

from pathlib import Path

__version__ = "0.2.0"

# What is not Python (templates, recipes, findings) lies here, too.
FOLDER = Path(__file__).resolve().parent
