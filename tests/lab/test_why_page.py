# SPDX-License-Identifier: LGPL-2.1-or-later
"""Vmcores of ``docs/inputs.md``: ``mmscope why`` prints what it shows of each."""

import re
from pathlib import Path

import pytest
from conftest import KERNELS, STANDS_ON
from tutorial_pages import pattern, plain
from why_inputs import EXAMPLE, PAGE, printed
from why_page import OF_LAB

INPUTS = {one.given: (STANDS_ON if name == "stable" else name, one) for name, one in OF_LAB}
OURS = [(kernel, given) for given, (kernel, _) in INPUTS.items() if kernel in KERNELS]
SHOWN = dict(EXAMPLE.findall(PAGE.read_text()))


def test_all_are_shown() -> None:
    assert len(INPUTS) >= 9 and INPUTS.keys() < SHOWN.keys()


@pytest.mark.parametrize(("kernel", "given"), OURS)
def test_prints_what_the_page_shows(kernel: str, given: str, tmp_path: Path) -> None:
    _, one = INPUTS[given]
    one.make(tmp_path)
    lines = printed(given, tmp_path)
    # Of a dump that was taken later all numbers may be others.
    assert re.search(pattern(SHOWN[given]), plain("\n".join(lines)), re.DOTALL), lines
