# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make soak``: a vmcore damaged in a thousand ways, and what is made of each.

First the fields of ``named_damage.py``, each by its name; then by chance:

A seed chooses some pages of the machine (struct pages, slab objects, page tables, the kernel's
data, or any) and what happens to them: bits that flip, pages of zeros, ones or noise, pages that
change places, pages that cannot be read. The vmcore itself is not touched: drgn is told of other
memory in their place. Then everything runs that runs for a user: the sections, the findings, the
report.

Then what the kernel says of itself (seeds ``own-0`` and on): its BTF, its symbol table, its
VMCOREINFO. What is read by them is held against the whole kernel: a cell that is another, and of
which nothing is said, is counted, by what was damaged.

Nothing of that may end with a traceback, hang, or grow without bound. A section may fail for want
of what is damaged, in words of its own; an exception that nobody expected is a defect, and is
counted as one. Each seed is a process of its own.

Costs: about 5 s of CPU a seed.

    python tests/support/soak.py --seeds 1000
    python tests/support/soak.py --only 17          # one seed, with its tracebacks
"""

import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import json
import os
import queue
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

import children  # noqa: E402
from drgn import BadDataError, FaultError, Program  # noqa: E402
from drgn.helpers.linux.mm import PageSlab, follow_phys, pfn_to_page  # noqa: E402
from drgn.helpers.linux.pid import for_each_task  # noqa: E402
from dump_formats import vmcoreinfo_note  # noqa: E402
from named_damage import DAMAGE  # noqa: E402

from mmscope.drgn.opening.kernel_symbols import tables_of  # noqa: E402
from mmscope.drgn.opening.no_debug_info import NoDebugInfoError, attach, vmcoreinfo  # noqa: E402

PAGE = 4096
SECONDS = 180
PR_SET_PDEATHSIG = 1
# More than any whole vmcore of the lab takes.
MEMORY_BYTES = 3 << 30
TABLE_BITS = 0x000F_FFFF_FFFF_F000


def frames(prog: Program, dice: random.Random, kind: str) -> Iterator[int]:
    """Physical addresses of pages of a kind, without end."""
    first, last = prog["min_low_pfn"].value_(), prog["max_pfn"].value_()
    kernel = prog["init_mm"].address_of_()
    begin, end = (prog.symbol(name).address for name in ("_sdata", "_end"))
    if end < begin:  # arm64: it is behind the last section, where drgn relocates no symbol
        end = max(end for _, end in prog.main_module().address_ranges or ())
    tasks = [task for task in for_each_task(prog) if task.mm]
    while True:
        try:
            pfn = dice.randrange(first, last)
            if kind == "any":
                prog.read(pfn * PAGE, 8, True)
                yield pfn * PAGE
            elif kind == "struct page":
                yield follow_phys(kernel, pfn_to_page(prog, pfn)).value_() & -PAGE
            elif kind == "slab":
                if PageSlab(pfn_to_page(prog, pfn)):
                    yield pfn * PAGE
            elif kind == "data":
                yield follow_phys(kernel, dice.randrange(begin, end)).value_() & -PAGE
            elif kind == "page table":
                task = dice.choice(tasks)
                table = follow_phys(kernel, task.mm.pgd).value_()
                for _ in range(dice.randrange(4)):
                    entries = [
                        entry & TABLE_BITS
                        for offset in range(0, PAGE, 8)
                        if (entry := prog.read_u64(table + offset, True)) & 0x81 == 1
                    ]
                    table = dice.choice(entries)
                prog.read(table, 8, True)  # arm64 writes entries otherwise: it may lead nowhere
                yield table
        except (FaultError, IndexError):
            continue


KINDS = ("struct page", "slab", "data", "page table", "any")


def damaged(prog: Program, seed: int) -> str:
    """Damage some pages; says which and how."""
    dice = random.Random(seed)
    kind = dice.choice(KINDS)
    how = dice.choice(("flips", "zeros", "ones", "noise", "swap", "unreadable"))
    pages = frames(prog, dice, kind)
    chosen = list({next(pages) for _ in range(dice.choice((1, 4, 30, 200)))})
    contents = {page: prog.read(page, PAGE, True) for page in chosen}
    for page, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
        data = bytearray(contents[page])
        if how == "flips":
            for _ in range(dice.choice((1, 8, 64))):
                data[dice.randrange(PAGE)] ^= 1 << dice.randrange(8)
        elif how == "zeros":
            data = bytearray(PAGE)
        elif how == "ones":
            data = bytearray(b"\xff" * PAGE)
        elif how == "noise":
            data = bytearray(dice.randbytes(PAGE))
        elif how == "swap":
            data = bytearray(contents[other])

        def read(
            address: int, count: int, offset: int, physical: bool, data: bytes = bytes(data)
        ) -> bytes:
            if how == "unreadable":
                raise FaultError("damaged", address)
            return data[offset : offset + count]

        prog.add_memory_segment(page, PAGE, read, True)
    return f"{how} in {len(chosen)} pages, {kind}"


OWN = ("BTF", "symbols", "VMCOREINFO")
MOST_RANGE = 16 << 20


def own_damaged(core: Path, seed: int, folder: Path) -> tuple[Program, str]:
    """A vmcore whose words about itself are damaged; and how."""
    dice = random.Random(seed)
    kind = dice.choice(OWN)
    how = dice.choice(("flips", "zeros", "noise", "swap", "unreadable"))
    if kind == "VMCOREINFO":
        return _with_other_note(core, dice, folder)
    whole = Program()
    whole.set_core_dump(core)
    where = tables_of(whole, vmcoreinfo(whole))
    if kind == "BTF":
        _, symbols, _ = attach(whole)
        begin, end = (symbols.address(name) or 0 for name in ("__start_BTF", "__stop_BTF"))
    else:
        name = dice.choice(sorted(where))
        begin = where[name]
        after = [address for address in where.values() if address > begin]
        end = min(after, default=begin + 4 * PAGE)
        kind += f", {name.removeprefix('kallsyms_')}"
    end = min(end, begin + MOST_RANGE)
    data = bytearray(whole.read(begin, end - begin))
    times, lost = dice.choice((1, 4, 30)), set()
    for _ in range(times):
        at, other = (dice.randrange(len(data)) & -PAGE for _ in range(2))
        if how == "flips":
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        elif how == "zeros":
            data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))
        elif how == "noise":
            data[at : at + PAGE] = dice.randbytes(len(data[at : at + PAGE]))
        elif how == "swap":
            size = min(PAGE, len(data) - at, len(data) - other)
            one, two = bytes(data[at : at + size]), bytes(data[other : other + size])
            data[at : at + size], data[other : other + size] = two, one
        else:
            lost.add(at)

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        if any(at < offset + count and offset < at + PAGE for at in lost):
            raise FaultError("damaged", address)
        return bytes(data[offset : offset + count])

    prog = Program()
    prog.set_core_dump(core)
    prog.add_memory_segment(begin, len(data), read, False)
    return prog, f"{times} {how}, {kind}"


def _with_other_note(core: Path, dice: random.Random, folder: Path) -> tuple[Program, str]:
    """A copy of a vmcore with bytes of its VMCOREINFO changed."""
    path = folder / "vmcore"
    subprocess.run(["cp", "--sparse=always", core, path], check=True)
    with path.open("r+b") as file:
        head = file.read(1 << 20)
        begin, size = vmcoreinfo_note(head)
        times = dice.choice((1, 3, 10))
        for _ in range(times):
            file.seek(begin + dice.randrange(size))
            file.write(bytes([dice.choice(b"0123456789abcdef=\n")]))
    prog = Program()
    prog.set_core_dump(path)
    return prog, f"{times} bytes, VMCOREINFO"


def cells(prog: Program) -> dict[str, Any]:
    """Every row of every section, and whether something is said of it."""
    from mmscope.drgn.sections.memory import Memory
    from mmscope.drgn.sections.registry import SECTIONS
    from mmscope.reports.collect.run_section import run_section

    memory, found = Memory(prog), {}
    for spec in SECTIONS.values():
        section, tables = run_section(spec, memory)
        for name, rows in tables.by_name.items():
            found[name] = section.status == "ok" and not section.message, rows
    return found


def one_of_its_own(seed: str, core: Path) -> dict[str, Any]:
    """What is made of a kernel whose words about itself are damaged."""
    with tempfile.TemporaryDirectory(prefix="mmscope-soak.") as name:
        try:
            prog, what = own_damaged(core, int(seed.removeprefix("own-")), Path(name))
        except (BadDataError, ValueError, OSError) as error:
            return {"what": "not opened", "refused": str(error)}
        try:
            attach(prog)
        except NoDebugInfoError as error:
            return {"what": what, "refused": str(error)}
        except (FaultError, LookupError, ValueError) as error:
            return {"what": what, "defects": ["".join(traceback.format_exception(error))]}
        whole = Program()
        whole.set_core_dump(core)
        attach(whole)
        expected, found = cells(whole), cells(prog)
        unsaid = [
            name for name, (silent, rows) in found.items()
            if silent and name in expected and rows != expected[name][1]
        ]  # fmt: skip
        return {"what": what, "unsaid": unsaid}


def one(seed: str, core: Path, prog: Program) -> dict[str, Any]:
    """Everything a user would run, on a vmcore with a seed's damage, a named one or none."""
    if seed.startswith("own-"):
        return one_of_its_own(seed, core)
    from mmscope.drgn.opening.target import describe
    from mmscope.drgn.sections.memory import Memory
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.bundle.writer import Writer
    from mmscope.reports.collect import run_section as running
    from mmscope.reports.collect.collect import collect
    from mmscope.reports.findings.findings import evaluate
    from mmscope.reports.page.report import render

    if seed in DAMAGE:
        DAMAGE[seed](prog)
    what = damaged(prog, int(seed)) if seed.isdecimal() else seed
    defects = []

    def explained(error: BaseException) -> str:
        # What a section may raise in words of its own. An IndexError is a LookupError, too.
        own = type(error) in (FaultError, LookupError, ValueError)
        if type(error) is ValueError:
            # Not Python's: of zip(), of int().
            frame = traceback.extract_tb(error.__traceback__)[-1]
            own = (frame.line or "").startswith("raise ")
        if not own:
            defects.append("".join(traceback.format_exception(error)))
        return plainly(error)

    plainly, running.explain = running.explain, explained
    with tempfile.TemporaryDirectory(prefix="mmscope-soak.") as name:
        path = Path(name) / "bundle"
        with Writer(path) as writer:
            sections = collect(Memory(prog), describe(prog, core.name), writer)
        bundle = Bundle(path)
        verdict = evaluate(bundle)
        page = render(bundle, verdict)
        marks = sum(len(bundle.impossible(name)) for name in bundle.tables)
    return {
        "what": what,
        "sections": {section.section: section.status for section in sections},
        "messages": {s.section: s.message for s in sections if s.status in ("failed", "partial")},
        "findings": sorted({finding.id for finding in verdict.found}),
        "not_checked": [item.reason for item in verdict.not_checked],
        "page_bytes": len(page),
        "marks": marks,
        "defects": defects,
    }


def limit() -> None:
    """Memory, and time of a CPU: the machine may have other work."""
    signal.alarm(4 * SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)


def serve(core: Path, vmlinux: Path) -> None:
    """Run the seeds that stdin names, a line each; what is made of each is a line of JSON."""
    from mmscope.drgn.opening.target import open_target
    from mmscope.reports.page import report  # noqa: F401  # once for all

    prog = open_target(core, [vmlinux])
    for line in sys.stdin:
        begin = time.monotonic()
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                try:
                    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                    os.dup2(errors.fileno(), 2)
                    limit()
                    json.dump(one(line.strip(), core, prog), said)
                    said.flush()
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            _, status, usage = os.wait4(child, 0)
            said.seek(0)
            errors.seek(0)
            code = os.waitstatus_to_exitcode(status)
            hung = f"hung: more than {SECONDS} s of CPU, or {4 * SECONDS} s"
            why = hung if code < 0 else errors.read()[-3000:]
            result = json.load(said) if code == 0 else {"died": why}
        result["seconds"] = time.monotonic() - begin
        result["peak_bytes"] = usage.ru_maxrss << 10
        print(json.dumps(result), flush=True)


@contextlib.contextmanager
def opened(core: Path, vmlinux: Path) -> Iterator[Callable[[str], dict[str, Any]]]:
    """What runs a seed of a vmcore."""
    words = [sys.executable, __file__, "--serve", "--core", core, "--symbols", vmlinux]
    with subprocess.Popen(
        [*children.DIES_WITH_US, *words], stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def run(seed: str) -> dict[str, Any]:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            return {"seed": seed, **json.loads(process.stdout.readline())}

        try:
            yield run
        finally:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--own", type=int, default=200, help="seeds of what it says of itself")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kernel", default="stable")
    parser.add_argument("--workload", default="fragment")
    parser.add_argument("--only", help="one seed, or a name: all of what it does")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--symbols", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.core, args.symbols)
        return 0
    from capture import capture

    taken = capture(args.kernel, args.workload, lambda line: print(line, file=sys.stderr))
    if args.only is not None:
        with opened(taken.vmcore, taken.vmlinux) as run:
            result = run(args.only)
        print("\n".join([*result.pop("defects", []), json.dumps(result, indent=1)]))
        return 0
    chance = map(str, range(args.first, args.first + args.seeds))
    own = (f"own-{number}" for number in range(args.first, args.first + args.own))
    seeds = [*(() if args.first else DAMAGE), *chance, *own]
    statuses: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    defects: dict[str, list[str]] = collections.defaultdict(list)
    own_words: dict[str, dict[str, list[str]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    peak, slowest = (0, ""), (0.0, "")  # and whose
    workers = os.cpu_count() or 1
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        idle: queue.SimpleQueue[Callable[[str], dict[str, Any]]] = queue.SimpleQueue()
        for _ in range(workers):
            idle.put(stack.enter_context(opened(taken.vmcore, taken.vmlinux)))

        def run_one(seed: str) -> dict[str, Any]:
            run = idle.get()
            try:
                return run(seed)
            finally:
                idle.put(run)

        waiting = [pool.submit(run_one, seed) for seed in seeds]
        for number, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            result = future.result()
            for section, status in result.get("sections", {}).items():
                statuses[section][status] += 1
            for words in [*result.get("defects", []), *filter(None, [result.get("died")])]:
                defects["\n".join(words.strip().splitlines()[-4:])].append(result["seed"])
            if result["seed"].startswith("own-"):
                said = next((word for word in ("refused", "died") if word in result), "read")
                said = "read, and wrong cells are not said" if result.get("unsaid") else said
                kind = result.get("what", "").partition(", ")[2]
                own_words[said][kind].append(result["seed"])
            peak = max(peak, (result.get("peak_bytes", 0), result["seed"]))
            slowest = max(slowest, (result["seconds"], result["seed"]))
            if sys.stderr.isatty() or number % 50 == 0:
                print(f"{number} of {len(seeds)}, {len(defects)} defects", file=sys.stderr)
    names = ("ok", "partial", "absent", "failed")
    print(f"{'section':20}" + "".join(f"{name:>9}" for name in names))
    for section, counts in statuses.items():
        print(f"{section:20}" + "".join(f"{counts[name]:9}" for name in names))
    for said, kinds in sorted(own_words.items()):
        print(f"\n{sum(map(len, kinds.values()))} times {said}:")
        for kind, found in sorted(kinds.items()):
            print(f"{len(found):6} {kind or 'of no kind'}, seeds {', '.join(found[:4])}")
    for words, found in defects.items():
        print(f"\n{len(found)} times, seeds {found[:5]}:\n{words}")
    print(
        f"\n{len(seeds)} seeds, {sum(map(len, defects.values()))} defects, "
        f"peak {peak[0] / 2**20:,.0f} MiB (seed {peak[1]}), "
        f"slowest {slowest[0]:.0f} s (seed {slowest[1]})"
    )
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
