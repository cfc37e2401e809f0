# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope why``: what was brought, in ten lines: what it was taken for, the verdict, its cause,
whose it is, what harm it does, since when, what is not known, what to do next, and where the bundle
is.
"""

import argparse
import contextlib
import datetime
import io
import json
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mmscope.drgn.tables.display import folded, plural
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import LAKE
from mmscope.reports.bundle.options import Command, add_output, add_redact
from mmscope.reports.bundle.outcome import DONE, UsageError, say
from mmscope.reports.collect.run_section import missing_sections
from mmscope.reports.commands.collect_command import write_case
from mmscope.reports.commands.target_options import add_target_options
from mmscope.reports.inputs.given import Given, gather

if TYPE_CHECKING:
    from mmscope.reports.findings.verdict import Judgement

WIDTH, LABEL, LINES = 80, 9, 10
# What takes more than a line first, where there is room.
ROOM_FIRST = (
    *("next", "cause", "notice", "verdict", "owner", "harm", "memory"),
    *("unknown", "since", "read"),
)


def add_command(command: Command) -> None:
    """Declare ``why``."""
    sub = command(
        "why",
        run_why,
        "say what is wrong, in ten lines",
        "Say in ten lines what is wrong. PATHs are a bundle, a lake, a vmcore, a sosreport or "
        "another folder or archive, logs, profiles, files of /proc; - is standard input. Without "
        "any it reads the live kernel. What was read stays in a bundle, which the last line names.",
    )
    sub.add_argument("paths", nargs="*", metavar="PATH", help="what to read, whatever it is")
    sub.add_argument("--json", action="store_true", help="the same as JSON")
    add_output(sub, "where to leave what was read. Default: mmscope-DATE-TIME here")
    add_target_options(sub)
    add_redact(sub)
    sub.set_defaults(only=(), deadline=None)


@dataclass
class Answer:
    """
    The answer; what is not known is empty.

    :ivar read: what each thing was taken for. :ivar refused: what could not be read, and why.
    :ivar memory: who has it, where no cause is named. :ivar notice: the first, where no cause is.
    :ivar next_command: what to type for it, where ``next`` says. :ivar command: what shows more
        here. :ivar made: the bundle was written for this answer.
    """

    read: list[str]
    refused: list[str]
    verdict: str
    sentence: str
    severity: str = ""
    rests_on: str = ""
    short: str = ""
    notice: str = ""
    memory: str = ""
    cause: str = ""
    owner: str = ""
    harm: str = ""
    since: str = ""
    unknown: list[str] = field(default_factory=list)
    next: str = ""
    next_command: str = ""
    command: str = ""
    bundle: str = ""
    made: bool = False


def run_why(args: argparse.Namespace) -> int:
    """Read, judge, say."""
    if len(args.paths) == 1 and (Path(args.paths[0]) / LAKE).is_file():
        return _say(answer_of_lake(args.paths[0]), as_json=args.json)
    given = gather(args.paths, everything=args.all)
    code = DONE
    for words in given.refused:
        say(words)
    said = len(given.refused)
    with given.open_files:
        if given.bundles:
            if len(args.paths) > 1:
                raise UsageError(f"{given.bundles[0]}: a bundle beside other things: give it alone")
            path = given.bundles[0]
        else:
            path = args.output = args.output or _free_name()
            # What a recording has is in the findings; on a terminal it is not what was asked for.
            with contextlib.redirect_stdout(io.StringIO()):
                made = write_case(args, given)
            failed = [section for section in made.sections if section.status == "failed"]
            code = missing_sections(failed, bool(given.refused) or made.incomplete)
    # With DuckDB, which the box may lack: what was read is there then.
    from mmscope.reports.findings.verdict import verdict_of
    from mmscope.reports.page.card_answers import WHO, answered

    bundle = Bundle(path)
    answer = answer_of(given, path, verdict_of(bundle), bundle.target.get("kind"))
    if not answer.cause:
        answer.memory = answered(bundle, WHO) or ""
    if unread := given.refused[said:]:
        answer.unknown = unread + answer.unknown
        answer.command = answer.command.replace("show profile_frames", "findings")
    read = [section.section for section in bundle.sections if section.rows]
    nothing = bundle.target.get("kind") == "files" and not answer.cause and not answer.notice
    alone = len(read) == 1 or (read and nothing)
    if alone and not given.bundles and answer.command.startswith("mmscope findings "):
        # Of a file of one section, or where nothing was found, the first table shows most.
        table = next(each for each in bundle.tables.values() if each.section == read[0])
        answer.command = f"mmscope show {table.name} {shlex.quote(str(path))}"
    _say(answer, as_json=args.json)
    return code


def _say(answer: Answer, *, as_json: bool) -> int:
    lines = json.dumps(vars(answer), indent=1).splitlines() if as_json else lines_of(answer)
    echo(*lines, sep="\n")
    return DONE


def answer_of_lake(where: str) -> Answer:
    """All that is said of a lake: what is worst on most of its hosts, and whose it is on one."""
    from mmscope.reports.findings.finding import CANNOT_TELL, TROUBLE
    from mmscope.reports.findings.question import OURS, SEVERITIES
    from mmscope.reports.findings.verdict import HARM_WORDS, said
    from mmscope.reports.fleet.fleet import ask_fleet, words
    from mmscope.reports.fleet.fleet_text import headline, when
    from mmscope.reports.lake.catalog import read_catalog

    fleet = ask_fleet(read_catalog(where), OURS(), ledgers=False)
    read = f"a lake of {plural(len(fleet.hosts), 'host')}, {plural(fleet.bundles, 'bundle')}"
    unasked = f"{len(fleet.unasked):,} checks have no data on any host"
    answer = Answer(
        read=[f"{read} ({Path(where).name or where})"],
        refused=list(fleet.said),
        verdict=CANNOT_TELL,
        sentence=headline(fleet),
        short=f"nothing above a notice found on {plural(len(fleet.hosts), 'host')}.",
        unknown=[unasked] if fleet.unasked else [],
        command=f"mmscope lake findings {shlex.quote(where)}",
        bundle=where,
    )
    ill = [one for one in fleet.found if one.severity != "notice"]
    if not ill:
        return answer
    worst = min(ill, key=lambda one: (SEVERITIES.index(one.severity), -len(one.cases)))
    case, finding = next(
        ((case, each) for case in worst.cases for each in words(worst, case)),
        (worst.cases[0], None),
    )
    host = case.bundle.host
    words_of = said(finding) if finding else worst.question.about
    owner = finding.owner if finding else ""
    return replace(
        answer,
        verdict=TROUBLE,
        severity=worst.severity,
        rests_on=f"On {len({each.bundle.host for one in ill for each in one.cases}):,} of "
        f"{plural(len(fleet.hosts), 'host')}. ",
        cause=f"on {len(worst.cases):,} of {plural(len(worst.checked), 'host')}, worst on {host}: "
        + words_of,
        owner=f"on {host}: {owner}" if owner and owner not in words_of else "",
        harm=HARM_WORDS[worst.question.harm],
        since=f"{when(worst.since)}, the first reading with it",
        next="See every finding, with how many hosts have it",
        next_command=f"mmscope lake findings {shlex.quote(where)}",
    )


def _free_name() -> Path:
    """A name for the bundle: here, or where this user may write."""
    name = f"mmscope-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder = Path() if os.access(".", os.W_OK) else Path(tempfile.gettempdir())
    numbers = (f"{name}-{number}" if number else name for number in range(1000))
    return next(folder / each for each in numbers if not os.path.lexists(folder / each))


def answer_of(given: Given, path: Path, judged: "Judgement", kind: object) -> Answer:
    """
    All that is said of a bundle.

    :param kind: of its target: what is to be done on the host of a dump or of files is done there.
    """
    where = shlex.quote(str(path))
    shown = f"show {judged.table}" if judged.table else _shows(given, judged.cause)
    next_words, typed, here = _next(judged, where, kind, live=not given.kinds)
    return Answer(
        read=given.kinds or ["this host: the running kernel"],
        refused=given.refused,
        verdict=judged.word,
        severity=judged.severity,
        sentence=judged.sentence,
        rests_on=judged.rests_on,
        short=judged.short,
        notice=judged.notice.rstrip("."),
        cause=judged.cause,
        owner=judged.owner,
        harm=judged.harm,
        since=judged.since,
        unknown=list(judged.unknowns),
        next=next_words,
        next_command=typed,
        command=(here and typed) or f"mmscope {shown} {where}",
        bundle=str(path),
        made=not given.bundles,
    )


# Whether the host still runs is not known: a dump may be of a crash.
THERE = "On the host, while it lasts: "
# Commands that show what could not be checked, by what it takes.
SHOWS = {
    "root": ("As root, the kernel's memory is read too", "sudo mmscope why"),
    "here": ("See what can be read here, and how to read more", "mmscope doctor"),
    "watch": ("Over time, trends show", "sudo mmscope watch -o watched"),
}


def _next(judged: "Judgement", where: str, kind: object, *, live: bool) -> tuple[str, str, bool]:
    """The words of the next step, its command, which may be empty, and if it is typed here."""
    from mmscope.reports.findings.finding import MEMORY, NO_TROUBLE

    if judged.step is None:
        complete = judged.word == NO_TROUBLE
        words, command = SHOWS["watch" if complete else "root" if os.geteuid() else "here"]
        if live:
            return words, command, True
        if complete and kind != "live":
            return f"On the host: {SHOWS['watch'][1]}", SHOWS["watch"][1], False
        # Of a dump, and by root, all memory was there to be read; not by a watch.
        read = kind == "live" and not any(MEMORY in words for words in judged.unknowns)
        if read or kind in ("vmcore", "qemu"):
            return "", "", False
        return f"{THERE}{SHOWS['root'][1]}", SHOWS["root"][1], False
    # Its first sentence; a command in it has a line of its own.
    do, _, _ = judged.step.do.partition(". ")
    for quoted in (f": '{judged.command}'", f" ('{judged.command}')"):
        do = do.replace(quoted, "")
    if judged.command and "BUNDLE" in judged.command.split():
        return do, judged.command.replace("BUNDLE", where), True
    if judged.command and not live:
        return f"{THERE}{judged.command}", judged.command, False
    if judged.step.looks or live:
        return do, judged.command, True
    return f"On the host: {do}", "", False


def _shows(given: Given, cause: str) -> str:
    """The command that shows what was read: of a recording or page_owner alone its table."""
    if cause or given.files or given.core or not given.kinds or given.bundles:
        return "findings"
    return "show page_owner_stacks" if given.owners else "show profile_frames"


def lines_of(answer: Answer) -> Iterator[str]:
    """
    Ten lines at most, each as long as a terminal is wide; a command is never cut.

    What is not known has no line, nor has an owner whom the cause names; what has more to say than
    a line takes the room that is left, the cause first.
    """
    from mmscope.reports.findings.verdict import HARM_WORDS

    said = _said(answer)
    wrapped = {label: _wrapped(words) for label, words in said.items() if words}
    # A command that would be broken gets a line of its own, from which it is copied whole.
    command = answer.next_command
    words = said["next"].removesuffix(command)
    if command and words not in ("", said["next"]) and len(wrapped["next"]) > 1:
        whole = visible(command)
        wrapped["next"] = [
            *_wrapped(words),
            *([whole] if len(whole) <= WIDTH else _wrapped(command)),
        ]
    left = LINES - len(wrapped) - len(("run", "bundle"))
    # Where the command has it; the cause, and a command that is to be typed, are worth more. That a
    # bundle was left behind is said.
    wanted = sum(len(wrapped[label]) - 1 for label in ("cause", "next") if label in wrapped)
    alone = answer.made or answer.bundle not in answer.command or wanted <= left
    left += not alone
    # So is what they say to harm that is not measured, but what such a cause does as a rule.
    if wanted > left and answer.cause and answer.harm in HARM_WORDS.values():
        del wrapped["harm"]
        left += 1
    for label in sorted(wrapped, key=ROOM_FIRST.index):
        lines = wrapped[label]
        wrapped[label] = kept = lines[: 1 + left]
        left -= len(kept) - 1
        if len(kept) < len(lines):
            kept[-1] = _cut(kept[-1])
    for label, lines in wrapped.items():
        for at, line in enumerate(lines):
            indent = min(LABEL, WIDTH - len(line))
            yield f"{' ' * indent if at else f'{label:{LABEL}}'}{line}"
    yield f"{'run':{LABEL}}{visible(answer.command)}"
    if alone and answer.bundle:
        yield f"{'bundle':{LABEL}}{visible(answer.bundle)}"


def _said(answer: Answer) -> dict[str, str]:
    """The words of each line, by its label, in their order; none where there is nothing to say."""
    read = "; ".join(answer.read)
    if len(answer.read) > 1:
        read = f"{plural(len(answer.read), 'thing')}: {read}"
    if answer.cause:
        # That there is trouble, and what it is, are two lines.
        judged = f"{answer.verdict} ({answer.severity}). {answer.rests_on.split('. ')[0]}."
    elif answer.short.lower().startswith(answer.verdict):
        judged = answer.short
    else:
        judged = f"{answer.verdict}: {answer.short[:1].lower()}{answer.short[1:]}"
    unknown = "; ".join(each for each in answer.unknown if not _told(each, answer))
    named = answer.owner.lower() in answer.cause.lower()
    return {
        "read": read,
        "verdict": f"{judged[:1].upper()}{judged[1:]}",
        "notice": answer.notice,
        "memory": answer.memory,
        "cause": answer.cause,
        "owner": "" if named else answer.owner,
        "harm": answer.harm,
        "since": answer.since,
        "unknown": re.sub(
            r"(^|; )(1|[\d,]+)( needs? )",
            lambda m: f"{m[1]}{m[2]} check{'s' * (m[2] != '1')}{m[3]}",
            unknown.replace(" ('mmscope record')", ""),
        ),
        "next": answer.next.rstrip("."),
    }


def _told(unknown: str, answer: Answer) -> bool:
    """Say whether the cause or the line of memory is about the same memory without an owner."""
    size = unknown.removesuffix(", has no known owner")
    return size != unknown and (size in answer.cause or size in answer.memory)


def _wrapped(text: str) -> list[str]:
    """The lines of a text; a number stays with its unit."""
    kept = re.sub(r"(?<=\d) (?=%|[KMGTP]iB\b|s\b|min\b)", "\N{NO-BREAK SPACE}", visible(text))
    lines = textwrap.wrap(_breakable(kept), WIDTH - LABEL, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _breakable(text: str) -> str:
    """A text of which what is wider than a line, as a path, breaks behind a slash or the like."""
    room = WIDTH - LABEL
    words = (folded(word, room) if len(word) > room else word for word in _split(text))
    return " ".join(_split(" ".join(words)))


def _split(text: str) -> list[str]:
    return re.findall(r"[^ \t\n]+", text)


def _cut(line: str) -> str:
    """A line that goes on, which is not said, without half a word."""
    if len(line) >= WIDTH - LABEL:
        line = line.rpartition(" ")[0] or line[: WIDTH - LABEL - 1]
    return f"{line.rstrip(',;:…')}…"
