# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What each version of mmscope added to its bundles, and what an older bundle lacks therefore.

``docs/bundle-format.md`` has the rules. Within one format a column is never renamed or retyped, and
keeps its meaning; sections, tables, columns and rows may be added. A bundle of an older format or
version is read as it is, and what its mmscope did not write is said. A bundle of a newer format is
refused, because a column may mean something else there.

Cannot know: what a version that is not a release wrote.
"""

import contextlib
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, version_number


@dataclass(frozen=True)
class Added:
    """
    What a version added to a section.

    :ivar new: the section itself.
    :ivar tables: new ones.
    :ivar columns: new ones of a table that was there.
    :ivar rows: of a table that was there: the column of its key, and new values of that.
    """

    version: str
    section: str
    new: bool = False
    tables: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)


ADDED = (
    Added("0.2.0", "zones", columns={"zones": ("lock_held", "node_unreclaimable")}),
    Added(
        "0.2.0",
        "physical_memory",
        new=True,
        tables=("physical_memory_parts", "physical_memory", "memory_options", "direct_map"),
    ),
    Added("0.2.0", "poisoned_pages", new=True, tables=("poisoned_pages", "poison_counters")),
    Added(
        "0.2.0",
        "device_pagemaps",
        columns={
            "device_pagemaps": (
                *("initialised_struct_pages", "init_ms_low", "init_ms_high", "init_ms_logged"),
            )
        },
    ),
    Added(
        "0.2.0",
        "memory_metadata",
        columns={"memmap_what_if": ("initialised_struct_pages", "init_ms_low", "init_ms_high")},
    ),
    Added(
        "0.2.0",
        "file_maps",
        new=True,
        tables=(
            *("file_mappings", "file_mapping_fanout", "file_mapping_locks"),
            *("file_mapping_waiters", "file_mapping_checks"),
        ),
    ),
    Added("0.2.0", "ksm", columns={"ksm_pages": ("passes", "pass_ms")}),
    Added(
        "0.2.0",
        "rmap_cost",
        columns={
            "rmap_costs": ("one_ns", "one_ns_low", "one_ns_high"),
            "rmap_walks": (
                *("address_space", "visits_a_pass", "pass_ms", "walk_ms_low", "walk_ms_high"),
            ),
        },
        rows={"rmap_costs": ("what", ("folios of mapped files",))},
    ),
    Added(
        "0.2.0",
        "settings",
        tables=("kernel_features",),
        rows={"settings": ("name", ("vm.defrag_mode",))},
    ),
    Added(
        "0.2.0",
        "profiles",
        tables=(
            *("profile_allocations", "profile_groups", "profile_page_tables", "profile_victims"),
        ),
        columns={"profiles": ("missed",), "profile_counters": ("per_minute",)},
    ),
    Added("0.2.0", "kernel_log", new=True, tables=("kernel_log",)),
    Added(
        "0.2.0",
        "oom_kills",
        new=True,
        tables=(*("oom_kills", "oom_tasks", "oom_memory", "oom_free_blocks", "oom_cgroup_memory"),),
    ),
)


def added_since(version: str) -> list[Added]:
    """What versions after this one added; nothing if it is not a version."""
    written = version_number(version)
    if written is None:
        return []
    return [added for added in ADDED if (version_number(added.version) or ()) > written]


@dataclass(frozen=True)
class Lacking:
    """What a bundle lacks because its mmscope did not write it. Each thing is named once."""

    sections: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # of sections that it has
    columns: list[str] = field(default_factory=list)  # table.column, of tables that it has
    # Table, column of its key and value, of tables that it has.
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def listed(self) -> list[tuple[str, list[str]]]:
        """Each kind of thing, in the singular, and all names of it."""
        rows = [f"{table}: {value}" for table, _, value in self.rows]
        kinds = ("section", self.sections), ("table", self.tables), ("column", self.columns)
        return [(kind, names) for kind, names in (*kinds, ("row", rows)) if names]

    @property
    def words(self) -> str:
        """All of it in a line, columns and rows by their table; empty if it lacks nothing."""
        said = []
        for kind, names in self.listed:
            if kind in ("column", "row"):
                kind += "s of"
                names = list(dict.fromkeys(re.split("[.:]", name)[0] for name in names))
            elif len(names) > 1:
                kind += "s"
            said.append(f"{kind} {', '.join(names)}")
        return "; ".join(said)


def lacking(bundle: Bundle) -> Lacking:
    """
    What the bundle lacks of what this version writes.

    A section that was absent, or that nobody asked for, does not count: its status says that.
    """
    found = Lacking()
    sections = {section.section for section in bundle.sections}
    sections |= {table.section for table in bundle.tables.values()}
    for added in added_since(bundle.version):
        if added.section not in sections:
            found.sections.extend([added.section] if added.new else [])
            continue
        found.tables.extend(name for name in added.tables if name not in bundle.tables)
        for table, names in added.columns.items():
            if table in bundle.tables:
                there = {c.name for c in bundle.tables[table].columns}
                found.columns.extend(f"{table}.{name}" for name in names if name not in there)
        for table, (key, values) in added.rows.items():
            has = _values(bundle, table, key, values)
            found.rows.extend((table, key, value) for value in values if value not in has)
    return found


def _values(bundle: Bundle, table: str, key: str, values: tuple[str, ...]) -> Container[str]:
    """Which of these values a column has; all of them where there is nothing to be said."""
    if table in bundle.tables and key in {c.name for c in bundle.tables[table].columns}:
        with contextlib.suppress(BundleError):  # which is said where the table is shown
            return {row[key] for row in bundle.rows(table, (key, values))}
    return values


def not_written(bundle: Bundle) -> str:
    """What the bundle lacks since an older mmscope wrote it, in a line; empty if nothing."""
    words = lacking(bundle).words
    return f"mmscope {bundle.version} did not write {words}" if words else ""


def reasons(bundle: Bundle) -> dict[str, str]:
    """Why it lacks what it lacks: by ``section NAME``, ``table NAME`` and ``table.column``."""
    found = lacking(bundle)
    names = [f"section {name}" for name in found.sections]
    names += [f"table {name}" for name in found.tables] + found.columns
    return dict.fromkeys(names, f"mmscope {bundle.version} did not write it")


def new_tables(bundle: Bundle) -> set[str]:
    """Tables that came after the version that wrote the bundle."""
    return {name for added in added_since(bundle.version) for name in added.tables}
