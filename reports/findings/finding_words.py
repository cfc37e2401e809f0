# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A finding, made of its question and a row that the query returned: its words filled in, its severity
and its owner.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2.environment import TemplateExpression

from mmscope.drgn.tables import display
from mmscope.drgn.text.meminfo import CALLED
from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.reports.findings.finding import Finding
from mmscope.reports.findings.kernel_said import BY_PAGE, Kernel
from mmscope.reports.findings.proof import proofs
from mmscope.reports.findings.question import SEVERITIES, Question, Step

OTHER_BOOT = " Recorded during another boot than the rest of this bundle."
# Of a stack, in a sentence.
MAX_FRAMES = 8
# Columns of a subject that name an owner, and what goes before the name.
OWNERS = {"cgroup": "memory cgroup ", "cache": "slab cache ", "caller": "", "owner": ""}
# Of two counters that were not read at once, a part may be that much more than the whole.
ABOVE = 0.01


def known(words: Callable[..., str]) -> Callable[..., str]:
    """A filter that says ``unknown`` for a value that there is not."""
    return lambda value, *rest: "unknown" if None in (value, *rest) else words(value, *rest)


def part_of_a_whole(share: float) -> str:
    """
    A share in per cent.

    :raises ValueError: it is more than the whole: one of the two numbers is damaged.
    """
    if share > 1 + ABOVE:
        raise ValueError(f"a part is {display.percent(share)} of its whole")
    return display.percent(min(share, 1))


def period(seconds: Any) -> str:
    """Uptime of the machine: the period of every counter since boot."""
    if not seconds:
        return "since boot, uptime unknown"
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"in {seconds / size:.1f} {unit} since boot"
    return f"in {seconds:.0f} s since boot"


def from_leaf(stack: str) -> str:
    """
    A folded stack in words: who took the memory, who called that, how many called them. The row
    that is evidence has all of it.
    """
    frames = stack.split(";")[::-1]
    owner, _ = owner_frame(stack)
    frames = frames[next(n for n, frame in enumerate(frames) if frame.split(" [")[0] == owner) :]
    further = len(frames) - MAX_FRAMES
    said = " <- ".join(frames[:MAX_FRAMES] if further > 1 else frames)
    return f"{said} <- {further} further" if further > 1 else said


def called(level: str) -> str:
    """A line of /proc/meminfo as a sentence begins with it."""
    words = CALLED.get(level, level)
    return words if words.startswith("vmalloc") else words[:1].upper() + words[1:]


@functools.cache
def _environment() -> jinja2.Environment:
    # Words are plain text here and are escaped where they are shown: in HTML by its templates, on
    # a terminal by `visible`.
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "thousands": known(display.count),
        "called": called,
        "percent": known(part_of_a_whole),
        "size": known(display.pages),
        "period": period,
        "duration": known(display.duration),
        "stack": from_leaf,
        "time": known(display.time_text),
    }
    return environment


@functools.cache
def template(text: str) -> jinja2.Template:
    """A question's words, compiled."""
    return _environment().from_string(text)


@functools.cache
def expression(text: str) -> TemplateExpression:
    """An expression over a row, compiled."""
    return _environment().compile_expression(text, undefined_to_none=False)


def _texts(question: Question) -> Iterator[str]:
    """All words of a question that depend on the row."""
    said = (question.title, question.plain, question.saw, question.why)
    ties = (question.symptom, *question.explains, question.since)
    steps = (text for step in question.next for text in (step.do, *dict(step.price).values()))
    for text in (*said, *ties, *question.classes, *steps):
        if "{" in text:
            yield text


def finding_of(question: Question, row: dict[str, Any], kernel: Kernel) -> Finding:
    """
    A finding, in the words of its question with the values of a row of its query.

    :raises jinja2.TemplateError, ArithmeticError, TypeError, ValueError: they do not fit.
    """
    # Where a person reads of it, a cgroup is a container, if that is known.
    cgroups = {n: v for n, v in row.items() if n.endswith("cgroup") and isinstance(v, str)}
    names = {name: kernel.cgroup(path) for name, path in cgroups.items()}
    paths = {cgroups[name] for name, called in names.items() if called != cgroups[name]}

    def words(text: str, row: Mapping[str, Any] = row) -> str:
        said = template(text).render(row, kernel=kernel) if "{" in text else text
        return " ".join(said.split())

    def said(text: str) -> str:
        return words(text, row | names)

    def saw() -> str:
        return " ".join((said(question.saw), *(f"Its cgroup is {path}." for path in sorted(paths))))

    def why() -> str:
        said = words(question.why)
        if kernel.assumed and any(map(BY_PAGE.search, _texts(question))):
            said += f" How large a page is this bundle does not say: {kernel.assumed} are assumed."
        return said

    def steps() -> Iterator[Step]:
        for step in question.next:
            condition = kernel.condition(step.only)
            said = words(step.do)
            # Words may depend on the row, so that for some rows nothing is left of a step.
            if condition is not None and said:
                yield dataclasses.replace(
                    step,
                    do=condition + said,
                    cost=words(step.cost),
                    avoid=words(step.avoid),
                    undo=words(step.undo),
                )

    other_boot = row.get("same_boot") is False  # of view profile_boots
    return Finding(
        id=question.id,
        severity=severity_of(question, row),
        title=said(question.title),
        saw=saw() + OTHER_BOOT * other_boot,
        why=why(),
        next=tuple(steps()),
        links=question.links,
        section=question.section,
        subject=tuple((name, row[name]) for name in question.subject),
        badness=badness_of(question, row),
        tables=tuple(dict.fromkeys(need.partition(".")[0] for need in question.needs)),
        sources=question.sources,
        estimate=_estimated(question, row),
        harm=question.harm,
        symptom=words(question.symptom),
        explains=tuple(filter(None, map(words, question.explains))),
        since=words(question.since),
        classes=tuple(words(name) for name in question.classes),
        proofs=tuple(proofs(question.proof, question.needs, question.subject, row)),
        plain=said(question.plain),
        owner=said(question.owner) or owner_of({n: (row | names)[n] for n in question.subject}),
        other_boot=other_boot,
    )


def owner_of(subject: Mapping[str, Any]) -> str:
    """Name of the owner that a subject has; empty where it has a place, or no owner."""
    for pid, comm in (("pid", "comm"), ("root_pid", "root_comm")):
        if subject.get(comm) is not None:
            return f"{subject[comm]} (pid {subject[pid]})"
    for column, called in OWNERS.items():
        if subject.get(column) is not None:
            return f"{called}{subject[column]}"
    return ""


def severity_of(question: Question, row: dict[str, Any]) -> str:
    """Severity of a row, that of its question by default; nothing estimated is critical."""
    severity = row.get("severity", question.severity)
    severity = severity if severity in SEVERITIES else question.severity
    if severity == "critical" and _estimated(question, row):
        return "warning"  # no estimate stands above a measurement
    return str(severity)


def _estimated(question: Question, row: dict[str, Any]) -> bool:
    return bool(row.get("estimated", question.estimate))


def badness_of(question: Question, row: dict[str, Any]) -> float | None:
    """A row's badness, None where a part of that is unknown."""
    try:
        worse: Any = expression(question.worse)(row)
        return float(worse)
    except (ArithmeticError, TypeError):
        return None
