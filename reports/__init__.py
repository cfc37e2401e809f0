# SPDX-License-Identifier: LGPL-2.1-or-later
"""
reports: merges what the kernel's memory (``drgn/``) and the CPUs (``perf/``) say.

``collect`` runs the sections over a target and writes a bundle; ``findings`` asks a bundle
questions in SQL; ``report`` draws it as one HTML file; ``command`` is what the user types.

``drgn/`` and ``perf/`` are folders of scripts, not packages, so that ``import drgn`` finds the
debugger. This is the one place that puts them on the path.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
FINDINGS = Path(__file__).resolve().parent / "findings"

for folder in ("drgn", "perf"):
    if str(ROOT / folder) not in sys.path:
        sys.path.append(str(ROOT / folder))

__version__ = "0.1.0"
