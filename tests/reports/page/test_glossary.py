# SPDX-License-Identifier: LGPL-2.1-or-later
"""The glossary: terms are marked once in a text, where a reader meets them, and nowhere else."""

import re
from pathlib import Path

import pytest
import report_bundle as made
from markupsafe import Markup
from page_tree import NOTHING, by_id, elements, parse, texts

from mmscope.reports.page.glossary import Glossary, load
from mmscope.reports.page.report import render


def marks(html: str) -> list[str]:
    return re.findall(
        r'<a class="term" href="#term-[a-z0-9-]+" data-says="[^"]+">([^<]*)</a>', html
    )


class TestTerms:
    def test_each_is_explained_in_one_or_two_sentences(self) -> None:
        for term in load():
            assert re.fullmatch(r"[A-Za-z].*\.", term.says), term.name
            assert 1 <= len(re.findall(r"\.(?= [A-Z]|$)", term.says)) <= 2, term.name

    def test_links_lead_to_the_kernels_documentation(self) -> None:
        links = {term.link for term in load() if term.link}
        assert len(links) > 10
        assert all(link.startswith("https://docs.kernel.org/") for link in links)

    def test_no_two_share_a_place(self) -> None:
        anchors = [term.anchor for term in load()]
        assert len(anchors) == len(set(anchors))

    def test_each_is_found_by_its_own_words(self) -> None:
        for term in load():
            if term.name not in ("self and total", "PTE, PMD and PUD tables"):
                assert term.name in [found.name for found in used(term.name)]

    @pytest.mark.parametrize("text", ["[[term]]\nname = 1\nodd = 2\n", "[[term]\n", "x = 1\n"])
    def test_a_damaged_file_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "glossary.toml").write_text(text)
        with pytest.raises(ValueError, match=r"glossary\.toml"):
            load(tmp_path / "glossary.toml")


def used(text: str) -> list:  # type: ignore[type-arg]
    glossary = Glossary()
    glossary.mark(text)
    return glossary.used()


class TestMarks:
    @pytest.mark.parametrize(
        ("text", "marked"),
        [
            ("a zone, and a zone", ["zone"]),
            ("anon_vma_chains of an anon_vma", ["anon_vma_chains", "anon_vma"]),
            ("PTE tables and a PMD", ["PTE tables"]),
            ("in order to read, order 9", ["order"]),
            ("tree nodes and stable nodes", []),
            ("NUMA nodes", ["NUMA nodes"]),
            ("THPs, THP_x, /proc/zone, zone.free_area, zone/x", []),
            ("at the end of the zone.", ["zone"]),
            ("Transparent huge pages", ["Transparent huge pages"]),
        ],
    )
    def test_words_of_the_field_the_first_time(self, text: str, marked: list[str]) -> None:
        assert marks(Glossary().mark(text)) == marked

    def test_no_tag_no_link_and_no_code_is_touched(self) -> None:
        html = '<p title="zone">a <a href="#zone">zone</a> <code>zone</code> <b>zone</b></p>'
        marked = Glossary().mark(Markup(html))
        assert marks(marked) == ["zone"]
        assert '<b><a class="term"' in marked
        assert re.sub(r'<a class="term"[^>]*>([^<]*)</a>', r"\1", marked) == html

    def test_plain_text_is_escaped(self) -> None:
        assert Glossary().mark("<zone> & \x1b") == Markup("&lt;zone&gt; &amp; \\x1b").replace(
            "zone", Glossary().mark("zone")
        )

    @pytest.mark.parametrize("text", made.HOSTILE)
    def test_hostile_text_stays_text(self, text: str) -> None:
        html = Glossary().mark(text + " zone")
        assert not re.search(r"<(?!a class=\"term\"|/a>)", html)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("glossary")
    return render(made.write_bundle(folder / "b", made.tables()), made.verdict())


class TestInTheReport:
    def test_the_list_has_what_is_marked_and_nothing_else(self, html: str) -> None:
        tree = parse(html)
        marked = {str(a.get("href")) for a in elements(tree, "a") if a.get("class") == "term"}
        listed = [f"#{e.get('id')}" for e in elements(by_id(tree, "glossary"), "div")]
        assert set(listed) == marked
        assert len(listed) == len(marked) > 25

    def test_every_section_explains_itself_in_marked_words(self, html: str) -> None:
        intros = [e for e in elements(parse(html), "div") if e.get("class") == "intro"]
        assert len(intros) > 15
        with_marks = [e for e in intros if any(a.get("class") == "term" for a in e.iter())]
        assert len(with_marks) > 12
        for intro in intros:
            assert len(re.findall(r"[.:](?= [A-Z]|\s*$)", texts(intro).strip())) >= 2, texts(intro)

    def test_a_finding_is_marked_too(self, html: str) -> None:
        finding = by_id(parse(html), "finding-highatomic-starves-thp-1")
        assert [texts(a) for a in elements(finding, "a") if a.get("class") == "term"] == ["THP"]

    def test_an_empty_report_has_none(self, tmp_path: Path) -> None:
        bundle = made.write_bundle(tmp_path / "e", {}, target={}, sections=[])
        assert 'id="glossary"' not in render(bundle, NOTHING)
