# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A stack as the kernel prints it: lines of `` symbol+0x1/0x2 [module]``, leaf first.

``stack_depot_snprint()`` (``lib/stackdepot.c``, read at 6.1, 6.12, 7.2 and 7.3): ``%pS`` behind as
many spaces as its caller asks for, one in all of page_owner's files.
"""

import re
from hashlib import blake2b

STACK = re.compile(rb"(?: (?:[^ \n\[\];]+|(?= \[))(?: \[[^ \n\[\];]*\])?\n)+")
OFFSET = re.compile(r"\+0x[0-9a-f]+/0x[0-9a-f]+")


def is_stack(text: bytes) -> bool:
    """
    True if text is lines of `` symbol+0x1/0x2 [module]``, or `` 0xaddress`` (``%pS``); two records
    run into each other are not.
    """
    return STACK.fullmatch(text) is not None


def folded(stack: bytes) -> str:
    """A printed stack, leaf first, as ``root;…;leaf`` without offsets (``+0x1/0x2``)."""
    text = OFFSET.sub("", stack.decode("utf-8", "backslashreplace"))
    return ";".join([frame[1:] for frame in reversed(text.split("\n")) if frame])


def stack_id(stack: bytes) -> int:
    """
    A number for a stack that the kernel printed without a handle: 48 bits of a hash of its text.

    Offsets are part of the text, as they are of what a handle stands for. Beyond 2^48, where no
    handle is (32 bits), and below 2^53, so that every reader of JSON keeps it.
    """
    return int.from_bytes(blake2b(stack, digest_size=6).digest(), "big") | 1 << 48


def allocator(stack: bytes, *, slab: bool = False) -> bytes:
    """Allocator that the pages were for: ``slab``, ``vmalloc``, ``percpu`` or ``pages``."""
    if slab or b" allocate_slab+" in stack or b" alloc_slab_page+" in stack:
        return b"slab"
    if b" __vmalloc_node_range" in stack:
        return b"vmalloc"
    return b"percpu" if b" pcpu_alloc" in stack else b"pages"
