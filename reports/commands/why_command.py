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
import shlex
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.reports.bundle import modes
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import DONE, Command, UsageError, say
from mmscope.reports.bundle.redact import add_redact_options
from mmscope.reports.collect.run_section import missing_sections
from mmscope.reports.commands.collect_command import write_case
from mmscope.reports.commands.target_options import add_target_options
from mmscope.reports.inputs.given import Given, gather

if TYPE_CHECKING:
    from mmscope.reports.findings.verdict import Judgement

WIDTH, LABEL, LINES = 80, 9, 10
# What takes more than a line first, where there is room.
ROOM_FIRST = ("cause", "verdict", "next", "unknown", "owner", "harm", "since", "read")


def add_command(command: Command) -> None:
    """Declare ``why``."""
    sub = command(
        "why",
        run_why,
        "what is wrong, in ten lines, of whatever there is",
        "Read whatever there is, as 'collect' does, and say in ten lines what is wrong. PATHs are "
        "a bundle, a vmcore, a sosreport or another folder or archive, logs, profiles, files of "
        "/proc; - is standard input. Without any it reads the live kernel. Its bundle stays.",
    )
    sub.add_argument("paths", nargs="*", metavar="PATH", help="what to read, whatever it is")
    sub.add_argument("--json", action="store_true", help="the same as JSON")
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="BUNDLE",
        help="where to leave what was read. Default: mmscope-DATE-TIME here",
    )
    sub.add_argument("--force", action="store_true", help="replace a bundle that is already there")
    sub.add_argument("--mode", **modes.OPTION)
    add_target_options(sub)
    add_redact_options(sub)
    sub.set_defaults(only=())


@dataclass
class Answer:
    """
    The answer; what is not known is empty.

    :ivar read: what each thing was taken for. :ivar refused: what could not be read, and why.
    """

    read: list[str]
    refused: list[str]
    verdict: str
    severity: str
    sentence: str
    rests_on: str
    cause: str
    owner: str
    harm: str
    since: str
    unknown: list[str] = field(default_factory=list)
    next: str = ""
    command: str = ""
    bundle: str = ""


def run_why(args: argparse.Namespace) -> int:
    """Read, judge, say."""
    given = gather(args.paths, everything=args.all)
    code = DONE
    for words in given.refused:
        say(words)
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

    bundle = Bundle(path)
    elsewhere = bool(given.kinds) and bundle.target.get("kind") != "live"
    answer = answer_of(given, path, verdict_of(bundle), elsewhere=elsewhere)
    if args.json:
        echo(*json.dumps(vars(answer), indent=1).splitlines(), sep="\n")
        return code
    echo(*lines_of(answer), sep="\n")
    return code


def _free_name() -> Path:
    """A name for the bundle: here, or where this user may write."""
    name = f"mmscope-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder = Path() if os.access(".", os.W_OK) else Path(tempfile.gettempdir())
    numbers = (f"{name}-{number}" if number else name for number in range(1000))
    return next(folder / each for each in numbers if not os.path.lexists(folder / each))


def answer_of(given: Given, path: Path, judged: "Judgement", *, elsewhere: bool) -> Answer:
    """
    All that is said of a bundle.

    :param elsewhere: it is a dump's, or of files: what is to be done on a host is done there.
    """
    step, looked = judged.step, f"mmscope {_shows(given, judged.cause)} {shlex.quote(str(path))}"
    # A command for a host that runs is none for a dump or a log.
    command = judged.command if not given.kinds else ""
    if "BUNDLE" in judged.command.split():
        command = judged.command.replace("BUNDLE", shlex.quote(str(path)))
    return Answer(
        read=given.kinds or ["this host: the running kernel"],
        refused=given.refused,
        verdict=judged.word,
        severity=judged.severity,
        sentence=judged.sentence,
        rests_on=judged.rests_on,
        cause=judged.cause,
        owner=judged.owner,
        harm=judged.harm,
        since=judged.since,
        unknown=list(judged.unknowns),
        next=("On the host: " if elsewhere and not step.looks else "") + step.do if step else "",
        command=command or looked,
        bundle=str(path),
    )


def _shows(given: Given, cause: str) -> str:
    """The command that shows what was read: of a recording or page_owner alone its table."""
    if cause or given.files or given.core or not given.kinds or given.bundles:
        return "findings"
    return "show page_owner_stacks" if given.owners else "show profile_frames"


def lines_of(answer: Answer) -> Iterator[str]:
    """
    Ten lines at most, each as long as a terminal is wide; a command is never cut.

    What is not known has no line; what has more to say than a line takes the room that is left, the
    cause first.
    """
    read = "; ".join(answer.read)
    if len(answer.read) > 1:
        read = f"{plural(len(answer.read), 'thing')}: {read}"
    # That there is trouble, and what it is, are two lines.
    judged = f"{answer.verdict} ({answer.severity}). {answer.rests_on.split('. ')[0]}."
    if not answer.cause:
        judged = answer.sentence
    said = {
        "read": read,
        "verdict": f"{judged[:1].upper()}{judged[1:]}",
        "cause": answer.cause,
        "owner": answer.owner,
        "harm": answer.harm,
        "since": answer.since,
        "unknown": "; ".join(answer.unknown) if answer.cause else "",  # the sentence has it
        "next": answer.next,
    }
    wrapped = {
        label: textwrap.wrap(" ".join(visible(words).split()), WIDTH - LABEL)
        for label, words in said.items()
        if words
    }
    left = LINES - len(wrapped) - len(("run", "bundle"))
    for label in sorted(wrapped, key=ROOM_FIRST.index):
        lines = wrapped[label]
        wrapped[label] = kept = lines[: 1 + left]
        left -= len(kept) - 1
        if len(kept) < len(lines):
            kept[-1] = f"{kept[-1][: WIDTH - LABEL - 1]}…"
    for label, lines in wrapped.items():
        for at, line in enumerate(lines):
            yield f"{'' if at else label:{LABEL}}{line}"
    yield f"{'run':{LABEL}}{visible(answer.command)}"
    yield f"{'bundle':{LABEL}}{visible(answer.bundle)}"
