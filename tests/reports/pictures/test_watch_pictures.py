# SPDX-License-Identifier: LGPL-2.1-or-later
"""What watch saw, drawn: rates as steps over their periods, events marked, extremes kept."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import watch_made
from page_tree import elements, parse
from report_bundle import HOSTILE, owner_growth, verdict, write_bundle

from mmscope.reports.drawing import time_panel
from mmscope.reports.page.report import render
from mmscope.reports.pictures import owner_pictures, watch_pictures
from mmscope.reports.pictures.watch_pictures import watch
from mmscope.reports.rows.watch_rows import HolderLevel


def tables() -> dict[str, list[dict[str, Any]]]:
    return {name: [asdict(row) for row in rows]
            for name, (_, _, rows, _) in watch_made.tables().items()}  # fmt: skip


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return watch.draw(tables(), 4096)


def chart(seen: dict[str, Any], title: str) -> Any:
    return next(chart for chart in seen["charts"] if chart["title"].startswith(title))


def names(lane: dict[str, Any]) -> list[str]:
    return [name for name, *_ in lane["lines"]]


def test_what_happened_is_marked_on_the_one_clock(seen: dict[str, Any]) -> None:
    assert [mark["words"] for mark in seen["marks"] if mark["loud"]] == [
        "OOM kill, until 03:10:00",
        "3 OOM kills, until 03:19:00",
    ]
    quiet = [(1.2 * mark["at"], mark["words"]) for mark in seen["marks"] if not mark["loud"]]
    assert quiet == [
        (210.0 * n, f"{7 * n} failed compactions, until 03:{at}")
        for n, at in enumerate(("03:30", "07:00", "10:30", "14:00", "17:30"), 1)
    ]


def test_a_mark_is_where_its_moment_is(seen: dict[str, Any]) -> None:
    """600 s of 1,200 s is the middle of every chart."""
    assert next(mark["at"] for mark in seen["marks"] if mark["loud"]) == 500
    _, path, points = chart(seen, "Free memory")["lines"][0]
    assert "L500 " in path
    assert " 600 " in points


def test_events_are_summed_up_with_the_worst_period(seen: dict[str, Any]) -> None:
    kill, fail = seen["events"]
    assert (kill[0], *kill[2:5]) == ("oom_kill", 4, 2, 3)
    assert kill[-1] == "2026-11-20T03:19:00.000+00:00"
    assert (fail[0], *fail[2:4]) == ("compact_fail", 105, 5)


def test_what_did_not_move_is_named_and_not_drawn(seen: dict[str, Any]) -> None:
    assert "Swap, and pages read again after they were reclaimed" in seen["still"]
    assert not [c for c in seen["charts"] if c["title"].startswith("Swap")]


def test_free_blocks_are_told_by_who_may_take_them(seen: dict[str, Any]) -> None:
    assert names(chart(seen, "Free blocks")) == [
        "on lists that THP may take from",
        "on HighAtomic lists, which THP may not take from",
    ]


def test_the_reserve_is_drawn_where_it_is_known_of_every_zone() -> None:
    found = tables()
    drawn = chart(watch.draw(found, 4096), "HighAtomic reserve")
    assert (names(drawn), drawn["unit"]) == (["reserved", "of it free"], "MiB")
    assert chart(watch.draw(found, None), "HighAtomic reserve")["unit"] == "pages"
    for row in found["zone_series"]:
        row["highatomic_free_pages"] = None
        if row["time"] == 600:
            row["highatomic_reserved_pages"] = None
        if row["time"] == 900:
            row["highatomic_reserved_pages"] = 2048
    drawn = chart(watch.draw(found, 4096), "HighAtomic reserve")
    assert names(drawn) == ["reserved"]


def test_a_level_that_is_the_same_in_all_samples_is_a_line_of_words() -> None:
    found = tables()
    for row in found["zone_series"]:
        row["highatomic_free_pages"] = 0
    shown = watch.draw(found, 4096)
    assert shown["flat"] == ["HighAtomic reserve: reserved 10 MiB"]
    assert not [c for c in shown["charts"] if c["title"] == "HighAtomic reserve"]
    # One that moved between the points that are drawn has moved.
    many = [(float(n), 5.0 + (n == 777)) for n in range(10 * time_panel.MAX_POINTS + 1)]
    found["gauge_series"] = [
        {"time": at, "name": "MemFree", "value": value * 1024} for at, value in many
    ]
    assert names(chart(watch.draw(found, 4096), "Free memory")) == ["MemFree"]


def test_a_period_that_is_longer_than_the_time_since_the_last_does_not_go_back() -> None:
    points = [(1.0, 0.5, 1.0), (2.0, 0.25, 1.25), (3.0, 0.1, 0.5)]
    assert [at for at, _ in watch_pictures._over(points)] == [0.0, 1.0, 1.0, 2.0, 2.5, 3.0]
    assert [rate for _, rate in watch_pictures._over(points)] == [0.5, 0.5, 0.2, 0.2, 0.2, 0.2]


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
    rows = [{"name": "oom", "source": "vmstat", "time": 0.0, "delta": 0},
            {"name": "pswpin", "source": "vmstat", "time": 30.0, "delta": 40}]  # fmt: skip
    points = watch_pictures._rates(rows, samples)["pswpin"]
    assert points == [(0, 0), (10, 0), (10, 2), (30, 2), (30, 0), (40, 0)]


def test_of_many_samples_no_extreme_is_lost() -> None:
    points = [(float(n), 5.0) for n in range(10 * time_panel.MAX_POINTS + 1)]
    points[777] = (777.0, 0.0)
    thinned = time_panel.thin(points, min)
    assert len(thinned) <= time_panel.MAX_POINTS and thinned[-1][0] == 10 * time_panel.MAX_POINTS
    assert min(value for _, value in thinned) == 0
    steps = watch_pictures._over([(at, value, 1.0) for at, value in points])
    area = sum((b - a) * rate for (a, rate), (b, _) in zip(steps[::2], steps[1::2], strict=True))
    assert area == pytest.approx(sum(value for _, value in points))


@pytest.mark.parametrize(
    ("first", "last"), [(0, 1200), (0, 0.002), (0, 0), (5, 86_400), (0, 1e-9), (0, 9e6), (7, 7.5)]
)
@pytest.mark.parametrize("at", ["2026-11-20T03:00:00+00:00", "2026-11-20T03:59:59+05:30", "<b>"])
def test_ticks_are_few_round_and_inside(first: float, last: float, at: str) -> None:
    ticks = time_panel.clock([first, last], at).ticks()
    assert len(ticks) <= time_panel.MAX_TICKS + 1
    assert all(0 <= place <= time_panel.WIDTH for place, _ in ticks)


def test_the_clock_is_that_of_the_machine() -> None:
    clock = time_panel.clock([0.0, 1200.0], "2026-11-20T03:01:30+05:30")
    assert clock.words == "2026-11-20, UTC+05:30"
    assert [label for _, label in clock.ticks()] == ["03:05", "03:10", "03:15", "03:20"]
    assert clock.ticks()[0][0] == round(1000 * 210 / 1200, 1)
    long = time_panel.clock([0.0, 5 * 86400.0], "2026-11-20T12:00:00+00:00")
    assert [label for _, label in long.ticks()] == [f"11-{day}" for day in range(21, 26)]
    later = time_panel.clock([90.0, 100.0], "2026-11-20T03:01:30+00:00")
    assert later.start == datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
    assert time_panel.clock([0.0, 9.0], "soon").words == "seconds since the first sample"


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, 1), (1, 1), (1.01, 1.5), (99, 100), (210, 300), (0.0021, 0.003), (7e12, 8e12)],
)
def test_an_axis_ends_at_a_round_number(most: float, top: float) -> None:
    assert time_panel.top_of(most) == pytest.approx(top)


def test_a_line_is_where_its_values_are() -> None:
    axis = time_panel.clock([0.0, 100.0], "")
    lane = time_panel.lane("t", [("a", [(0.0, 0.0), (50.0, 3.0), (100.0, 6.0)])], axis, "pages")
    assert (lane["top"], lane["lines"][0][1]) == ("6", "M0 100L500 50L1000 0")
    assert lane["lines"][0][2] == "0 0 50 3 100 6"


def test_what_stays_at_zero_is_a_line_of_words(seen: dict[str, Any]) -> None:
    assert any("Isolate" in words for words in seen["zero"])
    for one in seen["charts"]:
        for name, _, points in one["lines"]:
            assert any(float(value) for value in points.split()[1::2]), name


def test_one_sample_is_no_error() -> None:
    found = {name: [row for row in rows if row.get("time", 0) == 0]
             for name, rows in tables().items()}  # fmt: skip
    seen = watch.draw(found, 4096)
    assert seen["samples"] == 1 and not seen["events"]
    assert chart(seen, "Free memory") and not seen["counted"] and not seen["still"]


def test_counters_that_were_not_read_have_not_stood_still() -> None:
    found = tables()
    found["counter_rates"], found["watch_events"] = [], []
    assert len(watch.draw(found, 4096)["still"]) == len(watch_pictures.RATES)
    for sample in found["watch_samples"][1:]:
        sample["unread"] = "ksm, vmstat"
    seen = watch.draw(found, 4096)
    assert not seen["counted"] and not seen["still"]


def test_hostile_names_are_no_markup(tmp_path: Path) -> None:
    contents = watch_made.tables()
    for name, (title, row_type, rows, section) in contents.items():
        for number, row in enumerate(rows):
            words = set(row.__dataclass_fields__) & {"at", "zone", "migratetype", "name", "event"}
            if getattr(row, "time", 0) > 300:
                for key in words:
                    object.__setattr__(row, key, HOSTILE[number % len(HOSTILE)])
        contents[name] = title, row_type, rows, section
    tree = parse(render(write_bundle(tmp_path / "b", contents), verdict()))
    assert not elements(tree, "img")
    (panel,) = [e for e in elements(tree, "div") if e.get("class") == "time"]
    assert {e.get("class") for e in elements(panel, "b")} == {"now"}


def test_the_same_watch_is_drawn_the_same() -> None:
    assert watch.draw(tables(), 4096) == watch.draw(tables(), 4096)


def test_labels_that_are_close_are_one() -> None:
    axis = time_panel.clock([0.0, 100.0], "")
    happened = [(float(at), "OOM kill", "x", True) for at in (10, 11, 12, 90)]
    found = time_panel.marks(happened, axis)
    assert [mark["label"] for mark in found] == ["OOM kill", "", "", "OOM kill"]
    # At the right edge it would be cut off.
    assert [mark["last"] for mark in found] == [False, False, False, True]


def test_the_report_has_it(tmp_path: Path) -> None:
    html = render(write_bundle(tmp_path / "b", watch_made.tables()), verdict())
    assert "41 samples in 1,200 s" in html and "3.1 ms of CPU a sample, 0.011 % of one CPU" in html
    assert html.count('class="time-plot"') == len(watch.draw(tables(), 4096)["charts"])
    assert len(html) < 500_000


def grown(start: str) -> dict[str, list[dict[str, Any]]]:
    """page_owner's growth at three moments, the first of which is *start*."""
    begin = datetime.fromisoformat(start)
    times = 0.0, 30.0, 60.0
    return {
        "page_owner_growth": [asdict(owner_growth()[0]) | {"handle": 4}],
        "page_owner_series": [{"time": at, "handle": 4, "pages": 256} for at in (0.0, 60.0)],
        "page_owner_snapshots": [
            {"time": at, "at": (begin + timedelta(seconds=at)).isoformat()} for at in times
        ],
    }


def test_what_grew_in_page_owner_is_on_the_clock_of_the_watch() -> None:
    # The machine's clock is two hours ahead of page_owner's, which is UTC; read 4 ms apart.
    both = tables() | grown("2026-11-20T05:05:00.004+02:00")
    lane = chart(watch.draw(both, 4096), "Allocation stacks that grew most")
    assert lane["unit"] == "MiB" and [points for *_, points in lane["lines"]] == [
        "300 1 330 1 360 1"
    ]
    beside = owner_pictures.page_owner_growth.draw(both, 4096)
    assert beside["chart"] is None and beside["in_watch"]


@pytest.mark.parametrize(
    "start", ["2026-11-20T02:59:00+00:00", "2026-11-20T03:19:30+00:00", "2026-11-20T03:05:00"]
)
def test_what_grew_at_another_time_has_a_clock_of_its_own(start: str) -> None:
    apart = tables() | grown(start)
    assert not [
        c for c in watch.draw(apart, 4096)["charts"] if c["title"].startswith("Allocation stacks")
    ]
    beside = owner_pictures.page_owner_growth.draw(apart, 4096)
    assert beside["clock"].start == datetime.fromisoformat(start)
    assert [points for *_, points in beside["chart"]["lines"]] == ["0 1 30 1 60 1"]


def test_what_a_counter_says_is_not_denied_where_no_event_is_kept() -> None:
    found = tables() | {"watch_events": [], "counter_rates": []}
    assert len(watch.draw(found, 4096)["unhappened"]) == 3
    kill = {"name": "oom_kill", "source": "vmstat", "time": 600.0, "delta": 1}
    found["counter_rates"] = [kill]
    assert watch.draw(found, 4096)["unhappened"] == ["failed compaction", "direct reclaim"]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            lambda t: t,
            "about 5 min at this rate (swap not counted). By the rates of the 4 quarters",
        ),
        (lambda t: t * (1 + t / 100), "1.2 min to 2.7 min."),
        (lambda t: 0.01 * t, ""),
        (lambda t: t if t < 50 else 100 - t, ""),
    ],
)
def test_memory_runs_out_by_what_was_measured_with_its_error(loss: Any, said: str) -> None:
    series = [
        {"time": float(t), "name": "MemAvailable", "value": int((400 - loss(t)) * 2**20)}
        for t in range(101)
    ]
    shown = watch.draw(tables() | {"gauge_series": series}, 4096)["runs_out"]
    assert said in shown and bool(said) == bool(shown), shown


def test_holders_that_changed_most_are_lanes_in_the_colour_of_their_class() -> None:
    def series(kind: str, name: str, pid: int | None, *sizes: int) -> list[dict[str, Any]]:
        return [
            asdict(HolderLevel(10.0 * n, kind, name, pid, size << 20))
            for n, size in enumerate(sizes)
        ]

    made = tables()
    made["watch_holder_series"] = [
        *(row for n in range(5) for row in series("process", "job", n + 7, 5, 10 + n, 5)),
        *series("slab cache", "dentry", None, 1, 64),
        *series("vmalloc caller", "leak [drv]", None, 2, 32),
        *series("cgroup", "/pod", None, 8, 8, 8),
    ]
    drawn = watch.draw(made, 4096)
    assert names(chart(drawn, "Processes")) == ["job (pid 11)", "job (pid 10)", "job (pid 9)"]
    kernel = chart(drawn, "Slab caches and callers")
    assert (kernel["unit"], names(kernel)) == ("MiB", ["dentry", "leak [drv]"])
    assert kernel["lines"][0][2] == "0 1 10 64"
    looks = drawn["looks"]
    assert looks["job (pid 11)"] == looks["AnonPages"] and looks["dentry"] == looks["SUnreclaim"]
    assert "/pod" not in looks and "Memory cgroups" in " ".join(drawn["flat"])
