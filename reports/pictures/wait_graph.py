# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Trees of tasks that wait for each other: what is waited for in the end, those that wait for it, and
those that wait for what these hold.

Cannot know: more than the tables say. A circle is drawn once round.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

MOST_ROOTS, MOST_GROUPS, MOST_NAMES, DEEPEST = 10, 8, 4, 12


@picture(
    "wait_roots",
    "root pid comm circle by_last_reader waiters longest_seconds doing",
    others="task_waits",
)
def wait_graph(tables: Tables, page_size: int | None) -> Row:
    """The largest trees; none where no task of one is known."""
    roots, tasks = tables["wait_roots"], tables.get("task_waits", ())
    longest = max((each["seconds"] or 0 for each in tasks), default=0)
    held: dict[int, list[Row]] = {}
    for each in tasks:
        if each["holder_pid"] is not None:
            held.setdefault(each["holder_pid"], []).append(each)
    drawn = []
    for root in roots[:MOST_ROOTS]:
        groups = _groups(_first(root, tasks, held), held, longest, ())
        if groups:
            drawn.append({"root": root, "groups": groups})
    return {"roots": drawn, "left_out": len(roots) - len(drawn)}


def _first(root: Row, tasks: Rows, held: Mapping[int, list[Row]]) -> list[Row]:
    """The tasks that wait for a root directly."""
    of_object = [
        each for each in tasks if root["root"] in (each["target"], each.get("finished_by"))
    ]
    unheld = [each for each in of_object if each["holder_pid"] is None]
    return unheld or held.get(root["pid"], [])


def _groups(
    waiting: Sequence[Row], held: Mapping[int, list[Row]], longest: float, above: tuple[int, ...]
) -> list[dict[str, Any]]:
    """
    Tasks by what they are queued on, those that are most first.

    :param held: those that wait for each pid.
    :param above: the pids on the way: who is among them closes a circle.
    """
    by_target: dict[str, list[Row]] = {}
    for each in waiting:
        by_target.setdefault(each["target"] or "?", []).append(each)
    groups = []
    for target, rows in sorted(by_target.items(), key=lambda item: (-len(item[1]), item[0])):
        seconds = [each["seconds"] for each in rows if each["seconds"] is not None]
        holders = [
            (each, _groups(of, held, longest, (*above, each["pid"])))
            for each in rows
            if each["pid"] not in above and len(above) < DEEPEST
            if (of := held.get(each["pid"]))
        ]
        kinds = {each["kind"] for each in rows}
        groups.append(
            {
                "target": target,
                # Of those that want to read and those that want to write: the lock's.
                "kind": kinds.pop() if len(kinds) == 1 else (rows[0]["kind"] or "").split(",")[0],
                "tasks": len(rows),
                "names": [f"{each['comm']} ({each['pid']})" for each in rows[:MOST_NAMES]],
                "holder_is": rows[0]["holder_is"],
                "seconds": max(seconds, default=None),
                "share": round(100 * max(seconds, default=0) / longest, 1) if longest else 0,
                "holders": holders[:MOST_GROUPS],
                "left_out": max(len(holders) - MOST_GROUPS, 0),
            }
        )
    return groups
