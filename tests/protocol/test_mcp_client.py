# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope mcp`` as the protocol's own client sees it, over standard input and output."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mmscope[mcp] is not installed: make test-mcp")

import anyio
import report_bundle as made
from command_line import ROOT, run
from made_lake import lake_of, small
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mmscope.reports.serving.answers import plain

Asked = Callable[..., list[Any]]
MINUTES = 5 * 60  # for a machine that is busy


def ask(cases: list[Path | str], *questions: tuple[str, dict[str, Any]]) -> list[Any]:
    """The answers to questions; a refusal is its words."""

    async def asked() -> list[Any]:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "mmscope", "mcp", *map(str, cases)],
            env={"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        answers = []
        with anyio.fail_after(MINUTES):
            async with Client(stdio_client(server)) as client:
                for tool, given in questions:
                    result = await client.call_tool(tool, given)
                    (text,) = (part.text for part in result.content)
                    answers.append(text if result.is_error else json.loads(text))
        return answers

    return anyio.run(asked)


def told(*words: str | Path) -> Any:
    """What a command says as JSON."""
    return json.loads(run(*words, "--json").stdout)


def same(why: dict[str, Any], found: dict[str, Any], place: Path) -> bool:
    """True if both answers about a bundle are those of the command line."""
    said, listed = told("why", place), told("findings", place)
    assert why["word"] == said["verdict"] and why["unknowns"] == said["unknown"]
    for name in ("sentence", "severity", "cause", "owner", "harm", "since", "rests_on"):
        assert why[name] == said[name]
    assert [found[name] for name in ("verdict", "not_seen")] == [
        said["verdict"],
        listed["not_seen"],
    ]
    for name in ("id", "severity", "title", "saw", "why"):
        assert [one[name] for one in found["findings"]] == [one[name] for one in listed["findings"]]
    return True


def listed(tables: dict[str, Any], place: Path) -> bool:
    """True if these are the tables that the command line lists, by name and title."""
    lines = run("show", "tables", place).stdout.splitlines()
    said = [line.split(None, 1) for line in lines if not line.endswith("(computed)")]
    assert said == [[one["table"], one["title"]] for one in tables["tables"]]
    return True


def compared(answer: dict[str, Any], before: Path, after: Path) -> bool:
    """True if it is what the command line says of the two."""
    said = json.loads(run("compare", before, "--json", "--", after).stdout)
    names = ("change", "severity", "title")
    assert answer["findings"] == [{name: one[name] for name in names} for one in said["findings"]]
    assert answer["most_changed"] == said["changes"][: len(answer["most_changed"])]
    return True


def rests(evidence: dict[str, Any], place: Path) -> bool:
    """True if all rows that a finding stands on are rows of tables as they are shown."""
    for one in evidence["stands_on"]:
        rows = json.loads(run("show", one["table"], place, "--format", "json").stdout)
        assert one["rows"] and all(row in rows for row in one["rows"])
    return bool(evidence["stands_on"])


def test_ten_questions_are_answered_as_on_the_command_line(tmp_path: Path) -> None:
    one, two = (small(tmp_path / f"b{n}", "web-1", kills=n) for n in (3, 9))
    cases, why, found, evidence, tables, rows, kills, refused, file, both = ask(
        [one, two],
        ("cases", {}),
        ("why", {"case": "b3"}),
        ("findings", {"case": "b3"}),
        ("evidence", {"case": "b3", "finding": "oom-kills-since-boot"}),
        ("tables", {"case": "b3"}),
        ("show", {"case": "b3", "table": "vm_counters"}),
        ("query", {"case": "b9", "sql": "select sum(value) as kills from vm_counters"}),
        ("query", {"case": "b9", "sql": "drop table vm_counters"}),
        ("query", {"case": "b9", "sql": "select * from read_text('/etc/hostname')"}),
        ("compare", {"before": "b3", "after": "b9"}),
    )
    assert [case["case"] for case in cases["cases"]] == ["b3", "b9"]
    assert same(why, found, one)
    assert [one["id"] for one in found["findings"]] == ["oom-kills-since-boot"]
    assert evidence["stands_on"][0]["rows"][0]["value"] == 3
    assert rests(evidence, one) and listed(tables, one)
    assert rows["rows"] == json.loads(run("show", "vm_counters", one, "--format", "json").stdout)
    assert kills["rows"] == [{"kills": 9}]
    assert "one SELECT, and nothing else" in refused
    assert "file system operations are disabled" in file
    assert both["most_changed"][0]["before"] == "3" and compared(both, one, two)


def test_the_tools_say_that_they_only_read(tmp_path: Path) -> None:
    place = small(tmp_path / "b", "web-1")

    async def listed() -> Any:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "mmscope", "mcp", str(place)],
            env={"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        with anyio.fail_after(MINUTES):
            async with Client(stdio_client(server)) as client:
                return (await client.list_tools()).tools

    tools = anyio.run(listed)
    assert {tool.name for tool in tools} == {
        "cases", "why", "findings", "evidence", "tables", "show", "query", "compare",
    }  # fmt: skip
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)


def test_a_lake_is_asked_beside_a_bundle(tmp_path: Path) -> None:
    bundles = [small(tmp_path / f"b{n}", f"web-{n}", kills=n) for n in range(3)]
    lake, by = tmp_path / "lake", ("finding", "host", "kernel", "label", "owner")
    lake_of(tmp_path, *bundles)
    cases, tables, *found, kills, refused, why = ask(
        [lake, bundles[0]],
        ("cases", {}),
        ("tables", {"case": "lake"}),
        *(("findings", {"case": "lake", "by": each}) for each in by),
        ("query", {"case": "lake", "sql": "select host, value from vm_counters order by all"}),
        ("query", {"case": "lake", "sql": "copy vm_counters to '/tmp/copied'"}),
        ("why", {"case": "lake"}),
    )
    assert [case["case"] for case in cases["cases"]] == ["b0", "lake"]
    assert cases["cases"][1]["rows"] == told("lake", "show", lake)
    assert tables["rows"] == told("lake", "show", lake, "tables")
    for each, answer in zip(by, found, strict=True):
        assert answer["rows"] == told("lake", "findings", lake, "--by", each), each
    assert found[0]["rows"][0]["hosts"] == 2
    assert [row["host"] for row in kills["rows"]] == ["web-0", "web-1", "web-2"]
    rows = told("lake", "show", lake, "vm_counters")
    assert kills["rows"] == [{name: row[name] for name in ("host", "value")} for row in rows]
    assert "one SELECT, and nothing else" in refused
    assert "is a lake" in why


def test_a_hostile_bundle_gives_text_alone(tmp_path: Path) -> None:
    place = tmp_path / "b"
    made.write_bundle(
        place,
        made.hostile_tables(),
        sections=made.hostile_sections(),
        target=made.hostile_target(),
    )
    answers = ask(
        [place],
        ("cases", {}),
        ("why", {}),
        ("findings", {}),
        ("evidence", {"finding": "page-table-bloat"}),
        ("tables", {}),
        ("show", {"table": "zones"}),
        ("show", {"table": "wait_roots"}),
        ("query", {"sql": "select zone from zones"}),
        ("query", {"sql": "attach '/etc/hostname' as stolen"}),
        ("compare", {"before": "b", "after": "b"}),
    )
    assert json.dumps(answers, ensure_ascii=False).isprintable()
    cases, why, found, evidence, tables, zones, roots, names, refused, both = answers
    assert [case["case"] for case in cases["cases"]] == ["b"]
    assert found["findings"] and same(why, found, place)
    assert rests(evidence, place) and listed(tables, place) and compared(both, place, place)
    for table, answer in (("zones", zones), ("wait_roots", roots)):
        rows = json.loads(run("show", table, place, "--format", "json").stdout)
        assert answer["rows"] == plain(rows)  # what a terminal would obey, made visible
    assert names["rows"] == [{"zone": row["zone"]} for row in zones["rows"]]
    assert "one SELECT, and nothing else" in refused


def test_names_are_replaced_if_asked_for(tmp_path: Path) -> None:
    place = small(tmp_path / "secret-host", "secret-host")
    answers = ask(["--redact", place], ("cases", {}), ("why", {}), ("tables", {}))
    assert "secret-host" not in json.dumps(answers)


def test_what_is_no_case_is_one_line(tmp_path: Path) -> None:
    done = run("mcp", tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
