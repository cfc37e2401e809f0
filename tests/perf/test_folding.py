# SPDX-License-Identifier: LGPL-2.1-or-later
"""Folding: every sample in its place, parts by function name, and limits that hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perf_text import KNOWN, fold, header, sampled, stack

from mmscope.perf import folding, perf_script
from mmscope.perf import recipe as recipes
from mmscope.perf.folding import Fold, Folded
from mmscope.perf.recipe import event_name
from mmscope.perf.stack_parts import UNCLASSIFIED, Split, load_split, plain
from mmscope.reports.profiles import profiles

TALLIES = ("attempts", "reservations", "from_reserve")
EXIT = ("do_syscall_64", "do_exit", "exit_mmap")


def clock(folder: Fold) -> Folded:
    return folder.events["cpu-clock"]


def test_stacks_are_folded_root_first_with_the_comm_before_them() -> None:
    text = sampled("do_exit", "exit_mmap") * 3 + sampled("do_exit")
    assert clock(fold(text)).stacks == {
        "cat;do_exit_[k];exit_mmap_[k]": [3, 3 * 1003009],
        "cat;do_exit_[k]": [1, 1003009],
    }


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"\tffffffff8161df68 ext4_iget ([ext4])\n", "ext4_iget [ext4]_[k]"),
        (b"\tffffffffc061df68 nf_x (/lib/modules/7.2/nf-x.ko.xz)\n", "nf_x [nf_x]_[k]"),
        (b"\tffffffff8161df68 [unknown] ([kernel.kallsyms])\n", "[unknown]_[k]"),
        (b"\t           3e55d [unknown] (/usr/lib/libc.so.6)\n", "[libc.so.6]"),
        (b"\t           3e55d <[u8; 3] as Debug>::fmt (/x)\n", "<[u8\\x3b 3] as Debug>::fmt"),
        (b"\t           3e55d a\x1b[31mb (/x)\n", "a\\x1b[31mb"),
        (b"\t           3e55d acme_[k] (/x)\n", "acme_\\x5bk]"),
    ],
)
def test_a_frame_says_whose_it_is_and_cannot_break_a_stack(line: bytes, name: str) -> None:
    assert list(clock(fold(header() + line + b"\n")).stacks) == [f"cat;{name}"]


# Of both halves, at their ends, padded and not, too long for an address; and names like addresses.
ADDRESSES = (
    "0",
    "1f",
    "7" + "f" * 15,
    "8" + "0" * 15,
    "f" * 16,
    "ffffffff81000000",
    "1" + "0" * 16,
)
SYMBOLS = (
    "x",
    "y",
    "[unknown]",
    "x\n\t12 y",
    "x\n\tffffffff81000000 y",
    "x\t12 y",
    "12 y",
    "x (z)",
)
DSOS = ("", " ([kernel.kallsyms])", " ([ext4])", " (/usr/lib/libc.so.6)", " ([unknown])")
LINES = st.tuples(
    st.sampled_from(ADDRESSES), st.booleans(), st.sampled_from(SYMBOLS), st.sampled_from(DSOS)
)


@given(st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=6))
def test_a_stack_means_the_same_whatever_was_met_before(stacks: list[list[Any]]) -> None:
    """Stacks that differ in addresses alone are looked up once; frame by frame they say as much."""
    text, expected = b"", []
    for lines in stacks:
        printed = "\n\t".join(
            f"{address.rjust(16) if padded else address} {symbol}{dso}"
            for address, padded, symbol, dso in lines
        ).encode()
        text += header() + b"\t" + printed + b"\n\n"
        names: list[str] = []
        around = 0, "", ""
        for line in reversed(printed.split(b"\n\t")):
            found = perf_script.frame(line)
            if found is not None and not found[2] and found[0] == around[0]:
                found = (*found[:2], around[2])  # inlined
            around = found or (0, "", "")
            name = folding.frame_name(*found) if found is not None else ""
            if name and not (name == "[unknown]" and names[-1:] == [name]):
                names.append(name)
        expected.append(";".join(("cat", *names)))
    counted = {stack: expected.count(stack) for stack in expected}
    assert {s: values[0] for s, values in clock(fold(text)).stacks.items()} == counted


def test_a_hostile_comm_is_one_frame() -> None:
    (found,) = clock(fold(sampled("do_exit", comm=b'<img src=x>;"\n'))).stacks
    assert found == '<img src=x>\\x3b";do_exit_[k]'


def test_idle_and_the_profiler_are_left_out_and_counted() -> None:
    text = sampled("do_idle", "default_idle") + sampled("do_exit", comm=b"perf") + sampled("x")
    event = clock(fold(text))
    assert event.samples == 1 and event.removed == {"idle": 1, "profiler": 1}
    assert clock(fold(text, idle=True, profiler=True)).samples == 3


def test_a_command_whose_name_was_lost_is_no_profiler() -> None:
    """A full buffer loses the record of a name, too: what was executed keeps the name before."""
    text = sampled("do_exit", comm=b"perf-exec")
    assert clock(fold(text)).removed == {"profiler": 1}
    assert list(clock(fold(text, command="faults")).stacks) == ["faults;do_exit_[k]"]


def test_a_command_is_followed_to_its_children_and_to_who_reaps_it() -> None:
    fork = b"sh     7/7     [000]     1.000000000: PERF_RECORD_FORK(8:8):(7:7)\n"
    text = (
        sampled("do_exit")
        + fork
        + sampled("do_exit", pid=8)
        + sampled("do_exit", pid=9)
        + sampled("oom_reaper", "__oom_reap_task_mm", "zap_pte_range", comm=b"oom_reaper", pid=40)
    )
    event = clock(fold(text, pids=(7,)))
    assert event.samples == 3 and event.removed == {"other tasks": 1}


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ((*EXIT, "unmap_vmas", "unmap_page_range", "zap_pte_range"), ("exit", "zap")),
        ((*EXIT, "unmap_vmas", "zap_pte_range", "folio_remove_rmap_ptes"), ("exit", "zap")),
        ((*EXIT, "zap_pte_range", "tlb_flush_mmu", "folios_put_refs"), ("exit", "page freeing")),
        ((*EXIT, "free_pgtables", "free_pgd_range"), ("exit", "free_pgtables")),
        ((*EXIT, "free_pgtables", "x", "free_frozen_pages"), ("exit", "free_pgtables")),
        ((*EXIT, "free_pgtables", "asm_sysvec_reboot", "y"), ("exit", "interrupts")),
        (("do_exit", "task_work_run", "____fput"), ("exit", "file close")),
        (("do_exit", "exit_notify"), ("exit", "rest of exit")),
        (("do_exit",), ("exit", "rest of exit")),
        (("exit_mmap.isra.0", "zap_pte_range.constprop.0"), ("last holder", "zap")),
        (("oom_reaper", "oom_reap_task_mm", "unmap_page_range"), ("reaper", "zap")),
        (("begin_new_exec", "exec_mmap", "mmput", "exit_mmap", "unmap_vmas"), ("exec", "zap")),
        (("rcu_core", "tlb_remove_table_rcu"), ("RCU", "tables after RCU")),
        (("oom_reaper", "new_function_of_9_9"), ("reaper", UNCLASSIFIED)),
        (("do_syscall_64", "vfs_read"), None),
    ],
)
def test_the_end_is_split_into_its_parts(names: tuple[str, ...], part: Any) -> None:
    assert load_split("exit-path").classify([plain(name) for name in names]) == part


def plainly(split: Split, symbols: list[str]) -> tuple[str, str] | None:
    """What a split says of a stack, in the words of its description."""
    who = next((w for w in split.who if any(s in w.functions for s in symbols)), None)
    if who is None:
        return None
    for part in split.parts:
        if part.outer and any(symbol in part.functions for symbol in symbols):
            return who.name, part.name
    for symbol in reversed(symbols):
        for part in split.parts:
            if symbol in part.functions:
                return who.name, part.name
    return who.name, UNCLASSIFIED


SPLITS = [load_split(name) for name in ("exit-path", "page-fault")]
FUNCTIONS = sorted(
    {name for s in SPLITS for p in (*s.who, *s.parts) for name in p.functions.exact} | {"", "other"}
)


@given(st.sampled_from(SPLITS), st.lists(st.sampled_from(FUNCTIONS), max_size=6))
def test_functions_that_were_looked_up_before_are_classified_alike(
    split: Split, symbols: list[str]
) -> None:
    assert split.classify(symbols) == plainly(split, symbols)


FAULT = ("asm_exc_page_fault", "exc_page_fault", "handle_mm_fault", "do_anonymous_page")


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (FAULT[:2], "entry and exit"),
        ((*FAULT[:2], "irqentry_exit_to_user_mode"), "entry and exit"),
        ((*FAULT[:2], "lock_vma_under_rcu", "mas_walk"), "VMA and locks"),
        (FAULT, "handling"),
        ((*FAULT, "vma_alloc_folio_noprof", "get_page_from_freelist"), "allocation"),
        (
            (*FAULT, "vma_alloc_folio_noprof", "get_page_from_freelist", "clear_page_erms"),
            "zeroing",
        ),
        ((*FAULT, "__pte_alloc", "get_page_from_freelist", "clear_page_erms"), "page tables"),
        ((*FAULT, "__mem_cgroup_charge", "try_charge_memcg"), "memcg charging"),
        ((*FAULT, "folio_add_lru_vma"), "rmap and LRU"),
        ((*FAULT[:3], "do_fault", "filemap_map_pages", "next_uptodate_folio"), "fault-around"),
        ((*FAULT, "alloc_pages", "__alloc_pages_direct_compact", "x"), "reclaim and compaction"),
        (("asm_exc_page_fault", "nobody_knows"), "entry and exit"),
    ],
)
def test_a_fault_is_split_into_its_parts(names: tuple[str, ...], part: str) -> None:
    assert load_split("page-fault").classify(names) == ("fault", part)


def test_every_part_can_be_reached_and_no_name_is_twice_in_a_split() -> None:
    for name in ("exit-path", "page-fault"):
        split = load_split(name)
        for part in split.parts:
            for function in part.functions.exact:
                others = [p for p in split.parts if p is not part and function in p.functions]
                inner = [p for p in others if not p.outer and not part.outer]
                assert not inner, (function, part.name, [p.name for p in inner])


def reaping(*, pid: int = 7) -> bytes:
    def moment(event: str, time: str) -> bytes:
        head = header(b"oom_reaper", 40, time, "1", event, f"pid={pid}".encode())
        return head + stack("oom_reaper") + b"\n"

    zap = (*EXIT, "zap_pte_range")
    return (
        sampled(*zap, time="1.000000")
        + moment("oom:start_task_reaping", "2.000000")
        + sampled("oom_reaper", "zap_pte_range", comm=b"oom_reaper", pid=40, time="2.100000")
        + sampled(*zap, time="2.200000")
        + moment("oom:finish_task_reaping", "3.500000")
        + sampled(*zap, time="4.000000") * 2
        + sampled(*zap, time="4.100000", pid=99)
    )


def test_what_a_victim_does_again_is_told_from_what_others_do() -> None:
    folder = fold(reaping(), "oom")
    assert folder.again == {"reaper": 1, "beside": 1, "after": 2}
    assert list(folder.durations["reaping"]) == [1_500_000_000]
    assert [event for _, event, *_ in folder.timeline] == [
        "oom:start_task_reaping",
        "oom:finish_task_reaping",
    ]


def test_pairs_are_those_of_one_task() -> None:
    begin, end = "vmscan:mm_vmscan_direct_reclaim_begin", "vmscan:mm_vmscan_direct_reclaim_end"
    text = b"".join(
        header(b"a", pid, time, "1", event, b"order=3") + stack("x") + b"\n"
        for pid, time, event in (
            (1, "1.000000", begin),
            (2, "1.000100", begin),
            (2, "1.000300", end),
            (1, "1.001000", end),
            (3, "1.002000", end),
        )
    )
    folder = fold(text, "reclaim")
    assert sorted(folder.durations["direct reclaim"]) == [200_000, 1_000_000]
    assert set(folder.events[begin].stacks) == {"a;order 3;x_[k]"}


def test_only_atomic_allocations_are_kept() -> None:
    event = "kmem:mm_page_alloc"
    text = b"".join(
        header(b"a", 1, "1.000000", "1", event, b"page=1 pfn=0x1 order=2 migratetype=0 " + flags)
        + stack("x")
        + b"\n"
        for flags in (
            b"gfp_flags=GFP_ATOMIC|__GFP_NOWARN",
            b"gfp_flags=__GFP_HIGH|__GFP_COMP",
            b"gfp_flags=__GFP_NOWARN|GFP_ATOMIC",
            b"gfp_flags=GFP_KERNEL|__GFP_COMP",
            b"gfp_flags=__GFP_HIGHMEM",
        )
    )
    found = fold(text, "atomic-alloc").events[event]
    assert found.samples == 3 and found.removed == {"not asked for": 2}
    assert set(found.stacks) == {"a;order 2;x_[k]"}


def test_faults_are_counted_by_task_and_region() -> None:
    text = b"".join(
        header(b"a", 1, "1.000000", "1", "minor-faults", f"{address:16x} x (//anon)".encode())
        for address in (0x200000, 0x201000, 0x400000)
    )
    (task,) = fold(text, "page-fault").tasks.values()
    assert (task.faults, len(task.regions), task.first, task.last) == (3, 2, 0x200000, 0x400000)


def test_stacks_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_STACKS", 3)
    event = clock(fold(b"".join(sampled(f"f{n}") for n in range(10)), None))
    assert event.samples == 10 and event.overflow == 7
    assert event.stacks[folding.TOO_MANY][0] == 7


def test_what_is_remembered_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_MAX_KNOWN", 2)
    folder = fold(b"".join(sampled(f"f{n % 5}", comm=b"c%d" % n) for n in range(30)), None)
    assert clock(folder).samples == 30 and folder._understand.cache_info().currsize <= 2


def test_where_interrupts_come_back_on_is_told_with_its_caller() -> None:
    text = sampled("do_exit", "_raw_spin_unlock_irqrestore") * 2 + sampled("exc_page_fault", "x")
    assert clock(fold(text)).sites == {("_raw_spin_unlock_irqrestore", "do_exit"): 2}


def test_reattributed_samples_are_the_callers_and_labelled() -> None:
    stacks = [
        ("a;do_exit_[k];_raw_spin_unlock_irqrestore_[k]", 5),
        ("a;do_exit_[k];x_[k]", 3),
        ("_raw_spin_unlock_irq_[k]", 1),
    ]
    found = list(profiles.reattributed(stacks, KNOWN))
    assert found == [("a;do_exit_[k];(with interrupts off)_[k]", 5), stacks[1], stacks[2]]


def test_samplers_are_known() -> None:
    assert KNOWN.nmi("cpu-clock", "x86_64") == "no"
    assert KNOWN.nmi("cycles", "x86_64") == "yes"
    assert KNOWN.nmi("cycles", "aarch64") == "unknown"
    assert KNOWN.nmi("kmem:mm_page_alloc", "x86_64") == ""


def test_every_recipe_is_whole() -> None:
    for name in recipes.names():
        loaded = recipes.load(name)
        declared = {event_name(choice) for event in loaded.events for choice in event.first_of}
        for pair in loaded.pairs:
            assert {pair.begin, pair.end} <= declared, name
        for words in (loaded.answers, loaded.read, loaded.needs, loaded.overhead):
            assert len(words) > 20, name
        if loaded.split:
            assert load_split(loaded.split).parts
        if loaded.trigger:
            assert loaded.trigger in declared
        made = [f"mmscope:{probe.name}" for probe in loaded.probes if probe.entry]
        made += [f"mmscope:{probe.name}_return" for probe in loaded.probes if probe.returns]
        assert sorted(made) == sorted(event for event in declared if event.startswith("mmscope:"))
        pairs = {pair.name for pair in loaded.pairs}
        assert {pair.waits for pair in loaded.pairs} <= pairs | {""}
        assert {event.tally for event in loaded.events} <= {"", *TALLIES}


def test_a_time_has_nine_decimals() -> None:
    assert folding.nanoseconds(b"12.000001") == 12_000_001_000
    assert folding.nanoseconds(b"12.000001002") == 12_000_001_002
