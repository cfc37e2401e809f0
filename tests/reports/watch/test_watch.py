# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope watch``: what a sample holds, rates over their periods, and that what was sampled is there
whatever ends it: a count, Ctrl-C, a kill, a limit, a full disk.
"""

import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import children
import frictionless
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_owner_inputs import series, show_handles, show_stacks_handles
from watched_host import DATA, PRESSURE, ROOT, RUN, STACKS, debugfs, in_log, start, wait_for, watch

from mmscope.drgn.free.zones import read_zoneinfo
from mmscope.drgn.text.meminfo import NO_COUNTER
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.watch import watch_tables
from mmscope.reports.watch.sample_log import NAME, SampleLog
from mmscope.reports.watch.samples import Sampler, parse_meminfo, parse_pressure, thp_order
from mmscope.reports.watch.watch_tables import open_log


def bump(root: Path, **deltas: int) -> None:
    """Let counters of /proc/vmstat move."""
    path = root / "proc/vmstat"
    lines = dict(line.split() for line in path.read_text().splitlines())
    lines |= {name: str(int(lines[name]) + delta) for name, delta in deltas.items()}
    path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))


def sampled(
    root: Path, folder: Path, steps: Iterable[Callable[[], object]], limit: float = 1e9,
    change: Callable[[dict[str, Any]], object] = lambda row: None,
) -> watch_tables.Log:  # fmt: skip
    """A log of a sample before, and one after each step, ten seconds apart."""
    folder.mkdir()
    header = {"interval": 10.0, "target": {"kind": "live", "page_size": 4096}, "page_owner": "off"}
    log, sampler = SampleLog(folder, header, limit), Sampler(str(root), 9)
    clocks = ("mono", "boot", "wall", "vmstat_at", "psi_at", "ksm_at")
    for number, step in enumerate((lambda: None, *steps)):
        step()
        row = sampler.take()
        row |= {name: 1000.0 + 10 * number for name in clocks if name in row}
        row |= {"number": number + 1, "cpu_total": 0.002 * number}
        change(row)
        log.add(row, None)
    log.close()
    return open_log(folder / NAME)


# A sample


def test_a_sample_holds_what_the_files_say(host: Path) -> None:
    row = Sampler(str(host), 9).take()
    assert row["unread"] == {}
    assert row["vmstat"]["pgfault"] == 324398 and row["vmstat"]["numa_hit"] == 241130
    assert row["meminfo"]["PageTables"] == 3052 << 10
    assert row["psi"] == {"some": [1.5, 0.3, 0.06, 2000000], "full": [0.75, 0.15, 0.03, 1000000]}
    assert row["ksm"]["general_profit"] == -4096 and row["ksm"]["pages_sharing"] == 40
    dma32 = next(zone for zone in row["zones"] if zone[1] == "DMA32")
    assert list(dma32[8:]) == [512, 28, 0]  # reserved_highatomic, free_highatomic, page cache


def test_what_has_no_line_in_meminfo_is_not_memory_in_no_counter(host: Path) -> None:
    """zram, per-CPU lists and ZFS's ARC, by the files that have them."""

    def left() -> int:
        (level,) = (
            row for row in watch_tables.gauges([(0.0, Sampler(str(host), 9).take())])
            if row.name == NO_COUNTER
        )  # fmt: skip
        assert (level.source, level.unit) == ("computed", "bytes")
        return level.value

    page = os.sysconf("SC_PAGE_SIZE")
    at_first = left()
    bump(host, nr_zspages=7)
    assert left() == at_first - 7 * page
    kstats = host / "proc/spl/kstat/zfs"
    kstats.mkdir(parents=True)
    (kstats / "abdstats").write_text("name type data\nscatter_data_size    4    8192\n")
    assert left() == at_first - 7 * page - 8192
    zones = host / "proc/zoneinfo"
    zones.write_text(re.sub(r"( +count: +)\d+", r"\g<1>0", zones.read_text()))
    assert left() > at_first - 7 * page - 8192


@pytest.mark.parametrize("release", ["7.2/proc", "6.1"])
def test_zones_without_their_cpus_are_the_same(host: Path, release: str) -> None:
    path = DATA.parent / release / "zoneinfo"
    shutil.copy(path, host / "proc/zoneinfo")
    assert [tuple(row) for row in Sampler(str(host), 9).take()["zones"]] == [
        (z.node, z.zone, z.managed_pages, z.free_pages, z.wmark_min, z.wmark_low, z.wmark_high,
         z.wmark_boost, z.highatomic_reserved_pages, z.highatomic_free_pages, z.file_pages)
        for z in read_zoneinfo(path.read_text()) if z.present_pages
    ]  # fmt: skip


def test_refaults_are_told_by_node(host: Path, tmp_path: Path) -> None:
    def second_node(pages: int) -> None:
        path = host / "proc/zoneinfo"
        before, name, after = path.read_text().rpartition("workingset_refault_file ")
        assert "Node 1" in before
        path.write_text(f"{before}{name}{pages}\n{after.partition(chr(10))[2]}")

    log = sampled(host, tmp_path / "log", [lambda: second_node(40), lambda: second_node(100)])
    rows = [row for row in watch_tables.rates(log) if row.source.startswith("node ")]
    assert [(row.source, row.name, row.delta) for row in rows] == [
        ("node 1", "workingset_refault_file", 40),
        ("node 1", "workingset_refault_file", 60),
    ]


def test_a_level_is_no_counter(host: Path) -> None:
    counters = Sampler(str(host), 9).take()["vmstat"]
    assert not {name for name in counters if name.startswith("nr_")} - {
        *("nr_vmscan_write", "nr_vmscan_immediate_reclaim", "nr_dirtied", "nr_written"),
        *("nr_throttled_written", "nr_foll_pin_acquired", "nr_foll_pin_released"),
    }
    assert {"pgscan_direct", "workingset_refault_anon", "oom_kill", "compact_fail"} <= set(counters)
    assert "workingset_nodes" not in counters


def test_what_a_kernel_newer_than_this_tree_counts_is_a_counter(host: Path) -> None:
    path = host / "proc/vmstat"
    text = path.read_text()
    path.write_text(text.replace("\nnr_dirty_threshold ", "\npgrotate_anon 5\nnr_dirty_threshold "))
    assert Sampler(str(host), 9).take()["vmstat"]["pgrotate_anon"] == 5  # 7.3


def test_larger_blocks_count_as_the_thps_in_them(host: Path) -> None:
    found = {tuple(row[:3]): row[3:] for row in Sampler(str(host), 9).take()["thp_free"]}
    text = (host / "proc/pagetypeinfo").read_text()
    for (node, zone, migratetype), (blocks, capped) in found.items():
        line = re.search(rf"(?m)^Node +{node}, zone +{zone}, type +{migratetype} (.*)$", text)
        assert line is not None and not capped
        *_, nine, ten = line.group(1).split()
        assert blocks == int(nine) + 2 * int(ten)
    assert sum(blocks for blocks, _ in found.values()) > 0


def test_a_list_that_the_kernel_stopped_counting_is_marked(host: Path) -> None:
    path = host / "proc/pagetypeinfo"
    line = re.search(r"(?m)^(Node +1, zone +Normal, type +Movable) .*$", path.read_text())
    assert line is not None
    counts = "0 0 0 0 0 0 0 0 0 >100000 3"
    path.write_text(path.read_text().replace(line.group(), f"{line.group(1)} {counts}"))
    rows = Sampler(str(host), 9).take()["thp_free"]
    assert [1, "Normal", "Movable", 100_006, True] in rows


def test_without_root_free_blocks_have_no_migratetype(host: Path) -> None:
    (host / "proc/pagetypeinfo").unlink()
    row = Sampler(str(host), 9).take()
    typed = {name for _, _, name, _, _ in row["thp_free"]}
    assert typed == {None} and "pagetypeinfo" in row["unread"]


def test_a_kernel_with_page_owner_walks_every_page_and_that_is_said(
    host: Path, tmp_path: Path
) -> None:
    for name in ("zoneinfo", "pagetypeinfo"):
        shutil.copy(DATA.parent / "6.1" / name, host / "proc" / name)
    log = sampled(host, tmp_path / "s", [])
    assert log.first["walks_pages"] and log.first["thp_free"]
    message = watch_tables.section(log, 0, watch_tables.overhead(log), 0).message
    assert "page_owner is on: to read /proc/pagetypeinfo, the kernel drains" in str(message)


def test_what_a_kernel_does_not_have_is_said(host: Path) -> None:
    shutil.rmtree(host / "proc/pressure")
    shutil.rmtree(host / "sys/kernel/mm/ksm")
    row = Sampler(str(host), 9).take()
    assert row["unread"].keys() == {"pressure", "ksm"} and not row.keys() & {"psi", "ksm"}
    assert "CONFIG_PSI; boot with psi=1" in row["unread"]["pressure"]


def test_a_costly_file_is_read_less_often(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(str(host), 9)
    first = sampler.take()
    assert first["pagetypeinfo_cpu"] > 0
    sampler._pagetypeinfo_due = time.monotonic() + 60
    again = sampler.take()
    assert again["put_off"] and not again.keys() & {"thp_free", "reserve", "pagetypeinfo_cpu"}
    assert again["unread"] == {}


@given(st.text(max_size=200))
def test_texts_of_anybody_are_refused_in_words(text: str) -> None:
    for parse in (parse_pressure, parse_meminfo):
        with pytest.raises(ValueError, match="/proc/"):
            parse(text)


def test_pressure_of_an_older_kernel_has_one_line() -> None:
    assert parse_pressure(PRESSURE.splitlines(True)[0]).keys() == {"some"}


def test_this_machine() -> None:
    row = Sampler("/", thp_order("/", os.sysconf("SC_PAGE_SIZE"))).take()
    assert {"vmstat", "meminfo", "zones", "thp_free"} <= row.keys(), row["unread"]


# Rates


def test_a_rate_is_what_moved_over_its_period(host: Path, tmp_path: Path) -> None:
    log = sampled(host, tmp_path / "s", [lambda: bump(host, pgfault=50), lambda: None,
                                         lambda: bump(host, pgfault=1, pswpin=7)])  # fmt: skip
    rows = [(row.time, row.name, row.delta, row.per_second) for row in watch_tables.rates(log)]
    assert rows == [(10, "pgfault", 50, 5), (30, "pswpin", 7, 0.7), (30, "pgfault", 1, 0.1)]
    assert {row.period_seconds for row in watch_tables.rates(log)} == {10}


def test_the_period_is_that_of_the_readings(host: Path, tmp_path: Path) -> None:
    """A source that failed in between has the longer period; a set clock changes none."""

    def change(row: dict[str, Any]) -> None:
        if row["number"] == 2:
            del row["vmstat"]
            row["unread"]["vmstat"] = "gone"
        if row["number"] == 3:
            row["wall"] -= 3600

    steps = [lambda: bump(host, pgfault=100), lambda: None]
    log = sampled(host, tmp_path / "s", steps, change=change)
    (row,) = watch_tables.rates(log)
    assert (row.delta, row.per_second, row.period_seconds) == (100, 5, 20)
    samples = list(watch_tables.sample_rows(log))
    assert [s.clock_step_seconds for s in samples] == [None, None, -3600]
    assert [s.unread for s in samples] == [None, "vmstat", None]
    section = watch_tables.section(log, 0, watch_tables.overhead(log), 0)
    assert section.status == "partial" and section.message is not None
    assert "vmstat not read in 1 of 3 samples: gone" in section.message
    assert "clock was set 1 times; periods do not use it" in section.message


def test_sleep_is_no_clock_that_was_set(host: Path, tmp_path: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        if row["number"] == 2:
            row["wall"] += 500
            row["boot"] += 500

    log = sampled(host, tmp_path / "s", [lambda: None], change=change)
    _, row = watch_tables.sample_rows(log)
    assert (row.period_seconds, row.asleep_seconds, row.clock_step_seconds) == (10, 500, None)


def test_a_counter_that_went_back_has_no_rate_and_is_named(host: Path, tmp_path: Path) -> None:
    log = sampled(host, tmp_path / "s", [lambda: bump(host, pgfault=-50, pswpin=1)])
    assert [row.name for row in watch_tables.rates(log)] == ["pswpin"]
    section = watch_tables.section(log, 0, watch_tables.overhead(log), 0)
    assert section.status == "partial"
    assert "1 counters went back, and have no rate there: pgfault" in str(section.message)


def test_pressure_is_a_share_of_its_period(host: Path, tmp_path: Path) -> None:
    later = PRESSURE.replace("2000000", "6000000")
    log = sampled(host, tmp_path / "s", [lambda: (host / "proc/pressure/memory").write_text(later)])
    rows = {(row.time, row.kind): row for row in watch_tables.stalls(log)}
    assert rows[0, "some"].share is None and rows[0, "some"].avg10 == 1.5
    assert (rows[10, "some"].stall_seconds, rows[10, "some"].share) == (4, 0.4)
    assert rows[10, "full"].share == 0


def test_events_are_counters_of_failures_that_moved(host: Path, tmp_path: Path) -> None:
    log = sampled(host, tmp_path / "s", [lambda: bump(host, oom_kill=1, pgfault=3),
                                         lambda: bump(host, allocstall_movable=2)])  # fmt: skip
    assert [(row.time, row.name, row.count) for row in watch_tables.events(log)] == [
        (10, "oom_kill", 1),
        (20, "allocstall_movable", 2),
    ]


def test_levels_that_are_zero_throughout_are_left_out(host: Path, tmp_path: Path) -> None:
    names = {row.name for row in watch_tables.levels(sampled(host, tmp_path / "s", []))}
    assert {"PageTables", "pages_sharing", "general_profit"} <= names
    assert not {"SwapFree", "pages_unshared", "full_scans", "run"} & names


def test_the_reserve_of_an_older_kernel_is_counted_in_pageblocks(
    host: Path, tmp_path: Path
) -> None:
    told = {(z.zone, z.highatomic_reserved_pages) for z in
            watch_tables.zone_levels(sampled(host, tmp_path / "new", []))}  # fmt: skip
    path = host / "proc/zoneinfo"
    path.write_text(re.sub(r"  (reserved|free)_highatomic: .*\n", "", path.read_text()))
    rows = list(watch_tables.zone_levels(sampled(host, tmp_path / "old", [])))
    assert {(z.zone, z.highatomic_reserved_pages) for z in rows} == told
    assert {z.highatomic_free_pages for z in rows} == {None}


def test_overhead_is_that_of_the_whole_process(host: Path, tmp_path: Path) -> None:
    cost = watch_tables.overhead(sampled(host, tmp_path / "s", [lambda: None] * 4))
    assert (cost.samples_taken, cost.cpu_seconds, cost.cpu_seconds_per_sample) == (5, 0.008, 0.002)
    assert (cost.seconds, cost.cpu_share) == (40, 0.0002)
    assert watch_tables.overhead_words(cost) == (
        "sampling took 2.0 ms of CPU a sample, 0.02 % of one CPU"
    )


# The log


def test_a_log_that_was_cut_or_damaged_says_so(host: Path, tmp_path: Path) -> None:
    log = sampled(host, tmp_path / "s", [lambda: bump(host, pgfault=1)] * 3)
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join([*lines[:2], b"\0\0{\n", lines[3], lines[4][:100]]))
    log = open_log(log.path)
    assert (log.samples, log.damaged, log.cut) == (2, 1, True)
    (row,) = watch_tables.rates(log)
    assert (row.delta, row.period_seconds) == (2, 20)
    section = watch_tables.section(log, 0, watch_tables.overhead(log), 0)
    assert section.status == "partial"
    assert "1 line of the log is damaged" in str(section.message)
    assert "the last sample was cut short" in str(section.message)


@pytest.mark.parametrize("data", [b"", b"{}\n", b"x\n", b'{"watch":99}\n', b'{"watch":1'])
def test_what_is_no_log(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(TextError):
        open_log(tmp_path / NAME)


@pytest.mark.parametrize(
    "words", [{"mono": "x"}, {"unread": []}, {"cpu_total": None}, {"late": "0"}]
)
def test_a_line_that_is_no_sample_is_left_out(
    host: Path, tmp_path: Path, words: dict[str, Any]
) -> None:
    log = sampled(host, tmp_path / "s", [lambda: None])
    lines = log.path.read_text().splitlines(keepends=True)
    lines.insert(2, json.dumps(json.loads(lines[2]) | words) + "\n")
    log.path.write_text("".join(lines))
    read = open_log(log.path)
    assert (read.samples, read.damaged) == (2, 1) and len(list(read)) == 2


def test_a_log_of_nonsense_is_refused_in_a_line(tmp_path: Path, host: Path) -> None:
    log = sampled(host, tmp_path / "b.samples", [lambda: None])
    log.path.write_text(log.path.read_text().replace('"zones":[[0,', '"zones":[[7,8,9,0,'))
    result = watch(tmp_path, "--recover")
    assert result.returncode == 3 and f"{NAME}: damaged: TypeError" in result.stderr
    assert "tries again" in result.stderr and not (tmp_path / "b").exists()


def test_a_log_is_not_held_in_memory(host: Path, tmp_path: Path) -> None:
    log = sampled(host, tmp_path / "s", [lambda: None] * 200)
    tracemalloc.start()
    try:
        watch_tables.holder_series(log, watch_tables.holders(log))
        watch_tables.sleepers(log)
        assert tracemalloc.get_traced_memory()[1] < log.path.stat().st_size / 4
    finally:
        tracemalloc.stop()


def test_thinning_keeps_the_log_below_its_limit(host: Path, tmp_path: Path) -> None:
    one = len(json.dumps(Sampler(str(host), 9).take()))
    limit = 20 * one
    folder = tmp_path / "s"
    folder.mkdir()
    log, sampler = SampleLog(folder, {"interval": 1.0, "target": {}}, limit), Sampler(str(host), 9)
    largest, interval = 0, 1.0
    for number in range(100):
        log.add({**sampler.take(), "number": number + 1, "cpu_total": 0.0}, None)
        largest = max(largest, log.path.stat().st_size)
        if log.full:
            interval *= 2
            assert log.thin(interval)
    log.close()
    read = open_log(log.path)
    assert largest <= limit and os.listdir(folder) == [NAME]
    assert read.first["number"] == 1 and 4 < read.samples < 20
    assert read.thinned == interval and read.damaged == 0


def test_thinning_on_a_disk_that_is_nearly_full_loses_no_sample(small_disk: Path) -> None:
    log = SampleLog(small_disk, {"interval": 1.0, "target": {}}, 1 << 20)
    # Half of it does not fit beside it; where a file has a limit and the disk has none, it does.
    whole = 11_000 if small_disk.is_mount() else 4_000
    samples = [{"wall": number, "said": "x" * (whole // 12)} for number in range(10)]
    for sample in samples:
        log.add(sample, None)
    if small_disk.is_mount():
        with pytest.raises(OSError, match=f"No space left.*{NAME}"):
            log.thin(2.0)
    else:
        assert log.thin(2.0)
        samples = samples[::2]
    log.say({"ended": 10})
    log.close()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line for line in lines if "wall" in line] == samples
    assert lines[-1] == {"ended": 10} and os.listdir(small_disk) == [NAME]


# The command


def watch_section(tmp_path: Path) -> Any:
    return next(s for s in Bundle(tmp_path / "b").sections if s.section == "watch")


@contextlib.contextmanager
def page_faults() -> Iterator[None]:
    """A machine on which something happens meanwhile."""
    end = threading.Event()

    def touch() -> None:
        while not end.wait(0.01):
            with mmap.mmap(-1, 1 << 20) as pages:
                pages[:] = bytes(1 << 20)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_watch_on_this_machine(tmp_path: Path) -> None:
    with page_faults():
        result = watch(tmp_path, "--count", 5)
    assert result.returncode == 0, result.stderr
    bundle = Bundle(tmp_path / "b")
    assert frictionless.validate(str(tmp_path / "b/datapackage.json")).valid
    samples = list(bundle.rows("watch_samples"))
    assert [row["time"] for row in samples] == sorted(row["time"] for row in samples)
    assert len(samples) == 5 and samples[0]["period_seconds"] is None
    assert {row["time"] for row in bundle.rows("counter_rates")} <= {
        row["time"] for row in samples[1:]
    }
    moved = {row["name"] for row in bundle.rows("counter_rates")}
    assert "pgfault" in moved and any(name.startswith("pgalloc_") for name in moved)
    (cost,) = bundle.rows("watch_overhead")
    assert cost["samples_taken"] == 5 and cost["cpu_seconds_per_sample"] > 0
    assert "ms of CPU a sample" in result.stdout and "% of one CPU" in result.stdout
    assert "ms of CPU a sample" in watch_section(tmp_path).message
    assert bundle.target["kind"] == "live" and bundle.target["total_pages"]
    assert bundle.target["uptime_seconds"] and bundle.target["captured_at"]
    absent = next(s for s in bundle.sections if s.section == "page_owner")
    assert absent.status == "absent" and "is debugfs mounted" in absent.message
    assert sorted(os.listdir(tmp_path)) == ["b"]


def test_watch_without_root() -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        result = watch(folder, "--count", 3, prefix=nobody if os.geteuid() == 0 else [])
        assert result.returncode == 1, result.stderr
        message = watch_section(folder).message
        rows = list(Bundle(folder / "b").rows("thp_free_blocks_series"))
        assert frictionless.validate(str(folder / "b/datapackage.json")).valid
    assert "/proc/pagetypeinfo: only root may read it; free blocks are of unknown" in message
    assert rows and {row["migratetype"] for row in rows} == {None}


def test_watch_shows_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = watch(tmp_path, "--proc-root", tmp_path / "empty", "--count", 1)
    assert result.returncode == 3 and "No such file" in result.stderr
    assert os.listdir(tmp_path) == ["empty"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_told_to_stop_makes_the_bundle(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    wait_for(lambda: in_log(tmp_path) >= 3)
    assert not (tmp_path / "b").exists()
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert len(list(Bundle(tmp_path / "b").rows("watch_samples"))) >= 3
    assert os.listdir(tmp_path) == ["b"]


def test_watch_does_not_wait_for_its_interval_to_stop(tmp_path: Path) -> None:
    process = start(tmp_path, "--interval", "1000000")
    wait_for(lambda: in_log(tmp_path) == 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def test_watch_killed_leaves_what_was_sampled(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: in_log(tmp_path) >= 3)
    process.kill()
    _, errors = process.communicate(timeout=600)
    had = in_log(tmp_path)
    assert not (tmp_path / "b").exists()
    (line,) = [line for line in errors.splitlines() if "if this is killed: " in line]
    recovering = line.partition("if this is killed: mmscope ")[2]
    again = watch(tmp_path)
    assert again.returncode == 2 and f"finish it with 'mmscope {recovering}'" in again.stderr
    result = children.run(
        ["sh", "-c", f"{' '.join(RUN)} {recovering}"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode in (0, 1), result.stderr  # the last sample may have been cut short
    assert len(list(Bundle(tmp_path / "b").rows("watch_samples"))) == had >= 3
    assert os.listdir(tmp_path) == ["b"]


def test_a_watch_that_is_running_is_not_recovered(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: in_log(tmp_path) >= 1)
    result = watch(tmp_path, "--recover")
    assert result.returncode == 3 and "a watch is still writing there" in result.stderr
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert (tmp_path / "b").is_dir()


def test_nothing_to_recover(tmp_path: Path) -> None:
    result = watch(tmp_path, "--recover")
    assert result.returncode == 2 and "no samples of an earlier watch" in result.stderr


def test_watch_stays_in_its_limit(tmp_path: Path, host: Path) -> None:
    one = len(json.dumps(Sampler(str(host), 9).take())) / 2**20
    result = watch(tmp_path, "--proc-root", host, "--limit", 12 * one, "--count", 30,
                   "--interval", 0.001)  # fmt: skip
    assert result.returncode == 1 and "samples thinned to stay in --limit" in result.stderr
    assert 3 <= len(list(Bundle(tmp_path / "b").rows("watch_samples"))) <= 12
    (cost,) = Bundle(tmp_path / "b").rows("watch_overhead")
    # A moment that a busy machine misses has no sample.
    assert 12 < cost["samples_taken"] <= 30 and cost["log_bytes"] <= 12 * one * 2**20


def test_a_limit_for_no_series_at_all_ends_it(tmp_path: Path, host: Path) -> None:
    one = len(json.dumps(Sampler(str(host), 9).take())) / 2**20
    result = watch(tmp_path, "--proc-root", host, "--limit", 4 * one)
    assert result.returncode == 1 and "which is all that --limit holds" in result.stderr
    assert len(list(Bundle(tmp_path / "b").rows("watch_samples"))) < 5


def test_a_full_disk_leaves_what_was_sampled(small_disk: Path) -> None:
    result = watch(small_disk, "--count", 50)
    assert result.returncode == 3
    assert re.search(rf"b\.samples/{NAME}: (No space left|File too large)", result.stderr)
    log = open_log(small_disk / "b.samples" / NAME)
    assert log.samples >= 1 and log.cut


def test_watch_starts_light() -> None:
    script = (
        "import mmscope.reports.watch.watch, sys; "
        "heavy = {'drgn', 'numpy', 'rich', 'duckdb', 'jinja2'}; "
        "sys.exit(', '.join(heavy & sys.modules.keys()) or 0)"
    )
    children.run([sys.executable, "-c", script], cwd=ROOT, check=True)


# With page_owner


@pytest.mark.parametrize("handles", [True, False])
def test_owners_are_sampled_too(tmp_path: Path, handles: bool) -> None:
    root = debugfs(tmp_path, handles)
    result = watch(tmp_path, "--debugfs", root, "--count", 4)
    assert result.returncode == 0, result.stderr
    bundle = Bundle(tmp_path / "b")
    assert len(list(bundle.rows("page_owner_snapshots"))) == 4
    assert len(list(bundle.rows("page_owner_stacks"))) == 60
    assert all(row["stack"] for row in bundle.rows("page_owner_stacks"))
    assert [s.status for s in bundle.sections] == ["ok", "ok"]
    assert sorted(os.listdir(tmp_path)) == ["b", "debug"]


def test_owners_that_appear_are_resolved(tmp_path: Path) -> None:
    root = debugfs(tmp_path)
    folder = root / "page_owner_stacks"
    (folder / "show_stacks_handles").write_text(show_stacks_handles(STACKS[:5]))
    (folder / "show_handles").write_text(show_handles(next(series(STACKS, 1))[:5]))
    process = start(tmp_path, "--debugfs", root)
    wait_for(lambda: in_log(tmp_path) >= 2)
    # At once, as the kernel's files are: no sample of half a file.
    for name, all_of_it in (
        ("show_stacks_handles", show_stacks_handles(STACKS)),
        ("show_handles", show_handles(next(series(STACKS, 1)))),
    ):
        (folder / "new").write_text(all_of_it)
        (folder / "new").rename(folder / name)
    seen = in_log(tmp_path)
    wait_for(lambda: in_log(tmp_path) >= seen + 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    rows = list(Bundle(tmp_path / "b").rows("page_owner_stacks"))
    assert len(rows) == 60 and all(row["stack"] for row in rows)


def test_owners_of_a_watch_that_was_killed(tmp_path: Path) -> None:
    process = start(tmp_path, "--debugfs", debugfs(tmp_path))
    wait_for(lambda: in_log(tmp_path) >= 3)
    process.kill()
    process.communicate(timeout=600)
    copies = len(list((tmp_path / "b.samples").glob("show_handles.*")))
    assert watch(tmp_path, "--recover").returncode in (0, 1)
    bundle = Bundle(tmp_path / "b")
    assert len(list(bundle.rows("page_owner_snapshots"))) == copies >= 3
    assert all(row["stack"] for row in bundle.rows("page_owner_stacks"))


def test_owners_are_thinned_with_the_samples(tmp_path: Path, host: Path) -> None:
    root = debugfs(tmp_path)
    size = (root / "page_owner_stacks" / "show_handles").stat().st_size
    one = len(json.dumps(Sampler(str(host), 9).take()))
    limit = (10 * size + 12 * one) / 2**20
    result = watch(tmp_path, "--proc-root", host, "--debugfs", root, "--limit", limit,
                   "--count", 30, "--interval", 0.001)  # fmt: skip
    assert result.returncode == 1, result.stderr
    bundle = Bundle(tmp_path / "b")
    samples = len(list(bundle.rows("watch_samples")))
    assert 3 <= samples == len(list(bundle.rows("page_owner_snapshots"))) <= 20


def test_counts_that_leave_no_room_for_a_series(tmp_path: Path) -> None:
    root = debugfs(tmp_path)
    size = (root / "page_owner_stacks" / "show_handles").stat().st_size
    result = watch(tmp_path, "--debugfs", root, "--limit", 7 * size / 2**20, "--count", 1)
    assert result.returncode in (0, 1), result.stderr
    absent = next(s for s in Bundle(tmp_path / "b").sections if s.section == "page_owner")
    assert absent.status == "absent" and "more than an eighth of --limit" in str(absent.message)


def test_a_kernel_without_page_owner_is_watched_without(tmp_path: Path) -> None:
    (tmp_path / "none" / "mmc0").mkdir(parents=True)
    assert watch(tmp_path, "--count", 1).returncode == 0
    absent = next(s for s in Bundle(tmp_path / "b").sections if s.section == "page_owner")
    assert absent.status == "absent" and "boot with page_owner=on" in str(absent.message)
