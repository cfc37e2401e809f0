# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every finding: a bundle in which it is found, one in which it is not, one that cannot tell.

The cases are in ``finding_cases``, by area: the rows of a bundle and the words that a reader must
find.
"""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import rmap_rows as rmap
from finding_cases import every, owners
from finding_cases.case import TARGET, Case, bundle
from finding_cases.every import CLEAR, FOUND, NOT_CHECKED
from finding_cases.page_tables import exit_cost
from finding_cases.rows import event, zone
from rows_of_tables import TABLE_OF

from mmscope.drgn.free.free_lists import FreeListCheck
from mmscope.drgn.machine.kernel_features import FEATURES, KernelFeature
from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, open_database
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.views import with_stand_ins
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.finding import CANNOT_TELL, NO_TROUBLE, Finding, NotChecked, Verdict
from mmscope.reports.findings.finding_words import known, period
from mmscope.reports.findings.findings import MEMORY, WATCH, evaluate, named
from mmscope.reports.findings.findings import ask as evaluate_open
from mmscope.reports.findings.findings_text import print_findings
from mmscope.reports.findings.query import query_of
from mmscope.reports.findings.question import (
    FINDINGS,
    HARMS,
    HIDES,
    OURS,
    SEVERITIES,
    Question,
    Step,
    load_questions,
    parts_of,
)

QUESTIONS = {question.id: question for question in OURS()}


def ask(path: Path, case: Case) -> Verdict:
    opened = bundle(path / "b", case.rows, case.empty, case.target, case.sections)
    return evaluate(opened, [QUESTIONS[case.id]])


def test_a_check_can_be_made_without_its_optional_tables(tmp_path: Path) -> None:
    """An older recording, or another kind of reading, has none of them."""
    tables = (row for row, table in TABLE_OF.items() if table.name != "sections")
    database = open_database(bundle(tmp_path / "b", [], tables))
    for asked in QUESTIONS.values():
        needed = {parts_of(need)[0] for need in asked.needs}
        there = {name: of for name, of in database.columns.items() if name in needed}
        assert database.rows(with_stand_ins(there, asked.optional, asked.sql)) is not None


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND.keys())
def test_it_is_found_and_said(tmp_path: Path, case: Case) -> None:
    asked = QUESTIONS[case.id]
    opened = bundle(tmp_path / "b", case.rows, case.empty, case.target, case.sections)
    database = open_database(opened, only=named([asked]))
    verdict = evaluate_open(database, [asked])
    assert (verdict.silent, verdict.not_checked) == ([], [])
    (finding,) = verdict.found
    text = "\n".join((finding.title, finding.saw, finding.why))
    position = 0
    for words in case.words:
        assert words in text[position:], text
        position = text.index(words, position)
    for words in case.unlike:
        assert words not in text
    assert finding.severity == (case.severity or finding.severity)
    assert finding.next
    assert "None" not in text
    assert "nan" not in text.split()
    assert "inf " not in text
    if " where " not in asked.needs[0]:
        without_rows_of_the_first_table_nothing_is_found(database, asked)


def without_rows_of_the_first_table_nothing_is_found(database: Database, asked: Question) -> None:
    """
    Such a question is not asked. Here it is, of all the rest of what it was found in: others
    cannot be checked then, as what they need is a row of that table.
    """
    database.connection.execute(f'delete from "{asked.needs[0].partition(".")[0]}"')
    assert not database.rows(query_of(database.columns, asked))


@pytest.mark.parametrize("case", CLEAR.values(), ids=CLEAR.keys())
def test_it_is_not_so(tmp_path: Path, case: Case) -> None:
    verdict = ask(tmp_path, case)
    assert (verdict.found, verdict.not_checked) == ([], [])
    assert verdict.silent == [(case.id, QUESTIONS[case.id].about)]


@pytest.mark.parametrize("case", NOT_CHECKED.values(), ids=NOT_CHECKED.keys())
def test_it_cannot_be_told(tmp_path: Path, case: Case) -> None:
    verdict = ask(tmp_path, case)
    assert (verdict.found, verdict.silent) == ([], [])
    (left,) = verdict.not_checked
    assert left.reason == case.why_not


@pytest.mark.parametrize(
    "cases", [FOUND, CLEAR, NOT_CHECKED], ids=["found", "clear", "not checked"]
)
def test_every_finding_has_its_case(cases: dict[str, Case]) -> None:
    # Those about profiles and series: test_profile_findings.py, test_watch_findings.py.
    here = {name for name in QUESTIONS if not name.startswith(("profile-", "watch-"))}
    assert {case.id for case in cases.values()} == here


@pytest.mark.parametrize("kind", ["FOUND", "CLEAR", "NOT_CHECKED"])
def test_no_two_cases_have_one_name(kind: str) -> None:
    areas = [getattr(area, kind) for area in every.AREAS]
    assert len(getattr(every, kind)) == sum(map(len, areas))


# The engine.


def test_an_empty_bundle_answers_nothing_and_says_so(tmp_path: Path) -> None:
    verdict = evaluate(bundle(tmp_path / "b", []))
    assert (verdict.found, verdict.silent) == ([], [])
    assert {left.id for left in verdict.not_checked} == set(QUESTIONS)


def test_the_reason_of_a_section_that_failed_is_given(tmp_path: Path) -> None:
    section = SectionResult("zones", "absent", 0.0, 0, 0, "/proc/zoneinfo: no such file")
    opened = bundle(tmp_path / "b", [], sections=[section])
    (left,) = evaluate(opened, [QUESTIONS["below-watermarks"]]).not_checked
    assert left.reason == (
        "no table zones in this bundle (section zones: /proc/zoneinfo: no such file)"
    )


def test_a_damaged_table_is_the_reason(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", [zone()])
    (tmp_path / "b" / "zones.csv").write_text("node\nx\n")
    (left,) = evaluate(opened, [QUESTIONS["below-watermarks"]]).not_checked
    assert "table zones cannot be used" in left.reason
    assert "its columns are not those that datapackage.json declares" in left.reason


def test_the_worst_comes_first(tmp_path: Path) -> None:
    rows = [zone(free_pages=1), *FOUND["blocks on another list"].rows, event("oom_kill", 1),
            rmap.walk(), rmap.anon_vma(), rmap.COST, rmap.process(60_000),
            exit_cost(2.876)]  # fmt: skip
    found = evaluate(bundle(tmp_path / "b", rows)).found
    assert [(finding.severity, finding.estimate, finding.id) for finding in found] == [
        ("critical", False, "below-watermarks"),
        ("warning", False, "near-max-map-count"),
        ("warning", True, "rmap-walk-stalls"),
        ("warning", True, "slow-exit"),
        ("notice", False, "oom-kills-since-boot"),
        ("notice", False, "misplaced-blocks"),
    ]


def test_no_estimate_is_critical(tmp_path: Path) -> None:
    asked = question(sql="select *, 'critical' as severity, 'min' as mark, 1 as usable, "
                     "true as over, "
                     "0 as reserve_free, 4096 as page_size from zones")  # fmt: skip
    opened = bundle(tmp_path / "b", [zone()])
    (measured,) = evaluate(opened, [asked]).found
    (estimated,) = evaluate(opened, [dataclasses.replace(asked, estimate=True)]).found
    assert (measured.severity, measured.estimate) == ("critical", False)
    assert (estimated.severity, estimated.estimate) == ("warning", True)


def test_what_is_under_its_threshold_is_kept_for_comparisons(tmp_path: Path) -> None:
    verdict = evaluate(bundle(tmp_path / "b", [zone()]), [QUESTIONS["below-watermarks"]])
    assert (verdict.found, [id for id, _ in verdict.silent]) == ([], ["below-watermarks"])
    (under,) = verdict.under
    assert under.title == (
        "Node 0 zone Normal: 781.2 MiB of free memory are usable, above the min watermark "
        "(39.06 MiB)"
    )


def test_a_column_that_an_older_bundle_lacks_is_unknown(tmp_path: Path) -> None:
    case = FOUND["a free list contradicts where a CPU was inside the lock"]
    with Writer(tmp_path / "b") as writer:
        checks = [row for row in case.rows if isinstance(row, FreeListCheck)]
        writer.table("free_list_checks", "x", FreeListCheck, checks, section="x")
        writer.table("zones", "x", OldZone, [OldZone(0, "Normal")], section="x")
        writer.finish(TARGET, [])
    (finding,) = evaluate(Bundle(tmp_path / "b"), [QUESTIONS[case.id]]).found
    assert finding.severity == "critical" and "zone.lock" not in finding.saw


@dataclass(frozen=True)
class OldZone:
    """A zone of a bundle from before its lock was read."""

    node: int = column(key=True)
    zone: str = column(holds="kernel", key=True)


def test_words_from_the_kernel_are_not_a_template(tmp_path: Path) -> None:
    hostile = "{{ 7*7 }}{% raw %}<script>"
    opened = bundle(tmp_path / "b", [zone(zone=hostile, free_pages=1)])
    (finding,) = evaluate(opened, [QUESTIONS["below-watermarks"]]).found
    assert hostile in finding.title


def question(**changes: Any) -> Question:
    return dataclasses.replace(QUESTIONS["below-watermarks"], **changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sql": "select nonsense from zones"}, "the query failed: Binder Error"),
        (
            {"title": "{{ misspelt }}"},
            "its words do not fit what was found: 'misspelt' is undefined",
        ),
        ({"saw": "{{ node / 0 }}"}, "its words do not fit what was found: division by zero"),
        ({"why": "{{ node + zone }}"}, "its words do not fit what was found: unsupported operand"),
        (
            {"next": (Step("{% if %}"),)},
            "its words do not fit what was found: Expected an expression",
        ),
    ],
)
def test_a_finding_with_a_fault_costs_no_other(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    opened = bundle(tmp_path / "b", [zone(free_pages=1)])
    verdict = evaluate(opened, [question(id="faulty", **change), question()])
    assert [finding.id for finding in verdict.found] == ["below-watermarks"]
    (left,) = verdict.not_checked
    assert left.id == "faulty"
    assert left.reason.startswith(reason)


def test_a_check_with_a_fault_is_not_one_that_found_nothing(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", [zone()])
    assert evaluate(opened, [question()]).word == NO_TROUBLE
    faulty = question(id="faulty", sql="select nonsense from zones")
    verdict = evaluate(opened, [question(), faulty])
    assert verdict.word == CANNOT_TELL
    assert any("check faulty could not be made: the query failed" in why for why in verdict.blind)


def test_a_table_that_cannot_be_used_is_not_one_that_says_all_is_well(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", [zone()])
    assert evaluate(opened, [question()]).word == NO_TROUBLE
    with (tmp_path / "b/zones.csv").open("a") as file:
        file.write("cut\n")
    verdict = evaluate(Bundle(tmp_path / "b"), [question()])
    assert verdict.word == CANNOT_TELL
    assert [why.partition(": ")[0] for why in verdict.blind] == ["table zones cannot be used"]


def test_a_value_that_cannot_be_is_not_one_that_says_all_is_well(tmp_path: Path) -> None:
    verdict = evaluate(bundle(tmp_path / "b", [zone(free_pages=1 << 50)]), [question()])
    assert verdict.word == CANNOT_TELL
    assert [why.partition(": ")[0] for why in verdict.blind] == ["zones.free_pages"]


@pytest.mark.parametrize(("pages", "owner"), [(330_000, "slab cache dentry"), (9_000, "")])
def test_slab_is_of_a_cache_that_has_a_good_part_of_it(
    tmp_path: Path, pages: int, owner: str
) -> None:
    cache = dataclasses.replace(owners.CACHE, pages=pages)
    opened = bundle(tmp_path / "b", [*owners.slab(20_000, 300_000), cache])
    (finding,) = evaluate(opened, [QUESTIONS["slab-large"]]).found
    assert finding.owner == owner


@pytest.mark.parametrize(("device", "folder"), [("0:51", 51), ("8:1", (8 << 20) + 1)])
def test_the_folder_of_a_fuse_connection_is_its_whole_device_number(
    tmp_path: Path, device: str, folder: int
) -> None:
    """A wrong one is another file system's, which would be ended."""
    (row,) = FOUND["a FUSE server that is stopped"].rows
    opened = bundle(tmp_path / "b", [dataclasses.replace(row, device=device)])
    (finding,) = evaluate(opened, [QUESTIONS["fuse-server-silent"]]).found
    assert f"/sys/fs/fuse/connections/{folder}/abort" in finding.next[-1].do


def test_every_file_is_a_finding() -> None:
    assert set(QUESTIONS) == {path.stem for path in FINDINGS.glob("*.toml")}
    for asked in QUESTIONS.values():
        assert asked.severity in SEVERITIES
        assert asked.harm in HARMS
        assert asked.harm != HIDES or asked.section == "profiles" or asked.severity == "notice"
        assert asked.needs, "a finding that needs nothing would be clear of an empty bundle"
        assert all(re.fullmatch(r"\w+\.\w+( where .+)?", need) for need in asked.needs)
        assert all(url.startswith("https://") for _, url in asked.links)
        assert asked.about.strip() == asked.about
        assert "\n" not in asked.about


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a_list_of_names_has_an_order(asked: Question) -> None:
    """Two reports of a bundle are the same: DuckDB's threads hand rows over as they come."""
    for call in re.findall(
        r"(?:string_agg|first)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", asked.sql
    ):
        assert "order by" in call, call


ONE_ROW = {"page-owner-took-growth"}  # it has more than half of it


@pytest.mark.parametrize(
    "asked",
    [each for each in QUESTIONS.values() if each.subject and each.id not in ONE_ROW],
    ids=lambda each: each.id,
)
def test_rows_that_are_equally_bad_have_an_order(asked: Question) -> None:
    """Or which five are said would be another matter of how DuckDB goes about it."""
    order = asked.sql.rpartition("order by")[2].split("limit")[0]
    assert set(asked.subject) <= set(re.findall(r"\w+", order)), order


class TestSteps:
    """What there is to do, of which only that is said that is for the kernel that was read."""

    STEPS = (
        Step("everywhere", looks=True),
        Step("if it has it", cost="much", only=("defrag_mode",)),
        Step("if it has not", cost="more", only=("!defrag_mode",)),
        Step("{% if node == 7 %}on node seven{% endif %}", cost="c"),
    )

    def said(self, path: Path, *features: KernelFeature) -> list[str]:
        opened = bundle(path / "b", [zone(free_pages=1), *features])
        (finding,) = evaluate(opened, [question(next=self.STEPS)]).found
        return [step.do for step in finding.next]

    def feature(self, present: bool | None) -> KernelFeature:
        return KernelFeature("defrag_mode", present, "it", "a trace")

    def test_for_a_kernel_that_has_the_feature(self, tmp_path: Path) -> None:
        assert self.said(tmp_path, self.feature(True)) == ["everywhere", "if it has it"]

    def test_for_a_kernel_that_has_not(self, tmp_path: Path) -> None:
        assert self.said(tmp_path, self.feature(False)) == ["everywhere", "if it has not"]

    @pytest.mark.parametrize("known", [True, False])
    def test_where_nothing_shows_the_condition_is_said(self, tmp_path: Path, known: bool) -> None:
        what = FEATURES["defrag_mode"].what
        assert self.said(tmp_path, *([self.feature(None)] if known else [])) == [
            "everywhere",
            f"Where {what}: if it has it",
            f"Unless {what}: if it has not",
        ]

    def test_words_may_go_by_the_kernel(self, tmp_path: Path) -> None:
        opened = bundle(tmp_path / "b", [zone(free_pages=1), self.feature(True)])
        asked = question(why="{% if kernel.defrag_mode %}it has{% else %}it has not{% endif %}")
        (finding,) = evaluate(opened, [asked]).found
        assert finding.why == "it has"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about = ", "Invalid value"),
        ('about = "x"', "'next'"),
        ('needs = []\nsources = []\nnext = []\nabout = "x"', "missing"),
        ('needs = []\nsources = []\nnext = [{ does = "x" }]\nabout = "x"', "unexpected"),
        (
            'needs = []\nsources = []\nnext = [{ do = "x", only = ["y"] }]\nabout = "x"',
            "no feature",
        ),
    ],
)
def test_a_file_that_is_no_finding_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.toml: .*{words}"):
        load_questions(tmp_path)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (known(display.count)(None), "unknown"),
        (display.count(0), "0"),
        (display.count(1234567), "1,234,567"),
        (display.count(1.5), "1.5"),
        (display.count(2.3e-05), "0.000023"),
        (display.count(4.1e-15), "4.1e-15"),
        (known(display.percent)(None), "unknown"),
        (display.percent(0), "0 %"),
        (display.percent(0.0001), "<0.1 %"),
        (display.percent(0.058), "5.8 %"),
        (display.percent(0.9999), ">99.9 %"),
        (display.percent(1), "100 %"),
        (known(display.pages)(None, 4096), "unknown"),
        (known(display.pages)(1, None), "unknown"),
        (display.pages(0, 4096), "0 B"),
        (display.pages(1, 4096), "4 KiB"),
        (display.pages(-512, 4096), "-2 MiB"),
        (display.pages(1, 65536), "64 KiB"),
        (display.pages(1 << 28, 4096), "1 TiB"),
        (period(None), "since boot, uptime unknown"),
        (period(0), "since boot, uptime unknown"),
        (period(17.26), "in 17 s since boot"),
        (period(7200), "in 2.0 h since boot"),
        (period(86400 * 30), "in 30.0 days since boot"),
    ],
)
def test_numbers_are_said_with_their_unit(shown: str, words: str) -> None:
    assert shown == words


@dataclass(frozen=True)
class Other:
    """A table that no finding knows."""

    x: int = column()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return open_database(bundle(tmp_path_factory.mktemp("locked") / "b", [zone()]))


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "copy zones to '/tmp/stolen.csv'",
        "export database '/tmp/stolen'",
        "attach '/tmp/other.db'",
        "install httpfs",
        "load httpfs",
        "select * from 'https://example.org/x.csv'",
        "set enable_external_access = true",
        "reset enable_external_access",
        "set lock_configuration = false",
        "set allow_unsigned_extensions = true",
        "select * from FOUND_IN_PYTHON",
    ],
)
def test_a_query_reaches_nothing_but_the_bundle(locked: Database, query: str) -> None:
    FOUND_IN_PYTHON = locked.connection.sql("select 1")  # noqa: F841
    with pytest.raises(duckdb.Error):
        locked.rows(query)
    assert locked.rows("select zone from zones") == [{"zone": "Normal"}]


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("2026-11-20T02:57:05.000+00:00",
         "2026-11-20 02:57:05 UTC or before: the first snapshot, 40 s before the last"),
        (None, "the first snapshot or before, 40 s before the last"),
    ],
)  # fmt: skip
def test_a_stack_that_grows_says_since_when_by_the_clock(
    tmp_path: Path, at: str | None, said: str
) -> None:
    first, *others = owners.SNAPSHOTS
    grown = [owners.owned(7, 1100), owners.grown(7, 100, 1100, 1.0, 4)]
    case = Case("page-owner-stack-grows", [*grown, dataclasses.replace(first, at=at), *others])
    (found,) = ask(tmp_path, case).found
    assert found.since == said


def test_on_a_terminal_titles_keep_clear_of_the_severity(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    title = "Node 1 zone Normal: 5 of 5 free blocks of THP size lie in the HighAtomic reserve"
    finding = Finding(
        "x", "critical", title, "s", "w", (Step("n", "c", "when a", "u"), Step("m", looks=True)),
        (), "zones",
    )  # fmt: skip
    print_findings(Verdict([finding], [("y", title)], []), everything=True)
    assert capsys.readouterr().out.splitlines() == [
        "Trouble: 1 critical. All 2 checks ran.",
        "",
        "CRITICAL Node 1 zone Normal: 5 of 5 free blocks of THP size",
        "         lie in the HighAtomic reserve",
        "     saw s",
        "     why w",
        "    next n",
        "         costs: c",
        "         not: when a",
        "         undo: u",
        "         m",
        "",
        "ok       Node 1 zone Normal: 5 of 5 free blocks of THP size",
        "         lie in the HighAtomic reserve",
    ]


MISSED = [
    NotChecked(f"n{n}", f"N {n}", "no table", section, wants)
    for n, (section, wants) in enumerate((("watch", WATCH), ("watch", WATCH), ("zones", MEMORY)))
]


@pytest.mark.parametrize(
    ("verdict", "headline"),
    [
        (
            Verdict([], [("y", "Y")], MISSED),
            "No trouble found by 1 check. 2 need a watch over time, 1 root or a vmcore.",
        ),
        (Verdict([], [("y", "Y"), ("z", "Z")], []), "No trouble found by 2 checks."),
        (
            Verdict([], [], MISSED),
            "Cannot tell: none of 3 checks could run. 2 need a watch over time, 1 root or a "
            "vmcore.",
        ),
    ],
)  # fmt: skip
def test_the_headline_tells_what_could_be_checked(
    capsys: pytest.CaptureFixture[str], verdict: Verdict, headline: str
) -> None:
    print_findings(verdict, everything=False)
    headed, *lines = re.split(r"\n(?=Not checked)|\n\Z", capsys.readouterr().out)
    assert " ".join(headed.split()) == headline
    left = (
        ["Not checked: 3 (watch 2, zones 1); 'findings --all' says why."]
        if verdict.not_checked
        else []
    )
    assert [line for line in lines if line] == left


def test_what_was_not_seen_and_a_price_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    steps = (Step("Do a.", cost="c"), Step("Do b.", cost="c"))
    for found in ([], [Finding("f", "notice", "T", "s", "w", steps, (), "zones")]):
        silent = [("y", "Y")]
        print_findings(Verdict(found, silent, [], blind=["darkness"]), everything=False)
        assert capsys.readouterr().out.count("darkness") == 1
        print_findings(Verdict(found, silent, [], blind=["x", "z"]), everything=False)
        assert "Not seen: z." in capsys.readouterr().out
    print_findings(Verdict(found, silent, []), everything=False)
    assert "costs: as above" in capsys.readouterr().out


def test_of_several_the_summary_is_the_last_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        Finding(name, severity, name, "s", "w", (), (), "zones")
        for name, severity in (("a", "critical"), ("b", "warning"), ("c", "warning"))
    ]
    print_findings(Verdict(found, [], MISSED), everything=False)
    lines = capsys.readouterr().out.splitlines()
    said = "1 critical, 2 warnings. 3 of 6 checks ran."
    assert lines[0].startswith("Trouble: ")
    assert (lines[1], lines[-1]) == (said, f"Trouble: {said}")
    assert lines[-2].startswith("Not checked: 3 ")


def test_an_estimate_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("x", "warning", "T", "s", "w", (), (), "zones", estimate=True)
    print_findings(Verdict([finding], [], MISSED), everything=False)
    out = capsys.readouterr().out
    assert out.startswith("Trouble: 1 warning. 1 of 4 checks ran.")
    assert "WARNING  T (estimate)" in out


# Steps by the features of a kernel.

# A reader with each of the kernels that differ most is told what is so there.
HIGHATOMIC = {
    "6.1": (
        {"highatomic_buddy_only": False, "highatomic_fast_path": False},
        ["even when a per-CPU list had the block"],
        ["after pcp alloc"],
        ["existing highatomic reserves"],
    ),
    "7.2": (
        {"highatomic_buddy_only": True, "highatomic_fast_path": False},
        ["only a block from the buddy lists"],
        ["existing highatomic reserves"],
        ["after pcp alloc", "Where "],
    ),
    "7.3": (
        {"highatomic_buddy_only": True, "highatomic_fast_path": True},
        ["without making it grow"],
        [],
        ["after pcp alloc", "existing highatomic reserves", "Where "],
    ),
    "nothing shows": (
        {},
        [],
        ["Unless only an allocation from the buddy lists makes"],
        ["On this kernel"],
    ),
}


@pytest.mark.parametrize("kernel", HIGHATOMIC)
def test_advice_on_the_reserve_is_for_the_kernel_that_was_read(tmp_path: Path, kernel: str) -> None:
    features, why, steps, absent = HIGHATOMIC[kernel]
    case = FOUND["a reserve that starves THP"]
    rows = [KernelFeature(name, there, "", "") for name, there in features.items()]
    opened = bundle(tmp_path / "b", [*case.rows, *rows])
    finding = next(
        found for found in evaluate(opened).found if found.id == "highatomic-starves-thp"
    )
    text = "\n".join(step.do for step in finding.next)
    for words in why:
        assert words in finding.why
    for words in steps:
        assert words in text
    for words in absent:
        assert words not in finding.why + text
