# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope watch``: page_owner's counts, again and again, on this host.

A sample is a copy of ``show_handles`` (``show_stacks`` before Linux 6.19); the handles' stacks are
copied when one is met that is not known. What is sampled is on disk at once, so that whatever ends
this process, ``mmscope page-owner`` makes a bundle of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from page_owner_counts import Counts, read_show_stacks_handles
from page_owner_series import read_series, time_in_name
from text_source import Source, TextError

from reports.bundle import Writer
from reports.page_owner_command import STACKS_FOLDER, UsageError, finish, say
from reports.this_host import this_host


def run(args: argparse.Namespace) -> int:
    """Take samples until told to stop, then make a bundle of them."""
    args.output, args.debugfs = Path(args.output), Path(args.debugfs)
    with Writer(args.output, replace=args.force) as writer:
        folder = args.output.with_name(args.output.name + ".samples")
        counts, resolver = _sources(args.debugfs)
        try:
            folder.mkdir()
        except FileExistsError:
            raise UsageError(
                f"{folder}: samples of an earlier watch; finish it with "
                f"'{finish_command(folder, args.output, handles=resolver is not None)}', "
                "or remove the folder"
            ) from None
        begin = time.monotonic()
        stopped = _sample(args, folder, counts, resolver)
        samples = sorted(map(str, folder.glob(f"{counts.name}.*")), key=time_of)
        if not samples:
            folder.rmdir()
            raise TextError(f"{counts}: nothing was sampled")
        resolvers = [str(folder / resolver.name)] if resolver is not None else []
        code = finish(args, read_series(samples, resolvers), writer, begin, this_host(), stopped)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return code


def time_of(path: str) -> float:
    """The time in a sample's name."""
    return time_in_name(os.path.basename(path)) or 0.0


def finish_command(folder: Path, bundle: Path, *, handles: bool) -> str:
    """What makes a bundle of samples that are left."""
    from shlex import quote

    place = quote(str(folder))
    files = f"{place}/show_stacks.*"
    if handles:
        files = f"--stacks {place}/show_stacks_handles {place}/show_handles.*"
    return f"mmscope page-owner {files} -o {quote(str(bundle))}"


def _sources(debugfs: Path) -> tuple[Path, Path | None]:
    """(what to sample, what resolves its handles)."""
    folder = debugfs / STACKS_FOLDER
    if (folder / "show_handles").exists():
        return folder / "show_handles", folder / "show_stacks_handles"
    if (folder / "show_stacks").exists():
        return folder / "show_stacks", None
    why = "is debugfs mounted, and this root?"
    if debugfs.is_dir() and os.access(debugfs, os.R_OK | os.X_OK):
        why = (
            "boot with page_owner=on a kernel with CONFIG_PAGE_OWNER, 6.9 or later; before that, "
            "copy page_owner at an interval and give the copies to 'mmscope page-owner'"
        )
    raise TextError(f"{folder}: no show_handles and no show_stacks: {why}")


def _sample(
    args: argparse.Namespace, folder: Path, counts: Path, resolver: Path | None
) -> list[str]:
    """Take samples; returns what the bundle should say about them."""
    stop = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True
        signal.signal(signum, signal.default_int_handler)  # twice is meant

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    interval, remarks = args.interval, []
    handles = Counts("show_handles")
    known: set[int] = set()
    sizes: dict[Path, int] = {}
    due = time.monotonic()
    taken = 0
    later = finish_command(folder, args.output, handles=resolver is not None)
    say(f"samples in {folder}; should this be killed: {later}")
    while not stop and (args.count is None or taken < args.count):
        path = folder / f"{counts.name}.{time.time():.6f}"
        sizes[path] = _copy(counts, path)
        taken += 1
        if resolver is not None:
            # The list of stacks only grows: read again when it lacks one, not before.
            with Source(str(path)) as source:
                handles.read(source)
            if handles.changed & handles.pages.keys() - known:
                _copy(resolver, folder / resolver.name)
                with Source(str(folder / resolver.name)) as source:
                    known = {*read_show_stacks_handles(source)[0], *handles.pages}
        if sum(sizes.values()) > args.limit * 2**20 and len(sizes) > 2:
            for old in list(sizes)[1::2][:-1] or list(sizes)[1:2]:
                old.unlink()
                del sizes[old]
            interval *= 2
            remarks = [
                f"samples thinned to stay in {args.limit:g} MiB; the interval is {interval:g} s"
            ]
        if sys.stderr.isatty():
            print(
                f"\r{taken} samples, every {interval:g} s; Ctrl-C ends\x1b[K",
                end="\r",
                file=sys.stderr,
            )
        due += interval
        while not stop and (args.count is None or taken < args.count):
            left = due - time.monotonic()
            if left <= 0:
                due = max(due, time.monotonic() - interval)
                break
            time.sleep(min(left, 0.1))
    return remarks


def _copy(source: Path, path: Path) -> int:
    """Copy a file that is made as it is read, so that it is whole or absent; returns its size."""
    data = source.read_bytes()
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    return len(data)
