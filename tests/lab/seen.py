# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What each kernel of the lab shows of each section: ``docs/kernels-seen.json``, of which
``make docs`` makes the tables of docs/kernels.md.

Costs: every section of one vmcore a kernel, with its debug info and without: about 8 s of CPU time
with the vmcore in the cache, a boot without.

    python tests/lab/seen.py 5.10,arm64-6.1     # reads these anew; those of others stay
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import kernels
from archive import LabError
from capture import Capture, capture
from drgn import Program
from dump_formats import with_vmcoreinfo
from roles import resolve

from mmscope.drgn.opening.no_debug_info import NoDebugInfoError, attach
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import Found, Section
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.collect.collect import run_section

SEEN = Path(__file__).resolve().parents[2] / "docs" / "kernels-seen.json"
# Has something of every size that a kernel knows, on every kernel; that of owners has the others'.
WORKLOAD, WORKLOADS = "sizes", {"owner": "owner"}
PATIENCE = 3600.0  # nobody waits, and the machine may be busy

Statuses = dict[str, list[str]]


def main() -> int:
    """Read the kernels that are named, or all that the cache has."""
    seen: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    words = ",".join(sys.argv[1:]) or ",".join(filter(kernels.whole, kernels.stock()))
    for word in words.split(","):
        try:
            name = resolve(word.removesuffix("?"), print)
            taken = capture(name, WORKLOADS.get(name, WORKLOAD), say=print)
            seen[name] = of_kernel(with_vmcoreinfo(taken))
        except LabError as error:
            print(f"seen.py: {error}", file=sys.stderr)
            if word[-1:] != "?":
                return 1
    rows = [name for name in kernels.names() if name in seen]
    text = json.dumps({name: seen[name] for name in rows}, indent=1, ensure_ascii=False)
    SEEN.write_text(text + "\n")
    return 0


def of_kernel(taken: Capture) -> dict[str, Any]:
    """What is committed of a kernel."""
    prog = open_target(taken.vmcore, [taken.vmlinux])
    statuses, empty = read(prog)
    alone = Program()
    alone.set_core_dump(taken.vmcore)
    try:
        attach(alone)
        without: Statuses | str = read(alone)[0]
    except NoDebugInfoError as error:
        without = str(error)
    return {
        "release": taken.release,
        "architecture": taken.architecture.name,
        "page_bytes": prog["PAGE_SIZE"].value_(),
        "levels": len(page_table_format(prog).levels),
        "about": kernels.about(taken.kernel),
        "workload": taken.workload,
        "columns": sum(len(columns(t.row)) for spec in SECTIONS.values() for t in spec.tables),
        "sections": statuses,
        "without_debug_info": "the same" if without == statuses else without,
        "empty": empty,
    }


def read(prog: Program) -> tuple[Statuses, dict[str, list[str]]]:
    """Each section's status with the reason, and which of its columns have nothing in any row."""
    memory, statuses, empty = Memory(prog), {}, {}
    for spec in SECTIONS.values():
        section, found = run_section(dataclasses.replace(spec, deadline=PATIENCE), memory)
        statuses[spec.name] = status(section)
        if section.status in ("ok", "partial") and (names := nothing_in(spec, found)):
            empty[spec.name] = names
    return statuses, empty


def status(section: SectionResult) -> list[str]:
    """``ok``, or what else with the reason."""
    return ["ok"] if section.status == "ok" else [section.status, section.message or ""]


def nothing_in(spec: Section, found: Found) -> list[str]:
    """A section's tables without rows, and the columns that are empty in all of them."""
    names = []
    for table in spec.tables:
        rows = found.by_name.get(table.name, [])
        if not rows:
            names.append(table.name)
            continue
        empty = (
            c.name for c in columns(table.row) if all(getattr(r, c.name) is None for r in rows)
        )
        names += [f"{table.name}.{name}" for name in empty]
    return names


if __name__ == "__main__":
    sys.exit(main())
