# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sections as commands of drgn: in drgn itself, on a real vmcore, as people start it.

One session runs every command as JSON, which must be what the sections say; another is typed into a
terminal.
"""

import argparse
import contextlib
import functools
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import children
import pytest
from conftest import Lab
from drgn.commands import CommandError

from mmscope.drgn.rmap import anon_vmas
from mmscope.drgn.rmap.anon_vmas import anon_vma_rows
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.commands.drgn_commands import COMMANDS
from mmscope.reports.commands.drgn_plugin import run_section_command

pytestmark = pytest.mark.any_kernel

DRGN = Path(sys.executable).with_name("drgn")

EVERY_COMMAND = """
import io, json, sys
from contextlib import redirect_stdout
from drgn.commands import CommandError, run_command

said = {}
for name in sys.argv[1:]:
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            run_command(prog, f"{name} --format json")
    except CommandError as error:
        said[name] = str(error)
    else:
        said[name] = json.loads(out.getvalue())
print(json.dumps(said))
"""


def drgn(lab: Lab, *arguments: str) -> list[str]:
    """The command line that a user types."""
    return [
        str(DRGN), "-q", "-c", str(lab.capture.vmcore), "-s", str(lab.capture.vmlinux), *arguments
    ]  # fmt: skip


def test_every_section_is_a_command() -> None:
    assert sorted(entry["section"] for entry in COMMANDS) == sorted(SECTIONS)


def test_commands_print_what_their_sections_found(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "every_command.py"
    script.write_text(EVERY_COMMAND)
    names = [entry["name"] for entry in COMMANDS]
    # Started where somebody keeps scripts of the same names as ours.
    for name in ("rows", "zones", "target", "settings"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')\n")
    done = children.run(
        drgn(lab, str(script), *names), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    memory = Memory(lab.prog)
    printed = 0
    for entry in COMMANDS:
        section, found = run_section(SECTIONS[entry["section"]], memory)
        if section.status == "absent":
            assert said[entry["name"]] == f"{entry['section']}: {section.message}"
            continue
        ours: dict[str, Any] = {
            name: [asdict(row) for row in rows] for name, rows in found.by_name.items()
        }
        assert said[entry["name"]] == ours, entry["name"]
        printed += sum(map(len, ours.values()))
        if section.message:
            assert f"{entry['section']}: {section.message}" in done.stderr
    assert printed > 500


def typed(command: list[str], lines: list[str], folder: Path) -> str:
    """What a terminal shows when these lines are typed into a program, each at its prompt."""
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (50, 400))  # wide: neither tables nor what is typed wrap
    environment = {**os.environ, "TERM": "dumb", "HOME": str(folder), "PYTHON_BASIC_REPL": "1"}
    process = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, cwd=folder, env=environment
    )
    os.close(other)
    shown = ""
    to_type = [*lines, "exit()"]
    deadline = time.monotonic() + 120
    with contextlib.suppress(OSError):  # EIO: it has ended
        while time.monotonic() < deadline:
            if select.select([main], [], [], 1)[0]:
                shown += os.read(main, 65536).decode(errors="replace")
            if to_type and shown.endswith(">>> "):
                os.write(main, to_type.pop(0).encode() + b"\n")
                shown += "\n"  # so that this prompt is not taken for the next
    os.close(main)
    process.terminate()
    process.wait()
    return shown.replace("\r", "")


@pytest.fixture(scope="module")
def session(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each line that was typed was answered with."""
    lines = [
        "%zones --format csv",
        "%free_lists",
        "%slab_caches --top 2",
        "%slab_caches kernfs_node_cache --format csv",
        "%page_tables 1 --format csv",
        "%page_tables 987654321",
        "%rmap_cost 0x1",
        "%mm_settings vm.swappiness --format csv",
        "%vm_counters nr_free_pages --format csv",
        "%mm_settings vm.nosuch",
        "%rmap_cost nonsense",
        "%rmap_cost --rmap-node-ns 0",
        "%page_owner --top 20",
        "%device_pagemaps",
        "%pcp_lists | head -2",
        "%free_lists -h",
        "%help",
        "%help ksm",
        "%help nosuch",
        "from mmscope.drgn.free.free_memory import FreeMemory as scan; "
        "len(scan(prog).lists.blocks)",
        "%mm_findings",
        "1 + 41",
    ]
    shown = typed(drgn(lab), lines, tmp_path_factory.mktemp("session"))
    answers = re.split(r"^>>> *$\n?", shown, flags=re.MULTILINE)[1:]
    assert len(answers) == len(lines) + 1, shown
    return {
        line: answer.split(line, 1)[1].lstrip("\n")
        for line, answer in zip(lines, answers[:-1], strict=True)
    }


def test_a_session_prints_tables(lab: Lab, session: dict[str, str]) -> None:
    zones = len(lab.free.zone_names)
    assert len(session["%zones --format csv"].splitlines()) == 1 + zones
    rows = lab.free.lists.blocks
    empty = sum(not row.blocks for row in rows)
    assert f"Free blocks, {empty} empty lists left out" in session["%free_lists"]
    listed = re.findall(
        r"^ +\d+ +\w+ +\d+ +\w+ +[\d,]+ +[\d,]+$", session["%free_lists"], re.MULTILINE
    )
    assert len(listed) == len(rows) - empty
    assert ": the first 2 of " in session["%slab_caches --top 2"]
    assert len(session["%pcp_lists | head -2"].splitlines()) == 2
    assert "Device memory with struct pages" in session["%device_pagemaps"]


def test_an_argument_picks_rows(session: dict[str, str]) -> None:
    header, one, *_ = session["%slab_caches kernfs_node_cache --format csv"].splitlines()
    assert header.startswith("cache,") and one.startswith("kernfs_node_cache,")
    tables = session["%page_tables 1 --format csv"].strip().split("\n\n")
    for line in ("%mm_settings vm.swappiness", "%vm_counters nr_free_pages"):
        header, one = session[f"{line} --format csv"].split()
        assert header.startswith("name,") and one.startswith(f"{line.split()[1]},")
    assert len(tables) > 2
    for table in tables:
        header, *rows = table.splitlines()
        assert header.startswith("pid,") and rows and all(row.startswith("1,") for row in rows)


def test_what_is_not_there_is_said_without_how_the_rest_was_made(session: dict[str, str]) -> None:
    answer = session["%rmap_cost 0x1"].strip()
    assert re.fullmatch(r"drgn: error: no anon_vma 0x1 in rmap_walks \([\d,]+ rows\)", answer), (
        answer
    )


def test_what_a_table_leaves_out_is_said_where_a_row_is_not_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = functools.partial(anon_vma_rows, most=3)
    monkeypatch.setattr(anon_vmas, "anon_vma_rows", few)
    entry = next(entry for entry in COMMANDS if entry["name"] == "anon_vmas")
    args = argparse.Namespace(wanted="0x1", format="table", top=None)
    with pytest.raises(CommandError, match=r"no anon_vma 0x1 in .*; 3 of \d+ anon_vmas are listed"):
        run_section_command(entry, lab.prog, args)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%page_tables 987654321", "no pid 987654321 in page_tables (2 rows), "),
        ("%mm_settings vm.nosuch", "no name vm.nosuch in settings ("),
        ("%rmap_cost nonsense", "argument ADDRESS: invalid address value: 'nonsense'"),
        ("%rmap_cost --rmap-node-ns 0", "--rmap-node-ns: 0 is not a time"),
        ("%page_owner --top 20", "page_owner is not compiled in"),
        ("%help nosuch", "nosuch: command not found"),
    ],
)
def test_an_error_is_a_line_and_the_session_lives(
    session: dict[str, str], line: str, words: str
) -> None:
    answer = session[line].replace("\n", "")
    assert answer.count("drgn: ") == 1 and words in answer
    assert "Traceback" not in answer
    assert session["1 + 41"].strip() == "42"


def test_help_lists_drgns_commands_and_ours(session: dict[str, str]) -> None:
    listed = session["%help"]
    for name in ("py", "mm_findings", *(entry["name"] for entry in COMMANDS)):
        assert re.search(rf"^%{name} +\S", listed, re.MULTILINE), name
    assert "usage: free_lists [-h] [--top N]" in session["%free_lists -h"]
    assert session["%help ksm"].startswith("%ksm [-h]")


def test_tab_completes_commands_and_options(lab: Lab, tmp_path: Path) -> None:
    shown = typed(
        drgn(lab),
        [
            "%pcp_l\t--form\t c\t",
            "%mm_se\tvm.swappiness --form\t c\t",
            "prog.fla\t",
            "%mm_f\t--he\t",
        ],
        tmp_path,
    )
    for answer in (
        r"node,zone,cpu,.*\n0,",
        r"name,value\nvm.swappiness,60",
        r"<ProgramFlags\.",
        "usage: mm_findings ",
    ):
        assert re.search(f"^{answer}", shown, re.MULTILINE), shown


def test_probes_can_be_called_in_a_session(lab: Lab, session: dict[str, str]) -> None:
    (answer,) = (value for line, value in session.items() if "FreeMemory" in line)
    assert int(answer) == len(lab.free.lists.blocks)


def test_findings_are_those_of_the_fragmented_guest(session: dict[str, str]) -> None:
    assert "HighAtomic reserve" in session["%mm_findings"]


def test_drgn_without_such_commands_starts(tmp_path: Path) -> None:
    """Older drgn has no drgn.commands; ours are then not there, and nothing else is amiss."""
    program = """
import logging, sys
logging.basicConfig(level=logging.INFO)
sys.modules["drgn.commands"] = None
import drgn, os
prog = drgn.Program()
prog.set_pid(os.getpid())
import mmscope.reports.commands.drgn_plugin
assert "numpy" not in sys.modules and "rich" not in sys.modules
print("started")
"""
    done = children.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "DRGN_PLUGINS": "mmscope", "DRGN_DISABLE_PLUGINS": "*"},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("started\n", "", 0)
