# SPDX-License-Identifier: LGPL-2.1-or-later
"""What /etc/mmscope.toml sets once, what of it is refused, and in which words."""

import argparse
import os
from pathlib import Path

import pytest
from command_line import run

from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.commands.command import DECLARED, build_parser
from mmscope.reports.commands.host_settings import EVERYWHERE, INSTEAD, TABLES, apply, parsers


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mmscope.toml"
    monkeypatch.setenv(INSTEAD, str(path))
    return path


def parsed(*words: str) -> argparse.Namespace:
    parser = build_parser(words[:1])
    apply(parser, words[0])
    return parser.parse_args(words)


def test_a_host_sets_options_once(file: Path) -> None:
    file.write_text(
        "redact = true\nmode = 640\ncpu-budget = 7.5\n[guard]\nlimit = 2048\nno-profile = true\n"
        "output = '/srv/incidents'\ntriggers = ['/etc/mmscope/triggers']\n"
    )
    collect = parsed("collect", "-o", "case")
    assert (collect.redact, collect.mode, collect.cpu_budget) == (True, 0o640, 7.5)
    guard = parsed("guard", "run")
    assert (guard.limit, guard.profile, guard.output) == (2048.0, False, Path("/srv/incidents"))
    assert guard.triggers == [Path("/etc/mmscope/triggers")] and guard.interval == 5
    assert parsed("guard", "crash").limit == 2048.0
    assert parsed("report", "case").redact and not hasattr(parsed("findings", "case"), "redact")


def test_what_is_typed_goes_before_it(file: Path) -> None:
    file.write_text("redact = true\nmode = '640'\n[guard]\ntriggers = ['a']\nlimit = 9\n")
    collect = parsed("collect", "-o", "case", "--no-redact", "--mode", "644")
    assert (collect.redact, collect.mode) == (False, 0o644)
    guard = parsed("guard", "run", "--triggers", "b", "--limit", "8")
    assert (guard.triggers, guard.limit) == ([Path("a"), Path("b")], 8.0)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("redakt = true", "'redakt' is no key of settings of all commands; did you mean redact?"),
        ("[gaurd]", "'gaurd' is no key of settings of all commands; did you mean [guard]?"),
        ("[guard]\nlimits = 3", "'limits' is no key of [guard]; did you mean limit?"),
        ("[guard]\nlimit = 'much'", "--limit: invalid value 'much'"),
        ("[guard]\nlimit = [3]", "limit: is one text or number, not [3]"),
        ("[guard]\ntriggers = 'a'", "triggers: is a list, not 'a'"),
        ("[guard]\ntext = 1", "text: is true or false, not 1"),
        ("guard = 1", "guard: is a table: [guard]"),
        ("[guard", "Expected ']' at the end of a table declaration (at end of document)"),
        ("limit = " + "[" * 9999, "maximum recursion"),
        ("limit = 3", "'limit' is no key of settings of all commands: there are cpu-budget, mode"),
    ],
)
def test_what_no_option_takes_is_one_line(file: Path, said: str, words: str) -> None:
    file.write_text(said)
    done = run("guard", "trigger", "-o", file.parent)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"mmscope: {file}: {words}")


def test_a_file_that_others_may_change_is_not_used(file: Path) -> None:
    file.write_text("redact = false\n")
    file.chmod(0o666)
    with pytest.raises(UsageError, match="may be written to by others, and is not used; MMSCOPE"):
        parsed("collect", "-o", "case")
    file.unlink()
    file.symlink_to("elsewhere.toml")
    with pytest.raises(UsageError, match="is not a plain file"):
        parsed("collect", "-o", "case")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="is not a plain file"):
        parsed("collect", "-o", "case")


def test_without_a_file_options_are_as_they_are(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed("guard", "run").limit == 512.0
    file.write_text("[guard]\nlimit = 1\n")
    monkeypatch.setenv(INSTEAD, "")
    assert parsed("guard", "run").limit == 512.0


def test_each_key_is_an_option() -> None:
    every = {name for word in DECLARED for one in parsers(build_parser([word])) for name in
             one._option_string_actions}  # fmt: skip
    guard = {n for one in parsers(build_parser(["guard"])) for n in one._option_string_actions}
    assert {f"--{key}" for key in EVERYWHERE} <= every
    assert {f"--{key}" for key in TABLES["guard"]} <= guard
