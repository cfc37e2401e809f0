# SPDX-License-Identifier: LGPL-2.1-or-later
"""What watch saw, drawn: rates as steps over their periods, events marked, extremes kept."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import watch_made
from report_bundle import HOSTILE

from mmscope.reports.drawing import charts
from mmscope.reports.pictures import watch_pictures
from mmscope.reports.pictures.watch_pictures import MAX_POINTS, view


def tables() -> dict[str, list[dict[str, Any]]]:
    return {name: [asdict(row) for row in rows]
            for name, (_, _, rows, _) in watch_made.tables().items()}  # fmt: skip


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return view(tables(), 4096)


def chart(seen: dict[str, Any], title: str) -> Any:
    return next(chart for chart in seen["charts"] if chart.title.startswith(title))


def marks(svg: str) -> list[tuple[str, str]]:
    """(class, title) of each mark."""
    return [
        (path.get("class") or "", path[0].text or "")
        for group in ElementTree.fromstring(svg).iter()
        if group.get("class") == "marks"
        for path in group
        if path.tag.endswith("path")
    ]


def test_every_chart_has_the_events_marked(seen: dict[str, Any]) -> None:
    assert len(seen["charts"]) >= 6
    for one in seen["charts"]:
        found = marks(one.svg)
        assert [title for kind, title in found if kind == "mark loud"] == [
            "OOM kill, until 600.0 s",
            "3 OOM kills, until 1,140.0 s",
        ]
        assert [title for kind, title in found if kind == "mark"] == [
            f"{n} failed compactions, until {30 * n:,}.0 s" for n in (7, 14, 21, 28, 35)
        ]
        assert ">OOM kill</" in one.svg and ">3 OOM kills</" in one.svg


def test_a_mark_is_where_its_moment_is(seen: dict[str, Any]) -> None:
    """600 s of 1,200 s is the middle of the plot."""
    tree = ElementTree.fromstring(chart(seen, "Free memory").svg)
    paths = [element for element in tree.iter() if element.tag.endswith("path")]
    drawn = {path.get("class"): re.findall(r"[\d.]+", path.get("d") or "") for path in paths[::-1]}
    line = next(at for kind, at in drawn.items() if str(kind).startswith("line "))
    assert float(drawn["mark loud"][0]) == pytest.approx(
        (float(line[0]) + float(line[-2])) / 2, abs=0.2
    )


def test_events_are_summed_up_with_the_worst_period(seen: dict[str, Any]) -> None:
    kill, fail = seen["events"]
    assert (kill.name, kill.count, kill.periods, kill.worst) == ("oom_kill", 4, 2, 3)
    assert kill.worst_at == "2026-11-20T03:19:00.000+00:00"
    assert (fail.name, fail.count, fail.periods) == ("compact_fail", 105, 5)


def test_what_did_not_move_is_named_and_not_drawn(seen: dict[str, Any]) -> None:
    assert "Swap, and pages read again after they were reclaimed" in seen["still"]
    assert not [c for c in seen["charts"] if c.title.startswith("Swap")]


def test_free_blocks_are_told_by_who_may_take_them(seen: dict[str, Any]) -> None:
    assert chart(seen, "Free blocks").names == [
        "on lists that THP may take from",
        "on HighAtomic lists, which THP may not take from",
    ]


def test_the_reserve_is_drawn_where_it_is_known_of_every_zone() -> None:
    found = tables()
    drawn = chart(view(found, 4096), "HighAtomic reserve, MiB")
    assert drawn.names == ["reserved", "of it free"]
    assert chart(view(found, None), "HighAtomic reserve, pages")
    for row in found["zone_series"]:
        row["highatomic_free_pages"] = None
        if row["time"] == 600:
            row["highatomic_reserved_pages"] = None
    drawn = chart(view(found, 4096), "HighAtomic reserve, MiB")
    assert drawn.names == ["reserved"]


def test_a_rate_is_a_step_as_long_as_its_period() -> None:
    assert watch_pictures._over([(10.0, 50, 10.0), (14.0, 0, 4.0)]) == [
        (0, 5), (10, 5), (10, 0), (14, 0),
    ]  # fmt: skip


def test_a_period_without_a_row_is_zero_and_one_that_was_not_read_is_not() -> None:
    samples = [
        {"time": 10.0 * n, "period_seconds": 10.0 if n else None,
         "unread": "ksm, vmstat" if n == 2 else None}
        for n in range(5)
    ]  # fmt: skip
    rows = [{"name": "oom", "time": 0.0, "delta": 0},
            {"name": "pswpin", "time": 30.0, "delta": 40}]  # fmt: skip
    points = watch_pictures._rates(rows, samples)["pswpin"]
    assert points == [(0, 0), (10, 0), (10, 2), (30, 2), (30, 0), (40, 0)]


def test_of_many_samples_no_extreme_is_lost() -> None:
    points = [(float(n), 5.0) for n in range(10 * MAX_POINTS + 1)]
    points[777] = (777.0, 0.0)
    thinned = watch_pictures._thin(points, min)
    assert len(thinned) <= MAX_POINTS and thinned[-1][0] == 10 * MAX_POINTS
    assert min(value for _, value in thinned) == 0
    steps = watch_pictures._over([(at, value, 1.0) for at, value in points])
    area = sum((b - a) * rate for (a, rate), (b, _) in zip(steps[::2], steps[1::2], strict=True))
    assert area == pytest.approx(sum(value for _, value in points))


@pytest.mark.parametrize("first, last", [(0, 1200), (0, 0.002), (0, 0), (5, 86_400), (0, 1e-9)])
def test_ticks_are_few_and_inside(first: float, last: float) -> None:
    ticks = watch_pictures._ticks(first, last)
    assert len(ticks) <= 8
    assert all(first <= tick <= max(last, first) for tick in ticks)


def test_one_sample_is_no_error() -> None:
    found = {name: [row for row in rows if row.get("time", 0) == 0]
             for name, rows in tables().items()}  # fmt: skip
    seen = view(found, 4096)
    assert seen["samples"] == 1 and not seen["events"]
    assert chart(seen, "Free memory") and not seen["counted"] and not seen["still"]


def test_counters_that_were_not_read_have_not_stood_still() -> None:
    found = tables()
    found["counter_rates"], found["watch_events"] = [], []
    assert len(view(found, 4096)["still"]) == len(watch_pictures.RATES)
    for sample in found["watch_samples"][1:]:
        sample["unread"] = "ksm, vmstat"
    seen = view(found, 4096)
    assert not seen["counted"] and not seen["still"]


def test_hostile_names_are_no_markup() -> None:
    found = tables()
    del found["watch_overhead"]
    for rows in found.values():
        for number, row in enumerate(rows):
            words = row.keys() & {"at", "zone", "migratetype", "name", "event", "unit"}
            row |= {key: HOSTILE[number % len(HOSTILE)] for key in words if row["time"] > 300}
    for one in view(found, 4096)["charts"]:
        svg = ElementTree.fromstring(one.svg)
        assert not [e for e in svg.iter() if str(e.tag).rpartition("}")[2] in ("script", "img")]


def test_the_same_watch_is_drawn_the_same() -> None:
    assert view(tables(), 4096) == view(tables(), 4096)


def test_a_chart_has_no_style_no_script_and_no_id(seen: dict[str, Any]) -> None:
    for one in seen["charts"]:
        for element in ElementTree.fromstring(one.svg).iter():
            assert not {"style", "id", "onclick"} & element.attrib.keys()
            assert not str(element.tag).endswith(("script", "style"))


def test_marks_that_are_close_keep_one_label() -> None:
    svg = charts.time_chart(
        [("a", [(0.0, 1.0), (100.0, 1.0)])],
        [charts.Mark(float(at), "OOM kill", "x", True) for at in (10, 11, 12, 90)],
        x_range=(0.0, 100.0), x_labels=[0.0, 50.0, 100.0], x_title="s", describe="d", top=1.0,
    )  # fmt: skip
    assert svg.count(">OOM kill</") == 2 and len(marks(svg)) == 4


def test_a_label_at_the_right_edge_is_not_cut_off(seen: dict[str, Any]) -> None:
    for one in seen["charts"]:
        tree = ElementTree.fromstring(one.svg)
        groups = [element for element in tree.iter() if element.get("class") == "marks"]
        first, last = (e for group in groups for e in group if e.tag.endswith("text"))
        assert first.get("text-anchor") is None and last.get("text-anchor") == "end"


def test_the_report_has_it(tmp_path: Path) -> None:
    from report_bundle import verdict, write_bundle

    from mmscope.reports.page.report import render

    html = render(write_bundle(tmp_path / "b", watch_made.tables()), verdict())
    assert "41 samples in 1,200 s" in html and "3.1 ms of CPU a sample, 0.011 % of one CPU" in html
    assert html.count('class="chart over-time"') == len(view(tables(), 4096)["charts"])
    assert len(html) < 500_000
