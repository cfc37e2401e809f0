# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope page-owner``, ``mmscope watch`` and ``mmscope show page_owner FILE``.

Imports no drgn, numpy or rich before it needs them. Exit codes as of ``mmscope``.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hostile_text import visible
from page_owner_series import Series, columns_by_key, growth_rows, read_series, time_in_name
from page_owner_text import (
    CULL_KEYS,
    EVERYTHING,
    Selection,
    Source,
    TextError,
    read_page_owner,
    read_show_handles,
    read_show_stacks_handles,
    recognise_source,
)

from reports import page_owner
from reports.bundle import Bundle, BundleError, Cell, Section, Writer

if TYPE_CHECKING:
    from page_owner_text import Progress

DONE, INCOMPLETE, BAD_USAGE, NO_TARGET = 0, 1, 2, 3
DEBUGFS = Path("/sys/kernel/debug")
STACKS_FOLDER = "page_owner_stacks"
Command = Callable[..., argparse.ArgumentParser]


class UsageError(Exception):
    """What was asked for does not fit together."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands by itself; returns its exit code."""
    parser = argparse.ArgumentParser(prog="mmscope")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, help: str, text: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=text or help)
        sub.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
        sub.set_defaults(run=run)
        return sub

    add_commands(command)
    args = parser.parse_args(arguments)
    return run_and_explain(args.run, args)


def run_and_explain(
    run: Callable[[argparse.Namespace], int],
    args: argparse.Namespace,
    unopened: tuple[type[Exception], ...] = (TextError, OSError),
) -> int:
    """
    Run a command; an error is a line that says what to do. Returns the exit code.

    :param unopened: what means that there is nothing to read.
    """
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        say("interrupted; nothing is left half-written")
        return 130
    except unopened + (BundleError, UsageError, OSError) as error:  # noqa: RUF005
        if args.verbose:
            import traceback

            traceback.print_exc()
        if isinstance(error, OSError):
            say(f"{error.filename or 'output'}: {error.strerror}")
        else:
            say(str(error))
        return NO_TARGET if isinstance(error, unopened) else BAD_USAGE


def say(text: str) -> None:
    """A line for the user, on stderr."""
    print(f"mmscope: {visible(text)}", file=sys.stderr)


def add_commands(command: Command) -> None:
    """Declare ``page-owner`` and ``watch``."""
    sub = command(
        "page-owner",
        run_page_owner,
        "who owns the memory: page_owner's debugfs files, one or a series",
        "Read files of /sys/kernel/debug: page_owner, page_owner_stacks/show_stacks or "
        "show_handles; one, or any number taken over time. gzip, xz or zstd are fine, and - is "
        "standard input.",
    )
    sub.add_argument("files", nargs="+", metavar="FILE", help="snapshots, in any order of time")
    sub.add_argument(
        "--stacks",
        action="append",
        default=[],
        metavar="FILE",
        help="show_stacks_handles, which tells the stacks of handles; several tell reused handles",
    )
    sub.add_argument(
        "--interval",
        type=positive,
        metavar="S",
        help="seconds between the files as given (default: by their names, or change times)",
    )
    _add_output(sub, required=False)
    add_selection_options(sub)
    sub.add_argument("--top", type=int, default=page_owner.TOP, help="lines to print, default 20")

    sub = command(
        "watch",
        run_watch,
        "take page_owner's counts again and again on this host",
        "Read show_handles (or show_stacks before Linux 6.19) at an interval until --count or "
        "Ctrl-C, then write a bundle. Samples lie in BUNDLE.samples until then.",
    )
    sub.add_argument("--interval", type=positive, default=10.0, metavar="S", help="default: 10")
    sub.add_argument(
        "--count", type=int, metavar="N", help="samples to take (default: until Ctrl-C)"
    )
    sub.add_argument(
        "--limit",
        type=positive,
        default=64.0,
        metavar="MIB",
        help="of samples on disk, default 64; beyond it every other sample goes, and the interval "
        "doubles",
    )
    sub.add_argument(
        "--debugfs", type=Path, default=DEBUGFS, metavar="DIR", help=f"default: {DEBUGFS}"
    )
    _add_output(sub, required=True)


def _add_output(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=required,
        metavar="BUNDLE",
        help="folder to make",
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    parser.add_argument(
        "--page-size", type=int, metavar="BYTES", help="of the host (default: this machine's)"
    )
    parser.add_argument(
        "--total-pages", type=int, metavar="N", help="of the host, for shares of its memory"
    )


def positive(text: str) -> float:
    """A number above zero, for argparse."""
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def numbers(text: str) -> list[int]:
    """A comma-separated list of numbers, for argparse."""
    return [int(word, 0) for word in text.split(",")]


def names(text: str) -> list[bytes]:
    """A comma-separated list of names, for argparse."""
    return [os.fsencode(word) for word in text.split(",") if word]


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """What to count of a ``page_owner`` file."""
    group = parser.add_argument_group("selection (page_owner files only)")
    group.add_argument("--pid", type=numbers, default=[], metavar="N,…", help="threads")
    group.add_argument("--tgid", type=numbers, default=[], metavar="N,…", help="processes")
    group.add_argument("--comm", type=names, default=[], metavar="NAME,…", help="task names")
    group.add_argument("--order", type=numbers, default=[], metavar="N,…", help="orders")
    group.add_argument(
        "--gfp", metavar="NAME|…", help="flags that must be set as printed, or one mask as printed"
    )
    group.add_argument(
        "--module", type=names, default=[], metavar="NAME,…", help="modules in the stack"
    )
    group.add_argument("--since", type=int, metavar="NS", help="allocated at or after this ts")
    group.add_argument("--until", type=int, metavar="NS", help="allocated at or before this ts")


def add_cull_options(parser: argparse.ArgumentParser) -> None:
    """What ``mmscope show page_owner FILE`` adds to it."""
    add_selection_options(parser)
    parser.add_argument(
        "--cull",
        type=lambda text: text.split(","),
        metavar="KEY,…",
        help=f"count page_owner FILE by these together: {', '.join(CULL_KEYS)} (default: stack)",
    )
    parser.add_argument(
        "--sort", metavar="KEY", help="pages (default), times, ts, or one of the keys"
    )
    parser.add_argument("--top", type=int, metavar="N", help="rows (default: 20 in a table)")


def selection_of(args: argparse.Namespace, cull: Sequence[str] = ()) -> Selection:
    """The selection options; :data:`EVERYTHING` if there are none."""
    gfp = os.fsencode(args.gfp).split(b"|") if args.gfp else []
    wanted = {
        "pid": args.pid,
        "tgid": args.tgid,
        "comm": args.comm,
        "order": args.order,
        "gfp": gfp,
        "module": args.module,
    }
    timed = args.since is not None or args.until is not None
    if not (cull or timed or any(wanted.values())):
        return EVERYTHING
    return Selection(**wanted, since=args.since, until=args.until, cull=cull)


def progress_line() -> "Progress | None":
    """Progress on a terminal; silence in a pipe."""
    if not sys.stderr.isatty():
        return None
    last = 0.0

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            share = f" of {total / 2**20:,.0f}" if total else ""
            print(f"\r{done / 2**20:,.0f}{share} MiB read\x1b[K", end="\r", file=sys.stderr)

    return show


def run_page_owner(args: argparse.Namespace) -> int:
    if args.output is not None:
        # Refuses what is in the way before the work.
        with Writer(args.output, replace=args.force) as writer:
            begin = time.monotonic()
            series = _read(args)
            return finish(args, series, writer, begin, {})
    series = _read(args)
    columns = columns_by_key(series.snapshots)
    growth = list(growth_rows(series, columns)) if len(series.snapshots) > 1 else []
    growth.sort(key=lambda row: -row[page_owner.GAINED])
    stacks = page_owner.stacks_of(series, columns)
    page_owner.print_top(stacks, growth, page_size(args), top=args.top)
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
        progress=progress_line(),
    )


def page_size(args: argparse.Namespace) -> int:
    """Of the host, in bytes."""
    return args.page_size or os.sysconf("SC_PAGE_SIZE")


def finish(
    args: argparse.Namespace,
    series: Series,
    writer: Writer,
    begin: float,
    target: dict[str, Cell],
    notes: Sequence[str] = (),
) -> int:
    """Write the bundle, print what stands out, and say what is missing."""
    import datetime

    size = page_size(args)
    section, stacks, growth = page_owner.write_tables(
        writer, series, size, seconds=time.monotonic() - begin
    )
    captured = None
    if series.absolute:
        moment = datetime.datetime.fromtimestamp(int(series.absolute[-1]), datetime.UTC)
        captured = moment.isoformat()
    described: dict[str, Cell] = {
        "kind": "files",
        "release": None,
        "architecture": None,
        "page_size": size,
        "hostname": None,
        "captured_at": captured,
        "uptime_seconds": None,
        "total_pages": args.total_pages,
        "online_cpus": None,
        "source": ", ".join(dict.fromkeys(s.source for s in series.snapshots[:3])),
    } | target
    if args.total_pages is not None:
        described["total_pages"] = args.total_pages
    assumed = [] if args.page_size or target else [f"page size {size} assumed, as of this machine"]
    message = "; ".join(filter(None, (section.message, *notes, *assumed)))
    status = "partial" if notes else section.status
    section = Section(
        section.section, status, section.seconds, section.rows, section.unreadable_bytes, message
    )
    writer.finish(described, [section])
    page_owner.print_top(stacks, growth, size, top=getattr(args, "top", page_owner.TOP))
    print_findings(args.output)
    if section.status != "ok":
        say(f"{section.section}: {section.status}: {section.message}")
    return DONE if section.status == "ok" else INCOMPLETE


def print_findings(path: Path) -> None:
    """What the bundle's tables mean; those findings that are about page_owner."""
    try:
        from reports.command import print_findings as print_verdict
        from reports.findings import evaluate, load_questions
    except ImportError as error:
        say(f"findings need {error.name}: run 'mmscope findings' where it is installed")
        return
    questions = [q for q in load_questions() if q.section == page_owner.SECTION]
    print()
    print_verdict(evaluate(Bundle(path), questions), everything=False)


def run_show(args: argparse.Namespace) -> int:
    """``mmscope show page_owner FILE``: counts by any keys together."""
    from rows import Column
    from terminal import print_rows

    cull = args.cull or ["stack"]
    for key in cull:
        if key not in CULL_KEYS:
            raise UsageError(f"--cull {key}: no such key; there are {', '.join(CULL_KEYS)}")
    sort = args.sort or "pages"
    if sort not in page_owner.SORTS and sort not in cull:
        known = ", ".join((*page_owner.SORTS, *cull))
        raise UsageError(f"--sort {sort}: not among what is counted: {known}")
    selection = selection_of(args, cull)
    with Source(str(args.bundle)) as source:
        kind = recognise_source(source)
        if kind != "page_owner":
            raise UsageError(f"{args.bundle}: is {kind}; 'mmscope page-owner' reads it")
        tally = read_page_owner(source, selection, progress_line())
    top = args.top or (page_owner.TOP if args.format == "table" else 1 << 62)
    described, rows, more = page_owner.culled_rows(tally, selection, sort, top)
    columns = [
        Column(name, kind, True, {"pages": "pages"}.get(name, ""), "", name in cull)
        for name, kind in described
    ]
    print_rows(columns, rows, form=args.format)
    if more:
        say(f"{more:,} rows more; --top shows them")
    skipped = tally["skipped"]
    if skipped or tally["truncated"]:
        cut = "; the last record was cut short" if tally["truncated"] else ""
        say(f"{skipped:,} records were not understood and are not counted{cut}")
    return INCOMPLETE if skipped or tally["truncated"] else DONE


# watch


def run_watch(args: argparse.Namespace) -> int:
    """Take samples until told to stop, then make a bundle of them."""
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
                handles = read_show_handles(source).pages.keys()
            if handles - known:
                _copy(resolver, folder / resolver.name)
                with Source(str(folder / resolver.name)) as source:
                    known = set(read_show_stacks_handles(source).stacks) | set(handles)
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


def this_host() -> dict[str, Cell]:
    """What /proc says about this machine."""
    from dataclasses import asdict

    from reports.collect import describe_files
    from reports.sections import Absent, Files

    try:
        return {**asdict(describe_files(Files(Path("/")))), "kind": "live"}
    except (Absent, ValueError):
        kernel = os.uname()
        return {"kind": "live", "release": kernel.release, "hostname": kernel.nodename}
