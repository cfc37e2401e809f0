# SPDX-License-Identifier: LGPL-2.1-or-later
"""A page of HTML as a tree, parsed as strictly as the standard allows (html5lib)."""

import base64
import functools
import hashlib
from xml.etree.ElementTree import Element

import html5lib

from mmscope.reports.findings.finding import Verdict

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
    return "".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ")


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


def faults_of_policy(html: str) -> list[str]:
    """What a page's Content-Security-Policy lacks: its own style and script alone are allowed."""
    tree = parse(html)
    policy = next(
        element.get("content") or ""
        for element in elements(tree, "meta")
        if element.get("http-equiv") == "Content-Security-Policy"
    )
    faults = []
    if "default-src 'none'" not in policy:
        faults.append("allows requests")
    if "unsafe" in policy:
        faults.append("allows what is unsafe")
    for tag in ONCE:
        for element in elements(tree, tag):
            digest = base64.b64encode(hashlib.sha256(texts(element).encode()).digest()).decode()
            if f"{tag}-src 'sha256-{digest}'" not in policy:
                faults.append(f"does not allow a {tag}")
    for element in tree.iter():
        for name in element.attrib:
            if name == "style" or name.startswith("on"):
                faults.append(f"a handler or style in an element: {name}")
    return faults
