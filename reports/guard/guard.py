# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard run``: the resident.

It samples, keeps the last minutes in memory, asks its triggers, and starts a process for each
capture. It imports neither drgn nor numpy, stays in memory, and takes no more than a share of a CPU
over an hour: where samples are dear they become rarer, a command of a capture that takes what is
left is ended, and after captures that took most of it the next ones have the samples alone.
"""

import argparse
import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmscope.reports.bundle.outcome import DONE, UsageError, say
from mmscope.reports.guard import capture, captures, index_page, resident
from mmscope.reports.guard.cgroup_events import CgroupEvents
from mmscope.reports.guard.guard_metrics import Told, expose
from mmscope.reports.guard.history import History
from mmscope.reports.guard.kernel_messages import KernelMessages
from mmscope.reports.guard.trigger import Fired, Trigger, Triggers, load
from mmscope.reports.watch.sample_log import FORMAT
from mmscope.reports.watch.samples import Sample, Sampler, host_target, thp_order

LOCK = ".guard.pid"
BY_HAND = Trigger("by-hand", "Asked for by hand", "notice", "", distance=0)
RESERVE = 4 << 20
ENDS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# Of a CPU, that /proc/pagetypeinfo may take; the rest of the share is for all else.
PAGETYPEINFO_SHARE = 0.001
# The first part of a capture does not wait; the rest of one is done before that of the next.
MOST_AT_ONCE = 4
GRACE = 150.0  # seconds after its time that a capture is ended from outside
HOUR = 3600.0
LEAST_ROOM = 64 << 20  # bytes that must be free for a capture to begin
# Of what captures may take of the CPU, the last: for such as have the samples alone.
LAST_SHARE = 1 / 3


def run(args: argparse.Namespace) -> int:
    """Watch until a signal ends it."""
    triggers = load(args.triggers)
    try:
        args.output.mkdir(parents=True, exist_ok=True)
        lock = _only_one(args.output)
    except OSError as error:
        raise UsageError(f"{args.output}: {error.strerror}") from None
    captures.tidy(args.output)
    index_page.renew(args.output, os.uname().nodename)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, signal.SIGUSR1, signal.SIGCHLD})
    guard = Guard(args, triggers)
    if why := resident.stay_in_memory(guard.rehearse):
        say(f"may be swapped out or wait for memory when the host is short of it: {why}")
    for absent in filter(None, (guard.messages.absent,)):
        say(f"{absent}: failing allocations are not seen")
    say(f"{len(triggers)} triggers, every {args.interval:g} s; captures in {args.output}")
    try:
        guard.watch()
    finally:
        guard.end()
        os.close(lock)
    return DONE


def _only_one(folder: Path) -> int:
    """
    Lock a folder for this process; returns the file that holds the lock.

    :raises UsageError: another guard has it.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{folder}: another guard is at work there") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def ask_for_one(folder: Path) -> int:
    """
    Have the guard of a folder capture now.

    :raises UsageError: there is none.
    """
    try:
        with (folder / LOCK).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                os.kill(int(file.read(20)), signal.SIGUSR1)
                print(f"asked; the capture will be in {folder}")
                return DONE
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: no guard could be asked: {error}") from None
    raise UsageError(f"{folder}: no guard is at work there: systemctl start mmscope-guard")


@dataclass
class Running:
    """A capture that is being made."""

    process: "subprocess.Popen[bytes]"
    fired: Fired
    name: str
    until: float


@dataclass
class Guard:
    """What the resident knows."""

    args: argparse.Namespace
    triggers: list[Trigger]
    running: list[Running] = field(default_factory=list)
    pending: dict[str, tuple[float, Fired]] = field(default_factory=dict)  # by trigger: since when
    not_before: dict[str, float] = field(default_factory=dict)  # by trigger, and "" for all
    paid: list[tuple[float, float]] = field(default_factory=list)  # captures: when, CPU seconds
    told: Told = field(default_factory=Told)
    number: int = 0
    spent: float = 0.0  # CPU seconds of a sample with all that follows, as of late

    def __post_init__(self) -> None:
        root, page_size = self.args.proc_root, os.sysconf("SC_PAGE_SIZE")
        self.page_size = page_size
        order = thp_order(root, page_size)
        self.sampler = Sampler(root, order, share=PAGETYPEINFO_SHARE)
        self.header = {
            "watch": FORMAT,
            "interval": self.args.interval,
            "target": host_target(root, page_size),
            "thp_order": order,
            "page_owner": None,
        }
        self.history = History(self.args.minutes * 60)
        self.history.reserve(RESERVE)
        self.state = Triggers(self.triggers)
        self.messages = KernelMessages(os.path.join(root, "dev/kmsg"))
        self.cgroups = CgroupEvents(os.path.join(root, "sys/fs/cgroup"))
        self.interval = self.args.interval
        self.shown: dict[str, Any] = {}
        # Of captures before this guard; a clock that was set since tells nothing.
        wall, here = datetime.datetime.now(datetime.UTC), time.monotonic()
        for ended, cpu in captures.paid(self.args.output):
            if 0 <= (ago := (wall - ended).total_seconds()) < HOUR:
                self.paid.append((here - ago, cpu))

    def rehearse(self) -> None:
        """Do once what is done later, so that its code is in memory."""
        self.step(0.0)
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=False)

    def watch(self) -> None:
        """Sample and capture until a signal ends it."""
        due = time.monotonic()
        while True:
            begin = time.process_time()
            self.step(max(time.monotonic() - due, 0.0))
            spent = time.process_time() - begin
            self.spent = spent if not self.spent else 0.8 * self.spent + 0.2 * spent
            self._keep_to_share()
            due = max(due + self.interval, time.monotonic())
            if self._wait(due):
                return

    def _keep_to_share(self) -> None:
        """Sample less often where that would take too much of a CPU."""
        before, self.interval = self.interval, max(self.args.interval, self.spent / self.share)
        if self.interval > 1.5 * before:
            say(
                f"a sample takes {1000 * self.spent:.0f} ms of CPU: now every {self.interval:.0f} s"
            )

    @property
    def share(self) -> float:
        """Of a CPU, that all may take."""
        return float(self.args.cpu) / 100

    def _wait(self, due: float) -> bool:
        """Wait until the next sample is due, and see to signals; True: it is to end."""
        while (left := due - time.monotonic()) > 0:
            came = signal.sigtimedwait({*ENDS, signal.SIGUSR1, signal.SIGCHLD}, left)
            if came is None:
                break
            if came.si_signo in ENDS:
                return True
            if came.si_signo == signal.SIGUSR1:
                self._want(Fired(BY_HAND, BY_HAND.title))
            self._see_to_captures()
        return False

    def step(self, late: float) -> None:
        """A sample, and what follows from it."""
        sample: Sample = self.sampler.take(late)
        try:
            sample["thp_any"] = self.sampler.thp_blocks()
        except (OSError, ValueError) as error:
            sample["unread"]["buddyinfo"] = str(error)
        self.number += 1
        sample |= {"number": self.number, "cpu_total": round(time.process_time(), 6)}
        self.history.add(sample, self.cgroups.new(), self.messages.new())
        for fired in self.state.evaluate(self.history):
            self._want(fired)
        for name, why in self.state.failed.items():
            if self.told.failed.get(name) != why:
                say(f"trigger {name}: {why}")
        self.told.failed = self.state.failed
        self._see_to_captures()
        kept = {n: self.shown[n] for n in ("thp_free", "reserve") if n in self.shown}
        self.shown = kept | sample
        if self.args.openmetrics:
            try:
                expose(self.args.openmetrics, self.shown, self.page_size, self.told)
            except OSError as error:
                self._say_once(f"{self.args.openmetrics}: {error.strerror}")

    def _say_once(self, words: str) -> None:
        if words != self.told.last_words:
            say(words)
        self.told.last_words = words

    def _want(self, fired: Fired) -> None:
        """Remember that something is to be captured, unless the last one was too short ago."""
        name = fired.trigger.name
        self.told.add(self.told.fired, name)
        now = time.monotonic()
        if any(one.fired.trigger.name == name != BY_HAND.name for one in self.running):
            return
        if now >= self.not_before.get(name, 0.0) and name not in self.pending:
            self.pending[name] = (now, fired)
            left = self.not_before.get("", 0.0) - now
            if left > 0 and name != BY_HAND.name:
                say(f"{name}: {fired.title}: waits {left:.0f} s, for --distance")

    def _see_to_captures(self) -> None:
        """Reap the one that has ended, end one that takes too long, begin the next."""
        now = time.monotonic()
        for one in [*self.running]:
            self._look_after(one, now)
        # What the samples do not show any more is no use to capture.
        self.pending = {
            name: one for name, one in self.pending.items() if now - one[0] < self.history.seconds
        }
        if len(self.running) >= MOST_AT_ONCE or not self.pending:
            return
        ready = [
            fired
            for name, (_, fired) in self.pending.items()
            if name == BY_HAND.name or now >= self.not_before.get("", 0.0)
        ]
        if ready and self._room():
            order = [trigger.name for trigger in (BY_HAND, *self.triggers)]
            ready.sort(key=lambda fired: order.index(fired.trigger.name))
            self._begin(ready[0], [fired for fired in ready[1:]], now)

    def _affordable(self, now: float) -> float:
        """CPU seconds that captures may still take, of the hour that ends now."""
        self.paid = [(ended, cpu) for ended, cpu in self.paid if now - ended < HOUR]
        own: float = min(self.spent / self.interval, self.share / 2)
        return (self.share - own) * HOUR - sum(cpu for _, cpu in self.paid)

    def _room(self) -> bool:
        disk = os.statvfs(self.args.output)
        if disk.f_bavail * disk.f_frsize >= LEAST_ROOM:
            return True
        self._say_once(f"{self.args.output}: less than 64 MiB are free; nothing is captured")
        return False

    def _begin(self, fired: Fired, others: list[Fired], now: float) -> None:
        """Write down what is known, and start the process that captures the rest."""
        wall, name = time.time(), fired.trigger.name
        left = None if name == BY_HAND.name else max(self._affordable(now), 0.0)
        short = left is not None and left < LAST_SHARE * self.share * HOUR
        incident: dict[str, Any] = {
            "format": 1,
            "name": captures.name_of(wall, name),
            "trigger": name,
            "title": fired.title,
            "severity": fired.trigger.severity,
            "at": datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="seconds"),
            "host": os.uname().nodename,
            "release": os.uname().release,
            "state": captures.RUNNING,
            "also": [other.title for other in others],
            "fired_before": self.told.fired.get(name, 0) - 1,
            "kernel_messages_lost": self.messages.lost,
        }
        if fired.trigger.record and self.args.profile:
            incident["record"] = fired.trigger.record
        place = lock = None
        try:
            place, lock = captures.new_place(self.args.output, incident["name"])
            with (place / capture.SAMPLES).open("wb") as file:
                file.write(json.dumps(self.header).encode() + b"\n")
                file.writelines(self.history.lines())
            (place / captures.INCIDENT).write_text(json.dumps(incident))
            with (place / "log.txt").open("ab") as log:
                process = subprocess.Popen(
                    capture.process(
                        place, dataclasses.replace(self.settings, samples=short, cpu=left)
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        except OSError as error:  # no memory, no disk: once more with the next sample
            self._say_once(f"{name}: cannot be captured yet: {error.strerror}")
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)
            return
        finally:
            if lock is not None:
                os.close(lock)
        alone = ": of samples alone, as --cpu is used up" if short else ""
        say(f"{name}: {fired.title}{alone}")
        ahead = len(self.running) + 1
        until = now + ahead * (self.args.timeout + GRACE)
        self.running.append(Running(process, fired, incident["name"], until))
        for one in (fired, *others):
            self.pending.pop(one.trigger.name, None)
            self.not_before[one.trigger.name] = now + one.trigger.distance

    @property
    def settings(self) -> capture.Settings:
        """How captures are made."""
        return capture.Settings(
            folder=str(self.args.output.resolve()),
            timeout=self.args.timeout,
            memory=int(self.args.memory * 2**20),
            budget=int(self.args.limit * 2**20),
            collect=self.args.collect.split(),
            text=self.args.text,
            command=self.args.exec,
        )

    def _look_after(self, running: Running, now: float) -> None:
        if running.process.poll() is None:
            if now < running.until:
                return
            say("a capture takes too long, and is ended")
            self._kill(running)
        self.running.remove(running)
        name = running.fired.trigger.name
        self.told.add(self.told.captured, name)
        self.told.last[name] = time.time()
        captures.tidy(self.args.output)
        for _, incident in captures.captures(self.args.output):
            if incident.get("name") == running.name:
                if incident.get("state") != captures.DONE:
                    self.told.add(self.told.cut, name)
                self.paid.append((now, float(incident.get("cpu_seconds", 0.0))))
                break
        self.not_before[""] = now + self.args.distance

    def _kill(self, running: Running) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()

    def end(self) -> None:
        """End what is being captured; what it has by now stays."""
        for one in self.running:
            self._kill(one)
        captures.tidy(self.args.output)
        self.messages.close()
        if self.args.openmetrics:
            # Numbers of a guard that is gone would be taken for those of now.
            Path(self.args.openmetrics).unlink(missing_ok=True)
