# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A vmcore and a bundle read with other versions of drgn (``make drgn-versions``) and with the other
Pythons that this machine has: every table, the findings and the report must be those of this
environment. ``make test`` does a part of it (``tests/lab/test_boxes.py``).

Costs: an environment for each, once (``boxes.py``), then some ten seconds of CPU time each.
"""

import sys
import tempfile
from pathlib import Path

import boxes
from archive import LabError
from capture import capture


def main() -> int:
    wrong = False
    try:
        core = capture("stable", "sizes", print).vmcore
        pythons = [sys.executable, *boxes.installed().values()]
        with tempfile.TemporaryDirectory(prefix="mmscope-drgn-") as name:
            here = boxes.makes(sys.executable, core, Path(name) / "here")
            for python in pythons:
                for drgn in sys.argv[1:] or boxes.VERSIONS:
                    other = boxes.box(python, drgn)
                    made = boxes.makes(other, core, Path(name) / other.parents[1].name)
                    wrong |= boxes.compared(here, made, other.parents[1].name.rpartition("-")[0])
    except LabError as error:
        print(f"drgn_versions.py: {error}", file=sys.stderr)
        return 1
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
