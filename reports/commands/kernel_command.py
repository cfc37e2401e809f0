# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope kernel``: what would be read of a kernel, by its types alone.

Nothing is booted or read of a machine: a file with types is held against what sections asked of the
kernels of the lab (``drgn/opening/foretold.py``, which says what that cannot know).
"""

import argparse
import dataclasses
import json
from collections import Counter
from pathlib import Path

from mmscope.drgn.opening import NoDebugInfoError, TargetError
from mmscope.drgn.opening.foretold import Foretold, has_of, known, types_in
from mmscope.drgn.opening.known_types import of_section, unlike_known
from mmscope.drgn.tables.hostile_text import cut, echo
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.terminal import print_dataclasses
from mmscope.reports.bundle.options import Command
from mmscope.reports.bundle.outcome import DONE

SHOWN = 3  # differences of a section; --json has all


@table_row
class ForetoldSection:
    """What is to be expected of a section."""

    section: str = column(holds="words", key=True, help="section, as of collect --only")
    foretold: str = column(
        holds="words",
        help="ok, absent or partial; likely: as of no one kernel that was read; unknown",
    )
    as_on: str = column(holds="words", help="kernels that answered the same")
    why: str = column(holds="words", help="why not ok; of unknown, what no other kernel answered")


def add_command(command: Command) -> None:
    """Declare ``kernel``."""
    sub = command(
        "kernel",
        run,
        "say what could be read of a kernel, from its types alone",
        "Say section by section what could be read of a kernel that need not run anywhere, by its "
        "BTF (/sys/kernel/btf/vmlinux), a vmlinux that has BTF, or a vmlinux.h. Its types are "
        "compared with those of kernels that were read.",
    )
    sub.add_argument("file", type=Path, metavar="FILE", help="BTF, vmlinux or vmlinux.h")
    sub.add_argument("--json", action="store_true", help="as JSON, for programs")


def run(args: argparse.Namespace) -> int:
    try:
        sections = foretell(args.file)
    except NoDebugInfoError as error:
        raise TargetError(f"{args.file}: {error}") from error
    except OSError as error:
        raise TargetError(f"{args.file}: {error.strerror}") from error
    if args.json:
        said = [dataclasses.asdict(section) for section in sections]
        echo(*json.dumps(said, indent=1, ensure_ascii=False).split("\n"), sep="\n")
        return DONE
    print_dataclasses(ForetoldSection, map(shown, sections))
    counts = Counter(section.status for section in sections)
    echo(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    return DONE


def foretell(file: Path) -> list[Foretold]:
    """
    Foretell each section of the kernel whose types are in a file.

    A vmlinux.h does not have enough to hold the types of members against known ones.
    """
    types, asked = types_in(file), known()
    unlike = {} if isinstance(types, str) else unlike_known(types)
    return [
        with_unlike(section, of_section(unlike, section.section, asked))
        for section in asked.foretell(has_of(types))
    ]


def with_unlike(section: Foretold, why: list[str]) -> Foretold:
    """Section that asks for members of no known type: what is read of it is partial."""
    status = section.status.replace("ok", "partial") if why else section.status
    return dataclasses.replace(section, status=status, why=[*why, *section.why])


def shown(section: Foretold) -> ForetoldSection:
    """A row for a terminal."""
    why = "; ".join(cut(words, 200) for words in section.why[:SHOWN])
    if more := len(section.why[SHOWN:]):
        why += f"; {more:,} more"
    return ForetoldSection(section.section, section.status, ", ".join(section.like), why)
