# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments read without argparse: the same as with it, or left to it."""

import argparse
import contextlib
import io
import sys
from pathlib import Path

import children
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.page_owner_command import OUTPUT, SELECTION, SERIES, add_options
from reports.plain_arguments import plain_arguments

OPTIONS = {**SERIES, **OUTPUT, **SELECTION}
WORDS = st.sampled_from(
    [
        *OPTIONS, "-o", "a", "b", "1", "60", "-", "", "0", "-1", "1,2", "x,y", "--", "-v", "--help",
        "--top=3", "--inter", "--page-size=1", "0x10",
    ]
)  # fmt: skip


def as_argparse(words: list[str]) -> dict[str, object] | None:
    """What argparse makes of it; None if it ends there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    add_options(parser, OPTIONS)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return vars(parser.parse_args(words))
        except SystemExit:
            return None


@given(st.lists(WORDS, max_size=8))
def test_the_same_as_argparse_or_left_to_it(words: list[str]) -> None:
    plain = plain_arguments(words, OPTIONS)
    assert plain is None or vars(plain) == as_argparse(words)


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        ["a", "b", "-"],
        ["--stacks", "s", "--stacks", "t", "--interval", "60", "a", "b"],
        ["-o", "bundle", "--force", "--top", "3", "a"],
        ["a", "--tgid", "1,0x2", "--comm", "x,y", "--gfp", "GFP_KERNEL|__GFP_ZERO"],
    ],
)
def test_what_is_plain(words: list[str]) -> None:
    plain = plain_arguments(words, OPTIONS)
    assert plain is not None
    assert vars(plain) == as_argparse(words)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["--interval=60", "a"],
        ["--inter", "60", "a"],
        ["--interval", "0", "a"],
        ["--interval", "x", "a"],
        ["--interval"],
        ["a", "--top", "3", "b"],
        ["--", "-a"],
        ["a", "-v"],
    ],
)
def test_what_is_left_to_argparse(words: list[str]) -> None:
    assert plain_arguments(words, OPTIONS) is None


def test_a_list_is_not_shared_between_two_readings() -> None:
    first = plain_arguments(["--stacks", "s", "a"], OPTIONS)
    second = plain_arguments(["a"], OPTIONS)
    assert first is not None
    assert vars(first)["stacks"] == ["s"]
    assert second is not None
    assert vars(second)["stacks"] == []


def test_light_commands_start_light(tmp_path: Path) -> None:
    """A series of handles is read without argparse, regular expressions or any library."""
    for position in range(2):
        text = f"handle: 1\nnr_base_pages: {position + 5}\n\n"
        (tmp_path / f"show_handles.{position}").write_text(text)
    files = [str(tmp_path / f"show_handles.{position}") for position in range(2)]
    code = (
        "import sys\n"
        "from reports.start import main\n"
        "main()\n"
        "print(sorted({'argparse', 're', 'numpy', 'drgn', 'rich', 'duckdb'} & set(sys.modules)))"
    )
    done = children.run(
        [sys.executable, "-c", code, "page-owner", "--interval", "60", *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "handle 1" in done.stdout
