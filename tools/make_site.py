# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make site``: ``docs/`` as a site in ``build/site``, with pages made of the parser and the probes.

Built by ``mkdocs.yml``, strictly: a link, or a part of a page that one leads to, that is not there
fails.
"""

import argparse
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import make_gallery
import make_manuals

from mmscope.drgn.sections.registry import modules

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "site-pages"


def commands() -> str:
    """Every command with its help, as the parser has it."""
    _, action = make_manuals.parsers()
    parts = ["# Commands\n"]
    for _, sub in sorted(action.choices.items()):
        for parser in make_manuals.with_actions(sub):
            parser.formatter_class = plain
            level = "##" if parser is sub else "###"
            parts.append(f"{level} {parser.prog}\n\n```\n{parser.format_help().strip()}\n```\n")
    return "\n".join(parts)


def plain(prog: str) -> argparse.HelpFormatter:
    """Help at one width, whatever the terminal's."""
    return argparse.HelpFormatter(prog, width=100)


def probes() -> str:
    """The functions of a drgn program that give rows, by file."""
    parts = [
        "# Probes\n\nFunctions of a `drgn.Program`, for sessions of drgn, scripts and notebooks: "
        "`from mmscope.drgn.free.zones import zones`.\n"
    ]
    for module in sorted(modules(), key=lambda module: module.__name__):
        found = [
            (name, value)
            for name, value in inspect.getmembers(module, inspect.isfunction)
            if value.__module__ == module.__name__ and "prog" in inspect.signature(value).parameters
        ]
        parts += [f"## {module.__name__}\n"] if found else []
        for name, value in found:
            text = f"{name}{inspect.signature(value)}\n\n{inspect.getdoc(value) or ''}"
            parts.append(f"```text\n{text.strip()}\n```\n")
    return "\n".join(parts)


def beside(text: str) -> str:
    """A page without links to files that are no pages: only their words stay."""
    return re.sub(r"\[([^]]+)\]\(\.\./[^)]+\)", r"\1", text)


def main() -> None:
    """Put the pages together and build them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for page in PAGES.glob("*.md"):
        page.write_text(beside(page.read_text()))
    (PAGES / "commands.md").write_text(commands())
    (PAGES / "probes.md").write_text(probes())
    (PAGES / "gallery.md").write_text(make_gallery.gallery(PAGES / "gallery"))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
