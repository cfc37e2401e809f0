# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope`` killed at every step: a process that starts the command again and again, and each time
ends it by SIGKILL right before the next operation that changes files (PEP 578's audit events: open
for writing, rename, mkdir, unlink and so on), until it comes through.

Each run has a folder of its own, ``FOLDER/N``, for the N-th step; what is in it afterwards is what
a user would find. Prints one N a line, at last that of the run that came through.

    python tests/killed.py FOLDER TEMPLATE ARGUMENTS…       # {} in ARGUMENTS is FOLDER/N

:param TEMPLATE: a folder that FOLDER/N begins as a copy of.
"""

import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

PR_SET_PDEATHSIG = 1
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
KINDS = ("open", "os.", "shutil.", "tempfile.")


def run(number: int, place: str, words: list[str]) -> None:
    """The command, in this process, which does not come back; *number* steps of it are done."""
    from mmscope.reports.commands.start import main

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    left = number

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        # Steps count where they leave something: here, or by a name alone (in an open folder).
        if not event.startswith(KINDS) or event in ("os.listdir", "os.scandir", "os.system"):
            return
        if event == "open" and not (arguments[2] & WRITES and str(arguments[0]).startswith(place)):
            return
        left -= 1
        if left == -1:  # once, as to kill is an event, too
            os.kill(os.getpid(), signal.SIGKILL)

    # What it may leave among temporary files goes with the test's folder.
    os.environ["TMPDIR"] = f"{place}.tmp"
    os.mkdir(os.environ["TMPDIR"])
    sys.argv = ["mmscope", *words]
    silence = os.open(os.devnull, os.O_RDWR)
    errors = os.open(f"{place}.err", os.O_CREAT | os.O_WRONLY)
    for descriptor, target in ((silence, 0), (silence, 1), (errors, 2)):
        os.dup2(descriptor, target)
    sys.addaudithook(step)
    try:
        code = main()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        code = 99
    os._exit(code)


def main() -> int:
    folder, template, *words = sys.argv[1:]
    # Once for all runs. DuckDB has threads, and is imported by each.
    import mmscope.reports.commands.command
    import mmscope.reports.commands.record_command
    import mmscope.reports.watch.page_owner
    import mmscope.reports.watch.watch  # noqa: F401

    number = 0
    while True:
        place = f"{folder}/{number}"
        shutil.copytree(template, place)
        child = os.fork()
        if child == 0:
            run(number, place, [word.replace("{}", place) for word in words])
        _, status = os.waitpid(child, 0)
        print(number, flush=True)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        number += 1


if __name__ == "__main__":
    sys.exit(main())
