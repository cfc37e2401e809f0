# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What fuzzing starts from, and what it once found: every file of ``corpus/`` through its target.
"""

from pathlib import Path

import pytest
from fuzz_targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(CORPUS.glob("*/*"))


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in INPUTS} == TARGETS.keys()


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_readers_keep_their_word(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
