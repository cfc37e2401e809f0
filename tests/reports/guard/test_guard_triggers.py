# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guard's triggers over made samples: each fires when it should, and is silent otherwise."""

import dataclasses
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guard_made import PERIOD, counted, leaked, no_huge_blocks, played, sample, stalled, taken

from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.guard import history as histories
from mmscope.reports.guard.cgroup_events import CgroupEvents
from mmscope.reports.guard.history import History
from mmscope.reports.guard.kernel_messages import KINDS
from mmscope.reports.guard.trigger import FOLDER, Trigger, filled_in, load
from mmscope.reports.watch.samples import Sampler

TRIGGERS = load()
KILLED = (
    "Out of memory: Killed process 812 (\x1b[31mjava) total-vm:1kB, anon-rss:2kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0"
)
FAILED = "kworker/0:1: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)"

CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...], str]] = {
    "memory-pressure": (
        {}, (stalled(0.4),),
        "Memory pressure: PSI full 41% of the last 30 s",
    ),
    "memory-stalls": (
        {}, (stalled(0.15), counted(allocstall_normal=60)),
        "Memory pressure: PSI full 16% of the last half minute, 60 direct reclaims a second",
    ),
    "swap-storm": (
        {"pressure": {n: [("/a", 40.0, 20.0), ("/a/b", 50.0, 20.0)] for n in range(60)}},
        (stalled(0.1), counted(pswpin=900, pswpout=800)),
        "Swap storm: 900 pages a second in and 800 out in the last half minute, PSI full 11 %, "
        "most in memory cgroup /a/b",
    ),
    "refaults": (
        {}, (stalled(0.1), counted(workingset_refault_file=40_000, workingset_activate_file=9_000)),
        "Refaults: 40,000 evicted pages of files a second read again, at least 9,000 of them soon, "
        "PSI full 11 %",
    ),
    "memory-high": (
        {"events": {n: [("/web", "high", 900)] for n in range(20, 60)},
         "pressure": {n: [("/web", 70.0, 35.0)] for n in range(20, 60)}}, (),
        "Memory cgroup /web is throttled: above memory.high 5,400 times in 30 s, its PSI full 35 %",
    ),
    "oom-kill": (
        {"messages": {21: [("oom_kill", KILLED)]}}, (counted(oom_kill=0.2),),
        r"The OOM killer took 1 process: Out of memory: Killed process 812 (\x1b[31mjava)",
    ),
    "cgroup-out-of-memory": (
        {"events": {30: [("/a/b", "oom", 2), ("/a/b", "oom_kill", 1)]}}, (),
        "Memory cgroup /a/b was out of memory 2 times, 1 killed in it",
    ),
    "allocation-failure": (
        {"messages": {30: [("allocation_failure", FAILED)]}}, (),
        f"An allocation of the kernel failed: {FAILED}",
    ),
    "huge-blocks-gone": (
        {}, (no_huge_blocks, counted(thp_fault_fallback=3)),
        "Node 0 has 0 free blocks of THP size left of 46; ",
    ),
    "memory-unaccounted": ({}, (leaked("", 1),), "Memory in no counter grew steadily: +"),
    "reclaim-stalls": (
        {}, (counted(allocstall_normal=90, allocstall_movable=40),),
        "130 direct reclaims a second",
    ),
    "compaction-stalls": (
        {}, (counted(compact_stall=30, compact_fail=30),),
        "30 direct compactions a second, ",
    ),
}  # fmt: skip


def test_every_trigger_has_a_case() -> None:
    assert CASES.keys() == {trigger.name for trigger in TRIGGERS}
    assert len(list(FOLDER.glob("*.toml"))) == len(TRIGGERS)


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str) -> None:
    more, changes, title = CASES[name]
    fired = played([t for t in TRIGGERS if t.name == name], *changes, **more)
    assert fired and fired[0][1].startswith(title), fired[:1]
    assert fired[0][0] >= 20


@pytest.mark.parametrize(
    ("pressure", "said"),
    [
        ([("/a", 40.0, 20.0), ("/a-long-name-that-waits-less", 9.0, 1.0)], "/a"),
        ([("/a", 40.0, 20.0), ("/a/b", 50.0, 20.0)], "/a/b"),
        ([("/a", 20.0, 0.0)], ""),
    ],
    ids=["one above memory.high beside it", "one below it", "none of which all waits"],
)
def test_the_cgroup_that_is_named_is_the_one_that_waits_most(
    pressure: list[tuple[str, float, float]], said: str
) -> None:
    of = [t for t in TRIGGERS if t.name == "memory-pressure"]
    ((_, title), *_) = played(of, stalled(0.4), pressure=dict.fromkeys(range(60), pressure))
    assert title.partition(" s")[2] == (f", most in memory cgroup {said}" if said else "")


def test_a_healthy_host_is_left_alone() -> None:
    assert played(TRIGGERS, samples=200) == []


HEALTHY: dict[str, tuple[Any, ...]] = {
    "550 pages a second to zram and back, and no one waits": (
        counted(pswpin=550, pswpout=550, allocstall_normal=5), taken(0.05, nr_zspages=1),
    ),
    "a gigabyte of pages a second to zram, and no one waits": (
        counted(pswpin=250_000, pswpout=250_000),
    ),
    "zram fills": (taken(1, nr_zspages=0.9, SUnreclaim=0.001),),
    "zswap fills": (taken(1, nr_zspages=1, Zswap=1e-9),),
    "a TDX guest accepts its memory": (
        lambda number, made: made["meminfo"].__setitem__("Unaccepted", (2000 - 5 * number) << 20),
    ),
    "a balloon is inflated": (taken(1, Balloon=1),),
    "a balloon is inflated, and MemTotal goes down": (
        lambda number, made: made["meminfo"].update(
            {name: made["meminfo"][name] - (5 * number << 20) for name in ("MemTotal", "MemFree")},
            Balloon=5 * number << 20,
        ),
        lambda number, made: made.update(beside={"present": 8320 << 20}),
    ),
    "ZFS's ARC fills": (taken(1, arc=1),),
    "a GPU takes memory": (taken(1, GPUActive=1),),
    "per-CPU lists fill": (taken(0.5, pcp_count=1),),
    "hugetlb pages are reserved": (taken(1, Hugetlb=1),),
    "page cache fills": (taken(1, Cached=1),),
    "files are read once, fast": (counted(workingset_refault_file=9_000, pgmajfault=90),),
    "some tasks reclaim by themselves, and lose no time": (
        counted(allocstall_normal=900), lambda number, made: made["psi"]["full"].__setitem__(3, 9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_host_that_does_something_is_left_alone(changes: tuple[Any, ...]) -> None:
    assert played(TRIGGERS, *changes, samples=130) == []


def test_page_cache_at_memory_high_is_left_alone() -> None:
    """It counts all the time, and its tasks hardly wait."""
    events = {n: [("/web", "high", 900)] for n in range(60)}
    pressure = {n: [("/web", 9.0, 3.0)] for n in range(60)}
    assert played(TRIGGERS, events=events, pressure=pressure) == []


def test_without_psi_stalls_say_it() -> None:
    def no_psi(number: int, made: dict[str, Any]) -> None:
        del made["psi"]

    storm = [t for t in TRIGGERS if t.name == "swap-storm"]
    assert played(storm, no_psi, counted(pswpin=550, pswpout=550)) == []
    stalls = counted(pswpin=5500, pswpout=5500, allocstall_normal=90)
    (_, fired), *_ = played(storm, no_psi, stalls)
    assert fired.endswith("PSI full unknown")


def test_a_kill_in_a_cgroup_names_both() -> None:
    killed = KILLED.replace("Out of memory", "Memory cgroup out of memory")
    cause = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        "oom_memcg=/a/b,task_memcg=/a/b/c,task=java,pid=812,uid=0"
    )
    messages = {30: [("oom_cause", cause), ("oom_kill", killed)]}
    events = {30: [("/a/b", "oom", 1), ("/a/b", "oom_kill", 1)]}
    fired = played(TRIGGERS, counted(oom_kill=0.02), messages=messages, events=events)
    titles = [title for _, title in fired]
    of_cgroup = "Memory cgroup /a/b was out of memory, 1 killed in it: Memory cgroup out of memory"
    assert any(title.startswith(of_cgroup) for title in titles), titles
    by_killer = "The OOM killer took 1 process of memory cgroup /a/b: Memory cgroup out of"
    assert any(title.startswith(by_killer) for title in titles), titles


@pytest.mark.parametrize("name", ["memory-pressure", "reclaim-stalls", "compaction-stalls"])
def test_it_is_to_last(name: str) -> None:
    (trigger,) = (t for t in TRIGGERS if t.name == name)
    _, changes, _ = CASES[name]
    (first, _), *_ = played([trigger], *changes)
    assert (first - 21) * 5.0 == trigger.hold


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("memory-pressure", (stalled(0.9, 20, 23),)),
        ("memory-pressure", (stalled(0.1),)),
        ("oom-kill", ()),
        ("huge-blocks-gone", (no_huge_blocks,)),
        ("huge-blocks-gone", (counted(thp_fault_fallback=3),)),
        ("huge-blocks-gone", (no_huge_blocks, counted(thp_fault_fallback=3, thp_fault_alloc=1))),
        ("memory-unaccounted", (leaked("AnonPages", 1),)),
        ("memory-unaccounted", (leaked("", 0.1),)),
        ("reclaim-stalls", (counted(allocstall_normal=60),)),
        ("compaction-stalls", (counted(compact_stall=30, compact_fail=10, compact_success=20),)),
    ],
)
def test_it_stays_silent(name: str, changes: tuple[Any, ...]) -> None:
    assert played([t for t in TRIGGERS if t.name == name], *changes) == []


def test_watermarks_keep_the_last_huge_blocks() -> None:
    def some(number: int, made: dict[str, Any]) -> None:
        if number >= 20:
            made["thp_any"][1] = (0, "Normal", 3)  # one of which is the reserve's

    (trigger,) = (t for t in TRIGGERS if t.name == "huge-blocks-gone")
    (first, fired), *_ = played([trigger], some, counted(thp_fault_fallback=3))
    assert first >= 20 and fired.startswith("Node 0 has 2 free blocks of THP size left of 46; ")


def huge_blocks() -> list[Trigger]:
    return [t for t in TRIGGERS if t.name == "huge-blocks-gone"]


def another_node(number: int, made: dict[str, Any]) -> None:
    made["thp_any"].append((1, "Normal", 500 + number))


def test_a_node_has_no_huge_blocks_left_whatever_another_has() -> None:
    """Who may not reclaim gets none of another node's."""
    changes = no_huge_blocks, another_node, counted(thp_fault_fallback=3)
    (first, fired), *_ = played(huge_blocks(), *changes)
    assert first >= 20 and fired.startswith("Node 0 has 0 free blocks of THP size left of 46")


def test_a_node_that_never_has_huge_blocks_is_no_incident_where_another_has_some() -> None:
    def never(number: int, made: dict[str, Any]) -> None:
        made["thp_any"][1] = (0, "Normal", 1)  # the reserve's

    wanted = counted(thp_fault_fallback=3)
    assert played(huge_blocks(), never, another_node, wanted) == []
    (first, fired), *_ = played(huge_blocks(), never, wanted)
    assert first >= 20 and fired.startswith("Node 0 has 0 free blocks of THP size left of 0;")


def test_huge_pages_that_a_cgroup_refused_are_not_asked_of_free_blocks() -> None:
    refused = counted(thp_fault_fallback=3, thp_fault_fallback_charge=3)
    assert played(huge_blocks(), no_huge_blocks, refused) == []
    some = counted(thp_fault_fallback=4, thp_fault_fallback_charge=2)
    (_, fired), *_ = played(huge_blocks(), no_huge_blocks, some)
    assert re.search(r"; (\d+) of \1 huge pages asked for in a minute failed$", fired)


def test_what_there_was_within_the_day_is_what_is_left_is_held_against() -> None:
    """Down by a block in ten minutes, then some hours with three: 15 minutes show nothing of it."""
    history = History(900.0)
    for number in range(0, 4320, 12):
        made = sample(number)
        made["thp_any"] = [(0, "Normal", max(46 - number // 60, 3)), (1, "Normal", 500)]
        counted(thp_fault_fallback=3)(number, made)
        history.add(made)
    (trigger,) = huge_blocks()
    row = history.ask(trigger.sql)
    assert row is not None and (row["node"], row["blocks"], row["most"]) == (0, 2, 45)
    (kept,) = history._db.execute("select count(distinct time) from free_huge_blocks").fetchone()
    assert kept < 36 + 20


def test_a_step_is_no_leak() -> None:
    def step(number: int, made: dict[str, Any]) -> None:
        if number > 30:
            made["meminfo"]["MemFree"] -= 500 << 20

    assert played([t for t in TRIGGERS if t.name == "memory-unaccounted"], step) == []


def test_a_leak_that_has_just_begun_is_seen() -> None:
    """Ten minutes of nothing before it: a line over all of them fits badly."""

    def begins(number: int, made: dict[str, Any]) -> None:
        made["meminfo"]["MemFree"] -= max(number - 120, 0) * 5 << 20

    fired = played([t for t in TRIGGERS if t.name == "memory-unaccounted"], begins, samples=180)
    assert fired and 140 <= fired[0][0] <= 170


@pytest.mark.parametrize("begin", [61, 64, 67, 70])
def test_a_leak_is_captured_within_half_a_minute_of_what_the_query_asks_for(begin: int) -> None:
    def begins(number: int, made: dict[str, Any]) -> None:
        made["meminfo"]["MemFree"] -= max(number - begin, 0) * 8 << 20

    (trigger,) = (t for t in TRIGGERS if t.name == "memory-unaccounted")
    (true, _), *_ = played([dataclasses.replace(trigger, every=0)], begins, samples=120)
    (first, _), *_ = played([trigger], begins, samples=120)
    assert 0 <= (first - true) * PERIOD <= 30


def test_a_leak_of_a_day_is_seen_by_a_reading_every_ten_minutes() -> None:
    """Ten hours, 0.01 MiB a second: 15 minutes show nothing of it."""
    (trigger,) = (t for t in TRIGGERS if t.name == "memory-unaccounted")
    history = History(900.0)
    for number in range(0, 7200, 12):
        made = sample(number)
        leaked("SUnreclaim", 0.01)(number, made)
        history.add(made)
    row = history.ask(trigger.sql)
    assert row is not None and row["name"] == "SUnreclaim" and row["minutes"] > 590
    (kept,) = history._db.execute("select count(distinct time) from gauge_series").fetchone()
    assert kept < 60 + 20


# What users write.


def test_a_trigger_of_the_same_name_takes_the_place_of_one_that_is_here(tmp_path: Path) -> None:
    (tmp_path / "oom-kill.toml").write_text('title="mine"\nseverity="notice"\nsql="select 1"\n')
    (tmp_path / "reclaim-stalls.toml").write_text(
        'title="x"\nseverity="notice"\nsql="select 1"\nenabled=false\n'
    )
    (tmp_path / "memory-pressure.toml").write_text("enabled = false\n")
    found = {trigger.name: trigger for trigger in load([tmp_path])}
    assert found["oom-kill"].title == "mine"
    assert found.keys() == CASES.keys() - {"reclaim-stalls", "memory-pressure"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("title = ", "Invalid value"),
        ("title = " + "[" * 9999, "maximum recursion"),
        ('title="x"\nseverity="bad"\nsql="select 1"', "severity is one of"),
        ('title="x"\nseverity="notice"\nsql="select 1"\nhold="5"', "hold = '5'"),
        ('title="x"\nseverity="notice"\nsql="select 1"\nwhen=5', "when = 5"),
        ('title="x"\nseverity="notice"', "has no sql"),
        ("enabled = true", "has no title, severity, sql"),
        ('enabled = "no"', "enabled = 'no'"),
        ('title="x"\nseverity="notice"\nsql="select * from no_such"', "no such table"),
        ('title="x"\nseverity="notice"\nsql="delete from samples"', "not authorized"),
        ('title="x"\nseverity="notice"\nsql="attach \'/tmp/x\' as x"', "not authorized"),
        ('title="x"\nseverity="notice"\nsql="select 1; select 2"', "one statement"),
        (
            'title="x"\nseverity="notice"\nsql="with recursive n(i) as (select 1 union all '
            'select i + 1 from n) select max(i) from n"',
            "takes longer than a trigger may",
        ),
        ('title="{x"\nseverity="notice"\nsql="select 1"', "expected '}'"),
        ('title="' + "x" * 400 + '"\nseverity="notice"\nsql="select 1"', "more than 300"),
        ('title="x"\nseverity="notice"\nsql="select 1' + " " * 70_000 + '"', "query string is too"),
        ('title="x"\nseverity="notice"\nsql="select 1"\nrecord="all"', "record is one of"),
    ],
)
def test_what_is_no_trigger_is_refused_with_its_name(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match=r"mine\.toml: is not a trigger: ") as error:
        load([tmp_path])
    assert why in str(error.value)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_trigger_is_a_plain_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "mine.toml")
    with pytest.raises(UsageError, match=r"mine\.toml: is not a trigger: is not a plain file"):
        load([tmp_path])


def test_triggers_of_another_user_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('title="x"\nseverity="notice"\nsql="select 1"\n')
    os.chown(tmp_path / "mine.toml", 65534, 65534)
    with pytest.raises(UsageError, match=r"mine\.toml: is not a trigger: belongs to user 65534"):
        load([tmp_path])
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to user 65534; root does not use it"):
        load([tmp_path])


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select hex(zeroblob(400000000))", "too big"),
        ("select group_concat(a.time || b.time) from gauge_series a, gauge_series b", "too big"),
        (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000000) "
            "select i, randomblob(8000) as x from n order by x",
            "takes more memory",
        ),
        (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000000) "
            "select sum(instr(replace(hex(zeroblob(3900)), '0', 'a'), hex(zeroblob(1900)) || i)) "
            "from n",
            "takes longer than a trigger may",
        ),
    ],
    ids=["a text", "many texts", "a sort", "long steps"],
)
def test_a_query_has_bounds(sql: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MOST_SECONDS", 0.5)
    history = History(600.0)
    for number in range(50):
        history.add(sample(number))
    before, begun = resident_mib(), time.thread_time()
    with pytest.raises(ValueError, match=why):
        history.ask(sql)
    assert resident_mib() - before < 100
    assert time.thread_time() - begun < 10
    assert history.ask("select count(*) as n from samples") == {"n": 50}
    history.add(sample(50))


def test_a_query_does_not_keep_guard_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are blocked while it runs, and seen all the same."""
    monkeypatch.setattr(histories, "MOST_SECONDS", 60.0)
    monkeypatch.setattr(histories, "MOST_STEPS", 1 << 62)
    history, begun = History(60.0), time.thread_time()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, histories.ENDS)
    try:
        here = threading.get_ident()  # another's thread may not block them
        threading.Timer(0.2, signal.pthread_kill, (here, signal.SIGTERM)).start()
        sql = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
        assert history.ask(sql) is None  # and the trigger is not said to be wrong
        assert signal.sigtimedwait({signal.SIGTERM}, 0) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert time.thread_time() - begun < 30


@pytest.mark.parametrize(
    ("title", "row"),
    [
        ("{a:>999999999}", {"a": 1}),
        ("{a:.999999999f}", {"a": 1.0}),
        ("{a:{b}}", {"a": 1, "b": ">999999999"}),
        ("{a:c}", {"a": 1 << 40}),
        ("{a:d}", {"a": 0.5}),
        ("{a:{a:{a:{a}}}}", {"a": 1}),
    ],
)
def test_a_title_that_cannot_be_filled_in_is_a_line(title: str, row: dict[str, Any]) -> None:
    begun = time.thread_time()
    with pytest.raises(ValueError, match=r"^title: "):
        filled_in(title, row)
    assert time.thread_time() - begun < 5


def test_a_title_has_no_more_than_the_row() -> None:
    assert filled_in("{a}  {b:.1f}", {"a": "x\ny\x1b", "b": 2}) == r"x y\x1b 2.0"
    for title in ("{a.__class__}", "{a[0]}", "{c}", "{}"):
        with pytest.raises(ValueError):
            filled_in(title, {"a": "x"})


# The last minutes.


def test_what_is_old_goes() -> None:
    history = History(60.0)
    for number in range(100):
        history.add(sample(number))
    assert len(list(history.lines())) == 13
    for table in ("counter_rates", "psi_series", "zone_series", "thp_free_blocks_series"):
        (first,) = history._db.execute(f"select min(time) from {table}").fetchone()
        assert first >= 1000 + 99 * 5 - 60


def test_a_sample_that_has_no_room_takes_that_of_older_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(histories, "MOST_BYTES", 1 << 20)
    history = History(1e6)
    for number in range(1000):
        history.add(sample(number))
    assert 5 < len(list(history.lines())) < 900
    assert history.now == 1000 + 999 * 5
    (pages,) = history._db.execute("pragma page_count").fetchone()
    assert pages * 4096 <= 1 << 20


def test_who_waits_is_found_downwards_and_only_while_the_machine_waits(tmp_path: Path) -> None:
    def waits(name: str, full: float, **counts: int) -> None:
        cgroup(tmp_path, name, **counts)
        (tmp_path / name / "memory.pressure").write_text(
            f"some avg10=90.00 avg60=0.00 avg300=0.00 total=1\n"
            f"full avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n"
        )

    waits("a", 30.0, high=0)
    waits("a/quiet", 1.0, high=0)
    waits("a/busy", 29.0, high=0)
    waits("b", 5.0, high=0)
    events = CgroupEvents(str(tmp_path))
    assert events.new() == [] and events.pressed({"some": [1.0], "full": [0.0]}) == []
    found = events.pressed({"some": [60.0], "full": [25.0]})
    assert found == [("/a", 90.0, 30.0), ("/a/busy", 90.0, 29.0)]
    waits("b", 5.0, high=70)
    assert events.new() == [] and events.above_high == [("/b", "high", 70)]
    assert events.pressed({}) == [("/b", 90.0, 5.0)]


def test_what_one_host_says_is_taken(tmp_path: Path) -> None:
    """The files of the host itself, as they are."""
    history = History(60.0)
    sampler = Sampler("/", 9)
    for number in (1, 2, 3):
        history.add(sampler.take() | {"number": number, "cpu_total": 0.0})
    row = history.ask("select count(*) as n from gauge_series where name = 'MemTotal'")
    assert row == {"n": 3}


# The kernel's words, and cgroups.


def kind_of(text: str) -> str | None:
    return next((kind for kind, words in KINDS if words.search(text)), None)


def test_words_of_the_kernel_are_known() -> None:
    assert kind_of(FAILED) == "allocation_failure"
    assert kind_of(KILLED) == "oom_kill"
    assert kind_of(KILLED.replace("Out of memory", "Memory cgroup out of memory")) == "oom_kill"
    assert kind_of("Out of memory (oom_kill_allocating_task): Killed process 1 (a)") == "oom_kill"
    assert kind_of("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)") == "oom_cause"
    assert kind_of("usb 1-1: new device") is None


def cgroup(root: Path, name: str, **counts: int) -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    said = {"low": 0, "high": 5, "max": 9, "oom": 0, "oom_kill": 0} | counts
    text = "".join(f"{key} {value}\n" for key, value in said.items())
    (folder / "memory.events").write_text(text)


def test_the_deepest_cgroup_that_counted_is_named(tmp_path: Path) -> None:
    cgroup(tmp_path, "a", oom=4, oom_kill=4)
    cgroup(tmp_path, "a/b", oom=4, oom_kill=4)
    cgroup(tmp_path, "c", oom=7)
    (tmp_path / "no_controller").mkdir()
    events = CgroupEvents(str(tmp_path))
    assert events.new() == []
    for name in ("a", "a/b"):
        cgroup(tmp_path, name, oom=6, oom_kill=5)
    assert events.new() == [("/a/b", "oom", 2), ("/a/b", "oom_kill", 1)]
    assert events.new() == []
    # One that has come since, below one that was there; and one that had its own.
    for name in ("a", "a/new"):
        cgroup(tmp_path, name, oom=7 if name == "a" else 1, oom_kill=5 if name == "a" else 0)
    cgroup(tmp_path, "new", oom=1)
    assert sorted(events.new()) == [("/a/new", "oom", 1), ("/new", "oom", 1)]
    shutil.rmtree(tmp_path / "new")
    assert events.new() == []
    cgroup(tmp_path, "new", oom=1)
    assert events.new() == [("/new", "oom", 1)]
