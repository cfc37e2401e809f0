# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compiled templates are kept where Python keeps compiled modules, and never believed blindly."""

import sys
from pathlib import Path

import pytest

from mmscope.reports.page import environment

NAME = "report.css"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def rendered() -> str:
    """As in a process that has compiled none yet."""
    page = environment.environment_of(4096, "")
    page.bytecode_cache = environment.CompiledTemplates()
    return page.get_template(NAME).render()


def kept(cache: Path) -> list[Path]:
    return sorted(cache.rglob(f"{NAME}.*"))


def test_what_was_compiled_is_kept_and_used(cache: Path) -> None:
    first = rendered()
    (path,) = kept(cache)
    assert "color-scheme: light" in first
    path.write_bytes(path.read_bytes().replace(b"color-scheme: light", b"COLOR-scheme: light"))
    assert rendered() == first.replace("color-scheme: light", "COLOR-scheme: light")


@pytest.mark.parametrize("damage", ["torn", "empty", "of another text", "no code", "no Python"])
def test_a_damaged_one_is_compiled_anew(cache: Path, damage: str) -> None:
    first = rendered()
    (path,) = kept(cache)
    good = path.read_bytes()
    start = good.index(b"X(\0\0\0")  # the checksum of its text, pickled, of 40 digits
    behind = start + 5 + 40
    path.write_bytes(
        {
            "torn": good[: len(good) // 2],
            "empty": b"",
            "of another text": good[: start + 5] + b"0" * 40 + good[behind:],
            "no code": good[:behind],
            "no Python": good[: start + 2],
        }[damage]
    )
    assert rendered() == first
    assert path.read_bytes() == good


def test_nothing_is_kept_where_python_keeps_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rendered()
    assert not kept(cache)


def test_a_folder_that_cannot_be_written_is_no_trouble(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setattr(sys, "pycache_prefix", str(cache / "file"))
    assert rendered()
