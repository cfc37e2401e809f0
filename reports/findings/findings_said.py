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
    Print what the tables of a bundle that was just written mean.

    :param sections: those findings alone that are about these.
    """
    if lacks := _lacks():
        say(f"findings need {lacks}: run 'mmscope findings' where it is installed")
        return
    give_back()
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.findings import findings, findings_text

    questions = findings.OURS()
    if sections is not None:
        questions = [question for question in questions if question.section in sections]
        print()
    findings_text.print_findings(findings.evaluate(Bundle(path), questions), everything=False)


def _lacks() -> str | None:
    """What findings need and the box does not have; else, all of it is imported."""
    if not _has_duckdb():
        return "duckdb"
    try:
        from mmscope.reports.bundle import bundle  # noqa: F401
        from mmscope.reports.findings import findings, findings_text  # noqa: F401
    except ImportError as error:
        return error.name
    return None


def _has_duckdb() -> bool:
    """True if that is there, which mostly is what a box lacks; nothing is loaded to see it."""
    return importlib.util.find_spec("duckdb") is not None


def give_back() -> None:
    """
    Give memory back that nothing uses any more: what was read of the kernel, before the database of
    the findings takes some. By itself glibc keeps what is free below what is in use.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
