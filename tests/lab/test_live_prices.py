# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What mmscope does to a running host, inside the guest: nothing dear unless --all asks for it, as the
kernel itself counts it by kprobes; and a process whose mmap_lock is held costs its own row only.

The kernel has page_owner on and tracks the lab's slab cache, so that both dear files are there. The
lab's module holds the lock, with the locks of all VMAs, and has a file whose readers nothing ends.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle

pytestmark = pytest.mark.owner_kernel

PROBES = {
    "page_walks": "pagetypeinfo_showmixedcount_print",
    "object_walks": "slab_debug_trace_open",
}
PROGRAM = f"""
import ctypes, json, os, re, signal, sys, time
from pathlib import Path
from mmscope.reports.commands.command import main

PROBES = {PROBES!r}
TRACING = Path("/sys/kernel/tracing")
ctypes.CDLL(None).mount(b"tracefs", bytes(TRACING), b"tracefs", 0, None)
probes = "".join(f"p:{{name}} {{function}}\\n" for name, function in PROBES.items())
(TRACING / "kprobe_events").write_text(probes)
(TRACING / "events/kprobes/enable").write_text("1")
said = {{"runs": {{}}}}

def hits():
    rows = [line.split() for line in (TRACING / "kprobe_profile").read_text().splitlines()]
    return {{row[0]: int(row[1]) for row in rows}}

def run(name, *arguments):
    before, begin = hits(), time.monotonic()
    child = os.fork()
    if child == 0:
        log = os.open(f"/out/prices/{{name}}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["mmscope", *arguments]
        os._exit(main())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    after = hits()
    told(f"prices: {{name}}")
    said["runs"][name] = {{
        "code": code,
        "seconds": time.monotonic() - begin,
        **{{probe: after[probe] - before[probe] for probe in PROBES}},
    }}

def hold(pid):
    Path("/sys/kernel/debug/mmscope_hold_mm").write_text(str(pid))

def state(pid):
    try:
        return Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None

victim, other = os.fork(), None
if victim == 0:
    while True:
        signal.pause()
other = os.fork()
if other == 0:
    while True:
        signal.pause()
said["other"] = other
Path("/sys/kernel/debug/mmscope_lab").write_text("slab_cache 400")

run("doctor", "doctor", "--all")
run("careful", "collect", "--proc-root", "/", "-o", "/out/prices/careful")
run("watch", "watch", "--interval", "0.2", "--count", "3", "-o", "/out/prices/watch")
run("all", "collect", "--proc-root", "/", "--all", "-o", "/out/prices/all")
words = ("--all", "--interval", "0.2", "--count", "3")
run("watch_all", "watch", *words, "-o", "/out/prices/watch_all")

hold(victim)
run("stuck", "collect", "--proc-root", "/", "-o", "/out/prices/stuck")
said["victim"] = victim
hold(0)

# A reader that nothing ends, and a collector that ends before it.
wait = "/sys/kernel/debug/mmscope_wait"
begin = time.monotonic()
pipe = os.pipe()
collector = os.fork()
if collector == 0:
    os.close(pipe[0])
    os.dup2(pipe[1], 1)
    from mmscope.drgn.sections.apart import ReaderApart
    with ReaderApart() as reader:
        try:
            reader.read(wait)
        except TimeoutError as error:
            print(json.dumps([reader.left, error.strerror, reader.read("/proc/version").decode()]))
            sys.stdout.flush()
    os._exit(0)
os.close(pipe[1])
# To the end of what it prints, which whoever it leaves behind does not hold open.
with open(pipe[0]) as file:
    left, words, version = json.loads(file.read())
os.waitpid(collector, 0)
said |= {{"left": left, "words": words, "version": version}}
said["state"] = [state(pid) for pid in left]
Path(wait).write_text("go")
until = time.monotonic() + 60
while any(state(pid) is not None for pid in left) and time.monotonic() < until:
    # Whoever has lost his parent is the first process's, which waits for the program alone.
    if all(state(pid) == "Z" for pid in left):
        break
    time.sleep(0.1)
said["let_go"] = [state(pid) for pid in left]
for pid in (victim, other):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
Path("/out/prices/said.json").write_text(json.dumps(said))
"""


IN_GUEST = InGuest("prices", "owner", 4, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def said(out: Path) -> Any:
    return json.loads((out / "said.json").read_text())


def message(bundle: Path, section: str) -> str:
    (found,) = (s for s in Bundle(bundle).sections if s.section == section)
    return f"{found.status}: {found.message}"


@pytest.mark.parametrize("run", ["doctor", "careful", "watch"])
def test_without_being_asked_nothing_dear_is_read(out: Path, said: Any, run: str) -> None:
    run = said["runs"][run]
    assert (run["page_walks"], run["object_walks"]) == (0, 0)


def test_what_was_left_out_is_said(out: Path, said: Any) -> None:
    assert "/proc/pagetypeinfo" in (out / "doctor.log").read_text()
    assert "left out, as page_owner is on" in (out / "doctor.log").read_text()
    assert said["runs"]["careful"]["code"] == said["runs"]["watch"]["code"] == 1
    for section in ("free_lists", "pageblocks", "slab_owner"):
        assert "--all reads it" in message(out / "careful", section)
    assert "free blocks are of unknown migratetype" in message(out / "watch", "watch")


def test_all_is_read_if_asked_for(out: Path, said: Any) -> None:
    for run in ("all", "watch_all"):
        assert said["runs"][run]["page_walks"] > 0
    assert said["runs"]["all"]["object_walks"] == 1
    for section in ("free_lists", "pageblocks", "slab_owner"):
        assert message(out / "all", section).startswith("ok"), section
    stacks = [row["stack"] for row in Bundle(out / "all").rows("slab_owner_stacks")]
    assert any("mmscope_lab_slab_cache" in stack for stack in stacks)


def test_a_process_that_is_stuck_costs_its_own_row(out: Path, said: Any) -> None:
    rows = {row["pid"] for row in Bundle(out / "careful").rows("process_vmas")}
    assert {said["victim"], said["other"]} <= rows
    rows = {row["pid"] for row in Bundle(out / "stuck").rows("process_vmas")}
    assert said["other"] in rows and said["victim"] not in rows
    words = message(out / "stuck", "anon_vmas")
    assert words.startswith(f"partial: 1 process not counted: maps of {said['victim']}: no answer")
    print(words, said["runs"])


def test_a_reader_that_nothing_ends_is_left_behind(said: Any) -> None:
    """Whoever started it goes on and ends; it ends when the kernel lets it go."""
    (pid,) = said["left"]
    assert said["words"] == (
        f"no answer within 2 s; process {pid}, which waits for it, cannot be ended and is left "
        "behind"
    )
    assert said["version"].startswith("Linux version ")
    assert said["state"] == ["D"]
    assert set(said["let_go"]) <= {None, "Z"}
