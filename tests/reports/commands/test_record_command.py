# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope record``: what can run where, and profiles that join a bundle whole or not at all."""

import contextlib
import dataclasses
import gzip
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import children
import pytest
import report_bundle as made
from checkout import ROOT
from command_line import POWERLESS
from page_tree import NOTHING
from perf_text import TEXT, header, sampled
from watched_host import wait_for

from mmscope.perf import perf_events
from mmscope.perf import recipe as recipes
from mmscope.perf.perf_events import Machine, RecordError, plan
from mmscope.perf.perf_record import Recorded, arguments, cut_short, without
from mmscope.perf.speedscope import speedscope
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render
from mmscope.reports.profiles import recordings
from mmscope.reports.profiles.making import ALWAYS, Making
from mmscope.reports.profiles.recordings import MADE_BY


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "perf.txt"
    path.write_bytes(TEXT)
    return path


def record(*words: str | Path) -> int:
    return main(["record", *map(str, words)])


# What is brought in


def test_text_becomes_a_bundle(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b"
    assert record("exit-path", "--input", text, "-o", out) == 0
    bundle = Bundle(out)
    (row,) = bundle.rows("profiles")
    assert (row["recorded"], row["samples"], row["removed"]) == (11, 10, 1)
    assert row["removed_why"] == "1 idle" and row["nmi"] == "no" and row["lost"] is None
    assert sum(value for _, value in bundle.stacks(row["file"])) == 10
    parts = {(r["who"], r["part"]): r["samples"] for r in bundle.rows("profile_parts")}
    assert parts == {("exit", "zap"): 5, ("exit", "free_pgtables"): 2}
    said = capsys.readouterr().out
    assert "50.0 %  exit: zap" in said and "no NMI" in said


def test_gzip_is_fine(text: Path, tmp_path: Path) -> None:
    packed = tmp_path / "perf.txt.gz"
    packed.write_bytes(gzip.compress(TEXT))
    assert record("exit-path", "--input", packed, "-o", tmp_path / "b") == 0


PACKERS = {"gz": "gzip", "xz": "xz", "bz2": "bzip2", "zst": "zstd"}


@pytest.mark.parametrize("ending", [e for e, program in PACKERS.items() if shutil.which(program)])
def test_what_is_packed_or_piped_is_as_the_plain_file(
    ending: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text, and a recording, which perf reads under a name that it has here alone."""
    program = tmp_path / "bin/perf"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nfor file; do :; done\ncmp -s "$file" {tmp_path}/x.data && '
                       f"[ $1 = script ] && cat {text}\n")  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "x.data").write_bytes(b"PERFILE2" + bytes(200_000))
    record("exit-path", "--input", text, "-o", tmp_path / "plain")
    expected = [*Bundle(tmp_path / "plain").rows("profiles")]
    for file in (text, tmp_path / "x.data"):
        packed = children.run([PACKERS[ending], "-c", file], stdout=subprocess.PIPE).stdout
        (tmp_path / f"{file.name}.{ending}").write_bytes(packed)
        for source, name in ((f"{file.name}.{ending}", "named"), ("-", "piped")):
            if name == "piped":
                descriptor = os.open(tmp_path / f"{file.name}.{ending}", os.O_RDONLY)
                monkeypatch.setattr(recordings.os, "dup", lambda _, made=descriptor: made)
            out = tmp_path / f"{file.stem} {name}"
            monkeypatch.chdir(tmp_path)
            assert record("exit-path", "--input", source, "-o", out) == 0
            assert [*Bundle(out).rows("profiles")] == expected
            monkeypatch.undo()
            monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_gzip_that_unpacks_without_end_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(TEXT + bytes(80 << 20)))
    assert record("exit-path", "--input", packed, "-o", tmp_path / "b") == 2
    assert capsys.readouterr().err == f"mmscope: {packed}: 64 MiB of it fit no sample of perf's\n"
    packed.write_bytes(gzip.compress(TEXT * 100))
    monkeypatch.setattr(recordings, "MAX_UNPACKED_BYTES", 100 * len(TEXT) - 1)
    assert record("exit-path", "--input", packed, "-o", tmp_path / "b") == 2
    assert "unpacked it has more than" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:99] + b"x" * 9])
def test_damaged_gzip_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    packed = tmp_path / "x.gz"
    packed.write_bytes(damage(gzip.compress(TEXT)))
    assert record("exit-path", "--input", packed, "-o", tmp_path / "b") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mmscope: {packed}: ")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_plain_file_is_one_line_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    assert record("exit-path", "--input", tmp_path / "x", "-o", tmp_path / "b") == 3
    assert capsys.readouterr().err == f"mmscope: {tmp_path / 'x'}: is not a plain file\n"


def test_a_profile_joins_a_bundle_and_changes_nothing_else(text: Path, tmp_path: Path) -> None:
    contents = {k: v for k, v in made.tables().items() if v[3] != "profiles"}
    before = made.write_bundle(tmp_path / "b", contents)
    files = {p.name: p.read_bytes() for p in before.path.glob("*.csv") if p.name != "sections.csv"}
    assert record("exit-path", "--input", text, "--label", "never", "-o", before.path) == 0
    assert record("exit-path", "--input", text, "--label", "always", "--against",
                  "exit_path_never", "-o", before.path) == 0  # fmt: skip
    after = Bundle(before.path)
    assert {name: (after.path / name).read_bytes() for name in files} == files
    assert after.target == before.target
    assert [s for s in after.sections if s.section != "profiles"] == before.sections
    recordings = {r["profile"]: r["against"] for r in after.rows("profile_recordings")}
    assert recordings == {"exit_path_never": None, "exit_path_always": "exit_path_never"}
    assert set(after.folded) == {"exit_path_never_cpu_clock", "exit_path_always_cpu_clock"}
    html = render(after, evaluate(after))
    assert "Differential flame graph" in html and "<img src=x>" not in html


def test_two_recordings_without_labels_have_two_names(text: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert record("exit-path", "--input", text, "-o", tmp_path / "b") == 0
    names = [row["profile"] for row in Bundle(tmp_path / "b").rows("profiles")]
    assert names == ["exit_path", "exit_path_2"]


def test_what_is_no_text_of_perf_leaves_the_bundle_alone(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b"
    assert record("exit-path", "--input", text, "-o", out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = tmp_path / "other"
    other.write_text("nothing of perf's\n" * 100)
    assert record("exit-path", "--input", other, "-o", out) == 2
    assert "no sample in it" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not list(tmp_path.glob(".b.*"))


def test_lost_samples_make_the_section_partial(text: Path, tmp_path: Path) -> None:
    text.write_bytes(b"cat 7/7 [000] 1.000000: PERF_RECORD_LOST lost 11\n" + TEXT)
    assert record("exit-path", "--input", text, "-o", tmp_path / "b") == 1
    bundle = Bundle(tmp_path / "b")
    assert [row["lost"] for row in bundle.rows("profiles")] == [11]
    (section,) = bundle.sections
    assert section.status == "partial" and "11 samples were lost" in (section.message or "")


def test_a_text_that_was_kept_says_how_it_was_made(text: Path, tmp_path: Path) -> None:
    told = {
        "seconds": 1.5, "scope": "system", "ended": "Ctrl-C", "command": "x", "release": "7.2",
        "captured_at": "2026-11-20T03:04:05+00:00", "architecture": "x86_64", "partial": [],
        "remarks": [], "counters": {"oom_kill": 1}, "pids": [7],
        "recorded": {"samples": {"cpu-clock": 12}, "lost": {"cpu-clock": 2}, "throttled": 0},
    }  # fmt: skip
    other = sampled("do_exit", pid=9)
    line = f"# mmscope {json.dumps(told)}\n".encode()
    text.write_bytes(line + TEXT + other)
    assert record("exit-path", "--input", text, "-o", tmp_path / "b") == 1
    bundle = Bundle(tmp_path / "b")
    (row,) = bundle.rows("profiles")
    assert (row["recorded"], row["lost"], row["samples"]) == (12, 2, 10)
    assert "1 other tasks" in row["removed_why"]
    (made_by,) = bundle.rows("profile_recordings")
    assert (made_by["seconds"], made_by["ended"]) == (1.5, "Ctrl-C")
    assert [r["gained"] for r in bundle.rows("profile_counters")] == [1]
    text.write_bytes(line.replace(b'"pids": [7]', b'"pids": ["x"]') + TEXT)
    assert record("exit-path", "--input", text, "-o", tmp_path / "c") == 2
    assert not (tmp_path / "c").exists()


def test_faults_are_in_regions_of_what_a_table_maps_there(text: Path, tmp_path: Path) -> None:
    told = dict.fromkeys(("scope", "ended", "command", "release", "seconds", "captured_at")) | {
        "architecture": "aarch64", "partial": [], "remarks": [], "counters": {}, "pids": [],
        "recorded": {"samples": {}, "lost": {}, "throttled": 0},
    }  # fmt: skip
    faults = b"".join(
        header(pid=1, time="1.000000", period="1", event="minor-faults", rest=b"%x x" % address)
        for address in (0, 2 << 20, 31 << 20, 32 << 20, 1 << 30)
    )
    for size, of_size in (("4096", (5, 2 << 20)), ("16384", (3, 32 << 20)), ("17", None)):
        line = f"# mmscope {json.dumps(told | {'page_bytes': int(size)})}\n"
        text.write_bytes(line.encode() + faults + TEXT)
        code = record("page-fault", "--input", text, "-o", tmp_path / size)
        assert (code == 2) is (of_size is None)
        if of_size:
            (row,) = Bundle(tmp_path / size).rows("profile_faults")
            assert (row["faults"], row["regions"], row["region_bytes"]) == (5, *of_size)


@pytest.mark.parametrize("name", [*ALWAYS, "recorded"])
def test_a_line_that_lacks_what_every_recording_has_is_damaged(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line = Making().as_json(Recorded())
    for lacks, code in (("page_bytes", (0, 1)), (name, (2,))):  # the first came later
        kept = {each: value for each, value in line.items() if each != lacks}
        text.write_bytes(f"{MADE_BY}{json.dumps(kept)}\n".encode() + TEXT)
        assert record("exit-path", "--input", text, "-o", tmp_path / lacks) in code
    assert "the line about the recording is damaged" in capsys.readouterr().err


def test_a_recording_of_another_boot_says_so(text: Path, tmp_path: Path) -> None:
    told = dict.fromkeys(("scope", "ended", "command", "release", "seconds")) | {
        "captured_at": "2026-11-20T03:05:05+00:00", "booted_at": "2026-11-20T03:00:00+00:00",
        "architecture": "x86_64", "partial": [], "remarks": [], "counters": {}, "pids": [],
        "recorded": {"samples": {"cpu-clock": 11}, "lost": {}, "throttled": 0},
    }  # fmt: skip
    text.write_bytes(f"# mmscope {json.dumps(told)}\n".encode() + TEXT)
    for booted, other in (("03:00:02", False), ("02:00:00", True)):
        path = tmp_path / booted
        target = {"captured_at": f"2026-11-20T{booted}+00:00", "uptime_seconds": 0.001}
        made.write_bundle(path, {}, target=made.TARGET | target)
        record("exit-path", "--input", text, "-o", path)
        bundle = Bundle(path)
        (made_by,) = bundle.rows("profile_recordings")
        assert made_by["booted_at"] == told["booted_at"]
        notes = [row["note"] for row in bundle.rows("profile_notes")]
        said = (
            "recorded during another boot than the rest of this bundle: of a machine that was "
            "booted at 2026-11-20T03:00:00+00:00, not at 2026-11-20T02:00:00+00:00"
        )
        assert (said in notes) is other
        # Not only in what is folded.
        words = "1 of 1 recording was made while another boot ran"
        assert (words in render(bundle, NOTHING)) is other


def test_fewer_samples_than_perf_counted_are_told(text: Path, tmp_path: Path) -> None:
    told = dict.fromkeys(("scope", "ended", "command", "release", "captured_at", "seconds"))
    more = {"architecture": "x86_64", "partial": [], "remarks": [], "counters": {}, "pids": []}
    counts = {"recorded": {"samples": {"cpu-clock": 500}, "lost": {}, "throttled": 3}}
    line = json.dumps({**told, **more, **counts})
    text.write_bytes(f"# mmscope {line}\n".encode() + TEXT)
    assert record("exit-path", "--input", text, "-o", tmp_path / "b") == 1
    notes = [row["note"] for row in Bundle(tmp_path / "b").rows("profile_notes")]
    assert any("perf recorded 500 samples, 11 could be read" in note for note in notes)
    assert any("throttled" in note for note in notes)


SCRIPT = """#!/bin/sh
[ $1 = report ] && exit 0
cat {text}
echo '{words}' >&2
exit {code}
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 0, None),
        ("[kernel.kallsyms] with build id 12 not found, continuing without symbols", 0, None),
        ("0x71ad8 [0]: failed to process type: 0 [Invalid argument]", 234, "0x71ad8 [0]: failed"),
        ("Found 3 unknown events! Is this an older tool?", 0, "Found 3 unknown events!"),
        ("Processed 9 events and lost 2 chunks!", 0, "lost 2 chunks!"),
        ("", 1, "it gave no reason"),
    ],
)
def test_a_recording_that_perf_does_not_read_whole_is_partial_in_its_words(
    words: str,
    code: int,
    said: str | None,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, data = tmp_path / "bin/perf", tmp_path / "perf.data"
    program.parent.mkdir()
    program.write_text(SCRIPT.format(text=text, words=words, code=code))
    program.chmod(0o755)
    data.write_bytes(b"PERFILE2")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    out = tmp_path / "b"
    assert record("exit-path", "--input", data, "-o", out) == (1 if said else 0)
    notes = [row["note"] for row in Bundle(out).rows("profile_notes") if row["kind"] == "partial"]
    assert len(notes) == bool(said)
    assert all(said and said in note and "perf did not read all of it" in note for note in notes)


def test_of_a_recording_without_a_sample_it_says_perfs_words(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text.write_bytes(b"sh     7/7     [000]     1.000000000: PERF_RECORD_FORK(8:8):(7:7)\n")
    (tmp_path / "perf").write_text(SCRIPT.format(text=text, words="failed to process", code=1))
    (tmp_path / "perf").chmod(0o755)
    (tmp_path / "x.data").write_bytes(b"PERFILE2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert record("exit-path", "--input", tmp_path / "x.data", "-o", tmp_path / "b") == 3
    assert "x.data: perf did not read all of it: failed to process" in capsys.readouterr().err


def test_of_a_recording_that_perf_does_not_read_it_says_what_is_read(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text.write_bytes(b"")
    (tmp_path / "perf").write_text(
        SCRIPT.format(text=text, words="incompatible file format", code=255)
    )
    (tmp_path / "perf").chmod(0o755)
    (tmp_path / "x.data").write_bytes(b"PERFILE2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["why", str(tmp_path / "x.data"), "-o", str(tmp_path / "b")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "cannot read it: incompatible file format: if a newer perf recorded it" in out
    assert f"run mmscope findings {tmp_path / 'b'}" in out


def test_a_file_that_ends_before_its_end_is_cut_even_where_perf_says_nothing(
    tmp_path: Path,
) -> None:
    """A header, 100 bytes of data, and a section of 50 for the feature that is bit 3."""
    numbers = [104, 144, 104, 0, 104, 100, 0, 0, 1 << 3, 0, 0, 0]
    for magic, order in ((b"PERFILE2", "<"), (b"2ELIFREP", ">")):
        whole = magic + struct.pack(f"{order}12Q", *numbers) + bytes(100)
        whole += struct.pack(f"{order}2Q", 220, 50) + bytes(50)
        for size in range(0, len(whole) + 1, 6):
            (tmp_path / "perf.data").write_bytes(whole[:size])
            cut = cut_short(tmp_path / "perf.data")
            assert bool(cut) == (104 <= size < len(whole)), size
        assert not cut


def test_widths_may_be_periods(text: Path, tmp_path: Path) -> None:
    assert record("exit-path", "--input", text, "--by-period", "-o", tmp_path / "b") == 0
    bundle = Bundle(tmp_path / "b")
    (row,) = bundle.rows("profiles")
    assert row["unit"] == "ns" == bundle.folded[row["file"]].unit
    assert sum(value for _, value in bundle.stacks(row["file"])) == row["period"] == 10 * 1003009


# What is shown


def test_stacks_are_exported(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "b")
    assert record("exit-path", "--input", text, "-o", out) == 0
    capsys.readouterr()
    assert main(["show", "profiles", out, "--format", "folded"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert '<img src=x>\\x3b";exc_page_fault_[k] 3' in lines
    assert main(["show", "exit_path", out, "--format", "folded", "--reattribute"]) == 0
    assert '<img src=x>\\x3b";(with interrupts off)_[k] 3' in capsys.readouterr().out
    assert main(["show", "profiles", out, "--format", "speedscope"]) == 0
    opened = json.loads(capsys.readouterr().out)
    (drawn,) = opened["profiles"]
    assert sum(drawn["weights"]) == drawn["endValue"] == 10
    frames = [frame["name"] for frame in opened["shared"]["frames"]]
    assert all(0 <= at < len(frames) for sample in drawn["samples"] for at in sample)
    assert main(["show", "nothing", out, "--format", "folded"]) == 2


def test_speedscope_shares_frames_between_profiles() -> None:
    opened = speedscope([("a", "ns", [("x;y", 2)]), ("b", "samples", [("y;x", 3)])], "both")
    assert [p["samples"] for p in opened["profiles"]] == [[[0, 1]], [[1, 0]]]
    assert [p["unit"] for p in opened["profiles"]] == ["nanoseconds", "none"]


# What can run where

ROOTLESS = Machine(
    perf="/usr/bin/perf",
    privileged=False,
    paranoid=2,
    tracefs=Path("/sys/kernel/tracing"),
    readable=False,
    kprobes=False,
    counters=False,
    symbols=False,
    architecture="x86_64",
)


def test_without_privileges_a_program_of_ones_own_is_recorded_as_far_as_allowed() -> None:
    found = plan(recipes.load("page-fault"), ROOTLESS)
    assert found.events[0][1] == "cpu-clock/freq=997,name=cpu-clock/u"
    assert not found.system and any("only user code" in note for note in found.notes)
    words = arguments(recipes.load("page-fault"), found, ROOTLESS, Path("x"), ["true"], [])
    assert words[words.index("-m") + 1] == "128" and "-a" not in words


def test_the_kernels_part_comes_with_paranoid_1() -> None:
    machine = dataclasses.replace(ROOTLESS, paranoid=1, symbols=True)
    found = plan(recipes.load("exit-path"), machine)
    assert found.events[0][1] == "cpu-clock/freq=997,name=cpu-clock/"
    assert not found.system and any("only the task itself" in note for note in found.notes)
    assert {reason for _, reason in found.missing} == {
        "tracepoints are root's (CAP_PERFMON and a readable tracefs)"
    }


@pytest.mark.parametrize(
    ("change", "recipe", "words"),
    [
        ({"perf": None}, "page-fault", "perf is not installed: "),
        ({"paranoid": 3}, "page-fault", "CAP_PERFMON"),
        ({}, "atomic-alloc", "tracepoints are root's"),
        ({"privileged": True, "tracefs": None}, "atomic-alloc", "mount -t tracefs"),
        ({}, "oom", "CAP_PERFMON or root"),
    ],
)
def test_what_cannot_run_says_what_would_help(change: dict, recipe: str, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        plan(recipes.load(recipe), dataclasses.replace(ROOTLESS, **change))


def test_cycles_are_taken_where_there_are_counters() -> None:
    machine = dataclasses.replace(ROOTLESS, privileged=True, counters=True)
    assert plan(recipes.load("page-fault"), machine).events[0][1].startswith("cycles/")


def test_no_more_samples_are_asked_for_than_the_kernel_takes() -> None:
    """It refuses the event otherwise, and perf with it, or goes on without."""
    slow = dataclasses.replace(ROOTLESS, most_samples=250)
    found = plan(recipes.load("page-fault"), slow)
    assert found.events[0][1] == "cpu-clock/freq=250,name=cpu-clock/u"
    (said,) = found.remarks
    assert said.startswith("250 samples a second instead of 997: kernel.perf_event_max_sample_rate")
    quick = dataclasses.replace(ROOTLESS, most_samples=100_000)
    assert not plan(recipes.load("page-fault"), quick).remarks


def test_what_perf_went_on_without_is_said() -> None:
    asked = ["cycles", "page-walk-cycles", "mmscope:read_wait", "minor-faults"]
    listed = "page-walk-cycles\nmmscope:read_wait_return\ncpu_core/minor-faults/u\n# Tip: use"
    assert [note.split(":")[0] for note in without(asked[:2], listed)] == ["without cycles"]
    assert len(without(asked, listed)) == 2 and len(without(asked, "")) == 4
    # An old perf that does not list them has refused what it could not open.
    assert without(asked, None) == []


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["page-fault"],
        ["page-fault", "-o", "b"],
        ["page-fault", "-a", "-p", "1", "-o", "b"],
        ["page-fault", "--frequency", "0", "-o", "b", "--", "true"],
        ["page-fault", "--against", "x", "-o", "b", "--", "true"],
    ],
)
def test_what_does_not_fit_together_is_bad_usage(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert record(*words) == 2
    assert not list(tmp_path.iterdir())


# perf itself, with what every machine allows: software events of one's own programs

START = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from mmscope.reports.commands.command "
    "import main; sys.exit(main(sys.argv[1:]))"
)
LOOPS = (sys.executable, "-c", "while True: pass")
LOOP = "x = 0\nfor i in range(3_000_000): x += i"


@pytest.fixture
def perf() -> str:
    found = shutil.which("perf")
    assert found, "perf is not installed: tools/apt-install linux-perf"
    return found


def test_a_command_is_recorded_and_every_sample_is_there(perf: str, tmp_path: Path) -> None:
    code = record("page-fault", "-o", tmp_path / "b", "--keep", tmp_path / "k", "--",
                  sys.executable, "-c", LOOP)  # fmt: skip
    bundle = Bundle(tmp_path / "b")
    notes = [row["note"] for row in bundle.rows("profile_notes")]
    # 1 where the kernel's part is not allowed, which the notes say.
    assert code == 0 or notes
    rows = {row["event"]: row for row in bundle.rows("profiles")}
    assert rows["cpu-clock"]["samples"] > 10 and rows["minor-faults"]["samples"] > 100
    for row in rows.values():
        assert row["recorded"] == row["samples"] + row["removed"]
    counted = perf_record_samples(perf, tmp_path / "k" / "perf.data")
    assert counted == sum(row["recorded"] for row in rows.values())
    again = ("--input", tmp_path / "k" / "perf-script.txt.gz", "-o", tmp_path / "c")
    assert record("page-fault", *again) == code
    there = Bundle(tmp_path / "c")
    assert list(there.rows("profiles")) == list(bundle.rows("profiles"))


def perf_record_samples(perf: str, data: Path) -> int:
    done = children.run([perf, "script", "-f", "-i", data, "-F", "event"], capture_output=True)
    return sum(line.count(b":") > 0 for line in done.stdout.splitlines())


def test_without_privileges_what_is_allowed_is_recorded(perf: str, tmp_path: Path) -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    words = ("record", "page-fault", "-o", tmp_path / "b", "--")
    done = children.run(
        [*POWERLESS, sys.executable, "-c", START, *words, sys.executable, "-c", LOOP],
        capture_output=True,
        text=True,
    )
    if paranoid > 2:
        assert done.returncode == 3 and "CAP_PERFMON" in done.stderr
        return
    assert done.returncode in (0, 1), done.stderr
    rows = {row["event"]: row for row in Bundle(tmp_path / "b").rows("profiles")}
    assert rows["cpu-clock"]["samples"] > 10
    if paranoid == 2:
        assert rows["cpu-clock"]["kernel_samples"] == 0
        assert "only user code is seen" in done.stderr


def run_by(pid: int) -> dict[str, int]:
    """What a process runs: name to pid."""
    try:
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {Path(f"/proc/{n}/comm").read_text().strip(): int(n) for n in pids}
    except OSError:
        return {}


def started(process: subprocess.Popen[bytes]) -> int:
    """Wait until a recording has begun; returns perf's pid."""

    def at_work() -> int | None:
        perf = run_by(process.pid).get("perf")
        return perf if perf is not None and "python" in str(run_by(perf)) else None

    perf = wait_for(at_work)
    time.sleep(1)
    return perf


def test_a_recording_that_is_killed_takes_its_perf_along(perf: str, tmp_path: Path) -> None:
    words = ["record", "page-fault", "-o", str(tmp_path / "b"), "--"]
    process = children.start(
        [sys.executable, "-c", START, *words, *LOOPS], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    running = os.pidfd_open(started(process))
    try:
        process.kill()
        process.wait()
        assert select.select([running], [], [], 600)[0], "perf goes on"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(running, signal.SIGKILL)
        os.close(running)


def test_ctrl_c_keeps_what_is_there(perf: str, tmp_path: Path) -> None:
    words = ["record", "page-fault", "-o", str(tmp_path / "b"), "--"]
    process = children.start(
        [sys.executable, "-c", START, *words, *LOOPS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    started(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode in (0, 1), (out, err)
    (made_by,) = Bundle(tmp_path / "b").rows("profile_recordings")
    assert made_by["ended"] == "Ctrl-C"
    assert not [path for path in tmp_path.iterdir() if path.name != "b"]


def test_a_command_that_is_not_there_leaves_nothing(perf: str, tmp_path: Path) -> None:
    assert record("page-fault", "-o", tmp_path / "b", "--", "/no/such/program") == 3
    assert not list(tmp_path.iterdir())


def test_looking_changes_nothing() -> None:
    before = Path("/proc/sys/kernel/perf_event_paranoid").read_text()
    assert perf_events.look() == perf_events.look()
    assert Path("/proc/sys/kernel/perf_event_paranoid").read_text() == before


def test_the_list_explains_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert record("--list") == 0
    said = capsys.readouterr().out
    for name in recipes.names():
        assert f"{name}: {recipes.load(name).title}" in said


def test_a_header_is_perfs_own() -> None:
    """The headers of these tests look as perf prints them."""
    assert header().startswith(b"cat     7/7     [000] 11481.355766123:    1003009    cpu-clock: ")
