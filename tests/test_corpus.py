# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What fuzzing starts from, and what it once found: every file of ``corpus/`` through its target, as
it is and damaged in ways that hypothesis thinks of. ``make fuzz`` looks for others.
"""

from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(CORPUS.glob("*/*"))
# What readers trip over: numbers that do not fit, marks of records, what ends lines elsewhere.
TOKENS = [
    b"", b"\n", b"\n\n", b" ",
    b"\0", b"\xff", b"-", b"0", b"-1", b"9" * 20, b"9" * 5000, b";", b'"',
    b",", b"\r", b"\v", b"\x85", "\u2028".encode(), "\u0663".encode(), b"\n=====\n", b"\x1b[31m",
]  # fmt: skip
SLOW = {"sql": 5, "tree": 10, "perf": 25}


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in INPUTS} == TARGETS.keys()


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_readers_keep_their_word(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_readers_keep_their_word_when_it_is_damaged(name: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]

    @settings(max_examples=SLOW.get(name, 60))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        content = data.draw(st.sampled_from(inputs))
        for _ in range(data.draw(st.integers(1, 4))):
            begin = data.draw(st.integers(0, len(content)))
            end = min(begin + data.draw(st.sampled_from([0, 1, 2, 10, 100, 10000])), len(content))
            # Something else in its place, or twice, or from elsewhere.
            other = data.draw(st.sampled_from([*TOKENS, content[begin:end] * 2, content[:begin]]))
            content = content[:begin] + other + content[end:]
        TARGETS[name](content)

    check()
