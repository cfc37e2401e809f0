# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Triggers: what makes guard capture an incident. One TOML file each, ``triggers/<name>.toml``.

    title = "Memory pressure: PSI full {share:.0%} of the time"
    severity = "critical"
    hold = 30           # seconds that the query must have returned a row, in every sample
    distance = 3600     # least seconds between two captures for it
    every = 60          # seconds from one time that it is asked to the next (0: every sample)
    record = "reclaim"  # what lasts while it fires: a recipe of mmscope record, for five seconds
    sql = "select share from psi_series where time = :now and kind = 'full' and share >= 0.2"

The query is SQLite's, over the tables of ``history``. The first row that it returns fills in the
title, by Python's format. A file of the same name in another folder takes the place of one that is
here; ``enabled = false``, alone if need be, switches it off.
"""

import math
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.drgn.text.plain_file import check_folder, read_plain
from mmscope.perf import recipe as recipes
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.guard.history import History

FOLDER = Path(__file__).resolve().parent / "triggers"
SEVERITIES = ("critical", "warning", "notice")
LONGEST_TITLE = 300


@dataclass
class Trigger:
    """
    A rule: when to capture an incident, and what to call it.

    :ivar due: when the query is asked next.
    :ivar since: the query has returned a row since then.
    :ivar failed: what is wrong with it.
    """

    name: str
    title: str
    severity: str
    sql: str
    hold: float = 0.0
    distance: float = 3600.0
    every: float = 0.0
    record: str = ""
    due: float = field(default=-math.inf, init=False)
    since: float | None = field(default=None, init=False)
    failed: str | None = field(default=None, init=False)

    def fires(self, history: History) -> str | None:
        """Ask the query; returns the title, filled in, if the trigger's time has come."""
        now = history.now
        if now is None or now < self.due:
            return None
        self.due, self.failed, title = now + self.every, None, None
        try:
            if (row := history.ask(self.sql)) is not None:
                title = filled_in(self.title, row)
        except ValueError as error:
            self.failed = str(error)
        if title is None:
            self.since = None
            return None
        self.since = now if self.since is None else self.since
        return title if now - self.since >= self.hold else None


class _Plain(string.Formatter):
    """Fills in what a row has; neither attributes nor items of it, which a format may ask for."""

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name not in kwargs:
            raise ValueError(f"the query returns no column {name!r}")
        return kwargs[name], name

    def format_field(self, value: Any, format_spec: str) -> str:
        if any(int(n) > LONGEST_TITLE for n in re.findall("[0-9]+", format_spec)):
            raise ValueError(f"{format_spec[:40]!r} is wider than a title")
        return str(super().format_field(value, format_spec))


def load(folders: Sequence[Path] = ()) -> list[Trigger]:
    """
    Load the triggers of this folder and of others, the worst first.

    :raises UsageError: a file is not a trigger.
    """
    files: dict[str, Path] = {}
    for folder in (FOLDER, *folders):
        if not folder.is_dir():
            raise UsageError(f"{folder}: is no folder; triggers are files in one, NAME.toml")
        if folder is not FOLDER:
            try:
                check_folder(folder)
            except OSError as error:
                raise UsageError(f"{error.filename}: {error.strerror}") from None
        files |= {path.stem: path for path in sorted(folder.glob("*.toml"))}
    found = [trigger for path in files.values() if (trigger := _read(path)) is not None]
    return sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.name))


def _read(path: Path) -> Trigger | None:
    """A trigger; None: it is switched off."""
    kinds = {"title": str, "severity": str, "sql": str, "record": str, "enabled": bool}
    try:
        said = tomllib.loads(read_plain(path, own=path.parent != FOLDER).decode())
        for name, value in said.items():
            if name not in (*kinds, "hold", "distance", "every"):
                raise ValueError(f"{name} = {value!r}: a trigger has no such key")
            if not isinstance(value, kinds.get(name, int | float)):
                raise ValueError(f"{name} = {value!r}: a value of the wrong type")
        if not said.pop("enabled", True):
            return None
        if missing := [name for name in ("title", "severity", "sql") if name not in said]:
            raise ValueError(f"has no {', '.join(missing)}")
        trigger = Trigger(path.stem, **said)
        if trigger.severity not in SEVERITIES:
            raise ValueError(f"severity is one of {', '.join(SEVERITIES)}")
        if trigger.record and trigger.record not in recipes.names():
            raise ValueError(f"record is one of {', '.join(recipes.names())}")
        if not all(0 <= n < 1e9 for n in (trigger.hold, trigger.distance, trigger.every)):
            raise ValueError("hold, distance and every are seconds")
        if len(trigger.title) > LONGEST_TITLE:
            raise ValueError(f"title: has more than {LONGEST_TITLE} characters")
        History(60.0).ask(trigger.sql)
        list(_Plain().parse(trigger.title))
    except OSError as error:
        raise UsageError(f"{path}: is not a trigger: {error.strerror}") from None
    except (TypeError, ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise UsageError(f"{path}: is not a trigger: {error}") from None
    return trigger


def filled_in(title: str, row: Mapping[str, Any]) -> str:
    """
    Fill in a title with the values of a row, which may be anybody's text.

    :raises ValueError: it asks for something that the row does not have.
    """
    try:
        words = _Plain().format(title, **row)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"title: {error}") from None
    return cut(visible(" ".join(words.split())), LONGEST_TITLE)
