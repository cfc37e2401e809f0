# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope`` as a user types it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import children
from checkout import ROOT

from mmscope.reports.commands.command import main

RUN = [sys.executable, "-m", "mmscope"]
# Root without capabilities reads its own files, but neither /proc/kcore nor what is forbidden.
POWERLESS = (
    ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    if os.geteuid() == 0
    else []
)


def run(*arguments: object, prefix: Sequence[str] = (), **options: Any) -> Any:
    """
    Run mmscope; what it printed is text.

    In a process of its own only where it must be another user, or have another stdout.
    """
    words = [*map(str, arguments)]
    if prefix or options:
        return children.run(
            [*prefix, *RUN, *words],
            cwd=ROOT,
            capture_output="stdout" not in options,
            text=True,
            timeout=600,
            **options,
        )
    with (
        _descriptor(1, contextlib.redirect_stdout) as out,
        _descriptor(2, contextlib.redirect_stderr) as err,
    ):
        with patch.object(sys, "argv", ["mmscope", *words]):
            try:
                code = main(words)
            except SystemExit as end:  # argparse
                code = end.code
        sys.stdout.flush()
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


@contextlib.contextmanager
def _descriptor(number: int, redirect: Any) -> Iterator[Path]:
    """A file in memory in place of standard output or error, also for whatever is started."""
    file, before = os.memfd_create("said"), os.dup(number)
    os.dup2(file, number)
    errors = "strict" if number == 1 else "backslashreplace"
    try:
        with (
            open(number, "w", encoding="utf-8", errors=errors, closefd=False) as stream,
            redirect(stream),
        ):
            stream.reconfigure(line_buffering=True)
            yield Path("/proc/self/fd", str(file))
    finally:
        os.dup2(before, number)
        os.close(before)
        os.close(file)
