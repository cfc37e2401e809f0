# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What whoever declares a section, a table or a column must know. Each rule is a function that returns
what to write, and is asked of everything that is declared.
"""

import re

import pytest
import released

from mmscope.drgn.tables.table import Heading
from mmscope.reports.bundle.declared import HEADINGS

LONG_ENOUGH, SENTENCES = 100, 2
# Of a sentence; a line of prose may end with a bracket.
END = re.compile(r"[.:](?=\s+[A-Z]|\)?\s*$)", re.MULTILINE)


def intro_lacks(intro: str) -> str | None:
    """What to write into the ``intro`` of a section."""
    text = intro.strip()
    sentences = len(END.findall(" ".join(text.split())))
    if len(text) <= LONG_ENOUGH or sentences < SENTENCES:
        return (
            f"the intro has {len(text)} characters in {sentences} sentences: write more than "
            f"{LONG_ENOUGH}, in {SENTENCES} sentences or more: what the section shows, and what a "
            "reader must know to read its numbers"
        )
    for paragraph in text.split("\n\n"):
        if not re.search(r"[.)]$", paragraph):
            return f"a paragraph is not a sentence: end {paragraph[-23:]!r} with a full stop"
    if tag := re.search(r"[<>]", text):
        return f"{tag[0]} is no markup here: write *words*, `code` and [links](https://…)"
    if link := re.search(r"\]\((?!https://)([^)]*)", text):
        return f"link {link[1]}: write an address that begins with https://"
    return None


@pytest.mark.parametrize("heading", HEADINGS.values(), ids=lambda heading: heading.name)
def test_a_section_says_what_to_know_first(heading: Heading) -> None:
    assert intro_lacks(heading.intro) is None, intro_lacks(heading.intro)


ZONES = " ".join(["Zones."] * 20)


@pytest.mark.parametrize(
    ("intro", "words"),
    [
        ("Zones.", "6 characters in 1 sentences: write more than 100, in 2 sentences"),
        ("Zones. " * 12, "83 characters in 12 sentences"),
        ("z" * 120 + ".", "121 characters in 1 sentences"),
        (f"{ZONES} And more", "end ' Zones. Zones. And more' with a full stop"),
        (f"{ZONES} <b>All</b>.", "< is no markup here: write *words*"),
        (f"{ZONES} See [it](http://x.org).", "link http://x.org: write an address"),
        (f"{ZONES} See [it](https://docs.kernel.org/mm/) for `x`.", None),
        (f"{ZONES}\n\n(More.)", None),
    ],
)
def test_what_an_intro_lacks_is_said(intro: str, words: str | None) -> None:
    said = intro_lacks(intro)
    assert said is None if words is None else words in (said or ""), said


def since_lacks(since: str, known: bool, releases: list[str]) -> str | None:
    """
    What to write as ``since``.

    :param known: the last release had it.
    """
    last = releases[0]
    if known and since not in releases:
        return f'mmscope {last} had it: leave out since="{since}"'
    if not known and since not in released.next_to(last):
        return (
            f'mmscope {last}, the last release, does not have it: write since="'
            f'{released.next_to(last)[0]}"'
        )
    return None


def test_what_is_newer_than_the_last_release_names_the_next_one() -> None:
    releases = released.releases()
    path = released.listed(releases[0])
    assert path.exists(), f"{releases[0]} is released: run python tests/support/released.py"
    had = set(path.read_text().splitlines())
    for name, since in released.declared().items():
        lack = since_lacks(since, name in had, releases)
        assert lack is None, f"{name}: {lack}"


@pytest.mark.parametrize(
    ("since", "known", "words"),
    [
        ("0.1.0", True, None),
        ("0.2.0", True, None),
        ("0.3.0", True, 'mmscope 0.2.0 had it: leave out since="0.3.0"'),
        ("0.1.0", False, '0.2.0, the last release, does not have it: write since="0.3.0"'),
        ("0.2.0", False, 'write since="0.3.0"'),
        ("0.4.0", False, 'write since="0.3.0"'),
        ("next", False, 'write since="0.3.0"'),
        ("0.3.0", False, None),
        ("0.2.1", False, None),
        ("1.0.0", False, None),
    ],
)
def test_what_a_version_lacks_is_said(since: str, known: bool, words: str | None) -> None:
    said = since_lacks(since, known, ["0.2.0", "0.1.0"])
    assert said is None if words is None else words in (said or ""), said


def test_what_is_as_old_as_its_table_does_not_say_it_again() -> None:
    for table in released.TABLES.values():
        for column in released.columns(table.row):
            assert not column.since or column.since != table.since, (
                f"{table.name}.{column.name} came with its table: leave out since"
            )
