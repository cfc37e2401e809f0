# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two bundles held against each other: what is compared, what must not be, and how it is told."""

import dataclasses
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from hypothesis import given, settings
from hypothesis import strategies as st
from page_tree import NEVER, by_id, cells, elements, has_id, parse, texts
from rows_of_tables import Contents

from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.owners.page_owner_rows import PageOwnerStack
from mmscope.drgn.page_tables.page_tables import PageTables
from mmscope.drgn.rmap.ksm import KsmTotal
from mmscope.drgn.tables.rows import column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.compare.comparison import Comparison, compare
from mmscope.reports.compare.comparison_view import Top, view
from mmscope.reports.compare.finding_changes import compare_findings
from mmscope.reports.compare.relation import same_boot
from mmscope.reports.compare.table_changes import MAX_CHANGES, TableChanges
from mmscope.reports.drawing import flame_graph
from mmscope.reports.findings.finding import Finding, NotChecked, Verdict
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

NOTHING = Verdict([], [], [])
LATER = {"captured_at": "2026-11-20T03:05:05+00:00", "uptime_seconds": 273_905.5}
REBOOTED = {"captured_at": "2026-11-20T04:04:05+00:00", "uptime_seconds": 300.0}
OTHER = {"hostname": "other-guest"}

Make = Callable[..., Bundle]


@dataclasses.dataclass(frozen=True)
class Retyped:
    """The table of oddities, of a version where one column is text and one is new."""

    name: str = column(key=True)
    taken: str = column(help="now words")
    ratio: float | None = column()
    fine: bool | None = column()
    more: int = column()


@dataclasses.dataclass(frozen=True)
class Rekeyed:
    """The same with another key."""

    name: str = column()
    taken: int = column(key=True)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    numbers = itertools.count()

    def bundle(
        contents: dict[str, Contents],
        sections: list[SectionResult] | None = None,
        **target: Any,
    ) -> Bundle:
        path = tmp_path / f"bundle{next(numbers)}"
        return made.write_bundle(path, contents, target=made.TARGET | target, sections=sections)

    return bundle


def oddities(*rows: tuple[str, int], kind: type = made.Oddity) -> dict[str, Contents]:
    return {"oddities": ("Odd", kind, [made.Oddity(*row, None, None) for row in rows], "odd")}


def one(name: str, row_type: type, *rows: Any) -> dict[str, Contents]:
    return {name: (name, row_type, list(rows), "one")}


def held(before: Bundle, after: Bundle) -> Comparison:
    return compare(before, after, (NOTHING, NOTHING), draw=False)


def table(comparison: Comparison, name: str) -> TableChanges:
    return next(t for t in comparison.tables if t.name == name)


def reason(comparison: Comparison, name: str) -> str:
    return next(why for other, why in comparison.not_compared if other == name)


class TestOneBoot:
    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            (LATER, True),
            (REBOOTED, False),
            (LATER | OTHER, False),
            (LATER | {"release": "7.3.0"}, False),
            (LATER | {"uptime_seconds": None}, None),
            (LATER | {"captured_at": "yesterday"}, None),
            (LATER | {"captured_at": None}, None),
            (LATER | {"uptime_seconds": 0}, None),
        ],
    )
    def test_is_told_by_names_and_by_when_it_began(
        self, make: Make, target: dict[str, Any], expected: bool | None
    ) -> None:
        assert same_boot(make({}), make({}, **target)) is expected

    def test_nobody_without_a_name_is_the_same(self, make: Make) -> None:
        assert same_boot(make({}, hostname=None), make({}, hostname=None)) is None
        assert same_boot(make({}), make({}, hostname=None)) is None

    @pytest.mark.parametrize(("step", "expected"), [(0, True), (2, True), (60, False)])
    def test_lasts_as_long_as_nobody_sets_the_clock(
        self, make: Make, step: int, expected: bool
    ) -> None:
        uptime = made.TARGET["uptime_seconds"] + 604_800 + step
        week = {"captured_at": "2026-11-27T03:04:05+00:00", "uptime_seconds": uptime}
        assert same_boot(make({}), make({}, **week)) is expected

    def test_is_said(self, make: Make) -> None:
        said = held(make({}), make({}, **LATER)).relation
        assert said.sides == ("before", "after")
        assert said.dates == ("2026-11-20 03:04", "2026-11-20 03:05")
        assert said.seconds == 60
        assert said.words == ["One boot of lab-guest, read 1 min 0 s apart (uptime 3 d 4 h)."]

    def test_what_they_do_not_tell_is_said(self, make: Make) -> None:
        words = held(make({}, hostname=None), make({}, **LATER)).relation.words
        assert words[0] == "Whether the bundles are of one machine is unknown."
        assert words[1].startswith("Whether this is one boot is unknown")

    def test_a_baseline_that_is_later_is_said(self, make: Make) -> None:
        said = held(make({}, **LATER), make({})).relation
        assert said.sides == said.dates == ("baseline", "this")
        assert "read later" in said.words[-1]

    def test_two_machines_kernels_boots_and_sizes_are_said(self, make: Make) -> None:
        target = OTHER | {"release": "7.3.0", "page_size": 65536, "total_pages": 5}
        words = " ".join(held(make({}), make({}, **target)).relation.words)
        for part in (
            "baseline is of lab-guest, this is of other-guest",
            "7.3.0 here",
            "Two boots",
            "Page sizes differ (4096 and 65536)",
            "Memory differs: 393086 and 5 pages",
        ):
            assert part in words


class TestRows:
    def test_appear_go_grow_shrink_and_stay(self, make: Make) -> None:
        before = make(oddities(("went", 1), ("grew", 10), ("shrank", 100), ("stayed", 5)))
        after = make(oddities(("came", 2), ("grew", 17), ("shrank", 40), ("stayed", 5)), **LATER)
        found = table(held(before, after), "oddities")
        assert [(c.change, c.what, c.before, c.after, c.difference) for c in found.changes] == [
            ("shrank", ("shrank",), 100, 40, -60),
            ("grew", ("grew",), 10, 17, 7),
            ("new", ("came",), None, 2, 2),
            ("gone", ("went",), 1, None, -1),
        ]
        assert found.counts == {
            "new": 1, "gone": 1, "grew": 1, "shrank": 1, "changed": 0, "same": 1,
        }  # fmt: skip

    def test_other_columns_are_told_beside_the_measure(self, make: Make) -> None:
        before = one("oddities", made.Oddity, made.Oddity("a", 1, 0.5, True))
        after = one("oddities", made.Oddity, made.Oddity("a", 1, 0.75, None))
        (change,) = table(held(make(before), make(after, **LATER)), "oddities").changes
        assert change.change == "changed"
        assert [(c.name, *values) for c, *values in change.others] == [
            ("ratio", 0.5, 0.75),
            ("fine", True, None),
        ]

    def test_text_that_changes_is_a_change(self, make: Make) -> None:
        before = one("settings", Setting, Setting("swappiness", "60"), Setting("same", "1"))
        after = one("settings", Setting, Setting("swappiness", "10"), Setting("same", "1"))
        shown = view(held(make(before), make(after, **LATER)))
        ((_, what, old, new, _, _),) = shown.tables[0].rows
        assert (what[0].text, old.text, new.text) == ("swappiness", "60", "10")

    def test_beyond_the_cut_are_counted(self, make: Make) -> None:
        before = make(oddities(*((f"row {n}", n) for n in range(100))))
        after = make(oddities(*((f"row {n}", 3 * n) for n in range(100))), **LATER)
        found = table(held(before, after), "oddities")
        assert [c.difference for c in found.changes] == [
            2 * n for n in range(99, 99 - MAX_CHANGES, -1)
        ]
        assert found.counts["grew"] == 99
        assert found.counts["same"] == 1

    def test_that_bear_one_name_twice_are_left_out_and_counted(self, make: Make) -> None:
        before = make(oddities(("twice", 1), ("twice", 2), ("once", 1)))
        after = make(oddities(("twice", 9), ("once", 1)), **LATER)
        found = table(held(before, after), "oddities")
        assert "keys that are there more than once, left out: 1 before, 0 after" in found.notes
        assert {change: n for change, n in found.counts.items() if n} == {"same": 1}

    def test_with_the_largest_numbers_are_subtracted_exactly(self, make: Make) -> None:
        most = (1 << 63) - 1
        before, after = make(oddities(("a", -most))), make(oddities(("a", most)), **LATER)
        (change,) = table(held(before, after), "oddities").changes
        assert change.difference == 2 * most

    def test_add_up_where_all_are_known(self, make: Make) -> None:
        before, after = make(oddities(("a", 1), ("b", 2))), make(oddities(("b", 5)), **LATER)
        assert table(held(before, after), "oddities").totals == (3, 5)
        rows = made.slab_stacks()  # of the last, bytes are unknown
        slabs = {"slab_owner_stacks": ("Slab", type(rows[0]), rows, "slab_owner")}
        found = table(held(make(slabs), make(slabs, **LATER)), "slab_owner_stacks")
        assert found.totals is None

    def test_a_pid_with_another_name_is_another_process(self, make: Make) -> None:
        rows = made.page_table_rows()
        other = dataclasses.replace(rows[0], comm="another")
        before = make(one("page_tables", PageTables, rows[0]))
        after = make(one("page_tables", PageTables, other), **LATER)
        assert {c.change for c in table(held(before, after), "page_tables").changes} == {
            "new",
            "gone",
        }

    @settings(max_examples=25, deadline=None)
    @given(
        *[st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5), max_size=8)] * 2,
    )
    def test_join_as_dictionaries_do(self, old: dict[str, int], new: dict[str, int]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pair = [
                made.write_bundle(Path(folder, name), oddities(*rows.items()))
                for name, rows in (("old", old), ("new", new))
            ]
            found = table(held(*pair), "oddities")
        expected = {
            name: new.get(name, 0) - old.get(name, 0)
            for name in old | new
            if old.get(name) != new.get(name)
        }
        assert {c.what[0]: c.difference for c in found.changes} == expected
        assert found.counts["same"] == sum(old[name] == new[name] for name in old.keys() & new)


class TestWhatIsNotCompared:
    def test_a_table_that_one_lacks_with_the_reason(self, make: Make) -> None:
        absent = [SectionResult("odd", "absent", 0.0, 0, 0, "boot with odd=on")]
        found = held(make({}, absent), make(oddities(("a", 1)), **LATER))
        assert reason(found, "oddities") == "the baseline does not have it (odd: boot with odd=on)"

    def test_columns_of_another_type_or_of_one_side(self, make: Make) -> None:
        rows = one("oddities", Retyped, Retyped("a", "words", 0.5, True, 7))
        found = table(held(make(oddities(("a", 1))), make(rows, **LATER)), "oddities")
        assert "of another type in the other bundle: taken" in found.notes
        assert "only in one of the bundles: more" in found.notes
        assert found.measure is not None
        assert found.measure.name == "ratio"

    def test_another_key(self, make: Make) -> None:
        rows = one("oddities", Rekeyed, Rekeyed("a", 1))
        found = held(make(oddities(("a", 1))), make(rows, **LATER))
        assert reason(found, "oddities") == "its key is another in the other bundle"

    def test_a_damaged_table_without_saying_where_it_lies(self, make: Make) -> None:
        before, after = make(oddities(("a", 1))), make(oddities(("a", 2)), **LATER)
        after.tables["oddities"].path.write_text("name,taken,ratio,fine\na,many,,\n")
        why = reason(held(before, after), "oddities")
        assert why.startswith("after: oddities.csv: damaged")
        assert str(after.path) not in why

    def test_run_length_encoded_maps(self, make: Make) -> None:
        contents = {"pageblock_map": made.tables()["pageblock_map"]}
        assert "run-length" in reason(held(make(contents), make(contents)), "pageblock_map")

    def test_pages_of_another_size(self, make: Make) -> None:
        contents = {"zones": made.tables()["zones"]}
        found = table(held(make(contents), make(contents, page_size=65536)), "zones")
        assert found.measure is None or found.measure.unit != "pages"


class TestTwoBoots:
    counters = (
        one("vm_counters", VmCounter, VmCounter("oom_kill", "event", 9, 0),
            VmCounter("numa_hit", "numa", 9, 0), VmCounter("nr_free_pages", "zone", 9, 0)),
        one("vm_counters", VmCounter, VmCounter("oom_kill", "event", 2, 0),
            VmCounter("numa_hit", "numa", 2, 0), VmCounter("nr_free_pages", "zone", 2, 0)),
    )  # fmt: skip

    def test_counters_are_no_difference_in_time(self, make: Make) -> None:
        found = table(
            held(make(self.counters[0]), make(self.counters[1], **REBOOTED)), "vm_counters"
        )
        assert [c.what for c in found.changes] == [("nr_free_pages", "zone")]
        assert "left out" in found.notes[0]

    def test_within_one_they_are_with_the_time(self, make: Make) -> None:
        found = table(held(make(self.counters[1]), make(self.counters[0], **LATER)), "vm_counters")
        assert {c.what[0]: c.difference for c in found.changes}["oom_kill"] == 7
        assert found.notes == ["what is counted since boot grew in 1 min 0 s"]

    def test_only_within_one_are_there_rates_and_of_events_alone(self, make: Make) -> None:
        for target, expected in ((LATER, {"0.117 a second", ""}), (REBOOTED, {""})):
            shown = view(held(make(self.counters[1]), make(self.counters[0], **target)))
            assert {others for *_, others in shown.tables[0].rows} == expected

    def test_what_ksm_counts_is_counted_as_what_vmstat_does(self, make: Make) -> None:
        names = ("full_scans", "pages_scanned", "pages_skipped", "pages_shared")
        before, after = (
            one("ksm_totals", KsmTotal, *(KsmTotal(name, value, None) for name in names))
            for value in (60, 180)
        )
        shown = view(held(make(before), make(after, **LATER))).tables[0].rows
        assert {what[0].text: others for _, what, *_, others in shown} == dict.fromkeys(
            names[:3], "2 a second"
        ) | {"pages_shared": ""}
        found = table(held(make(before), make(after, **REBOOTED)), "ksm_totals")
        assert [change.what for change in found.changes] == [("pages_shared",)]

    def test_stacks_are_joined_by_their_frames(self, make: Make) -> None:
        def stack(handle: int, pages: int) -> PageOwnerStack:
            return PageOwnerStack(handle, pages, pages, "f", None, "main;f", None)

        before = make(one("page_owner_stacks", PageOwnerStack, stack(1, 5)))
        after = make(one("page_owner_stacks", PageOwnerStack, stack(7, 4), stack(8, 3)), **REBOOTED)
        found = table(held(before, after), "page_owner_stacks")
        assert [(c.what, c.before, c.after) for c in found.changes] == [(("main;f",), 5, 7)]
        assert "rows of the same stack are added up" in found.notes

    def test_processes_are_joined_by_name_and_pids_not_at_all(self, make: Make) -> None:
        contents = {name: made.tables()[name] for name in ("page_tables", "exit_costs")}
        found = held(make(contents), make(contents, **REBOOTED))
        assert [c.name for c in table(found, "page_tables").what] == ["comm"]
        assert (
            reason(found, "exit_costs")
            == "its rows are named by pid, which each boot numbers itself"
        )

    def test_a_sum_with_an_unknown_part_is_unknown(self, make: Make) -> None:
        rows = made.slab_stacks()
        unknown = [dataclasses.replace(rows[0], handle=77, bytes=None), rows[0]]
        contents = [
            {"slab_owner_stacks": ("Slab", type(rows[0]), these, "slab_owner")}
            for these in ([rows[0]], unknown)
        ]
        found = table(held(make(contents[0]), make(contents[1], **REBOOTED)), "slab_owner_stacks")
        assert [(c.change, c.before, c.after) for c in found.changes] == [("changed", 96_000, None)]


def finding(id: str, severity: str, badness: float | None, **subject: Any) -> Finding:
    return Finding(
        id, severity, f"{id} {badness}", "", "", (), (), "zones", tuple(subject.items()), badness
    )


class TestFindings:
    def changes(self, before: list[Finding], after: list[Finding], boot: bool = True) -> list[str]:
        changes, _ = compare_findings(
            Verdict(before, [], []), Verdict(after, [], []), same_boot=boot
        )
        return [item.change for item in changes]

    def test_are_new_and_gone_by_what_they_are_about(self) -> None:
        old, new = finding("a", "warning", 1.0, node=0), finding("a", "warning", 1.0, node=1)
        assert self.changes([old], [new]) == ["new", "gone"]

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            (("warning", 1.0), ("critical", 0.5), "worse"),
            (("warning", 1.0), ("notice", 2.0), "better"),
            (("warning", 1.0), ("warning", 2.0), "worse"),
            (("warning", 1.0), ("warning", 0.5), "better"),
            (("warning", 1.0), ("warning", 1.009), "same"),
            (("warning", 0.0), ("warning", 0.0), "same"),
            (("warning", None), ("warning", 2.0), "same"),
        ],
    )
    def test_are_better_or_worse_by_severity_then_number(
        self, before: tuple[str, float], after: tuple[str, float], expected: str
    ) -> None:
        assert self.changes([finding("a", *before)], [finding("a", *after)]) == [expected]

    def test_of_another_boot_are_not_told_apart_by_pid(self) -> None:
        old = finding("a", "warning", 1.0, pid=1, comm="java")
        new = finding("a", "warning", 1.0, pid=2, comm="java")
        assert self.changes([old], [new], boot=False) == ["same"]
        assert self.changes([old], [new], boot=True) == ["new", "gone"]

    def test_that_the_other_could_not_be_asked_for_are_neither_new_nor_gone(self) -> None:
        unasked = [NotChecked("a", "", "no table")]
        found = [finding("a", "warning", 1.0)]
        new = compare_findings(Verdict([], [], unasked), Verdict(found, [], []), same_boot=True)
        gone = compare_findings(Verdict(found, [], []), Verdict([], [], unasked), same_boot=True)
        assert new == ([], (0, 1))
        assert gone == ([], (1, 0))

    def test_under_the_threshold_now_have_the_values_of_both(self) -> None:
        over, under = finding("a", "warning", 0.977, node=0), finding("a", "notice", 0.8, node=0)
        quiet = Verdict([], [("a", "")], [], [under])
        (change,), _ = compare_findings(Verdict([over], [], []), quiet, same_boot=True)
        assert (change.change, change.words) == ("under", "no longer over the threshold")
        assert (change.finding, change.other) == (over, (1, under))
        (change,), _ = compare_findings(quiet, Verdict([over], [], []), same_boot=True)
        assert (change.words, change.finding, change.other) == ("new", over, (0, under))

    def test_that_are_no_more_are_no_success(self, make: Make) -> None:
        over, under = finding("a", "warning", 0.977, node=0), finding("a", "notice", 0.8, node=0)
        pair = make(oddities(("a", 1))), make(oddities(("a", 1)), **LATER)
        for now, words in (([under], "no longer over the threshold"), ([], "not found now")):
            quiet = Verdict([], [("a", "")], [], now)
            held = compare(*pair, (Verdict([over], [], []), quiet), draw=False)
            tree = parse(render(pair[1], quiet, held))
            (state,) = [e for e in elements(tree, "span") if "state" in e.get("class", "")]
            assert (texts(state), state.get("class").split()) == (words, ["state"])
            assert f"1 finding {words}" in view(held).sentence
            assert ("2026-11-20 03:05: a 0.8" in texts(by_id(tree, "comparison"))) is bool(now)

    def test_of_real_tables_know_what_they_are_about(self, make: Make) -> None:
        found = evaluate(make(made.tables())).found
        assert all(item.badness is not None for item in found)
        about = {item.id: dict(item.subject) for item in found}
        assert about["page-table-bloat"] == {"pid": 4711, "comm": "reader"}


class TestFlameGraphs:
    def graphs(self, make: Make, factor: int, **target: Any) -> Comparison:
        rows = made.owner_stacks()
        more = [dataclasses.replace(rows[0], pages=rows[0].pages * factor), *rows[1:]]
        pair = [
            make({"page_owner_stacks": ("Pages", PageOwnerStack, these, "page_owner")}, **named)
            for these, named in ((rows, {}), (more, target))
        ]
        return compare(*pair, (NOTHING, NOTHING), draw=True)

    def test_of_one_machine_compare_amounts(self, make: Make) -> None:
        (graph,) = self.graphs(make, 2, **LATER).graphs
        assert not graph.normalised
        assert graph.totals[1] - graph.totals[0] == 80_000 * 4096
        assert "more-3" in graph.after.svg
        assert "less" not in graph.after.svg

    def test_of_machines_without_a_name_compare_amounts(self, make: Make) -> None:
        assert not self.graphs(make, 2, hostname=None).graphs[0].normalised

    def test_of_two_machines_compare_shares_and_name_the_totals(self, make: Make) -> None:
        comparison = self.graphs(make, 2, **OTHER)
        (graph,) = comparison.graphs
        assert graph.normalised
        assert "less" in graph.after.svg  # what stayed has a smaller share
        page = render(comparison.bundles[1], NOTHING, comparison)
        assert "506.7 MiB baseline, 819.2 MiB this" in texts(parse(page))

    def test_that_are_too_large_are_said(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flame_graph, "MAX_FRAMES_HELD", 3)
        comparison = self.graphs(make, 2, **LATER)
        assert comparison.graphs == []
        (why,) = (why for name, why in comparison.not_compared if name.startswith("stacks of "))
        assert why == "its stacks have more than 3 frames, too many to draw"

    def test_of_equal_stacks_are_words(self, make: Make) -> None:
        comparison = self.graphs(make, 1, **LATER)
        assert comparison.graphs[0].same
        page = render(comparison.bundles[1], NOTHING, comparison)
        assert "Every stack has the same in both." in page


class TestSentence:
    def test_names_the_findings_and_the_largest_change(self, make: Make) -> None:
        before = make(oddities(("thing", 1 << 20), ("other", 5)))
        after = make(oddities(("thing", 3 << 20), ("other", 6)), **LATER)
        verdicts = Verdict([], [], []), Verdict([finding("a", "warning", 1.0)], [], [])
        assert view(compare(before, after, verdicts, draw=False)).sentence == (
            "Against the baseline: 1 finding new; most changed: Odd, thing: 1 MiB → 3 MiB (+2 MiB)."
        )

    def test_says_that_nothing_changed(self, make: Make) -> None:
        said = view(held(make(oddities(("a", 1))), make(oddities(("a", 1)), **LATER))).sentence
        assert said == (
            "Against the baseline: no finding came, went, or got better or worse; "
            "no row of the 1 table compared differs."
        )


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """An honest bundle, a stranger's, and one of the same rows that says to be of that boot."""
    folder = tmp_path_factory.mktemp("strangers")

    def stranger(name: str, target: dict[str, Any]) -> Bundle:
        contents, sections = made.hostile_tables(), made.hostile_sections()
        return made.write_bundle(folder / name, contents, target=target, sections=sections)

    return {
        "honest": made.write_bundle(folder / "honest", made.tables()),
        "stranger": stranger("stranger", made.hostile_target()),
        "same names": stranger("same", made.TARGET | LATER),
    }


class TestPage:
    def test_is_led_by_what_changed_and_whether_it_may_be_compared(self, make: Make) -> None:
        before, after = make(oddities(("a", 1))), make(oddities(("a", 4096)), **OTHER)
        tree = parse(render(after, NOTHING, held(before, after)))
        header = texts(by_id(tree, "top"))
        assert "Odd, a: 1 B → 4 KiB (+3.999 KiB)" in header
        assert "Two machines: the baseline is of lab-guest, this is of other-guest." in header
        rows = cells(elements(by_id(tree, "compared-oddities"), "table")[0])
        assert rows == [["a", "grew", "1 B", "4 KiB", "+3.999 KiB"]]

    def test_without_a_baseline_says_nothing_of_one(self, make: Make) -> None:
        tree = parse(render(make(made.tables()), NOTHING))
        assert not has_id(tree, "comparison")

    def test_links_findings_that_are_there(self, make: Make) -> None:
        verdict = made.verdict()
        before, after = make({}), make({}, **LATER)
        comparison = compare(before, after, (NOTHING, verdict), draw=False)
        section = by_id(parse(render(after, verdict, comparison)), "comparison")
        links = [link.get("href") for link in elements(section, "a")]
        assert "#finding-highatomic-starves-thp-1" in links

    @pytest.mark.parametrize(
        ("old", "new"), [("stranger", "honest"), ("honest", "stranger"), ("stranger", "same names")]
    )
    def test_does_nothing_that_a_stranger_says(
        self, strangers: dict[str, Bundle], old: str, new: str
    ) -> None:
        verdicts = made.verdict(), made.hostile_verdict()
        verdicts = verdicts[::-1] if new == "honest" else verdicts
        comparison = compare(strangers[old], strangers[new], verdicts, draw=True)
        page = render(strangers[new], verdicts[1], comparison)
        tree = parse(page)
        assert not [element.tag for element in tree.iter() if element.tag in NEVER]
        assert len(elements(tree, "script")) == len(elements(tree, "style")) == 1
        ids = [element.get("id") for element in tree.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        for element in tree.iter():
            assert not [name for name in element.attrib if name.lower().startswith("on")]
            if (href := element.get("href") or "").startswith("#"):
                assert href[1:] in ids
        shown = texts(by_id(tree, "comparison"))
        assert "<img src=x onerror=alert(1)>" in shown
        assert not set("\x1b\u202e\x00\x7f\x85\u2028\ufeff") & set(page)
        assert comparison.graphs

    def test_is_the_same_for_the_same_bundles(self, make: Make) -> None:
        before, after = (made.pinned(make(made.tables(), **t)) for t in ({}, LATER))
        first, second = (
            render(after, NOTHING, compare(before, after, (NOTHING, NOTHING), draw=True))
            for _ in range(2)
        )
        assert first == second


class TestWhatDiffers:
    """One picture of the difference of both bundles, of each kind that both have."""

    FREE = ("free_blocks", "pageblock_map", "pageblocks", "zones")

    def shown(self, before: Bundle, after: Bundle) -> dict[str, str]:
        page = parse(render(after, NOTHING, held(before, after)))
        return {
            str(title.get("id")).removeprefix("difference-"): texts(element)
            for element in by_id(page, "comparison").iter("div")
            if element.get("class") == "picture"
            for title in element.iter("h3")
        }

    def some(self) -> dict[str, Contents]:
        return {name: table for name, table in made.tables().items() if name in self.FREE}

    def test_is_drawn_once(self, make: Make) -> None:
        contents = self.some()
        title, row_type, rows, section = contents["free_blocks"]
        less = [dataclasses.replace(row, blocks=0, pages=0) for row in rows]
        after = make(contents | {"free_blocks": (title, row_type, less, section)}, **LATER)
        shown = self.shown(make(contents), after)
        assert list(shown) == ["free_lists", "unusable", "pageblocks"]
        assert "2026-11-20 03:05 less 2026-11-20 03:04" in shown["free_lists"]
        assert "→ 0 B free" in shown["free_lists"]
        assert "0 pageblocks of" in shown["pageblocks"]

    def test_of_machines_of_two_sizes_there_is_no_map(self, make: Make) -> None:
        shown = self.shown(make(self.some()), make(self.some(), **LATER, total_pages=7))
        assert list(shown) == ["free_lists"]

    def test_what_one_side_lacks_or_has_damaged_is_left_out(self, make: Make) -> None:
        lacking = {name: table for name, table in self.some().items() if name != "free_blocks"}
        assert list(self.shown(make(lacking), make(self.some(), **LATER))) == ["pageblocks"]
        damaged = make(self.some(), **LATER)
        damaged.tables["pageblock_map"].path.write_text("start_pfn\nnothing\n")
        assert list(self.shown(make(self.some()), damaged)) == ["free_lists"]


class TestOrder:
    """What is named first."""

    def tops(self, make: Make, **changes: Callable[[list[Any]], list[Any]]) -> list[Top]:
        contents = {n: t for n, t in made.tables().items() if n in {*changes, "pcp_pages"}}
        after = {
            name: (title, row_type, changes.get(name, list)(rows), section)
            for name, (title, row_type, rows, section) in contents.items()
        }
        return view(held(make(contents), make(after, **LATER))).tops

    @staticmethod
    def free(less: int) -> Callable[[list[Any]], list[Any]]:
        def change(rows: list[Any]) -> list[Any]:
            *others, last = rows
            return [*others, dataclasses.replace(last, free_pages=last.free_pages - less)]

        return change

    @staticmethod
    def stack(more: int) -> Callable[[list[Any]], list[Any]]:
        def change(rows: list[Any]) -> list[Any]:
            first, *others = rows
            return [dataclasses.replace(first, pages=first.pages + more), *others]

        return change

    @pytest.mark.parametrize(
        ("more", "first"), [(1000, "page_owner_stacks"), (501, "page_owner_stacks"), (499, "zones")]
    )
    def test_who_holds_memory_goes_before_free_memory_unless_it_explains_less_than_half(
        self, make: Make, more: int, first: str
    ) -> None:
        tops = self.tops(make, zones=self.free(1000), page_owner_stacks=self.stack(more))
        assert tops[0].table.name == first
        assert {top.table.name for top in tops} == {"zones", "page_owner_stacks"}

    def test_what_only_moved_to_the_cpus_lists_is_no_less_free(self, make: Make) -> None:
        def fuller(rows: list[Any]) -> list[Any]:
            first, *others = rows
            return [dataclasses.replace(first, pages=first.pages + 1000), *others]

        tops = self.tops(
            make, zones=self.free(1000), pcp_pages=fuller, page_owner_stacks=self.stack(1)
        )
        assert tops[0].table.name == "page_owner_stacks"

    def test_what_is_set_otherwise_goes_before_everything(self, make: Make) -> None:
        def never(rows: list[Any]) -> list[Any]:
            return [dataclasses.replace(rows[0], value="1"), *rows[1:]]

        def off(rows: list[Any]) -> list[Any]:
            return [dataclasses.replace(row, hvo="off") for row in rows]

        tops = self.tops(make, zones=self.free(1000), settings=never, hugetlb_sizes=off)
        assert [(top.what, top.before, top.after) for top in tops[:2]] in (
            [("vm.min_free_kbytes", "67584", "1"), ("page 2 MiB, hvo", "on", "off")],
            [("page 2 MiB, hvo", "on", "off"), ("vm.min_free_kbytes", "67584", "1")],
        )
        assert tops[2].table.name == "zones"

    def test_a_table_is_ranked_by_what_differs_in_it(self, make: Make) -> None:
        """The pools have as many pages as before; what HVO saves of them is another amount."""

        def saved(rows: list[Any]) -> list[Any]:
            return [dataclasses.replace(row, vmemmap_saved_bytes=4096) for row in rows]

        (top,) = self.tops(make, hugetlb_pools=saved)
        assert top.table.measure is not None
        assert top.table.measure.name == "vmemmap_saved_bytes"
        assert (top.before, top.after) == ("108 MiB", "4 KiB")
        assert top.table.changes[0].others == []
