# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What guard's capture leaves if it is killed at any step: as ``killed.py``, a copy of its folder
right before each operation that changes files. The commands that it starts are run as they are.

    python tests/support/guard_killed.py FOLDER TEMPLATE PLACE SECTIONS
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def main() -> int:
    from mmscope.reports.guard.capture import Settings, make

    folder, template, name, sections = sys.argv[1:]
    place, number, copying = f"{folder}/run", 0, False
    shutil.copytree(template, place)

    def copy() -> None:
        nonlocal number, copying
        copying = True
        shutil.copytree(place, f"{folder}/{number}", symlinks=True)
        number, copying = number + 1, False

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        if copying or not event.startswith(("open", "os.", "shutil.", "tempfile.", "subprocess.")):
            return
        if event in ("os.listdir", "os.scandir", "os.walk", "os.fwalk"):
            return
        if event == "open" and not (arguments[2] & WRITES and str(arguments[0]).startswith(place)):
            return
        copy()

    sys.addaudithook(step)
    make(Path(place, name), Settings(place, collect=["--only", sections], text=True))
    copy()
    print(*range(number), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
