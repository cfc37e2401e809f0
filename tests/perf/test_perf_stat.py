# SPDX-License-Identifier: LGPL-2.1-or-later
"""``perf stat`` beside a recording: its text, and what it counts of a command from its begin on."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
from perf_text import TEXT

from mmscope.perf import perf_events, perf_record
from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.perf_stat import arguments, read_counts
from mmscope.perf.stack_parts import load_known_frames
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

# perf 6.1: in a guest without a PMU; and where there is one, with counters that took turns.
NO_PMU = """\
# started on Fri Nov 27 17:25:28 2026

<not supported>;;dTLB-load-misses;0;100.00;;
2028;;minor-faults;5659379;100.00;358.343;K/sec
5.66;msec;task-clock;5659379;100.00;0.055;CPUs utilized
<not counted>;;cycles;0;0.00;;
"""
PMU = """\
# started on Fri Nov 27 17:25:28 2026

1204511;;dTLB-load-misses;812345678;100.00;0.53;of all dTLB cache accesses
98213;;dTLB-store-misses:u;609259258;75.00;;
31557200;;page-walk-cycles;203086419;25.00;;
2710998812;;cpu_core/cycles/;812345678;100.00;3.337;GHz
"""


def test_counts_are_read_with_the_share_of_the_time_that_they_are_of() -> None:
    assert read_counts(PMU) == [
        ("dTLB-load-misses", 1_204_511, 1.0, ""),
        ("dTLB-store-misses:u", 98_213, 0.75, ""),
        ("page-walk-cycles", 31_557_200, 0.25, ""),
        ("cpu_core/cycles/", 2_710_998_812, 1.0, ""),
    ]


def test_what_was_not_counted_has_no_number_and_says_why() -> None:
    assert read_counts(NO_PMU) == [
        ("dTLB-load-misses", None, None, "not supported"),
        ("minor-faults", 2028, 1.0, ""),
        ("cycles", None, None, "not counted"),
    ]


@pytest.mark.parametrize(
    "text", ["", "Error:\nNo supported events found.\n", "1;;x", ";;;;;;", "-7;;x;1;100.00;;"]
)
def test_what_is_no_count_is_none(text: str) -> None:
    assert read_counts(text) == []


def test_a_command_is_counted_alone_and_without_one_every_cpu(tmp_path: Path) -> None:
    words = arguments("perf", ["cycles", "dTLB-load-misses"], tmp_path / "f", [7, 9])
    assert words[:6] == ["perf", "stat", "-x", ";", "-o", str(tmp_path / "f")]
    assert words[6:] == ["-e", "cycles", "-e", "dTLB-load-misses", "-p", "7,9"]
    assert arguments("perf", ["cycles"], tmp_path / "f", [])[-1] == "-a"


def test_a_command_is_counted_from_its_first_instruction_to_its_end(tmp_path: Path) -> None:
    """With an event that every machine has; each of its samples is a count."""
    if shutil.which("perf") is None:
        raise AssertionError("perf is not installed: tools/apt-install linux-perf")
    recipe, machine = recipes.load("page-fault"), perf_events.look()
    plan = dataclasses.replace(perf_events.plan(recipe, machine), counts=("minor-faults:u",))
    command = [sys.executable, "-c", "pass"]
    done = perf_record.record(recipe, plan, machine, tmp_path, command=command)
    ((_, count, share, _),) = done.counted
    fold, reading = Fold(recipe, None, load_known_frames()), Reading()
    assert machine.perf is not None
    with perf_record.script(machine.perf, done.files[0]) as text:
        for sample in read_samples(text, reading):
            fold.add(sample)
    sampled = fold.events["minor-faults"].recorded
    assert sampled > 300 and count is not None
    # In user code alone, and with those that perf's child made before it became the command.
    assert sampled / 2 < count < sampled + 1_000
    assert share == 1.0


def kept(path: Path, **told: object) -> Path:
    """A text as ``--keep`` leaves it."""
    line = dict.fromkeys(("scope", "ended", "command", "release", "seconds", "captured_at")) | {
        "architecture": "x86_64", "partial": [], "remarks": [], "counters": {}, "pids": [],
        "recorded": {"samples": {}, "lost": {}, "throttled": 0},
    } | told  # fmt: skip
    path.write_bytes(f"# mmscope {json.dumps(line)}\n".encode() + TEXT)
    return path


COUNTED = [["cpu-clock", 12_345, 1.0, ""], ["dTLB-load-misses", None, None, "not supported"]]


def test_counts_stand_beside_the_samples_of_the_same_event(tmp_path: Path) -> None:
    text, out = kept(tmp_path / "t", counted=COUNTED), tmp_path / "b"
    assert main(["record", "exit-path", "--input", str(text), "-o", str(out)]) == 0
    bundle = Bundle(out)
    clock, misses = bundle.rows("profile_counts")
    (sampled,) = (row["period"] for row in bundle.rows("profiles"))
    assert (clock["counted"], clock["share_counted"], clock["sampled"]) == (12_345, 1.0, sampled)
    assert (misses["counted"], misses["sampled"], misses["why"]) == (None, None, "not supported")
    html = render(bundle, evaluate(bundle))
    assert "12,345" in html and "not supported" in html


@pytest.mark.parametrize(
    "told",
    [
        {"counted": [["x", -1, 1.0, ""]]},
        {"counted": [["x", 1 << 70, 1.0, ""]]},
        {"counted": [["x"]]},
        {"counted": [[7, 1, 1.0, ""]]},
        {"used": [1.0]},
        {"gone": -1.0},
        {"used": [1.0, float("nan")]},
        {"growths": [[7, "x", [[1, 2]]]]},
        {"growths": [[7, "x", 3]]},
        {"growths": ["7"]},
    ],
)
def test_a_line_about_the_recording_that_is_damaged_is_refused(
    told: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = kept(tmp_path / "t", **told), tmp_path / "b"
    assert main(["record", "exit-path", "--input", str(text), "-o", str(out)]) == 2
    assert "damaged" in capsys.readouterr().err and not out.exists()
