# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Differential flame graphs of the stacks that two bundles have: of allocations, and of profiles.

Cannot know: whether a stack that one side does not have was not sampled, or did not run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.compare.relation import Relation
from mmscope.reports.drawing.flame_graph import FlameGraph, differential, fold
from mmscope.reports.drawing.refusals import Fault, NotDrawn
from mmscope.reports.drawing.row_names import NO_STACK
from mmscope.reports.pictures.profile_pictures import comparable
from mmscope.reports.profiles import profiles

# Of a graph, and of all of them.
MAX_FRAMES = 260
MAX_GRAPHS = 8


@dataclass(frozen=True, slots=True)
class Graphs:
    """A differential flame graph in both directions."""

    title: str
    unit: str
    totals: tuple[int, int]
    normalised: bool
    same: bool  # every stack has the same in both
    after: FlameGraph
    before: FlameGraph


def differential_graphs(
    before: Bundle,
    after: Bundle,
    related: Relation,
    not_compared: list[tuple[str, str]],
    faults: list[Fault],
) -> list[Graphs]:
    """
    Differential flame graphs of every kind of stacks that both bundles have.

    What one machine held at two moments is compared as it is; profiles, and what two machines
    hold, by shares of the totals.

    :param not_compared: gets what is too large to be drawn, and what mmscope failed to draw.
    :param faults: gets the latter.
    """
    sizes = {bundle.page_size for bundle in (before, after)}
    page_size = sizes.pop() if len(sizes) == 1 else None
    two_hosts = related.same_host is False
    wanted: list[tuple[str, str, str, bool]] = [
        (name, title, unit, two_hosts)
        for name, title, unit in (
            ("page_owner_stacks", "Pages by allocation stack", "bytes" if page_size else "pages"),
            ("slab_owner_stacks", "Slab objects by cache and allocation stack", "bytes"),
        )
        if name in before.tables and name in after.tables
    ]
    for name, folded in after.folded.items():
        other = before.folded.get(name)
        profile = folded.section == profiles.SECTION
        if profile and not related.same_names:
            continue
        if other and other.unit == folded.unit and f"{name}_stacks" not in before.tables:
            title = f"Profile {name}" if profile else folded.title
            wanted.append((name, title, folded.unit, profile or two_hosts))
    drawn = []
    for name, title, unit, normalise in wanted[:MAX_GRAPHS]:
        try:
            old, new = (_stacks(bundle, name, page_size or 1) for bundle in (before, after))
        except (BundleError, LookupError, TypeError):
            continue  # the sections say what is damaged
        totals = sum(value for _, value in old), sum(value for _, value in new)
        if not any(totals):
            continue
        describe = f"Differential flame graph: {title}"
        try:
            pair = differential(
                old, new, unit=unit, describe=describe, normalise=normalise, frames=MAX_FRAMES
            )
        except NotDrawn as why:
            not_compared.append((f"stacks of {name}", str(why)))
        except Exception as error:
            faults.append(Fault.of(f"stacks of {name}, compared", error))
            not_compared.append((f"stacks of {name}", faults[-1].words))
        else:
            same = fold(old) == fold(new)
            drawn.append(Graphs(title, unit, totals, normalise and all(totals), same, *pair))
    return drawn


def _stacks(bundle: Bundle, name: str, page_size: int) -> list[tuple[str, int]]:
    """
    The stacks of a flame graph: a table of owners, or folded stacks.

    :raises BundleError: it is damaged.
    """
    rows: Iterable[tuple[str, int]]
    if name in bundle.tables and not bundle.held([name])[0]:
        raise BundleError(f"table {name} is damaged, or too large to be drawn")
    if name == "page_owner_stacks":
        rows = ((row["stack"] or NO_STACK, row["pages"] * page_size) for row in bundle.rows(name))
    elif name == "slab_owner_stacks":
        rows = (
            (f"{row['cache']};{row['stack'] or NO_STACK}", row["bytes"] or 0)
            for row in bundle.rows(name)
        )
    else:
        # Programs that are compared may bear different names.
        rows = comparable(bundle.drawn_stacks(name))
    return [(stack, value) for stack, value in rows if value > 0]
