# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of shared memory, as the kernel gives them and as damage leaves them."""

import pytest

from mmscope.drgn.filesystems.cached_files import NAME_BEGINS, starts_unlike


@pytest.mark.parametrize("name", ["SYSV0000002a", "memfd:buffer", "dev/zero", "i915", ""])
def test_a_name_that_kernel_code_gives(name: str) -> None:
    assert not starts_unlike(name.encode()[:NAME_BEGINS], len(name))


@pytest.mark.parametrize(
    ("text", "length"),
    [(b"memfe:buffer"[:NAME_BEGINS], 12), (b"\x01buffer", 7), (b"i915", 900)],
)
def test_a_name_that_none_gives(text: bytes, length: int) -> None:
    assert starts_unlike(text, length)
