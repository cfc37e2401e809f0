# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tree of who waits for whom."""

from pathlib import Path
from typing import Any

import report_bundle as made
from page_tree import NOTHING
from rows_of_tables import tables_of_rows

from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot
from mmscope.reports.page.report import render
from mmscope.reports.pictures.wait_graph import wait_graph

FROZEN = "ext4 of /dev/sdb at /data, frozen"


def task(pid: int, target: str, holder: int | None, seconds: float) -> dict[str, Any]:
    return {
        "pid": pid,
        "comm": f"t{pid}",
        "target": target,
        "kind": "rwsem, to write",
        "holder_pid": holder,
        "holder_is": "writer" if holder else None,
        "seconds": seconds,
    }


def root(name: str, pid: int | None, circle: bool = False) -> dict[str, Any]:
    ends = {"root": name, "pid": pid, "comm": "t1", "circle": circle, "waiters": 3, "doing": None}
    return ends | {"by_last_reader": False}


CHAIN = [
    task(1, FROZEN, None, 9.0),
    task(2, "VMA", 1, 8.0),
    *[task(pid, "mmap_lock of t2 (2)", 2, 4.5) for pid in range(3, 9)],
]


def test_what_it_ends_at_is_first_and_those_behind_are_below() -> None:
    drawn = wait_graph.draw({"wait_roots": [root(FROZEN, 1)], "task_waits": CHAIN}, None)
    (tree,) = drawn["roots"]
    (first,) = tree["groups"]
    assert (first["target"], first["tasks"], first["share"]) == (FROZEN, 1, 100)
    ((holder, (second,)),) = first["holders"]
    assert (holder["pid"], second["target"]) == (1, "VMA")
    ((holder, (third,)),) = second["holders"]
    assert (holder["pid"], third["tasks"], third["share"]) == (2, 6, 50)
    assert third["holders"] == [] and len(third["names"]) == 4


def test_those_that_wait_for_pages_of_a_device_are_below_it() -> None:
    tasks = [
        task(1, "page 0 of /data/a", None, 9.0) | {"finished_by": "ext4 of /dev/sdb"},
        task(2, "page 7 of /data/b", None, 8.0) | {"finished_by": "ext4 of /dev/sdb"},
        task(3, "i_rwsem of /data/a", 1, 7.0),
    ]
    roots = [root("ext4 of /dev/sdb", None)]
    drawn = wait_graph.draw({"wait_roots": roots, "task_waits": tasks}, None)
    one, other = drawn["roots"][0]["groups"]
    assert (one["target"], other["target"]) == ("page 0 of /data/a", "page 7 of /data/b")
    ((holder, (behind,)),) = one["holders"]
    assert (holder["pid"], behind["target"]) == (1, "i_rwsem of /data/a")


def test_a_circle_is_drawn_once_round() -> None:
    tasks = [task(1, "a", 2, 3.0), task(2, "b", 1, 3.0)]
    drawn = wait_graph.draw({"wait_roots": [root("t1 (1)", 1, True)], "task_waits": tasks}, None)
    (first,) = drawn["roots"][0]["groups"]
    ((_, (second,)),) = first["holders"]
    assert (first["target"], second["target"], second["holders"][0][1][0]["holders"]) == (
        *("b", "a"),
        [],
    )


def test_without_tasks_nothing_is_drawn() -> None:
    tables = {"wait_roots": [root(FROZEN, 1)], "task_waits": []}
    assert wait_graph.draw(tables, None) == {"roots": [], "left_out": 1}


def test_it_is_in_the_report(tmp_path: Path) -> None:
    waits = [
        TaskWait(
            *(pid, f"t{pid}", None, "D", 9.0, None, "mutex", "a_mutex", 1, "t1", "owner"),
            *(None, None, None),
        )
        for pid in (2, 3)
    ]
    ends = WaitRoot(
        *("t1 (1)", "task", 1, "t1", False, False, 2, 0, 9.0, "a_mutex", 2, 9.0),
        *("faults", False, None, None),
    )
    contents = made.tables_of("zones") | tables_of_rows([ends, *waits])
    page = render(made.write_bundle(tmp_path / "b", contents), NOTHING)
    assert "2 tasks wait for mutex: <strong>a_mutex</strong>, held by its owner" in page
