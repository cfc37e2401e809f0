# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Roles: names of kernels for what must not break when a series leaves Debian's archive.

``kernels.toml`` says what a role may be: rows, of which the first counts that the cache has or the
archive, and suites, whose newest release counts then. So ``stable``, on which the demo and most
tests stand, is the 6.12 that Debian's stable has for years; and ``newest`` is whatever the archive
has today, also a series that nobody has seen.

Costs: nothing where the cache has the first row. Else the package lists of some suites; what the
archive did not have is asked for once a day.
"""

import datetime
import functools
import json
import os
import re
from collections.abc import Callable

import kernels
from archive import LabError, cache_folder, newest_first


@functools.cache
def resolve(name: str, say: Callable[[str], None] = lambda line: None, symbols: bool = True) -> str:
    """
    The row, or the series, that a role is today; another name is returned as it is.

    :param say: told what was found, and what was not.
    :param symbols: whether its debug info is needed, if only the cache has it.
    :raises LabError: there is none; says of each why.
    """
    roles = kernels.table()["roles"]
    if name not in roles:
        return name
    rows, suites = roles[name]["rows"], roles[name]["suites"]
    with kernels.one_at_a_time(f"role-{name}"):
        missing = _Missing()
        for row in rows:
            if kernels.whole(row, symbols) or missing.unless(row, lambda row: look(row, say)):
                return _found(name, row, rows, missing, say)
        series = _newest(suites, missing, say)
        if series is None:
            raise LabError(f"no kernel is {name} today: {missing.of(rows + suites)}")
        return _found(name, series, rows + suites, missing, say)


def look(row: str, say: Callable[[str], None]) -> str:
    """A release of a row that the archive has."""
    return kernels.look(row, say)[0]


class _Missing:
    """What the archive did not have when it was asked today, and why."""

    def __init__(self) -> None:
        gone = os.environ.get("MMSCOPE_LAB_WITHOUT", "")
        self._file = cache_folder() / f"missing{gone and '-without-'}{gone}.json"
        self._day = datetime.date.today().isoformat()
        self._absent: dict[str, str] = {}
        if self._file.exists():
            kept = json.loads(self._file.read_text())
            self._absent = kept["absent"] if kept["day"] == self._day else {}
        self.why = dict(self._absent)

    def unless(self, what: str, ask: Callable[[str], str | None]) -> str | None:
        """What *ask* finds, unless it was not there today."""
        if what in self.why:
            return None
        try:
            return ask(what)
        except LabError as error:
            self.why[what] = str(error).splitlines()[0]
            if isinstance(error, kernels.Absent):
                self._absent[what] = self.why[what]
                self._file.write_text(json.dumps({"day": self._day, "absent": self._absent}))
            return None

    def of(self, names: list[str]) -> str:
        return "; ".join(f"{name}: {self.why[name]}" for name in names if name in self.why)


def _newest(suites: list[str], missing: _Missing, say: Callable[[str], None]) -> str | None:
    """The series of the newest release in some suites; if they cannot be read, of the cache."""
    form = kernels.table()["unseen"]["release"].format(series=r"(\d+\.\d+)")
    found: list[str] = []
    for suite in suites:
        say(f"looking for the newest kernel in {suite}")

        def ask(suite: str) -> str:
            chosen, _ = kernels.in_suite(suite, form)
            if chosen is None:
                raise kernels.Absent("it has no kernel with debug info")
            return chosen[0]

        release = missing.unless(suite, ask)
        found += [release] if release else []
    if suites:
        found = found or kernels.releases(form)
    match = re.fullmatch(form, newest_first(found)[0]) if found else None
    return match[1] if match else None


def _found(
    role: str, row: str, names: list[str], missing: _Missing, say: Callable[[str], None]
) -> str:
    said = missing.of(names[: names.index(row)] if row in names else names)
    unseen = "" if row in kernels.names() else ", which no test has seen"
    say(f"the kernel {role} is {row}{unseen}" + (f"; not found: {said}" if said else ""))
    return row
