# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings of a fleet: how many hosts have each, since when, which worst, on which
kernels and with which labels.

Of each host the newest bundle counts in which a finding could be checked: one of ``watch`` answers
other questions than one of ``collect``. Since when: the oldest reading from which on each that
could tell had it.

Cannot know: what was between two readings.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jinja2

from mmscope.reports.findings.finding import Finding
from mmscope.reports.findings.finding_words import badness_of, finding_of, severity_of
from mmscope.reports.findings.findings import named
from mmscope.reports.findings.kernel_said import Kernel
from mmscope.reports.findings.question import HARMS, SEVERITIES, Question
from mmscope.reports.fleet.growth import ASKED, Amounts, Change, amounts_in, changes, ledger_pairs
from mmscope.reports.lake.asking import Answer, Row, answers, kernels
from mmscope.reports.lake.batch import batches, load
from mmscope.reports.lake.catalog import Catalog, Taken
from mmscope.reports.lake.layout import File, Lake

# What maps a function over portions, in their order, here or on other machines.
Run = Callable[[Callable[["Portion"], "Reply"], list["Portion"]], Iterable["Reply"]]
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


class Share(NamedTuple):
    """Hosts of a group that have a finding, and those that could tell."""

    hosts: int
    checked: int


@dataclass
class FleetFinding:
    """
    A finding over all hosts. Readings are numbered, the newest last.

    :ivar cases: by host, the worst first.
    :ivar checked: by host, the newest reading that could tell.
    :ivar silent: by host, the newest reading that was without it.
    :ivar found: by host, the readings that had it.
    :ivar rows: by host, those of the newest reading that had it.
    :ivar refused: by host, why the newest that could not tell could not.
    """

    question: Question
    cases: list[Case] = field(default_factory=list)
    by_kernel: dict[str, Share] = field(default_factory=dict)
    by_label: dict[str, Share] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    silent: dict[str, int] = field(default_factory=dict)
    found: dict[str, list[int]] = field(default_factory=dict)
    rows: dict[str, tuple[tuple[Row, ...], Kernel]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        """Severity on the worst host."""
        return min((case.severity for case in self.cases), key=SEVERITIES.index)

    @property
    def since(self) -> float:
        """Time at which the first host had it."""
        return min(case.since for case in self.cases)

    def take(
        self, answer: Answer, hosts: Sequence[str], first: int, kernels: Mapping[int, Kernel]
    ) -> None:
        """
        Take an answer in.

        :param hosts: of the bundles that were asked. :param first: number of the first of them.
        :param kernels: of those that have rows.
        """
        # Of a fleet most hosts have nothing: these are not looked at one by one.
        found = {
            number: rows
            for number, every in sorted(answer.rows.items())
            if (rows := tuple(row for row in every if row.get("over", True)))
        }
        self.refused |= {hosts[number]: why for number, why in answer.refused.items()}
        self.checked |= {hosts[number]: first + number for number in answer.asked}
        self.silent |= {hosts[n]: first + n for n in answer.asked if n not in found}
        for number, rows in found.items():
            self.found.setdefault(hosts[number], []).append(first + number)
            self.rows[hosts[number]] = rows, kernels[number]

    def count(self, bundles: Sequence[Taken]) -> None:
        """Find the cases, and their shares of kernels and labels, once all answers are there."""
        # Hosts of one kernel with the same labels count together.
        groups: Counter[tuple[str, tuple[tuple[str, str], ...], bool]] = Counter()
        for host, last in self.checked.items():
            found = self.found.get(host, [])
            has = bool(found) and found[-1] == last
            groups[bundles[last].kernel, tuple(bundles[last].labels.items()), has] += 1
            if has:
                self.cases.append(self._case(bundles, host))
        self.cases.sort(key=_worst_first)
        for (release, labels, has), hosts in groups.items():
            names = [(self.by_kernel, release)]
            names += [(self.by_label, f"{name}={value}") for name, value in labels]
            for shares, name in names:
                before = shares.get(name, Share(0, 0))
                shares[name] = Share(before.hosts + has * hosts, before.checked + hosts)

    def _case(self, bundles: Sequence[Taken], host: str) -> Case:
        question, without = self.question, self.silent.get(host, -1)
        since = next(number for number in self.found[host] if number > without)
        rows, kernel = self.rows[host]
        # Over many hosts, an engine keeps no order of the rows that a query gives for one.
        rows = tuple(sorted(rows, key=lambda row: _worse_first(question, row)))
        worst = badness_of(question, rows[0]) or -math.inf
        severity = severity_of(question, rows[0])
        bundle = bundles[self.checked[host]]
        return Case(bundle, rows, severity, worst, bundles[since].at, without < 0, kernel)


@dataclass
class Fleet:
    """
    All that was found.

    :ivar found: what at least one host has, the worst first.
    :ivar silent: what no host has of those that could tell, which is one at least.
    :ivar unasked: what no host could tell.
    :ivar unchecked: finding and reason, and how many hosts could not tell for it.
    :ivar changes: classes of hosts' ledgers, and holders, that differ between two readings.
    :ivar ledgers: hosts that have these two; None: they were not asked.
    """

    hosts: dict[str, Taken]
    bundles: int
    said: list[str]
    found: list[FleetFinding] = field(default_factory=list)
    silent: list[Question] = field(default_factory=list)
    unasked: list[Question] = field(default_factory=list)
    unchecked: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: list[Change] = field(default_factory=list)
    ledgers: int | None = None


@dataclass(frozen=True)
class Portion:
    """
    Bundles that are asked together, here or on another machine, which sees the same lake.

    :ivar first: number of the first of them.
    :ivar paired: numbers, within the portion, of those whose ledgers are compared.
    """

    lake: Lake
    damaged: Collection[File]
    bundles: list[Taken]
    questions: Sequence[Question]
    first: int
    paired: Collection[int]


@dataclass
class Reply:
    """
    Answers of a portion.

    :ivar amounts: what was asked of growth, and its answer.
    :ivar kernels: of the bundles that have rows, by number.
    """

    answers: list[Answer]
    amounts: list[tuple[str, Answer]]
    kernels: dict[int, Kernel]
    said: list[str]


def ask(portion: Portion) -> Reply:
    """Ask the bundles of a portion every question."""
    catalog = Catalog(portion.lake, [], portion.bundles, [], portion.damaged)
    growth = ASKED if portion.paired else {}
    batch = load(catalog, portion.bundles, named([*portion.questions, *growth.values()]))
    with contextlib.closing(batch.connection):
        found = list(answers(batch, portion.questions))
        amounts = [
            (what, answer)
            for what, question in growth.items()
            for answer in answers(batch, [question], portion.paired)
        ]
        kernel_of, numbers = kernels(batch), {n for answer in found for n in answer.rows}
        return Reply(found, amounts, {n: kernel_of(n) for n in numbers}, batch.said)


def ask_fleet(
    catalog: Catalog,
    questions: Sequence[Question],
    ledgers: bool = False,
    run: Run = map,
    parts: int = 1,
) -> Fleet:
    """
    Ask all bundles every question, as many at once as memory has room for.

    :param ledgers: ask also what grew between two of a host.
    :param parts: portions there should be at least.
    """
    hosts = {bundle.host: bundle for bundle in catalog.bundles}
    fleet = Fleet(hosts, len(catalog.bundles), list(catalog.said))
    asked = {question.id: FleetFinding(question) for question in questions}
    pairs = ledger_pairs(catalog.bundles) if ledgers else []
    wanted = {number for pair in pairs for number in pair}
    amounts: Amounts = {what: {} for what in ASKED}
    portions, done = [], 0
    for bundles in batches(catalog.bundles, parts):
        paired = {number - done for number in wanted if done <= number < done + len(bundles)}
        portions.append(Portion(catalog.lake, catalog.damaged, bundles, questions, done, paired))
        done += len(bundles)
    for portion, reply in zip(portions, run(ask, portions), strict=True):
        names_of = [bundle.host for bundle in portion.bundles]
        for answer in reply.answers:
            asked[answer.question.id].take(answer, names_of, portion.first, reply.kernels)
        for what, answer in reply.amounts:
            amounts[what] |= amounts_in(answer, portion.first)
        fleet.said += [line for line in reply.said if line not in fleet.said]
    if ledgers:
        read = [pair for pair in pairs if all(each in amounts["ledger class"] for each in pair)]
        fleet.ledgers = len(read)
        fleet.changes = list(changes(catalog.bundles, read, amounts))
    for one in asked.values():
        one.count(catalog.bundles)
        for host in hosts.keys() - one.checked.keys():
            fleet.unchecked[one.question.id, one.refused.get(host, "no bundle was asked")] += 1
        if one.cases:
            fleet.found.append(one)
        else:
            (fleet.silent if one.checked else fleet.unasked).append(one.question)
    fleet.found.sort(key=lambda one: (SEVERITIES.index(one.severity), -len(one.cases),
                                     HARMS.index(one.question.harm), one.question.id))  # fmt: skip
    return fleet


def _worse_first(question: Question, row: Row) -> tuple[int, float, list[str]]:
    worse = badness_of(question, row)
    severity = SEVERITIES.index(severity_of(question, row))
    subject = [str(row[name]) for name in question.subject]
    return severity, math.inf if worse is None else -worse, subject


def _worst_first(case: Case) -> tuple[int, float, str]:
    return SEVERITIES.index(case.severity), -case.badness, case.bundle.host


def words(one: FleetFinding, case: Case) -> list[Finding]:
    """Write a finding as a host's report does, but of rows that its words do not fit."""
    said = []
    for row in case.rows:
        try:
            said.append(finding_of(one.question, row, case.kernel))
        except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError):
            continue
    return said


def regressions(fleet: Fleet) -> list[tuple[FleetFinding, str, Share, Share, float]]:
    """
    Findings that hosts of one kernel release have more often than the others, the least likely
    first: the finding, the release, its hosts, those of all others, and how often that would be so
    if the kernel made no difference.

    By Fisher's exact test, one-sided; each pair of a finding and a release counts as a test, so
    that of a thousand that make no difference one is said in a thousand runs (Bonferroni).
    """
    likely = []
    for one in fleet.found:
        for kernel, here in one.by_kernel.items():
            others = [share for name, share in one.by_kernel.items() if name != kernel]
            elsewhere = Share(sum(s.hosts for s in others), sum(s.checked for s in others))
            if min(here.checked, elsewhere.checked) >= LEAST_HOSTS:
                chance = at_least_by_chance(here, elsewhere)
                likely.append((one, kernel, here, elsewhere, chance))
    likely.sort(key=lambda each: (each[-1], each[0].question.id, each[1]))
    return [each for each in likely if each[-1] * len(likely) <= CHANCE]


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
