# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make release-check``: a commit that may be released, and each thing that keeps one from it."""

import subprocess
from pathlib import Path

import pytest
import release_check

VERSION = "0.3.0"
CHANGELOG = """# Changelog

## [Unreleased]

## [0.3.0] - 2026-12-01

### Added

- A thing.

## [0.2.0] - 2026-11-25
"""
FILES = {
    "CHANGELOG.md": CHANGELOG,
    "debian/changelog": "mmscope (0.3.0-1) trixie; urgency=medium\n",
    "README.md": "pip wheel --no-deps .    mmscope-0.3.0-py3-none-any.whl\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    of = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "tag.gpgsign=false")
    subprocess.run(("git", *of, *words), cwd=tree, check=True, capture_output=True)


def test_a_version_that_all_files_have_is_right(tree: Path) -> None:
    assert list(release_check.version_problems(VERSION, tree)) == []
    (tree / "CHANGELOG.md").write_text(CHANGELOG.replace("## [Unreleased]\n", ""))
    assert list(release_check.version_problems(VERSION, tree)) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "problem"),
    [
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n", "[Unreleased] has entries"),
        ("CHANGELOG.md", "0.3.0] - 2026-12-01", "0.3.1] - 2026-12-01", "newest heading is"),
        ("CHANGELOG.md", "0.3.0] - 2026-12-01", "0.3.0]", "newest heading is"),
        ("CHANGELOG.md", "0.2.0]", "0.10.0]", "is not later than"),
        ("debian/changelog", "0.3.0", "0.2.0", "its newest entry"),
        ("README.md", "0.3.0", "0.2.0", "the wheel's name"),
    ],
)
def test_a_file_with_another_version_is_named(
    tree: Path, name: str, before: str, after: str, problem: str
) -> None:
    (tree / name).write_text(FILES[name].replace(before, after))
    (found,) = release_check.version_problems(VERSION, tree)
    assert found.startswith(f"{name}: ") and problem in found


def test_a_version_is_three_numbers(tree: Path) -> None:
    assert "is not three numbers" in "\n".join(release_check.version_problems("0.3.0rc1", tree))


def test_nothing_is_declared_for_a_later_release() -> None:
    declared = [("table a", "0.2.0"), ("column a.b", "0.10.0"), ("section c", "")]
    assert list(release_check.since_problems(VERSION, declared)) == [
        "column a.b: since 0.10.0, which is later than 0.3.0"
    ]
    assert {"0.2.0"} <= {since for _, since in release_check.declared_since()}


def test_derived_files_that_are_edited_are_named(tree: Path) -> None:
    for name, make in release_check.make_docs.MADE.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(make())
    assert list(release_check.docs_problems(tree)) == []
    with open(tree / "docs" / "tables.md", "a") as file:
        file.write("More.\n")
    assert list(release_check.docs_problems(tree)) == [
        "docs/tables.md: not as its declarations say: make docs"
    ]


def test_git_has_the_commit_and_no_such_tag(tree: Path) -> None:
    git(tree, "init")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "one")
    assert list(release_check.git_problems(VERSION, tree)) == []
    git(tree, "tag", f"v{VERSION}")
    (tree / "README.md").write_text("changed")
    (tree / "new").touch()
    assert list(release_check.git_problems(VERSION, tree)) == [
        "git: the tag v0.3.0 exists",
        "git: not committed: README.md, new",
    ]
