# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's records in texts of any form: one log of each kind, in each prefix and each mangling
(``support/log_forms.py``), has the same records of the OOM killer, or says what it lacks.

Some of the pairs are tried here, by chance; with ``MMSCOPE_ALL`` 2,000 of them. SEED=… tries
others.
"""

import json
import os
import random
from collections.abc import Callable

import pytest
from log_forms import (
    LOSSY,
    PLAIN,
    PREFIXES,
    SILENT,
    STRUCTURED,
    Record,
    records_of,
    with_prefix,
)
from log_made import CGROUP_V1, FAILURE, GLOBAL_3_10, raw
from log_truth import KINDS, differs, read

from mmscope.drgn.text.kernel_log import Log, parse_dmesg
from mmscope.drgn.text.program_kills import ProgramKill

HEADER = "bash invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"
KILL = "Out of memory: Killed process 7 (bash) total-vm:8kB, anon-rss:4kB, file-rss:0kB"
OOMD = (
    "systemd-oomd[7]: Killed /u.slice/app.scope due to memory pressure for /u.slice being 63.2% > "
    "50.00% for > 20s with reclaim activity"
)
OOMD_KILL = ProgramKill(
    "systemd-oomd",
    cgroup="/u.slice/app.scope",
    why="memory pressure for /u.slice being 63.2% > 50.00% for > 20s with reclaim activity",
)
UNIT = "systemd[1]: a.scope: systemd-oomd killed 28 process(es) in this unit."
UNIT_KILL = ProgramKill("systemd-oomd", cgroup="a.scope", why="killed 28 process(es) in this unit.")
EARLYOOM = 'earlyoom[7]: sending SIGTERM to process 8 uid 1000 "python3": badness 9, VmRSS 600 MiB'
EARLYOOM_KILL = ProgramKill(
    "earlyoom", comm="python3", pid=8, held_bytes=600 << 20, why="badness 9, VmRSS 600 MiB"
)
# As newer ones end their line.
NEW_EARLYOOM = f'{EARLYOOM}, cmdline "python3 a.py"'
TALOS = '[talos] Sending SIGKILL to cgroup {"component": "x", "cgroup": "/sys/fs/cgroup/kube/pod7"}'
TALOS_WHY = "its OOM controller sent SIGKILL"
CHANCE = random.Random(int(os.environ.get("SEED", "45")))
# All, of which a share is made without MMSCOPE_ALL.
RENDERINGS = 2000 if os.environ.get("MMSCOPE_ALL") else 40


def texts(log: Log) -> list[str]:
    return [record.text for record in log.records]


@pytest.mark.parametrize("form", PREFIXES)
def test_a_prefix_is_learnt_from_the_text(form: str) -> None:
    kind = CHANCE.choice([*KINDS])
    mangling = CHANCE.choice([*PLAIN])
    text = PLAIN[mangling](with_prefix(form, KINDS[kind]), CHANCE)
    assert differs(kind, text) is None, (kind, mangling)


@pytest.mark.parametrize("form", STRUCTURED)
def test_records_of_journals_and_containers(form: str) -> None:
    for kind in KINDS:
        text = "\n".join(STRUCTURED[form](KINDS[kind]))
        assert differs(kind, text) is None, kind


@pytest.mark.parametrize("mangling", LOSSY)
def test_what_a_text_lost_is_said(mangling: str) -> None:
    for kind in KINDS:
        form = CHANCE.choice([*PREFIXES])
        lines = with_prefix(form, KINDS[kind])
        text, shown = LOSSY[mangling](lines, CHANCE), mangling not in SILENT
        assert differs(kind, text, lossy=True, shown=shown) is None, (kind, form)


def test_logs_in_forms_by_chance() -> None:
    wrong = []
    for number in range(RENDERINGS):
        kind = CHANCE.choice([*KINDS])
        if CHANCE.random() < 0.1:
            form, mangling, lossy = CHANCE.choice([*STRUCTURED]), "as it is", False
            text = "\n".join(STRUCTURED[form](KINDS[kind]))
        else:
            form, mangling = CHANCE.choice([*PREFIXES]), CHANCE.choice([*PLAIN, *LOSSY])
            lossy = mangling in LOSSY
            text = (PLAIN | LOSSY)[mangling](with_prefix(form, KINDS[kind]), CHANCE)
        if (why := differs(kind, text, lossy=lossy, shown=mangling not in SILENT)) is not None:
            wrong.append(f"{number}: {kind}, {form}, {mangling}: {why[:400]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("form", ["dmesg", "syslog", "journal, short", "dmesg -T", "quoted"])
def test_wrapped_lines_are_whole_again(form: str) -> None:
    lines = with_prefix("dmesg" if form == "quoted" else form, KINDS["cgroup and machine, 7.3"])
    text = LOSSY["wrapped"](lines, random.Random(45))
    if form == "quoted":
        text = "".join(f"> {line}\n" for line in text.splitlines())
    assert differs("cgroup and machine, 7.3", text) is None


def test_a_blank_behind_each_line_is_no_part_of_it() -> None:
    lines = with_prefix("dmesg", KINDS["cgroup and machine, 7.3"])
    assert differs("cgroup and machine, 7.3", "".join(f"{line} \n" for line in lines)) is None


def test_a_wide_terminal_wraps_at_its_width_alone() -> None:
    lines = with_prefix("dmesg", KINDS["cgroup and machine, 7.3"])
    parts = [line[at : at + 160] for line in lines for at in range(0, len(line), 160)]
    assert sum(len(part) == 160 for part in parts) > 1
    assert differs("cgroup and machine, 7.3", "\n".join(parts)) is None


ODD: dict[str, Callable[[Record], str]] = {
    "a table's row": lambda r: f"| 2024-05-09 | {r.text} |",
    "CSV": lambda r: f'"2024-05-09 14:52:38","node7","kernel","{r.text}"',
    "key and value": lambda r: f'ts=2024-05-09T14:52:38Z host=n level=warn msg="{r.text}"',
    "JSON in JSON": lambda r: json.dumps({"_source": {"message": f"{r.stamp} {r.text}"}}),
    "GELF": lambda r: json.dumps({"host": "n", "short_message": r.text, "facility": "kern"}),
    "colours whose escapes are gone": lambda r: f"[32m{r.stamp}[0m {r.text}",
    "colours as a pager writes them": lambda r: f"^[[32m{r.stamp}^[[0m {r.text}",
    "a list": lambda r: f"  * {r.stamp} {r.text}",
    "numbered": lambda r: f"{r.number:6}\t{r.stamp} {r.text}",
    "netconsole": lambda r: f"10.0.0.7:6666 {r.stamp} {r.text}",
    "another language": lambda r: f"[\u0421\u0440 \u0441\u0435\u043d 10 20:08:49 2025] {r.text}",
    "absolute and relative": lambda r: (
        f"[May 9 14:52] {r.text}" if "invoked" in r.text else f"[  +0.000003] {r.text}"
    ),
}


@pytest.mark.parametrize("form", ODD)
def test_odd_forms(form: str) -> None:
    for kind in KINDS:
        assert differs(kind, "\n".join(map(ODD[form], KINDS[kind]))) is None, kind


def test_hosts_of_one_syslog_are_apart() -> None:
    kind = "cgroup and machine, 7.3"
    lines = with_prefix("syslog", KINDS[kind])
    other = [line.replace("node-7", "node-8") for line in lines]
    found = read("\n".join(line for pair in zip(lines, other, strict=True) for line in pair))
    one = read("\n".join(lines))
    assert [row.comm for row in found.kills] == [row.comm for row in one.kills] * 2
    assert len(found.tasks) == 2 * len(one.tasks)


def test_a_host_that_gets_its_name_while_it_boots_is_one() -> None:
    lines = with_prefix("syslog", KINDS["machine, 3.10"])
    first = [line.replace("node-7", "localhost") for line in lines[:5]]
    assert differs("machine, 3.10", "\n".join(first + lines[5:])) is None


def test_times_levels_dates_and_callers() -> None:
    def first(text: str) -> tuple[float | None, int | None, str | None]:
        record = parse_dmesg(f"{text}{HEADER}\n{text}Mem-Info:\n").records[0]
        seconds = None if record.nanoseconds is None else record.nanoseconds / 1e9
        assert record.text == HEADER
        return seconds, record.level, record.date

    assert first("2024-05-09T14:52:38,123456+02:00 ") == (None, None, "2024-05-09 14:52:38+02:00")
    assert first("May  9 14:52:38 n1 kernel: [    1.500000] ") == (1.5, None, "05-09 14:52:38")
    assert first("[四 5月  9 14:52:38 2024] ") == (None, None, "2024-05-09 14:52:38")
    assert first("<3>[    1.250] ") == (1.25, 3, None)
    assert first("kern  :err   : [    1.250000 <    0.000002>] ") == (1.25, 3, None)
    assert first("Thu May  9 14:52:38 2024 kern.warn kernel: [1.000001] ") == (
        1.000001, 4, "2024-05-09 14:52:38",
    )  # fmt: skip


class TestForeign:
    STAMP = "May 19 18:14:43 n1"

    def test_a_programs_line_is_no_part_of_a_record(self) -> None:
        log = parse_dmesg(
            f"{self.STAMP} kernel: {HEADER}\n{self.STAMP} systemd[1]: a.scope: killed\n"
            f"{self.STAMP} kernel: Mem-Info:\n{self.STAMP} a[2]: x\n        more of a's\n"
        )
        assert texts(log) == [HEADER, "Mem-Info:"]
        assert (log.foreign, log.unread) == (3, ())

    @pytest.mark.parametrize("cut", ["", "14:43 n1 kernel: ", "n1 kernel: "])
    @pytest.mark.parametrize(
        "after", ["CPU: 1 PID: 7 Comm: bash Not tainted 6.1", "bash cpuset=/ mems_allowed=0"]
    )
    def test_the_first_line_may_have_lost_its_prefix(self, cut: str, after: str) -> None:
        rest = f"{self.STAMP} kernel: {after}\n{self.STAMP} kernel: Mem-Info:\n"
        log = parse_dmesg(f"Hello,\n```\n{cut}{HEADER}\n{rest}")
        assert (texts(log), log.unread, log.foreign) == ([HEADER, after, "Mem-Info:"], (), 2)

    @pytest.mark.parametrize("stamp", ["[  1.000001] ", "May 9 14:52:38 n kernel: ", ""])
    def test_one_line_that_a_mail_broke_is_whole(self, stamp: str) -> None:
        header, kill = HEADER.replace(" gfp_mask", "\ngfp_mask"), KILL.replace(" anon-", "\nanon-")
        text = f"{stamp}{header}\n{stamp}Mem-Info:\n{stamp}{kill}\n"
        for quoted in (text, "".join(f"> > {line}\n" for line in text.splitlines())):
            assert texts(parse_dmesg(quoted)) == [HEADER, "Mem-Info:", KILL]

    def test_what_a_page_has_escaped_is_as_it_was(self) -> None:
        text = (
            "[    1.000001]  &lt;TASK&gt;\n[    1.000002] a&#39;b &amp; c invoked oom-killer: gfp"
        )
        assert texts(parse_dmesg(text)) == [" <TASK>", "a'b & c invoked oom-killer: gfp"]

    def test_a_first_line_of_another_task_is_not_the_kernels(self) -> None:
        of_cpu = "CPU: 1 PID: 7 Comm: zsh Not tainted 6.1"
        log = parse_dmesg(f"{HEADER}\n{self.STAMP} kernel: {of_cpu}\n")
        assert texts(log) == [of_cpu] and log.unread

    def test_a_program_that_copies_the_kernels_words_is_named(self) -> None:
        log = parse_dmesg(
            f"{self.STAMP} kernel: Mem-Info:\n{self.STAMP} app[77]: {HEADER}\n"
            f"{self.STAMP} app[77]: Call Trace:\n"
        )
        assert texts(log) == ["Mem-Info:"]
        assert log.unread == (
            "line 2: the OOM killer's words, but not as the kernel's own lines are (app)",
        )

    def test_a_text_without_a_line_of_the_kernels_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"no line is the kernel's: line 1: the OOM"):
            parse_dmesg(f"{self.STAMP} app[77]: {HEADER}\n{self.STAMP} app[77]: Mem-Info:\n")
        with pytest.raises(ValueError, match="other programs'"):
            parse_dmesg('{"MESSAGE": "x", "SYSLOG_IDENTIFIER": "app"}\n')

    @pytest.mark.parametrize(
        ("line", "kill"),
        [
            *((OOMD, OOMD_KILL), (UNIT, UNIT_KILL)),
            *((EARLYOOM, EARLYOOM_KILL), (NEW_EARLYOOM, EARLYOOM_KILL)),
            (OOMD.partition(" due")[0], OOMD_KILL._replace(why=None)),
            (TALOS, ProgramKill("Talos", cgroup="/kube/pod7", why=TALOS_WHY)),
        ],
    )
    def test_what_a_program_ended_to_have_memory_is_kept(
        self, line: str, kill: ProgramKill
    ) -> None:
        log = parse_dmesg(f"{self.STAMP} kernel: Mem-Info:\n{self.STAMP} {line}\n")
        assert (log.foreign, log.killed) == (1, ((kill, "05-19 18:14:43"),))
        # Also where nothing is of the kernel, which is said.
        log = parse_dmesg(f"{self.STAMP} {line}\n")
        assert (log.records, log.killed) == ([], ((kill, "05-19 18:14:43"),))
        assert log.unread == ("no line is the kernel's",)

    def test_a_kill_that_is_said_twice_is_one(self) -> None:
        again = EARLYOOM.replace("SIGTERM", "SIGKILL")
        lines = (OOMD, UNIT.replace("a.scope", "app.scope"), EARLYOOM, again, UNIT)
        log = parse_dmesg("".join(f"{self.STAMP} {line}\n" for line in lines))
        assert [kill for kill, _ in log.killed] == [OOMD_KILL, EARLYOOM_KILL, UNIT_KILL]

    def test_a_program_s_own_output_has_no_stamps(self) -> None:
        log = parse_dmesg(f"earlyoom v1.7\nlow memory! at or below\n{EARLYOOM[13:]}\n")
        assert (log.records, log.foreign, log.killed) == ([], 3, ((EARLYOOM_KILL, None),))

    def test_lines_that_are_there_twice_are_read_once(self) -> None:
        """As Ansible prints what a command said."""
        lines = [f"[    1.000000] {HEADER}", "[    1.000001] Mem-Info:"]
        log = parse_dmesg(json.dumps({"rc": 0, "stdout": "\n".join(lines), "stdout_lines": lines}))
        assert texts(log) == [HEADER, "Mem-Info:"]

    def test_a_journal_in_json_has_them_too(self) -> None:
        entry = {"SYSLOG_IDENTIFIER": "systemd-oomd", "MESSAGE": OOMD.partition(": ")[2]}
        log = parse_dmesg(json.dumps(entry) + '\n{"MESSAGE": "x", "_TRANSPORT": "kernel"}\n')
        assert [kill for kill, _ in log.killed] == [OOMD_KILL] and log.foreign == 1

    @pytest.mark.parametrize(
        "line", ["earlyoom[7]: mem avail: 7 of 9 MiB", "systemd-oomd[7]: Considered 60 cgroups", ""]
    )
    def test_what_only_watches_memory_ends_no_one(self, line: str) -> None:
        log = parse_dmesg(f"{self.STAMP} kernel: Mem-Info:\n{self.STAMP} {line}\n")
        assert log.killed == ()

    @pytest.mark.parametrize(
        ("line", "adj", "held"),
        [
            ("10-24 14:24:26.342   710   710 I lowmemorykiller: Kill 'org.app' (17), uid 10446, "
             "oom_score_adj {} to free 140528kB rss, 37404kB swap; reason: low watermark", 0,
             140528 << 10),
            ("<6>[ 4512.123456] lowmemorykiller: Killing 'org.app' (17), adj {},", 529, None),
        ],
    )  # fmt: skip
    def test_on_android_a_process_that_is_only_cached_is_no_loss(
        self, line: str, adj: int, held: int | None
    ) -> None:
        ((kill, _),) = parse_dmesg(f"{line.format(adj)}\n").killed
        assert (kill.program, kill.comm, kill.pid) == ("lowmemorykiller", "org.app", 17)
        assert kill.held_bytes == held
        assert not parse_dmesg(f"{line.format(900)}\n").killed

    def test_a_prefix_that_is_not_understood_is_said(self) -> None:
        """A name has 15 bytes: what is longer has more in it."""
        log = parse_dmesg(f"alpha beta gamma {HEADER}\nMem-Info:\n")
        assert log.unread == ("line 1: what is before the kernel's words was not understood",)

    @pytest.mark.parametrize("prefix", ["[  100.000000] ", "May 19 18:14:43 n1 kernel: "])
    @pytest.mark.parametrize("more", ["", "Mem-Info:"])
    def test_a_name_with_a_colon_is_whole(self, prefix: str, more: str) -> None:
        """As tmux names its tasks."""
        header = HEADER.replace("bash", "tmux: server")
        log = parse_dmesg(f"{prefix}{header}\n" + (f"{prefix}{more}\n" if more else ""))
        assert (texts(log)[0], log.unread) == (header, ())

    def test_a_name_of_15_bytes_is_one(self) -> None:
        name = "ä" + "x" * 13
        log = parse_dmesg(f"{HEADER.replace('bash', name)}\nMem-Info:\n")
        assert log.unread == ()


class TestMended:
    def test_control_characters_that_rsyslog_wrote_out(self) -> None:
        log = parse_dmesg("May 19 18:14:43 n1 kernel: active_anon:1#012 free:2#011x\n")
        assert texts(log) == ["active_anon:1\n free:2\tx"]

    def test_two_records_on_a_line_are_apart(self) -> None:
        line = "x" * 120
        log = parse_dmesg(f"[    1.000000] Mem-Info:\n[    2.000000] {line}[    2.500000] next\n")
        assert texts(log) == ["Mem-Info:", line, "next"]

    def test_a_line_that_is_too_long_is_said(self) -> None:
        log = parse_dmesg(f"[    1.000000] Mem-Info:\n[    2.000000] {'x' * 20_000}\n")
        assert texts(log) == ["Mem-Info:"]
        assert log.unread == ("line 2: longer than a line of the kernel's can be",)

    def test_lines_of_a_mail_below_belong_to_nothing(self) -> None:
        text = f"[    1.000000] {HEADER}\n[    1.000001] {KILL}\n\nHow can that be?\n"
        (row,) = read(text).kills
        assert (row.comm, row.anon_bytes) == ("bash", 4096)

    def test_an_object_in_json_that_was_cut_is_said(self) -> None:
        line = '{"MESSAGE": "Mem-Info:", "_TRANSPORT": "kernel"}\n'
        log = parse_dmesg(f"{line}{line[:20]}\n{line}")
        assert (texts(log), log.unread) == (["Mem-Info:"] * 2, ("line 2: no whole record",))

    def test_a_plain_log_in_braces_lacks_no_object(self) -> None:
        """As trackers mark what is pasted."""
        log = parse_dmesg("{noformat}\n[    1.000000] Mem-Info:\n[    1.000001] x: y\n{noformat}\n")
        assert (texts(log)[0], log.unread) == ("Mem-Info:", ())

    @pytest.mark.parametrize(
        "text",
        [
            '{"MESSAGE":"Mem-Info:"}\n' + '{"l":[\n' * 300_000,
            "_TRANSPORT=kernel\nMESSAGE=Mem-Info:\n" + "more of it\n" * 150_000,
            "2024-05-09T14:52:38.1+02:00 n kernel: Mem-Info:\n" + f"2024-05-{'1' * 16_000}\n" * 50,
        ],
        ids=["objects in each other", "a message without an end", "digits"],
    )
    def test_odd_texts_take_no_time(self, text: str) -> None:
        assert texts(parse_dmesg(text))[0].startswith("Mem-Info:")

    def test_a_journals_array_of_bytes(self) -> None:
        log = parse_dmesg('{"MESSAGE": [77, 101, 109], "_TRANSPORT": "kernel", "PRIORITY": "4"}\n')
        assert [(each.text, each.level) for each in log.records] == [("Mem", 4)]


def test_records_of_old_kernels_have_the_same_forms() -> None:
    for text in (CGROUP_V1, GLOBAL_3_10):
        lines = with_prefix("journal, iso", records_of(text))
        assert [row.comm for row in read("\n".join(lines)).kills] == [
            row.comm for row in read(text).kills
        ]


def test_a_record_keeps_its_place() -> None:
    assert records_of(raw("a\nb"))[1] == Record(100_001_000, 4, "b", 1)


@pytest.mark.parametrize(
    "line",
    [
        "235*8kB lowmem_reserve[]: [<ffffffff931949d1>] ? shrink_inactive_list+0x1a1/0x540",
        "(UME)  0 [<ffffffff931949d1>] ? shrink_inactive_list+0x1a1/0x540",
        "0*128kB DMA:  [<ffffffff93185ac4>] ? __alloc_pages_slowpath+0x394/0xbf0",
        "Node 0 Normal free:59200kB min:44088kB  warn_alloc+0x10e/0x180",
        "149*16kB ",
        ", mode:0x2080020(GFP_ATOMIC)",
    ],
)
def test_words_of_several_cpus_in_a_line_are_not_understood(line: str) -> None:
    text = f"[  100.000001] {HEADER}\n[  100.000002] {line}\n[  100.000003] Mem-Info:\n"
    assert parse_dmesg(text).unread == ("line 2: messages of several CPUs are mixed",)


@pytest.mark.parametrize("text", [FAILURE, GLOBAL_3_10])
def test_whole_lines_are_of_one_cpu(text: str) -> None:
    assert not parse_dmesg(text).unread
