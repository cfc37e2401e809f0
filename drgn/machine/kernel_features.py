# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Features in which kernels differ, as far as this one's memory, symbols or files show them.

Words of findings and their advice go by these rows, never by the release: stable trees take changes
back, distributions take more. A feature is a line of :data:`FEATURES`: what it is, and the trace by
which a kernel that has it is known. Costs some symbol lookups; /proc and /sys show fewer of them.

Cannot know: a change that leaves no trace. Such a feature is unknown, and advice that depends on it
says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.source_places import inlined_into
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table

if TYPE_CHECKING:  # findings need the words where there is no drgn
    from drgn import Program


@table("kernel_features", "What this kernel does where kernels differ", since="0.2.0")
class KernelFeature:
    """One thing in which kernels differ."""

    feature: str = column(holds="words", key=True, help="name used by findings")
    present: bool | None = column(help="this kernel has it; empty: unknown")
    what: str = column(
        holds="words", help="what the kernel does with it, and since which upstream release"
    )
    shown_by: str = column(holds="words", help="member, function or symbol that shows it")


@dataclass(frozen=True, slots=True)
class Feature:
    """
    A difference between kernels.

    :ivar what: what a kernel that has it does; completes "where …", with the upstream version.
    :ivar shown_by: the trace, in words.
    :ivar probe: of a kernel's memory; None: nothing shows.
    :ivar probe_files: of /proc and /sys, by a function that gives a file's text or raises OSError.
    """

    what: str
    shown_by: str
    probe: Callable[[Program], bool | None] = lambda prog: None
    probe_files: Callable[[Callable[[str], str]], bool | None] = lambda read: None


def has_member(member: str, *structures: str) -> Callable[[Program], bool | None]:
    """
    True if a structure has a member; unknown where the structure itself is unknown, or has a
    member whose name is this one but for a letter.

    :param structures: its name, and what it was called before.
    """

    def probe(prog: Program) -> bool | None:
        for structure in structures:
            try:
                found = prog.type(structure)
            except LookupError:
                continue
            if found.has_member(member):
                return True
            for name in (each.name or "" for each in found.members or ()):
                if len(name) == len(member) and sum(map(operator.ne, name, member)) == 1:
                    raise NoDebugInfoError(f"{structure}.{name} may be {member}, damaged")
            return False
        return None

    return probe


def has_symbol(*names: str, beside: str, kind: str = "symbol") -> Callable[[Program], bool | None]:
    """
    True if there is a function or variable of one of these names that is not inlined.

    :param beside: a symbol of the same kind and file that is always there: where that one is not
        seen either (no such subsystem, or kallsyms without variables), nothing shows.
    :param kind: ``function``: the kernel was compiled from one, inlined or not. *beside* is one
        that is always inlined: where debug info does not have it (BTF has none that are inlined),
        nothing shows.
    """

    def known(prog: Program, name: str) -> bool:
        try:
            getattr(prog, kind)(name)
        except LookupError:
            return False
        return True

    def probe(prog: Program) -> bool | None:
        if any(known(prog, name) for name in names):
            return True
        return False if known(prog, beside) else None

    return probe


def reserves_from_buddy_only(prog: Program) -> bool | None:
    """
    Into which function ``reserve_highatomic_pageblock()`` was inlined, by the table of lines.

    It moved from ``get_page_from_freelist()``, where a page from a per-CPU list ends as well, to
    ``rmqueue_buddy()``. Looked for from the end, where compilers put what is unlikely. A tenth of a
    second; unknown where it is a function by itself, and without DWARF on a kernel that does not
    say what was inlined (:mod:`mmscope.drgn.opening.source_places`).
    """
    callers = ("rmqueue_buddy", "rmqueue", "get_page_from_freelist")
    if places := inlined_into(prog, "reserve_highatomic_pageblock", callers):
        return "rmqueue_buddy" in places
    for function in callers:
        try:
            symbol = prog.symbol(function)
        except LookupError:
            continue
        for address in range(symbol.address + symbol.size - 1, symbol.address, -16):
            try:
                names = [location.name() for location in prog.source_location(address)]
            except (AttributeError, LookupError):  # an older drgn; no lines for this address
                continue
            if "reserve_highatomic_pageblock" in names:
                around = names[names.index("reserve_highatomic_pageblock") + 1 :]
                return "rmqueue_buddy" in around if around else None
    return None


def per_cpu_orders(prog: Program) -> bool | None:
    """True if there are more lists than migratetypes that have one."""
    try:
        lists = prog.type("struct per_cpu_pages").member("lists").type.length or 0
        return lists > int(prog.constant("MIGRATE_PCPTYPES").value_())
    except LookupError:
        return None


def file_says(path: str, words: str = "") -> Callable[[Callable[[str], str]], bool | None]:
    """
    True if there is a file, with some words.

    Unknown if not: it may be of a folder that was copied in part, or of a kernel that shows less.
    """

    def probe(read: Callable[[str], str]) -> bool | None:
        try:
            return True if words in read(path) else None
        except OSError:
            return None

    return probe


FEATURES = {
    # "mm: page_alloc: keep track of free highatomic" (c928807f6f6b, v6.13; in stable 6.12)
    "highatomic_free_counted": Feature(
        "the watermarks leave out only the free pages of the HighAtomic reserve (v6.13)",
        "zone.nr_free_highatomic; free_highatomic in /proc/zoneinfo",
        has_member("nr_free_highatomic", "struct zone"),
        file_says("proc/zoneinfo", "free_highatomic"),
    ),
    # "mm/page_alloc: allow high-order pages to be stored on the per-cpu lists" (44042b449872, in
    # v5.14)
    "per_cpu_orders": Feature(
        "per-CPU lists hold blocks of order > 0 as well (v5.14)",
        "the length of per_cpu_pages.lists; /proc/sys/vm/percpu_pagelist_high_fraction",
        per_cpu_orders,
        file_says("proc/sys/vm/percpu_pagelist_high_fraction"),
    ),
    # "mm/page_alloc: don't increase highatomic reserve after pcp alloc" (b480cbb07102, v7.1)
    "highatomic_buddy_only": Feature(
        "only an allocation from the buddy lists makes the HighAtomic reserve grow (v7.1)",
        "reserve_highatomic_pageblock() inlined into rmqueue_buddy(), not get_page_from_freelist()",
        reserves_from_buddy_only,
    ),
    # "mm/page_alloc: use existing highatomic reserves on the buddy fastpath" (9f2fd03c9bde, v7.3)
    "highatomic_fast_path": Feature(
        "the fast path takes blocks from the HighAtomic reserve that is there (v7.3)",
        "the function alloc_flags_nonblocking()",
        has_symbol("alloc_flags_nonblocking", beside="prepare_alloc_pages", kind="function"),
    ),
    # "mm: page_alloc: freelist migratetype hygiene", a series (v6.10)
    "free_lists_by_pageblock": Feature(
        "a free block is always on the list of its pageblock's migratetype (v6.10)",
        "the function move_freepages_block_isolate(), of the same series, or what it became",
        has_symbol(
            "pageblock_isolate_and_move_free_pages",
            "move_freepages_block_isolate",
            beside="start_isolate_page_range",
        ),
    ),
    # "mm: page_alloc: defrag_mode" (e3aa7df331bc, v6.15)
    "defrag_mode": Feature(
        "vm.defrag_mode exists (v6.15)",
        "the variable defrag_mode; /proc/sys/vm/defrag_mode",
        has_symbol("defrag_mode", beside="watermark_boost_factor"),
        file_says("proc/sys/vm/defrag_mode"),
    ),
    # "ksm: add linear_page_index into ksm_rmap_item" and what uses it (v7.3)
    "ksm_page_offset": Feature(
        "KSM keeps the page offset of each mapping and visits only VMAs that overlap it (v7.3)",
        "ksm_rmap_item.linear_page_index",
        has_member("linear_page_index", "struct ksm_rmap_item", "struct rmap_item"),
    ),
    # "mm: add new api to enable ksm per process" (d7597f59d1d3, v6.4)
    "ksm_by_process": Feature(
        "prctl(PR_SET_MEMORY_MERGE) offers all of a process to KSM (v6.4)",
        "the function ksm_enable_merge_any(); of the same series /sys/kernel/mm/ksm/general_profit",
        has_symbol("ksm_enable_merge_any", beside="rmap_walk_ksm"),
        file_says("sys/kernel/mm/ksm/general_profit"),
    ),
    # kswapd_try_clear_hopeless(), mm/vmscan.c (in v7.2, not in v6.12)
    "kswapd_waits_for_balance": Feature(
        "a kswapd that gave up works again only once its node is balanced (in v7.2, not in v6.12)",
        "the function kswapd_test_hopeless(), of the same change",
        has_symbol("kswapd_test_hopeless", beside="wakeup_kswapd"),
    ),
    # "mm: madvise: implement lightweight guard page mechanism" (662df3e5c376, v6.13)
    "guard_install": Feature(
        "madvise(MADV_GUARD_INSTALL) makes guard pages without a VMA of their own (v6.13)",
        "the function guard_install_pte_entry()",
        has_symbol("guard_install_pte_entry", beside="madvise_free_pte_range"),
    ),
    # "mm: pgtable: reclaim empty PTE page in madvise(MADV_DONTNEED)" (6375e95f381e, v6.14)
    "dontneed_frees_tables": Feature(
        "MADV_DONTNEED gives back PTE tables that it empties in one call (v6.14 on x86-64)",
        "zap_details.reclaim_pt",
        has_member("reclaim_pt", "struct zap_details"),
    ),
    # lru_reparent_memcg(), of the series by which LRU folios lead to an obj_cgroup (in v7.2, not in
    # v6.12)
    "pages_reparented": Feature(
        "the pages of a removed memory cgroup pass to its parent (in v7.2, not in v6.12)",
        "the function lru_reparent_memcg()",
        has_symbol("lru_reparent_memcg", beside="mem_cgroup_css_offline"),
    ),
    # print_page_owner_memcg(), mm/page_owner.c: Debian's 6.12.117 takes memcg_data of any page for
    # an obj_cgroup, which it is since the series above; v6.12 does not.
    "page_owner_file_safe": Feature(
        "debugfs's page_owner can be read: one stable kernel (6.12.117) ends in an oops there, as "
        "it takes the memory cgroup of a page for something else",
        "the function lru_reparent_memcg(), with which that is right; of others nothing shows",
        lambda prog: (
            has_symbol("lru_reparent_memcg", beside="mem_cgroup_css_offline")(prog) or None
        ),
    ),
    # fs.dentry-negative (in v7.2, not in v6.12)
    "dentry_negative": Feature(
        "fs.dentry-negative exists (in v7.2, not in v6.12)",
        "the variable dentry_negative_policy; /proc/sys/fs/dentry-negative",
        has_symbol("dentry_negative_policy", beside="watermark_boost_factor"),
        file_says("proc/sys/fs/dentry-negative"),
    ),
}


def kernel_features(prog: Program, doubts: list[str] | None = None) -> list[KernelFeature]:
    """
    Look for each feature in a kernel's memory and symbols.

    :param doubts: takes why a feature is unknown that is not found, where that is damage.
    """
    rows = []
    for name, feature in FEATURES.items():
        present = None
        try:
            present = feature.probe(prog)
        except NoDebugInfoError as error:
            if doubts is not None:
                doubts.append(f"{name}: {error}")
        rows.append(KernelFeature(name, present, feature.what, feature.shown_by))
    return rows


def read_kernel_features(read: Callable[[str], str]) -> list[KernelFeature]:
    """
    The same rows from /proc and /sys, where fewer are known.

    :param read: gives the text of a path; it raises OSError if it cannot.
    """
    return [
        KernelFeature(name, feature.probe_files(read), feature.what, feature.shown_by)
        for name, feature in FEATURES.items()
    ]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("settings", "kernel_features")
