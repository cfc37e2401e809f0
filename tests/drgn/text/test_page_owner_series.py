# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner over time: joining snapshots, growth, owner frames; the commands and their findings.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from page_owner_inputs import (
    GFP,
    Stack,
    make_stacks,
    page_owner_record,
    page_owner_records,
    series,
    show_handles,
    show_stacks,
    show_stacks_handles,
)

from mmscope.drgn.owners.page_owner_rows import PageOwnerGrowth, PageOwnerPoint, PageOwnerStack
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.text import page_owner_series as ps
from mmscope.drgn.text.owner_frames import (
    allocator_frames,
    is_allocator,
    owner_frame,
    read_patterns,
)
from mmscope.drgn.text.page_owner_text import Selection
from mmscope.drgn.text.stack_text import folded, stack_id
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.bundle.description import BundleError, SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.findings import evaluate

STACKS = make_stacks(60)
SNAPSHOT = next(series(STACKS, 1))


def files(tmp_path: Path, snapshots: Sequence[Any], form: Any, name: str = "s.{}") -> list[str]:
    paths = []
    for number, snapshot in enumerate(snapshots):
        path = tmp_path / name.format(number)
        path.write_text(form(snapshot))
        paths.append(str(path))
    return paths


def resolver(tmp_path: Path, stacks: Sequence[Stack] = STACKS, name: str = "resolver") -> str:
    path = tmp_path / name
    path.write_text(show_stacks_handles(list(stacks)))
    return str(path)


def at(handle: int, *pages: int | None) -> list[dict[int, int]]:
    return [{} if number is None else {handle: number} for number in pages]


def joined(tmp_path: Path, *snapshots: dict[int, int], **options: Any) -> ps.Series:
    texts = ["".join(f"handle: {h}\nnr_base_pages: {n}\n\n" for h, n in s.items()) or
             "handle: 1\nnr_base_pages: 1\n\n" for s in snapshots]  # fmt: skip
    return ps.read_series(files(tmp_path, texts, str), **({"interval": 10.0} | options))


def columns_of(found: ps.Series) -> dict[int, list[int]]:
    """Each key's pages in every snapshot; NOT_LISTED where it is not."""
    count = len(found.snapshots)
    return {
        key: [
            number
            for begin, number, end in zip(runs[::2], runs[1::2], (*runs[2::2], count), strict=True)
            for _ in range(begin, end)
        ]
        for key, runs in found.history.items()
    }


def growth_of(found: ps.Series, key: int) -> dict[str, Any]:
    names = [column.name for column in columns(PageOwnerGrowth)]
    (row,) = [row for row in ps.growth_rows(found) if row[0] == key]
    return dict(zip(names, row, strict=True))


def points_of(found: ps.Series, key: int) -> list[tuple[float, int | None]]:
    return [(time, pages) for time, handle, pages in ps.point_rows(found) if handle == key]


# Joining


def test_by_handle(tmp_path: Path) -> None:
    snapshots = list(series(STACKS, 12))
    found = ps.read_series(
        files(tmp_path, snapshots, show_handles), [resolver(tmp_path)], interval=5
    )
    table = columns_of(found)
    for position, snapshot in enumerate(snapshots):
        assert {key: c[position] for key, c in table.items()} == {s.handle: n for s, n in snapshot}
    assert found.stacks == {stack.handle: stack.text.encode() for stack in STACKS}
    assert found.times == [5.0 * n for n in range(12)]
    assert (found.notes, found.unresolved) == ({}, 0)


def test_by_stack(tmp_path: Path) -> None:
    snapshots = list(series(STACKS, 5))
    found = ps.read_series(files(tmp_path, snapshots, show_stacks), interval=1)
    table = columns_of(found)
    ids = {stack_id(stack.text.encode()): stack for stack in STACKS}
    assert table.keys() == ids.keys() == found.stacks.keys()
    for position, snapshot in enumerate(snapshots):
        expected = {stack.text: pages for stack, pages in snapshot}
        assert {ids[key].text: column[position] for key, column in table.items()} == expected


def test_page_owner_files_join_show_stacks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"".join(page_owner_records(STACKS, 500)))
    snapshot = next(series(STACKS, 1))
    (tmp_path / "b").write_text(show_stacks(snapshot))
    found = ps.read_series([str(tmp_path / "a"), str(tmp_path / "b")], interval=1)
    assert [s.kind for s in found.snapshots] == ["page_owner", "show_stacks"]
    assert found.tally is None  # the last one has no breakdowns
    table = columns_of(found)
    assert any(column[0] > 0 and column[1] > 0 for column in table.values())
    back = ps.read_series([str(tmp_path / "b"), str(tmp_path / "a")], interval=1)
    assert back.tally is not None and back.allocations


def test_a_resolver_among_the_files(tmp_path: Path) -> None:
    paths = [resolver(tmp_path), *files(tmp_path, list(series(STACKS, 2)), show_handles)]
    assert ps.read_series(paths, interval=1).unresolved == 0


def test_handles_that_the_resolver_lacks(tmp_path: Path) -> None:
    found = joined(tmp_path, {27000000: 5, 3: 4}, resolvers=[resolver(tmp_path)])
    assert found.notes == {3: ps.MISSING} and found.unresolved == 1
    assert joined(tmp_path, {3: 4}).notes == {3: ps.NO_RESOLVER}


def test_handles_that_were_reused(tmp_path: Path) -> None:
    other = [Stack(27000000, " other+0x1/0x2\n", 0, ("", "", ""))]  # type: ignore[arg-type]
    both = [resolver(tmp_path, other, "first"), resolver(tmp_path, name="second")]
    found = joined(tmp_path, {27000000: 5, 27000037: 1}, resolvers=both)
    assert found.notes == {27000000: ps.REUSED + "other"}
    assert found.stacks[27000000] == STACKS[0].text.encode()


def test_handles_that_were_reused_in_page_owner(tmp_path: Path) -> None:
    for name, stack in (("a", " one+0x1/0x2\n"), ("b", " two+0x1/0x2\n")):
        (tmp_path / name).write_bytes(page_owner_record(stack, handle=9))
    found = ps.read_series([str(tmp_path / "a"), str(tmp_path / "b")], interval=1)
    assert found.notes == {9: ps.REUSED + "one"}


def test_kinds_that_do_not_join(tmp_path: Path) -> None:
    snapshot = next(series(STACKS, 1))
    mixed = files(tmp_path, [snapshot], show_handles) + files(
        tmp_path, [snapshot], show_stacks, "t"
    )
    with pytest.raises(TextError, match="no key in common"):
        ps.read_series(mixed, interval=1)
    with pytest.raises(TextError, match="is show_handles, not show_stacks_handles"):
        ps.read_series(mixed[:1], mixed[:1], interval=1)
    with pytest.raises(TextError, match="handles, but no counts"):
        ps.read_series([resolver(tmp_path)])
    with pytest.raises(TextError, match="has only stacks to select by"):
        ps.read_series(mixed[:1], selection=Selection(pid=[1]))


# Times


def test_names_order_the_snapshots(tmp_path: Path) -> None:
    texts = [f"handle: 7\nnr_base_pages: {n}\n\n" for n in (3, 1, 2)]
    paths = []
    for text, seconds in zip(texts, (1763600020.5, 1763600000, 1763600010), strict=True):
        path = tmp_path / f"h.{seconds}"
        path.write_text(text)
        paths.append(str(path))
    found = ps.read_series(paths)
    assert found.times == [0.0, 10.0, 20.5]
    assert columns_of(found) == {7: [1, 2, 3]}
    assert found.time_source == "the files' names"


def test_change_times_order_the_snapshots(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("after", "before")]
    for path, pages in zip(paths, (2, 1), strict=True):
        Path(path).write_text(f"handle: 7\nnr_base_pages: {pages}\n\n")
    os.utime(paths[0], (0, 1000.5))
    os.utime(paths[1], (0, 1000.0))
    found = ps.read_series(paths)
    assert (found.times, found.absolute) == ([0.0, 0.5], [1000.0, 1000.5])
    assert columns_of(found) == {7: [1, 2]}
    assert found.time_source == "when the files were last changed"


def test_stacks_under_another_name_do_not_hide_the_order(tmp_path: Path) -> None:
    paths = {"a": show_handles(SNAPSHOT), "b": show_handles(SNAPSHOT[:1])}
    paths["the stacks"] = show_stacks_handles(STACKS)
    for name, seconds in (("a", 2000), ("b", 1000), ("the stacks", 1000)):
        (tmp_path / name).write_text(paths[name])
        os.utime(tmp_path / name, (seconds, seconds))
    given = [str(tmp_path / name) for name in paths]
    found = ps.read_series(given)
    assert [snapshot.source for snapshot in found.snapshots] == ["b", "a"]
    assert found.time_source == "when the files were last changed" and not found.unresolved
    assert columns_of(found)[STACKS[1].handle] == [ps.NOT_LISTED, SNAPSHOT[1][1]]
    for name in "ab":
        (tmp_path / name).write_bytes(page_owner_record(STACKS[0].text))
        os.utime(tmp_path / name, (2000 if name == "a" else 1000,) * 2)
    found = ps.read_series(given)
    assert [snapshot.source for snapshot in found.snapshots] == ["b", "a"] and found.tally


def test_without_times_there_is_no_slope(tmp_path: Path) -> None:
    found = joined(tmp_path, *at(7, 1, 5, 9), interval=None)
    for path in tmp_path.iterdir():
        os.utime(path, (0, 5))
    found = ps.read_series([str(tmp_path / f"s.{n}") for n in range(3)])
    assert found.time_source.startswith("unknown") and not found.absolute and not found.timed
    assert growth_of(found, 7)["slope"] is None and growth_of(found, 7)["gained"] == 8


# Growth


def test_growth(tmp_path: Path) -> None:
    found = joined(tmp_path, *at(7, 10, 20, 15, 25, 25))
    assert growth_of(found, 7) == {
        "handle": 7, "first_seen": 0.0, "listed": 5, "gaps": 0, "pages_first": 10, "pages_last": 25,
        "pages_min": 10, "pages_max": 25, "gained": 15, "slope": 0.35, "steadiness": 0.75,
        "rises": 2,
    }  # fmt: skip


def test_growth_of_what_is_not_listed(tmp_path: Path) -> None:
    found = joined(tmp_path, *at(7, None, 4, None, None, 6, None, 8))
    row = growth_of(found, 7)
    assert (row["first_seen"], row["listed"], row["gaps"]) == (10.0, 3, 2)
    assert (row["pages_first"], row["pages_min"], row["pages_last"]) == (0, 0, 8)


@given(st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=2, max_size=20)
       .filter(lambda pages: any(pages)))  # fmt: skip
def test_points_say_everything(pages: list[int | None]) -> None:
    """What was left out can be filled in again from the points around it."""
    with tempfile.TemporaryDirectory() as folder:
        found = joined(Path(folder), *at(7, *pages))
    points = dict(points_of(found, 7))
    filled: list[int | None] = []
    for moment in found.times:
        filled.append(points[moment] if moment in points else filled[-1])
    assert filled == pages
    assert {0.0, found.times[-1]} <= points.keys()


def test_points_of_what_stays(tmp_path: Path) -> None:
    found = joined(tmp_path, *at(7, *[5] * 9, 6, 6, 6))
    assert points_of(found, 7) == [(0.0, 5), (80.0, 5), (90.0, 6), (110.0, 6)]


# Owner frames


@pytest.mark.parametrize(
    "stack, owner",
    [
        ("root;xfs_buf_alloc [xfs];alloc_pages_mpol;__alloc_pages", ("xfs_buf_alloc", "xfs")),
        ("root;alloc_skb_with_frags;kmalloc_reserve;allocate_slab", ("alloc_skb_with_frags", None)),
        ("root;do_anonymous_page;vma_alloc_folio_noprof", ("do_anonymous_page", None)),
        ("root;f.constprop.0;kmem_cache_alloc_noprof.isra.0.cold", ("f.constprop.0", None)),
        ("kmalloc_trace;alloc_pages", ("kmalloc_trace", None)),
        ("alloc_pages [m];__alloc_pages", ("alloc_pages", "m")),
        ("0xffffffff81000000", ("0xffffffff81000000", None)),
    ],
)  # fmt: skip
def test_owner_frames(stack: str, owner: tuple[str, str | None]) -> None:
    assert owner_frame(stack) == owner


@pytest.mark.parametrize(
    "symbol",
    ["post_alloc_hook", "get_page_from_freelist", "__alloc_pages", "__alloc_frozen_pages_noprof",
     "alloc_pages_mpol", "folio_alloc_noprof", "vma_alloc_folio_noprof", "___slab_alloc",
     "allocate_slab", "new_slab", "kmem_cache_alloc_lru_noprof",
     "__kmalloc_node_track_caller_noprof", "kmalloc_reserve", "__vmalloc_node_range_noprof",
     "pcpu_alloc_noprof", "__set_page_owner",
     "get_zeroed_page_noprof", "kvmalloc_node"],
)  # fmt: skip
def test_allocator_frames(symbol: str) -> None:
    assert is_allocator(symbol)


@pytest.mark.parametrize(
    "symbol",
    ["alloc_skb", "__alloc_skb", "pte_alloc_one", "do_anonymous_page", "page_cache_ra_unbounded",
     "bio_alloc_bioset", "copy_process", "", "alloc_inode"],
)  # fmt: skip
def test_not_allocator_frames(symbol: str) -> None:
    assert not is_allocator(symbol)


def test_the_patterns_file() -> None:
    whole, begins, rest = allocator_frames()
    assert len(whole) > 20 and len(begins) > 20 and rest == ()
    assert read_patterns("# x\n\na\nb*\nc?d*\n") == (frozenset({"a"}), ("b",), ("c?d*",))


# Bundles


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 12 snapshots by handle."""
    folder = tmp_path_factory.mktemp("grown")
    paths = files(folder, list(series(STACKS, 12)), show_handles)
    result = run("page-owner", "--stacks", resolver(folder), "--interval", 60, "--total-pages",
                 1_000_000, "-o", folder / "b", *paths)  # fmt: skip
    assert result.returncode == 0, result.stderr
    (folder / "out").write_text(result.stdout)
    return folder


def test_the_tables_of_a_series(grown: Path) -> None:
    bundle = Bundle(grown / "b")
    last = list(series(STACKS, 12))[-1]
    stacks = list(bundle.rows("page_owner_stacks"))
    assert {row["handle"]: row["pages"] for row in stacks} == {s.handle: n for s, n in last}
    assert [row["pages"] for row in stacks] == sorted((n for _, n in last), reverse=True)
    assert all(row["stack"] and row["owner"] for row in stacks)
    snapshots = list(bundle.rows("page_owner_snapshots"))
    assert [row["time"] for row in snapshots] == [60.0 * n for n in range(12)]
    assert snapshots[-1]["pages"] == sum(n for _, n in last)
    (section,) = bundle.sections
    assert (section.section, section.status) == ("page_owner", "ok")
    assert "every 60 s, as given with --interval" in (section.message or "")
    assert bundle.target["total_pages"] == 1_000_000
    for row_type, name in ((PageOwnerStack, "stacks"), (PageOwnerPoint, "series"),
                           (PageOwnerGrowth, "growth")):  # fmt: skip
        assert bundle.table(f"page_owner_{name}").columns == columns(row_type)


def test_the_folded_stacks(grown: Path) -> None:
    bundle = Bundle(grown / "b")
    last = list(series(STACKS, 12))[-1]
    expected = sorted((folded(s.text.encode()), n * os.sysconf("SC_PAGE_SIZE")) for s, n in last)
    assert sorted(bundle.stacks("page_owner")) == expected
    assert bundle.folded["page_owner"].unit == "bytes"
    assert "page_owner_folded" not in bundle.tables


def test_a_data_package_that_others_read(grown: Path) -> None:
    from frictionless import Package

    report = Package(str(grown / "b" / "datapackage.json")).validate()
    assert report.valid, report.flatten(["type", "note"])


def test_the_views(grown: Path) -> None:
    database = open_database(Bundle(grown / "b"))
    total = sum(n for _, n in list(series(STACKS, 12))[-1])
    for view in ("page_owner_by_owner", "page_owner_by_module"):
        rows = database.rows(f"from {view}")
        assert sum(row["pages"] for row in rows) == total
        assert [row["pages"] for row in rows] == sorted((r["pages"] for r in rows), reverse=True)
    growers = database.rows("from page_owner_growers")
    assert growers and all(row["gained"] > 0 and row["owner"] for row in growers)


def test_what_it_prints(grown: Path) -> None:
    out = (grown / "out").read_text()
    last = list(series(STACKS, 12))[-1]
    assert out.startswith(f"{sum(n for _, n in last):,} pages")
    owner, _ = owner_frame(folded(max(last, key=lambda item: item[1])[0].text.encode()))
    assert owner in out.splitlines()[2]
    assert "gained" in out and "No trouble found by 3 checks." in out


def test_a_page_owner_file(tmp_path: Path) -> None:
    data = b"".join(page_owner_records(STACKS, 800))
    (tmp_path / "po").write_bytes(data + b"Page alloc")
    result = run("page-owner", tmp_path / "po", "-o", tmp_path / "b")
    assert result.returncode == 1
    assert "po: the last record was cut short and is not counted" in result.stderr
    bundle = Bundle(tmp_path / "b")
    names = {
        "stacks",
        "snapshots",
        "tasks",
        "orders",
        "gfp",
        "migratetypes",
        "memcgs",
        "migrations",
    }
    assert bundle.tables.keys() == {f"page_owner_{name}" for name in names} | {"sections"}
    totals = {name: sum(row["pages"] for row in bundle.rows(f"page_owner_{name}"))
              for name in names - {"snapshots", "migrations"}}  # fmt: skip
    assert len(set(totals.values())) == 1, totals
    assert sum(row["allocations"] for row in bundle.rows("page_owner_stacks")) == 800
    assert all(row["handle"] >= 1 << 48 for row in bundle.rows("page_owner_stacks"))
    assert "ids are made from the stacks' text" in (bundle.sections[0].message or "")


def test_hostile_names_reach_the_terminal_harmless(tmp_path: Path) -> None:
    stack = " a\x1bc+0x1/0x2\n"
    (tmp_path / "po").write_bytes(page_owner_record(stack, comm=b"\x1b]0;x\x07\n\xff"))
    for words in (["page-owner", tmp_path / "po"],
                  ["show", "page_owner", tmp_path / "po", "--cull", "comm,stack"]):  # fmt: skip
        result = run(*words)
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout and "\\x1b" in result.stdout
    assert run("page-owner", tmp_path / "po", "-o", tmp_path / "b").returncode == 0
    (row,) = Bundle(tmp_path / "b").rows("page_owner_tasks")
    assert row["comm"] == "\x1b]0;x\x07\n\\xff"


def test_of_equally_many_the_order_is_not_that_of_the_file(tmp_path: Path) -> None:
    stack = " a+0x1/0x2\n"
    tails = [b"", b"Charged to memcg b.scope\n", b"Charged to offline memcg b.scope\n"]
    made = [
        page_owner_record(stack, pid=pid, tgid=1, gfp=GFP[pid % 2], tail=tails[pid], pfn=pid)
        for pid in range(3)
    ]
    tables = []
    for name, records in (("one", made), ("other", made[::-1])):
        (tmp_path / name).write_bytes(b"".join(records))
        assert run("page-owner", tmp_path / name, "-o", tmp_path / f"{name}.b").returncode == 0
        bundle = Bundle(tmp_path / f"{name}.b")
        names = ("page_owner_tasks", "page_owner_memcgs", "page_owner_gfp")
        tables.append([list(bundle.rows(table)) for table in names])
    assert tables[0] == tables[1]
    assert [row["pid"] for row in tables[0][0]] == [0, 1, 2]


def test_unresolved_handles_are_said(tmp_path: Path) -> None:
    paths = files(tmp_path, list(series(STACKS, 2)), show_handles)
    result = run("page-owner", *paths, "--interval", 1)
    assert result.returncode == 1
    assert "60 handles have no stack; give show_stacks_handles with --stacks" in result.stderr
    assert "handle 27000000: no resolver given" in result.stdout


@pytest.mark.parametrize(
    "words, code, error",
    [
        (["none"], 3, "none: No such file or directory"),
        (["/proc/self/status"], 3, "not a page_owner, show_stacks"),
        (["po", "--interval", "0"], 2, "--interval"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, words: list[str], code: int, error: str) -> None:
    result = run("page-owner", *words)
    assert result.returncode == code
    assert error in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_bundle_in_the_way_is_kept(grown: Path) -> None:
    result = run("page-owner", grown / "s.0", "-o", grown / "b")
    assert result.returncode == 2 and "already exists" in result.stderr


# Selecting in the terminal


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "page_owner"
    path.write_bytes(
        page_owner_record(STACKS[0].text, pid=1, tgid=1, comm=b"a", ts=30, order=1)
        + page_owner_record(STACKS[1].text, pid=2, tgid=1, comm=b"b c", ts=20, order=3)
        + page_owner_record(STACKS[0].text, pid=3, tgid=3, comm=b"a", ts=10)
    )
    return path


def shown(text: Path, *words: object) -> list[dict[str, Any]]:
    result = run("show", "page_owner", text, "--format", "json", *words)
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def test_culling_and_sorting(text: Path) -> None:
    assert shown(text, "--cull", "comm") == [
        {"comm": "b c", "pages": 8, "allocations": 1, "first_ts": 20, "last_ts": 20},
        {"comm": "a", "pages": 3, "allocations": 2, "first_ts": 10, "last_ts": 30},
    ]
    assert [r["pid"] for r in shown(text, "--cull", "pid,tgid", "--sort", "ts")] == [3, 2, 1]
    assert [r["comm"] for r in shown(text, "--cull", "comm", "--sort", "times")] == ["a", "b c"]
    assert [r["pid"] for r in shown(text, "--cull", "pid", "--sort", "pid")] == [1, 2, 3]
    assert [r["pid"] for r in shown(text, "--cull", "pid", "--top", 1)] == [2]
    stacks = [row["stack"] for row in shown(text)]
    assert stacks == [folded(STACKS[n].text.encode()) for n in (1, 0)]


def test_selecting(text: Path) -> None:
    def pids(*words: object) -> list[int]:
        return sorted(row["pid"] for row in shown(text, "--cull", "pid", *words))

    assert pids("--pid", "1,3") == [1, 3]
    assert pids("--tgid", "1") == [1, 2]
    assert pids("--comm", "b c") == [2]
    assert pids("--order", "0,1") == [1, 3]
    assert pids("--since", 20) == [1, 2]
    assert pids("--until", 15) == [3]
    assert pids("--gfp", "__GFP_COMP|__GFP_ZERO") == [1, 2, 3]
    assert pids("--gfp", "GFP_KERNEL") == []
    assert pids("--module", "none") == []


@pytest.mark.parametrize(
    "words, error", [(["--cull", "x"], "no such key"), (["--sort", "pid"], "--sort pid")]
)
def test_bad_keys(text: Path, words: list[str], error: str) -> None:
    result = run("show", "page_owner", text, *words)
    assert result.returncode == 2 and error in result.stderr


def test_selecting_for_a_bundle(text: Path, tmp_path: Path) -> None:
    result = run("page-owner", text, "--pid", "2", "-o", tmp_path / "b")
    assert result.returncode == 0
    (row,) = Bundle(tmp_path / "b").rows("page_owner_tasks")
    assert (row["pid"], row["comm"], row["pages"]) == (2, "b c", 8)


# Findings


def verdict(tmp_path: Path, *snapshots: dict[int, int], total_pages: int | None = None) -> Any:
    found = joined(tmp_path, *snapshots, resolvers=[resolver(tmp_path)])
    from mmscope.reports.watch.page_owner import write_tables

    with Writer(tmp_path / "b") as writer:
        section, _, _ = write_tables(writer, found, 4096, seconds=0)
        writer.finish({"kind": "files", "page_size": 4096, "total_pages": total_pages}, [section])
    return evaluate(Bundle(tmp_path / "b"))


LEAK, STEP, CACHE = 27000000, 27000037, 27000074


def ids(found: Any) -> set[str]:
    return {finding.id for finding in found.found if finding.section == "page_owner"}


def test_a_stack_that_only_grows(tmp_path: Path) -> None:
    found = verdict(tmp_path, *({LEAK: 100 + 100 * n, CACHE: 900 - n} for n in range(6)))
    (leak,) = [f for f in found.found if f.id == "page-owner-stack-grows"]
    owner, _ = owner_frame(folded(STACKS[0].text.encode()))
    assert leak.severity == "warning"
    assert leak.title == f"{owner}: pages grow steadily, +1.953 MiB in 6 snapshots"
    assert "100 pages in the first snapshot, 600 in the last" in leak.saw
    assert "more in 5 of 5 steps: 40 KiB a second over 50 s" in leak.saw


@pytest.mark.parametrize(
    "pages",
    [[100, 200, 300, 400], [100, 300, 200, 400, 500, 900], [100, 100, 100, 100, 100, 900],
     [100, 110, 120, 130, 140, 150], [900, 800, 700, 600, 500, 400]],
    ids=["too few snapshots", "falls once", "one step", "too little", "shrinks"],
)  # fmt: skip
def test_what_is_no_leak(tmp_path: Path, pages: list[int]) -> None:
    found = verdict(tmp_path, *({LEAK: number} for number in pages))
    assert "page-owner-stack-grows" not in ids(found)
    assert "page-owner-stack-grows" in {id for id, _ in found.silent}


def test_a_stack_that_took_the_growth(tmp_path: Path) -> None:
    found = verdict(tmp_path, {STEP: 10, CACHE: 5}, {STEP: 2010, CACHE: 505})
    (one,) = [f for f in found.found if f.id == "page-owner-took-growth"]
    assert one.severity == "notice"
    assert "took 80.0 % of the growth" in one.title
    assert "2,000 pages (7.812 MiB) of the 2,500 that 2 stacks gained" in one.saw


@pytest.mark.parametrize("last", [{STEP: 1000, CACHE: 10}, {STEP: 2000, CACHE: 2001, LEAK: 10}])
def test_growth_that_nobody_took(tmp_path: Path, last: dict[int, int]) -> None:
    assert "page-owner-took-growth" not in ids(verdict(tmp_path, {STEP: 1}, last))


def test_an_owner_of_much(tmp_path: Path) -> None:
    found = verdict(tmp_path, {LEAK: 2000, CACHE: 10}, total_pages=10_000)
    (one,) = [f for f in found.found if f.id == "page-owner-large-owner"]
    owner, _ = owner_frame(folded(STACKS[0].text.encode()))
    assert one.title == f"{owner} holds 20.0 % of memory"
    assert "2,000 pages (7.812 MiB) of 10,000, by 1 stacks" in one.saw


def test_an_owner_of_little(tmp_path: Path) -> None:
    found = verdict(tmp_path, {LEAK: 999}, total_pages=10_000)
    assert "page-owner-large-owner" in {id for id, _ in found.silent}


def test_page_cache_is_no_finding(tmp_path: Path) -> None:
    row = PageOwnerStack(1, 9000, None, "page_cache_ra_unbounded", None, "a", None)
    with Writer(tmp_path / "b") as writer:
        writer.table("page_owner_stacks", "x", PageOwnerStack, [row], section="page_owner")
        writer.finish({"kind": "vmcore", "page_size": 4096, "total_pages": 10_000}, [])
    assert ids(evaluate(Bundle(tmp_path / "b"))) == set()


def test_findings_that_cannot_be_asked(tmp_path: Path) -> None:
    found = verdict(tmp_path, {LEAK: 2000})
    reasons = {item.id: item.reason for item in found.not_checked}
    assert reasons["page-owner-large-owner"] == "target.total_pages is unknown in this bundle"
    assert reasons["page-owner-stack-grows"].startswith("no table page_owner_growth")
    assert reasons["page-owner-took-growth"].startswith("no table page_owner_growth")


# Folded stacks in a bundle


def folded_bundle(path: Path, lines: list[tuple[str, int]]) -> Path:
    with Writer(path) as writer:
        writer.folded("x", "X", lines, unit="bytes", section="x")
        writer.finish({"kind": "files"}, [SectionResult("x", "ok", 0.0, 0, 0, None)])
    return path


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(), st.integers(-(1 << 62), 1 << 62)), max_size=15))
def test_folded_stacks_come_back(lines: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        back = list(Bundle(folded_bundle(Path(folder, "b"), lines)).stacks("x"))
    assert [value for _, value in back] == [value for _, value in lines]
    for (stack, _), (before, _) in zip(back, lines, strict=True):
        if before.isprintable():
            assert stack == before


@pytest.mark.parametrize(
    "damage", ["a b\n", "a\n", "a 1.5\n", " \n", "a;" * 3000 + "b 1\n", "a" * 3_000_000 + " 1\n"]
)
def test_damaged_folded_stacks(tmp_path: Path, damage: str) -> None:
    path = folded_bundle(tmp_path / "b", [("a;b", 1)])
    (path / "x.folded").write_text(damage, encoding="latin-1")
    with pytest.raises(BundleError, match=r"x\.folded: damaged"):
        list(Bundle(path).stacks("x"))


def test_missing_and_other_folded_stacks(tmp_path: Path) -> None:
    path = folded_bundle(tmp_path / "b", [("a;b", 1)])
    with pytest.raises(BundleError, match="has no folded stacks y"):
        list(Bundle(path).stacks("y"))
    (path / "x.folded").unlink()
    with pytest.raises(BundleError, match="missing"):
        list(Bundle(path).stacks("x"))
    (path / "x.folded").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="not a plain file"):
        list(Bundle(path).stacks("x"))


@pytest.mark.parametrize(
    "change",
    [{"path": "../x.folded"}, {"path": "/etc/passwd"}, {"name": "X y"}, {"path": None},
     {"name": 5}],
)  # fmt: skip
def test_folded_stacks_declared_badly(tmp_path: Path, change: dict[str, Any]) -> None:
    path = folded_bundle(tmp_path / "b", [("a;b", 1)])
    data = json.loads((path / "datapackage.json").read_text())
    data["resources"][0] |= change
    (path / "datapackage.json").write_text(json.dumps(data))
    with pytest.raises(BundleError, match="damaged"):
        Bundle(path)


def test_the_report_of_a_series(grown: Path) -> None:
    out = grown / "r.html"
    result = run("report", grown / "b", "-o", out)
    assert result.returncode == 0, result.stderr
    html = out.read_text()
    assert "page_owner_growth" in html and "page_owner_stacks" in html
