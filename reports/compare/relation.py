# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Relation of two bundles: one boot of one machine, two boots, or two machines.

What must not be compared is not: counters of two boots give no difference in time; pids,
handles and addresses of two boots name different things.

Cannot know: whether two machines that share a name and were started within the same seconds are
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mmscope.drgn.tables import display
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import lacking, not_written
from mmscope.reports.bundle.description import SAME_BOOT_SECONDS

# What names a thing during one boot only.
BOOT_NAMES = {
    *("pid", "tgid", "handle", "anon_vma", "root", "root_pid", "address_space", "chain"),
    *("pfn", "content"),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """
    Relation of two bundles.

    :ivar same_host: None where the bundles do not say; so for the boot, which is then treated as
        two.
    :ivar seconds: from the first to the second, of one boot.
    :ivar same_names: False where ``comm-1`` of one is not that of the other.
    """

    same_host: bool | None
    same_boot: bool | None
    seconds: float | None
    sides: tuple[str, str]  # what the two are called
    dates: tuple[str, str]  # what a reader calls them: when they were read, or the same
    words: list[str]
    same_names: bool = True
    # Rows that the mmscope of one side does not write: table, column of its key, value.
    one_sided: tuple[tuple[str, ...], ...] = ()

    @property
    def one_boot(self) -> bool:
        return self.same_boot is True


def elapsed(before: Bundle, after: Bundle) -> float | None:
    """
    Seconds between two readings of one boot: by the uptime, which is finer than the date; negative
    if they are the other way round.
    """
    old, new = (bundle.target.get("uptime_seconds") for bundle in (before, after))
    if isinstance(old, int | float) and isinstance(new, int | float):
        return round(float(new) - float(old), 3)
    return None


def same_names(bundles: Sequence[Bundle]) -> bool:
    """True if a name is the same in all bundles: none is redacted, or all were together."""
    redactions = [b.target.get("redaction") for b in bundles if "redacted" in b.target]
    together = len(redactions) == len(bundles) and None not in redactions
    return not redactions or (together and len(set(redactions)) == 1)


def same_boot(before: Bundle, after: Bundle) -> bool | None:
    """
    True if two bundles are of one boot of one machine; None where they do not say.

    Same names, and the clock less the uptime says the same. A clock that was set in between makes
    it two boots, which costs differences but shows none that is not there. Machines that share a
    name and were started within the same seconds look the same.
    """
    if not same_names((before, after)):
        return None
    for name in ("hostname", "release", "architecture"):
        here, there = before.target.get(name), after.target.get(name)
        if here and there and here != there:
            return False
    old, new = before.booted, after.booted
    named = before.hostname and after.hostname
    if old is None or new is None or not named:
        return None
    return abs(new - old) <= SAME_BOOT_SECONDS


def _dates(sides: tuple[str, str], taken: tuple[float | None, float | None]) -> tuple[str, str]:
    """Times of two readings of one machine, in UTC, as exact as needed to tell them apart."""
    if sides != ("before", "after") or taken[0] is None or taken[1] is None:
        return sides
    for form in ("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"):
        try:
            old, new = (datetime.fromtimestamp(at, UTC).strftime(form) for at in taken if at)
        except (ValueError, OverflowError, OSError):
            return sides
        if old != new:
            return old, new
    return sides


def relation(before: Bundle, after: Bundle) -> Relation:
    """Relate two bundles, and say what follows for the numbers."""

    def said(name: str) -> tuple[str, str]:
        values = (bundle.target.get(name) for bundle in (before, after))
        old, new = (str(value or "unknown") for value in values)
        return old, new

    words = []
    hosts = before.hostname or "unknown", after.hostname or "unknown"
    releases = said("release")
    named = same_names((before, after))
    same_host = None if "unknown" in hosts or not named else hosts[0] == hosts[1]
    sides = ("before", "after") if same_host else ("baseline", "this")
    taken = before.captured, after.captured
    one = same_boot(before, after)
    if one:
        seconds = elapsed(before, after)
    else:
        seconds = None if None in taken else (taken[1] or 0.0) - (taken[0] or 0.0)
    if not named:
        words.append(
            "Names were not replaced in both bundles together: comm-1 or host-1 of one is not that "
            "of the other. Tables, findings and profiles that go by such names are not compared."
        )
    if same_host is None:
        words.append("Whether the bundles are of one machine is unknown.")
    elif not same_host:
        words.append(f"Two machines: the baseline is of {hosts[0]}, this is of {hosts[1]}.")
    if releases[0] != releases[1]:
        words.append(f"Two kernels: {releases[0]} in the baseline, {releases[1]} here.")
    words.append(_of_boots(one, hosts[0], seconds, _uptime(before), _uptime(after)))
    if same_host and seconds is not None and seconds < 0:
        sides = ("baseline", "this")
        words.append(
            "The baseline was read later than this; differences are from it to this all the same."
        )
    if before.target.get("page_size") != after.target.get("page_size"):
        words.append(
            f"Page sizes differ ({' and '.join(said('page_size'))}): what is counted in pages or "
            "pageblocks is not subtracted."
        )
    if before.target.get("total_pages") != after.target.get("total_pages"):
        words.append(f"Memory differs: {' and '.join(said('total_pages'))} pages.")
    lacks = lacking(before), lacking(after)
    if before.version != after.version:
        words += [
            f"{name} is older: {not_written(bundle)}. These are not compared."
            for name, bundle, lack in zip(
                ("The baseline", "This"), (before, after), lacks, strict=True
            )
            if lack
        ]
    rows = [tuple(place) for kind, *place in lacks[0] + lacks[1] if kind == "row"]
    one_sided = tuple(dict.fromkeys(rows))
    dates = _dates(sides, taken)
    return Relation(same_host, one, seconds if one else None, sides, dates, words, named, one_sided)


def _of_boots(one: bool | None, host: str, seconds: float | None, old: str, new: str) -> str:
    """Words for bundles of one boot, of two, or where that is unknown (None)."""
    if one:
        apart = display.duration(abs(seconds or 0.0))
        return f"One boot of {host}, read {apart} apart (uptime {new})."
    known = "Two boots" if one is False else "Whether this is one boot is unknown"
    return (
        f"{known} (uptime {old} and {new}). Counters since boot are not subtracted, rows are "
        "matched by stable names instead of pids, handles and addresses, and a finding on a "
        "counter is about its own boot."
    )


def _uptime(bundle: Bundle) -> str:
    return display.duration(bundle.uptime) if bundle.uptime else "unknown"
