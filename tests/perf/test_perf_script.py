# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text of ``perf script``: every sample is read once, whatever names say."""

import io
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perf_text import header

from mmscope.perf import perf_script
from mmscope.perf.perf_script import Reading, Sample, frame, read_samples

KERNEL = b"\tffffffff8161df68 get_page_from_freelist ([kernel.kallsyms])\n"
USER = b"\t           3e55d __run_exit_handlers (/usr/lib/libc.so.6)\n"
STACK = KERNEL + USER


def frames(stack: bytes) -> list[tuple[int, str, str]]:
    """The frames of a sample, leaf first."""
    return [found for line in stack.split(b"\n\t") if (found := frame(line)) is not None]


def read(text: bytes, *, own: bool = True) -> tuple[list[Sample], Reading]:
    """Samples of a text; by default of one that is straight out of perf."""
    reading = Reading()
    return list(read_samples(io.BytesIO(text), reading, own=own)), reading


def test_a_sample_is_a_header_and_its_frames() -> None:
    (sample,), reading = read(header() + STACK + b"\n")
    assert (sample.comm, sample.pid, sample.tid, sample.period) == (b"cat", 7, 7, 1003009)
    assert (sample.event, sample.time) == (b"cpu-clock", b"11481.355766123")
    leaf, root = frames(sample.stack)
    assert leaf == (0xFFFFFFFF8161DF68, "get_page_from_freelist", "[kernel.kallsyms]")
    assert root == (0x3E55D, "__run_exit_handlers", "/usr/lib/libc.so.6")
    assert reading.samples == 1 and not reading.unread_bytes


def test_text_that_fits_nowhere_takes_no_sample_with_it() -> None:
    """As of a file that was cut at its beginning."""
    cut = b"0 cpu-clock: \n" + STACK + b"\n"
    samples, reading = read(cut + header() + STACK + b"\n" + header() + STACK)
    assert [s.comm for s in samples] == [b"cat"] * 2
    assert reading.unread_bytes == len(cut) - 2
    # The begin of a comm is none such.
    (sample,), reading = read(b"a\n\n" + header(b"b") + STACK)
    assert sample.comm == b"a\n\nb" and not reading.unread_bytes


def test_samples_without_call_chain_have_a_line_each_and_no_empty_line() -> None:
    line = header(
        b"     perf", event="minor-faults", rest=b" 7f00 [unknown] (//anon)     55b8 main (/x)"
    )
    samples, reading = read(line * 3 + header() + STACK + b"\n" + line)
    assert [s.event for s in samples] == [b"minor-faults"] * 3 + [b"cpu-clock", b"minor-faults"]
    assert samples[0].comm == b"perf" and samples[0].rest.split()[0] == b"7f00"
    assert next(symbol for _, symbol, _ in frames(samples[0].stack)) == "main"
    assert reading.samples == 5 and not reading.unread_bytes


@pytest.mark.parametrize(
    "comm",
    [
        b"a\nb",
        b"a\n\nb",
        b'a\n\n\n\nb;<"',
        b"1/1 [0] 1.1: 1:",
        b" 9/9 [001] 1.1",
        b'<img src=x>;"',
        b"\xff\xfe",
        b"",
        b"x" * 15,
        b"\n\tffff x (y)",
        b"# x",
        b"#",
    ],
)
def test_no_comm_breaks_its_sample_or_the_next(comm: bytes) -> None:
    text = (header() + STACK + b"\n") + (header(comm, pid=8) + STACK + b"\n") + header() + STACK
    samples, reading = read(text)
    assert [s.pid for s in samples] == [7, 8, 7]
    # perf pads a comm with spaces, so that its own at the begin cannot be told from these.
    assert samples[1].comm.split() == comm.split()
    assert all(len(frames(s.stack)) == 2 for s in samples)
    assert not reading.unread_bytes


@given(st.binary(max_size=15).filter(lambda comm: b"\0" not in comm))
def test_no_comm_at_all_does(comm: bytes) -> None:
    text = (header() + STACK + b"\n") + (header(comm, pid=8) + STACK + b"\n") + header() + STACK
    samples, _ = read(text)
    assert [s.pid for s in samples] == [7, 8, 7]


def test_what_a_tracepoint_says_may_have_lines_of_its_own() -> None:
    rest = b"pid=12 comm=a\nb total-vm=4kB"
    text = header(event="oom:mark_victim", rest=rest) + STACK + b"\n" + header() + STACK + b"\n"
    samples, reading = read(text)
    assert [s.event for s in samples] == [b"oom:mark_victim", b"cpu-clock"]
    assert len(frames(samples[0].stack)) == 2
    assert not reading.unread_bytes


def test_lost_samples_and_forks_are_told() -> None:
    forks: list[Any] = []
    lost = b"bash 31152/31152 [001] 11782.446516000: PERF_RECORD_LOST lost 11\n"
    fork = b"perf     0/0     [000]     0.000000000: PERF_RECORD_FORK(31081:31081):(31079:31079)\n"
    comm = b"sh     0/0     [000]     0.000000000: PERF_RECORD_COMM: sh:1/1\n"
    reading = Reading(on_fork=lambda pid, parent: forks.append((pid, parent)))
    text = fork + comm + lost + header() + STACK + b"\n" + lost + header() + STACK + b"\n"
    assert [s.comm for s in read_samples(io.BytesIO(text), reading, own=True)] == [b"cat", b"cat"]
    assert reading.lost == 22 and forks == [(31081, 31079)]
    assert not reading.unread_bytes


# What an expression that tries again for each byte before would take minutes for.
LONG = {
    "a line": b"y",
    "spaces": b" ",
    "colons": b":",
    "words": b"  a",
    "ends of a frame": b" (",
    "space of another kind": b" \x0b",
    "times": b" 1/1 1.1:",
    "lines": b"y\n",
    "empty lines": b"\n",
    "comments": b"#\n",
    "frames": b"\n\t",
    "begins of a comm": b"a\n\n",
}


@pytest.mark.parametrize("unit", LONG.values(), ids=LONG.keys())
@pytest.mark.parametrize("begin", [b"", header(event="a:b", rest=b"x")[:-1], header() + b"\ta b"])
def test_the_time_is_that_of_the_length_whatever_is_repeated(begin: bytes, unit: bytes) -> None:
    text = header() + STACK + b"\n" + begin + unit * ((1 << 18) // len(unit))
    before = time.process_time()
    samples, _ = read(text)
    assert samples[0].comm == b"cat"
    for sample in samples:
        frames(sample.stack)
    assert time.process_time() - before < 5


def test_a_line_has_a_bound_beyond_which_it_is_counted_as_unread() -> None:
    beyond = 10 << 20
    long = header(event="a:b", rest=b"")[:-1]
    long += b"y" * (perf_script.MAX_LINE_BYTES + beyond - len(long))
    text = header() + STACK + b"\n" + long + b"\n" + STACK + b"\n" + header() + STACK
    samples, reading = read(text)
    assert [s.event for s in samples] == [b"cpu-clock", b"a:b", b"cpu-clock"]
    assert all(len(frames(s.stack)) == 2 for s in samples)
    assert beyond <= reading.unread_bytes <= beyond + perf_script.MAX_LINE_BYTES


def test_most_of_a_text_is_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_script, "_CHUNK", 1 << 16)
    monkeypatch.setattr(perf_script, "_LONG", 1 << 17)
    monkeypatch.setattr(perf_script, "MAX_UNREAD_BYTES", 1 << 18)
    with pytest.raises(perf_script.NotPerfText, match="MiB of it fit no sample of perf's"):
        read(header() + STACK + b"\n" + b"garbage\n" * (1 << 17))
    # Where it is, what is not is counted.
    sample = header() + STACK + b"\n"
    _, reading = read(sample * ((1 << 20) // len(sample)) + b"garbage\n" * (1 << 16))
    assert abs(reading.unread_bytes - (1 << 19)) <= 16


def test_what_is_no_sample_is_counted() -> None:
    samples, reading = read(b"garbage\n" * 100 + b"\n" + header() + STACK)
    assert len(samples) == 1
    assert reading.unread_bytes >= 700


def test_text_of_any_size_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_script, "_CHUNK", 61)
    block = header(b"a\n\nb") + STACK + b"\n"
    samples, reading = read(block * 50)
    assert len(samples) == 50 and {s.comm for s in samples} == {b"a\n\nb"}
    assert not reading.unread_bytes


def test_text_without_an_empty_line_is_cut_at_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_script, "_CHUNK", 500)
    monkeypatch.setattr(perf_script, "_LONG", 400)
    samples, reading = read(header(rest=b"     55b8 main (/x)") * 100)
    assert len(samples) == 100 and not reading.unread_bytes


def test_comments_are_skipped() -> None:
    samples, reading = read(b"# captured on: x\n# y\n#\n" + header() + STACK)
    assert len(samples) == 1 and not reading.unread_bytes
