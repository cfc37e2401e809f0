# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A finding's file, ``findings/<id>.toml``: the columns it needs, a query over the bundle's tables,
which returns a row for each thing found, and the words that are filled in from that row.
"""

import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from mmscope.drgn.machine.kernel_features import FEATURES
from mmscope.reports.findings.proof import Declared

FINDINGS = Path(__file__).resolve().parent
SEVERITIES = ("critical", "warning", "notice")
HIDES = "hides"
# What a finding does to the machine, the worst first: the order of those of one severity. The last
# is nothing that the machine suffers: a recording or a counter is not what it seems to be.
HARMS = ("ends work", "damages data", "stalls", "takes memory", "costs", HIDES)
# The section that says nothing of the machine by itself.
RECORDINGS = "profiles"


@dataclass(frozen=True, slots=True)
class Step:
    """
    Something to do, with its price.

    A step either only looks at what this bundle has (``looks``), or says what it costs; one that
    changes something also says when not to do it and how to undo it.

    :ivar only: features of table ``kernel_features`` that the kernel must have, or, after a ``!``,
        must not have. A step that is not for the kernel that was read is not shown.
    """

    do: str
    cost: str = ""
    avoid: str = ""  # when not to do it
    undo: str = ""
    looks: bool = False
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.only:
            if name.removeprefix("!") not in FEATURES:
                raise ValueError(f"no feature is called {name}")

    @property
    def price(self) -> tuple[tuple[str, str], ...]:
        """(label, words) of what there is to say about it."""
        said = (("costs", self.cost), ("not", self.avoid), ("undo", self.undo))
        return tuple((label, words) for label, words in said if words)

    @property
    def text(self) -> str:
        """All of it in a line."""
        return " ".join(
            (self.do, *(f"{label.capitalize()}: {words}" for label, words in self.price))
        )


@dataclass(frozen=True, slots=True)
class Question:
    """A finding's file."""

    id: str
    about: str  # what it looks for, where there is no row
    section: str
    # table.column, or table.column where …; without rows of the first table nothing is found.
    needs: tuple[str, ...]
    sql: str
    severity: str  # unless the row has a column of that name
    title: str
    saw: str
    why: str
    next: tuple[Step, ...]
    sources: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    worse: str  # an expression over the row: the higher, the worse
    estimate: bool = False  # how bad it is is computed; unless the row has a column `estimated`
    harm: str = "costs"
    symptom: str = ""  # words, as are those it explains
    explains: tuple[str, ...] = ()
    since: str = ""  # words; empty where the row does not say
    classes: tuple[str, ...] = ()  # words
    subject: tuple[str, ...] = ()  # columns of the row that distinguish what was found
    proof: Declared = field(default_factory=dict)
    plain: str = ""  # words; for the sentence of an incident
    owner: str = ""  # words; by default what its subject names
    # Tables that only add to the words, with the columns used: empty where a bundle lacks them.
    optional: dict[str, list[str]] = field(default_factory=dict)


def load_questions(folder: Path = FINDINGS) -> list[Question]:
    """
    All findings that can be made.

    :raises ValueError: a file is not as it should be; these are the project's own, so a fault here
        is one of the project.
    """
    questions = []
    for path in sorted(folder.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            links = tuple((link["title"], link["url"]) for link in data.pop("links", []))
            data["next"] = tuple(
                Step(**step | {"only": tuple(step.get("only", ()))}) for step in data["next"]
            )
            data |= {"needs": tuple(data["needs"]), "sources": tuple(data["sources"])}
            data |= {name: tuple(data.get(name, ())) for name in ("subject", "explains", "classes")}
            question = Question(id=path.stem, links=links, **data)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {error}") from error
        if question.severity not in SEVERITIES:
            raise ValueError(
                f"{path.name}: severity {question.severity!r} is not one of {SEVERITIES}"
            )
        if question.harm not in HARMS:
            raise ValueError(f"{path.name}: harm {question.harm!r} is not one of {HARMS}")
        questions.append(question)
    return questions


OURS = functools.cache(load_questions)


def severity_rank(severity: str) -> int:
    """The worst first; an unknown severity last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def parts_of(need: str) -> tuple[str, str, str]:
    """Table, column and condition, empty if there is none, of ``table.column where condition``."""
    table, _, rest = need.partition(".")
    column, _, condition = rest.partition(" where ")
    return table, column, condition
