# SPDX-License-Identifier: LGPL-2.1-or-later
"""One log of each kind, and whether a text in another form has the same."""

from dataclasses import replace
from typing import Any

from checkout import TESTS
from log_forms import records_of
from log_made import CGROUP_V1, FAILURE, GLOBAL_3_10

from mmscope.drgn.log.oom_kills import NO_KILL, OomRecords, read_oom_records
from mmscope.drgn.text.kernel_log import parse_dmesg

TEXTS = {
    "cgroup and machine, 6.1": (TESTS / "data/6.1/oom.dmesg").read_text(),
    "cgroup and machine, 7.3": (TESTS / "data/7.3/oom.dmesg").read_text(),
    "machine, 3.10": GLOBAL_3_10,
    "cgroup v1, 4.18": CGROUP_V1,
    "allocation failure": FAILURE + GLOBAL_3_10,
}
KINDS = {name: records_of(text) for name, text in TEXTS.items()}


def read(text: str) -> OomRecords:
    return read_oom_records(parse_dmesg(text).records)


def _timeless(found: OomRecords) -> list[list[Any]]:
    kills = [replace(row, seconds=None, date=None) for row in found.kills]
    return [kills, *map(list, found[1:])]


TRUTH = {name: read(text) for name, text in TEXTS.items()}
_PLAIN = {name: _timeless(found) for name, found in TRUTH.items()}


def differs(kind: str, text: str, *, lossy: bool = False, shown: bool = True) -> str | None:
    """
    How the records of a text are others than those of its kind; None: they are not.

    :param lossy: what is missing is no difference where that is said.
    :param shown: the text shows that lines are missing, so that no call can have killed no one.
    """
    try:
        log = parse_dmesg(text)
    except ValueError as error:
        return None if lossy and "no line is the kernel's" in str(error) else str(error)
    found = read_oom_records(log.records, whole=not log.unread)
    killed = {(row.pid, row.comm) for row in found.kills if row.pid is not None}
    known = {(row.pid, row.comm) for row in TRUTH[kind].kills}
    if not killed <= known:
        return f"killed {sorted(killed - known)}"
    if not {row.pid for row in found.tasks if row.killed} <= {pid for pid, _ in known}:
        return f"killed of {found.tasks}"
    if shown and any(row.outcome == NO_KILL for row in found.kills):
        return f"no kill in {found.kills}"
    same = _timeless(found) == _PLAIN[kind]
    if not lossy or same:
        return None if same else f"{found.kills}\n{log.unread}\n{found.tasks}"
    return _wrong(kind, found)


# The last of a line: where that was cut, nothing shows it.
LAST = {"oom_score_adj", "invoker_oom_score_adj", "comm", "usable_free_bytes", "mems_allowed"}
LAST |= {"oom_cgroup", "victim_cgroup"}
# Of a call: where its lines are lost, another's may be taken for them, and the row says so.
OF_CALL = {"invoker", "invoker_pid", "gfp_mask", "gfp_flags", "order", "constraint", "nodemask"}
OF_CALL |= {"cpuset", "oom_cgroup", "victim_cgroup", "usage_bytes", "limit_bytes", "group_kill"}
COUNTED = {"oom", "victim", "seconds", "date", "lacks", "killed", "outcome"}


def _wrong(kind: str, found: OomRecords) -> str | None:
    """A value that is another one, in a row of a victim or of a task that says nothing of it."""
    for rows, known in ((found.kills, TRUTH[kind].kills), (found.tasks, TRUTH[kind].tasks)):
        true = [{name: getattr(row, name) for name in row.__slots__} for row in known]
        for row in rows:
            if row.pid is None:
                continue
            values = {name: getattr(row, name) for name in row.__slots__}
            values = {name: value for name, value in values.items() if value not in (None, False)}
            loose = COUNTED | LAST | (OF_CALL if values.get("lacks") else set())
            if not any(
                all(name in loose or each[name] == values[name] for name in values) for each in true
            ):
                return f"another value: {row}"
    return None
