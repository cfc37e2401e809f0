# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tutorials of ``docs/``: their commands are run, and print what the page says."""

import contextlib
import re
from pathlib import Path

from checkout import ROOT
from command_line import run

BLOCK = re.compile(r"^```\n\$ mmscope (.+)\n((?:.*\n)*?)```$", re.MULTILINE)
NUMBER = re.compile(r"0x[0-9a-f]+|\d[\d,.]*")


def follow(page: str, folder: Path, files: dict[str, Path]) -> int:
    """
    Run each command of a page in a folder, with files where they are; return how many there were.

    … is any text. Columns may be as wide as they are, and numbers those of the machine.
    """
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    for typed, shown in blocks:
        with contextlib.chdir(folder):
            ran = run(*(files.get(word, word) for word in typed.split()))
        printed = plain(ran.stdout)
        assert re.search(pattern(shown), printed, re.DOTALL), f"{typed}: {ran.stdout}{ran.stderr}"
    return len(blocks)


def pattern(shown: str) -> str:
    """What a page says was printed."""
    return ".*".join(re.escape(part.strip()) for part in plain(shown).split("…"))


def plain(text: str) -> str:
    """A text in one line, with N for each number."""
    return NUMBER.sub("N", " ".join(text.split()))
