# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows that findings stand on: which they are, and that links in a report land on them."""

from dataclasses import replace
from pathlib import Path

import pytest
import report_bundle as made
from page_tree import Element, by_id, elements, parse, texts

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import open_database
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.proof import Proof, proofs
from mmscope.reports.findings.question import OURS, Question
from mmscope.reports.page.report import render

QUESTIONS = {question.id: question for question in OURS()}


class TestWhichTheyAre:
    def test_those_that_its_needs_name(self) -> None:
        needs = ["vm_counters.value where name = 'a'", "vm_counters.value where name = 'b'"]
        (proof,) = proofs({}, needs, (), {})
        assert proof == Proof("vm_counters", (("name", ("a", "b")),))
        assert [proof.holds({"name": name}) for name in ("a", "b", "c")] == [True, True, False]

    def test_those_of_its_subject_in_every_other_table(self) -> None:
        found = proofs({}, ["zones.free_pages", "pcp_pages.pages"], ("node",), {"node": 1})
        assert [(proof.table, proof.equal) for proof in found] == [
            ("zones", (("node", (1,)),)),
            ("pcp_pages", (("node", (1,)),)),
        ]

    def test_those_that_its_file_names_by_the_row_that_was_found(self) -> None:
        declared = {"free_blocks": {"zone": "$zone", "order": {"least": "$thp_order"}}}
        (proof,) = proofs(declared, (), (), {"zone": "DMA32", "thp_order": 9})
        assert proof.columns == {"zone", "order"}
        assert proof.holds({"zone": "DMA32", "order": 10})
        assert not proof.holds({"zone": "DMA32", "order": 8})
        assert not proof.holds({"zone": "Normal", "order": 10})
        assert not proof.holds({"zone": "DMA32", "order": None})

    def test_none_of_what_is_not_known(self) -> None:
        assert list(proofs({}, ["zones.free_pages"], ("node",), {"node": None})) == []
        declared = {"free_blocks": {"order": {"least": "$thp_order"}}}
        assert list(proofs(declared, (), (), {"thp_order": None})) == []


@pytest.mark.parametrize(
    "question", [each for each in QUESTIONS.values() if each.proof], ids=lambda each: each.id
)
def test_what_a_file_names_are_columns_of_a_table(question: Question) -> None:
    for table, wanted in question.proof.items():
        assert wanted.keys() <= {column.name for column in columns(TABLES[table].row)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Element:
    bundle = made.write_bundle(tmp_path_factory.mktemp("proof") / "bundle", made.tables())
    verdict = ask(open_database(bundle), list(QUESTIONS.values()))
    assert verdict.found
    return parse(render(bundle, verdict))


class TestInAReport:
    def test_links_land_on_a_row_that_is_marked(self, tree: Element) -> None:
        goals = {
            str(link.get("href"))[1:]
            for link in elements(tree, "a")
            if (link.get("href") or "").startswith("#proof-")
        }
        rows = {row.get("id") for row in elements(tree, "tr") if row.get("id")}
        others = {link.get("id") for link in elements(tree, "a") if link.get("id")}
        assert len(goals) > 10
        assert goals <= rows | others
        marked = [row for row in elements(tree, "tr") if row.get("class") == "proven"]
        assert rows <= {row.get("id") for row in marked}

    def test_what_proves_something_is_first_and_rows_of_zeros_are_last(self, tree: Element) -> None:
        box = by_id(tree, "table-free_blocks")
        rows = [e for e in elements(box, "tr") if elements(e, "td")]
        zero = [texts(elements(row, "td")[-1]) == "0" for row in rows]
        proven = [row.get("class") == "proven" for row in rows]
        # By finding, the worst first, so that a link to it lands below the headings.
        first = [min(map(int, str(row.get("data-of")).split())) for row in rows[: sum(proven)]]
        assert all(proven[: len(first)]) and first == sorted(first)
        last = next(at for at in range(len(rows), 0, -1) if not zero[at - 1] or proven[at - 1])
        assert not any(zero[len(first) : last])
        assert len(rows) - last > 50
        assert f"Last: {len(rows) - last} rows of zeros." in texts(box)

    def test_a_row_far_down_is_shown_for_it(self, tmp_path: Path) -> None:
        contents = made.tables()
        title, row_type, rows, section = contents["page_tables"]
        small = replace(rows[-1], pgtables_bytes=4096, resident_bytes=1 << 20)
        many = [replace(small, pid=100_000 + copy) for copy in range(400)]
        contents["page_tables"] = title, row_type, [*many, *rows], section
        bundle = made.write_bundle(tmp_path / "bundle", contents)
        verdict = ask(open_database(bundle), [QUESTIONS["page-table-bloat"]])
        tree = parse(render(bundle, verdict))
        for link in elements(tree, "a"):
            goal = link.get("href") or ""
            if goal.startswith("#proof-") and goal.endswith("-page_tables"):
                assert by_id(tree, goal[1:])
                return
        raise AssertionError("no finding has its row")
