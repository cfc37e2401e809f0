# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose memory it is on several hosts: one stack, cache, caller, counter or class of the ledger."""

import csv
import io
from pathlib import Path

import pytest
from command_line import run
from made_lake import lake_of
from made_owners import EVIL, host, leak, ledger

from mmscope.drgn.ledger.memory_ledger import LedgerCheck
from mmscope.drgn.ledger.page_holders import PageHolder
from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller

MIB = 1 << 20


def by_owner(lake: Path, *options: str) -> list[dict[str, str]]:
    done = run("lake", "findings", lake, "--by", "owner", "--format", "csv", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six hosts with one stack, one of them with another; one caller of vmalloc() on two."""
    folder = tmp_path_factory.mktemp("owners")
    (folder / "of").mkdir()
    bundles = [host(folder / "of", f"web-{n}", leak(1000 * (n + 1))) for n in range(6)]
    bundles.append(host(folder / "of", "db", leak(5000, "bio_alloc")))
    bundles += [
        host(
            folder / "of", name, [VmallocCaller("bpf_map_alloc", "vmalloc", 2, pages, pages << 12)]
        )
        for name, pages in (("bpf-1", 50_000), ("bpf-2", 300_000))
    ]
    bundles += [host(folder / "of", f"{EVIL}{n}", leak(1024, EVIL)) for n in range(2)]
    assert not lake_of(folder, *bundles)
    return folder / "lake"


def test_one_stack_on_six_hosts_is_one_owner(lake: Path) -> None:
    (row,) = (row for row in by_owner(lake) if row["owner"] == "xfs_buf_alloc [xfs]")
    assert row == {
        "what": "allocation stack", "owner": "xfs_buf_alloc [xfs]", "grew": "true", "hosts": "6",
        "fell": "", "checked": "9", "bytes": str(21_000 * 4096), "worst_host": "web-5",
        "worst_bytes": str(6000 * 4096), "seconds": row["seconds"],
        "finding": "page-owner-stack-grows",
    }  # fmt: skip
    assert float(row["seconds"]) == 40


def test_those_of_most_hosts_come_first_and_those_of_one_are_listed(lake: Path) -> None:
    rows = by_owner(lake)
    assert [(row["owner"][-19:], row["hosts"]) for row in rows] == [
        ("xfs_buf_alloc [xfs]", "6"),
        ("bpf_map_alloc", "2"),
        (f"{EVIL} [xfs]"[-19:], "2"),
        ("bio_alloc [xfs]", "1"),
    ]
    assert (rows[1]["grew"], rows[1]["bytes"], rows[1]["seconds"]) == (
        "false", str(350_000 << 12), "",
    )  # fmt: skip


def test_a_leak_is_named_before_page_cache_that_grew_more(tmp_path: Path) -> None:
    """The owner that is named is the one of the severity that is said."""
    (tmp_path / "of").mkdir()
    cache = leak(90_000, "filemap_add_folio")[:2]
    lake_of(tmp_path, host(tmp_path / "of", "h", [*cache, *leak(1000)]))
    done = run("lake", "findings", tmp_path / "lake", "--format", "csv")
    (row,) = (
        row
        for row in csv.DictReader(io.StringIO(done.stdout))
        if row["finding"] == "page-owner-stack-grows"
    )
    assert row["severity"] == "warning" and row["title"].startswith("xfs_buf_alloc [xfs]: ")


def test_the_terminal_says_who_it_is_on_several_hosts(lake: Path) -> None:
    done = run("lake", "findings", lake)
    assert (
        "allocation stack xfs_buf_alloc [xfs] grew on 6 hosts of 9, by 82.03 MiB in all, most on "
        "web-5: 23.44 MiB in 40 s\n"
    ) in done.stdout
    assert (
        "vmalloc caller bpf_map_alloc is large on 2 hosts of 2, 1.335 GiB in all, most on bpf-2: "
        "1.144 GiB\n"
    ) in done.stdout
    assert "bio_alloc [xfs] grew" not in done.stdout
    assert "\x1b" not in done.stdout


def test_the_page_says_so_too_and_names_are_no_html(lake: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("lake", "report", lake, "-o", page).returncode == 0
    text = page.read_text()
    table = text.partition('<section id="owners"')[2].partition("</section>")[0]
    assert [row.count("<td") for row in table.split("<tr>")[2:]] == [10, 10, 10]
    assert "xfs_buf_alloc [xfs]" in table
    assert "bio_alloc" not in table
    assert "&lt;img src=x&gt;" in table
    assert "<img" not in text
    assert "\x1b" not in text


class TestLedgers:
    """What grew between the oldest and the newest ledger of one boot."""

    def test_a_class_that_grows_on_many_hosts_is_one_owner(self, tmp_path: Path) -> None:
        bundles = []
        for number, grown_by in enumerate((100, 300, 200, -150, 0)):
            name = f"h{number}"
            bundles += [
                host(tmp_path, name, ledger(slab=400, anonymous=10)),
                host(tmp_path, name, ledger(slab=1000, anonymous=20), at=1),  # came and went
                host(tmp_path, name, ledger(slab=400 + grown_by, anonymous=200), at=5),
            ]
        bundles.append(host(tmp_path, "once", ledger(slab=4000)))
        lake_of(tmp_path, *bundles)
        slab, anonymous = by_owner(tmp_path / "lake")
        assert slab == {
            "what": "ledger class", "owner": "slab", "grew": "true", "hosts": "3", "fell": "1",
            "checked": "5", "bytes": str(600 * MIB), "worst_host": "h1",
            "worst_bytes": str(300 * MIB), "seconds": slab["seconds"], "finding": "",
        }  # fmt: skip
        assert float(slab["seconds"]) == 5 * 3600
        # More hosts have it, but it follows the load.
        assert (anonymous["owner"], anonymous["hosts"], anonymous["fell"]) == (
            "anonymous",
            "5",
            "0",
        )
        said = run("lake", "findings", tmp_path / "lake").stdout
        assert (
            "ledger class slab grew on 3 hosts of 5, fell on 1, by 600 MiB in all, most on h1: "
            "300 MiB in 5 h 0 min\n"
        ) in said

    def test_a_holder_that_grows_is_named_beside_its_class(self, tmp_path: Path) -> None:
        def sockets(mib: int, pid: int, kind: str = "socket") -> PageHolder:
            names = ("tcp", pid, "srv", None, "network", "socket buffers", 3)
            return PageHolder(kind, *names, mib << 8, mib << 20)

        for name, gained in (("a", 300), ("b", 500)):
            lake_of(
                tmp_path,
                host(tmp_path, name, [*ledger(network=100), sockets(90, 7), sockets(10, 8, "x")]),
                host(
                    tmp_path, name, [*ledger(network=100 + gained), sockets(90 + gained, 70)], at=2
                ),
            )
        by_name = {(row["what"], row["owner"]): row for row in by_owner(tmp_path / "lake")}
        assert by_name.keys() == {("ledger class", "network"), ("holder", "socket tcp of srv")}
        row = by_name["holder", "socket tcp of srv"]
        assert (row["hosts"], row["fell"], row["bytes"]) == ("2", "0", str(800 * MIB))
        assert (row["worst_host"], float(row["seconds"])) == ("b", 7200)
        assert (
            "holder socket tcp of srv grew on 2 hosts of 2, by 800 MiB in all, most on b: 500 MiB "
            "in 2 h 0 min\n"
        ) in run("lake", "findings", tmp_path / "lake").stdout

    def test_a_little_more_is_no_growth(self, tmp_path: Path) -> None:
        for name, before, after in (("a", 100, 131), ("b", 1000, 1049)):
            lake_of(
                tmp_path,
                host(tmp_path, name, ledger(slab=before)),
                host(tmp_path, name, ledger(slab=after), at=2),
            )
        assert by_owner(tmp_path / "lake") == []

    def test_what_was_before_a_boot_is_not_compared(self, tmp_path: Path) -> None:
        lake_of(
            tmp_path,
            host(tmp_path, "a", ledger(slab=100)),
            host(tmp_path, "a", ledger(slab=900), at=6, uptime_seconds=600.0),
        )
        assert by_owner(tmp_path / "lake") == []

    def test_two_kinds_of_ledger_are_not_compared(self, tmp_path: Path) -> None:
        check = LedgerCheck("nr_free_pages", -1, "", 1, 1, 0, "")
        lake_of(
            tmp_path,
            host(tmp_path, "a", ledger(slab=100)),
            host(tmp_path, "a", [*ledger(slab=900), check], at=3),
        )
        assert by_owner(tmp_path / "lake") == []

    def test_a_torn_file_costs_its_hosts_alone(self, tmp_path: Path) -> None:
        from mmscope.reports.lake import layout

        for name, day in (("old", 0), ("new", 24)):
            of_day = f"2026-11-{22 + day // 24}T"
            lake_of(
                tmp_path,
                *(
                    host(tmp_path, name, ledger(slab=slab), hours,
                         captured_at=f"{of_day}{10 + hours}:00:00+00:00")
                    for hours, slab in ((0, 100), (4, 400))
                ),
            )  # fmt: skip
        for file in layout.files_of(layout.Lake(tmp_path / "lake")):
            if file.table == "memory_ledger" and file.day == "2026-11-22":
                path = file.path(tmp_path / "lake")
                path.write_bytes(path.read_bytes()[:-9])
        done = run("lake", "findings", tmp_path / "lake", "--by", "owner", "--format", "csv")
        (row,) = csv.DictReader(io.StringIO(done.stdout))
        assert (row["worst_host"], row["hosts"], row["checked"]) == ("new", "1", "1")
        assert done.returncode == 1
        assert "torn" in done.stderr
