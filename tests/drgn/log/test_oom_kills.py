# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The OOM killer's records: what two kernels printed in the lab (``data/6.1`` and ``data/7.3``; the
lines of registers and stacks are cut out), changed as a log may be.
"""

import re
from dataclasses import replace

import pytest
from checkout import TESTS
from hypothesis import given, settings
from hypothesis import strategies as st
from log_made import CGROUP_V1, FAILURE, GLOBAL_3_10

from mmscope.drgn.log.mem_info import MemInfo
from mmscope.drgn.log.oom_kills import (
    EXITING,
    KILLED,
    NO_KILL,
    NO_ONE,
    OPEN,
    PANIC,
    OomRecords,
    read_oom_records,
)
from mmscope.drgn.log.records import whole_records
from mmscope.drgn.tables.bounds import Machine, rows_that_cannot_be
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.text.kernel_log import LogRecord, parse_dmesg

DATA = TESTS / "data"
KERNELS = ("6.1", "7.3")
MIB = 1 << 20


def printed(kernel: str) -> str:
    return (DATA / kernel / "oom.dmesg").read_text()


def read(text: str) -> OomRecords:
    return read_oom_records(parse_dmesg(text).records)


def lines(text: str, words: str) -> list[str]:
    return [line for line in text.splitlines(keepends=True) if words in line]


def without(text: str, words: str) -> str:
    assert words in text
    return "".join(line for line in text.splitlines(keepends=True) if words not in line)


def from_line(text: str, words: str) -> str:
    """A log that begins later."""
    return text[text.index(lines(text, words)[0]) :]


@pytest.mark.parametrize("kernel", KERNELS)
class TestPrinted:
    def test_who_asked_and_who_was_killed(self, kernel: str) -> None:
        kills = read(printed(kernel)).kills
        assert [(row.oom, row.victim, row.comm) for row in kills] == [
            (1, 1, "cgroup hog"), (2, 1, "group hog"), (2, 2, "member"), (3, 1, "a) b, (c"),
        ]  # fmt: skip
        assert {(row.outcome, row.uid, row.reaped, row.lacks) for row in kills} == {
            (KILLED, 0, None, None)
        }
        first, _, _, last = kills
        assert (first.invoker, first.invoker_oom_score_adj, first.order) == ("cgroup hog", 200, 0)
        assert first.invoker_pid == first.pid
        assert (first.constraint, first.cgroup_limit) == ("CONSTRAINT_MEMCG", True)
        assert (first.oom_cgroup, first.victim_cgroup, first.cpuset) == (
            "/small, one", "/small, one", "small, one",
        )  # fmt: skip
        assert (first.usage_bytes, first.limit_bytes) == (24 * MIB, 24 * MIB)
        assert (first.gfp_mask, first.gfp_flags) == ("0xcc0", "GFP_KERNEL")
        assert [row.group_kill for row in kills] == [False, True, True, False]
        assert (last.constraint, last.cgroup_limit) == ("CONSTRAINT_NONE", False)
        assert (last.nodemask, last.mems_allowed, last.cpuset) == ("(null)", "0-1", "/")
        assert (last.oom_cgroup, last.victim_cgroup, last.limit_bytes) == (None, "/", None)

    def test_numbers_are_those_of_the_line(self, kernel: str) -> None:
        (line,) = lines(printed(kernel), "Killed process")[-1:]
        last = read(printed(kernel)).kills[-1]
        sizes = [int(size) * 1024 for size in re.findall(r":([0-9]+)kB", line)]
        assert sizes == [
            last.total_vm_bytes, last.anon_bytes, last.file_bytes, last.shmem_bytes,
            last.pgtables_bytes,
        ]  # fmt: skip
        assert last.seconds is not None and f"{last.seconds:.6f}]" in line

    def test_the_tables_of_tasks(self, kernel: str) -> None:
        tasks = read(printed(kernel)).tasks
        assert [(row.oom, row.comm, row.killed, row.oom_score_adj) for row in tasks] == [
            (1, "protected", False, -900), (1, "cgroup hog", True, 200),
            (2, "member", True, 0), (2, "group hog", True, 0),
            (3, "protected", False, -900), (3, "two", False, 0), (3, "a) b, (c", True, 0),
        ]  # fmt: skip
        rows = re.findall(r"\] (\[ +[0-9]+\] +.*)", printed(kernel))
        for row, line in zip(tasks, rows, strict=True):
            numbers = [int(number) for number in re.findall(r"-?\d+", line)]
            kinds = [row.anon_pages, row.file_pages, row.shmem_pages]
            assert numbers[:-1][: 8 if kinds == [None] * 3 else 11] == [
                row.pid, row.uid, row.tgid, row.total_vm_pages, row.rss_pages,
                *(kind for kind in kinds if kind is not None),
                row.pgtables_bytes, row.swap_pages, row.oom_score_adj,
            ][: len(numbers) - 1]  # fmt: skip
            if kernel != "6.1":
                assert sum(kind or 0 for kind in kinds) == row.rss_pages

    def test_memory_of_the_machine_its_nodes_and_zones(self, kernel: str) -> None:
        found = read(printed(kernel))
        values = {(row.node, row.zone, row.counter): row.bytes for row in found.memory}
        assert {row.oom for row in found.memory} == {3}
        zones = [(0, "DMA"), (0, "DMA32"), (1, "Normal")]
        # The whole machine's is printed in pages, before the zones: they moved meanwhile.
        free = sum(values[node, zone, "free"] or 0 for node, zone in zones)
        assert abs((values[-1, "", "free"] or 0) - free) < 4 * MIB
        assert values[-1, "", "pages RAM"] == 393_086 * 4096
        managed = sum(values[node, zone, "managed"] or 0 for node, zone in zones)
        present = sum(values[node, zone, "present"] or 0 for node, zone in zones)
        assert present - managed == values[-1, "", "pages reserved"]
        assert values[-1, "", "Total swap"] == 0
        assert values[0, "", "hugepages_total 2048kB"] == 0
        assert values[1, "", "kernel_stack"] and values[1, "", "isolated(anon)"] == 0
        assert values[0, "DMA", "reserved_highatomic"] == 0
        # Every number of a zone's line.
        (line,) = lines(printed(kernel), "Node 0 DMA free:")
        here = [key for key in values if key[:2] == (0, "DMA")]
        assert len(here) == len(re.findall(r":[0-9]+[kK]B", line))

    def test_free_blocks_add_up(self, kernel: str) -> None:
        rows = read(printed(kernel)).free_blocks
        for zone, node in (("DMA", 0), ("DMA32", 0), ("Normal", 1)):
            here = [row for row in rows if (row.node, row.zone) == (node, zone)]
            (line,) = lines(printed(kernel), f"Node {node} {zone}: ")
            assert [row.order for row in here] == list(range(11))
            assert sum(row.blocks << row.order for row in here) * 4 == int(line.split()[-1][:-2])
            assert all(bool(row.migratetypes) == bool(row.blocks) for row in here)

    def test_memory_of_the_cgroup(self, kernel: str) -> None:
        rows = read(printed(kernel)).cgroup_memory
        here = {row.counter: row.value for row in rows if row.oom == 1}
        assert here["anon"] + here["kernel"] == pytest.approx(24 * MIB, abs=MIB)
        assert here["file"] == here["shmem"] == 0
        assert len(here) == len([row for row in rows if row.oom == 2]) >= 30

    def test_no_value_is_impossible(self, kernel: str) -> None:
        found = read(printed(kernel))
        for rows in (found.kills, found.tasks, found.memory, found.free_blocks):
            described = columns(type(rows[0]))
            assert rows_that_cannot_be("x", described, rows, Machine()) == []


@pytest.mark.parametrize("kernel", KERNELS)
class TestLost:
    """A log that lacks something says what."""

    def test_a_log_that_begins_in_the_table_of_tasks(self, kernel: str) -> None:
        first, *others = read(from_line(printed(kernel), "200 cgroup hog")).kills
        assert (first.comm, first.invoker, first.lacks) == ("cgroup hog", None, "its header")
        assert first.cgroup_limit and [row.lacks for row in others] == [None] * 3

    def test_kills_without_all_the_rest(self, kernel: str) -> None:
        """As where calls are so frequent that the kernel leaves it out."""
        found = read("".join(lines(printed(kernel), "Killed process")))
        assert [row.comm for row in found.kills] == [
            "cgroup hog", "group hog", "member", "group hog", "a) b, (c",
        ]  # fmt: skip
        assert {row.lacks for row in found.kills} == {"its header"}
        assert [row.cgroup_limit for row in found.kills] == [True] * 4 + [False]

    def test_a_log_that_ends_within(self, kernel: str) -> None:
        text = printed(kernel)
        last = read(text[: text.rindex("<6>")]).kills[-1]
        assert (last.oom, last.victim, last.outcome, last.pid) == (3, 0, OPEN, None)

    def test_the_victims_row_is_missing(self, kernel: str) -> None:
        first = read(without(printed(kernel), "200 cgroup hog")).kills[0]
        assert first.lacks == "the victim's row of the table of tasks"

    def test_a_table_that_was_not_printed(self, kernel: str) -> None:
        """A log of vm.oom_dump_tasks=0."""
        text = re.sub(r"<6>\[ +[0-9.]+\] (?:Tasks state|\[ ).*\n", "", printed(kernel))
        assert {row.lacks for row in read(text).kills} == {"the table of tasks"}

    def test_a_damaged_row(self, kernel: str) -> None:
        text = re.sub(r"(\[ +[0-9]+\] +0.*)-900 protected", r"\1-9x0 protected", printed(kernel))
        found = read(text)
        assert found.kills[0].lacks == "rows of the table of tasks, damaged (1)"
        assert [row.comm for row in found.tasks if row.oom == 1] == ["cgroup hog"]

    def test_a_damaged_kill(self, kernel: str) -> None:
        text = printed(kernel).replace("(a) b, (c) total-vm:", "(a) b, (c) total-xx:")
        last = read(text).kills[-1]
        assert (last.outcome, last.lacks) == (OPEN, "the line of a kill, damaged (1)")

    def test_blocks_that_do_not_add_up(self, kernel: str) -> None:
        text = re.sub(r"(Node 0 DMA: .*)= \d+kB", r"\1= 1kB", printed(kernel))
        found = read(text)
        assert found.kills[-1].lacks == "free blocks of a zone, damaged (1)"
        assert "DMA" not in {row.zone for row in found.free_blocks}

    def test_numbers_of_records_tell_how_many_are_lost(self, kernel: str) -> None:
        records = parse_dmesg(printed(kernel)).records
        numbered = [replace(each, sequence=number) for number, each in enumerate(records)]
        cut = [each for each in numbered if "Memory cgroup stats" not in each.text]
        assert read_oom_records(numbered).kills[0].lacks is None
        assert read_oom_records(cut).kills[0].lacks == "1 record that is lost"


class TestMixed:
    def records(self) -> list[LogRecord]:
        return [replace(each, caller="T7") for each in parse_dmesg(printed("7.3")).records]

    def test_lines_of_others_between(self) -> None:
        """Another CPU prints its own memory: by its caller it is not the call's."""
        records = self.records()
        other = [
            replace(each, caller="T8", text=each.text.replace("free:", "free:9"))
            for each in records
            if each.text.startswith(("Node ", "active_anon:", " free:"))
        ]
        mixed = [each for pair in zip(records, other * 9, strict=False) for each in pair]
        mixed += records[len(other * 9) :]
        assert read_oom_records(mixed) == read_oom_records(records)

    def test_lines_of_others_between_without_callers(self) -> None:
        text = printed("7.3")
        (line,) = lines(text, "Node 0 DMA free:")
        again = read(text.replace(line, line + line.replace("free:", "free:9", 1)))
        assert again.kills[-1].lacks == "memory that is there twice, damaged (1)"

    def test_what_continues_a_record_behind_anothers(self) -> None:
        def part(text: str, continues: bool = False, caller: str = "T1") -> LogRecord:
            return LogRecord(None, 5, 6, 0, caller, continues, text)

        parts = [part("oom-kill:"), part("other", caller="T2"), part("constraint=X", True)]
        assert [each.text for each in whole_records(parts)] == ["oom-kill:constraint=X", "other"]
        two = [part("eth0: up"), part("oom-kill:"), part("constraint=X", True)]
        assert [each.text for each in whole_records(two)] == ["eth0: up", "oom-kill:constraint=X"]
        alone = [part("a", True), part("b")]
        assert [each.text for each in whole_records(alone)] == ["a", "b"]

    def test_only_the_kernels_own_records_count(self) -> None:
        """What a program writes to /dev/kmsg has a facility, and looks like the kernel's."""
        records = [replace(each, facility=1) for each in self.records()]
        assert not any(read_oom_records(records))

    def test_a_name_with_a_lines_end_is_whole_in_a_record(self) -> None:
        records = [
            replace(each, continues=False, text=each.text.replace("a) b, (c", "x\nOut of memory"))
            for each in self.records()
        ]
        last = read_oom_records(records).kills[-1]
        assert (last.comm, last.invoker, last.outcome) == (
            "x\nOut of memory", "x\nOut of memory", KILLED,
        )  # fmt: skip


class TestSummary:
    """A name that looks like what follows it: nobody can tell, and nothing is guessed."""

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("task=cgroup hog,pid", "task=x,task=y,pid"),
            ("oom_memcg=/small, one", "oom_memcg=/x,task_memcg=/y"),
            ("cpuset=small, one", "cpuset=x,mems_allowed=9"),
            ("nodemask=(null)", "nodemask=(nulL)"),
        ],
    )
    def test_names_like_keys(self, old: str, new: str) -> None:
        first = read(printed("7.3").replace(old, new)).kills[0]
        assert first.lacks == "the summary, damaged (1)"
        assert (first.cpuset, first.victim_cgroup) == (None, None)
        assert (first.constraint, first.comm) == ("CONSTRAINT_MEMCG", "cgroup hog")

    def test_a_line_of_nothing_but_keys_takes_no_time(self) -> None:
        keys = ",mems_allowed=0,oom_memcg=,task_memcg=,task=,pid=1" * 300
        (line,) = lines(text := printed("7.3"), "oom-kill:constraint=CONSTRAINT_NONE")
        damaged = f"{line[:16]}oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={keys}\n"
        assert "the summary, damaged (1)" in (
            read(text.replace(line, damaged)).kills[-1].lacks or ""
        )

    def test_nodes_with_commas(self) -> None:
        text = printed("7.3").replace("mems_allowed=0-1,global", "mems_allowed=0,2-3,global")
        last = read(text).kills[-1]
        assert (last.mems_allowed, last.victim_cgroup, last.lacks) == ("0,2-3", "/", None)

    def test_a_kernel_that_says_of_a_cgroup_that_there_is_no_constraint(self) -> None:
        """Those before v5.3; and a uid_t printed as ``%d``."""
        text = printed("6.1").replace("constraint=CONSTRAINT_MEMCG", "constraint=CONSTRAINT_NONE")
        text = re.sub(r"(oom-kill:.*,uid=)0", r"\1-2", text)
        assert read(text).kills == read(printed("6.1")).kills

    def test_a_kernel_without_cgroups(self) -> None:
        text = re.sub(r",cpuset=/,.*?,task=", ",task=", printed("7.3"))
        last = read(text).kills[-1]
        assert (last.constraint, last.cpuset, last.victim_cgroup, last.lacks) == (
            "CONSTRAINT_NONE", None, None, None,
        )  # fmt: skip


class TestEnds:
    HEADER = (
        "[    1.000000] java invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=2, "
        "oom_score_adj=0\n"
    )

    @pytest.mark.parametrize(
        ("line", "outcome"),
        [
            ("Out of memory and no killable processes...", NO_ONE),
            ("Kernel panic - not syncing: System is deadlocked on memory", PANIC),
            ("Kernel panic - not syncing: Out of memory: compulsory panic_on_oom is enabled",
             PANIC),
            ("Kernel panic - not syncing: Out of memory: system-wide panic_on_oom is enabled",
             PANIC),
            ("Kernel panic - not syncing: sysrq triggered crash", OPEN),
        ],
    )  # fmt: skip
    def test_nobody_was_killed(self, line: str, outcome: str) -> None:
        (row,) = read(f"{self.HEADER}[    1.000001] {line}\n").kills
        assert (row.outcome, row.victim, row.order, row.pid) == (outcome, 0, 2, None)

    @pytest.mark.parametrize(
        ("adjusted", "adj"),
        [("oomkilladj=0", None), ("oom_adj=0", None), ("oom_adj=0, oom_score_adj=7", 7)],
    )
    def test_a_header_of_2_6(self, adjusted: str, adj: int | None) -> None:
        text = self.HEADER.replace("0xcc0(GFP_KERNEL)", "0xd0")
        (row,) = read(text.replace("oom_score_adj=0", adjusted)).kills
        assert (row.invoker, row.order, row.gfp_mask, row.lacks) == (
            "java", 2, "0xd0", read(self.HEADER).kills[0].lacks,
        )  # fmt: skip
        assert row.invoker_oom_score_adj == adj

    @pytest.mark.parametrize(
        "line",
        [
            "Out of Memory: Killed process 2368 (jserver).",
            "Out of memory: Killed process 2368, UID 501, (jserver).",
        ],
    )
    def test_a_kill_of_older_2_6(self, line: str) -> None:
        lines = ("oom-killer: gfp_mask=0xd0", line)
        (row,) = read("".join(f"Jul 19 05:19:24 h kernel: {each}\n" for each in lines)).kills
        assert (row.outcome, row.pid, row.comm) == ("killed", 2368, "jserver")

    def test_a_limit_of_the_host_is_no_cgroup_s(self) -> None:
        line = "Task in /user.slice killed as a result of limit of host"
        (row,) = read(f"{self.HEADER}[    1.000001] {line}\n").kills
        assert (row.cgroup_limit, row.oom_cgroup, row.victim_cgroup) == (False, None, "/user.slice")

    def test_a_panic_behind_nobody_to_kill_is_the_same_calls(self) -> None:
        text = from_line(printed("7.3"), "invoked oom-killer").partition("oom-kill:")[0]
        text += "Out of memory and no killable processes...\n"
        text += "Kernel panic - not syncing: System is deadlocked on memory\n"
        (call,) = read(text).kills
        assert (call.outcome, call.victim, call.lacks) == (PANIC, 0, None)

    def test_what_the_same_task_prints_later_is_not_the_calls(self) -> None:
        """As of an allocation that fails then (warn_alloc())."""
        records = [
            replace(each, caller="T7")
            for text in ("Out of memory and no killable processes...", "Mem-Info:",
                         "Node 0 DMA free:1kB min:2kB low:3kB high:4kB present:5kB", "5 pages RAM")
            for each in parse_dmesg(f"[    2.000000] {text}\n").records
        ]  # fmt: skip
        header = [replace(each, caller="T7") for each in parse_dmesg(self.HEADER).records]
        found = read_oom_records([*header, *records])
        assert [row.outcome for row in found.kills] == [NO_ONE]
        assert found.memory == []
        assert len(read_oom_records([*header, *records[1:]]).memory) == 6

    def test_a_victim_that_was_exiting(self) -> None:
        line = "Out of memory: OOM victim 7 (x) is already exiting. Skip killing the task"
        (row,) = read(f"{self.HEADER}[    1.000001] {line}\n").kills
        assert (row.outcome, row.pid, row.comm, row.anon_bytes) == (EXITING, 7, "x", None)

    @pytest.mark.parametrize(
        ("line", "reaped"),
        [
            ("oom_reaper: reaped process PID (x), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
             True),
            ("oom_reaper: unable to reap pid:PID (x)", False),
            ("oom_reaper: reaped process 9PID (x), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
             None),
        ],
    )  # fmt: skip
    def test_the_reaper(self, line: str, reaped: bool | None) -> None:
        text = printed("6.1")
        pid = str(read(text).kills[-1].pid)
        kills = read(f"{text}[   30.000000] {line.replace('PID', pid)}\n").kills
        assert [row.reaped for row in kills] == [None, None, None, reaped]

    def test_an_id_beyond_its_sign(self) -> None:
        """``%5d`` of a uid_t."""
        text = re.sub(r"(\[ +[0-9]+\]) +0( .*-900 protected)", r"\1    -2\2", printed("7.3"))
        assert read(text).tasks[0].uid == (1 << 32) - 2


class TestForms:
    """Kernels from 3.10 on."""

    def test_3_10(self) -> None:
        found = read(GLOBAL_3_10)
        (row,) = found.kills
        assert (row.invoker, row.invoker_pid, row.gfp_mask, row.gfp_flags) == (
            "java", 4321, "0x280da", None,
        )  # fmt: skip
        assert (row.comm, row.uid, row.anon_bytes, row.pgtables_bytes, row.lacks) == (
            "java", None, 3_597_240 << 10, None, None,
        )  # fmt: skip
        # nr_ptes are numbers of tables, of a page each.
        assert [task.pgtables_bytes for task in found.tasks] == [13 * 4096, 1902 * 4096]
        assert [task.swap_pages for task in found.tasks] == [13, 501_123]
        values = {(each.node, each.zone, each.counter): each.bytes for each in found.memory}
        assert values[-1, "", "unstable"] == 0
        assert values[-1, "", "shmem"] == 4471 * 4096
        assert values[0, "Normal", "managed"] == 985_328 << 10
        assert row.usable_free_bytes == (15_892 - 4 * 3773 + 54_308 - 4 * 962 + 16_900) << 10
        assert {each.migratetypes for each in found.free_blocks} >= {"Reserve", "Movable"}

    def test_cgroup_v1(self) -> None:
        found = read(CGROUP_V1)
        (row,) = found.kills
        assert (row.cgroup_limit, row.oom_cgroup, row.victim_cgroup, row.cpuset) == (
            True, "/kubepods/pod1", "/kubepods/pod1/c1", "pod1",
        )  # fmt: skip
        assert (row.comm, row.invoker_pid, row.nodemask, row.lacks) == (
            "node", 19_388, "(null)", None,
        )  # fmt: skip
        stats = {each.counter: each.value for each in found.cgroup_memory}
        assert (stats["rss"], stats["cache"]) == (613_460 << 10, 8 << 10)

    @pytest.mark.parametrize(
        ("line", "size", "uid"),
        [
            ("Killed process 7 (x) total-vm:8kB, anon-rss:4kB, file-rss:0kB", None, None),
            ("Killed process 7 (x), UID 33, total-vm:8kB, anon-rss:4kB, file-rss:0kB, "
             "shmem-rss:0kB", None, 33),
            ("Out of memory: Killed process 7 (x) total-vm:8kB, anon-rss:4kB, file-rss:0kB, "
             "shmem-rss:0kB", None, None),
            ("Out of memory: Killed process 7 (x) total-vm:8kB, anon-rss:4kB, file-rss:0kB, "
             "shmem-rss:0kB, UID:33 pgtables:44kB oom_score_adj:-5", 44 << 10, 33),
        ],
    )  # fmt: skip
    def test_lines_of_a_kill(self, line: str, size: int | None, uid: int | None) -> None:
        (row,) = read(f"[    1.000000] {line}\n").kills
        assert (row.pid, row.comm, row.anon_bytes, row.pgtables_bytes, row.uid) == (
            7, "x", 4096, size, uid,
        )  # fmt: skip
        assert (row.outcome, row.lacks) == (KILLED, "its header")

    def test_page_tables_that_5_4_printed_in_another_unit(self) -> None:
        text = re.sub(
            r"pgtables:(\d+)kB", lambda m: f"pgtables:{int(m[1]) << 10}kB", printed("6.1")
        )
        assert read(text).kills == read(printed("6.1")).kills

    @pytest.mark.parametrize("end", ["anon-rss:71658", "anon-rss:7165", "anon-", "a"])
    def test_a_kill_that_was_cut_says_so(self, end: str) -> None:
        line = f"Out of memory: Killed process 7 (x) total-vm:8kB, {end}"
        (row,) = read(f"[    1.000000] {line}\n").kills
        assert (row.pid, row.comm, row.total_vm_bytes, row.anon_bytes) == (7, "x", 8192, None)
        assert row.lacks == "its header; the line of a kill, damaged (1)"

    def test_a_header_that_is_damaged_begins_another_call(self) -> None:
        text = printed("7.3").replace(
            "group hog invoked oom-killer: gfp_mask", "group hog invoked oom-killer: gfp"
        )
        last = read(text).kills
        assert [(row.oom, row.comm) for row in last] == [
            (row.oom, row.comm) for row in read(printed("7.3")).kills
        ]
        assert last[1].invoker == "group hog" and "the header, damaged (1)" in (last[1].lacks or "")

    @pytest.mark.parametrize("stamp", ["", "Nov 14 22:21:01 host kernel: "])
    def test_the_newest_line_first_where_no_clock_tells(self, stamp: str) -> None:
        texts = [record.text for record in parse_dmesg(printed("6.1")).records]
        end = next(at for at, text in enumerate(texts) if "Killed process" in text)
        lines = [stamp + text for text in texts[: end + 1]]
        found, same = read("\n".join(reversed(lines))), read("\n".join(lines))
        assert found.kills == same.kills and found.kills[0].outcome == KILLED
        assert (found.tasks, found.memory) == (same.tasks, same.memory)

    @pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
    @pytest.mark.parametrize("kernel", ["6.1", "7.3"])
    def test_lines_that_a_pager_cut(self, kernel: str, width: int) -> None:
        lines = [f"Nov 14 22:21:01 host kernel: {line}" for line in printed(kernel).splitlines()]
        cut = [line if len(line) <= width else f"{line[: width - 1]}>" for line in lines]
        whole, found = read("\n".join(lines)), read("\n".join(cut))
        for row in found.kills:
            (same,) = (each for each in whole.kills if each.pid == row.pid) if row.pid else (row,)
            assert row.comm == same.comm
            assert {row.total_vm_bytes, row.anon_bytes, row.file_bytes} <= {
                *(same.total_vm_bytes, same.anon_bytes, same.file_bytes, None),
            }  # fmt: skip
            assert "damaged" in (row.lacks or "") or row == same
        assert [row.pid for row in found.kills if row.pid] or width < 120
        # Of a table's rows the names alone are cut, and marked.
        comms = {row.pid: row.comm for row in whole.tasks}
        for task in found.tasks:
            assert comms[task.pid].startswith(task.comm.removesuffix("…"))
            assert task.comm in (comms[task.pid], f"{task.comm.removesuffix('…')}…")
        assert {*found.memory} <= {*whole.memory} or len(whole.kills) != len(found.kills)

    def test_a_kernel_without_cpusets(self) -> None:
        text = re.sub(r",cpuset=.*?,mems_allowed=0-1", "", printed("7.3"))
        first, *_, last = read(text).kills
        assert (first.oom_cgroup, first.victim_cgroup, first.cpuset, first.lacks) == (
            "/small, one", "/small, one", None, None,
        )  # fmt: skip
        assert (last.constraint, last.victim_cgroup, last.nodemask, last.lacks) == (
            "CONSTRAINT_NONE", "/", "(null)", None,
        )  # fmt: skip

    def test_kdump_and_taints_stand_behind_a_name(self) -> None:
        text = printed("7.3").replace("Not tainted", "Kdump: loaded Tainted: G  O")
        assert read(text).kills[0].invoker_pid == 108

    def test_a_failed_allocation_has_a_memory_of_its_own(self) -> None:
        found = read(TestWhoseMemory.HEADER + FAILURE)
        assert (len(found.kills), found.memory, found.free_blocks) == (1, [], [])


class TestWhoseMemory:
    HEADER = (
        "[    1.000000] x invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, "
        "oom_score_adj=0\n"
    )

    @pytest.mark.parametrize(
        ("frame", "cgroup"),
        [
            (" mem_cgroup_out_of_memory+0xec/0x100", True),
            (" [<ffffffff811e5f1d>] mem_cgroup_oom_synchronize+0x54f/0x580", True),
            (" __alloc_pages_slowpath.constprop.0+0xd69/0xde0", False),
            (" ? __alloc_pages_may_oom+0x1/0x2", False),
            (" do_page_fault+0x1/0x2", None),
        ],
    )
    def test_the_stack_says_it_where_the_rest_is_lost(
        self, frame: str, cgroup: bool | None
    ) -> None:
        (row,) = read(f"{self.HEADER}[    1.000001] {frame}\n").kills
        assert (row.cgroup_limit, row.outcome) == (cgroup, OPEN)


class TestGoesOn:
    """That nobody was killed is known only where so much follows that a kill would be there."""

    TEXT = without(without(printed("7.3"), "Killed process"), "Tasks in")

    def test_the_log_ends_there(self) -> None:
        first, second, last = read(self.TEXT).kills
        assert (first.outcome, second.outcome) == (NO_KILL, NO_KILL)  # another call follows
        assert (last.outcome, last.pid) == (OPEN, 116)  # it was chosen

    @pytest.mark.parametrize(("seconds", "outcome"), [(23.5, OPEN), (24.5, NO_KILL)])
    def test_the_log_goes_on(self, seconds: float, outcome: str) -> None:
        assert read(f"{self.TEXT}<6>[{seconds:12.6f}] eth0: up\n").kills[-1].outcome == outcome

    LATER = "<6>[   99.000000] eth0: up\n"

    def test_lines_that_a_console_dropped(self) -> None:
        text = f"{self.TEXT}** 2 printk messages dropped **\n{self.LATER}"
        last = read(text).kills[-1]
        assert (last.outcome, last.lacks) == (OPEN, "2 records that are lost")

    def test_a_log_of_grep_may_lack_the_kill(self) -> None:
        """Kernels before 5.4 have no such word in the line of a kill."""
        kept = [line for line in f"{self.TEXT}{self.LATER}".splitlines() if "oom" in line]
        assert {row.outcome for row in read("\n".join([*kept, self.LATER])).kills} == {OPEN}

    def test_the_reaper_shows_that_a_kill_is_lost(self) -> None:
        line = "oom_reaper: reaped process 116 (x), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
        last = read(f"{self.TEXT}<6>[   99.000000] {line}\n").kills[-1]
        assert (last.outcome, last.pid, last.lacks) == (OPEN, 116, "1 record that is lost")

    def test_a_log_with_lines_that_were_not_understood(self) -> None:
        records = parse_dmesg(f"{self.TEXT}{self.LATER}").records
        assert read_oom_records(records).kills[-1].outcome == NO_KILL
        assert read_oom_records(records, whole=False).kills[-1].outcome == OPEN

    def test_a_log_without_times(self) -> None:
        bare = re.sub(r"(?m)^<\d>\[.*?\] ", "", self.TEXT)
        assert read(f"{bare}eth0: up\n").kills[-1].outcome == OPEN
        assert read(bare + "eth0: up\n" * 8).kills[-1].outcome == NO_KILL


def test_a_kill_as_rhel_6_has_it() -> None:
    text = """\
node invoked oom-killer: gfp_mask=0xd0, order=0, oom_adj=0, oom_score_adj=0
Memory cgroup out of memory: Kill process 15947 (init) score 1 or sacrifice child
Killed process 16944, UID 0, (mingetty) total-vm:4064kB, anon-rss:4kB, file-rss:56kB
"""
    (row,) = read(text).kills
    assert (row.outcome, row.pid, row.comm, row.anon_bytes) == (KILLED, 16944, "mingetty", 4096)


PRINTED = "Killed process 4711 (java) total-vm:8kB, anon-rss:4kB, file-rss:0kB"


@pytest.mark.parametrize(
    "text",
    [
        f"The log has: Out of memory: {PRINTED}. What now?",
        f'I see "Out of memory: {PRINTED}, shmem-rss:0kB, UID:0 oom_score_adj:0" (why?)',
        f"- 12:04 `Out of memory: {PRINTED}` (on node 7)",
        f"| node-7 | Out of memory: {PRINTED} | 12:04 |",
        f"Events:\n  Warning  OOMKilling  2m  kernel-monitor, node-7  Out of memory: {PRINTED}",
        f"{PRINTED}</td></tr>",
        PRINTED.replace(" total", ' in VE "26bc47f6" total'),
    ],
)
def test_a_kill_among_other_words(text: str) -> None:
    (row,) = read(f"{text}\n").kills
    assert (row.outcome, row.pid, row.comm, row.anon_bytes) == (KILLED, 4711, "java", 4096)
    assert row.lacks == "its header"


def test_a_kill_that_is_cut_is_none_among_other_words() -> None:
    (row,) = read("Out of memory: Killed process 4711 (java) total-vm:8kB, anon-rss: 7 GB?\n").kills
    assert (row.outcome, row.pid) == (OPEN, None)


def test_kills_as_openvz_has_them() -> None:
    """As a container's, and as the machine's; how much was anonymous is not printed."""
    end = "OOM killed process 4711 (php-cgi) score 0 vm:281988kB, rss:17004kB, swap:0kB\n"
    container, machine = read(f"Out of memory in UB 1234: {end}Out of memory in UB: {end}").kills
    assert (container.outcome, container.pid, container.comm) == (KILLED, 4711, "php-cgi")
    assert (container.total_vm_bytes, container.anon_bytes) == (281988 << 10, None)
    assert (container.oom_cgroup, machine.oom_cgroup) == ("UB 1234", None)
    assert (container.cgroup_limit, machine.cgroup_limit) == (True, None)


def test_lines_that_a_mail_wrapped_at_blanks_beside_a_programs_words() -> None:
    """However long its other lines are, a line of the kernel's is whole again."""
    text = without(re.sub(r"(?m)^<\d>", "", printed("6.1")), "oom-kill:")
    wrapped = "\n".join(
        line if len(line) < 90 else line[: (at := line.rfind(" ", 0, 74))] + "\n" + line[at + 1 :]
        for line in text.split("\n")
    )
    now, before = read(f"Writing inodes: done {wrapped}"), read(text)
    assert [each.bytes for each in now.memory] == [each.bytes for each in before.memory]
    assert [each.invoker for each in now.kills] == [each.invoker for each in before.kills]


def test_blocks_of_which_the_end_is_cut_tell_the_size_of_a_page() -> None:
    memory = MemInfo()
    memory.take("Node 0 DMA32: 0*64kB 1*128kB (U) 2*256kB (UM) 2*512kB (UM) 2*1024kB (U)B")
    assert memory.page_bytes() == 64 << 10 and memory.damaged


class TestUsable:
    """Free memory that the request could use (``__zone_watermark_ok()``)."""

    def usable(self, mask: str, zones: str, more: str = "") -> int | None:
        header = f"x invoked oom-killer: gfp_mask={mask}, order=0, oom_score_adj=0\n"
        return read(f"{header}Mem-Info:\n{zones}{more}").kills[0].usable_free_bytes

    ZONES = (
        "Node 0 DMA free:13312kB boost:0kB min:64kB low:80kB high:96kB\n"
        "lowmem_reserve[]: 0 3191 15659 15659 15659\n"
        "Node 0 DMA32 free:63304kB boost:0kB min:13760kB low:17200kB high:20640kB\n"
        "lowmem_reserve[]: 0 0 12468 12468 12468\n"
        "Node 0 Normal free:61900kB boost:8192kB min:61948kB low:75384kB free_cma:4kB\n"
        "lowmem_reserve[]: 0 0 0 0 0\n"
    )

    def test_what_is_kept_for_lower_zones(self) -> None:
        usable = self.usable("0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO)", self.ZONES)
        assert usable == (63_304 - 4 * 12_468 + 61_900) << 10

    def test_cma_is_of_movable_memory(self) -> None:
        usable = self.usable("0xcc0(GFP_KERNEL)", self.ZONES)
        assert usable == (63_304 - 4 * 12_468 + 61_896) << 10

    def test_a_request_of_a_lower_zone(self) -> None:
        # Its own zones' reserves for it are smaller.
        assert (
            self.usable("0xcc4(GFP_KERNEL|GFP_DMA32)", self.ZONES)
            == (max(13_312 - 4 * 3191, 0) + 63_304) << 10
        )
        assert self.usable("0xcc1(GFP_KERNEL|GFP_DMA)", self.ZONES) == 13_312 << 10

    def test_nodes_that_were_allowed(self) -> None:
        zones = self.ZONES + self.ZONES.replace("Node 0", "Node 1")
        one = self.usable("0x140dca(GFP_HIGHUSER_MOVABLE), nodemask=1", zones)
        assert one == (63_304 - 4 * 12_468 + 61_900) << 10
        assert self.usable("0x140dca(GFP_HIGHUSER_MOVABLE), nodemask=(null)", zones) == 2 * one

    def test_what_is_not_known(self) -> None:
        assert self.usable("0xcc0(GFP_KERNEL|__GFP_THISNODE)", self.ZONES) is None
        assert self.usable("0xcc0(GFP_KERNEL)", self.ZONES.partition("lowmem")[0]) is None
        blocks = "Node 0 Movable: 1*4kB (M) 0*8kB 0*16kB 0*32kB 0*64kB = 4kB\n"
        assert self.usable("0xcc0(GFP_KERNEL)", self.ZONES, blocks) is None


WORDS = [
    *re.findall(r"\] (.*)", printed("6.1")), *re.findall(r"\] (.*)", printed("7.3")),
    "oom_reaper: reaped process 96 (x), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "Out of memory and no killable processes...", "active_anon:1", "x" * 9000, "",
]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.text(max_size=80),
    st.tuples(st.sampled_from(WORDS), st.integers(0, 300), st.text(max_size=5)).map(
        lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] :]
    ),
)
RECORDS = st.builds(
    LogRecord,
    st.one_of(st.none(), st.integers(0, 1 << 63)),
    st.one_of(st.none(), st.integers(0, 1 << 63)),
    st.integers(0, 7),
    st.sampled_from([None, 0, 0, 0, 1]),
    st.sampled_from([None, "T96", "T97", "C1", "T99999999999"]),
    st.booleans(),
    TEXTS,
)


@settings(max_examples=80)
@given(st.lists(RECORDS, max_size=60))
def test_any_log_gives_rows_that_can_be(records: list[LogRecord]) -> None:
    found = read_oom_records(records)
    assert len(found.kills) <= len(records)
    keys = [(row.oom, row.victim) for row in found.kills]
    assert len(set(keys)) == len(keys)
    assert {row.oom for row in found.tasks} <= {row.oom for row in found.kills}
    keys = [(row.oom, row.pid) for row in found.tasks]
    assert len(set(keys)) == len(keys)


def test_lines_that_only_a_kill_prints_begin_one_whose_header_is_cut() -> None:
    lines = CGROUP_V1.splitlines(keepends=True)
    for first in ("Task in /", "memory: usage ", "Memory cgroup stats for "):
        at = next(at for at, line in enumerate(lines) if first in line)
        (kill,) = read_oom_records(parse_dmesg("".join(lines[at:])).records).kills
        assert (kill.comm, kill.lacks, kill.cgroup_limit) == ("node", "its header", True)
        assert (kill.oom_cgroup or "").startswith("/kubepods/pod1")
        assert (kill.limit_bytes == 614400 << 10) is ("stats" not in first)
