# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a lake says of each host, against what the host's bundle alone says."""

from collections.abc import Iterator
from pathlib import Path

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate, finding_of, load_questions
from mmscope.reports.lake.asking import answers, kernels
from mmscope.reports.lake.batch import Batch

QUESTIONS = load_questions()


def said_of(batch: Batch) -> Iterator[tuple[str, int, list[str], str | None]]:
    """Finding, bundle, what was found in it, and why it was not asked."""
    kernel = kernels(batch)
    for answer in answers(batch, QUESTIONS):
        for number in range(len(batch.bundles)):
            rows = answer.rows.get(number, [])
            said = sorted(repr(finding_of(answer.question, row, kernel(number))) for row in rows)
            yield answer.question.id, number, said, answer.refused.get(number)


def found_as_alone(batch: Batch, path_of: dict[str, Path]) -> set[str]:
    """The findings that a lake's bundles have, each of which has what it has by itself."""
    verdicts = [evaluate(Bundle(path_of[taken.id])) for taken in batch.bundles]
    fired = set()
    for id, number, said, refused in said_of(batch):
        verdict = verdicts[number]
        alone = sorted(repr(f) for f in (*verdict.found, *verdict.under) if f.id == id)
        reason = {item.id: item.reason for item in verdict.not_checked}.get(id)
        assert (id, said, refused) == (id, alone, reason)
        fired |= {id} if said else set()
    return fired
