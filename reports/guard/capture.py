# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Makes one capture: the process that guard starts, and ``mmscope guard crash``.

``collect`` of who waits for whom alone begins before all else: a moment later others wait, and what
follows writes to the disk and waits for other captures. Meanwhile what is at hand is kept: the
samples become a bundle, the capture takes its name, and alerts go out. Only then are the slow
commands run, one after the other, each with a deadline of its own: ``record``, ``collect`` of all
else, ``findings``, ``report``. One that fails or takes too long costs itself only. CPU and memory
are limited by the unit or the container.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.outcome import UsageError, say
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.priority import last_in_line
from mmscope.reports.guard import captures, events, index_page
from mmscope.reports.guard.captures import Incident
from mmscope.reports.guard.dumps import NotReadError, readable
from mmscope.reports.watch import watch_tables

SAMPLES = "samples.jsonl"
LOCK = ".capture.lock"
# Shares of a capture's time: collect, once more as text where that came to nothing, and to rebuild
# a dump before.
COLLECT_SHARE, TEXT_SHARE, REBUILD_SHARE = 0.5, 0.2, 0.3
# A profile of what lasts: samples a second, seconds, the buffer of each CPU; and the time that it
# may take with the reading of it. What a buffer does not hold is lost, and counted.
PROFILE = ("--frequency", "99", "--seconds", "5", "--buffer", "256K")
PROFILE_SECONDS = 60.0
WAITS, WAITS_SECONDS = ".waits", 20.0  # the bundle of the tasks that wait; what it may take
# panic() (kernel/panic.c); where an oops is the end, that of die() and show_fault_oops() on x86, of
# die_kernel_fault() on arm64.
LAST_WORDS = [
    re.compile("Kernel panic - not syncing: "),
    re.compile("^(BUG: |kernel BUG at |Oops: |Internal error: |Unable to handle kernel )"),
]
MOST_OUTPUT = 4 << 20
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Settings:
    """Settings of captures."""

    folder: str
    timeout: float = 300.0  # seconds that a capture may take
    budget: int = 512 << 20  # bytes that all captures may take
    collect: Sequence[str] = field(default_factory=list)  # words for ``mmscope collect``
    text: bool = False  # no kernel memory
    command: str | None = None  # --exec


def settings_of(args: argparse.Namespace, **more: Any) -> Settings:
    """Settings as the options of ``guard run`` and ``guard crash`` have them."""
    return Settings(
        folder=str(args.output),
        timeout=args.timeout,
        budget=int(args.limit * 2**20),
        command=args.exec,
        **more,
    )


def mmscope(
    *words: str, main: str = "mmscope.reports.commands.command", run: str = "main"
) -> list[str]:
    """The running mmscope as a command, however it was started: installed, checked out, packed."""
    paths = [os.path.abspath(path) for path in sys.path]
    code = f"import sys; sys.path[:] = {paths!r}; from {main} import {run}; sys.exit({run}())"
    return [sys.executable, "-I", "-c", code, *words]


def process(place: Path, settings: Settings) -> list[str]:
    """The command that makes a capture of what is in *place*."""
    return mmscope(str(place), json.dumps(asdict(settings)), main="mmscope.reports.guard.capture")


def main() -> int:
    """``PLACE SETTINGS``; what it says goes to the capture's log.txt."""
    # The last in line, and the first to go when memory runs out: what it has by then stays. The
    # resident, in the same unit, is neither.
    last_in_line()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        make(Path(sys.argv[1]), Settings(**json.loads(sys.argv[2])))
    except OSError as error:
        say(f"{error.filename or 'capture'}: {error.strerror}")
        return 1
    return 0


def make(place: Path, settings: Settings, core: Path | None = None) -> Path:
    """
    Make a capture of what was begun in a folder; returns its place.

    :param core: a vmcore to be read, not this host.
    :raises OSError: it cannot take its name.
    """
    with contextlib.ExitStack() as stack:
        waits = None
        if core is None and not settings.text:
            waits = stack.enter_context(reading_waits(place))
        return _make(place, settings, core, waits)


def _make(place: Path, settings: Settings, core: Path | None, waits: Process | None) -> Path:
    if (place / SAMPLES).exists():
        _try("samples", lambda: merge(place))
    incident = captures.read_incident(place)
    incident["source"] = "samples" if (place / "bundle").exists() else None
    _try("incident", lambda: captures.write_incident(place, incident))
    capture = captures.publish(place)
    incident["folder"] = capture.name
    notify(capture, incident, settings)
    # The capture does not wait for a slow command.
    begun = threading.Thread(target=run_command, args=(settings, dict(incident), capture))
    begun.start()
    with contextlib.ExitStack() as stack:
        # What takes long is done for one capture of a folder at a time.
        lock = Path(settings.folder, LOCK)
        _try("lock", lambda: stack.callback(os.close, captures.locked(lock, wait=True)))
        begin = time.monotonic()
        fill(capture, incident, settings, core, waits)
        incident |= {
            "state": captures.CUT if incident.pop("again", False) else captures.DONE,
            "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - begin, 1),
            "cpu_seconds": round(sum(os.times()[:4]), 2),
            "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,
        }
        _try("limit", lambda: captures.thin(Path(settings.folder), settings.budget))
        notify(capture, incident, settings)
    begun.join()
    run_command(settings, incident, capture)
    return capture


def fill(
    capture: Path,
    incident: Incident,
    settings: Settings,
    core: Path | None,
    waits: Process | None,
) -> None:
    """Add what takes long: the tables, findings and the report."""
    deadline = time.monotonic() + settings.timeout
    if core is None:
        waiting = waits_read(capture, waits) if waits is not None else None
        profile = recorded(capture, incident.get("record"), deadline)
        others = [bundle for bundle in (profile, waiting) if bundle is not None]
        source = collected(capture, settings, None, deadline, others)
        incident["source"] = source or incident["source"]
    else:
        try:
            with readable(core, capture, settings.timeout * REBUILD_SHARE) as dump:
                incident["source"] = collected(capture, settings, dump, deadline, [])
        except NotReadError as error:
            say(str(error))
            title = f"{incident['title']}; not read: {cut(visible(str(error)), 200)}"
            incident |= {"not_read": str(error), "title": title, "again": error.again}
    if (capture / "bundle").exists():
        if core is not None:
            incident["title"] = last_words(capture / "bundle") or incident["title"]
            incident["host"] = Bundle(capture / "bundle").hostname
        explain(capture, deadline)


def notify(capture: Path, incident: Incident, settings: Settings) -> None:
    """Write down how far a capture is, on disk and in the journal."""
    alert = json.dumps(events.alert(incident, capture), indent=1)
    _try("alert", lambda: captures.write(capture / "alert.json", alert + "\n"))
    if incident["state"] != captures.RUNNING:  # an Event is not changed later
        _try("event", lambda: write_event(capture, incident))
    # After these: who waits for a capture waits for its state.
    _try("incident", lambda: captures.write_incident(capture, incident))
    _try("index", lambda: index_page.renew(Path(settings.folder), os.uname().nodename))
    events.tell_journal(incident, capture)


def write_event(capture: Path, incident: Incident) -> None:
    event = json.dumps(events.kubernetes_event(incident, capture), indent=1)
    captures.write(capture / "event.json", event + "\n")


def run_command(settings: Settings, incident: Incident, capture: Path) -> None:
    """Run the command of ``--exec``."""
    if settings.command and (wrong := events.run_command(settings.command, incident, capture)):
        say(wrong)


def _try(what: str, work: Callable[[], Any]) -> bool:
    """True if some work came to its end; what went wrong is in the log, the rest goes on."""
    try:
        work()
        return True
    except (OSError, UsageError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        say(f"{what}: {error}")
        return False


def merge(capture: Path, *others: Path) -> None:
    """
    Write the bundle: the samples, and what is in other bundles; the first has the target.

    A table that several have is that of the last.

    :raises UsageError: one of them cannot be read, or the bundle cannot be written.
    """
    bundles = [Bundle(path) for path in others]
    target = capture / "bundle"
    with Writer(target, replace=target.exists()) as writer:
        begin = time.monotonic()
        sections: list[SectionResult] = []
        had = {"sections"}
        for bundle in reversed(bundles):
            writer.keep(bundle, without=had)
            named = {each.section for each in sections}
            sections += [each for each in bundle.sections if each.section not in named]
            had |= {str(resource["name"]) for resource in bundle.resources}
        if (capture / SAMPLES).exists():
            log = watch_tables.open_log(capture / SAMPLES)
            rows, cost = watch_tables.write_tables(writer, log)
            sections.append(watch_tables.section(log, rows, cost, time.monotonic() - begin))
        writer.finish(bundles[0].target if bundles else watch_tables.target(log), sections)


@contextlib.contextmanager
def reading_waits(place: Path) -> Iterator[Process | None]:
    """``collect`` of the tasks that wait, into a capture, which may get another name meanwhile."""
    words = ["--only", "task_waits", "--no-findings", "--jobs", "1", "-o", WAITS]
    null = subprocess.DEVNULL
    try:
        process = subprocess.Popen(mmscope("collect", *words), cwd=place, stdin=null, stdout=null)
    except OSError as error:
        say(f"tasks that wait: {error.strerror}")
        yield None
        return
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def waits_read(capture: Path, process: Process) -> Path | None:
    """The bundle of the tasks that wait, and for whom; now part of that of the capture."""
    where = capture / WAITS
    try:
        process.wait(WAITS_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        say("tasks that wait: reading them took too long")
    if where.exists() and _try("tasks that wait", lambda: merge(capture, where)):
        return where
    shutil.rmtree(where, ignore_errors=True)
    return None


def recorded(capture: Path, recipe: str | None, deadline: float) -> Path | None:
    """The bundle of a profile, if the trigger asks for one; it is soon over what lasts."""
    if recipe is None:
        return None
    where = capture / ".recorded"
    run(["record", recipe, "-a", *PROFILE, "-o", str(where)], deadline, PROFILE_SECONDS)
    if where.exists():
        return where
    say(f"record {recipe}: no profile")
    return None


def collected(
    capture: Path,
    settings: Settings,
    core: Path | None,
    deadline: float,
    others: Sequence[Path],
) -> str | None:
    """Collect; returns what was read: memory, text, or None."""
    where = capture / ".collected"
    text = ["--proc-root", "/"]
    # Of a dump there is no text, and of text nothing else. A live host is spared other workers.
    if core is not None:
        tries = [(["--core", str(core)], COLLECT_SHARE)]
    elif settings.text:
        tries = [(text, COLLECT_SHARE)]
    else:
        tries = [([], COLLECT_SHARE), (text, TEXT_SHARE)]
    jobs = ["--jobs", "1"] if core is None else []
    kind = None
    for words, share in tries:
        command = ["collect", "--no-findings", *jobs, *settings.collect, *words, "-o", str(where)]
        done = run(command, deadline, settings.timeout * share)
        if where.exists() and _try("collected", lambda: merge(capture, where, *others)):
            kind = str(Bundle(where).target.get("kind"))
            break
        if done is not None:
            say(f"collect {' '.join(words)}: made no bundle")
        shutil.rmtree(where, ignore_errors=True)
    if kind is None and others:
        _try("before", lambda: merge(capture, *others))
    for bundle in (where, *others):
        shutil.rmtree(bundle, ignore_errors=True)
    return kind


def last_words(bundle: Path) -> str | None:
    """Why the kernel of a dump crashed, in its own words."""
    try:
        lines = [str(row["text"]) for row in Bundle(bundle).rows("kernel_log")]
    except (OSError, UsageError, LookupError, ValueError):
        return None
    for words in LAST_WORDS:
        if found := [line for line in lines if words.search(line)]:
            return f"The kernel crashed: {cut(visible(found[-1].splitlines()[0]), 200)}"
    return None


def explain(capture: Path, deadline: float) -> None:
    """Write findings and the report, where the libraries for them are installed."""
    missing = [n for n in ("duckdb", "jinja2") if importlib.util.find_spec(n) is None]
    if missing:
        say(f"no findings and no report, as this is not installed here: {', '.join(missing)}")
        return
    bundle, report = str(capture / "bundle"), str(capture / "report.html")
    if printed := run(["findings", bundle], deadline):
        captures.write(capture / "findings.txt", printed)
    if run(["report", bundle, "-o", report], deadline) is None:
        say(f"no report; later: mmscope report {bundle} -o {report}")


def run(words: list[str], deadline: float, most: float = float("inf")) -> bytes | None:
    """
    Run a command of mmscope; returns what it printed, None if it did not run or took too long.

    :param most: seconds that it may take, before the capture's deadline.
    """
    try:
        # Its words for the user go where ours go.
        done = subprocess.run(
            mmscope(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=max(min(deadline - time.monotonic(), most), 1.0),
        )
    except subprocess.TimeoutExpired:
        say(f"{words[0]}: took too long")
        return None
    except OSError as error:
        say(f"{words[0]}: {error.strerror}")
        return None
    if done.returncode < 0:
        # It could not say so itself: no memory, or a CPU without what a library needs.
        say(f"{words[0]}: was ended by a signal: {signal.strsignal(-done.returncode)}")
    return done.stdout[:MOST_OUTPUT]
