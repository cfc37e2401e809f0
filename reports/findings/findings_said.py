# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of a bundle that a command just wrote, where the libraries for them are installed."""

import contextlib
import ctypes
import gc
from collections.abc import Sequence
from pathlib import Path

from mmscope.drgn.tables.hostile_text import echo
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import say


def print_findings(path: Path, sections: Sequence[str] | None = None) -> None:
    """
    Print what the tables of a bundle that was just written mean.

    :param sections: those findings alone that are about these.
    """
    try:
        from mmscope.reports.findings import findings_text
        from mmscope.reports.findings.findings import evaluate
        from mmscope.reports.findings.question import OURS
    except ImportError as error:
        say(f"findings need {error.name}: run 'mmscope findings' where it is installed")
        return
    # Memory that nothing uses any more, of what was read of the kernel, goes back before the
    # database of the findings takes some. By itself glibc keeps what is free below what is in use.
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    questions = OURS()
    if sections is not None:
        questions = [question for question in questions if question.section in sections]
        echo()
    findings_text.print_findings(evaluate(Bundle(path), questions), everything=False)
