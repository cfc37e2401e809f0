# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What ``mmscope`` leaves if it is killed at any step: a copy of its folder, made right before each
operation that changes files (PEP 578's audit events: open for writing, rename, mkdir, unlink and so
on), and one of when it has come through.

SIGKILL leaves what was given to the kernel until then, and nothing of what was not: so does a copy.
One run has all of its steps; to begin anew for each of a hundred takes a hundred times as long.

Each copy is a folder of its own, ``FOLDER/N``, for the N-th step; what is in it is what a user
would find. Prints one N a line.

    python tests/support/killed.py FOLDER TEMPLATE ARGUMENTS…    # {} in ARGUMENTS is where it runs

:param TEMPLATE: a folder that it begins with a copy of.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
KINDS = ("open", "os.", "shutil.", "tempfile.")


def main() -> int:
    folder, template, *words = sys.argv[1:]
    from mmscope.reports.commands.command import main as command

    place, number, copying = f"{folder}/run", 0, False
    shutil.copytree(template, place)

    def copy() -> None:
        nonlocal number, copying
        copying = True
        shutil.copytree(place, f"{folder}/{number}", symlinks=True)
        number, copying = number + 1, False

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        # Steps count where they leave something: here, or by a name alone (in an open folder).
        if copying or not event.startswith(KINDS):
            return
        if event in ("os.listdir", "os.scandir", "os.system"):
            return
        if event == "open" and not (arguments[2] & WRITES and str(arguments[0]).startswith(place)):
            return
        copy()

    # What it leaves among temporary files goes with the test's folder.
    os.environ["TMPDIR"] = f"{folder}/tmp"
    os.mkdir(os.environ["TMPDIR"])
    sys.argv = ["mmscope", *(word.replace("{}", place) for word in words)]
    said = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1):
        os.dup2(silence, target)
    sys.addaudithook(step)
    try:
        code = command()
    except SystemExit as error:
        code = int(error.code or 0)
    copy()
    os.write(said, "".join(f"{n}\n" for n in range(number)).encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
