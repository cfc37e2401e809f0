# SPDX-License-Identifier: LGPL-2.1-or-later
"""The text of ``perf script`` in the forms that people bring: the same samples in each."""

import io
import os
import random
from collections.abc import Callable

import pytest
from perf_forms import expected, folded, random_form, render, samples, stacks
from perf_text import KNOWN

from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold
from mmscope.perf.perf_script import Reading, is_perf_text, read_samples
from mmscope.perf.recipe import counted_event, is_tracepoint

FORMS = 500 if os.environ.get("MMSCOPE_ALL") else 50


@pytest.mark.parametrize("seed", range(FORMS))
def test_whatever_is_printed_the_stacks_are_the_same(seed: int) -> None:
    chance = random.Random(seed)
    taken = samples(chance, 60)
    form = random_form(chance, len(taken))
    text = render(taken, form)
    assert stacks(text) == expected(taken, form), (form, text[:1000].decode())
    assert is_perf_text(text)


def block(
    head: str = "worker  4242/4242 [004]   100.000001:     250000 cycles: ",
    *frames: str,
    between: str = "\t",
) -> bytes:
    lines = [head, *(between + line for line in frames or ZAP), ""]
    return "".join(f"{line}\n" for line in lines).encode()


ZAP = (
    "ffffffff81400010 unmap_page_range ([kernel.kallsyms])",
    "ffffffff81400020 exit_mmap ([kernel.kallsyms])",
)
ZAPPED = "exit_mmap_[k];unmap_page_range_[k]"


@pytest.mark.parametrize(
    ("head", "event", "comm"),
    [
        ("worker  4242 [004]   100.000001:     250000 cpu-clock: ", "cpu-clock", "worker"),
        ("worker  4242 cpu-clock:", "cpu-clock", "worker"),  # 3.x
        ("worker  4242 [-01] 100.000001: cycles:P: ", "cycles:P", "worker"),
        ("4242/4242 [000]   100.000002:     250000 cycles: ", "cycles", ":4242"),
        ("VM:13198 VCPU:003  CPU 3/KVM 13198/13202 [003] 1.000001: cycles:", "cycles", "CPU 3/KVM"),
        ("worker  4242  [004] K     100.000001: cpu_core/cycles/: ", "cpu_core/cycles/", "worker"),
        ("worker  4242  2026-11-28 01:02:03.000001   100.000001: cycles: ", "cycles", "worker"),
        ("worker 100.000001: cycles/period=1000/u: ", "cycles", "worker"),
        ("worker ", "(event not printed)", "worker"),
        ("", "(event not printed)", "(no name)"),
    ],
)  # fmt: skip
def test_a_header_has_what_was_asked_for(head: str, event: str, comm: str) -> None:
    assert stacks(block(head) * 20) == {event: {f"{comm};{ZAPPED}": 20}}


def test_offsets_make_no_other_stacks_and_hide_no_idle_cpu() -> None:
    busy = [block("", *(line.replace(" (", f"+{n:#x} (") for line in ZAP)) for n in range(20)]
    idle = block("", "ffffffff81400010 intel_idle+0x10 ([kernel.kallsyms])")
    head = b"swapper 0 [001] 100.000001:     250000 cycles: "
    fold, reading = folded(b"".join(head + text for text in (*busy, idle)))
    (event,) = fold.events.values()
    assert {name: values[0] for name, values in event.stacks.items()} == {f"swapper;{ZAPPED}": 20}
    assert event.removed == {"idle": 1} and event.parts == {("last holder", "zap"): 20}
    assert not reading.unread_bytes


def test_pmus_are_parts_of_events_and_terms_of_sampling_are_not() -> None:
    heads = (
        *("cpu_core/cycles/", "cpu_atom/cycles/", "cpu_core/instructions/"),
        *("kmem:mm_page_alloc/call-graph=no/", "cycles/freq=997/u"),
    )
    text = b"".join(block(f"worker 4242 [004] 100.000001: 250000 {name}: ") for name in heads)
    assert set(stacks(text)) == {*heads[:3], "kmem:mm_page_alloc", "cycles"}


@pytest.mark.parametrize("modes", ["u", "ppp", "ukhpPGHSDIWebRX"])
def test_modes_make_no_tracepoint_of_an_event(modes: str) -> None:
    assert not is_tracepoint(f"cycles:{modes}")
    assert counted_event(f"cycles:{modes}") == "cycles"


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("414b3b f (/lib/modules/4.1.0/build/vmlinux)", "f_[k]"),
        ("414b3b f (/usr/lib/debug/boot/vmlinux-6.1.0-example)", "f_[k]"),
        ("414b3b f (/root/.debug/[kernel.kallsyms]/1234/kallsyms)", "f_[k]"),
        ("1b3b f (/lib/modules/5.4.14/kernel/net/mlx5_core.ko.zst)", "f [mlx5_core]_[k]"),
        ("ffffffffc0120000 f ([ext4])", "f [ext4]_[k]"),
        ("ffffffffc0120000 bpf_prog_12_x (bpf_prog_12_x)", "bpf_prog_12_x_[k]"),
        ("7fff0b2a f ([vdso])", "f"),
        ("ffffffffff600000 f ([vsyscall])", "f"),
        ("c0123456 f ([kernel.kallsyms])", "f_[k]"),
        ("55d0 void (anonymous namespace)::f<int>() (/x)", "void (anonymous namespace)::f<int>()"),
        ("55d0 f+0x12 (/tmp/x (deleted)+0x12)", "f"),
        ("55d0 (/usr/bin/example)", "[example]"),
        ("55d0", "[unknown]"),
        ("ffffffff81400010", "[unknown]_[k]"),
    ],
)  # fmt: skip
def test_a_frame_says_whose_it_is(frame: str, name: str) -> None:
    assert stacks(block("worker 1 [004] 1.000001: cycles: ", frame)) == {
        "cycles": {f"worker;{name}": 1}
    }


def test_what_is_inlined_is_in_the_function_around_it() -> None:
    frames = (
        "414b3b zap_pte_range (inlined)",
        "414b3b unmap_page_range (/lib/modules/6.1/build/vmlinux)",
        "55d0c0 helper (inlined)",
        "55d0c0 main (/usr/bin/example)",
    )
    assert stacks(block("worker 1 [004] 1.000001: cycles: ", *frames)) == {
        "cycles": {"worker;main;helper;unmap_page_range_[k];zap_pte_range_[k]": 1}
    }


@pytest.mark.parametrize("between", ["\t", "    ", "        ", ""])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("empty", [True, False])
def test_lost_tabs_and_ends_of_lines_cost_nothing(between: str, end: str, empty: bool) -> None:
    text = block(between=between) * 20
    text = text if empty else text.replace(b"\n\n", b"\n")
    assert stacks(text.replace(b"\n", end.encode())) == {"cycles": {f"worker;{ZAPPED}": 20}}


@pytest.mark.parametrize("rare", [block, lambda head: f"{head}prev_comm=worker\n".encode()])
@pytest.mark.parametrize("at", [0, 150, 2000])
def test_a_rare_tracepoint_has_no_period_where_the_others_have_one(
    rare: Callable[[str], bytes], at: int
) -> None:
    switch = rare("worker  4242/4242 [004]   100.000001: sched:sched_switch: ")
    text = block() * at + switch + block() * (2000 - at)
    assert len(block() * 150) < 64 << 10 < len(block() * 2000)
    found = stacks(text)
    assert found["cycles"] == {f"worker;{ZAPPED}": 2000}
    assert sum(found["sched:sched_switch"].values()) == 1


def test_a_mark_of_utf_8_is_no_name() -> None:
    assert stacks(b"\xef\xbb\xbf" + block() * 3) == {"cycles": {f"worker;{ZAPPED}": 3}}


def test_an_empty_line_behind_a_header_does_not_cost_its_stack() -> None:
    text = (block() * 20).replace(b"cycles: \n", b"cycles: \n\n")
    assert stacks(text) == {"cycles": {f"worker;{ZAPPED}": 20}}


LINE = "          worker  4242/4242  [001]   100.000001:          1 minor-faults: "
FAULT = LINE + "    7f000001000 ffffffff81400110 clear_page_erms ([kernel.kallsyms])\n"


@pytest.mark.parametrize("foreign", ["Warning: 3 out of order events recorded.\n", "...\n"])
@pytest.mark.parametrize("sample", [block().decode(), FAULT])
def test_a_line_of_anothers_costs_no_sample_and_is_counted(sample: str, foreign: str) -> None:
    fold, reading = folded((sample * 5 + foreign + sample * 15).encode())
    (event,) = fold.events.values()
    assert event.recorded == 20 and reading.unread_bytes == len(foreign)


def test_the_address_of_data_is_not_that_of_the_instruction() -> None:
    def faults(*lines: str) -> Fold:
        fold = Fold(recipes.load("page-fault"), None, KNOWN)
        for sample in read_samples(io.BytesIO("".join(lines).encode()), Reading()):
            fold.add(sample)
        return fold

    (task,) = faults(FAULT, FAULT.replace("7f000001000", "7f000201000")).tasks.values()
    assert (task.faults, task.first, task.last) == (2, 0x7F000001000, 0x7F000201000)
    (task,) = faults(LINE + "     7f000001000\n").tasks.values()
    assert task.first == 0x7F000001000
    without = faults(
        LINE + " ffffffff81400110 f ([kernel.kallsyms])\n", LINE + "     55d0c0001000 main (/x)\n"
    )
    assert not without.tasks and without.without_address == 2


def test_of_what_has_no_time_nothing_is_timed() -> None:
    begin, end = (f"vmscan:mm_vmscan_direct_reclaim_{what}" for what in ("begin", "end"))
    for time, found in (("100.000001: ", True), ("", False)):
        text = b"".join(block(f"a 1/1 [000] {time}{event}: order=3") for event in (begin, end))
        fold = Fold(recipes.load("reclaim"), None, KNOWN)
        for sample in read_samples(io.BytesIO(text), Reading()):
            fold.add(sample)
        assert bool(fold.durations) is found


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[    1.000001] Out of memory: Killed process 12 (x)\n" * 50,
        b"ffffffff81000000 T _stext\nffffffffc0120000 t ext4_iget\t[ext4]\n" * 50,
        b"55d0c0001000-55d0c0002000 r-xp 00000000 08:01 12 /usr/bin/x\n" * 50,
        b"Page allocated via order 0, mask 0x0()\nPFN 1 type\n get_page+0x1/0x2\n\n" * 50,
        b"MemTotal:       12345 kB\nMemFree:   12 kB\n" * 20,
    ],
)
def test_other_text_is_not_taken_for_perfs(text: bytes) -> None:
    assert not is_perf_text(text)
    assert not [*read_samples(io.BytesIO(text), Reading())]


def test_an_oops_without_times_is_not_perfs() -> None:
    """Words of the kernel's stack look like addresses below a header, with a colon."""
    text = (
        b"WARNING: at f.c:1 f+0x1/0x2()\nModules linked in: a b c\nCPU: 1 PID: 42 Comm: kswapd0\n"
        b"Hardware name: A Computer, by name, of a maker\n"
        b" 0000000000000009 ffff88022259da58 ffffffff816606a8 ffff88022259da98\n"
        b" ffffffff8105d660 ffff88022259dba0 ffff880227014410 ffff88022259dba8\nCall Trace:\n"
        + b" [<ffffffff816606a8>] dump_stack+0x19/0x1b\n"
        * 9
    )
    assert not is_perf_text(text)
