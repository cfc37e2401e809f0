# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a bundle for programs: the same as the command line's, bounded, read-only."""

import json
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from command_line import run
from finding_cases.case import bundle
from made_lake import small

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.serving import answers
from mmscope.reports.serving.answers import Case, bounded, plain, unique


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("serving") / "web-1", "web-1", kills=3)


@pytest.fixture(scope="module")
def case(place: Path) -> Case:
    return Case("web-1", Bundle(place))


def test_it_says_what_the_command_line_says(case: Case, place: Path) -> None:
    shown = json.loads(run("show", "vm_counters", place, "--format", "json").stdout)
    answer = case.show("vm_counters", limit=500)
    assert (answer["rows"], answer["total"]) == (shown, len(shown))
    said = json.loads(run("why", "--json", place).stdout)
    judged = case.why()
    assert [judged[name] for name in ("word", "sentence", "cause", "owner", "harm")] == [
        said[name] for name in ("verdict", "sentence", "cause", "owner", "harm")
    ]
    printed = " ".join(run("findings", place).stdout.split())
    for finding in case.findings()["findings"]:
        assert " ".join(finding["title"].split()) in printed


def test_a_finding_shows_what_it_rests_on(case: Case) -> None:
    answer = case.evidence("oom-kills-since-boot")
    assert answer["rows"] and answer["found"]
    assert {row["table"] for row in answer["coverage"]} >= {"vm_counters"}
    proofs = {one["table"]: one["rows"] for one in answer["stands_on"]}
    assert [row["value"] for row in proofs["vm_counters"]] == [3]
    with pytest.raises(UsageError, match="no finding is called 'nothing'"):
        case.evidence("nothing")


def test_what_was_not_read_is_absent_and_never_zero(case: Case) -> None:
    missing = case.tables()["missing"]
    assert "vm_counters" not in missing
    with pytest.raises(UsageError, match="no table 'slab_caches'"):
        case.show("slab_caches")
    not_checked = case.findings()["not_checked"]
    answer = case.evidence(not_checked[0]["id"])
    assert answer["not_checked"] and not answer["rows"]
    assert {row["status"] for row in answer["coverage"]} <= {"absent", "unknown"}


def test_rows_are_chosen_ordered_and_counted(case: Case) -> None:
    first, *_ = case.show("vm_counters", order_by="value", limit=1)["rows"]
    values = [row["value"] for row in case.show("vm_counters", limit=500)["rows"]]
    assert first["value"] == max(values)
    answer = case.show("vm_counters", where={"name": first["name"]}, columns=["value"])
    assert answer["rows"] == [{"value": first["value"]}]
    assert answer["total"] == 1
    for wrong in ({"columns": ['"; drop table x']}, {"where": {"no": 1}}, {"order_by": "1"}):
        with pytest.raises(UsageError, match="vm_counters has no column"):
            case.show("vm_counters", **wrong)


NO_QUERIES = [
    "drop table vm_counters",
    "select 1; select 2",
    "insert into vm_counters select * from vm_counters",
    "copy vm_counters to 'out.csv'",
    "attach 'x.db'",
    "set memory_limit = '100GB'",
    "install httpfs",
    "pragma database_size",
    "",
]


@pytest.mark.parametrize("sql", NO_QUERIES)
def test_only_one_select_is_answered(case: Case, sql: str) -> None:
    with pytest.raises(UsageError, match="one SELECT, and nothing else"):
        case.query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('{file}')",
        "select * from '{file}'",
        "select * from read_csv('{file}')",
        "select * from glob('{folder}/*')",
        "select * from read_parquet('https://127.0.0.1/x')",
        "select * from query('drop table vm_counters')",
        "select * from case",
        "select no from vm_counters",
    ],
)
def test_a_query_reaches_no_file_and_no_network(case: Case, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret.csv").write_text("secret\n")
    with pytest.raises(UsageError) as refused:
        case.query(sql.format(file=tmp_path / "secret.csv", folder=tmp_path))
    assert "\n" not in str(refused.value)


def test_a_query_ends(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SECONDS", 0.2)
    with pytest.raises(UsageError, match="the query took more than"):
        case.query("select count(*) from range(1000000000000) a, range(1000000) b")


def test_a_query_is_answered_with_what_its_tables_rest_on(case: Case) -> None:
    answer = case.query("select value from vm_counters, range(3)", limit=2)
    assert (answer["shown"], answer["cut_off"]) == (2, True)
    (rests_on,) = answer["coverage"]
    assert rests_on["table"] == "vm_counters"
    # Of this bundle no section says how it fared.
    assert (rests_on["section"], rests_on["status"]) == ("", "unknown")
    assert case.query("select 1 as a, 2 as a")["rows"] == [{"a": 1, "a_1": 2}]


def test_how_a_section_fared_goes_with_each_answer(tmp_path: Path) -> None:
    zones = made.tables_of("zones")
    torn = [SectionResult("zones", "partial", 0.1, 2, 4096, "a page is not in the dump")]
    case = Case("torn", made.write_bundle(tmp_path / "torn", zones, sections=torn))
    (rests_on,) = case.show("zones")["coverage"]
    assert rests_on["status"] == "partial" and rests_on["unreadable_bytes"] == 4096
    assert rests_on["message"] == "a page is not in the dump"


def test_answers_have_bounds() -> None:
    rows = [{"n": n, "text": "x" * 1000} for n in range(1000)]
    answer = bounded(rows)
    assert answer["cut_off"] and 0 < answer["shown"] < 250
    assert not bounded(rows[:3])["cut_off"]
    assert bounded([{"text": "x" * 10**6}])["shown"] == 1  # cut, and there


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("\x1b[2J\u202e", "\\x1b[2J\\u202e"),
        (float("nan"), None),
        (float("-inf"), None),
        (True, True),
        (1 << 53, 1 << 53),
        ((1 << 53) + 1, "9007199254740993"),
        (-(1 << 63), str(-(1 << 63))),
        ({"a": (1, None)}, {"a": [1, None]}),
    ],
)
def test_values_are_json_that_any_reader_takes(value: Any, said: Any) -> None:
    assert plain(value) == said


def test_columns_of_one_name_stay_apart() -> None:
    assert unique(["a", "b", "a", "a"]) == ["a", "b", "a_1", "a_2"]
    assert unique(["a", "a", "a_1"]) == ["a", "a_1", "a_1_1"]


def test_a_hostile_bundle_is_answered_as_text(tmp_path: Path) -> None:
    hostile = made.write_bundle(
        tmp_path / "hostile",
        made.hostile_tables(),
        sections=made.hostile_sections(),
        target=made.hostile_target(),
    )
    case = Case("hostile", hostile)
    said = [case.about(), case.why(), case.findings(), case.tables()]
    said += [case.show(table) for table in case.bundle.tables]
    text = json.dumps(said, ensure_ascii=False)
    assert text.isprintable()


def test_two_bundles_are_held_against_each_other(case: Case, tmp_path: Path) -> None:
    later = Case("later", Bundle(small(tmp_path / "later", "web-1", kills=9)))
    answer = case.compare(later)
    assert (answer["before"], answer["after"]) == ("web-1", "later")
    changed = {(row["row"], row["before"], row["after"]) for row in answer["most_changed"]}
    assert ("oom_kill, event", "3", "9") in changed
    json.dumps(answer)


def test_an_empty_bundle_cannot_tell(tmp_path: Path) -> None:
    bundle(tmp_path / "empty", [])
    case = Case("empty", Bundle(tmp_path / "empty"))
    assert case.why()["word"] == "cannot tell"
