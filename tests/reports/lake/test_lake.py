# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A lake: each finding says of each host what it says of the host's bundle alone, whoever else is in
it, and whatever is wrong with others.
"""

import contextlib
import errno
import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import made_hosts as made
import pytest
from command_line import ROOT, RUN, run
from lake_truth import QUESTIONS, found_as_alone
from made_fleet import of_each_finding
from made_lake import host, lake_of, small

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.leftovers import replaced
from mmscope.reports.findings.findings import evaluate, named
from mmscope.reports.fleet.fleet import Share, ask_fleet, at_least_by_chance, regressions
from mmscope.reports.lake import adding, layout, staging
from mmscope.reports.lake.adding import add
from mmscope.reports.lake.asking import answers
from mmscope.reports.lake.batch import load
from mmscope.reports.lake.catalog import read_catalog
from mmscope.reports.lake.layout import Lake
from mmscope.reports.lake.staging import Stage, identity

KILLS = [question for question in QUESTIONS if question.id == "oom-kills-since-boot"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return of_each_finding(tmp_path_factory.mktemp("fleet"))


def test_each_host_is_told_what_its_bundle_alone_is_told(tmp_path: Path, paths: list[Path]) -> None:
    assert not lake_of(tmp_path, *paths)
    catalog = read_catalog(tmp_path / "lake")
    assert len(catalog.bundles) == len(paths)
    batch = load(catalog, catalog.bundles, named(QUESTIONS))
    fired = found_as_alone(batch, {identity(path): path for path in paths})
    profiles = {question.id for question in QUESTIONS if question.id.startswith("profile-")}
    assert fired | profiles >= {question.id for question in QUESTIONS}


def test_a_lake_that_cannot_be_written_is_said_in_the_systems_words(tmp_path: Path) -> None:
    bundle = small(tmp_path / "host", "host", kills=0)
    # As on a full disk: no file may be larger.
    command = ["prlimit", "--fsize=300", *RUN, "lake", "add", bundle, tmp_path / "lake"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    words = f"mmscope: {tmp_path}/lake: cannot be written: File too large\n"
    assert (ran.stderr, ran.returncode) == (words, 2)
    assert not lake_of(tmp_path, bundle)  # and later it can be


def test_what_a_lake_says_of_hosts(tmp_path: Path) -> None:
    days = ("2026-11-20", "2026-11-21", "2026-11-22")
    bundles = [
        small(tmp_path / f"{name}-{day}", name, f"{day}T10:00:00+00:00", kills)
        for name, each in {"a": (0, 3, 4), "b": (1, 0, 0), "c": (5, 5, 9)}.items()
        for day, kills in zip(days, each, strict=True)
    ]
    lake_of(tmp_path, *bundles)
    catalog = read_catalog(tmp_path / "lake")
    told = {one.question.id: one for one in ask_fleet(catalog, KILLS).found}
    one = told["oom-kills-since-boot"]
    assert (len(one.cases), len(one.checked)) == (2, 3)
    assert [(c.bundle.host, c.badness, c.always) for c in one.cases] == [
        ("c", 9, True),
        ("a", 4, False),
    ]
    assert one.cases[1].since - one.cases[0].since == 86400
    assert one.by_kernel == {"7.2.12": Share(2, 3)}


def test_a_bundle_is_in_it_once(tmp_path: Path) -> None:
    first = small(tmp_path / "first", "a", kills=1)
    shutil.copytree(first, tmp_path / "copy")
    lake = tmp_path / "lake"
    assert add(lake, [first, tmp_path / "copy", first], print) == (1, 2, True)
    assert add(lake, [tmp_path / "copy"], print) == (0, 1, True)
    assert len(read_catalog(lake).bundles) == 1


def test_who_a_bundle_is_costs_no_more_than_what_is_read_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path / "b", "a")
    monkeypatch.setattr(staging, "MAX_READ", 1 << 20)
    os.truncate(path / "vm_counters.csv", 1 << 40)  # takes no room, and hours to hash
    before = identity(path)
    os.truncate(path / "vm_counters.csv", (1 << 40) + 1)
    assert identity(path) != before


@pytest.mark.parametrize(
    ("user", "umask", "mode"), [(0, 0o022, 0o700), (0, 0, 0o700), (65534, 0o022, 0o755)]
)
def test_what_root_adds_to_is_roots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, umask: int, mode: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    before = os.umask(umask)
    try:
        lake_of(tmp_path, small(tmp_path / "b", "a"))
    finally:
        os.umask(before)
    made = [tmp_path / "lake", *(tmp_path / "lake").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {mode, mode & 0o666}


def test_a_lake_where_others_may_add_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(0o1777)
    with pytest.raises(layout.LakeError, match="may be written to by others; root does not use it"):
        lake_of(tmp_path, small(tmp_path / "b", "a"))
    assert not os.listdir(tmp_path / "lake")


def test_files_stay_few_however_many_come_singly(tmp_path: Path) -> None:
    for number in range(9):
        lake_of(tmp_path, small(tmp_path / f"b{number}", f"h{number}", kills=number + 1))
    files = layout.files_of(layout.Lake(tmp_path / "lake"))
    of_counters = [file for file in files if file.table == "vm_counters"]
    assert len(of_counters) <= 4
    assert sum(file.rows for file in of_counters) == 9
    on_disk = {path for path in (tmp_path / "lake").rglob("*.parquet")}
    assert on_disk == {file.path(tmp_path / "lake") for file in files}


def test_what_duckdb_refuses_costs_its_own_bundle_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is read for all bundles at once, and again for each where that fails."""
    asked = []

    plain = Stage._take_together

    def refusing(self: Stage, table: Any, day: str, theirs: Any) -> None:
        asked.append((table.name, len(theirs)))
        if table.name == "vm_counters" and 0 in {number for number, _ in theirs}:
            raise duckdb.InvalidInputException("what nobody foresaw\nand more")
        plain(self, table, day, theirs)

    monkeypatch.setattr(Stage, "_take_together", refusing)
    bundles = [small(tmp_path / f"b{n}", f"h{n}", kills=n + 1) for n in range(3)]
    (said,) = lake_of(tmp_path, *bundles)
    assert said == (
        f"{bundles[0]}: table vm_counters is left out: {bundles[0]}/vm_counters.csv: DuckDB "
        "cannot read it: what nobody foresaw"
    )
    assert [many for name, many in asked if name == "vm_counters"] == [3, 1, 1, 1]
    fleet = ask_fleet(read_catalog(tmp_path / "lake"), KILLS)
    (one,) = fleet.found
    assert (len(one.cases), len(one.checked)) == (2, 2)


def test_a_table_that_is_left_out_is_said_and_seen_in_the_exit_code(tmp_path: Path) -> None:
    whole, torn = small(tmp_path / "a", "a", kills=1), small(tmp_path / "b", "b", kills=1)
    lines = (torn / "vm_counters.csv").read_text().splitlines(True)
    (torn / "vm_counters.csv").write_text("".join([lines[0], "a name alone\n", *lines[1:]]))
    done = run("lake", "add", whole, torn, tmp_path / "lake")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert "table vm_counters is left out" in said and "b/vm_counters.csv" in said
    assert "2 added" in done.stdout
    again = run("lake", "add", whole, torn, tmp_path / "lake")
    assert (again.returncode, again.stderr) == (0, "")


def test_several_may_add_at_once(tmp_path: Path) -> None:
    bundles = [small(tmp_path / f"b{n}", f"h{n}", kills=n + 1) for n in range(4)]
    lake = tmp_path / "lake"
    writers = [
        subprocess.Popen([*RUN, "lake", "add", *map(str, bundles[n:]), str(lake)], cwd=ROOT)
        for n in range(2)
    ]
    assert [writer.wait(300) for writer in writers] == [0, 0]
    assert sorted(taken.host for taken in read_catalog(lake).bundles) == ["h0", "h1", "h2", "h3"]


def test_a_lake_that_another_process_is_making_is_no_foreign_folder(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    with replaced(folder / layout.DESCRIPTION, 0o600) as file:  # as the other one does
        assert layout.Lake(folder).others() == []
        file.write(b"{}")
    (folder / ".lake.json.old").touch()
    assert ".lake.json.old" in layout.Lake(folder).others()


def test_who_is_killed_leaves_nothing_half_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_of(tmp_path, small(tmp_path / "one", "one", kills=1))
    before = layout.files_of(layout.Lake(tmp_path / "lake"))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(adding, "commit", killed)
        lake_of(tmp_path, small(tmp_path / "two", "two", kills=1))
    assert layout.files_of(layout.Lake(tmp_path / "lake")) == before
    assert [taken.host for taken in read_catalog(tmp_path / "lake").bundles] == ["one"]
    lake_of(tmp_path, tmp_path / "two")
    left = {path for path in (tmp_path / "lake").rglob("*.parquet")}
    assert left == {
        f.path(tmp_path / "lake") for f in layout.files_of(layout.Lake(tmp_path / "lake"))
    }


def _damage(path: Path, column: str) -> None:
    """Damage the pages of one column of a Parquet file."""
    at, size = duckdb.sql(
        "select least(data_page_offset, coalesce(dictionary_page_offset, data_page_offset)), "
        f"total_compressed_size from parquet_metadata('{path}') where path_in_schema = '{column}'"
    ).fetchall()[0]
    data = bytearray(path.read_bytes())
    data[at + size - 9 : at + size] = bytes(9)
    path.write_bytes(data)


class TestBadInput:
    def test_a_bundle_of_a_newer_format_costs_no_other(self, tmp_path: Path) -> None:
        newer = small(tmp_path / "newer", "newer")
        description = json.loads((newer / "datapackage.json").read_text())
        (newer / "datapackage.json").write_text(json.dumps(description | {"format": 99}))
        (said,) = lake_of(tmp_path, newer, small(tmp_path / "ours", "ours"), tmp_path / "none")[:1]
        assert "is of bundle format 99" in said
        assert [taken.host for taken in read_catalog(tmp_path / "lake").bundles] == ["ours"]

    def test_a_torn_file_costs_those_in_it_one_table(self, tmp_path: Path) -> None:
        old = small(tmp_path / "old", "old", "2026-11-20T10:00:00+00:00", 2)
        lake_of(tmp_path, old, small(tmp_path / "new", "new", kills=2))
        for file in layout.files_of(layout.Lake(tmp_path / "lake")):
            if file.table == "vm_counters" and file.day == "2026-11-20":
                path = file.path(tmp_path / "lake")
                path.write_bytes(path.read_bytes()[:-9])
        fleet = ask_fleet(read_catalog(tmp_path / "lake"), KILLS)
        assert [line for line in fleet.said if "torn" in line] == fleet.said
        (one,) = (one for one in fleet.found if one.question.id == "oom-kills-since-boot")
        assert [case.bundle.host for case in one.cases] == ["new"]
        assert any("torn" in why for id, why in fleet.unchecked if id == one.question.id)

    def test_a_file_that_is_damaged_inside_does_too(self, tmp_path: Path) -> None:
        lake_of(tmp_path, small(tmp_path / "b", "h", kills=2))
        for file in layout.files_of(layout.Lake(tmp_path / "lake")):
            if file.table == "vm_counters":
                path = file.path(tmp_path / "lake")
                data = bytearray(path.read_bytes())
                data[4:-8] = bytes(len(data) - 12)
                path.write_bytes(data)
        fleet = ask_fleet(read_catalog(tmp_path / "lake"), KILLS)
        assert any("damaged" in line for line in fleet.said)
        assert not fleet.found

    def test_descriptions_that_are_damaged_cost_bundles_that_no_other_describes(
        self, tmp_path: Path
    ) -> None:
        old = small(tmp_path / "old", "old", "2026-11-20T10:00:00+00:00", 2)
        lake_of(tmp_path, old, small(tmp_path / "new", "new", kills=2))
        lists = [
            file.path(tmp_path / "lake")
            for file in layout.files_of(layout.Lake(tmp_path / "lake"))
            if file.table == layout.BUNDLES
        ]
        assert len(lists) == 2
        # Both bundles have the same tables.
        _damage(lists[0], "description")
        fleet = ask_fleet(read_catalog(tmp_path / "lake"), KILLS)
        assert {case.bundle.host for one in fleet.found for case in one.cases} == {"old", "new"}
        _damage(lists[1], "description")
        fleet = ask_fleet(read_catalog(tmp_path / "lake"), KILLS)
        assert not fleet.found
        (said,) = fleet.said
        assert "2 bundles cannot be asked: what describes their tables is damaged (old" in said
        assert {why for _, why in fleet.unchecked} == {"its description in the lake is damaged"}

    def test_two_hosts_with_one_name_are_told_apart(self, tmp_path: Path) -> None:
        lake_of(
            tmp_path,
            small(tmp_path / "a", "web", "2026-11-22T10:00:00+00:00", 1, uptime_seconds=86400.0),
            small(tmp_path / "b", "web", "2026-11-22T11:00:00+00:00", 0, uptime_seconds=7200.0),
            small(tmp_path / "c", "web", "2026-11-22T12:00:00+00:00", 2, uptime_seconds=93600.0),
            small(tmp_path / "d", "db", "2026-11-21T10:00:00+00:00", 1, uptime_seconds=86400.0),
            small(tmp_path / "e", "db", "2026-11-22T10:00:00+00:00", 2, uptime_seconds=3600.0),
        )
        catalog = read_catalog(tmp_path / "lake")
        assert {taken.host for taken in catalog.bundles} == {
            "db", "web (booted 2026-11-21T10:00:00Z)", "web (booted 2026-11-22T09:00:00Z)",
        }  # fmt: skip
        (said,) = catalog.said
        assert "2 machines have this name, or a clock was set" in said

    @pytest.mark.parametrize("at", ["2093-01-01T00:00:00+00:00", "1970-01-01T00:00:05+00:00"])
    def test_a_clock_that_was_wrong_is_said(self, tmp_path: Path, at: str) -> None:
        (said,) = lake_of(tmp_path, small(tmp_path / "b", "h", at, 1))
        assert "the clock of its host was wrong" in said
        catalog = read_catalog(tmp_path / "lake")
        assert catalog.said
        assert ask_fleet(catalog, KILLS).found

    def test_a_number_too_large_to_compute_with_costs_its_host_alone(self, tmp_path: Path) -> None:
        bundles = []
        for number in range(5):
            one = made.healthy(2)
            one.target |= host(f"h{number}")
            one.write(tmp_path / f"b{number}")
            bundles.append(tmp_path / f"b{number}")
        counters = tmp_path / "b3" / "vm_counters.csv"
        text = counters.read_text()
        for name in ("nr_slab_reclaimable", "nr_slab_unreclaimable"):
            text = "\n".join(
                ",".join([*line.split(",")[:2], str(2**63 - 1), *line.split(",")[3:]])
                if line.startswith(f"{name},")
                else line
                for line in text.split("\n")
            )
        counters.write_text(text)
        lake_of(tmp_path, *bundles)
        catalog = read_catalog(tmp_path / "lake")
        asked = [q for q in QUESTIONS if q.id in ("slab-large", "memory-unaccounted", "swap-full")]
        batch = load(catalog, catalog.bundles, named(asked))
        alone = {item.id for item in evaluate(Bundle(tmp_path / "b3"), asked).not_checked}
        assert "slab-large" in alone
        for answer in answers(batch, asked):
            hosts = {catalog.bundles[number].host for number in answer.refused}
            assert ("h3" in hosts) == (answer.question.id in alone)
            assert hosts in ({f"h{n}" for n in range(5)}, {"h3"}, set())

    def test_names_from_a_bundle_are_no_sql_and_no_paths(self, tmp_path: Path) -> None:
        name = "../../x'; drop table lake.zones; --\x1b[31m"
        lake_of(tmp_path, small(tmp_path / "b", name, kills=3), labels=(("a'b", '"; x'),))
        only = ("--only", KILLS[0].id)
        result = run("lake", "findings", str(tmp_path / "lake"), "--by", "host", *only)
        assert "\x1b" not in result.stdout
        assert "drop table" in result.stdout

    @pytest.mark.parametrize(
        ("name", "text", "why"),
        [
            ("thesis.txt", "x", "not a lake, and not empty"),
            ("lake.json", '{"lake": 2, "files": []}', "is a lake of layout 2"),
            ("lake.json", "x", "is damaged"),
        ],
    )
    def test_a_folder_of_something_else_is_left_alone(
        self, tmp_path: Path, name: str, text: str, why: str
    ) -> None:
        (tmp_path / "lake").mkdir()
        (tmp_path / "lake" / name).write_text(text)
        with pytest.raises(layout.LakeError, match=why):
            lake_of(tmp_path, small(tmp_path / "b", "h"))
        assert [path.name for path in (tmp_path / "lake").iterdir()] == [name]

    @pytest.mark.parametrize("place", ["vm_counters", "vm_counters/day=2026-11-22", ".stage"])
    def test_two_lakes_do_not_share_a_folder(self, tmp_path: Path, place: str) -> None:
        """What one of them does not know the other's is not removed, and nothing is added."""
        bundle = small(tmp_path / "b", "h", kills=1)
        lake_of(tmp_path, bundle)
        other = tmp_path / "other" / "lake"
        (other / place).parent.mkdir(parents=True)
        (tmp_path / "lake" / place).mkdir(exist_ok=True)
        (other / place).symlink_to(tmp_path / "lake" / place)
        (other / "lake.json").write_text('{"lake": 1, "files": []}')
        before = sorted((tmp_path / "lake").rglob("*"))
        with pytest.raises(layout.LakeError, match=f"other/lake/{place}: leads out of the lake"):
            lake_of(tmp_path / "other", bundle)
        assert sorted((tmp_path / "lake").rglob("*")) == before
        assert not (other / ".lock").exists()

    def test_what_is_mounted_in_a_lake_is_not_emptied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bind mount is no link; to rename out of it fails."""
        lake_of(tmp_path, small(tmp_path / "b", "h"))
        theirs = tmp_path / "lake/vm_counters/day=2026-11-22" / f"{'0' * 16}.parquet"
        theirs.write_bytes(b"PAR1")
        rename = Path.rename

        def refused(path: Path, target: Path) -> Path:
            if path == theirs:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", refused)
        with pytest.raises(layout.LakeError, match="cross-device"):
            lake_of(tmp_path, small(tmp_path / "c", "i"))
        assert theirs.exists()

    @pytest.mark.parametrize(
        "number", ['"1"', "1.0", "1e400", "true", "null", "-1", "[]", "9" * 30]
    )
    @pytest.mark.parametrize("what", ["lake", "rows", "size"])
    def test_numbers_of_a_lake_are_whole_numbers(
        self, tmp_path: Path, number: str, what: str
    ) -> None:
        file = {"table": "zones", "day": "2026-11-22", "name": "0" * 16, "rows": 1, "size": 9}
        text = json.dumps({"lake": 1, "files": [file]})
        (tmp_path / "lake").mkdir()
        (tmp_path / "lake/lake.json").write_text(
            re.sub(f'"{what}": [0-9]+', f'"{what}": {number}', text)
        )
        with pytest.raises(layout.LakeError, match=r"lake\.json is damaged: .* is no whole number"):
            read_catalog(tmp_path / "lake")

    def test_no_file_counts_twice(self, tmp_path: Path) -> None:
        lake_of(tmp_path, small(tmp_path / "b", "h"))
        described = tmp_path / "lake/lake.json"
        said = json.loads(described.read_text())
        said["files"].append(said["files"][0] | {"rows": 7})
        described.write_text(json.dumps(said))
        with pytest.raises(layout.LakeError, match=r"lake\.json is damaged: .* is listed twice"):
            read_catalog(tmp_path / "lake")

    @pytest.mark.parametrize("name", ["lake.json", ".lock", "lake_bundles"])
    def test_what_is_no_plain_file_is_not_waited_for(self, tmp_path: Path, name: str) -> None:
        lake_of(tmp_path, small(tmp_path / "b", "h"))
        path = tmp_path / "lake" / name
        if path.is_dir():
            (path,) = path.rglob("*.parquet")
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(layout.LakeError, match="is not a plain file"):
            lake_of(tmp_path, small(tmp_path / "c", "i"))
        if name != ".lock":
            try:
                assert any(
                    "is not a plain file" in line for line in read_catalog(tmp_path / "lake").said
                )
            except layout.LakeError as error:
                assert "is not a plain file" in str(error)

    @pytest.mark.parametrize(
        "rows",
        [
            "select 1 as x",
            "select * replace ('[' as counts) from {list}",
            'select * replace (\'{{"zones": "x"}}\' as counts) from {list}',
            "select * replace (null as captured) from {list}",
            "select * replace ('never' as captured) from {list}",
            "select * replace (null as lake_bundle) from {list}",
            "select * replace (0 as lake_labels) from {list}",
            "select * replace (null as description) from {list}",
            "select * replace ('{{\"resources\": [1]}}' as description) from {list}",
            "select * exclude (kind) from {list}",
        ],
    )
    def test_a_list_of_bundles_that_is_something_else_is_a_line(
        self, tmp_path: Path, rows: str
    ) -> None:
        lake_of(tmp_path, small(tmp_path / "b", "h", kills=2))
        path = tmp_path / "lake"
        (file,) = (f for f in layout.files_of(layout.Lake(path)) if f.table == "lake_bundles")
        with contextlib.closing(duckdb.connect()) as connection:
            source = f"read_parquet('{file.path(path)}')"
            connection.execute(
                f"copy ({rows.format(list=source)}) to '{tmp_path}/x' (format parquet)"
            )
        os.replace(tmp_path / "x", file.path(path))
        size = file.path(path).stat().st_size
        text = (path / "lake.json").read_text()
        (path / "lake.json").write_text(text.replace(f'"size": {file.size}\n', f'"size": {size}\n'))
        for words in (
            ["findings", path],
            ["show", path],
            ["show", path, "zones"],
            ["add", tmp_path / "b", path],
        ):
            done = run("lake", *map(str, words))
            lines = done.stderr.splitlines()
            assert all(line.startswith("mmscope: ") for line in lines), done.stderr
            assert "-v shows" not in done.stderr and "Error" not in done.stderr, done.stderr
            assert done.returncode in ((0, 1, 2) if lines else (0,))


def test_names_are_replaced_on_the_way(tmp_path: Path) -> None:
    secret = small(tmp_path / "b", "payroll-db-7", kills=1)
    lake = tmp_path / "lake"
    done = run("lake", "add", "--redact", "--host", "asset-4711", str(secret), str(lake))
    assert "1 added" in done.stdout
    for path in lake.rglob("*"):
        assert path.is_dir() or b"payroll" not in path.read_bytes()
    assert "asset-4711" in run("lake", "show", str(lake)).stdout


def test_what_is_merged_while_it_is_read_is_read(tmp_path: Path) -> None:
    lake_of(tmp_path, small(tmp_path / "a", "a", kills=1))
    catalog = read_catalog(tmp_path / "lake")
    lake_of(tmp_path, small(tmp_path / "b", "b", kills=1))
    assert not all(file.path(tmp_path / "lake").exists() for file in catalog.files)
    fleet = ask_fleet(catalog, KILLS)
    assert [case.bundle.host for one in fleet.found for case in one.cases] == ["a"]
    assert not fleet.said


def test_a_process_in_another_folder_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_of(tmp_path, small(tmp_path / "one", "a"))
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(Lake(Path("lake")))
    monkeypatch.chdir("/")
    assert json.loads(pickle.loads(sent).description())


def test_only_what_is_wanted_is_asked(tmp_path: Path) -> None:
    lake_of(tmp_path, small(tmp_path / "a", "a", "2026-11-20T10:00:00+00:00", 1))
    lake_of(tmp_path, small(tmp_path / "b", "b", release="6.1.0"), labels=(("role", "db"),))

    def hosts(**wanted: Any) -> list[str]:
        return [b.host for b in read_catalog(tmp_path / "lake", **wanted).bundles]

    assert hosts() == ["a", "b"]
    assert hosts(since="2026-11-21") == ["b"]
    assert hosts(until="2026-11-21") == ["a"]
    assert hosts(kernels=("6.1.0",)) == hosts(labels=(("role", "db"),)) == hosts(hosts=("b",))


def test_a_kernel_on_which_more_hosts_have_it_is_said(tmp_path: Path) -> None:
    bundles = [
        small(tmp_path / f"{r}-{n}", f"{r}-{n}", kills=int(r == "7.3" or n == 0), release=r)
        for r in ("7.2", "7.3")
        for n in range(12)
    ]
    lake_of(tmp_path, *bundles)
    fleet = ask_fleet(read_catalog(tmp_path / "lake"), KILLS)
    ((one, kernel, here, elsewhere, _),) = regressions(fleet)
    assert (one.question.id, kernel) == ("oom-kills-since-boot", "7.3")
    assert (here, elsewhere) == (Share(12, 12), Share(1, 12))


def test_chance_is_that_of_fishers_exact_test() -> None:
    # R: fisher.test(matrix(c(3, 1, 1, 3), 2), alternative = "greater")
    assert at_least_by_chance(Share(3, 4), Share(1, 4)) == pytest.approx(17 / 70)
    assert at_least_by_chance(Share(0, 4), Share(4, 4)) == pytest.approx(1)


def test_what_reads_object_storage_is_named_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "mmscope.reports.lake.bucket", raising=False)
    done = run("lake", "findings", "s3://bucket/lake")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "mmscope: s3://bucket/lake: obstore is missing: pip install 'mmscope[s3]'\n"
    )


def test_spark_that_is_not_installed_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_of(tmp_path, small(tmp_path / "one", "a"))
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    monkeypatch.delitem(sys.modules, "mmscope.reports.fleet.spark", raising=False)
    done = run("lake", "findings", tmp_path / "lake", "--engine", "spark")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'mmscope[spark]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
