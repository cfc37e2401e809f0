# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope watch``: what a running host's memory does, as a time series.

Samples go to a log beside the bundle as they are taken, and with them copies of page_owner's counts
(``show_handles``, ``show_stacks`` before Linux 6.19) where the kernel has them; the handles' stacks
are copied when one is met that is not known. Whatever ends this process, what was sampled is there,
and ``--recover`` makes a bundle of it.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from shlex import quote
from typing import Any

from mmscope.drgn.tables.hostile_text import cut, echo
from mmscope.drgn.text.page_owner_series import read_series
from mmscope.drgn.text.page_owner_text import MAX_BYTES, read_counts, read_show_stacks_handles
from mmscope.drgn.text.plain_file import check_folder, open_plain, read_plain
from mmscope.drgn.text.text_source import Source, TextError
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.leftovers import replaced
from mmscope.reports.bundle.modes import as_umask, mode_of_file, mode_of_folder
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.findings_said import print_findings
from mmscope.reports.watch import page_owner, watch_tables
from mmscope.reports.watch.holders import cpu_seconds
from mmscope.reports.watch.openmetrics import check_name, expose, with_last, withdraw
from mmscope.reports.watch.sample_log import NAME, SampleLog, lock
from mmscope.reports.watch.samples import Sampler, host_target, thp_order

STACKS_FOLDER = "page_owner_stacks"
# A copy of page_owner's counts that is a larger part of the limit leaves no room for a series.
COPY_SHARE = 1 / 8


def run(args: argparse.Namespace) -> int:
    """Take samples until a signal or the count ends it, or find those left; then make a bundle."""
    with Writer(args.output, replace=args.force, mode=args.mode):
        pass  # what is in the way is refused before the work
    folder = args.output.with_name(args.output.name + ".samples")
    if not args.recover:
        _watch(args, folder)
    elif not (folder / NAME).is_file():
        raise UsageError(f"{folder}: no samples of an earlier watch")
    check_folder(folder)
    with open(open_plain(folder / NAME), "rb") as log:
        lock(log.fileno(), folder)
        try:
            code = finish(args, folder)
        except BaseException:
            say(f"{folder} is still there; '{recover_command(args.output)}' tries again")
            raise
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return code


def finish(args: argparse.Namespace, folder: Path) -> int:
    """
    Make the bundle, print what stands out, and say what is missing; returns the exit code.

    :raises TextError: the samples cannot be read.
    """
    begin = time.monotonic()
    with Writer(args.output, replace=args.force, mode=args.mode) as writer:
        try:
            log = watch_tables.open_log(folder / NAME)
            target, why = watch_tables.target(log), log.header["page_owner"]
            size = target["page_size"]
            if not isinstance(size, int) or size <= 0 or not isinstance(why, str | None):
                raise ValueError(f"page_size {size!r}, page_owner {why!r}")
            rows, cost = watch_tables.write_tables(writer, log)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, TextError):
                raise
            raise TextError(f"{folder / NAME}: damaged: {cut(repr(error), 200)}") from error
        sections = [watch_tables.section(log, rows, cost, time.monotonic() - begin)]
        found = sorted(folder.glob("show_[hs]*.[0-9]*"))
        copies = [str(path) for path in found if path.is_file()]
        resolvers = [str(path) for path in folder.glob("show_stacks_handles") if path.is_file()]
        # What is wrong with the copies takes nothing from the samples.
        try:
            series = read_series(copies, resolvers) if copies else None
        except (OSError, TextError) as error:
            series, why = None, str(error)
        if series is not None:
            fared, stacks, growth = page_owner.write_tables(
                writer, series, size, seconds=time.monotonic() - begin
            )
            if len(copies) < len(found):
                others = f"{len(found) - len(copies)} of {len(found)} copies are not plain files"
                fared = fared.with_words(others, "partial")
            sections.append(fared)
        else:
            status = "failed" if found else "absent"
            why = why or "its copies are not plain files" if found else why
            sections.append(SectionResult(page_owner.SECTION, status, 0.0, 0, 0, why))
        writer.finish(target, sections)
    for line in watch_tables.summary(log, cost):
        echo(line)
    if series is not None:
        echo()
        page_owner.print_top(series, stacks, growth, size)
    print_findings(args.output, [s.section for s in sections if s.status != "absent"])
    missing = [s for s in sections if s.status not in ("ok", "absent")]
    for section in missing:
        say(f"{section.section}: {section.status}: {section.message}")
    return INCOMPLETE if missing else DONE


def recover_command(bundle: Path) -> str:
    """The command that makes a bundle of samples that are left."""
    return f"mmscope watch --recover -o {quote(str(bundle))}"


def _watch(args: argparse.Namespace, folder: Path) -> None:
    """
    Take samples into a folder until a signal or the count ends it.

    :raises TextError: there is nothing to sample here.
    :raises UsageError: the folder is there.
    """
    page_size = args.page_size or os.sysconf("SC_PAGE_SIZE")
    order = thp_order(args.proc_root, page_size)
    sampler = Sampler(args.proc_root, order, everything=args.all, holders=True)
    first = sampler.take(trial=True)
    owners = Owners(args.debugfs, folder, args.limit * 2**20)
    if owners.absent and not first.keys() & {"vmstat", "psi", "meminfo", "zones"}:
        raise TextError("; ".join(first["unread"].values()))
    check_name(args.openmetrics)
    if args.openmetrics:
        # That it cannot be written is to be known now.
        first |= {"number": 0, "cpu_total": 0.0}
        expose(args.openmetrics, first, page_size)
    try:
        folder.mkdir(mode_of_folder(mode_of_file(args.mode)))
    except FileExistsError:
        raise UsageError(
            f"{folder}: samples of an earlier watch; finish it with "
            f"'{recover_command(args.output)}', or remove the folder"
        ) from None
    header = {
        "interval": args.interval,
        "target": host_target(args.proc_root, page_size, args.total_pages),
        "thp_order": order,
        "page_owner": owners.absent,
    }
    log = SampleLog(folder, header, args.limit * 2**20)
    try:
        _sample(args, sampler, owners, log, page_size)
        log.say(sampler.holders() | sampler.sleepers())
    finally:
        log.close()
        if args.openmetrics:
            withdraw(args.openmetrics)


def _sample(
    args: argparse.Namespace, sampler: Sampler, owners: "Owners", log: SampleLog, page_size: int
) -> None:
    signals = {
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # What nohup and a shell's background jobs ignore is to be ignored.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    # Blocked, and waited for: no half a sample, and no waking up only to look.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    say(f"samples are in {log.path.parent}; if this is killed: {recover_command(args.output)}")
    interval, number, failed = args.interval, 0, False
    shown: dict[str, Any] = {}
    start = due = time.monotonic()
    wall, cpu = time.time(), cpu_seconds()
    try:
        while True:
            row = sampler.take(late=max(time.monotonic() - due, 0.0))
            number += 1
            # A name that keeps the order also when the host's clock is set back.
            copy = None
            try:
                copy = owners.copy(wall + row["mono"] - start)
            except OSError as error:
                row["unread"]["page_owner"] = f"{error.filename}: {error.strerror}"
            row |= {"number": number, "cpu_total": round(cpu_seconds() - cpu, 6)}
            log.add(row, copy)
            if args.openmetrics:
                shown = with_last(shown, row)
                try:
                    expose(args.openmetrics, shown, page_size)
                    failed = False
                except OSError as error:
                    if not failed:
                        say(f"{args.openmetrics}: {error.strerror}; sampling goes on without")
                    failed = True
            if log.full:
                interval *= 2
                if not log.thin(interval):
                    log.say({"ended": number})
                    say(f"ended: --limit {args.limit:g} MiB holds no more than {number} samples")
                    return
            if number == args.count:
                return
            if sys.stderr.isatty():
                words = f"{number:,} samples, every {interval:g} s; Ctrl-C ends"
                echo(words, begin="\r", end="\x1b[K\r", file=sys.stderr)
            # What was missed is not made up for in a rush.
            due = max(due + interval, time.monotonic())
            if _ended_by_signal(signals, due):
                return
    finally:
        if sys.stderr.isatty():
            echo(begin="\r", end="\x1b[K", file=sys.stderr)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended_by_signal(signals: set[signal.Signals], due: float) -> bool:
    """Wait until it is time, or a signal comes."""
    while True:
        left = due - time.monotonic()
        if signal.sigtimedwait(signals, max(left, 0)) is not None:
            # A terminal and sudo may each pass the same Ctrl-C on.
            signal.sigtimedwait(signals, 0.1)
            return True
        if left <= 0:
            return False


class Owners:
    """
    Copies of page_owner's counts.

    :param debugfs: where it is mounted.
    :param folder: to copy to.
    :param limit: bytes that all copies may take.
    :ivar absent: why they are missing.
    """

    def __init__(self, debugfs: Path, folder: Path, limit: float) -> None:
        self.folder = folder
        self.absent: str | None = None
        self._resolver: Path | None = None
        self._known: set[int] = set()
        source = debugfs / STACKS_FOLDER
        if (source / "show_handles").exists():
            self._counts, self._resolver = source / "show_handles", source / "show_stacks_handles"
        elif (source / "show_stacks").exists():
            self._counts = source / "show_stacks"
        else:
            self.absent = f"{source}: no show_handles and no show_stacks: {_why_not(debugfs)}"
            return
        size = len(read_plain(self._counts, MAX_BYTES))
        if size > limit * COPY_SHARE:
            self.absent = (
                f"{self._counts} is {size / 2**20:.3g} MiB: more than an eighth of --limit, which "
                "leaves no room for a series; raise it"
            )

    def copy(self, now: float) -> Path | None:
        """Copy the counts, and the stacks if there is a handle that is not known."""
        if self.absent:
            return None
        path = self.folder / f"{self._counts.name}.{now:.6f}"
        _copy(self._counts, path)
        if self._resolver is not None:
            # The list of stacks only grows: read again when it lacks one, not before.
            with Source(str(path)) as source:
                handles, _ = read_counts(source, "show_handles", {})
            if handles.keys() - self._known:
                stacks = self.folder / self._resolver.name
                _copy(self._resolver, stacks)
                with Source(str(stacks)) as source:
                    found = read_show_stacks_handles(source)[0]
                self._known = {*found, *handles}
        return path


def _why_not(debugfs: Path) -> str:
    if debugfs.is_dir() and os.access(debugfs, os.R_OK | os.X_OK) and any(debugfs.iterdir()):
        return (
            "boot with page_owner=on a kernel with CONFIG_PAGE_OWNER, 6.9 or later; before that, "
            "copy page_owner at an interval and give the copies to 'mmscope page-owner'"
        )
    return "is debugfs mounted, and this root?"


def _copy(source: Path, path: Path) -> None:
    """Copy a file that is made as it is read, so that it is whole or absent."""
    data = read_plain(source, MAX_BYTES)
    with replaced(path, as_umask()) as file:
        file.write(data)
