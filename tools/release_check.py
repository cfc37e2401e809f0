# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Checks a commit that is to be released: versions, changelogs, ``since``, derived files, git.

Prints a line for each thing that is wrong (``make release-check``, ``docs/RELEASING.md``).
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import make_docs

from mmscope import __version__
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.declared import HEADINGS, TABLES

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared; none if it has another form."""
    match = VERSION.fullmatch(version)
    return tuple(map(int, match.groups())) if match else ()


def version_problems(version: str, root: Path) -> Iterator[str]:
    """Problems of the version, and of the files that name it."""
    if not numbers(version):
        yield f"mmscope/__init__.py: {version} is not three numbers"
    changelog = (root / "CHANGELOG.md").read_text()
    parts = re.split(r"^## (.*)$", changelog, flags=re.MULTILINE)[1:]
    chapters = dict(zip(parts[::2], parts[1::2], strict=True))
    if chapters.pop("[Unreleased]", "").strip():
        yield "CHANGELOG.md: [Unreleased] has entries that belong to the version"
    newest, *older = chapters or [""]
    if not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", newest):
        yield f"CHANGELOG.md: its newest heading is '{newest}', not '[{version}] - DATE'"
    if numbers(version) <= max((numbers(name.split("]")[0][1:]) for name in older), default=()):
        yield f"CHANGELOG.md: {version} is not later than the release before it"
    package = (root / "debian" / "changelog").read_text().partition("\n")[0]
    if not package.startswith(f"mmscope ({version}-"):
        yield f"debian/changelog: its newest entry is '{package}', not {version}"
    if f"mmscope-{version}-py3-none-any.whl" not in (root / "README.md").read_text():
        yield f"README.md: the wheel's name has another version than {version}"


def declared_since() -> Iterator[tuple[str, str]]:
    """The release that each section, table, row and column says it came with."""
    for heading in HEADINGS.values():
        yield f"section {heading.name}", heading.since
    for table in TABLES.values():
        yield f"table {table.name}", table.since
        for since in table.rows_since:
            yield f"rows of {table.name}", since
        for column in columns(table.row):
            yield f"column {table.name}.{column.name}", column.since


def since_problems(version: str, declared: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Declarations that name a release after the version."""
    for what, since in declared:
        if since and numbers(since) > numbers(version):
            yield f"{what}: since {since}, which is later than {version}"


def docs_problems(root: Path) -> Iterator[str]:
    """Derived files that are not as ``make docs`` writes them."""
    for name, make in make_docs.MADE.items():
        if (root / name).read_text() != make():
            yield f"{name}: not as its declarations say: make docs"


def git_problems(version: str, root: Path) -> Iterator[str]:
    """What git has against a tag on the commit that is checked out."""

    def git(*words: str) -> str:
        done = subprocess.run(("git", *words), cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.rstrip()

    if git("tag", "--list", f"v{version}"):
        yield f"git: the tag v{version} exists"
    if changed := git("status", "--porcelain"):
        yield f"git: not committed: {', '.join(line[3:] for line in changed.splitlines())}"


def main() -> None:
    """Print all problems; exit code 1 if there are any."""
    problems = [
        *version_problems(__version__, ROOT),
        *since_problems(__version__, declared_since()),
        *docs_problems(ROOT),
        *git_problems(__version__, ROOT),
    ]
    print("\n".join(problems) or f"{__version__} can be released")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
