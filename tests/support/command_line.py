# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope`` as a user types it."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Sequence
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
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", ["mmscope", *words]),
    ):
        try:
            code = main(words)
        except SystemExit as end:  # argparse
            code = end.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
