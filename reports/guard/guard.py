# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard run``: the resident.

It samples, keeps the last minutes in memory, asks its triggers, and starts a process for each
capture. It imports neither drgn nor numpy, and stays in memory. What it and its captures take of
CPU and memory is for its unit or container to limit.
"""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.drgn.text.kernel_log import Kmsg
from mmscope.drgn.text.plain_file import make_folder, open_own
from mmscope.reports.bundle.outcome import DONE, UsageError, say
from mmscope.reports.guard import capture, captures, index_page
from mmscope.reports.guard.captures import Incident
from mmscope.reports.guard.cgroup_events import CgroupEvents
from mmscope.reports.guard.history import ENDS, History
from mmscope.reports.guard.kernel_messages import new_messages
from mmscope.reports.guard.trigger import Trigger, load
from mmscope.reports.watch.openmetrics import (
    Metrics,
    Points,
    check_name,
    expose,
    with_last,
    withdraw,
)
from mmscope.reports.watch.sample_log import FORMAT
from mmscope.reports.watch.samples import Sample, Sampler, host_target, thp_order

LOCK = ".guard.pid"
BY_HAND = Trigger("by-hand", "Asked for by hand", "notice", "", distance=0)
RESERVE = 4 << 20
# Of a CPU, that /proc/pagetypeinfo may take: it keeps interrupts off. And /proc/allocinfo.
PAGETYPEINFO_SHARE, LINES_SHARE = 0.001, 0.001
# The first part of a capture does not wait; the rest of one is done before that of the next.
MOST_AT_ONCE = 4
GRACE = 150.0  # seconds after its time that a capture is ended from outside
LEAST_ROOM = 64 << 20  # bytes that must be free for a capture to begin
# What may pass while guard watches.
PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}
# sys/mman.h, malloc.h
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
M_TRIM_THRESHOLD, M_TOP_PAD = -1, -2
KEPT = 4 << 20


def run(args: argparse.Namespace) -> int:
    """Watch until a signal ends it."""
    args.output = args.output.absolute()
    triggers = load(args.triggers)
    check_options(args)
    guard = Guard(args, triggers)
    guard.begin()
    # Before the lock shows whom to signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, signal.SIGUSR1, signal.SIGCHLD})
    if why := stay_in_memory(guard.rehearse):
        say(f"may be swapped out or wait for memory when the host is short of it: {why}")
    if guard.no_kmsg:
        say(f"{guard.no_kmsg}: failing allocations are not seen")
    say(f"{len(triggers)} triggers, every {args.interval:g} s; captures in {args.output}")
    try:
        guard.watch()
    finally:
        guard.end()
    return DONE


def check_options(args: argparse.Namespace) -> None:
    """
    Refuse options that would only fail when there is something to capture.

    :raises UsageError: one of them.
    """
    check_name(args.openmetrics)
    if not Path(args.proc_root, "proc").is_dir():
        raise UsageError(f"--proc-root {args.proc_root}: has no folder 'proc'; give that of a host")
    if args.collect:
        # In a process of its own: what it imports is of no use to the resident.
        words = ["collect", *words_of(args.collect), "-o", "x"]
        command = capture.mmscope(*words, main="mmscope.reports.commands.command", run="parsed")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise UsageError(f"--collect: {done.stderr.strip().partition(': ')[2]}")
        if done.stdout:
            what = visible(done.stdout.split("\n")[0])
            raise UsageError(f"--collect: {what!r} is no option; guard says what is read")


def words_of(text: str) -> list[str]:
    """
    The words of ``--collect``, as a shell has them.

    :raises UsageError: a quotation has no end.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--collect {text}: {error}") from None


def started(pid: int) -> str:
    """
    Time at which a process began, in clock ticks since boot: with its PID it is known from others.

    :raises OSError: there is no such process.
    """
    # The name, in parentheses, may have any character in it; starttime is field 22.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def check_lock(folder: Path) -> None:
    """
    Refuse what is in the place of the captures' lock and is none.

    :raises OSError: it cannot be opened, or is not ours.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.close(open_own(folder / capture.LOCK))


def ask_for_one(folder: Path) -> int:
    """
    Have the guard of a folder capture now.

    :raises UsageError: there is none, or what is in the place of a lock is no file of ours.
    """
    none = UsageError(f"{folder}: no guard is at work there: systemctl start mmscope-guard")
    try:
        check_lock(folder)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from None
    try:
        with open(open_own(folder / LOCK), "rb") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                raise none
            pid, start = file.read(100).decode().split()
        with contextlib.ExitStack() as stack:
            process = os.pidfd_open(int(pid))
            stack.callback(os.close, process)
            if started(int(pid)) != start:
                raise ValueError
            signal.pidfd_send_signal(process, signal.SIGUSR1)
    except (FileNotFoundError, NotADirectoryError):
        raise none from None
    except PermissionError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from None
    except (OSError, ValueError, ArithmeticError, LookupError):
        raise UsageError(f"{folder / LOCK}: does not name a guard; none is signaled") from None
    echo(f"asked; the capture will be in {folder}")
    return DONE


def stay_in_memory(rehearse: Callable[[], None]) -> str | None:
    """
    Lock what this process has in memory, and what it will have. A rehearsal has touched by then
    what it needs: code is not read from a disk, nor memory asked for, while there is none.

    :return: why it could not be done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # of glibc: what is free is kept
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(M_TOP_PAD, KEPT)
    rehearse()
    # Pages that were never touched stay away: they would be most of what is locked.
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT):
        return f"mlockall: {os.strerror(ctypes.get_errno())}; LimitMEMLOCK, or CAP_IPC_LOCK"
    return None


class Guard:
    """
    The resident.

    :ivar running: captures that are being made: process, incident, when it is to have ended, and
        since when it was wanted.
    :ivar pending: what waits to be captured, by trigger: since when, and its title.
    :ivar not_before: when a trigger may be captured again, and "" for any.
    :ivar wrong: housekeeping that fails, and how: it is said once, and tried again.
    :ivar lock: the open file that says who watches here; None while there is none.
    :ivar no_kmsg: why the kernel's log cannot be followed.
    """

    def __init__(self, args: argparse.Namespace, triggers: list[Trigger]) -> None:
        self.args, self.triggers = args, {one.name: one for one in (BY_HAND, *triggers)}
        self.running: list[tuple[subprocess.Popen[bytes], Incident, float, float]] = []
        self.pending: dict[str, tuple[float, str]] = {}
        self.not_before: dict[str, float] = {}
        self.fired: Counter[str] = Counter()
        self.captured: Counter[str] = Counter()
        self.cut_short: Counter[str] = Counter()
        self.last_capture: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.lock: int | None = None
        self.shows_pid = False
        root, self.page_size = args.proc_root, os.sysconf("SC_PAGE_SIZE")
        order = thp_order(root, self.page_size)
        self.sampler = Sampler(root, order, share=PAGETYPEINFO_SHARE, lines=LINES_SHARE)
        self.header = {
            "watch": FORMAT,
            "interval": args.interval,
            "target": host_target(root, self.page_size),
            "thp_order": order,
            "page_owner": None,
        }
        self.history = History(args.minutes * 60)
        self.history.reserve(RESERVE)
        self.kmsg, self.no_kmsg = None, ""
        kmsg = os.path.join(root, "dev/kmsg")
        try:
            self.kmsg = Kmsg(kmsg, from_now_on=True)
        except OSError as error:
            self.no_kmsg = f"{kmsg}: {error.strerror}"
        self.cgroups = CgroupEvents(os.path.join(root, "sys/fs/cgroup"))
        self.number = 0
        self.shown: Sample = {}

    def rehearse(self) -> None:
        """Do once what is done later, so that its code is in memory."""
        self.step(0.0)
        words = [sys.executable, "-I", "-S", "-c", ""]
        self._try("processes", lambda: subprocess.run(words, check=False))

    def begin(self) -> None:
        """
        Begin in the folder of captures. A disk that is full, damaged or read-only is waited for.

        :raises UsageError: another guard is there, or it cannot be written to at all.
        """
        try:
            check_lock(self.args.output)
            self._take_lock()
        except BlockingIOError:
            raise UsageError(f"{self.args.output}: another guard is at work there") from None
        except OSError as error:
            if error.errno not in PASSING:
                words = "is a file, no folder" if error.errno == errno.EEXIST else error.strerror
                raise UsageError(f"{error.filename or self.args.output}: {words}") from None

    def _take_lock(self) -> None:
        """
        Have the folder and its lock; again, where they were removed.

        :raises OSError: another guard has it (``BlockingIOError``), or it cannot be written.
        """
        path = self.args.output / LOCK
        if self.lock is None or not captures.is_at(self.lock, path):
            if self.lock is not None:
                os.close(self.lock)
            self.lock, self.shows_pid = None, False
            make_folder(self.args.output, 0o700, alone=True)
            self.lock = captures.locked(path, wait=False)
            self.wrong["clearing up"] = ""  # is to be done

    def _write_pid(self) -> None:
        if self.lock is not None and not self.shows_pid:
            os.ftruncate(self.lock, 0)
            os.pwrite(self.lock, f"{os.getpid()} {started(os.getpid())}\n".encode(), 0)
            self.shows_pid = True

    def _keep_folder(self) -> None:
        """See to the folder, and do again what failed there."""
        self._try("folder", self._take_lock)
        self._try(LOCK, self._write_pid)
        if self.wrong.keys() & {"clearing up", "index page"}:
            self._tidy()

    def _tidy(self) -> None:
        folder = self.args.output
        self._try("clearing up", lambda: captures.tidy(folder))
        self._try("index page", lambda: index_page.renew(folder, os.uname().nodename))

    def watch(self) -> None:
        """Sample and capture until a signal ends it."""
        due = time.monotonic()
        while True:
            self.step(max(time.monotonic() - due, 0.0))
            due = max(due + self.args.interval, time.monotonic())
            if self._wait(due):
                return

    def _wait(self, due: float) -> bool:
        """Wait until the next sample is due, and see to signals; True: it is to end."""
        while (left := due - time.monotonic()) > 0:
            came = signal.sigtimedwait({*ENDS, signal.SIGUSR1, signal.SIGCHLD}, left)
            if came is None:
                break
            if came.si_signo in ENDS:
                return True
            if came.si_signo == signal.SIGUSR1:
                self._want(BY_HAND, BY_HAND.title)
            self._advance_captures()
        return False

    def step(self, late: float) -> None:
        """Take a sample, and do what follows from it."""
        sample = self.sampler.take(late)
        try:
            sample["thp_any"] = self.sampler.thp_blocks()
        except (OSError, ValueError) as error:
            sample["unread"]["buddyinfo"] = str(error)
        self.number += 1
        sample |= {"number": self.number, "cpu_total": round(time.process_time(), 6)}
        moved = self.cgroups.new()
        pressed = self.cgroups.pressed(sample.get("psi", {}))
        messages = new_messages(self.kmsg) if self.kmsg else []
        self.history.add(sample, [*moved, *self.cgroups.above_high], messages, pressed)
        for trigger in self.triggers.values():
            if trigger is not BY_HAND and (title := trigger.fires(self.history)):
                self._want(trigger, title)
        failed = {name: one.failed for name, one in self.triggers.items() if one.failed}
        for name, why in failed.items():
            if self.failed.get(name) != why:
                say(f"trigger {name}: {why}")
        self.failed = failed
        self._keep_folder()
        self._advance_captures()
        self.shown = with_last(self.shown, sample)
        if self.args.openmetrics:
            self._try(
                str(self.args.openmetrics),
                lambda: expose(self.args.openmetrics, self.shown, self.page_size, self.metrics()),
            )

    def _try(self, what: str, work: Callable[[], Any]) -> bool:
        """True if some housekeeping was done; what went wrong is said once, until it goes well."""
        try:
            work()
        except OSError as error:
            words = error.strerror or str(error)
            if self.wrong.get(what) != words:
                say(f"{what}: {words}; watching goes on")
            self.wrong[what] = words
            return False
        self.wrong.pop(what, None)
        return True

    def _want(self, trigger: Trigger, title: str) -> None:
        """Remember that something is to be captured, unless the last one was too short ago."""
        name, now = trigger.name, time.monotonic()
        self.fired[name] += 1
        if trigger is not BY_HAND and any(one["trigger"] == name for _, one, *_ in self.running):
            return
        if now >= self.not_before.get(name, 0.0) and name not in self.pending:
            self.pending[name] = now, title
            left = self.not_before.get("", 0.0) - now
            if left > 0 and trigger is not BY_HAND:
                say(f"{name}: {title}: waits {left:.0f} s, for --distance")

    def _advance_captures(self) -> None:
        """Reap captures that have ended, end those that take too long, begin the next."""
        now = time.monotonic()
        self.running = [one for one in self.running if not self._ended(*one, now)]
        # What the samples do not show any more is no use to capture.
        self.pending = {
            name: one for name, one in self.pending.items() if now - one[0] < self.history.seconds
        }
        # In the order of severity, by hand first, which waits for no distance.
        ready = [name for name in self.triggers if name in self.pending]
        if now < self.not_before.get("", 0.0):
            ready = [name for name in ready if name == BY_HAND.name]
        if len(self.running) < MOST_AT_ONCE and ready and self.lock is not None:
            self._try(f"{ready[0]}: not captured yet", lambda: self._start_capture(ready, now))

    def _start_capture(self, ready: list[str], now: float) -> None:
        """
        Write down what is known, and start the process that captures the rest.

        :raises OSError: it cannot be done now: with the next sample once more.
        """
        disk = os.statvfs(self.args.output)
        if disk.f_bavail * disk.f_frsize < LEAST_ROOM:
            raise OSError(errno.ENOSPC, "less than 64 MiB are free")
        name, *others = ready
        trigger, (since, title) = self.triggers[name], self.pending[name]
        incident = captures.new_incident(
            time.time(),
            name,
            trigger.severity,
            title,
            release=os.uname().release,
            also=[self.pending[other][1] for other in others],
            fired_before=self.fired[name] - 1,
            kernel_messages_lost=self.kmsg.overwritten if self.kmsg else 0,
        )
        if trigger.record and self.args.profile:
            incident["record"] = trigger.record
        place = lock = None
        try:
            place, lock = captures.new_place(self.args.output, incident["name"])
            with (place / capture.SAMPLES).open("wb") as file:
                file.write(json.dumps(self.header).encode() + b"\n")
                file.writelines(self.history.lines())
            (place / captures.INCIDENT).write_text(json.dumps(incident))
            settings = capture.settings_of(
                self.args, collect=words_of(self.args.collect), text=self.args.text
            )
            with (place / "log.txt").open("ab") as log:
                process = subprocess.Popen(
                    capture.process(place, settings),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        except OSError:
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)
            raise
        finally:
            if lock is not None:
                os.close(lock)
        say(f"{name}: {title}")
        ahead = len(self.running) + 1
        until = now + ahead * (self.args.timeout + GRACE)
        self.running.append((process, incident, until, since))
        for one in ready:
            del self.pending[one]
            self.not_before[one] = now + self.triggers[one].distance

    def _ended(
        self,
        process: "subprocess.Popen[bytes]",
        begun: Incident,
        until: float,
        since: float,
        now: float,
    ) -> bool:
        """True if a capture has ended, or had to be."""
        if process.poll() is None:
            if now < until:
                return False
            say("a capture takes too long, and is ended")
            _kill(process)
        name = begun["trigger"]
        self._tidy()
        found: list[Incident] = []
        read = self._try("captures", lambda: found.extend(self._captures_of(begun)))
        if found:
            self.captured[name] += 1
            self.last_capture[name] = time.time()
            self.cut_short[name] += found[0].get("state") != captures.DONE
        elif read:
            # It never got its name: the disk was full, or is gone.
            say(f"{name}: was not captured; once more, when that can be")
            self.pending.setdefault(name, (since, begun["title"]))
        self.not_before[""] = now + self.args.distance
        return True

    def _captures_of(self, begun: Incident) -> list[Incident]:
        made = (one for _, one in captures.captures(self.args.output))
        return [one for one in made if one.get("name") == begun["name"]]

    def metrics(self) -> Metrics:
        """Guard's own metrics, beside those of its last sample."""

        def by_trigger(counts: Mapping[str, float]) -> Points:
            return [({"trigger": name}, value) for name, value in counts.items()]

        times = os.times()
        return {
            "guard_fired": by_trigger(self.fired),
            "guard_captures": by_trigger(self.captured),
            "guard_captures_cut_short": by_trigger(self.cut_short),
            "guard_last_capture_timestamp_seconds": by_trigger(self.last_capture),
            "guard_failed_triggers": [({}, len(self.failed))],
            "guard_resident_bytes": [({}, size) for size in _resident_bytes()],
            "guard_capture_cpu_seconds": [
                ({}, round(times.children_user + times.children_system, 3))
            ],
        }

    def end(self) -> None:
        """End what is being captured; what it has by now stays."""
        for process, *_ in self.running:
            _kill(process)
        self._tidy()
        if self.kmsg:
            self.kmsg.close()
        if self.args.openmetrics:
            gone = self.args.openmetrics
            self._try(str(gone), lambda: withdraw(gone))
        if self.lock is not None:
            os.close(self.lock)


def _resident_bytes() -> list[int]:
    """Memory of this process; empty where /proc is not there."""
    try:
        return [int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")]
    except (OSError, ValueError, IndexError):
        return []


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
