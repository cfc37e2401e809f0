# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A kernel with Kexec Handover and allocation profiling: its scratch areas against what it printed;
lines of source by the ioctl of /proc/allocinfo, by its text and from memory; and `mmscope watch`
while pipes take pages that are in no counter.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import kernels
import pytest
from capture import Capture
from conftest import KERNELS
from drgn import Program
from handed_over import handed_over
from shared_guest import SAMPLES, InGuest

from mmscope.drgn.free.pageblocks import pageblock_order
from mmscope.drgn.machine.physical_memory import SCRATCH
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.owners.alloc_tags import AllocTag, read_allocinfo
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.text.allocinfo import called, held_by_text
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate

pytestmark = [pytest.mark.any_config, pytest.mark.brief]

HANDOVER = [name for name in KERNELS if "KEXEC_HANDOVER" in kernels.about(name)]
MIB = 1 << 20
# As kho_scratch= of its command line: of low memory, of all, of each of two nodes.
AREAS = [16 * MIB, 48 * MIB, 32 * MIB, 32 * MIB]
PIPES, STEPS, READINGS = 8, 12, 20
# Of fs/pipe.c, the lines that take pages; others take room for the ring of them.
PAGES = "(anon_pipe_"

PROGRAM = (
    SAMPLES
    + f"""
import fcntl, json, os, signal, sys
from mmscope.drgn.text import allocinfo
from mmscope.reports.commands.command import main

PATH = "/proc/allocinfo"
held = []

def text():
    return Path(PATH).read_text()

before = text()
asked = [dict(allocinfo.held_by_ioctl(PATH, least)) for least in (0, {MIB})]
after = text()
prices = {{}}
for name, work in (
    ("ioctl", lambda: allocinfo.held_by_ioctl(PATH, {MIB})),
    ("text", lambda: allocinfo.held_by_text(text(), {MIB})),
    ("print", text),
):
    begin = time.process_time()
    for _ in range({READINGS}):
        work()
    prices[name] = (time.process_time() - begin) / {READINGS}
found = {{"before": before, "after": after, "asked": asked, "prices": prices}}
Path("/out/handover/asked.json").write_text(json.dumps(found))
told("handover: asked")

def fill_pipes(watch):
    wait_for_samples("/out/handover/watch.samples", 2)
    for _ in range({STEPS}):
        for _ in range({PIPES}):
            reader, writer = os.pipe()
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, {MIB})
            os.write(writer, bytes({MIB}))
            held.append((reader, writer))
        wait_for_samples("/out/handover/watch.samples", 1)
    os.kill(watch, signal.SIGINT)

child = os.fork()
if child == 0:
    log = os.open("/out/handover/watch.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["mmscope", "watch", "--interval", "0.5", "-o", "/out/handover/watch"]
    os._exit(main())
fill_pipes(child)
os.waitpid(child, 0)

# As guard does.
from mmscope.reports.watch.samples import Sampler

sampler, samples = Sampler("/", 9, lines=1.0), []
for _ in range(3):
    samples.append(sampler.take())
    for _ in range({PIPES}):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, {MIB})
        os.write(writer, bytes({MIB}))
        held.append((reader, writer))
    time.sleep(1)
Path("/out/handover/samples.json").write_text(json.dumps(samples))
"""
)
IN_GUEST = InGuest("handover", "handover", 1, PROGRAM)


@pytest.fixture(scope="module", params=HANDOVER)
def taken(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Capture:
    """The frozen guest."""
    return handed_over(say)


@pytest.fixture(scope="module")
def prog(taken: Capture) -> Program:
    return open_target(taken.vmcore, [taken.vmlinux])


@pytest.fixture(scope="module", params=HANDOVER)
def out(request: pytest.FixtureRequest, in_guest: Callable[[InGuest], Path]) -> Path:
    """What the live guest wrote."""
    return in_guest(IN_GUEST)


def printed(taken: Capture) -> list[tuple[int, int]]:
    """Begin and size of each scratch area, from debugfs."""
    folder = taken.truth_b / "sys/kernel/debug/kho/out"
    starts, sizes = (
        (folder / name).read_text().split() for name in ("scratch_phys", "scratch_len")
    )
    return [(int(a, 16), int(b, 16)) for a, b in zip(starts, sizes, strict=True)]


def test_scratch_areas_are_where_the_kernel_says(taken: Capture, prog: Program) -> None:
    section, found = run_section(SECTIONS["physical_memory"], Memory(prog))
    assert section.status == "ok", section.message
    areas = printed(taken)
    assert [size for _, size in areas] == AREAS
    rows = [row for row in found.by_name["physical_memory"] if SCRATCH in row.resource]
    assert {row.use for row in rows} == {"kernel"}
    kinds = ("lowmem", "global", "pernode", "pernode")
    assert {(row.resource, int(row.start, 16), row.bytes) for row in rows} == {
        (f"System RAM / {SCRATCH} ({kind})", *area) for kind, area in zip(kinds, areas, strict=True)
    }
    # As the log has them: "KHO: scratch areas: lowmem: 16MiB global: 48MiB pernode: 32MiB".
    log = (taken.truth_b / "dmesg").read_text()
    said = re.search(r"scratch areas: lowmem: (\d+)MiB global: (\d+)MiB pernode: (\d+)MiB", log)
    assert said and [int(size) * MIB for size in said.groups()] == AREAS[:3]


def test_all_cma_blocks_are_scratch(taken: Capture, prog: Program) -> None:
    """Nothing else asked for CMA here (``init_cma_reserved_pageblock()``, kho_init())."""
    _, found = run_section(SECTIONS["pageblocks"], Memory(prog))
    rows = found.by_name["pageblocks"]
    blocks = sum(row.blocks for row in rows if row.migratetype == "CMA")
    assert blocks << pageblock_order(prog) + 12 == sum(AREAS)


def by_place(rows: list[AllocTag]) -> dict[tuple[str, str, int, str], AllocTag]:
    return {(row.module, row.file, row.line, row.function): row for row in rows}


def test_lines_of_source_from_memory_are_those_of_the_text(taken: Capture, prog: Program) -> None:
    section, found = run_section(SECTIONS["alloc_tags"], Memory(prog))
    assert section.status == "ok", section.message
    earlier, later = (
        by_place(read_allocinfo((folder / "proc/allocinfo").read_text()))
        for folder in (taken.truth_a, taken.truth_b)
    )
    ours = by_place(found.by_name["alloc_tags"])
    assert ours.keys() == later.keys() and len(ours) > 1000
    moved = {key for key in later if earlier[key] != later[key]}
    differs = {key for key in ours if ours[key] != later[key]}
    assert differs <= moved and len(moved) < 10


def test_by_ioctl_each_line_holds_what_the_text_says(out: Path, say: Callable[[str], None]) -> None:
    asked = json.loads((out / "asked.json").read_text())
    every, large = map(Counter, asked["asked"])
    before, after = (held_by_text(asked[name], 0) for name in ("before", "after"))
    # By ioctl a name's end is given; none here is as long.
    assert every.keys() == before.keys() == after.keys() and len(every) > 1000
    # What prints the text has a buffer of its own.
    still = {name for name in before if before[name] == after[name] and "seq_file.c" not in name}
    assert len(still) > 0.98 * len(before)
    assert {name: every[name] for name in still} == {name: before[name] for name in still}
    # Of several tags of a line each must hold enough.
    rows = read_allocinfo(asked["before"])
    tags = {called(row.file, str(row.line), row.function, row.module): row.tags for row in rows}
    single = {name for name in still if tags[name] == 1}
    assert single & large.keys() == {name for name in single if before[name] >= MIB} != set()
    milliseconds = {name: round(1000 * took, 2) for name, took in asked["prices"].items()}
    say(f"{len(every)} lines, {len(large)} of 1 MiB: CPU of a reading in ms: {milliseconds}")
    assert asked["prices"]["ioctl"] < asked["prices"]["text"]


def test_a_watch_names_the_line_that_took_pages_which_are_in_no_counter(out: Path) -> None:
    assert not (out / "failed").exists(), (out / "failed").read_text()
    bundle = Bundle(out / "watch")
    rows = [row for row in bundle.rows("watch_holders") if row["kind"] == "line of source"]
    gained = {row["name"]: row["last_bytes"] - row["first_bytes"]
              for row in rows if PAGES in row["name"]}  # fmt: skip
    # anon_pipe_get_page(), and for the first pages of a write anon_pipe_prefill_and_lock().
    assert sum(gained.values()) == PIPES * STEPS * MIB
    most = max(gained, key=gained.__getitem__)
    (finding,) = (
        item
        for item in evaluate(bundle).found
        if item.id == "watch-kernel-memory-grows" and "in no counter" in item.title
    )
    assert finding.owner == most


def test_samples_of_guard_have_it_too(out: Path) -> None:
    held = []
    for sample in json.loads((out / "samples.json").read_text()):
        assert {kind for kind, *_ in sample["holders"]} == {"line of source"}
        pipes = [size for _, name, _, size, *_ in sample["holders"] if PAGES in name]
        held.append(sum(pipes))
    assert [later - held[0] for later in held] == [0, PIPES * MIB, 2 * PIPES * MIB]
