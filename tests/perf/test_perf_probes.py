# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Who may reserve pageblocks, by the bits that a kernel's tracepoint names; kprobes that go when
their recording goes.

``data/formats`` has the ``format`` files of kmem:mm_page_alloc as kernels printed them,
``data/perf/reserve-7.2.txt`` what perf recorded in a guest that reserves.
"""

import io
import itertools
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import children
import pytest
from checkout import TESTS
from perf_text import KNOWN, fold, header, sampled, stack
from watched_host import wait_for

from mmscope.perf import folding, perf_events, probe_guard
from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold
from mmscope.perf.perf_probes import ProbeGuard, clear_up, made, plain
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.recipe import Probe

DATA = TESTS / "data"
FORMATS = sorted((DATA / "formats").glob("mm_page_alloc-*"))
(ALLOCATION,) = (e for e in recipes.load("atomic-alloc").events if e.tally == "attempts")
# What kernels make masks of, and what decides about the reserve.
DECIDES = ("__GFP_HIGH", "__GFP_DIRECT_RECLAIM", "__GFP_NOMEMALLOC")
OTHERS = ("__GFP_KSWAPD_RECLAIM", "__GFP_IO", "__GFP_FS", "__GFP_HARDWALL", "__GFP_HIGHMEM",
          "__GFP_MOVABLE", "__GFP_COMP", "__GFP_NOWARN", "__GFP_ACCOUNT", "__GFP_ZERO")  # fmt: skip


def printed(mask: int, table: dict[str, int]) -> str:
    """As trace_print_flags_seq() does: each entry of the table that is wholly in what is left."""
    said = []
    for name, bits in table.items():
        if bits and mask & bits == bits:
            said.append(name)
            mask &= ~bits
    return "|".join([*said, *([hex(mask)] if mask else [])]) or "none"


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_text_and_bits_agree_on_who_may_reserve(path: Path) -> None:
    table = perf_events.flag_bits(path.read_text())
    names = (*DECIDES, *OTHERS, *(["__GFP_ATOMIC"] if "__GFP_ATOMIC" in table else []))
    seen = set()
    for chosen in itertools.product((False, True), repeat=len(names)):
        mask = sum(table[name] for name, is_set in zip(names, chosen, strict=True) if is_set)
        high, waits, none = (bool(mask & table[name]) for name in DECIDES)
        may = high and not waits and not none
        said = f"page=0x1 pfn=0x1 order=1 migratetype=0 gfp_flags={printed(mask, table)}"
        assert bool(re.search(ALLOCATION.keep, said)) == may, said
        seen.add(may)
    assert seen == {True, False}


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_the_kernel_filters_by_its_own_bits(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "events/kmem/mm_page_alloc"
    folder.mkdir(parents=True)
    (folder / "format").write_text(path.read_text())
    table = perf_events.flag_bits(path.read_text())
    waits = table["__GFP_DIRECT_RECLAIM"] | table["__GFP_NOMEMALLOC"]
    assert perf_events.kernel_filter(ALLOCATION, "kmem:mm_page_alloc", tmp_path) == (
        f"order > 0 && gfp_flags & {table['__GFP_HIGH']:#x} && !(gfp_flags & {waits:#x})"
    )


def test_flags_are_read_from_every_kernels_text() -> None:
    assert len(FORMATS) >= 4
    for path in FORMATS:
        table = perf_events.flag_bits(path.read_text())
        assert table["GFP_ATOMIC"] & table["__GFP_HIGH"]
        assert table["GFP_KERNEL"] & table["__GFP_DIRECT_RECLAIM"]
        assert len(table) >= 35


def test_a_kernel_that_names_no_flags_is_filtered_by_order_alone(tmp_path: Path) -> None:
    assert perf_events.kernel_filter(ALLOCATION, "kmem:mm_page_alloc", tmp_path) == "order > 0"
    hostile = '{ (__import__("os").abort(), 1), "__GFP_HIGH"}, { 1 << 9999999999, "__GFP_X"}'
    assert "__GFP_HIGH" not in perf_events.flag_bits(hostile)
    assert perf_events.flag_bits("{(1UL << 5), " + '"A"}') == {"A": 32}


# What a recording says


def allocated(order: int, flags: str, *, page: str = "page=0x1 pfn=0x1", pid: int = 7) -> bytes:
    """An allocation, as perf prints it."""
    text = f"{page} order={order} migratetype=0 gfp_flags={flags}".encode()
    frames = stack("do_syscall_64", "sock_alloc", "__alloc_pages")
    return header(pid=pid, event="kmem:mm_page_alloc", rest=text) + frames + b"\n"


def test_who_reserves_is_told_by_order_from_what_perf_recorded() -> None:
    folder = fold((DATA / "perf/reserve-7.2.txt").read_bytes(), "atomic-alloc")
    folder.finish()
    assert folder.allocations == {3: Counter(attempts=9, reservations=3, from_reserve=1)}
    reserve = folder.events["mmscope:reserve"]
    assert reserve.samples == 3 and not reserve.removed
    for found in reserve.stacks:
        assert "skb_page_frag_refill_[k]" in found
        assert found.endswith("get_page_from_freelist_[k];move_freepages_block_[k]")


def test_an_interrupted_task_is_not_blamed() -> None:
    folder = fold((DATA / "perf/reserve-7.2.txt").read_bytes(), "atomic-alloc")
    for event in folder.events.values():
        for found in event.stacks:
            assert found.startswith("(interrupt);")
            assert "kswapd" not in found and "do_syscall" not in found


def test_allocations_on_an_idle_cpu_count() -> None:
    rest = b"page=0x1 pfn=0x1 order=1 migratetype=0 gfp_flags=GFP_ATOMIC"
    names = ("do_idle", "default_idle", "asm_sysvec_x", "handle_softirqs", "__alloc_pages")
    text = header(b"swapper", event="kmem:mm_page_alloc", rest=rest) + stack(*names) + b"\n"
    assert fold(text, "atomic-alloc").allocations[1]["attempts"] == 1
    # A sampler's time in a softirq is no idle time, either.
    assert fold(sampled(*names)).events["cpu-clock"].samples == 1


@pytest.mark.parametrize(
    "flags",
    [
        "GFP_ATOMIC|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP|__GFP_NOMEMALLOC",  # page_frag_cache
        "GFP_KERNEL|__GFP_HIGH",
        "GFP_ATOMIC|__GFP_DIRECT_RECLAIM",  # GFP_NOIO|__GFP_HIGH
        "GFP_NOWAIT",
        "GFP_NOWAIT|__GFP_HIGHMEM",
        "GFP_KERNEL",
    ],
)
def test_who_may_not_use_the_reserve_is_not_counted(flags: str) -> None:
    folder = fold(allocated(3, flags) + allocated(2, "GFP_ATOMIC|__GFP_COMP"), "atomic-alloc")
    assert folder.allocations == {2: Counter(attempts=1)}
    assert folder.events["kmem:mm_page_alloc"].removed == {"not asked for": 1}


def test_an_allocation_without_a_page_failed() -> None:
    text = allocated(1, "GFP_ATOMIC", page="page=(nil) pfn=0x0")
    text += allocated(1, "GFP_ATOMIC", page="page=0x100190 pfn=0x100190")
    text += allocated(3, "GFP_ATOMIC", page="page=(nil) pfn=0")
    folder = fold(text, "atomic-alloc")
    assert folder.allocations == {
        1: Counter(attempts=2, failures=1),
        3: Counter(attempts=1, failures=1),
    }
    assert folder.events["kmem:mm_page_alloc"].found == {
        "order 1": 1,
        "order 1, failed": 1,
        "order 3, failed": 1,
    }


# arm64's text of an event that prints a struct page.
RAW = b"[FAILED TO PARSE] pfn=%s order=%d gfp_flags=0x52820 migratetype=0"


def raw(order: int, pfn: bytes = b"0x61610") -> bytes:
    traced = ["__traceiter_mm_page_alloc"] * 2  # by its program counter, and by its link register
    frames = stack("el0_svc", "sock_alloc", "__alloc_pages_noprof", *traced)
    return header(event="kmem:mm_page_alloc", rest=RAW % (pfn, order)) + frames + b"\n"


def test_flags_without_names_are_believed_where_the_kernel_has_filtered() -> None:
    text = raw(3) + raw(3, b"0xffffffffffffffff") + raw(1)
    folder = fold(text, "atomic-alloc", filtered={"kmem:mm_page_alloc"})
    assert folder.allocations == {
        3: Counter(attempts=2, failures=1),
        1: Counter(attempts=1),
    }


def test_what_arm64_adds_to_the_stack_of_a_tracepoint_is_none_of_it() -> None:
    kernel = stack("el0_svc", "sock_alloc", "__alloc_pages_noprof", "move_freepages_block")
    reserve = header(event="mmscope:reserve_99", rest=b"(ff) to=3") + kernel + b"\n"
    folder = fold(reserve + raw(3), "atomic-alloc", filtered={"kmem:mm_page_alloc"})
    assert folder.allocations == {3: Counter(attempts=1, reservations=1)}
    (found,) = folder.events["kmem:mm_page_alloc"].stacks
    assert found.endswith("__alloc_pages_noprof_[k]")
    # Of a sampler it is where the CPU was.
    (found,) = fold(sampled("el0_svc", "__traceiter_mm_page_alloc")).events["cpu-clock"].stacks
    assert found.endswith("__traceiter_mm_page_alloc_[k]")


def test_flags_without_names_are_no_answer_elsewhere() -> None:
    folder = fold(raw(3) + allocated(2, "GFP_KERNEL"), "atomic-alloc")
    assert not folder.allocations
    removed = {"flags as numbers": 1, "not asked for": 1}
    assert folder.events["kmem:mm_page_alloc"].removed == removed


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_the_kernel_has_filtered_where_it_names_all_flags(path: Path, tmp_path: Path) -> None:
    asked = (ALLOCATION, "kmem:mm_page_alloc", tmp_path)
    assert not perf_events.chooses_alone(*asked)
    folder = tmp_path / "events/kmem/mm_page_alloc"
    folder.mkdir(parents=True)
    (folder / "format").write_text(path.read_text())
    assert perf_events.chooses_alone(*asked)


def test_a_reservation_whose_allocation_is_missing_has_no_order() -> None:
    line = header(event="mmscope:reserve_99", rest=b"(ff) to=3")
    frames = stack("do_syscall_64", "__alloc_pages", "get_page", "move_freepages_block")
    folder = fold(line + frames + b"\n" + allocated(1, "GFP_ATOMIC"), "atomic-alloc")
    folder.finish()
    assert folder.allocations == {1: Counter(attempts=1), None: Counter(reservations=1)}


# Waiting and holding


def at(event: str, microseconds: int, pid: int = 7, rest: bytes = b"") -> bytes:
    return header(pid=pid, time=f"1.{microseconds:06d}000", event=f"mmscope:{event}_9", rest=rest)


BEGIN, END = at("rmap_walk_anon", 0), at("rmap_walk_anon_return", 50)
WAITS = at("read_wait", 10), at("read_wait_return", 40)
# Somebody else's wait is none of this walk's.
OTHERS_WAIT = at("read_wait", 11, pid=8) + at("read_wait_return", 12, pid=8)


def test_waiting_for_the_lock_is_told_from_holding_it() -> None:
    text = BEGIN + WAITS[0] + OTHERS_WAIT + WAITS[1] + END
    found = {name: list(v) for name, v in fold(text, "rmap").durations.items()}
    assert found == {
        "rmap_walk_anon": [50_000],
        "rmap_walk_anon, waiting": [30_000],
        "rmap_walk_anon, not waiting": [20_000],
        "read_wait": [1_000, 30_000],
    }


def test_where_waits_cannot_be_seen_the_whole_is_told_alone() -> None:
    folder = Fold(recipes.load("rmap"), None, KNOWN)
    folder.set_recording(["mmscope:read_wait", "mmscope:read_wait_return"], ())
    for sample in read_samples(io.BytesIO(BEGIN + END), Reading()):
        folder.add(sample)
    assert {name: list(v) for name, v in folder.durations.items()} == {"rmap_walk_anon": [50_000]}


def ksm_walk(node: str, begin: int, *callers: str, waits: bytes = b"") -> bytes:
    """A walk of a KSM page of 50 µs; *callers* end with who is returned to."""
    frames = stack("do_syscall_64", *callers, "rmap_walk_ksm") + b"\n"
    back = f"(ff <- f7)               f7 {callers[-1]} ([kernel.kallsyms])".encode()
    start = at("rmap_walk_ksm", begin, rest=f"(ff) node={node}".encode())
    return start + frames + waits + at("rmap_walk_ksm_return", begin + 50, rest=back)


MOVE = ("migrate_pages_batch", "migrate_folio_move")
UNMAP = ("migrate_pages_batch", "try_to_migrate")


def test_walks_of_ksm_pages_that_nothing_ends_before_are_told_by_their_node() -> None:
    waits = at("read_wait", 310) + at("read_wait_return", 340)
    text = ksm_walk("0xff01", 0, *UNMAP) + ksm_walk("0xff01", 100, *MOVE)
    text += ksm_walk("0xff01", 300, "remove_migration_ptes", "rmap_walk", waits=waits)
    text += ksm_walk("0xff01", 400, "try_to_migrate", "rmap_walk")
    text += ksm_walk("0xff02", 500, "migrate_pages_batch")
    folder = fold(text, "rmap")
    assert len(folder.durations["rmap_walk_ksm"]) == 5
    assert folder.about == {
        ("rmap_walk_ksm", 0xFF01): (2, 70_000, 20_000, 50_000),
        ("rmap_walk_ksm", 0xFF02): (1, 50_000, 50_000, 50_000),
    }


def test_a_stack_that_lacks_the_caller_does_not_make_a_walk_whole() -> None:
    """As on arm64: it shows who called try_to_migrate()."""
    text = ksm_walk("0xff01", 0, *UNMAP).replace(
        b"\tffffffff8161df68 try_to_migrate ([kernel.kallsyms])\n", b""
    )
    folder = fold(text, "rmap")
    assert len(folder.durations["rmap_walk_ksm"]) == 1 and folder.about == {}
    assert b"migrate_pages_batch" in text and b" try_to_migrate " in text


def test_walks_of_more_ksm_pages_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_ABOUT", 1)
    walks = [ksm_walk(f"0x{n}", 100 * n, *MOVE) for n in (1, 2, 1, 2)]
    folder = fold(b"".join(walks), "rmap")
    assert folder.about == {("rmap_walk_ksm", 1): (2, 100_000, 50_000, 50_000)}
    assert folder.more_about == 2


# Probes. A folder with a file stands for tracefs: lab/test_profiles.py has the kernel's.


@pytest.fixture
def tracefs(tmp_path: Path) -> Path:
    (tmp_path / "kprobe_events").touch()
    return tmp_path


def lines(tracefs: Path) -> list[str]:
    return (tracefs / "kprobe_events").read_text().splitlines()


def test_each_recording_has_probes_of_its_own(tracefs: Path) -> None:
    pid = os.getpid()
    with made([Probe("walk", ("rmap_walk",), returns=True)], tracefs) as probes:
        assert probes.names == {
            "mmscope:walk": f"mmscope:walk_{pid}",
            "mmscope:walk_return": f"mmscope:walk_return_{pid}",
        }
        assert lines(tracefs) == [
            f"p:mmscope/walk_{pid} rmap_walk",
            f"r4096:mmscope/walk_return_{pid} rmap_walk",
        ]
        profile = f"  walk_{pid}   12   0\n  walk_return_{pid}   10   2\n  walk_1   5   5\n"
        (tracefs / "kprobe_profile").write_text(profile)
        assert probes.missed() == {"mmscope:walk": 0, "mmscope:walk_return": 2}
    assert lines(tracefs)[2:] == [f"-:mmscope/walk_{pid}", f"-:mmscope/walk_return_{pid}"]
    assert plain(f"mmscope:walk_return_{pid}") == "mmscope:walk_return"
    assert plain("kmem:order_9") == "kmem:order_9"


def test_of_a_probe_with_a_return_the_entry_takes_something_along(tracefs: Path) -> None:
    with made([Probe("walk", ("rmap_walk",), returns=True, fetch=("it=$arg1", ""))], tracefs):
        entry, back = lines(tracefs)
    assert entry.endswith(" rmap_walk it=$arg1") and back.endswith(" rmap_walk")


def gone() -> int:
    """A pid that is nobody's."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_a_killed_recording_left_is_removed(tracefs: Path) -> None:
    dead, me, alive = gone(), os.getpid(), os.getppid()
    (tracefs / "kprobe_events").write_text(
        f"p:mmscope/walk_{dead} rmap_walk\np:mmscope/walk rmap_walk\n"
        f"p:mmscope/walk_{alive} rmap_walk\nr4096:mmscope/walk_{me} rmap_walk\n"
        "p:others/walk_1 rmap_walk\n"
    )
    assert clear_up(tracefs) == []
    removed = [line for line in lines(tracefs) if line.startswith("-:")]
    assert removed == [f"-:mmscope/walk_{dead}", "-:mmscope/walk", f"-:mmscope/walk_{me}"]


def test_what_cannot_be_removed_is_named(tracefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tracefs / "kprobe_events").write_text(f"p:mmscope/walk_{gone()} rmap_walk\n")

    def busy(tracefs: Path, line: str) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(probe_guard, "command", busy)  # a mock of a kernel that has it in use
    (said,) = clear_up(tracefs)
    assert "mmscope:walk_" in said and "in use" in said


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = children.start(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


RECORDING = """
import os, sys, time
from pathlib import Path
from mmscope.perf import perf_probes
from mmscope.perf.recipe import Probe
guard = perf_probes.ProbeGuard(Path({tracefs!r}))
guard.watch({perf_pid})
with perf_probes.made([Probe("walk", ("rmap_walk",))], Path({tracefs!r})):
    print(os.getpid(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_whatever_kills_a_recording_its_perf_ends_and_its_probes_go(
    number: signal.Signals, tracefs: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    program = RECORDING.format(tracefs=str(tracefs), perf_pid=sleeper.pid)
    process = children.start([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert lines(tracefs) == [f"p:mmscope/walk_{pid} rmap_walk"]
        process.send_signal(number)
        process.wait(600)
        # The stand-in of perf ends by SIGINT, as perf does.
        assert sleeper.wait(600) == -signal.SIGINT
        wait_for(lambda: len(lines(tracefs)) > 1)
        assert lines(tracefs)[1] == f"-:mmscope/walk_{pid}"
    finally:
        process.kill()
        process.wait()


def test_the_guard_of_an_orderly_recording_ends_with_it(tracefs: Path) -> None:
    guard = ProbeGuard(tracefs)
    guard.close()
    assert guard._process.returncode == 0 and lines(tracefs) == []
