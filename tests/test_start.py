# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Ctrl-C while a command starts ends it with 130, whichever module is being loaded.

The process sends itself SIGINT when its N-th module begins to be loaded (PEP 578's audit events),
so that each run is the same. Before that, while Python itself starts, nothing of mmscope runs.
"""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import children
import pytest
from command_line import ROOT

from mmscope.drgn.opening import quick_start
from mmscope.reports.commands import command, start

SCRIPT = """
import os, signal, sys, weakref
from mmscope.reports.commands import start

left, how = int(sys.argv.pop(1)), sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.SIG_IGN if how == "ignored" else signal.default_int_handler)

class Something:
    pass

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):  # the handler runs within
        pass

def step(event, given):
    global left
    if event == "import":
        left -= 1
        if left == 0 and how == "callback":
            # Python prints what is raised in there, and forgets it.
            something = Something()
            kept = weakref.ref(something, interrupt)
            del something
        elif left == 0:
            interrupt()

sys.addaudithook(step)
if how == "count":
    start._command()
    print(-left)
else:
    sys.exit(start.main())
"""
MAIN = "from mmscope.reports.commands.start import main"
SHOW = ("show", "vm_counters", "--proc-root", "tests/data/7.2")
COMMANDS = ("doctor", "watch", "record")  # each is loaded in its own way


def run(number: int, how: str, name: str) -> "subprocess.CompletedProcess[str]":
    return children.run(
        [sys.executable, "-c", SCRIPT, str(number), how, name, "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def afterwards(code: str, *arguments: str) -> list[str]:
    """The lines of a command, and of code that runs behind it in its process."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {MAIN}; main(); {code}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_while_modules_are_loaded(name: str) -> None:
    modules = int(run(0, "count", name).stdout)
    assert modules > 5
    for number in (1, modules // 2, modules):
        for how in ("plain", "callback"):
            result = run(number, how, name)
            assert (result.returncode, result.stdout) == (130, ""), (number, how, result.stderr)
            assert result.stderr == "mmscope: interrupted\n"


def test_where_sigint_is_ignored_it_stays_so() -> None:
    result = run(20, "ignored", "doctor")
    assert result.returncode == 0 and result.stdout.startswith("usage: mmscope doctor")


def test_between_loading_and_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(asked_for: list[str]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command, "build_parser", interrupted)
    monkeypatch.setattr(sys, "argv", ["mmscope", "doctor"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert start.main() == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "mmscope: interrupted\n"


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


def test_a_command_loads_what_it_needs_itself() -> None:
    lines = afterwards(
        "print(sorted(name for name in sys.modules if name in {"
        "'mmscope.reports.bundle.redact', 'mmscope.reports.bundle.writer', "
        "'mmscope.reports.guard.options', 'drgn.helpers.linux.block'})); "
        # What nobody asked for is still to be had.
        "from drgn.helpers.linux import for_each_disk; print(for_each_disk.__module__)",
        *SHOW,
    )
    assert lines[-2:] == ["[]", "drgn.helpers.linux.block"]


def test_plugins_of_others_are_left_to_drgn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def declare(folder: str, text: str) -> None:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "entry_points.txt").write_text(text)

    def said() -> str:
        monkeypatch.delenv("DRGN_DISABLE_PLUGINS", raising=False)
        quick_start.leave_out_plugins()
        return os.environ["DRGN_DISABLE_PLUGINS"]

    ours = ",".join(quick_start.COMMANDS_OF_SESSIONS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    declare("drgn-1.dist-info", "[console_scripts]\nx = y\n[drgn.plugins]\nbuiltin_commands = z\n")
    assert said() == "*"
    declare("other-1.egg-info", "[drgn.plugins]\nfinds_symbols = other\n\n[more]\nx = y\n")
    assert said() == ours
    (tmp_path / "other-1.egg-info/entry_points.txt").unlink()
    assert said() == "*"
    # Nobody knows what is in there.
    (tmp_path / "archive.zip").touch()
    sys.path.append(str(tmp_path / "archive.zip"))
    assert said() == ours
    monkeypatch.setenv("DRGN_DISABLE_PLUGINS", "mine")
    quick_start.leave_out_plugins()
    assert os.environ["DRGN_DISABLE_PLUGINS"] == "mine"


@pytest.mark.parametrize("command", ["doctor", "show zones --proc-root .", "collect -o bundle"])
def test_an_older_drgn_is_refused_in_a_line(command: str, tmp_path: Path) -> None:
    """By what needs it; findings do only until what the probes declare is kept."""
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


@pytest.mark.parametrize("name, behind", [("findings", ""), ("show", "ended\n")])
def test_what_reads_bundles_leaves_nothing_to_pythons_end(
    name: str, behind: str, tmp_path: Path
) -> None:
    ending = (
        f"import atexit, sys; {MAIN.replace('main', 'process')}; atexit.register(print, 'ended')"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{ending}; sys.exit(process())", name, tmp_path / "none"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, behind)
    assert done.stderr.startswith("mmscope: ")


def test_the_oldest_drgn_is_the_one_that_pip_is_told() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"drgn>={quick_start.OLDEST_DRGN}" in project["dependencies"]
    assert quick_start.too_old() is None
