# SPDX-License-Identifier: LGPL-2.1-or-later
"""``asked.toml`` has all that sections ask of a kernel's types, as a real vmcore shows it."""

from collections.abc import Callable

import asks
import pytest
from capture import capture
from conftest import STANDS_ON

pytestmark = pytest.mark.any_kernel


def test_what_sections_ask_is_written(say: Callable[[str], None]) -> None:
    asked = asks.at_all(capture(STANDS_ON, "sizes", say=say))
    assert len(asked) > 500
    lacking = sorted(asks.not_written(asked))
    words = f"drgn/opening/asked.toml lacks what sections ask: make asked ONLY='--add {STANDS_ON}'"
    assert not lacking, words
