# SPDX-License-Identifier: LGPL-2.1-or-later
"""A page of HTML as a tree, parsed as strictly as the standard allows (html5lib)."""

import functools
from xml.etree.ElementTree import Element

import html5lib

from reports.findings import Verdict

NOTHING = Verdict([], [], [])
# Elements that load, embed, submit or redirect; and those that only we may have, and once.
NEVER = {
    "img",
    "iframe",
    "object",
    "embed",
    "link",
    "base",
    "form",
    "audio",
    "video",
    "image",
    "use",
}
ONCE = ("script", "style")


# It takes seconds for a page, of which most tests look at the same few.
@functools.lru_cache(maxsize=16)
def parse(html: str) -> Element:
    """The page as a tree of plain names; any error in it is an exception. Not to be changed."""
    parser = html5lib.HTMLParser(
        tree=html5lib.getTreeBuilder("etree"), strict=True, namespaceHTMLElements=False
    )
    tree: Element = parser.parse(html)
    for element in tree.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
    return tree


def texts(element: Element) -> str:
    return "".join(element.itertext())


def elements(tree: Element, name: str) -> list[Element]:
    return [element for element in tree.iter() if element.tag == name]


def by_id(tree: Element, name: str) -> Element:
    return next(element for element in tree.iter() if element.get("id") == name)


def has_id(tree: Element, name: str) -> bool:
    return any(element.get("id") == name for element in tree.iter())


def cells(table: Element) -> list[list[str]]:
    """The body of a table as text."""
    body = next(element for element in table.iter() if element.tag == "tbody")
    return [
        [texts(cell) for cell in row if cell.tag in ("td", "th")] for row in body if row.tag == "tr"
    ]
