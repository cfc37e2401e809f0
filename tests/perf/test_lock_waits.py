# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recipe lock-waits: waits by kind of lock, and how long they took."""

import pytest
from perf_text import fold, header, stack

WAITS = ("exc_page_fault", "down_read")


@pytest.mark.parametrize("flags", ["READ", "SPIN|MUTEX"])
def test_waits_are_by_kind_of_lock(flags: str) -> None:
    rest = f"0xffff8881 (flags={flags})".encode()
    text = header(event="lock:contention_begin", rest=rest) + stack(*WAITS) + b"\n"
    (event,) = fold(text * 2, "lock-waits").events.values()
    assert list(event.stacks) == [f"cat;lock {flags};exc_page_fault_[k];down_read_[k]"]
