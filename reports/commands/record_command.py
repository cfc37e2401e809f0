# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope record``: record by a recipe, and add the profile to a bundle.

Imports no drgn, numpy or rich.
"""

import argparse
import dataclasses
import gzip
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from mmscope.drgn.tables.display import percent
from mmscope.drgn.tables.hostile_text import echo
from mmscope.drgn.text.plain_file import check_output, make_folder
from mmscope.perf import perf_events, perf_record
from mmscope.perf import recipe as recipes
from mmscope.perf.folding import MARK, Fold
from mmscope.perf.perf_events import RecordError
from mmscope.perf.perf_record import PERF_DATA, Recorded
from mmscope.perf.perf_script import Reading, read_samples
from mmscope.perf.recipe import Event, Recipe, event_name
from mmscope.perf.stack_parts import load_known_frames, load_split, plain
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import Cell
from mmscope.reports.bundle.leftovers import scratch
from mmscope.reports.bundle.modes import mode_of_file, mode_of_folder
from mmscope.reports.bundle.options import MODE, Command, option, positive
from mmscope.reports.bundle.outcome import (
    DONE,
    INCOMPLETE,
    UsageError,
    progress_line,
    say,
    unexpected,
)
from mmscope.reports.commands.recipe_list import explain_recipe, list_recipes
from mmscope.reports.profiles import profiles
from mmscope.reports.profiles.making import (
    FAULTS,
    PAGE_TABLES,
    Making,
    booted,
    now,
    page_tables_now,
    this_host,
    vmstat,
)
from mmscope.reports.profiles.recorded_rows import profiled
from mmscope.reports.profiles.recordings import MADE_BY, begins, opened, perf_for, plain_file

MUCH = 0.1  # of all samples
# In the folder of --keep: the text, with a first line about the recording.
KEPT = "perf-script.txt.gz"


def add_command(command: Command) -> None:
    """Declare ``record``."""
    parser = command(
        "record",
        run,
        "record CPU profiles by a recipe into a bundle",
        "Record CPU profiles and tracepoints by a recipe, and add them to a bundle: a new one, or "
        "one that is there. No setting is changed; kprobes are removed again, whatever ends the "
        "recording.",
    )
    parser.usage = (
        "mmscope record RECIPE [options] [-a | -p PID,… | -- COMMAND …]\n       "
        "mmscope record --list\n       mmscope record RECIPE --list"
    )
    parser.set_defaults(unopened=(RecordError, OSError), explain=unexpected)
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="see --list")
    parser.add_argument(
        "--list", action="store_true", help="list the recipes and their overhead; explain RECIPE"
    )
    option(parser, "-p --pid PID,…", "processes", pids, [])
    parser.add_argument("-a", "--all", action="store_true", help="every CPU")
    option(parser, "-o --output BUNDLE", "new, or to add to", Path)
    parser.add_argument("--label", help="what state of the machine this is, such as thp=never")
    option(parser, "--against PROFILE", "profile of the bundle that the report compares with")
    option(parser, "--seconds S", "default: the recipe's", positive)
    option(parser, "--frequency HZ", "samples a second. Default: the recipe's", int)
    option(parser, "--buffer SIZE", "of each CPU, as perf record -m: 256K. Default: the recipe's")
    parser.add_argument("--keep-idle", action="store_true", help="keep samples of idle CPUs")
    parser.add_argument("--keep-profiler", action="store_true", help="keep samples of perf itself")
    parser.add_argument(
        "--by-period",
        action="store_true",
        help="widths are periods (ns, cycles), not numbers of samples",
    )
    option(
        parser,
        "--input FILE",
        "read perf.data, or text of 'perf script', instead of recording; packed by gzip, "
        "bzip2, xz or zstd is fine, and - is standard input",
        default=[],
        action="append",
    )
    option(
        parser,
        "--keep DIR",
        "keep perf.data in that folder, and its text, which --input reads on any machine",
        Path,
    )
    parser.add_argument("--mode", **MODE)


def pids(text: str) -> list[int]:
    """A comma-separated list of processes, for argparse."""
    return [int(word) for word in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Record, or read what was recorded, as the options say."""
    if args.list:
        return explain_recipe(args.recipe) if args.recipe else list_recipes()
    recipe = _recipe(args)
    # Refuses what is in the way before the work.
    try:
        check_output(args.output)
        if args.keep is not None:
            check_output(args.keep / KEPT)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    bundle = profiles.existing(args.output)
    taken = profiles.names_in(bundle)
    if args.against is not None and args.against not in taken:
        there = ", ".join(taken) or "none"
        raise UsageError(f"--against {args.against}: the bundle has no such profile: {there}")
    name = profiles.profile_name(f"{recipe.name} {args.label or ''}", taken)
    making = Making(label=args.label, against=args.against, by_period=args.by_period)
    with scratch() as folder:
        files = [plain_file(Path(file), folder) for file in args.input]
        if not files:
            making.captured_at, making.booted_at = now(), booted()
            files = _record(args, recipe, making, folder)
            if args.keep is not None:
                mode = mode_of_file(args.mode)
                make_folder(args.keep, mode_of_folder(mode))
                for file in files:
                    check_output(args.keep / file.name)
                    # Which perf made for its owner alone.
                    Path(shutil.copy(file, args.keep)).chmod(mode)
        return _finish(args, recipe, name, making, files, bundle)


def _recipe(args: argparse.Namespace) -> Recipe:
    """
    The recipe that is asked for, with what the options change in it.

    :raises UsageError: the options do not fit together.
    """
    if args.recipe is None:
        raise UsageError("name a recipe; 'mmscope record --list' explains them")
    try:
        recipe = recipes.load(args.recipe)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if sum(map(bool, (args.pid, args.all, args.command, args.input))) > 1:
        raise UsageError("give one of -a, -p, --input and -- COMMAND")
    if args.output is None:
        raise UsageError("-o BUNDLE: where to put the profile")
    if args.frequency is not None:
        if not 1 <= args.frequency <= 100_000:
            raise UsageError(f"--frequency {args.frequency}: not between 1 and 100000")
        recipe = dataclasses.replace(recipe, frequency=args.frequency)
    if args.buffer is not None:
        if not re.fullmatch(r"[1-9]\d{0,5}[KM]", args.buffer):
            raise UsageError(f"--buffer {args.buffer}: not a size such as 256K or 4M")
        recipe = dataclasses.replace(recipe, buffer=args.buffer)
    return recipe


def _record(args: argparse.Namespace, recipe: Recipe, making: Making, folder: Path) -> list[Path]:
    machine = perf_events.look()
    system = None if args.pid or args.command else True
    if system and not args.all and recipe.scope != "system":
        raise UsageError("say what to record: -- COMMAND, -p PID, or -a for every CPU")
    plan = perf_events.plan(recipe, machine, system=system)
    for note in (*plan.notes, *plan.remarks):
        say(note)
    making.partial += plan.notes
    making.remarks += plan.remarks
    _say_without(making, plan.missing)
    _say_without(making, plan.uncounted, "not counted: {events}: {reason}")
    if not args.command:
        limit = args.seconds or recipe.seconds
        until = "until the process ends" if args.pid else "until Ctrl-C"
        if limit:
            until = f"for {limit:g} s" + (" or until it ends" if args.pid else "")
        say(f"recording {until}; Ctrl-C ends it and keeps what is there")
    before = vmstat(recipe.counters)
    if {PAGE_TABLES, FAULTS} <= {*recipe.counters} and (begin := page_tables_now()):
        making.page_tables = [begin, begin]

    def look() -> None:
        """Keep the moment with most page tables: a process takes its own with it."""
        seen = page_tables_now() if making.page_tables else None
        if seen and seen[1] > making.page_tables[1][1]:
            making.page_tables[1] = seen

    recording = perf_record.record(
        recipe,
        plan,
        machine,
        folder,
        command=args.command,
        pids=args.pid,
        seconds=args.seconds,
        look=look,
    )
    after = vmstat(recipe.counters)
    for note in (*recording.notes, *recording.unopened):
        say(note)
    making.remarks += recording.notes
    making.partial += recording.unopened
    _say_without(making, recording.refused)
    making.take(recording)
    if plan.counts and not recording.counted:
        making.remarks.append("perf stat counted nothing beside the recording")
    left_out = (*plan.missing, *recording.refused)
    making.left_out = [event_name(choice) for event, _ in left_out for choice in event.first_of]
    making.filtered = [
        event_name(text)
        for event, text in plan.events
        if perf_events.chooses_alone(event, text.partition("/")[0], machine.tracefs)
    ]
    making.counters = {key: after[key] - before[key] for key in before if key in after}
    making.scope = "system" if plan.system else "task"
    making.command = " ".join(args.command) or " ".join(f"pid {pid}" for pid in args.pid) or None
    making.release = os.uname().release
    making.architecture = machine.architecture
    making.page_bytes = os.sysconf("SC_PAGE_SIZE")
    return recording.files


def _say_without(
    making: Making,
    missing: Sequence[tuple[Event, str]],
    words: str = "without {events}: {reason}",
) -> None:
    """Say which events are left out, and why."""
    for reason in dict.fromkeys(reason for _, reason in missing):
        events = [event_name(e.first_of[0]) for e, why in missing if why == reason]
        remark = words.format(events=", ".join(events), reason=reason)
        say(remark)
        making.remarks.append(remark)


def _finish(
    args: argparse.Namespace,
    recipe: Recipe,
    name: str,
    making: Making,
    files: list[Path],
    bundle: Bundle | None,
) -> int:
    begin = time.monotonic()
    data = [file for file in files if begins(file) in PERF_DATA]
    counted = perf_record.recorded(perf_for(data[0]), data) if data else Recorded()
    fold, reading = _folded(args, recipe, making, files, counted)
    if not reading.samples:
        if args.input and making.partial:
            raise RecordError(f"no sample could be read: {'; '.join(making.partial)}")
        if args.input:
            why = "perf prints no sample of it" if data else "no sample in it; is it perf's?"
            raise UsageError(f"{args.input[0]}: {why}")
        making.remarks.append("nothing was sampled")
    if recipe is GIVEN:
        fitting = recipe_that_fits(fold)
        making.remarks += fitting
        for words in fitting:
            say(f"{name}: {words}")
    making.remarks += making.other_boot(bundle)
    made = profiled(name, fold, reading, counted if counted.samples else None, making)
    target: dict[str, Cell] = {"kind": "files", "release": None, "page_size": None}
    if not args.input and not os.path.lexists(args.output):
        target = this_host()
    seconds = time.monotonic() - begin
    profiles.add_to_bundle(args.output, name, made, seconds, target, mode=args.mode)
    rows, _ = made
    profiles.summary(rows)
    echo(f"{args.output}: profile {name}", begin="\n")
    partial = [row.note for row in rows["profile_notes"] if row.kind == "partial"]
    for note in partial:
        say(f"{profiles.SECTION}: {note}")
    return INCOMPLETE if partial else DONE


def _folded(
    args: argparse.Namespace, recipe: Recipe, making: Making, files: list[Path], counted: Recorded
) -> tuple[Fold, Reading]:
    """Fold the samples of all files; their text is kept beside them, if that is asked for."""
    split = load_split(recipe.split) if recipe.split else None
    known = load_known_frames()
    fold = Fold(recipe, split, known, idle=args.keep_idle, profiler=args.keep_profiler)
    reading = Reading(on_fork=fold.fork)
    with ExitStack() as stack:
        kept: gzip.GzipFile | None = None
        if args.keep is not None and not args.input:
            kept = stack.enter_context(_gzip_writer(args.keep / KEPT, mode_of_file(args.mode)))
            kept.write(f"{MADE_BY}{json.dumps(making.as_json(counted))}\n".encode())
        for file in files:
            with opened(file, counted, making, addresses=recipe.addresses) as (stream, own):
                fold.set_recording(
                    making.left_out, making.filtered, making.page_bytes, making.of_command
                )
                if recipe.follow and making.scope == "system":
                    fold.tree |= set(making.pids)
                source = stream if kept is None else cast(IO[bytes], _Tee(stream, kept))
                progress = progress_line(profiles.in_words)
                for sample in read_samples(source, reading, progress, own=own):
                    fold.add(sample)
    return fold, reading


# What is known of a recording that was given: nothing but what it has.
GIVEN = Recipe(
    "given",
    "Samples that were given",
    answers="where the time goes",
    read="",
    needs="nothing",
    overhead="none",
    events=(),
)


def add_given(output: Path, file: Path, name: str, mode: int | None) -> int:
    """
    Add a recording that was given to a bundle that is there, by no recipe; returns the exit code.

    :param name: of the file, for messages and for its profile.
    :raises UsageError: it is no recording. :raises RecordError: perf is not there to read it.
    """
    options = {"output": output, "input": [name], "keep": None, "mode": mode}
    switches = dict.fromkeys(("keep_idle", "keep_profiler", "by_period"), False)
    bundle = profiles.existing(output)
    profile = profiles.profile_name(Path(name).stem, profiles.names_in(bundle))
    args = argparse.Namespace(**options, **switches)
    with scratch() as folder:
        return _finish(args, GIVEN, profile, Making(), [plain_file(file, folder)], bundle)


def recipe_that_fits(fold: Fold) -> list[str]:
    """
    A sentence for samples that were folded without a recipe, if one would show more of them: one
    that has the most of their events but samplers, else one in whose parts most of the time is.
    """
    known = load_known_frames()
    events = {event for event in fold.events if not known.nmi(event, "")}
    loaded = [recipes.load(name) for name in recipes.names()]
    has = {
        each.name: events & {event_name(text) for one in each.events for text in one.first_of}
        for each in loaded
    }
    most = max(map(len, has.values()))
    if best := [name for name, found in has.items() if found and len(found) == most]:
        return [_advice(best, ", ".join(sorted(set.union(*(has[name] for name in best)))))]
    # A split is called as the recipe that it is for; others use it, too.
    share, name = max(
        (_share_in_split(fold, each), each) for each in {one.split for one in loaded} - {""}
    )
    return [_advice([name], f"{percent(share)} of the samples")] if share >= MUCH else []


def _advice(names: Sequence[str], what: str) -> str:
    return (
        f"folded without a recipe; recipe {' or '.join(names)} splits {what} into parts: "
        f"'mmscope record {names[0]} --input FILE -o BUNDLE'"
    )


def _share_in_split(fold: Fold, name: str) -> float:
    """The share of all samples whose stacks are in a split."""
    split, within, samples = load_split(name), 0, 0
    for event in fold.events.values():
        for stack, (count, _) in event.stacks.items():
            frames = [plain(each.removesuffix(MARK)) for each in stack.split(";")[1:]]
            within += count * (split.classify(frames) is not None)
            samples += count
    return within / samples if samples else 0.0


@contextmanager
def _gzip_writer(path: Path, mode: int) -> Iterator[gzip.GzipFile]:
    """A gzip file to write, its owner's alone until it has its mode."""
    check_output(path)
    kept = os.O_NOFOLLOW | os.O_NONBLOCK
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | kept, 0o600)) as raw:
        os.fchmod(raw.fileno(), mode)
        with gzip.GzipFile(KEPT, "wb", 3, raw) as packed:
            yield packed


class _Tee:
    """A stream that is written to a file as it is read."""

    def __init__(self, stream: IO[bytes], copy: gzip.GzipFile) -> None:
        self.stream, self.copy = stream, copy

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.copy.write(data)
        return data
