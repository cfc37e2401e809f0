# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What the findings say of a fleet: how many hosts have each, since when, which worst, on which
kernels and with which labels.

Of each host the newest bundle counts in which a finding could be checked: one of ``watch`` answers
other questions than one of ``collect``. Since when: the oldest reading from which on each that
could tell had it.

Cannot know: what was between two readings.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jinja2

from mmscope.reports.findings.findings import (
    HARMS,
    SEVERITIES,
    Finding,
    Question,
    badness_of,
    finding_of,
    named,
    severity_of,
)
from mmscope.reports.findings.kernel_said import Kernel
from mmscope.reports.fleet.growth import CLASSES, Growth
from mmscope.reports.lake.asking import Answer, Engine, Row, answers, kernels
from mmscope.reports.lake.batch import Batch, batches, load
from mmscope.reports.lake.catalog import Catalog, Taken

KernelOf = Callable[[int], Kernel]
# Of hosts that are named for a finding.
WORST = 3
# A share of hosts that differs between kernels by chance this often, or less, is said.
CHANCE = 0.001
LEAST_HOSTS = 5


@dataclass(frozen=True)
class Case:
    """
    A finding of a host.

    :ivar since: when it was found first, of the readings since which it was always there.
    :ivar always: none of the host's readings that could tell was without it.
    """

    bundle: Taken
    rows: tuple[Row, ...]
    severity: str
    badness: float
    since: float
    always: bool
    kernel: Kernel


@dataclass
class Share:
    """How many of some hosts have a finding."""

    hosts: int = 0
    checked: int = 0


@dataclass
class Told:
    """
    A finding over all hosts.

    :ivar cases: by host, the worst first.
    :ivar checked: hosts that could tell.
    """

    question: Question
    cases: list[Case]
    checked: int
    by_kernel: dict[str, Share]
    by_label: dict[str, Share]

    @property
    def severity(self) -> str:
        """That of the worst host."""
        return min((case.severity for case in self.cases), key=SEVERITIES.index)

    @property
    def since(self) -> float:
        """When the first host had it."""
        return min(case.since for case in self.cases)


@dataclass
class Fleet:
    """
    All that was found.

    :ivar told: what at least one host has, the worst first.
    :ivar clear: what no host has of those that could tell, which is one at least.
    :ivar unasked: what no host could tell.
    :ivar unchecked: finding and reason, and how many hosts could not tell for it.
    :ivar growth: what the hosts' ledgers say, where they were asked.
    """

    hosts: dict[str, Taken]
    told: list[Told]
    clear: list[Question]
    unasked: list[Question]
    unchecked: dict[tuple[str, str], int]
    bundles: int
    said: list[str] = field(default_factory=list)
    growth: Growth | None = None


@dataclass
class _Asked:
    """
    What hosts' readings said of one finding, by host; readings are numbered, the newest last.

    :ivar last: the newest reading that could tell. :ivar clear: the newest that was without it.
    :ivar found: those that had it. :ivar rows: of the newest of these.
    :ivar refused: why the newest that could not tell could not.
    """

    last: dict[str, int] = field(default_factory=dict)
    clear: dict[str, int] = field(default_factory=dict)
    found: dict[str, list[int]] = field(default_factory=dict)
    rows: dict[str, tuple[tuple[Row, ...], Kernel]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def take(self, answer: Answer, hosts: Sequence[str], first: int, kernel: KernelOf) -> None:
        """
        Take an answer in.

        :param hosts: of the bundles that were asked. :param first: number of the first of them.
        """
        # Of a fleet most hosts have nothing: these are not looked at one by one.
        host_of = hosts.__getitem__
        found = {
            number: rows
            for number, every in answer.rows.items()
            if (rows := tuple(row for row in every if row.get("over", True)))
        }
        asked = list(zip(map(host_of, answer.asked), answer.asked, strict=True))
        self.refused |= zip(map(host_of, answer.refused), answer.refused.values(), strict=True)
        self.last |= ((host, first + number) for host, number in asked)
        self.clear |= ((host, first + number) for host, number in asked if number not in found)
        for number in sorted(found):
            host = host_of(number)
            self.found.setdefault(host, []).append(first + number)
            self.rows[host] = found[number], kernel(number)


def ask_fleet(
    catalog: Catalog,
    questions: Sequence[Question],
    engine: Callable[[Batch], Engine] | None = None,
    progress: Callable[[int], None] = lambda done: None,
    ledgers: bool = False,
) -> Fleet:
    """
    Ask all bundles every question, as many at once as memory has room for.

    :param ledgers: ask also what grew between two of a host.
    """
    asked: dict[str, _Asked] = {question.id: _Asked() for question in questions}
    growth = Growth.of(catalog.bundles) if ledgers else None
    wanted = growth.wanted() if growth else set()
    said = list(catalog.said)
    names = named([*questions, CLASSES] if wanted else questions)
    done = 0
    for bundles in batches(catalog.bundles):
        batch = load(catalog, bundles, names)
        kernel_of = kernels(batch)
        hosts = [bundle.host for bundle in bundles]
        run = engine(batch) if engine else None
        for answer in answers(batch, questions, run):
            asked[answer.question.id].take(answer, hosts, done, kernel_of)
        among = {number - done for number in wanted if done <= number < done + len(bundles)}
        if growth and among:
            for answer in answers(batch, [CLASSES], run, among):
                growth.take(answer, done)
        said += [line for line in batch.said if line not in said]
        batch.connection.close()
        done += len(bundles)
        progress(done)
    fleet = _fleet(catalog, questions, asked, said)
    fleet.growth = growth
    return fleet


def _fleet(
    catalog: Catalog, questions: Sequence[Question], asked: dict[str, _Asked], said: list[str]
) -> Fleet:
    hosts = {bundle.host: bundle for bundle in catalog.bundles}
    told, clear, unasked = [], [], []
    unchecked: Counter[tuple[str, str]] = Counter()
    for question in questions:
        here = asked[question.id]
        one = _told(catalog.bundles, question, here)
        for host in hosts:
            if host not in here.last:
                unchecked[question.id, here.refused.get(host, "no bundle was asked")] += 1
        if one.cases:
            told.append(one)
        elif one.checked:
            clear.append(question)
        else:
            unasked.append(question)
    told.sort(key=lambda one: (SEVERITIES.index(one.severity), -len(one.cases),
                               HARMS.index(one.question.harm), one.question.id))  # fmt: skip
    return Fleet(hosts, told, clear, unasked, dict(unchecked), len(catalog.bundles), said)


def _told(bundles: Sequence[Taken], question: Question, asked: _Asked) -> Told:
    """A finding over all hosts that it was asked of."""
    one = Told(question, [], len(asked.last), {}, {})
    # Hosts of one kernel with the same labels count together.
    groups: Counter[tuple[str, tuple[tuple[str, str], ...], bool]] = Counter()
    for host, last in asked.last.items():
        bundle = bundles[last]
        found = asked.found.get(host, [])
        has = bool(found) and found[-1] == last
        groups[bundle.kernel, tuple(bundle.labels.items()), has] += 1
        if has:
            without = asked.clear.get(host, -1)
            since = next(number for number in found if number > without)
            rows, kernel = asked.rows[host]
            # Over many hosts, an engine keeps no order of the rows that a query gives for one.
            rows = tuple(sorted(rows, key=lambda row: _worse_first(question, row)))
            worst = badness_of(question, rows[0]) or -math.inf
            severity = min((severity_of(question, row) for row in rows), key=SEVERITIES.index)
            one.cases.append(
                Case(bundle, rows, severity, worst, bundles[since].at, without < 0, kernel)
            )
    for (release, labels, has), count in groups.items():
        shares = [one.by_kernel.setdefault(release, Share())]
        shares += [one.by_label.setdefault(f"{name}={value}", Share()) for name, value in labels]
        for share in shares:
            share.checked += count
            share.hosts += has * count
    one.cases.sort(key=_worst_first)
    return one


def _worse_first(question: Question, row: Row) -> tuple[float, list[str]]:
    worse = badness_of(question, row)
    return (math.inf if worse is None else -worse), [str(row[name]) for name in question.subject]


def _worst_first(case: Case) -> tuple[int, float, str]:
    return SEVERITIES.index(case.severity), -case.badness, case.bundle.host


def words(one: Told, case: Case) -> list[Finding]:
    """What a host's report says of a finding; nothing of a row that its words do not fit."""
    said = []
    for row in case.rows:
        try:
            said.append(finding_of(one.question, row, case.kernel))
        except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError):
            continue
    return said


@dataclass(frozen=True)
class Regression:
    """
    A finding that hosts of one kernel have more often than those of all others.

    :ivar chance: how often that would be so if the kernel made no difference.
    """

    told: Told
    kernel: str
    here: Share
    elsewhere: Share
    chance: float


def regressions(fleet: Fleet) -> list[Regression]:
    """
    What hosts of one kernel release have more often than the others, the least likely first.

    By Fisher's exact test, one-sided; each pair of a finding and a release counts as a test, so
    that of a thousand that make no difference one is said in a thousand runs (Bonferroni).
    """
    tests, likely = 0, []
    for one in fleet.told:
        for kernel, here in one.by_kernel.items():
            others = [share for name, share in one.by_kernel.items() if name != kernel]
            elsewhere = Share(sum(s.hosts for s in others), sum(s.checked for s in others))
            if min(here.checked, elsewhere.checked) < LEAST_HOSTS:
                continue
            tests += 1
            chance = at_least_by_chance(here, elsewhere)
            likely.append(Regression(one, kernel, here, elsewhere, chance))
    likely.sort(key=lambda each: (each.chance, each.told.question.id, each.kernel))
    return [each for each in likely if each.chance * tests <= CHANCE]


def at_least_by_chance(here: Share, elsewhere: Share) -> float:
    """The chance that so many of those that have it, or more, are here (hypergeometric)."""
    total, having = here.checked + elsewhere.checked, here.hosts + elsewhere.hosts
    whole = _log_choose(total, here.checked)
    return min(1.0, math.fsum(
        math.exp(
            _log_choose(having, k) + _log_choose(total - having, here.checked - k) - whole
        )
        for k in range(here.hosts, min(having, here.checked) + 1)
        if here.checked - k <= total - having
    ))  # fmt: skip


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
