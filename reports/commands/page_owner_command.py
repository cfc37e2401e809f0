# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope page-owner``, ``mmscope watch`` and ``mmscope show page_owner FILE``.

Imports no drgn, numpy or rich. Exit codes as of ``mmscope``.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from mmscope.drgn.text.page_owner_series import Series, read_series
from mmscope.drgn.text.page_owner_text import CULL_KEYS, Selection, read_page_owner
from mmscope.drgn.text.text_source import Source, TextError, recognise_source
from mmscope.reports.bundle.options import (
    PROC_ROOT,
    Command,
    add_output,
    add_prices,
    at_least_one,
    option,
    positive,
)
from mmscope.reports.bundle.outcome import (
    DONE,
    INCOMPLETE,
    UsageError,
    progress_line,
    say,
    unexpected,
)
from mmscope.reports.watch import page_owner

DEBUGFS = "/sys/kernel/debug"


def add_command(command: Command) -> None:
    """Declare ``page-owner``."""
    sub = command(
        "page-owner",
        run_page_owner,
        "who owns the memory: page_owner's debugfs files, one or a series",
        "Read files of /sys/kernel/debug: page_owner, page_owner_stacks/show_stacks or "
        "show_handles; one, or any number taken over time. gzip, bzip2, xz or zstd are fine, and "
        "- is standard input.",
    )
    sub.set_defaults(unopened=(TextError, OSError), explain=unexpected)
    sub.add_argument("files", nargs="+", metavar="FILE", help="snapshots, in any order")
    option(
        sub,
        "--stacks FILE",
        "show_stacks_handles, which has the stacks of handles; several show reused ones",
        default=[],
        action="append",
    )
    option(
        sub,
        "--interval S",
        "seconds between the files, in the order of the numbers in their names, else as "
        "given (default: by the times in their names, else change times)",
        positive,
    )
    option(sub, "--top N", "lines to print (default: 20)", int, page_owner.TOP)
    add_host_options(sub)
    add_selection_options(sub)


def add_watch(command: Command) -> None:
    """Declare ``watch``."""
    sub = command(
        "watch",
        "mmscope.reports.watch.watch:run",
        "sample this host's memory at an interval: rates, levels, events, who grew",
        "Sample counters, free blocks of THP size, zones, memory pressure, levels, KSM and, where "
        "the kernel has it, page_owner, until --count or Ctrl-C; then write a bundle. Samples lie "
        "in BUNDLE.samples until then. Works without root, with less.",
    )
    sub.set_defaults(unopened=(TextError, OSError), explain=unexpected)
    option(sub, "--interval S", "time between samples, default 10", positive, 10.0)
    option(sub, "--count N", "samples to take (default: until Ctrl-C)", at_least_one)
    option(
        sub,
        "--limit MIB",
        "most that samples may take on disk, default 64; beyond it, every other sample is "
        "dropped and the interval doubles. The bundle takes about as much again once it is written",
        positive,
        64.0,
    )
    option(
        sub,
        "--openmetrics FILE",
        "also write each sample there: as node_exporter's textfile collector reads it if this "
        "is FILE.prom (in its folder), else as OpenMetrics; removed at the end",
        Path,
    )
    sub.add_argument(
        "--recover",
        action="store_true",
        help="take no samples: make the bundle of those that a watch left when it was killed",
    )
    sub.add_argument("--proc-root", **PROC_ROOT)
    option(sub, "--debugfs DIR", f"default: {DEBUGFS}", Path, DEBUGFS)
    add_prices(sub)
    add_host_options(sub, required=True)


def numbers(text: str) -> list[int]:
    """A comma-separated list of numbers, for argparse."""
    return [int(word, 0) for word in text.split(",")]


def names(text: str) -> list[bytes]:
    """A comma-separated list of names, for argparse."""
    return [os.fsencode(word) for word in text.split(",") if word]


def add_host_options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Declare what to write, and what is known of the host."""
    add_output(parser, required=required)
    option(parser, "--page-size BYTES", "page size of the host (default: this machine's)", int)
    option(parser, "--total-pages N", "pages of the host, for shares of its memory", int)


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Declare what to count of a ``page_owner`` file."""
    group = parser.add_argument_group("selection (page_owner files only)")
    for name, read, metavar, text in (
        ("pid", numbers, "N,…", "threads"),
        ("tgid", numbers, "N,…", "processes"),
        ("comm", names, "NAME,…", "task names"),
        ("order", numbers, "N,…", "orders"),
    ):
        group.add_argument(f"--{name}", type=read, default=[], metavar=metavar, help=text)
    option(group, "--gfp NAME|…", "flags that must be set as printed, or one mask as printed")
    option(group, "--module NAME,…", "modules in the stack", names, [])
    option(group, "--since NS", "allocated at or after this ts", int)
    option(group, "--until NS", "allocated at or before this ts", int)


def add_cull_options(parser: argparse.ArgumentParser) -> None:
    """Declare what ``mmscope show page_owner FILE`` adds to it."""
    add_selection_options(parser)
    option(
        parser,
        "--cull KEY,…",
        f"count page_owner FILE by these together: {', '.join(CULL_KEYS)} (default: stack)",
        lambda text: text.split(","),
    )
    option(parser, "--sort KEY", "pages (default), times, ts, or one of the keys")
    option(
        parser,
        "--top N",
        "rows of a table; to look at, those with most, if it has one column of sizes "
        "(default: all; of a page_owner file, 20)",
        at_least_one,
    )


def selection_of(args: argparse.Namespace, cull: Sequence[str] = ()) -> Selection | None:
    """The selection options; None if none is given."""
    wanted = {name: getattr(args, name) for name in ("pid", "tgid", "comm", "order", "module")}
    wanted["gfp"] = os.fsencode(args.gfp).split(b"|") if args.gfp else []
    timed = args.since is not None or args.until is not None
    if not (cull or timed or any(wanted.values())):
        return None
    return Selection(**wanted, since=args.since, until=args.until, cull=cull)


def _in_words(done: int, total: int) -> str:
    share = f" of {total / 2**20:,.0f}" if total else ""
    return f"{done / 2**20:,.0f}{share} MiB read"


def run_page_owner(args: argparse.Namespace) -> int:
    if args.output is not None:
        return page_owner.write_bundle(args, lambda: _read(args), page_size(args))
    series = _read(args)
    stacks, growth = page_owner.stacks_of(series), page_owner.growth_of(series)
    page_owner.print_top(series, stacks, growth, page_size(args), top=args.top)
    notes, remarks = page_owner.notes_of(series)
    for note in notes + remarks:
        say(note)
    return INCOMPLETE if notes else DONE


def _read(args: argparse.Namespace) -> Series:
    return read_series(
        args.files,
        args.stacks,
        selection=selection_of(args),
        interval=args.interval,
        progress=progress_line(_in_words),
    )


def page_size(args: argparse.Namespace) -> int:
    """Page size of the host, in bytes."""
    return args.page_size or os.sysconf("SC_PAGE_SIZE")


def run_show(args: argparse.Namespace) -> int:
    """``mmscope show page_owner FILE``: counts by any keys together."""
    from mmscope.drgn.tables.rows import Column
    from mmscope.drgn.tables.terminal import print_rows  # with rich, which others do without

    cull = args.cull or ["stack"]
    for key in cull:
        if key not in CULL_KEYS:
            raise UsageError(f"--cull {key}: no such key; there are {', '.join(CULL_KEYS)}")
    sort = args.sort or "pages"
    if sort not in page_owner.SORTS and sort not in cull:
        known = ", ".join((*page_owner.SORTS, *cull))
        raise UsageError(f"--sort {sort}: not among what is counted: {known}")
    selection = selection_of(args, cull)
    assert selection is not None  # it culls
    with Source(str(args.bundle)) as source:
        kind = recognise_source(source)
        if kind != "page_owner":
            raise UsageError(f"{args.bundle}: is {kind}; 'mmscope page-owner' reads it")
        tally = read_page_owner(source, selection, progress_line(_in_words))
    top = args.top or (page_owner.TOP if args.format == "table" else 1 << 62)
    described, rows, more = page_owner.culled_rows(tally, selection, sort, top)
    columns = [
        Column(name, kind, unit="pages" if name == "pages" else "", key=name in cull)
        for name, kind in described
    ]
    print_rows(columns, rows, form=args.format)
    if more:
        say(f"{more:,} rows more; --top shows them")
    skipped = tally["skipped"]
    if skipped or tally["truncated"]:
        cut = "; the last record was cut short" if tally["truncated"] else ""
        say(f"{page_owner.not_understood(skipped)}{cut}")
    return INCOMPLETE if skipped or tally["truncated"] else DONE
