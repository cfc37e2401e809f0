# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hashes of names, against the kernel's function written out for one name."""

import numpy as np
import pytest

from mmscope.drgn.filesystems.dentry_names import NameHashes, name_hashes

ALL = (1 << 64) - 1
PARENT = 0xFFFF_9FE5_C1CC_7758
NAMES = (b"a", b"init", b"12345678", b"123456789", b"04-virtio_blk.ko", b"x" * 31)


def full_name_hash(salt: int, name: bytes) -> int:
    """fs/namei.c, with CONFIG_DCACHE_WORD_ACCESS on 64 bits."""
    x, y = 0, salt
    while len(name) >= 8:
        x ^= int.from_bytes(name[:8], "little")
        y ^= x
        x = ((x << 12 | x >> 52) + y) & ALL
        y = (y << 45 | y >> 19) * 9 & ALL
        name = name[8:]
    x ^= int.from_bytes(name, "little")
    y ^= x * 0x61C8864680B583EB & ALL
    return (y * 0x61C8864680B583EB & ALL) >> 32


def rows(names: tuple[bytes, ...]) -> np.ndarray:
    # Behind a name there is what was there before.
    padded = (name + b"\0" + b"?" * 31 for name in names)
    return np.frombuffer(b"".join(name[:32] for name in padded), np.uint8).reshape(-1, 32)


def lengths(names: tuple[bytes, ...]) -> np.ndarray:
    return np.array([len(name) for name in names], np.uint64)


def test_a_hash_is_the_kernels() -> None:
    parents = np.full(len(NAMES), PARENT, np.uint64)
    found = name_hashes(rows(NAMES), lengths(NAMES), parents).tolist()
    assert found == [full_name_hash(PARENT, name) for name in NAMES]
    assert len(set(found)) == len(NAMES)


def dentries() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    address = np.arange(1, len(NAMES) + 1, dtype=np.uint64) * np.uint64(192)
    hashes = [full_name_hash(PARENT, name) | len(name) << 32 for name in NAMES]
    columns = {
        "flags": np.zeros(len(NAMES), np.uint32),
        "parent": np.full(len(NAMES), PARENT, np.uint64),
        "name": address + np.uint64(56),
        "hash_len": np.array(hashes, np.uint64),
        "short": rows(NAMES).copy().view("V32").ravel(),
    }
    return address, columns


def apart(address: np.ndarray, columns: dict[str, np.ndarray]) -> int:
    found = NameHashes(56, np.zeros(1, np.int64), np.zeros(1, np.int64))
    found.take(address, columns, np.zeros(len(address), np.int64))
    return found.apart


def test_names_of_a_sound_directory_fit() -> None:
    assert apart(*dentries()) == 0


@pytest.mark.parametrize("name", ["parent", "name", "hash_len"])
@pytest.mark.parametrize("bit", [0, 5, 33, 34, 47])
def test_a_bit_of_one_is_noticed(name: str, bit: int) -> None:
    address, columns = dentries()
    columns[name][3] ^= np.uint64(1 << bit)
    assert apart(address, columns) == 1


def test_a_letter_is_noticed() -> None:
    address, columns = dentries()
    columns["short"].view(np.uint8)[32 * 4 + 2] ^= 1
    assert apart(address, columns) == 1


def test_what_has_no_hash_or_its_own_is_not_judged() -> None:
    address, columns = dentries()
    columns["short"].view(np.uint8)[:] ^= 1
    columns["flags"][:4] = 1
    columns["hash_len"][4:] &= np.uint64(ALL << 32 & ALL)
    assert apart(address, columns) == 0


def test_a_file_system_whose_hashes_are_others_is_not_judged() -> None:
    address, columns = dentries()
    columns["hash_len"] += np.uint64(1)
    assert apart(address, columns) == 0
