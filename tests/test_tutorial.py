# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``docs/tutorial-probe.md`` says how it is: its files are written into a copy of the tree, where the
tests of all that is declared pass, and those that the page adds.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "tutorial-probe.md").read_text()
# A file's name on a line of its own, then all of it, or what changes in it.
BLOCK = re.compile(r"^`([^`\n]+)`\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {"A probe": 2, "A finding": 2, "A picture": 3, "A recipe": 2, "A column": 1}
IN_WORDS = {1: "One file", 2: "Two files", 3: "Three files"}
COPIED = ("drgn", "perf", "reports", "templates", "tests", "tools", "docs", "mmscope")
# The tests of all that is declared; the page's own are run with them.
TESTS: dict[str, tuple[str, ...]] = {
    "drgn/tables/test_declaring.py": (),
    "drgn/sections/test_declarations.py": (),
    "reports/findings/test_findings_words.py": (),
    "drgn/sections/test_prices.py": ("test_every_section_declares_the_price_of_what_it_opens",),
    "reports/findings/test_findings.py": (
        "test_every_finding_has_its_case",
        "test_it_is_found_and_said[a quarter of memory is not managed]",
        "test_it_is_not_so[a few hundredths are not]",
        "test_it_cannot_be_told[how much memory zones have is not known]",
    ),
    "reports/pictures/test_few_rows.py": (
        "test_each_picture_is_drawn_or_its_table_is_empty",
        "test_no_value_that_a_declaration_allows_is_a_fault",
    ),
    "perf/test_folding.py": ("test_every_recipe_is_whole",),
    "drgn/ledger/test_swap_areas.py": (),
    "reports/bundle/test_bundle_format.py": (
        "test_the_findings_of_an_old_bundle",
        "test_what_cannot_be_checked_in_an_old_bundle_is_not_called_clear",
        "test_tables_have_what_they_had_and_what_came_since_says_so",
    ),
    "reports/commands/test_command.py": (
        "test_collect_from_a_tree_of_text",
        "test_a_damaged_file_costs_its_own_sections[-meminfo]",
    ),
}


def chapter(title: str) -> str:
    """What stands below a heading, up to the next one."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def changed(text: str, diff: str) -> str:
    """A file with what a diff without line numbers changes in it."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if not line.startswith("+"))
        assert text.count(before) == 1, before
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    return text


@pytest.mark.parametrize("title", FILES)
def test_an_addition_takes_as_many_files_as_the_page_says(title: str) -> None:
    named = [path for path, _, _ in BLOCK.findall(chapter(title))]
    assert len(set(named)) == len(named) == FILES[title]
    assert chapter(title).strip().startswith(IN_WORDS[len(named)])


def test_every_addition_is_one_of_these() -> None:
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == list(FILES)
    assert len(BLOCK.findall(PAGE)) == sum(FILES.values())


def test_what_the_page_writes_passes_the_tests(tmp_path: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    for name in ("CHANGELOG.md", "README.md", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    added = []
    for path, kind, text in BLOCK.findall(PAGE):
        file = tmp_path / path
        assert file.exists() == (kind == "diff"), path
        file.write_text(changed(file.read_text(), text) if kind == "diff" else text)
        if file.name.startswith("test_"):
            added.append(path)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    tests = [
        f"tests/{file}{name and '::'}{name}"
        for file, names in TESTS.items()
        for name in names or ("",)
    ]
    for command in (
        ["tools/make_docs.py"],
        ["-m", "ruff", "check", "--no-cache", "."],
        ["-m", "ruff", "format", "--no-cache", "--check", "."],
        ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "not kernel_prints",
         *tests, *added],
    ):  # fmt: skip
        result = children.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
