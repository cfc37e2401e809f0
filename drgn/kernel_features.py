# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What this kernel does where kernels differ, as far as its memory, its symbols or its files show.

Words of findings and their advice go by these rows, never by the release: stable trees take changes
back, distributions take more. A feature is a line of :data:`FEATURES`: what it is, and the trace by
which a kernel that has it is known. Costs some symbol lookups; /proc and /sys show fewer of them.

Cannot know: a change that leaves no trace. Such a feature is unknown, and advice that depends on it
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rows import column

if TYPE_CHECKING:  # findings need the words where there is no drgn
    from drgn import Program


@dataclass(frozen=True)
class KernelFeature:
    """One thing in which kernels differ."""

    feature: str = column(holds="words", key=True, help="name that findings use")
    present: bool | None = column(help="whether this kernel has it; empty: nothing shows")
    what: str = column(holds="words", help="what the kernel does then, and since when upstream")
    shown_by: str = column(holds="words", help="the trace that tells")


@dataclass(frozen=True)
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


def has_member(structure: str, member: str) -> Callable[[Program], bool | None]:
    """Whether a structure has a member; unknown where the structure itself is unknown."""

    def probe(prog: Program) -> bool | None:
        try:
            return bool(prog.type(structure).has_member(member))
        except LookupError:
            return None

    return probe


def has_symbol(name: str) -> Callable[[Program], bool | None]:
    """Whether there is a function or variable of that name; its code may have been inlined."""

    def probe(prog: Program) -> bool | None:
        try:
            prog.symbol(name)
        except LookupError:
            return False
        return True

    return probe


def has_file(path: str) -> Callable[[Callable[[str], str]], bool | None]:
    """Whether the running kernel shows a file, for this user."""

    def probe(read: Callable[[str], str]) -> bool | None:
        try:
            read(path)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        return True

    return probe


FEATURES = {
    # "mm: page_alloc: keep track of free highatomic" (c928807f6f6b, v6.13; in stable 6.12)
    "highatomic_free_counted": Feature(
        "the watermarks leave out only the free pages of the HighAtomic reserve (v6.13)",
        "zone.nr_free_highatomic",
        has_member("struct zone", "nr_free_highatomic"),
    ),
    # "mm: page_alloc: defrag_mode" (e3aa7df331bc, v6.15)
    "defrag_mode": Feature(
        "vm.defrag_mode exists (v6.15)",
        "the variable defrag_mode; /proc/sys/vm/defrag_mode",
        has_symbol("defrag_mode"),
        has_file("proc/sys/vm/defrag_mode"),
    ),
}


def kernel_features(prog: Program) -> list[KernelFeature]:
    """What a kernel's memory and symbols show of each feature."""
    return [
        KernelFeature(name, feature.probe(prog), feature.what, feature.shown_by)
        for name, feature in FEATURES.items()
    ]


def read_kernel_features(read: Callable[[str], str]) -> list[KernelFeature]:
    """
    The same rows from /proc and /sys, where fewer are known.

    :param read: gives the text of a path, and raises OSError where there is none.
    """
    return [
        KernelFeature(name, feature.probe_files(read), feature.what, feature.shown_by)
        for name, feature in FEATURES.items()
    ]


if __name__ == "__main__":
    from terminal import run_script

    run_script(lambda prog: [("Kernel features", KernelFeature, kernel_features(prog))])
