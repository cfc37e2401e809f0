# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages that a module keeps on lists of its own: strung together through ``page.lru``, with the list's
head in the module's data, as drivers keep pools and caches (TTM's ``global_write_combined``).

The data of every module is read in bulk for pairs of pointers to an ``lru``, and each list followed
from there. A module that has registered a shrinker (``shrinker_list``) gives back what its shrinker
frees, which may be these pages.

Costs a read of each module's data, one for each registered shrinker, and one for each page on such
a list, of which there are :data:`MOST_PAGES` at most.

Cannot know: pages on lists whose heads are in structures that a module has allocated; of a block
that is no compound page how many pages it has, so that its first one is counted. Which pages a
shrinker would give back.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

import numpy as np
from drgn import FaultError, Object, Program, RelocatableModule, Symbol, offsetof, sizeof
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.holdings import POINTER, Holder, Holdings
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, U64s, read_array
from mmscope.drgn.reading.linked_lists import walk_list
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.symbols import module_symbols

MOST_LISTS, MOST_PAGES = 1 << 12, 1 << 20
MOST_BYTES = 64 << 20  # of a module
MOST_SHRINKERS = 1 << 16  # some for each file system that is mounted
LIST, CACHE = "list of a module", "list of a module with a shrinker"


def add_module_lists(prog: Program, found: Holdings, kind: int) -> None:
    """
    Lists by module and variable.

    :param kind: of the ledger, where the module has a shrinker. Other lists leave their pages
        unexplained: a leak may be on a list.
    """
    modules = [each for each, _ in prog.loaded_modules() if isinstance(each, RelocatableModule)]
    shrinking = _with_shrinkers(prog, modules)
    lru = offsetof(prog.type("struct page"), "lru")
    left = MOST_PAGES
    for module in modules:
        heads = list(islice(_heads(prog, module, lru, found.gaps), MOST_LISTS))
        names = _names(module, heads) if heads else {}
        for head in heads:
            pages, whole = walk_list(prog, head, lru, left)
            if not whole and len(pages) < left:
                continue  # what looked like a head is none, or the list is torn
            left -= len(pages)
            shrinks = module.name in shrinking
            holder = Holder(CACHE if shrinks else LIST, f"{names[head]} [{module.name}]")
            found.pages(holder, kind if shrinks else 0, np.array(pages, np.uint64))
            if not left:
                found.missing.append(f"more than {MOST_PAGES:,} pages on lists of modules")
                return


def _with_shrinkers(prog: Program, modules: list[RelocatableModule]) -> set[str]:
    """Names of the modules whose function counts what a registered shrinker can free."""
    counting = set[int]()
    with contextlib.suppress(FaultError, LookupError):
        head = Object(prog, "struct list_head", address=prog.symbol("shrinker_list").address)
        every = list_for_each_entry("struct shrinker", head.address_of_(), "list")
        for shrinker in islice(every, MOST_SHRINKERS):
            counting.add(shrinker.count_objects.value_())
    return {
        module.name
        for module in modules
        for start, end in module.address_ranges or ()
        if any(start <= function < end for function in counting)
    }


def _heads(prog: Program, module: RelocatableModule, lru: int, gaps: Gaps) -> Iterator[int]:
    """Addresses in a module's data of what may be the head of a list of pages."""
    size = np.uint64(sizeof(prog.type("struct page")))
    ranges = sorted((at, first, stop) for first, stop, at in valid_page_ranges(prog))
    starts = np.array([at for at, _, _ in ranges], np.uint64)
    counts = np.array([stop - first for _, first, stop in ranges], np.uint64)

    def leads_to_page(values: U64s) -> Bools:
        page = values - np.uint64(lru)
        row = np.maximum(np.searchsorted(starts, page, "right") - 1, 0)
        inside = (page >= starts[row]) & (page - starts[row] < counts[row] * size)
        return np.asarray(inside & ((page - starts[row]) % size == 0))

    for start, end in module.address_ranges or ():
        if end - start > MOST_BYTES:
            continue
        words = [part for _, part in read_array(prog, start, (end - start) // 8, POINTER, gaps)]
        if not words or not len(starts):
            continue
        data = np.concatenate(words)
        if len(data) != (end - start) // 8:
            continue  # a part is not in the dump, and places are not known
        both = leads_to_page(data)
        for place in np.flatnonzero(both[:-1] & both[1:]).tolist():
            yield start + 8 * place


def _names(module: RelocatableModule, heads: list[int]) -> dict[int, str]:
    """The variable that each head is in; its address where no symbol has it."""
    symbols = list[Symbol]()
    with contextlib.suppress(FaultError, LookupError, ValueError):
        symbols = sorted(module_symbols(module), key=lambda symbol: symbol.address)
    starts = [symbol.address for symbol in symbols]
    named = {head: f"{head:#x}" for head in heads}
    for head in heads:
        at = bisect_right(starts, head) - 1
        if at >= 0 and head < starts[at] + max(symbols[at].size, 1):
            named[head] = symbols[at].name
    return named
