# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text of strangers on a terminal: legible, and no command to it."""

import io

from mmscope.drgn.tables.hostile_text import echo, visible

# Of a terminal: a clipboard (OSC 52), C1, bidi, a line of its own, an undecodable byte.
HOSTILE = "a\x1b]52;c;eA==\x07\x9b2J\u202e\n\udcff\0"
LEGIBLE = r"a\x1b]52;c;eA==\x07\x9b2J\u202e\n\udcff\x00"


def echoed(*words: object, **more: str) -> str:
    file = io.StringIO()
    echo(*words, file=file, **more)
    return file.getvalue()


def test_what_is_echoed_is_written_out() -> None:
    assert echoed(HOSTILE, 7) == f"{LEGIBLE} 7\n"
    assert echoed(HOSTILE, HOSTILE, sep="\n") == f"{LEGIBLE}\n{LEGIBLE}\n"


def test_what_is_between_words_is_as_it_was_asked_for() -> None:
    assert echoed("x", begin="\r", end="\x1b[K\r") == "\rx\x1b[K\r"
    assert echoed() == "\n" == echoed("")


def test_text_that_was_written_out_before_stays() -> None:
    assert echoed(visible(HOSTILE)) == f"{LEGIBLE}\n"
    assert visible("Größe → 5 µs") == "Größe → 5 µs"
