# SPDX-License-Identifier: LGPL-2.1-or-later
"""
reports: merges what the kernel's memory (``drgn/``) and the CPUs (``perf/``) say.

``collect`` runs the sections over a target and writes a bundle; ``findings`` asks a bundle
questions in SQL; ``report`` draws it as one HTML file; ``command`` is what the user types.

``drgn/`` and ``perf/`` are folders of scripts, not packages, so that ``import drgn`` finds the
debugger. This is the one place that puts them on the path.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

for folder in ("drgn", "perf"):
    if os.path.join(ROOT, folder) not in sys.path:
        sys.path.append(os.path.join(ROOT, folder))

__version__ = "0.2.0"
