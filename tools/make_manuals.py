# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Manual pages and shell completion, from the parsers of the commands.

    python tools/make_manuals.py build/manuals

writes ``man/mmscope.1``, a page for each command (``man/mmscope-collect.1``), ``bash/mmscope``,
``zsh/_mmscope`` and ``fish/mmscope.fish``. The Debian packages carry them. The date of the pages is
SOURCE_DATE_EPOCH.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from mmscope import __version__
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.perf import recipe
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.views import views
from mmscope.reports.commands import command

# What an argument names, by its metavar.
NAMED = {
    "FILE": shtab.FILE,
    "ADDR": shtab.FILE,
    "BUNDLE": shtab.DIRECTORY,
    "OUT": shtab.DIRECTORY,
    "DIR": shtab.DIRECTORY,
}
# Words that an argument takes, where the parser does not list them.
WORDS = {
    "SECTION,…": list(SECTIONS),
    "TABLE|SECTION": sorted({"tables", *SECTIONS, *TABLES, *(name for name, _, _ in views())}),
    "RECIPE": recipe.names(),
}


def parsers() -> tuple[
    argparse.ArgumentParser, "argparse._SubParsersAction[argparse.ArgumentParser]"
]:
    """The command's parser, and the action in it that has those of the commands."""
    parser = command.build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return parser, action
    raise AssertionError("mmscope has no commands")


def with_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its actions, as ``mmscope guard run`` is one."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from with_actions(sub)


def manual_pages() -> dict[str, str]:
    """Each page by its file name."""
    parser, action = parsers()
    for each in with_actions(parser):
        # Unbroken, whatever the terminal's width: to roff a line that begins with ' is a request.
        each.formatter_class = functools.partial(argparse.HelpFormatter, width=100_000)
    helps = {sub.dest: sub.help or "" for sub in action._choices_actions}
    status = (parser.epilog or "").removeprefix("Exit codes: ")
    parser.epilog = None
    parser.usage = parser.format_usage().removeprefix("usage: ").strip()
    action.help = argparse.SUPPRESS  # the list of commands is enough: each has a page
    about = "show what Linux memory management was doing"
    pages = {"mmscope.1": page(parser, "mmscope", about)}
    listed = "".join(
        f".TP\n.BR mmscope\\-{roff(name)} (1)\n{roff(text)}\n" for name, text in helps.items()
    )
    pages["mmscope.1"].add_section("commands", ">", listed.rstrip())
    for name, sub in action.choices.items():
        pages[f"mmscope-{name}.1"] = page(sub, f"mmscope-{name}", helps[name])
    for file, made in pages.items():
        others = [name.removesuffix(".1") for name in pages if name != file]
        if file != "mmscope.1":
            others = ["mmscope"]
        made.add_section("exit status", ">", roff(status[:1].upper() + status[1:]))
        also = [f".BR {roff(name)} (1)" for name in [*others]]
        made.add_section("see also", ">", ",\n".join(also))
    return {file: str(made) for file, made in pages.items()}


def page(parser: argparse.ArgumentParser, name: str, about: str) -> Manpage:
    """A page, without what is the same on all of them."""
    made = Manpage(parser, format="single-commands-section")
    made.prog, made.description = name, about
    made.source, made.manual = f"mmscope {__version__}", "mmscope"
    return made


def roff(text: str) -> str:
    """Text as roff has it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in ".'" else text


def completion(shell: str) -> str:
    """What completes the command in bash, zsh or fish."""
    parser, _ = parsers()
    for each in with_actions(parser):
        for action in each._actions:
            name = action.metavar if isinstance(action.metavar, str) else ""
            if name in NAMED or action.type is Path:
                # typeshed has no such attribute; it is how shtab is told.
                action.complete = NAMED.get(name, shtab.FILE)  # type: ignore[attr-defined]
            elif name in WORDS:
                action.choices = WORDS[name]
    return str(shtab.complete(parser, shell=shell))


def main(folder: Path) -> None:
    """Write all files."""
    files = {f"man/{name}": text for name, text in manual_pages().items()}
    files |= {"bash/mmscope": completion("bash"), "zsh/_mmscope": completion("zsh")}
    # Debian 13's shtab knows no fish.
    with contextlib.suppress(NotImplementedError):
        files["fish/mmscope.fish"] = completion("fish")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
