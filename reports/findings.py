# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings: what a bundle's tables mean, asked in SQL.

A finding is one file, ``findings/<id>.toml``: the columns it needs, a query over the bundle's
tables that returns a row for each thing found, and the words, filled in from that row. A finding
whose query returns nothing says nothing. One whose tables or columns the bundle does not have, or
has only empty, is *not checked*, and the reason is kept: silence must never mean "not looked".
"""

from dataclasses import dataclass

SEVERITIES = ("critical", "warning", "notice")


@dataclass(frozen=True)
class Link:
    """Where something is written up."""

    title: str
    url: str


@dataclass(frozen=True)
class Finding:
    """One thing that was found. All words are plain text, with values from the bundle in them."""

    id: str  # the file's name; several findings may share it, one for each row found
    severity: str
    title: str  # what is wrong, with its number
    saw: str  # what was seen: the figures
    why: str  # why it hurts
    next: tuple[str, ...]  # what to do, in order
    links: tuple[Link, ...]
    section: str  # where the evidence is


@dataclass(frozen=True)
class NotChecked:
    """A finding that could not be asked of this bundle."""

    id: str
    title: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Everything that the findings say of one bundle; found by severity, then by file name."""

    found: list[Finding]
    clear: list[tuple[str, str]]  # (id, title) of what was checked and not found
    not_checked: list[NotChecked]
