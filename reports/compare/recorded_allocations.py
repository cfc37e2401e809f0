# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Read a host's recording of ``atomic-alloc``: atomic allocations by order, those that
failed, and who turned pageblocks into HighAtomic reserve.

The last recording of the last bundle that has one counts. Costs a reading of its folded stacks.

Cannot know: what happened outside of the recording; and of a recording that lost samples, how many
more there were.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError

RECIPE = "atomic-alloc"
RESERVES = "mmscope:reserve"  # the event of a pageblock that becomes reserve
COSTLY = 4  # the first order above PAGE_ALLOC_COSTLY_ORDER
NONE = f"no recording of {RECIPE} ('mmscope record {RECIPE} -a -o BUNDLE')"
KERNEL = "_[k]"


@dataclass(frozen=True, slots=True)
class Allocations:
    """
    A recording.

    :ivar why: why there is none whose numbers can be used; empty where there is.
    :ivar attempts, failures: by order.
    :ivar reservations: None where it could not be seen.
    :ivar callers: reservations by who asked for the memory; None where its stacks are not there.
    :ivar counters: of /proc/vmstat: what they gained meanwhile.
    :ivar lost: samples that are missing from it.
    """

    why: str = ""
    seconds: float = 0.0
    attempts: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    reservations: int | None = None
    callers: dict[str, int] | None = None
    counters: dict[str, int] = field(default_factory=dict)
    lost: int = 0

    def a_minute(self, number: int) -> float:
        return number * 60 / self.seconds


def recorded(bundles: Sequence[Bundle]) -> Allocations:
    """The last recording in some bundles of one host, which are in the order of time."""
    for bundle in reversed(bundles):
        try:
            if profile := _last(bundle):
                return _read(bundle, profile)
        except BundleError as error:
            return Allocations(
                f"its recording is damaged: {str(error).replace(f'{bundle.path}/', '')}"
            )
    return Allocations(NONE)


def _last(bundle: Bundle) -> str:
    """The name of a bundle's last recording by the recipe; empty if it has none."""
    # Before 0.3.0 only the events said by which recipe they were recorded.
    named = {row["profile"] for row in bundle.rows_if_any("profiles", ("recipe", (RECIPE,)))}
    rows = [
        row
        for row in bundle.rows_if_any("profile_recordings")
        if row["profile"] in named or row.get("recipe") == RECIPE
    ]
    last = max(rows, key=lambda row: str(row["captured_at"] or ""), default=None)
    return str(last["profile"]) if last else ""


def _read(bundle: Bundle, profile: str) -> Allocations:
    """
    A recording as it is in a bundle.

    :raises BundleError: a table of it is damaged.
    """
    mine = "profile", (profile,)
    (how,) = bundle.rows("profile_recordings", mine)
    if how["scope"] != "system":
        return Allocations("its recording is not of the whole machine")
    if not how["seconds"]:
        return Allocations("how long its recording took is not known")
    # A table without rows is not in the bundle: nothing happened, and so nothing reserved.
    rows = list(bundle.rows_if_any("profile_allocations", mine))
    reservations = [row["reservations"] for row in rows]
    events = list(bundle.rows_if_any("profiles", mine))
    counters = bundle.rows_if_any("profile_counters", mine)
    of_order = [row for row in rows if row["order"] is not None]
    seen = None not in reservations
    return Allocations(
        seconds=float(how["seconds"]),
        attempts={row["order"]: row["attempts"] for row in of_order},
        failures={row["order"]: row["failures"] for row in of_order},
        reservations=sum(reservations) if seen else None,
        callers=_callers(bundle, events) if seen else None,
        counters={row["name"]: row["gained"] for row in counters},
        lost=sum((row["lost"] or 0) + (row.get("missed") or 0) for row in events),
    )


def _callers(bundle: Bundle, events: Sequence[dict[str, object]]) -> dict[str, int]:
    """Callers that asked for the memory with which a pageblock became reserve, and how often."""
    found: dict[str, int] = {}
    for event in events:
        if event["event"] != RESERVES or not event["file"]:
            continue
        for stack, times in bundle.stacks(str(event["file"])):
            # The kernel's frames alone: a program's name their functions as they like.
            frames = [frame for frame in stack.split(";") if frame.endswith(KERNEL)]
            plain = ";".join(frame.removesuffix(KERNEL) for frame in frames)
            caller, module = owner_frame(plain) if plain else ("unknown", None)
            name = f"{caller} [{module}]" if module else caller
            found[name] = found.get(name, 0) + times
    return found
