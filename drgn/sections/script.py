# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Probes as scripts of drgn: ``drgn -c vmcore -s vmlinux drgn/free/zones.py``. A file that declares a
section, or a table of one, ends with a call of what is here.

Where drgn was started without debug info, the kernel's own types and symbols are used.
"""

import sys
from collections.abc import Collection, Mapping

from drgn import FaultError, get_default_prog

from mmscope.drgn.opening.no_debug_info import NoDebugInfoError, attach
from mmscope.drgn.opening.target import TargetError, read_as_opened_here
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import to_look_at
from mmscope.drgn.tables.hostile_text import echo
from mmscope.drgn.tables.terminal import print_dataclasses


def print_section(name: str, *tables: str) -> None:
    """
    Print the tables of a section, of long ones the first rows, and what is missing from them.

    :param tables: only these.
    """
    _print({name: tables})


def print_sections(*names: str) -> None:
    """Print several sections, one after the other; what one lacks costs the others nothing."""
    _print(dict.fromkeys(names, ()))


def _print(wanted: Mapping[str, Collection[str]]) -> None:
    """Print sections, of each these tables, or all."""
    failed = False
    try:
        memory = _memory()
        for position, (name, tables) in enumerate(wanted.items()):
            if position:
                echo()
            try:
                _print_one(memory, name, tables)
            except (Absent, FaultError, LookupError, ValueError) as error:
                which = f"{name}: " if len(wanted) > 1 else ""
                echo(f"{sys.argv[0]}: {which}{error}", file=sys.stderr)
                failed = True
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has seen enough
    except (LookupError, NoDebugInfoError, TargetError, ValueError) as error:
        sys.exit(f"{sys.argv[0]}: {error}")
    if failed:
        sys.exit(1)


def _memory() -> Memory:
    """The memory of drgn's target."""
    prog = get_default_prog()
    read_as_opened_here(prog)
    try:
        prog.type("struct page")
    except LookupError:
        attach(prog)
    return Memory(prog)


def _print_one(memory: Memory, name: str, tables: Collection[str]) -> None:
    section = SECTIONS[name]
    found = section.from_memory(memory)
    wanted = [each for each in found.tables if not tables or each.table.name in tables]
    for position, filled in enumerate(to_look_at(wanted, section.command.top)):
        if position:
            echo()
        table = filled.table
        print_dataclasses(table.row, filled.rows, title=filled.title or table.title)
    for words in found.notes + found.unlisted + found.remarks:
        echo(words, file=sys.stderr)
