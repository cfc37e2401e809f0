# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The options that say what to read, and opening what they name: a vmcore, a QEMU guest, text files,
or the live kernel.

Cannot know: whether the kernel's memory is what its debug info says, beyond the build ID.
"""

import argparse
import os
from pathlib import Path

from drgn import Program

from mmscope.drgn.dumps.core_file import left_out, missing_bytes
from mmscope.drgn.free.pageblocks import set_pageblock_order
from mmscope.drgn.opening.target import TargetError, open_target, other_release
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.reports.bundle.options import add_prices, option, positive
from mmscope.reports.bundle.outcome import UsageError, did_you_mean, say
from mmscope.reports.collect.priority import keep_to, last_in_line
from mmscope.reports.commands.drgn_commands import COMMANDS

# Where each is declared. To import all takes a fifth of a second, and most need one or none.
PLACES = {command["section"]: command["place"] for command in COMMANDS}
MOST_JOBS, DEFAULT_JOBS = 64, 4
SECTION_HELP = f"sections: {', '.join(PLACES)}"


def section_names(text: str) -> list[str]:
    """The value of --only."""
    names = text.split(",")
    for name in names:
        if name not in PLACES:
            near = did_you_mean(name, PLACES) or f"; {SECTION_HELP}"
            raise argparse.ArgumentTypeError(f"no section {name!r}{near}")
    return names


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what to read."""
    group = parser.add_argument_group("target (default: the live kernel)")
    where = group.add_mutually_exclusive_group()
    option(where, "--core FILE", "vmcore: ELF or kdump-compressed", Path)
    option(where, "--qemu ADDR", "QMP socket of a QEMU guest")
    option(where, "--proc-root DIR", "text files only: / or an unpacked sosreport", Path)
    add_prices(group)
    option(
        group,
        "--symbols FILE",
        "vmlinux (and modules) with debug info, the kernel's BTF, or FILE.toml with types of "
        "globals; may be given more than once",
        Path,
        [],
        action="append",
    )
    option(
        group,
        "--vmcoreinfo FILE|NOTE",
        "VMCOREINFO of the boot that --core is of, as text or as ELF note, where the dump has none",
        Path,
    )
    option(
        group,
        "--pageblock-order N",
        "for a kernel built with a smaller CONFIG_PAGE_BLOCK_MAX_ORDER, where no node has two "
        "sections of memory, which show it",
        int,
        choices=range(21),
    )
    work = group.add_mutually_exclusive_group()
    option(
        work,
        "--jobs N",
        "processes that share the work: passes over all pages from 8 GiB on, page tables of "
        "many processes, and the sections of a whole vmcore without --redact. Default: one for "
        "each idle CPU, 4 at most; for the running kernel a quarter of the CPUs at most. A QEMU "
        "guest is read by one",
        int,
        choices=range(1, MOST_JOBS + 1),
    )
    option(
        work,
        "--cpu-budget PERCENT",
        "use at most this share of one CPU on average, in one process of the lowest priority "
        "for CPU (nice 19) and disk (idle class): 10 takes ten times as long. Deadlines stop while "
        "it rests. Not counted: the kernel's time to print /proc/PID/maps and smaps",
        percent,
    )
    option(
        group,
        "--rmap-node-ns NS",
        "what a reverse map walk takes for a node of an anon_vma's tree, as measured on this "
        "machine; by default an assumption, with its range",
        positive,
    )


def idle_cpus(*, live: bool) -> int:
    """Number of processes that share a work, by default."""
    cpus = len(os.sched_getaffinity(0))
    idle = min(cpus - round(os.getloadavg()[0]), DEFAULT_JOBS)
    return max(min(idle, cpus // 4) if live else idle, 1)


def jobs_of(args: argparse.Namespace) -> int:
    """Number of processes that share the work, as the options have it."""
    # A QEMU guest's one socket is for one process.
    if budget_of(args) is not None or args.qemu is not None:
        return 1
    return args.jobs or idle_cpus(live=args.core is None)


def budget_of(args: argparse.Namespace) -> float | None:
    """Share of a CPU to keep to; what is typed goes before what the host's file says."""
    return args.cpu_budget if args.jobs is None else None


def percent(text: str) -> float:
    """The value of --cpu-budget."""
    value = float(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text}: a budget is 1 to 100 percent of one CPU")
    return value


def open_source(args: argparse.Namespace) -> tuple[Memory | Files, str, dict[str, str]]:
    """
    Open what the target options name; returns the source, its name, and notes.

    A live kernel whose memory cannot be read is read as text, which needs no symbols and, for the
    most part, no root; the reason is said and noted.

    :raises TargetError: it cannot be opened.
    """
    of_memory = (args.symbols or None, args.pageblock_order, args.rmap_node_ns)
    if args.proc_root and any(option is not None for option in of_memory):
        raise UsageError(
            "--symbols, --pageblock-order and --rmap-node-ns go with a kernel's memory, not with "
            "--proc-root"
        )
    if (budget := budget_of(args)) is not None:
        last_in_line()
        keep_to(budget)
    if args.proc_root is not None:
        if not (args.proc_root / "proc").is_dir():
            raise TargetError(
                f"{args.proc_root}: has no folder 'proc'; give / or a sosreport's folder"
            )
        return Files(args.proc_root, args.all), args.proc_root.name, {}
    name = args.core.name if args.core is not None else args.qemu or ""

    def opened() -> Program:
        prog = open_target(args.core, args.symbols, args.qemu, args.vmcoreinfo)
        if args.pageblock_order is not None:
            set_pageblock_order(prog, args.pageblock_order)
        return prog

    try:
        prog = opened()
    except TargetError as error:
        if args.core is not None or args.qemu is not None or args.symbols:
            raise
        say(f"{error}; reading /proc and /sys instead")
        return Files(Path("/"), args.all), "/", {"fallback": str(error)}
    notes = {}
    if args.core is not None:
        notes = core_notes(args.core)
        if words := other_release(prog):
            notes["vmcoreinfo"] = words
            say(f"{args.core}: {words}")
        if "truncated" in notes:
            say(f"{args.core}: {notes['truncated']}; reading what is there")
    again = opened if args.core is not None else None
    return (
        Memory(prog, jobs=jobs_of(args), rmap_node_ns=args.rmap_node_ns, opened=again),
        name,
        notes,
    )


def core_notes(core: Path) -> dict[str, str]:
    """Notes for a bundle about the file that it was read from."""
    notes = {}
    if missing := missing_bytes(core):
        notes["truncated"] = (
            f"{missing:,} bytes of the machine's memory lie behind the end of the file: "
            "the dump was cut short or is damaged"
        )
    if words := left_out(core):
        notes["left_out"] = words
    return notes
