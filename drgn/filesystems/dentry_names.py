# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Names of dentries, held against ``d_name.hash`` and ``d_name.len`` of the same ``struct dentry``.

The hash is made of the parent's address and the name, a word at a time (``full_name_hash()``,
fs/namei.c, with CONFIG_DCACHE_WORD_ACCESS on 64 bits; alike from 4.8 to 7.3). File systems that
make their own say so (DCACHE_OP_HASH); what is in no directory has 0. Of a file system most of
whose names do not fit, none is judged: it makes its hashes otherwise, or the kernel does.

Costs a few operations a word on memory that was read. Cannot know: names that are longer than what
fits into a dentry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import Program, Type, offsetof, sizeof

from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Columns,
    S64s,
    U8s,
    U64s,
    laid_out,
    member_path,
    struct_dtype,
)

DCACHE_OP_HASH = 1  # include/linux/dcache.h
GOLDEN_RATIO_64 = np.uint64(0x61C8864680B583EB)  # include/linux/hash.h
WORD = 8
# "dcache: convert dentry.d_iname to union shortname_store" (58cf9c383c5c, in v6.14)
SHORT = ("d_shortname.string", "d_iname")
LOW_HALF = np.uint64((1 << 32) - 1)


COLUMNS: Columns = {"parent": "d_parent", "name": "d_name.name", "hash_len": "d_name.hash_len"}


@dataclass
class NameHashes:
    """
    Counts of the names that were held against their hash.

    :ivar offset: where short names are in a dentry.
    :ivar held, odd: names, and those that do not fit, by super block.
    """

    offset: int
    held: S64s
    odd: S64s

    def take(self, address: U64s, dentry: Mapping[str, Array], sb: S64s) -> None:
        """
        Hold the names of dentries that are in use.

        :param dentry: their flags, and what :func:`with_names` adds.
        :param sb: the number of each one's super block.
        """
        names = dentry["short"].view(np.uint8).reshape(len(address), -1)
        hashed, length = dentry["hash_len"] & LOW_HALF, dentry["hash_len"] >> np.uint64(32)
        inside = dentry["name"] == address + np.uint64(self.offset)
        judged = ((dentry["flags"] & np.uint32(DCACHE_OP_HASH)) == 0) & (hashed != 0)
        judged &= dentry["parent"] != address
        short = length < names.shape[1]
        fits = inside == short
        both = inside & short
        fits[both] = name_hashes(names[both], length[both], dentry["parent"][both]) == hashed[both]
        self.held += np.bincount(sb[judged], minlength=len(self.held))
        self.odd += np.bincount(sb[judged & ~fits], minlength=len(self.odd))

    @property
    def apart(self) -> int:
        """Number of names that do not fit, where most do."""
        return int(self.odd[self.odd * 2 < self.held].sum())


def with_names(type_: Type, columns: Columns) -> np.dtype[Any]:
    """
    The columns of a ``struct dentry``, and those of its name.

    :raises LookupError: a dentry has no room for short names, or not those columns.
    """
    plain = struct_dtype(type_, {**columns, **COLUMNS})
    path = member_path(type_, SHORT)
    size = sizeof(type_.member(path.partition(".")[0]).type)
    fields = {name: (at[0], at[1]) for name, at in (plain.fields or {}).items()}
    return laid_out({**fields, "short": (f"V{size}", offsetof(type_, path))})


def new_name_hashes(prog: Program, super_blocks: int) -> NameHashes:
    """
    Nothing held yet.

    :raises LookupError: a dentry has no room for short names.
    """
    type_ = prog.type("struct dentry")
    none = np.zeros(super_blocks, np.int64)
    return NameHashes(offsetof(type_, member_path(type_, SHORT)), none, none.copy())


def name_hashes(names: U8s, length: U64s, parent: U64s) -> U64s:
    """
    ``full_name_hash()`` of each name, whose bytes are a row.

    :param parent: address of the parent's dentry.
    """
    words = -(-names.shape[1] // WORD)
    padded = np.zeros((len(names), words * WORD), np.uint8)
    padded[:, : names.shape[1]] = names
    x, y = np.zeros(len(names), np.uint64), parent.astype(np.uint64)
    for at, word in enumerate(padded.view("<u8").T):
        left = length.astype(np.int64) - at * WORD
        whole: Bools = left >= WORD
        bits = np.uint64(WORD) * np.clip(left, 0, WORD - 1).astype(np.uint64)
        part = x ^ (word & (np.uint64(1) << bits) - np.uint64(1))
        mixed = x ^ word
        other = y ^ mixed
        x = np.where(whole, _rotated(mixed, 12) + other, part)
        y = np.where(whole, _rotated(other, 45) * np.uint64(9), y)
    y = (y ^ x * GOLDEN_RATIO_64) * GOLDEN_RATIO_64
    result: U64s = y >> np.uint64(32)
    return result


def _rotated(values: U64s, bits: int) -> U64s:
    result: U64s = values << np.uint64(bits) | values >> np.uint64(64 - bits)
    return result
