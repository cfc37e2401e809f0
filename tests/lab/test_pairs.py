# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two vmcores that differ in one known thing: the comparison names this thing, with its number."""

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from capture import capture
from conftest import STANDS_ON
from pairs import LEAKED_BEFORE, LEAKED_BETWEEN, Vmcore, leak, without_hvo

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.redact import Names, redacted
from mmscope.reports.commands.command import main
from mmscope.reports.compare.comparison import Comparison, compare
from mmscope.reports.compare.comparison_view import view
from mmscope.reports.compare.table_changes import TableChanges
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

KIB, MIB = 1 << 10, 1 << 20
# Of the struct pages of a huge page HVO keeps the first 4 KiB: 64 bytes for each page.
SAVED = {2 * MIB: 32 * KIB - 4 * KIB, 1 << 30: 16 * MIB - 4 * KIB}


def collected(path: Path, core: Vmcore) -> Bundle:
    options = ["--core", str(core.vmcore), "--symbols", str(core.vmlinux), "-o", str(path)]
    assert main(["collect", "--no-findings", *options]) in (0, 1)
    return Bundle(path)


@functools.cache
def held(before: Bundle, after: Bundle) -> Comparison:
    return compare(before, after, (evaluate(before), evaluate(after)), draw=True)


def table(comparison: Comparison, name: str) -> TableChanges:
    return next(t for t in comparison.tables if t.name == name)


@pytest.fixture(scope="module")
def hvo(
    tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]
) -> tuple[Bundle, Bundle]:
    """The same machine with the same pools, without HVO and with it."""
    folder = tmp_path_factory.mktemp("hvo")
    taken = capture(STANDS_ON, "vmemmap_boot", say=say)
    cores = without_hvo(say), Vmcore(taken.vmcore, taken.vmlinux)
    off, on = (collected(folder / f"{n}", core) for n, core in enumerate(cores))
    return off, on


class TestHvo:
    def test_the_switch_is_named_first(self, hvo: tuple[Bundle, Bundle]) -> None:
        for pair, words in ((hvo, "off → on"), (hvo[::-1], "on → off")):
            shown = view(held(*pair))
            first = shown.tops[0]
            assert first.table.name == "hugetlb_sizes" and first.what.endswith("hvo")
            assert f"{first.before} → {first.after}" == words
            assert words in shown.sentence

    def test_then_what_it_saves(self, hvo: tuple[Bundle, Bundle]) -> None:
        comparison = held(*hvo)
        tops = [top.table.name for top in view(comparison).tops[1:4]]
        assert set(tops) == {"memory_about_memory", "vmemmap_zones", "hugetlb_pools"}
        pools = table(comparison, "hugetlb_pools")
        assert pools.measure is not None and pools.measure.name == "vmemmap_saved_bytes"
        rows = list(hvo[1].rows("hugetlb_pools"))
        assert {row["page_bytes"] for row in rows} == SAVED.keys()
        assert pools.totals == (0, sum(row["pages"] * SAVED[row["page_bytes"]] for row in rows))
        assert pools.totals[1] == SAVED[1 << 30] + 64 * SAVED[2 * MIB]

    def test_the_finding_is_gone(self, hvo: tuple[Bundle, Bundle]) -> None:
        found = {item.finding.id: item.change for item in held(*hvo).findings}
        assert found["hvo-off"] == "gone"

    def test_the_page_says_so(self, hvo: tuple[Bundle, Bundle]) -> None:
        comparison = held(*hvo)
        assert view(comparison).sentence in render(hvo[1], evaluate(hvo[1]), comparison)


@pytest.fixture(scope="module")
def leaking(
    tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]
) -> tuple[Bundle, Bundle]:
    """One boot, before and after a leak."""
    folder = tmp_path_factory.mktemp("leak")
    before, after = (collected(folder / f"{n}", core) for n, core in enumerate(leak(say)))
    return before, after


STRAY_PAGES = 32


@pytest.mark.owner_kernel
class TestLeak:
    def test_its_stack_is_named_first_with_its_pages(self, leaking: tuple[Bundle, Bundle]) -> None:
        comparison = held(*leaking)
        assert comparison.relation.one_boot
        shown = view(comparison)
        first = shown.tops[0]
        assert (first.table.name, first.what) == ("page_owner_stacks", "mmscope_lab_leak")
        assert f"+{LEAKED_BETWEEN:,} pages" in first.difference
        # The headline is the ledger's, which names whose they are.
        assert f"unexplained +{LEAKED_BETWEEN / 256:.2f} MiB (" in shown.sentence
        assert "mmscope_lab_leak)" in shown.sentence

    def test_no_other_stack_holds_more(self, leaking: tuple[Bundle, Bundle]) -> None:
        """Not the one that allocated twice as much and gave it back."""
        stacks = table(held(*leaking), "page_owner_stacks")
        change, *others = stacks.changes
        # The kernel lives on between the two readings.
        assert sum(abs(other.difference or 0) for other in others) <= STRAY_PAGES
        assert (change.change, change.before, change.after, change.difference) == (
            "grew",
            LEAKED_BEFORE,
            LEAKED_BEFORE + LEAKED_BETWEEN,
            LEAKED_BETWEEN,
        )

    def test_its_line_of_source_is_named_with_its_bytes(
        self, leaking: tuple[Bundle, Bundle]
    ) -> None:
        comparison = held(*leaking)
        for name in ("alloc_tags", "ledger_tags"):
            change, *others = table(comparison, name).changes
            assert "mmscope_lab_leak" in change.what and "mmscope_lab.c" in change.what
            assert change.difference == LEAKED_BETWEEN * 4 * KIB
            assert all(abs(other.difference or 0) <= 256 * KIB for other in others)
        steps = {step.name: step for step in comparison.ledger.steps} if comparison.ledger else {}
        assert "mmscope_lab_leak" in steps["unexplained"].owner
        assert steps["unexplained"].owner_bytes == LEAKED_BETWEEN * 4 * KIB

    def test_without_names_it_is_the_same(self, leaking: tuple[Bundle, Bundle]) -> None:
        plain = held(*leaking)
        with redacted(leaking, Names()) as made:
            other = held(*made)
        assert other.relation.one_boot and plain.not_compared == other.not_compared
        for one, two in zip(plain.tables, other.tables, strict=True):
            assert (one.name, one.counts, one.totals, one.notes) == (
                *(two.name, two.counts, two.totals, two.notes),
            )
        assert [(f.change, f.finding.id) for f in plain.findings] == [
            (f.change, f.finding.id) for f in other.findings
        ]
        assert [(g.title, g.totals, g.same) for g in plain.graphs] == [
            (g.title, g.totals, g.same) for g in other.graphs
        ]
        # The module is not of the kernel: its function has another name.
        assert view(plain).tops[0].what == "mmscope_lab_leak"
        assert re.fullmatch(r"symbol_\d+", view(other).tops[0].what)
        assert "mmscope" not in view(other).sentence

    def test_the_flame_graph_is_of_this_stack_alone(self, leaking: tuple[Bundle, Bundle]) -> None:
        (graph,) = (g for g in held(*leaking).graphs if g.title.startswith("Pages by"))
        before, after = graph.totals
        assert abs(after - before - LEAKED_BETWEEN * 4 * KIB) <= STRAY_PAGES * 4 * KIB
