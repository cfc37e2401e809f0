# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Owner frames: the function of an allocation stack that asked for the memory.

Every allocation stack ends in the allocator. The owner frame is the first one from the leaf that
is not plumbing; what is plumbing is data: ``allocator_frames.txt``. A stack of nothing but
allocator frames is owned by its root.
"""

import functools
import os
from fnmatch import fnmatchcase

PATTERNS = os.path.join(os.path.dirname(__file__), "allocator_frames.txt")
# What compilers append to the name of a copy of a function.
SUFFIXES = (".isra.", ".constprop.", ".part.", ".cold", ".llvm.", ".lto_priv.")


def read_patterns(text: str) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """
    The file's patterns: (whole names, beginnings, what needs a real match).

    Nearly all are of the first two kinds, which are compared without compiling anything.
    """
    lines = {line.strip() for line in text.splitlines()}
    patterns = {line for line in lines if line and not line.startswith("#")}
    plain = {pattern for pattern in patterns if not set("*?[") & set(pattern)}
    begins = {p for p in patterns - plain if p[-1] == "*" and not set("*?[") & set(p[:-1])}
    rest = patterns - plain - begins
    return frozenset(plain), tuple(sorted(p[:-1] for p in begins)), tuple(sorted(rest))


@functools.cache
def allocator_frames() -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """The maintained list."""
    with open(PATTERNS, encoding="utf-8") as file:
        return read_patterns(file.read())


@functools.lru_cache(65536)
def is_allocator(symbol: str) -> bool:
    """True if a function only passes requests for memory on."""
    whole, begins, rest = allocator_frames()
    for suffix in SUFFIXES:
        symbol = symbol.partition(suffix)[0]
    if symbol in whole or symbol.startswith(begins):
        return True
    return any(fnmatchcase(symbol, pattern) for pattern in rest)


def owner_frame(stack: str) -> tuple[str, str | None]:
    """
    The owner frame of a folded stack and its module: ``("xfs_buf_alloc", "xfs")``.

    :param stack: ``root;…;leaf``, frames being ``symbol`` or ``symbol [module]``.
    """
    frames = stack.split(";")
    owners = (frame for frame in reversed(frames) if not is_allocator(frame.partition(" [")[0]))
    symbol, _, module = next(owners, frames[0]).partition(" [")
    return symbol, module.removesuffix("]") or None
