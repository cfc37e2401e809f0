# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about a lake for programs."""

from pathlib import Path

import pytest
from made_lake import lake_of, small

from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.lake.layout import LakeError
from mmscope.reports.serving.lake_answers import LakeCase


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeCase:
    folder = tmp_path_factory.mktemp("lake")
    lake_of(folder, *(small(folder / f"b{n}", f"web-{n}", kills=n) for n in range(3)))
    return LakeCase("fleet", str(folder / "lake"))


def test_hosts_and_tables_are_listed(lake: LakeCase) -> None:
    assert [row["host"] for row in lake.about()["rows"]] == ["web-0", "web-1", "web-2"]
    assert "vm_counters" in {row["table"] for row in lake.tables()["rows"]}


def test_findings_say_on_how_many_hosts(lake: LakeCase) -> None:
    answer = lake.findings()
    found = {row["finding"]: row for row in answer["rows"]}
    assert found["oom-kills-since-boot"]["hosts"] == 2
    assert found["oom-kills-since-boot"]["worst_host"] == "web-2"
    assert "3 hosts" in answer["sentence"]
    assert {row["host"] for row in lake.findings("host")["rows"]} == {"web-1", "web-2"}
    with pytest.raises(UsageError, match="there are finding, kernel"):
        lake.findings("colour")


def test_one_select_over_all_hosts(lake: LakeCase) -> None:
    kills = "select host, value from vm_counters where name = 'oom_kill' order by host"
    assert lake.query(kills)["rows"] == [{"host": f"web-{n}", "value": n} for n in range(3)]
    assert lake.query(kills, limit=1)["cut_off"]
    for wrong, words in (
        ("drop table vm_counters", "one SELECT"),
        ("select * from nothing", "has no table nothing"),
        ("select * from read_text('/etc/hostname')", "file system operations are disabled"),
    ):
        with pytest.raises(UsageError, match=words):
            lake.query(wrong)


def test_what_is_no_lake_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="not a lake"):
        LakeCase("x", str(tmp_path))
