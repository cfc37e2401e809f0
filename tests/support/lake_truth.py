# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a lake says of each host, against what the host's bundle alone says."""

import os
from collections.abc import Iterator
from pathlib import Path

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.finding_words import finding_of
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.question import OURS
from mmscope.reports.lake.asking import answers, kernels
from mmscope.reports.lake.batch import Batch

QUESTIONS = OURS()


def said_of(batch: Batch) -> Iterator[tuple[str, int, list[str], str | None]]:
    """Finding, bundle, what was found in it, and why it was not asked."""
    kernel = kernels(batch)
    for answer in answers(batch, QUESTIONS):
        for number in range(len(batch.bundles)):
            rows = answer.rows.get(number, [])
            said = sorted(repr(finding_of(answer.question, row, kernel(number))) for row in rows)
            yield answer.question.id, number, said, answer.refused.get(number)


def found_as_alone(batch: Batch, path_of: dict[str, Path]) -> set[str]:
    """
    The findings that a lake's bundles have, each of which has what it has by itself. A bundle is
    asked for those that it has and a quarter of the others; with ``MMSCOPE_ALL`` for all.
    """
    share = 1 if os.environ.get("MMSCOPE_ALL") else 4
    said: dict[int, dict[str, tuple[list[str], str | None]]] = {}
    for id, number, words, refused in said_of(batch):
        said.setdefault(number, {})[id] = words, refused
    fired = set()
    for number, here in said.items():
        asked = [
            question
            for at, question in enumerate(QUESTIONS)
            if here[question.id][0] or (at + number) % share == 0
        ]
        verdict = evaluate(Bundle(path_of[batch.bundles[number].id]), asked)
        reasons = {item.id: item.reason for item in verdict.not_checked}
        for question in asked:
            id = question.id
            alone = sorted(repr(f) for f in (*verdict.found, *verdict.under) if f.id == id)
            assert (id, *here[id]) == (id, alone, reasons.get(id))
            fired |= {id} if alone else set()
    return fired
