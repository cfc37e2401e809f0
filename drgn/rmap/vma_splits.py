# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Why an anon_vma has so many VMAs: what keeps neighbours of one process apart.

Two VMAs side by side become one (``vma_merge``, mm/vma.c) if they have the same flags, file,
policy, name and userfaultfd, and the page offset of one continues the other's. What differs names
the call that has split them: ``mprotect`` the protection, ``madvise`` most flags, ``mbind`` the
policy, and so on. Only the process with most VMAs on the anon_vma is looked at.

Costs a walk of that process's VMAs, 90,000 a second; their members are those that
``slab_objects`` has read.

Cannot know: in which order it happened, and who called; a trace of the call does.
"""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
from drgn import FaultError, Object, Program, offsetof, sizeof
from drgn.helpers.linux.mm import for_each_vma

from mmscope.drgn.opening.constants import flag
from mmscope.drgn.owners.slab_objects import Objects
from mmscope.drgn.reading.kernel_arrays import TORN, Bools, S64s, U64s
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.rmap.reverse_maps import ReverseMaps
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST_PIDS, column
from mmscope.drgn.tables.table import table

# An anon_vma with fewer VMAs of one process is nothing to explain.
FEW_VMAS = 64
MAX_ANON_VMAS = 10
MAX_PATTERNS = 20  # of each
MAX_WALK = 200_000  # VMAs in all

# include/linux/mm.h: bits that are the same in every kernel here.
FLAGS = {
    0: "VM_READ", 1: "VM_WRITE", 2: "VM_EXEC", 3: "VM_SHARED", 4: "VM_MAYREAD", 5: "VM_MAYWRITE",
    6: "VM_MAYEXEC", 7: "VM_MAYSHARE", 8: "VM_GROWSDOWN", 9: "VM_UFFD_MISSING", 10: "VM_PFNMAP",
    12: "VM_UFFD_WP", 13: "VM_LOCKED", 14: "VM_IO", 15: "VM_SEQ_READ", 16: "VM_RAND_READ",
    17: "VM_DONTCOPY", 18: "VM_DONTEXPAND", 19: "VM_LOCKONFAULT", 20: "VM_ACCOUNT",
    21: "VM_NORESERVE", 22: "VM_HUGETLB", 23: "VM_SYNC", 25: "VM_WIPEONFORK", 26: "VM_DONTDUMP",
    27: "VM_SOFTDIRTY", 28: "VM_MIXEDMAP", 29: "VM_HUGEPAGE", 30: "VM_NOHUGEPAGE",
    31: "VM_MERGEABLE",
}  # fmt: skip
PROTECTION = 0b111
MPOL_PREFERRED = 1  # include/uapi/linux/mempolicy.h
# Merging ignores it (VM_IGNORE_MERGE).
SOFTDIRTY = 1 << 27
MADE_BY = {
    "mprotect": PROTECTION,
    "madvise": sum(1 << bit for bit in (15, 16, 17, 25, 26, 29, 30, 31)),
    "mlock": 1 << 13 | 1 << 19,
    "userfaultfd": 1 << 9 | 1 << 12,
}
# mprotect() to writable charges private memory; what was charged once keeps the flag.
ACCOUNT = 1 << 20


@table("vma_splits", "Why anon_vmas have many VMAs", measure="neighbours")
class VmaSplits:
    """Why the VMAs of one process on one anon_vma do not merge."""

    anon_vma: str = column(holds="kernel", key=True, help="its address")
    pid: int = column(key=True, high=MOST_PIDS, help="process with most VMAs on it")
    comm: str = column(holds="comm", help="name of the process")
    vmas: int = column(unit="VMAs", help="on the anon_vma")
    neighbours: int = column(help="adjacent pairs, without a hole")
    alternating: int = column(help="VMAs with two like neighbours unlike itself")
    may_merge: int = column(help="pairs with no difference seen")
    made_by: str | None = column(holds="words", help="call that split most pairs")
    made_by_pairs: int = column(help="pairs it split")


@table("vma_neighbours", "Neighbouring VMAs that were not merged")
class VmaNeighbours:
    """One kind of pair of neighbours."""

    anon_vma: str = column(holds="kernel", key=True, help="its address")
    pid: int = column(key=True, high=MOST_PIDS, help="process")
    left: str = column(holds="kernel", key=True, help="protection of the lower VMA")
    right: str = column(holds="kernel", key=True, help="protection of the upper VMA")
    difference: str = column(holds="words", key=True, help="why they may not merge")
    made_by: str = column(holds="words", help="calls that make such a difference")
    pairs: int = column(help="pairs of this kind")


def vma_splits(
    prog: Program, maps: ReverseMaps
) -> tuple[list[VmaSplits], list[VmaNeighbours], list[str]]:
    """
    Explain the anon_vmas with most VMAs.

    :return: sums, kinds of pairs, and what could not be looked at.
    """
    sums: list[VmaSplits] = []
    kinds: list[VmaNeighbours] = []
    problems = []
    room = MAX_WALK
    for index in np.argsort(-maps.tree_size, kind="stable")[:MAX_ANON_VMAS].tolist():
        mms, counts = maps.users_of(index)
        if not len(mms) or mms[-1] < 0 or counts[-1] < FEW_VMAS:
            continue
        mm, pid = int(mms[-1]), int(maps.tasks.pid[mms[-1]])
        room -= int(maps.tasks.counts["map_count"][mm])
        if room < 0:
            problems.append(f"VMAs of process {pid} not compared: {MAX_WALK:,} were")
            continue
        try:
            walked = _walk(prog, int(maps.tasks.mm[mm]))
        except TORN as error:
            problems.append(f"VMAs of process {pid} cannot be walked: {error}")
            continue
        at = find(maps.slots["vma"].address, walked)
        if unread := int(np.count_nonzero(at < 0)):
            problems.append(f"{plural(unread, 'VMA')} of process {pid} could not be read")
        vmas = maps.slots["vma"].only(at[at >= 0])
        of_tree = maps.vmas.address[np.sort(maps.chain_vma[maps.nodes(index)])]
        on_it = find(of_tree, vmas.address) >= 0
        patterns, alternating = _compare(prog, vmas, on_it)
        name = hex(maps.addresses[index])
        kinds += [
            VmaNeighbours(name, pid, *pattern, pairs)
            for pattern, pairs in patterns.most_common(MAX_PATTERNS)
        ]
        by = Counter[str]()
        for (*_, made_by), pairs in patterns.most_common():
            by[made_by] += pairs
        may_merge = by.pop("", 0)
        calls: list[tuple[str | None, int]] = [*by.most_common(1), (None, 0)]
        on = int(np.count_nonzero(on_it))
        sums.append(
            VmaSplits(
                *(name, pid, maps.tasks.comm[mm] or "", on, patterns.total(), alternating),
                *(may_merge, *calls[0]),
            )
        )
    return sums, kinds, problems


def _walk(prog: Program, mm: int) -> U64s:
    """Addresses of a process's VMAs, in the order of their memory."""
    vmas = for_each_vma(Object(prog, "struct mm_struct", address=mm))
    return np.fromiter((vma.value_() for vma in itertools.islice(vmas, MAX_WALK)), np.uint64)


def _compare(
    prog: Program, vmas: Objects, on_it: Bools
) -> tuple[Counter[tuple[str, str, str, str]], int]:
    """
    Compare the neighbours among VMAs of a process.

    :param vmas: ascending by their memory; :param on_it: mask of those on the anon_vma.
    :return: pairs by (left, right, difference, made_by); and VMAs that alternate.
    """
    patterns: Counter[tuple[str, str, str, str]] = Counter()
    if len(vmas) < 2:
        return patterns, 0
    page_shift = np.uint64(prog["PAGE_SHIFT"].value_())
    # Flags that do not keep VMAs apart. Guard regions: theirs sticks to what is merged (VM_STICKY).
    ignored = SOFTDIRTY | flag(prog, "VMA_MAYBE_GUARD_BIT")
    flags = vmas["flags"].astype(np.int64) & ~np.int64(ignored)
    pages = ((vmas["end"] - vmas["start"]) >> page_shift).astype(np.int64)
    pgoff = vmas["pgoff"].astype(np.int64)
    left, right = slice(None, -1), slice(1, None)
    beside = (vmas["end"][left] == vmas["start"][right]) & on_it[left] & on_it[right]
    parts = [flags[left], flags[right], pgoff[left] + pages[left] == pgoff[right]]
    # What pointers lead to, equal pointers or not.
    contents: dict[str, Callable[[Program, int], bytes]] = {
        "file": _address,
        "policy": _policy,
        "userfault": _address,
        "name": _name,
    }
    for name, content in contents.items():
        if name in vmas.columns:
            kind = _kinds(prog, vmas[name], content)
            parts.append(kind[left] == kind[right])
        else:
            parts.append(np.ones(len(vmas) - 1, np.bool_))
    pairs, counts = np.unique(np.stack(parts)[:, beside], axis=1, return_counts=True)
    for (before, after, *same), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        words, calls = _difference(before, after, same)
        difference = ", ".join(words) or "nothing"
        # A flag that is set first and one that is cleared first go by the same words.
        patterns[protection(before), protection(after), difference, ", ".join(calls)] += count
    three = beside[:-1] & beside[1:]
    alternating = three & (flags[:-2] == flags[2:]) & (flags[:-2] != flags[1:-1])
    return patterns, int(np.count_nonzero(alternating))


def _kinds(prog: Program, pointers: U64s, content: Callable[[Program, int], bytes]) -> S64s:
    """A number for each pointer, the same for those that lead to the same."""
    numbers: dict[bytes, int] = {b"": 0}
    different, which = np.unique(pointers, return_inverse=True)
    kinds = [
        numbers.setdefault(content(prog, address) if address else b"", len(numbers))
        for address in different.tolist()
    ]
    return np.array(kinds, np.int64)[which]


def _address(_prog: Program, address: int) -> bytes:
    """A pointer itself."""
    return address.to_bytes(8, "little")


def _policy(prog: Program, address: int) -> bytes:
    """A ``struct mempolicy`` from its mode to its nodes, without its reference count."""
    type_ = prog.type("struct mempolicy")
    begin = offsetof(type_, "mode")
    # "mm/mempolicy: use unified 'nodes' for bind/interleave/prefer policies" (269fbe72cded, v5.14)
    nodes = "nodes" if type_.has_member("nodes") else "v"
    end = offsetof(type_, nodes) + sizeof(type_.member(nodes).type)
    try:
        if nodes == "v" and prog.read_u16(address + begin) == MPOL_PREFERRED:
            end = offsetof(type_, "v.preferred_node") + 2  # a short; after it is anything
        policy: bytes = prog.read(address + begin, end - begin)
        return policy
    except (FaultError, OverflowError):  # the latter: a damaged pointer to the end of all addresses
        return _address(prog, address)


def _name(prog: Program, address: int) -> bytes:
    """The name that prctl(PR_SET_VMA_ANON_NAME) gave."""
    try:
        name = Object(prog, "struct anon_vma_name", address=address).name
        return name_at(name.address_of_()).encode()
    except (FaultError, LookupError, OverflowError):
        return _address(prog, address)


# What _compare() holds against each other after the flags, and the call that makes a difference.
COMPARED = (
    ("page offset", "mremap"),
    ("file", "mmap"),
    ("policy", "mbind"),
    ("userfaultfd", "userfaultfd"),
    ("name", "prctl"),
)


def _difference(before: int, after: int, same: list[int]) -> tuple[list[str], list[str]]:
    """
    Difference between two neighbours, in words, and the calls that make it.

    :param before: flags; :param same: of each of :data:`COMPARED`, whether it is the same.
    """
    words = []
    changed = before ^ after
    if changed & PROTECTION:
        words.append("protection")
        changed &= ~ACCOUNT
    words += [
        FLAGS.get(bit, f"flag {bit}")
        for bit in range(changed.bit_length())
        if changed >> bit & 1 and not 1 << bit & PROTECTION
    ]
    calls = [call for call, bits in MADE_BY.items() if changed & bits]
    if changed & ~sum(MADE_BY.values()):
        calls.append("mmap")
    offset, *others = zip(COMPARED, same, strict=True)
    for (word, call), is_same in (*others, offset):
        if not is_same:
            words.append(word)
            if call not in calls:
                calls.append(call)
    return words, calls


def protection(flags: int) -> str:
    """Protection as /proc/PID/maps has it: ``rw-p``."""
    shared = "s" if flags & 0x80 else "p"  # VM_MAYSHARE
    return "".join(letter if flags >> bit & 1 else "-" for bit, letter in enumerate("rwx")) + shared


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas", "vma_splits", "vma_neighbours")
