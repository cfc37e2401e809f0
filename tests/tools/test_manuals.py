# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Manual pages, shell completion, and the Debian package's version.

What the packages do when they are installed is tried by ``make deb-try``.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import make_manuals
import pytest
from command_line import ROOT

from mmscope import __version__
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.perf import recipe
from mmscope.reports.bundle.views import views

COMMANDS = dict(make_manuals.parsers()[1].choices)
PAGES = make_manuals.manual_pages()


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Its options, but for --help."""
    return {word for action in parser._actions for word in action.option_strings} - {"-h", "--help"}


def plain(page: str) -> str:
    """A page without roff's escapes."""
    return re.sub(r"\\f[A-Z]|\\[,/&]", "", page).replace("\\-", "-")


def test_they_are_made_where_nothing_is_that_reports_need() -> None:
    """As in the root that the packages are built in: Debian has no DuckDB."""
    program = (
        "import sys; sys.modules |= dict.fromkeys(('duckdb', 'jinja2', 'mcp'))\n"
        "sys.path.insert(0, 'tools'); import make_manuals; make_manuals.manual_pages()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def completed(words: str) -> set[str]:
    """What bash offers for the last word of a line."""
    script = """
        source /dev/stdin
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _shtab_mmscope mmscope "${!#}" "${@: -2:1}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, "--norc", "-c", script, "bash", *words.split(" ")],
        input=make_manuals.completion("bash"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr
    return set(done.stdout.split())


def test_every_command_has_a_page_and_the_first_names_them_all() -> None:
    assert PAGES.keys() == {"mmscope.1", *(f"mmscope-{name}.1" for name in COMMANDS)}
    assert len(COMMANDS) >= 10
    for name in COMMANDS:
        assert f".BR mmscope-{name} (1)" in plain(PAGES["mmscope.1"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_of_its_command(name: str) -> None:
    page = plain(PAGES[f"mmscope-{name}.1"])
    assert f'.TH MMSCOPE-{name.upper()} "1"' in page
    named = set(re.findall(r"^(-.*)$", page, re.M))
    assert options(COMMANDS[name]) <= set(re.findall(r"--?[\w-]+", " ".join(named)))
    assert ".SH EXIT STATUS" in page
    # A line that begins so is a request to roff, and its text is lost.
    assert not [line for line in page.splitlines() if line.startswith("'")]


def test_bash_completes_commands_options_sections_and_recipes() -> None:
    assert completed("mmscope ") >= COMMANDS.keys()
    for name, parser in COMMANDS.items():
        assert completed(f"mmscope {name} -") >= options(parser), name
    assert completed("mmscope collect --only ") >= SECTIONS.keys()
    assert completed("mmscope record ") >= set(recipe.names())


def test_show_completes_tables_and_views_as_well() -> None:
    assert {"slab_caches", "anon_vma_checks"} <= completed("mmscope show ")
    assert {name for name, _, _ in views()} <= completed("mmscope show ")


@pytest.mark.parametrize("name", COMMANDS)
def test_zsh_has_every_option_too(name: str) -> None:
    text = make_manuals.completion("zsh")
    assert text.startswith("#compdef mmscope")
    for option in options(COMMANDS[name]):
        assert option in text


def test_the_debian_package_is_of_this_version() -> None:
    first = (ROOT / "debian" / "changelog").read_text().splitlines()[0]
    assert first.startswith(f"mmscope ({__version__}-")


def test_what_the_package_carries_is_what_mmscope_is_tested_with() -> None:
    lock = dict(
        re.findall(r"^(drgn|duckdb)==(\S+)", Path(ROOT / "requirements.lock").read_text(), re.M)
    )
    lowest = re.findall(r'"drgn>=(\S+)"', (ROOT / "pyproject.toml").read_text())[0]
    for name in ("README.Debian", "README.source", "control"):
        said = re.findall(r"drgn (?:\(>= )?(\d+\.\d+\.\d+)", (ROOT / "debian" / name).read_text())
        assert set(said) <= {lock["drgn"], lowest, "0.0.31"}, name


def test_its_patches_apply_to_the_files_as_they_are() -> None:
    folder = ROOT / "debian" / "patches"
    names = (folder / "series").read_text().split()
    assert names
    # dpkg-source takes no patch whose lines have changed; git neither.
    checked = ["git", "apply", "--check", *(str(folder / name) for name in names)]
    done = subprocess.run(checked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
