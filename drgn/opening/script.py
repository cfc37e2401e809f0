# SPDX-License-Identifier: LGPL-2.1-or-later
"""Probes as scripts of drgn: ``drgn -c vmcore -s vmlinux drgn/free/zones.py``."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from drgn import FaultError, Program, get_default_prog

from mmscope.drgn.opening.no_debug_info import NoDebugInfoError, attach
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.terminal import print_dataclasses


def run_script(probe: Callable[[Program], Iterable[tuple[str, type, Iterable[Any]]]]) -> None:
    """
    Run a probe as a drgn script: ``drgn -c vmcore -s vmlinux drgn/free/zones.py``.

    Where drgn was started without debug info, the kernel's own types and symbols are used.

    :param probe: gives (title, row type, rows) for each table to print.
    """
    try:
        prog = get_default_prog()
        try:
            prog.type("struct page")
        except LookupError:
            attach(prog)
        for position, (title, row_type, rows) in enumerate(probe(prog)):
            if position:
                print()
            print_dataclasses(row_type, rows, title=title)
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has seen enough
    except (FaultError, LookupError, NoDebugInfoError, ValueError) as error:
        sys.exit(f"{sys.argv[0]}: {visible(str(error))}")
