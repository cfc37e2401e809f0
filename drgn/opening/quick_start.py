# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What drgn need not load for one command.

``drgn.helpers.linux`` loads all of drgn's helpers, some forty modules, when one of them is asked
for, and opening a core looks through everything that is installed for plugins. Together that is a
third of what a command takes that shows one table. Both are drgn's to decide in a session of its
own, so only the ``mmscope`` command does without.

Cannot know: plugins of what is installed in other ways than as folders of ``sys.path``; where there
is such a thing, drgn looks for itself.
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

HELPERS = "drgn.helpers.linux"
# The oldest whose tables are those of the newest, cell by cell (`make drgn-versions`); 0.0.33 opens
# a core as well, and one cell differs. As pyproject.toml says it.
OLDEST_DRGN = "0.1.0"
# These add commands to a session of drgn.
COMMANDS_OF_SESSIONS = ("builtin_commands", "crash_commands", "mmscope")


class _OnDemand(ModuleType):
    """A package whose modules can be loaded one by one: what it has itself is loaded if needed."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def helpers_one_by_one() -> None:
    """Have ``from drgn.helpers.linux.mm import …`` load that module, and what that needs."""
    if HELPERS in sys.modules or (spec := importlib.util.find_spec(HELPERS)) is None:
        return
    if not spec.submodule_search_locations or spec.loader is None:
        return
    package = _OnDemand(HELPERS, "")
    package.__spec__, package.__loader__ = spec, spec.loader
    package.__package__, package.__path__ = HELPERS, spec.submodule_search_locations
    package.__file__ = spec.origin
    sys.modules[HELPERS] = package
    parent, _, child = HELPERS.rpartition(".")
    setattr(sys.modules[parent], child, package)


def too_old() -> str | None:
    """Why this Python's drgn is not used; a distribution's may be there where pip did not look."""
    try:
        here = importlib.import_module("drgn").__version__
    except ModuleNotFoundError:  # said by who needs it
        return None
    if _numbers(here) >= _numbers(OLDEST_DRGN):
        return None
    return f"this is drgn {here}, and {OLDEST_DRGN} is needed: pip install 'drgn>={OLDEST_DRGN}'"


def _numbers(version: str) -> list[int]:
    """Those of a release: 0.3.0 of 0.3.0+unknown and of 0.3.0.dev5."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def leave_out_plugins() -> None:
    """
    Have drgn load no plugin that only adds commands to its sessions. Others may find debug info.

    Says so in the environment, where drgn looks, unless somebody has said something else.
    """
    try:
        others = set(_plugins()) - set(COMMANDS_OF_SESSIONS)
    except ValueError:
        others = {"unknown"}
    # Of all plugins, drgn does not even look which there are.
    said = ",".join(COMMANDS_OF_SESSIONS) if others else "*"
    os.environ.setdefault("DRGN_DISABLE_PLUGINS", said)


def _plugins() -> Iterator[str]:
    """
    The names of drgn's plugins that are installed here.

    :raises ValueError: a part of ``sys.path`` is no folder.
    """
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ValueError(folder) from error
        for name in names:
            if name.endswith(".egg"):
                raise ValueError(name)
            if name.endswith((".dist-info", ".egg-info")):
                yield from _entry_points(os.path.join(folder, name, "entry_points.txt"))


def _entry_points(path: str) -> Iterator[str]:
    """The names under [drgn.plugins] of an entry_points.txt."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return  # most have none
    section = ""
    for line in lines:
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == "drgn.plugins" and "=" in line:
            yield line.split("=")[0].strip()
