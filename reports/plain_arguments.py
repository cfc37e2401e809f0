# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Arguments in their plain form, read without argparse, whose import and set-up take as long as to
read a hundred small files.

The options are declared once, as the words of ``argparse``'s ``add_argument``; whatever is not
plain (``--name=value``, abbreviations, help, mistakes) is argparse's own affair.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Options = Mapping[str, Mapping[str, Any]]

SHORT = {"-o": "--output"}


class Arguments:
    """Values by the names that argparse gives them."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


def plain_arguments(words: Sequence[str], options: Options) -> Arguments | None:
    """
    What argparse makes of ``--name VALUE``, ``--flag`` and files in a row; None if there is
    anything else, or anything wrong.

    :param options: name to the words of ``add_argument``: ``action`` (``append`` or
        ``store_true``), ``type`` and ``default`` count.
    """
    values: dict[str, Any] = {
        _name(option): [] if said.get("action") == "append" else said.get("default")
        for option, said in options.items()
    }
    values |= {_name(o): False for o, said in options.items() if said.get("action") == "store_true"}
    files: list[str] = []
    left = iter(words)
    before = ""
    for word in left:
        if word == "-" or word[:1] != "-":
            if files and before != "file":
                return None  # argparse takes files in a row only
            files.append(word)
            before = "file"
            continue
        before = word = SHORT.get(word, word)
        said = options.get(word)
        if said is None:
            return None
        if said.get("action") == "store_true":
            values[_name(word)] = True
            continue
        value: Any = next(left, "")
        if not value or value[0] == "-":
            return None
        try:
            value = said["type"](value) if "type" in said else value
        except Exception:
            return None  # argparse says what is wrong with it
        if said.get("action") == "append":
            values[_name(word)].append(value)
        else:
            values[_name(word)] = value
    return Arguments({**values, "files": files}) if files else None


def _name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
