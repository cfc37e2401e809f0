# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tab completion of drgn's ``%commands``: their names, their options, and what an option may be.

drgn's completer (``drgn.internal.rlcompleter``) knows Python's names only, and offers them after a
``%``, too. What is offered here is what a command says of itself in its usage, so that it holds for
every command of any plugin.
"""

import inspect
import re
from collections.abc import Callable, Mapping

OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
CHOICES = re.compile(r"(--[\w-]+) \{([^{}]*)\}")

# Command names to how each is used: ``free_lists [-h] [--format {table,csv,json}]``.
Usages = Mapping[str, Callable[[], str]]


def completions(before: str, usages: Usages) -> list[str] | None:
    """
    Completions of the last word of a line; None if the line is not a command.

    :param before: the line up to the cursor.
    """
    if not before.startswith("%"):
        return None
    name, space, rest = before[1:].partition(" ")
    if not space:
        return sorted(f"%{command} " for command in usages if command.startswith(name))
    *earlier, begun = rest.split(" ")
    if name == "help":
        sign = "%" if begun.startswith("%") else ""
        named = [sign + command for command in usages]
        return sorted(command for command in named if command.startswith(begun))
    if name not in usages:
        return []
    usage = usages[name]()
    choices = {option: said.split(",") for option, said in CHOICES.findall(usage)}
    offered = choices.get(earlier[-1], []) if earlier else []
    if not offered and begun.startswith("-"):
        offered = sorted(set(OPTION.findall(usage)))
    return [word for word in offered if word.startswith(begun)]


def install() -> None:
    """
    Teach drgn's completer. One that knows of commands is left alone.

    :raises ImportError: this drgn has no such completer.
    :raises AttributeError: it is another than this was made for.
    """
    from drgn import get_default_prog
    from drgn.commands import DEFAULT_COMMAND_NAMESPACE
    from drgn.internal import rlcompleter
    from drgn.internal.repl import readline

    if "drgn.commands" in inspect.getsource(rlcompleter):
        return
    of_python = rlcompleter.Completer.complete
    found: list[str] | None = None

    def complete(self: rlcompleter.Completer, text: str, state: int) -> str | None:
        nonlocal found
        if state == 0:
            before = readline.get_line_buffer()[: readline.get_endidx()]
            usages: Usages = {}
            if before.startswith("%"):
                enabled = DEFAULT_COMMAND_NAMESPACE.enabled(get_default_prog())
                usages = {name: command.format_usage for name, command in enabled}
            found = completions(before, usages)
            if found is not None:
                # What is replaced begins after the last delimiter; % and - are such.
                fixed = readline.get_begidx() - (before.rfind(" ") + 1)
                found = [word[fixed:] for word in found]
        if found is None:
            return of_python(self, text, state)
        return found[state] if state < len(found) else None

    rlcompleter.Completer.complete = complete  # type: ignore[method-assign]
