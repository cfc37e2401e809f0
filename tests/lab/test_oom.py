# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's log and the OOM killer's records out of a vmcore, against the text that the same kernel
gave to syslog(2) before it was frozen. What the OOM killer was made to do: guest/workload_oom.c.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from capture import Capture, capture
from conftest import KERNELS
from drgn import Program

from mmscope.drgn.log.oom_kills import KILLED, OomRecords, read_oom_records
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.kernel_log import Log, parse_dmesg
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.redact import Names, redact
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.question import OURS

MIB = 1 << 20
# guest/workload_oom.c
SHORT, FILLED = 3200, 3720
DESCRIPTORS = 4096
NAMES = ("cgroup hog", "group hog", "member", "keyboard", "cpuset hog", "policy hog", "a) b, (c")
BYSTANDERS = ("protected", "two\nlines")


@dataclass(frozen=True)
class OomLab:
    """A frozen guest whose OOM killer was at work."""

    capture: Capture
    prog: Program
    log: Log
    oom: OomRecords

    @property
    def printed(self) -> str:
        text = (self.capture.truth_b / "dmesg").read_bytes()
        return text.decode("utf-8", "backslashreplace")


@pytest.fixture(scope="module", params=KERNELS)
def oom_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> OomLab:
    taken = capture(request.param, "oom", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    log = log_records(prog)
    return OomLab(taken, prog, log, read_oom_records(log.records))


def syslog(log: Log) -> list[str]:
    """Lines as the system call gives them, which kernel/printk/printk.c makes of records."""
    lines = []
    for record in log.records:
        assert record.nanoseconds is not None
        seconds, rest = divmod(record.nanoseconds, 10**9)
        priority = (record.facility or 0) << 3 | (record.level or 0)
        prefix = f"<{priority}>[{seconds:5d}.{rest // 1000:06d}] "
        lines += [prefix + line for line in record.text.split("\n")]
    return lines


def test_the_log_is_that_of_syslog_line_by_line(oom_lab: OomLab) -> None:
    ours, theirs = syslog(oom_lab.log), oom_lab.printed.removesuffix("\n").split("\n")
    changes = [
        line
        for line in difflib.unified_diff(theirs, ours, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    # Where memory.stat is one record, syslog(2) has no room for its last lines.
    assert all(re.fullmatch(r"\+<6>\[ +[0-9.]+\] [a-z_]+ [0-9]+", line) for line in changes)
    assert len(changes) < 40
    assert len(ours) > 900


def test_the_log_went_round_and_says_so(oom_lab: OomLab) -> None:
    log = oom_lab.log
    assert (log.lost, log.left_out) == (0, 0)
    numbers = [record.sequence for record in log.records]
    assert log.overwritten == numbers[0] and numbers[0] > 0
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    ring = oom_lab.prog["prb"].desc_ring
    slots = (ring.tail_id.counter.value_(), ring.head_id.counter.value_())
    assert 1 << ring.count_bits.value_() == DESCRIPTORS
    assert slots[0] % DESCRIPTORS > slots[1] % DESCRIPTORS, "the descriptors did not go round"
    filled = [record for record in log.records if record.text.startswith("lab line ")]
    assert 0 < len(filled) < FILLED
    # Of each text its length is known, so that one that wrapped would show.
    for record in filled:
        number = int(record.text.split()[2])
        width = 1 if number < SHORT else 1 + number * 37 % 331
        assert record.text == f"lab line {number} {'0' * width}"


def test_who_wrote_a_record(oom_lab: OomLab) -> None:
    records = {record.text: record for record in oom_lab.log.records}
    odd = next(record for text, record in records.items() if text.startswith("tab\there"))
    assert odd.text == "tab\there, escape \x1b[31m red, \\xff\\xfe no text, é text, back\\slash"
    assert (odd.facility, odd.level, odd.caller) == (1, 5, "T1")
    killer = next(record for text, record in records.items() if "Killed process" in text)
    assert killer.facility == 1  # the forged one
    assert {record.caller for record in records.values() if record.text == "Mem-Info:"} >= {"T1"}


def test_every_kill_is_told(oom_lab: OomLab) -> None:
    kills = oom_lab.oom.kills
    assert [row.comm for row in kills] == [
        "cgroup hog", "group hog", "member", "keyboard", "cpuset hog", "policy hog", "a) b, (c",
    ]  # fmt: skip
    assert [row.oom for row in kills] == [1, 2, 2, 3, 4, 5, 6]
    assert {(row.outcome, row.uid, row.lacks) for row in kills} == {(KILLED, 0, None)}
    assert [row.constraint for row in kills] == [
        f"CONSTRAINT_{name}"
        for name in ("MEMCG", "MEMCG", "MEMCG", "NONE", "CPUSET", "MEMORY_POLICY", "NONE")
    ]
    assert [row.order for row in kills] == [0, 0, 0, -1, 0, 0, 0]
    assert [row.group_kill for row in kills] == [False, True, True] + [False] * 4
    assert [row.allocating_task for row in kills] == [False] * 5 + [True, False]
    assert [row.oom_score_adj for row in kills] == [200, 0, 0, 1000, 0, 0, 0]
    assert [row.limit_bytes for row in kills] == [24 * MIB, 8 * MIB, 8 * MIB] + [None] * 4
    assert [row.oom_cgroup for row in kills] == ["/small, one", "/group", "/group"] + [None] * 4
    assert [row.mems_allowed for row in kills] == ["0-1"] * 4 + ["0", "0-1", "0-1"]
    assert [row.nodemask for row in kills] == ["(null)"] * 5 + ["0", "(null)"]
    assert kills[4].cpuset == "node 0" and kills[4].victim_cgroup == "/node 0"
    for row in kills:
        if row.oom != 3 and row.victim == 1:
            assert (row.invoker, row.invoker_pid) == (row.comm, row.pid)
    assert kills[3].invoker is not None and kills[3].invoker.startswith("kworker/")


def test_what_a_victim_held_is_what_it_took(oom_lab: OomLab) -> None:
    by_comm = {row.comm: row for row in oom_lab.oom.kills}
    anon = {comm: row.anon_bytes or 0 for comm, row in by_comm.items()}
    # 16 of the cgroup's 24 MiB are the protected task's.
    assert 7 * MIB < anon["cgroup hog"] < 8.5 * MIB
    # Before "mm: convert mm's rss stats into percpu_counter" (f1a7941243c1, v6.2) a task keeps up
    # to 64 pages that it has not told its mm of.
    least = MIB - 64 * 4096 if oom_lab.capture.series in ("5.10", "6.1") else MIB
    assert least <= anon["member"] < 1.5 * MIB and least <= anon["keyboard"] < 1.5 * MIB
    assert 300 * MIB < anon["cpuset hog"] < 512 * MIB
    assert 300 * MIB < anon["policy hog"] < 512 * MIB
    assert 1100 * MIB < anon["a) b, (c"] < 1536 * MIB
    assert (by_comm["a) b, (c"].total_vm_bytes or 0) > 2048 * MIB


def test_tables_of_tasks(oom_lab: OomLab) -> None:
    tasks = oom_lab.oom.tasks
    names = {oom: [row.comm for row in tasks if row.oom == oom] for oom in range(1, 7)}
    assert names[1] == ["protected", "cgroup hog"]
    assert names[2] == ["member", "group hog"]
    assert names[3] == [*BYSTANDERS, "keyboard"]
    assert names[6] == [*BYSTANDERS, "a) b, (c"]
    for row in oom_lab.oom.kills:
        (task,) = (task for task in tasks if (task.oom, task.pid) == (row.oom, row.pid))
        assert task.killed and task.pgtables_bytes == row.pgtables_bytes
        assert task.oom_score_adj == row.oom_score_adj
        held = (row.anon_bytes or 0) + (row.file_bytes or 0) + (row.shmem_bytes or 0)
        # The victim may get some more pages until it is killed.
        assert abs(task.rss_pages * 4096 - held) < MIB
    assert sum(task.killed for task in tasks) == len(oom_lab.oom.kills)


def test_memory_that_there_was(oom_lab: OomLab) -> None:
    memory = {(row.oom, row.node, row.zone, row.counter): row.bytes for row in oom_lab.oom.memory}
    # A cgroup's call prints the cgroup's memory, the others the machine's.
    assert {key[0] for key in memory} == {3, 4, 5, 6}
    assert {row.oom for row in oom_lab.oom.cgroup_memory} == {1, 2}
    # Of nodes that are not allowed nothing is printed.
    shown = [key for key in memory if not key[3].startswith("hugepages")]
    if oom_lab.capture.series != "5.10":  # hugetlb_show_meminfo() of 5.10 prints every node
        shown = list(memory)
    nodes = {oom: {key[1] for key in shown if key[0] == oom} for oom in (3, 4, 5, 6)}
    assert nodes == {3: {-1, 0, 1}, 4: {-1, 0}, 5: {-1, 0}, 6: {-1, 0, 1}}
    low, high = oom_lab.capture.architecture.zones
    for oom, zone, node in ((4, low, 0), (5, low, 0), (6, low, 0), (6, high, 1)):
        free, wmark = memory[oom, node, zone, "free"], memory[oom, node, zone, "min"]
        assert free is not None and wmark is not None
        # zone_watermark_ok(), of an allocation that may not have CMA's pages
        assert free - (memory.get((oom, node, zone, "free_cma")) or 0) <= wmark
        here = (oom, node, zone)
        blocks = [r for r in oom_lab.oom.free_blocks if (r.oom, r.node, r.zone) == here]
        found = sum(row.blocks << row.order for row in blocks) * 4096
        assert abs(found - free) < MIB
    # Zones do not change in size: the kernel's own /proc says the same at the end.
    zoneinfo = (oom_lab.capture.truth_b / "proc/zoneinfo").read_text()
    for node, zone in {(0, "DMA"), (0, low), (1, high)}:
        (text,) = re.findall(rf"Node {node}, zone +{zone}\n.*?managed +(\d+)", zoneinfo, re.DOTALL)
        assert memory[6, node, zone, "managed"] == int(text) * 4096


def test_memory_stat_of_a_cgroup(oom_lab: OomLab) -> None:
    stats = {(row.oom, row.counter): row.value for row in oom_lab.oom.cgroup_memory}
    kills = {row.oom: row for row in oom_lab.oom.kills}
    for oom in (1, 2):
        usage = kills[oom].usage_bytes
        assert usage is not None
        kernel = ("kernel",)
        if oom_lab.capture.series == "5.10":  # which has no sum of what it is (v5.18)
            kernel = "kernel_stack", "percpu", "sock", "slab"
        charged = sum(stats[oom, name] for name in ("anon", "file", *kernel))
        # Charges that CPUs hold in advance (memcg_stock) are in usage alone.
        assert usage - MIB < charged <= usage + MIB


def test_the_text_gives_the_same(oom_lab: OomLab) -> None:
    """But for what it cannot: names with a line's end, and lines that it has no room for."""
    said = read_oom_records(parse_dmesg(oom_lab.printed).records)
    assert said.kills == oom_lab.oom.kills
    assert said.memory == oom_lab.oom.memory
    assert said.free_blocks == oom_lab.oom.free_blocks
    assert said.tasks == [
        replace(row, comm=row.comm.partition("\n")[0]) for row in oom_lab.oom.tasks
    ]
    assert set(said.cgroup_memory) <= set(oom_lab.oom.cgroup_memory)


def test_a_forged_kill_is_none(oom_lab: OomLab) -> None:
    forged = [record for record in oom_lab.log.records if "Killed process 1 (init)" in record.text]
    assert len(forged) == 1
    assert "init" not in {row.comm for row in oom_lab.oom.kills}


@pytest.fixture(scope="module")
def bundle(oom_lab: OomLab, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Both sections, read from memory."""
    path = tmp_path_factory.mktemp("oom") / "b"
    memory, results = Memory(oom_lab.prog), []
    with Writer(path) as writer:
        for name in ("oom_kills", "kernel_log"):
            result, found = run_section(SECTIONS[name], memory)
            results.append(result)
            for table in found.tables:
                row = table.table
                writer.table(row.name, row.title, row.row, table.rows, section=name)
        writer.finish(
            {"page_size": 4096, "uptime_seconds": 5000.0, "total_pages": 393_086}, results
        )
    return Bundle(path)


def test_sections_are_whole(bundle: Bundle, oom_lab: OomLab) -> None:
    assert {section.status for section in bundle.sections} == {"ok"}
    for section in bundle.sections:
        assert f"it begins {oom_lab.log.overwritten:,} records after" in (section.message or "")
    assert not any(bundle.impossible(name) for name in bundle.tables if name != "sections")


def test_sections_of_a_copied_tree(oom_lab: OomLab) -> None:
    files = Files(oom_lab.capture.truth_b)
    section, found = run_section(SECTIONS["oom_kills"], files)
    assert section.status == "ok"
    assert found.by_name["oom_kills"] == oom_lab.oom.kills
    section, found = run_section(SECTIONS["kernel_log"], files)
    assert len(found.by_name["kernel_log"]) == oom_lab.printed.count("\n")


def test_what_is_found(bundle: Bundle) -> None:
    questions = [question for question in OURS() if question.section == "oom_kills"]
    found = evaluate(bundle, questions).found
    assert sorted((finding.id, dict(finding.subject).get("cgroup")) for finding in found) == [
        ("oom-asked-for", None), ("oom-cgroup-limit", "/group"),
        ("oom-cgroup-limit", "/small, one"), ("oom-kills-told", None), ("oom-spared-larger", None),
    ]  # fmt: skip
    words = {finding.id: f"{finding.title} {finding.saw}" for finding in found}
    killed = r"the kernel killed a\) b, \(c \(pid \d+\), which held 1\."
    assert re.search(killed, words["oom-kills-told"])
    assert "3 processes in all" in words["oom-kills-told"]
    assert "spared protected" in words["oom-spared-larger"]


def test_no_name_gets_out_of_a_redacted_bundle(
    oom_lab: OomLab, bundle: Bundle, tmp_path: Path
) -> None:
    made = redact(bundle, tmp_path / "r", Names())
    hardware = oom_lab.capture.architecture.hardware
    plain = b"".join(path.read_bytes() for path in bundle.path.iterdir())
    kept = b"".join(path.read_bytes() for path in made.path.iterdir())
    for name in (*NAMES, *BYSTANDERS, "small, one", "lab line", hardware):
        assert name.encode() in plain, name
        assert name.encode() not in kept, name
    assert made.count("kernel_log") == bundle.count("kernel_log")


@pytest.mark.btf
def test_without_debug_info_it_is_the_same(oom_lab: OomLab) -> None:
    assert log_records(open_target(oom_lab.capture.vmcore, [])) == oom_lab.log
