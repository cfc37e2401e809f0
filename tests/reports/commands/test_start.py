# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How the command starts: what it imports, what it refuses, and Ctrl-C meanwhile.

The process sends itself SIGINT when its N-th module begins to be loaded (PEP 578's audit events),
so that each run is the same.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import children
import pytest
from command_line import ROOT

from mmscope.drgn.opening.oldest_drgn import OLDEST_DRGN, too_old

SCRIPT = """
import os, signal, sys
from mmscope.reports.commands import command

left = number = int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)

def step(event, given):
    global left
    if event == "import":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):  # the handler runs within
                pass

sys.addaudithook(step)
code = command.main() if number else command.build_parser(sys.argv[1:2]) and print(-left)
sys.exit(code)
"""
MAIN = "from mmscope.reports.commands.command import main"
SHOW = ("show", "vm_counters", "--proc-root", "tests/data/7.2")


def run(number: int, name: str) -> "subprocess.CompletedProcess[str]":
    return children.run(
        [sys.executable, "-c", SCRIPT, str(number), name, "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def afterwards(code: str, *arguments: str) -> list[str]:
    """The lines of a command, and of code that runs after it in its process."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {MAIN}; main(); {code}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["watch", "record"])
def test_ctrl_c_while_modules_are_loaded(name: str) -> None:
    modules = int(run(0, name).stdout)
    assert modules > 5
    for number in (1, modules // 2, modules):
        result = run(number, name)
        assert (result.returncode, result.stdout) == (130, ""), (number, result.stderr)
        assert result.stderr == "mmscope: interrupted\n"


def test_page_owner_starts_without_libraries(tmp_path: Path) -> None:
    for position in range(2):
        text = f"handle: 1\nnr_base_pages: {position + 5}\n\n"
        (tmp_path / f"show_handles.{position}").write_text(text)
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    lines = afterwards(
        "print(sorted({'numpy', 'drgn', 'rich', 'duckdb'} & sys.modules.keys()))",
        *("page-owner", "--interval", "60", *files),
    )
    assert lines[-1] == "[]"
    assert any("handle 1" in line for line in lines)


def test_one_section_is_shown_without_the_probes_of_others() -> None:
    lines = afterwards(
        "print(sorted(name for name in sys.modules if name.startswith('mmscope.drgn.rmap')))",
        *SHOW,
    )
    assert lines[-1] == "[]"
    assert any("nr_free_pages" in line for line in lines)


@pytest.mark.parametrize("command", ["doctor", "show zones --proc-root .", "collect -o bundle"])
def test_an_older_drgn_is_refused_in_a_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "drgn").mkdir()
    (tmp_path / "drgn/__init__.py").write_text("__version__ = '0.0.31'\n")
    done = subprocess.run(
        [sys.executable, "-m", "mmscope", *command.split()],
        cwd=tmp_path,  # first on the path
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (2, "")
    said = "mmscope: this is drgn 0.0.31, and 0.1.0 is needed: pip install 'drgn>=0.1.0'\n"
    assert done.stderr == said


def test_the_oldest_drgn_is_the_one_that_pip_is_told() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"drgn>={OLDEST_DRGN}" in project["dependencies"]
    assert too_old() is None


def test_closed_standard_files_cost_nothing(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m mmscope %s 0<&- 1>&- 2>&-"
    ran = subprocess.run(["sh", "-c", command % "--version"], cwd=ROOT)
    assert ran.returncode == 0
    folder = tmp_path / "bundle"
    words = f"collect --proc-root tests/data/7.2 --only zones -o {folder}"
    assert subprocess.run(["sh", "-c", command % words], cwd=ROOT).returncode == 0
    assert (folder / "zones.csv").read_text().startswith("node,zone")
