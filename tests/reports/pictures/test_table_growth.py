# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables a fault over the run, and what the command used: by the addresses of its faults, by
VmPTE, by perf's record of its begin and end.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from perf_text import fold, header

from mmscope.perf.command import Growth, read_stat, seconds_of_children
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render
from mmscope.reports.pictures.profile_pictures import growth_charts
from mmscope.reports.profiles.recorded_rows import thinned
from mmscope.reports.rows.profile_rows import new_tables

PGDS, PUDS = 254, 12  # of 127 TiB; and how many entries of each PUD table


def breadth_first(count: int) -> Iterator[int]:
    """Addresses in the order of the case's program, which takes all 512 entries of PUD tables."""
    at = ((pgd << 39) + (pud << 30) + (pmd << 21) for pmd in range(512) for pud in range(PUDS)
          for pgd in range(PGDS))  # fmt: skip
    for _, address in zip(range(count), at, strict=False):
        yield address


def faults(addresses: Iterator[int], pid: int = 7, event: str = "minor-faults") -> bytes:
    return b"".join(
        header(b"faults", pid, f"1.{number:09}", "1", event, b"%x x" % address)
        for number, address in enumerate(addresses)
    )


def recorded(tmp_path: Path, text: bytes, **told: object) -> Bundle:
    line = dict.fromkeys(("scope", "ended", "release", "seconds", "captured_at")) | {
        "architecture": "x86_64", "partial": [], "remarks": [], "counters": {}, "pids": [],
        "command": "./faults", "recorded": {"samples": {}, "lost": {}, "throttled": 0},
    } | told  # fmt: skip
    path = tmp_path / "perf.txt"
    path.write_bytes(f"# mmscope {json.dumps(line)}\n".encode() + text)
    assert main(["record", "page-fault", "--input", str(path), "-o", str(tmp_path / "b")]) == 0
    return Bundle(tmp_path / "b")


def growth(bundle: Bundle, made_by: str = "addresses") -> list[dict[str, Any]]:
    rows = bundle.rows("profile_table_growth")
    return [row for row in rows if row["made_by"] == made_by]


def test_the_cases_program_takes_12_then_8_then_4_kib_a_fault(tmp_path: Path) -> None:
    rows = growth(recorded(tmp_path, faults(breadth_first(8_000))))
    each = {row["faults"]: row["bytes_per_fault"] for row in rows}
    assert [*each] == [*(16 << n for n in range(9)), 8_000]
    assert {each[n] for n in (16, 32, 64, 128)} == {12 << 10}
    # 254 faults of three new tables: the last of them is among those up to the 256th.
    assert each[256] == pytest.approx((126 * 12 + 2 * 8) * 1024 / 128)
    assert {each[n] for n in (512, 1024, 2048)} == {8 << 10}
    assert each[8_000] == 4 << 10
    last = rows[-1]
    tables = last["pte_tables"], last["pmd_tables"], last["pud_tables"]
    assert tables == (8_000, PGDS * PUDS, PGDS)
    assert last["table_bytes"] == sum(tables) * 4096


def test_how_many_faults_needed_how_many_tables_adds_up() -> None:
    found = new_tables(8_030, 8_001, PGDS * PUDS, PGDS)
    assert found == [(3, 254), (2, 2_794), (1, 4_953), (0, 29)]
    assert sum(number for _, number in found) == 8_030
    assert sum(tables * number for tables, number in found) == 8_001 + PGDS * PUDS + PGDS
    assert new_tables(5, 5, 5, 5) == [(3, 5)]


def test_dense_memory_takes_a_table_for_512_faults(tmp_path: Path) -> None:
    rows = growth(recorded(tmp_path, faults(iter(range(0, 4096 << 12, 4096)))))
    assert rows[-1]["pte_tables"] == 8
    assert rows[-1]["bytes_per_fault"] == 4096 / 512


def test_tables_have_as_many_entries_as_the_pages_of_the_machine_have_room_for(
    tmp_path: Path,
) -> None:
    """16 KiB: 2,048 entries, so that a table of them maps 32 MiB and one of those 64 GiB."""
    apart = faults(iter(range(0, 256 << 25, 1 << 25)))
    last = growth(recorded(tmp_path, apart, page_bytes=16 << 10))[-1]
    assert (last["pte_tables"], last["pmd_tables"], last["pud_tables"]) == (256, 1, 1)
    assert last["table_bytes"] == 258 * (16 << 10)


def test_minor_and_major_faults_of_a_process_are_one_course() -> None:
    both = faults(breadth_first(20)) + faults(breadth_first(40), event="major-faults")
    folded = fold(both, "page-fault")
    (found,) = folded.growths.values()
    folded.finish()
    assert (found.faults, len(found.regions[0])) == (60, 40)


def test_a_process_with_few_faults_has_no_course(tmp_path: Path) -> None:
    bundle = recorded(tmp_path, faults(breadth_first(99)))
    assert "profile_table_growth" not in bundle.tables


LOOKS = [[10**6 * n, 36 + 100 * n, 4096 * (100 + 2 * 100 * n)] for n in range(30)]


def test_vmpte_stands_beside_it_from_its_second_look_on(tmp_path: Path) -> None:
    bundle = recorded(tmp_path, faults(breadth_first(3_000)), growths=[[7, "faults", LOOKS]])
    first, *others = growth(bundle, "VmPTE")
    assert first["bytes_per_fault"] is None and first["pte_tables"] is None
    assert others and {row["bytes_per_fault"] for row in others} == {8192}
    assert others[-1]["table_bytes"] == LOOKS[-1][2]
    (chart,) = growth_charts([*bundle.rows("profile_table_growth")], 4096)
    assert chart["lines"] == ["addresses", "VmPTE"] and chart["needed"] == [(3, 254), (2, 2_746)]
    html = render(bundle, evaluate(bundle))
    assert "254 needed 3 new tables" in html and "KiB of tables a fault, by its address" in html


def test_of_a_recording_without_addresses_vmpte_is_drawn_alone(tmp_path: Path) -> None:
    bundle = recorded(tmp_path, faults(breadth_first(9)), growths=[[7, "<b>", LOOKS]])
    (chart,) = growth_charts([*bundle.rows("profile_table_growth")], 4096)
    assert chart["lines"] == ["VmPTE"] and chart["needed"] == []
    assert "<b>" not in render(bundle, evaluate(bundle)).partition("recording")[2].partition(
        "How to read"
    )[0].replace("<b class", "")


@pytest.mark.parametrize("made_by", ["addresses", "VmPTE", "something else"])
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_few_looks_are_no_course_and_no_failure(looks: int, made_by: str) -> None:
    rows = [
        {"pid": 7, "comm": "x", "made_by": made_by, "faults": n, "seconds": 0.0, "pte_tables": None,
         "pmd_tables": None, "pud_tables": None, "table_bytes": 0, "bytes_per_fault": None}
        for n in range(looks)
    ]  # fmt: skip
    assert [chart["lines"] for chart in growth_charts(rows, 4096)] == [[]] * min(looks, 1)


def test_looks_are_never_too_many_and_the_last_is_among_them() -> None:
    kept = Growth("x")
    for at in range(100_000):
        kept.add(at, at, 4096 * at)
    assert len(kept.points) <= 256
    steps = {b[0] - a[0] for a, b in zip(kept.points, kept.points[1:], strict=False)}
    assert len(steps) == 1
    few = thinned(kept.points)
    assert few[-1] == kept.points[-1] and len(few) <= 24


# What the command used


def test_times_of_children_are_read_behind_any_name() -> None:
    numbers = "1 1 1 0 -1 4194560 11 22 33 44 55 66 77 88 20 0 1 0 9"
    for name in ("cat", "a) R 1 2 (b", "x\ny", ""):
        assert read_stat(f"7 ({name}) Z {numbers}\n") == (name, 44, 77, 88)
    assert read_stat("7 (cat) Z 1 1") is None and read_stat("") is None


def test_times_of_children_can_be_read_before_they_are_waited_for() -> None:
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            while os.times().user < 0.05:
                pass
            os._exit(0)
        os.waitpid(grandchild, 0)
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    found = seconds_of_children(child)
    assert found is not None and found[0] >= 0.05
    os.waitpid(child, 0)
    assert seconds_of_children(child) is None


RECORDS = (
    b"perf-exec 0/0 0.000000: PERF_RECORD_COMM: perf-exec:%d/%d\n"
    b"x %d/%d 1.000001000: PERF_RECORD_COMM exec: x:%d/%d\n"
)
OTHER = b"y 9/9 0.500000000: PERF_RECORD_COMM exec: y:9/9\n"


@pytest.mark.parametrize(
    ("records", "gone", "real"),
    [
        (RECORDS % ((7,) * 6), 3.500002, 2.500001),
        # Another program begins before it, and after.
        (OTHER + RECORDS % ((7,) * 6) + OTHER.replace(b"0.5", b"2.5"), 3.5, 2.499999),
        # It becomes another program itself.
        (RECORDS % ((7,) * 6) + OTHER.replace(b"9", b"7").replace(b"0.5", b"2.5"), 3.5, 2.499999),
        (RECORDS % ((7,) * 6), None, None),
        (OTHER, 3.5, None),
    ],
)
def test_real_time_is_from_the_commands_exec_until_its_memory_is_gone(
    records: bytes, gone: float | None, real: float | None, tmp_path: Path
) -> None:
    text = records + faults(breadth_first(9))
    bundle = recorded(tmp_path, text, used=[0.25, 1.5], gone=gone)
    (row,) = bundle.rows("profile_commands")
    assert row["real_seconds"] == (None if real is None else pytest.approx(real, abs=1e-9))
    assert (row["command"], row["user_seconds"], row["system_seconds"]) == ("./faults", 0.25, 1.5)
    html = render(bundle, evaluate(bundle))
    assert "user <strong>0.25 s</strong>, system <strong>1.50 s</strong>" in html


def test_what_is_not_a_command_has_no_times(tmp_path: Path) -> None:
    bundle = recorded(tmp_path, RECORDS % ((7,) * 6) + faults(breadth_first(9)))
    assert "profile_commands" not in bundle.tables


COMMAND = """
import json, os, sys, time
begin = time.monotonic()
x = bytearray(64 << 20)
while os.times().user < 0.2:
    pass
mine = os.times()
with open(sys.argv[1], "w") as file:
    json.dump([time.monotonic() - begin, mine.user, mine.system], file)
"""


def test_a_command_has_used_what_it_says_of_itself(tmp_path: Path) -> None:
    said = tmp_path / "said"
    words = [sys.executable, "-c", COMMAND, str(said)]
    code = main(["record", "page-fault", "-o", str(tmp_path / "b"), "--", *words])
    assert code in (0, 1)
    elapsed, user, system = json.loads(said.read_text())
    bundle = Bundle(tmp_path / "b")
    (row,), (made,) = bundle.rows("profile_commands"), bundle.rows("profile_recordings")
    # It says so before its end; clock ticks are 10 ms.
    assert row["user_seconds"] >= user - 0.011
    assert row["system_seconds"] >= system - 0.011
    assert elapsed <= row["real_seconds"] <= made["seconds"]


def test_vmpte_of_a_command_is_looked_at(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; x = bytearray(64 << 20); time.sleep(5)"]
    assert main(["record", "page-fault", "-o", str(tmp_path / "b"), "--", *words]) in (0, 1)
    # The last look may come when it exits.
    most = max(growth(Bundle(tmp_path / "b"), "VmPTE"), key=lambda row: row["table_bytes"])
    # 64 MiB need 32 tables of entries, whatever the size of their pages.
    assert most["table_bytes"] >= 32 * 4096 and most["comm"].startswith("python")
