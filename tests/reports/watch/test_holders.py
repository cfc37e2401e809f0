# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds memory while a host is watched: of a made tree, what a reading says, and its table."""

from pathlib import Path
from typing import Any

import pytest
from watched_host import make_host, samples_of

from mmscope.reports.rows.watch_rows import WatchHolder
from mmscope.reports.watch import holders, watch_tables
from mmscope.reports.watch.holders import Holders, Lines
from mmscope.reports.watch.samples import Sampler

MIB = 1 << 20
TOTAL = 1000 * MIB


def process(root: Path, pid: int, name: str, anon: int, **more: int) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(exist_ok=True, parents=True)
    lines = {"VmLck": 0, "RssAnon": anon, "RssShmem": 0, "VmPTE": 0, "VmSwap": 0} | more
    text = "".join(f"{line}:\t{mebibytes << 10:8} kB\n" for line, mebibytes in lines.items())
    (folder / "status").write_text(f"Name:\t{name}\nPid:\t{pid}\n{text}")


def cgroup(root: Path, path: str, mebibytes: int, full: int = 0, **events: int) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(exist_ok=True, parents=True)
    (root / "sys/fs/cgroup/cgroup.controllers").write_text("memory\n")
    (folder / "memory.current").write_text(f"{mebibytes * MIB}\n")
    lines = {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0} | events
    text = "".join(f"{name} {value}\n" for name, value in lines.items())
    (folder / "memory.events.local").write_text(text)
    (folder / "memory.pressure").write_text(
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={2 * full}\n"
        f"full avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"
    )


def slabs(root: Path, **pages: int) -> None:
    lines = [f"{name} 9 9 64 64 4 : tunables 0 0 0 : slabdata {n // 4} {n // 4} 0\n"
             for name, n in pages.items()]  # fmt: skip
    (root / "proc/slabinfo").write_text("slabinfo - version: 2.1\n# name\n" + "".join(lines))


def read(source: Holders) -> dict[tuple[Any, ...], list[Any]]:
    """A reading, by kind, name and pid."""
    return {tuple(row[:3]): row[3:] for row in source.read(TOTAL)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    slabs(tmp_path, dentry=400)
    (tmp_path / "proc/vmallocinfo").write_text(
        "0xffffc9000000-0xffffc9010000   65536 leak+0x20/0x90 [drv] pages=15 vmalloc\n"
        "0xffffc9020000-0xffffc9030000   65536 leak+0x20/0x90 [drv] pages=15 vmalloc N0=15\n"
        "0xffffc9040000-0xffffc9050000   65536 ioremap_x+0x20/0x90 phys=0xfee00000 ioremap\n"
    )
    process(tmp_path, 7, "java", 300, RssShmem=10, VmPTE=2, VmSwap=5, VmLck=1)
    cgroup(tmp_path, "kube/web", 60, full=1_000_000, high=5)
    return tmp_path


def test_a_process_has_what_it_maps_what_is_swapped_out_and_its_page_tables(root: Path) -> None:
    (root / "proc/2").mkdir()
    (root / "proc/2/status").write_text("Name:\tkthreadd\nPid:\t2\n")
    rows = read(Holders(str(root)))
    size, first, more = rows["process", "java", 7]
    assert size == first == 317 * MIB
    assert more == {"shmem_bytes": 10 * MIB, "swap_bytes": 5 * MIB, "pgtables_bytes": 2 * MIB,
                    "locked_bytes": MIB}  # fmt: skip
    assert not [row for row in rows if row[1] == "kthreadd"]


def test_the_kernels_own_has_its_caches_and_callers(root: Path) -> None:
    (root / "sys/kernel/slab/dentry").mkdir(parents=True)
    (root / "sys/kernel/slab/dentry/reclaim_account").write_text("1\n")
    source = Holders(str(root))
    page = source._page
    rows = read(source)
    assert rows["slab cache", "dentry", None] == [400 * page, 400 * page, {"reclaimable": True}]
    assert rows["vmalloc caller", "leak [drv]", None][0] == 30 * page
    assert not [row for row in rows if row[1].startswith("ioremap")]


def test_a_cgroup_has_only_what_came_since_the_first_reading(root: Path) -> None:
    source = Holders(str(root))
    source.read(TOTAL)
    cgroup(root, "kube/web", 62, full=3_500_000, high=9, oom_kill=1)
    cgroup(root, "kube/new", 1, oom_kill=2)
    rows = read(source)
    size, first, more = rows["cgroup", "/kube/web", None]
    assert (size, first) == (62 * MIB, 60 * MIB)
    assert (more["high_events"], more["oom_kills"], more["full_seconds"]) == (4, 1, 2.5)
    assert rows["cgroup", "/kube/new", None][2]["oom_kills"] == 2


def test_what_was_named_is_told_of_when_it_is_gone(root: Path) -> None:
    source = Holders(str(root))
    source.read(TOTAL)
    (root / "proc/7/status").unlink()
    assert read(source)["process", "java", 7][:2] == [None, 317 * MIB]
    assert ("process", "java", 7) not in read(source)


def test_small_ones_are_left_out_and_large_ones_are_not(root: Path) -> None:
    for pid in range(100, 140):
        process(root, pid, "small", 5)
    for pid in range(200, 220):
        process(root, pid, "large", 20)
    names = [name for kind, name, _ in read(Holders(str(root))) if kind == "process"]
    assert names.count("large") == 20 and names.count("small") == 0


def test_what_cannot_be_read_costs_its_kind_alone(root: Path, monkeypatch: Any) -> None:
    (root / "proc/slabinfo").unlink()
    monkeypatch.setattr(holders, "MAX_PROCESSES", 0)
    source = Holders(str(root))
    kinds = {kind for kind, *_ in source.read(TOTAL)}
    assert kinds == {"cgroup", "vmalloc caller"}
    assert source.unread == {"process": "1 processes are more than a watch reads",
                             "slab cache": "No such file or directory"}  # fmt: skip


def test_shared_memory_is_named_by_file_segment_and_who_has_it(
    root: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(holders, "is_live", lambda root: True)
    monkeypatch.setattr(holders, "why_left_out", lambda root, path: "")
    found = [
        ("/dev/shm/job", 200 * MIB, False, None, None),
        ("memfd:x", 150 * MIB, True, 7, "java"),
    ]
    monkeypatch.setattr(holders, "shared_files", lambda root, least: iter(found))
    (root / "proc/sysvipc").mkdir()
    (root / "proc/sysvipc/shm").write_text(
        "       key      shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss "
        "swap\n"
        f"-5 3 600 {64 * MIB} 160 160 0 0 0 0 0 1 2 3 {40 * MIB} {20 * MIB}\n"
        f"17 4 600 {64 * MIB} 160 160 2 0 0 0 0 1 2 3 {30 * MIB} 0\n"
        f"18 5 600 {64 * MIB} 160 160 2 0 0 0 0 1 2 3 0 0\n"
    )
    (root / "proc/meminfo").write_text(f"Shmem: {99 << 10} kB\n")
    assert not [row for row in read(Holders(str(root))) if row[0] == "shared file"]
    (root / "proc/meminfo").write_text(f"Shmem: {400 << 10} kB\n")
    rows = read(Holders(str(root)))
    of_files = {row[1:]: (said[0] >> 20, said[2]) for row, said in rows.items()
                if row[0] == "shared file"}  # fmt: skip
    # java has 10 MiB mapped: more than a tenth of what is in the segment.
    assert of_files == {
        ("/dev/shm/job", None): (200, {"held": False}),
        ("memfd:x, open by java", 7): (150, {"held": True}),
        ("SYSVfffffffb (shmid 3)", None): (60, {}),
        ("SYSV00000011 (shmid 4)", None): (30, {"held": True}),
    }


def mapped(root: Path, pid: int, name: str, mappings: int) -> None:
    """A process with so many mappings, as its maps and slabinfo have them."""
    process(root, pid, name, 9, VmSize=40)
    line = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n"
    end = "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]\n"
    (root / "proc" / str(pid) / "maps").write_text(line * mappings + end)
    slabs(root, dentry=400, vm_area_struct=16)
    text = (root / "proc/slabinfo").read_text()
    (root / "proc/slabinfo").write_text(
        text.replace("vm_area_struct 9 9 ", f"vm_area_struct {mappings} {mappings + 50} ")
    )


def test_mappings_are_counted_where_there_are_enough_for_the_limit(root: Path) -> None:
    (root / "proc/sys/vm").mkdir(parents=True)
    (root / "proc/sys/vm/max_map_count").write_text("5000\n")
    mapped(root, 70, "es", 4200)
    mapped(root, 71, "small", 10)
    mapped(root, 70, "es", 4200)
    rows = read(Holders(str(root)))
    assert (
        rows["process", "es", 70][2] | {"mappings": 4200, "max_map_count": 5000}
        == (rows["process", "es", 70][2])
    )
    # Too small to have as many: a mapping is a page or more.
    assert rows["process", "java", 7][2]["max_map_count"] == 5000
    assert "mappings" not in rows["process", "java", 7][2]
    # Fewer in all than four fifths of it: nobody is asked, and nobody is near.
    mapped(root, 70, "es", 3000)
    assert "mappings" not in read(Holders(str(root)))["process", "es", 70][2]
    assert read(Holders(str(root)))["process", "es", 70][2]["max_map_count"] == 5000


def test_who_gave_no_answer_is_not_asked_for_maps_again(root: Path, monkeypatch: Any) -> None:
    (root / "proc/sys/vm").mkdir(parents=True)
    (root / "proc/sys/vm/max_map_count").write_text("5000\n")
    mapped(root, 70, "es", 4200)
    asked = []

    class Silent:
        def __init__(self, patience: float) -> None: ...
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None: ...
        def read(self, path: str) -> bytes:
            asked.append(path)
            raise TimeoutError

    monkeypatch.setattr(holders, "ReaderApart", Silent)
    source = Holders(str(root))
    assert "max_map_count" not in read(source)["process", "es", 70][2]
    source.read(TOTAL)
    assert asked == [str(root / "proc/70/maps")]


def test_removed_cgroups_are_those_of_the_root_and_right_below_it(root: Path) -> None:
    cgroup(root, "kube", 70)
    for path, dying in (("", 1500), ("kube", 1400), ("kube/web", 3)):
        (root / "sys/fs/cgroup" / path / "cgroup.stat").write_text(
            f"nr_descendants 2\nnr_dying_descendants {dying}\n"
        )
    source = Holders(str(root))
    for _ in range(2):  # a level, of which nothing is taken off
        rows = read(source)
        assert rows["cgroup", "/", None] == [0, 0, {"dying_below": 1500}]
        assert rows["cgroup", "/kube", None][2]["dying_below"] == 1400
        assert "dying_below" not in rows["cgroup", "/kube/web", None][2]


def test_a_process_is_bound_where_it_may_use_one_of_several_nodes(root: Path) -> None:
    status = root / "proc/7/status"
    status.write_text(status.read_text() + "Mems_allowed_list:\t1\n")
    (root / "sys/devices/system/node").mkdir(parents=True)
    for nodes, only in (("0-1\n", 1), ("1\n", None)):
        (root / "sys/devices/system/node/has_memory").write_text(nodes)
        assert read(Holders(str(root)))["process", "java", 7][2].get("only_node") == only


def test_a_reading_is_due_as_it_costs_and_sooner_while_memory_moves(root: Path) -> None:
    source = Holders(str(root))
    assert source.due(500 * MIB, TOTAL)
    source.read(TOTAL)
    source._budget._last, source._budget._spent = holders.time.monotonic() - 50, 1.0
    assert not source.due(499 * MIB, TOTAL)
    assert source.due(400 * MIB, TOTAL)
    source._budget._spent = 0.0
    assert source.due(500 * MIB, TOTAL)


def log_of(tmp_path: Path, readings: list[list[list[Any]]]) -> watch_tables.Log:
    """A log with these readings, five seconds apart."""
    said = [{"holders": rows, "holders_at": 1000.0 + 5 * number, "holders_unread": {}}
            for number, rows in enumerate(readings)]  # fmt: skip
    return samples_of(tmp_path, said)


def table(tmp_path: Path, readings: list[list[list[Any]]]) -> list[WatchHolder]:
    return watch_tables.holders(log_of(tmp_path, readings))


def test_the_table_has_a_row_a_holder(tmp_path: Path) -> None:
    large = ["process", "java", 7, 90 * MIB, 10 * MIB, {"swap_bytes": 3}]
    pod = ["cgroup", "/pod", None, 5 * MIB, 5 * MIB, {"oom_kills": 2, "full_seconds": 1.23456}]
    rows = table(tmp_path, [[large], [pod], [["process", "java", 7, None, 10 * MIB, {}], pod]])
    java, cgroup = rows
    assert (java.first_bytes, java.most_bytes, java.last_bytes) == (10 * MIB, 90 * MIB, 0)
    assert java.gone and java.last_time == 0.0 and java.swap_bytes == 3
    assert (cgroup.oom_kills, cgroup.full_seconds, cgroup.last_time) == (2, 1.235, 10.0)
    assert not cgroup.gone and cgroup.swap_bytes is None


def test_the_table_is_bounded_but_for_those_that_met_a_limit(tmp_path: Path) -> None:
    many = [["cgroup", f"/c{n}", None, MIB + n, MIB, {}] for n in range(200)]
    killed = ["cgroup", "/killed", None, 1, 1, {"oom_kills": 1}]
    rows = table(tmp_path, [[*many, killed], []])
    assert len(rows) == watch_tables.MOST_HOLDERS + 1 and rows[-1].name == "/killed"


def test_the_series_has_each_reading_of_those_that_changed_most(tmp_path: Path) -> None:
    def job(number: int, size: int | None, first: int) -> list[Any]:
        return ["process", "job", number, size and size * MIB, first * MIB, {}]

    still = ["process", "db", 1, 900 * MIB, 900 * MIB, {}]
    first = [still, *(job(10 + n, 5, 5) for n in range(watch_tables.MOST_IN_SERIES))]
    # 99 was too small to be named at first, and 10 is gone in the end.
    second = [still, *(job(10 + n, 50 + n, 5) for n in range(1, 5)), job(99, 80, 2)]
    last = [still, job(10, None, 5), job(99, 300, 2)]
    log = log_of(tmp_path, [first, second, last])
    rows = watch_tables.holder_series(log, watch_tables.holders(log))
    lines = {pid: [(row.time, row.bytes // MIB) for row in rows if row.pid == pid]
             for pid in (1, 10, 11, 99)}  # fmt: skip
    assert lines == {1: [], 10: [], 11: [(0, 5), (5, 51)], 99: [(0, 2), (5, 80), (10, 300)]}


def test_lines_of_source_are_those_of_allocinfo_that_hold_enough(root: Path) -> None:
    rows = read(Holders(str(root)))
    assert not [row for row in rows if row[0] == "line of source"]
    source = Holders(str(root))
    for size in (300, 340):
        (root / "proc/allocinfo").write_text(
            "allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n"
            f"{size * MIB:12} 9 drivers/x.c:7 [x] func:take \n{4096:12} 1 fs/y.c:8 func:few \n"
        )
        rows = read(source)
    named = {row[1]: said[:2] for row, said in rows.items() if row[0] == "line of source"}
    assert named == {"drivers/x.c:7 (take [x])": [340 * MIB, 300 * MIB]}
    assert "line of source" not in source.unread
    (root / "proc/allocinfo").write_text("allocinfo - version: 2.0\n1 cut")
    read(source)
    assert "its last line has no end" in source.unread["line of source"]


def test_lines_are_read_for_who_keeps_the_last_minutes_alone(root: Path) -> None:
    (root / "proc/allocinfo").unlink(missing_ok=True)
    assert not Lines(str(root), 1.0).due

    def hold(**sizes: int) -> None:
        rows = [f"{size * MIB:12} 9 fs/{name}.c:7 func:f \n" for name, size in sizes.items()]
        (root / "proc/allocinfo").write_text(
            "allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n" + "".join(rows)
        )

    hold(a=100, b=50)
    source = Lines(str(root), 1.0)
    assert source.due
    said = []
    for sizes in ({"a": 100, "b": 50}, {"a": 130, "b": 50}, {"a": 160, "c": 30}, {"a": 190}):
        hold(**sizes)
        said.append({"holders": source.read(TOTAL), "holders_at": 1000.0 + 5 * len(said)})
    # The first reading is kept no more.
    rows = {row.name: row for row in watch_tables.holders(samples_of(root, [*said[1:], {}]))}
    grown = {name: (row.first_bytes // MIB, row.last_bytes // MIB, row.gone)
             for name, row in rows.items()}  # fmt: skip
    assert grown == {"fs/a.c:7 (f)": (130, 190, False), "fs/b.c:7 (f)": (50, 0, True),
                     "fs/c.c:7 (f)": (0, 0, True)}  # fmt: skip


def test_a_sampler_for_guard_reads_lines_and_no_other_holders(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = root / "host"
    make_host(host)
    (host / "proc/allocinfo").write_text("allocinfo - version: 2.0\n   999999999 9 a.c:1 func:f \n")
    sampler = Sampler(str(host), 9, lines=0.001)
    assert {kind for kind, *_ in sampler.take()["holders"]} == {"line of source"}
    assert "holders" not in sampler.take()  # it is too soon
    (host / "proc/allocinfo").write_text("other\n")
    unread = Sampler(str(host), 9, lines=0.001).take()["holders_unread"]
    assert "first line is not there" in unread["line of source"]
