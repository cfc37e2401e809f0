# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The report as text: valid, complete, stable, and deaf to whatever a bundle says.

Pages are parsed as strictly as the standard allows (html5lib) and looked at as trees; what a
browser makes of them is in ``test_report_browser.py``.
"""

import base64
import errno
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import report_bundle as made
from checkout import ROOT
from page_tree import (
    NEVER,
    NOTHING,
    ONCE,
    by_id,
    cells,
    elements,
    faults_of_policy,
    has_id,
    parse,
    texts,
)
from rows_of_tables import Contents

from mmscope.drgn.ledger.memory_ledger import LedgerRow
from mmscope.drgn.log.oom_kills import OomTask
from mmscope.drgn.machine.poisoned_pages import PoisonCounter, PoisonedPages
from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.drgn.tables.rows import Column, columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.drawing.cells import cell, heading, unit_shown
from mmscope.reports.findings.finding import Finding, NotChecked, Verdict
from mmscope.reports.findings.findings import MEMORY, OTHERWISE, WATCH
from mmscope.reports.findings.incidents import incidents
from mmscope.reports.page.card import card, counted
from mmscope.reports.page.environment import MAX_ROWS, TEMPLATES
from mmscope.reports.page.report import render, write
from mmscope.reports.page.sentences import reading, unknown
from mmscope.reports.page.views import MAX_CELLS, MAX_SERIES_ROWS
from mmscope.reports.pictures.registry import PICTURES


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture(scope="session")
def machine(folder: Path) -> Bundle:
    return made.pinned(made.write_bundle(folder / "machine", made.tables()))


@pytest.fixture(scope="session")
def small(folder: Path) -> Bundle:
    """For what is said of findings."""
    contents = made.tables_of("zones", "free_lists", "vm_counters")
    return made.write_bundle(folder / "small", contents)


@pytest.fixture(scope="session")
def hostile(folder: Path) -> Bundle:
    return made.write_bundle(
        folder / "hostile",
        made.hostile_tables(),
        target=made.hostile_target(),
        sections=made.hostile_sections(),
    )


@pytest.fixture(scope="session")
def empty(folder: Path) -> Bundle:
    return made.write_bundle(folder / "empty", {}, target={}, sections=[])


@pytest.fixture(scope="session")
def pages(machine: Bundle, hostile: Bundle, empty: Bundle) -> dict[str, str]:
    return {
        "machine": render(machine, made.verdict()),
        "hostile": render(hostile, made.hostile_verdict()),
        "empty": render(empty, NOTHING),
    }


PAGES = ("machine", "hostile", "empty")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("default-src", "font-src", "allows requests"),
        ("img-src", "unsafe-inline", "allows what is unsafe"),
        ("</style>", " </style>", "does not allow a style"),
        ("</script>", ";</script>", "does not allow a script"),
        ("<main", "<main onclick='x()'", "a handler or style in an element: onclick"),
    ],
)
def test_a_policy_that_allows_something_else_is_told(
    pages: dict[str, str], old: str, new: str, fault: str
) -> None:
    assert faults_of_policy(pages["empty"].replace(old, new, 1)) == [fault]


@pytest.mark.parametrize("name", PAGES)
class TestEveryPage:
    def test_is_valid_html(self, pages: dict[str, str], name: str) -> None:
        parse(pages[name])

    def test_has_no_id_twice_and_no_reference_to_nothing(
        self, pages: dict[str, str], name: str
    ) -> None:
        tree = parse(pages[name])
        ids = [element.get("id") for element in tree.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        for element in tree.iter():
            href = element.get("href") or ""
            if href.startswith("#"):
                assert href[1:] in ids
            for attribute in ("aria-labelledby", "for", "data-copy"):
                assert (element.get(attribute) or ids[0]) in ids

    def test_loads_nothing(self, pages: dict[str, str], name: str) -> None:
        tree = parse(pages[name])
        for element in tree.iter():
            for attribute in ("src", "srcset", "href", "action", "data", "poster"):
                value = element.get(attribute)
                if value is not None and not value.startswith("#"):
                    assert (element.tag, attribute) == ("a", "href")
                    assert re.match(
                        r"data:application/gzip;" if element.get("download") else r"https?://",
                        value,
                    )
        assert not re.search(r"url\((?!#)|@import", texts(elements(tree, "style")[0]))

    def test_has_only_our_script_and_style(self, pages: dict[str, str], name: str) -> None:
        tree = parse(pages[name])
        found = {element.tag for element in tree.iter() if isinstance(element.tag, str)}
        assert not found & NEVER
        for tag in ONCE:
            assert len(elements(tree, tag)) == 1
        for element in tree.iter():
            assert not [a for a in element.keys() if a.startswith("on") or a == "style"]  # noqa: SIM118

    def test_its_policy_allows_exactly_that_script_and_style(
        self, pages: dict[str, str], name: str
    ) -> None:
        assert faults_of_policy(pages[name]) == []

    def test_has_landmarks_and_one_title(self, pages: dict[str, str], name: str) -> None:
        tree = parse(pages[name])
        for tag in ("main", "nav", "h1", "footer"):
            assert len(elements(tree, tag)) == 1
        assert len(elements(elements(tree, "head")[0], "title")) == 1
        assert elements(tree, "html")[0].get("lang") == "en"

    def test_has_no_hidden_characters(self, pages: dict[str, str], name: str) -> None:
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]",
            pages[name],
        )


class TestSameBundleSameBytes:
    def test_twice(self, machine: Bundle, pages: dict[str, str]) -> None:
        assert render(machine, made.verdict()) == pages["machine"]

    def test_read_again_in_another_place(self, pages: dict[str, str], tmp_path: Path) -> None:
        again = made.write_bundle(tmp_path / "elsewhere", made.tables())
        assert render(again, made.verdict()) == pages["machine"]


class TestSize:
    def test_of_a_small_machine(self, pages: dict[str, str]) -> None:
        assert len(pages["machine"].encode()) < 690_000

    def test_of_nothing_is_the_style_and_the_script(self, pages: dict[str, str]) -> None:
        assert len(pages["empty"].encode()) < 95_000

    def test_does_not_grow_with_hostile_strings(self, pages: dict[str, str]) -> None:
        assert len(pages["hostile"].encode()) < 8_000_000


class TestFirstScreen:
    def test_says_what_is_wrong_in_a_sentence(self, pages: dict[str, str]) -> None:
        said = next(
            e for e in elements(parse(pages["machine"]), "p") if "verdict" in e.get("class", "")
        )
        assert texts(said) == (
            "Trouble: Direct compaction succeeded in 0 of 8,211 attempts. Evidence"
        )

    def test_says_what_it_does_not_know_below(self, pages: dict[str, str]) -> None:
        said = next(
            e for e in elements(parse(pages["machine"]), "p") if e.get("class") == "unknown"
        )
        assert texts(said) == (
            "1 critical finding and 2 warnings, in 1 incident. "
            f"4 of 5 checks ran; 1 needs {OTHERWISE}."
        )

    def test_says_what_to_do_first_with_its_command_and_price(self, pages: dict[str, str]) -> None:
        tree = parse(pages["machine"])
        (command,) = (
            e for e in elements(by_id(tree, "top"), "code") if e.get("class") == "command"
        )
        assert texts(command) == "mmscope record atomic-alloc -a"
        assert "costs 1 % of a CPU" in texts(by_id(tree, "top"))

    def test_has_all_memory_in_a_bar_with_what_it_is_about_marked(
        self, pages: dict[str, str]
    ) -> None:
        (bar,) = (
            e
            for e in elements(by_id(parse(pages["machine"]), "top"), "svg")
            if e.get("class") == "mem-bar"
        )
        titles = [
            texts(elements(part, "title")[0])
            for part in elements(bar, "svg")[1:]
            if any(r.get("class") == "mem-mark" for r in elements(part, "rect"))
        ]
        assert [title.partition(":")[0] for title in titles] == ["free"]

    def test_says_what_was_read(self, pages: dict[str, str]) -> None:
        header = texts(by_id(parse(pages["machine"]), "top"))
        sections = len({section for *_, section in made.tables().values()})
        for fact in (
            "lab-guest, 4 CPUs online",
            "7.2.12+deb13-cloud-amd64 x86_64",
            "vmcore",
            "2026-11-20T03:04:05+00:00",
            "3 d 4 h",
            "1.5 GiB, 4K pages",
            f"{sections} of {sections} sections read; no memory unreadable (details)",
        ):
            assert fact in header

    def test_has_every_word_of_every_finding_worst_first(self, pages: dict[str, str]) -> None:
        tree = parse(pages["machine"])
        articles = elements(tree, "article")
        assert [a.get("id") for a in articles] == [
            "finding-highatomic-starves-thp-1",
            "finding-compaction-fails-1",
            "finding-thp-falls-back-1",
        ]
        for article, finding in zip(articles, made.verdict().found, strict=True):
            steps = [words for step in finding.next for words in (step.do, step.cost) if words]
            for words in (finding.title, finding.saw, finding.why, *steps):
                assert words in texts(article)
            assert f"#section-{finding.section}" in [a.get("href") for a in elements(article, "a")]

    def test_findings_that_share_an_id_are_numbered(self, small: Bundle) -> None:
        twice = [replace(made.verdict().found[0], title=title) for title in ("one", "two")]
        tree = parse(render(small, Verdict(twice, [], [])))
        assert has_id(tree, "finding-highatomic-starves-thp-1")
        assert has_id(tree, "finding-highatomic-starves-thp-2")

    def test_what_several_have_in_common_is_said_once(self, small: Bundle) -> None:
        first = made.verdict().found[0]
        others = [replace(first, title=title, saw=f"saw {title}") for title in ("two", "three")]
        other = replace(first, title="four", why="Other words.")
        tree = parse(render(small, Verdict([first, *others, other], [], [])))
        anchor = "finding-highatomic-starves-thp"
        for number, one in enumerate(others, 2):
            article = by_id(tree, f"{anchor}-{number}")
            visible = " ".join(texts(e) for e in elements(article, "p"))
            assert one.saw in visible
            assert first.why not in visible
            assert f"#{anchor}-1" in [a.get("href") for a in elements(article, "a")]
            # What is pasted stands by itself.
            assert first.why in texts(by_id(tree, f"{anchor}-{number}-text"))
        assert "Other words." in texts(elements(by_id(tree, f"{anchor}-4"), "dl")[0])

    def test_the_evidence_is_the_section_and_its_tables(self, small: Bundle) -> None:
        found = replace(made.verdict().found[0], tables=("free_blocks", "target", "zones"))
        article = by_id(parse(render(small, Verdict([found], [], []))), "findings")
        hrefs = [a.get("href") for a in elements(article, "a")]
        assert "#table-free_blocks" in hrefs and "#table-zones" in hrefs
        assert "#table-target" not in hrefs

    def test_says_what_was_not_checked_and_what_was(self, pages: dict[str, str]) -> None:
        tree = parse(pages["machine"])
        assert "page_owner is not compiled in" in texts(by_id(tree, "not-checked"))
        assert "Free lists are damaged" in texts(by_id(tree, "silent"))

    def test_a_finding_can_be_pasted_by_itself(self, pages: dict[str, str]) -> None:
        text = texts(by_id(parse(pages["machine"]), "finding-highatomic-starves-thp-1-text"))
        assert text.strip().splitlines() == [
            "CRITICAL: Node 1 zone Normal: 3 of 5 free blocks of THP size lie in the HighAtomic "
            "reserve",
            "(lab-guest, 7.2.12+deb13-cloud-amd64, 2026-11-20T03:04:05+00:00; mmscope 0.2.0)",
            "Seen: 5 pageblocks are HighAtomic (10 MiB), the cap is 5; 3 of them are free.",
            "Why it hurts: THP may not take them: it falls back to base pages while the memory is "
            "free.",
            "Next:",
            "1. Find who allocates atomically: 'mmscope record atomic-alloc -a'. "
            "Costs: 1 % of a CPU",
            "2. Compare with a healthy host.",
            "Kernel documentation: https://docs.kernel.org/mm/page_allocation.html",
        ]

    def test_a_finding_without_its_section_says_so(self, small: Bundle) -> None:
        astray = replace(made.verdict().found[0], section="nowhere")
        tree = parse(render(small, Verdict([astray], [], [])))
        assert "section nowhere, which this bundle does not have" in texts(tree)


def finding(severity: str, title: str = "T") -> Finding:
    return replace(made.verdict().found[0], severity=severity, title=title)


MISSED = NotChecked("id", "title", "reason")


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict([], [("a", "A"), ("b", "B")], []), "h: No trouble found by 2 checks."),
        (
            Verdict([], [("a", "A"), ("b", "B")], [MISSED] * 34),
            "h: No trouble found by 2 checks.",
        ),
        (
            Verdict([], [("a", "A")], [MISSED]),
            "h: No trouble found by 1 check.",
        ),
        (
            Verdict([], [], [MISSED]),
            "h: Cannot tell: none of 1 check could run.",
        ),
        (Verdict([], [], []), "h: Cannot tell: no check was made."),
        (
            Verdict([], [("a", "A")], [], blind=["2 GiB are in no counter", "x"]),
            "h: Cannot tell: 2 GiB are in no counter; 1 more reason. No trouble found by 1 check, "
            "which does not see that.",
        ),
        (
            Verdict([finding("notice")], [], []),
            "h: No trouble found by 1 check. 1 notice: T.",
        ),
        (
            Verdict([finding("notice"), finding("notice")], [("a", "A")], [MISSED]),
            "h: No trouble found by 2 checks. 2 notices, the first: T; one more like it.",
        ),
        (Verdict([finding("warning"), finding("notice")], [], []), "Trouble: T; one more like it."),
        (
            Verdict([replace(finding("critical", "R"), harm="hides")], [], []),
            "h: No trouble found by 1 check. 1 critical: R.",
        ),
    ],
)
def test_the_card_says_what_is_wrong_or_what_was_checked(
    small: Bundle, verdict: Verdict, said: str
) -> None:
    assert card(small, verdict, incidents(verdict.found), "h")["sentence"] == said


@pytest.mark.parametrize(
    ("row_type", "name", "value", "text"),
    [
        (PoisonCounter, "node", -1, "the whole machine"),
        (PoisonCounter, "node", 0, "0"),
        (PoisonedPages, "node", -1, "unknown"),
        (LedgerRow, "node", -1, "of no zone"),
        (OomTask, "oom_score_adj", -1, "-1"),
    ],
)
def test_what_stands_for_no_node_is_words(row_type: type, name: str, value: int, text: str) -> None:
    (column,) = (each for each in columns(row_type) if each.name == name)
    shown = cell(value, column, 4096)
    assert shown.text == text
    assert value >= 0 or shown.text == "-1" or (shown.title, shown.sort) == ("-1", -1)


@pytest.mark.parametrize(
    ("severities", "said"),
    [
        (["notice"], "1 notice"),
        (["critical", "warning"], "1 critical finding and 1 warning"),
        (
            ["critical", "critical", "warning", "notice"],
            "2 critical findings, 1 warning and 1 notice",
        ),
        (["notice", "odd"], "1 notice and 1 other"),
    ],
)
def test_findings_are_counted_by_severity(severities: list[str], said: str) -> None:
    found = [replace(finding(s), id=str(number)) for number, s in enumerate(severities)]
    assert counted(Verdict(found, [], []), incidents(found)) == said


def test_what_was_not_checked_is_counted_by_what_it_takes() -> None:
    missed = [NotChecked("id", "title", "", "x", wants) for wants in (WATCH, MEMORY, MEMORY)]
    clear = [("a", "A")]
    wanted = f"2 need {MEMORY}, 1 {WATCH}."
    assert unknown(Verdict([], clear, missed)) == f"1 of 4 checks ran; {wanted}"
    assert unknown(Verdict([finding("notice")], clear, missed)) == (f"2 of 5 checks ran; {wanted}")
    assert unknown(NOTHING) == ""


def test_every_count_of_checks_on_the_page_is_the_same(small: Bundle) -> None:
    missed = [NotChecked(f"id{n}", "title", "reason", f"s{n}") for n in range(3)]
    tree = parse(render(small, Verdict([], [("a", "A")], missed)))
    assert "by 1 check." in texts(by_id(tree, "top"))
    assert "1 of 4 checks ran; 3 need" in texts(by_id(tree, "top"))
    assert "Not checked (3)" in texts(by_id(tree, "not-checked"))
    assert "Not checked 3" in texts(by_id(tree, "contents"))


def test_how_much_was_read_is_said_plainly() -> None:
    fared = ["ok"] * 14 + ["absent", "absent"]
    sections = [SectionResult(f"s{n}", status, 0, 0, 0, None) for n, status in enumerate(fared)]
    assert reading(sections) == ("14 of 16 sections read; 2 unavailable here; no memory unreadable")
    sections += [
        SectionResult("zones", "failed", 0, 0, 0, "x"),
        SectionResult("pcp_lists", "partial", 0, 0, 8192, "x"),
        SectionResult("odd", "?", 0, 0, 0, "x"),
    ]
    assert reading(sections) == (
        "15 of 19 sections read; 1 of these in part (pcp_lists); 1 failed (zones); "
        "2 unavailable here; 1 of unknown status; 8 KiB of memory unreadable"
    )
    assert reading([]) == "no section was read"


class TestSections:
    def test_every_table_is_there_with_every_value(self, pages: dict[str, str]) -> None:
        tree = parse(pages["machine"])
        for name, (_, row_type, rows, _) in made.tables().items():
            shown = by_id(tree, f"table-{name}")
            series = any(c.name == "time" and c.key for c in columns(row_type))
            most = MAX_SERIES_ROWS if series else MAX_ROWS
            if rows:
                assert len(cells(elements(shown, "table")[0])) == min(len(rows), most)

    def test_numbers_are_exact_and_names_have_no_separators(self, pages: dict[str, str]) -> None:
        zone = made.tables()["zones"][2][2]
        row = cells(elements(by_id(parse(pages["machine"]), "table-zones"), "table")[0])[2]
        assert row[:3] == ["1", "Normal", f"{zone.present_pages:,}"]
        assert row[-4:] == ["0x100000", "no", "no", ""]

    def test_every_section_begins_with_words_and_a_link_to_the_kernels_own(
        self, pages: dict[str, str]
    ) -> None:
        tree = parse(pages["machine"])
        for name in {section for *_, section in made.tables().values()}:
            intro = next(
                e for e in by_id(tree, f"section-{name}").iter() if e.get("class") == "intro"
            )
            links = [a for a in elements(intro, "a") if a.get("class") != "term"]
            for link in links:
                assert str(link.get("href")).startswith("https://docs.kernel.org/")
            assert links

    def test_an_empty_check_is_one_line_that_says_what_agrees(self, pages: dict[str, str]) -> None:
        line = by_id(parse(pages["machine"]), "table-pcp_checks")
        assert line.tag == "p"
        assert texts(line).startswith("Every CPU's page count agrees with its lists.")

    def test_an_empty_check_of_a_partial_section_does_not_say_that_all_agrees(
        self, tmp_path: Path
    ) -> None:
        partial = [SectionResult("pcp_lists", "partial", 0, 4, 0, "stopped")]
        bundle = made.write_bundle(tmp_path / "b", made.tables_of("pcp_lists"), sections=partial)
        line = texts(by_id(parse(render(bundle, NOTHING)), "table-pcp_checks"))
        assert line.startswith("No rows, but the section is not whole.")

    def test_an_unknown_section_shows_with_its_tables(self, tmp_path: Path) -> None:
        rows = [made.Oddity("thing", 1 << 30, None, False)]
        contents: dict[str, Contents] = {"oddities": ("Odd things", made.Oddity, rows, "oddity")}
        tree = parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING))
        assert "Odd things" in texts(by_id(tree, "section-oddity"))
        table = elements(by_id(tree, "table-oddities"), "table")[0]
        assert cells(table) == [["thing", "1 GiB", "", "no"]]
        assert elements(table, "td")[1].get("title") == "1,073,741,824 bytes"

    def test_a_table_of_a_section_that_is_not_listed_shows_too(self, tmp_path: Path) -> None:
        bundle = made.write_bundle(tmp_path / "b", made.tables_of("zones"), sections=[])
        tree = parse(render(bundle, NOTHING))
        assert "does not say how this section fared" in texts(by_id(tree, "section-zones"))
        assert cells(elements(by_id(tree, "table-zones"), "table")[0])

    def test_absent_and_failed_sections_say_why(self, tmp_path: Path) -> None:
        sections = [
            SectionResult("page_owner", "absent", 0.1, 0, 0, "boot with page_owner=on"),
            SectionResult("zones", "failed", 0.1, 0, 8192, "memory cannot be read"),
        ]
        html = render(made.write_bundle(tmp_path / "b", {}, sections=sections), NOTHING)
        tree = parse(html)
        assert "boot with page_owner=on" in texts(by_id(tree, "section-page_owner"))
        zones = texts(by_id(tree, "section-zones"))
        assert "memory cannot be read" in zones
        assert "8 KiB could not be read" in zones
        assert "8 KiB of memory unreadable" in texts(by_id(tree, "top"))
        read = "0 of 2 sections read; 1 failed (zones); 1 unavailable here"
        assert read in texts(by_id(tree, "top"))

    def test_a_long_table_is_cut_and_says_where_the_rest_is(self, tmp_path: Path) -> None:
        most = MAX_CELLS // len(columns(made.Oddity))
        rows = [made.Oddity(str(number), number, None, None) for number in range(most + 1234)]
        contents: dict[str, Contents] = {"oddities": ("Odd", made.Oddity, rows, "oddity")}
        tree = parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING))
        shown = by_id(tree, "table-oddities")
        assert len(cells(elements(shown, "table")[0])) == most
        said = f"The first {most} of {most + 1234:,} rows. All of them: oddities.csv (packed"
        assert said in texts(shown)
        link = next(a for a in elements(shown, "a") if a.get("download") == "oddities.csv.gz")
        packed = str(link.get("href")).partition("base64,")[2]
        lines = gzip.decompress(base64.b64decode(packed)).decode().splitlines()
        assert lines == (tmp_path / "b" / "oddities.csv").read_text().splitlines()

    def test_contents_have_the_worst_first(self, small: Bundle) -> None:
        cause = Finding("c", "warning", "C", "s", "w", (), (), "zones", explains=("it is slow",))
        effect = Finding("e", "critical", "E", "s", "w", (), (), "zones", symptom="it is slow")
        tree = parse(render(small, Verdict([effect, cause], [], [])))
        (listed,) = (e for e in elements(tree, "ul") if e.get("class") == "toc-findings")
        assert [texts(link) for link in elements(listed, "a")] == ["critical E", "warning C"]
        # Below them the cause stands before what came of it.
        told = texts(by_id(tree, "findings"))
        assert told.index("warning C") < told.index("critical E")

    def test_headings_are_words(self, whole_report: str) -> None:
        heads = [e for e in elements(parse(whole_report), "th") if e.get("scope") == "col"]
        assert len(heads) > 300
        named = re.compile(r"\b(?!anon_vma)[a-z]+_[a-z]")  # which is the kernel's word for it
        assert not [texts(head) for head in heads if named.search(texts(head))]
        short = re.compile(r"\b(nid|comm|e?pfns?|nr|dups|vmas|pid|pgtables|memcg|kmem)\b")
        assert not [texts(head) for head in heads if short.search(texts(head))]

    def test_a_heading_says_its_unit_once(self) -> None:
        for table in TABLES.values():
            described = columns(table.row)
            words = [heading(column) for column in described]
            assert len(set(words)) == len(words), table.name
            for column, said in zip(described, words, strict=True):
                unit = unit_shown(column)
                assert not unit or unit.lower() not in said.lower().split(), column.name
        walk = Column("walk_ms_low", "number", True, "ms", "", False)
        assert (heading(walk), unit_shown(walk)) == ("walk low", "ms")
        mapped = Column("vmas_of_pid", "integer", True, "VMAs", "", False)
        assert (heading(mapped), unit_shown(mapped)) == ("VMAs of PID", "")

    def test_sections_with_findings_are_open_and_no_others(self, pages: dict[str, str]) -> None:
        sections = [e for e in elements(parse(pages["machine"]), "section")
                    if e.get("class") == "section"]  # fmt: skip
        for section in sections:
            found = any(e.get("class") == "refers" for e in elements(section, "p"))
            assert (elements(section, "details")[0].get("open") is not None) is found
        assert len(sections) > 15

    def test_every_column_is_explained_in_words(self, pages: dict[str, str]) -> None:
        tree = parse(pages["machine"])
        for name, (_, row_type, rows, _) in made.tables().items():
            if rows:
                shown = texts(by_id(tree, f"table-{name}"))
                for described in columns(row_type):
                    assert described.help in shown

    def test_templates_exist_for_every_picture(self) -> None:
        for picture in PICTURES:
            assert (TEMPLATES / f"picture_{picture.name}.html").is_file()


def words_of(page: str, section: str) -> str:
    """A section's text. To parse a whole page takes four times as long as to make it."""
    (_, _, rest) = page.partition(f'<section class="section" id="section-{section}"')
    assert rest
    return re.sub(r"<[^>]*>", "", rest.partition("</section>")[0].partition(">")[2])


class TestDamage:
    def test_a_missing_table_costs_itself_only(self, tmp_path: Path, pages: dict[str, str]) -> None:
        bundle = made.write_bundle(tmp_path / "b", made.tables())
        (tmp_path / "b" / "free_blocks.csv").unlink()
        page = render(bundle, made.verdict())
        told = words_of(page, "free_lists")
        assert "No picture: free_blocks.csv: missing" in told
        assert "This table could not be read: free_blocks.csv: missing" in told
        assert str(tmp_path) not in page
        for name in ("pageblocks", "vm_counters"):
            assert words_of(page, name) == words_of(pages["machine"], name)

    def test_a_table_that_is_damaged_in_the_middle_says_so(self, tmp_path: Path) -> None:
        rows = [made.Oddity(str(number), number, None, None) for number in range(9)]
        contents: dict[str, Contents] = {"oddities": ("Odd", made.Oddity, rows, "oddity")}
        bundle = made.write_bundle(tmp_path / "b", contents)
        path = tmp_path / "b" / "oddities.csv"
        path.write_text(path.read_text().replace("7,7", "7,seven"))
        shown = by_id(parse(render(bundle, NOTHING)), "table-oddities")
        assert "could not be read: oddities.csv: damaged" in texts(shown)
        assert len(cells(elements(shown, "table")[0])) == 7

    @pytest.mark.parametrize("absurd", ["", "-1", "999999999999999999999"])
    @pytest.mark.parametrize("turn", range(3))
    def test_pictures_of_absurd_numbers_cost_their_own_sections_only(
        self, tmp_path: Path, pages: dict[str, str], turn: int, absurd: str
    ) -> None:
        """Every third picture at a time: the sections of the others are as they were."""
        contents = made.tables()
        bundle = made.write_bundle(tmp_path / "b", contents)
        broken = {picture.table for picture in PICTURES[turn::3]}
        for table in broken:
            path = tmp_path / "b" / f"{table}.csv"
            header, first, *rest = path.read_text().splitlines()
            first = re.sub(r"(?<=,)\d+(?=,|$)|^\d+(?=,)", absurd, first)
            path.write_text("\n".join([header, first, *rest]) + "\n")
        page = render(bundle, made.verdict())
        assert all(f'id="picture-{picture.name}"' in page for picture in PICTURES)
        touched = {p.table for p in PICTURES if {p.table, *p.others} & broken} | broken
        others = {t[-1] for t in contents.values()} - {contents[table][-1] for table in touched}
        assert len(others) >= 5
        for name in others:
            assert words_of(page, name) == words_of(pages["machine"], name)

    def test_a_picture_without_its_columns_says_which(self, tmp_path: Path) -> None:
        odd: Contents = ("Odd", made.Oddity, [made.Oddity("a", 1, None, None)], "oddity")
        contents = {picture.table: odd for picture in PICTURES}
        tree = parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING))
        for picture in PICTURES:
            told = texts(by_id(tree, f"picture-{picture.name}"))
            assert told.startswith(f"No picture: table {picture.table} has no column")

    def test_without_a_page_size_amounts_are_pages(self, tmp_path: Path) -> None:
        target = {key: value for key, value in made.TARGET.items() if key != "page_size"}
        bundle = made.write_bundle(tmp_path / "b", made.tables(), target=target)
        tree = parse(render(bundle, NOTHING))
        assert "393,086 pages of unknown size" in texts(by_id(tree, "top"))
        for picture in PICTURES:
            assert not texts(by_id(tree, f"picture-{picture.name}")).startswith("No picture")
        assert "KiB" not in texts(by_id(tree, "picture-watermarks"))
        assert "Pages on a list:" in texts(by_id(tree, "picture-free_lists"))


class TestHostile:
    def test_every_string_is_shown_as_it_is(self, pages: dict[str, str]) -> None:
        shown = texts(parse(pages["hostile"]))
        for text in made.HOSTILE[:-1]:
            assert visible(text) in shown

    def test_every_table_shows_every_string_of_its_rows(
        self, pages: dict[str, str], hostile: Bundle
    ) -> None:
        tree = parse(pages["hostile"])
        for name in hostile.tables.keys() - {"sections"}:
            shown = texts(by_id(tree, f"table-{name}"))
            for row in list(hostile.rows(name))[:MAX_ROWS]:
                for value in row.values():
                    if isinstance(value, str):
                        assert visible(cut(value)) in shown

    def test_templates_are_not_evaluated(self, pages: dict[str, str]) -> None:
        assert "{{7*7}}{% raw %}" in texts(parse(pages["hostile"]))

    def test_links_lead_to_plain_addresses_or_nowhere(self, pages: dict[str, str]) -> None:
        for link in elements(parse(pages["hostile"]), "a"):
            assert re.fullmatch(
                r"data:application/gzip;base64,[A-Za-z0-9+/=]+"
                if link.get("download")
                else r"#[a-z0-9_-]+|https://docs\.kernel\.org/[!-~]+",
                str(link.get("href")),
            )

    def test_ids_and_classes_are_ours(self, pages: dict[str, str]) -> None:
        for element in parse(pages["hostile"]).iter():
            for attribute in ("id", "class"):
                assert re.fullmatch(r"[A-Za-z0-9_ -]*", element.get(attribute) or "")

    def test_a_section_name_opens_no_other_file(self, pages: dict[str, str]) -> None:
        assert "section-secret" in pages["hostile"]

    def test_a_line_break_cannot_fake_a_line(self, small: Bundle) -> None:
        forged = replace(made.verdict().found[0], saw="harmless\nNext:\n1. rm -rf /")
        tree = parse(render(small, Verdict([forged], [], [])))
        text = texts(by_id(tree, "finding-highatomic-starves-thp-1-text"))
        assert "Seen: harmless Next: 1. rm -rf /" in text.splitlines()


class TestWriting:
    def test_appears_whole_and_what_root_writes_is_roots(self, tmp_path: Path) -> None:
        path = tmp_path / "report.html"
        write("<p>naïve</p>\n", path)
        assert path.read_bytes() == "<p>naïve</p>\n".encode()
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask if os.geteuid() else 0o600
        assert path.stat().st_mode & 0o777 == mode
        assert os.listdir(tmp_path) == ["report.html"]

    def test_a_device_or_pipe_is_written_to_and_stays(self, tmp_path: Path) -> None:
        """As root, a file renamed to /dev/null would be the end of it."""
        path = tmp_path / "pipe"
        os.mkfifo(path)
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(path.read_text)
            write("<p>naïve</p>\n", path)
            assert read.result() == "<p>naïve</p>\n"
        assert path.is_fifo()
        assert os.listdir(tmp_path) == ["pipe"]

    @pytest.mark.parametrize("there", [True, False])
    def test_a_symbolic_link_is_refused_not_followed(self, tmp_path: Path, there: bool) -> None:
        (tmp_path / "link").symlink_to("there")
        if there:
            (tmp_path / "there").write_text("old")
        with pytest.raises(OSError, match="is a symbolic link; name what it leads to"):
            write("new", tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert not there or (tmp_path / "there").read_text() == "old"
        assert sorted(os.listdir(tmp_path)) == ["link", "there"][: 1 + there]

    def test_standard_output_is_written_to(self, tmp_path: Path) -> None:
        """/dev/stdout is a link of the system's, to a pipe or a file."""
        code = "import sys; from mmscope.reports.page.report import write; from pathlib import Path"
        command = [sys.executable, "-c", f"{code}; write('new', Path('/dev/stdout'))"]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout == b"new"
        with (tmp_path / "there").open("wb") as file:
            subprocess.run(command, cwd=ROOT, stdout=file, check=True)
        assert (tmp_path / "there").read_text() == "new"

    def test_a_full_disk_leaves_the_old_report_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "report.html"
        path.write_text("old")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write("new", path)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (4096, "4 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (1_536_000_000, "1.431 GiB"),
        (-4096, "-4 KiB"),
        (1023 << 20, "1023 MiB"),
        (5 << 60, "5 EiB"),
    ],
)
def test_sizes(value: int, said: str) -> None:
    assert display.size(value) == said


def test_sizes_in_narrow_places() -> None:
    assert display.compact(4102, 4096) == "16.02M"
    assert display.compact(1, 4096) == "4K"
    assert display.compact(12_345, None) == "12,345p"


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 20, "0 %"),
        (20, 20, "100 %"),
        (1, 100_000, "<0.1 %"),
        (99_999, 100_000, ">99.9 %"),
        (1234, 100_000, "1.2 %"),
        (3, 0, ""),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_all(part: int, whole: int, said: str) -> None:
    assert display.share(part, whole) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (17.3, "17 s"), (3600, "1 h 0 min"), (273_845.5, "3 d 4 h"), (-1.0, "")],
)
def test_durations(seconds: float, said: str) -> None:
    assert display.duration(seconds) == said


def every_character() -> Iterator[str]:
    yield from map(chr, range(0x110000))


def test_visible_writes_out_what_hides() -> None:
    assert visible("a\x1b[31m\u202e\n\udc80é") == r"a\x1b[31m\u202e\n\udc80é"


def test_visible_leaves_nothing_that_hides() -> None:
    for char in set(visible("".join(every_character()))):
        assert char.isprintable() or char.isspace()
        char.encode()


@pytest.mark.parametrize("key", ["truncated", "fallback"])
def test_what_the_reading_lacks_is_said_before_any_number(tmp_path: Path, key: str) -> None:
    words = "610,880,220 bytes <b>lie</b> behind the end of the file"
    bundle = made.write_bundle(tmp_path / "bundle", {}, target={**made.TARGET, key: words})
    tree = parse(render(bundle, NOTHING))
    (caveat,) = (p for p in elements(tree, "p") if p.get("class") == "caveat")
    assert words in texts(caveat)
