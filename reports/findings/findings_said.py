# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a command says of the bundle that it just wrote; findings may lack what they need here."""

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mmscope.drgn.workers.workers import Died, Tell, beside
from mmscope.reports.bundle.outcome import say


def print_findings(path: Path, sections: Sequence[str] | None = None) -> None:
    """
    What the tables of a bundle that was just written mean.

    :param sections: those findings alone that are about these.
    """
    if _has_duckdb():
        give_back()
    _print(path, sections)


def _print(path: Path, sections: Sequence[str] | None = None) -> None:
    if lacks := _lacks():
        say(f"findings need {lacks}: run 'mmscope findings' where it is installed")
        return
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.findings import findings, findings_text

    questions = findings.OURS()
    if sections is not None:
        questions = [question for question in questions if question.section in sections]
        print()
    findings_text.print_findings(findings.evaluate(Bundle(path), questions), everything=False)


@contextlib.contextmanager
def printed_by_another(path: Path) -> Iterator[Callable[[], None]]:
    """
    :func:`print_findings` of a bundle that is still to be written, by a process that meanwhile
    makes ready what it takes: DuckDB, the templates, the questions.
    """
    go, gone = os.pipe()

    def work(_: Tell) -> None:
        if not _lacks():
            from mmscope.reports.findings import findings

            findings.make_ready()
        os.read(go, 1)
        _print(path)
        sys.stdout.flush()

    sys.stdout.flush()  # or it would be printed by both
    with contextlib.ExitStack() as ends:
        ends.callback(os.close, go)
        ends.callback(os.close, gone)
        another = ends.enter_context(beside(work))

        def print_now() -> None:
            sys.stdout.flush()
            os.write(gone, b"!")
            if isinstance(result := another(), Died):
                say(
                    f"findings: the process that asks for them {result.how}: "
                    f"run 'mmscope findings {path}'"
                )

        yield print_now


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
    """Whether that is there, which mostly is what a box lacks; nothing is loaded to see it."""
    return importlib.util.find_spec("duckdb") is not None


def give_back() -> None:
    """
    Give memory back that nothing uses any more: what was read of the kernel, before the database of
    the findings takes some. By itself glibc keeps what is free below what is in use.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
