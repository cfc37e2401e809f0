# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Makes one capture: the process that guard starts, and ``mmscope guard crash``.

What is at hand comes first: the samples become a bundle, the capture takes its name, and alerts go
out. Only then are the slow commands run, one after the other, each with limits of its own:
``record``, ``collect``, ``findings``, ``report``. One that fails or takes too long costs itself
only.
"""

import contextlib
import datetime
import fcntl
import importlib.util
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import UsageError, say
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.guard import captures, events, index_page
from mmscope.reports.guard.captures import Incident
from mmscope.reports.guard.dumps import NotReadError, readable
from mmscope.reports.guard.resident import step_back
from mmscope.reports.watch import watch_tables

SAMPLES = "samples.jsonl"
LOCK = ".capture.lock"
# Of the time that a capture may take: collect, once more as text where that came to nothing, and to
# rebuild a dump before.
COLLECT_SHARE, TEXT_SHARE, REBUILD_SHARE = 0.5, 0.2, 0.3
# Of the CPU that is left to it, for what records and collects: some is left to explain what came.
CPU_SHARE = 0.6
# A profile of what lasts: samples a second, seconds, the buffer of each CPU; and the time that it
# may take with the reading of it. What a buffer does not hold is lost, and counted.
PROFILE = ("--frequency", "99", "--seconds", "5", "--buffer", "256K")
PROFILE_SECONDS = 60.0
# panic() (kernel/panic.c); where an oops is the end, that of die() and show_fault_oops() on x86, of
# die_kernel_fault() on arm64.
LAST_WORDS = [
    re.compile("Kernel panic - not syncing: "),
    re.compile("^(BUG: |kernel BUG at |Oops: |Internal error: |Unable to handle kernel )"),
]
MOST_OUTPUT = 4 << 20


@dataclass(frozen=True)
class Settings:
    """How captures are made."""

    folder: str
    timeout: float = 300.0  # seconds that a capture may take
    memory: int = 1 << 30  # bytes that each command may have
    budget: int = 512 << 20  # bytes that all captures may take
    collect: Sequence[str] = field(default_factory=list)  # words for ``mmscope collect``
    text: bool = False  # no kernel memory
    samples: bool = False  # what is at hand, and nothing more
    cpu: float | None = None  # seconds that it may take, with those that end before it is its turn
    command: str | None = None  # --exec
    journal: str = events.JOURNAL


@dataclass
class Budget:
    """What a capture may take of time and CPU."""

    timeout: float
    cpu: float | None  # seconds, from when it begins; None: any
    begin: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=lambda: used())

    def seconds(self, share: float = 1.0) -> float:
        """Of the time, so much as is left, and no more than a share of all."""
        left = self.begin + self.timeout - time.monotonic()
        return max(min(left, self.timeout * share), 1.0)

    def cpu_left(self) -> float:
        """CPU seconds."""
        return math.inf if self.cpu is None else self.cpu + self.used - used()


def used() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    whose = resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, whose))


def mmscope(*words: str, main: str = "mmscope.reports.commands.command") -> list[str]:
    """The running mmscope as a command, however it was started: installed, checked out, packed."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {main} import main; sys.exit(main())"
    return [sys.executable, "-I", "-c", code, *words]


def process(place: Path, settings: Settings) -> list[str]:
    """The command that makes a capture of what is in *place*."""
    return mmscope(str(place), json.dumps(asdict(settings)), main="mmscope.reports.guard.capture")


def main() -> int:
    """``PLACE SETTINGS``; what it says goes to the capture's log.txt."""
    place, settings = Path(sys.argv[1]), Settings(**json.loads(sys.argv[2]))
    make(place, settings)
    return 0


def make(place: Path, settings: Settings, core: Path | None = None) -> Path:
    """
    Make a capture of what was begun in a folder; returns its place.

    :param core: a vmcore to be read, not this host.
    :raises OSError: it cannot be written.
    """
    if (place / SAMPLES).exists():
        _try("samples", lambda: merge(place))
    incident = captures.read_incident(place)
    incident["source"] = "samples" if (place / "bundle").exists() else None
    captures.write_incident(place, incident)
    capture = captures.publish(place)
    incident["folder"] = capture.name
    tell(capture, incident, settings)
    step_back(settings.memory)
    with one_at_a_time(Path(settings.folder)):
        return finished(capture, incident, settings, core)


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other capture of a folder is at what takes long."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def finished(capture: Path, incident: Incident, settings: Settings, core: Path | None) -> Path:
    """What takes long, and the end of it."""
    folder, cpu = Path(settings.folder), settings.cpu
    if cpu is not None:
        cpu -= captures.paid_since(folder, incident["at"])
    budget = Budget(settings.timeout, cpu)
    if settings.samples:
        say("captures have used up the CPU that they may take in an hour (--cpu): samples alone")
    elif core is None:
        profile = recorded(capture, incident, budget)
        source = collected(capture, settings, None, budget, profile)
        incident["source"] = source or incident["source"]
    else:
        incident |= collected_of_dump(capture, incident, settings, core, budget)
    if (capture / "bundle").exists():
        if core is not None:
            incident["title"] = last_words(capture / "bundle") or incident["title"]
            incident["host"] = Bundle(capture / "bundle").target.get("hostname")
        explained(capture, budget)
    incident |= {
        "state": captures.CUT if incident.pop("again", False) else captures.DONE,
        "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - budget.begin, 1),
        "cpu_seconds": round(used(), 2),
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,
    }
    tell(capture, incident, settings)
    captures.thin(folder, settings.budget)
    index_page.renew(folder, os.uname().nodename)
    return capture


def tell(capture: Path, incident: Incident, settings: Settings) -> None:
    """Write down how far it is, and tell others."""
    captures.write_incident(capture, incident)
    host = os.uname().nodename
    captures.write(
        capture / "alert.json", json.dumps(events.alert(incident, capture, host), indent=1) + "\n"
    )
    index_page.renew(Path(settings.folder), host)
    events.tell_journal(incident, capture, settings.journal)
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
    The bundle: the samples, and what is in other bundles; whose target it is says the first.

    :raises UsageError: one of them cannot be read, or the bundle cannot be written.
    """
    bundles = [Bundle(path) for path in others]
    target = capture / "bundle"
    with Writer(target, replace=target.exists()) as writer:
        begin = time.monotonic()
        sections = []
        for bundle in bundles:
            writer.keep(bundle, without={"sections"})
            sections += bundle.sections
        if (capture / SAMPLES).exists():
            log = watch_tables.open_log(capture / SAMPLES)
            rows, cost = watch_tables.write_tables(writer, log)
            sections.append(watch_tables.section(log, rows, cost, time.monotonic() - begin))
        writer.finish(bundles[0].target if bundles else watch_tables.target(log), sections)


def recorded(capture: Path, incident: Incident, budget: Budget) -> Path | None:
    """The bundle of a profile, if the trigger asks for one; it is soon over what lasts."""
    where = capture / ".recorded"
    if recipe := incident.get("record"):
        share = PROFILE_SECONDS / budget.timeout
        run(["record", recipe, "-a", *PROFILE, "-o", str(where)], budget, share, CPU_SHARE)
        if not where.exists():
            say(f"record {recipe}: no profile")
    return where if where.exists() else None


def collected(
    capture: Path, settings: Settings, core: Path | None, budget: Budget, profile: Path | None
) -> str | None:
    """Collect; returns what was read: memory, text, or None."""
    where = capture / ".collected"
    text = ["--proc-root", "/"]
    of_core = ["--core", str(core)]
    first = of_core if core is not None else text if settings.text else []
    # The CPU that each process may take is the capture's where one does all.
    alone = [] if budget.cpu is None else ["--jobs", "1"]
    others = [profile] if profile is not None else []
    kind = None
    for words, share in ((first, COLLECT_SHARE), (text, TEXT_SHARE)):
        command = ["collect", "--no-findings", *alone, *settings.collect, *words]
        done = run([*command, "-o", str(where)], budget, share, CPU_SHARE)
        if where.exists() and _try("collected", lambda: merge(capture, where, *others)):
            kind = str(Bundle(where).target.get("kind"))
            break
        if done is not None:
            say(f"collect {' '.join(words)}: made no bundle")
        shutil.rmtree(where, ignore_errors=True)
        if words != []:  # of a dump there is no text, and of text nothing else
            break
    if kind is None and others:
        _try("profile", lambda: merge(capture, *others))
    for bundle in (where, *others):
        shutil.rmtree(bundle, ignore_errors=True)
    return kind


def collected_of_dump(
    capture: Path, incident: Incident, settings: Settings, core: Path, budget: Budget
) -> Incident:
    """Collect from a dump; what is to be said of that in the incident."""
    try:
        with readable(core, capture, settings.timeout * REBUILD_SHARE) as dump:
            return {"source": collected(capture, settings, dump, budget, None)}
    except NotReadError as error:
        say(str(error))
        title = f"{incident['title']}; not read: {cut(visible(str(error)), 200)}"
        return {"not_read": str(error), "title": title, "again": error.again}


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


def explained(capture: Path, budget: Budget) -> None:
    """Findings and the report, where the libraries for them are installed."""
    missing = [n for n in ("duckdb", "jinja2") if importlib.util.find_spec(n) is None]
    if missing:
        say(f"no findings and no report, as this is not installed here: {', '.join(missing)}")
        return
    bundle, report = str(capture / "bundle"), str(capture / "report.html")
    if said := run(["findings", bundle], budget):
        captures.write(capture / "findings.txt", said)
    if run(["report", bundle, "-o", report], budget) is None:
        say(f"no report; later: mmscope report {bundle} -o {report}")


def run(
    words: list[str], budget: Budget, share: float = 1.0, cpu_share: float = 1.0
) -> bytes | None:
    """
    What a command of mmscope printed; None if it did not run, or took more time than it may.

    :param share: of the capture's time that it may take; and *cpu_share* of the CPU that is left.
    """
    cpu = cpu_share * budget.cpu_left()
    if cpu < 1:
        say(f"{words[0]}: captures have used up the CPU that they may take in an hour (--cpu)")
        return None

    def limit() -> None:
        if cpu < math.inf:
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        # Its words for the user go where ours go.
        done = subprocess.run(
            mmscope(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=budget.seconds(share),
            preexec_fn=limit,  # in the child; no thread is there
        )
    except subprocess.TimeoutExpired:
        say(f"{words[0]}: took too long")
        return None
    except OSError as error:
        say(f"{words[0]}: {error.strerror}")
        return None
    if done.returncode == -signal.SIGXCPU:
        say(f"{words[0]}: ended after {int(cpu)} s of CPU, as captures may take no more (--cpu)")
    elif done.returncode < 0:
        # It could not say so itself: no memory, or a CPU without what a library needs.
        say(f"{words[0]}: was ended by a signal: {signal.strsignal(-done.returncode)}")
    return done.stdout[:MOST_OUTPUT]
