# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a command says of the bundle that it just wrote; findings may lack what they need here."""

import contextlib
import ctypes
import gc
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from mmscope.reports.bundle.outcome import say


def print_findings(path: Path, sections: Sequence[str] | None = None) -> None:
    """
    What the tables of a bundle that was just written mean.

    :param sections: those findings alone that are about these.
    """
    # What they need may be missing on the box; mostly this, and then nothing is loaded for it.
    if importlib.util.find_spec("duckdb") is None:
        say("findings need duckdb: run 'mmscope findings' where it is installed")
        return
    give_back()
    try:
        from mmscope.reports.bundle.bundle import Bundle
        from mmscope.reports.findings import findings, findings_text
    except ImportError as error:
        say(f"findings need {error.name}: run 'mmscope findings' where it is installed")
        return
    questions = findings.load_questions()
    if sections is not None:
        questions = [question for question in questions if question.section in sections]
        print()
    findings_text.print_findings(findings.evaluate(Bundle(path), questions), everything=False)


def give_back() -> None:
    """
    Give memory back that nothing uses any more: what was read of the kernel, before the database of
    the findings takes some. By itself glibc keeps what is free below what is in use.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
