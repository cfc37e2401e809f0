# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Running ``perf record`` by a recipe, and reading back what it wrote.

Costs what the recipe says; the file is bounded by the recipe's size, the time by its seconds.
Ctrl-C ends the recording and keeps what is there. Nothing of the machine is changed, but for
kprobes that a recipe asks for, which are removed again whatever ends the recording
(``probe_guard``).

Cannot: keep perf from losing samples on a machine that is too busy to write them. It counts them.
"""

import contextlib
import io
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Literal, NamedTuple

from mmscope.perf import perf_probes, perf_stat
from mmscope.perf.command import (
    Growth,
    Watched,
    children,
    descendants,
    is_waiting,
    seconds_of_children,
)
from mmscope.perf.perf_events import Machine, Plan, RecordError, kernel_filter, run
from mmscope.perf.perf_script import FIELDS
from mmscope.perf.perf_stat import Counted, held
from mmscope.perf.recipe import Event, Probe, Recipe, event_name

# Without privileges perf may lock half a MiB a CPU (kernel.perf_event_mlock_kb).
SMALL_BUFFER = "128"
LINGER = 1.0  # seconds after a command or process ends: who reaps it may come late


class Recording(NamedTuple):
    """
    Result of a recording.

    :ivar pids: those given, or perf's own, whose child is the command.
    :ivar ended: why it ended: the command, the time, Ctrl-C.
    :ivar refused: events that are left out, and why.
    :ivar missed: by event: probes that could not run.
    :ivar unopened: words about events that perf went on without.
    :ivar used: seconds of the command, (user, system).
    :ivar gone: when the command had ended, by perf's clock.
    :ivar growths: page tables by pid.
    """

    files: list[Path]
    seconds: float
    pids: list[int]
    ended: str
    refused: list[tuple[Event, str]]
    missed: dict[str, int]
    notes: list[str]
    unopened: list[str]
    used: tuple[float, float] | None
    gone: float | None
    counted: list[Counted]
    growths: dict[int, Growth]


def record(
    recipe: Recipe,
    plan: Plan,
    machine: Machine,
    folder: Path,
    *,
    command: Sequence[str] = (),
    pids: Sequence[int] = (),
    seconds: float | None = None,
    look: Callable[[], None] = lambda: None,
) -> Recording:
    """
    Record into *folder*; returns when the command ends, the time is over, or Ctrl-C is pressed.

    :param command: to run; or *pids* to watch; with neither, every CPU.
    :param seconds: instead of the recipe's; 0: no limit.
    :param look: called now and then while perf runs, ten times a second or more often.
    :raises RecordError: perf fails, or the kernel refuses a probe that the recipe needs.
    """
    output = folder / "perf.data"
    limit = seconds if seconds is not None else 0 if command else recipe.seconds
    tracefs = machine.tracefs or Path("/sys/kernel/tracing")
    with contextlib.ExitStack() as stack:
        guard = stack.enter_context(contextlib.closing(perf_probes.ProbeGuard(tracefs)))
        wanted = _probes(recipe, plan)
        notes = perf_probes.clear_up(tracefs) if wanted else []
        probes = stack.enter_context(perf_probes.made(wanted, tracefs))
        refused = [
            (event, probes.refused[name])
            for event, text in plan.events
            if (name := text.partition("/")[0]) in probes.refused
        ]
        for event, reason in refused:
            if event.required:
                raise RecordError(reason)
        words = arguments(recipe, plan, machine, output, command, pids, probes)
        watched = Watched(look, of_command=bool(command))
        begin = time.monotonic()
        ended, watched_pids, used, counted = _run(
            words, limit, pids, command, plan, folder, guard, watched.look
        )
        taken = time.monotonic() - begin
        missed = probes.missed()
    files = sorted(path for path in folder.glob("perf.data*") if path.stat().st_size > 0)
    if not files:
        raise RecordError("perf recorded nothing; its words are above")
    if not recipe.trigger and files[0].stat().st_size >= recipe.megabytes << 20:
        ended = f"perf.data had {recipe.megabytes} MiB, which is the recipe's limit"
    dropped = {event_name(choice) for event, _ in refused for choice in event.first_of}
    asked = [event_name(text) for _, text in plan.events]
    unopened = without([event for event in asked if event not in dropped], opened(words[0], files))
    return Recording(
        files=files,
        seconds=taken,
        pids=watched_pids,
        ended=ended,
        refused=refused,
        missed=missed,
        notes=notes,
        unopened=unopened,
        used=used,
        gone=watched.gone(),
        counted=counted,
        growths=watched.found,
    )


def _probes(recipe: Recipe, plan: Plan) -> list[Probe]:
    """The kprobes that the events of a plan are made of."""
    wanted = {text.partition("/")[0] for _, text in plan.events}
    return [
        probe
        for probe in recipe.probes
        if {f"mmscope:{probe.name}", f"mmscope:{probe.name}_return"} & wanted
    ]


def opened(perf: str, files: Sequence[Path]) -> str | None:
    """The events that a recording has, sampled or not, as perf lists them; None if it cannot."""
    done = run([perf, "evlist", "-f", "-i", str(files[0])])
    names = map(perf_probes.plain, done.stdout.splitlines())
    return None if done.returncode else "\n".join(names)


def without(asked: Sequence[str], listed: str | None) -> list[str]:
    """
    Words about events that were asked for and that a recording does not have: newer perfs say so
    of one that the kernel does not open, and go on.
    """
    return [
        f"without {event}: perf could not open it; its words are above"
        for event in asked
        # Around a name may be a PMU's, and what it is restricted to: cpu_core/cycles/u.
        if listed is not None and not re.search(rf"(?<![\w-]){re.escape(event)}(?![\w-])", listed)
    ]


def arguments(
    recipe: Recipe,
    plan: Plan,
    machine: Machine,
    output: Path,
    command: Sequence[str],
    pids: Sequence[int],
    probes: perf_probes.Probes | None = None,
) -> list[str]:
    """
    perf's command line.

    :param probes: the kprobes that were made, and those that the kernel refused.
    """
    assert machine.perf is not None
    # -N: no build-ids, which would be copied to the user's home. Times as our own clock has them.
    words = [machine.perf, "record", "-q", "-N", "--sample-cpu", "-P", "--call-graph", "fp"]
    words += ["-k", "CLOCK_MONOTONIC"]
    words += ["-o", str(output), "-m", recipe.buffer if plan.privileged else SMALL_BUFFER]
    if recipe.addresses:
        words.append("-d")
    if recipe.trigger:
        words += ["--overwrite", "--switch-output-event", recipe.trigger, "--switch-max-files", "8"]
    else:
        words += [f"--max-size={recipe.megabytes}M"]
    for event, text in plan.events:
        name, slash, terms = text.partition("/")
        if probes is not None and name in probes.refused:
            continue
        known = probes.names.get(name, name) if probes is not None else name
        words += ["-e", f"{known}{slash}{terms}"]
        if limit := kernel_filter(event, name, machine.tracefs):
            words += ["--filter", limit]
    if plan.system:
        words.append("-a")
    elif pids:
        words += ["-p", ",".join(map(str, pids))]
    return [*words, "--", *command] if command else words


def _run(
    words: list[str],
    limit: float,
    pids: Sequence[int],
    command: Sequence[str],
    plan: Plan,
    folder: Path,
    guard: perf_probes.ProbeGuard,
    look: Callable[[list[int]], None],
) -> tuple[str, list[int], tuple[float, float] | None, list[Counted]]:
    """Run perf to its end: why it ended, pids, seconds of the command, what was counted."""
    output = folder / "perf-stat.txt"
    with _interrupts() as interrupted, contextlib.ExitStack() as stack:

        def count(pids: Sequence[int]) -> None:
            counting = perf_stat.arguments(words[0], plan.counts, output, pids)
            guard.watch(stack.enter_context(perf_stat.counting(counting)))

        try:
            if plan.counts and not command:
                count(pids)
            perf = subprocess.Popen(words)
            guard.watch(perf.pid)
            if plan.counts and command:
                with _held_command(perf.pid) as child:
                    if child:
                        count(child)
        except OSError as error:
            raise RecordError(f"{words[0]}: {error.strerror}") from error
        ended = _until_over(perf, pids, limit, interrupted, look, whole=plan.system)
        ended = ended or ("Ctrl-C" if interrupted else "")
        # The command is perf's child, and perf waits for nothing else.
        used = seconds_of_children(perf.pid) if command else None
        perf.wait()
    # perf's own samples are known by their comm.
    watched = list(pids) or ([perf.pid] if command else [])
    ended = ended or ("the command ended" if command else "perf ended")
    return ended, watched, used, perf_stat.counted(output)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals that are to end a recording and keep what is there, as they come."""
    came: list[int] = []

    def interrupt(signum: int, frame: FrameType | None) -> None:
        came.append(signum)

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _until_over(
    perf: "subprocess.Popen[bytes]",
    pids: Sequence[int],
    limit: float,
    interrupted: list[int],
    look: Callable[[list[int]], None],
    *,
    whole: bool,
) -> str:
    """
    Wait until perf has ended, by itself or because it is asked to; why it was, or nothing.

    :param limit: seconds; 0: none.
    :param look: called meanwhile, with the processes that are recorded.
    """
    begin, gone = time.monotonic(), 0.0
    # Often at first: what is over soon has a course, too.
    while not _over(perf.pid, min(max((time.monotonic() - begin) / 10, 0.02), 0.1)):
        look(list(pids) or [pid for child in children(perf.pid) for pid in descendants(child)])
        now = time.monotonic()
        if pids and whole and not any(Path(f"/proc/{pid}").exists() for pid in pids):
            gone = gone or now
        if interrupted:
            ended = "Ctrl-C"
        elif limit and now - begin > limit:
            ended = f"{limit:g} s were over"
        elif gone and now - gone > LINGER:
            ended = "the process ended"
        else:
            continue
        # perf may be about to start its command: it is asked until it goes.
        perf.send_signal(signal.SIGINT)
        if _over(perf.pid, 5):
            return ended
    return ""


def _over(pid: int, seconds: float) -> bool:
    """True if a child has ended by then; it stays, to be asked what it used."""
    try:
        running = os.pidfd_open(pid)
    except OSError:  # before Linux 5.3
        time.sleep(seconds)
    else:
        select.select([running], [], [], seconds)
        os.close(running)
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


@contextlib.contextmanager
def _held_command(perf: int) -> Iterator[list[int]]:
    """
    perf's command, with perf held meanwhile: it exists while perf gets ready, and does not run
    before perf says so. Empty if it was too late.
    """
    end, found = time.monotonic() + perf_stat.PATIENCE, list[int]()
    while not found and time.monotonic() < end and not _over(perf, 0):
        time.sleep(0.001)
        found = children(perf)[:1]
    try:
        yield found if found and held(perf, 1.0) and is_waiting(found[0]) else []
    finally:
        os.kill(perf, signal.SIGCONT)


# Reading back


@dataclass
class Recorded:
    """Counts of a recording's records, by perf."""

    samples: dict[str, int] = field(default_factory=dict)  # by event
    lost: dict[str, int] = field(default_factory=dict)
    throttled: int = 0

    def add(self, other: "Recorded") -> None:
        """Count another file's."""
        for into, what in ((self.samples, other.samples), (self.lost, other.lost)):
            for event, number in what.items():
                into[event] = into.get(event, 0) + number
        self.throttled += other.throttled


def recorded(perf: str, files: Sequence[Path]) -> Recorded:
    """
    Count records without resolving anything. Of a damaged file perf may count none; what is wrong
    with it is said where it is read (:func:`script`).
    """
    found = Recorded()
    for file in files:
        done = run([perf, "report", "--stats", "-f", "-i", str(file)])
        event = ""
        for line in done.stdout.splitlines():
            if match := re.fullmatch(r"(\S.*) stats:", line):
                event = "" if match[1] == "Aggregated" else perf_probes.plain(match[1])
            elif match := re.match(r"\s+([A-Z_0-9]+) events:\s+(\d+)", line):
                kind, number = match[1], int(match[2])
                if event and kind == "SAMPLE":
                    found.samples[event] = found.samples.get(event, 0) + number
                elif event and kind == "LOST_SAMPLES":
                    found.lost[event] = found.lost.get(event, 0) + number
                elif not event and kind == "THROTTLE":
                    found.throttled += number
    return found


# "PERFILE2" as a number, of either byte order, and of perf before 2.6.37.
PERF_DATA = (b"PERFILE2", b"2ELIFREP", b"PERFFILE")


def cut_short(file: Path) -> str:
    """
    The way in which a recording ends before its end; nothing if it does not, or does not say where
    that is, as what was written to a pipe. perf itself says nothing where all samples are there.

    By ``struct perf_file_header`` (tools/perf/util/header.h, the same since 3.2): the sections for
    attributes and data, and after these one for each feature.
    """
    with open(file, "rb") as stream:
        size, head = os.fstat(stream.fileno()).st_size, stream.read(104)
        if len(head) < 104 or head[:8] not in PERF_DATA[:2]:
            return ""
        order: Literal["little", "big"] = "little" if head.startswith(PERF_DATA[0]) else "big"
        numbers = [int.from_bytes(head[at : at + 8], order) for at in range(8, 104, 8)]
        if numbers[0] != len(head):
            return ""
        (attributes, of_them, data, of_data), features = numbers[2:6], numbers[8:]
        table = data + of_data
        length = 16 * sum(number.bit_count() for number in features)
        ends = [attributes + of_them, table + length]
        if ends[1] <= size:
            stream.seek(table)
            sections = stream.read(length)
            for at in range(0, length, 16):
                offset, taken = (int.from_bytes(sections[n : n + 8], order) for n in (at, at + 8))
                ends.append(offset + taken)
    if max(ends) <= size:
        return ""
    return f"it ends at {size:,} bytes, and has {max(ends):,} by its header"


@contextlib.contextmanager
def script(
    perf: str, file: Path, *, addresses: bool = True, lacks: list[str] | None = None
) -> Iterator[IO[bytes]]:
    """
    The text of ``perf script``, as it is written.

    Fields that the recording does not have are left out, one after the other, as perf names them.

    :param addresses: whether those of data are wanted, which perf looks up one by one.
    :param lacks: where the text was read to its end and is not all of the recording, perf's words
        are put there.
    :raises RecordError: perf cannot read the file.
    """
    fields = [field for field in FIELDS if addresses or field != "addr"]
    while True:
        words = [perf, "script", "-f", "--ns", "--no-inline", "--show-lost-events"]
        words += ["--show-task-events", "-F", ",".join(fields), "-i", str(file)]
        with tempfile.TemporaryFile() as errors:
            # A pipe that holds a chunk, so that perf goes on while one is folded.
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                pipesize=1 << 20,
            )
            assert isinstance(process.stdout, io.BufferedReader)
            some = ended = False
            try:
                # What makes perf give up comes before any text.
                if some := bool(process.stdout.peek(1)):
                    yield process.stdout
                if ended := not process.stdout.peek(1):
                    process.wait()
            finally:
                process.stdout.close()
                process.terminate()
                process.wait()
            errors.seek(0)
            said = errors.read(1 << 16).decode("utf-8", "replace")
        if some:
            if lacks is not None and ended:
                why = _trouble(said, process.returncode), cut_short(file)
                lacks += [f"{file.name}: {words}" for words in why if words]
            return
        match = re.search(r"Cannot print '(\w+)' field", said)
        if not match or match[1] not in fields:
            break
        fields.remove(match[1])
    if process.returncode:
        version = run([perf, "--version"]).stdout.strip().replace("version ", "") or "perf"
        raise RecordError(
            f"{file}: {version} cannot read it: {_in_words(said, process.returncode)}: if a newer "
            "perf recorded it, the text that its 'perf script' prints is read, too"
        )
    yield io.BytesIO()


# What perf says of symbols, which costs names and no samples.
_OF_SYMBOLS = re.compile(
    r"Ignoring|kallsyms|vmlinux|build.?id|symbol|addr2line|debug|map file|restricted", re.I
)
# What it says of a file that is not whole, and goes on (perf_session__warn_about_errors() in
# tools/perf/util/session.c, 6.1 to 7.2, and header.c).
_OF_DAMAGE = re.compile(
    r"fail|unknown|newer|unexpected|invalid|corrupt|truncat|damaged|lost|order|too (small|big)"
    r"|unprocessable|not supported|cannot|can't|error",
    re.I,
)


def _trouble(said: str, code: int) -> str:
    """Words of perf about a recording that is not whole; nothing if it is."""
    kept = [line for line in said.splitlines() if not _OF_SYMBOLS.search(line)]
    if code or any(map(_OF_DAMAGE.search, kept)):
        return f"perf did not read all of it: {_in_words(chr(10).join(kept), code)}"
    return ""


def _in_words(said: str, code: int) -> str:
    """perf's words, in one line."""
    said = said.replace(" (rerun with -v to learn more)", "")
    lines = [line.strip() for line in said.splitlines() if "Ignoring" not in line]
    ended = f"it was ended by {signal.Signals(-code).name}" if code < 0 else "it gave no reason"
    return " ".join(filter(None, lines))[:400] or ended
