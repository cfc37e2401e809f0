# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles in a bundle: a recording is folded, and its tables join those that are there.

The bundle is rewritten beside the old one and takes its place at once, so that it has the whole
profile or none of it.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.display import percent, plural
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.drgn.tables.rows import columns
from mmscope.perf import stack_parts
from mmscope.perf.stack_parts import KnownFrames
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, Cell, SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.profiles.recorded_rows import Rows, Stacks
from mmscope.reports.rows.profile_rows import ADDRESSES, PROFILES_HEADING, new_tables

SECTION = "profiles"
# A name for the time that an irq-enable site stands for, once it is its caller's.
REATTRIBUTED = "(with interrupts off)_[k]"
# Of these no rows is an answer, too.
ALWAYS = {"profiles", "profile_parts", "profile_sites", "profile_reaping", "profile_notes"}


def profile_name(wanted: str, taken: Iterable[str]) -> str:
    """A name for a recording that no other has."""
    base = re.sub(r"[^a-z0-9]+", "_", wanted.lower()).strip("_")[:40] or "profile"
    base = base if base[0].isalpha() else f"p_{base}"
    names, number, name = set(taken), 1, base
    while name in names:
        number += 1
        name = f"{base}_{number}"
    return name


def names_in(bundle: Bundle | None) -> list[str]:
    rows = bundle.rows_if_any("profiles") if bundle is not None else ()
    return list(dict.fromkeys(str(row["profile"]) for row in rows))


def files_of(bundle: Bundle, what: str) -> list[str]:
    """The folded stacks of a recording, or of all of them if *what* is ``profiles``."""
    rows = [row for row in bundle.rows_if_any("profiles") if what in (SECTION, row["profile"])]
    return [row["file"] for row in rows if row["file"] in bundle.folded]


def existing(path: Path) -> Bundle | None:
    """
    The bundle of that name, which is to be added to; None if there is nothing.

    :raises BundleError: something else is there, or a bundle without names.
    """
    bundle = Bundle(path) if os.path.lexists(path) else None
    if bundle is not None and "redacted" in bundle.target:
        raise BundleError(
            f"{path}: its names are replaced, and a recording would bring new ones; record into "
            "another bundle, or into the one that this was made of, and redact that again"
        )
    return bundle


def add_to_bundle(
    path: Path,
    name: str,
    made: tuple[Rows, Stacks],
    seconds: float,
    target: dict[str, Cell],
    *,
    mode: int | None = None,
) -> None:
    """
    Write a recording into a bundle, new or there already.

    :param made: by ``recorded_rows.profiled``.
    :param target: of a new bundle.
    :param mode: of its files, as asked for.
    :raises BundleError: the bundle cannot be read or written.
    """
    bundle, (rows, stacks) = existing(path), made
    if bundle is not None and name in names_in(bundle):
        raise BundleError(f"{path}: has a profile {name} already; give another --label")
    old = rows_in(bundle)
    with Writer(path, replace=bundle is not None, mode=mode) as writer:
        if bundle is not None:
            writer.keep(bundle, without={*old, "sections"})
            target = bundle.target
        written = 0
        for table in PROFILES_HEADING.tables:
            every = old[table.name] + rows[table.name]
            if every or table.name in ALWAYS:
                written += writer.table(table.name, table.title, table.row, every, section=SECTION)
        for file, title, unit, folded in stacks:
            writer.folded(file, title, folded, unit=unit, section=SECTION)
        others = [s for s in bundle.sections if s.section != SECTION] if bundle else []
        before = [s for s in bundle.sections if s.section == SECTION] if bundle else []
        notes = [row.note for row in rows["profile_notes"] if row.kind == "partial"]
        said = [s.message for s in before[:1]] + [f"{name}: {note}" for note in notes]
        partial = notes or any(row.kind == "partial" for row in old["profile_notes"])
        section = SectionResult(
            SECTION,
            "partial" if partial else "ok",
            round(seconds + sum(s.seconds for s in before), 3),
            written,
            0,
            "; ".join(filter(None, said)) or None,
        )
        writer.finish(target, [*others, section])


def rows_in(bundle: Bundle | None) -> dict[str, list[Any]]:
    """The rows of the recordings that a bundle has, by table."""
    old: dict[str, list[Any]] = {table.name: [] for table in PROFILES_HEADING.tables}
    if bundle is not None:
        for table in PROFILES_HEADING.tables:
            names = [c.name for c in columns(table.row)]
            for row in bundle.rows_if_any(table.name):
                old[table.name].append(table.row(*map(row.get, names)))
    return old


def reattributed(
    stacks: Iterable[tuple[str, int]], known: KnownFrames
) -> Iterable[tuple[str, int]]:
    """Stacks whose leaf is where interrupts come back on, given to its caller, and labelled."""
    for stack, value in stacks:
        above, _, leaf = stack.rpartition(";")
        if above and known.stands_for(stack_parts.plain(_symbol(leaf))):
            stack = f"{above};{REATTRIBUTED}"
        yield stack, value


def is_site(frame: str, known: KnownFrames) -> str:
    """The meaning of samples on a folded stack's leaf; empty if it is not an irq-enable site."""
    return known.stands_for(stack_parts.plain(_symbol(frame))) if frame.endswith("_[k]") else ""


def _symbol(frame: str) -> str:
    return frame.removesuffix("_[k]").partition(" [")[0]


def summary(made: Rows) -> None:
    """A recording in a few lines."""
    for row in made["profiles"]:
        of = f" ({row.recorded:,} recorded; left out: {row.removed_why})" if row.removed else ""
        lost = f", {row.lost:,} LOST" if row.lost else ""
        echo(f"{row.event}: {counted(row.samples, row.unit)}{of}{lost}")
    parts = made["profile_parts"]
    if parts:
        echo(f"{'samples':>9}  {'share':>7}  part", begin="\n")
        for part in parts[:20]:
            echo(
                f"{part.samples:>9,}  {percent(part.share_of_all):>7}  {part.who}: {part.part}",
            )
    _used_and_grown(made)
    for again in made["profile_reaping"]:
        echo(
            f"clearing entries: {again.reaper_samples:,} samples by the reaper, "
            f"{again.beside_samples:,} by the victim beside it, {again.again_samples:,} by the "
            "victim when the reaper was done (a second walk)",
            begin="\n",
        )
    for row in made["profile_allocations"]:
        of_order = "of unknown order" if row.order is None else f"of order {row.order}"
        echo(
            f"atomic allocations {of_order}: {row.attempts:,}, {row.failures:,} failed; "
            f"{_or_not_seen(row.reservations, 'pageblock')} reserved, "
            f"{_or_not_seen(row.from_reserve, 'block')} out of the reserve",
            begin="\n",
        )
    for took in made["profile_durations"]:
        echo(
            f"{took.name}: {counted(took.count, 'times')}, {took.total_ns / 1e6:,.3f} ms in all, "
            f"longest {took.max_ns / 1e6:,.3f} ms",
        )
    sites = sum(site.samples for site in made["profile_sites"])
    if sites:
        unknown = any(row.nmi == "unknown" for row in made["profiles"])
        without = "where this sampler has no NMI" if unknown else "this sampler has no NMI, so"
        echo(
            f"{sites:,} samples end where interrupts come back on: {without} they stand for "
            "what ran before with interrupts off (profile_sites)",
            begin="\n",
        )


def _used_and_grown(made: Rows) -> None:
    """The command's times, and the page tables that its faults needed."""
    for row in made["profile_commands"]:
        real = "not seen" if row.real_seconds is None else f"{row.real_seconds:,.3f} s"
        echo(f"real {real}", begin="\n", end="")
        if row.user_seconds is not None and row.system_seconds is not None:
            user, system = row.user_seconds, row.system_seconds
            echo(f", user {user:,.2f} s, system {system:,.2f} s", end="")
        echo()
    last = {
        (row.pid, row.comm): row for row in made["profile_table_growth"] if row.made_by == ADDRESSES
    }
    for row in last.values():
        parts = [
            f"{tables or 'none'} at {counted(faults, 'faults')}"
            for tables, faults in new_tables(
                row.faults, row.pte_tables, row.pmd_tables, row.pud_tables
            )
        ]
        echo(
            f"new page tables at each fault of {visible(row.comm)} ({row.pid}): {', '.join(parts)}",
        )
    for row in made["profile_counts"]:
        said = row.why if row.counted is None else f"{row.counted:,} counted"
        echo(f"{visible(row.event)}: {said}")


def _or_not_seen(number: int | None, what: str) -> str:
    return f"not seen: {what}s" if number is None else plural(number, what)


def counted(number: int, unit: str) -> str:
    """``1 sample``, ``2 faults``; of a period, samples are what was counted."""
    unit = unit if unit in ("faults", "events", "times") else "samples"
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def in_words(size: int, samples: int) -> str:
    """Progress of reading perf's text."""
    return f"{samples:,} samples, {size / 2**20:,.0f} MiB of text read"
