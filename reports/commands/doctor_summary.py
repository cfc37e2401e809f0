# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What doctor says on one screen: what can be read, and for all that cannot, once, what would help.
"""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.commands.doctor import AS_FOR, Check, PriceHere

# Wider lines are hard to read.
WIDTH = 100


def summary(checks: Sequence[Check], costs: Iterable[PriceHere], width: int = 0) -> str:
    """
    The rows of ``doctor`` as paragraphs.

    :param width: of a line; by default the terminal's, at most :data:`WIDTH`.
    """
    width = width or min(shutil.get_terminal_size().columns, WIDTH)
    lines: list[str] = []

    def say(text: str, first: str = "") -> None:
        lines.extend(
            textwrap.wrap(
                visible(text),
                width,
                initial_indent=first,
                subsequent_indent=" " * max(len(first), 2) + "  " * first.isspace(),
                break_on_hyphens=False,
            )
        )

    say(f"Usable: {', '.join(check.source for check in checks if check.usable == 'yes')}")
    for title, those in (
        ("Usable in part", [check for check in checks if check.usable == "in part"]),
        ("Not usable", [check for check in checks if check.usable not in ("yes", "in part")]),
    ):
        if those:
            lines += ["", f"{title}:"]
        for group in _by_change(those, checks):
            say(f"{', '.join(check.source for check in group)}: {_reasons(group)}", "  ")
            if change := _change(group[0], checks):
                say(change, "    -> ")
    spared = [cost for cost in costs if cost.here.startswith("left out")]
    if spared:
        lines += ["", "Left out, as reading it could hurt this host:"]
        for cost in spared:
            say(f"{cost.files}: {cost.here.removeprefix('left out, ')}", "  ")
    lines.append("")
    say("'mmscope doctor --all': what each of them gives, and what reading it costs.")
    return "\n".join(lines)


def _change(check: Check, checks: Iterable[Check]) -> str | None:
    """What would help, though it be said at another source."""
    if check.change and check.change.startswith(AS_FOR):
        first = check.change.removeprefix(AS_FOR)
        return next((other.change for other in checks if other.source == first), None)
    return check.change


def _by_change(those: Iterable[Check], checks: Sequence[Check]) -> Iterator[list[Check]]:
    groups: dict[str | None, list[Check]] = {}
    for check in those:
        groups.setdefault(_change(check, checks) or check.source, []).append(check)
    yield from groups.values()


def _reasons(group: Iterable[Check]) -> str:
    """Why they are not usable; what each of them alone misses, an event, is left out."""
    said = [check.reason or "" for check in group]
    if len(said) > 1:
        said = [reason.rpartition(": ")[2] for reason in said]
    return "; ".join(dict.fromkeys(filter(None, said)))
