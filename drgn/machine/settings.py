# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The knobs of memory management and how they are set, from the kernel's variables.

Names are those under /proc/sys and /sys/kernel/mm, so that what a finding says can be typed in.
"""

import contextlib
import re
from collections.abc import Callable

from drgn import Program

from mmscope.drgn.machine.kernel_features import (
    KernelFeature,
    kernel_features,
    read_kernel_features,
)
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Command, Found, Section
from mmscope.drgn.tables.rows import LONGEST_NAME, column
from mmscope.drgn.tables.table import table, tables_of

# What a sosreport has of /proc/sys.
OF_SYSCTL = "sos_commands/kernel/sysctl_-a"
# sysctl to variable, and what the kernel takes for it (extra1 and extra2 of their tables;
# mm/page_alloc.c, mm/vmstat.c, mm/compaction.c, mm/util.c, mm/vmscan.c, mm/mmap.c,
# kernel/sysctl.c); they are ints.
INT_MAX = (1 << 31) - 1
SYSCTLS = {
    "vm.min_free_kbytes": ("min_free_kbytes", (0, INT_MAX)),
    "vm.watermark_scale_factor": ("watermark_scale_factor", (1, 3000)),
    "vm.watermark_boost_factor": ("watermark_boost_factor", (0, INT_MAX)),
    "vm.extfrag_threshold": ("sysctl_extfrag_threshold", (0, 1000)),
    "vm.compaction_proactiveness": ("sysctl_compaction_proactiveness", (0, 100)),
    "vm.percpu_pagelist_high_fraction": ("percpu_pagelist_high_fraction", (0, INT_MAX)),
    "vm.percpu_pagelist_fraction": ("percpu_pagelist_fraction", (0, INT_MAX)),  # until v5.14
    "vm.defrag_mode": ("defrag_mode", None),  # since v6.15
    "vm.swappiness": ("vm_swappiness", (0, 200)),
    "vm.overcommit_memory": ("sysctl_overcommit_memory", (0, 2)),
    "vm.max_map_count": ("sysctl_max_map_count", (0, INT_MAX)),
}
RANGES = {name: bounds for name, (_, bounds) in SYSCTLS.items() if bounds is not None}


@table(
    "settings",
    "Settings",
    setting="value",
    rows_since={"0.2.0": ("vm.defrag_mode", "vm.percpu_pagelist_fraction")},
)
class Setting:
    """One knob."""

    name: str = column(
        holds="kernel",
        key=True,
        low=1,
        high=LONGEST_NAME,
        help="path below /proc/sys or /sys/kernel/mm, dots for slashes",
    )
    value: str = column(
        holds="kernel", ranges=RANGES, help="as in the file; of a choice, the chosen one"
    )


# enum transparent_hugepage_flag (include/linux/huge_mm.h): the first that is set is the choice.
THP_CHOICES = {
    "transparent_hugepage.enabled": (
        ("TRANSPARENT_HUGEPAGE_FLAG", "always"),
        ("TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG", "madvise"),
    ),
    "transparent_hugepage.defrag": (
        ("TRANSPARENT_HUGEPAGE_DEFRAG_DIRECT_FLAG", "always"),
        ("TRANSPARENT_HUGEPAGE_DEFRAG_KSWAPD_OR_MADV_FLAG", "defer+madvise"),
        ("TRANSPARENT_HUGEPAGE_DEFRAG_KSWAPD_FLAG", "defer"),
        ("TRANSPARENT_HUGEPAGE_DEFRAG_REQ_MADV_FLAG", "madvise"),
    ),
}


def settings(prog: Program) -> list[Setting]:
    """
    The knobs this kernel has; one it does not have is left out.

    :raises FaultError: one that it has cannot be read.
    """
    rows = []
    for name, (variable, _) in SYSCTLS.items():
        with contextlib.suppress(LookupError):
            rows.append(Setting(name, str(prog.variable(variable).value_())))
    try:
        flags = prog.variable("transparent_hugepage_flags").value_()
    except LookupError:
        return rows
    for name, choices in THP_CHOICES.items():
        chosen = (word for flag, word in choices if flags >> prog.constant(flag).value_() & 1)
        rows.append(Setting(name, next(chosen, "never")))
    return rows


def thp_flags_apart(prog: Program) -> list[str]:
    """
    Words if ``transparent_hugepage_flags`` are such as ``enabled_store()`` and ``defrag_store()``
    (mm/huge_memory.c) never leave: more than there are, or two choices at once.
    """
    try:
        flags = int(prog.variable("transparent_hugepage_flags").value_())
        known = prog.constant("TRANSPARENT_HUGEPAGE_FLAG").type_.enumerators or ()
    except LookupError:
        return []
    odd = bool(flags >> 1 + max(each.value for each in known))
    for choices in THP_CHOICES.values():
        odd |= sum(flags >> prog.constant(flag).value_() & 1 for flag, _ in choices) > 1
    return [f"transparent_hugepage_flags is {flags:#x}, as no setting leaves it"] if odd else []


def read_settings(read: Callable[[str], str]) -> list[Setting]:
    """
    The same rows from /proc/sys and /sys; a file that does not hold what its knob can is left out.

    :param read: gives the text of a path; it raises OSError if it cannot.
    """
    rows = []
    for names, folder, value in (
        (SYSCTLS, "proc/sys", r"\A\s*(-?[0-9]+)\s*\Z"),
        (THP_CHOICES, "sys/kernel/mm", r"\[(.+?)\]"),
    ):
        for name in names:
            with contextlib.suppress(OSError):
                if found := re.search(value, read(f"{folder}/{name.replace('.', '/')}")):
                    rows.append(Setting(name, found[1]))
    return rows


def read_sysctl(text: str) -> list[Setting]:
    """The same of /proc/sys alone, from the output of ``sysctl -a``."""
    said = dict(re.findall(r"^(vm\.\w{1,60}) = (-?[0-9]{1,20})\s*$", text, re.MULTILINE))
    return [Setting(name, said[name]) for name in SYSCTLS if name in said]


def settings_from_memory(memory: Memory) -> Found:
    found = Found(memory.live).add(Setting, settings(memory.prog))
    found.differ(*thp_flags_apart(memory.prog))
    return found.add(KernelFeature, kernel_features(memory.prog, found.notes))


def settings_from_files(files: Files) -> Found:
    rows = read_settings(files.open)
    if not any(row.name in SYSCTLS for row in rows):
        with contextlib.suppress(OSError):
            rows = read_sysctl(files.open(OF_SYSCTL)) + rows
    if not rows:
        raise Absent(f"{files.root}: has no settings under proc/sys/vm and sys/kernel/mm")
    found = Found().add(Setting, rows)
    return found.add(KernelFeature, read_kernel_features(files.open))


SETTINGS_SECTION = Section(
    name="settings",
    title="Settings",
    tables=tables_of(Setting, KernelFeature),
    intro="""
The settings that decide how the allocator, reclaim and THP behave, as they were when this was
read. Compare them with what the machine is meant to have
([/proc/sys/vm](https://docs.kernel.org/admin-guide/sysctl/vm.html), [transparent huge
pages](https://docs.kernel.org/admin-guide/mm/transhuge.html)).

`vm.defrag_mode`, where there is one, keeps types of pages from mixing in a pageblock: with 1,
an allocation that would have to take from a block of another type reclaims and compacts first
(one that may not sleep takes from it at once), and kswapd and kcompactd work for whole free
blocks. It prevents fragmentation and does not undo it, so it is meant to be set right after boot
([kernel documentation:
defrag_mode](https://docs.kernel.org/admin-guide/sysctl/vm.html#defrag-mode)).
""",
    command=Command("watermark, compaction and THP settings", name="mm_settings", picks="name"),
    from_memory=settings_from_memory,
    from_files=settings_from_files,
    reads=(prices.SETTINGS, prices.ZONEINFO),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("settings", "settings")
