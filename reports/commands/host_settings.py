# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Settings of a host, for every command: ``/etc/mmscope.toml``.

    redact = true               # of every command that has --redact; --no-redact does not
    mode = "640"
    cpu-budget = 10

    [guard]
    limit = 2048
    triggers = ["/etc/mmscope/triggers"]

A key is an option's long name, and its value the default of that option: what is typed goes before
it. The file and its folder are root's or this user's. ``MMSCOPE_CONFIG`` names another file;
empty, none is read.

Cannot know: keys of ``[guard]`` while another command runs.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmscope.drgn.text.plain_file import check_folder, read_plain
from mmscope.reports.bundle.outcome import UsageError, did_you_mean, in_plain_words

FILE, INSTEAD = "/etc/mmscope.toml", "MMSCOPE_CONFIG"
EVERYWHERE = ("cpu-budget", "mode", "redact")
GUARD = (
    *("collect", "distance", "exec", "interval", "limit", "minutes", "no-profile", "openmetrics"),
    *("output", "text", "timeout", "triggers"),
)
TABLES = {"guard": GUARD}
MOST_BYTES = 1 << 20


def apply(parser: argparse.ArgumentParser, command: str) -> None:
    """
    Make what the host's file says the defaults of a command's options.

    :raises UsageError: it cannot be read, or says something that no option takes.
    """
    path = Path(os.environ.get(INSTEAD, FILE))
    if path == Path() or not os.path.lexists(path):
        return
    try:
        for key, value in _settings(path, command).items():
            for sub in parsers(parser):
                for action in sub._actions:
                    if f"--{key}" in action.option_strings:
                        action.default = _default(sub, action, key, value)
    except OSError as error:
        words = f"{error.filename or path}: {error.strerror}"
        raise UsageError(f"{words}; {INSTEAD}= for a command without settings") from None
    # TOMLDecodeError is a ValueError.
    except (argparse.ArgumentError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {in_plain_words(str(error))}") from None


def _settings(path: Path, command: str) -> dict[str, Any]:
    """Values of a file for all commands, and for this one."""
    import tomllib  # most hosts have no such file

    check_folder(path.parent)
    said = tomllib.loads(read_plain(path, MOST_BYTES, own=True).decode())
    own = said.get(command, {}) if command in TABLES else {}
    for name, table in ((name, said.pop(name)) for name in TABLES if name in said):
        if not isinstance(table, dict):
            raise ValueError(f"{name}: is a table: [{name}]")
        _check(table, TABLES[name], f"[{name}]")
    _check(said, (*EVERYWHERE, *(f"[{name}]" for name in TABLES)), "settings of all commands")
    return said | own


def _check(said: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in said:
        if key not in known:
            near = did_you_mean(key, known) or f": there are {', '.join(known)}"
            raise ValueError(f"{key!r} is no key of {where}{near}")


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from parsers(sub)


def _default(
    parser: argparse.ArgumentParser, action: argparse.Action, name: str, value: Any
) -> Any:
    """
    A value of the file as the option has it.

    :raises argparse.ArgumentError, ValueError: it takes no such value.
    """
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise ValueError(f"{name}: is true or false, not {value!r}")
        return value if action.const is not False else not value
    if isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise ValueError(f"{name}: is a list, not {value!r}")
        return [_one(parser, action, name, each) for each in value]
    return _one(parser, action, name, value)


def _one(parser: argparse.ArgumentParser, action: argparse.Action, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name}: is one text or number, not {value!r}")
    made = parser._get_value(action, str(value))
    parser._check_value(action, made)
    return made
